/* Depthwise convolution of channels-last images: every channel by itself, vectors run along channels.
 *
 * A task is one row of results of one image for a block of channels. A tile of pixels adds up its taps in registers, one
 * vector of channels at a time. Neighbouring pixels meet the same pixel of the source with neighbouring taps: with a few
 * taps in registers a source pixel is loaded once for all of them, so that arithmetic is the bound and not loads. Pixels
 * outside the source are passed over. Weights lie by (tap, channel).
 * args: src, weights, then at the places that the parameters name: bias, residual, dst and what the epilogue reads beyond
 * dst. The iteration space of the epilogue is row-major over (n, spatial..., c). Scratch: the tile of the epilogue,
 * and the runs of taps of a row. */
#include "gemm/gp_packed.h"
#include "image/gp_window.h"

#define GP_TILE_PIXELS 8 /* with as many accumulators the latency of none is waited for; with the taps 12 of 16 registers */
#define GP_TILE_TAPS 4

GP_RECORD(gp_depthwise_packed, {
    gp_window window; /* its dst strides are those of images, rows and pixels */
    int64_t channels, channel_block;
    int64_t residual_n, residual[3];
    int64_t bias_arg, residual_arg, dst_arg; /* 0: there is none */
    int64_t tile_in_scratch, has_epilogue;
    int64_t runs_offset; /* bytes into scratch; the tile lies at 0 */
    float lo, hi;
});

/* Where the results of a row of pixels go. */
typedef struct {
    float *dst;
    int64_t dst_pixel, residual_pixel;
    const float *bias, *residual; /* NULL: none */
    float lo, hi;
} row_sink;

/* Neighbouring taps of a row of the kernel, GP_TILE_TAPS at most. */
typedef struct {
    const float *src; /* what the first tap meets at the first pixel of the row of results */
    const float *weights;
    int64_t taps, column; /* column: of src, which may lie outside */
} tap_run;

/* A row of results at channel 0 of the block. Taps of a run meet source pixels `step` elements, `columns` columns apart. */
typedef struct {
    tap_run *runs;
    int64_t nruns, step, columns;
    row_sink sink;
} result_row;

/* Add the taps of a run: pixel i meets pixel i * stride + k of the source with tap k. Those from `first` to `last` exist,
 * all of them if is_inner. */
GP_INLINE void add_taps(const int taps, const int stride, const int is_whole, const int is_inner,
                        const float *src, int64_t step, int64_t first, int64_t last, const float *weights,
                        int64_t channels, int64_t left, gp_vf *acc)
{
    gp_vf w[GP_TILE_TAPS];
#pragma GCC unroll 4
    for (int k = 0; k < taps; k++)
        w[k] = is_whole ? gp_load(weights + k * channels) : gp_load_some(weights + k * channels, left);
#pragma GCC unroll 32
    for (int s = 0; s < (GP_TILE_PIXELS - 1) * stride + taps; s++) {
        if (!is_inner && (s < first || s >= last))
            continue;
        const gp_vf x = is_whole ? gp_load(src + s * step) : gp_load_some(src + s * step, left);
#pragma GCC unroll 4
        for (int k = 0; k < taps; k++)
            if (s >= k && (s - k) % stride == 0 && (s - k) / stride < GP_TILE_PIXELS)
                acc[(s - k) / stride] = gp_vfma(x, w[k], acc[(s - k) / stride]);
    }
}

/* One vector of channels of a tile of pixels; `left` channels and `pixels` pixels of them exist. */
GP_INLINE void tile_vector(const gp_depthwise_packed *p, const int stride, const int is_whole, const int is_inner,
                           const result_row *row, int64_t ow, int64_t pixels, int64_t c, int64_t left)
{
    const gp_window *w = &p->window;
    const row_sink *sink = &row->sink;
    gp_vf acc[GP_TILE_PIXELS];
#pragma GCC unroll 8
    for (int i = 0; i < GP_TILE_PIXELS; i++)
        acc[i] = sink->bias ? gp_load_some(sink->bias + c, left) : (gp_vf){0};
    for (const tap_run *run = row->runs; run < row->runs + row->nruns; run++) {
        const float *src = run->src + ow * w->stride[2] * w->src[2] + c, *tap = run->weights + c;
        int64_t first = 0, last = 0;
        if (!is_inner) {
            const int64_t column = run->column + ow * w->stride[2];
            first = column < 0 ? (row->columns - 1 - column) / row->columns : 0;
            last = gp_floor_div(w->in[2] - 1 - column, row->columns) + 1;
        }
#define GP_ADD(n) add_taps(n, stride, is_whole, is_inner, src, row->step, first, last, tap, p->channels, left, acc)
        switch (run->taps) {
        case 1: GP_ADD(1); break;
        case 2: GP_ADD(2); break;
        case 3: GP_ADD(3); break;
        default: GP_ADD(4); break;
        }
#undef GP_ADD
    }
    const gp_vf lo = gp_splat(sink->lo), hi = gp_splat(sink->hi);
#pragma GCC unroll 8
    for (int i = 0; i < GP_TILE_PIXELS; i++) {
        if (i >= pixels)
            break;
        if (sink->residual)
            acc[i] += gp_load_some(sink->residual + (ow + i) * sink->residual_pixel + c, left);
        gp_store_part(sink->dst + (ow + i) * sink->dst_pixel + c, gp_vclamp(acc[i], lo, hi), left);
    }
}

/* All pixels of a row. What the last tile adds up beyond its end is thrown away. */
GP_INLINE void tiles(const gp_depthwise_packed *p, const int stride, const result_row *row, int64_t channels)
{
    const gp_window *w = &p->window;
    const int64_t reach = (GP_TILE_PIXELS - 1) * w->stride[2] + (w->kernel[2] - 1) * w->dilation[2];
    for (int64_t ow = 0; ow < w->out[2]; ow += GP_TILE_PIXELS) {
        const int64_t begin = ow * w->stride[2] - w->pad[2], pixels = gp_min(w->out[2] - ow, GP_TILE_PIXELS);
        const int is_inner = begin >= 0 && begin + reach < w->in[2];
        int64_t c = 0;
        for (; is_inner && c + GP_VL <= channels; c += GP_VL)
            tile_vector(p, stride, 1, 1, row, ow, pixels, c, GP_VL);
        for (; c + GP_VL <= channels; c += GP_VL)
            tile_vector(p, stride, 1, 0, row, ow, pixels, c, GP_VL);
        if (c < channels)
            tile_vector(p, stride, 0, 0, row, ow, pixels, c, channels - c);
    }
}

/* The runs of taps that a row of results meets: all rows of the kernel that lie inside the source, `most` taps each. */
static int64_t find_runs(const gp_depthwise_packed *p, const float *src, const float *weights, int64_t od, int64_t oh,
                         int64_t most, tap_run *runs)
{
    const gp_window *w = &p->window;
    int64_t n = 0;
    for (int64_t kd = 0; kd < w->kernel[0]; kd++)
        for (int64_t kh = 0; kh < w->kernel[1]; kh++, weights += w->kernel[2] * p->channels) {
            const int64_t id = gp_source_of(w, 0, od, kd, 0), ih = gp_source_of(w, 1, oh, kh, 0);
            for (int64_t k = 0; id >= 0 && ih >= 0 && k < w->kernel[2]; k += most, n++) {
                const int64_t column = k * w->dilation[2] - w->pad[2];
                runs[n] = (tap_run){src + id * w->src[0] + ih * w->src[1] + column * w->src[2], weights + k * p->channels,
                                    gp_min(w->kernel[2] - k, most), column};
            }
        }
    return n;
}

static void compute_row(const gp_depthwise_packed *p, const float *src, const float *weights, int64_t od, int64_t oh,
                        int64_t channels, row_sink sink, tap_run *runs)
{
    const gp_window *w = &p->window;
    const int is_shared = w->dilation[2] == 1 && w->stride[2] <= 2; /* neighbouring pixels meet the same source pixels */
    result_row row = {.runs = runs, .columns = is_shared ? 1 : w->stride[2], .sink = sink};
    row.nruns = find_runs(p, src, weights, od, oh, is_shared ? GP_TILE_TAPS : 1, runs);
    row.step = row.columns * w->src[2];
    if (is_shared && w->stride[2] == 2)
        tiles(p, 2, &row, channels);
    else
        tiles(p, 1, &row, channels);
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
    compute_row(p, (const float *)args[0] + n * w->src_n + c, (const float *)args[1] + c, od, oh, channels, sink,
                (tap_run *)(scratch + p->runs_offset));
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
    GP_ENTRY(f32_conv_depthwise_packed, gp_depthwise_packed),
    GP_TABLE_END,
};
