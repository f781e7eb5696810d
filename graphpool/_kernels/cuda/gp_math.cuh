// Elementwise operations on floats, named as in eltwise/gp_eltwise.h: gp_<operation>(x, y, z) or (x, alpha, beta).
// NaN passes through relu, clamp, max and min. The accuracy of functions is that of CUDA's library.

#define GP_OP static __device__ __forceinline__ GP_REG
#if GP_IS_F64
#define GP_F(name) name
#else
#define GP_F(name) name##f
#endif

GP_OP gp_abs(GP_REG x) { return GP_F(fabs)(x); }
GP_OP gp_exp(GP_REG x) { return GP_F(exp)(x); }
GP_OP gp_log(GP_REG x) { return GP_F(log)(x); }
GP_OP gp_reciprocal(GP_REG x) { return 1 / x; }
GP_OP gp_relu(GP_REG x) { return x < 0 ? 0 : x; }
GP_OP gp_round(GP_REG x) { return GP_F(rint)(x); }
GP_OP gp_sigmoid(GP_REG x) { return 1 / (1 + GP_F(exp)(-x)); }
GP_OP gp_sqrt(GP_REG x) { return GP_F(sqrt)(x); }
GP_OP gp_square(GP_REG x) { return x * x; }
GP_OP gp_tanh(GP_REG x) { return GP_F(tanh)(x); }
GP_OP gp_erf(GP_REG x) { return GP_F(erf)(x); }
GP_OP gp_neg(GP_REG x) { return -x; }
GP_OP gp_floor(GP_REG x) { return GP_F(floor)(x); }
GP_OP gp_ceil(GP_REG x) { return GP_F(ceil)(x); }
GP_OP gp_rsqrt(GP_REG x) { return 1 / GP_F(sqrt)(x); }
GP_OP gp_sin(GP_REG x) { return GP_F(sin)(x); }
GP_OP gp_cos(GP_REG x) { return GP_F(cos)(x); }
GP_OP gp_tan(GP_REG x) { return GP_F(tan)(x); }
GP_OP gp_asin(GP_REG x) { return GP_F(asin)(x); }
GP_OP gp_acos(GP_REG x) { return GP_F(acos)(x); }
GP_OP gp_atan(GP_REG x) { return GP_F(atan)(x); }
GP_OP gp_sinh(GP_REG x) { return GP_F(sinh)(x); }
GP_OP gp_cosh(GP_REG x) { return GP_F(cosh)(x); }
GP_OP gp_asinh(GP_REG x) { return GP_F(asinh)(x); }
GP_OP gp_acosh(GP_REG x) { return GP_F(acosh)(x); }
GP_OP gp_atanh(GP_REG x) { return GP_F(atanh)(x); }
GP_OP gp_trunc(GP_REG x) { return GP_F(trunc)(x); }
GP_OP gp_sign(GP_REG x) { return x != x ? x : (GP_REG)((x > 0) - (x < 0)); }
GP_OP gp_not(GP_REG x) { return x == 0; }
GP_OP gp_is_nan(GP_REG x) { return x != x; }
GP_OP gp_gelu_erf(GP_REG x) { return (GP_REG)0.5 * x * (1 + GP_F(erf)(x * (GP_REG)0.70710678118654752)); }
GP_OP gp_gelu_tanh(GP_REG x) {
    const GP_REG inner = (GP_REG)0.79788456080286536 * (x + (GP_REG)0.044715 * x * x * x);
    return (GP_REG)0.5 * x * (1 + GP_F(tanh)(inner));
}

// log(1 + exp(beta x)) / beta, which is x where the exponential would overflow.
GP_OP gp_softplus(GP_REG x, GP_REG, GP_REG beta) {
    return beta * x > 88 ? x : GP_F(log1p)(GP_F(exp)(beta * x)) / beta;
}
GP_OP gp_mish(GP_REG x) { return x * GP_F(tanh)(gp_softplus(x, 0, 1)); }

GP_OP gp_clamp(GP_REG x, GP_REG low, GP_REG high) {
    const GP_REG y = x < low ? low : x;
    return y > high ? high : y;
}
GP_OP gp_hard_swish(GP_REG x) { return x * (gp_clamp(x + 3, 0, 6) * ((GP_REG)1 / 6)); }
GP_OP gp_elu(GP_REG x, GP_REG alpha, GP_REG) { return x < 0 ? alpha * GP_F(expm1)(x) : x; }
GP_OP gp_leaky_relu(GP_REG x, GP_REG alpha, GP_REG) { return x < 0 ? alpha * x : x; }
GP_OP gp_quantize(GP_REG x, GP_REG scale, GP_REG zero_point)
{
    const GP_REG rounded = gp_round(x / scale) + zero_point;
    return rounded == rounded ? rounded : -(GP_REG)__uint_as_float(0x7f800000u); /* which saturates at the least integer */
}
GP_OP gp_dequantize(GP_REG x, GP_REG scale, GP_REG zero_point) { return (x - zero_point) * scale; }
GP_OP gp_quantize_by(GP_REG x, GP_REG scale, GP_REG zero_point) { return gp_quantize(x, scale, zero_point); }
GP_OP gp_dequantize_by(GP_REG x, GP_REG scale, GP_REG zero_point) { return gp_dequantize(x, scale, zero_point); }
GP_OP gp_hard_sigmoid(GP_REG x, GP_REG alpha, GP_REG beta) { return gp_clamp(alpha * x + beta, 0, 1); }
GP_OP gp_pow_scalar(GP_REG x, GP_REG, GP_REG beta) { return GP_F(pow)(x, beta); }
GP_OP gp_is_inf(GP_REG x, GP_REG alpha, GP_REG beta) {
    const GP_REG most = (GP_REG)__uint_as_float(0x7f800000u);
    return (alpha != 0 && x == most) || (beta != 0 && x == -most);
}

GP_OP gp_add(GP_REG x, GP_REG y) { return x + y; }
GP_OP gp_sub(GP_REG x, GP_REG y) { return x - y; }
GP_OP gp_mul(GP_REG x, GP_REG y) { return x * y; }
GP_OP gp_div(GP_REG x, GP_REG y) { return x / y; }
GP_OP gp_max(GP_REG x, GP_REG y) { return x > y || x != x ? x : y; }
GP_OP gp_min(GP_REG x, GP_REG y) { return x < y || x != x ? x : y; }
GP_OP gp_squared_difference(GP_REG x, GP_REG y) { return (x - y) * (x - y); }
GP_OP gp_pow(GP_REG x, GP_REG y) { return GP_F(pow)(x, y); }
GP_OP gp_prelu(GP_REG x, GP_REG y) { return x > 0 ? x : x * y; }
GP_OP gp_ge(GP_REG x, GP_REG y) { return x >= y; }
GP_OP gp_gt(GP_REG x, GP_REG y) { return x > y; }
GP_OP gp_le(GP_REG x, GP_REG y) { return x <= y; }
GP_OP gp_lt(GP_REG x, GP_REG y) { return x < y; }
GP_OP gp_eq(GP_REG x, GP_REG y) { return x == y; }
GP_OP gp_ne(GP_REG x, GP_REG y) { return x != y; }
GP_OP gp_and(GP_REG x, GP_REG y) { return x != 0 && y != 0; }
GP_OP gp_or(GP_REG x, GP_REG y) { return x != 0 || y != 0; }
GP_OP gp_xor(GP_REG x, GP_REG y) { return (x != 0) != (y != 0); }
GP_OP gp_fmod(GP_REG x, GP_REG y) { return GP_F(fmod)(x, y); }
GP_OP gp_mod(GP_REG x, GP_REG y) {
    const GP_REG r = GP_F(fmod)(x, y);
    if (r == 0) return GP_F(copysign)((GP_REG)0, y);
    return (r < 0) != (y < 0) ? r + y : r;
}

GP_OP gp_select(GP_REG x, GP_REG y, GP_REG z) { return x != 0 ? y : z; }
GP_OP gp_fma(GP_REG x, GP_REG y, GP_REG z) { return GP_F(fma)(x, y, z); }
