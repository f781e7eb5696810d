/* The k least elements of each line, in order, and their indices. Any type, by way of keys: unsigned integers of 64
 * bits in the order of the elements, of which the reverse order is the complement. */
#include "core/gp_convert.h"
#include "core/gp_vec.h"
#include "eltwise/gp_sink.h"
#include "move/gp_ranking.h"

GP_RECORD(top_k_params, {
    gp_space outer;                     /* lines: src, dst */
    int64_t axis, axis_stride[2];       /* src, dst; elements */
    int64_t k, dtype, is_largest;
});

static uint64_t key_of(int64_t dtype, const void *src, int64_t at)
{
    const uint64_t bias = 1ull << 63;
    switch (dtype) {
    case GP_F32: return key_of_float(((const float *)src)[at]);
    case GP_F64: return key_of_float(((const double *)src)[at]);
    case GP_F16: return key_of_float(gp_from_f16(((const uint16_t *)src)[at]));
    case GP_BF16: return key_of_float(gp_from_bf16(((const uint16_t *)src)[at]));
    case GP_S8: return bias + (uint64_t)((const int8_t *)src)[at];
    case GP_S16: return bias + (uint64_t)((const int16_t *)src)[at];
    case GP_S32: return bias + (uint64_t)((const int32_t *)src)[at];
    case GP_S64: return bias + (uint64_t)((const int64_t *)src)[at];
    case GP_U8: return ((const uint8_t *)src)[at];
    case GP_U16: return ((const uint16_t *)src)[at];
    case GP_U32: return ((const uint32_t *)src)[at];
    }
    return ((const uint64_t *)src)[at];
}

/* Elements of a line that are compared at once. */
#define GP_SKIPPED 32

/* The first step from here on, of a line side by side, whose element may be among the best: it is not behind the hindmost
 * of these, or NaN. */
#define GP_SKIP(type)                                                                                                  \
    {                                                                                                                  \
        const type *x = (const type *)src + first, limit = x[hindmost];                                                \
        for (; step + GP_SKIPPED <= p->axis; step += GP_SKIPPED) {                                                     \
            int any = 0;                                                                                               \
            if (p->is_largest)                                                                                         \
                for (int k = 0; k < GP_SKIPPED; k++)                                                                   \
                    any |= !(x[step + k] <= limit);                                                                    \
            else                                                                                                       \
                for (int k = 0; k < GP_SKIPPED; k++)                                                                   \
                    any |= !(x[step + k] >= limit);                                                                    \
            if (any)                                                                                                   \
                break;                                                                                                 \
        }                                                                                                              \
        while (step < p->axis && (p->is_largest ? x[step] <= limit : x[step] >= limit))                                \
            step++;                                                                                                    \
        return step;                                                                                                   \
    }

static int64_t skip_worse(const top_k_params *p, const void *src, int64_t first, int64_t step, int64_t hindmost)
{
    switch (p->dtype) {
    case GP_F32:
        GP_SKIP(float)
    case GP_F64:
        GP_SKIP(double)
    case GP_S32:
        GP_SKIP(int32_t)
    case GP_S64:
        GP_SKIP(int64_t)
    }
    return step;
}

/* Merges entries up to `middle`, in order, with those behind, up to `end`; without branches that chance decides. */
static void merge(const top_k_entry *from, int64_t middle, int64_t end, top_k_entry *to)
{
    int64_t a = 0, b = middle;
    while (a < middle && b < end) {
        const int64_t is_second = is_behind(from[a], from[b]);
        *to++ = from[a ^ ((a ^ b) & -is_second)];
        a += 1 - is_second;
        b += is_second;
    }
    memcpy(to, from + (a < middle ? a : b), (size_t)(a < middle ? middle - a : end - b) * sizeof *to);
}

/* Entries that are put in order one by one. */
#define RUN 8

/* Entries in order: where they are now, with room for as many. */
static const top_k_entry *sort_entries(top_k_entry *entries, int64_t n, top_k_entry *room)
{
    for (int64_t i = 0; i < n; i++) {
        const top_k_entry moved = entries[i];
        int64_t at = i;
        for (; at % RUN && is_behind(entries[at - 1], moved); at--)
            entries[at] = entries[at - 1];
        entries[at] = moved;
    }
    for (int64_t width = RUN; width < n; width *= 2) {
        for (int64_t first = 0; first < n; first += 2 * width)
            merge(entries + first, gp_min(width, n - first), gp_min(2 * width, n - first), room + first);
        top_k_entry *const sorted = room;
        room = entries;
        entries = sorted;
    }
    return entries;
}

/* The k first of a line, in no order: a heap of them, unless all are. */
static void select_line(const top_k_params *p, const void *src, int64_t first, top_k_entry *heap)
{
    const int is_dense = p->axis_stride[0] == 1;
    int64_t n = 0;
    for (int64_t step = 0; step < p->axis && p->k > 0; step++) {
        if (is_dense && n == p->k) {
            step = skip_worse(p, src, first, step, heap[0].index);
            if (step == p->axis)
                break;
        }
        const uint64_t up = key_of(p->dtype, src, first + step * p->axis_stride[0]);
        const top_k_entry next = {p->is_largest ? ~up : up, step};
        if (n < p->k) {
            heap[n++] = next;
            if (p->k < p->axis)
                sift_up(heap, n - 1);
        } else if (is_behind(heap[0], next)) {
            heap[0] = next;
            sift_down(heap, n);
        }
    }
}

static void copy_element(int64_t nbytes, void *dst, int64_t to, const void *src, int64_t from)
{
    memcpy((char *)dst + to * nbytes, (const char *)src + from * nbytes, nbytes);
}

static int64_t nbytes_of(int64_t dtype)
{
    switch (dtype) {
    case GP_F64: case GP_S64: case GP_U64: return 8;
    case GP_F32: case GP_S32: case GP_U32: return 4;
    case GP_S8: case GP_U8: return 1;
    }
    return 2;
}

/* args: src, indices (s64), values; scratch: twice k entries. A task is a line. */
GP_DEFINE_KERNEL(any_top_k)
{
    const top_k_params *p = params;
    top_k_entry *heap = scratch;
    for (int64_t line = begin; line < end; line++) {
        int64_t at[GP_SPACE_OPERANDS];
        gp_offsets(&p->outer, line, at);
        select_line(p, args[0], at[0], heap);
        const top_k_entry *best = sort_entries(heap, p->k, heap + p->k);
        for (int64_t i = 0; i < p->k; i++) {
            const int64_t index = best[i].index, to = at[1] + i * p->axis_stride[1];
            ((int64_t *)args[1])[to] = index;
            copy_element(nbytes_of(p->dtype), args[2], to, args[0], at[0] + index * p->axis_stride[0]);
        }
    }
}

const gp_kernel_entry GP_KERNEL(top_k_table)[] = {
    GP_ENTRY(any_top_k, top_k_params),
    GP_INNER(top_k_entry),
    GP_TABLE_END,
};
