// CUDA C++ for the host: include this, then the source of kernels, then list them with TWINS(TWIN(name), ...).
//
// Blocks run one after another in a random order, and so do the threads of a block; kernels whose threads wait for
// each other do not compile here. The source is compiled with -fsanitize=thread, whose calls at every access
// accesses.cpp answers; nothing of the sanitizer itself is linked.
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

namespace on_host {

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

#define TWIN(name) on_host::Kernel<&name>::twin(#name)
#define TWINS(...)                                                                                                    \
    extern "C" __attribute__((visibility("default"))) const Twin *test_driver_twins(const TwinHost *host, int *count) { \
        static const Twin twins[] = {__VA_ARGS__};                                                                    \
        on_host::remember(host);                                                                                      \
        *count = sizeof twins / sizeof *twins;                                                                        \
        return twins;                                                                                                 \
    }
