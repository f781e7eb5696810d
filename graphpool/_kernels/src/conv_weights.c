/* Bring the weights of a convolution into panels (gp_packed.h), or out of them: for each group of channels and each product of a pixel a
 * matrix of its own, `merged` taps times ic rows by oc columns.
 *
 * A task is one panel of one group, with all its taps: where the weights lie by output channel, a column's are read in
 * the order of memory, a few input channels at a time, so that the lines being written stay in L1.
 * args: weights, packed; packed, weights. */
#include "gp_packed.h"

#define GP_CONV_PACK_ROWS 8

typedef struct {
    int64_t groups, ic, oc;                /* channels of one group */
    int64_t kernel[3], merged;             /* merged: taps side by side that are one product */
    int64_t w_group, w_oc, w_ic, w[3];     /* strides of the weights, in elements */
    int64_t group_pitch, tap_pitch;        /* of the panels: words */
} gp_conv_pack;

/* One panel: its first weight outside, and its place. */
typedef struct {
    const gp_conv_pack *p;
    float *weights;
    float *packed;
    int64_t width, cols;
} panel;

GP_INLINE int64_t tap_offset(const gp_conv_pack *p, int64_t tap)
{
    const int64_t kw = tap % p->kernel[2], kh = tap / p->kernel[2] % p->kernel[1], kd = tap / p->kernel[2] / p->kernel[1];
    return kd * p->w[0] + kh * p->w[1] + kw * p->w[2];
}

/* First word of the rows of a tap. */
GP_INLINE float *tap_rows(const panel *t, int64_t tap)
{
    return t->packed + tap / t->p->merged * t->p->tap_pitch + tap % t->p->merged * t->p->ic * t->width;
}

/* Rows `i` to `end` of all taps. */
GP_INLINE void pack_rows(const panel *t, int64_t taps, int64_t i, int64_t end, const int64_t w_oc)
{
    for (int64_t tap = 0; tap < taps; tap++) {
        const float *restrict from = t->weights + tap_offset(t->p, tap);
        float *restrict to = tap_rows(t, tap);
        for (int64_t r = i; r < end; r++)
            for (int64_t c = 0; c < t->cols; c++)
                to[r * t->width + c] = from[r * t->p->w_ic + c * w_oc];
    }
}

static void pack_panel(const panel *t, int64_t taps)
{
    const gp_conv_pack *p = t->p;
    if (t->cols < t->width)
        for (int64_t tap = 0; tap < taps; tap++)
            memset(tap_rows(t, tap), 0, (size_t)(p->ic * t->width) * sizeof(float));
    for (int64_t i = 0; i < p->ic; i += GP_CONV_PACK_ROWS) {
        const int64_t end = gp_min(i + GP_CONV_PACK_ROWS, p->ic);
        if (p->w_oc == 1)
            pack_rows(t, taps, i, end, 1);
        else
            pack_rows(t, taps, i, end, p->w_oc);
    }
}

/* The inverse: what lies behind the columns of a panel is left out. */
static void unpack_panel(const panel *t, int64_t taps)
{
    const gp_conv_pack *p = t->p;
    for (int64_t tap = 0; tap < taps; tap++) {
        const float *restrict from = tap_rows(t, tap);
        float *restrict to = t->weights + tap_offset(p, tap);
        for (int64_t c = 0; c < t->cols; c++)
            for (int64_t r = 0; r < p->ic; r++)
                to[r * p->w_ic + c * p->w_oc] = from[r * t->width + c];
    }
}

/* Panel `number` of all groups, of which `panels` are in each. */
GP_INLINE panel find_panel(const gp_conv_pack *p, float *weights, float *packed, int64_t number, int64_t panels)
{
    const int64_t g = number / panels, j = number % panels * GP_PANEL;
    return (panel){
        p,
        weights + g * p->w_group + j * p->w_oc,
        packed + g * p->group_pitch + j * p->merged * p->ic,
        gp_panel_width(j, p->oc),
        gp_min(p->oc - j, GP_PANEL),
    };
}

static void GP_KERNEL(pack_conv_weights)(const void *params, void *const *args, int64_t begin, int64_t end,
                                         void *scratch)
{
    (void)scratch;
    const gp_conv_pack *p = params;
    const int64_t taps = p->kernel[0] * p->kernel[1] * p->kernel[2], panels = (p->oc + GP_PANEL - 1) / GP_PANEL;
    for (int64_t number = begin; number < end; number++) {
        const panel t = find_panel(p, args[0], args[1], number, panels);
        pack_panel(&t, taps);
    }
}

static void GP_KERNEL(unpack_conv_weights)(const void *params, void *const *args, int64_t begin, int64_t end,
                                           void *scratch)
{
    (void)scratch;
    const gp_conv_pack *p = params;
    const int64_t taps = p->kernel[0] * p->kernel[1] * p->kernel[2], panels = (p->oc + GP_PANEL - 1) / GP_PANEL;
    for (int64_t number = begin; number < end; number++) {
        const panel t = find_panel(p, args[1], args[0], number, panels);
        unpack_panel(&t, taps);
    }
}

const gp_kernel_entry GP_KERNEL(conv_weights_table)[] = {
    {"pack_conv_weights", GP_KERNEL(pack_conv_weights), sizeof(gp_conv_pack)},
    {"unpack_conv_weights", GP_KERNEL(unpack_conv_weights), sizeof(gp_conv_pack)},
    {NULL, NULL, 0},
};
