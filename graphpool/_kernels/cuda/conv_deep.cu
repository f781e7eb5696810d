// A convolution of many channels as a matrix product of weights and windows: rows are channels of the result in one
// group, columns its pixels. A stage of the product has GP_DEPTH channels of one tap, so that a thread finds its place in
// the source once a stage; the taps of the same channels follow one another, and find them in the cache. The stages of a
// tile may be those of several blocks, whose sums lie apart.

extern "C" __global__ void GP_KERNEL(const char *src, const char *weights, GP_ARGS, const Params p) {
    GP_TILE_ROOM(GP_DOWN, GP_ACROSS);
    const int high = 16 * GP_DOWN, wide = 16 * GP_ACROSS;
    const GP_INDEX pixels = p.dst_d * p.dst_h * p.dst_w, taps = p.kernel_d * p.kernel_h * p.kernel_w;
    const GP_INDEX outer = p.outer, inner = p.inner, stages = (inner + GP_DEPTH - 1) / GP_DEPTH * taps;
    const GP_INDEX each = (stages + GP_P(parts) - 1) / GP_P(parts);
    const long long down = (outer + high - 1) / high, across = (pixels + wide - 1) / wide;
    for (long long tile = blockIdx.x; tile < p.batch * p.groups * p.parts * down * across; tile += gridDim.x) {
        const long long item = tile / across / down, part = item % p.parts, group = item / p.parts % p.groups;
        const long long image = item / p.parts / p.groups;
        const long long from = image * p.along_n + group * p.inner * p.along_c, weight = group * p.weight_group;
        const GP_INDEX first_row = tile / across % down * high, first_col = tile % across * wide;
        const GP_INDEX first = part * each, count = stages - first < each ? stages - first : each;
        GP_INDEX channel = first / taps * GP_DEPTH, kd = first % taps / GP_P(kernel_w) / GP_P(kernel_h);
        GP_INDEX kh = first % taps / GP_P(kernel_w) % GP_P(kernel_h), kw = first % taps % GP_P(kernel_w);
        GP_INDEX d = 0, h = 0, w = 0, channels = 0, place = 0, tapped = 0;
        bool is_inside = false;
        gp_multiply_tile<GP_DOWN, GP_ACROSS>(
            as, bs, first_row, first_col, outer, pixels, count > 0 ? count * GP_DEPTH : 0,
            [&](GP_INDEX begin) {
                if (begin && ++kw == GP_P(kernel_w)) {  // to the next tap, and behind the last one to other channels
                    kw = 0;
                    if (++kh == GP_P(kernel_h)) kh = 0, kd++;
                    if (kd == GP_P(kernel_d)) kd = 0, channel += GP_DEPTH;
                }
                const Term term = gp_term(p, channel, kd, kh, kw);
                channels = inner - channel, tapped = term.weights;
                is_inside = gp_place(p, term, d, h, w, place);
            },
            [&](GP_INDEX row, GP_INDEX k) {
                const GP_INDEX c = k & (GP_DEPTH - 1);
                const GP_INDEX at = tapped + row * GP_P(weight_outer) + (c < channels ? c : 0) * GP_P(weight_inner);
                const float x = gp_load_weights(weights, weight + at);
                return c < channels ? x : 0.0f;
            },
            [&](GP_INDEX pixel) {
                const GP_INDEX row = pixel / GP_P(dst_w);
                d = GP_START(row / GP_P(dst_h), d), h = GP_START(row % GP_P(dst_h), h);
                w = GP_START(pixel % GP_P(dst_w), w);
                return [&](GP_INDEX k) {
                    const GP_INDEX c = k & (GP_DEPTH - 1);
                    const bool is_there = is_inside && c < channels;
                    const float x = gp_load_src(src, from + (is_there ? place + c * GP_P(along_c) : 0));
                    return is_there ? x : 0.0f;
                };
            },
            [&](GP_INDEX row, GP_INDEX pixel, float sum) {
                const long long channel = group * p.outer + row, at = part * p.batch + image;
                gp_program(p, at * p.dst_n + channel * p.dst_c + pixel * p.dst_pixel, sum, GP_PASSED);
            });
    }
}
