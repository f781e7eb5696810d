/* Vectors of the width of the instruction set, and sums and maxima of contiguous rows.
 *
 * Sums run in f32 over short chains in independent lanes and in f64 from block to block, so that their error does not
 * grow with the length of the row (blocked summation: Higham, "The accuracy of floating point summation", 1993).
 */
#ifndef GP_VEC_H
#define GP_VEC_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__SSE4_1__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#if defined(__AVX512F__)
#define GP_VL 16
#elif defined(__AVX2__)
#define GP_VL 8
#else
#define GP_VL 4
#endif

#define GP_INLINE static inline __attribute__((always_inline, unused))

/* A loop over so few that it becomes straight code, so that arrays which it walks are registers. */
#define GP_EACH(i, n) _Pragma("GCC unroll 8") for (int i = 0; i < (n); i++)

/* Elements of a block of a sum: chains of 8 additions in 4 vectors of lanes. */
#define GP_SUM_BLOCK (32 * GP_VL)

typedef float gp_vf __attribute__((vector_size(4 * GP_VL)));
typedef int32_t gp_vi __attribute__((vector_size(4 * GP_VL)));

GP_INLINE int64_t gp_max(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

GP_INLINE int64_t gp_min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

#if GP_VL == 16
#define GP_LANE_NUMBERS ((gp_vi){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15})
#elif GP_VL == 8
#define GP_LANE_NUMBERS ((gp_vi){0, 1, 2, 3, 4, 5, 6, 7})
#else
#define GP_LANE_NUMBERS ((gp_vi){0, 1, 2, 3})
#endif

GP_INLINE gp_vf gp_splat(float value)
{
    return value - (gp_vf){0};  /* value + 0 would turn -0 into +0 */
}

GP_INLINE gp_vf gp_load(const float *from)
{
    gp_vf v;
    memcpy(&v, from, sizeof v);
    return v;
}

GP_INLINE void gp_store(float *to, gp_vf v)
{
    memcpy(to, &v, sizeof v);
}

/* The first n elements, 0 <= n < GP_VL; the other lanes hold `fill`. */
GP_INLINE gp_vf gp_load_part(const float *from, int64_t n, float fill)
{
#if defined(__AVX512F__)
    return _mm512_mask_loadu_ps(gp_splat(fill), (__mmask16)((1u << n) - 1), from);
#elif defined(__AVX2__)
    const __m256i is_read = (__m256i)(GP_LANE_NUMBERS < (int32_t)n);
    const __m256 v = _mm256_maskload_ps(from, is_read);
    return __builtin_constant_p(fill) && fill == 0 ? v : _mm256_blendv_ps(gp_splat(fill), v, (__m256)is_read);
#else
    float lanes[GP_VL];
    for (int64_t i = 0; i < GP_VL; i++)
        lanes[i] = i < n ? from[i] : fill;
    return gp_load(lanes);
#endif
}

/* Elements low up to high, of which either may lie beyond the vector; the other lanes hold `fill`, and are not read. */
GP_INLINE gp_vf gp_load_between(const float *from, int64_t low, int64_t high, float fill)
{
    low = low < 0 ? 0 : low;
    high = high > GP_VL ? GP_VL : high;
    if (low >= high)
        return gp_splat(fill);
#if defined(__AVX512F__)
    return _mm512_mask_loadu_ps(gp_splat(fill), (__mmask16)((1u << high) - (1u << low)), from);
#elif defined(__AVX2__)
    const __m256i is_read = (__m256i)((GP_LANE_NUMBERS >= (int32_t)low) & (GP_LANE_NUMBERS < (int32_t)high));
    const __m256 v = _mm256_maskload_ps(from, is_read);
    return __builtin_constant_p(fill) && fill == 0 ? v : _mm256_blendv_ps(gp_splat(fill), v, (__m256)is_read);
#else
    gp_vf v = gp_splat(fill);
    for (int64_t i = low; i < high; i++)
        v[i] = from[i];
    return v;
#endif
}

/* Every step-th element, GP_VL of them; with step 2 one more may be read. */
GP_INLINE gp_vf gp_load_steps(const float *from, const int64_t step)
{
    if (step == 1)
        return gp_load(from);
    gp_vf v;
#if !defined(__clang__)
    if (step == 2)
        return __builtin_shuffle(gp_load(from), gp_load(from + GP_VL), GP_LANE_NUMBERS * 2);
#endif
    for (int i = 0; i < GP_VL; i++)
        v[i] = from[i * step];
    return v;
}

/* Stores the first n elements, 0 <= n; GP_VL at most. */
GP_INLINE void gp_store_part(float *to, gp_vf v, int64_t n)
{
    if (n >= GP_VL) {
        gp_store(to, v);
        return;
    }
#if defined(__AVX512F__)
    _mm512_mask_storeu_ps(to, (__mmask16)((1u << n) - 1), v);
#elif defined(__AVX2__) /* in pieces, as stores by a mask are slow on AMD's processors */
    __m128 rest = _mm256_castps256_ps128(v);
    if (n & 4) {
        _mm_storeu_ps(to, rest);
        rest = _mm256_extractf128_ps(v, 1);
        to += 4;
    }
    if (n & 2) {
        _mm_storel_pi((__m64 *)to, rest);
        rest = _mm_movehl_ps(rest, rest);
        to += 2;
    }
    if (n & 1)
        _mm_store_ss(to, rest);
#else
    float lanes[GP_VL];
    gp_store(lanes, v);
    for (int64_t i = 0; i < n; i++)
        to[i] = lanes[i];
#endif
}

/* Loads the first n elements, zeros behind; n may be anything. */
GP_INLINE gp_vf gp_load_some(const float *from, int64_t n)
{
    return n >= GP_VL ? gp_load(from) : gp_load_part(from, n > 0 ? n : 0, 0);
}

/* Lanes of a vector that a comparison chose. */
#if defined(__AVX512F__)
typedef __mmask16 gp_vmask;
#else
typedef gp_vi gp_vmask;
#endif

GP_INLINE gp_vmask gp_vless(gp_vf a, gp_vf b)
{
#if defined(__AVX512F__)
    return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_LT_OQ);
#else
    return a < b;
#endif
}

GP_INLINE gp_vmask gp_vequal(gp_vf a, gp_vf b)
{
#if defined(__AVX512F__)
    return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_EQ_OQ);
#else
    return a == b;
#endif
}

/* Where a or b is NaN. */
GP_INLINE gp_vmask gp_vunordered(gp_vf a, gp_vf b)
{
#if defined(__AVX512F__)
    return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_UNORD_Q);
#elif defined(__AVX2__)
    return (gp_vi)_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_UNORD_Q);
#else
    return (a != a) | (b != b);
#endif
}

GP_INLINE int gp_is_any(gp_vmask mask)
{
#if defined(__AVX512F__)
    return mask != 0;
#elif defined(__AVX2__)
    return _mm256_movemask_ps((__m256)mask) != 0;
#else
    int32_t any = 0;
    for (int i = 0; i < GP_VL; i++)
        any |= mask[i];
    return any != 0;
#endif
}

/* a in the lanes of the mask, b in the others. */
GP_INLINE gp_vf gp_vselect(gp_vmask mask, gp_vf a, gp_vf b)
{
#if defined(__AVX512F__)
    return (gp_vf)_mm512_mask_blend_ps(mask, (__m512)b, (__m512)a);
#elif defined(__AVX2__)
    return (gp_vf)_mm256_blendv_ps((__m256)b, (__m256)a, (__m256)mask);
#elif defined(__SSE4_1__)
    return (gp_vf)_mm_blendv_ps((__m128)b, (__m128)a, (__m128)mask);
#else
    return (gp_vf)(((gp_vi)a & mask) | ((gp_vi)b & ~mask));
#endif
}

/* x where it is at most hi, hi above; NaN stays: x86's instructions give back the second one where one is NaN. */
GP_INLINE gp_vf gp_vat_most(gp_vf x, gp_vf hi)
{
#if defined(__AVX512F__)
    return (gp_vf)_mm512_min_ps((__m512)hi, (__m512)x);
#elif defined(__AVX2__)
    return (gp_vf)_mm256_min_ps((__m256)hi, (__m256)x);
#elif defined(__SSE4_1__)
    return (gp_vf)_mm_min_ps((__m128)hi, (__m128)x);
#else
    return gp_vselect(hi < x, hi, x);
#endif
}

/* x where it is at least lo, lo below; NaN stays. */
GP_INLINE gp_vf gp_vat_least(gp_vf x, gp_vf lo)
{
#if defined(__AVX512F__)
    return (gp_vf)_mm512_max_ps((__m512)lo, (__m512)x);
#elif defined(__AVX2__)
    return (gp_vf)_mm256_max_ps((__m256)lo, (__m256)x);
#elif defined(__SSE4_1__)
    return (gp_vf)_mm_max_ps((__m128)lo, (__m128)x);
#else
    return gp_vselect(x < lo, lo, x);
#endif
}

/* Limits to [lo, hi]; NaN stays. */
GP_INLINE gp_vf gp_vclamp(gp_vf x, gp_vf lo, gp_vf hi)
{
    return gp_vat_most(gp_vat_least(x, lo), hi);
}

/* Lane by lane a > b ? a : b: a NaN in a is passed over, a NaN in b stays. */
GP_INLINE gp_vf gp_vmax(gp_vf a, gp_vf b)
{
    return gp_vat_least(b, a);
}

/* a * b + c in one rounding where there is an instruction for it: ISO C does not let the compiler contract. */
GP_INLINE gp_vf gp_vfma(gp_vf a, gp_vf b, gp_vf c)
{
#if defined(__AVX512F__)
    return _mm512_fmadd_ps(a, b, c);
#elif defined(__FMA__)
    return _mm256_fmadd_ps(a, b, c);
#elif defined(__ARM_NEON)
    return vfmaq_f32(c, a, b);
#else
    return a * b + c;
#endif
}

GP_INLINE gp_vf gp_vsqrt(gp_vf x)
{
#if defined(__AVX512F__)
    return (gp_vf)_mm512_sqrt_ps((__m512)x);
#elif defined(__AVX2__)
    return (gp_vf)_mm256_sqrt_ps((__m256)x);
#elif defined(__SSE4_1__)
    return (gp_vf)_mm_sqrt_ps((__m128)x);
#else
    gp_vf y;
    for (int i = 0; i < GP_VL; i++)
        y[i] = sqrtf(x[i]);
    return y;
#endif
}

/* Lane i holds what lane[i] held; of lane[i] the low bits count. */
GP_INLINE gp_vf gp_pick_lanes(gp_vf v, gp_vi lane)
{
#if defined(__clang__)
    gp_vf picked;
    for (int i = 0; i < GP_VL; i++)
        picked[i] = v[lane[i] & (GP_VL - 1)];
    return picked;
#else
    return __builtin_shuffle(v, lane);
#endif
}

/* The same of two vectors: lanes GP_VL, GP_VL + 1, ... are those of b. */
GP_INLINE gp_vf gp_pick_both(gp_vf a, gp_vf b, gp_vi lane)
{
#if defined(__clang__)
    gp_vf picked;
    for (int i = 0; i < GP_VL; i++)
        picked[i] = lane[i] & GP_VL ? b[lane[i] & (GP_VL - 1)] : a[lane[i] & (GP_VL - 1)];
    return picked;
#else
    return __builtin_shuffle(a, b, lane);
#endif
}

GP_INLINE float gp_lane_sum(gp_vf v)
{
#pragma GCC unroll 4
    for (int width = GP_VL / 2; width; width /= 2)
        v += gp_pick_lanes(v, GP_LANE_NUMBERS ^ width);
    return v[0];
}

GP_INLINE float gp_lane_max(gp_vf v)
{
#pragma GCC unroll 4
    for (int width = GP_VL / 2; width; width /= 2)
        v = gp_vmax(v, gp_pick_lanes(v, GP_LANE_NUMBERS ^ width));
    return v[0];
}

/* Largest element, NaNs passed over; -inf where there is none. */
static inline __attribute__((unused)) float gp_row_max(const float *x, int64_t n)
{
    const gp_vf least = gp_splat(-INFINITY);
    gp_vf m[4] = {least, least, least, least};
    int64_t i = 0;
    for (; i + 4 * GP_VL <= n; i += 4 * GP_VL)
#pragma GCC unroll 4
        for (int v = 0; v < 4; v++)
            m[v] = gp_vmax(gp_load(x + i + v * GP_VL), m[v]);
    for (; i + GP_VL <= n; i += GP_VL)
        m[0] = gp_vmax(gp_load(x + i), m[0]);
    if (i < n)
        m[1] = gp_vmax(gp_load_part(x + i, n - i, -INFINITY), m[1]);
    return gp_lane_max(gp_vmax(gp_vmax(m[0], m[1]), gp_vmax(m[2], m[3])));
}

/* What a sum adds up: x, |x|, (x - shift)^2, or x - shift. */
enum gp_term { GP_TERM_VALUE, GP_TERM_ABS, GP_TERM_SQUARE, GP_TERM_DEVIATION };

GP_INLINE gp_vf gp_vterm(enum gp_term term, gp_vf x, gp_vf shift)
{
    if (term == GP_TERM_ABS)
        return (gp_vf)((gp_vi)x & 0x7fffffff);
    if (term == GP_TERM_SQUARE)
        return (x - shift) * (x - shift);
    return term == GP_TERM_DEVIATION ? x - shift : x;
}

GP_INLINE float gp_block_sum_f32(enum gp_term term, const float *x, int64_t n, float shift)
{
    const gp_vf s = gp_splat(shift);
    gp_vf sum[4] = {{0}, {0}, {0}, {0}};
    int64_t i = 0;
    for (; i + 4 * GP_VL <= n; i += 4 * GP_VL)
#pragma GCC unroll 4
        for (int v = 0; v < 4; v++)
            sum[v] += gp_vterm(term, gp_load(x + i + v * GP_VL), s);
    for (; i + GP_VL <= n; i += GP_VL)
        sum[0] += gp_vterm(term, gp_load(x + i), s);
    if (i < n)
        sum[1] += gp_vterm(term, gp_load_part(x + i, n - i, term == GP_TERM_SQUARE ? shift : 0), s);
    return gp_lane_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

GP_INLINE void gp_sum_strip(enum gp_term term, const float *const *rows, int64_t n, int64_t first, int64_t w,
                            const float *shift, float *sum, const int is_whole)
{
    gp_vf total[4] = {{0}, {0}, {0}, {0}};
    for (int64_t i = 0; i < n; i++)
#pragma GCC unroll 4
        for (int v = 0; v < 4; v++) {
            const int64_t at = first + v * GP_VL, left = is_whole ? GP_VL : w - at;
            if (left > 0)
                total[v] += gp_vterm(term, left < GP_VL ? gp_load_part(rows[i] + at, left, 0) : gp_load(rows[i] + at),
                                     shift ? gp_load(shift + at) : (gp_vf){0});
        }
#pragma GCC unroll 4
    for (int v = 0; v < 4; v++)
        gp_store(sum + first + v * GP_VL, total[v]);
}

/* sum[j] = the sum of the terms rows[i][j] over n rows, for w columns; in f32, so for few rows. Accumulators stay in
 * registers. shift, where it is not NULL, and sum hold one float a column, w rounded up to a multiple of 64.
 */
GP_INLINE void gp_sum_columns(enum gp_term term, const float *const *rows, int64_t n, int64_t w, const float *shift,
                              float *sum)
{
    int64_t j = 0;
    for (; j + 4 * GP_VL <= w; j += 4 * GP_VL)
        gp_sum_strip(term, rows, n, j, w, shift, sum, 1);
    if (j < w)
        gp_sum_strip(term, rows, n, j, w, shift, sum, 0);
}

/* The same as gp_block_sum_f32 in f64, in 8 lanes. */
GP_INLINE double gp_block_sum_f64(enum gp_term term, const float *x, int64_t n, float shift)
{
    const double s = term == GP_TERM_SQUARE ? shift : 0;
    double lanes[8] = {0};
    for (int64_t i = 0; i < n; i += 8)
        for (int64_t k = 0; k < 8; k++) {
            const double d = i + k < n ? (double)x[i + k] - s : 0;
            lanes[k] += term == GP_TERM_SQUARE ? d * d : term == GP_TERM_ABS ? fabs(d) : d;
        }
    return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
}

/* Whether a sum in f32 neither overflowed nor lost squares to underflow; NaN counts as overflow. */
GP_INLINE int gp_is_sum_sound(enum gp_term term, double sum)
{
    return fabs(sum) < 1e37 && (term != GP_TERM_SQUARE || sum > 1e-30);
}

/* Sum of terms; where f32 overflows or underflows, a block is summed again in f64. */
GP_INLINE double gp_row_sum(enum gp_term term, const float *x, int64_t n, float shift)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i += GP_SUM_BLOCK) {
        const int64_t block = gp_min(n - i, GP_SUM_BLOCK);
        const double part = gp_block_sum_f32(term, x + i, block, shift);
        sum += gp_is_sum_sound(term, part) ? part : gp_block_sum_f64(term, x + i, block, shift);
    }
    return sum;
}

#endif
