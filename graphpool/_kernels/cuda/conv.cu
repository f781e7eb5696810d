// A convolution as a matrix product of weights and windows that are gathered while they are staged: rows are channels
// of the result in one group, columns its pixels. Images have up to three spatial axes, depth first.

extern "C" __global__ void GP_KERNEL(const char *src, const char *weights, GP_ARGS, const Params p) {
    __shared__ float as[GP_DEPTH][GP_TILE + 1], bs[GP_DEPTH][GP_TILE];
    const long long pixels = p.dst_d * p.dst_h * p.dst_w, taps = p.kernel_d * p.kernel_h * p.kernel_w;
    const long long down = (p.outer + GP_TILE - 1) / GP_TILE, across = (pixels + GP_TILE - 1) / GP_TILE;
    for (long long tile = blockIdx.x; tile < p.batch * p.groups * down * across; tile += gridDim.x) {
        const long long image = tile / across / down / p.groups, group = tile / across / down % p.groups;
        const long long from = image * p.along_n + group * p.inner * p.along_c;
        gp_multiply_tile(
            as, bs, tile / across % down * GP_TILE, tile % across * GP_TILE, p.outer, pixels, p.inner * taps,
            [&](long long row, long long k) {
                const long long tap = k % taps, kw = tap % p.kernel_w, kh = tap / p.kernel_w % p.kernel_h;
                const long long kd = tap / p.kernel_w / p.kernel_h;
                const long long at = kd * p.weight_d + kh * p.weight_h + kw * p.weight_w + k / taps * p.weight_inner;
                return gp_load_weights(weights, at + group * p.weight_group + row * p.weight_outer);
            },
            [&](long long k, long long pixel) {
                const long long tap = k % taps, kw = tap % p.kernel_w, kh = tap / p.kernel_w % p.kernel_h;
                const long long kd = tap / p.kernel_w / p.kernel_h, w = pixel % p.dst_w, h = pixel / p.dst_w % p.dst_h;
                const long long d = pixel / p.dst_w / p.dst_h;
                const long long id = d * p.step_d - p.pad_d + kd * p.gap_d, ih = h * p.step_h - p.pad_h + kh * p.gap_h;
                const long long iw = w * p.step_w - p.pad_w + kw * p.gap_w;
                if (id < 0 || ih < 0 || iw < 0 || id >= p.src_d || ih >= p.src_h || iw >= p.src_w) return 0.0f;
                return gp_load_src(src, from + k / taps * p.along_c + id * p.along_d + ih * p.along_h + iw * p.along_w);
            },
            [&](long long row, long long pixel, float sum) {
                const long long channel = group * p.outer + row;
                gp_program(p, image * p.dst_n + channel * p.dst_c + pixel * p.dst_pixel, sum, GP_PASSED);
            });
    }
}
