/* What scaled dot-product attention and its gradient share: their operands, and tiles of the matrix of scores.
 *
 * That matrix never exists: a task holds a tile of TILE by LANES scores at a time. Tiles lie either way round: the side
 * of which a task has a block, queries or keys, lies across the lanes of vectors, the other one along the rows. */
#ifndef GP_ATTENTION_H
#define GP_ATTENTION_H

#include "core/gp_convert.h"
#include "core/gp_quad.h"
#include "core/gp_vmath.h"
#include "eltwise/gp_philox.h"

#define LANES 64   /* queries or keys of a block: rows of all matrices in scratch have this length */
#define TILE 64    /* keys or queries of a tile */
#define ROWS 4     /* rows of a register block */
#if GP_VL == 16
#define VECTORS 4  /* vectors of a register block: 16 of 32 registers accumulate */
#else
#define VECTORS 2
#endif

enum { BATCH, HEAD, ROW, ELEMENT };

/* A tensor among the arguments, -1 for none, and its strides over batch, head, row, element; with a scale that is not 0
 * elements stand for (element - zero_point) * scale. */
GP_RECORD(gp_side, {
    int64_t arg, dtype, stride[4];
    float scale, zero_point;
});

/* A number: an element among the arguments, or `value` where arg is -1. */
GP_RECORD(gp_scalar, {
    int64_t arg, dtype;
    float value;
});

GP_RECORD(gp_attention, {
    int64_t batch, heads, heads_per_kv, queries, keys, depth, value_depth;
    gp_side q, k, v, factor, additive, boolean;  /* v has rows of value_depth, the last three are (queries, keys) */
    gp_scalar scale, cap, fill;            /* fill: the score of keys that the boolean or causal mask hides */
    int64_t is_divisor, has_cap, is_causal, fills_first;  /* is_divisor: scale and factor */
    int64_t mask_hides;                    /* the boolean mask is true where a key is hidden */
    int64_t causal_offset, ahead_arg, behind_arg;  /* query i sees the keys up to i + offset [+ ahead] [- behind] */
    int64_t dropout_arg;                   /* seed, offset and probability; -1 for no dropout */
});

/* What holds for all tiles. */
typedef struct {
    const gp_attention *p;
    void *const *args;
    float scale, cap, fill, inverse_kept;
    int64_t causal_offset;
    int hides_tiles;  /* whether tiles behind the causal border are all -inf */
    uint64_t seed, offset;
    int64_t threshold;
} gp_scores;

/* Queries first .. first + queries - 1 of one head and as many keys; `turned` with the queries across lanes. */
typedef struct {
    int64_t batch, head, query, queries, key, keys;
    int turned;
} gp_score_tile;

/* A matrix of f32, strides in elements. */
typedef struct {
    const float *at;
    int64_t row, element;
} gp_rows;

static float gp_get_scalar(const gp_scalar *s, void *const *args)
{
    float x = s->value;
    if (s->arg >= 0)
        gp_load_row((int)s->dtype, &x, args[s->arg], 0, 1, 1);
    return x;
}

/* The factor that multiplying by the number, or dividing by it, stands for. */
static float gp_get_factor(const gp_scalar *s, int64_t is_divisor, void *const *args)
{
    const float x = gp_get_scalar(s, args);
    return is_divisor ? 1 / x : x;
}

static gp_scores gp_make_scores(const gp_attention *p, void *const *args)
{
    gp_scores s = {.p = p, .args = args, .causal_offset = p->causal_offset};
    s.scale = gp_get_factor(&p->scale, p->is_divisor, args);
    s.cap = gp_get_scalar(&p->cap, args);
    s.fill = gp_get_scalar(&p->fill, args);
    s.causal_offset += p->ahead_arg < 0 ? 0 : *(const int32_t *)args[p->ahead_arg];
    s.causal_offset -= p->behind_arg < 0 ? 0 : *(const int32_t *)args[p->behind_arg];
    if (p->fills_first) {
        s.fill *= s.scale;
        s.fill = p->has_cap ? s.cap * gp_tanh(gp_splat(s.fill / s.cap))[0] : s.fill;
    }
    s.hides_tiles = p->is_causal && s.fill == -INFINITY && !p->fills_first;
    if (p->dropout_arg >= 0) {
        const float probability = *(const float *)args[p->dropout_arg + 2];
        s.seed = (uint64_t)*(const int64_t *)args[p->dropout_arg];
        s.offset = (uint64_t)*(const int64_t *)args[p->dropout_arg + 1];
        s.threshold = gp_dropout_threshold(probability);
        s.inverse_kept = 1 / (1 - probability);
    }
    return s;
}

/* ---- operands as f32 ------------------------------------------------------------------------------------------- */

GP_INLINE int64_t gp_offset_of(const gp_side *s, int64_t batch, int64_t head, int64_t row)
{
    return batch * s->stride[BATCH] + head * s->stride[HEAD] + row * s->stride[ROW];
}

/* The numbers that n elements stand for. */
static void gp_dequantize(const gp_side *s, float *x, int64_t n)
{
    for (int64_t i = 0; s->scale != 0 && i < n; i += GP_VL)
        gp_store_part(x + i, (gp_load_some(x + i, n - i) - s->zero_point) * s->scale, n - i);
}

/* rows x cols elements from `offset` on: in place, or converted to `room` along the axis that is contiguous. */
static gp_rows gp_get_rows(const gp_side *s, void *const *args, int64_t offset, int64_t rows, int64_t cols, float *room)
{
    const int64_t row = s->stride[ROW], element = s->stride[ELEMENT];
    if (s->dtype == GP_F32)
        return (gp_rows){(const float *)args[s->arg] + offset, row, element};
    rows = row ? rows : 1;  /* what is broadcast is converted once */
    cols = element ? cols : 1;
    if (row == 1 && element != 1) {
        for (int64_t c = 0; c < cols; c++)
            gp_load_row((int)s->dtype, room + c * rows, args[s->arg], offset + c * element, 1, rows);
        gp_dequantize(s, room, rows * cols);
        return (gp_rows){room, 1, element ? rows : 0};
    }
    const int is_dense = element == 1 && row == cols;
    for (int64_t r = 0; r < (is_dense ? 1 : rows); r++)
        gp_load_row((int)s->dtype, room + r * cols, args[s->arg], offset + r * row, element, is_dense ? rows * cols : cols);
    gp_dequantize(s, room, rows * cols);
    return (gp_rows){room, row ? cols : 0, element != 0};
}

/* The transpose of n rows of `cols` elements: to[c * ld + i]. Squares of four by four in registers. */
static inline void gp_transpose_rows(gp_rows x, int64_t n, int64_t cols, float *to, int64_t ld)
{
    const int64_t whole = x.element == 1 ? n & -4 : 0, whole_cols = cols & -4;
    for (int64_t c = 0; c < whole_cols; c += 4)
        for (int64_t i = 0; i < whole; i += 4) {
            const float *at = x.at + i * x.row + c;
            float *row = to + c * ld + i;
            gp_transpose_quad(at, at + x.row, at + 2 * x.row, at + 3 * x.row, row, row + ld, row + 2 * ld, row + 3 * ld);
        }
    for (int64_t c = 0; c < cols; c++)
        for (int64_t i = c < whole_cols ? whole : 0; i < n; i++)
            to[c * ld + i] = x.at[i * x.row + c * x.element];
}

/* n rows of `depth` elements, times a factor, across lanes: to[c * LANES + i]; zeros up to whole vectors. */
static inline void gp_turn(gp_rows x, int64_t n, int64_t depth, float factor, float *to)
{
    gp_transpose_rows(x, n, depth, to, LANES);
    for (int64_t c = 0; c < depth; c++)
        for (int64_t i = 0; i < n; i += GP_VL)
            gp_store(to + c * LANES + i, gp_load_some(to + c * LANES + i, n - i) * factor);
}

/* ---- tiles of scores: cap, masks, dropout ---------------------------------------------------------------------- */

enum gp_change { GP_ADD, GP_MULTIPLY, GP_DIVIDE };

/* A tile of scores, m[r * ld + lane], and how a mask over queries and keys lies along it. */
typedef struct {
    int64_t rows, lanes, row, lane;
} gp_tile_sides;

GP_INLINE gp_tile_sides gp_get_sides(const gp_score_tile *t, int64_t query, int64_t key)
{
    if (t->turned)
        return (gp_tile_sides){t->keys, t->queries, key, query};
    return (gp_tile_sides){t->queries, t->keys, query, key};
}

/* Change n scores by as many numbers, or all by the first one. */
GP_INLINE void gp_change_row(const enum gp_change change, const float *by, const int is_one, int64_t n, float *row)
{
    const gp_vf one = gp_splat(*by);
    for (int64_t i = 0; i < n; i += GP_VL) {
        const gp_vf x = is_one ? one : gp_load_some(by + i, n - i), y = gp_load_some(row + i, n - i);
        gp_store_part(row + i, change == GP_ADD ? y + x : change == GP_MULTIPLY ? y * x : y / x, n - i);
    }
}

/* Add a mask to the scores, or multiply or divide them by one. */
GP_INLINE void gp_change_scores(const enum gp_change change, const gp_side *side, const gp_scores *s,
                                const gp_score_tile *t, float *m, int64_t ld, float *room)
{
    const int64_t offset = gp_offset_of(side, t->batch, t->head, t->query) + t->key * side->stride[ELEMENT];
    const gp_rows x = gp_get_rows(side, s->args, offset, t->queries, t->keys, room);
    const gp_tile_sides w = gp_get_sides(t, x.row, x.element);
    float turned[4 * LANES];
    for (int64_t r = 0; r < w.rows; r++) {
        const float *by = x.at + r * w.row;
        if (w.lane != 0 && w.lane != 1) {  /* neighbours lie in different rows, most often of a whole matrix */
            if (r % 4 == 0)
                gp_transpose_rows((gp_rows){by, w.lane, w.row}, w.lanes, gp_min(4, w.rows - r), turned, LANES);
            by = turned + r % 4 * LANES;
        }
        if (w.lane == 0)
            gp_change_row(change, by, 1, w.lanes, m + r * ld);
        else
            gp_change_row(change, by, 0, w.lanes, m + r * ld);
    }
}

/* Fill what a mask hides among n scores. */
GP_INLINE void gp_hide_row(const uint8_t *mask, const int64_t stride, const int hides, int64_t n, float fill, float *row)
{
    for (int64_t i = 0; i < n; i++)
        row[i] = (mask[i * stride] != 0) != hides ? row[i] : fill;
}

static void gp_hide(const gp_scores *s, const gp_score_tile *t, float *m, int64_t ld)
{
    const gp_side *side = &s->p->boolean;
    const gp_tile_sides w = gp_get_sides(t, side->stride[ROW], side->stride[ELEMENT]);
    const int64_t offset = gp_offset_of(side, t->batch, t->head, t->query) + t->key * side->stride[ELEMENT];
    const int hides = s->p->mask_hides != 0;
    for (int64_t r = 0; side->arg >= 0 && r < w.rows; r++) {
        const uint8_t *mask = (const uint8_t *)s->args[side->arg] + offset + r * w.row;
        if (w.lane == 1)
            gp_hide_row(mask, 1, hides, w.lanes, s->fill, m + r * ld);
        else if (w.lane != 0 || (*mask != 0) == hides)
            gp_hide_row(mask, w.lane, hides, w.lanes, s->fill, m + r * ld);
    }
    if (!s->p->is_causal)
        return;
    const int64_t rows = t->turned ? t->keys : t->queries, lanes = t->turned ? t->queries : t->keys;
    const int64_t border = s->causal_offset + t->query - t->key;  /* query i of the tile sees its keys up to i + border */
    for (int64_t r = 0; r < rows; r++) {
        const int64_t first = t->turned || r + border < 0 ? 0 : r + border + 1;
        const int64_t last = t->turned ? gp_min(lanes, r - border) : lanes;
        for (int64_t i = first; i < last; i++)
            m[r * ld + i] = s->fill;
    }
}

/* Products, with the scale in them, to scores: m[r * ld + lane] of the tile; room for TILE * LANES floats. */
static void gp_adjust_scores(const gp_scores *s, const gp_score_tile *t, float *m, int64_t ld, float *room)
{
    const int64_t rows = t->turned ? t->keys : t->queries, lanes = t->turned ? t->queries : t->keys;
    const int64_t extent = (rows - 1) * ld + lanes;
    if (s->p->factor.arg >= 0 && s->p->is_divisor)
        gp_change_scores(GP_DIVIDE, &s->p->factor, s, t, m, ld, room);
    else if (s->p->factor.arg >= 0)
        gp_change_scores(GP_MULTIPLY, &s->p->factor, s, t, m, ld, room);
    for (int64_t i = 0; s->p->has_cap && i < extent; i += GP_VL)
        gp_store_part(m + i, s->cap * gp_tanh(gp_load_some(m + i, extent - i) / s->cap), extent - i);
    if (s->p->fills_first)
        gp_hide(s, t, m, ld);
    if (s->p->additive.arg >= 0)
        gp_change_scores(GP_ADD, &s->p->additive, s, t, m, ld, room);
    if (!s->p->fills_first)
        gp_hide(s, t, m, ld);
}

/* How many keys the queries before `end` see, 0 .. keys. */
GP_INLINE int64_t gp_count_visible(const gp_scores *s, int64_t end)
{
    const int64_t seen = end + s->causal_offset;
    return !s->hides_tiles ? s->p->keys : seen < 0 ? 0 : gp_min(s->p->keys, seen);
}

/* Which of a tile Dropout keeps: kept[query * TILE + key]. */
static void gp_draw(const gp_scores *s, const gp_score_tile *t, uint8_t *kept)
{
    const int64_t head = t->batch * s->p->heads + t->head;
    for (int64_t i = 0; i < t->queries; i++) {
        const int64_t first = (head * s->p->queries + t->query + i) * s->p->keys + t->key, gap = first % 4;
        uint32_t words[TILE + 8];
        gp_philox_words((uint64_t)(first - gap), (int)((gap + t->keys + 3) / 4), s->seed, s->offset, words);
        for (int64_t j = 0; j < t->keys; j++)
            kept[i * TILE + j] = (int64_t)words[gap + j] > s->threshold;
    }
}

static void gp_drop(const gp_scores *s, const gp_score_tile *t, const uint8_t *kept, float *m, int64_t ld)
{
    const int64_t rows = t->turned ? t->keys : t->queries, lanes = t->turned ? t->queries : t->keys;
    const int64_t row = t->turned ? 1 : TILE, lane = t->turned ? TILE : 1;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < lanes; i++)
            m[r * ld + i] = kept[r * row + i * lane] ? m[r * ld + i] * s->inverse_kept : 0;
}

/* ---- products of tiles ----------------------------------------------------------------------------------------- */

/* c[r][i] = c[r][i] * rescale[i] + sum over k of a[r][k] b[k][i], for `rows` x `vectors` registers; c starts as 0
 * where rescale is NULL. a has any strides, b and c have rows of LANES. */
GP_INLINE void gp_multiply_registers(const float *a, int64_t a_row, int64_t a_k, const float *b, int64_t n, float *c,
                                     const float *rescale, const int rows, const int vectors)
{
    gp_vf sum[ROWS][VECTORS];
    GP_EACH(r, rows)
        GP_EACH(v, vectors)
            sum[r][v] = rescale ? gp_load(c + r * LANES + v * GP_VL) * gp_load(rescale + v * GP_VL) : (gp_vf){0};
    for (int64_t k = 0; k < n; k++) {
        gp_vf lane[VECTORS];
        GP_EACH(v, vectors)
            lane[v] = gp_load(b + k * LANES + v * GP_VL);
        GP_EACH(r, rows)
            GP_EACH(v, vectors)
                sum[r][v] = gp_vfma(gp_splat(a[r * a_row + k * a_k]), lane[v], sum[r][v]);
    }
    GP_EACH(r, rows)
        GP_EACH(v, vectors)
            gp_store(c + r * LANES + v * GP_VL, sum[r][v]);
}

GP_INLINE void gp_multiply_lanes(const float *a, int64_t a_row, int64_t a_k, const float *b, int64_t n, float *c,
                                 const float *rescale, int64_t rows, const int vectors)
{
    int64_t r = 0;
    for (; r + ROWS <= rows; r += ROWS) {
        /* rows of keys lie apart: nothing else fetches the next ones */
        for (int64_t next = r + ROWS; next < gp_min(r + 2 * ROWS, rows); next++)
            for (int64_t k = 0; k < n && a_k == 1; k += 16)
                __builtin_prefetch(a + next * a_row + k);
        gp_multiply_registers(a + r * a_row, a_row, a_k, b, n, c + r * LANES, rescale, ROWS, vectors);
    }
    for (; r < rows; r++)
        gp_multiply_registers(a + r * a_row, a_row, a_k, b, n, c + r * LANES, rescale, 1, vectors);
}

static void gp_multiply(gp_rows a, const float *b, int64_t n, float *c, const float *rescale, int64_t rows,
                        int64_t lanes)
{
    int64_t i = 0;
    for (; i + VECTORS * GP_VL <= lanes; i += VECTORS * GP_VL)
        gp_multiply_lanes(a.at, a.row, a.element, b + i, n, c + i, rescale ? rescale + i : NULL, rows, VECTORS);
    for (; i < lanes; i += GP_VL)
        gp_multiply_lanes(a.at, a.row, a.element, b + i, n, c + i, rescale ? rescale + i : NULL, rows, 1);
}

GP_INLINE gp_rows gp_turned(gp_rows x)
{
    return (gp_rows){x.at, x.element, x.row};
}

#endif
