/* Elementary functions of vectors of floats.
 *
 * Method. Arguments are reduced in the classical way (Cody and Waite, 1980: a multiple of ln 2 or pi/2 in two parts);
 * the polynomials are minimax fits of our own, found with a Remez exchange in 40-digit arithmetic, weighted for the
 * relative error of the function's value and then rounded to the nearest float. The error of each fit stands beside
 * it; the errors below, in units of the last place of the float32 result, are the worst that tests/_kernels/test_math.py
 * finds over a sample of all floats against float64, with and without FMA.
 *
 *     gp_exp 1.0   gp_expm1 1.5 (x <= 0)   gp_log 0.9   gp_tanh 2.5   gp_sigmoid 2.3   gp_softplus 1.9   gp_erf 1.3
 *     gp_atan 1.7   gp_asin 2.4 (1.6 with FMA)   gp_acos 1.5
 *
 * relative to the last place of x: gp_gelu_erf 1.7, gp_gelu_tanh 2.1; relative to their own values for x < 0 5e-5 and
 * 2e-5, but below 2^-120 they may be 0. gp_mish 4 of its own last place, and 3e-43 where it is denormal. gp_softplus with
 * another beta than 1: as many more as the rounding of beta x makes of it.
 *
 * Infinities, NaN, signed zeros and denormal results are those of C's functions, as long as the processor does not
 * flush denormals; but results of gp_sigmoid below 2^-126 may be 0. Nothing here reads or sets errno, flags or the rounding
 * mode, which must be to nearest.
 */
#ifndef GP_VMATH_H
#define GP_VMATH_H

#include "core/gp_math.h"
#include "core/gp_vec.h"

#define GP_LN2_HI 0.693145752f /* 15 bits: its product with an exponent is exact */
#define GP_LN2_LO 1.42860677e-06f

/* p * x + c, one step of a polynomial. */
GP_INLINE gp_vf gp_step(gp_vf p, gp_vf x, float c)
{
    return gp_vfma(p, x, gp_splat(c));
}

GP_INLINE gp_vf gp_vabs(gp_vf x)
{
    return (gp_vf)((gp_vi)x & 0x7fffffff);
}

/* |x| with the sign of y. */
GP_INLINE gp_vf gp_vsigned(gp_vf x, gp_vf y)
{
    return (gp_vf)(((gp_vi)x & 0x7fffffff) | ((gp_vi)y & INT32_MIN));
}

/* (e^r - 1 - r) / r^2 for |r| <= ln(2) / 2; error of e^r: 2^-28. */
#define GP_EXP_0 4.9999994e-01f
#define GP_EXP_1 1.666652e-01f
#define GP_EXP_2 4.1668393e-02f
#define GP_EXP_3 8.36878e-03f
#define GP_EXP_4 1.3814463e-03f

/* Split x = n ln 2 + r; returned is n + GP_ROUND_F32, whose lowest bits are those of n. */
GP_INLINE gp_vf gp_exp_split(gp_vf x, gp_vf *r)
{
    const gp_vf whole = gp_step(x, gp_splat(1.44269504f), GP_ROUND_F32), n = whole - GP_ROUND_F32;
    *r = gp_vfma(n, gp_splat(-GP_LN2_LO), gp_vfma(n, gp_splat(-GP_LN2_HI), x));
    return whole;
}

/* 2^n for whole n in [-127, 128], 0 and infinity at the ends; of n the lowest 9 bits count. */
GP_INLINE gp_vf gp_power_of_two(gp_vi n)
{
    return (gp_vf)((n + 127) << 23);
}

/* y * 2^n for whole n in [-252, 254], rounded once also where it is denormal. */
GP_INLINE gp_vf gp_scale(gp_vf y, gp_vf n)
{
#if defined(__AVX512F__)
    return (gp_vf)_mm512_scalef_ps((__m512)y, (__m512)n);
#else
    const gp_vi whole = __builtin_convertvector(n, gp_vi), half = whole >> 1;
    return y * gp_power_of_two(half) * gp_power_of_two(whole - half);
#endif
}

/* e^r - 1 of `count` vectors for |r| <= ln(2) / 2: step by step for all of them, as what waits for one step of a vector fills
 * the queues of a processor before it comes to the next vector. */
GP_INLINE void gp_exp_near_each(const gp_vf *r, gp_vf *near, const int count)
{
    GP_EACH(i, count)
        near[i] = gp_step(gp_splat(GP_EXP_4), r[i], GP_EXP_3);
    GP_EACH(i, count)
        near[i] = gp_step(near[i], r[i], GP_EXP_2);
    GP_EACH(i, count)
        near[i] = gp_step(near[i], r[i], GP_EXP_1);
    GP_EACH(i, count)
        near[i] = gp_step(near[i], r[i], GP_EXP_0);
    GP_EACH(i, count)
        near[i] = gp_vfma(r[i] * r[i], near[i], r[i]);
}

GP_INLINE gp_vf gp_exp_near(gp_vf r)
{
    gp_vf near;
    gp_exp_near_each(&r, &near, 1);
    return near;
}

/* e^x of `count` vectors, 4 at most. An instruction whose result is denormal, or 0 instead, takes some hundred cycles on
 * Intel's processors, unless a mask leaves it out: elements that become 0 do not get there. */
GP_INLINE void gp_exp_each(gp_vf *x, const int count)
{
    gp_vf whole[4], r[4], near[4];
    GP_EACH(i, count)
        whole[i] = gp_exp_split(gp_vclamp(x[i], gp_splat(-104.0f), gp_splat(89.0f)), &r[i]);
    gp_exp_near_each(r, near, count);
    GP_EACH(i, count) {
#if defined(__AVX512F__)
        const __mmask16 is_above = _mm512_cmp_ps_mask((__m512)x[i], _mm512_set1_ps(-104.0f), _CMP_NLE_UQ);
        x[i] = (gp_vf)_mm512_maskz_scalef_ps(is_above, (__m512)(near[i] + 1.0f), (__m512)(whole[i] - GP_ROUND_F32));
#else /* y 2^n as (y 2^a) 2^b, of which the first is exact */
        const gp_vi half = (gp_vi)whole[i] >> 1;
        const gp_vf a = gp_power_of_two(half), b = gp_power_of_two((gp_vi)whole[i] - half);
        x[i] = gp_vfma(near[i], a, a) * b;
#endif
    }
}

GP_INLINE gp_vf gp_exp(gp_vf x)
{
    gp_exp_each(&x, 1);
    return x;
}

/* e^x where it is a normal number: results below 2^-126 may be 0, so that one factor does. */
GP_INLINE gp_vf gp_exp_normal(gp_vf x)
{
    gp_vf r;
    const gp_vf whole = gp_exp_split(gp_vclamp(x, gp_splat(-88.0f), gp_splat(89.0f)), &r);
    return (gp_exp_near(r) + 1.0f) * gp_power_of_two((gp_vi)whole);
}

/* The same of `count` vectors, 4 at most, none of whose elements is above 88. */
GP_INLINE void gp_exp_below(gp_vf *x, const int count)
{
    gp_vf whole[4], r[4], near[4];
    GP_EACH(i, count)
        whole[i] = gp_exp_split(gp_vat_least(x[i], gp_splat(-88.0f)), &r[i]);
    gp_exp_near_each(r, near, count);
    GP_EACH(i, count) {
        const gp_vf power = gp_power_of_two((gp_vi)whole[i]);
        x[i] = gp_vfma(near[i], power, power);
    }
}

/* e^x - 1, exact in the last places also near 0; -1 is what it is for less than -18. */
GP_INLINE gp_vf gp_expm1(gp_vf x)
{
    gp_vf r; /* from -30 on down the result rounds to -1 */
    const gp_vf n = gp_exp_split(gp_vclamp(x, gp_splat(-30.0f), gp_splat(89.0f)), &r) - GP_ROUND_F32;
    const gp_vf near = gp_exp_near(r), zero = {0};
    const gp_vf here = gp_vselect(gp_vequal(x, zero), x, near);
    return gp_vselect(gp_vequal(n, zero), here, gp_scale(near + 1.0f, n) - 1.0f);
}

/* log(m) + e ln 2 for m = 1 + f in [sqrt(1/2), sqrt(2)]; error of the fit 2^-30. */
GP_INLINE gp_vf gp_log_sum(gp_vf f, gp_vf e)
{
    gp_vf p = gp_step(gp_splat(6.746567e-02f), f, -1.1675588e-01f);
    p = gp_step(p, f, 1.18881606e-01f);
    p = gp_step(p, f, -1.24056e-01f);
    p = gp_step(p, f, 1.4219554e-01f);
    p = gp_step(p, f, -1.6667995e-01f);
    p = gp_step(p, f, 2.0002119e-01f);
    p = gp_step(p, f, -2.500001e-01f);
    p = gp_step(p, f, 3.3333313e-01f);
    const gp_vf square = f * f;
    const gp_vf tail = gp_vfma(f * square, p, gp_vfma(gp_splat(-0.5f), square, e * GP_LN2_LO));
    return gp_vfma(e, gp_splat(GP_LN2_HI), f + tail);
}

GP_INLINE gp_vf gp_log(gp_vf x)
{
    const gp_vmask is_small = gp_vless(x, gp_splat(1.17549435e-38f));
    const gp_vf scaled = gp_vselect(is_small, x * 8388608.0f, x); /* denormals become normal */
    const gp_vi u = (gp_vi)scaled - 0x3f3504f3;                   /* sqrt(1/2) */
    const gp_vf e = __builtin_convertvector(u >> 23, gp_vf) - gp_vselect(is_small, gp_splat(23.0f), (gp_vf){0});
    const gp_vf y = gp_log_sum((gp_vf)((u & 0x7fffff) + 0x3f3504f3) - 1.0f, e);
    const gp_vf above = gp_vselect(gp_vless(x, gp_splat(INFINITY)), y, x); /* inf, NaN */
    const gp_vf not_above = gp_vselect(gp_vequal(x, (gp_vf){0}), gp_splat(-INFINITY), gp_splat(NAN));
    return gp_vselect(gp_vless((gp_vf){0}, x), above, not_above);
}

/* log(1 + x) for x > -1: the rounding of 1 + x is made good to first order. */
GP_INLINE gp_vf gp_log1p(gp_vf x)
{
    const gp_vf u = 1.0f + x, lost = x - (u - 1.0f), y = gp_log(u) + lost / u;
    return gp_vselect(gp_vequal(u, gp_splat(1.0f)), x, gp_vselect(gp_vless(u, gp_splat(INFINITY)), y, u));
}

/* u / (u + 1) of u = (e^(2 |x|) - 1) / 2, which for |x| = n ln(2) / 2 + r is 2^(n - 1) (e^(2 r) - 1) + 2^(n - 1) - 1/2:
 * nothing cancels, near 0 neither. Of `count` vectors, 4 at most. */
GP_INLINE void gp_tanh_each(gp_vf *x, const int count)
{
    gp_vf whole[4], r[4], p[4];
    GP_EACH(i, count) {
        const gp_vf a = gp_vat_most(gp_vabs(x[i]), gp_splat(20.0f)); /* tanh rounds to 1 from 9.02 on */
        whole[i] = gp_step(a, gp_splat(2.88539008f), GP_ROUND_F32);
        const gp_vf n = whole[i] - GP_ROUND_F32;
        r[i] = gp_vfma(n, gp_splat(-0.5f * GP_LN2_LO), gp_vfma(n, gp_splat(-0.5f * GP_LN2_HI), a));
    }
    GP_EACH(i, count) /* (e^(2 r) - 1 - 2 r) / r^2; error of e^(2 r) - 1 2^-26 */
        p[i] = gp_step(gp_splat(8.88477638e-02f), r[i], 2.67730564e-01f);
    GP_EACH(i, count)
        p[i] = gp_step(p[i], r[i], 6.66675210e-01f);
    GP_EACH(i, count)
        p[i] = gp_step(p[i], r[i], 1.33332348e+00f);
    GP_EACH(i, count)
        p[i] = gp_step(p[i], r[i], 1.99999988e+00f);
    GP_EACH(i, count) {
        const gp_vf half = (gp_vf)(((gp_vi)whole[i] + 126) << 23); /* 2^(n - 1): the bits above those of n are shifted out */
        p[i] = gp_vfma(gp_vfma(r[i] * r[i], p[i], r[i] + r[i]), half, half - 0.5f);
    }
    GP_EACH(i, count)
        x[i] = gp_vsigned(p[i] / (p[i] + 1.0f), x[i]);
}

GP_INLINE gp_vf gp_tanh(gp_vf x)
{
    gp_tanh_each(&x, 1);
    return x;
}

GP_INLINE gp_vf gp_sigmoid(gp_vf x)
{
    return 1.0f / (1.0f + gp_exp_normal(-x));
}

/* 2^x for x in [-127, 127], where -127 and what rounds to it give 0. Nothing is lost in splitting x, which saves the multiplications that e^x takes for it. */
GP_INLINE gp_vf gp_exp2_normal(gp_vf x)
{
    const gp_vf n = (x + GP_ROUND_F32) - GP_ROUND_F32, f = x - n;
    gp_vf p = gp_step(gp_splat(1.5320988e-04f), f, 1.3390274e-03f); /* that of gp_exp_near, scaled */
    p = gp_step(p, f, 9.618527e-03f);
    p = gp_step(p, f, 5.550362e-02f);
    p = gp_step(p, f, 2.4022648e-01f);
    p = gp_step(gp_step(p, f, 6.931472e-01f), f, 1.0f);
    return p * gp_power_of_two(__builtin_convertvector(n, gp_vi));
}

GP_INLINE gp_vf gp_erf(gp_vf x)
{
    const gp_vf a = gp_vat_most(gp_vabs(x), gp_splat(4.0f)), z = a * a, zz = z * z;
    /* erf(x) / x - 1 in x^2, |x| < 0.925; error 2^-25.9 */
    gp_vf p = gp_step(gp_splat(-5.9765944e-04f), z, 4.990414e-03f);
    p = gp_vfma(p, zz, gp_step(gp_splat(-2.6764756e-02f), z, 1.1281766e-01f));
    p = gp_vfma(p, zz, gp_step(gp_splat(-3.761249e-01f), z, 1.2837915e-01f));
    /* log2(erfc(x)) in x, up to 4, where erf rounds to 1; error of erf 2^-34 */
    gp_vf q = gp_step(gp_splat(-3.0530526e-05f), a, 6.278922e-04f);
    q = gp_vfma(q, z, gp_step(gp_splat(-6.0227565e-03f), a, 3.6252994e-02f));
    q = gp_vfma(q, z, gp_step(gp_splat(-1.5623522e-01f), a, -9.137087e-01f));
    q = gp_vfma(q, z, gp_step(gp_splat(-1.6295542e+00f), a, 2.537408e-04f));
    return gp_vselect(gp_vless(a, gp_splat(0.925f)), gp_vfma(x, p, x), gp_vsigned(1.0f - gp_exp2_normal(q), x));
}

/* x Phi(x) with the distribution Phi of the normal law, which in the tails is 2^q or 1 - 2^q: nothing cancels. */
GP_INLINE gp_vf gp_gelu_erf(gp_vf x)
{
    const gp_vf a = gp_vat_most(gp_vabs(x), gp_splat(13.0004063f)), z = a * a, zz = z * z; /* there 2^q becomes 0 */
    /* (Phi(x) - 1/2) / x in x^2, |x| < 1.3; the fit of gp_erf, scaled */
    gp_vf p = gp_step(gp_splat(-6.60326623e-06f), z, 1.10273613e-04f);
    p = gp_vfma(p, zz, gp_step(gp_splat(-1.18284626e-03f), z, 9.97176673e-03f));
    p = gp_vfma(p, zz, gp_step(gp_splat(-6.64901137e-02f), z, 3.98942262e-01f));
    /* log2(Phi(-x)) in x, x in [1.3, 13]; error of Phi 2^-25.7, of 2^q 2.2e-5 relative */
    gp_vf q = gp_step(gp_splat(-2.05836947e-09f), a, 1.47475461e-07f);
    q = gp_vfma(q, z, gp_step(gp_splat(-4.65259336e-06f), a, 8.56277402e-05f));
    q = gp_vfma(q, z, gp_step(gp_splat(-1.03057479e-03f), a, 8.66989605e-03f));
    q = gp_vfma(q, z, gp_step(gp_splat(-5.37738204e-02f), a, -4.59569693e-01f));
    q = gp_vfma(q, z, gp_step(gp_splat(-1.14974833e+00f), a, -1.00067639e+00f));
    const gp_vf tail = gp_exp2_normal(q), far = gp_vselect(gp_vless(x, (gp_vf){0}), tail, 1.0f - tail);
    return x * gp_vselect(gp_vless(a, gp_splat(1.3f)), gp_step(x, p, 0.5f), far);
}

/* 0.5 x (1 + tanh(u)) = x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3). */
GP_INLINE gp_vf gp_gelu_tanh(gp_vf x)
{
    return x * gp_sigmoid(1.59576912f * x * gp_step(x * x, gp_splat(0.044715f), 1.0f));
}

/* log(1 + e^(beta x)) / beta; beta x may overflow. */
GP_INLINE gp_vf gp_softplus(gp_vf x, gp_vf beta)
{
    const gp_vf v = beta * x, tail = gp_log1p(gp_exp(-gp_vabs(v))) / beta;
    return gp_vselect(gp_vless((gp_vf){0}, v), x + tail, tail);
}

/* x tanh(log(1 + e^x)) = x n / (n + 2), n = e^x (e^x + 2); the quotient rounds to 1 from x = 20 on. */
GP_INLINE gp_vf gp_mish(gp_vf x)
{
    const gp_vf e = gp_exp(gp_vat_most(x, gp_splat(20.0f))), n = e * (e + 2.0f);
    return x * (n / (n + 2.0f));
}

#define GP_PI_2 1.57079637f
#define GP_PI_2_LO (-4.37113883e-08f) /* what pi / 2 has beyond it */

/* In x or 1 / x, whichever is at most 1; error of the fit of atan(x) / x 2^-28.5. */
GP_INLINE gp_vf gp_atan(gp_vf x)
{
    const gp_vf a = gp_vabs(x), one = gp_splat(1.0f);
    const gp_vmask is_large = gp_vless(one, a);
    const gp_vf t = gp_vselect(is_large, one / a, a), z = t * t;
    gp_vf p = gp_step(gp_splat(-1.79362181e-03f), z, 1.0914606e-02f);
    p = gp_step(p, z, -3.11778467e-02f);
    p = gp_step(p, z, 5.79575934e-02f);
    p = gp_step(p, z, -8.40345025e-02f);
    p = gp_step(p, z, 1.09521858e-01f);
    p = gp_step(p, z, -1.42642424e-01f);
    p = gp_step(p, z, 1.99985489e-01f);
    p = gp_step(p, z, -3.33332986e-01f);
    const gp_vf near = gp_vfma(t * z, p, t), far = GP_PI_2 - (near - GP_PI_2_LO);
    return gp_vsigned(gp_vselect(is_large, far, near), x);
}

/* asin(|x|) as a sum of two parts: up to |x| = 1/2, above that asin(sqrt((1 - |x|) / 2)), whose double is acos(|x|), with
 * what the square root lost; NaN beyond 1. Error of the fit of asin(x) / x 2^-27.6. */
GP_INLINE gp_vf gp_asin_parts(gp_vf x, gp_vmask *is_large, gp_vf *tail)
{
    const gp_vf a = gp_vabs(x), half = gp_splat(0.5f), zero = {0};
    *is_large = gp_vless(half, a);
    const gp_vf z = gp_vselect(*is_large, half - half * a, a * a), s = gp_vselect(*is_large, gp_vsqrt(z), a);
    gp_vf p = gp_step(gp_splat(4.21663076e-02f), z, 2.41795145e-02f);
    p = gp_step(p, z, 4.54703756e-02f);
    p = gp_step(p, z, 7.49529749e-02f);
    p = gp_step(p, z, 1.66667521e-01f);
    const gp_vf lost = gp_vselect(*is_large, gp_vfma(-s, s, z) / (s + s + 1e-30f), zero);
    *tail = gp_vfma(s * z, p, lost);
    return s;
}

GP_INLINE gp_vf gp_asin(gp_vf x)
{
    gp_vmask is_large;
    gp_vf tail;
    const gp_vf s = gp_asin_parts(x, &is_large, &tail), large = (GP_PI_2 - 2.0f * s) - (2.0f * tail - GP_PI_2_LO);
    return gp_vsigned(gp_vselect(is_large, large, s + tail), x);
}

GP_INLINE gp_vf gp_acos(gp_vf x)
{
    gp_vmask is_large;
    gp_vf tail;
    const gp_vf s = gp_asin_parts(x, &is_large, &tail), y = s + tail;
    const gp_vf below = (2.0f * GP_PI_2 - 2.0f * s) - 2.0f * (tail - GP_PI_2_LO);
    const gp_vf large = gp_vselect(gp_vless((gp_vf){0}, x), 2.0f * y, below);
    return gp_vselect(is_large, large, GP_PI_2 - (gp_vsigned(y, x) - GP_PI_2_LO));
}

/* Sum of e^(x[i] - shift) over n elements, GP_SUM_BLOCK at most, none of which is above shift; the terms go to y where it is
 * not NULL, which has room for whole vectors, or else is written as far as they go. */
GP_INLINE double gp_exp_block(const float *x, int64_t n, float shift, float *y, const int has_room)
{
    const gp_vf s = gp_splat(shift);
    gp_vf sum[4] = {{0}, {0}, {0}, {0}};
    int64_t i = 0;
    for (; i + 4 * GP_VL <= n; i += 4 * GP_VL)
    {
        gp_vf term[4];
        GP_EACH(v, 4)
            term[v] = gp_load(x + i + v * GP_VL) - s;
        gp_exp_below(term, 4);
        GP_EACH(v, 4) {
            if (y)
                gp_store(y + i + v * GP_VL, term[v]);
            sum[v] += term[v];
        }
    }
    for (; i < n; i += GP_VL) { /* e^-inf is 0 */
        gp_vf term = (n - i < GP_VL ? gp_load_part(x + i, n - i, -INFINITY) : gp_load(x + i)) - s;
        gp_exp_below(&term, 1);
        if (y)
            gp_store_part(y + i, term, has_room ? GP_VL : n - i);
        sum[0] += term;
    }
    return gp_lane_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

/* The same for rows of any length: in f32 within blocks, in f64 from block to block. */
GP_INLINE double gp_exp_row(const float *x, int64_t n, float shift, float *y)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i += GP_SUM_BLOCK)
        sum += gp_exp_block(x + i, gp_min(n - i, GP_SUM_BLOCK), shift, y ? y + i : NULL, 0);
    return sum;
}

#endif
