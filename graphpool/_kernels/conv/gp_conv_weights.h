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
    int64_t group_pitch, tap_pitch; /* of the panels: words; tap_pitch: if each product has panels of its own (f32) */
});

/* The first weight of a tap, from that of its column. */
GP_INLINE int64_t gp_tap_offset(const gp_conv_pack *p, int64_t tap)
{
    const int64_t kw = tap % p->kernel[2], kh = tap / p->kernel[2] % p->kernel[1], kd = tap / p->kernel[2] / p->kernel[1];
    return kd * p->w[0] + kh * p->w[1] + kw * p->w[2];
}

/* All taps of the panel that begins at column j of a group whose weights lie at `from`. */
void GP_KERNEL(pack_conv_panel)(const gp_conv_pack *p, const float *from, int64_t j, float *to);

#endif
