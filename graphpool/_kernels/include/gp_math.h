/* Elementary functions of one float, free of branches, so that a loop over an array of them is vectorised.
 *
 * Method. Arguments are reduced in the classical way (Cody and Waite, 1980: a multiple of ln 2 or pi/2 in two parts);
 * the polynomials are minimax fits of our own, found with a Remez exchange in 40-digit arithmetic, weighted for the
 * relative error of the function's value and then rounded to the nearest float. The error of each fit stands beside
 * it; the errors below, in units of the last place of the float32 result, are the worst that tests/_kernels/test_math.py
 * finds over a sample of all floats against float64, with and without FMA.
 *
 *     gp_exp 1.0   gp_expm1 1.5   gp_log 0.9   gp_tanh 1.3   gp_sigmoid 2.3   gp_softplus 1.9   gp_erf 1.3   gp_pow 0.6
 *     gp_sin 0.6   gp_cos 0.6 (up to GP_TRIG_LIMIT)
 *
 * relative to the last place of x: gp_gelu_erf 1.5, gp_gelu_tanh 2.1. gp_mish 4 of its own last place, and 3e-43 where it is denormal.
 *
 * Infinities, NaN, signed zeros and denormal results are those of C's functions, as long as the processor does not
 * flush denormals; but results of gp_sigmoid below 2^-126 may be 0. Nothing here reads or sets errno, flags or the rounding
 * mode, which must be to nearest.
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

static inline uint32_t gp_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float gp_float(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static inline uint64_t gp_bits64(double x)
{
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline double gp_double(uint64_t u)
{
    double x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* Adding these rounds to an integer, which the low bits of the sum then hold: no conversion, so NaN is harmless. */
#define GP_ROUND_F32 12582912.0f
#define GP_ROUND_F64 6755399441055744.0

#define GP_LN2_HI 0.693145752f /* 15 bits: its product with an exponent is exact */
#define GP_LN2_LO 1.42860677e-06f

/* x limited to [lo, hi]; NaN stays. */
static inline float gp_clamp(float x, float lo, float hi)
{
    const float y = x < lo ? lo : x;
    return y > hi ? hi : y;
}

/* The same for bounds known to the compiler, 0 <= hi and lo <= hi: floats are ordered as signed integers down to 0, and
 * below it as unsigned ones backwards. Three vector instructions where comparisons of floats take up to eight. */
static inline float gp_clamp_const(float x, float lo, float hi)
{
    const int32_t least = (int32_t)gp_bits(lo), most = (int32_t)gp_bits(hi), i = (int32_t)gp_bits(x);
    const int32_t low = i < most ? i : most;
    const uint32_t above = (uint32_t)low < gp_bits(lo) ? (uint32_t)low : gp_bits(lo);
    const uint32_t u = least < 0 ? above : (uint32_t)(low > least ? low : least);
    return x != x ? x : gp_float(u);
}

/* (e^r - 1 - r) / r^2 for |r| <= ln(2) / 2; error of e^r: 2^-28. */
static inline float gp_exp_tail(float r)
{
    float p = 1.3814463e-03f;
    p = GP_FMA(p, r, 8.36878e-03f);
    p = GP_FMA(p, r, 4.1668393e-02f);
    p = GP_FMA(p, r, 1.666652e-01f);
    return GP_FMA(p, r, 4.9999994e-01f);
}

/* Split x = n ln 2 + r; n is returned as an integer and, in *rounded, as a float. */
static inline int32_t gp_exp_reduce(float x, float *r)
{
    const float shifted = GP_FMA(x, 1.44269504f, GP_ROUND_F32), n = shifted - GP_ROUND_F32;
    *r = GP_FMA(n, -GP_LN2_LO, GP_FMA(n, -GP_LN2_HI, x));
    return (int32_t)(gp_bits(shifted) - gp_bits(GP_ROUND_F32));
}

/* y * 2^n, n in [-252, 254], rounded once also where it is denormal. */
static inline float gp_scale(float y, int32_t n)
{
    const int32_t half = n >> 1;
    return y * gp_float((uint32_t)(half + 127) << 23) * gp_float((uint32_t)(n - half + 127) << 23);
}

static inline float gp_exp(float x)
{
    float r;
    const int32_t n = gp_exp_reduce(gp_clamp_const(x, -104.0f, 89.0f), &r);
    return gp_scale(GP_FMA(r * r, gp_exp_tail(r), r) + 1.0f, n);
}

/* e^x where it is a normal number: results below 2^-126 may be 0. The one factor 2^n is 0 for n = -127 and infinite for
 * n = 128, so that nothing need be scaled twice. */
static inline float gp_exp_normal(float x)
{
    float r;
    const int32_t n = gp_exp_reduce(gp_clamp_const(x, -88.0f, 89.0f), &r);
    return (GP_FMA(r * r, gp_exp_tail(r), r) + 1.0f) * gp_float((uint32_t)(n + 127) << 23);
}

/* e^x - 1, exact in the last places also near 0. */
static inline float gp_expm1(float x)
{
    float r;
    const int32_t n = gp_exp_reduce(gp_clamp_const(x, -104.0f, 89.0f), &r);
    const float near = GP_FMA(r * r, gp_exp_tail(r), r);
    return n == 0 ? (x == 0 ? x : near) : gp_scale(near + 1.0f, n) - 1.0f;
}

/* log(m) + e ln 2 for m = 1 + f in [sqrt(1/2), sqrt(2)]; error of the fit 2^-30. */
static inline float gp_log_sum(float f, float e)
{
    float p = 6.746567e-02f;
    p = GP_FMA(p, f, -1.1675588e-01f);
    p = GP_FMA(p, f, 1.18881606e-01f);
    p = GP_FMA(p, f, -1.24056e-01f);
    p = GP_FMA(p, f, 1.4219554e-01f);
    p = GP_FMA(p, f, -1.6667995e-01f);
    p = GP_FMA(p, f, 2.0002119e-01f);
    p = GP_FMA(p, f, -2.500001e-01f);
    p = GP_FMA(p, f, 3.3333313e-01f);
    const float square = f * f;
    const float tail = GP_FMA(f * square, p, GP_FMA(-0.5f, square, e * GP_LN2_LO));
    return GP_FMA(e, GP_LN2_HI, f + tail);
}

static inline float gp_log(float x)
{
    const int is_small = x < 1.17549435e-38f;
    const float scaled = is_small ? x * 8388608.0f : x; /* denormals become normal */
    const uint32_t u = gp_bits(scaled) - 0x3f3504f3u;   /* sqrt(1/2) */
    const float e = (float)((int32_t)u >> 23) - (is_small ? 23.0f : 0.0f);
    const float y = gp_log_sum(gp_float((u & 0x7fffffu) + 0x3f3504f3u) - 1.0f, e);
    const float above = x < INFINITY ? y : x; /* inf, NaN */
    return x > 0 ? above : (x == 0 ? -INFINITY : NAN) + (x != x ? x : 0.0f);
}

/* log(1 + x) for x > -1: the rounding of 1 + x is made good to first order. */
static inline float gp_log1p(float x)
{
    const float u = 1.0f + x, lost = x - (u - 1.0f);
    const float y = gp_log(u) + lost / u;
    return u == 1.0f ? x : (u < INFINITY ? y : u);
}

static inline float gp_tanh(float x)
{
    const float a = fabsf(x), z = x * x;
    float p = -5.70498e-03f; /* |x| < 0.625; error 2^-27.8 */
    p = GP_FMA(p, z, 2.063908e-02f);
    p = GP_FMA(p, z, -5.373971e-02f);
    p = GP_FMA(p, z, 1.3331442e-01f);
    p = GP_FMA(p, z, -3.333328e-01f);
    const float near = GP_FMA(x * z, p, x);
    const float far = 1.0f - 2.0f / (gp_exp_normal(2.0f * a) + 1.0f);
    return copysignf(a < 0.625f ? near : far, x);
}

static inline float gp_sigmoid(float x)
{
    return 1.0f / (1.0f + gp_exp_normal(-x));
}

static inline float gp_erf(float x)
{
    const float a = gp_clamp_const(fabsf(x), 0.0f, 4.0f), z = a * a;
    float p = -5.9765944e-04f; /* erf(x) / x - 1 in x^2, |x| < 0.925; error 2^-25.9 */
    p = GP_FMA(p, z, 4.990414e-03f);
    p = GP_FMA(p, z, -2.6764756e-02f);
    p = GP_FMA(p, z, 1.1281766e-01f);
    p = GP_FMA(p, z, -3.761249e-01f);
    p = GP_FMA(p, z, 1.2837915e-01f);
    float q = 2.1162148e-05f; /* -log(erfc(x)) in x, up to 4, where erf rounds to 1; error of erf 2^-34 */
    q = GP_FMA(q, a, -4.352217e-04f);
    q = GP_FMA(q, a, 4.1746567e-03f);
    q = GP_FMA(q, a, -2.512866e-02f);
    q = GP_FMA(q, a, 1.08294e-01f);
    q = GP_FMA(q, a, 6.333346e-01f);
    q = GP_FMA(q, a, 1.1295209e+00f);
    q = GP_FMA(q, a, -1.7587974e-04f);
    return a < 0.925f ? GP_FMA(x, p, x) : copysignf(1.0f - gp_exp_normal(-q), x);
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

static inline float gp_gelu_erf(float x)
{
    return 0.5f * x * (1.0f + gp_erf(x * 0.707106781f));
}

/* 0.5 x (1 + tanh(u)) = x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3). */
static inline float gp_gelu_tanh(float x)
{
    return x * gp_sigmoid(1.59576912f * x * GP_FMA(0.044715f, x * x, 1.0f));
}

/* log(1 + e^x). */
static inline float gp_softplus(float x)
{
    const float tail = gp_log1p(gp_exp(-fabsf(x)));
    return x > 0 ? x + tail : tail;
}

/* Remainder of x / y with the sign of y; in f64, where that of two floats is exact before it is rounded. */
static inline double gp_modulo(double x, double y)
{
    const double r = fmod(x, y);
    if (r == 0)
        return copysign(0.0, y);
    return (r < 0) != (y < 0) ? r + y : r;
}

/* x tanh(log(1 + e^x)) = x n / (n + 2), n = e^x (e^x + 2); the quotient rounds to 1 from x = 20 on. */
static inline float gp_mish(float x)
{
    const float e = gp_exp(gp_clamp_const(x, -104.0f, 20.0f)), n = e * (e + 2.0f);
    return x * (n / (n + 2.0f));
}

#endif
