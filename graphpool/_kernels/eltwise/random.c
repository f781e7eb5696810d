/* Dropout from a counter-based generator.
 *
 * Philox4x32-10: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC'11. Element i takes
 * word i % 4 of the block whose counter is (i / 4, offset), so any split of the work gives the same mask.
 */
#include "core/gp_kernel.h"
#include "core/gp_vec.h"

#define GP_DROPOUT_TASK 4096 /* elements of a task */
#define LANES 64 /* blocks of four words that are made together: enough that loops are vectorised, not unrolled */

GP_RECORD(dropout_params, {
    int64_t size, has_mask;
});

typedef struct {
    uint32_t word[4][LANES];
} blocks;

/* Ten rounds on LANES counters, in place. */
static void philox(blocks *b, uint32_t key0, uint32_t key1)
{
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < LANES; i++) {
            const uint64_t product0 = (uint64_t)0xd2511f53u * b->word[0][i];
            const uint64_t product1 = (uint64_t)0xcd9e8d57u * b->word[2][i];
            b->word[0][i] = (uint32_t)(product1 >> 32) ^ b->word[1][i] ^ key0;
            b->word[1][i] = (uint32_t)product1;
            b->word[2][i] = (uint32_t)(product0 >> 32) ^ b->word[3][i] ^ key1;
            b->word[3][i] = (uint32_t)product0;
        }
        key0 += 0x9e3779b9u;
        key1 += 0xbb67ae85u;
    }
}

/* Words of the elements first .. first + 4 * LANES - 1, in their order; first is a multiple of 4. */
static void get_words(uint64_t first, uint64_t seed, uint64_t offset, uint32_t *words)
{
    blocks b;
    for (int i = 0; i < LANES; i++) {
        const uint64_t counter = first / 4 + (uint64_t)i;
        b.word[0][i] = (uint32_t)counter;
        b.word[1][i] = (uint32_t)(counter >> 32);
        b.word[2][i] = (uint32_t)offset;
        b.word[3][i] = (uint32_t)(offset >> 32);
    }
    philox(&b, (uint32_t)seed, (uint32_t)(seed >> 32));
    for (int i = 0; i < LANES; i++)
        for (int k = 0; k < 4; k++)
            words[4 * i + k] = b.word[k][i];
}

/* An element is kept if word * 2^-32 > probability: if word exceeds the integer part of probability * 2^32. */
static int64_t get_threshold(float probability)
{
    const double scaled = (double)probability * 4294967296.0;
    if (!(scaled < 4294967296.0))
        return INT64_C(4294967296);  /* NaN as well: keep nothing */
    return scaled < 0 ? -1 : (int64_t)scaled;
}

GP_DEFINE_KERNEL(f32_dropout)
{
    const dropout_params *p = params;
    const float *src = args[0], probability = *(const float *)args[3], kept = 1 - probability;
    const uint64_t seed = (uint64_t)*(const int64_t *)args[1], offset = (uint64_t)*(const int64_t *)args[2];
    const int64_t threshold = get_threshold(probability), last = gp_min(end * GP_DROPOUT_TASK, p->size);
    float *dst = args[4];
    uint8_t *mask = p->has_mask ? args[5] : NULL;
    for (int64_t first = begin * GP_DROPOUT_TASK; first < last; first += 4 * LANES) {
        const int64_t n = gp_min(4 * LANES, last - first);
        uint32_t words[4 * LANES];
        get_words((uint64_t)first, seed, offset, words);
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
