// Kernels that do one thing each, for the tests of the driver.

extern "C" __global__ void scale(float *out, const float *in, float factor, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = in[i] * factor;
}

extern "C" __global__ void add(float *out, const float *a, const float *b, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = a[i] + b[i];
}

extern "C" __global__ void copy_bytes(unsigned char *out, const unsigned char *in, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = in[i];
}

// All values are needed after their sum is known, so that each takes a register.
extern "C" __global__ void many_registers(float *out, const float *in) {
    float values[96], sum = 0;
#pragma unroll
    for (int i = 0; i < 96; i++) sum += values[i] = in[i];
#pragma unroll
    for (int i = 0; i < 96; i++) out[i] = values[i] * sum;
}

// Each block of 64 the other way round.
extern "C" __global__ void reverse_block(float *out, const float *in, int waits) {
    __shared__ float room[64];
    room[threadIdx.x] = in[blockIdx.x * 64 + threadIdx.x];
    __syncthreads();
    const float other = room[63 - threadIdx.x];
    if (waits) __syncthreads();
    room[threadIdx.x] = other;
    __syncthreads();
    out[blockIdx.x * 64 + threadIdx.x] = room[threadIdx.x];
}

// The first half of a block reads what all threads have written, or only half of them.
extern "C" __global__ void read_half(float *out, const float *in, int readers) {
    __shared__ float room[64];
    if ((int)threadIdx.x < readers) room[threadIdx.x] = in[threadIdx.x];
    __syncthreads();
    if (threadIdx.x < 32) out[threadIdx.x] = room[threadIdx.x] + room[threadIdx.x + 32];
}

extern "C" __global__ void wait_in_part(float *out, const float *in, unsigned waiting) {
    out[threadIdx.x] = in[threadIdx.x];
    if (threadIdx.x < waiting) __syncthreads();
}

// Threads of a warp: the sum of all to each.
extern "C" __global__ void sum_warps(float *out, const float *in) {
    float x = in[threadIdx.x];
    for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
    out[threadIdx.x] = x;
}
