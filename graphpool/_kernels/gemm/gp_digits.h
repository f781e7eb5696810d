/* Rows of f32 as integers of three signed bytes, by which VNNI instructions multiply unsigned bytes exactly.
 *
 * The numbers of a block share an exponent: x = (65536 d0 + 256 d1 + d2) * factor, where the largest has 23 bits. The
 * error of x is at most 2^-23 of the largest of its block. Blocks with a NaN, an infinity or nothing but denormals, and
 * those near the ends of the range, have no such digits. */
#ifndef GP_DIGITS_H
#define GP_DIGITS_H

#include "core/gp_math.h"
#include "core/gp_vec.h"

#define GP_DIGITS 3

#if defined(__AVX512VNNI__)

/* The n numbers of a block from x on. A digit of four numbers is a word; words of the next digit follow, those of the
 * next four numbers lie `step` words on; numbers beyond n, up to whole vectors, are zeros. Also the factor and the sum
 * of each digit. Returns whether there are such digits. */
static inline __attribute__((unused)) int gp_make_digits(const float *x, int64_t n, int32_t *to, int64_t step,
                                                         float *factor, int32_t *sums)
{
    __m512i most = _mm512_setzero_si512(), sum[GP_DIGITS] = {most, most, most};
    for (int64_t i = 0; i < n; i += GP_VL) {
        const __mmask16 mask = (__mmask16)(n - i < GP_VL ? (1u << (n - i)) - 1 : 0xffff);
        const __m512i bits = _mm512_castps_si512(_mm512_maskz_loadu_ps(mask, x + i));
        most = _mm512_max_epu32(most, _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff)));
    }
    const uint32_t largest = _mm512_reduce_max_epu32(most);
    if (largest >= 0x7e000000 || (largest && largest < 0x10000000))
        return 0;
    /* 2^23 over the power of two above the largest, or half that where its highest digit would reach 128 */
    const int exponent = largest ? (int)(largest >> 23) - 126 : 0, is_full = (largest & 0x7fffff) >= 0x7c0000;
    const __m512 scale = _mm512_set1_ps(gp_float((uint32_t)(127 + 23 - exponent - is_full) << 23));
    *factor = gp_float((uint32_t)(127 - 23 + exponent + is_full) << 23);
    for (int64_t i = 0; i < n; i += GP_VL) {
        const __mmask16 mask = (__mmask16)(n - i < GP_VL ? (1u << (n - i)) - 1 : 0xffff);
        __m512i rest = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_maskz_loadu_ps(mask, x + i), scale));
        for (int d = GP_DIGITS - 1; d >= 0; d--) {
            const __m512i digit = d ? _mm512_srai_epi32(_mm512_slli_epi32(rest, 24), 24) : rest;
            int32_t words[4];
            _mm_storeu_si128((__m128i *)words, _mm512_cvtepi32_epi8(digit));
            for (int w = 0; w < 4; w++)
                to[(i / 4 + w) * step + d] = words[w];
            sum[d] = _mm512_add_epi32(sum[d], digit);
            rest = _mm512_srai_epi32(_mm512_sub_epi32(rest, digit), 8);
        }
    }
    for (int d = 0; d < GP_DIGITS; d++)
        sums[d] = _mm512_reduce_add_epi32(sum[d]);
    return 1;
}

#endif
#endif
