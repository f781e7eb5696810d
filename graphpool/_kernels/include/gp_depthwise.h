/* What depthwise convolutions share: which taps of the kernel a pixel meets, and which pixels meet the same. */
#ifndef GP_DEPTHWISE_H
#define GP_DEPTHWISE_H

#include "gp_window.h"

#define GP_DEPTHWISE_PIXELS 4

/* A tap that meets the source: where the first pixel of a tile reads, and its weights. */
typedef struct {
    const char *src;
    const float *weights;
} gp_meeting_tap;

/* The taps that pixel `ow` of a row meets, those of the whole kernel in order; elements of the source have `nbytes`. */
static inline int64_t gp_find_taps(const gp_window *w, int64_t channels, const char *src, int64_t nbytes,
                                   const float *weights, int64_t od, int64_t oh, int64_t ow, gp_meeting_tap *taps)
{
    int64_t n = 0;
    for (int64_t kd = 0; kd < w->kernel[0]; kd++)
        for (int64_t kh = 0; kh < w->kernel[1]; kh++)
            for (int64_t kw = 0; kw < w->kernel[2]; kw++, weights += channels) {
                const int64_t id = gp_source_of(w, 0, od, kd, 0), ih = gp_source_of(w, 1, oh, kh, 0);
                const int64_t iw = gp_source_of(w, 2, ow, kw, 0);
                const int64_t at = id * w->src[0] + ih * w->src[1] + iw * w->src[2];
                if (id >= 0 && ih >= 0 && iw >= 0)
                    taps[n++] = (gp_meeting_tap){src + at * nbytes, weights};
            }
    return n;
}

/* Pixels from `ow` on that meet the same taps: all between those for which the kernel sticks out. */
static inline int64_t gp_count_alike(const gp_window *w, int64_t ow)
{
    const int64_t reach = (w->kernel[2] - 1) * w->dilation[2], begin = ow * w->stride[2] - w->pad[2];
    const int64_t last = w->in[2] - 1 - reach - begin; /* how far the window may still move */
    return begin < 0 || last < 0 ? 1 : gp_min(last / w->stride[2] + 1, w->out[2] - ow);
}

#endif
