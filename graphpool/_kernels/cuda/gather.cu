// Elements by index.

extern "C" __global__ void GP_KERNEL(const char *src, const char *indices, char *dst, char *outside,
                                     const Params p) {
    const long long step = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < p.size; i += step) {
        const long long position = i / p.row;
        long long from = gp_base(p, position) + i % p.row;
        const bool is_inside = gp_tuple(p, indices, gp_index(p, position), from);
        if (!is_inside) *(int *)outside = 1;
        ((GP_ELEMENT *)dst)[i] = is_inside ? ((const GP_ELEMENT *)src)[from] : 0;
    }
}
