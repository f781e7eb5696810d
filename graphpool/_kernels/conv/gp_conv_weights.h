/* The weights of a convolution on their way into panels (gp_packed.h). */
#ifndef GP_CONV_WEIGHTS_H
#define GP_CONV_WEIGHTS_H

#include "gemm/gp_packed.h"

GP_RECORD(gp_conv_pack, {
    int64_t groups, ic, oc;            /* channels of one group */
    int64_t kernel[3];
    int64_t merged, words, runs;       /* taps side by side that are one product, its words, products of a pixel */
    int64_t w_group, w_oc, w_ic, w[3]; /* strides of the weights, in elements */
    int64_t w_dtype;
    int64_t shifts;                 /* words of the shifts of a run (gp_packed.h), where it is the only one */
    int64_t group_pitch, tap_pitch; /* of the panels: words; tap_pitch: if each product has panels of its own (f32) */
});

/* The first weight of a tap, from that of its column, whose taps lie w apart. */
GP_INLINE int64_t gp_tap_offset(const int64_t *kernel, const int64_t *w, int64_t tap)
{
    return tap / kernel[2] / kernel[1] * w[0] + tap / kernel[2] % kernel[1] * w[1] + tap % kernel[2] * w[2];
}

/* A panel of a group: its first column, how many it has, and where it begins. */
typedef struct {
    int64_t j, cols;
    int64_t weight, word; /* of the weights as they lie, and of the packed ones */
} gp_conv_panel;

/* Panel `number` of all groups; col_words: words of a column that lie in one panel. */
GP_INLINE gp_conv_panel gp_find_conv_panel(const gp_conv_pack *p, int64_t number, int64_t col_words)
{
    const int64_t panels = (p->oc + GP_PANEL - 1) / GP_PANEL, g = number / panels, j = number % panels * GP_PANEL;
    return (gp_conv_panel){j, gp_panel_width(j, p->oc), g * p->w_group + j * p->w_oc, g * p->group_pitch + j * col_words};
}

/* Zeros what tiles read behind the last panel, if panel `number` of all groups is that. */
GP_INLINE void gp_end_conv_panels(const gp_conv_pack *p, int64_t number, float *packed)
{
    const int64_t panels = (p->oc + GP_PANEL - 1) / GP_PANEL, behind = (GP_VL - p->oc % GP_VL) % GP_VL;
    if (number == p->groups * panels - 1)
        memset(packed + p->groups * p->group_pitch, 0, (size_t)behind * sizeof *packed);
}

/* All taps of the panel that begins at column j of a group whose weights lie at `from`. */
#define gp_pack_conv_panel GP_OF(conv_weights, pack_conv_panel)
void gp_pack_conv_panel(const gp_conv_pack *p, const float *from, int64_t j, float *to);

#endif
