// The order of blocks and threads, and what the compiler calls before each access; compiled without -fsanitize.
#include "cuda_host.hpp"

#include <numeric>
#include <random>
#include <vector>

dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace on_host {

static const TwinHost *host;

void remember(const TwinHost *driver) {
    host = driver;
}

static std::vector<unsigned> shuffled(unsigned count, std::mt19937 &random) {
    std::vector<unsigned> order(count);
    std::iota(order.begin(), order.end(), 0u);
    for (unsigned i = count; i > 1; i--) std::swap(order[i - 1], order[random() % i]);
    return order;
}

static dim3 unravel(unsigned number, const uint32_t extent[3]) {
    return {number % extent[0], number / extent[0] % extent[1], number / extent[0] / extent[1]};
}

void run_grid(const TwinLaunch *launch, void (*thread)(char *const *), char *const *params) {
    std::mt19937 random(static_cast<unsigned>(launch->seed));
    const uint32_t *grid = launch->grid, *block = launch->block;
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {block[0], block[1], block[2]};
    for (unsigned number : shuffled(grid[0] * grid[1] * grid[2], random)) {
        blockIdx = unravel(number, grid);
        for (unsigned lane : shuffled(block[0] * block[1] * block[2], random)) {
            threadIdx = unravel(lane, block);
            thread(params);
        }
    }
}

}  // namespace on_host

#define ACCESS(kind, is_write, nbytes)                    \
    void __tsan_##kind##nbytes(void *address) {           \
        on_host::host->access(address, nbytes, is_write); \
    }
#define ACCESSES(nbytes)    \
    ACCESS(read, 0, nbytes) \
    ACCESS(write, 1, nbytes) ACCESS(unaligned_read, 0, nbytes) ACCESS(unaligned_write, 1, nbytes)

extern "C" {
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)
void __tsan_init() {}
void __tsan_func_entry(void *) {}
void __tsan_func_exit() {}
void __tsan_read_range(void *address, size_t nbytes) {
    on_host::host->access(address, nbytes, 0);
}
void __tsan_write_range(void *address, size_t nbytes) {
    on_host::host->access(address, nbytes, 1);
}
void *__tsan_memcpy(void *target, const void *source, size_t nbytes) {
    on_host::host->access(source, nbytes, 0);
    on_host::host->access(target, nbytes, 1);
    return std::memcpy(target, source, nbytes);
}
void *__tsan_memset(void *target, int value, size_t nbytes) {
    on_host::host->access(target, nbytes, 1);
    return std::memset(target, value, nbytes);
}
}
