/* Depthwise convolution of channels-last images: every channel by itself, vectors run along channels.
 *
 * A task is one row of results of one image for a block of channels. A tile of pixels adds up all taps that meet the
 * source, in registers, one or two vectors of channels at a time; where the kernel sticks out, tiles are single pixels
 * with fewer taps. Weights lie by (tap, channel).
 * args: src, weights, then at the places that the parameters name: bias, residual, dst and what the epilogue reads beyond
 * dst. The iteration space of the epilogue is row-major over (n, spatial..., c). Scratch: the tile of the epilogue, and
 * the taps of a tile. */
#include "gp_packed.h"
#include "gp_depthwise.h"


typedef struct {
    gp_window window; /* its dst strides are those of images, rows and pixels */
    int64_t channels, channel_block;
    int64_t residual_n, residual[3];
    int64_t bias_arg, residual_arg, dst_arg; /* 0: there is none */
    int64_t tile_in_scratch, has_epilogue;
    int64_t taps_offset; /* bytes into scratch; the tile lies at 0 */
    float lo, hi;
} gp_depthwise_packed;

/* Where the results of a row of pixels go. */
typedef struct {
    float *dst;
    int64_t dst_pixel, residual_pixel;
    const float *bias, *residual; /* NULL: none */
    float lo, hi;
} row_sink;

/* `pixels` pixels by `nv` vectors of channels from c on, of which `left` channels count. */
GP_INLINE void tile_vectors(const int pixels, const int nv, const int is_whole, const gp_meeting_tap *taps, int64_t ntaps,
                            int64_t src_pixel, int64_t c, int64_t left, const row_sink *sink)
{
    gp_vf acc[GP_DEPTHWISE_PIXELS][2];
#pragma GCC unroll 2
    for (int v = 0; v < nv; v++) {
        const float *bias = sink->bias + c + v * GP_VL;
        acc[0][v] = sink->bias ? (is_whole ? gp_load(bias) : gp_load_some(bias, left)) : (gp_vf){0};
#pragma GCC unroll 4
        for (int i = 1; i < pixels; i++)
            acc[i][v] = acc[0][v];
    }
    for (int64_t t = 0; t < ntaps; t++) {
        const float *weights = taps[t].weights + c, *src = (const float *)taps[t].src + c;
#pragma GCC unroll 2
        for (int v = 0; v < nv; v++) {
            const gp_vf w = is_whole ? gp_load(weights + v * GP_VL) : gp_load_some(weights, left);
#pragma GCC unroll 4
            for (int i = 0; i < pixels; i++) {
                const float *x = src + i * src_pixel + v * GP_VL;
                acc[i][v] = gp_vfma(is_whole ? gp_load(x) : gp_load_some(x, left), w, acc[i][v]);
            }
        }
    }
    const gp_vf lo = gp_splat(sink->lo), hi = gp_splat(sink->hi);
#pragma GCC unroll 4
    for (int i = 0; i < pixels; i++)
#pragma GCC unroll 2
        for (int v = 0; v < nv; v++) {
            const int64_t at = c + v * GP_VL, count = is_whole ? GP_VL : left;
            if (sink->residual)
                acc[i][v] += gp_load_some(sink->residual + i * sink->residual_pixel + at, count);
            gp_store_part(sink->dst + i * sink->dst_pixel + at, gp_vclamp(acc[i][v], lo, hi), count);
        }
}

GP_INLINE void tile(const int pixels, const gp_meeting_tap *taps, int64_t ntaps, int64_t src_pixel, int64_t channels,
                    const row_sink *sink)
{
    int64_t c = 0;
    for (; c + 2 * GP_VL <= channels; c += 2 * GP_VL)
        tile_vectors(pixels, 2, 1, taps, ntaps, src_pixel, c, 0, sink);
    for (; c < channels; c += GP_VL)
        tile_vectors(pixels, 1, 0, taps, ntaps, src_pixel, c, gp_min(channels - c, GP_VL), sink);
}

static void row(const gp_depthwise_packed *p, const char *src, const float *weights, int64_t od, int64_t oh,
                int64_t channels, row_sink sink, gp_meeting_tap *taps)
{
    const gp_window *w = &p->window;
    const int64_t src_pixel = w->stride[2] * w->src[2];
    int64_t alike = 0, ntaps = 0;
    for (int64_t ow = 0, step; ow < w->out[2]; ow += step, alike -= step) {
        if (alike == 0) {
            alike = gp_count_alike(w, ow);
            ntaps = gp_find_taps(w, p->channels, src, sizeof(float), weights, od, oh, ow, taps);
        }
        step = alike >= GP_DEPTHWISE_PIXELS ? GP_DEPTHWISE_PIXELS : 1;
        if (step == 1)
            tile(1, taps, ntaps, src_pixel, channels, &sink);
        else
            tile(GP_DEPTHWISE_PIXELS, taps, ntaps, src_pixel, channels, &sink);
        for (int64_t t = 0; t < ntaps; t++)
            taps[t].src += step * src_pixel * (int64_t)sizeof(float);
        sink.dst += step * sink.dst_pixel;
        sink.residual += sink.residual ? step * sink.residual_pixel : 0;
    }
}

static void task(const gp_depthwise_packed *p, void *const *args, int64_t n, int64_t od, int64_t oh, int64_t c,
                 char *scratch)
{
    const gp_window *w = &p->window;
    const int64_t channels = gp_min(p->channels - c, p->channel_block);
    row_sink sink = {.lo = p->lo, .hi = p->hi, .residual_pixel = p->residual[2]};
    sink.dst = p->tile_in_scratch ? (float *)scratch
                                  : (float *)args[p->dst_arg] + n * w->dst_n + od * w->dst[0] + oh * w->dst[1] + c;
    sink.dst_pixel = p->tile_in_scratch ? channels : w->dst[2];
    if (p->bias_arg)
        sink.bias = (const float *)args[p->bias_arg] + c;
    if (p->residual_arg)
        sink.residual = (const float *)args[p->residual_arg] + n * p->residual_n + od * p->residual[0] +
                        oh * p->residual[1] + c;
    row(p, (const char *)((const float *)args[0] + n * w->src_n + c), (const float *)args[1] + c, od, oh, channels, sink,
        (gp_meeting_tap *)(scratch + p->taps_offset));
    if (p->has_epilogue)
        gp_run_epilogue((const gp_eltwise *)(p + 1), args + p->dst_arg, sink.dst, sink.dst_pixel, w->out[2], channels,
                        (((n * w->out[0] + od) * w->out[1] + oh) * w->out[2]) * p->channels + c, p->channels);
}

static void GP_KERNEL(f32_conv_depthwise_packed)(const void *params, void *const *args, int64_t begin, int64_t end,
                                                 void *scratch)
{
    const gp_depthwise_packed *p = params;
    const int64_t blocks = (p->channels + p->channel_block - 1) / p->channel_block;
    for (int64_t t = begin; t < end; t++) {
        const int64_t line = t / blocks, plane = line / p->window.out[1];
        task(p, args, plane / p->window.out[0], plane % p->window.out[0], line % p->window.out[1],
             t % blocks * p->channel_block, scratch);
    }
}

const gp_kernel_entry GP_KERNEL(conv_depthwise_table)[] = {
    {"f32_conv_depthwise_packed", GP_KERNEL(f32_conv_depthwise_packed), sizeof(gp_depthwise_packed)},
    {NULL, NULL, 0},
};
