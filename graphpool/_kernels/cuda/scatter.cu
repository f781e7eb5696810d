// Rows put into a tensor, in the order of positions: a thread has an element of the rows of all positions that may meet,
// so that the last one stays, and sums are always added in the same order. Indices are taken as for a gather.

extern "C" __global__ void GP_KERNEL(const char *updates, const char *indices, char *dst, char *outside,
                                     const Params p) {
    const long long step = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < p.size; i += step) {
        const long long apart = i / p.row, item = i % p.row;
        const long long from = gp_apart_updates(p, apart) + item, first = gp_apart_index(p, apart);
        const long long base = gp_apart_base(p, apart) + item;
        for (long long k = 0; k < p.meeting; k++) {
            const long long at = first + gp_meeting_index(p, k);
            long long to = base + gp_meeting_base(p, k);
            if (!gp_tuple(p, indices, at, to)) {
                *(int *)outside = 1;
                continue;
            }
            const GP_REG y = gp_load_value(updates, from + gp_meeting_updates(p, k));
            gp_store_value(dst, to, GP_JOIN(gp_load_value(dst, to), y));
        }
    }
}
