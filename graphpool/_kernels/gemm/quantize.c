/* Dynamic quantisation: numbers as unsigned bytes whose scale and zero point follow from the range of all of them.
 *
 * Two passes: the range of each part, then the bytes. The second one joins the ranges in every task anew, for they are
 * few; the least and the greatest number do not depend on how parts are divided. A task is a part. */
#include "gemm/gp_quantize.h"

GP_RECORD(gp_quantize, {
    int64_t n, part, nparts; /* elements; those of a part */
});

/* args: src, ranges of shape (nparts, 2) */
GP_DEFINE_KERNEL(f32_range)
{
    const gp_quantize *p = params;
    gp_range *to = args[1];
    for (int64_t t = begin; t < end; t++)
        to[t] = gp_range_of((const float *)args[0] + t * p->part, gp_min(p->n - t * p->part, p->part));
}

/* args: src, ranges, dst, scale, zero point */
GP_DEFINE_KERNEL(f32_quantize_dynamic)
{
    const gp_quantize *p = params;
    gp_range all = {0, 0};
    for (int64_t t = 0; t < p->nparts; t++)
        all = gp_range_join(all, ((const gp_range *)args[1])[t]);
    const float scale = gp_range_scale(all);
    const int32_t zero = gp_range_zero(all, scale);
    if (begin == 0) {
        *(float *)args[3] = scale;
        *(uint8_t *)args[4] = (uint8_t)zero;
    }
    for (int64_t t = begin; t < end; t++)
        gp_quantize_row((const float *)args[0] + t * p->part, (char *)args[2] + t * p->part,
                      gp_min(p->n - t * p->part, p->part), scale, zero);
}

const gp_kernel_entry GP_KERNEL(quantize_table)[] = {
    GP_ENTRY(f32_range, gp_quantize),
    GP_ENTRY(f32_quantize_dynamic, gp_quantize),
    GP_TABLE_END,
};
