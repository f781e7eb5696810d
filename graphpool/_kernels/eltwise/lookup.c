/* Functions of one byte: dst[i] = table[src[i]]. A task is a block of bytes. args: src, table of 256 bytes, dst.
 *
 * One by one a byte takes a cycle, and two where dst lies such that its stores look like what is loaded next. With AVX-512
 * the table is 16 rows in registers: of each row all 64 bytes are looked up, and those are kept whose upper half is its
 * number. */
#include "core/gp_vec.h"
#include "core/gp_kernel.h"

GP_RECORD(gp_lookup, {
    int64_t n, block;
});

/* How many of n bytes were looked up. */
static int64_t look_up_vectors(const uint8_t *restrict src, const uint8_t *table, uint8_t *restrict dst, int64_t n)
{
    int64_t i = 0;
#if defined(__AVX512BW__)
    __m512i rows[16];
#pragma GCC unroll 16
    for (int h = 0; h < 16; h++)
        rows[h] = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(table + 16 * h)));
    for (; i + 64 <= n; i += 64) {
        const __m512i x = _mm512_loadu_si512(src + i), low = x & _mm512_set1_epi8(0x0f), high = x & _mm512_set1_epi8((char)0xf0);
        __m512i y = _mm512_shuffle_epi8(rows[0], low);
#pragma GCC unroll 16
        for (int h = 1; h < 16; h++) {
            const __mmask64 is_row = _mm512_cmpeq_epi8_mask(high, _mm512_set1_epi8((char)(h << 4)));
            y = _mm512_mask_shuffle_epi8(y, is_row, rows[h], low);
        }
        _mm512_storeu_si512(dst + i, y);
    }
#else
    (void)src, (void)table, (void)dst, (void)n;
#endif
    return i;
}

GP_DEFINE_KERNEL(x8_lookup)
{
    const gp_lookup *p = params;
    const int64_t first = begin * p->block, last = gp_min(end * p->block, p->n);
    const uint8_t *restrict src = args[0];
    uint8_t *restrict dst = args[2];
    uint8_t table[256]; /* a copy that stores to dst cannot change */
    memcpy(table, args[1], sizeof table);
    for (int64_t i = first + look_up_vectors(src + first, table, dst + first, last - first); i < last; i++)
        dst[i] = table[src[i]];
}

const gp_kernel_entry GP_KERNEL(lookup_table)[] = {
    GP_ENTRY(x8_lookup, gp_lookup),
    GP_TABLE_END,
};
