// Elements by index. Negative indices count from the end; whatever they are, what is read is an element of the axis.

extern "C" __global__ void GP_KERNEL(const char *src, const char *indices, char *dst, const Params p) {
    const long long step = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < p.size; i += step) {
        const long long position = i / p.row, at = gp_index(p, position);
        long long from = gp_base(p, position) + i % p.row;
        const long long dims[] = {GP_DIMS}, strides[] = {GP_STRIDES};
#pragma unroll
        for (int k = 0; k < GP_TUPLE; k++) {
            const long long given = ((const GP_INDEX *)indices)[at + k], index = given < 0 ? given + dims[k] : given;
            from += (index < 0 ? 0 : index < dims[k] ? index : dims[k] - 1) * strides[k];
        }
        ((GP_ELEMENT *)dst)[i] = ((const GP_ELEMENT *)src)[from];
    }
}
