/* Elements in order: keys of 64 bits, and a heap of them. */
#ifndef GP_RANKING_H
#define GP_RANKING_H

#include "core/gp_convert.h"

GP_RECORD(top_k_entry, {
    uint64_t key;
    int64_t index;
});

#define GP_NAN_KEY UINT64_MAX

/* Larger floats have larger keys; -0 that of 0, every NaN the largest. */
static inline uint64_t key_of_float(double x)
{
    if (x != x)
        return GP_NAN_KEY;
    const uint64_t bits = gp_bits64(x + 0.0);
    return bits >> 63 ? ~bits : bits | 1ull << 63;
}

/* Whether a comes behind b; equal keys by index. Without branches: chance would decide them. */
static inline int is_behind(top_k_entry a, top_k_entry b)
{
    return (a.key > b.key) | ((a.key == b.key) & (a.index > b.index));
}

/* Restore the heap of n entries, the hindmost on top, after heap[0] was replaced. */
static inline __attribute__((unused)) void sift_down(top_k_entry *heap, int64_t n)
{
    const top_k_entry moved = heap[0];
    int64_t at = 0;
    for (int64_t child = 1; child < n; child = 2 * at + 1) {
        if (child + 1 < n && is_behind(heap[child + 1], heap[child]))
            child++;
        if (!is_behind(heap[child], moved))
            break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = moved;
}

static inline __attribute__((unused)) void sift_up(top_k_entry *heap, int64_t at)
{
    const top_k_entry moved = heap[at];
    for (; at > 0 && is_behind(moved, heap[(at - 1) / 2]); at = (at - 1) / 2)
        heap[at] = heap[(at - 1) / 2];
    heap[at] = moved;
}

#endif
