/* Depthwise convolution of channels-last images of f32 or bytes: every channel by itself, vectors run along channels. Of
 * f32 also groups of few channels: a tap has a term for each channel of a group's source, and the lanes of a group all
 * multiply that channel, so that vectors are full where a product for each group would leave most of their lanes empty.
 *
 * A task is one row of results of one image for a block of channels. A tile of pixels adds up its taps in registers,
 * one vector of channels at a time. Neighbouring pixels meet the same pixel of the source with neighbouring taps: with
 * a few taps in registers a source pixel is loaded once for all of them, so that arithmetic is the bound and not loads.
 * Weights lie by (tap, channel of the group on the source's side, channel). Bytes become f32 where they are loaded, and their weights are f32 that hold integers:
 * sums of up to 256 products of 8-bit integers are exact in f32, where multiplying and adding is one instruction. Sums
 * begin with what the zero point takes away. Pixels outside the source are passed over. Those of bytes are the zero
 * point, so that all pixels of a row begin alike. args: src, weights, scales of bytes, then those of the post-ops. */
#include "gemm/gp_requant.h"
#include "image/gp_window.h"

#define GP_TILE_PIXELS 8 /* with as many accumulators the latency of none is waited for; with the taps 12 of 16 registers */
#define GP_TILE_TAPS 4

GP_RECORD(gp_depthwise_packed, {
    gp_window window; /* its dst strides are those of images, rows and pixels */
    int64_t channels, channel_block; /* of results; the block has whole groups */
    int64_t src_width, width;        /* channels of a group: of the source, of results */
    int64_t residual_n, residual[3];
    int64_t bias_arg, residual_arg, dst_arg; /* 0: there is none */
    int64_t tile_in_scratch, has_epilogue;
    int64_t runs_offset, first_offset; /* bytes into scratch; the tile lies at 0 */
    float lo, hi;
});

GP_RECORD(gp_depthwise_s8, {
    gp_depthwise_packed depthwise; /* residual_arg, lo and hi are those of the requantisation */
    int64_t src_dtype, zero; /* zero: the zero point of the source, as unsigned bytes have it */
    gp_requant requant;
    gp_dynamic dynamic; /* instead of zero */
});

/* Neighbouring taps of a row of the kernel, GP_TILE_TAPS at most. */
GP_RECORD(tap_run, {
    const char *src; /* what the first tap meets at the first pixel of the row of results */
    const float *weights;
    int64_t taps, column; /* column: of src, which may lie outside */
});

/* A row of results at channel 0 of the block. Taps of a run meet source pixels `step` bytes, `columns` columns apart, and
 * have weights `tap` floats apart; those of the next result meet what lies `next` bytes further. */
typedef struct {
    tap_run *runs;
    int64_t nruns, step, next, columns, channels, src_channels, tap;
    const float *first; /* what sums begin with; NULL: zeros */
    float zero, lo, hi;
    char *dst;
    const char *residual; /* NULL: none */
    int64_t dst_pixel, residual_pixel;
} result_row;

/* ---- tiles of results ---- */

typedef gp_vf pixel_sums[GP_TILE_PIXELS][GP_TILE_PANELS * GP_PANEL_VECTORS]; /* of each pixel the first vector counts */

GP_INLINE int64_t nbytes_of(const enum gp_dtype type)
{
    return type == GP_F32 ? 4 : 1;
}

/* Bytes with the sign that they have. */
GP_INLINE gp_vi widen_bytes(const enum gp_dtype type, const char *src, int64_t left)
{
    const gp_vub bytes = gp_load_some_bytes(src, left);
#if defined(__AVX512F__)
    if (type == GP_S8)
        return (gp_vi)_mm512_cvtepi8_epi32((__m128i)bytes);
#elif defined(__AVX2__)
    if (type == GP_S8)
        return (gp_vi)_mm256_cvtepi8_epi32(_mm_cvtsi64_si128((long long)bytes));
#elif defined(__SSE4_1__)
    if (type == GP_S8)
        return (gp_vi)_mm_cvtepi8_epi32(_mm_cvtsi32_si128((int)bytes));
#endif
    const gp_vi widened = gp_widen_bytes(bytes);
    return type == GP_S8 ? widened - ((widened & 128) << 1) : widened;
}

GP_INLINE gp_vf load_pixel(const enum gp_dtype type, const char *src, int64_t left)
{
    if (type == GP_F32)
        return gp_load_some((const float *)src, left);
    return __builtin_convertvector(widen_bytes(type, src, left), gp_vf);
}

/* What a vector of channels reads of each pixel of the source. */
typedef struct {
    int64_t left;  /* channels that exist there */
    gp_vi lanes;   /* those that are multiplied, if is_grouped */
    float zero;
} pixel_part;

/* Add the taps of a run: pixel i meets pixel i * stride + k of the source with tap k. Those from `first` to `last` exist,
 * all of them if is_inner. Of the weights, `tap` floats apart, `left` exist. */
GP_INLINE void add_taps(const enum gp_dtype type, const int is_grouped, const int taps, const int stride,
                        const int is_inner, const char *src, const pixel_part part, int64_t step, int64_t first,
                        int64_t last, const float *weights, int64_t tap, int64_t left, pixel_sums acc)
{
    gp_vf w[GP_TILE_TAPS];
    GP_EACH(k, taps)
        w[k] = gp_load_some(weights + k * tap, left);
#pragma GCC unroll 32
    for (int s = 0; s < (GP_TILE_PIXELS - 1) * stride + taps; s++) {
        const int is_outside = !is_inner && (s < first || s >= last);
        if (type == GP_F32 && is_outside)
            continue;
        const gp_vf whole = is_outside ? gp_splat(part.zero) : load_pixel(type, src + s * step, part.left);
        const gp_vf x = is_grouped ? gp_pick_lanes(whole, part.lanes) : whole;
        GP_EACH(k, taps)
            if (s >= k && (s - k) % stride == 0 && (s - k) / stride < GP_TILE_PIXELS)
                acc[(s - k) / stride][0] = gp_vfma(x, w[k], acc[(s - k) / stride][0]);
    }
}

/* Limits, residual and store of a tile of f32. */
GP_INLINE void store_floats(const result_row *row, int64_t ow, int64_t pixels, int64_t c, int64_t left, pixel_sums acc)
{
    const gp_vf lo = gp_splat(row->lo), hi = gp_splat(row->hi);
    const float *residual = (const float *)row->residual;
    GP_EACH(i, GP_TILE_PIXELS) {
        if (i >= pixels)
            break;
        if (residual)
            acc[i][0] += gp_load_some(residual + (ow + i) * row->residual_pixel + c, left);
        gp_store_part((float *)row->dst + (ow + i) * row->dst_pixel + c, gp_vclamp(acc[i][0], lo, hi), left);
    }
}

/* The same of bytes. */
GP_INLINE void store_bytes(gp_packed_sink sink, const int is_whole, int64_t ow, int64_t pixels, int64_t c, int64_t left,
                           pixel_sums acc)
{
    sink.scale += c;
    sink.bias += sink.bias ? c : 0;
    sink.row = ow;
    sink.col = c;
    sink.cols = left;
    gp_requantize(GP_TILE_PIXELS, 1, is_whole, pixels, acc, &sink);
}

/* Where the lanes of a vector of results have their groups in the source: `lanes` behind channel `from`. */
typedef struct {
    int64_t from;
    gp_vi lanes;
} group_lanes;

/* Of the vector from channel c of a block on. */
GP_INLINE group_lanes find_lanes(const gp_depthwise_packed *p, int64_t c)
{
    const int64_t group = c / p->width;
    const gp_vi channels = GP_LANE_NUMBERS + (int32_t)(c - group * p->width);
    const gp_vf groups = (__builtin_convertvector(channels, gp_vf) + 0.5f) * (1.0f / (float)p->width); /* never at an integer */
    return (group_lanes){group * p->src_width, __builtin_convertvector(groups, gp_vi) * (int32_t)p->src_width};
}

/* One vector of channels of a tile of pixels; `left` channels and `pixels` pixels of them exist. sink: of bytes. */
GP_INLINE void tile_vector(const enum gp_dtype type, const int is_grouped, const gp_depthwise_packed *p,
                           const int stride, const int is_whole, const int is_inner, const result_row *row,
                           const gp_packed_sink *sink, int64_t ow, int64_t pixels, int64_t c, int64_t left)
{
    const gp_window *w = &p->window;
    pixel_sums acc;
    GP_EACH(i, GP_TILE_PIXELS)
        acc[i][0] = row->first ? gp_load_some(row->first + c, left) : (gp_vf){0};
    const group_lanes groups = is_grouped ? find_lanes(p, c) : (group_lanes){.from = c};
    for (const tap_run *run = row->runs; run < row->runs + row->nruns; run++) {
        const char *src = run->src + ow * row->next;
        int64_t first = 0, last = 0;
        if (!is_inner) {
            const int64_t column = run->column + ow * w->stride[2];
            first = -column;
            last = w->in[2] - column;
            if (row->columns > 1) {
                first = gp_floor_div(row->columns - 1 - column, row->columns);
                last = gp_floor_div(w->in[2] - 1 - column, row->columns) + 1;
            }
        }
#define GP_ADD(n) \
    add_taps(type, is_grouped, n, stride, is_inner, src + from * nbytes_of(type), part, row->step, first, last, weights,\
             row->tap, is_whole ? GP_VL : left, acc)
        for (int64_t term = 0; term < (is_grouped ? p->src_width : 1); term++) {
            int64_t from = groups.from;
            pixel_part part = {.left = is_whole ? GP_VL : left, .zero = row->zero};
            if (is_grouped) { /* the vector of the source that has this channel of the groups */
                from += term & -GP_VL;
                part.left = row->src_channels - from;
                part.lanes = groups.lanes + (int32_t)(term & (GP_VL - 1));
            }
            const float *weights = run->weights + term * p->channels + c;
            switch (run->taps) {
            case 1: GP_ADD(1); break;
            case 2: GP_ADD(2); break;
            case 3: GP_ADD(3); break;
            default: GP_ADD(4); break;
            }
        }
#undef GP_ADD
    }
    if (type == GP_F32)
        store_floats(row, ow, pixels, c, left, acc);
    else
        store_bytes(*sink, is_whole, ow, pixels, c, left, acc);
}

/* All pixels of a row. What the last tile adds up beyond its end is thrown away. */
GP_INLINE void tiles(const enum gp_dtype type, const int is_grouped, const gp_depthwise_packed *p, const int stride,
                     const result_row *given, const gp_packed_sink *sink)
{
    const gp_window *w = &p->window;
    const result_row copy = *given, *row = &copy; /* that the stores cannot change */
    const int64_t reach = (GP_TILE_PIXELS - 1) * w->stride[2] + (w->kernel[2] - 1) * w->dilation[2];
    for (int64_t ow = 0; ow < w->out[2]; ow += GP_TILE_PIXELS) {
        const int64_t begin = ow * w->stride[2] - w->pad[2], pixels = gp_min(w->out[2] - ow, GP_TILE_PIXELS);
        const int is_inner = begin >= 0 && begin + reach < w->in[2];
        int64_t c = 0;
        for (; is_inner && c + GP_VL <= row->channels; c += GP_VL)
            tile_vector(type, is_grouped, p, stride, 1, 1, row, sink, ow, pixels, c, GP_VL);
        for (; c + GP_VL <= row->channels; c += GP_VL)
            tile_vector(type, is_grouped, p, stride, 1, 0, row, sink, ow, pixels, c, GP_VL);
        if (c < row->channels)
            tile_vector(type, is_grouped, p, stride, 0, 0, row, sink, ow, pixels, c, row->channels - c);
    }
}

/* A function for each type and stride, as the time of compiling one grows faster than its length. */
#define GP_TILES(name, type, is_grouped, stride)                                                                       \
    static __attribute__((noinline)) void name(const gp_depthwise_packed *p, const result_row *row,                    \
                                               const gp_packed_sink *sink)                                             \
    {                                                                                                                  \
        tiles(type, is_grouped, p, stride, row, sink);                                                                 \
    }
GP_TILES(tiles_f32_1, GP_F32, 0, 1)
GP_TILES(tiles_f32_2, GP_F32, 0, 2)
GP_TILES(tiles_groups_1, GP_F32, 1, 1)
GP_TILES(tiles_groups_2, GP_F32, 1, 2)
GP_TILES(tiles_s8_1, GP_S8, 0, 1)
GP_TILES(tiles_s8_2, GP_S8, 0, 2)
GP_TILES(tiles_u8_1, GP_U8, 0, 1)
GP_TILES(tiles_u8_2, GP_U8, 0, 2)

/* Whether tiles have a stride of 2 within them; with all others pixels share no source, or lie side by side. */
static int is_halved(const gp_depthwise_packed *p, const result_row *row)
{
    return row->columns == 1 && p->window.stride[2] == 2;
}

static void sum_row_of_floats(const gp_depthwise_packed *p, const result_row *row)
{
    if (p->width > 1)
        (is_halved(p, row) ? tiles_groups_2 : tiles_groups_1)(p, row, NULL);
    else
        (is_halved(p, row) ? tiles_f32_2 : tiles_f32_1)(p, row, NULL);
}

/* c: of the first channel of the block. */
static void sum_row_of_bytes(const gp_depthwise_s8 *p, const result_row *row, void *const *args, int64_t c)
{
    const gp_requant numbers = p->requant; /* a copy that the stores cannot change */
    const gp_requant_sink requant = {
        .p = &numbers,
        .late_bias = gp_floats_at(args, numbers.late_bias_arg, c),
        .residual = row->residual,
        .dst = row->dst,
        .residual_row = row->residual_pixel,
        .dst_row = row->dst_pixel,
    };
    const gp_packed_sink sink = {
        .scale = (const float *)args[2] + c,
        .a_scale = gp_dynamic_scale(&p->dynamic, args),
        .bias = gp_floats_at(args, p->depthwise.bias_arg, c),
        .requant = &requant,
    };
    if (p->src_dtype == GP_S8)
        (is_halved(&p->depthwise, row) ? tiles_s8_2 : tiles_s8_1)(&p->depthwise, row, &sink);
    else
        (is_halved(&p->depthwise, row) ? tiles_u8_2 : tiles_u8_1)(&p->depthwise, row, &sink);
}

/* ---- tasks ---- */

/* The runs of taps that a row of results meets: all rows of the kernel that lie inside the source, `most` taps each. */
static int64_t find_runs(const gp_depthwise_packed *p, int64_t nbytes, const char *src, const float *weights, int64_t od,
                         int64_t oh, int64_t most, tap_run *runs)
{
    const gp_window *w = &p->window;
    const int64_t tap = p->channels * p->src_width;
    int64_t n = 0;
    for (int64_t kd = 0; kd < w->kernel[0]; kd++)
        for (int64_t kh = 0; kh < w->kernel[1]; kh++, weights += w->kernel[2] * tap) {
            const int64_t id = gp_source_of(w, 0, od, kd, 0), ih = gp_source_of(w, 1, oh, kh, 0);
            for (int64_t k = 0; id >= 0 && ih >= 0 && k < w->kernel[2]; k += most, n++) {
                const int64_t column = k * w->dilation[2] - w->pad[2];
                const int64_t at = id * w->src[0] + ih * w->src[1] + column * w->src[2];
                runs[n] = (tap_run){src + at * nbytes, weights + k * tap, gp_min(w->kernel[2] - k, most), column};
            }
        }
    return n;
}

/* What the zero point takes away from all results of a row: it times the weights that the row meets. */
static void begin_sums(const gp_depthwise_packed *p, const result_row *row, float *first)
{
    for (int64_t c = 0; c < row->channels; c += GP_VL) {
        gp_vf sum = {0};
        for (const tap_run *run = row->runs; run < row->runs + row->nruns; run++)
            for (int64_t k = 0; k < run->taps; k++)
                sum += gp_load_some(run->weights + k * p->channels + c, row->channels - c);
        gp_store(first + c, sum * -row->zero);
    }
}

/* bytes: NULL for f32. */
static void task(const gp_depthwise_packed *p, const gp_depthwise_s8 *bytes, const gp_eltwise *epilogue, void *const *args,
                 int64_t n, int64_t od, int64_t oh, int64_t c, char *scratch)
{
    const gp_window *w = &p->window;
    const int is_shared = w->dilation[2] == 1 && w->stride[2] <= 2; /* neighbouring pixels meet the same source pixels */
    const int64_t residual_arg = bytes ? bytes->requant.residual_arg : p->residual_arg, nbytes = bytes ? 1 : 4;
    const int64_t dst = n * w->dst_n + od * w->dst[0] + oh * w->dst[1] + c;
    const int64_t residual = n * p->residual_n + od * p->residual[0] + oh * p->residual[1] + c;
    result_row row = {
        .runs = (tap_run *)(scratch + p->runs_offset),
        .columns = is_shared ? 1 : w->stride[2],
        .channels = gp_min(p->channels - c, p->channel_block),
        .tap = p->channels * p->src_width,
        .lo = p->lo,
        .hi = p->hi,
        .dst = scratch,
        .residual_pixel = p->residual[2],
    };
    row.src_channels = row.channels / p->width * p->src_width;
    row.dst_pixel = row.channels;
    if (!p->tile_in_scratch) {
        row.dst = (char *)args[p->dst_arg] + dst * (bytes ? gp_element_nbytes(bytes->requant.dst_dtype) : 4);
        row.dst_pixel = w->dst[2];
    }
    if (residual_arg)
        row.residual = (const char *)args[residual_arg] +
                       residual * (bytes ? gp_element_nbytes(bytes->requant.residual_dtype) : 4);
    row.step = row.columns * w->src[2] * nbytes;
    row.next = w->stride[2] * w->src[2] * nbytes;
    row.nruns = find_runs(p, nbytes, (const char *)args[0] + (n * w->src_n + c / p->width * p->src_width) * nbytes,
                          (const float *)args[1] + c, od, oh, is_shared ? GP_TILE_TAPS : 1, row.runs);
    if (bytes) {
        float *first = (float *)(scratch + p->first_offset);
        const int zero = gp_dynamic_zero(&bytes->dynamic, args, bytes->src_dtype, bytes->zero);
        row.zero = (float)(bytes->src_dtype == GP_S8 ? zero - 128 : zero);
        row.first = first;
        begin_sums(p, &row, first);
        sum_row_of_bytes(bytes, &row, args, c);
    } else {
        row.first = gp_floats_at(args, p->bias_arg, c);
        sum_row_of_floats(p, &row);
    }
    if (p->has_epilogue)
        gp_run_epilogue(epilogue, args + p->dst_arg, (const float *)row.dst, row.dst_pixel, w->out[2], row.channels,
                        (((n * w->out[0] + od) * w->out[1] + oh) * w->out[2]) * p->channels + c, p->channels);
}

static void run_tasks(const gp_depthwise_packed *p, const gp_depthwise_s8 *bytes, const void *epilogue, void *const *args,
                      int64_t begin, int64_t end, char *scratch)
{
    const int64_t blocks = (p->channels + p->channel_block - 1) / p->channel_block;
    for (int64_t t = begin; t < end; t++) {
        const int64_t line = t / blocks, plane = line / p->window.out[1];
        task(p, bytes, epilogue, args, plane / p->window.out[0], plane % p->window.out[0], line % p->window.out[1],
             t % blocks * p->channel_block, scratch);
    }
}

GP_DEFINE_KERNEL(f32_conv_depthwise_packed)
{
    const gp_depthwise_packed *p = params;
    run_tasks(p, NULL, p + 1, args, begin, end, scratch);
}

GP_DEFINE_KERNEL(s8_conv_depthwise)
{
    const gp_depthwise_s8 *p = params;
    run_tasks(&p->depthwise, p, p + 1, args, begin, end, scratch);
}

const gp_kernel_entry GP_KERNEL(conv_depthwise_table)[] = {
    GP_ENTRY(f32_conv_depthwise_packed, gp_depthwise_packed),
    {"f32_conv_groups_packed", GP_KERNEL(f32_conv_depthwise_packed), &gp_depthwise_packed_record}, /* of several channels */
    GP_ENTRY(s8_conv_depthwise, gp_depthwise_s8),
    GP_INNER(tap_run),
    GP_TABLE_END,
};
