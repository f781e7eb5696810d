/* Depthwise convolution of channels-last images of bytes: every channel by itself, vectors run along channels.
 *
 * A task is one row of results of one image for a block of channels. A tile of pixels adds up all taps that meet the
 * source, in registers; where the kernel sticks out, tiles are single pixels with fewer taps. Weights are f32 that hold
 * integers, by (tap, channel): sums of up to 256 products of 8-bit integers are exact in f32, where multiplying and
 * adding is one instruction. Taps in the padding are left out; the zero point is taken away from what the others add up.
 * args: src, weights, scales, then at the places that the parameters name: scale and zero point of src, bias, operands of
 * the requantisation, dst and what the epilogue reads beyond dst. The iteration space of the epilogue is row-major over
 * (n, spatial..., c). Scratch: the tile of the epilogue, and the taps of a tile. */
#include "gemm/gp_requant.h"
#include "image/gp_window.h"

#define GP_DEPTHWISE_PIXELS 4
#define GP_DEPTHWISE_VECTORS 2

/* A tap that meets the source: where the first pixel of a tile reads, and its weights. */
typedef struct {
    const char *src;
    const float *weights;
} meeting_tap;

/* The taps that pixel `ow` of a row meets, those of the whole kernel in order. */
static int64_t find_taps(const gp_window *w, int64_t channels, const char *src, const float *weights, int64_t od, int64_t oh,
                         int64_t ow, meeting_tap *taps)
{
    int64_t n = 0;
    for (int64_t kd = 0; kd < w->kernel[0]; kd++)
        for (int64_t kh = 0; kh < w->kernel[1]; kh++)
            for (int64_t kw = 0; kw < w->kernel[2]; kw++, weights += channels) {
                const int64_t id = gp_source_of(w, 0, od, kd, 0), ih = gp_source_of(w, 1, oh, kh, 0);
                const int64_t iw = gp_source_of(w, 2, ow, kw, 0);
                const int64_t at = id * w->src[0] + ih * w->src[1] + iw * w->src[2];
                if (id >= 0 && ih >= 0 && iw >= 0)
                    taps[n++] = (meeting_tap){src + at, weights};
            }
    return n;
}

/* Pixels from `ow` on that meet the same taps: all between those for which the kernel sticks out. */
static int64_t count_alike(const gp_window *w, int64_t ow)
{
    const int64_t reach = (w->kernel[2] - 1) * w->dilation[2], begin = ow * w->stride[2] - w->pad[2];
    const int64_t last = w->in[2] - 1 - reach - begin; /* how far the window may still move */
    return begin < 0 || last < 0 ? 1 : gp_min(last / w->stride[2] + 1, w->out[2] - ow);
}

GP_RECORD(gp_depthwise_s8, {
    gp_window window; /* its dst strides are those of images, rows and pixels */
    int64_t channels, channel_block;
    int64_t residual_n, residual[3];
    int64_t src_dtype, zero; /* zero: the zero point of the source, as unsigned bytes have it */
    int64_t bias_arg, dst_arg, has_epilogue;
    int64_t taps_offset; /* bytes into scratch; the tile lies at 0 */
    gp_requant requant;
    gp_dynamic dynamic; /* instead of zero */
});

/* A row of pixels and its channels. */
typedef struct {
    int64_t src_pixel, channels;
    uint8_t flip;
    float zero;
} row_shape;

/* `pixels` pixels by `nv` vectors of channels from c on, of which `left` channels count. */
GP_INLINE void tile_vectors(const int pixels, const int nv, const int is_whole, const meeting_tap *taps, int64_t ntaps,
                            const row_shape *row, int64_t c, int64_t left, const gp_packed_sink *sink)
{
    gp_vf acc[GP_TILE_ROWS][GP_TILE_PANELS * GP_PANEL_VECTORS], total[GP_DEPTHWISE_VECTORS];
#pragma GCC unroll 2
    for (int v = 0; v < nv; v++) {
        total[v] = gp_splat(0);
#pragma GCC unroll 4
        for (int i = 0; i < pixels; i++)
            acc[i][v] = gp_splat(0);
    }
    for (int64_t t = 0; t < ntaps; t++) {
        const float *weights = taps[t].weights + c;
        const char *src = taps[t].src + c;
#pragma GCC unroll 2
        for (int v = 0; v < nv; v++) {
            const gp_vf w = is_whole ? gp_load(weights + v * GP_VL) : gp_load_some(weights, left);
            total[v] += w;
#pragma GCC unroll 4
            for (int i = 0; i < pixels; i++) {
                const gp_vi x = gp_load_bytes(row->flip, src + i * row->src_pixel + v * GP_VL, is_whole ? GP_VL : left);
                acc[i][v] = gp_vfma(__builtin_convertvector(x, gp_vf), w, acc[i][v]);
            }
        }
    }
#pragma GCC unroll 2
    for (int v = 0; v < nv; v++)
#pragma GCC unroll 4
        for (int i = 0; i < pixels; i++)
            acc[i][v] = (gp_vf) __builtin_convertvector(acc[i][v] - total[v] * row->zero, gp_vi);
    gp_packed_sink down = *sink;
    down.scale += c;
    down.bias += down.bias ? c : 0;
    down.col = c;
    down.cols = left;
    gp_requantize(pixels, nv, is_whole, acc, &down);
}

GP_INLINE void tile(const int pixels, const meeting_tap *taps, int64_t ntaps, const row_shape *row,
                    const gp_packed_sink *sink)
{
    int64_t c = 0;
    for (; c + 2 * GP_VL <= row->channels; c += 2 * GP_VL)
        tile_vectors(pixels, 2, 1, taps, ntaps, row, c, 2 * GP_VL, sink);
    for (; c < row->channels; c += GP_VL)
        tile_vectors(pixels, 1, 0, taps, ntaps, row, c, gp_min(row->channels - c, GP_VL), sink);
}

static void sum_row(const gp_depthwise_s8 *p, const char *src, const float *weights, int64_t od, int64_t oh,
                     const row_shape *shape, gp_packed_sink sink, meeting_tap *taps)
{
    const gp_window *w = &p->window;
    int64_t alike = 0, ntaps = 0;
    for (int64_t ow = 0, step; ow < w->out[2]; ow += step, alike -= step) {
        if (alike == 0) {
            alike = count_alike(w, ow);
            ntaps = find_taps(w, p->channels, src, weights, od, oh, ow, taps);
        }
        step = alike >= GP_DEPTHWISE_PIXELS ? GP_DEPTHWISE_PIXELS : 1;
        sink.row = ow;
        if (step == 1)
            tile(1, taps, ntaps, shape, &sink);
        else
            tile(GP_DEPTHWISE_PIXELS, taps, ntaps, shape, &sink);
        for (int64_t t = 0; t < ntaps; t++)
            taps[t].src += step * shape->src_pixel;
    }
}

/* Where results of a row go, from channel c on. */
static gp_requant_sink make_requant(const gp_depthwise_s8 *p, void *const *args, int64_t n, int64_t od, int64_t oh,
                                    int64_t c, int64_t channels, char *scratch)
{
    const gp_requant *r = &p->requant;
    const gp_window *w = &p->window;
    gp_requant_sink sink = {.p = r, .dst = scratch, .dst_row = channels, .residual_row = p->residual[2]};
    if (!p->has_epilogue) {
        sink.dst = (char *)args[p->dst_arg] + (n * w->dst_n + od * w->dst[0] + oh * w->dst[1] + c) *
                                                  gp_element_nbytes(r->dst_dtype);
        sink.dst_row = w->dst[2];
    }
    if (r->late_bias_arg)
        sink.late_bias = (const float *)args[r->late_bias_arg] + c;
    if (r->residual_arg)
        sink.residual = (const char *)args[r->residual_arg] +
                        (n * p->residual_n + od * p->residual[0] + oh * p->residual[1] + c) *
                            gp_element_nbytes(r->residual_dtype);
    return sink;
}

static void task(const gp_depthwise_s8 *p, void *const *args, int64_t n, int64_t od, int64_t oh, int64_t c,
                 char *scratch)
{
    const gp_window *w = &p->window;
    const row_shape shape = {w->stride[2] * w->src[2], gp_min(p->channels - c, p->channel_block),
                             p->src_dtype == GP_S8 ? 0x80 : 0,
                             (float)gp_dynamic_zero(&p->dynamic, args, p->src_dtype, p->zero)};
    const gp_requant_sink requant = make_requant(p, args, n, od, oh, c, shape.channels, scratch);
    const gp_packed_sink sink = {
        .scale = (const float *)args[2] + c,
        .a_scale = gp_dynamic_scale(&p->dynamic, args),
        .bias = p->bias_arg ? (const float *)args[p->bias_arg] + c : NULL,
        .requant = &requant,
    };
    sum_row(p, (const char *)args[0] + n * w->src_n + c, (const float *)args[1] + c, od, oh, &shape, sink,
             (meeting_tap *)(scratch + p->taps_offset));
    if (p->has_epilogue)
        gp_run_epilogue((const gp_eltwise *)(p + 1), args + p->dst_arg, (const float *)scratch, shape.channels, w->out[2],
                        shape.channels, (((n * w->out[0] + od) * w->out[1] + oh) * w->out[2]) * p->channels + c,
                        p->channels);
}

static void GP_KERNEL(s8_conv_depthwise)(const void *params, void *const *args, int64_t begin, int64_t end, void *scratch)
{
    const gp_depthwise_s8 *p = params;
    const int64_t blocks = (p->channels + p->channel_block - 1) / p->channel_block;
    for (int64_t t = begin; t < end; t++) {
        const int64_t line = t / blocks, plane = line / p->window.out[1];
        task(p, args, plane / p->window.out[0], plane % p->window.out[0], line % p->window.out[1],
             t % blocks * p->channel_block, scratch);
    }
}

const gp_kernel_entry GP_KERNEL(conv_depthwise_s8_table)[] = {
    GP_ENTRY(s8_conv_depthwise, gp_depthwise_s8),
    GP_TABLE_END,
};
