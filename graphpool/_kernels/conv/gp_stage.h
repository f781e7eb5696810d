/* Copies of what a rectangle of results reads of an image: padding written out, channels of one group innermost. */
#ifndef GP_STAGE_H
#define GP_STAGE_H

#include <string.h>

#include "image/gp_window.h"

/* A rectangle of the results of one image and depth. */
typedef struct {
    int64_t n, od, oh, ow, rows, cols;
} gp_rectangle;

/* Brings `count` pixels of a row, from `src` on, to scratch. */
typedef void (*gp_stage_fn)(const void *params, const char *src, int64_t count, char *to);

typedef struct {
    const gp_window *window;
    int64_t element_nbytes; /* of the source */
    int64_t pixel_nbytes;   /* in scratch */
    int padding;            /* each of its bytes */
    gp_stage_fn move;
    const void *params; /* of `move` */
} gp_staging;

/* Columns `first` to `first + count` of the row of the source that begins at src. NULL: a row of padding. */
GP_INLINE void gp_stage_row(const gp_staging *s, const char *src, int64_t first, int64_t count, char *to)
{
    const int64_t begin = src ? gp_min(gp_max(-first, 0), count) : count;
    const int64_t end = gp_max(gp_min(s->window->in[2] - first, count), begin);
    memset(to, s->padding, (size_t)(begin * s->pixel_nbytes));
    memset(to + end * s->pixel_nbytes, s->padding, (size_t)((count - end) * s->pixel_nbytes));
    if (begin < end)
        s->move(s->params, src + (first + begin) * s->window->src[2] * s->element_nbytes, end - begin,
                to + begin * s->pixel_nbytes);
}

/* What a rectangle reads of the image that begins at src: for each plane of the kernel, rows one behind the other. */
GP_INLINE void gp_stage(const gp_staging *s, const char *src, const gp_rectangle *at, char *room)
{
    const gp_window *w = s->window;
    const int64_t height = gp_extent(w, 1, at->rows), width = gp_extent(w, 2, at->cols);
    const int64_t first = at->ow * w->stride[2] - w->pad[2];
    for (int64_t kd = 0; kd < w->kernel[0]; kd++) {
        const int64_t id = at->od * w->stride[0] - w->pad[0] + kd * w->dilation[0];
        for (int64_t y = 0; y < height; y++, room += width * s->pixel_nbytes) {
            const int64_t ih = at->oh * w->stride[1] - w->pad[1] + y;
            const int is_inside = id >= 0 && id < w->in[0] && ih >= 0 && ih < w->in[1];
            gp_stage_row(s, is_inside ? src + (id * w->src[0] + ih * w->src[1]) * s->element_nbytes : NULL, first, width,
                         room);
        }
    }
}

#endif
