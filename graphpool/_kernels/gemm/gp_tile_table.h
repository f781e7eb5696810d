/* The tiles of a convolution by their height and by the panels that they read, as a table. Whoever includes this has
 * defined GP_DEFINE_TILE(rows, panels, vectors), which defines the function GP_TILE_NAME(rows, panels, vectors). */
#ifndef GP_TILE_TABLE_H
#define GP_TILE_TABLE_H

#include "gemm/gp_packed.h"

#define GP_TILE_NAME(rows, panels, vectors) tile_##rows##_##panels##_##vectors

#define GP_DEFINE_ROW(rows)                                                                                            \
    GP_DEFINE_TILE(rows, 1, 1)                                                                                         \
    GP_DEFINE_TILE(rows, 1, 2)                                                                                         \
    GP_DEFINE_TILE(rows, 2, 2)                                                                                         \
    GP_DEFINE_TILE(rows, 4, 2)

#define GP_TILE_ROW(rows)                                                                                              \
    {GP_TILE_NAME(rows, 1, 1), GP_TILE_NAME(rows, 1, 2), GP_TILE_NAME(rows, 2, 2), GP_TILE_NAME(rows, 4, 2)}

/* Defines the tiles, and `tiles`, functions of type `fn`: by rows less one, then half a panel, one, two and four. */
#define GP_DEFINE_TILES(fn)                                                                                            \
    GP_DEFINE_ROW(1)                                                                                                   \
    GP_DEFINE_ROW(2)                                                                                                   \
    GP_DEFINE_ROW(3)                                                                                                   \
    GP_DEFINE_ROW(4)                                                                                                   \
    GP_DEFINE_ROW(5)                                                                                                   \
    GP_DEFINE_ROW(6)                                                                                                   \
    static const fn tiles[GP_TILE_ROWS][4] = {GP_TILE_ROW(1), GP_TILE_ROW(2), GP_TILE_ROW(3),                          \
                                              GP_TILE_ROW(4), GP_TILE_ROW(5), GP_TILE_ROW(6)};

#endif
