/* Convolution of channels-last images with weights in panels: implicit matrix products, nothing gathered.
 *
 * Results are rows of a matrix, one a pixel, numbered over (n, spatial...); its columns are output channels. Every tap
 * of the kernel adds a product of rows of the source, found through a table of pointers (Dukhan, "The indirect
 * convolution algorithm", 2019), and its ic x oc weights. A pixel that a tap finds in the padding points to a row of
 * zeros, and a tile whose pixels all do leaves the tap out.
 *
 * Few input channels make short products. Then (`stage`) a task first copies the part of the source that it reads to
 * scratch, padding included, channels innermost whatever the source's strides, and the taps of a row of the kernel that
 * lie side by side there are one product. Its pixels are then a rectangle.
 *
 * Weights that no cache keeps are read as they lie (`is_plain`): a task brings a group of columns into panels in its
 * scratch, perhaps times a scale for each, then runs all its pixels through them, so many that packing costs little.
 *
 * A task is a block of pixels by a block of columns of one group. args: src, packed weights (conv/weights.c), the
 * scale, then those of the post-ops. */
#include "core/gp_quad.h"
#include "conv/gp_conv_weights.h"
#include "gemm/gp_packed_tile.h"
#include "conv/gp_stage.h"
#include "gemm/gp_tile_table.h"

GP_RECORD(gp_conv_packed, {
    gp_window window;                      /* its dst strides are not used */
    int64_t groups, ic, oc;                /* channels of one group */
    int64_t runs, run_pixels;              /* results lie in runs of pixels */
    int64_t line_pixels;                   /* pixels of a run that follow each other at dst_pixel; lines at dst_line */
    int64_t words, taps, taps_wide;        /* of the products of a pixel: length, how many, how many along width */
    int64_t w_group, w_tap;                /* bytes */
    int64_t dst_pixel, dst_line, dst_run, residual_pixel, residual_line, residual_run;
    int64_t scale_arg, bias_arg, residual_arg, dst_arg; /* 0: there is none; scale: of plain weights */
    int64_t pixel_block, col_block, tap_block; /* tap_block: taps at a time */
    int64_t most_panels;                       /* at once */
    int64_t stage, tile_in_scratch, has_epilogue, is_plain;
    int64_t partial_offset, table_offset, room_offset, panels_offset; /* bytes into scratch; the tile lies at 0 */
    gp_conv_pack plain;                        /* the weights, where they are not in panels */
    float lo, hi;
});

/* The pixels of a task, numbered over all images, and the table of their rows: rows[tap * count + pixel]. */
typedef struct {
    int64_t first, count;
    int64_t line_left; /* pixels to the end of the first one's line */
    const char **rows;
    char *room; /* zeros, or the staged source */
} pixel_block;

#define GP_TAPS_PARAMETERS                                                                                             \
    (int64_t taps, int64_t words, const char *const *row, int64_t pitch, const char *padding, const float *b,          \
     int64_t tap_step, int64_t panel_step, const gp_packed_sink *sink)

typedef void(*gp_taps_fn) GP_TAPS_PARAMETERS;

GP_DEFINE_TILES(tiles, gp_taps_fn, GP_PACKED_F32, gp_taps_tile, GP_TAPS_PARAMETERS, taps, words, row, pitch, padding, b,
                tap_step, panel_step, sink)

/* Pixels of one row of results, `begin` to `end`, whose image begins at src: where each tap reads. */
static void find_rows(const gp_conv_packed *p, const float *src, int64_t od, int64_t oh, int64_t begin, int64_t end,
                      const pixel_block *block, const char **to)
{
    const gp_window *w = &p->window;
    for (int64_t kd = 0; kd < w->kernel[0]; kd++)
        for (int64_t kh = 0; kh < w->kernel[1]; kh++)
            for (int64_t kw = 0; kw < w->kernel[2]; kw++, to += block->count) {
                const gp_tap tap = gp_find_tap(w, 0, od, oh, begin, end, kd, kh, kw);
                const float *from = src + tap.src;
                int64_t i = 0, last = tap.count ? tap.first + tap.count - begin : 0;
                for (; tap.count && i < tap.first - begin; i++)
                    to[i] = block->room;
                for (; i < last; i++, from += tap.src_step)
                    to[i] = (const char *)from;
                for (; i < end - begin; i++)
                    to[i] = block->room;
            }
}

/* Pixels of planes. Where their number is known compilers interleave whole vectors. */
GP_INLINE void interleave(const int64_t ic, const float *restrict from, int64_t channel, int64_t count,
                          float *restrict to)
{
    for (int64_t x = 0; x < count; x++)
        for (int64_t c = 0; c < ic; c++)
            to[x * ic + c] = from[x + c * channel];
}

static void move_pixels(const void *params, const char *src, int64_t count, char *to)
{
    const gp_conv_packed *p = params;
    const gp_window *w = &p->window;
    const float *from = (const float *)src;
    int64_t c = 0;
    if (w->src_c == 1) {
        const int64_t pixels = w->src[2] == p->ic ? count : 1; /* that lie side by side */
        gp_copy(to, pixels * p->ic, 1, from, w->src[2], 1, count / pixels, pixels * p->ic, sizeof *from);
        return;
    }
    if (w->src[2] == 1 && p->ic == 2) {
        interleave(2, from, w->src_c, count, (float *)to);
        return;
    }
    if (w->src[2] == 1 && p->ic == 3) {
        interleave(3, from, w->src_c, count, (float *)to);
        return;
    }
    for (const int64_t whole = count & -4; w->src[2] == 1 && c + 4 <= p->ic; c += 4) {
        const float *at = from + c * w->src_c;
        float *row = (float *)to + c;
        for (int64_t i = 0; i < whole; i += 4, at += 4, row += 4 * p->ic)
            gp_transpose_quad(at, at + w->src_c, at + 2 * w->src_c, at + 3 * w->src_c, row, row + p->ic, row + 2 * p->ic,
                              row + 3 * p->ic);
        gp_copy(row, p->ic, 1, at, 1, w->src_c, count - whole, 4, sizeof *from);
    }
    for (; c < p->ic; c++)
        gp_copy((float *)to + c, 0, p->ic, from + c * w->src_c, 0, w->src[2], 1, count, sizeof *from);
}

/* The same as find_rows through a staged source, for whole rows of results or a part of one. */
static void stage_rows(const gp_conv_packed *p, const float *src, int64_t od, int64_t oh, int64_t ow,
                       const pixel_block *block)
{
    const gp_window *w = &p->window;
    const int64_t cols = gp_min(block->count, w->out[2] - ow), rows = block->count / cols;
    const int64_t height = gp_extent(w, 1, rows), width = gp_extent(w, 2, cols), pixel = p->ic * (int64_t)sizeof *src;
    const gp_rectangle at = {.od = od, .oh = oh, .ow = ow, .rows = rows, .cols = cols};
    gp_stage(&(gp_staging){w, sizeof *src, pixel, 0, move_pixels, p}, (const char *)src, &at, block->room);
    const char **to = block->rows;
    for (int64_t tap = 0; tap < p->taps; tap++)
        for (int64_t y = 0; y < rows; y++) {
            const int64_t row = tap / p->taps_wide, plane = row / w->kernel[1];
            const int64_t iy = plane * height + y * w->stride[1] + row % w->kernel[1] * w->dilation[1];
            const char *from = block->room + (iy * width + tap % p->taps_wide * w->dilation[2]) * pixel;
            for (int64_t x = 0; x < cols; x++)
                *to++ = from + x * w->stride[2] * pixel;
        }
}

static void fill_table(const gp_conv_packed *p, const float *src, const pixel_block *block)
{
    const gp_window *w = &p->window;
    const int64_t end = block->first + block->count;
    for (int64_t pixel = block->first; pixel < end;) {
        const int64_t row = pixel / w->out[2], ow = pixel % w->out[2], last = gp_min(w->out[2], ow + end - pixel);
        const int64_t oh = row % w->out[1], od = row / w->out[1] % w->out[0], n = row / w->out[1] / w->out[0];
        if (p->stage) {
            stage_rows(p, src + n * w->src_n, od, oh, ow, block);
            return;
        }
        find_rows(p, src + n * w->src_n, od, oh, ow, last, block, block->rows + (pixel - block->first));
        pixel += last - ow;
    }
}

/* One group of panels for the pixels of a task: the taps in parts whose weights stay in L2. Tiles end where lines do. */
static void group(const gp_conv_packed *p, const pixel_block *block, int column, const float *b, int64_t tap_step,
                  gp_packed_sink sink)
{
    const int64_t panel_step = p->words * GP_PANEL;
    const int64_t dst_jump = p->tile_in_scratch ? 0 : p->dst_line - p->line_pixels * p->dst_pixel;
    const int64_t residual_jump = p->residual_line - p->line_pixels * p->residual_pixel;
    const int64_t ntiles = (block->count + GP_TILE_ROWS - 1) / GP_TILE_ROWS; /* more by one a line at most */
    int64_t tap = 0;
    do {
        const int64_t taps = gp_min(p->taps - tap, p->tap_block);
        const char *const *row = block->rows + tap * block->count;
        gp_packed_sink down = sink;
        down.is_first = tap == 0;
        down.is_last = tap + taps >= p->taps;
        int64_t tile = 0, rows = gp_min(block->line_left, block->count);
        for (int64_t next = rows;; rows = gp_min(p->line_pixels, block->count - next), next += rows) {
            for (int64_t left = (rows + GP_TILE_ROWS - 1) / GP_TILE_ROWS; left; left--) {
                const int64_t height = (rows + left - 1) / left;
                if (GP_FETCHES_AHEAD)
                    gp_sink_ahead(&down, p->words, gp_column_panels(column), tile++, ntiles);
                tiles[height - 1][column](taps, p->words, row, block->count, p->stage ? NULL : block->room,
                                          b + tap * tap_step, tap_step, panel_step, &down);
                rows -= height;
                row += height;
                gp_sink_down(&down, height);
            }
            if (next == block->count)
                break;
            down.c += dst_jump;
            down.residual += down.residual ? residual_jump : 0;
        }
        tap += taps;
    } while (tap < p->taps);
}

/* The `cols` columns of a panel, all its taps, times a number each. */
static void scale_panel(const gp_conv_packed *p, float *panel, int64_t tap_pitch, int64_t cols, const float *scale)
{
    for (int64_t tap = 0; tap < p->taps; tap++)
        for (int64_t row = 0; row < p->words; row++) {
            float *restrict at = panel + tap * tap_pitch + row * cols;
            for (int64_t c = 0; c < cols; c++)
                at[c] *= scale[c];
        }
}

/* The columns j .. j + cols - 1 of plain weights in panels, tap after tap; returns words from one tap to the next. */
static int64_t pack_columns(const gp_conv_packed *p, const float *weights, const float *scale, int64_t j, int64_t cols,
                            float *to)
{
    gp_conv_pack plain = p->plain;
    plain.tap_pitch = p->words * cols;
    for (const int64_t first = j; j < first + cols; j += GP_PANEL) {
        float *panel = to + (j - first) * p->words;
        gp_pack_conv_panel(&plain, weights, j, panel);
        if (scale != NULL)
            scale_panel(p, panel, plain.tap_pitch, gp_panel_width(j, p->oc), scale + j);
    }
    return plain.tap_pitch;
}

/* The columns j .. j + cols - 1 of the group of channels whose weights are b, to be multiplied by the scale if any. */
static void columns(const gp_conv_packed *p, const pixel_block *block, int64_t j, int64_t cols, const float *b,
                    const float *scale, float *room, gp_packed_sink sink)
{
    const int64_t line = gp_min(block->count, p->line_pixels), ntiles = (line + GP_TILE_ROWS - 1) / GP_TILE_ROWS;
    for (int64_t left = cols; left > 0;) {
        const int panels = (int)gp_min(gp_streams((line + ntiles - 1) / ntiles, left), p->most_panels);
        const int64_t step = gp_min(panels * GP_PANEL, left);
        const int column = gp_tile_column(panels, j, p->oc);
        sink.cols = step;
        if (p->is_plain)
            group(p, block, column, room, pack_columns(p, b, scale, j, step, room), sink);
        else
            group(p, block, column, b + j * p->words, p->w_tap / 4, sink);
        gp_sink_right(&sink, step);
        j += step;
        left -= step;
    }
}

/* The table is filled anew only where the pixels or the channels are others than those of the task before. */
static void task(const gp_conv_packed *p, void *const *args, int64_t g, int64_t run, int64_t i, int64_t j,
                 pixel_block *block, char *scratch)
{
    const int64_t first = run * p->run_pixels + i, count = gp_min(p->run_pixels - i, p->pixel_block);
    const int64_t cols = gp_min(p->oc - j, p->col_block), c = g * p->oc + j, channels = p->groups * p->oc;
    const int64_t y = i / p->line_pixels, x = i % p->line_pixels;
    if (j == 0 || first != block->first) {
        block->first = first;
        block->count = count;
        block->line_left = p->line_pixels - x;
        fill_table(p, (const float *)args[0] + g * p->ic * p->window.src_c, block);
    }
    const int64_t to = run * p->dst_run + y * p->dst_line + x * p->dst_pixel + c;
    const int64_t from = run * p->residual_run + y * p->residual_line + x * p->residual_pixel + c;
    gp_packed_sink sink = GP_MAKE_SINK(p, args, to, p->dst_pixel, from, p->residual_pixel, c, cols, scratch);
    columns(p, block, j, cols, (const float *)((const char *)args[1] + g * p->w_group),
            gp_floats_at(args, p->scale_arg, g * p->oc), (float *)(scratch + p->panels_offset), sink);
    if (p->has_epilogue)
        gp_run_epilogue((const gp_eltwise *)(p + 1), args + p->dst_arg, sink.c, sink.ldc, count, cols,
                        first * channels + c, channels);
}

GP_DEFINE_KERNEL(f32_conv_packed)
{
    const gp_conv_packed *p = params;
    const int64_t blocks = (p->run_pixels + p->pixel_block - 1) / p->pixel_block;
    const int64_t col_blocks = (p->oc + p->col_block - 1) / p->col_block;
    pixel_block block = {-1, 0, 0, (const char **)((char *)scratch + p->table_offset), (char *)scratch + p->room_offset};
    if (!p->stage)
        memset(block.room, 0, (size_t)p->ic * sizeof(float));
    for (int64_t t = begin; t < end; t++) {
        const int64_t j = t % col_blocks * p->col_block, g = t / col_blocks % p->groups;
        const int64_t i = t / col_blocks / p->groups;
        task(p, args, g, i / blocks, i % blocks * p->pixel_block, j, &block, scratch);
    }
}

const gp_kernel_entry GP_KERNEL(conv_packed_table)[] = {
    GP_ENTRY(f32_conv_packed, gp_conv_packed),
    {"f32_conv_plain", GP_KERNEL(f32_conv_packed), &gp_conv_packed_record}, /* is_plain */
    GP_TABLE_END,
};
