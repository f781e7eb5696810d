// Elements in memory as floats. Stores round to nearest even; floats saturate at integers, and NaN becomes 0.

#define GP_LOAD static __device__ __forceinline__ float
#define GP_STORE static __device__ __forceinline__ void

GP_LOAD gp_load_f32(const char *at, long long i) { return ((const float *)at)[i]; }
GP_LOAD gp_load_bf16(const char *at, long long i) {
    return __uint_as_float((unsigned)((const unsigned short *)at)[i] << 16);
}
#ifdef __CUDA_ARCH__  // cuda_fp16.h is not there for NVRTC
GP_LOAD gp_from_f16(unsigned short bits) {
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
GP_LOAD gp_load_f16(const char *at, long long i) { return gp_from_f16(((const unsigned short *)at)[i]); }
GP_LOAD gp_load_s32(const char *at, long long i) { return (float)((const int *)at)[i]; }
GP_LOAD gp_load_s8(const char *at, long long i) { return (float)((const signed char *)at)[i]; }
GP_LOAD gp_load_u8(const char *at, long long i) { return (float)((const unsigned char *)at)[i]; }
GP_LOAD gp_load_boolean(const char *at, long long i) { return (float)((const unsigned char *)at)[i]; }

GP_STORE gp_store_f32(char *at, long long i, float x) { ((float *)at)[i] = x; }
GP_STORE gp_store_f16(char *at, long long i, float x) { ((unsigned short *)at)[i] = gp_to_f16(x); }
GP_STORE gp_store_bf16(char *at, long long i, float x) {
    const unsigned bits = __float_as_uint(x), rounded = bits + 0x7fffu + (bits >> 16 & 1u);
    ((unsigned short *)at)[i] = (unsigned short)(x != x ? bits >> 16 | 0x40u : rounded >> 16);
}
// `high` is the largest float within the range, or the next one above it.
static __device__ __forceinline__ long long gp_to_integer(float x, float low, float high, long long most) {
    if (x != x) return 0;
    const float whole = rintf(x);
    return whole >= high ? most : (long long)(whole < low ? low : whole);
}
GP_STORE gp_store_s32(char *at, long long i, float x) {
    ((int *)at)[i] = (int)gp_to_integer(x, -2147483648.0f, 2147483648.0f, 2147483647);
}
GP_STORE gp_store_s8(char *at, long long i, float x) {
    ((signed char *)at)[i] = (signed char)gp_to_integer(x, -128.0f, 127.0f, 127);
}
GP_STORE gp_store_u8(char *at, long long i, float x) {
    ((unsigned char *)at)[i] = (unsigned char)gp_to_integer(x, 0.0f, 255.0f, 255);
}
GP_STORE gp_store_boolean(char *at, long long i, float x) { ((unsigned char *)at)[i] = x != 0.0f; }

// As a store to the type and a load would leave it.
#define GP_NARROW(type)                                                      \
    static __device__ __forceinline__ float gp_narrow_##type(float x) {      \
        long long room = 0;                                                  \
        gp_store_##type((char *)&room, 0, x);                                \
        return gp_load_##type((char *)&room, 0);                             \
    }
GP_NARROW(f32)
GP_NARROW(bf16)
GP_NARROW(f16)
GP_NARROW(s32)
GP_NARROW(s8)
GP_NARROW(u8)
GP_NARROW(boolean)
