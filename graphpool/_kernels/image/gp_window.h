/* Sliding windows over up to three spatial axes, and tasks that are one row of results.
 *
 * Axes are depth, height, width; what has fewer gets leading axes of extent 1. Tensors lie by any strides, in elements.
 * The index space of results, in which epilogues count, is row-major over (n, spatial..., c) when channels_last, else
 * over (n, c, spatial...). */
#ifndef GP_WINDOW_H
#define GP_WINDOW_H

#include "gemm/gp_gemm.h"
#include "eltwise/gp_tile.h"
#include "core/gp_vec.h"

GP_RECORD(gp_window, {
    int64_t in[3], out[3];
    int64_t kernel[3], stride[3], dilation[3], pad[3]; /* pad: in front */
    int64_t src_n, src_c, src[3];
    int64_t dst_n, dst_c, dst[3];
    int64_t channels_last;
});

/* The results of one row that one tap of the kernel reaches: results first, first + step, ... (count of them) read
 * source elements src, src + src_step, ... */
typedef struct {
    int64_t first, count, step, src, src_step;
} gp_tap;

/* b is mostly 1, and divisions take longer than to see that. */
static inline int64_t gp_floor_div(int64_t a, int64_t b)
{
    return b == 1 ? a : a >= 0 ? a / b : -((-a + b - 1) / b);
}

/* Input coordinate that result `o` reads through tap `k` along an axis; -1 where it reads padding. A transposed window
 * turns round which side is strided. */
static inline int64_t gp_source_of(const gp_window *w, int axis, int64_t o, int64_t k, int transposed)
{
    int64_t i = o * (transposed ? 1 : w->stride[axis]);
    i += (transposed ? w->pad[axis] - k * w->dilation[axis] : k * w->dilation[axis] - w->pad[axis]);
    if (transposed) {
        if (i < 0 || i % w->stride[axis])
            return -1;
        i /= w->stride[axis];
    }
    return i >= 0 && i < w->in[axis] ? i : -1;
}

/* Extent of the source, padding included, that `count` results read along an axis. */
static inline int64_t gp_extent(const gp_window *w, int axis, int64_t count)
{
    return (count - 1) * w->stride[axis] + (w->kernel[axis] - 1) * w->dilation[axis] + 1;
}

/* The part of results [begin, end) of row (od, oh) that tap (kd, kh, kw) reaches; count 0 when none. */
static inline gp_tap gp_find_tap(const gp_window *w, int transposed, int64_t od, int64_t oh, int64_t begin, int64_t end,
                                 int64_t kd, int64_t kh, int64_t kw)
{
    const int64_t id = gp_source_of(w, 0, od, kd, transposed), ih = gp_source_of(w, 1, oh, kh, transposed);
    const int64_t stride = w->stride[2], shift = w->pad[2] - kw * w->dilation[2];
    gp_tap tap = {0, 0, transposed ? stride : 1, 0, (transposed ? 1 : stride) * w->src[2]};
    if (id < 0 || ih < 0)
        return tap;
    int64_t first, last, iw;
    if (transposed) { /* iw * stride = ow + shift */
        const int64_t low = gp_max(gp_floor_div(begin + shift + stride - 1, stride), 0);
        const int64_t high = gp_min(gp_floor_div(end - 1 + shift, stride), w->in[2] - 1);
        first = low * stride - shift;
        last = high * stride - shift;
        iw = low;
    } else { /* iw = ow * stride - shift */
        first = gp_max(gp_floor_div(shift + stride - 1, stride), begin);
        last = gp_min(gp_floor_div(w->in[2] - 1 + shift, stride), end - 1);
        iw = first * stride - shift;
    }
    if (last < first)
        return tap;
    tap.first = first;
    tap.count = gp_floor_div(last - first, tap.step) + 1;
    tap.src = id * w->src[0] + ih * w->src[1] + iw * w->src[2];
    return tap;
}

/* What kernels have in common whose task is one row of results (n, block of channels, od, oh). */
GP_RECORD(gp_row_plan, {
    gp_window window;
    int64_t channels, channel_block;
    int64_t tile_in_scratch, has_epilogue;
    int64_t room_offset; /* bytes into scratch, behind the tile: for the kernel's own needs */
});

/* A task: its place, and its tile of rows x cols results, which are (pixels x channels) or (channels x pixels). */
typedef struct {
    int64_t n, c, channels, od, oh;
    int64_t rows, cols, ld;
    float *tile, *dst;
} gp_row;

static inline gp_row gp_row_begin(const gp_row_plan *p, void *dst, void *scratch, int64_t task)
{
    const gp_window *w = &p->window;
    const int64_t blocks = (p->channels + p->channel_block - 1) / p->channel_block;
    gp_row row;
    row.oh = task % w->out[1];
    row.od = task / w->out[1] % w->out[0];
    row.c = task / w->out[1] / w->out[0] % blocks * p->channel_block;
    row.n = task / w->out[1] / w->out[0] / blocks;
    row.channels = gp_min(p->channels - row.c, p->channel_block);
    row.rows = w->channels_last ? w->out[2] : row.channels;
    row.cols = w->channels_last ? row.channels : w->out[2];
    row.dst = (float *)dst + row.n * w->dst_n + row.c * w->dst_c + row.od * w->dst[0] + row.oh * w->dst[1];
    row.tile = p->tile_in_scratch ? scratch : row.dst;
    row.ld = p->tile_in_scratch ? row.cols : w->channels_last ? w->dst[2] : w->dst_c;
    return row;
}

/* Store a finished tile: through the epilogue, or by strides where it does not lie in dst already. */
static inline void gp_row_end(const gp_row_plan *p, const gp_row *row, const gp_eltwise *program, void *const *args)
{
    const gp_window *w = &p->window;
    const int64_t pixels = w->out[0] * w->out[1] * w->out[2], pixel = (row->od * w->out[1] + row->oh) * w->out[2];
    const int last = (int)w->channels_last;
    if (p->has_epilogue)
        gp_run_epilogue(program, args, row->tile, row->ld, row->rows, row->cols,
                        last ? (row->n * pixels + pixel) * p->channels + row->c
                             : (row->n * p->channels + row->c) * pixels + pixel,
                        last ? p->channels : pixels);
    else if (p->tile_in_scratch)
        gp_copy(row->dst, last ? w->dst[2] : w->dst_c, last ? w->dst_c : w->dst[2], row->tile, row->ld, 1, row->rows,
                row->cols, sizeof(float));
}

#endif
