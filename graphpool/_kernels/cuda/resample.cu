// Nearest and linear resampling, a result for each thread; images have up to three spatial axes, depth first.
// Coordinates are exact ratios of integers, as in image/resample.c. A neighbour of weight 0 is not read.

struct Point {
    long long low, high;
    float weight;  // of high
};

static __device__ __forceinline__ Point gp_point(const Params &p, long long o, long long n, long long m) {
    const long long numerator = p.aligns_corners ? o * (n - 1) : (2 * o + 1) * n - m;
    const long long denominator = p.aligns_corners ? (m > 1 ? m - 1 : 1) : 2 * m;
    if (!GP_IS_LINEAR) {
        const long long nearest = (2 * numerator + denominator) / (2 * denominator);
        const Point point = {nearest < n ? nearest : n - 1, 0, 0.0f};
        return point;
    }
    const long long most = (n - 1) * denominator, most_or_less = numerator < most ? numerator : most;
    const long long inside = most_or_less > 0 ? most_or_less : 0, low = inside / denominator;
    const float weight = (float)((double)(inside - low * denominator) / (double)denominator);
    const Point point = {low, low + 1 < n ? low + 1 : n - 1, weight};
    return point;
}

extern "C" __global__ void GP_KERNEL(const char *src, GP_ARGS, const Params p) {
    const long long step = (long long)gridDim.x * blockDim.x, pixels = p.dst_d * p.dst_h * p.dst_w;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < p.size; i += step) {
        const Point d = gp_point(p, i / p.dst_w / p.dst_h % p.dst_d, p.src_d, p.dst_d);
        const Point h = gp_point(p, i / p.dst_w % p.dst_h, p.src_h, p.dst_h);
        const Point w = gp_point(p, i % p.dst_w, p.src_w, p.dst_w);
        const long long from = gp_plane_src(p, i / pixels);
        float result = 0.0f;
        for (int k = 0; k < 8; k++) {
            const float of_d = k & 4 ? d.weight : 1.0f - d.weight, of_h = k & 2 ? h.weight : 1.0f - h.weight;
            const float weight = of_d * of_h * (k & 1 ? w.weight : 1.0f - w.weight);
            if ((k & 4 && d.weight == 0.0f) || (k & 2 && h.weight == 0.0f) || (k & 1 && w.weight == 0.0f)) continue;
            const long long id = k & 4 ? d.high : d.low, ih = k & 2 ? h.high : h.low, iw = k & 1 ? w.high : w.low;
            const float x = gp_load_src(src, from + id * p.along_d + ih * p.along_h + iw * p.along_w);
            result = k ? fmaf(x, weight, result) : x * weight;
        }
        gp_program(p, gp_dst(p, i), result, GP_PASSED);
    }
}
