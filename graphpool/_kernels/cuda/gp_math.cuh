// Elementwise operations on f32, named as in eltwise/gp_eltwise.h: gp_<operation>(x, y, z) or (x, alpha, beta).
// NaN passes through relu, clamp, max and min. The accuracy of functions is that of CUDA's library in f32.

#define GP_OP static __device__ __forceinline__ float

GP_OP gp_abs(float x) { return fabsf(x); }
GP_OP gp_exp(float x) { return expf(x); }
GP_OP gp_log(float x) { return logf(x); }
GP_OP gp_reciprocal(float x) { return 1.0f / x; }
GP_OP gp_relu(float x) { return x < 0.0f ? 0.0f : x; }
GP_OP gp_round(float x) { return rintf(x); }
GP_OP gp_sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
GP_OP gp_sqrt(float x) { return sqrtf(x); }
GP_OP gp_square(float x) { return x * x; }
GP_OP gp_tanh(float x) { return tanhf(x); }
GP_OP gp_erf(float x) { return erff(x); }
GP_OP gp_neg(float x) { return -x; }
GP_OP gp_floor(float x) { return floorf(x); }
GP_OP gp_ceil(float x) { return ceilf(x); }
GP_OP gp_rsqrt(float x) { return 1.0f / sqrtf(x); }
GP_OP gp_sin(float x) { return sinf(x); }
GP_OP gp_cos(float x) { return cosf(x); }
GP_OP gp_tan(float x) { return tanf(x); }
GP_OP gp_asin(float x) { return asinf(x); }
GP_OP gp_acos(float x) { return acosf(x); }
GP_OP gp_atan(float x) { return atanf(x); }
GP_OP gp_sinh(float x) { return sinhf(x); }
GP_OP gp_cosh(float x) { return coshf(x); }
GP_OP gp_asinh(float x) { return asinhf(x); }
GP_OP gp_acosh(float x) { return acoshf(x); }
GP_OP gp_atanh(float x) { return atanhf(x); }
GP_OP gp_trunc(float x) { return truncf(x); }
GP_OP gp_sign(float x) { return x != x ? x : (float)((x > 0.0f) - (x < 0.0f)); }
GP_OP gp_not(float x) { return x == 0.0f; }
GP_OP gp_is_nan(float x) { return x != x; }
GP_OP gp_gelu_erf(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f)); }
GP_OP gp_gelu_tanh(float x) { return 0.5f * x * (1.0f + tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x))); }

// log(1 + exp(beta x)) / beta, which is x where the exponential would overflow.
GP_OP gp_softplus(float x, float, float beta) { return beta * x > 88.0f ? x : log1pf(expf(beta * x)) / beta; }
GP_OP gp_mish(float x) { return x * tanhf(gp_softplus(x, 0.0f, 1.0f)); }

GP_OP gp_clamp(float x, float low, float high) {
    const float y = x < low ? low : x;
    return y > high ? high : y;
}
GP_OP gp_hard_swish(float x) { return x * (gp_clamp(x + 3.0f, 0.0f, 6.0f) * (1.0f / 6.0f)); }
GP_OP gp_elu(float x, float alpha, float) { return x < 0.0f ? alpha * expm1f(x) : x; }
GP_OP gp_leaky_relu(float x, float alpha, float) { return x < 0.0f ? alpha * x : x; }
GP_OP gp_hard_sigmoid(float x, float alpha, float beta) { return gp_clamp(alpha * x + beta, 0.0f, 1.0f); }
GP_OP gp_pow_scalar(float x, float, float beta) { return powf(x, beta); }
GP_OP gp_is_inf(float x, float alpha, float beta) {
    return (alpha != 0.0f && x > 3.402823466e38f) || (beta != 0.0f && x < -3.402823466e38f);
}

GP_OP gp_add(float x, float y) { return x + y; }
GP_OP gp_sub(float x, float y) { return x - y; }
GP_OP gp_mul(float x, float y) { return x * y; }
GP_OP gp_div(float x, float y) { return x / y; }
GP_OP gp_max(float x, float y) { return x > y || x != x ? x : y; }
GP_OP gp_min(float x, float y) { return x < y || x != x ? x : y; }
GP_OP gp_squared_difference(float x, float y) { return (x - y) * (x - y); }
GP_OP gp_pow(float x, float y) { return powf(x, y); }
GP_OP gp_prelu(float x, float y) { return x > 0.0f ? x : x * y; }
GP_OP gp_ge(float x, float y) { return x >= y; }
GP_OP gp_gt(float x, float y) { return x > y; }
GP_OP gp_le(float x, float y) { return x <= y; }
GP_OP gp_lt(float x, float y) { return x < y; }
GP_OP gp_eq(float x, float y) { return x == y; }
GP_OP gp_ne(float x, float y) { return x != y; }
GP_OP gp_and(float x, float y) { return x != 0.0f && y != 0.0f; }
GP_OP gp_or(float x, float y) { return x != 0.0f || y != 0.0f; }
GP_OP gp_xor(float x, float y) { return (x != 0.0f) != (y != 0.0f); }
GP_OP gp_fmod(float x, float y) { return fmodf(x, y); }
GP_OP gp_mod(float x, float y) {
    const float r = fmodf(x, y);
    if (r == 0.0f) return copysignf(0.0f, y);
    return (r < 0.0f) != (y < 0.0f) ? r + y : r;
}

GP_OP gp_select(float x, float y, float z) { return x != 0.0f ? y : z; }
GP_OP gp_fma(float x, float y, float z) { return fmaf(x, y, z); }
