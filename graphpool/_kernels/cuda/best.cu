// The first elements of each line by order, a line for each block: again and again the first one behind the last.

#define GP_ALL_LANES 0xffffffffu

struct Best {
    GP_REG x;
    long long at;  // less than 0: none
};

static __device__ __forceinline__ bool gp_is_before(const Params &p, const Best &a, const Best &b) {
    const bool a_is_nan = gp_is_nan(a.x) != 0, b_is_nan = gp_is_nan(b.x) != 0;
    if (a_is_nan != b_is_nan) return a_is_nan == (p.is_nan_first != 0);
    if (!a_is_nan && a.x != b.x) return p.is_largest ? a.x > b.x : a.x < b.x;
    return p.is_last ? a.at > b.at : a.at < b.at;
}

static __device__ __forceinline__ Best gp_first(const Params &p, const Best &a, const Best &b) {
    return b.at < 0 || (a.at >= 0 && gp_is_before(p, a, b)) ? a : b;
}

static __device__ __forceinline__ Best gp_first_of_warp(const Params &p, Best best) {
    for (int step = 16; step > 0; step /= 2) {
        const GP_REG x = __shfl_xor_sync(GP_ALL_LANES, best.x, step);
        const Best other = {x, __shfl_xor_sync(GP_ALL_LANES, best.at, step)};
        best = gp_first(p, best, other);
    }
    return best;
}

extern "C" __global__ void GP_KERNEL(const char *src, char *indices, GP_VALUES_ARG const Params p) {
    __shared__ GP_REG numbers[33];
    __shared__ long long places[33];
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    for (long long row = blockIdx.x; row < p.rows; row += gridDim.x) {
        const long long from = gp_row_src(p, row), to = gp_row_dst(p, row);
        Best last = {0, -1};
        for (long long k = 0; k < p.count; k++) {
            Best best = {0, -1};
            for (long long c = threadIdx.x; c < p.cols; c += blockDim.x) {
                const Best next = {gp_load_src(src, from + gp_col_src(p, c)), c};
                if (last.at < 0 || gp_is_before(p, last, next)) best = gp_first(p, best, next);
            }
            best = gp_first_of_warp(p, best);
            if (lane == 0) numbers[warp] = best.x, places[warp] = best.at;
            __syncthreads();
            if (warp == 0) {
                const Best none = {0, -1}, found = {numbers[lane < warps ? lane : 0], places[lane < warps ? lane : 0]};
                best = gp_first_of_warp(p, lane < warps ? found : none);
                if (lane == 0) numbers[32] = best.x, places[32] = best.at;
            }
            __syncthreads();
            last.x = numbers[32], last.at = places[32];
            __syncthreads();
            if (threadIdx.x == 0) {
                ((long long *)indices)[to + k * p.step] = last.at;
                GP_STORE_VALUE(to + k * p.step, last.x);
            }
        }
    }
}
