/* 3x3 convolution with stride 1 by Winograd's algorithm. F(4x4, 3x3): 36 multiplications for 16 results, where
 * the direct way takes 144; F(2x2, 3x3): 16 for 4, where it takes 36. Channels last, any number of them.
 *
 * With A, G and B of the interpolation points 0, p, -p, q, -q and infinity, results are A' [(G w G') . (B' x B)] A for
 * each tile of 6x6 source pixels (Lavin and Gray, "Fast algorithms for convolutional neural networks", 2016), summed
 * over input channels before A is applied: 36 matrix products. p = 1/sqrt 2 and q = sqrt 2 keep all factors near one,
 * so that the error is about twice that of direct sums; 1 and 2 would lose two bits more (the choice of points:
 * Barabasz et al., "Error analysis and improving the accuracy of Winograd convolution", 2020). Tiles of 2x2 results
 * need the points 0, 1, -1 and infinity alone.
 *
 * A task is a block of tiles by a block of output channels. args: src, packed weights (36 matrices in panels), then
 * those of the post-ops. */
#include "gemm/gp_packed.h"
#include "eltwise/gp_tile.h"

#define GP_MOST_TILE 4 /* results of a tile along an axis */
#define GP_MOST_PATCH 6
#define GP_MOST_PRODUCTS 36
#define GP_STEP (2 * GP_PANEL) /* output channels whose accumulators are in scratch at a time */

#define GP_P 0.70710678118654752440f
#define GP_Q 1.41421356237309504880f

GP_RECORD(gp_winograd, {
    int64_t batch, ic, oc;
    int64_t in[2], out[2], pad[2];             /* height, width */
    int64_t src[3], dst[3], residual[3];       /* strides: image, row, pixel */
    int64_t pitch;                             /* floats from one packed matrix to the next */
    int64_t bias_arg, residual_arg, dst_arg;   /* 0: there is none */
    int64_t tile_block, col_block;
    int64_t tile_in_scratch, has_epilogue;
    int64_t acc_offset, zeros_offset, tile_offset; /* bytes into scratch; the transformed sources lie at 0 */
    float lo, hi;
});

/* A tile of results: its image, and its first pixel. */
typedef struct {
    int64_t n, y, x;
} place;

GP_INLINE place find_tile(const gp_winograd *p, const int tile, int64_t number)
{
    const int64_t across = (p->out[1] + tile - 1) / tile, down = (p->out[0] + tile - 1) / tile;
    return (place){number / across / down, number / across % down * tile, number % across * tile};
}

/* B' of six vectors that lie `step` apart, with p^2 = 1/2 and q^2 = 2; of four for tiles of two. */
GP_INLINE void transform_patch(const int tile, const gp_vf *d, gp_vf *to, const int step)
{
    if (tile == 2) {
        to[0] = d[0] - d[2 * step];
        to[step] = d[step] + d[2 * step];
        to[2 * step] = d[2 * step] - d[step];
        to[3 * step] = d[step] - d[3 * step];
        return;
    }
    const gp_vf p = gp_splat(GP_P), q = gp_splat(GP_Q), half = gp_splat(-0.5f), two = gp_splat(-2.0f);
    const gp_vf sum = gp_splat(-2.5f);
    const gp_vf even_p = gp_vfma(d[2 * step], two, d[4 * step]), odd_p = gp_vfma(d[step], two, d[3 * step]) * p;
    const gp_vf even_q = gp_vfma(d[2 * step], half, d[4 * step]), odd_q = gp_vfma(d[step], half, d[3 * step]) * q;
    to[0] = gp_vfma(d[2 * step], sum, d[0] + d[4 * step]);
    to[step] = even_p + odd_p;
    to[2 * step] = even_p - odd_p;
    to[3 * step] = even_q + odd_q;
    to[4 * step] = even_q - odd_q;
    to[5 * step] = gp_vfma(d[3 * step], sum, d[step] + d[5 * step]);
}

/* A' of six vectors that lie `step` apart, to four that lie `to_step` apart; of four, to two. */
GP_INLINE void transform_sums(const int tile, const gp_vf *m, const int step, gp_vf *to, const int to_step)
{
    if (tile == 2) {
        to[0] = m[0] + m[step] + m[2 * step];
        to[to_step] = m[step] - m[2 * step] - m[3 * step];
        return;
    }
    const gp_vf p = gp_splat(GP_P), q = gp_splat(GP_Q), half = gp_splat(0.5f), two = gp_splat(2.0f);
    const gp_vf even_p = m[step] + m[2 * step], odd_p = (m[step] - m[2 * step]) * p;
    const gp_vf even_q = m[3 * step] + m[4 * step], odd_q = (m[3 * step] - m[4 * step]) * q;
    to[0] = m[0] + even_p + even_q;
    to[to_step] = odd_p + odd_q;
    to[2 * to_step] = gp_vfma(even_p, half, even_q * two);
    to[3 * to_step] = gp_vfma(odd_p, half, gp_vfma(odd_q, two, m[5 * step]));
}

/* The values of a tile's patch for every input channel, to[product * pitch + channel]. */
GP_INLINE void transform_source(const gp_winograd *p, const int tile, const float *src, place at, const float *zeros,
                                float *to, int64_t pitch)
{
    const int patch = tile + 2, products = patch * patch;
    const float *from[GP_MOST_PRODUCTS];
    for (int64_t i = 0; i < products; i++) {
        const int64_t y = at.y + i / patch - p->pad[0], x = at.x + i % patch - p->pad[1];
        const int is_inside = y >= 0 && y < p->in[0] && x >= 0 && x < p->in[1];
        from[i] = is_inside ? src + at.n * p->src[0] + y * p->src[1] + x * p->src[2] : zeros;
    }
    for (int64_t c = 0; c < p->ic; c += GP_VL) {
        const int64_t left = p->ic - c;
        gp_vf d[GP_MOST_PRODUCTS], half[GP_MOST_PRODUCTS];
        for (int i = 0; i < products; i++)
            d[i] = gp_load_some(from[i] + c, left);
        for (int i = 0; i < patch; i++)
            transform_patch(tile, d + i, half + i, patch);
        for (int i = 0; i < patch; i++)
            transform_patch(tile, half + i * patch, d + i * patch, 1);
        for (int i = 0; i < products; i++)
            gp_store_part(to + i * pitch + c, d[i], left);
    }
}

/* Results of one tile for `cols` output channels, from their accumulators at from[product * pitch + channel]. */
typedef struct {
    float *dst;
    int64_t dst_row, dst_pixel, residual_row, residual_pixel;
    const float *bias, *residual; /* NULL: none */
    int64_t rows, pixels, cols;
} tile_sink;

GP_INLINE void store_tile(const gp_winograd *p, const int tile, const float *from, int64_t pitch, const tile_sink *sink)
{
    const int patch = tile + 2, products = patch * patch;
    const gp_vf lo = gp_splat(p->lo), hi = gp_splat(p->hi);
    for (int64_t c = 0; c < sink->cols; c += GP_VL) {
        const int64_t left = sink->cols - c;
        gp_vf m[GP_MOST_PRODUCTS], half[GP_MOST_TILE * GP_MOST_PATCH], y[GP_MOST_TILE * GP_MOST_TILE];
        for (int i = 0; i < products; i++)
            m[i] = gp_load_some(from + i * pitch + c, left);
        for (int i = 0; i < patch; i++)
            transform_sums(tile, m + i, patch, half + i, patch);
        for (int i = 0; i < tile; i++)
            transform_sums(tile, half + i * patch, 1, y + i * tile, 1);
        const gp_vf bias = sink->bias ? gp_load_some(sink->bias + c, left) : gp_splat(-0.0f);
        for (int64_t i = 0; i < sink->rows; i++)
            for (int64_t j = 0; j < sink->pixels; j++) {
                gp_vf value = y[i * tile + j] + bias;
                if (sink->residual)
                    value += gp_load_some(sink->residual + i * sink->residual_row + j * sink->residual_pixel + c, left);
                gp_store_part(sink->dst + i * sink->dst_row + j * sink->dst_pixel + c, gp_vclamp(value, lo, hi), left);
            }
    }
}

/* The columns j .. j + cols - 1 of a tile whose accumulators lie at `from`. */
GP_INLINE void finish_tile(const gp_winograd *p, const int tile, void *const *args, place at, int64_t j, int64_t cols,
                           const float *from, int64_t pitch, char *scratch)
{
    tile_sink sink = {.rows = gp_min(p->out[0] - at.y, tile), .pixels = gp_min(p->out[1] - at.x, tile)};
    sink.cols = cols;
    sink.dst = p->tile_in_scratch
                   ? (float *)(scratch + p->tile_offset)
                   : (float *)args[p->dst_arg] + at.n * p->dst[0] + at.y * p->dst[1] + at.x * p->dst[2] + j;
    sink.dst_row = p->tile_in_scratch ? tile * cols : p->dst[1];
    sink.dst_pixel = p->tile_in_scratch ? cols : p->dst[2];
    sink.residual_row = p->residual[1];
    sink.residual_pixel = p->residual[2];
    sink.bias = gp_floats_at(args, p->bias_arg, j);
    sink.residual = gp_floats_at(args, p->residual_arg,
                                 at.n * p->residual[0] + at.y * p->residual[1] + at.x * p->residual[2] + j);
    store_tile(p, tile, from, pitch, &sink);
    if (p->has_epilogue)
        for (int64_t i = 0; i < sink.rows; i++)
            gp_run_epilogue((const gp_eltwise *)(p + 1), args + p->dst_arg, sink.dst + i * sink.dst_row, sink.dst_pixel,
                            sink.pixels, cols, ((at.n * p->out[0] + at.y + i) * p->out[1] + at.x) * p->oc + j, p->oc);
}

/* Tiles `first` to `first + count`, columns j to j + cols, with sources that are transformed already. */
GP_INLINE void task(const gp_winograd *p, const int tile, void *const *args, int64_t first, int64_t count, int64_t j,
                    int64_t cols, char *scratch)
{
    const int products = (tile + 2) * (tile + 2);
    const float *sources = (const float *)scratch, *weights = args[1];
    float *acc = (float *)(scratch + p->acc_offset);
    for (int64_t end = j + cols; j < end; j += GP_STEP) {
        const int64_t step = gp_min(end - j, GP_STEP);
        for (int64_t i = 0; i < products; i++)
            gp_f32_panels(count, j, step, p->oc, p->ic, sources + i * count * p->ic, p->ic,
                                  weights + i * p->pitch, acc + i * count * step, step);
        for (int64_t t = 0; t < count; t++)
            finish_tile(p, tile, args, find_tile(p, tile, first + t), j, step, acc + t * step, count * step, scratch);
    }
}

GP_INLINE void run(const gp_winograd *p, const int tile, void *const *args, int64_t begin, int64_t end, char *scratch)
{
    const int64_t across = (p->out[1] + tile - 1) / tile, down = (p->out[0] + tile - 1) / tile;
    const int64_t ntiles = p->batch * down * across, col_blocks = (p->oc + p->col_block - 1) / p->col_block;
    float *zeros = (float *)(scratch + p->zeros_offset);
    memset(zeros, 0, (size_t)p->ic * sizeof *zeros);
    for (int64_t t = begin; t < end; t++) {
        const int64_t first = t / col_blocks * p->tile_block, count = gp_min(ntiles - first, p->tile_block);
        const int64_t j = t % col_blocks * p->col_block;
        if (j == 0 || t == begin)
            for (int64_t i = 0; i < count; i++)
                transform_source(p, tile, args[0], find_tile(p, tile, first + i), zeros, (float *)scratch + i * p->ic,
                                 count * p->ic);
        task(p, tile, args, first, count, j, gp_min(p->oc - j, p->col_block), scratch);
    }
}

GP_DEFINE_KERNEL(f32_conv_winograd_4x4) { run(params, 4, args, begin, end, scratch); }
GP_DEFINE_KERNEL(f32_conv_winograd_2x2) { run(params, 2, args, begin, end, scratch); }

GP_RECORD(gp_winograd_weights, {
    int64_t ic, oc, pitch;
    int64_t w_oc, w_ic, w[2]; /* strides of the weights, in elements */
});

typedef double gp_vd __attribute__((vector_size(8 * GP_VL)));

/* G of three vectors that lie `step` apart. */
GP_INLINE void transform_weights(const int tile, const gp_vd *g, const int step, gp_vd *to, const int to_step)
{
    if (tile == 2) {
        const gp_vd even = (g[0] + g[2 * step]) / 2, odd = g[step] / 2;
        to[0] = g[0];
        to[to_step] = even + odd;
        to[2 * to_step] = even - odd;
        to[3 * to_step] = g[2 * step];
        return;
    }
    const double q = 1.41421356237309504880;
    const gp_vd even_p = (2 * g[0] + g[2 * step]) / -3, odd_p = g[step] * (q / -3);
    const gp_vd even_q = (g[0] + 2 * g[2 * step]) / 6, odd_q = g[step] * (q / 6);
    to[0] = g[0];
    to[to_step] = even_p + odd_p;
    to[2 * to_step] = even_p - odd_p;
    to[3 * to_step] = even_q + odd_q;
    to[4 * to_step] = even_q - odd_q;
    to[5 * to_step] = g[2 * step];
}

/* A vector of output channels of one input channel, or what is left of one: `count`. */
GP_INLINE void pack_vector(const gp_winograd_weights *p, const int tile, const float *from, int64_t count, float *to)
{
    const int patch = tile + 2;
    gp_vd g[9], half[3 * GP_MOST_PATCH], u[GP_MOST_PRODUCTS];
    for (int i = 0; i < 9; i++) {
        double lanes[GP_VL] = {0};
        for (int64_t c = 0; c < gp_min(count, GP_VL); c++)
            lanes[c] = from[i / 3 * p->w[0] + i % 3 * p->w[1] + c * p->w_oc];
        memcpy(&g[i], lanes, sizeof lanes);
    }
    for (int i = 0; i < 3; i++)
        transform_weights(tile, g + i, 3, half + i, 3);
    for (int i = 0; i < patch; i++)
        transform_weights(tile, half + i * 3, 1, u + i * patch, 1);
    for (int i = 0; i < patch * patch; i++)
        gp_store_part(to + i * p->pitch, __builtin_convertvector(u[i], gp_vf), count);
}

/* A task is one panel of output channels. args: weights, packed. */
GP_INLINE void pack_panels(const gp_winograd_weights *p, const int tile, void *const *args, int64_t begin, int64_t end)
{
    for (int64_t t = begin; t < end; t++) {
        const int64_t j = t * GP_PANEL, width = gp_panel_width(j, p->oc);
        float *to = (float *)args[1] + j * p->ic;
        for (int64_t r = 0; r < p->ic; r++)
            for (int64_t c = 0; c < width; c += GP_VL)
                pack_vector(p, tile, (const float *)args[0] + (j + c) * p->w_oc + r * p->w_ic, p->oc - j - c,
                            to + r * width + c);
    }
}

GP_DEFINE_KERNEL(f32_conv_pack_winograd_4x4) { pack_panels(params, 4, args, begin, end); }
GP_DEFINE_KERNEL(f32_conv_pack_winograd_2x2) { pack_panels(params, 2, args, begin, end); }

const gp_kernel_entry GP_KERNEL(winograd_table)[] = {
    GP_ENTRY(f32_conv_winograd_4x4, gp_winograd),
    GP_ENTRY(f32_conv_winograd_2x2, gp_winograd),
    GP_ENTRY(f32_conv_pack_winograd_4x4, gp_winograd_weights),
    GP_ENTRY(f32_conv_pack_winograd_2x2, gp_winograd_weights),
    GP_TABLE_END,
};
