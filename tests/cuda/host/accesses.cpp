// The order of blocks and threads, barriers, shuffles, shared memory, and what the compiler calls before each access;
// compiled without -fsanitize.
#include "cuda_host.hpp"

#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <random>
#include <vector>

dim3 threadIdx, blockIdx, blockDim, gridDim;

extern "C" {  // made by the linker where there is shared memory
extern char __start_gp_shared[] __attribute__((weak, visibility("hidden")));
extern char __stop_gp_shared[] __attribute__((weak, visibility("hidden")));
}

namespace on_host {

static const TwinHost *host;

void remember(const TwinHost *driver) {
    host = driver;
}

// ---- fibers

enum State { READY, AT_BARRIER, AT_SHUFFLE, DONE };
static const size_t STACK_NBYTES = 1 << 16;
static const unsigned WARP = 32;

struct Fiber {
    ucontext_t context;
    void *stack = nullptr;
    State state = DONE;
    dim3 index;
    uint64_t handed[2]; // to a shuffle; two, since a lane may be at the next one before others have read
    unsigned turn;
};

static std::vector<Fiber *> fibers; // kept for later launches
static unsigned nfibers, current;
static ucontext_t scheduler;
static void (*entry)(char *const *);
static char *const *entry_params;

static void enter_fiber() {
    entry(entry_params);
    fibers[current]->state = DONE;
    swapcontext(&fibers[current]->context, &scheduler);
}

static void start_fiber(unsigned number, dim3 index) {
    if (number == fibers.size()) fibers.push_back(new Fiber);
    Fiber *fiber = fibers[number];
    if (!fiber->stack)
        fiber->stack = mmap(nullptr, STACK_NBYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    getcontext(&fiber->context);
    fiber->context.uc_stack.ss_sp = fiber->stack;
    fiber->context.uc_stack.ss_size = STACK_NBYTES;
    makecontext(&fiber->context, enter_fiber, 0);
    fiber->state = READY;
    fiber->index = index;
    fiber->turn = 0;
}

static void wait_as(State state) {
    Fiber *fiber = fibers[current];
    fiber->state = state;
    swapcontext(&fiber->context, &scheduler);
}

unsigned lane() {
    return current % WARP;
}

uint64_t shuffle(unsigned mask, uint64_t bits, unsigned from) {
    unsigned turn = fibers[current]->turn++ % 2, first = current / WARP * WARP;
    if (mask != ~0u || first + WARP > nfibers) host->report("barrier", "a shuffle without all lanes of the warp");
    fibers[current]->handed[turn] = bits;
    wait_as(AT_SHUFFLE);
    return first + from < nfibers ? fibers[first + from]->handed[turn] : bits;
}

// ---- shared memory: who has touched each byte since the last barrier

struct Touched {
    unsigned written_at, written_by, read_at, read_by; // read_by: a thread, or several
    bool is_set;
};
static const unsigned SEVERAL = ~0u;
static std::vector<Touched> touched;
static unsigned interval; // between barriers; never used again

static size_t shared_nbytes() {
    return static_cast<size_t>(__stop_gp_shared - __start_gp_shared);
}

static void clear_shared() {
    interval++;
    touched.assign(shared_nbytes(), Touched{});
    if (shared_nbytes()) std::memset(__start_gp_shared, 0xFF, shared_nbytes());
}

static void report_shared(const char *kind, size_t byte) {
    char text[96];
    std::snprintf(text, sizeof text, "byte %zu of the shared memory of a block", byte);
    host->report(kind, text);
}

static void access_shared(size_t byte, bool is_write) {
    Touched &own = touched[byte];
    bool is_race = own.written_at == interval && own.written_by != current;
    if (is_write) {
        is_race |= own.read_at == interval && own.read_by != current;
        own.written_at = interval, own.written_by = current, own.is_set = true;
    } else {
        if (!own.is_set) report_shared("uninitialised read", byte);
        own.read_by = own.read_at == interval && own.read_by != current ? SEVERAL : current;
        own.read_at = interval;
    }
    if (is_race) report_shared("use without order", byte);
}

static void access(const void *address, size_t nbytes, int is_write) {
    const char *at = static_cast<const char *>(address);
    if (at < __start_gp_shared || at >= __stop_gp_shared) {
        host->access(address, nbytes, is_write);
        return;
    }
    for (size_t k = 0; k < nbytes && at + k < __stop_gp_shared; k++)
        access_shared(static_cast<size_t>(at - __start_gp_shared) + k, is_write);
}

// ---- blocks

static std::vector<unsigned> shuffled(unsigned count, std::mt19937 &random) {
    std::vector<unsigned> order(count);
    std::iota(order.begin(), order.end(), 0u);
    for (unsigned i = count; i > 1; i--) std::swap(order[i - 1], order[random() % i]);
    return order;
}

static dim3 unravel(unsigned number, const uint32_t extent[3]) {
    return {number % extent[0], number / extent[0] % extent[1], number / extent[0] / extent[1]};
}

static bool all_are(State state, unsigned first, unsigned count) {
    for (unsigned i = first; i < first + count; i++)
        if (fibers[i]->state != state) return false;
    return true;
}

static void release(unsigned first, unsigned count) {
    for (unsigned i = first; i < first + count; i++) fibers[i]->state = READY;
}

// Whether somebody can go on that waited: whole warps at a shuffle, or the whole block at a barrier.
static bool release_waiting() {
    bool found = false;
    for (unsigned first = 0; first < nfibers; first += WARP) {
        unsigned count = std::min(WARP, nfibers - first);
        if (!all_are(AT_SHUFFLE, first, count)) continue;
        release(first, count);
        found = true;
    }
    if (found || !all_are(AT_BARRIER, 0, nfibers)) return found;
    interval++;
    release(0, nfibers);
    return true;
}

static void run_block(std::mt19937 &random) {
    do {
        for (unsigned number : shuffled(nfibers, random)) {
            if (fibers[number]->state != READY) continue;
            current = number;
            threadIdx = fibers[number]->index;
            swapcontext(&scheduler, &fibers[number]->context);
        }
    } while (release_waiting());
    if (!all_are(DONE, 0, nfibers)) host->report("barrier", "threads of a block wait where others do not come");
}

void run_grid(const TwinLaunch *launch, void (*thread)(char *const *), char *const *params) {
    std::mt19937 random(static_cast<unsigned>(launch->seed));
    const uint32_t *grid = launch->grid, *block = launch->block;
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {block[0], block[1], block[2]};
    nfibers = block[0] * block[1] * block[2];
    entry = thread, entry_params = params;
    for (unsigned number : shuffled(grid[0] * grid[1] * grid[2], random)) {
        blockIdx = unravel(number, grid);
        clear_shared();
        for (unsigned i = 0; i < nfibers; i++) start_fiber(i, unravel(i, block));
        run_block(random);
    }
}

}  // namespace on_host

void __syncthreads() {
    on_host::wait_as(on_host::AT_BARRIER);
}

#define ACCESS(kind, is_write, nbytes)                    \
    void __tsan_##kind##nbytes(void *address) {           \
        on_host::access(address, nbytes, is_write); \
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
    on_host::access(address, nbytes, 0);
}
void __tsan_write_range(void *address, size_t nbytes) {
    on_host::access(address, nbytes, 1);
}
void *__tsan_memcpy(void *target, const void *source, size_t nbytes) {
    on_host::access(source, nbytes, 0);
    on_host::access(target, nbytes, 1);
    return std::memcpy(target, source, nbytes);
}
void *__tsan_memset(void *target, int value, size_t nbytes) {
    on_host::access(target, nbytes, 1);
    return std::memset(target, value, nbytes);
}
}
