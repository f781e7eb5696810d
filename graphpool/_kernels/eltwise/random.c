/* Dropout from a counter-based generator. */
#include "core/gp_kernel.h"
#include "core/gp_vec.h"
#include "eltwise/gp_philox.h"

#define GP_DROPOUT_TASK 4096 /* elements of a task */

GP_RECORD(dropout_params, {
    int64_t size, has_mask;
});

GP_DEFINE_KERNEL(f32_dropout)
{
    const dropout_params *p = params;
    const float *src = args[0], probability = *(const float *)args[3], kept = 1 - probability;
    const uint64_t seed = (uint64_t)*(const int64_t *)args[1], offset = (uint64_t)*(const int64_t *)args[2];
    const int64_t threshold = gp_dropout_threshold(probability), last = gp_min(end * GP_DROPOUT_TASK, p->size);
    float *dst = args[4];
    uint8_t *mask = p->has_mask ? args[5] : NULL;
    for (int64_t first = begin * GP_DROPOUT_TASK; first < last; first += 4 * GP_PHILOX_BLOCKS) {
        const int64_t n = gp_min(4 * GP_PHILOX_BLOCKS, last - first);
        uint32_t words[4 * GP_PHILOX_BLOCKS];
        gp_philox_words((uint64_t)first, GP_PHILOX_BLOCKS, seed, offset, words);
        for (int64_t i = 0; i < n; i++)
            dst[first + i] = (int64_t)words[i] > threshold ? src[first + i] / kept : 0;
        for (int64_t i = 0; mask && i < n; i++)
            mask[first + i] = (int64_t)words[i] > threshold;
    }
}

const gp_kernel_entry GP_KERNEL(random_table)[] = {
    GP_ENTRY(f32_dropout, dropout_params),
    GP_NUMBER(GP_DROPOUT_TASK),
    GP_TABLE_END,
};
