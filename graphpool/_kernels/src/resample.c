/* Nearest and linear resampling: a task is one row of results.
 *
 * Coordinates were resolved when the parameter block was made: for each axis a table of out[axis] pairs of source
 * coordinates and a table of the weight of the second one. args: src, dst, then what the epilogue reads beyond dst. */
#include "gp_packed.h"
#include "gp_window.h"

typedef struct {
    gp_row_plan rows;
    int64_t pair_offset[3], weight_offset[3]; /* bytes from the start of this block */
    int64_t epilogue_offset;
} gp_resample;

/* Source coordinates of a result along one axis: (1 - weight) * src[pair[0]] + weight * src[pair[1]]. */
typedef struct {
    const int64_t *pair;
    float weight;
} axis_point;

static inline axis_point point_at(const gp_resample *p, int axis, int64_t o)
{
    const char *block = (const char *)p;
    return (axis_point){(const int64_t *)(block + p->pair_offset[axis]) + 2 * o,
                        ((const float *)(block + p->weight_offset[axis]))[o]};
}

/* tile += scale * (source row, interpolated along the width); `set` overwrites instead. */
static void add_row(const gp_resample *p, const gp_row *row, const float *src, float scale, int set)
{
    const gp_window *w = &p->rows.window;
    const int64_t c_step = w->channels_last ? 1 : row->ld, o_step = w->channels_last ? row->ld : 1;
    for (int64_t c = 0; c < row->channels; ++c, src += w->src_c) {
        float *to = row->tile + c * c_step;
        for (int64_t o = 0; o < w->out[2]; ++o, to += o_step) {
            const axis_point x = point_at(p, 2, o);
            float y = scale * (1 - x.weight) * src[x.pair[0] * w->src[2]];
            if (x.weight != 0)
                y += scale * x.weight * src[x.pair[1] * w->src[2]];
            *to = set ? y : *to + y;
        }
    }
}

/* tile = the source row, by the nearest columns. */
static void copy_row(const gp_resample *p, const gp_row *row, const float *src)
{
    const gp_window *w = &p->rows.window;
    if (w->channels_last)
        for (int64_t o = 0; o < w->out[2]; ++o)
            gp_copy(row->tile + o * row->ld, 0, 1, src + point_at(p, 2, o).pair[0] * w->src[2], 0, w->src_c, 1,
                    row->channels, sizeof(float));
    else
        for (int64_t c = 0; c < row->channels; ++c, src += w->src_c)
            for (int64_t o = 0; o < w->out[2]; ++o)
                row->tile[c * row->ld + o] = src[point_at(p, 2, o).pair[0] * w->src[2]];
}

/* to = sum of scale[k] * from[k], n of them, over channels that lie side by side. */
GP_INLINE void blend(const int n, const float *const *from, const float *scale, int64_t channels, float *to)
{
    gp_vf s[8];
#pragma GCC unroll 8
    for (int k = 0; k < n; k++)
        s[k] = gp_splat(scale[k]);
    for (int64_t c = 0; c < channels; c += GP_VL) {
        gp_vf acc = gp_load_some(from[0] + c, channels - c) * s[0];
#pragma GCC unroll 8
        for (int k = 1; k < n; k++)
            acc = gp_vfma(gp_load_some(from[k] + c, channels - c), s[k], acc);
        gp_store_part(to + c, acc, channels - c);
    }
}

/* A row of results whose channels lie side by side in the source too: pixel by pixel, the points of `rows` source rows
 * at once. Those without weight are not read: they may hold an infinity. */
static void blend_row(const gp_resample *p, const gp_row *row, const float *const *rows, const float *weights,
                      int64_t count)
{
    const gp_window *w = &p->rows.window;
    for (int64_t o = 0; o < w->out[2]; ++o) {
        const axis_point x = point_at(p, 2, o);
        const float *from[8];
        float scale[8], *to = row->tile + o * row->ld;
        int64_t n = 0;
        for (int64_t k = 0; k < count; k++)
            for (int side = 0; side < 1 + (x.weight != 0); side++, n++) {
                from[n] = rows[k] + x.pair[side] * w->src[2];
                scale[n] = weights[k] * (side ? x.weight : 1 - x.weight);
            }
        switch (n) {
        case 1: blend(1, from, scale, row->channels, to); break;
        case 2: blend(2, from, scale, row->channels, to); break;
        case 4: blend(4, from, scale, row->channels, to); break;
        default: blend(8, from, scale, row->channels, to); break;
        }
    }
}

static inline const float *row_source(const gp_resample *p, const gp_row *row, const float *src)
{
    return src + row->n * p->rows.window.src_n + row->c * p->rows.window.src_c;
}

static void GP_KERNEL(f32_resample_nearest)(const void *params, void *const *args, int64_t begin, int64_t end,
                                            void *scratch)
{
    const gp_resample *p = params;
    const gp_window *w = &p->rows.window;
    for (int64_t task = begin; task < end; ++task) {
        const gp_row row = gp_row_begin(&p->rows, args[1], scratch, task);
        const int64_t id = point_at(p, 0, row.od).pair[0], ih = point_at(p, 1, row.oh).pair[0];
        copy_row(p, &row, row_source(p, &row, args[0]) + id * w->src[0] + ih * w->src[1]);
        gp_row_end(&p->rows, &row, (const gp_eltwise *)((const char *)p + p->epilogue_offset), args + 1);
    }
}

static void GP_KERNEL(f32_resample_linear)(const void *params, void *const *args, int64_t begin, int64_t end,
                                           void *scratch)
{
    const gp_resample *p = params;
    const gp_window *w = &p->rows.window;
    for (int64_t task = begin; task < end; ++task) {
        const gp_row row = gp_row_begin(&p->rows, args[1], scratch, task);
        const axis_point d = point_at(p, 0, row.od), h = point_at(p, 1, row.oh);
        const float *src = row_source(p, &row, args[0]), *rows[4];
        float weights[4];
        int64_t count = 0;
        for (int i = 0; i < 1 + (d.weight != 0); ++i)
            for (int j = 0; j < 1 + (h.weight != 0); ++j, ++count) {
                rows[count] = src + d.pair[i] * w->src[0] + h.pair[j] * w->src[1];
                weights[count] = (i ? d.weight : 1 - d.weight) * (j ? h.weight : 1 - h.weight);
            }
        if (w->channels_last && w->src_c == 1)
            blend_row(p, &row, rows, weights, count);
        else
            for (int64_t k = 0; k < count; ++k)
                add_row(p, &row, rows[k], weights[k], k == 0);
        gp_row_end(&p->rows, &row, (const gp_eltwise *)((const char *)p + p->epilogue_offset), args + 1);
    }
}

const gp_kernel_entry GP_KERNEL(resample_table)[] = {
    {"f32_resample_nearest", GP_KERNEL(f32_resample_nearest), sizeof(gp_resample)},
    {"f32_resample_linear", GP_KERNEL(f32_resample_linear), sizeof(gp_resample)},
    {NULL, NULL, 0},
};
