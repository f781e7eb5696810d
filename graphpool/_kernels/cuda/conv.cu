// A convolution of few channels as a matrix product of weights and windows that are gathered while they are staged: rows
// are channels of the result in one group, columns its pixels.

extern "C" __global__ void GP_KERNEL(const char *src, const char *weights, GP_ARGS, const Params p) {
    GP_TILE_ROOM(GP_DOWN, GP_ACROSS);
    __shared__ Term terms[2 * GP_DEPTH];  // of the stage that is multiplied, and of that which is read
    const int high = 16 * GP_DOWN, wide = 16 * GP_ACROSS;
    const GP_INDEX pixels = p.dst_d * p.dst_h * p.dst_w, taps = p.kernel_d * p.kernel_h * p.kernel_w;
    const GP_INDEX outer = p.outer, depth = p.inner * taps;
    const long long down = (outer + high - 1) / high, across = (pixels + wide - 1) / wide;
    for (long long tile = blockIdx.x; tile < p.batch * p.groups * down * across; tile += gridDim.x) {
        const long long image = tile / across / down / p.groups, group = tile / across / down % p.groups;
        const long long from = image * p.along_n + group * p.inner * p.along_c, weight = group * p.weight_group;
        const GP_INDEX first_row = tile / across % down * high, first_col = tile % across * wide;
        gp_multiply_tile<GP_DOWN, GP_ACROSS>(
            as, bs, first_row, first_col, outer, pixels, depth,
            [&](GP_INDEX begin) {
                const GP_INDEX k = begin + threadIdx.x, tap = k % taps, row = tap / GP_P(kernel_w);
                if (threadIdx.x >= GP_DEPTH || k >= depth) return;
                terms[k & (2 * GP_DEPTH - 1)] = gp_term(
                    p, k / taps, row / GP_P(kernel_h), row % GP_P(kernel_h), tap % GP_P(kernel_w));
            },
            [&](GP_INDEX row, GP_INDEX k) {
                const GP_INDEX at = terms[k & (2 * GP_DEPTH - 1)].weights + row * GP_P(weight_outer);
                return gp_load_weights(weights, weight + at);
            },
            [&](GP_INDEX pixel) {
                const GP_INDEX row = pixel / GP_P(dst_w), d = GP_START(row / GP_P(dst_h), d);
                const GP_INDEX h = GP_START(row % GP_P(dst_h), h), w = GP_START(pixel % GP_P(dst_w), w);
                return [&, d, h, w](GP_INDEX k) {
                    return gp_element(p, src, from, terms[k & (2 * GP_DEPTH - 1)], d, h, w);
                };
            },
            [&](GP_INDEX row, GP_INDEX pixel, float sum) {
                const long long channel = group * p.outer + row;
                gp_program(p, image * p.dst_n + channel * p.dst_c + pixel * p.dst_pixel, sum, GP_PASSED);
            });
    }
}
