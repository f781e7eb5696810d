// CUDA C++ for the host: include this, then the source of kernels, then list them with TWINS(TWIN(name, name), ...).
//
// Blocks run one after another in a random order. The threads of a block are fibers: one runs until it waits for others
// or ends, then another one of those that can go on, at random. The source is compiled with -fsanitize=thread, whose
// calls at every access accesses.cpp answers; nothing of the sanitizer itself is linked. Shared memory is one section of
// the library: it is filled with NaN for each block, and between two barriers no two threads may touch a byte of it that
// one of them writes.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "../driver/twin.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __restrict__ __restrict
#define __shared__ static __attribute__((section("gp_shared")))
#define __launch_bounds__(...)

struct dim3 {
    unsigned x, y, z;
};
extern dim3 threadIdx, blockIdx, blockDim, gridDim;

static inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __fsqrt_rn(float a) { return std::sqrt(a); }
static inline unsigned __float_as_uint(float x) { unsigned bits; std::memcpy(&bits, &x, 4); return bits; }
static inline float __uint_as_float(unsigned bits) { float x; std::memcpy(&x, &bits, 4); return x; }

// What inline assembly is on a device.
static inline float gp_from_f16(unsigned short bits) { _Float16 x; std::memcpy(&x, &bits, 2); return x; }
static inline unsigned short gp_to_f16(float x) {
    const _Float16 rounded = x;
    unsigned short bits;
    std::memcpy(&bits, &rounded, 2);
    return bits;
}

void __syncthreads();

namespace on_host {

// What lane `from` of the warp hands over at the same call; all 32 lanes have to be there.
uint64_t shuffle(unsigned mask, uint64_t bits, unsigned from);
unsigned lane();

void run_grid(const TwinLaunch *launch, void (*thread)(char *const *), char *const *params);
void remember(const TwinHost *host);

template <auto kernel>
struct Kernel;

template <class... Types, void (*kernel)(Types...)>
struct Kernel<kernel> {
    static constexpr int sizes[] = {static_cast<int>(sizeof(Types))..., 0};
    static constexpr int is_pointer[] = {std::is_pointer_v<Types>..., 0};

    template <size_t... index>
    static void call(char *const *params, std::index_sequence<index...>) {
        kernel(*reinterpret_cast<Types *>(params[index])...);
    }
    static void run_thread(char *const *params) { call(params, std::index_sequence_for<Types...>{}); }
    static void run(const TwinLaunch *launch, char *const *params) { run_grid(launch, run_thread, params); }
    static constexpr Twin twin(const char *name) { return {name, sizeof...(Types), sizes, is_pointer, run}; }
};

}  // namespace on_host

template <class T>
static inline T __shfl_sync(unsigned mask, T value, int from) {
    static_assert(sizeof(T) <= sizeof(uint64_t));
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof value);
    bits = on_host::shuffle(mask, bits, static_cast<unsigned>(from) % 32);
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

template <class T>
static inline T __shfl_xor_sync(unsigned mask, T value, int change) {
    return __shfl_sync(mask, value, static_cast<int>(on_host::lane()) ^ change);
}

// What tensor cores do, but for their rounding: sums in f32, one product after another. Fragments lie as PTX says.
static inline void gp_mma(float *c, const unsigned *a, const unsigned *b) {
    const int group = static_cast<int>(on_host::lane()) / 4, pair = static_cast<int>(on_host::lane()) % 4;
    unsigned rows[4][4], columns[2][4][2];
    for (int k = 0; k < 4; k++) {
        for (int i = 0; i < 4; i++) rows[k][i] = __shfl_sync(0xffffffffu, a[i], 4 * group + k);
        for (int j = 0; j < 2; j++)
            for (int i = 0; i < 2; i++) columns[j][k][i] = __shfl_sync(0xffffffffu, b[i], 4 * (2 * pair + j) + k);
    }
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 16; k++) {
            const unsigned x = rows[k % 8 / 2][k / 8 * 2 + i / 2], y = columns[i % 2][k % 8 / 2][k / 8];
            const int shift = k % 2 ? 0 : 16;
            c[i] += __uint_as_float(x << shift & 0xffff0000u) * __uint_as_float(y << shift & 0xffff0000u);
        }
}

#define TWIN(function, name) on_host::Kernel<&function>::twin(#name)
#define TWINS(...)                                                                                                    \
    extern "C" __attribute__((visibility("default"))) const Twin *test_driver_twins(const TwinHost *host, int *count) { \
        static const Twin twins[] = {__VA_ARGS__};                                                                    \
        on_host::remember(host);                                                                                      \
        *count = sizeof twins / sizeof *twins;                                                                        \
        return twins;                                                                                                 \
    }
