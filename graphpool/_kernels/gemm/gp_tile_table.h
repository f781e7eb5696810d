/* Tiles of one type of words by their height and by the panels that they read, as a table. */
#ifndef GP_TILE_TABLE_H
#define GP_TILE_TABLE_H

#include "gemm/gp_packed.h"

#define GP_TILE_NAME(table, rows, panels, vectors) table##_##rows##_##panels##_##vectors

/* Tiles beyond the registers are never called and compile to nothing. */
#define GP_DEFINE_TILE(table, type, rows, panels, vectors, tile, parameters, ...)                                      \
    static __attribute__((noinline)) void GP_TILE_NAME(table, rows, panels, vectors) parameters                        \
    {                                                                                                                  \
        if (rows * panels * vectors <= GP_TILE_VECTORS)                                                                \
            tile(type, rows, panels, vectors, __VA_ARGS__);                                                            \
    }

#define GP_DEFINE_ROW(table, type, rows, ...)                                                                          \
    GP_DEFINE_TILE(table, type, rows, 1, 1, __VA_ARGS__)                                                               \
    GP_DEFINE_TILE(table, type, rows, 1, 2, __VA_ARGS__)                                                               \
    GP_DEFINE_TILE(table, type, rows, 2, 2, __VA_ARGS__)                                                               \
    GP_DEFINE_TILE(table, type, rows, 4, 2, __VA_ARGS__)

#define GP_TILE_ROW(table, rows)                                                                                       \
    {GP_TILE_NAME(table, rows, 1, 1), GP_TILE_NAME(table, rows, 1, 2), GP_TILE_NAME(table, rows, 2, 2),                \
     GP_TILE_NAME(table, rows, 4, 2)}

/* Defines a table of tiles, functions of type `fn`, by rows less one, then one vector, one panel, two and four. Behind the
 * type: the template of a tile, the parameters of the functions in parentheses, and their names, which it is given. */
#define GP_DEFINE_TILES(table, fn, type, ...)                                                                          \
    GP_DEFINE_ROW(table, type, 1, __VA_ARGS__)                                                                         \
    GP_DEFINE_ROW(table, type, 2, __VA_ARGS__)                                                                         \
    GP_DEFINE_ROW(table, type, 3, __VA_ARGS__)                                                                         \
    GP_DEFINE_ROW(table, type, 4, __VA_ARGS__)                                                                         \
    GP_DEFINE_ROW(table, type, 5, __VA_ARGS__)                                                                         \
    GP_DEFINE_ROW(table, type, 6, __VA_ARGS__)                                                                         \
    static const fn table[GP_TILE_ROWS][4] = {GP_TILE_ROW(table, 1), GP_TILE_ROW(table, 2), GP_TILE_ROW(table, 3),        \
                                              GP_TILE_ROW(table, 4), GP_TILE_ROW(table, 5), GP_TILE_ROW(table, 6)};

#endif
