/* Blocks of a convolution that multiplies runs of words: what they read, their products, and where results go.
 *
 * Results are rows of a matrix, one a pixel; its columns are output channels. A task is a rectangle of pixels of one
 * image by a block of columns of one group of channels. It first copies the part of the source that it reads to scratch
 * (gp_stage.h), so that the taps of a row of the kernel lie side by side: they are one product, a run of words, however
 * few channels there are. Kernels of one tap read pixels where they lie, if those are whole words (is_direct). Where runs
 * would be too short to be multiplied well, all taps of a pixel are gathered into one (`side`).
 *
 * Weights of a group are a matrix of (runs, words) rows in panels (gp_packed.h).
 *
 * args: src, packed weights, then those of the post-ops.
 *
 * A template: the source that includes this has defined GP_CONV_TYPE, what its words hold (enum gp_packed_type). */
#ifndef GP_CONV_BLOCKS_H
#define GP_CONV_BLOCKS_H

#include "gemm/gp_amx.h"
#include "conv/gp_stage.h"
#include "gemm/gp_tile_table.h"

/* Bytes that a piece of a gathered run is copied in. */
#define GP_GATHER_NBYTES 32

/* What the parameters of all types begin with. */
GP_RECORD(gp_conv_blocks, {
    gp_window window;            /* its dst strides are not used */
    int64_t groups, ic, oc;      /* channels of one group */
    int64_t merged, words, runs; /* taps of a run, its words, runs of a pixel */
    int64_t side;                /* taps of a run that lie side by side in the staged source; if not all, they are gathered */
    int64_t shifts, pitch;       /* words of the shifts of a pixel that is one run (gp_packed.h); bytes of such a one in scratch */
    int64_t element_nbytes;      /* of the source */
    int64_t pixel_nbytes;        /* of a pixel in scratch */
    int64_t w_group;             /* from the weights of one group to the next: bytes */
    int64_t block_rows, block_cols, col_block; /* results of a task; part of a row only if it is one row */
    int64_t dst_n, dst_pixel, residual_n, residual_pixel; /* strides */
    int64_t bias_arg, dst_arg;                            /* bias_arg: 0 if there is none */
    int64_t is_direct, has_epilogue;
    int64_t rows_offset, runs_offset, sums_offset, largest_offset, shift_offset; /* bytes into scratch; the tile of an epilogue lies at 0 */
    int64_t words_offset, tiles_offset, room_offset;
});

/* The pixels of a task, and where they are read. */
typedef struct {
    int64_t number, group; /* which ones they are; -1: none yet */
    gp_rectangle at;
    int64_t pixel;    /* the first one, in its image */
    const char **row; /* one a pixel */
    int64_t *run;     /* bytes from there; the pieces of a run that is gathered pass through it */
    int32_t *sum;     /* of their integers, one a pixel; the type fills it where it wants it */
    uint8_t *largest; /* of the pairs of s8, which see (gp_packed.h); likewise */
    int32_t *shift;   /* of the tiles; likewise */
    char *words;      /* of pixels that do not lie as they are multiplied, one behind the other */
    int is_new;       /* whether they are others than those of the task before */
    int zero;         /* each byte of the padding */
    char *tiles;      /* their words for AMX (gp_amx.h), if there is */
#if GP_HAS_AMX
    gp_amx_matrix matrix;
#endif
    char *room;       /* the staged source */
} gp_conv_pixels;

/* The columns of a task, and where its results go. */
typedef struct {
    int64_t j, cols, c;    /* j: the first one in its group, c: among all channels */
    const float *b;        /* the weights of the group */
    int64_t dst, residual; /* elements to the first result */
} gp_conv_columns;

typedef void (*gp_conv_task_fn)(const gp_conv_blocks *p, void *const *args, gp_conv_pixels *pixels,
                                const gp_conv_columns *columns, char *scratch);

#define GP_RUNS_PARAMETERS                                                                                             \
    (int64_t runs, int64_t words, const char *const *row, const int64_t *run, const float *b, int64_t panel_step,      \
     const gp_packed_sink *sink)

typedef void(*gp_runs_fn) GP_RUNS_PARAMETERS;

GP_DEFINE_TILES(tiles, gp_runs_fn, GP_CONV_TYPE, gp_runs_tile, GP_RUNS_PARAMETERS, runs, words, row, run, b, panel_step,
                sink)
#if GP_HAS_AMX
GP_DEFINE_FINISH(finish, GP_CONV_TYPE)
#endif

/* Brings the `pieces` of each pixel side by side, which become its only run; the last byte is repeated behind them. Copies
 * go on to multiples of GP_GATHER_NBYTES, into what is written next. */
static void gp_gather(const gp_conv_blocks *p, const gp_conv_pixels *pixels, int64_t pieces)
{
    const int64_t nbytes = p->side * p->pixel_nbytes, end = pieces * nbytes;
    char *words = pixels->words;
    for (int64_t i = 0; i < pixels->at.rows * pixels->at.cols; i++, words += p->pitch) {
        char *restrict to = words;
        for (int64_t piece = 0; piece < pieces; piece++, to += nbytes)
            for (int64_t k = 0; k < nbytes; k += GP_GATHER_NBYTES)
                memcpy(to + k, pixels->row[i] + pixels->run[piece] + k, GP_GATHER_NBYTES);
        for (int64_t k = end; k < p->pitch; k += GP_GATHER_NBYTES)
            memset(words + k, words[end - 1], GP_GATHER_NBYTES);
        pixels->row[i] = words;
    }
    *pixels->run = 0;
}

/* Runs and pixels in the staged source. */
static void gp_find_staged(const gp_conv_blocks *p, const gp_conv_pixels *pixels)
{
    const gp_window *w = &p->window;
    const int64_t height = gp_extent(w, 1, pixels->at.rows), width = gp_extent(w, 2, pixels->at.cols);
    int64_t *run = pixels->run;
    for (int64_t kd = 0; kd < w->kernel[0]; kd++)
        for (int64_t kh = 0; kh < w->kernel[1]; kh++)
            for (int64_t kw = 0; kw < w->kernel[2]; kw += p->side)
                *run++ = ((kd * height + kh * w->dilation[1]) * width + kw * w->dilation[2]) * p->pixel_nbytes;
    const char **row = pixels->row;
    for (int64_t y = 0; y < pixels->at.rows; y++)
        for (int64_t x = 0; x < pixels->at.cols; x++)
            *row++ = pixels->room + (y * w->stride[1] * width + x * w->stride[2]) * p->pixel_nbytes;
    if (p->merged > p->side)
        gp_gather(p, pixels, run - pixels->run);
}

/* The same where they lie, for kernels of one tap and no padding. */
static void gp_find_direct(const gp_conv_blocks *p, const char *src, const gp_conv_pixels *pixels)
{
    const gp_window *w = &p->window;
    const gp_rectangle *at = &pixels->at;
    const char **row = pixels->row;
    src += at->od * w->stride[0] * w->src[0] * p->element_nbytes;
    *pixels->run = 0;
    for (int64_t y = at->oh; y < at->oh + at->rows; y++)
        for (int64_t x = at->ow; x < at->ow + at->cols; x++)
            *row++ = src + (y * w->stride[1] * w->src[1] + x * w->stride[2] * w->src[2]) * p->element_nbytes;
}

static gp_rectangle gp_find_rectangle(const gp_conv_blocks *p, int64_t number)
{
    const int64_t *out = p->window.out;
    const int64_t wide = (out[2] + p->block_cols - 1) / p->block_cols;
    const int64_t high = (out[1] + p->block_rows - 1) / p->block_rows;
    const int64_t oh = number / wide % high * p->block_rows, ow = number % wide * p->block_cols;
    const int64_t plane = number / wide / high;
    return (gp_rectangle){.n = plane / out[0], .od = plane % out[0], .oh = oh, .ow = ow,
                          .rows = gp_min(out[1] - oh, p->block_rows), .cols = gp_min(out[2] - ow, p->block_cols)};
}

/* The pixels of a task. Their source is read anew only where they are others than before. */
static void gp_find_pixels(const gp_conv_blocks *p, const char *src, int64_t number, int64_t group, gp_stage_fn move,
                           gp_conv_pixels *pixels)
{
    pixels->is_new = pixels->number != number || pixels->group != group;
    if (!pixels->is_new)
        return;
    const gp_window *w = &p->window;
    const gp_rectangle at = gp_find_rectangle(p, number);
    pixels->number = number;
    pixels->group = group;
    pixels->at = at;
    pixels->pixel = (at.od * w->out[1] + at.oh) * w->out[2] + at.ow;
    src += (at.n * w->src_n + group * p->ic * w->src_c) * p->element_nbytes;
    if (p->is_direct) {
        gp_find_direct(p, src, pixels);
        return;
    }
    gp_stage(&(gp_staging){w, p->element_nbytes, p->pixel_nbytes, pixels->zero, move, p}, src, &at, pixels->room);
    gp_find_staged(p, pixels);
}

#if GP_HAS_AMX
/* Whether so many rows are few enough to be multiplied for so many pixels: at most a quarter of the tiles more. */
static int gp_is_worthwhile(int64_t rows, int64_t pixels)
{
    return gp_amx_depth(rows) * 4 <= gp_amx_depth(pixels) * 5;
}

/* Finds how the pixels of a task follow one another, if the same number of bytes leads from each to the next of its line, and
 * what lies between the lines, or up to whole tiles for each, can be multiplied too. Behind the last line may be the end of
 * all: it is packed, unless the pixels of all lines are rows one behind the other. */
static void gp_find_lying(const gp_conv_blocks *p, const gp_conv_pixels *pixels, gp_amx_matrix *matrix)
{
    const int64_t lines = pixels->at.rows, cols = pixels->at.cols, count = lines * cols, both = 2 * GP_AMX_ROWS;
    const char *const *row = pixels->row;
    *matrix = (gp_amx_matrix){.rows = count, .cols = cols, .pitch = cols};
    if (p->words % GP_AMX_WORDS || cols == 1 || count < both)
        return;
    const int64_t step = row[1] - row[0], line = lines > 1 ? row[cols] - row[0] : step * cols;
    if (step <= 0 || line < step * cols)
        return;
    const int64_t between = line / step, whole = gp_amx_depth(cols) * GP_AMX_ROWS;
    gp_amx_source lying = {row[0], step, GP_AMX_ROWS * step, both * step, 64, p->runs, p->words, pixels->run};
    if (line % step == 0 && gp_is_worthwhile((lines - 1) * between + cols, count)) {
        matrix->rows = (lines - 1) * between + cols;
        matrix->pitch = between;
        matrix->blocks = matrix->rows / both;
    } else if (whole <= both && (whole - cols) * step <= line && gp_is_worthwhile(lines * whole, count)) {
        lying.next = whole == both ? lying.next : line;
        lying.down = whole == both ? line : 2 * line;
        matrix->rows = lines * whole;
        matrix->pitch = whole;
        matrix->blocks = (lines - 1) * whole / both;
    }
    matrix->lying = lying;
}

/* Brings the pixels of a task to tiles that cannot be loaded from where they are. */
static void gp_pack_pixels(const gp_conv_blocks *p, gp_conv_pixels *pixels)
{
    gp_amx_matrix *matrix = &pixels->matrix;
    gp_find_lying(p, pixels, matrix);
    const int64_t words = p->runs * p->words, depth = gp_amx_depth(words), lying = matrix->blocks * 2 * GP_AMX_ROWS;
    matrix->packed = gp_amx_tiles(pixels->tiles, words, depth);
    gp_amx_piece *pieces = (gp_amx_piece *)(pixels->tiles + gp_amx_depth(p->block_rows * p->block_cols) * depth * GP_AMX_NBYTES);
    const int64_t count = gp_amx_find_pieces(pixels->run, p->runs, p->words, pieces);
    for (int64_t i = lying; i < matrix->rows; i++)
        if (i % matrix->pitch < matrix->cols)
            gp_amx_pack_row(pixels->row[i / matrix->pitch * matrix->cols + i % matrix->pitch], pieces, count, words,
                            i - lying, depth, pixels->tiles);
}
#endif

static void gp_multiply_panels(const gp_conv_blocks *p, const gp_conv_pixels *pixels, int column, const float *b,
                               gp_packed_sink sink, struct gp_amx_queue *queue __attribute__((unused)))
{
    const char *const *row = pixels->row;
    int64_t rows = pixels->at.rows * pixels->at.cols;
#if GP_HAS_AMX
    if (gp_takes_amx(GP_CONV_TYPE, rows)) {
        gp_amx_multiply(GP_CONV_TYPE, column, &pixels->matrix, b, p->runs * p->words * GP_PANEL, sink, queue);
        return;
    }
#endif
    for (int64_t left = (rows + GP_TILE_ROWS - 1) / GP_TILE_ROWS; left; left--) {
        const int64_t height = (rows + left - 1) / left;
        tiles[height - 1][column](p->runs, p->words, row, pixels->run, b, p->runs * p->words * GP_PANEL, &sink);
        rows -= height;
        row += height;
        gp_sink_down(&sink, height);
    }
}

/* The products of a task; the sink begins at its first result. */
static void gp_multiply(const gp_conv_blocks *p, gp_conv_pixels *pixels, const gp_conv_columns *columns,
                        gp_packed_sink sink)
{
    const int64_t rows = pixels->at.rows * pixels->at.cols, ntiles = (rows + GP_TILE_ROWS - 1) / GP_TILE_ROWS;
    int64_t j = columns->j;
#if GP_HAS_AMX
    gp_amx_queue room, *const queue = &room;
    gp_amx_start(queue, finish);
    if (pixels->is_new && gp_takes_amx(GP_CONV_TYPE, rows))
        gp_pack_pixels(p, pixels);
#else
    struct gp_amx_queue *const queue = NULL;
#endif
    for (int64_t left = columns->cols; left > 0;) {
        const int panels = gp_streams((rows + ntiles - 1) / ntiles, left);
        const int64_t step = gp_min(panels * GP_PANEL, left);
        sink.cols = step;
        gp_multiply_panels(p, pixels, gp_tile_column(panels, j, p->oc), columns->b + j * p->runs * p->words, sink,
                           queue);
        gp_sink_right(&sink, step);
        j += step;
        left -= step;
    }
#if GP_HAS_AMX
    gp_amx_finish_all(queue);
#endif
}

/* Runs the epilogue `program` on the results of a task, which lie at tile. */
static void gp_finish_block(const gp_conv_blocks *p, const gp_eltwise *program, void *const *args,
                            const gp_conv_pixels *pixels, const gp_conv_columns *columns, const float *tile, int64_t ld)
{
    const int64_t *out = p->window.out, channels = p->groups * p->oc;
    gp_run_epilogue(program, args + p->dst_arg, tile, ld, pixels->at.rows * pixels->at.cols, columns->cols,
                    (pixels->at.n * out[0] * out[1] * out[2] + pixels->pixel) * channels + columns->c, channels);
}

static gp_conv_columns gp_find_columns(const gp_conv_blocks *p, const void *weights, const gp_conv_pixels *pixels,
                                       int64_t j)
{
    const int64_t c = pixels->group * p->oc + j, n = pixels->at.n;
    return (gp_conv_columns){
        .j = j,
        .cols = gp_min(p->oc - j, p->col_block),
        .c = c,
        .b = (const float *)((const char *)weights + pixels->group * p->w_group),
        .dst = n * p->dst_n + pixels->pixel * p->dst_pixel + c,
        .residual = n * p->residual_n + pixels->pixel * p->residual_pixel + c,
    };
}

/* The body of a kernel: `move` brings pixels to scratch, `task` makes the results of a block; zero: each byte of the
 * padding. */
static void gp_run_blocks(const gp_conv_blocks *p, void *const *args, int64_t begin, int64_t end, char *scratch, int zero,
                          gp_stage_fn move, gp_conv_task_fn task)
{
    const int64_t col_blocks = (p->oc + p->col_block - 1) / p->col_block;
    gp_conv_pixels pixels = {
        .number = -1,
        .row = (const char **)(scratch + p->rows_offset),
        .run = (int64_t *)(scratch + p->runs_offset),
        .sum = (int32_t *)(scratch + p->sums_offset),
        .largest = (uint8_t *)scratch + p->largest_offset,
        .shift = (int32_t *)(scratch + p->shift_offset),
        .words = scratch + p->words_offset,
        .zero = zero,
        .tiles = scratch + p->tiles_offset,
        .room = scratch + p->room_offset,
    };
    gp_amx_begin(GP_CONV_TYPE);
    for (int64_t t = begin; t < end; t++) {
        gp_find_pixels(p, args[0], t / col_blocks / p->groups, t / col_blocks % p->groups, move, &pixels);
        const gp_conv_columns columns = gp_find_columns(p, args[1], &pixels, t % col_blocks * p->col_block);
        task(p, args, &pixels, &columns, scratch);
    }
    gp_amx_end(GP_CONV_TYPE);
}

#endif
