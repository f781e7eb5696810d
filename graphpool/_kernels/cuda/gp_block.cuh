// One number of all threads of a block, whose size is a multiple of 32 and at most 1024; all threads get it.

#define GP_ALL_LANES 0xffffffffu

// `room` is shared memory of 33 numbers; it may be used again at once.
template <class T, class Join>
static __device__ __forceinline__ T gp_join_block(T x, T neutral, T *room, const Join &join) {
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    for (int step = 16; step > 0; step /= 2) x = join(x, __shfl_xor_sync(GP_ALL_LANES, x, step));
    if (lane == 0) room[warp] = x;
    __syncthreads();
    if (warp == 0) {
        x = lane < warps ? room[lane] : neutral;
        for (int step = 16; step > 0; step /= 2) x = join(x, __shfl_xor_sync(GP_ALL_LANES, x, step));
        if (lane == 0) room[32] = x;
    }
    __syncthreads();
    x = room[32];
    __syncthreads();
    return x;
}

static __device__ __forceinline__ float gp_sum_block(float x, float *room) {
    return gp_join_block(x, 0.0f, room, [](float a, float b) { return a + b; });
}

static __device__ __forceinline__ float gp_max_block(float x, float *room) {
    return gp_join_block(x, __uint_as_float(0xff800000u), room, [](float a, float b) { return gp_max(a, b); });
}
