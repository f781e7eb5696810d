// Maximum or mean of each window, a result for each thread; images have up to three spatial axes, depth first.

extern "C" __global__ void GP_KERNEL(const char *src, GP_ARGS, const Params p) {
    const long long step = (long long)gridDim.x * blockDim.x, pixels = p.dst_d * p.dst_h * p.dst_w;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < p.size; i += step) {
        const long long plane = i / pixels, w = i % p.dst_w, h = i / p.dst_w % p.dst_h;
        const long long d = i / p.dst_w / p.dst_h % p.dst_d, from = gp_plane_src(p, plane);
        const long long d0 = d * p.step_d - p.pad_d, h0 = h * p.step_h - p.pad_h, w0 = w * p.step_w - p.pad_w;
        float result = GP_IS_MAX ? __uint_as_float(0xff800000u) : 0.0f;
        long long cells = 0;
        for (long long kd = 0; kd < p.kernel_d; kd++)
            for (long long kh = 0; kh < p.kernel_h; kh++)
                for (long long kw = 0; kw < p.kernel_w; kw++) {
                    const long long id = d0 + kd * p.gap_d, ih = h0 + kh * p.gap_h, iw = w0 + kw * p.gap_w;
                    const bool is_inside =
                        id >= 0 && ih >= 0 && iw >= 0 && id < p.src_d && ih < p.src_h && iw < p.src_w;
                    // padding counts, but what lies beyond it does not
                    cells += is_inside || (p.counts_padding && id < p.src_d + p.end_d && ih < p.src_h + p.end_h &&
                                           iw < p.src_w + p.end_w);
                    if (!is_inside) continue;
                    const float x = gp_load_src(src, from + id * p.along_d + ih * p.along_h + iw * p.along_w);
                    result = GP_IS_MAX ? gp_max(x, result) : result + x;
                }
        if (!GP_IS_MAX) result = cells ? result / (float)cells : 0.0f;
        gp_program(p, gp_dst(p, i), result, GP_PASSED);
    }
}
