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
