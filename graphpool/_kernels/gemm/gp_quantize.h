/* Ranges of numbers, and numbers as unsigned bytes by the scale and zero point that a range asks for.
 *
 * The range includes zero; numbers are divided by the scale, rounded to nearest even, and only then moved by the zero
 * point, so that the bytes are those of ONNX's DynamicQuantizeLinear. */
#ifndef GP_QUANTIZE_H
#define GP_QUANTIZE_H

#include "gemm/gp_requant.h"

typedef struct {
    float least, greatest;
} gp_range;

static inline gp_range gp_range_join(gp_range a, gp_range b)
{
    return (gp_range){b.least < a.least ? b.least : a.least, b.greatest > a.greatest ? b.greatest : a.greatest};
}

/* Of n numbers and zero. NaN is passed over. */
static inline gp_range gp_range_of(const float *x, int64_t n)
{
    gp_vf above[4] = {{0}}, below[4] = {{0}}; /* the greatest x and -x */
    int64_t i = 0;
    for (; i + 4 * GP_VL <= n; i += 4 * GP_VL)
        GP_EACH(v, 4) {
            const gp_vf y = gp_load(x + i + v * GP_VL);
            above[v] = gp_vmax(y, above[v]);
            below[v] = gp_vmax(-y, below[v]);
        }
    for (; i < n; i += GP_VL) {
        const gp_vf y = gp_load_some(x + i, n - i);
        above[0] = gp_vmax(y, above[0]);
        below[0] = gp_vmax(-y, below[0]);
    }
    gp_range found = {0, 0};
    for (int v = 0; v < 4; v++)
        for (int lane = 0; lane < GP_VL; lane++)
            found = gp_range_join(found, (gp_range){-below[v][lane], above[v][lane]});
    return found;
}

/* Scale and zero point of a range; one that holds nothing but zero counts as [0, 1]. */
static inline float gp_range_scale(gp_range r)
{
    return (r.least == r.greatest ? 1.0f : r.greatest - r.least) / 255.0f;
}

static inline int32_t gp_range_zero(gp_range r, float scale)
{
    const float zero = 0.0f - r.least / scale;
    return zero > 0 ? (int32_t)__builtin_rintf(zero < 255 ? zero : 255) : 0; /* NaN is not above 0 */
}

/* NaN gives 0. */
static inline void gp_quantize_row(const float *x, char *to, int64_t n, float scale, int32_t zero)
{
    const gp_vf divisor = gp_splat(scale), lo = gp_splat((float)-zero), hi = gp_splat((float)(255 - zero));
    for (int64_t i = 0; i < n; i += GP_VL) {
        const gp_vf scaled = gp_vat_most(gp_vmax(gp_load_some(x + i, n - i) / divisor, lo), hi);
        gp_store_bytes(to + i, (gp_vi)(scaled + 0x1.8p23f) + zero, gp_min(n - i, GP_VL));
    }
}

#endif
