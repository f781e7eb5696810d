// Running sums or products, a line for each block, which takes as many elements at a time as it has threads.

#define GP_ALL_LANES 0xffffffffu

// Of all lanes up to this one.
static __device__ __forceinline__ GP_REG gp_scan_warp(GP_REG x, unsigned lane) {
    for (unsigned step = 1; step < 32; step *= 2) {
        const GP_REG other = __shfl_sync(GP_ALL_LANES, x, (int)(lane >= step ? lane - step : lane));
        if (lane >= step) x = GP_JOIN(other, x);
    }
    return x;
}

// What the lane in front has.
static __device__ __forceinline__ GP_REG gp_shift_warp(GP_REG x, unsigned lane) {
    const GP_REG other = __shfl_sync(GP_ALL_LANES, x, (int)(lane ? lane - 1 : 0));
    return lane ? other : (GP_REG)GP_NEUTRAL;
}

extern "C" __global__ void GP_KERNEL(const char *src, char *dst, const Params p) {
    __shared__ GP_REG room[32];
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    for (long long row = blockIdx.x; row < p.rows; row += gridDim.x) {
        const long long from = gp_row_src(p, row), to = gp_row_dst(p, row);
        GP_REG before = GP_NEUTRAL;
        for (long long first = 0; first < p.cols; first += blockDim.x) {
            const long long k = first + threadIdx.x, c = p.is_reverse ? p.cols - 1 - k : k;
            GP_REG x = k < p.cols ? gp_load_src(src, from + gp_col_src(p, c)) : (GP_REG)GP_NEUTRAL;
            x = gp_scan_warp(x, lane);
            if (lane == 31) room[warp] = x;
            __syncthreads();
            if (warp == 0) {
                const GP_REG sum = gp_scan_warp(lane < warps ? room[lane] : (GP_REG)GP_NEUTRAL, lane);
                if (lane < warps) room[lane] = sum;
            }
            __syncthreads();
            const GP_REG ahead = warp ? GP_JOIN(before, room[warp - 1]) : before;
            const GP_REG previous = gp_shift_warp(x, lane);
            if (k < p.cols) gp_store_dst(dst, to + gp_col_dst(p, c), GP_JOIN(ahead, p.is_exclusive ? previous : x));
            before = GP_JOIN(before, room[warps - 1]);
            __syncthreads();
        }
    }
}
