/* Rows of f32 as integers of one or three signed bytes, their digits, which are multiplied by unsigned bytes exactly.
 *
 * Three digits, for VNNI: the numbers of a block share an exponent: x = (65536 d0 + 256 d1 + d2) * factor, where the
 * largest has 23 bits. The error of x is at most 2^-23 of the largest of its block. Blocks with a NaN, an infinity or
 * nothing but denormals, and those near the ends of the range, have no such digits.
 *
 * One digit: x = d * factor, where the largest of a block is 127 or -127, so that the error of x is at most 1/254 of it.
 * A block with a NaN or an infinity has the factor NaN; one below 2^-100 counts as zeros. */
#ifndef GP_DIGITS_H
#define GP_DIGITS_H

#include "core/gp_math.h"
#include "gemm/gp_packed.h"

#define GP_DIGITS 3 /* at most */

/* Products of bytes of u, unsigned, and of s, signed, added pair by pair in s16, which must hold them. */
GP_INLINE gp_vh gp_add_byte_pairs(gp_vi u, gp_vi s)
{
#if defined(__AVX512BW__)
    return (gp_vh)_mm512_maddubs_epi16((__m512i)u, (__m512i)s);
#elif defined(__AVX2__)
    return (gp_vh)_mm256_maddubs_epi16((__m256i)u, (__m256i)s);
#elif defined(__SSSE3__)
    return (gp_vh)_mm_maddubs_epi16((__m128i)u, (__m128i)s);
#else
    const gp_vh even = (gp_vh)(u & 0x00ff00ff) * ((gp_vh)((gp_vh)s << 8) >> 8);
    return even + (gp_vh)((gp_vu)u >> 8 & 0x00ff00ff) * ((gp_vh)s >> 8);
#endif
}

/* acc plus the products of four bytes of u, unsigned, and four of s, signed. */
GP_INLINE gp_vi gp_dot_digits(gp_vi u, gp_vi s, gp_vi acc)
{
#if defined(__AVX512VNNI__)
    return (gp_vi)_mm512_dpbusd_epi32((__m512i)acc, (__m512i)u, (__m512i)s);
#elif defined(__AVXVNNI__)
    return (gp_vi)_mm256_dpbusd_avx_epi32((__m256i)acc, (__m256i)u, (__m256i)s);
#elif defined(__ARM_FEATURE_DOTPROD) /* of signed bytes: u - 128, and s twice times 64 */
    const int8x16_t less = (int8x16_t)(u ^ (int32_t)0x80808080), half = vdupq_n_s8(64), y = (int8x16_t)s;
    return (gp_vi)vdotq_s32(vdotq_s32(vdotq_s32((int32x4_t)acc, less, y), half, y), half, y);
#else
    const gp_vh even = (gp_vh)((gp_vh)s << 8) >> 8, odd = (gp_vh)s >> 8;
    return acc + gp_madd((gp_vh)(u & 0x00ff00ff), even) + gp_madd((gp_vh)((gp_vu)u >> 8 & 0x00ff00ff), odd);
#endif
}

/* acc plus the products of the low nibbles of u with bytes of `low`, and of the high ones with `high`. */
GP_INLINE gp_vi gp_dot_nibbles(gp_vi u, gp_vi low, gp_vi high, gp_vi acc)
{
    const gp_vi first = u & 0x0f0f0f0f, second = (gp_vi)((gp_vu)u >> 4) & 0x0f0f0f0f;
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
    return gp_dot_digits(second, high, gp_dot_digits(first, low, acc));
#elif defined(__ARM_FEATURE_DOTPROD)
    return (gp_vi)vdotq_s32(vdotq_s32((int32x4_t)acc, (int8x16_t)first, (int8x16_t)low), (int8x16_t)second, (int8x16_t)high);
#else
    const gp_vh one = (gp_vh)(0x00010001 - (gp_vi){0}); /* four products of 15 * 128 fit s16 */
    return acc + gp_madd(gp_add_byte_pairs(first, low) + gp_add_byte_pairs(second, high), one);
#endif
}

typedef int8_t gp_vb __attribute__((vector_size(GP_VL)));

/* The n numbers of a block from x on, one digit each: words of four of them lie `step` words apart, zeros beyond n up to
 * whole vectors. Also the factor and the sum of the digits. */
static inline __attribute__((unused)) void gp_make_bytes(const float *x, int64_t n, int32_t *to, int64_t step,
                                                         float *factor, int32_t *sum)
{
    const gp_vf magic = gp_splat(0x1.8p23f); /* a float so large has no fraction: adding it rounds to nearest even */
    gp_vi most = {0}, total = {0};
    for (int64_t i = 0; i < n; i += GP_VL) {
        const gp_vi bits = (gp_vi)gp_load_some(x + i, n - i) & 0x7fffffff, is_more = bits > most;
        most = (bits & is_more) | (most & ~is_more);
    }
    int32_t largest = 0;
    for (int l = 0; l < GP_VL; l++)
        largest = most[l] > largest ? most[l] : largest;
    const int is_finite = largest < 0x7f800000, is_used = is_finite && largest >= 27 << 23;
    const gp_vf scale = gp_splat(is_used ? 127.0f / gp_float((uint32_t)largest) : 0);
    *factor = is_used ? gp_float((uint32_t)largest) / 127.0f : is_finite ? 0 : NAN;
    for (int64_t i = 0; i < n; i += GP_VL) {
        const gp_vf rounded = is_used ? gp_load_some(x + i, n - i) * scale + magic : magic;
        const gp_vi digit = (gp_vi)rounded - (gp_vi)magic;
        const gp_vb bytes = __builtin_convertvector(digit, gp_vb);
        int32_t words[GP_VL / 4];
        memcpy(words, &bytes, sizeof words);
        for (int w = 0; w < GP_VL / 4; w++)
            to[(i / 4 + w) * step] = words[w];
        total += digit;
    }
    *sum = 0;
    for (int l = 0; l < GP_VL; l++)
        *sum += total[l];
}

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
