/* Bring the weights of a convolution into panels (gp_packed.h), or out of them: for each group of channels and each
 * product of a pixel a matrix of its own, `merged` taps times ic rows by oc columns.
 *
 * A task is one panel of one group, with all its taps. Where a column's weights lie side by side, four columns at a
 * time are read in the order of memory and transposed in registers, in runs so long that the lines being written stay
 * in L1; other weights are read a few input channels at a time. args: weights, packed; packed, weights. */
#include "conv/gp_conv_weights.h"
#include "core/gp_quad.h"

#define GP_CONV_PACK_ROWS 8
#define GP_CONV_PACK_RUN 64

typedef struct {
    const gp_conv_pack *p;
    float *weights;
    float *packed;
    int64_t cols;
} panel;

/* First word of the rows of a tap. */
GP_INLINE float *tap_rows(const panel *t, int64_t tap)
{
    return t->packed + tap / t->p->merged * t->p->tap_pitch + tap % t->p->merged * t->p->ic * t->cols;
}

GP_INLINE void pack_rows(const panel *t, int64_t taps, int64_t i, int64_t end, const int64_t w_oc)
{
    for (int64_t tap = 0; tap < taps; tap++) {
        const float *restrict from = t->weights + gp_tap_offset(t->p->kernel, t->p->w, tap);
        float *restrict to = tap_rows(t, tap);
        for (int64_t r = i; r < end; r++)
            for (int64_t c = 0; c < t->cols; c++)
                to[r * t->cols + c] = from[r * t->p->w_ic + c * w_oc];
    }
}

/* Words of a column that lie side by side: all, those of a tap, or one. They run over taps innermost if `taps` > 1. */
typedef struct {
    int64_t words, taps;
} column_run;

static column_run find_run(const gp_conv_pack *p, int64_t taps)
{
    const int is_tap_run = p->kernel[2] == 1 || p->w[2] == 1;
    const int is_row_run = p->kernel[1] == 1 || p->w[1] == p->kernel[2];
    const int is_plane_run = p->kernel[0] == 1 || p->w[0] == p->kernel[2] * p->kernel[1];
    if (is_tap_run && is_row_run && is_plane_run && p->w_ic == taps)
        return (column_run){taps * p->ic, taps};
    return (column_run){p->w_ic == 1 ? p->ic : 1, 1};
}

/* `count` words of every column from `from` on, to the rows that `to` names. */
static void pack_run(const panel *t, const float *from, int64_t count, float *const *to)
{
    const int64_t column = t->p->w_oc;
    int64_t c = 0;
    for (; c + 4 <= t->cols; c += 4) {
        int64_t q = 0;
        const float *next = c + 8 <= t->cols ? from + (c + 4) * column : from + GP_CONV_PACK_RUN;
        for (; q + 4 <= count; q += 4) {
            __builtin_prefetch(next + q / 4 % 4 * column + q / 16 * 16); /* a line of each column for each line's words */
            const float *at = from + c * column + q;
            gp_transpose_quad(at, at + column, at + 2 * column, at + 3 * column, to[q] + c, to[q + 1] + c, to[q + 2] + c,
                              to[q + 3] + c);
        }
        for (; q < count; q++)
            for (int64_t r = c; r < c + 4; r++)
                to[q][r] = from[r * column + q];
    }
    for (; c < t->cols; c++)
        for (int64_t q = 0; q < count; q++)
            to[q][c] = from[c * column + q];
}

static void pack_runs(const panel *t, int64_t taps, column_run run)
{
    for (int64_t first = 0; first < taps; first += run.taps)
        for (int64_t q = 0; q < run.words; q += GP_CONV_PACK_RUN) {
            const int64_t count = gp_min(run.words - q, GP_CONV_PACK_RUN);
            float *to[GP_CONV_PACK_RUN];
            int64_t tap = first + q % run.taps, i = q / run.taps;
            for (int64_t k = 0; k < count; k++) {
                to[k] = tap_rows(t, tap) + i * t->cols;
                if (++tap == first + run.taps) {
                    tap = first;
                    i++;
                }
            }
            pack_run(t, t->weights + gp_tap_offset(t->p->kernel, t->p->w, first) + q, count, to);
        }
}

static void pack_panel(const panel *t, int64_t taps)
{
    const gp_conv_pack *p = t->p;
    const column_run run = find_run(p, taps);
    if (run.words > 1 && p->w_oc != 1) {
        pack_runs(t, taps, run);
        return;
    }
    for (int64_t i = 0; i < p->ic; i += GP_CONV_PACK_ROWS) {
        const int64_t end = gp_min(i + GP_CONV_PACK_ROWS, p->ic);
        if (p->w_oc == 1)
            pack_rows(t, taps, i, end, 1);
        else
            pack_rows(t, taps, i, end, p->w_oc);
    }
}

void gp_pack_conv_panel(const gp_conv_pack *p, const float *from, int64_t j, float *to)
{
    const panel t = {p, (float *)from + j * p->w_oc, to, gp_panel_width(j, p->oc)};
    pack_panel(&t, p->kernel[0] * p->kernel[1] * p->kernel[2]); /* the weights are only read */
}

/* The inverse: what lies behind the columns of a panel is left out. */
static void unpack_panel(const panel *t, int64_t taps)
{
    const gp_conv_pack *p = t->p;
    for (int64_t tap = 0; tap < taps; tap++) {
        const float *restrict from = tap_rows(t, tap);
        float *restrict to = t->weights + gp_tap_offset(p->kernel, p->w, tap);
        for (int64_t c = 0; c < t->cols; c++)
            for (int64_t r = 0; r < p->ic; r++)
                to[r * p->w_ic + c * p->w_oc] = from[r * t->cols + c];
    }
}

GP_INLINE void move_panels(const gp_conv_pack *p, float *weights, float *packed, int64_t begin, int64_t end,
                           void (*move)(const panel *t, int64_t taps))
{
    for (int64_t number = begin; number < end; number++) {
        const gp_conv_panel at = gp_find_conv_panel(p, number, p->words);
        const panel t = {p, weights + at.weight, packed + at.word, at.cols};
        move(&t, p->kernel[0] * p->kernel[1] * p->kernel[2]);
    }
}

GP_DEFINE_KERNEL(f32_conv_pack)
{
    move_panels(params, args[0], args[1], begin, end, pack_panel);
    gp_end_conv_panels(params, end - 1, args[1]);
}

GP_DEFINE_KERNEL(f32_conv_unpack) { move_panels(params, args[1], args[0], begin, end, unpack_panel); }

const gp_kernel_entry GP_KERNEL(conv_weights_table)[] = {
    GP_ENTRY(f32_conv_pack, gp_conv_pack),
    GP_ENTRY(f32_conv_unpack, gp_conv_pack),
    GP_TABLE_END,
};
