// A convolution as a matrix product of weights and windows that are gathered while they are staged: rows are channels
// of the result in one group, columns its pixels. Images have up to three spatial axes, depth first. A transposed one
// reads where a convolution from the result to the source would write.

#if GP_IS_TRANSPOSED
#define GP_AT(result, tap, axis) ((result) + p.pad_##axis - (tap) * p.gap_##axis)
#define GP_MISSES(at, axis) ((at) < 0 || (at) % p.step_##axis || (at) / p.step_##axis >= p.src_##axis)
#define GP_CELL(at, axis) ((at) / p.step_##axis)
#else
#define GP_AT(result, tap, axis) ((result) * p.step_##axis - p.pad_##axis + (tap) * p.gap_##axis)
#define GP_MISSES(at, axis) ((at) < 0 || (at) >= p.src_##axis)
#define GP_CELL(at, axis) (at)
#endif

extern "C" __global__ void GP_KERNEL(const char *src, const char *weights, GP_ARGS, const Params p) {
    GP_TILE_ROOM;
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
                const long long id = GP_AT(d, kd, d), ih = GP_AT(h, kh, h), iw = GP_AT(w, kw, w);
                if (GP_MISSES(id, d) || GP_MISSES(ih, h) || GP_MISSES(iw, w)) return 0.0f;
                const long long row = GP_CELL(id, d) * p.along_d + GP_CELL(ih, h) * p.along_h;
                return gp_load_src(src, from + k / taps * p.along_c + row + GP_CELL(iw, w) * p.along_w);
            },
            [&](long long row, long long pixel, float sum) {
                const long long channel = group * p.outer + row;
                gp_program(p, image * p.dst_n + channel * p.dst_c + pixel * p.dst_pixel, sum, GP_PASSED);
            });
    }
}
