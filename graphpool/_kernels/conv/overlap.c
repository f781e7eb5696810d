/* The second half of a transposed convolution whose first is a product: of each source pixel, what every tap of every
 * channel makes of it, summed up where windows overlap.
 *
 * A task is one row of results of a block of channels. Results that lie a stride apart meet the same taps, so each such
 * phase of the row is a line, to which a tap adds contiguous elements; then the lines are interleaved.
 * args: products (image, channel, tap, pixel), dst, then what the epilogue reads beyond dst. */
#include "image/gp_window.h"

GP_RECORD(gp_overlap, {
    gp_row_plan rows;
    int64_t taps_offset, line; /* of the table of columns, bytes into scratch; elements of a line */
});

/* What a column of taps does to any row: elements of a row of the source, from `first` on, are added to a line. */
typedef struct {
    int64_t line, at, first, count;
} column;

static void find_columns(const gp_overlap *p, column *columns)
{
    const gp_window *w = &p->rows.window;
    for (int64_t k = 0; k < w->kernel[2]; k++) {
        const int64_t stride = w->stride[2], shift = w->pad[2] - k * w->dilation[2]; /* i * stride = result + shift */
        const int64_t low = gp_max(gp_floor_div(shift + stride - 1, stride), 0);
        const int64_t high = gp_min(gp_floor_div(w->out[2] - 1 + shift, stride), w->in[2] - 1);
        const int64_t result = low * stride - shift;
        columns[k] = (column){0};
        if (low <= high)
            columns[k] = (column){result % stride * p->line, result / stride, low, high - low + 1};
    }
}

static void add_row(const gp_overlap *p, const column *columns, const float *src, float *lines)
{
    const gp_window *w = &p->rows.window;
    const int64_t plane = w->in[0] * w->in[1] * w->in[2];
    for (int64_t k = 0; k < w->kernel[2]; k++, src += plane) {
        const float *restrict from = src + columns[k].first;
        float *restrict to = lines + columns[k].line + columns[k].at;
        for (int64_t i = 0; i < columns[k].count; i++)
            to[i] += from[i];
    }
}

/* Results of one channel, `step` elements apart. */
static void interleave(const float *lines, int64_t line, int64_t stride, int64_t n, float *to, int64_t step)
{
    if (stride == 1 && step == 1) {
        memcpy(to, lines, (size_t)n * sizeof *to);
        return;
    }
    if (stride == 2 && step == 1) {
        const float *odd = lines + line;
        for (int64_t i = 0; i < n / 2; i++) {
            to[2 * i] = lines[i];
            to[2 * i + 1] = odd[i];
        }
        if (n % 2)
            to[n - 1] = lines[n / 2];
        return;
    }
    for (int64_t phase = 0; phase < gp_min(stride, n); phase++)
        for (int64_t i = 0; phase + i * stride < n; i++)
            to[(phase + i * stride) * step] = lines[phase * line + i];
}

GP_DEFINE_KERNEL(f32_conv_overlap)
{
    const gp_overlap *p = params;
    const gp_window *w = &p->rows.window;
    const int64_t nlines = w->stride[2] * p->line, plane = w->in[0] * w->in[1] * w->in[2] * w->kernel[2];
    float *lines = (float *)((char *)scratch + p->rows.room_offset);
    column *columns = (column *)((char *)scratch + p->taps_offset);
    find_columns(p, columns);
    for (int64_t task = begin; task < end; ++task) {
        const gp_row row = gp_row_begin(&p->rows, args[1], scratch, task);
        for (int64_t c = 0; c < row.channels; c++) {
            const float *src = (const float *)args[0] + row.n * w->src_n + (row.c + c) * w->src_c;
            memset(lines, 0, (size_t)nlines * sizeof *lines);
            for (int64_t kd = 0; kd < w->kernel[0]; ++kd)
                for (int64_t kh = 0; kh < w->kernel[1]; ++kh, src += plane) {
                    const int64_t id = gp_source_of(w, 0, row.od, kd, 1), ih = gp_source_of(w, 1, row.oh, kh, 1);
                    if (id >= 0 && ih >= 0)
                        add_row(p, columns, src + id * w->src[0] + ih * w->src[1], lines);
                }
            interleave(lines, p->line, w->stride[2], w->out[2], row.tile + c * (w->channels_last ? 1 : row.ld),
                       w->channels_last ? row.ld : 1);
        }
        gp_row_end(&p->rows, &row, (const gp_eltwise *)(p + 1), args + 1);
    }
}

const gp_kernel_entry GP_KERNEL(conv_overlap_table)[] = {
    GP_ENTRY(f32_conv_overlap, gp_overlap),
    GP_TABLE_END,
};
