/* Dynamic quantisation: numbers as unsigned bytes whose scale and zero point follow from the range of all of them.
 *
 * Two passes: the range of each part, then the bytes. The second one joins the ranges in every task anew, for they are
 * few; the least and the greatest number do not depend on how parts are divided. The range includes zero; numbers are
 * divided by the scale, rounded to nearest even, and only then moved by the zero point, so that the bytes are those of
 * ONNX's DynamicQuantizeLinear. A task is a part. */
#include "gemm/gp_requant.h"

GP_RECORD(gp_quantize, {
    int64_t n, part, nparts; /* elements; those of a part */
});

typedef struct {
    float least, greatest;
} range;

static range join(range a, range b)
{
    return (range){b.least < a.least ? b.least : a.least, b.greatest > a.greatest ? b.greatest : a.greatest};
}

/* Of n numbers and zero. NaN is passed over. */
static range range_of(const float *x, int64_t n)
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
    range found = {0, 0};
    for (int v = 0; v < 4; v++)
        for (int lane = 0; lane < GP_VL; lane++)
            found = join(found, (range){-below[v][lane], above[v][lane]});
    return found;
}

/* args: src, ranges of shape (nparts, 2) */
GP_DEFINE_KERNEL(f32_range)
{
    const gp_quantize *p = params;
    range *to = args[1];
    for (int64_t t = begin; t < end; t++)
        to[t] = range_of((const float *)args[0] + t * p->part, gp_min(p->n - t * p->part, p->part));
}

/* Scale and zero point of a range; one that holds nothing but zero counts as [0, 1]. */
static float scale_of(range r)
{
    return (r.least == r.greatest ? 1.0f : r.greatest - r.least) / 255.0f;
}

static int32_t zero_of(range r, float scale)
{
    const float zero = 0.0f - r.least / scale;
    return zero > 0 ? (int32_t)__builtin_rintf(zero < 255 ? zero : 255) : 0; /* NaN is not above 0 */
}

/* NaN gives 0. */
static void quantize_part(const float *x, char *to, int64_t n, float scale, int32_t zero)
{
    const gp_vf divisor = gp_splat(scale), lo = gp_splat((float)-zero), hi = gp_splat((float)(255 - zero));
    for (int64_t i = 0; i < n; i += GP_VL) {
        const gp_vf scaled = gp_vat_most(gp_vmax(gp_load_some(x + i, n - i) / divisor, lo), hi);
        gp_store_bytes(to + i, (gp_vi)(scaled + 0x1.8p23f) + zero, gp_min(n - i, GP_VL));
    }
}

/* args: src, ranges, dst, scale, zero point */
GP_DEFINE_KERNEL(f32_quantize_dynamic)
{
    const gp_quantize *p = params;
    range all = {0, 0};
    for (int64_t t = 0; t < p->nparts; t++)
        all = join(all, ((const range *)args[1])[t]);
    const float scale = scale_of(all);
    const int32_t zero = zero_of(all, scale);
    if (begin == 0) {
        *(float *)args[3] = scale;
        *(uint8_t *)args[4] = (uint8_t)zero;
    }
    for (int64_t t = begin; t < end; t++)
        quantize_part((const float *)args[0] + t * p->part, (char *)args[2] + t * p->part,
                      gp_min(p->n - t * p->part, p->part), scale, zero);
}

const gp_kernel_entry GP_KERNEL(quantize_table)[] = {
    GP_ENTRY(f32_range, gp_quantize),
    GP_ENTRY(f32_quantize_dynamic, gp_quantize),
    GP_TABLE_END,
};
