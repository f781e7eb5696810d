// A convolution whose groups have few channels of the result: a thread computes a result.

extern "C" __global__ void GP_KERNEL(const char *src, const char *weights, GP_ARGS, const Params p) {
    const long long pixels = p.dst_d * p.dst_h * p.dst_w, count = p.batch * p.groups * p.outer * pixels;
    const long long begin = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    for (long long i = begin; i < count; i += gridDim.x * (long long)blockDim.x) {
        const long long channel = i / pixels % (p.groups * p.outer), group = channel / p.outer;
        const long long image = i / pixels / (p.groups * p.outer);
        const long long from = image * p.along_n + group * p.inner * p.along_c;
        const long long weight = group * p.weight_group + channel % p.outer * p.weight_outer;
        const GP_INDEX pixel = i % pixels, row = pixel / GP_P(dst_w), d = GP_START(row / GP_P(dst_h), d);
        const GP_INDEX h = GP_START(row % GP_P(dst_h), h), w = GP_START(pixel % GP_P(dst_w), w);
        float sum = 0.0f;
        for (GP_INDEX c = 0; c < GP_P(inner); c++)
            for (GP_INDEX kd = 0; kd < GP_P(kernel_d); kd++)
                for (GP_INDEX kh = 0; kh < GP_P(kernel_h); kh++)
                    for (GP_INDEX kw = 0; kw < GP_P(kernel_w); kw++) {
                        const Term term = gp_term(p, c, kd, kh, kw);
                        const float x = gp_element(p, src, from, term, d, h, w);
                        sum = fmaf(gp_load_weights(weights, weight + term.weights), x, sum);
                    }
        gp_program(p, image * p.dst_n + channel * p.dst_c + pixel * p.dst_pixel, sum, GP_PASSED);
    }
}
