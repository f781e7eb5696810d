/* Scaled dot-product attention, one block of queries after the other, with a running softmax over tiles of keys.
 *
 * The matrix of scores never exists: the softmax of a tile is rescaled when a later tile has a larger maximum (Milakov
 * and Gimelshein, "Online normalizer calculation for softmax", 2018; tiling as in Dao et al., "FlashAttention", 2022).
 *
 * Blocks of queries lie across the lanes of vectors: the queries are transposed once, scores^T = K Q^T and result^T =
 * V^T scores^T then take single elements of K and V where these lie, in any stride, and every step of the softmax runs
 * lane by lane. The few queries of a decoding step would leave lanes empty; they go one by one, with vectors along the
 * depth (`by_row`). At depth 64 a block and a tile of K and V take 80 KiB. */
#include "eltwise/gp_sink.h"
#include "core/gp_vmath.h"

#define LANES 64   /* queries of a block: rows of all matrices in scratch have this length */
#define TILE 64    /* keys of a tile */
#define ROWS 4     /* rows of a register block */
#if GP_VL == 16
#define VECTORS 4  /* vectors of a register block: 16 of 32 registers accumulate */
#else
#define VECTORS 2
#endif

enum { BATCH, HEAD, ROW, ELEMENT };

GP_RECORD(attention_params, {
    int64_t batch, heads, heads_per_kv, queries, keys, depth, value_depth;
    int64_t q[4], k[4], v[4], dst[4], additive[4], boolean[4];      /* strides of batch, head, row, element */
    int64_t by_row, block;                                      /* block: queries of a task */
    int64_t is_causal, causal_offset;                           /* query i sees the keys up to i + causal_offset */
    int64_t is_divisor, has_cap, inf_as_zero, has_program;
    int64_t scale_arg, cap_arg, additive_arg, boolean_arg, dst_arg;  /* their arguments; -1 for none */
    float scale, cap, fill;                                     /* fill: score where the boolean mask is false */
});

/* One task. Pointers are at its first query; the masks' may be NULL. */
typedef struct {
    const float *q, *k, *v, *additive;
    const uint8_t *boolean;
    int64_t first, n, keys;  /* queries first .. first + n - 1; keys that any of them sees */
    int64_t dst;
    float scale, cap;
} block;

static float get_scalar(void *const *args, int64_t index, float immediate)
{
    return index < 0 ? immediate : *(const float *)args[index];
}

static block get_block(const attention_params *p, void *const *args, int64_t task)
{
    const int64_t blocks = (p->queries + p->block - 1) / p->block, first = task % blocks * p->block;
    const int64_t head = task / blocks % p->heads, batch = task / blocks / p->heads, kv = head / p->heads_per_kv;
    const int64_t n = gp_min(p->block, p->queries - first), end = first + n + p->causal_offset;
    const float scale = get_scalar(args, p->scale_arg, p->scale);
    block b = {.first = first, .n = n, .scale = p->is_divisor ? 1 / scale : scale};
    b.q = (const float *)args[0] + batch * p->q[BATCH] + head * p->q[HEAD] + first * p->q[ROW];
    b.k = (const float *)args[1] + batch * p->k[BATCH] + kv * p->k[HEAD];
    b.v = (const float *)args[2] + batch * p->v[BATCH] + kv * p->v[HEAD];
    if (p->additive_arg >= 0)
        b.additive = (const float *)args[p->additive_arg] + batch * p->additive[BATCH] + head * p->additive[HEAD] +
                     first * p->additive[ROW];
    if (p->boolean_arg >= 0)
        b.boolean = (const uint8_t *)args[p->boolean_arg] + batch * p->boolean[BATCH] + head * p->boolean[HEAD] +
                    first * p->boolean[ROW];
    b.keys = !p->is_causal ? p->keys : end < 0 ? 0 : gp_min(p->keys, end);
    b.dst = batch * p->dst[BATCH] + head * p->dst[HEAD] + first * p->dst[ROW];
    b.cap = get_scalar(args, p->cap_arg, p->cap);
    return b;
}

/* ---- scores: cap and masks ------------------------------------------------------------------------------------- */

/* Scores s[j][i] of n keys from `key` on, for `queries` queries from number `query` of the block on; rows of `ld`. */
static void adjust_scores(const attention_params *p, const block *b, int64_t key, int64_t n, int64_t query,
                          int64_t queries, float *s, int64_t ld)
{
    const int64_t extent = (n - 1) * ld + queries;
    for (int64_t i = 0; p->has_cap && i < extent; i += GP_VL)
        gp_store_part(s + i, b->cap * gp_tanh(gp_load_some(s + i, extent - i) / b->cap), extent - i);
    for (int64_t j = 0; j < n; j++) {
        float *row = s + j * ld;
        if (b->additive) {
            const float *mask = b->additive + (key + j) * p->additive[ELEMENT] + query * p->additive[ROW];
            for (int64_t i = 0; i < queries; i++)
                row[i] += mask[i * p->additive[ROW]];
        }
        if (b->boolean) {
            const uint8_t *mask = b->boolean + (key + j) * p->boolean[ELEMENT] + query * p->boolean[ROW];
            for (int64_t i = 0; i < queries; i++)
                row[i] = mask[i * p->boolean[ROW]] ? row[i] : p->fill;
        }
        if (p->is_causal)
            for (int64_t i = 0; i < gp_min(queries, key + j - p->causal_offset - b->first - query); i++)
                row[i] = -INFINITY;
    }
}

/* ---- blocks of queries across lanes ---------------------------------------------------------------------------- */

/* Scratch of a block; matrices have rows of LANES. */
typedef struct {
    float *q, *scores, *result;  /* transposed: (depth, LANES), (TILE, LANES), (value_depth, LANES) */
    float *row;                  /* value_depth */
    double sum[LANES];
    float max[LANES], rescale[LANES];
    int64_t lanes;               /* n rounded up to whole vectors */
} lane_state;

/* c[r][i] = c[r][i] * rescale[i] + sum over k of a[r][k] b[k][i], for `rows` x `vectors` registers; c starts as 0
 * where rescale is NULL. a has any strides, b and c have rows of LANES. */
GP_INLINE void multiply_registers(const float *a, int64_t a_row, int64_t a_k, const float *b, int64_t n, float *c,
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

GP_INLINE void multiply_lanes(const float *a, int64_t a_row, int64_t a_k, const float *b, int64_t n, float *c,
                              const float *rescale, int64_t rows, const int vectors)
{
    int64_t r = 0;
    for (; r + ROWS <= rows; r += ROWS)
        multiply_registers(a + r * a_row, a_row, a_k, b, n, c + r * LANES, rescale, ROWS, vectors);
    for (; r < rows; r++)
        multiply_registers(a + r * a_row, a_row, a_k, b, n, c + r * LANES, rescale, 1, vectors);
}

static void multiply(const float *a, int64_t a_row, int64_t a_k, const float *b, int64_t n, float *c,
                     const float *rescale, int64_t rows, int64_t lanes)
{
    int64_t i = 0;
    for (; i + VECTORS * GP_VL <= lanes; i += VECTORS * GP_VL)
        multiply_lanes(a, a_row, a_k, b + i, n, c + i, rescale ? rescale + i : NULL, rows, VECTORS);
    for (; i < lanes; i += GP_VL)
        multiply_lanes(a, a_row, a_k, b + i, n, c + i, rescale ? rescale + i : NULL, rows, 1);
}

static void start_lanes(const attention_params *p, const block *b, float *scratch, lane_state *s)
{
    s->q = scratch;
    s->scores = s->q + p->depth * LANES;
    s->result = s->scores + TILE * LANES;
    s->row = s->result + p->value_depth * LANES;
    s->lanes = (b->n + GP_VL - 1) / GP_VL * GP_VL;
    for (int64_t k = 0; k < p->depth; k++)
        for (int64_t i = 0; i < s->lanes; i++)
            s->q[k * LANES + i] = i < b->n ? b->q[i * p->q[ROW] + k * p->q[ELEMENT]] * b->scale : 0;
    memset(s->result, 0, p->value_depth * LANES * sizeof *s->result);
    for (int64_t i = 0; i < LANES; i++) {
        s->max[i] = -INFINITY;
        s->sum[i] = 0;
    }
}

/* Turn the scores of n keys into exponentials; update maximum and sum, and say how to rescale what came before. */
static void exponentiate(lane_state *s, int64_t n)
{
    for (int64_t i = 0; i < s->lanes; i += GP_VL) {
        const gp_vf before = gp_load(s->max + i), least = gp_splat(-INFINITY);
        gp_vf max = before, part = {0};
        for (int64_t j = 0; j < n; j++)
            max = gp_vmax(gp_load(s->scores + j * LANES + i), max);
        /* nothing but -inf so far: its exponentials are 0, not NaN */
        const gp_vf shift = gp_vselect(gp_vequal(max, least), (gp_vf){0}, max), rescale = gp_exp_normal(before - shift);
        for (int64_t j = 0; j < n; j++) {
            float *score = s->scores + j * LANES + i;
            const gp_vf term = gp_exp_normal(gp_load(score) - shift);
            gp_store(score, term);
            part += term;
        }
        gp_store(s->max + i, max);
        gp_store(s->rescale + i, rescale);
        for (int64_t k = 0; k < GP_VL; k++)
            s->sum[i + k] = s->sum[i + k] * rescale[k] + part[k];
    }
}

/* 1 / sum: NaN results for a query that sees nothing, or zeros where these are wanted. */
static float get_inverse(const attention_params *p, double sum)
{
    return p->inf_as_zero && sum == 0 ? 0 : (float)(1 / sum);
}

static void attend_lanes(const attention_params *p, const block *b, const gp_sink *sink, float *scratch)
{
    lane_state s;
    start_lanes(p, b, scratch, &s);
    for (int64_t key = 0; key < b->keys; key += TILE) {
        const int64_t n = gp_min(TILE, b->keys - key);
        multiply(b->k + key * p->k[ROW], p->k[ROW], p->k[ELEMENT], s.q, p->depth, s.scores, NULL, n, s.lanes);
        adjust_scores(p, b, key, n, 0, b->n, s.scores, LANES);
        exponentiate(&s, n);
        multiply(b->v + key * p->v[ROW], p->v[ELEMENT], p->v[ROW], s.scores, n, s.result, s.rescale, p->value_depth,
                 s.lanes);
    }
    for (int64_t i = 0; i < b->n; i++) {
        const int64_t offset = b->dst + i * p->dst[ROW];
        const float inverse = get_inverse(p, s.sum[i]);
        float *row = gp_sink_row(sink, offset, p->dst[ELEMENT], s.row);
        for (int64_t c = 0; c < p->value_depth; c++)
            row[c] = s.result[c * LANES + i] * inverse;
        gp_emit(sink, row, p->value_depth, offset, p->dst[ELEMENT]);
    }
}

/* ---- single queries, vectors along the depth ------------------------------------------------------------------- */

static float dot(const float *a, const float *b, int64_t n)
{
    gp_vf sum[2] = {{0}, {0}};
    int64_t i = 0;
    for (; i + 2 * GP_VL <= n; i += 2 * GP_VL) {
        sum[0] = gp_vfma(gp_load(a + i), gp_load(b + i), sum[0]);
        sum[1] = gp_vfma(gp_load(a + i + GP_VL), gp_load(b + i + GP_VL), sum[1]);
    }
    for (; i + GP_VL <= n; i += GP_VL)
        sum[0] = gp_vfma(gp_load(a + i), gp_load(b + i), sum[0]);
    if (i < n)
        sum[1] = gp_vfma(gp_load_part(a + i, n - i, 0), gp_load_part(b + i, n - i, 0), sum[1]);
    return gp_lane_sum(sum[0] + sum[1]);
}

/* y = y * rescale + the sum of n rows of v, row j times weight[j] */
static void add_values(const float *v, int64_t stride, int64_t n, int64_t depth, const float *weight, float rescale,
                       float *y)
{
    for (int64_t c = 0; c < depth; c++)
        y[c] *= rescale;
    int64_t j = 0;
    for (; j + 4 <= n; j += 4) {
        const float *w = weight + j, *x = v + j * stride;
        for (int64_t c = 0; c < depth; c++)
            y[c] += (w[0] * x[c] + w[1] * x[stride + c]) + (w[2] * x[2 * stride + c] + w[3] * x[3 * stride + c]);
    }
    for (; j < n; j++)
        for (int64_t c = 0; c < depth; c++)
            y[c] += weight[j] * v[j * stride + c];
}

static void attend_row(const attention_params *p, const block *b, int64_t i, const gp_sink *sink, float *scratch)
{
    float *q = scratch, *row = q + p->depth, scores[TILE], max = -INFINITY;
    double sum = 0;
    for (int64_t k = 0; k < p->depth; k++)
        q[k] = b->q[i * p->q[ROW] + k * p->q[ELEMENT]] * b->scale;
    memset(row, 0, p->value_depth * sizeof *row);
    for (int64_t key = 0; key < b->keys; key += TILE) {
        const int64_t n = gp_min(TILE, b->keys - key);
        for (int64_t j = 0; j < n; j++)
            scores[j] = dot(q, b->k + (key + j) * p->k[ROW], p->depth);
        adjust_scores(p, b, key, n, i, 1, scores, 1);
        const float before = max, here = gp_row_max(scores, n);
        max = here > max ? here : max;
        const float shift = max == -INFINITY ? 0 : max, rescale = gp_exp_normal(gp_splat(before - shift))[0];
        sum = sum * rescale + gp_exp_row(scores, n, shift, scores);
        add_values(b->v + key * p->v[ROW], p->v[ROW], n, p->value_depth, scores, rescale, row);
    }
    const float inverse = get_inverse(p, sum);
    for (int64_t c = 0; c < p->value_depth; c++)
        row[c] *= inverse;
    gp_emit(sink, row, p->value_depth, b->dst + i * p->dst[ROW], p->dst[ELEMENT]);
}

GP_DEFINE_KERNEL(f32_attention)
{
    const attention_params *p = params;
    const gp_sink sink = gp_make_sink(p + 1, p->has_program, args + p->dst_arg);
    for (int64_t task = begin; task < end; task++) {
        const block b = get_block(p, args, task);
        for (int64_t i = 0; p->by_row && i < b.n; i++)
            attend_row(p, &b, i, &sink, scratch);
        if (!p->by_row)
            attend_lanes(p, &b, &sink, scratch);
    }
}

const gp_kernel_entry GP_KERNEL(attention_table)[] = {
    GP_ENTRY(f32_attention, attention_params),
    GP_TABLE_END,
};
