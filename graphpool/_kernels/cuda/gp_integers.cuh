// Elementwise operations on integers, named as in eltwise/gp_eltwise.h. Arithmetic wraps; divided by 0 they are 0.

#define GP_OP static __device__ __forceinline__ long long
#define GP_WRAP(x, operation, y) ((long long)((unsigned long long)(x) operation (unsigned long long)(y)))

GP_OP gp_abs(long long x) { return x < 0 ? GP_WRAP(0, -, x) : x; }
GP_OP gp_neg(long long x) { return GP_WRAP(0, -, x); }
GP_OP gp_sign(long long x) { return (x > 0) - (x < 0); }
GP_OP gp_not(long long x) { return x == 0; }
GP_OP gp_is_nan(long long) { return 0; }
GP_OP gp_bit_not(long long x) { return ~x; }

GP_OP gp_add(long long x, long long y) { return GP_WRAP(x, +, y); }
GP_OP gp_sub(long long x, long long y) { return GP_WRAP(x, -, y); }
GP_OP gp_mul(long long x, long long y) { return GP_WRAP(x, *, y); }
GP_OP gp_div(long long x, long long y) { return y == 0 ? 0 : y == -1 ? GP_WRAP(0, -, x) : x / y; }
GP_OP gp_max(long long x, long long y) { return x > y ? x : y; }
GP_OP gp_min(long long x, long long y) { return x < y ? x : y; }
GP_OP gp_ge(long long x, long long y) { return x >= y; }
GP_OP gp_gt(long long x, long long y) { return x > y; }
GP_OP gp_le(long long x, long long y) { return x <= y; }
GP_OP gp_lt(long long x, long long y) { return x < y; }
GP_OP gp_eq(long long x, long long y) { return x == y; }
GP_OP gp_ne(long long x, long long y) { return x != y; }
GP_OP gp_and(long long x, long long y) { return x != 0 && y != 0; }
GP_OP gp_or(long long x, long long y) { return x != 0 || y != 0; }
GP_OP gp_xor(long long x, long long y) { return (x != 0) != (y != 0); }
GP_OP gp_bit_and(long long x, long long y) { return x & y; }
GP_OP gp_bit_or(long long x, long long y) { return x | y; }
GP_OP gp_bit_xor(long long x, long long y) { return x ^ y; }
GP_OP gp_shift_left(long long x, long long y) { return (unsigned long long)y < 64 ? GP_WRAP(x, <<, y) : 0; }
GP_OP gp_shift_right(long long x, long long y) { return (unsigned long long)y < 64 ? x >> y : -(long long)(x < 0); }

// With the sign of x.
GP_OP gp_fmod(long long x, long long y) { return y == 0 || y == -1 ? 0 : x % y; }
// With the sign of y.
GP_OP gp_mod(long long x, long long y) {
    const long long r = gp_fmod(x, y);
    return r != 0 && (r < 0) != (y < 0) ? r + y : r;
}
// To a negative power cut off, and 0 where it is infinite.
GP_OP gp_pow(long long x, long long y) {
    if (y < 0) return x == 1 ? 1 : x == -1 ? (y & 1 ? -1 : 1) : 0;
    unsigned long long power = 1, base = (unsigned long long)x;
    for (; y; y >>= 1, base *= base)
        if (y & 1) power *= base;
    return (long long)power;
}
GP_OP gp_pow_scalar(long long x, float, float beta) { return gp_pow(x, (long long)beta); }
GP_OP gp_select(long long x, long long y, long long z) { return x != 0 ? y : z; }
