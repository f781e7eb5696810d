/* Operations: enqueued work with what it follows. Run late, in a random order that is legal. */
#include <stdlib.h>
#include <string.h>

#include "control.h"
#include "driver.h"

enum { MAX_PENDING = 16384 };

typedef struct {
    Work work;
    int stream; /* number, for messages */
    int *preds, npreds;
    bool is_done;
    uint64_t *before; /* bit i: operation base + i is before this one, or is it */
} Operation;

/* Operations `base` to `base + count - 1` are kept; all older ones ended and the host knows it, so that they are before
 * everything that comes. `known` is what the host knows of those that are kept. */
static Operation operations[MAX_PENDING];
static int base = 1, count;
static uint64_t known[MAX_PENDING / 64];
static int running;
static long noverflows;

long test_driver_overflows(void) {
    return noverflows;
}

static Operation *operation_at(int number) {
    return &operations[number - base];
}

static size_t words_for(int index) {
    return (size_t)index / 64 + 1;
}

static bool has_bit(const uint64_t *bits, int index) {
    return bits[index / 64] >> (index % 64) & 1;
}

static void unite_bits(uint64_t *to, const uint64_t *from, size_t words) {
    for (size_t i = 0; i < words; i++) to[i] |= from[i];
}

const Work *work_of(int number) {
    static const Work forgotten = {.kind = EMPTY};
    return is_forgotten(number) ? &forgotten : &operation_at(number)->work;
}

int stream_of_operation(int number) {
    return is_forgotten(number) ? -1 : operation_at(number)->stream;
}

int running_operation(void) {
    return running;
}

bool is_forgotten(int number) {
    return number < base;
}

bool is_done(int number) {
    return is_forgotten(number) || operation_at(number)->is_done;
}

bool is_before(int first, int second) {
    if (is_forgotten(first) || first == second) return true;
    return first < second && has_bit(operation_at(second)->before, first - base);
}

bool is_before_any(int first, const int *preds, int npreds) {
    if (is_forgotten(first) || has_bit(known, first - base)) return true;
    for (int i = 0; i < npreds; i++)
        if (!is_forgotten(preds[i]) && is_before(first, preds[i])) return true;
    return false;
}

/* ---- forgetting */

static bool host_knows_all(void) {
    for (int i = 0; i < count; i++)
        if (!has_bit(known, i)) return false;
    return true;
}

static void forget(void) {
    for (int i = 0; i < count; i++) {
        release_work(&operations[i].work);
        free(operations[i].preds);
        free(operations[i].before);
    }
    memset(known, 0, sizeof known);
    base += count;
    count = 0;
}

/* ---- enqueueing */

static void inherit_order(Operation *operation, int index) {
    operation->before = calloc(words_for(index), sizeof *operation->before);
    unite_bits(operation->before, known, words_for(index));
    operation->before[index / 64] |= (uint64_t)1 << index % 64;
    for (int i = 0; i < operation->npreds; i++) {
        int pred = operation->preds[i] - base;
        unite_bits(operation->before, operations[pred].before, words_for(pred));
    }
}

static void make_room(void) {
    if (count < MAX_PENDING) return;
    noverflows++;
    wait_for_all_on_host();
}

static bool is_called_by_work(void) {
    if (running) report("host function", "%s calls the driver", describe_work(work_of(running)));
    return running != 0;
}

int enqueue(const Work *work, int stream, const int *preds, int npreds) {
    if (is_called_by_work()) return running;
    make_room();
    Operation *operation = &operations[count];
    *operation =
        (Operation){.work = copy_work(work), .stream = stream, .preds = malloc(sizeof(int) * (size_t)(npreds + 1))};
    for (int i = 0; i < npreds; i++)
        if (!is_forgotten(preds[i])) operation->preds[operation->npreds++] = preds[i];
    inherit_order(operation, count);
    return base + count++;
}

/* ---- running */

static bool is_ready(const Operation *operation) {
    if (operation->is_done) return false;
    for (int i = 0; i < operation->npreds; i++)
        if (!is_done(operation->preds[i])) return false;
    return true;
}

static void execute(int index) {
    int outer = running;
    running = base + index;
    execute_work(&operations[index].work);
    end_accesses();
    operations[index].is_done = true;
    running = outer;
}

/* A ready operation at random, of those that `target` needs or of all; there is one while the target is not done. */
static int choose(int target, bool only_needed) {
    static int ready[MAX_PENDING];
    const uint64_t *needed = operation_at(target)->before;
    int last = only_needed ? target - base : count - 1;
    unsigned nready = 0;
    for (int i = 0; i <= last; i++)
        if (!operations[i].is_done && (!only_needed || has_bit(needed, i)) && is_ready(&operations[i]))
            ready[nready++] = i;
    return ready[random_below(nready)];
}

/* Half of the time nothing runs that is not needed, so that whoever forgot to wait finds old bytes. */
void run(int target) {
    if (is_done(target)) return;
    bool only_needed = random_below(2);
    protect_device_memory(false);
    while (!is_done(target)) execute(choose(target, only_needed));
    protect_device_memory(true);
}

void wait_on_host(int target) {
    if (is_called_by_work()) return;
    run(target);
    if (!is_forgotten(target)) unite_bits(known, operation_at(target)->before, words_for(target - base));
    if (host_knows_all()) forget();
    settle_pools();
}

void wait_for_all_on_host(void) {
    if (is_called_by_work()) return;
    for (int i = 0; i < count; i++) run(base + i);
    forget();
    settle_pools();
}
