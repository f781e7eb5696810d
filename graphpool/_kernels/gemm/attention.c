/* Scaled dot-product attention, one block of queries after the other, with a running softmax over tiles of keys.
 *
 * The matrix of scores never exists: the softmax of a tile is rescaled when a later tile has a larger maximum (Milakov
 * and Gimelshein, "Online normalizer calculation for softmax", 2018; tiling as in Dao et al., "FlashAttention", 2022).
 *
 * Blocks of queries lie across the lanes of vectors: the queries are transposed once, scores^T = K Q^T and result^T =
 * V^T scores^T then take single elements of K and V where these lie, in any stride, and every step of the softmax runs
 * lane by lane. The few queries of a decoding step would leave lanes empty; they go by rows, with vectors along the depth
 * (`by_row`), and read each tile of keys and values together. At depth 64 a block and a tile of K and V take 80 KiB;
 * operands of other types than f32 are converted a tile at a time. Probabilities that are rounded have to be complete:
 * sums are known after a first pass over the keys. A second pass rounds; scores of the first keys lie in a strip until
 * then, those of others are computed again. */
#include "core/gp_lanes.h"
#include "eltwise/gp_sink.h"
#include "gemm/gp_attention.h"

#define RESULTS 4  /* queries of a block whose results are put in rows at once */
#define FEW 8      /* queries that go by rows, at most */
#define TOGETHER 4 /* of them in registers */
#define SUMS (GP_VL == 16 ? 16 : 8) /* registers that accumulate results */

GP_RECORD(attention_params, {
    gp_attention scores;
    gp_side dst, stats, kept;           /* stats: log-sum-exp of each query's scores; kept: what Dropout keeps */
    int64_t by_row, block;              /* block: queries of a task */
    int64_t inf_as_zero, has_program;
    int64_t rounds, rounded_dtype, rounds_first;  /* probabilities become numbers of a type of one byte, and back */
    int64_t strip;                      /* keys of which scores have room, whole tiles; a tile where nothing rounds */
    float rounded_scale, zero_point, scale_back;
});

/* One task: the queries of a tile that begins at key 0, and the keys that any of them sees. */
typedef struct {
    gp_score_tile tile;
    int64_t kv, keys;
} block;

/* Room for what one task holds; matrices have rows of LANES. Where queries go by rows, these are rows of q and results, and
 * a tile of scores has a row of TILE for each of FEW queries. */
typedef struct {
    float *q, *strip, *result;            /* transposed: (depth, LANES), (strip, LANES), (value_depth, LANES) */
    float *scores;                        /* those of a tile, within the strip */
    float *row;                           /* value_depth of a query, or of RESULTS of them */
    float *k_room, *v_room, *mask_room;   /* a tile of each that is converted */
    uint8_t kept[TILE * LANES];
    double sum[LANES];
    float max[LANES], rescale[LANES];
    int64_t lanes;                        /* queries rounded up to whole vectors */
    int64_t held;                         /* keys whose scores stay until they are rounded */
} state;

static block get_block(const attention_params *params, const gp_scores *s, int64_t task)
{
    const gp_attention *p = s->p;
    const int64_t blocks = (p->queries + params->block - 1) / params->block, first = task % blocks * params->block;
    const int64_t head = task / blocks % p->heads, n = gp_min(params->block, p->queries - first);
    const gp_score_tile tile = {task / blocks / p->heads, head, first, n, 0, 0, 1};
    return (block){tile, head / p->heads_per_kv, gp_count_visible(s, first + n)};
}

static void divide_scratch(const attention_params *params, float *scratch, state *t)
{
    const gp_attention *p = &params->scores;
    const int64_t lanes = params->by_row ? FEW : LANES;
    t->held = !params->rounds ? 0 : p->keys <= params->strip ? p->keys : params->strip - TILE;
    t->q = scratch;
    t->strip = t->q + p->depth * lanes;
    t->result = t->strip + params->strip * lanes;
    t->row = t->result + (params->by_row ? 0 : p->value_depth * lanes);
    t->k_room = t->row + p->value_depth * (params->by_row ? FEW : RESULTS);
    t->v_room = t->k_room + (p->k.dtype == GP_F32 && p->q.dtype == GP_F32 ? 0 : p->depth * TILE);
    t->mask_room = t->v_room + (p->v.dtype == GP_F32 ? 0 : p->value_depth * TILE);
}

static gp_rows get_queries(const gp_scores *s, const block *b, state *t)
{
    const gp_score_tile *tile = &b->tile;
    const int64_t offset = gp_offset_of(&s->p->q, tile->batch, tile->head, tile->query);
    return gp_get_rows(&s->p->q, s->args, offset, tile->queries, s->p->depth, t->k_room);
}

static gp_rows get_keys(const gp_scores *s, const block *b, state *t)
{
    const int64_t offset = gp_offset_of(&s->p->k, b->tile.batch, b->kv, b->tile.key);
    return gp_get_rows(&s->p->k, s->args, offset, b->tile.keys, s->p->depth, t->k_room);
}

static gp_rows get_values(const gp_scores *s, const block *b, state *t)
{
    const int64_t offset = gp_offset_of(&s->p->v, b->tile.batch, b->kv, b->tile.key);
    return gp_get_rows(&s->p->v, s->args, offset, b->tile.keys, s->p->value_depth, t->v_room);
}

/* Dropout on a tile of exponentials, which are summed already; what it keeps is stored if that is wanted. */
static void drop(const attention_params *p, const gp_scores *s, const gp_score_tile *t, uint8_t *kept, float *m,
                 int64_t ld)
{
    if (s->p->dropout_arg < 0)
        return;
    gp_draw(s, t, kept);
    gp_drop(s, t, kept, m, ld);
    const int64_t *stride = p->kept.stride, offset = gp_offset_of(&p->kept, t->batch, t->head, t->query);
    for (int64_t i = 0; p->kept.arg >= 0 && i < t->queries; i++)
        for (int64_t j = 0; j < t->keys; j++)
            ((uint8_t *)s->args[p->kept.arg])[offset + i * stride[ROW] + (t->key + j) * stride[ELEMENT]] =
                kept[i * TILE + j];
}

/* 1 / sum: NaN results for a query that sees nothing, or zeros where these are wanted. */
static float get_inverse(const attention_params *p, double sum)
{
    return p->inf_as_zero && sum == 0 ? 0 : (float)(1 / sum);
}

/* A number of a type of one byte, and back. */
GP_INLINE float round_to(const int dtype, float x)
{
    return dtype == GP_F8_E4M3   ? gp_from_f8_e4m3(gp_to_f8_e4m3(x))
           : dtype == GP_F8_E5M2 ? gp_from_f8_e5m2(gp_to_f8_e5m2(x))
           : dtype == GP_S8      ? (float)gp_to_int(x, -128.0f, 127.0f)
                                 : (float)gp_to_int(x, 0.0f, 255.0f);
}

/* n exponentials to probabilities, these to numbers of a type, and back; `inverse` is that of the sum, or of sums. */
GP_INLINE void round_as(const attention_params *p, const float *inverse, const int is_one, float *row, int64_t n,
                        const int dtype)
{
    const float scale = p->rounded_scale, zero_point = p->zero_point, back = p->scale_back;
    const int64_t rounds_first = p->rounds_first;
    for (int64_t i = 0; i < n; i++) {
        const float x = row[i] * inverse[is_one ? 0 : i] / scale, y = rounds_first ? rintf(x) : x;
        row[i] = (round_to(dtype, y + zero_point) - zero_point) * back;
    }
}

GP_INLINE void round_row(const attention_params *p, const float *inverse, const int is_one, float *row, int64_t n)
{
    switch (p->rounded_dtype) {
    case GP_F8_E4M3: round_as(p, inverse, is_one, row, n, GP_F8_E4M3); break;
    case GP_F8_E5M2: round_as(p, inverse, is_one, row, n, GP_F8_E5M2); break;
    case GP_S8: round_as(p, inverse, is_one, row, n, GP_S8); break;
    default: round_as(p, inverse, is_one, row, n, GP_U8);
    }
}

/* Hand over what query i of the block computed: its row, and the logarithm of the sum of its exponentials. */
static void finish(const attention_params *p, const gp_scores *s, const gp_sink *sink, const block *b, int64_t i,
                   float *row, float max, double sum)
{
    const gp_score_tile *t = &b->tile;
    const int64_t query = t->query + i;
    gp_emit(sink, row, s->p->value_depth, gp_offset_of(&p->dst, t->batch, t->head, query), p->dst.stride[ELEMENT]);
    if (p->stats.arg >= 0)
        ((float *)s->args[p->stats.arg])[gp_offset_of(&p->stats, t->batch, t->head, query)] =
            sum != 0 ? (float)(max + log(sum)) : p->inf_as_zero ? -INFINITY : NAN;
}

/* ---- blocks of queries across lanes ---------------------------------------------------------------------------- */

static void start_lanes(const gp_scores *s, const block *b, state *t)
{
    t->lanes = (b->tile.queries + GP_VL - 1) / GP_VL * GP_VL;
    gp_turn(get_queries(s, b, t), b->tile.queries, s->p->depth, s->scale, t->q);
    memset(t->result, 0, s->p->value_depth * LANES * sizeof *t->result);
    for (int64_t i = 0; i < LANES; i++) {
        t->max[i] = -INFINITY;
        t->sum[i] = 0;
    }
}

/* The same lanes of the scores of `count` keys. */
GP_INLINE void add_exponentials(float *scores, const int count, gp_vf shift, gp_vf *sum)
{
    gp_vf term[4];
    GP_EACH(k, count)
        term[k] = gp_load(scores + k * LANES) - shift;
    gp_exp_below(term, count);
    GP_EACH(k, count) {
        gp_store(scores + k * LANES, term[k]);
        *sum += term[k];
    }
}

/* Nothing but -inf: its exponentials are 0, not NaN. */
GP_INLINE gp_vf get_shift(gp_vf max)
{
    return gp_vselect(gp_vequal(max, gp_splat(-INFINITY)), (gp_vf){0}, max);
}

/* Update the maximum by the scores of n keys, and say how to rescale what came before. */
static void find_maximum(state *s, int64_t n)
{
    for (int64_t i = 0; i < s->lanes; i += GP_VL) {
        const gp_vf before = gp_load(s->max + i);
        gp_vf max = before;
        for (int64_t j = 0; j < n; j++)
            max = gp_vmax(gp_load(s->scores + j * LANES + i), max);
        const gp_vf rescale = gp_exp_normal(before - get_shift(max));
        gp_store(s->max + i, max);
        gp_store(s->rescale + i, rescale);
        for (int64_t k = 0; k < GP_VL; k++)
            s->sum[i + k] *= rescale[k];
    }
}

/* Turn the scores of n keys into exponentials, and add them to the sum. */
static void exponentiate(state *s, int64_t n)
{
    for (int64_t i = 0; i < s->lanes; i += GP_VL) {
        const gp_vf shift = get_shift(gp_load(s->max + i));
        gp_vf part = {0};
        for (int64_t j = 0; j + 4 <= n; j += 4)
            add_exponentials(s->scores + j * LANES + i, 4, shift, &part);
        for (int64_t j = n & -4; j < n; j++)
            add_exponentials(s->scores + j * LANES + i, 1, shift, &part);
        for (int64_t k = 0; k < GP_VL; k++)
            s->sum[i + k] += part[k];
    }
}

/* The tile of keys that begins at `key`, with room for its scores; how many keys there are. */
static int64_t take_tile(block *b, int64_t key, int64_t lanes, state *t)
{
    b->tile.key = key;
    b->tile.keys = gp_min(TILE, b->keys - key);
    t->scores = t->strip + gp_min(key, t->held) * lanes;
    return b->tile.keys;
}

/* The scores of the tile of keys that begins at `key`; how many keys there are. */
static int64_t score_lanes(const gp_scores *s, block *b, int64_t key, state *t)
{
    const int64_t n = take_tile(b, key, LANES, t);
    gp_multiply(get_keys(s, b, t), t->q, s->p->depth, t->scores, NULL, n, t->lanes);
    gp_adjust_scores(s, &b->tile, t->scores, LANES, t->mask_room);
    return n;
}

/* Add the values of a tile, times its weights, to the result. */
static void add_tile(const gp_scores *s, const block *b, int64_t n, state *t)
{
    gp_multiply(gp_turned(get_values(s, b, t)), t->scores, n, t->result, t->rescale, s->p->value_depth, t->lanes);
}

static void attend_lanes(const attention_params *p, const gp_scores *s, block *b, const gp_sink *sink, state *t)
{
    float inverse[LANES];
    double sum[LANES];
    start_lanes(s, b, t);
    for (int64_t key = 0; key < b->keys; key += TILE) {
        const int64_t n = score_lanes(s, b, key, t);
        find_maximum(t, n);
        if (key < t->held)
            continue;
        exponentiate(t, n);
        drop(p, s, &b->tile, t->kept, t->scores, LANES);
        if (!p->rounds)
            add_tile(s, b, n, t);
    }
    for (int64_t key = 0; key < gp_min(t->held, b->keys); key += TILE)
        exponentiate(t, take_tile(b, key, LANES, t));
    for (int64_t i = 0; i < t->lanes; i++) {
        sum[i] = t->sum[i];
        inverse[i] = get_inverse(p, t->sum[i]);
        t->rescale[i] = 1;
    }
    for (int64_t key = 0; p->rounds && key < b->keys; key += TILE) {
        const int64_t n = key < t->held ? take_tile(b, key, LANES, t) : score_lanes(s, b, key, t);
        if (key >= t->held)
            exponentiate(t, n);
        for (int64_t j = 0; j < n; j++)
            round_row(p, inverse, 0, t->scores + j * LANES, t->lanes);
        add_tile(s, b, n, t);
    }
    const int64_t depth = s->p->value_depth;
    for (int64_t i = 0; i < b->tile.queries; i++) {
        const int64_t offset = gp_offset_of(&p->dst, b->tile.batch, b->tile.head, b->tile.query + i);
        const float *at = t->row + i % RESULTS * depth, factor = p->rounds ? 1 : inverse[i];
        float *row = gp_sink_row(sink, offset, p->dst.stride[ELEMENT], t->row + i % RESULTS * depth);
        if (i % RESULTS == 0)
            gp_transpose_rows((gp_rows){t->result + i, LANES, 1}, depth, RESULTS, t->row, depth);
        for (int64_t c = 0; c < depth; c++)
            row[c] = at[c] * factor;
        finish(p, s, sink, b, i, row, t->max[i], sum[i]);
    }
}

/* ---- few queries, vectors along the depth ----------------------------------------------------------------------- */

/* Rows of floats that are read next: while one operand is worked on, the other comes from memory. rows: 0 for none. */
typedef struct {
    const float *at;
    int64_t row, rows, count;
} ahead;

/* `rows` rows of keys or values, from `key` on. */
static ahead get_ahead(const gp_side *side, const gp_scores *s, const block *b, int64_t key, int64_t rows, int64_t count)
{
    if (side->dtype != GP_F32 || side->stride[ELEMENT] != 1 || rows <= 0)
        return (ahead){0};
    const int64_t offset = gp_offset_of(side, b->tile.batch, b->kv, key);
    return (ahead){(const float *)s->args[side->arg] + offset, side->stride[ROW], rows, count};
}

/* Asks for row j. */
GP_INLINE void fetch(const ahead *next, int64_t j)
{
    for (int64_t k = 0; j < next->rows && k < next->count; k += 16) /* a line */
        __builtin_prefetch(next->at + j * next->row + k);
}

/* sum[i * keys + j] += q[i][k] * k[j][k] for as many k as a vector has lanes, or `left` of them. */
GP_INLINE void multiply_lanes(const float *q, const float *k, int64_t stride, int64_t depth, const int rows,
                              const int keys, const int is_whole, int64_t left, gp_vf *sum)
{
    gp_vf x[TOGETHER];
    GP_EACH(i, rows)
        x[i] = is_whole ? gp_load(q + i * depth) : gp_load_part(q + i * depth, left, 0);
    GP_EACH(j, keys) {
        const gp_vf y = is_whole ? gp_load(k + j * stride) : gp_load_part(k + j * stride, left, 0);
        GP_EACH(i, rows)
            sum[i * keys + j] = gp_vfma(x[i], y, sum[i * keys + j]);
    }
}

/* The products of `rows` queries and `keys` keys: scores[i * TILE + j]. */
GP_INLINE void multiply_keys(const float *q, const float *k, int64_t stride, int64_t depth, const int rows,
                             const int keys, float *scores)
{
    gp_vf sum[GP_VL + TOGETHER] = {{0}};
    gp_vf *other = sum + (keys == 1 ? rows : 0); /* sums of one key would wait for each other */
    int64_t c = 0;
    for (; c + 2 * GP_VL <= depth; c += 2 * GP_VL) {
        multiply_lanes(q + c, k + c, stride, depth, rows, keys, 1, 0, sum);
        multiply_lanes(q + c + GP_VL, k + c + GP_VL, stride, depth, rows, keys, 1, 0, other);
    }
    if (c + GP_VL <= depth) {
        multiply_lanes(q + c, k + c, stride, depth, rows, keys, 1, 0, sum);
        c += GP_VL;
    }
    if (c < depth)
        multiply_lanes(q + c, k + c, stride, depth, rows, keys, 0, depth - c, sum);
    if (keys == 1) {
        GP_EACH(i, rows)
            scores[i * TILE] = gp_lane_sum(sum[i] + other[i]);
        return;
    }
    const gp_vf total = gp_across_lanes(0, sum);
    GP_EACH(i, rows)
        GP_EACH(j, keys)
            scores[i * TILE + j] = total[i * keys + j];
}

/* The scores of `rows` queries and n keys. */
GP_INLINE void score_keys(const float *q, gp_rows k, int64_t n, int64_t depth, const ahead *next, const int rows,
                          float *scores)
{
    const int keys = rows == 1 ? 1 : rows == 2 ? GP_VL / 2 : GP_VL / 4; /* one query reads memory in order */
    int64_t j = 0;
    for (; j + keys <= n; j += keys) {
        GP_EACH(i, keys)
            fetch(next, j + i);
        multiply_keys(q, k.at + j * k.row, k.row, depth, rows, keys, scores + j);
    }
    for (; j < n; j++) {
        fetch(next, j);
        multiply_keys(q, k.at + j * k.row, k.row, depth, rows, 1, scores + j);
    }
}

/* The scores of a block's queries, and of the keys that begin at `key`; how many keys there are. */
static int64_t score_rows(const gp_scores *s, block *b, int64_t key, state *t)
{
    const int64_t n = take_tile(b, key, FEW, t), depth = s->p->depth;
    const gp_rows k = get_keys(s, b, t);
    ahead next = get_ahead(&s->p->v, s, b, key, n, s->p->value_depth);
    for (int64_t i = 0, count; i < b->tile.queries; i += count, next.rows = 0) {
        count = gp_min(TOGETHER, b->tile.queries - i);
        const float *q = t->q + i * depth;
        float *scores = t->scores + i * TILE;
        switch (count) {
        case 4: score_keys(q, k, n, depth, &next, 4, scores); break;
        case 3: score_keys(q, k, n, depth, &next, 3, scores); break;
        case 2: score_keys(q, k, n, depth, &next, 2, scores); break;
        default: score_keys(q, k, n, depth, &next, 1, scores);
        }
    }
    gp_adjust_scores(s, &b->tile, t->scores, TILE, t->mask_room);
    return n;
}

/* Some columns of y: each row times its rescale + the sum of n rows of v, row j times weight[i * TILE + j]. */
GP_INLINE void add_columns(const float *v, int64_t stride, int64_t n, const float *weight, const float *rescale,
                           const ahead *next, const int rows, const int vectors, const int is_whole, int64_t left,
                           float *y, int64_t depth)
{
    gp_vf sum[TOGETHER][8];
    GP_EACH(i, rows)
        GP_EACH(c, vectors) {
            const float *at = y + i * depth + c * GP_VL;
            sum[i][c] = (is_whole ? gp_load(at) : gp_load_part(at, left, 0)) * rescale[i];
        }
    for (int64_t j = 0; j < n; j++) {
        fetch(next, j);
        GP_EACH(c, vectors) {
            const float *at = v + j * stride + c * GP_VL;
            const gp_vf x = is_whole ? gp_load(at) : gp_load_part(at, left, 0);
            GP_EACH(i, rows)
                sum[i][c] = gp_vfma(gp_splat(weight[i * TILE + j]), x, sum[i][c]);
        }
    }
    GP_EACH(i, rows)
        GP_EACH(c, vectors)
            gp_store_part(y + i * depth + c * GP_VL, sum[i][c], is_whole ? GP_VL : left);
}

GP_INLINE void add_values(gp_rows v, int64_t n, const float *weight, const float *rescale, ahead next, const int rows,
                          float *y, int64_t depth)
{
    const int vectors = rows == 1 && GP_VL < 16 ? 8 : rows <= 2 ? 4 : SUMS / 4;
    int64_t c = 0;
    for (; c + vectors * GP_VL <= depth; c += vectors * GP_VL, next.rows = 0)
        add_columns(v.at + c, v.row, n, weight, rescale, &next, rows, vectors, 1, 0, y + c, depth);
    for (; c + GP_VL <= depth; c += GP_VL, next.rows = 0)
        add_columns(v.at + c, v.row, n, weight, rescale, &next, rows, 1, 1, 0, y + c, depth);
    if (c < depth)
        add_columns(v.at + c, v.row, n, weight, rescale, &next, rows, 1, 0, depth - c, y + c, depth);
}

/* Add the values of a tile of n keys, times its weights, to the results of all queries. */
static void add_rows(const gp_scores *s, const block *b, int64_t n, ahead next, state *t)
{
    const int64_t depth = s->p->value_depth;
    const gp_rows v = get_values(s, b, t);
    for (int64_t i = 0, count; i < b->tile.queries; i += count, next.rows = 0) {
        count = gp_min(TOGETHER, b->tile.queries - i);
        const float *weight = t->scores + i * TILE, *rescale = t->rescale + i;
        float *y = t->row + i * depth;
        switch (count) {
        case 4: add_values(v, n, weight, rescale, next, 4, y, depth); break;
        case 3: add_values(v, n, weight, rescale, next, 3, y, depth); break;
        case 2: add_values(v, n, weight, rescale, next, 2, y, depth); break;
        default: add_values(v, n, weight, rescale, next, 1, y, depth);
        }
    }
}

/* Nothing but -inf: its exponentials are 0, not NaN. */
static float get_row_shift(const state *t, int64_t i)
{
    return t->max[i] == -INFINITY ? 0 : t->max[i];
}

/* Turn the scores of n keys into exponentials, and add them to the sums. */
static void exponentiate_rows(const block *b, int64_t n, state *t)
{
    for (int64_t i = 0; i < b->tile.queries; i++)
        t->sum[i] += gp_exp_row(t->scores + i * TILE, n, get_row_shift(t, i), t->scores + i * TILE);
}

static void start_rows(const gp_scores *s, const block *b, state *t)
{
    const int64_t depth = s->p->depth;
    const gp_rows x = get_queries(s, b, t);
    for (int64_t i = 0; i < b->tile.queries; i++) {
        for (int64_t k = 0; k < depth; k++)
            t->q[i * depth + k] = x.at[i * x.row + k * x.element] * s->scale;
        t->max[i] = -INFINITY;
        t->sum[i] = 0;
    }
    memset(t->row, 0, b->tile.queries * s->p->value_depth * sizeof *t->row);
}

static void attend_rows(const attention_params *p, const gp_scores *s, block *b, const gp_sink *sink, state *t)
{
    const int64_t rows = b->tile.queries, depth = s->p->value_depth;
    b->tile.turned = 0;
    start_rows(s, b, t);
    for (int64_t key = 0; key < b->keys; key += TILE) {
        const int64_t n = score_rows(s, b, key, t);
        for (int64_t i = 0; i < rows; i++) {
            const float before = t->max[i], here = gp_row_max(t->scores + i * TILE, n);
            t->max[i] = here > before ? here : before;
            t->rescale[i] = gp_exp_normal(gp_splat(before - get_row_shift(t, i)))[0];
            t->sum[i] *= t->rescale[i];
        }
        if (key < t->held)
            continue;
        exponentiate_rows(b, n, t);
        drop(p, s, &b->tile, t->kept, t->scores, TILE);
        if (!p->rounds)
            add_rows(s, b, n, get_ahead(&s->p->k, s, b, key + n, gp_min(TILE, b->keys - key - n), s->p->depth), t);
    }
    for (int64_t key = 0; key < gp_min(t->held, b->keys); key += TILE)
        exponentiate_rows(b, take_tile(b, key, FEW, t), t);
    float inverse[FEW];
    for (int64_t i = 0; i < rows; i++) {
        inverse[i] = get_inverse(p, t->sum[i]);
        t->rescale[i] = 1;
    }
    for (int64_t key = 0; p->rounds && key < b->keys; key += TILE) {
        const int64_t n = key < t->held ? take_tile(b, key, FEW, t) : score_rows(s, b, key, t);
        for (int64_t i = 0; i < rows; i++) {
            float *row = t->scores + i * TILE;
            if (key >= t->held)
                gp_exp_row(row, n, get_row_shift(t, i), row);
            round_row(p, inverse + i, 1, row, n);
        }
        add_rows(s, b, n, (ahead){0}, t);
    }
    for (int64_t i = 0; i < rows; i++) {
        float *row = t->row + i * depth;
        for (int64_t c = 0; c < depth; c++)
            row[c] *= p->rounds ? 1 : inverse[i];
        finish(p, s, sink, b, i, row, t->max[i], t->sum[i]);
    }
}

GP_DEFINE_KERNEL(f32_attention)
{
    const attention_params *p = params;
    const gp_sink sink = gp_make_sink(p + 1, p->has_program, args + p->dst.arg);
    const gp_scores s = gp_make_scores(&p->scores, args);
    state t;
    divide_scratch(p, scratch, &t);
    for (int64_t task = begin; task < end; task++) {
        block b = get_block(p, &s, task);
        if (p->by_row)
            attend_rows(p, &s, &b, &sink, &t);
        else
            attend_lanes(p, &s, &b, &sink, &t);
    }
}

const gp_kernel_entry GP_KERNEL(attention_table)[] = {
    GP_INNER(gp_side),
    GP_INNER(gp_scalar),
    GP_INNER(gp_attention),
    GP_ENTRY(f32_attention, attention_params),
    GP_TABLE_END,
};
