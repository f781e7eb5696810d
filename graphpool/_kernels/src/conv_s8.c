/* Convolution of 8-bit images with 8-bit weights in panels: implicit matrix products, summed in s32.
 *
 * Results are rows of a matrix, one a pixel; its columns are output channels. A task is a rectangle of pixels by a block
 * of columns of one group. It first copies the part of the source that it reads to scratch: channels innermost whatever
 * the strides, as unsigned bytes, the zero point where the padding is. That is cheap, for every byte is then multiplied
 * by all columns; and the taps of a row of the kernel lie side by side, so that they are one product, a run of words of
 * four bytes, however few channels there are. Kernels of one tap read pixels where they lie, if those are whole words.
 *
 * Weights of a group are a matrix of (runs, words) rows in panels (gp_packed.h) with the sums of their columns behind
 * them; words end in zeros where the run does, so that what the last one reads beyond the run does not matter.
 *
 * args: src, packed weights, scales, then at the places that the parameters name: scale and zero point of src, bias,
 * operands of the requantisation, dst and what the epilogue reads beyond dst. The iteration space of the epilogue is row-major over (n, spatial..., c).
 * Scratch: the tile of the epilogue, pixels and runs as pointers and offsets, the staged source. */
#include "gp_packed_tile.h"
#include "gp_tile_table.h"
#include "gp_window.h"

typedef struct {
    gp_window window; /* its dst strides are not used */
    int64_t groups, ic, oc; /* channels of one group */
    int64_t words, runs, merged; /* of the products of a pixel: length, how many; taps of one run */
    int64_t w_group; /* bytes */
    int64_t images, block_rows, block_cols, col_block; /* results of a task; part of a row only if it is one row */
    int64_t dst_n, dst_pixel, residual_n, residual_pixel;
    int64_t src_dtype, zero; /* zero: the zero point of the source, as unsigned bytes have it */
    int64_t bias_arg, dst_arg;
    int64_t direct, has_epilogue;
    int64_t rows_offset, runs_offset, room_offset; /* bytes into scratch; the tile of an epilogue lies at 0 */
    gp_requant requant;
    gp_dynamic dynamic; /* instead of zero */
} gp_conv_s8;

/* A rectangle of the results of one image and depth, and where its pixels are read. */
typedef struct {
    int64_t number, group; /* which one it is */
    int64_t n, od, oh, ow, rows, cols;
    const char **row;  /* one a pixel */
    int64_t *run;      /* byte offset of each run from there */
    uint8_t *room;     /* the staged source */
    int32_t zero;      /* what lies in its padding */
} block;

/* ---- tiles ---- */

/* Tiles beyond the registers are never called and compile to nothing. */
#define GP_DEFINE_TILE(rows, panels, vectors)                                                                          \
    static __attribute__((noinline)) void GP_TILE_NAME(rows, panels, vectors)(                                         \
        int64_t runs, int64_t words, const char *const *row, const int64_t *run, const float *b, int64_t panel_step,   \
        const gp_packed_sink *sink)                                                                                    \
    {                                                                                                                  \
        if (rows * panels * vectors <= GP_TILE_VECTORS)                                                                \
            gp_runs_tile(GP_PACKED_S8, rows, panels, vectors, runs, words, row, run, b, panel_step, sink);             \
    }

GP_DEFINE_TILES(gp_runs_fn)

/* ---- the source ---- */

static void flip_signs(uint8_t *bytes, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        bytes[i] ^= 0x80;
}

/* One row of the source with its padding: columns `first` to `first + count`. NULL: a row of the padding. */
static void stage_row(const gp_conv_s8 *p, const uint8_t *src, int64_t first, int64_t count, int zero,
                      uint8_t *restrict to)
{
    const gp_window *w = &p->window;
    const int64_t begin = src ? gp_min(gp_max(-first, 0), count) : count;
    const int64_t end = gp_max(gp_min(w->in[2] - first, count), begin);
    memset(to, zero, (size_t)(begin * p->ic));
    memset(to + end * p->ic, zero, (size_t)((count - end) * p->ic));
    if (begin >= end)
        return;
    const uint8_t *from = src + (first + begin) * w->src[2];
    to += begin * p->ic;
    if (w->src_c == 1 && w->src[2] == p->ic)
        memcpy(to, from, (size_t)((end - begin) * p->ic));
    else if (w->src_c == 1)
        for (int64_t x = 0; x < end - begin; x++)
            memcpy(to + x * p->ic, from + x * w->src[2], (size_t)p->ic);
    else
        for (int64_t c = 0; c < p->ic; c++)
            for (int64_t x = 0; x < end - begin; x++)
                to[x * p->ic + c] = from[x * w->src[2] + c * w->src_c];
    if (p->src_dtype == GP_S8)
        flip_signs(to, (end - begin) * p->ic);
}

/* Extent of the source that `count` results read along an axis. */
static int64_t extent(const gp_window *w, int axis, int64_t count)
{
    return (count - 1) * w->stride[axis] + (w->kernel[axis] - 1) * w->dilation[axis] + 1;
}

/* The pixels of a block in scratch, its image and group of channels beginning at src. */
static void stage(const gp_conv_s8 *p, const uint8_t *src, const block *at)
{
    const gp_window *w = &p->window;
    const int64_t height = extent(w, 1, at->rows), width = extent(w, 2, at->cols), line = width * p->ic;
    uint8_t *to = at->room;
    int64_t *run = at->run;
    for (int64_t kd = 0; kd < w->kernel[0]; kd++) {
        const int64_t id = at->od * w->stride[0] - w->pad[0] + kd * w->dilation[0];
        for (int64_t y = 0; y < height; y++, to += line) {
            const int64_t ih = at->oh * w->stride[1] - w->pad[1] + y;
            const int is_inside = id >= 0 && id < w->in[0] && ih >= 0 && ih < w->in[1];
            stage_row(p, is_inside ? src + id * w->src[0] + ih * w->src[1] : NULL, at->ow * w->stride[2] - w->pad[2],
                      width, at->zero, to);
        }
        for (int64_t kh = 0; kh < w->kernel[1]; kh++)
            for (int64_t kw = 0; kw < w->kernel[2]; kw += p->merged)
                *run++ = (kd * height + kh * w->dilation[1]) * line + kw * w->dilation[2] * p->ic;
    }
    const char **row = at->row;
    for (int64_t y = 0; y < at->rows; y++)
        for (int64_t x = 0; x < at->cols; x++)
            *row++ = (const char *)at->room + y * w->stride[1] * line + x * w->stride[2] * p->ic;
}

/* The same without a copy, for kernels of one tap and no padding. */
static void point(const gp_conv_s8 *p, const uint8_t *src, const block *at)
{
    const gp_window *w = &p->window;
    const char **row = at->row;
    src += at->od * w->stride[0] * w->src[0];
    *at->run = 0;
    for (int64_t y = at->oh; y < at->oh + at->rows; y++)
        for (int64_t x = at->ow; x < at->ow + at->cols; x++)
            *row++ = (const char *)src + y * w->stride[1] * w->src[1] + x * w->stride[2] * w->src[2];
}

/* Block `number` of all; its source is read anew only if it is another than before. */
static void enter_block(const gp_conv_s8 *p, const uint8_t *src, int64_t number, int64_t group, block *at)
{
    if (at->number == number && at->group == group)
        return;
    const gp_window *w = &p->window;
    const int64_t wide = (w->out[2] + p->block_cols - 1) / p->block_cols;
    const int64_t high = (w->out[1] + p->block_rows - 1) / p->block_rows;
    const int64_t plane = number / wide / high;
    at->number = number;
    at->group = group;
    at->n = plane / w->out[0];
    at->od = plane % w->out[0];
    at->oh = number / wide % high * p->block_rows;
    at->ow = number % wide * p->block_cols;
    at->rows = gp_min(w->out[1] - at->oh, p->block_rows);
    at->cols = gp_min(w->out[2] - at->ow, p->block_cols);
    src += at->n * w->src_n + group * p->ic * w->src_c;
    if (p->direct)
        point(p, src, at);
    else
        stage(p, src, at);
}

/* ---- blocks ---- */

/* All pixels of a block by one group of panels. */
static void panels_of_block(const gp_conv_s8 *p, const block *at, int column, const float *b, gp_packed_sink sink)
{
    int64_t rows = at->rows * at->cols;
    const char *const *row = at->row;
    for (int64_t left = (rows + GP_TILE_ROWS - 1) / GP_TILE_ROWS; left; left--) {
        const int64_t height = (rows + left - 1) / left;
        tiles[height - 1][column](p->runs, p->words, row, at->run, b, p->runs * p->words * GP_PANEL, &sink);
        rows -= height;
        row += height;
        gp_sink_down(&sink, height);
    }
}

/* The columns j .. j + cols - 1 of the group of channels whose weights are b. */
static void columns(const gp_conv_s8 *p, const block *at, int64_t j, int64_t cols, const float *b, gp_packed_sink sink)
{
    const int64_t pixels = at->rows * at->cols, ntiles = (pixels + GP_TILE_ROWS - 1) / GP_TILE_ROWS;
    for (int64_t left = cols; left > 0;) {
        const int panels = gp_streams((pixels + ntiles - 1) / ntiles, left);
        const int64_t step = gp_min(panels * GP_PANEL, left);
        const int column = gp_panel_width(j, p->oc) == GP_VL ? 0 : panels == 4 ? 3 : panels;
        sink.cols = step;
        panels_of_block(p, at, column, b + j * p->runs * p->words, sink);
        gp_sink_right(&sink, step);
        j += step;
        left -= step;
    }
}

/* Where results of a block go, from pixel and channel on. */
static gp_requant_sink make_requant(const gp_conv_s8 *p, void *const *args, const block *at, int64_t pixel, int64_t c,
                                    int64_t cols, char *scratch)
{
    const gp_requant *r = &p->requant;
    gp_requant_sink sink = {.p = r, .dst = scratch, .dst_row = cols, .residual_row = p->residual_pixel};
    if (!p->has_epilogue) {
        sink.dst = (char *)args[p->dst_arg] + (at->n * p->dst_n + pixel * p->dst_pixel + c) * gp_element_nbytes(r->dst_dtype);
        sink.dst_row = p->dst_pixel;
    }
    if (r->late_bias_arg)
        sink.late_bias = (const float *)args[r->late_bias_arg] + c;
    if (r->residual_arg)
        sink.residual = (const char *)args[r->residual_arg] + (at->n * p->residual_n + pixel * p->residual_pixel + c) *
                                                                  gp_element_nbytes(r->residual_dtype);
    return sink;
}

static void task(const gp_conv_s8 *p, void *const *args, const block *at, int64_t j, char *scratch)
{
    const gp_window *w = &p->window;
    const int64_t cols = gp_min(p->oc - j, p->col_block), c = at->group * p->oc + j, channels = p->groups * p->oc;
    const int64_t pixel = (at->od * w->out[1] + at->oh) * w->out[2] + at->ow;
    const float *b = (const float *)((const char *)args[1] + at->group * p->w_group);
    const gp_requant_sink requant = make_requant(p, args, at, pixel, c, cols, scratch);
    const gp_packed_sink sink = {
        .partial = (float *)scratch, /* not used: sums are never split */
        .is_first = 1,
        .is_last = 1,
        .scale = (const float *)args[2] + c,
        .bias = p->bias_arg ? (const float *)args[p->bias_arg] + c : NULL,
        .col_sum = (const int32_t *)(b + p->runs * p->words * gp_packed_cols(p->oc)) + j,
        .a_zero = at->zero,
        .a_scale = gp_dynamic_scale(&p->dynamic, args),
        .requant = &requant,
    };
    columns(p, at, j, cols, b, sink);
    if (p->has_epilogue)
        gp_run_epilogue((const gp_eltwise *)(p + 1), args + p->dst_arg, (const float *)scratch, cols, at->rows * at->cols,
                        cols, (at->n * w->out[0] * w->out[1] * w->out[2] + pixel) * channels + c, channels);
}

static void GP_KERNEL(s8_conv_packed)(const void *params, void *const *args, int64_t begin, int64_t end, void *scratch)
{
    const gp_conv_s8 *p = params;
    const int64_t col_blocks = (p->oc + p->col_block - 1) / p->col_block;
    block at = {.number = -1, .zero = gp_dynamic_zero(&p->dynamic, args, p->src_dtype, p->zero)};
    at.row = (const char **)((char *)scratch + p->rows_offset);
    at.run = (int64_t *)((char *)scratch + p->runs_offset);
    at.room = (uint8_t *)scratch + p->room_offset;
    for (int64_t t = begin; t < end; t++) {
        enter_block(p, args[0], t / col_blocks / p->groups, t / col_blocks % p->groups, &at);
        task(p, args, &at, t % col_blocks * p->col_block, scratch);
    }
}

/* ---- weights ---- */

typedef struct {
    int64_t groups, ic, oc; /* channels of one group */
    int64_t kernel[3], merged, words, runs;
    int64_t w_group, w_oc, w_ic, w[3]; /* strides of the weights, in elements */
    int64_t group_nbytes, flip;        /* flip: u8 weights become s8, less 128 */
} gp_conv_s8_pack;

/* The bytes of one run of one output channel, zeros behind. */
static void gather_run(const gp_conv_s8_pack *p, const uint8_t *from, int64_t run, uint8_t *restrict bytes)
{
    const int64_t wide = p->kernel[2] / p->merged, kw = run % wide * p->merged;
    const int64_t kh = run / wide % p->kernel[1], kd = run / wide / p->kernel[1];
    const uint8_t flip = p->flip ? 0x80 : 0;
    from += kd * p->w[0] + kh * p->w[1] + kw * p->w[2];
    int64_t n = 0;
    for (int64_t tap = 0; tap < p->merged; tap++)
        for (int64_t c = 0; c < p->ic; c++)
            bytes[n++] = from[tap * p->w[2] + c * p->w_ic] ^ flip;
    memset(bytes + n, 0, (size_t)(p->words * 4 - n));
}

/* One column of a panel of that width: its words go to every width-th place; returns the sum of its bytes. */
static int32_t pack_column(const gp_conv_s8_pack *p, const uint8_t *from, uint32_t *to, int64_t width, uint8_t *bytes)
{
    int32_t sum = 0;
    for (int64_t run = 0; run < p->runs; run++) {
        gather_run(p, from, run, bytes);
        for (int64_t i = 0; i < p->words * 4; i++)
            sum += (int8_t)bytes[i];
        for (int64_t w = 0; w < p->words; w++, to += width)
            memcpy(to, bytes + w * 4, 4);
    }
    return sum;
}

/* A task is one panel of one group; scratch: the bytes of a run. */
static void GP_KERNEL(pack_conv_s8)(const void *params, void *const *args, int64_t begin, int64_t end, void *scratch)
{
    const gp_conv_s8_pack *p = params;
    const int64_t panels = (p->oc + GP_PANEL - 1) / GP_PANEL, words = p->runs * p->words;
    for (int64_t number = begin; number < end; number++) {
        const int64_t g = number / panels, j = number % panels * GP_PANEL;
        const int64_t width = gp_panel_width(j, p->oc), cols = gp_min(p->oc - j, width);
        uint32_t *group = (uint32_t *)((char *)args[1] + g * p->group_nbytes), *to = group + j * words;
        int32_t *sums = (int32_t *)group + words * gp_packed_cols(p->oc) + j;
        if (cols < width) {
            memset(to, 0, (size_t)(width * words) * 4);
            memset(sums, 0, (size_t)width * 4);
        }
        for (int64_t c = 0; c < cols; c++)
            sums[c] = pack_column(p, (const uint8_t *)args[0] + g * p->w_group + (j + c) * p->w_oc, to + c, width, scratch);
    }
}

const gp_kernel_entry GP_KERNEL(conv_s8_table)[] = {
    {"s8_conv_packed", GP_KERNEL(s8_conv_packed), sizeof(gp_conv_s8)},
    {"pack_conv_s8", GP_KERNEL(pack_conv_s8), sizeof(gp_conv_s8_pack)},
    {NULL, NULL, 0},
};
