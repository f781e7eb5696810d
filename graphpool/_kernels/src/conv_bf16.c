/* Convolution with weights in panels (gp_packed.h) of bf16: implicit matrix products of images in bf16 or f32, in f32.
 *
 * A task is a rectangle of pixels of one image by a block of columns of one group of channels. It first copies what it
 * reads of the source to scratch, as bf16: padding included, channels innermost and made even in number, so that each
 * pair is a word. Taps that lie side by side there are one run of words. Windows of one tap read pixels of bf16 where
 * they lie. Padded channels are zeros on both sides, so that an infinity beside them stays where it is.
 *
 * args: src, packed weights, then at the places that the parameters name: bias, residual, dst and what the epilogue reads
 * beyond dst. The iteration space of the epilogue is row-major over (n, spatial..., c). Scratch: the tile of the
 * epilogue, where pixels and runs are read, the source. */
#include "gp_convert.h"
#include "gp_packed_tile.h"
#include "gp_tile_table.h"
#include "gp_window.h"

typedef struct {
    gp_window window;                      /* its dst strides are not used */
    int64_t groups, ic, oc;                /* channels of one group */
    int64_t pixel;                         /* elements of a pixel in scratch */
    int64_t merged, words, runs;           /* taps of a run, its words, runs of a pixel */
    int64_t block_rows, block_cols, col_block; /* results of a task; a part of a row only if it is one row */
    int64_t dst_n, dst_pixel, residual_n, residual_pixel;
    int64_t src_dtype, is_direct;
    int64_t bias_arg, residual_arg, dst_arg; /* 0: there is none */
    int64_t tile_in_scratch, has_epilogue;
    int64_t rows_offset, runs_offset, room_offset; /* bytes into scratch; the tile lies at 0 */
    float lo, hi;
} gp_conv_bf16;

/* A rectangle of results of one image, and where it is read. */
typedef struct {
    int64_t number, group; /* which one it is; -1: none yet */
    int64_t n, od, oh, ow, rows, cols;
    const char **row;      /* one a pixel */
    int64_t *run;          /* bytes from there */
    uint16_t *room;
} rectangle;

/* ---- tiles ---- */

/* Tiles beyond the registers are never called and compile to nothing. */
#define GP_DEFINE_TILE(rows, panels, vectors)                                                                          \
    static __attribute__((noinline)) void GP_TILE_NAME(rows, panels, vectors)(                                         \
        int64_t runs, int64_t words, const char *const *row, const int64_t *run, const float *b, int64_t panel_step,   \
        const gp_packed_sink *sink)                                                                                    \
    {                                                                                                                  \
        if (rows * panels * vectors <= GP_TILE_VECTORS)                                                                \
            gp_runs_tile(GP_PACKED_BF16, rows, panels, vectors, runs, words, row, run, b, panel_step, sink);           \
    }

GP_DEFINE_TILES(gp_runs_fn)

/* ---- the source ---- */

/* `count` pixels from element `from` of the source on, channels beginning there, to scratch. */
static void stage_pixels(const gp_conv_bf16 *p, const void *src, int64_t from, int64_t count, uint16_t *to)
{
    const int64_t step = p->window.src[2], channel = p->window.src_c;
    const float *floats = src;
    const uint16_t *halves = src;
    if (p->src_dtype == GP_F32 && channel == 1 && step == p->pixel && p->ic == p->pixel) {
        GP_KERNEL(store_row)(GP_BF16, floats + from, to, 0, 1, count * p->ic);
        return;
    }
    if (p->src_dtype == GP_BF16) {
        gp_copy(to, p->pixel, 1, halves + from, step, channel, count, p->ic, sizeof *to);
    } else if (channel == 1 && p->ic >= GP_VL) {
        for (int64_t x = 0; x < count; x++)
            GP_KERNEL(store_row)(GP_BF16, floats + from + x * step, to + x * p->pixel, 0, 1, p->ic);
    } else {
        for (int64_t c = 0; c < p->ic; c++)
            for (int64_t x = 0; x < count; x++)
                to[x * p->pixel + c] = gp_to_bf16(floats[from + x * step + c * channel]);
    }
    for (int64_t x = 0; p->ic < p->pixel && x < count; x++)
        to[x * p->pixel + p->ic] = 0;
}

/* Columns `first` to `first + count` of a row of the source whose pixel 0 is element `from`; a row of padding where it
 * is not inside. */
static void stage_row(const gp_conv_bf16 *p, const void *src, int64_t from, int is_inside, int64_t first, int64_t count,
                      uint16_t *to)
{
    const int64_t begin = is_inside ? gp_min(gp_max(-first, 0), count) : count;
    const int64_t end = gp_max(gp_min(p->window.in[2] - first, count), begin);
    memset(to, 0, (size_t)(begin * p->pixel) * sizeof *to);
    stage_pixels(p, src, from + (first + begin) * p->window.src[2], end - begin, to + begin * p->pixel);
    memset(to + end * p->pixel, 0, (size_t)((count - end) * p->pixel) * sizeof *to);
}

/* What `count` results read along an axis. */
static int64_t extent(const gp_window *w, int axis, int64_t count)
{
    return (count - 1) * w->stride[axis] + (w->kernel[axis] - 1) * w->dilation[axis] + 1;
}

/* The source of a rectangle in scratch; its image and group begin at element `from`. */
static void stage(const gp_conv_bf16 *p, const void *src, int64_t from, const rectangle *at)
{
    const gp_window *w = &p->window;
    const int64_t height = extent(w, 1, at->rows), width = extent(w, 2, at->cols);
    const int64_t first = at->ow * w->stride[2] - w->pad[2], pixel_nbytes = p->pixel * 2;
    int64_t *run = at->run;
    for (int64_t kd = 0; kd < w->kernel[0]; kd++) {
        const int64_t id = at->od * w->stride[0] - w->pad[0] + kd * w->dilation[0];
        for (int64_t y = 0; y < height; y++) {
            const int64_t ih = at->oh * w->stride[1] - w->pad[1] + y;
            const int is_inside = id >= 0 && id < w->in[0] && ih >= 0 && ih < w->in[1];
            stage_row(p, src, from + id * w->src[0] + ih * w->src[1], is_inside, first, width,
                      at->room + (kd * height + y) * width * p->pixel);
        }
        for (int64_t kh = 0; kh < w->kernel[1]; kh++)
            for (int64_t kw = 0; kw < w->kernel[2]; kw += p->merged)
                *run++ = ((kd * height + kh * w->dilation[1]) * width + kw * w->dilation[2]) * pixel_nbytes;
    }
    for (int64_t y = 0; y < at->rows; y++)
        for (int64_t x = 0; x < at->cols; x++)
            at->row[y * at->cols + x] =
                (const char *)at->room + (y * w->stride[1] * width + x * w->stride[2]) * pixel_nbytes;
}

/* The same without a copy, for windows of one tap and no padding. */
static void point(const gp_conv_bf16 *p, const uint16_t *src, const rectangle *at)
{
    const gp_window *w = &p->window;
    src += at->od * w->stride[0] * w->src[0];
    *at->run = 0;
    for (int64_t y = 0; y < at->rows; y++)
        for (int64_t x = 0; x < at->cols; x++)
            at->row[y * at->cols + x] = (const char *)(src + (at->oh + y) * w->stride[1] * w->src[1] +
                                                       (at->ow + x) * w->stride[2] * w->src[2]);
}

/* Rectangle `number` of a group; the source is copied anew only where it is another than before. */
static void enter(const gp_conv_bf16 *p, const void *src, int64_t number, int64_t group, rectangle *at)
{
    if (at->number == number && at->group == group)
        return;
    const gp_window *w = &p->window;
    const int64_t wide = (w->out[2] + p->block_cols - 1) / p->block_cols;
    const int64_t high = (w->out[1] + p->block_rows - 1) / p->block_rows;
    at->number = number;
    at->group = group;
    at->n = number / wide / high / w->out[0];
    at->od = number / wide / high % w->out[0];
    at->oh = number / wide % high * p->block_rows;
    at->ow = number % wide * p->block_cols;
    at->rows = gp_min(w->out[1] - at->oh, p->block_rows);
    at->cols = gp_min(w->out[2] - at->ow, p->block_cols);
    const int64_t from = at->n * w->src_n + group * p->ic * w->src_c;
    if (p->is_direct)
        point(p, (const uint16_t *)src + from, at);
    else
        stage(p, src, from, at);
}

/* ---- blocks ---- */

/* All pixels of a rectangle by one group of panels. */
static void panels_of(const gp_conv_bf16 *p, const rectangle *at, int column, const float *b, gp_packed_sink sink)
{
    const char *const *row = at->row;
    int64_t rows = at->rows * at->cols;
    for (int64_t left = (rows + GP_TILE_ROWS - 1) / GP_TILE_ROWS; left; left--) {
        const int64_t height = (rows + left - 1) / left;
        tiles[height - 1][column](p->runs, p->words, row, at->run, b, p->runs * p->words * GP_PANEL, &sink);
        rows -= height;
        row += height;
        gp_sink_down(&sink, height);
    }
}

/* The columns j to j + cols of the group of channels whose weights are b. */
static void columns(const gp_conv_bf16 *p, const rectangle *at, int64_t j, int64_t cols, const float *b,
                    gp_packed_sink sink)
{
    const int64_t pixels = at->rows * at->cols, ntiles = (pixels + GP_TILE_ROWS - 1) / GP_TILE_ROWS;
    for (int64_t left = cols; left > 0;) {
        const int panels = gp_streams((pixels + ntiles - 1) / ntiles, left);
        const int64_t step = gp_min(panels * GP_PANEL, left);
        sink.cols = step;
        panels_of(p, at, gp_panel_width(j, p->oc) == GP_VL ? 0 : panels == 4 ? 3 : panels, b + j * p->runs * p->words,
                  sink);
        gp_sink_right(&sink, step);
        j += step;
        left -= step;
    }
}

static void task(const gp_conv_bf16 *p, void *const *args, const rectangle *at, int64_t j, char *scratch)
{
    const gp_window *w = &p->window;
    const int64_t cols = gp_min(p->oc - j, p->col_block), c = at->group * p->oc + j, channels = p->groups * p->oc;
    const int64_t pixel = (at->od * w->out[1] + at->oh) * w->out[2] + at->ow;
    const int64_t group_words = p->runs * p->words * gp_packed_cols(p->oc);
    gp_packed_sink sink = {.lo = p->lo, .hi = p->hi, .residual_row = p->residual_pixel, .is_first = 1, .is_last = 1};
    sink.c = p->tile_in_scratch ? (float *)scratch
                                : (float *)args[p->dst_arg] + at->n * p->dst_n + pixel * p->dst_pixel + c;
    sink.ldc = p->tile_in_scratch ? cols : p->dst_pixel;
    sink.partial = (float *)scratch; /* not used: sums are never split */
    if (p->bias_arg)
        sink.bias = (const float *)args[p->bias_arg] + c;
    if (p->residual_arg)
        sink.residual = (const float *)args[p->residual_arg] + at->n * p->residual_n + pixel * p->residual_pixel + c;
    columns(p, at, j, cols, (const float *)args[1] + at->group * group_words, sink);
    if (p->has_epilogue)
        gp_run_epilogue((const gp_eltwise *)(p + 1), args + p->dst_arg, sink.c, sink.ldc, at->rows * at->cols, cols,
                        (at->n * w->out[0] * w->out[1] * w->out[2] + pixel) * channels + c, channels);
}

static void GP_KERNEL(bf16_conv_packed)(const void *params, void *const *args, int64_t begin, int64_t end, void *scratch)
{
    const gp_conv_bf16 *p = params;
    const int64_t col_blocks = (p->oc + p->col_block - 1) / p->col_block;
    rectangle at = {.number = -1};
    at.row = (const char **)((char *)scratch + p->rows_offset);
    at.run = (int64_t *)((char *)scratch + p->runs_offset);
    at.room = (uint16_t *)((char *)scratch + p->room_offset);
    for (int64_t t = begin; t < end; t++) {
        enter(p, args[0], t / col_blocks / p->groups, t / col_blocks % p->groups, &at);
        task(p, args, &at, t % col_blocks * p->col_block, scratch);
    }
}

/* ---- weights ---- */

typedef struct {
    int64_t groups, ic, oc; /* channels of one group */
    int64_t kernel[3], pixel, merged, words, runs;
    int64_t w_group, w_oc, w_ic, w[3]; /* strides of the weights, in elements */
} gp_conv_bf16_pack;

/* A task is one panel of one group, from f32; args: weights, packed. */
static void pack_panel(const gp_conv_bf16_pack *p, const float *from, int64_t width, int64_t cols, uint16_t *restrict to)
{
    memset(to, 0, (size_t)(p->runs * p->words * width) * 4);
    for (int64_t tap = 0; tap < p->runs * p->merged; tap++) {
        const int64_t kw = tap % p->kernel[2], kh = tap / p->kernel[2] % p->kernel[1];
        const float *at = from + tap / p->kernel[2] / p->kernel[1] * p->w[0] + kh * p->w[1] + kw * p->w[2];
        for (int64_t i = 0; i < p->ic; i++) {
            const int64_t element = tap % p->merged * p->pixel + i, word = tap / p->merged * p->words + element / 2;
            for (int64_t c = 0; c < cols; c++)
                to[(word * width + c) * 2 + element % 2] = gp_to_bf16(at[i * p->w_ic + c * p->w_oc]);
        }
    }
}

static void GP_KERNEL(pack_conv_bf16)(const void *params, void *const *args, int64_t begin, int64_t end, void *scratch)
{
    (void)scratch;
    const gp_conv_bf16_pack *p = params;
    const int64_t panels = (p->oc + GP_PANEL - 1) / GP_PANEL, words = p->runs * p->words;
    for (int64_t number = begin; number < end; number++) {
        const int64_t g = number / panels, j = number % panels * GP_PANEL, width = gp_panel_width(j, p->oc);
        pack_panel(p, (const float *)args[0] + g * p->w_group + j * p->w_oc, width, gp_min(p->oc - j, width),
                   (uint16_t *)args[1] + (g * gp_packed_cols(p->oc) + j) * words * 2);
    }
}

const gp_kernel_entry GP_KERNEL(conv_bf16_table)[] = {
    {"bf16_conv_packed", GP_KERNEL(bf16_conv_packed), sizeof(gp_conv_bf16)},
    {"pack_conv_bf16", GP_KERNEL(pack_conv_bf16), sizeof(gp_conv_bf16_pack)},
    {NULL, NULL, 0},
};
