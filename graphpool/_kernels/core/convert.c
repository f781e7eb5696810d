/* Rows of any element type from and to floats. */
#include "core/gp_convert.h"
#include "core/gp_vec.h"

typedef void load_fn(float *restrict dst, const void *src, int64_t offset, int64_t stride, int64_t n);
typedef void store_fn(const float *restrict src, void *dst, int64_t offset, int64_t stride, int64_t n);

/* Loops for one type; those with stride 1 and 0 are separate, so that they become vector loads and broadcasts. */
#define GP_ROWS(name, type, to_float, from_float)                                                                      \
    static void load_##name(float *restrict dst, const void *src, int64_t offset, int64_t stride, int64_t n)           \
    {                                                                                                                  \
        const type *restrict from = (const type *)src + offset;                                                        \
        const float first = to_float(*from);                                                                           \
        if (stride == 1)                                                                                               \
            for (int64_t i = 0; i < n; i++)                                                                            \
                dst[i] = to_float(from[i]);                                                                            \
        else if (stride == 0)                                                                                          \
            for (int64_t i = 0; i < n; i++)                                                                            \
                dst[i] = first;                                                                                        \
        else                                                                                                           \
            for (int64_t i = 0; i < n; i++)                                                                            \
                dst[i] = to_float(from[i * stride]);                                                                   \
    }                                                                                                                  \
    static void store_##name(const float *restrict src, void *dst, int64_t offset, int64_t stride, int64_t n)          \
    {                                                                                                                  \
        type *restrict to = (type *)dst + offset;                                                                      \
        if (stride == 1)                                                                                               \
            for (int64_t i = 0; i < n; i++)                                                                            \
                to[i] = (type)from_float(src[i]);                                                                      \
        else                                                                                                           \
            for (int64_t i = 0; i < n; i++)                                                                            \
                to[i * stride] = (type)from_float(src[i]);                                                             \
    }

#define GP_AS_FLOAT(x) ((float)(x))
#define GP_AS_BOOL(x) ((x) != 0)
#define GP_FROM_BOOL(x) ((x) != 0 ? 1.0f : 0.0f)
#define GP_AS_S8(x) gp_to_int(x, -128.0f, 127.0f)
#define GP_AS_U8(x) gp_to_int(x, 0.0f, 255.0f)
#define GP_AS_S16(x) gp_to_int(x, -32768.0f, 32767.0f)
#define GP_AS_U16(x) gp_to_int(x, 0.0f, 65535.0f)

GP_ROWS(f32, float, GP_AS_FLOAT, GP_AS_FLOAT)
GP_ROWS(f64, double, GP_AS_FLOAT, GP_AS_FLOAT)
GP_ROWS(f16_portable, uint16_t, gp_from_f16, gp_to_f16)
GP_ROWS(bf16, uint16_t, gp_from_bf16, gp_to_bf16)
GP_ROWS(f8_e5m2_portable, uint8_t, gp_from_f8_e5m2, gp_to_f8_e5m2)
GP_ROWS(f8_e4m3_portable, uint8_t, gp_from_f8_e4m3, gp_to_f8_e4m3)
GP_ROWS(s8_portable, int8_t, GP_AS_FLOAT, GP_AS_S8)
GP_ROWS(u8_portable, uint8_t, GP_AS_FLOAT, GP_AS_U8)
GP_ROWS(s16, int16_t, GP_AS_FLOAT, GP_AS_S16)
GP_ROWS(u16, uint16_t, GP_AS_FLOAT, GP_AS_U16)
GP_ROWS(u32, uint32_t, GP_AS_FLOAT, gp_to_u32)
GP_ROWS(u64, uint64_t, GP_AS_FLOAT, gp_to_u64)
GP_ROWS(s32, int32_t, GP_AS_FLOAT, gp_to_s32)
GP_ROWS(s64_portable, int64_t, GP_AS_FLOAT, gp_to_s64)
GP_ROWS(boolean, uint8_t, GP_FROM_BOOL, GP_AS_BOOL)

/* Elements of a group of which vectors find out at once whether all are within 32 bits. */
#define GP_SMALL_GROUP 256

/* Numbers within 32 bits, which most are, pass through integers of that width, to which vectors convert. */
static void store_s64(const float *restrict src, void *dst, int64_t offset, int64_t stride, int64_t n)
{
    int64_t *restrict to = (int64_t *)dst + offset;
    for (int64_t i = 0; i < n; i += GP_SMALL_GROUP) {
        const int64_t count = n - i < GP_SMALL_GROUP ? n - i : GP_SMALL_GROUP;
        int32_t is_large = 0;
        for (int64_t k = 0; k < count; k++)
            is_large |= !(fabsf(src[i + k]) < 0x1p31f);
        if (is_large || stride != 1)
            store_s64_portable(src + i, dst, offset + i * stride, stride, count);
        else
            for (int64_t k = 0; k < count; k++)
                to[i + k] = (int32_t)rintf(src[i + k]);
    }
}

/* f16 by hardware, eight at a time, where rows are contiguous. The portable loops give the same bits. */
static void load_f16(float *restrict dst, const void *src, int64_t offset, int64_t stride, int64_t n)
{
    int64_t i = 0;
#if defined(__F16C__)
    const uint16_t *from = (const uint16_t *)src + offset;
    for (; stride == 1 && i + 8 <= n; i += 8)
        _mm256_storeu_ps(dst + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(from + i))));
#endif
    if (i < n)
        load_f16_portable(dst + i, src, offset + i * stride, stride, n - i);
}

/* A number of f8_e5m2 is the upper half of one of f16. */
static void load_f8_e5m2(float *restrict dst, const void *src, int64_t offset, int64_t stride, int64_t n)
{
    int64_t i = 0;
#if defined(__F16C__)
    const uint8_t *from = (const uint8_t *)src + offset;
    for (; stride == 1 && i + 8 <= n; i += 8) {
        const __m128i bytes = _mm_loadl_epi64((const __m128i *)(from + i));
        _mm256_storeu_ps(dst + i, _mm256_cvtph_ps(_mm_unpacklo_epi8(_mm_setzero_si128(), bytes)));
    }
#endif
    if (i < n)
        load_f8_e5m2_portable(dst + i, src, offset + i * stride, stride, n - i);
}

/* The bits of a number of f8_e4m3, its exponent and mantissa moved up by 7, are one of f16 that is a 256th of it. */
static void load_f8_e4m3(float *restrict dst, const void *src, int64_t offset, int64_t stride, int64_t n)
{
    int64_t i = 0;
#if defined(__F16C__) && defined(__AVX2__)
    const uint8_t *from = (const uint8_t *)src + offset;
    const __m256i low = _mm256_set1_epi16(0x7f), sign = _mm256_set1_epi16((int16_t)0x8000);
    for (; stride == 1 && i + 16 <= n; i += 16) {
        const __m256i x = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(from + i)));
        const __m256i magnitude = _mm256_and_si256(x, low);
        const __m256i number = _mm256_blendv_epi8(_mm256_slli_epi16(magnitude, 7), _mm256_set1_epi16(0x7e00),
                                                  _mm256_cmpeq_epi16(magnitude, low)); /* NaN for the largest */
        const __m256i halves = _mm256_or_si256(_mm256_and_si256(_mm256_slli_epi16(x, 8), sign), number);
#if defined(__AVX512F__)
        _mm512_storeu_ps(dst + i, _mm512_mul_ps(_mm512_cvtph_ps(halves), _mm512_set1_ps(256)));
#else
        const __m256 first = _mm256_cvtph_ps(_mm256_castsi256_si128(halves));
        const __m256 second = _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1));
        _mm256_storeu_ps(dst + i, _mm256_mul_ps(first, _mm256_set1_ps(256)));
        _mm256_storeu_ps(dst + i + 8, _mm256_mul_ps(second, _mm256_set1_ps(256)));
#endif
    }
#endif
    if (i < n)
        load_f8_e4m3_portable(dst + i, src, offset + i * stride, stride, n - i);
}

static void store_f16(const float *restrict src, void *dst, int64_t offset, int64_t stride, int64_t n)
{
    int64_t i = 0;
#if defined(__F16C__)
    uint16_t *to = (uint16_t *)dst + offset;
    for (; stride == 1 && i + 8 <= n; i += 8)
        _mm_storeu_si128((__m128i *)(to + i), _mm256_cvtps_ph(_mm256_loadu_ps(src + i), _MM_FROUND_TO_NEAREST_INT));
#endif
    store_f16_portable(src + i, dst, offset + i * stride, stride, n - i);
}

/* Bytes where rows are contiguous: four vectors at a time by conversions that round and packs that saturate, four times as
 * fast as the portable loops, which give the same. NaN becomes 0, as the least integer does that conversions of it give where
 * bytes have no sign, and a limit above stands in front of conversions, which give the least integer for what is too large. */
#if defined(__AVX2__)
enum { BYTES_AT_ONCE = 4 * GP_VL };

static inline gp_vi round_to_integers(gp_vf x)
{
#if defined(__AVX512F__)
    return (gp_vi)_mm512_cvtps_epi32((__m512)x);
#else
    return (gp_vi)_mm256_cvtps_epi32((__m256)x);
#endif
}

static inline gp_vf round_to_nearest(gp_vf x)
{
#if defined(__AVX512F__)
    return (gp_vf)_mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
    return (gp_vf)_mm256_round_ps((__m256)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#endif
}

static inline gp_vi to_integers(gp_vf x, const int is_signed)
{
    const gp_vf limited = gp_vat_most(x, gp_splat(255));
    return round_to_integers(is_signed ? gp_vselect(gp_vunordered(x, x), (gp_vf){0}, limited) : limited);
}

/* Four vectors of integers as bytes, to all of which `added` is added. */
static inline void store_packed(char *to, const gp_vi *v, int16_t added, const int is_signed)
{
#if defined(__AVX512F__)
    const __m512i more = _mm512_set1_epi16(added);
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i low = _mm512_adds_epi16(_mm512_packs_epi32((__m512i)v[0], (__m512i)v[1]), more);
    const __m512i high = _mm512_adds_epi16(_mm512_packs_epi32((__m512i)v[2], (__m512i)v[3]), more);
    const __m512i bytes = is_signed ? _mm512_packs_epi16(low, high) : _mm512_packus_epi16(low, high);
    _mm512_storeu_si512(to, _mm512_permutexvar_epi32(order, bytes));
#else
    const __m256i more = _mm256_set1_epi16(added), order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const __m256i low = _mm256_adds_epi16(_mm256_packs_epi32((__m256i)v[0], (__m256i)v[1]), more);
    const __m256i high = _mm256_adds_epi16(_mm256_packs_epi32((__m256i)v[2], (__m256i)v[3]), more);
    const __m256i bytes = is_signed ? _mm256_packs_epi16(low, high) : _mm256_packus_epi16(low, high);
    _mm256_storeu_si256((__m256i *)to, _mm256_permutevar8x32_epi32(bytes, order));
#endif
}

static inline int64_t store_bytes(const float *restrict src, char *to, int64_t n, const int is_signed)
{
    int64_t i = 0;
    for (; i + BYTES_AT_ONCE <= n; i += BYTES_AT_ONCE) {
        gp_vi v[4];
        for (int k = 0; k < 4; k++)
            v[k] = to_integers(gp_load(src + i + GP_VL * k), is_signed);
        store_packed(to + i, v, 0, is_signed);
    }
    return i;
}

/* round(x / scale) + zero_point, with a scale and a zero point for each element; NaN gives the least byte. */
static inline int64_t round_by_each(const float *restrict src, char *to, int64_t n, const float *scale,
                                    const float *zero_point, const int is_signed)
{
    int64_t i = 0;
    for (; i + BYTES_AT_ONCE <= n; i += BYTES_AT_ONCE) {
        gp_vi v[4];
        for (int k = 0; k < 4; k++) {
            const int64_t at = i + GP_VL * k;
            const gp_vf quotient = gp_load(src + at) / gp_load(scale + at);
            v[k] = to_integers(round_to_nearest(quotient) + gp_load(zero_point + at), 0); /* the least one for NaN */
        }
        store_packed(to + i, v, 0, is_signed);
    }
    return i;
}

/* The same with one of each. The quotient is a product with the reciprocal and its correction by what that leaves, rounded as
 * a division would be (Brisebarre, Muller and Raina, "Accelerating correctly rounded floating-point division when the divisor
 * is known in advance", 2004); what overflows is far beyond a byte. */
static inline int64_t round_by_one(const float *restrict src, char *to, int64_t n, float scale, float zero_point,
                                   const int is_signed)
{
    const float limit = 0x1p20f * fabsf(scale);
    if (!(fabsf(scale) > 0x1p-60f && fabsf(scale) < 0x1p60f && zero_point == rintf(zero_point) && fabsf(zero_point) < 256))
        return 0;
    const gp_vf by = gp_splat(scale), inverse = gp_splat(1 / scale), low = gp_splat(-limit), high = gp_splat(limit);
    int64_t i = 0;
    for (; i + BYTES_AT_ONCE <= n; i += BYTES_AT_ONCE) {
        gp_vi v[4];
        for (int k = 0; k < 4; k++) {
            const gp_vf x = gp_vclamp(gp_load(src + i + GP_VL * k), low, high); /* NaN stays */
            const gp_vf near = x * inverse;
            v[k] = round_to_integers(gp_vfma(gp_vfma(-near, by, x), inverse, near));
        }
        store_packed(to + i, v, (int16_t)zero_point, is_signed);
    }
    return i;
}
#else
static inline int64_t store_bytes(const float *src, char *to, int64_t n, const int is_signed)
{
    (void)src, (void)to, (void)n, (void)is_signed;
    return 0;
}
#endif

static void store_u8(const float *restrict src, void *dst, int64_t offset, int64_t stride, int64_t n)
{
    const int64_t done = stride == 1 ? store_bytes(src, (char *)dst + offset, n, 0) : 0;
    store_u8_portable(src + done, dst, offset + done, stride, n - done);
}

static void store_s8(const float *restrict src, void *dst, int64_t offset, int64_t stride, int64_t n)
{
    const int64_t done = stride == 1 ? store_bytes(src, (char *)dst + offset, n, 1) : 0;
    store_s8_portable(src + done, dst, offset + done, stride, n - done);
}

static inline int nibble_of(const uint8_t *bytes, int64_t index)
{
    return bytes[index >> 1] >> ((index & 1) * 4) & 15;
}

static inline void set_nibble(uint8_t *bytes, int64_t index, int value)
{
    const int shift = (index & 1) * 4;
    bytes[index >> 1] = (uint8_t)((bytes[index >> 1] & (0xf0 >> shift)) | (value & 15) << shift);
}

static void load_u4(float *restrict dst, const void *src, int64_t offset, int64_t stride, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        dst[i] = (float)nibble_of(src, offset + i * stride);
}

static void load_s4(float *restrict dst, const void *src, int64_t offset, int64_t stride, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        dst[i] = (float)((nibble_of(src, offset + i * stride) ^ 8) - 8);
}

static void store_u4(const float *restrict src, void *dst, int64_t offset, int64_t stride, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        set_nibble(dst, offset + i * stride, gp_to_int(src[i], 0.0f, 15.0f));
}

static void store_s4(const float *restrict src, void *dst, int64_t offset, int64_t stride, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        set_nibble(dst, offset + i * stride, gp_to_int(src[i], -8.0f, 7.0f));
}

static load_fn *const LOADS[] = {
    [GP_F32] = load_f32, [GP_F64] = load_f64, [GP_F16] = load_f16, [GP_BF16] = load_bf16,
    [GP_F8_E5M2] = load_f8_e5m2, [GP_F8_E4M3] = load_f8_e4m3, [GP_S8] = load_s8_portable,
    [GP_U8] = load_u8_portable,
    [GP_S32] = load_s32, [GP_S64] = load_s64_portable, [GP_BOOLEAN] = load_boolean, [GP_S4] = load_s4, [GP_U4] = load_u4,
    [GP_S16] = load_s16, [GP_U16] = load_u16, [GP_U32] = load_u32, [GP_U64] = load_u64,
};

static store_fn *const STORES[] = {
    [GP_F32] = store_f32, [GP_F64] = store_f64, [GP_F16] = store_f16, [GP_BF16] = store_bf16,
    [GP_F8_E5M2] = store_f8_e5m2_portable, [GP_F8_E4M3] = store_f8_e4m3_portable, [GP_S8] = store_s8, [GP_U8] = store_u8,
    [GP_S32] = store_s32, [GP_S64] = store_s64, [GP_BOOLEAN] = store_boolean, [GP_S4] = store_s4, [GP_U4] = store_u4,
    [GP_S16] = store_s16, [GP_U16] = store_u16, [GP_U32] = store_u32, [GP_U64] = store_u64,
};

void gp_load_row(int dtype, float *dst, const void *src, int64_t offset, int64_t stride, int64_t n)
{
    LOADS[dtype](dst, src, offset, stride, n);
}

void gp_store_row(int dtype, const float *src, void *dst, int64_t offset, int64_t stride, int64_t n)
{
    STORES[dtype](src, dst, offset, stride, n);
}

/* Of n elements those that vectors take; a case for each type and scaling, so that loops do not ask. */
static int64_t round_whole(int dtype, const float *src, char *dst, int64_t n, const float *scale, const float *zero_point,
                           int are_many)
{
#if defined(__AVX2__)
    if (are_many)
        return dtype == GP_U8 ? round_by_each(src, dst, n, scale, zero_point, 0)
                              : round_by_each(src, dst, n, scale, zero_point, 1);
    return dtype == GP_U8 ? round_by_one(src, dst, n, *scale, *zero_point, 0)
                          : round_by_one(src, dst, n, *scale, *zero_point, 1);
#else
    (void)dtype, (void)src, (void)dst, (void)n, (void)scale, (void)zero_point, (void)are_many;
    return 0;
#endif
}

void gp_round_row(int dtype, const float *src, char *dst, int64_t n, const float *scale, const float *zero_point,
                  int are_many)
{
    for (int64_t i = 0, count; i < n; i += count) {
        const int64_t many = are_many ? i : 0;
        count = round_whole(dtype, src + i, dst + i, n - i, scale + many, zero_point + many, are_many);
        if (count > 0)
            continue;
        count = n - i < 64 ? n - i : 64;
        float part[64];
        for (int64_t k = 0; k < count; k++) {
            const float sum = rintf(src[i + k] / scale[are_many * (i + k)]) + zero_point[are_many * (i + k)];
            part[k] = sum == sum ? sum : -INFINITY;
        }
        STORES[dtype](part, dst, i, 1, count);
    }
}
