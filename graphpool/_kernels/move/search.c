/* Searches whose results have as many elements as are found: places of what is not zero, boxes that do not overlap
 * better ones. A result begins its buffer, which has room for the most that there can be; zeros follow; a count tells. */
#include "core/gp_convert.h"
#include "move/gp_ranking.h"

#include <string.h>

/* ---- what is not zero ---- */

GP_RECORD(nonzero_params, {
    int64_t ndim, dims[GP_MAX_NDIM], nelems;
    int64_t nbytes, is_float; /* of an element */
});

#define GP_FIND(type, mask)                                                                                            \
    for (int64_t i = 0; i < n; i++) {                                                                                  \
        places[count] = i;                                                                                             \
        count += (((const type *)src)[i] & (mask)) != 0;                                                               \
    }                                                                                                                  \
    break;

/* The numbers of the elements that are not zero; returns how many. `places` has room for n, and all n are written to.
 * The sign does not count in floats. */
static int64_t find(const nonzero_params *p, const void *src, int64_t *places)
{
    const int64_t n = p->nelems;
    int64_t count = 0;
    switch (p->nbytes) {
    case 1: GP_FIND(uint8_t, UINT8_MAX)
    case 2: GP_FIND(uint16_t, p->is_float ? INT16_MAX : UINT16_MAX)
    case 4: GP_FIND(uint32_t, p->is_float ? INT32_MAX : UINT32_MAX)
    case 8: GP_FIND(uint64_t, p->is_float ? INT64_MAX : UINT64_MAX)
    }
    return count;
}

/* args: src, places (s64: ndim rows of `count`), count (s64). One task: where a row begins follows from the count. */
GP_DEFINE_KERNEL(any_nonzero)
{
    (void)begin, (void)end;
    const nonzero_params *p = params;
    int64_t *places = args[1];
    const int64_t count = find(p, args[0], places), all = p->ndim * p->nelems;
    *(int64_t *)args[2] = count;
    memset(places + count, 0, (size_t)(all - count) * sizeof *places);
    for (int64_t i = 0; i < count && p->ndim > 1; i++) {
        int64_t linear = places[i];
        for (int64_t k = p->ndim - 1; k > 0; k--) {
            places[k * count + i] = linear % p->dims[k];
            linear /= p->dims[k];
        }
        places[i] = linear;
    }
}

/* ---- boxes ---- */

GP_RECORD(suppress_params, {
    int64_t nboxes, nclasses, most, is_centred, has_least;
    float overlap, least;
});

/* Boxes that were taken, a coordinate after the other, filled up with empty ones to a whole number of blocks. */
#define GP_BLOCK 16

typedef struct {
    float *x0, *y0, *x1, *y1, *area;
} box_list;

typedef struct {
    float x0, y0, x1, y1, area;
} box;

static box box_at(const float *at, int64_t is_centred)
{
    box b;
    if (is_centred) {
        const float w = at[2] / 2, h = at[3] / 2;
        b = (box){at[0] - w, at[1] - h, at[0] + w, at[1] + h, 0};
    } else {
        b.y0 = at[0] < at[2] ? at[0] : at[2], b.y1 = at[0] < at[2] ? at[2] : at[0];
        b.x0 = at[1] < at[3] ? at[1] : at[3], b.x1 = at[1] < at[3] ? at[3] : at[1];
    }
    b.area = (b.x1 - b.x0) * (b.y1 - b.y0);
    return b;
}

/* Whether a box has more than a share of its union with one of the first `count`, rounded as onnxruntime does. */
static int overlaps(const box_list *taken, int64_t count, box b, float overlap)
{
    for (int64_t first = 0; first < count; first += GP_BLOCK) {
        int32_t found = 0;
        for (int64_t j = first; j < first + GP_BLOCK; j++) {
            const float x0 = taken->x0[j] > b.x0 ? taken->x0[j] : b.x0, x1 = taken->x1[j] < b.x1 ? taken->x1[j] : b.x1;
            const float y0 = taken->y0[j] > b.y0 ? taken->y0[j] : b.y0, y1 = taken->y1[j] < b.y1 ? taken->y1[j] : b.y1;
            const float w = x1 - x0, h = y1 - y0, common = w * h, all = taken->area[j] + b.area - common;
            found |= (w > 0) & (h > 0) & (common > 0) & (taken->area[j] > 0) & (b.area > 0) & (all > 0) &
                     (common / all > overlap);
        }
        if (found)
            return 1;
    }
    return 0;
}

static void take_box(const box_list *taken, int64_t count, box b)
{
    for (int64_t j = count; count % GP_BLOCK == 0 && j < count + GP_BLOCK; j++)
        taken->x0[j] = taken->y0[j] = taken->x1[j] = taken->y1[j] = taken->area[j] = 0;
    taken->x0[count] = b.x0, taken->y0[count] = b.y0, taken->x1[count] = b.x1, taken->y1[count] = b.y1;
    taken->area[count] = b.area;
}

/* Scores in a heap, the best on top, then the first of equals; NaN is the worst. */
static int64_t rank_scores(const suppress_params *p, const float *scores, top_k_entry *heap)
{
    int64_t n = 0;
    for (int64_t i = 0; i < p->nboxes; i++)
        if (!p->has_least || scores[i] > p->least) {
            heap[n] = (top_k_entry){scores[i] != scores[i] ? 0 : key_of_float(scores[i]), -i};
            sift_up(heap, n++);
        }
    return n;
}

/* args: boxes (batch, nboxes, 4), scores (batch, nclasses, nboxes), chosen (s64: rows of `most`), counts (s64). A task
 * is a class of an element of the batch. Scratch: a heap of nboxes, then a list of `most` boxes in whole blocks. */
GP_DEFINE_KERNEL(f32_suppress)
{
    const suppress_params *p = params;
    const int64_t room = (p->most + GP_BLOCK - 1) / GP_BLOCK * GP_BLOCK;
    top_k_entry *heap = scratch;
    float *lists = (float *)(heap + p->nboxes);
    const box_list taken = {lists, lists + room, lists + 2 * room, lists + 3 * room, lists + 4 * room};
    for (int64_t task = begin; task < end; task++) {
        const float *boxes = (const float *)args[0] + task / p->nclasses * p->nboxes * 4;
        int64_t *chosen = (int64_t *)args[2] + task * p->most, count = 0;
        int64_t n = rank_scores(p, (const float *)args[1] + task * p->nboxes, heap);
        while (n > 0 && count < p->most) {
            const int64_t index = -heap[0].index;
            heap[0] = heap[--n];
            sift_down(heap, n);
            const box b = box_at(boxes + 4 * index, p->is_centred);
            if (overlaps(&taken, count, b, p->overlap))
                continue;
            take_box(&taken, count, b);
            chosen[count++] = index;
        }
        ((int64_t *)args[3])[task] = count;
    }
}

GP_RECORD(suppress_pack_params, {
    int64_t nrows, nclasses, most;
});

/* args: chosen, counts, places (s64: rows of batch, class and box), count (s64). One task. */
GP_DEFINE_KERNEL(any_suppress_pack)
{
    (void)begin, (void)end;
    const suppress_pack_params *p = params;
    int64_t *to = args[2];
    for (int64_t row = 0; row < p->nrows; row++)
        for (int64_t i = 0; i < ((const int64_t *)args[1])[row]; i++, to += 3) {
            to[0] = row / p->nclasses;
            to[1] = row % p->nclasses;
            to[2] = ((const int64_t *)args[0])[row * p->most + i];
        }
    *(int64_t *)args[3] = (to - (int64_t *)args[2]) / 3;
    memset(to, 0, (size_t)(p->nrows * p->most * 3 - (to - (int64_t *)args[2])) * sizeof *to);
}

const gp_kernel_entry GP_KERNEL(search_table)[] = {
    GP_ENTRY(any_nonzero, nonzero_params),
    GP_ENTRY(f32_suppress, suppress_params),
    GP_ENTRY(any_suppress_pack, suppress_pack_params),
    GP_TABLE_END,
};
