/* The weights of a convolution on their way into panels (gp_packed.h). */
#ifndef GP_CONV_WEIGHTS_H
#define GP_CONV_WEIGHTS_H

#include "gp_packed.h"

typedef struct {
    int64_t groups, ic, oc;                /* channels of one group */
    int64_t kernel[3], merged;             /* merged: taps side by side that are one product */
    int64_t w_group, w_oc, w_ic, w[3];     /* strides of the weights, in elements */
    int64_t group_pitch, tap_pitch;        /* of the panels: words */
} gp_conv_pack;

/* All taps of the panel that begins at column j of a group whose weights lie at `from`. */
void GP_KERNEL(pack_conv_panel)(const gp_conv_pack *p, const float *from, int64_t j, float *to);

#endif
