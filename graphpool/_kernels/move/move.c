/* Kernels that only move elements: strided copy, concatenation, triangles, positions along an axis. */
#include "move/gp_rows.h"

/* ---- copy: args src, dst ---- */

/* Axis 0 is the one with the least dst stride, axis 1 the one whose tiles go with it: where the src stride is least, or
 * the next one of dst. Work is numbered in tiles of tile[1] x tile[0] elements at every coordinate of the other axes. */
GP_RECORD(copy_params, {
    int64_t item_nbytes, ndim; /* ndim >= 2 */
    int64_t tile[2], tiles_per_task;
    int64_t ntiles;
    int64_t dims[GP_MAX_NDIM], src_strides[GP_MAX_NDIM], dst_strides[GP_MAX_NDIM]; /* strides in bytes */
});

typedef struct {
    const char *src;
    char *dst;
    int64_t n0, n1;                     /* extent along axis 0 and 1 */
    int64_t src0, src1, dst0, dst1;     /* strides in bytes */
} copy_tile;

/* Largest side of the squares that are turned at once, so that both sides are touched in whole cache lines: 32-bit words are
 * turned in registers, other elements go through a buffer in L1. */
#define GP_TURN 64

/* Of GP_VL vectors, rows of a square of words, its columns: first four by four within every 128 bits, where shuffles are
 * cheapest, then those fours among one another. */
GP_INLINE void turn_vectors(gp_vf *v)
{
    const gp_vi group = GP_LANE_NUMBERS & ~3, low = GP_LANE_NUMBERS & 1, high = GP_LANE_NUMBERS >> 1 & 1;
    const gp_vi words = group + high + low * GP_VL, pairs = group + low + high * GP_VL;
#pragma GCC unroll 4
    for (int i = 0; i < GP_VL; i += 4) {
        const gp_vf ab = gp_pick_both(v[i], v[i + 1], words), ab_high = gp_pick_both(v[i], v[i + 1], words + 2);
        const gp_vf cd = gp_pick_both(v[i + 2], v[i + 3], words), cd_high = gp_pick_both(v[i + 2], v[i + 3], words + 2);
        v[i] = gp_pick_both(ab, cd, pairs);
        v[i + 1] = gp_pick_both(ab, cd, pairs + 2);
        v[i + 2] = gp_pick_both(ab_high, cd_high, pairs);
        v[i + 3] = gp_pick_both(ab_high, cd_high, pairs + 2);
    }
#pragma GCC unroll 2
    for (int width = 4; width < GP_VL; width *= 2) {
        const gp_vi lanes = GP_LANE_NUMBERS + (((GP_LANE_NUMBERS & width) != 0) & (GP_VL - width));
#pragma GCC unroll 8
        for (int k = 0; k < GP_VL / 2; k++) {
            const int i = k / width * 2 * width + k % width;
            const gp_vf a = v[i], b = v[i + width];
            v[i] = gp_pick_both(a, b, lanes);
            v[i + width] = gp_pick_both(a, b, lanes + width);
        }
    }
}

/* rows x cols words, GP_VL each at most, from src to cols rows of dst. */
GP_INLINE void turn_square(const char *src, int64_t src_pitch, char *dst, int64_t dst_pitch, int64_t rows, int64_t cols)
{
    gp_vf v[GP_VL];
#pragma GCC unroll 16
    for (int i = 0; i < GP_VL; i++)
        v[i] = i < rows ? gp_load_some((const float *)(src + i * src_pitch), cols) : (gp_vf){0};
    turn_vectors(v);
#pragma GCC unroll 16
    for (int j = 0; j < GP_VL; j++)
        if (j < cols)
            gp_store_part((float *)(dst + j * dst_pitch), v[j], rows);
}

/* Words of a cache line. */
enum { LINE = 16 };

/* rows x cols words, a line of them each at most. Where a line takes several vectors, lines of dst are written whole:
 * those of a column often share a set of the cache, so that none stays there until its second half is known. */
GP_INLINE void turn_lines(const char *src, int64_t src_pitch, char *dst, int64_t dst_pitch, int64_t rows, int64_t cols)
{
    float lines[LINE][LINE];
    char *to = GP_VL < LINE ? (char *)lines : dst;
    const int64_t to_pitch = GP_VL < LINE ? (int64_t)sizeof lines[0] : dst_pitch;
    for (int64_t i = 0; i < rows; i += GP_VL)
        for (int64_t j = 0; j < cols; j += GP_VL)
            turn_square(src + i * src_pitch + j * 4, src_pitch, to + j * to_pitch + i * 4, to_pitch,
                        gp_min(rows - i, GP_VL), gp_min(cols - j, GP_VL));
    for (int64_t j = 0; GP_VL < LINE && j < cols; j++)
        for (int64_t i = 0; i < rows; i += GP_VL)
            gp_store_part((float *)(dst + j * dst_pitch) + i, gp_load(&lines[j][i]), rows - i);
}

/* A tile of 32-bit words in registers, so that no load waits for a store; rows of dst are written from end to end. */
static void turn_words(const copy_tile *t)
{
    for (int64_t j = 0; j < t->n1; j += LINE)
        for (int64_t i = 0; i < t->n0; i += LINE) {
            const char *src = t->src + i * t->src0 + j * 4;
            char *dst = t->dst + j * t->dst1 + i * 4;
            if (t->n0 - i >= LINE && t->n1 - j >= LINE)
                turn_lines(src, t->src0, dst, t->dst1, LINE, LINE);
            else
                turn_lines(src, t->src0, dst, t->dst1, gp_min(t->n0 - i, LINE), gp_min(t->n1 - j, LINE));
        }
}

/* Squares of elements of a type, of 16 bytes a side, by interleaving rows k and k + half as often as halves go into them.
 * A vector has rows of several squares that lie side by side, one in each 128 bits, within which interleaving is cheapest. */
enum { SIDE = 16 };

#define GP_TURN_SQUARES(name, type, count)                                                                             \
    typedef type row_##name __attribute__((vector_size(SIDE * (count))));                                              \
    GP_INLINE row_##name weave_##name(row_##name a, row_##name b, const int from)                                      \
    {                                                                                                                  \
        enum { N = SIDE / sizeof(type), ALL = N * (count) };                                                           \
        row_##name woven;                                                                                              \
        GP_WEAVE(row_##name)                                                                                           \
        return woven;                                                                                                  \
    }                                                                                                                  \
    GP_INLINE void turn_##name(const char *src, int64_t src_pitch, char *dst, int64_t dst_pitch)                       \
    {                                                                                                                  \
        enum { N = SIDE / sizeof(type) };                                                                              \
        row_##name v[N], woven[N];                                                                                     \
        _Pragma("GCC unroll 16") for (int i = 0; i < N; i++) memcpy(&v[i], src + i * src_pitch, sizeof v[i]);          \
        _Pragma("GCC unroll 4") for (int half = N / 2; half > 0; half /= 2)                                            \
        {                                                                                                              \
            _Pragma("GCC unroll 8") for (int k = 0; k < N / 2; k++)                                                    \
            {                                                                                                          \
                woven[2 * k] = weave_##name(v[k], v[k + N / 2], 0);                                                    \
                woven[2 * k + 1] = weave_##name(v[k], v[k + N / 2], N / 2);                                            \
            }                                                                                                          \
            _Pragma("GCC unroll 16") for (int i = 0; i < N; i++) v[i] = woven[i];                                      \
        }                                                                                                              \
        _Pragma("GCC unroll 4") for (int square = 0; square < (count); square++)                                       \
            _Pragma("GCC unroll 16") for (int i = 0; i < N; i++)                                                       \
                memcpy(dst + (square * N + i) * dst_pitch, (const char *)&v[i] + square * SIDE, SIDE);                 \
    }

/* Of each 128 bits of two vectors, elements from, from + 1, ... in turns. */
#if defined(__clang__)
#define GP_WEAVE(row)                                                                                                  \
    for (int i = 0; i < ALL; i++)                                                                                      \
        woven[i] = i & 1 ? b[i / N * N + from + i % N / 2] : a[i / N * N + from + i % N / 2];
#else
#define GP_WEAVE(row)                                                                                                  \
    row order = {0};                                                                                                   \
    _Pragma("GCC unroll 64") for (int i = 0; i < ALL; i++) order[i] = i / N * N + from + i % N / 2 + i % 2 * ALL;      \
    woven = __builtin_shuffle(a, b, order);
#endif

/* Squares of a vector. */
#define GP_SQUARES (4 * GP_VL / SIDE)

GP_TURN_SQUARES(square_uint8_t, uint8_t, 1)
GP_TURN_SQUARES(square_uint16_t, uint16_t, 1)
GP_TURN_SQUARES(square_uint32_t, uint32_t, 1)
GP_TURN_SQUARES(square_uint64_t, uint64_t, 1)
GP_TURN_SQUARES(squares_uint8_t, uint8_t, GP_SQUARES)
GP_TURN_SQUARES(squares_uint16_t, uint16_t, GP_SQUARES)
GP_TURN_SQUARES(squares_uint32_t, uint32_t, GP_SQUARES)
GP_TURN_SQUARES(squares_uint64_t, uint64_t, GP_SQUARES)

/* Few planes whose elements lie side by side on one side, as the channels of pixels do, are walked by loops that know how
 * many there are. */
#define GP_FEW_PLANES 4

#define GP_COPY_TILE(type)                                                                                             \
    GP_INLINE void split_##type(const type *restrict src, type *restrict first, type *restrict second,                 \
                                type *restrict third, type *restrict fourth, const int n, int64_t count)               \
    {                                                                                                                  \
        for (int64_t i = 0; i < count; i++) {                                                                          \
            first[i] = src[i * n];                                                                                     \
            second[i] = src[i * n + 1];                                                                                \
            if (n > 2)                                                                                                 \
                third[i] = src[i * n + 2];                                                                             \
            if (n > 3)                                                                                                 \
                fourth[i] = src[i * n + 3];                                                                            \
        }                                                                                                              \
    }                                                                                                                  \
    GP_INLINE void join_##type(type *restrict dst, const type *restrict first, const type *restrict second,            \
                               const type *restrict third, const type *restrict fourth, const int n, int64_t count)    \
    {                                                                                                                  \
        for (int64_t i = 0; i < count; i++) {                                                                          \
            dst[i * n] = first[i];                                                                                     \
            dst[i * n + 1] = second[i];                                                                                \
            if (n > 2)                                                                                                 \
                dst[i * n + 2] = third[i];                                                                             \
            if (n > 3)                                                                                                 \
                dst[i * n + 3] = fourth[i];                                                                            \
        }                                                                                                              \
    }                                                                                                                  \
    GP_INLINE void split_tile_##type(const copy_tile *t, const int n)                                                  \
    {                                                                                                                  \
        char *at = t->dst;                                                                                             \
        split_##type((const type *)t->src, (type *)at, (type *)(at + t->dst1), (type *)(at + 2 * t->dst1),             \
                     (type *)(at + 3 * t->dst1), n, t->n0);                                                            \
    }                                                                                                                  \
    GP_INLINE void join_tile_##type(const copy_tile *t, const int n)                                                   \
    {                                                                                                                  \
        const char *at = t->src;                                                                                       \
        join_##type((type *)t->dst, (const type *)at, (const type *)(at + t->src0), (const type *)(at + 2 * t->src0),  \
                    (const type *)(at + 3 * t->src0), n, t->n1);                                                       \
    }                                                                                                                  \
    static void turn_##type(const copy_tile *t)                                                                        \
    {                                                                                                                  \
        enum { N = SIDE / sizeof(type), WIDE = GP_SQUARES * N };                                                       \
        type square[GP_TURN][GP_TURN];                                                                                 \
        for (int64_t i = 0; i < t->n0; i += N)                                                                         \
            for (int64_t j = 0; j < t->n1; j += N) {                                                                   \
                const char *src = t->src + i * t->src0 + j * sizeof(type);                                             \
                if (t->n0 - i >= N && t->n1 - j >= WIDE) {                                                             \
                    turn_squares_##type(src, t->src0, (char *)&square[j][i], sizeof square[0]);                        \
                    j += WIDE - N;                                                                                     \
                    continue;                                                                                          \
                }                                                                                                      \
                if (t->n0 - i >= N && t->n1 - j >= N) {                                                                \
                    turn_square_##type(src, t->src0, (char *)&square[j][i], sizeof square[0]);                         \
                    continue;                                                                                          \
                }                                                                                                      \
                for (int64_t k = 0; k < gp_min(N, t->n0 - i); k++)                                                     \
                    for (int64_t l = 0; l < gp_min(N, t->n1 - j); l++)                                                 \
                        square[j + l][i + k] = ((const type *)(src + k * t->src0))[l];                                 \
            }                                                                                                          \
        if (t->n0 == GP_TURN) /* calls of memcpy would take as long as the rest */                                     \
            for (int64_t j = 0; j < t->n1; j++)                                                                        \
                memcpy(t->dst + j * t->dst1, square[j], sizeof square[j]);                                             \
        else                                                                                                           \
            for (int64_t j = 0; j < t->n1; j++)                                                                        \
                memcpy(t->dst + j * t->dst1, square[j], t->n0 * sizeof(type));                                         \
    }                                                                                                                  \
    static void fill_##type(const copy_tile *t)                                                                        \
    {                                                                                                                  \
        for (int64_t j = 0; j < t->n1; j++) {                                                                          \
            const type value = *(const type *)(t->src + j * t->src1);                                                  \
            type *dst = (type *)(t->dst + j * t->dst1);                                                                \
            for (int64_t i = 0; i < t->n0; i++)                                                                        \
                dst[i] = value;                                                                                        \
        }                                                                                                              \
    }                                                                                                                  \
    static void step_##type(const copy_tile *t)                                                                        \
    {                                                                                                                  \
        for (int64_t j = 0; j < t->n1; j++)                                                                            \
            for (int64_t i = 0; i < t->n0; i++)                                                                        \
                *(type *)(t->dst + j * t->dst1 + i * t->dst0) = *(const type *)(t->src + j * t->src1 + i * t->src0);   \
    }                                                                                                                  \
    static void copy_##type(const copy_tile *t)                                                                        \
    {                                                                                                                  \
        const int64_t item = sizeof(type);                                                                             \
        if (t->dst0 == item && t->src0 == item)                                                                        \
            gp_copy_rows(t->dst, t->dst1, t->src, t->src1, t->n0 * item, t->n1);                                          \
        else if (t->dst0 == item && t->src0 == 0 && (t->n0 > GP_FEW_PLANES || t->src1 != item))                        \
            fill_##type(t);                                                                                            \
        else if (t->dst0 != item || t->src1 != item)                                                                   \
            step_##type(t);                                                                                            \
        else if (t->n1 == 2 && t->src0 == 2 * item)                                                                    \
            split_tile_##type(t, 2);                                                                                   \
        else if (t->n1 == 3 && t->src0 == 3 * item)                                                                    \
            split_tile_##type(t, 3);                                                                                   \
        else if (t->n1 == 4 && t->src0 == 4 * item)                                                                    \
            split_tile_##type(t, 4);                                                                                   \
        else if (t->n0 == 2 && t->dst1 == 2 * item)                                                                    \
            join_tile_##type(t, 2);                                                                                    \
        else if (t->n0 == 3 && t->dst1 == 3 * item)                                                                    \
            join_tile_##type(t, 3);                                                                                    \
        else if (t->n0 == 4 && t->dst1 == 4 * item)                                                                    \
            join_tile_##type(t, 4);                                                                                    \
        else if (item == 4)                                                                                            \
            turn_words(t);                                                                                             \
        else if (t->n0 <= GP_TURN && t->n1 <= GP_TURN)                                                                 \
            turn_##type(t);                                                                                            \
        else                                                                                                           \
            step_##type(t);                                                                                            \
    }

GP_COPY_TILE(uint8_t)
GP_COPY_TILE(uint16_t)
GP_COPY_TILE(uint32_t)
GP_COPY_TILE(uint64_t)

/* Tiles one after the other: where one is, in elements along each axis, and what it takes of axes 0 and 1. */
typedef struct {
    copy_tile tile;
    int64_t at[GP_MAX_NDIM];
} copy_walk;

static int64_t tile_step(const copy_params *p, int64_t axis)
{
    return axis < 2 ? p->tile[axis] : 1;
}

static void cut_tile(const copy_params *p, copy_walk *walk)
{
    walk->tile.n0 = gp_min(p->tile[0], p->dims[0] - walk->at[0]);
    walk->tile.n1 = gp_min(p->tile[1], p->dims[1] - walk->at[1]);
}

static copy_walk locate_tile(const copy_params *p, void *const *args, int64_t tile)
{
    copy_walk walk = {.tile = {.src = args[0], .dst = args[1], .src0 = p->src_strides[0], .src1 = p->src_strides[1],
                               .dst0 = p->dst_strides[0], .dst1 = p->dst_strides[1]}};
    for (int64_t k = 0; k < p->ndim; k++) {
        const int64_t step = tile_step(p, k), count = (p->dims[k] + step - 1) / step;
        walk.at[k] = tile % count * step;
        tile /= count;
        walk.tile.src += walk.at[k] * p->src_strides[k];
        walk.tile.dst += walk.at[k] * p->dst_strides[k];
    }
    cut_tile(p, &walk);
    return walk;
}

/* The next one; no division a tile. */
static void step_tile_on(const copy_params *p, copy_walk *walk)
{
    for (int64_t k = 0; k < p->ndim; k++) {
        const int64_t step = tile_step(p, k);
        walk->at[k] += step;
        walk->tile.src += step * p->src_strides[k];
        walk->tile.dst += step * p->dst_strides[k];
        if (walk->at[k] < p->dims[k])
            break;
        walk->tile.src -= walk->at[k] * p->src_strides[k];
        walk->tile.dst -= walk->at[k] * p->dst_strides[k];
        walk->at[k] = 0;
    }
    cut_tile(p, walk);
}

GP_DEFINE_KERNEL(any_copy)
{
    const copy_params *p = params;
    const int64_t last = gp_min(end * p->tiles_per_task, p->ntiles);
    if (args[0] == args[1] && memcmp(p->src_strides, p->dst_strides, p->ndim * sizeof *p->dims) == 0)
        return; /* where states grow in place */
    int64_t tile = begin * p->tiles_per_task;
    if (tile >= last)
        return;
    copy_walk walk = locate_tile(p, args, tile);
    for (; tile < last; tile++, step_tile_on(p, &walk))
        switch (p->item_nbytes) {
        case 1: copy_uint8_t(&walk.tile); break;
        case 2: copy_uint16_t(&walk.tile); break;
        case 4: copy_uint32_t(&walk.tile); break;
        case 8: copy_uint64_t(&walk.tile); break;
        }
}

/* ---- concat: args in_0 .. in_(n-1), dst ---- */

#define GP_MAX_CONCAT 64

/* Every input is `nrows` rows of bytes, which lie side by side in a row of dst. */
GP_RECORD(concat_params, {
    int64_t ninputs, nrows, row_nbytes, dst_pitch; /* row_nbytes: of all inputs together */
    int64_t task_nbytes;
    int64_t ends[GP_MAX_CONCAT];    /* where an input ends in a row of dst */
    int64_t pitches[GP_MAX_CONCAT]; /* bytes from one row of an input to the next */
});

/* Bytes of dst that are written at once, so that they stay in L1 while one input after another comes. */
#define GP_CONCAT_NBYTES 16384

/* Bytes `column` to `stop` of one row. */
static void concat_part(const concat_params *p, void *const *args, int64_t row, int64_t column, int64_t stop)
{
    char *dst = (char *)args[p->ninputs] + row * p->dst_pitch;
    for (int64_t k = 0; column < stop; k++) {
        const int64_t start = k > 0 ? p->ends[k - 1] : 0, n = gp_min(p->ends[k], stop) - column;
        if (n > 0) {
            const char *src = (const char *)args[k] + row * p->pitches[k] + column - start;
            if (src != dst + column) /* else it grows in place */
                memcpy(dst + column, src, n);
            column += n;
        }
    }
}

GP_DEFINE_KERNEL(any_concat)
{
    const concat_params *p = params;
    int64_t at = begin * p->task_nbytes;
    const int64_t last = gp_min(end * p->task_nbytes, p->nrows * p->row_nbytes);
    if (at >= last)
        return;
    const int64_t column = at % p->row_nbytes;
    if (column) {
        const int64_t stop = gp_min(p->row_nbytes, column + last - at);
        concat_part(p, args, at / p->row_nbytes, column, stop);
        at += stop - column;
    }
    const int64_t end_row = last / p->row_nbytes, most = 1 + GP_CONCAT_NBYTES / p->row_nbytes;
    for (int64_t row = at / p->row_nbytes; row < end_row; row += most) {
        const int64_t nrows = gp_min(most, end_row - row);
        for (int64_t k = 0; k < p->ninputs; k++) {
            const int64_t start = k > 0 ? p->ends[k - 1] : 0;
            const char *src = (const char *)args[k] + row * p->pitches[k];
            char *dst = (char *)args[p->ninputs] + row * p->dst_pitch + start;
            if (src != dst || (nrows > 1 && p->pitches[k] != p->dst_pitch)) /* else it grows in place */
                gp_copy_rows(dst, p->dst_pitch, src, p->pitches[k], p->ends[k] - start, nrows);
        }
        at = (row + nrows) * p->row_nbytes;
    }
    if (at < last)
        concat_part(p, args, at / p->row_nbytes, 0, last - at);
}

/* ---- triangle: args src, dst (both dense matrices, one behind the other) ---- */

GP_RECORD(triangle_params, {
    int64_t nrows, height, width; /* rows of all matrices, and the extents of each, in elements */
    int64_t item_nbytes, task_rows;
    int64_t diagonal; /* of row r the column r + diagonal is the first that stays, or the last */
    int64_t is_upper;
});

GP_DEFINE_KERNEL(any_triangle)
{
    const triangle_params *p = params;
    const int64_t diagonal = gp_min(gp_max(p->diagonal, -p->height), p->width);
    const int64_t last = gp_min(end * p->task_rows, p->nrows), nbytes = p->width * p->item_nbytes;
    for (int64_t row = begin * p->task_rows; row < last; row++) {
        const int64_t first = row % p->height + diagonal + !p->is_upper;
        const int64_t split = gp_min(gp_max(first, 0), p->width) * p->item_nbytes;
        const char *src = (const char *)args[0] + row * nbytes;
        char *dst = (char *)args[1] + row * nbytes;
        if (p->is_upper) {
            memset(dst, 0, (size_t)split);
            memcpy(dst + split, src + split, (size_t)(nbytes - split));
        } else {
            memcpy(dst, src, (size_t)split);
            memset(dst + split, 0, (size_t)(nbytes - split));
        }
    }
}

/* ---- gen_index: args dst (s32, dense) ---- */

GP_RECORD(gen_index_params, {
    int64_t size, dim, inner, task_size; /* elements; inner: of the axes behind the numbered one */
});

GP_DEFINE_KERNEL(s32_gen_index)
{
    const gen_index_params *p = params;
    int32_t *dst = args[0];
    const int64_t last = gp_min(end * p->task_size, p->size);
    for (int64_t at = begin * p->task_size; at < last;) {
        const int32_t index = (int32_t)(at / p->inner % p->dim);
        const int64_t stop = gp_min((at / p->inner + 1) * p->inner, last);
        for (; at < stop; at++)
            dst[at] = index;
    }
}

const gp_kernel_entry GP_KERNEL(move_table)[] = {
    GP_ENTRY(any_copy, copy_params),
    GP_ENTRY(any_concat, concat_params),
    GP_ENTRY(s32_gen_index, gen_index_params),
    GP_ENTRY(any_triangle, triangle_params),
    GP_NUMBER(GP_TURN),
    GP_NUMBER(GP_FEW_PLANES),
    GP_NUMBER(GP_MAX_CONCAT),
    GP_TABLE_END,
};
