/* The gradient of scaled dot-product attention, from the log-sum-exp of each query's scores.
 *
 *     P = exp(S - lse)   dP = dO V^T   dS = P (dP - rowsum(O dO))   dQ = dS K   dK = dS^T Q   dV = P^T dO
 *
 * No matrix of scores exists: tiles of P are computed again where they are needed (Dao et al., "FlashAttention", 2022;
 * Dao, "FlashAttention-2", 2023). A task owns a block of queries and sums dQ over tiles of keys, or owns a block of keys
 * and sums dK and dV over the heads that share them and tiles of queries; so every sum has one order, whatever the number
 * of threads, and seven products of tiles take the place of five. The owned side lies across the lanes of vectors. The
 * row sums of O dO are computed again for every tile as well: one term beside `LANES` of each product. */
#include "gemm/gp_attention.h"

#include <string.h>

GP_RECORD(attention_backward_params, {
    gp_attention scores;
    gp_side stats, result, d_result;  /* stats: log-sum-exp, f32; what the forward pass gave, and its gradient */
    gp_side d_q, d_k, d_v, d_scores;  /* d_scores: dS, where it is wanted */
    gp_scalar d_scale;                /* of dS on its way to dQ and dK */
    int64_t is_d_divisor, group;      /* neighbouring heads whose dK and dV are summed */
});

/* Scratch of a task; matrices have rows of LANES. `own` lie across lanes: q and dO, or k and v. */
typedef struct {
    float *own[2], *sum[2];  /* (depth or value_depth, LANES) each; sums of dQ, or of dK and dV */
    float *scores, *d_scores;
    float *room[2], *mask_room, *row;
    float delta[TILE], lse[TILE];  /* by query */
    uint8_t kept[TILE * LANES];
} state;

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

static const float ones[LANES] = {
    1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
    1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
};

static void divide_scratch(const gp_attention *p, float *scratch, state *t)
{
    const int64_t depth = p->depth > p->value_depth ? p->depth : p->value_depth;
    for (int i = 0; i < 2; i++) {
        t->own[i] = scratch + i * depth * LANES;
        t->sum[i] = scratch + (2 + i) * depth * LANES;
        t->room[i] = scratch + (4 + i) * depth * LANES;
    }
    t->scores = scratch + 6 * depth * LANES;
    t->d_scores = t->scores + TILE * LANES;
    t->mask_room = t->d_scores + TILE * LANES;
    t->row = t->mask_room + TILE * LANES;
}

static gp_rows get_rows(const gp_scores *s, const gp_side *side, int64_t batch, int64_t head, int64_t first, int64_t n,
                        int64_t depth, float *room)
{
    return gp_get_rows(side, s->args, gp_offset_of(side, batch, head, first), n, depth, room);
}

/* The gradient of the result at the queries of a tile, in room 0; delta and lse of them are set. */
static gp_rows start_queries(const attention_backward_params *p, const gp_scores *s, const gp_score_tile *t, state *st)
{
    const int64_t n = t->queries, depth = s->p->value_depth;
    const gp_rows d = get_rows(s, &p->d_result, t->batch, t->head, t->query, n, depth, st->room[0]);
    const gp_rows y = get_rows(s, &p->result, t->batch, t->head, t->query, n, depth, st->room[1]);
    const float *stats = (const float *)s->args[p->stats.arg] + gp_offset_of(&p->stats, t->batch, t->head, t->query);
    for (int64_t i = 0; i < TILE; i++) {
        const float *x = d.at + i * d.row, *own = y.at + i * y.row;
        float sum = 0;
        if (i < n && d.element == 1 && y.element == 1)
            sum = dot(x, own, depth);
        else
            for (int64_t c = 0; i < n && c < depth; c++)
                sum += x[c * d.element] * own[c * y.element];
        st->delta[i] = sum;
        st->lse[i] = i < n ? stats[i * p->stats.stride[ROW]] : 0;
    }
    return d;
}

/* Scores of a tile and gradients of their exponentials, to exponentials (after Dropout) and gradients of scores. */
static void differentiate(const gp_scores *s, const gp_score_tile *t, state *st)
{
    const int64_t rows = t->turned ? t->keys : t->queries, lanes = t->turned ? t->queries : t->keys;
    gp_adjust_scores(s, t, st->scores, LANES, st->mask_room);
    if (s->p->dropout_arg >= 0) {
        gp_draw(s, t, st->kept);
        gp_drop(s, t, st->kept, st->d_scores, LANES);
    }
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < lanes; i += GP_VL) {
            float *score = st->scores + r * LANES + i, *d = st->d_scores + r * LANES + i;
            const gp_vf lse = t->turned ? gp_load(st->lse + i) : gp_splat(st->lse[r]);
            const gp_vf delta = t->turned ? gp_load(st->delta + i) : gp_splat(st->delta[r]);
            const gp_vf weight = gp_exp_normal(gp_load(score) - lse);
            gp_store(score, weight);
            gp_store(d, weight * (gp_load(d) - delta));
        }
    if (s->p->dropout_arg >= 0)
        gp_drop(s, t, st->kept, st->scores, LANES);
}

/* Store n rows of sums, which lie across lanes, times a factor. */
static void store_rows(const gp_scores *s, const gp_side *side, int64_t offset, int64_t n, int64_t depth,
                       const float *sum, float factor, float *row)
{
    for (int64_t i = 0; i < n; i++) {
        for (int64_t c = 0; c < depth; c++)
            row[c] = sum[c * LANES + i] * factor;
        gp_store_row((int)side->dtype, row, s->args[side->arg], offset + i * side->stride[ROW],
                             side->stride[ELEMENT], depth);
    }
}

static int64_t count_lanes(int64_t n)
{
    return (n + GP_VL - 1) / GP_VL * GP_VL;
}

/* dQ of a block of queries. */
static void differentiate_queries(const attention_backward_params *p, const gp_scores *s, float d_scale, int64_t task,
                                  state *st)
{
    const gp_attention *a = s->p;
    const int64_t blocks = (a->queries + LANES - 1) / LANES, first = task % blocks * LANES;
    const int64_t batch = task / blocks / a->heads, head = task / blocks % a->heads, kv = head / a->heads_per_kv;
    gp_score_tile t = {batch, head, first, gp_min(LANES, a->queries - first), 0, 0, 1};
    const int64_t lanes = count_lanes(t.queries), keys = gp_count_visible(s, first + t.queries);
    gp_turn(start_queries(p, s, &t, st), t.queries, a->value_depth, 1, st->own[1]);
    gp_turn(get_rows(s, &a->q, batch, head, first, t.queries, a->depth, st->room[0]), t.queries, a->depth, s->scale,
            st->own[0]);
    memset(st->sum[0], 0, (size_t)(a->depth * LANES) * sizeof(float));
    for (t.key = 0; t.key < keys; t.key += TILE) {
        t.keys = gp_min(TILE, keys - t.key);
        const gp_rows k = get_rows(s, &a->k, batch, kv, t.key, t.keys, a->depth, st->room[0]);
        const gp_rows v = get_rows(s, &a->v, batch, kv, t.key, t.keys, a->value_depth, st->room[1]);
        gp_multiply(k, st->own[0], a->depth, st->scores, NULL, t.keys, lanes);
        gp_multiply(v, st->own[1], a->value_depth, st->d_scores, NULL, t.keys, lanes);
        differentiate(s, &t, st);
        gp_multiply(gp_turned(k), st->d_scores, t.keys, st->sum[0], ones, a->depth, lanes);
    }
    store_rows(s, &p->d_q, gp_offset_of(&p->d_q, batch, head, first), t.queries, a->depth, st->sum[0], d_scale, st->row);
}

/* dS of a tile whose rows are queries. */
static void store_scores(const attention_backward_params *p, const gp_scores *s, const gp_score_tile *t, state *st)
{
    const gp_side *side = &p->d_scores;
    const int64_t offset = gp_offset_of(side, t->batch, t->head, t->query) + t->key * side->stride[ELEMENT];
    for (int64_t i = 0; side->arg >= 0 && i < t->queries; i++)
        gp_store_row((int)side->dtype, st->d_scores + i * LANES, s->args[side->arg],
                             offset + i * side->stride[ROW], side->stride[ELEMENT], t->keys);
}

/* Add to dK and dV of the tile's keys what one head has to them. */
static void differentiate_head(const attention_backward_params *p, const gp_scores *s, gp_score_tile t, state *st)
{
    const gp_attention *a = s->p;
    const int64_t lanes = count_lanes(t.keys), hidden = t.key - s->causal_offset;  /* queries before see none of them */
    const int skips = s->hides_tiles && p->d_scores.arg < 0 && hidden > 0;
    for (t.query = skips ? hidden / TILE * TILE : 0; t.query < a->queries; t.query += TILE) {
        t.queries = gp_min(TILE, a->queries - t.query);
        const gp_rows d = start_queries(p, s, &t, st);
        const gp_rows q = get_rows(s, &a->q, t.batch, t.head, t.query, t.queries, a->depth, st->room[1]);
        gp_multiply(q, st->own[0], a->depth, st->scores, NULL, t.queries, lanes);
        gp_multiply(d, st->own[1], a->value_depth, st->d_scores, NULL, t.queries, lanes);
        differentiate(s, &t, st);
        store_scores(p, s, &t, st);
        gp_multiply(gp_turned(q), st->d_scores, t.queries, st->sum[0], ones, a->depth, lanes);
        gp_multiply(gp_turned(d), st->scores, t.queries, st->sum[1], ones, a->value_depth, lanes);
    }
}

/* dK and dV of a block of keys. */
static void differentiate_keys(const attention_backward_params *p, const gp_scores *s, float d_scale, int64_t task,
                               state *st)
{
    const gp_attention *a = s->p;
    const int64_t blocks = (a->keys + LANES - 1) / LANES, first = task % blocks * LANES, heads = a->heads / p->group;
    const int64_t n = gp_min(LANES, a->keys - first), batch = task / blocks / heads, own = task / blocks % heads;
    const int64_t kv = own * p->group / a->heads_per_kv;
    gp_turn(get_rows(s, &a->k, batch, kv, first, n, a->depth, st->room[0]), n, a->depth, s->scale, st->own[0]);
    gp_turn(get_rows(s, &a->v, batch, kv, first, n, a->value_depth, st->room[0]), n, a->value_depth, 1, st->own[1]);
    memset(st->sum[0], 0, (size_t)(a->depth * LANES) * sizeof(float));
    memset(st->sum[1], 0, (size_t)(a->value_depth * LANES) * sizeof(float));
    for (int64_t head = own * p->group; head < (own + 1) * p->group; head++)
        differentiate_head(p, s, (gp_score_tile){batch, head, 0, 0, first, n, 0}, st);
    store_rows(s, &p->d_k, gp_offset_of(&p->d_k, batch, own, first), n, a->depth, st->sum[0], d_scale, st->row);
    store_rows(s, &p->d_v, gp_offset_of(&p->d_v, batch, own, first), n, a->value_depth, st->sum[1], 1, st->row);
}

GP_DEFINE_KERNEL(f32_attention_backward)
{
    const attention_backward_params *p = params;
    const gp_attention *a = &p->scores;
    const gp_scores s = gp_make_scores(a, args);
    const float d_scale = gp_get_factor(&p->d_scale, p->is_d_divisor, args);
    const int64_t of_queries = a->batch * a->heads * ((a->queries + LANES - 1) / LANES);
    state st;
    divide_scratch(a, scratch, &st);
    for (int64_t task = begin; task < end; task++) {
        if (task < of_queries)
            differentiate_queries(p, &s, d_scale, task, &st);
        else
            differentiate_keys(p, &s, d_scale, task - of_queries, &st);
    }
}

const gp_kernel_entry GP_KERNEL(attention_backward_table)[] = {
    GP_ENTRY(f32_attention_backward, attention_backward_params),
    GP_TABLE_END,
};
