/* What int8 GEMM does to its accumulators while they are in registers: roundings to 8 bits and what lies between them.
 *
 *   x = accumulator * scale + bias             what the product is
 *   x = inner rounding and back        if there is one
 *   x += late bias, x += residual      the residual is f32, or 8 bits with a scale and a zero point
 *   dst = outer rounding of x          8 bits, or the f32 that they stand for; or x itself, clamped
 *
 * Numbers are rounded by adding 1.5 * 2^23, behind which f32 has no room for fractions: to nearest even, after a clamp
 * to the range of the type, so that the low byte of the sum is the integer. A zero point that belongs to the rounded
 * number is part of what is added; one that is added to the integer follows. */
#ifndef GP_REQUANT_H
#define GP_REQUANT_H

#include "gemm/gp_packed.h"

/* To 8 bits: integer = round(clamp(x * inverse) + zero point), and back: (integer - zero point) * scale. */
GP_RECORD(gp_rounding, {
    float inverse, lo, hi;
    float shift;    /* 1.5 * 2^23, plus the zero point where it is rounded with the number */
    float scale;
    int32_t after;  /* what is added to the integer */
});

GP_RECORD(gp_requant, {
    gp_rounding inner, outer;
    int64_t has_inner, has_outer, dst_dtype, residual_dtype;
    int64_t late_bias_arg, residual_arg; /* 0: there is none */
    float residual_scale;
    int32_t residual_zero;
    float lo, hi; /* of f32 results */
});

/* Numbers of the operands that are arguments: which ones, 0 for what the parameters say (1, a zero point, no zero points
 * of weights). */
GP_RECORD(gp_dynamic, {
    int64_t scale_arg, zero_arg; /* of the activations: one f32; one element of their type */
    int64_t columns_arg;         /* zero points of the weights: one s32 a column */
});

/* What scales are multiplied by. */
GP_INLINE float gp_dynamic_scale(const gp_dynamic *p, void *const *args)
{
    return p->scale_arg ? *(const float *)args[p->scale_arg] : 1.0f;
}

/* The zero point as unsigned bytes have it, which `known` is already. */
GP_INLINE int32_t gp_dynamic_zero(const gp_dynamic *p, void *const *args, int64_t dtype, int64_t known)
{
    if (!p->zero_arg)
        return (int32_t)known;
    return *(const uint8_t *)args[p->zero_arg] ^ (dtype == GP_S8 ? 0x80 : 0);
}

/* The same at the place of a tile: base pointers, and strides in elements. */
typedef struct gp_requant_sink {
    const gp_requant *p;
    const float *late_bias;
    const char *residual;
    char *dst;
    int64_t residual_row, dst_row;
} gp_requant_sink;

typedef uint8_t gp_vub __attribute__((vector_size(GP_VL)));

GP_INLINE int64_t gp_element_nbytes(int64_t dtype)
{
    return dtype == GP_F32 ? 4 : 1;
}

/* The sink of results from a channel on, which go to dst; residual: elements to that of the first. */
GP_INLINE gp_requant_sink gp_make_requant(const gp_requant *p, void *const *args, int64_t channel, char *dst,
                                          int64_t dst_row, int64_t residual, int64_t residual_row)
{
    return (gp_requant_sink){
        .p = p,
        .late_bias = gp_floats_at(args, p->late_bias_arg, channel),
        .residual = p->residual_arg ? (const char *)args[p->residual_arg] + residual * gp_element_nbytes(p->residual_dtype)
                                    : NULL,
        .residual_row = residual_row,
        .dst = dst,
        .dst_row = dst_row,
    };
}

/* Unsigned bytes, widened. Compilers do not find the instruction by themselves. */
GP_INLINE gp_vi gp_widen_bytes(gp_vub bytes)
{
#if defined(__AVX512F__)
    return (gp_vi)_mm512_cvtepu8_epi32((__m128i)bytes);
#elif defined(__AVX2__)
    return (gp_vi)_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)bytes));
#elif defined(__SSE4_1__)
    return (gp_vi)_mm_cvtepu8_epi32(_mm_cvtsi32_si128((int)bytes));
#else
    return __builtin_convertvector(bytes, gp_vi);
#endif
}

/* The low byte of every lane. */
GP_INLINE gp_vub gp_narrow_bytes(gp_vi v)
{
#if defined(__AVX512F__)
    return (gp_vub)_mm512_cvtepi32_epi8((__m512i)v);
#elif defined(__AVX2__)
    const __m256i low = _mm256_setr_epi32(0x0c080400, 0, 0, 0, 0x0c080400, 0, 0, 0);
    const __m256i words = _mm256_shuffle_epi8((__m256i)v, low); /* one word of each half */
    return (gp_vub)_mm_cvtsi128_si64(
        _mm_unpacklo_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
#elif defined(__SSE4_1__)
    return (gp_vub)_mm_cvtsi128_si32(_mm_shuffle_epi8((__m128i)v, _mm_set1_epi32(0x0c080400)));
#else
    return __builtin_convertvector(v, gp_vub);
#endif
}

/* A vector of bytes; zeros behind the `left` that exist. */
GP_INLINE gp_vub gp_load_some_bytes(const char *from, int64_t left)
{
    gp_vub bytes = {0};
    if (left >= GP_VL)
        memcpy(&bytes, from, sizeof bytes);
    else
#if defined(__AVX512BW__) && defined(__AVX512VL__)
        bytes = (gp_vub)_mm_maskz_loadu_epi8((__mmask16)((1u << (left > 0 ? left : 0)) - 1), from);
#else
        memcpy(&bytes, from, left > 0 ? (size_t)left : 0);
#endif
    return bytes;
}

/* The bytes of a vector as numbers, signed ones plus 128; `left` of them exist. */
GP_INLINE gp_vi gp_load_bytes(uint8_t flip, const char *from, int64_t left)
{
    return gp_widen_bytes(gp_load_some_bytes(from, left)) ^ flip;
}

/* A vector of integers, zeros behind the first `left`. */
GP_INLINE gp_vu gp_load_integers(const int32_t *from, int64_t left)
{
    gp_vu v = {0};
    if (left >= GP_VL)
        memcpy(&v, from, sizeof v);
    else
        memcpy(&v, from, left > 0 ? (size_t)left * 4 : 0);
    return v;
}

GP_INLINE void gp_store_bytes(char *to, gp_vi v, int64_t left)
{
    const gp_vub bytes = gp_narrow_bytes(v);
    if (left >= GP_VL)
        memcpy(to, &bytes, sizeof bytes);
    else
        memcpy(to, &bytes, (size_t)left);
}

/* Within the limits and rounded, in units of the integer; shift is still in it. */
GP_INLINE gp_vf gp_round_shifted(const gp_rounding *r, gp_vf x)
{
    return gp_vclamp(x, gp_splat(r->lo), gp_splat(r->hi)) + r->shift;
}

/* Whether columns j * GP_VL on exist, and how many. */
GP_INLINE int64_t gp_columns_left(const int is_whole, int64_t cols, int j)
{
    return is_whole ? GP_VL : cols > j * GP_VL ? cols - j * GP_VL : 0;
}

/* What rounds: 1.5 * 2^23. */
#define GP_ROUNDING_SHIFT 12582912.0f

/* Whether what is rounded last is no larger than integers are, since it has been bytes before, and bytes are all that is
 * added. */
GP_INLINE int gp_stays_small(const gp_requant_sink *s)
{
    const gp_requant *p = s->p;
    if (!p->has_inner || s->late_bias || (s->residual && p->residual_dtype == GP_F32))
        return 0;
    const float most = 255 * p->inner.scale + (s->residual ? 255 * fabsf(p->residual_scale) : 0);
    return most * p->outer.inverse < GP_ROUNDING_SHIFT;
}

/* Each number of a tile within the limits and rounded, in units of the integer. Where there is an instruction that rounds,
 * it takes the place of two. */
GP_INLINE void gp_round_tile(const int rows, const int nv, const gp_rounding *r, gp_acc acc)
{
#if defined(__AVX512F__)
    if (r->shift == GP_ROUNDING_SHIFT) {
        const gp_vf lo = gp_splat(r->lo), hi = gp_splat(r->hi);
        GP_EACH(i, rows)
            GP_EACH(j, nv)
                acc[i][j] = (gp_vf)_mm512_roundscale_ps((__m512)gp_vclamp(acc[i][j], lo, hi), _MM_FROUND_TO_NEAREST_INT);
        return;
    }
#endif
    GP_EACH(i, rows)
        GP_EACH(j, nv)
            acc[i][j] = gp_round_shifted(r, acc[i][j]) - r->shift;
}

#if defined(__AVX2__)
#define GP_PACKS_BYTES 1
typedef uint8_t gp_vbytes __attribute__((vector_size(4 * GP_VL)));

/* Numbers as the nearest integers, the even one of two; what is too large for one gives the least. */
GP_INLINE gp_vi gp_nearest_integers(gp_vf x)
{
#if defined(__AVX512F__)
    return (gp_vi)_mm512_cvtps_epi32(x);
#else
    return (gp_vi)_mm256_cvtps_epi32(x);
#endif
}

/* Four vectors of integers plus a number, saturated to unsigned bytes, one behind the other; then flipped. */
GP_INLINE gp_vbytes gp_pack_bytes(gp_vf a, gp_vf b, gp_vf c, gp_vf d, int after, gp_vbytes flip)
{
#if defined(__AVX512F__)
    const __m512i add = _mm512_set1_epi16((short)after);
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i low = _mm512_adds_epi16(_mm512_packs_epi32((__m512i)a, (__m512i)b), add);
    const __m512i high = _mm512_adds_epi16(_mm512_packs_epi32((__m512i)c, (__m512i)d), add);
    return (gp_vbytes)_mm512_permutexvar_epi32(order, _mm512_packus_epi16(low, high)) ^ flip;
#else
    const __m256i add = _mm256_set1_epi16((short)after), order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const __m256i low = _mm256_adds_epi16(_mm256_packs_epi32((__m256i)a, (__m256i)b), add);
    const __m256i high = _mm256_adds_epi16(_mm256_packs_epi32((__m256i)c, (__m256i)d), add);
    return (gp_vbytes)_mm256_permutevar8x32_epi32(_mm256_packus_epi16(low, high), order) ^ flip;
#endif
}

/* The halves of a vector of bytes, each to a place of its own. */
GP_INLINE void gp_store_halves(char *first, char *second, gp_vbytes bytes)
{
#if defined(__AVX512F__)
    _mm256_storeu_si256((__m256i *)first, _mm512_castsi512_si256((__m512i)bytes));
    _mm256_storeu_si256((__m256i *)second, _mm512_extracti64x4_epi64((__m512i)bytes, 1));
#else
    _mm_storeu_si128((__m128i *)first, _mm256_castsi256_si128((__m256i)bytes));
    _mm_storeu_si128((__m128i *)second, _mm256_extracti128_si256((__m256i)bytes, 1));
#endif
}

/* A whole tile of an even number of vectors rounded to bytes, four vectors at a time, which takes two thirds of the time of
 * one by one: vectors are narrowed together, and bytes saturate on the way, so that a limit below counts only where it is
 * not the least byte. One above does, as conversions give the least integer for what is too large, unless is_small says
 * that no number is. Rows lie `row` bytes apart. */
GP_INLINE void gp_store_tile(const int rows, const int nv, const gp_rounding *r, int64_t dtype, int is_small, gp_acc acc,
                             char *to, int64_t row)
{
    const gp_vf lo = gp_splat(r->lo), hi = gp_splat(r->hi);
    const int sign = dtype == GP_S8 ? 128 : 0, after = r->after + sign;
    const gp_vbytes flip = (uint8_t)sign - (gp_vbytes){0};
    if (r->lo > (float)-after)
        GP_EACH(i, rows)
            GP_EACH(j, nv)
                acc[i][j] = gp_vat_least(acc[i][j], lo);
    if (r->hi < (float)(255 - after) || !is_small)
        GP_EACH(i, rows)
            GP_EACH(j, nv)
                acc[i][j] = gp_vat_most(acc[i][j], hi);
    if (r->shift == GP_ROUNDING_SHIFT)
        GP_EACH(i, rows)
            GP_EACH(j, nv)
                acc[i][j] = (gp_vf)gp_nearest_integers(acc[i][j]);
    else
        GP_EACH(i, rows)
            GP_EACH(j, nv)
                acc[i][j] = (gp_vf)gp_nearest_integers(gp_round_shifted(r, acc[i][j]) - GP_ROUNDING_SHIFT);
    if (nv == 2)
        GP_EACH(pair, (rows + 1) / 2) { /* of an odd number of rows the last one twice */
            const int i = 2 * pair, next = i + 1 < rows ? i + 1 : i;
            gp_store_halves(to + i * row, to + next * row,
                            gp_pack_bytes(acc[i][0], acc[i][1], acc[next][0], acc[next][1], after, flip));
        }
    else
        GP_EACH(i, rows)
            GP_EACH(quad, nv / 4) {
                const gp_vf *v = &acc[i][4 * quad];
                const gp_vbytes bytes = gp_pack_bytes(v[0], v[1], v[2], v[3], after, flip);
                memcpy(to + i * row + quad * (int64_t)sizeof bytes, &bytes, sizeof bytes);
            }
}
#else
#define GP_PACKS_BYTES 0
#endif

/* From accumulators to what is stored: of `rows` rows the first `count` exist. Units change with the roundings, so that no
 * division nor scaling of its own is left: what is read on the way is multiplied by the unit of the rounding to come.
 * */
GP_INLINE void gp_requantize(const int rows, const int nv, const int is_whole, int64_t count,
                             gp_acc acc, const gp_packed_sink *sink)
{
    const gp_requant_sink s = *sink->requant;
    const gp_requant p = *s.p; /* copies that the stores cannot change */
    const int64_t nbytes = gp_element_nbytes(p.dst_dtype), from_nbytes = gp_element_nbytes(p.residual_dtype);
    const float last = p.has_outer ? p.outer.inverse : 1, first = p.has_inner ? p.inner.inverse : last;
    GP_EACH(j, nv) {
        const int64_t left = gp_columns_left(is_whole, sink->cols, j);
        const gp_vf own = sink->scale ? gp_load_some(sink->scale + j * GP_VL, left) : gp_splat(1);
        const gp_vf scale = own * sink->a_scale * first;
        const gp_vf bias = sink->bias ? gp_load_some(sink->bias + j * GP_VL, left) * first : gp_splat(0);
        GP_EACH(i, rows)
            acc[i][j] = gp_vfma(acc[i][j], scale, bias);
    }
    if (p.has_inner)
        gp_round_tile(rows, nv, &p.inner, acc);
    gp_vf back = gp_splat(p.has_inner ? p.inner.scale * last : 1); /* by which what is added next multiplies */
    if (s.late_bias) {
        GP_EACH(j, nv) {
            const int64_t left = gp_columns_left(is_whole, sink->cols, j);
            const gp_vf bias = gp_load_some(s.late_bias + sink->col + j * GP_VL, left) * last;
            GP_EACH(i, rows)
                acc[i][j] = gp_vfma(acc[i][j], back, bias);
        }
        back = gp_splat(1);
    }
    const char *from = s.residual + (sink->row * s.residual_row + sink->col) * from_nbytes;
    const uint8_t flip = p.residual_dtype == GP_S8 ? 0x80 : 0;
    const gp_vf scale = gp_splat(p.residual_scale * last), shift = scale * (float)-(p.residual_zero + flip);
    if (s.residual && from_nbytes == 1)
        GP_EACH(i, rows)
            GP_EACH(j, nv) {
                if (i >= count)
                    continue;
                const int64_t left = gp_columns_left(is_whole, sink->cols, j);
                const gp_vi x = gp_load_bytes(flip, from + i * s.residual_row + j * GP_VL, left);
                acc[i][j] = gp_vfma(acc[i][j], back, gp_vfma(__builtin_convertvector(x, gp_vf), scale, shift));
            }
    else if (s.residual)
        GP_EACH(i, rows)
            GP_EACH(j, nv) {
                if (i >= count)
                    continue;
                const int64_t left = gp_columns_left(is_whole, sink->cols, j);
                const gp_vf x = gp_load_some((const float *)from + i * s.residual_row + j * GP_VL, left);
                acc[i][j] = gp_vfma(acc[i][j], back, x * last);
            }
    else if (p.has_inner && !s.late_bias)
        GP_EACH(i, rows)
            GP_EACH(j, nv)
                acc[i][j] *= back;
    char *dst = s.dst + (sink->row * s.dst_row + sink->col) * nbytes;
#if GP_PACKS_BYTES
    if (is_whole && nv > 1 && nbytes == 1) {
        gp_store_tile(rows, nv, &p.outer, p.dst_dtype, gp_stays_small(&s), acc, dst, s.dst_row);
        return;
    }
#endif
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++, dst += s.dst_row * nbytes)
        GP_EACH(j, nv) {
            if (i >= count)
                return;
            const int64_t left = gp_columns_left(is_whole, sink->cols, j);
            char *to = dst + j * GP_VL * nbytes;
            gp_vf x = acc[i][j];
            if (nbytes == 1) {
                gp_store_bytes(to, (gp_vi)gp_round_shifted(&p.outer, x) + p.outer.after, left);
                continue;
            }
            if (p.has_outer)
                x = (gp_round_shifted(&p.outer, x) - p.outer.shift) * p.outer.scale;
            gp_store_part((float *)to, gp_vclamp(x, gp_splat(p.lo), gp_splat(p.hi)), left);
        }
}

#endif
