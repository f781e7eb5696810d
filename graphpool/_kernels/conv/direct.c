/* Convolution and transposed convolution as matrix products over gathered patches; depthwise convolution directly.
 *
 * A task of the product is a block of result pixels of one image and group. Its patches form a matrix X of pixels x
 * (taps * input channels); weights form W of (taps * input channels) x output channels; the tile is X W where channels
 * are innermost in dst, else its transpose W' X'. A transposed convolution gathers zeros where a pixel meets no input,
 * so it costs prod(strides) times its useful arithmetic. A bias is one more row of W, and one more of X that holds ones.
 *
 * args: src, weights, the bias if there is one, dst, then what the epilogue reads beyond dst. */
#include "conv/gp_conv_weights.h"
#include "image/gp_window.h"

#define GP_PACK_CHANNELS 8

GP_RECORD(gp_conv, {
    gp_window window;
    int64_t batch, groups, ic, oc;                    /* channels of one group */
    int64_t w_group, w_oc, w_ic, w[3];                /* strides of the weights */
    int64_t taps_outer;                               /* rows of W run over (taps, ic), else over (ic, taps) */
    int64_t w_row;                                    /* stride of the rows of W in memory; unused when packed */
    int64_t pack_weights, gather, transposed;
    int64_t has_bias, dst_arg;                        /* with a bias: patches are gathered, weights packed */
    int64_t src_pixel, dst_pixel;                     /* strides of pixels where src or dst are used in place */
    int64_t pixel_block, tile_in_scratch, has_epilogue;
    int64_t patch_offset, weights_offset, panel_offset; /* bytes into scratch; the tile lies at 0 */
    int64_t exact_depth, sums_offset;                   /* terms at a time, their sums added in f64; 0: all at once */
    uint64_t blas;
});

/* Pixels [begin, end) of one image and group, gathered to strides (pixel, tap, channel). */
typedef struct {
    int64_t begin, end;
    int64_t pixel, tap, channel;
} patch_layout;

static int64_t count_taps(const gp_window *w) { return w->kernel[0] * w->kernel[1] * w->kernel[2]; }

/* Elements that lie side by side, a few vectors mostly: calls of memcpy would take longer. */
GP_INLINE void copy_line(float *to, const float *from, int64_t n)
{
    for (int64_t i = 0; i < n; i += GP_VL)
        gp_store_part(to + i, gp_load_some(from + i, n - i), n - i);
}

/* Zeros for pixels first .. last - 1 of a patch. */
static void clear_pixels(const gp_conv *p, const patch_layout *lay, float *to, int64_t first, int64_t last)
{
    for (int64_t j = first; j < last; ++j)
        for (int64_t i = 0; i < p->ic; ++i)
            to[j * lay->pixel + i * lay->channel] = 0;
}

/* Copy what one tap reads for pixels of one result row; `to` is the patch element of the row's first pixel. */
static void gather_tap(const gp_conv *p, const patch_layout *lay, const float *src, float *to, gp_tap tap,
                       int64_t begin, int64_t end)
{
    const gp_window *w = &p->window;
    const int64_t pixels = end - begin, front = tap.count ? tap.first - begin : pixels;
    float *first = to + front * lay->pixel;
    src += tap.src;
    if (tap.step == 1) {
        clear_pixels(p, lay, to, 0, front);
        clear_pixels(p, lay, to, front + tap.count, pixels);
    } else if (tap.count < pixels) {
        clear_pixels(p, lay, to, 0, pixels);
    }
    if (w->channels_last)
        gp_copy(first, tap.step * lay->pixel, lay->channel, src, tap.src_step, w->src_c, tap.count, p->ic, sizeof(float));
    else
        for (int64_t c = 0; c < p->ic; c++, src += w->src_c, first += lay->channel)
            if (tap.src_step == 1 && tap.step * lay->pixel == 1)
                copy_line(first, src, tap.count);
            else
                gp_copy(first, 0, tap.step * lay->pixel, src, 0, tap.src_step, 1, tap.count, sizeof(float));
}

static void gather(const gp_conv *p, const patch_layout *lay, const float *src, float *patches)
{
    const gp_window *w = &p->window;
    for (int64_t pixel = lay->begin; pixel < lay->end;) {
        const int64_t row = pixel / w->out[2], begin = pixel % w->out[2];
        const int64_t end = gp_min(w->out[2], begin + lay->end - pixel);
        const int64_t od = row / w->out[1], oh = row % w->out[1];
        float *to = patches + (pixel - lay->begin) * lay->pixel;
        for (int64_t kd = 0; kd < w->kernel[0]; ++kd)
            for (int64_t kh = 0; kh < w->kernel[1]; ++kh)
                for (int64_t kw = 0; kw < w->kernel[2]; ++kw, to += lay->tap)
                    gather_tap(p, lay, src, to, gp_find_tap(w, (int)p->transposed, od, oh, begin, end, kd, kh, kw),
                               begin, end);
        pixel += end - begin;
    }
}

/* Rows of W and X: the terms of a sum. */
static int64_t count_terms(const gp_conv *p) { return count_taps(&p->window) * p->ic + p->has_bias; }

/* W of one group as dense rows, the bias behind; a few input channels at a time, so that lines with several taps are read
 * once. */
static void pack_weights(const gp_conv *p, const float *weights, const float *bias, float *room)
{
    const gp_window *w = &p->window;
    const int64_t taps = count_taps(w), row = p->taps_outer ? 1 : taps;
    for (int64_t ic = 0; ic < p->ic; ic += GP_PACK_CHANNELS)
        for (int64_t tap = 0; tap < taps; ++tap) {
            const float *from = weights + gp_tap_offset(w->kernel, p->w, tap) + ic * p->w_ic;
            float *to = room + ((p->taps_outer ? tap * p->ic : tap) + ic * row) * p->oc;
            gp_copy(to, row * p->oc, 1, from, p->w_ic, p->w_oc, gp_min(p->ic - ic, GP_PACK_CHANNELS), p->oc,
                    sizeof(float));
        }
    if (p->has_bias)
        memcpy(room + taps * p->ic * p->oc, bias, (size_t)p->oc * sizeof(float));
}

static void scatter(const gp_conv *p, int64_t begin, int64_t end, const float *tile, int64_t ld, float *dst)
{
    const gp_window *w = &p->window;
    const int64_t tile_pixel = w->channels_last ? ld : 1, tile_channel = w->channels_last ? 1 : ld;
    for (int64_t pixel = begin; pixel < end; ++pixel) {
        const int64_t ow = pixel % w->out[2], oh = pixel / w->out[2] % w->out[1], od = pixel / w->out[2] / w->out[1];
        gp_copy(dst + od * w->dst[0] + oh * w->dst[1] + ow * w->dst[2], 0, w->dst_c,
                tile + (pixel - begin) * tile_pixel, 0, tile_channel, 1, p->oc, sizeof(float));
    }
}

static inline gp_matrix transposed(gp_matrix a) { return (gp_matrix){a.data, a.col_stride, a.row_stride}; }

/* tile = X W, or its transpose where channels are outermost. */
static void product(const gp_conv *p, int64_t pixels, int64_t depth, gp_matrix x, gp_matrix w, float *tile, int64_t ld,
                    char *scratch)
{
    const int last = (int)p->window.channels_last;
    gp_product_of_parts(p->exact_depth, (double *)(scratch + p->sums_offset), p->blas, last ? pixels : p->oc,
                        last ? p->oc : pixels, depth, last ? x : transposed(w), last ? w : transposed(x), tile, ld,
                        (float *)(scratch + p->panel_offset));
}

/* Patches of a block: gathered to scratch, or the source itself for 1x1 windows. */
static gp_matrix find_patches(const gp_conv *p, const float *src, int64_t begin, int64_t end, int64_t depth,
                              char *scratch)
{
    if (!p->gather)
        return (gp_matrix){src + begin * p->src_pixel, p->src_pixel, p->window.src_c};
    const int64_t taps = count_taps(&p->window);
    const int64_t pixel = p->window.channels_last ? depth : 1, row = p->window.channels_last ? 1 : end - begin;
    const patch_layout lay = {begin, end, pixel, row * (p->taps_outer ? p->ic : 1), row * (p->taps_outer ? 1 : taps)};
    float *patches = (float *)(scratch + p->patch_offset);
    gather(p, &lay, src, patches);
    for (int64_t i = 0; p->has_bias && i < end - begin; i++)
        patches[i * pixel + (depth - 1) * row] = 1;
    return (gp_matrix){patches, pixel, row};
}

/* A result of a transposed convolution by the definition: only what the source holds is multiplied. */
static float compute_pixel(const gp_conv *p, const float *src, const float *weights, int64_t pixel)
{
    const gp_window *w = &p->window;
    const int64_t at[3] = {pixel / w->out[2] / w->out[1], pixel / w->out[2] % w->out[1], pixel % w->out[2]};
    double sum = 0;
    for (int64_t tap = 0; tap < count_taps(w); ++tap) {
        const int64_t k[3] = {tap / w->kernel[2] / w->kernel[1], tap / w->kernel[2] % w->kernel[1], tap % w->kernel[2]};
        const float *x = src, *y = weights;
        int is_inside = 1;
        for (int axis = 0; axis < 3; ++axis) {
            const int64_t i = gp_source_of(w, axis, at[axis], k[axis], 1);
            is_inside &= i >= 0;
            x += i * w->src[axis];
            y += k[axis] * p->w[axis];
        }
        for (int64_t ic = 0; is_inside && ic < p->ic; ++ic)
            sum += (double)x[ic * w->src_c] * y[ic * p->w_ic];
    }
    return (float)sum;
}

/* Results that are NaN anew: they may be products of an infinite weight and a zero that stands where no input is. */
static void mend_tile(const gp_conv *p, const float *src, const float *weights, int64_t begin, int64_t end, float *tile,
                      int64_t ld)
{
    const int last = (int)p->window.channels_last;
    for (int64_t pixel = begin; pixel < end; ++pixel)
        for (int64_t oc = 0; oc < p->oc; ++oc) {
            float *to = tile + (last ? (pixel - begin) * ld + oc : oc * ld + pixel - begin);
            if (*to != *to)
                *to = compute_pixel(p, src, weights + oc * p->w_oc, pixel);
        }
}

static void run_block(const gp_conv *p, void *const *args, int64_t n, int64_t group, int64_t begin, gp_matrix w,
                      char *scratch)
{
    const gp_window *win = &p->window;
    const int last = (int)win->channels_last;
    const int64_t pixels = win->out[0] * win->out[1] * win->out[2], end = gp_min(begin + p->pixel_block, pixels);
    const int64_t depth = count_terms(p), c = group * p->oc, channels = p->groups * p->oc;
    const float *src = (const float *)args[0] + n * win->src_n + group * p->ic * win->src_c;
    float *dst = (float *)args[p->dst_arg] + n * win->dst_n + c * win->dst_c;
    const int64_t rows = last ? end - begin : p->oc, cols = last ? p->oc : end - begin;
    float *tile = p->tile_in_scratch ? (float *)scratch : dst + begin * p->dst_pixel;
    const int64_t ld = p->tile_in_scratch ? cols : last ? p->dst_pixel : win->dst_c;
    const gp_matrix patches = find_patches(p, src, begin, end, depth, scratch);
    product(p, end - begin, depth, patches, w, tile, ld, scratch);
    if (p->transposed)
        mend_tile(p, src, (const float *)args[1] + group * p->w_group, begin, end, tile, ld);
    if (p->has_epilogue)
        gp_run_epilogue((const gp_eltwise *)(p + 1), args + p->dst_arg, tile, ld, rows, cols,
                        last ? (n * pixels + begin) * channels + c : (n * channels + c) * pixels + begin,
                        last ? channels : pixels);
    else if (p->tile_in_scratch)
        scatter(p, begin, end, tile, ld, dst);
}

static void run(const gp_conv *p, void *const *args, int64_t begin, int64_t end, char *scratch)
{
    const gp_window *win = &p->window;
    const int64_t pixels = win->out[0] * win->out[1] * win->out[2];
    const int64_t blocks = (pixels + p->pixel_block - 1) / p->pixel_block;
    int64_t packed = -1;
    for (int64_t task = begin; task < end; ++task) {
        const int64_t group = task / blocks % p->groups;
        gp_matrix w = {(const float *)args[1] + group * p->w_group, p->w_row, p->w_oc};
        if (p->pack_weights) {
            float *room = (float *)(scratch + p->weights_offset);
            if (group != packed)
                pack_weights(p, w.data, (const float *)args[2] + group * p->oc, room);
            packed = group;
            w = (gp_matrix){room, p->oc, 1};
        }
        run_block(p, args, task / blocks / p->groups, group, task % blocks * p->pixel_block, w, scratch);
    }
}

GP_DEFINE_KERNEL(f32_conv_gemm) { run(params, args, begin, end, scratch); }

GP_RECORD(gp_depthwise, {
    gp_row_plan rows;
    int64_t w_c, w[3]; /* strides of the weights: channel, taps */
});

/* tile(pixel, channel) += weight(channel) * src for the pixels of one tap, vectorised over channels or over pixels. */
static void add_tap(const gp_window *w, const gp_row *row, const float *src, gp_tap tap, const float *weights,
                    int64_t w_c)
{
    for (int64_t i = 0; i < (w->channels_last ? tap.count : row->channels); ++i) {
        const float *from = src + tap.src + i * (w->channels_last ? tap.src_step : w->src_c);
        float *to = row->tile + (w->channels_last ? tap.first + i : i) * row->ld + (w->channels_last ? 0 : tap.first);
        const float weight = weights[w->channels_last ? 0 : i * w_c];
        if (w->channels_last && w->src_c == 1 && w_c == 1)
            for (int64_t c = 0; c < row->channels; ++c)
                to[c] += weights[c] * from[c];
        else if (w->channels_last)
            for (int64_t c = 0; c < row->channels; ++c)
                to[c] += weights[c * w_c] * from[c * w->src_c];
        else if (tap.src_step == 1)
            for (int64_t j = 0; j < tap.count; ++j)
                to[j] += weight * from[j];
        else
            for (int64_t j = 0; j < tap.count; ++j)
                to[j] += weight * from[j * tap.src_step];
    }
}

GP_DEFINE_KERNEL(f32_conv_depthwise)
{
    const gp_depthwise *p = params;
    const gp_window *w = &p->rows.window;
    for (int64_t task = begin; task < end; ++task) {
        const gp_row row = gp_row_begin(&p->rows, args[2], scratch, task);
        const float *src = (const float *)args[0] + row.n * w->src_n + row.c * w->src_c;
        const float *weights = (const float *)args[1] + row.c * p->w_c;
        for (int64_t i = 0; i < row.rows; ++i)
            memset(row.tile + i * row.ld, 0, (size_t)row.cols * sizeof(float));
        for (int64_t kd = 0; kd < w->kernel[0]; ++kd)
            for (int64_t kh = 0; kh < w->kernel[1]; ++kh)
                for (int64_t kw = 0; kw < w->kernel[2]; ++kw)
                    add_tap(w, &row, src, gp_find_tap(w, 0, row.od, row.oh, 0, w->out[2], kd, kh, kw),
                            weights + kd * p->w[0] + kh * p->w[1] + kw * p->w[2], p->w_c);
        gp_row_end(&p->rows, &row, (const gp_eltwise *)(p + 1), args + 2);
    }
}

const gp_kernel_entry GP_KERNEL(conv_table)[] = {
    {"f32_conv_blas_im2col", GP_KERNEL(f32_conv_gemm), &gp_conv_record},
    {"f32_conv_simd_im2col", GP_KERNEL(f32_conv_gemm), &gp_conv_record},
    GP_ENTRY(f32_conv_depthwise, gp_depthwise),
    GP_INNER(gp_window),
    GP_TABLE_END,
};
