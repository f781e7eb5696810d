// Elements in memory as numbers in registers, GP_REG: float, double or long long.
// Floats are stored rounded to nearest even, saturate at integers, and NaN becomes 0; integers wrap.

#define GP_LOAD static __device__ __forceinline__ GP_REG
#define GP_STORE static __device__ __forceinline__ void

#if GP_IS_INTEGER
#define GP_WHOLE(low, high, most, x) x
#else
// `high` is the largest number within the range, or the next one above it.
static __device__ __forceinline__ long long gp_to_integer(GP_REG x, GP_REG low, GP_REG high, long long most) {
    if (x != x) return 0;
    const GP_REG whole = GP_F(rint)(x);
    return whole >= high ? most : (long long)(whole < low ? low : whole);
}
#define GP_WHOLE(low, high, most, x) gp_to_integer(x, (GP_REG)low, (GP_REG)high, most)
#endif

#define GP_PLAIN(name, type, low, high, most)                                                            \
    GP_LOAD gp_load_##name(const char *at, long long i) { return (GP_REG)((const type *)at)[i]; }        \
    GP_STORE gp_store_##name(char *at, long long i, GP_REG x) { ((type *)at)[i] = (type)GP_WHOLE(low, high, most, x); }
GP_PLAIN(s8, signed char, -128.0, 127.0, 127)
GP_PLAIN(u8, unsigned char, 0.0, 255.0, 255)
GP_PLAIN(s16, short, -32768.0, 32767.0, 32767)
GP_PLAIN(u16, unsigned short, 0.0, 65535.0, 65535)
GP_PLAIN(s32, int, -2147483648.0, 2147483648.0, 2147483647)
GP_PLAIN(u32, unsigned, 0.0, 4294967296.0, 4294967295ll)
GP_PLAIN(s64, long long, -9223372036854775808.0, 9223372036854775808.0, 9223372036854775807ll)

// Two to a byte, the first in the low bits; they are read alone.
GP_LOAD gp_load_u4(const char *at, long long i) { return (GP_REG)(((const unsigned char *)at)[i >> 1] >> (i & 1) * 4 & 15); }
GP_LOAD gp_load_s4(const char *at, long long i) {
    return (GP_REG)(((((const unsigned char *)at)[i >> 1] >> (i & 1) * 4 & 15) ^ 8) - 8);
}

GP_LOAD gp_load_boolean(const char *at, long long i) { return (GP_REG)((const unsigned char *)at)[i]; }
GP_STORE gp_store_boolean(char *at, long long i, GP_REG x) { ((unsigned char *)at)[i] = x != 0; }

#if !GP_IS_INTEGER
#ifdef __CUDA_ARCH__  // cuda_fp16.h is not there for NVRTC
static __device__ __forceinline__ float gp_from_f16(unsigned short bits) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}
static __device__ __forceinline__ unsigned short gp_to_f16(float x) {
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}
#endif
static __device__ __forceinline__ float gp_from_f8(unsigned bits, int mantissa, int bias) {
    const float finite = __uint_as_float((bits & 0x7fu) << (23 - mantissa)) * __uint_as_float((254u - bias) << 23);
    return __uint_as_float(__float_as_uint(finite) | (bits & 0x80u) << 24);
}
// The code of |x|, not NaN, as if the range were open upwards.
static __device__ __forceinline__ unsigned gp_to_f8(float x, int mantissa, int bias) {
    const unsigned bits = __float_as_uint(x) & 0x7fffffffu, drop = 23 - mantissa, most = 128 - bias;
    const unsigned rounded = bits + ((1u << (drop - 1)) - 1) + (bits >> drop & 1);
    const float step = __uint_as_float((most + drop) << 23);  // its last place is the least denormal
    const unsigned denormal = __float_as_uint(__uint_as_float(bits) + step) - __float_as_uint(step);
    return bits < most << 23 ? denormal : (rounded - ((most - 1) << 23)) >> drop;
}
// To f32 by rounding to odd, after which rounding to 11 or fewer bits equals rounding once.
// Source: Boldo and Melquiond, "When double rounding is odd", 2005.
static __device__ __forceinline__ float gp_to_odd(GP_REG x) {
    const float nearest = (float)x;
    const unsigned bits = __float_as_uint(nearest);
    if (x != x || (GP_REG)nearest == x || (bits & 1)) return nearest;
    return __uint_as_float(GP_F(fabs)(x) > (GP_REG)fabsf(nearest) ? bits + 1 : bits - 1);
}
GP_LOAD gp_load_f64(const char *at, long long i) { return (GP_REG)((const double *)at)[i]; }
GP_LOAD gp_load_f32(const char *at, long long i) { return (GP_REG)((const float *)at)[i]; }
GP_LOAD gp_load_f16(const char *at, long long i) { return (GP_REG)gp_from_f16(((const unsigned short *)at)[i]); }
GP_LOAD gp_load_bf16(const char *at, long long i) {
    return (GP_REG)__uint_as_float((unsigned)((const unsigned short *)at)[i] << 16);
}
GP_LOAD gp_load_f8_e5m2(const char *at, long long i) {
    const unsigned bits = ((const unsigned char *)at)[i];
    const float special = __uint_as_float((bits & 3u) << 21 | 0x7f800000u | (bits & 0x80u) << 24);
    return (GP_REG)((bits & 0x7cu) == 0x7cu ? special : gp_from_f8(bits, 2, 15));
}
GP_LOAD gp_load_f8_e4m3(const char *at, long long i) {
    const unsigned bits = ((const unsigned char *)at)[i];
    return (GP_REG)((bits & 0x7fu) == 0x7fu ? __uint_as_float(0x7fc00000u) : gp_from_f8(bits, 3, 7));
}
GP_STORE gp_store_f64(char *at, long long i, GP_REG x) { ((double *)at)[i] = (double)x; }
GP_STORE gp_store_f32(char *at, long long i, GP_REG x) { ((float *)at)[i] = (float)x; }
GP_STORE gp_store_f16(char *at, long long i, GP_REG x) { ((unsigned short *)at)[i] = gp_to_f16(gp_to_odd(x)); }
GP_STORE gp_store_bf16(char *at, long long i, GP_REG x) {
    const unsigned bits = __float_as_uint(gp_to_odd(x)), rounded = bits + 0x7fffu + (bits >> 16 & 1u);
    ((unsigned short *)at)[i] = (unsigned short)(x != x ? bits >> 16 | 0x40u : rounded >> 16);
}
GP_STORE gp_store_f8_e5m2(char *at, long long i, GP_REG x) {
    const float y = gp_to_odd(x);
    const unsigned code = gp_to_f8(y, 2, 15), number = x != x ? 0x7eu : code > 0x7cu ? 0x7cu : code;
    ((unsigned char *)at)[i] = (unsigned char)((__float_as_uint(y) >> 24 & 0x80u) | number);
}
GP_STORE gp_store_f8_e4m3(char *at, long long i, GP_REG x) {  // which has no infinity
    const float y = gp_to_odd(x);
    const unsigned code = gp_to_f8(y, 3, 7), number = x != x || code > 0x7fu ? 0x7fu : code;
    ((unsigned char *)at)[i] = (unsigned char)((__float_as_uint(y) >> 24 & 0x80u) | number);
}
#endif

// As a store to the type and a load would leave it.
#define GP_NARROW(type)                                                      \
    GP_LOAD gp_narrow_##type(GP_REG x) {                                     \
        long long room = 0;                                                  \
        gp_store_##type((char *)&room, 0, x);                                \
        return gp_load_##type((char *)&room, 0);                             \
    }
GP_NARROW(s8)
GP_NARROW(u8)
GP_NARROW(s16)
GP_NARROW(u16)
GP_NARROW(s32)
GP_NARROW(u32)
GP_NARROW(s64)
GP_NARROW(boolean)
#if !GP_IS_INTEGER
GP_NARROW(f64)
GP_NARROW(f32)
GP_NARROW(f16)
GP_NARROW(bf16)
GP_NARROW(f8_e5m2)
GP_NARROW(f8_e4m3)
#endif
