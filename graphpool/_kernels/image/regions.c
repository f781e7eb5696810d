/* Regions of images, averaged or maximised over bins of bilinear samples (RoiAlign). */
#include "core/gp_kernel.h"

#include <math.h>

GP_RECORD(regions_params, {
    int64_t nimages, nchannels, height, width; /* of src, dense */
    int64_t out_height, out_width, ratio, is_max;
    int64_t room[2];                           /* samples along y and x */
    float scale, shift;                        /* shift: half a pixel, or 0, and then a region has a pixel at least */
});

/* A place between two rows or columns of the image. */
GP_RECORD(region_sample, {
    int32_t low, high;
    float low_weight, high_weight;
});

/* The samples of all bins along an axis: those of a bin from first[bin] to first[bin + 1]. Others lie outside the image
 * and are 0; `count` is the number of both, in each bin. */
typedef struct {
    region_sample *samples;
    int64_t *first;
    double count;
} axis_samples;

/* The samples of an axis of `size` from `start` on, `extent` long, over `nbins`; at most `room`, which suffices: see
 * regions.py. However far the region reaches, only what may lie within the image is looked at. */
static void place_samples(axis_samples *axis, int64_t room, float start, float extent, int64_t nbins, int64_t size,
                          int64_t ratio)
{
    const float bin = extent / (float)nbins;
    const float grid = ratio > 0 ? (float)ratio : ceilf(bin);
    int64_t n = 0;
    axis->count = grid > 0 ? grid : 0;
    for (int64_t b = 0; b < nbins; b++) {
        axis->first[b] = n;
        if (!(grid > 0) || !isfinite(start) || !isfinite(bin) || size == 0)
            continue;
        const float from = start + (float)b * bin, step = bin / grid;
        /* two more on either side, since this is rounded otherwise than the places themselves */
        const double lowest = floor((-1.0 - from) / step) - 2, highest = ceil(((double)size - from) / step) + 2;
        const double first = step > 0 && lowest > 0 ? lowest : 0, last = step > 0 && highest < grid ? highest : grid;
        const int64_t most = ratio > 0 ? ratio : 2 * (size + 3) + 4;
        const int64_t number = last - first < (double)most ? (int64_t)(last - first) : most;
        for (int64_t i = 0; i < number && n < room; i++) {
            const float at = from + ((float)(first + (double)i) + 0.5f) * bin / grid;
            if (at < -1.0f || at > (float)size)
                continue;
            const float place = at > 0 ? at : 0;
            const int64_t low = (int64_t)place < size - 1 ? (int64_t)place : size - 1;
            const float high_weight = low == size - 1 ? 0 : place - (float)low;
            axis->samples[n++] = (region_sample){
                (int32_t)low, (int32_t)(low < size - 1 ? low + 1 : low), 1 - high_weight, high_weight};
        }
    }
    axis->first[nbins] = n;
}

/* The mean of the samples of a bin; those outside count as 0. */
static float mean_of(const region_sample *y, int64_t ny, const region_sample *x, int64_t nx, const float *image,
                     int64_t width, float count)
{
    float sum = 0;
    for (int64_t i = 0; i < ny; i++) {
        const float *low = image + y[i].low * width, *high = image + y[i].high * width;
        for (int64_t j = 0; j < nx; j++)
            sum += y[i].low_weight * x[j].low_weight * low[x[j].low] +
                   y[i].low_weight * x[j].high_weight * low[x[j].high] +
                   y[i].high_weight * x[j].low_weight * high[x[j].low] +
                   y[i].high_weight * x[j].high_weight * high[x[j].high];
    }
    return count > 0 ? sum / count : 0;
}

/* NaN if either is. */
static float larger(float a, float b)
{
    return a > b || isnan(a) ? a : b;
}

/* The largest of the weighted corners of all samples, as ONNX defines it; those outside are 0. */
static float max_of(const region_sample *y, int64_t ny, const region_sample *x, int64_t nx, const float *image,
                    int64_t width, float count)
{
    const int is_whole = (float)ny * (float)nx == count && count > 0;
    float most = is_whole ? -INFINITY : 0;
    for (int64_t i = 0; i < ny; i++) {
        const float *low = image + y[i].low * width, *high = image + y[i].high * width;
        for (int64_t j = 0; j < nx; j++) {
            most = larger(most, larger(y[i].low_weight * x[j].low_weight * low[x[j].low],
                                       y[i].low_weight * x[j].high_weight * low[x[j].high]));
            most = larger(most, larger(y[i].high_weight * x[j].low_weight * high[x[j].low],
                                       y[i].high_weight * x[j].high_weight * high[x[j].high]));
        }
    }
    return most;
}

/* args: src, regions (x0, y0, x1, y1), batch indices (s64), dst. A task is a region. Scratch: the samples of both axes,
 * then where those of each bin begin. An index outside the batch picks the nearest image. */
GP_DEFINE_INDEX_KERNEL(f32_regions)
{
    const regions_params *p = params;
    int is_outside = 0;
    axis_samples y = {scratch, NULL, 0}, x = {y.samples + p->room[0], NULL, 0};
    y.first = (int64_t *)(x.samples + p->room[1]);
    x.first = y.first + p->out_height + 1;
    const int64_t pixels = p->height * p->width;
    for (int64_t task = begin; task < end; task++) {
        const float *region = (const float *)args[1] + 4 * task, shift = p->shift;
        const float x0 = region[0] * p->scale - shift, y0 = region[1] * p->scale - shift;
        float width = region[2] * p->scale - shift - x0, height = region[3] * p->scale - shift - y0;
        if (shift == 0)
            width = width < 1 ? 1 : width, height = height < 1 ? 1 : height;
        place_samples(&y, p->room[0], y0, height, p->out_height, p->height, p->ratio);
        place_samples(&x, p->room[1], x0, width, p->out_width, p->width, p->ratio);
        const float count = (float)(y.count * x.count);
        const int64_t index = ((const int64_t *)args[2])[task], wrapped = index < 0 ? index + p->nimages : index;
        const int64_t number = wrapped < 0 ? 0 : wrapped < p->nimages ? wrapped : p->nimages - 1;
        is_outside |= number != wrapped;
        const float *image = (const float *)args[0] + number * p->nchannels * pixels;
        float *dst = (float *)args[3] + task * p->nchannels * p->out_height * p->out_width;
        for (int64_t c = 0; c < p->nchannels; c++, image += pixels)
            for (int64_t i = 0; i < p->out_height; i++)
                for (int64_t j = 0; j < p->out_width; j++)
                    *dst++ = (p->is_max ? max_of : mean_of)(
                        y.samples + y.first[i], y.first[i + 1] - y.first[i], x.samples + x.first[j],
                        x.first[j + 1] - x.first[j], image, p->width, count);
    }
    return is_outside;
}

const gp_kernel_entry GP_KERNEL(regions_table)[] = {
    GP_ENTRY(f32_regions, regions_params),
    GP_INNER(region_sample),
    GP_TABLE_END,
};
