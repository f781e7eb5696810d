/* Conversions between f32 and every other element type: of one element, branch-free, and of strided rows.
 *
 * To a narrower float: round to nearest, ties to even; denormals are kept; NaN stays NaN. Beyond the largest number
 * f16, bf16 and f8_e5m2 give infinity, f8_e4m3 (which has none) NaN. To an integer: round to nearest even, saturate,
 * NaN gives 0. To boolean: whether it differs from 0. 4-bit elements lie two to a byte, the first in the low nibble.
 */
#ifndef GP_CONVERT_H
#define GP_CONVERT_H

#include "core/gp_kernel.h"
#include "core/gp_math.h"

/* ---- one element to f32 ---- */

static inline float gp_from_bf16(uint16_t h)
{
    return gp_float((uint32_t)h << 16);
}

/* The exponent bias is changed by a multiplication, which also makes normal numbers of denormals. */
static inline float gp_from_f16(uint16_t h)
{
    const uint32_t magnitude = (uint32_t)(h & 0x7fff) << 13;
    const float finite = gp_float(magnitude) * 0x1p112f;
    const uint32_t u = magnitude >= 0x7c00u << 13 ? magnitude | 0x7f800000u : gp_bits(finite);
    return gp_float(u | (uint32_t)(h & 0x8000) << 16);
}

static inline float gp_from_f8_e5m2(uint8_t h)
{
    return gp_from_f16((uint16_t)(h << 8));
}

static inline float gp_from_f8_e4m3(uint8_t h)
{
    const float finite = gp_float((uint32_t)(h & 0x7f) << 20) * 0x1p120f;
    const uint32_t u = (h & 0x7f) == 0x7f ? 0x7fc00000u : gp_bits(finite);
    return gp_float(u | (uint32_t)(h & 0x80) << 24);
}

/* ---- f32 to one element ---- */

static inline uint16_t gp_to_bf16(float x)
{
    const uint32_t u = gp_bits(x), rounded = u + 0x7fffu + (u >> 16 & 1);
    return (uint16_t)(x != x ? u >> 16 | 0x40 : rounded >> 16);
}

/* The code of |x|, not NaN, in a format with `mantissa` bits and exponent bias `bias`, its range open upwards. */
static inline uint32_t gp_round_float(float x, int mantissa, int bias)
{
    const uint32_t u = gp_bits(x) & 0x7fffffffu;
    const int drop = 23 - mantissa;
    const uint32_t least_normal = (uint32_t)(128 - bias) << 23;
    const uint32_t rounded = u + ((1u << (drop - 1)) - 1) + (u >> drop & 1);
    const uint32_t normal = (rounded - ((uint32_t)(127 - bias) << 23)) >> drop;
    const float step = gp_float((uint32_t)(128 - bias + drop) << 23); /* its last place is the least denormal */
    const uint32_t denormal = gp_bits(gp_float(u) + step) - gp_bits(step);
    return u < least_normal ? denormal : normal;
}

static inline uint16_t gp_to_f16(float x)
{
    const uint32_t u = gp_bits(x), code = gp_round_float(x, 10, 15), sign = u >> 16 & 0x8000;
    const uint32_t number = code > 0x7c00 ? 0x7c00 : code;
    return (uint16_t)(sign | (x != x ? 0x7e00 | (u >> 13 & 0x3ff) : number));
}

static inline uint8_t gp_to_f8_e5m2(float x)
{
    const uint32_t code = gp_round_float(x, 2, 15), number = code > 0x7c ? 0x7c : code;
    return (uint8_t)((gp_bits(x) >> 24 & 0x80) | (x != x ? 0x7e : number));
}

static inline uint8_t gp_to_f8_e4m3(float x)
{
    const uint32_t code = gp_round_float(x, 3, 7), number = code > 0x7f ? 0x7f : code;
    return (uint8_t)((gp_bits(x) >> 24 & 0x80) | (x != x ? 0x7f : number));
}

/* x rounded and limited to [lo, hi], which must be exact in f32; NaN gives 0. */
static inline int32_t gp_to_int(float x, float lo, float hi)
{
    const float y = gp_clamp(x, lo, hi);
    return (int32_t)rintf(y == y ? y : 0.0f);
}

static inline int32_t gp_to_s32(float x)
{
    const int32_t y = gp_to_int(x, -2147483648.0f, 2147483520.0f); /* the last float below 2^31 */
    return x >= 2147483648.0f ? INT32_MAX : y;
}

static inline uint32_t gp_to_u32(float x)
{
    const float y = gp_clamp(x, 0.0f, 0x1.fffffep31f);
    return x >= 0x1p32f ? UINT32_MAX : (uint32_t)rintf(y == y ? y : 0.0f);
}

static inline uint64_t gp_to_u64(float x)
{
    const float y = gp_clamp(x, 0.0f, 0x1.fffffep63f);
    return x >= 0x1p64f ? UINT64_MAX : (uint64_t)rintf(y == y ? y : 0.0f);
}

static inline int64_t gp_to_s64(float x)
{
    const float y = gp_clamp(x, -0x1p63f, 0x1.fffffep62f);
    const int64_t z = (int64_t)rintf(y == y ? y : 0.0f);
    return x >= 0x1p63f ? INT64_MAX : z;
}

/* ---- rows ---- */

/* Read n elements of type dtype, at src + offset, + offset + stride, ... (elements), as floats. */
#define gp_load_row GP_OF(core_convert, load_row)
void gp_load_row(int dtype, float *dst, const void *src, int64_t offset, int64_t stride, int64_t n);

/* Write n floats as elements of type dtype to dst + offset, + offset + stride, ... (elements). */
#define gp_store_row GP_OF(core_convert, store_row)
void gp_store_row(int dtype, const float *src, void *dst, int64_t offset, int64_t stride, int64_t n);

/* Bytes dst[i] = round(src[i] / scale) + zero_point as `store_row` saturates; dtype is GP_U8 or GP_S8. There is one scale and
 * one zero point, or if are_many one for each element. */
#define gp_round_row GP_OF(core_convert, quantize_row)
void gp_round_row(int dtype, const float *src, char *dst, int64_t n, const float *scale, const float *zero_point,
                             int are_many);

#endif
