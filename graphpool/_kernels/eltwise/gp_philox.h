/* The words of Dropout.
 *
 * Philox4x32-10: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC'11. Element i takes
 * word i % 4 of the block whose counter is (i / 4, offset), so any split of the work gives the same mask.
 */
#ifndef GP_PHILOX_H
#define GP_PHILOX_H

#include <stdint.h>

#define GP_PHILOX_BLOCKS 64 /* blocks of four words that are made together: enough that loops are vectorised, not unrolled */

typedef struct {
    uint32_t word[4][GP_PHILOX_BLOCKS];
} gp_philox_blocks;

/* Ten rounds on n counters, in place. */
static inline void gp_philox(gp_philox_blocks *b, int n, uint32_t key0, uint32_t key1)
{
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < n; i++) {
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

/* Words of the elements first .. first + 4 * n - 1, in their order; first is a multiple of 4, n at most
 * GP_PHILOX_BLOCKS. */
static inline void gp_philox_words(uint64_t first, int n, uint64_t seed, uint64_t offset, uint32_t *words)
{
    gp_philox_blocks b;
    for (int i = 0; i < n; i++) {
        const uint64_t counter = first / 4 + (uint64_t)i;
        b.word[0][i] = (uint32_t)counter;
        b.word[1][i] = (uint32_t)(counter >> 32);
        b.word[2][i] = (uint32_t)offset;
        b.word[3][i] = (uint32_t)(offset >> 32);
    }
    gp_philox(&b, n, (uint32_t)seed, (uint32_t)(seed >> 32));
    for (int i = 0; i < n; i++)
        for (int k = 0; k < 4; k++)
            words[4 * i + k] = b.word[k][i];
}

/* An element is kept if word * 2^-32 > probability: if word exceeds the integer part of probability * 2^32. */
static inline int64_t gp_dropout_threshold(float probability)
{
    const double scaled = (double)probability * 4294967296.0;
    if (!(scaled < 4294967296.0))
        return INT64_C(4294967296);  /* NaN as well: keep nothing */
    return scaled < 0 ? -1 : (int64_t)scaled;
}

#endif
