// Elements by index.

extern "C" __global__ void GP_KERNEL(const char *src, const char *indices, char *dst, const Params p) {
    const long long step = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < p.size; i += step) {
        const long long position = i / p.row;
        const long long from = gp_base(p, position) + gp_tuple(p, indices, gp_index(p, position)) + i % p.row;
        ((GP_ELEMENT *)dst)[i] = ((const GP_ELEMENT *)src)[from];
    }
}
