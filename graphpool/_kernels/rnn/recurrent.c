/* Recurrent layers: what the states of LSTM, GRU and RNN, as ONNX defines them, become step by step.
 *
 * The inputs' part of the gates, x W^T of all steps, is given: one product. A step adds the state's part, by weights in
 * panels that stay in cache, the biases, and applies the activations, in f32. A task is a block of sequences of one
 * direction through all steps; its states and sums lie in scratch. A sequence's results do not depend on the others of
 * its block.
 *
 * Weights of 8 bits: the states of a step are quantised by the range of all sequences, as those of
 * DynamicQuantizeLinear, and multiplied as bytes; a block is then the whole batch.
 *
 * args: src, panels, biases, lengths, h, then what has a number below. */
#include "core/gp_vmath.h"
#include "gemm/gp_packed_tile.h"
#include "gemm/gp_quantize.h"

GP_ENUM(gp_cell, GP_CELL_RNN, GP_CELL_GRU, GP_CELL_LSTM);
GP_ENUM(gp_activation,
    GP_ACT_SIGMOID, GP_ACT_TANH, GP_ACT_RELU, GP_ACT_AFFINE, GP_ACT_LEAKYRELU, GP_ACT_THRESHOLDEDRELU,
    GP_ACT_SCALEDTANH, GP_ACT_HARDSIGMOID, GP_ACT_ELU, GP_ACT_SOFTSIGN, GP_ACT_SOFTPLUS
);

GP_RECORD(recurrent_params, {
    int64_t cell, gates, hidden;
    int64_t steps, batch, rows;         /* rows: sequences of a block */
    int64_t directions, is_reverse;     /* is_reverse: the first direction; a second one is */
    int64_t first, second;              /* columns of the product with the state; of that with the reset one (GRU) */
    int64_t weights_nbytes, second_at;  /* bytes of the panels of a direction; where those of `second` begin */
    int64_t nlengths, h_rows, c_rows;   /* for how many sequences there are lengths and states: for each, or 1 */
    int64_t is_coupled;                 /* LSTM: the forget gate is what the input gate leaves */
    int64_t c_arg, peepholes_arg, scales_arg, y_arg; /* zero points behind scales; last states behind y */
    int64_t pitch, state_pitch, words;  /* of rows of sums and of states, in floats; words of a row of bytes */
    float clip;
    int64_t activation[2][3];
    float alpha[2][3], beta[2][3];
});

typedef struct {
    const recurrent_params *p;
    void *const *args;
    int64_t direction, begin, rows; /* sequences */
    const char *panels;
    float *bias, *reset_bias;       /* of all gates, both parts; the state's part of the candidate, if that is reset */
    float *h, *c, *other, *sums;    /* other: a row of states for what is computed on the way */
    char *bytes;
} recurrent_task;

/* Vectors of n floats, the last one perhaps in part. */
#define GP_VECTORS(i, n) for (int64_t i = 0; i < (n); i += GP_VL)

#define GP_APPLY(name, value)                                                                                          \
    case name:                                                                                                         \
        GP_VECTORS(i, n)                                                                                               \
        {                                                                                                              \
            const gp_vf x = gp_vclamp(gp_load_some(v + i, n - i), lo, hi);                                             \
            gp_store_part(v + i, value, n - i);                                                                        \
        }                                                                                                              \
        break;

/* v = f(v), clipped before by `clip`; f is that of a direction and place. */
static void activate(const recurrent_task *t, int which, float clip, float *v, int64_t n)
{
    const recurrent_params *p = t->p;
    const gp_vf alpha = gp_splat(p->alpha[t->direction][which]), beta = gp_splat(p->beta[t->direction][which]);
    const gp_vf lo = gp_splat(-clip), hi = gp_splat(clip), zero = {0}, one = gp_splat(1.0f);
    switch (p->activation[t->direction][which]) {
        GP_APPLY(GP_ACT_SIGMOID, gp_sigmoid(x))
        GP_APPLY(GP_ACT_TANH, gp_tanh(x))
        GP_APPLY(GP_ACT_RELU, gp_vat_least(x, zero))
        GP_APPLY(GP_ACT_AFFINE, gp_vfma(alpha, x, beta))
        GP_APPLY(GP_ACT_LEAKYRELU, gp_vselect(gp_vless(x, zero), alpha * x, x))
        GP_APPLY(GP_ACT_THRESHOLDEDRELU, gp_vselect(gp_vless(alpha, x), x, zero))
        GP_APPLY(GP_ACT_SCALEDTANH, alpha * gp_tanh(beta * x))
        GP_APPLY(GP_ACT_HARDSIGMOID, gp_vclamp(gp_vfma(alpha, x, beta), zero, one))
        GP_APPLY(GP_ACT_ELU, gp_vselect(gp_vless(x, zero), alpha * gp_expm1(gp_vat_most(x, zero)), x))
        GP_APPLY(GP_ACT_SOFTSIGN, x / (one + gp_vabs(x)))
        GP_APPLY(GP_ACT_SOFTPLUS, gp_softplus(x, one))
    }
}

/* ---- products with states ---- */

#define BYTE_ROWS 3 /* of a tile: weights that do not fit the nearest caches are read as seldom as may be */

/* Rows of bytes by panels of words, `panels` at once: s32 sums, less what zero points take away, as floats. */
GP_INLINE void byte_tile(const int rows, const int panels, const int vectors, int64_t words, const char *a,
                         const float *b, const gp_packed_sink *sink)
{
    const int nv = panels * vectors;
    const int64_t width = gp_tile_width(panels, sink);
    const char *row[BYTE_ROWS];
    gp_acc acc;
    GP_EACH(i, rows)
        row[i] = a + i * words * 4;
    gp_acc_begin(GP_PACKED_S8, rows, panels, vectors, acc, sink);
    for (int64_t w = 0; w < words; w++)
        gp_tile_step(GP_PACKED_S8, rows, nv, vectors, row, w * 4, b + w * width, words * GP_PANEL, acc);
    gp_convert_sums(rows, nv, 0, acc, sink);
    GP_EACH(j, nv) {
        const int64_t left = sink->cols - j * GP_VL;
        if (left > 0) {
            const gp_vf scale = gp_load_some(sink->scale + j * GP_VL, left) * sink->a_scale;
            GP_EACH(i, rows)
                gp_store_part(sink->c + i * sink->ldc + j * GP_VL, acc[i][j] * scale, left);
        }
    }
}

/* All rows, a tile after the other. */
GP_INLINE void byte_tiles(const int panels, const int vectors, const recurrent_task *t, const float *b,
                          gp_packed_sink sink)
{
    const int64_t words = t->p->words;
    const char *a = t->bytes;
    int64_t rows = t->rows;
    for (; rows >= BYTE_ROWS; rows -= BYTE_ROWS, a += BYTE_ROWS * words * 4) {
        byte_tile(BYTE_ROWS, panels, vectors, words, a, b, &sink);
        sink.c += BYTE_ROWS * sink.ldc;
        sink.row_sum += BYTE_ROWS;
    }
    if (rows == 2)
        byte_tile(2, panels, vectors, words, a, b, &sink);
    else if (rows == 1)
        byte_tile(1, panels, vectors, words, a, b, &sink);
}

static void byte_panels(const recurrent_task *t, gp_packed_sink sink)
{
    const recurrent_params *p = t->p;
    const int64_t n = p->first;
    for (int64_t j = 0; j < n;) {
        const int panels = gp_streams(gp_min(t->rows, BYTE_ROWS), n - j);
        const int64_t cols = gp_min(panels * GP_PANEL, n - j);
        const float *b = (const float *)t->panels + j * p->words;
        sink.cols = cols;
        if (panels == 4)
            byte_tiles(4, 2, t, b, sink);
        else if (panels == 2)
            byte_tiles(2, 2, t, b, sink);
        else if (gp_panel_width(j, n) > GP_VL)
            byte_tiles(1, 2, t, b, sink);
        else
            byte_tiles(1, 1, t, b, sink);
        gp_sink_right(&sink, cols);
        j += cols;
    }
}

static void byte_product(const recurrent_task *t)
{
    const recurrent_params *p = t->p;
    gp_range all = {0, 0};
    for (int64_t row = 0; row < t->rows; row++)
        all = gp_range_join(all, gp_range_of(t->h + row * p->state_pitch, p->hidden));
    const float scale = gp_range_scale(all);
    const int32_t zero = gp_range_zero(all, scale);
    const int64_t first = t->direction * p->first;
    int32_t *sums = (int32_t *)(t->bytes + t->rows * p->words * 4);
    for (int64_t row = 0; row < t->rows; row++) {
        char *bytes = t->bytes + row * p->words * 4;
        memset(bytes + (p->words - 1) * 4, 0, 4); /* behind the last byte */
        gp_quantize_row(t->h + row * p->state_pitch, bytes, p->hidden, scale, zero);
        sums[row] = -(int32_t)p->hidden * zero;
        for (int64_t i = 0; i < p->hidden; i++)
            sums[row] += (uint8_t)bytes[i];
    }
    byte_panels(t, (gp_packed_sink){
        .c = t->sums, .ldc = p->pitch, .is_first = 1, .scale = (const float *)t->args[p->scales_arg] + first,
        .a_scale = scale, .a_zero = zero, .row_sum = sums,
        .col_sum = (const int32_t *)t->panels + p->words * p->first,
        .col_zero = (const int32_t *)t->args[p->scales_arg + 1] + first,
    });
}

static void product(const recurrent_task *t)
{
    const recurrent_params *p = t->p;
    if (p->scales_arg)
        byte_product(t);
    else
        gp_f32_panels(t->rows, 0, p->first, p->first, p->hidden, t->h, p->state_pitch,
                              (const float *)t->panels, t->sums, p->pitch);
}

/* ---- cells: the state of one sequence after a step, from sums of the parts of its gates ---- */

/* sums += given + bias, n of them. */
static void add_given(float *sums, const float *given, const float *bias, int64_t n)
{
    GP_VECTORS(i, n)
        gp_store_part(sums + i, gp_load_some(sums + i, n - i) +
                                    (gp_load_some(given + i, n - i) + gp_load_some(bias + i, n - i)), n - i);
}

/* sums += weights * seen: what a gate sees of the memory. */
static void add_seen(float *sums, const float *weights, const float *seen, int64_t n)
{
    GP_VECTORS(i, n)
        gp_store_part(sums + i, gp_vfma(gp_load_some(weights + i, n - i), gp_load_some(seen + i, n - i),
                                        gp_load_some(sums + i, n - i)), n - i);
}

static void rnn_step(const recurrent_task *t, int64_t row, const float *given)
{
    const int64_t n = t->p->hidden;
    float *h = t->h + row * t->p->state_pitch;
    memcpy(h, t->sums + row * t->p->pitch, (size_t)n * 4);
    add_given(h, given, t->bias, n);
    activate(t, 0, t->p->clip, h, n);
}

static void lstm_step(const recurrent_task *t, int64_t row, const float *given)
{
    const recurrent_params *p = t->p;
    const int64_t n = p->hidden;
    float *h = t->h + row * p->state_pitch, *c = t->c + row * p->state_pitch, *sums = t->sums + row * p->pitch;
    float *into = sums, *out = sums + n, *forget = sums + 2 * n, *content = sums + 3 * n;
    const float *seen = gp_floats_at(t->args, p->peepholes_arg, t->direction * 3 * n);
    add_given(sums, given, t->bias, 4 * n);
    if (seen) {
        add_seen(into, seen, c, n);
        add_seen(forget, seen + 2 * n, c, n);
    }
    activate(t, 0, p->clip, into, n);
    if (p->is_coupled)
        GP_VECTORS(i, n)
            gp_store_part(forget + i, 1.0f - gp_load_some(into + i, n - i), n - i);
    else
        activate(t, 0, p->clip, forget, n);
    activate(t, 1, p->clip, content, n);
    GP_VECTORS(i, n) {
        const int64_t left = n - i;
        const gp_vf taken = gp_load_some(into + i, left) * gp_load_some(content + i, left);
        const gp_vf next = gp_vfma(gp_load_some(forget + i, left), gp_load_some(c + i, left), taken);
        gp_store_part(c + i, next, left);
        gp_store_part(h + i, next, left);
    }
    if (seen)
        add_seen(out, seen + n, c, n);
    activate(t, 0, p->clip, out, n);
    activate(t, 2, INFINITY, h, n);
    GP_VECTORS(i, n)
        gp_store_part(h + i, gp_load_some(out + i, n - i) * gp_load_some(h + i, n - i), n - i);
}

/* Update and reset gates of GRU, and what the product of the candidate reads, or what its state's part becomes. */
static void gru_gates(const recurrent_task *t, int64_t row, const float *given)
{
    const recurrent_params *p = t->p;
    const int64_t n = p->hidden;
    float *sums = t->sums + row * p->pitch, *reset = sums + n, *other = t->other + row * p->state_pitch;
    add_given(sums, given, t->bias, 2 * n);
    activate(t, 0, p->clip, sums, 2 * n);
    const float *from = p->second ? t->h + row * p->state_pitch : sums + 2 * n;
    float *to = p->second ? other : sums + 2 * n;
    GP_VECTORS(i, n) {
        const gp_vf x = gp_load_some(from + i, n - i) + gp_load_some(t->reset_bias + i, n - i);
        gp_store_part(to + i, gp_load_some(reset + i, n - i) * x, n - i);
    }
}

static void gru_step(const recurrent_task *t, int64_t row, const float *given)
{
    const recurrent_params *p = t->p;
    const int64_t n = p->hidden;
    float *h = t->h + row * p->state_pitch, *update = t->sums + row * p->pitch, *candidate = update + 2 * n;
    add_given(candidate, given + 2 * n, t->bias + 2 * n, n);
    activate(t, 1, p->clip, candidate, n);
    GP_VECTORS(i, n) { /* (1 - z) h' + z h = h' + z (h - h') */
        const gp_vf fresh = gp_load_some(candidate + i, n - i), old = gp_load_some(h + i, n - i);
        gp_store_part(h + i, gp_vfma(gp_load_some(update + i, n - i), old - fresh, fresh), n - i);
    }
}

/* ---- tasks ---- */

static int64_t length_of(const recurrent_task *t, int64_t row)
{
    const int32_t length = ((const int32_t *)t->args[3])[t->p->nlengths > 1 ? t->begin + row : 0];
    return length < 0 ? 0 : gp_min(length, t->p->steps);
}

/* The results of a step, of the first of this task's sequences. */
static float *output_at(const recurrent_task *t, int64_t step)
{
    const recurrent_params *p = t->p;
    return (float *)t->args[p->y_arg] + ((step * p->directions + t->direction) * p->batch + t->begin) * p->hidden;
}

static void run_step(const recurrent_task *t, int64_t step)
{
    const recurrent_params *p = t->p;
    const int64_t width = p->gates * p->hidden, pitch = p->directions * width;
    const float *given = (const float *)t->args[0] + (step * p->batch + t->begin) * pitch + t->direction * width;
    float *y = output_at(t, step);
    product(t);
    if (p->cell == GP_CELL_GRU)
        for (int64_t row = 0; row < t->rows; row++)
            gru_gates(t, row, given + row * pitch);
    if (p->second)
        gp_f32_panels(t->rows, 0, p->second, p->second, p->hidden, t->other, p->state_pitch,
                              (const float *)(t->panels + p->second_at), t->sums + p->first, p->pitch);
    for (int64_t row = 0; row < t->rows; row++, given += pitch, y += p->hidden) {
        if (step >= length_of(t, row)) {
            memset(y, 0, (size_t)p->hidden * 4);
            continue;
        }
        if (p->cell == GP_CELL_LSTM)
            lstm_step(t, row, given);
        else if (p->cell == GP_CELL_GRU)
            gru_step(t, row, given);
        else
            rnn_step(t, row, given);
        memcpy(y, t->h + row * p->state_pitch, (size_t)p->hidden * 4);
    }
}

/* The biases of both parts, added but for that which a reset scales. */
static void load_biases(const recurrent_task *t)
{
    const recurrent_params *p = t->p;
    const int64_t n = p->gates * p->hidden, reset = p->cell == GP_CELL_GRU && !p->second ? n - p->hidden : n;
    const float *of_inputs = (const float *)t->args[2] + t->direction * 2 * n, *of_state = of_inputs + n;
    for (int64_t i = 0; i < n; i++)
        t->bias[i] = of_inputs[i] + (i < reset ? of_state[i] : 0);
    if (p->cell == GP_CELL_GRU)
        for (int64_t i = 0; i < p->hidden; i++)
            t->reset_bias[i] = reset < n ? of_state[reset + i] : 0;
}

/* States of the task's sequences, from an argument with `given` of them in each direction. */
static void load_states(const recurrent_task *t, int64_t arg, int64_t given, float *to)
{
    const recurrent_params *p = t->p;
    const float *from = (const float *)t->args[arg] + t->direction * given * p->hidden;
    for (int64_t row = 0; row < t->rows; row++)
        memcpy(to + row * p->state_pitch, from + (given > 1 ? t->begin + row : 0) * p->hidden, (size_t)p->hidden * 4);
}

static void store_states(const recurrent_task *t, int64_t arg, const float *from)
{
    const recurrent_params *p = t->p;
    float *to = (float *)t->args[arg] + (t->direction * p->batch + t->begin) * p->hidden;
    for (int64_t row = 0; row < t->rows; row++)
        memcpy(to + row * p->hidden, from + row * p->state_pitch, (size_t)p->hidden * 4);
}

static void run_task(const recurrent_task *t)
{
    const recurrent_params *p = t->p;
    const int is_reverse = p->is_reverse || t->direction;
    int64_t longest = 0;
    for (int64_t row = 0; row < t->rows; row++)
        longest = -gp_min(-longest, -length_of(t, row));
    load_biases(t);
    load_states(t, 4, p->h_rows, t->h);
    if (p->c_arg)
        load_states(t, p->c_arg, p->c_rows, t->c);
    for (int64_t step = 0; step < longest; step++)
        run_step(t, is_reverse ? longest - 1 - step : step);
    for (int64_t step = longest; step < p->steps; step++)
        memset(output_at(t, step), 0, (size_t)(t->rows * p->hidden) * 4);
    store_states(t, p->y_arg + 1, t->h);
    if (p->c_arg)
        store_states(t, p->y_arg + 2, t->c);
}

/* Whether the length of a sequence is none; INT32_MAX stands for all steps. */
static int is_outside(const recurrent_task *t)
{
    int found = 0;
    for (int64_t row = 0; row < t->rows; row++) {
        const int32_t length = ((const int32_t *)t->args[3])[t->p->nlengths > 1 ? t->begin + row : 0];
        found |= length < 0 || (length > t->p->steps && length != INT32_MAX);
    }
    return found;
}

GP_DEFINE_INDEX_KERNEL(f32_recurrent)
{
    const recurrent_params *p = params;
    int status = 0;
    const int64_t blocks = (p->batch + p->rows - 1) / p->rows, states = p->rows * p->state_pitch;
    float *bias = scratch, *h = bias + p->pitch + p->state_pitch;
    for (int64_t number = begin; number < end; number++) {
        const int64_t direction = number / blocks, first = number % blocks * p->rows;
        const recurrent_task t = {
            p, args, direction, first, gp_min(p->batch - first, p->rows),
            (const char *)args[1] + direction * p->weights_nbytes, bias, bias + p->pitch, h, h + states,
            h + 2 * states, h + 3 * states, (char *)(h + 3 * states + p->rows * p->pitch),
        };
        run_task(&t);
        status |= is_outside(&t);
    }
    return status;
}

const gp_kernel_entry GP_KERNEL(recurrent_table)[] = {
    GP_ENTRY(f32_recurrent, recurrent_params),
    GP_INNER(gp_cell),
    GP_INNER(gp_activation),
    GP_TABLE_END,
};
