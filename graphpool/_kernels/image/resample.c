/* Nearest and linear resampling: a task is one row of results of a block of channels.
 *
 * Of each axis a coordinate of a result is resolved to two source coordinates, which never fall along the axis, and the
 * weight of the second one. Those of a row are tables in scratch, made once a call; a vector may be read at any element of
 * them. args: src, dst, then what the epilogue reads beyond dst.
 *
 * Where channels lie side by side on both sides, vectors run along them. Else channels are taken one by one: source rows
 * are blended into a line, and a vector of results picks its elements out of one vector of the line, which holds them
 * unless the axis shrinks. */
#include "core/gp_vec.h"
#include "image/gp_window.h"

GP_RECORD(gp_resample, {
    gp_row_plan rows;
    int64_t low_offset, high_offset, weight_offset; /* of the tables of a row; bytes from the start of scratch */
    int64_t line_offset;                            /* of the table of rows that nearest reads */
    int64_t aligns_corners;                         /* else half_pixel */
    int64_t epilogue_offset;
});

/* (1 - weight) * src[low] + weight * src[high]. */
typedef struct {
    int64_t low, high;
    float weight;
} axis_point;

/* Tables of the last axis. */
typedef struct {
    int32_t *low, *high;
    float *weight;
    int is_dense; /* whether every vector of results reads one of the source */
} axis_points;

/* What result o of an axis reads: coordinates are exact ratios of integers. */
GP_INLINE axis_point find_point(const gp_resample *p, int axis, int64_t o, const int is_linear)
{
    const int64_t n = p->rows.window.in[axis], m = p->rows.window.out[axis];
    const int64_t numerator = p->aligns_corners ? o * (n - 1) : (2 * o + 1) * n - m;
    const int64_t denominator = p->aligns_corners ? gp_max(m - 1, 1) : 2 * m;
    if (!is_linear) {
        const int64_t nearest = gp_min((2 * numerator + denominator) / (2 * denominator), n - 1);
        return (axis_point){nearest, nearest, 0};
    }
    const int64_t inside = gp_min(gp_max(numerator, 0), (n - 1) * denominator), low = inside / denominator;
    const float weight = (float)((double)(inside - low * denominator) / (double)denominator);
    return (axis_point){low, weight > 0 ? gp_min(low + 1, n - 1) : low, weight};
}

/* Where the vector of the source of n begins that a vector of results reads whose first one is at `low`. */
GP_INLINE int64_t first_of(int64_t low, int64_t n)
{
    return gp_max(gp_min(low, n - GP_VL), 0);
}

/* Where the vector of results i begins: the last one ends with the row, if there is a whole one. */
GP_INLINE int64_t result_of(int64_t i, int64_t m)
{
    return gp_max(gp_min(i * GP_VL, m - GP_VL), 0);
}

/* The tables, with zeros behind them for whole vectors. */
GP_INLINE axis_points fill_points(const gp_resample *p, char *scratch, const int is_linear)
{
    axis_points x = {(int32_t *)(scratch + p->low_offset), (int32_t *)(scratch + p->high_offset),
                     (float *)(scratch + p->weight_offset), 0};
    const int64_t n = p->rows.window.in[2], m = p->rows.window.out[2];
    for (int64_t o = 0; o < m + GP_VL; o++) {
        const axis_point point = o < m ? find_point(p, 2, o, is_linear) : (axis_point){0};
        x.low[o] = (int32_t)point.low, x.high[o] = (int32_t)point.high, x.weight[o] = point.weight;
    }
    x.is_dense = 1;
    for (int64_t i = 0; x.is_dense && i * GP_VL < m; i++) {
        const int64_t at = result_of(i, m);
        x.is_dense = x.high[gp_min(at + GP_VL, m) - 1] - first_of(x.low[at], n) < GP_VL;
    }
    return x;
}

/* Source rows of a row of results, those without weight left out: they may hold an infinity. */
typedef struct {
    const float *rows[4]; /* at the first channel of the task */
    float weights[4];
    int64_t count;
} row_sources;

GP_INLINE row_sources find_rows(const gp_resample *p, const gp_row *row, const float *src, const int is_linear)
{
    const gp_window *w = &p->rows.window;
    const axis_point d = find_point(p, 0, row->od, is_linear), h = find_point(p, 1, row->oh, is_linear);
    row_sources s = {.count = 0};
    src += row->n * w->src_n + row->c * w->src_c;
    for (int i = 0; i < 1 + (d.weight != 0); ++i)
        for (int j = 0; j < 1 + (h.weight != 0); ++j, ++s.count) {
            const int64_t id = i ? d.high : d.low, ih = j ? h.high : h.low;
            s.rows[s.count] = src + id * w->src[0] + ih * w->src[1];
            s.weights[s.count] = (i ? d.weight : 1 - d.weight) * (j ? h.weight : 1 - h.weight);
        }
    return s;
}

/* One line for each channel: element i of channel c lies at data[c * ld + i]. */
typedef struct {
    const float *data;
    int64_t ld;
} line_set;

/* The source rows of a channel as one line. */
static void blend_line(const gp_window *w, const row_sources *s, int64_t channel, float *line)
{
    const int64_t step = w->src[2];
    for (int64_t k = 0; k < s->count; k++) {
        const float *from = s->rows[k] + channel;
        const gp_vf weight = gp_splat(s->weights[k]); /* 1 where there is one row */
        for (int64_t i = 0; i < w->in[2]; i += GP_VL) {
            const int64_t left = w->in[2] - i;
            gp_vf v = {0};
            if (step == 1)
                v = gp_load_some(from + i, left);
            else
                for (int j = 0; j < gp_min(GP_VL, left); j++)
                    v[j] = from[(i + j) * step];
            gp_store(line + i, k == 0 ? v * weight : gp_vfma(v, weight, gp_load(line + i)));
        }
    }
}

/* The lines of a task's channels: the source rows themselves where they are single ones that can be read. */
static line_set find_lines(const gp_window *w, const row_sources *s, int64_t channels, float *room)
{
    if (s->count == 1 && w->src[2] == 1)
        return (line_set){s->rows[0], w->src_c};
    const int64_t ld = (w->in[2] + GP_VL - 1) / GP_VL * GP_VL;
    for (int64_t c = 0; c < channels; c++)
        blend_line(w, s, c * w->src_c, room + c * ld);
    return (line_set){room, ld};
}

GP_INLINE gp_vi load_indices(const int32_t *from)
{
    gp_vi v;
    memcpy(&v, from, sizeof v);
    return v;
}

/* Channels that are written in turns: what they share is found once, and lines of memory are soon full. */
#define GP_SPREAD_CHANNELS 8

/* Results o, o + 1, ... of the channels from `begin` to `end`. A neighbour without weight is not used. */
GP_INLINE void spread(const gp_window *w, const axis_points *x, int64_t o, int64_t begin, int64_t end,
                      const line_set *lines, const gp_row *row, const int is_linear)
{
    const int64_t left = w->out[2] - o, last = o + gp_min(left, GP_VL) - 1, first = x->low[o], n = w->in[2];
    const int fits = x->high[last] - first < GP_VL;
    const gp_vi lows = load_indices(x->low + o) - (int32_t)first, highs = load_indices(x->high + o) - (int32_t)first;
    const gp_vf weight = is_linear ? gp_load(x->weight + o) : (gp_vf){0};
    for (int64_t c = begin; c < end; c++) {
        const float *line = lines->data + c * lines->ld;
        gp_vf low = {0}, high = {0};
        if (fits) {
            const gp_vf found = gp_load_some(line + first, n - first);
            low = gp_pick_lanes(found, lows);
            high = is_linear ? gp_pick_lanes(found, highs) : low;
        } else {
            for (int64_t i = o; i <= last; i++) {
                low[i - o] = line[x->low[i]];
                high[i - o] = line[x->high[i]];
            }
        }
        if (is_linear)
            low = gp_vselect(gp_vequal(weight, (gp_vf){0}), low, gp_vfma(high, weight, low * (1.0f - weight)));
        float *to = row->tile + (w->channels_last ? c + o * row->ld : c * row->ld + o);
        if (!w->channels_last)
            gp_store_part(to, low, left);
        else
            for (int64_t i = 0; i < gp_min(left, GP_VL); i++)
                to[i * row->ld] = low[i];
    }
}

/* Of dense points, for each vector of results: in `low` where the vector of the source begins that it reads, and in
 * `high` the lanes of that one. */
static void find_picks(const gp_window *w, axis_points *x)
{
    const int64_t m = w->out[2];
    int32_t last[GP_VL]; /* read before what lies there is written over */
    memcpy(last, x->low + result_of(m, m), sizeof last);
    for (int64_t i = 0; i * GP_VL < m; i++) {
        const int64_t at = result_of(i, m);
        const int32_t *low = at == i * GP_VL ? x->low + at : last, first = (int32_t)first_of(low[0], w->in[2]);
        for (int64_t k = 0; k < GP_VL; k++)
            x->high[i * GP_VL + k] = low[k] - first;
        x->low[i] = first;
    }
}

/* Lines of planes of results that read the same plane of the source. */
typedef struct {
    int64_t n, m;                 /* elements of a line of the source, of results */
    const int32_t *sources;       /* the line of the source that each reads */
    int64_t count;
    int64_t src_line, dst_line;   /* strides */
} plane_lines;

/* The nearest elements of a line of the source, in a line of results and, where it is another one, in a second. */
GP_INLINE void pick_line(const int32_t *restrict first, const int32_t *restrict lanes, const float *restrict from,
                         int64_t n, float *to, float *second, int64_t m)
{
    int64_t at = 0;
    for (; at + GP_VL <= m; at += GP_VL, first++, lanes += GP_VL) {
        const gp_vf picked = gp_pick_lanes(gp_load_some(from + *first, n), load_indices(lanes));
        gp_store(to + at, picked);
        gp_store(second + at, picked);
    }
    if (at < m) {
        const gp_vf picked = gp_pick_lanes(gp_load_some(from + *first, n), load_indices(lanes));
        const int64_t last = gp_max(m - GP_VL, 0);
        gp_store_part(to + last, picked, m);
        gp_store_part(second + last, picked, m);
    }
}

/* The same where an axis shrinks: element by element. */
GP_INLINE void take_line(const int32_t *restrict low, const float *restrict from, float *restrict to, float *second,
                         int64_t m)
{
    for (int64_t o = 0; o < m; o++)
        to[o] = from[low[o]];
    if (second != to)
        memcpy(second, to, (size_t)m * sizeof *to);
}

/* The lines of one plane. Two that read the same line of the source are written at once. */
GP_INLINE void pick_plane(const axis_points *x, const plane_lines *lines, const float *src, float *to, const int is_dense,
                          const int is_whole)
{
    const int64_t n = lines->n, m = lines->m, step = lines->dst_line;
    const int32_t *first = x->low, *lanes = x->high;
    for (const int32_t *source = lines->sources, *const end = source + lines->count; source < end;) {
        const float *from = src + *source * lines->src_line;
        const int is_twice = source + 1 < end && source[0] == source[1];
        float *second = is_twice ? to + step : to;
        if (!is_dense)
            take_line(first, from, to, second, m);
        else
            pick_line(first, lanes, from, is_whole ? GP_VL : n, to, second, m);
        source += 1 + is_twice;
        to = second + step;
    }
}

/* Functions of their own, so that what their loops need is in registers. */
#define GP_PICK(name, is_dense, is_whole)                                                                              \
    static __attribute__((noinline)) void name(const axis_points *x, const plane_lines *lines, const float *src,       \
                                               float *to)                                                              \
    {                                                                                                                  \
        pick_plane(x, lines, src, to, is_dense, is_whole);                                                             \
    }
GP_PICK(pick_whole, 1, 1)
GP_PICK(pick_part, 1, 0)
GP_PICK(take_some, 0, 0)

/* n_rows rows of results of planes, plane by plane, so that results are written one behind the other. */
static void pick_rows(const gp_resample *p, const axis_points *x, const int32_t *sources, const gp_row *row, int64_t n_rows,
                      const float *src)
{
    const gp_window *w = &p->rows.window;
    const plane_lines lines = {w->in[2], w->out[2], sources + row->oh, n_rows, w->src[1], w->dst[1]};
    src += row->n * w->src_n + row->c * w->src_c + find_point(p, 0, row->od, 0).low * w->src[0];
    for (int64_t c = 0; c < row->channels; c++, src += w->src_c) {
        float *to = row->tile + c * row->ld;
        if (!x->is_dense)
            take_some(x, &lines, src, to);
        else if (lines.n >= GP_VL && lines.m >= GP_VL)
            pick_whole(x, &lines, src, to);
        else
            pick_part(x, &lines, src, to);
    }
}

static void spread_row(const gp_window *w, const axis_points *x, const gp_row *row, const row_sources *s, float *room,
                       const int is_linear)
{
    const line_set lines = find_lines(w, s, row->channels, room);
    for (int64_t c = 0; c < row->channels; c += GP_SPREAD_CHANNELS)
        for (int64_t o = 0; o < w->out[2]; o += GP_VL)
            if (is_linear)
                spread(w, x, o, c, gp_min(c + GP_SPREAD_CHANNELS, row->channels), &lines, row, 1);
            else
                spread(w, x, o, c, gp_min(c + GP_SPREAD_CHANNELS, row->channels), &lines, row, 0);
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

/* A row of results whose channels lie side by side in the source too: pixel by pixel, the points of all source rows at
 * once. */
static void blend_row(const gp_window *w, const axis_points *x, const gp_row *row, const row_sources *s)
{
    for (int64_t o = 0; o < w->out[2]; ++o) {
        const float *from[8], weight = x->weight[o];
        float scale[8], *to = row->tile + o * row->ld;
        int64_t n = 0;
        for (int64_t k = 0; k < s->count; k++)
            for (int side = 0; side < 1 + (weight != 0); side++, n++) {
                from[n] = s->rows[k] + (side ? x->high[o] : x->low[o]) * w->src[2];
                scale[n] = s->weights[k] * (side ? weight : 1 - weight);
            }
        switch (n) {
        case 1: memcpy(to, from[0], (size_t)row->channels * sizeof *to); break; /* its weight is 1 */
        case 2: blend(2, from, scale, row->channels, to); break;
        case 4: blend(4, from, scale, row->channels, to); break;
        default: blend(8, from, scale, row->channels, to); break;
        }
    }
}

GP_INLINE void resample(const gp_resample *p, void *const *args, int64_t begin, int64_t end, void *scratch,
                        const int is_linear)
{
    const gp_window *w = &p->rows.window;
    float *room = (float *)((char *)scratch + p->rows.room_offset);
    axis_points x = fill_points(p, scratch, is_linear);
    const int is_picked = !is_linear && !w->channels_last && w->src[2] == 1;
    const int64_t most = is_picked && !p->rows.tile_in_scratch && !p->rows.has_epilogue ? w->out[1] : 1;
    int32_t *lines = (int32_t *)((char *)scratch + p->line_offset);
    if (is_picked) {
        if (x.is_dense)
            find_picks(w, &x);
        for (int64_t task = begin; task < gp_min(end, begin + w->out[1]); task++)
            lines[task % w->out[1]] = (int32_t)find_point(p, 1, task % w->out[1], 0).low;
    }
    for (int64_t task = begin, n_rows; task < end; task += n_rows) {
        const gp_row row = gp_row_begin(&p->rows, args[1], scratch, task);
        n_rows = gp_min(gp_min(end - task, w->out[1] - row.oh), most);
        if (is_picked) {
            pick_rows(p, &x, lines, &row, n_rows, args[0]);
        } else {
            const row_sources s = find_rows(p, &row, args[0], is_linear);
            if (w->channels_last && w->src_c == 1)
                blend_row(w, &x, &row, &s);
            else
                spread_row(w, &x, &row, &s, room, is_linear);
        }
        gp_row_end(&p->rows, &row, (const gp_eltwise *)((const char *)p + p->epilogue_offset), args + 1);
    }
}

GP_DEFINE_KERNEL(f32_resample_nearest) { resample(params, args, begin, end, scratch, 0); }
GP_DEFINE_KERNEL(f32_resample_linear) { resample(params, args, begin, end, scratch, 1); }

const gp_kernel_entry GP_KERNEL(resample_table)[] = {
    GP_ENTRY(f32_resample_nearest, gp_resample),
    GP_ENTRY(f32_resample_linear, gp_resample),
    GP_TABLE_END,
};
