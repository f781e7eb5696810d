/* Bits of floats, and elementary functions that compute in double, of one float each and free of branches, so that a
 * loop over an array of them is vectorised. Those that float32 suffices for are in gp_vmath.h, which also tells the
 * method. Errors in units of the last place of the float32 result: gp_pow 0.6, gp_sin and gp_cos 0.6 (up to
 * GP_TRIG_LIMIT).
 */
#ifndef GP_MATH_H
#define GP_MATH_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
#define GP_FMA(a, b, c) __builtin_fmaf(a, b, c)
#else
#define GP_FMA(a, b, c) ((a) * (b) + (c)) /* without the instruction fmaf is a slow call */
#endif

#define GP_REINTERPRET(name, from, to)                                                                                 \
    static inline to name(from x)                                                                                      \
    {                                                                                                                  \
        to y;                                                                                                          \
        memcpy(&y, &x, sizeof y);                                                                                      \
        return y;                                                                                                      \
    }

GP_REINTERPRET(gp_bits, float, uint32_t)
GP_REINTERPRET(gp_float, uint32_t, float)
GP_REINTERPRET(gp_bits64, double, uint64_t)
GP_REINTERPRET(gp_double, uint64_t, double)

/* Adding these rounds to an integer, which the low bits of the sum then hold: no conversion, so NaN is harmless. */
#define GP_ROUND_F32 12582912.0f
#define GP_ROUND_F64 6755399441055744.0

/* x limited to [lo, hi]; NaN stays. */
static inline float gp_clamp(float x, float lo, float hi)
{
    const float y = x < lo ? lo : x;
    return y > hi ? hi : y;
}

/* 2^v in double, v in [-1000, 1000]; error 2^-34. */
static inline double gp_exp2_double(double v)
{
    const double shifted = v + GP_ROUND_F64, r = v - (shifted - GP_ROUND_F64);
    double p = 1.52018281674651e-05;
    p = p * r + 0.0001546942201589185;
    p = p * r + 0.0013333923987313499;
    p = p * r + 0.009618026848741832;
    p = p * r + 0.05550410350405595;
    p = p * r + 0.24022651201148368;
    p = p * r + 0.6931471807297884;
    p = p * r + 0.9999999999613782;
    return p * gp_double((gp_bits64(shifted) + 1023) << 52);
}

/* log2 of a finite x > 0 in double, by atanh((m - 1) / (m + 1)); error 2^-37 relative. */
static inline double gp_log2_double(double x)
{
    const uint64_t root_half = 0x3fe6a09e667f3bcdu;
    const uint64_t u = gp_bits64(x) - root_half + (UINT64_C(1023) << 52); /* biased: the exponent stays positive */
    const double e = gp_double((u >> 52) + gp_bits64(GP_ROUND_F64)) - (GP_ROUND_F64 + 1023);
    const double m = gp_double((u & UINT64_C(0xfffffffffffff)) + root_half);
    const double s = (m - 1) / (m + 1), z = s * s;
    double p = 0.11810188906613893;
    p = p * z + 0.14267417861375442;
    p = p * z + 0.2000019412054036;
    p = p * z + 0.33333332614399036;
    p = p * z + 1.0000000000042548;
    return e + 2.8853900817779268 * s * p; /* 2 / ln 2 */
}

/* x^y as C defines it, except that the NaN that it makes has no payload. */
static inline float gp_pow(float x, float y)
{
    const float a = fabsf(x), whole = rintf(y);
    const int is_odd = whole == y && fabsf(y) < 16777216.0f && rintf(0.5f * y) != 0.5f * y;
    const int is_ordinary = a > 0 && a < INFINITY;
    double v = (double)y * gp_log2_double(is_ordinary ? a : 1.0f);
    v = v < -1000 ? -1000 : v > 1000 ? 1000 : v;
    const float grows = y > 0 ? a : 1.0f / a; /* a is 0 or inf */
    float magnitude = is_ordinary ? (float)gp_exp2_double(v) : grows;
    magnitude = x < 0 && whole != y && a < INFINITY ? NAN : magnitude;
    magnitude = x != x || y != y ? x + y : magnitude;
    const float signed_power = is_odd ? copysignf(magnitude, x) : magnitude;
    const int is_one = x == 1.0f || y == 0 || (x == -1.0f && fabsf(y) == INFINITY);
    return is_one ? 1.0f : signed_power;
}

/* Beyond this magnitude the two-part pi/2 of gp_sin loses digits. */
#define GP_TRIG_LIMIT 1048576.0f

/* sin(x + turns pi/2) for |x| <= GP_TRIG_LIMIT, in double; errors of the fits 2^-37 and 2^-34. */
static inline float gp_sin_turned(float x, int64_t turns)
{
    const double shifted = (double)x * 0.6366197723675814 + GP_ROUND_F64, n = shifted - GP_ROUND_F64;
    const double r = ((double)x - n * 1.5707963267341256) - n * 6.077100506506192e-11; /* 33 bits and the rest */
    const double z = r * r;
    double s = 2.7182373040944843e-06;
    s = s * z - 0.0001983932713983129;
    s = s * z + 0.008333329362291348;
    s = s * z - 0.16666666641426603;
    s = s * z * r + r;
    double c = 2.4389634692664104e-05;
    c = c * z - 0.0013886755329643686;
    c = c * z + 0.0416666230648147;
    c = c * z - 0.49999999722909666;
    c = c * z + 1.0;
    const uint64_t quadrant = gp_bits64(shifted) + (uint64_t)turns;
    const double y = quadrant & 1 ? c : s;
    return (float)(quadrant & 2 ? -y : y);
}

static inline float gp_sin(float x)
{
    return x == 0 ? x : gp_sin_turned(x, 0);
}

static inline float gp_cos(float x)
{
    return gp_sin_turned(x, 1);
}

/* Remainder of x / y with the sign of y; in f64, where that of two floats is exact before it is rounded. */
static inline double gp_modulo(double x, double y)
{
    const double r = fmod(x, y);
    if (r == 0)
        return copysign(0.0, y);
    return (r < 0) != (y < 0) ? r + y : r;
}

#endif
