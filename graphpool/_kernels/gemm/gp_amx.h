/* Products of words by AMX: tiles of 16 rows of 64 bytes, which one instruction multiplies and adds to a tile of sums.
 *
 * Panels are in its layout as they are: 16 words of 16 columns are a tile of B, its rows as far apart as those of the panel.
 * Rows of A are loaded from where they lie, if so many bytes lead from each to the next and their words are whole tiles: of
 * a convolution those of the pixels of a line, and what lies behind them is multiplied too and then left out. Other
 * rows come to scratch as tiles, 16 rows by 16 words one behind the other, zeros behind the last word, so that their place
 * in memory does not matter and loads fill whole lines. 32 rows by a panel are multiplied at a time: four tiles of sums, two
 * of A, two of B, 16 cycles for each of four products, in which four tiles are loaded. Sums then go to memory, and
 * are finished there while the next ones are in the making: a few rows behind each step along k, since tiles are multiplied
 * beside what vectors do, but no processor looks so far ahead by itself.
 *
 * s8 is exact, so few rows can take the other way. bf16 sums even and odd terms of 32 by themselves: all rows go this way,
 * so that a row's result does not depend on how many there are. */
#ifndef GP_AMX_H
#define GP_AMX_H

#include "gemm/gp_packed_tile.h"
#include "gemm/gp_tile_table.h"

struct gp_amx_queue;

#if defined(__AMX_TILE__)
#define GP_HAS_AMX 1
#define GP_AMX_ROWS 16                    /* of a tile */
#define GP_AMX_WORDS 16                   /* of a row of a tile */
#define GP_AMX_NBYTES 1024                /* of a tile */
#define GP_AMX_AHEAD 4096                 /* bytes of weights: two steps along k */
#define GP_AMX_LEAST_ROWS 7               /* of bytes: fewer are faster word by word */
#define GP_AMX_PITCH (GP_TILE_PANELS * GP_PANEL) /* of rows of sums, as those of gp_packed_sink.partial */

/* Sums of two tiles of rows, before they are finished. */
typedef float gp_amx_sums[2 * GP_AMX_ROWS * GP_AMX_PITCH] __attribute__((aligned(64)));

/* Finishes rows x (panels * vectors) vectors of sums, those that the sink calls partial. */
GP_INLINE void gp_finish_tile(const enum gp_packed_type type, const int rows, const int panels, const int vectors,
                              const gp_packed_sink *sink)
{
    gp_acc acc;
    GP_EACH(j, panels * vectors)
        GP_EACH(i, rows)
            acc[i][j] = gp_load(sink->partial + i * GP_TILE_PANELS * GP_PANEL + j * GP_VL);
    gp_acc_end(type, rows, panels, vectors, acc, sink);
}

typedef void (*gp_finish_fn)(const gp_packed_sink *sink);

#define GP_DEFINE_FINISH(table, type)                                                                                  \
    GP_DEFINE_TILES(table, gp_finish_fn, type, gp_finish_tile, (const gp_packed_sink *sink), sink)

/* Sums that wait to be finished, and room for those in the making. */
typedef struct gp_amx_queue {
    gp_amx_sums sums[2];
    int next;                        /* which sums are free */
    int column;                      /* of the table of functions, by height */
    const gp_finish_fn (*finish)[4];
    const char *ahead;               /* what a step fetches for later ones, so many lines, to L2 or near: to L1 */
    int64_t ahead_lines;
    int is_near;
    int64_t left;                    /* rows that wait */
    int64_t at, cols, pitch;         /* place of the first of them in its line, of which `cols` of `pitch` rows count */
    gp_packed_sink sink;             /* of the first of them */
} gp_amx_queue;

GP_INLINE void gp_amx_start(gp_amx_queue *queue, const gp_finish_fn (*finish)[4])
{
    queue->next = 0;
    queue->left = 0;
    queue->finish = finish;
}

/* Leaves out the rows between two lines, if those that wait begin with some. */
GP_INLINE void gp_amx_skip(gp_amx_queue *queue)
{
    if (queue->at < queue->cols)
        return;
    const int64_t count = gp_min(queue->left, queue->pitch - queue->at);
    queue->sink.partial += count * GP_AMX_PITCH;
    queue->left -= count;
    queue->at = queue->at + count == queue->pitch ? 0 : queue->at + count;
}

/* Finishes some of the rows that wait, if any do. */
GP_INLINE void gp_amx_finish_some(gp_amx_queue *queue)
{
    if (queue->left <= 0)
        return;
    const int64_t height = gp_min(gp_min(queue->left, GP_TILE_ROWS), queue->cols - queue->at);
    queue->finish[height - 1][queue->column](&queue->sink);
    gp_sink_down(&queue->sink, height);
    queue->left -= height;
    queue->at += height;
    gp_amx_skip(queue);
}

GP_INLINE void gp_amx_finish_all(gp_amx_queue *queue)
{
    while (queue->left > 0)
        gp_amx_finish_some(queue);
}

/* GCC 12 does not know that tiles are read from memory and written to it: what stands before this comes before what follows. */
GP_INLINE void gp_amx_fence(void)
{
    __asm__ volatile("" ::: "memory");
}

/* Before the first tile of a call, and behind the last: a thread that holds tiles is dearer to switch. */
static inline void gp_amx_begin(const enum gp_packed_type type)
{
    if (type == GP_PACKED_F32)
        return;
    const struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_nbytes[16];
        uint8_t rows[16];
    } shapes __attribute__((aligned(64))) = {
        .palette = 1,
        .row_nbytes = {64, 64, 64, 64, 64, 64, 64, 64},
        .rows = {16, 16, 16, 16, 16, 16, 16, 16},
    };
    gp_amx_fence();
    _tile_loadconfig(&shapes);
}

static inline void gp_amx_end(const enum gp_packed_type type)
{
    if (type != GP_PACKED_F32)
        _tile_release();
}

/* Whether so many rows are multiplied by tiles. */
GP_INLINE int gp_takes_amx(const enum gp_packed_type type, int64_t rows)
{
    return type == GP_PACKED_BF16 || (type == GP_PACKED_S8 && rows >= GP_AMX_LEAST_ROWS);
}

/* Tiles along k of so many words, or of so many rows. */
GP_INLINE int64_t gp_amx_depth(int64_t words)
{
    return (words + GP_AMX_WORDS - 1) / GP_AMX_WORDS;
}

/* Part of a row that lies within a row of one tile: bytes from where the row points, and from its place in the first tile;
 * a bit for each word. */
typedef struct {
    int64_t from, to, mask;
} gp_amx_piece;

/* The pieces of `runs` runs of `words` words, each `run` bytes behind where a row points; returns how many: at most runs and
 * tiles together. */
static inline int64_t gp_amx_find_pieces(const int64_t *run, int64_t runs, int64_t words, gp_amx_piece *piece)
{
    int64_t count = 0;
    for (int64_t r = 0, at = 0; r < runs; r++)
        for (int64_t w = 0, n; w < words; w += n, at += n, count++) {
            n = gp_min(GP_AMX_WORDS - at % GP_AMX_WORDS, words - w);
            piece[count] = (gp_amx_piece){run[r] + w * 4, at / GP_AMX_WORDS * GP_AMX_NBYTES + at % GP_AMX_WORDS * 4,
                                          (1 << n) - 1};
        }
    return count;
}

/* Brings row number i of A to tiles, `depth` a row of them, zeros behind its `words` words. */
GP_INLINE void gp_amx_pack_row(const char *row, const gp_amx_piece *piece, int64_t count, int64_t words, int64_t i,
                               int64_t depth, char *tiles)
{
    char *to = tiles + i / GP_AMX_ROWS * depth * GP_AMX_NBYTES + i % GP_AMX_ROWS * 64;
    if (words % GP_AMX_WORDS)
        memset(to + (depth - 1) * GP_AMX_NBYTES, 0, 64);
    for (; count; count--, piece++) {
        const __mmask16 mask = (__mmask16)piece->mask;
        _mm512_mask_storeu_epi32(to + piece->to, mask, _mm512_maskz_loadu_epi32(mask, row + piece->from));
    }
}

/* Rows of A as tiles are loaded of them: runs of `words` words, each run[r] bytes behind where a row begins. Bytes from a row
 * to the next, from a tile to that below it, from two tiles to the next two below, and from a tile to the next along k. */
typedef struct {
    const char *data;
    int64_t row, next, down, step;
    int64_t runs, words;
    const int64_t *run;
} gp_amx_source;

static const int64_t gp_amx_one_run = 0;

/* Such of rows that have been brought to tiles. */
GP_INLINE gp_amx_source gp_amx_tiles(const char *tiles, int64_t words, int64_t depth)
{
    return (gp_amx_source){
        tiles, GP_AMX_NBYTES / GP_AMX_ROWS, depth * GP_AMX_NBYTES, 2 * depth * GP_AMX_NBYTES, GP_AMX_NBYTES, 1, words,
        &gp_amx_one_run};
}

/* All rows: `blocks` times two tiles of them where they lie, the others as tiles. Of each `pitch` rows the first `cols`
 * count. */
typedef struct {
    gp_amx_source lying, packed;
    int64_t blocks, rows, cols, pitch;
} gp_amx_matrix;

GP_INLINE void gp_amx_dot(const enum gp_packed_type type, const int tall, const int wide)
{
    if (type == GP_PACKED_S8) {
        _tile_dpbusd(0, 4, 6);
        if (wide)
            _tile_dpbusd(1, 4, 7);
        if (tall)
            _tile_dpbusd(2, 5, 6);
        if (tall && wide)
            _tile_dpbusd(3, 5, 7);
    } else {
        _tile_dpbf16ps(0, 4, 6);
        if (wide)
            _tile_dpbf16ps(1, 4, 7);
        if (tall)
            _tile_dpbf16ps(2, 5, 6);
        if (tall && wide)
            _tile_dpbf16ps(3, 5, 7);
    }
}

/* One step along k of gp_amx_panel: a tile of each row of tiles by one of each vector of columns. */
GP_INLINE void gp_amx_step(const enum gp_packed_type type, const int tall, const int wide, const char *a,
                           const gp_amx_source *source, const float *b, int64_t width, gp_amx_queue *queue)
{
    const int64_t row = width * 4;
    _tile_loadd(4, a, source->row);
    if (tall)
        _tile_loadd(5, a + source->next, source->row);
    _tile_loadd(6, b, row);
    if (wide)
        _tile_loadd(7, b + GP_VL, row);
    gp_amx_dot(type, tall, wide);
    gp_amx_finish_some(queue);
}

/* Sums of 16 rows, or of 32 where they are tall, by a panel of that width, of two vectors where it is wide: from `from` on at
 * steps of from_nbytes bytes to `to`. */
GP_INLINE void gp_amx_panel(const enum gp_packed_type type, const int tall, const int wide, const gp_amx_source *a,
                            const float *b, int64_t width, const float *from, int64_t from_nbytes, float *to,
                            gp_amx_queue *queue)
{
    const int64_t down = GP_AMX_ROWS * from_nbytes / (int64_t)sizeof *from;
    gp_amx_fence();
    _tile_loadd(0, from, from_nbytes);
    if (wide)
        _tile_loadd(1, from + GP_VL, from_nbytes);
    if (tall)
        _tile_loadd(2, from + down, from_nbytes);
    if (tall && wide)
        _tile_loadd(3, from + down + GP_VL, from_nbytes);
    const char *at = a->data;
    int64_t words = 0;
    for (int64_t r = 0; r < a->runs; r++) {
        at = a->data + a->run[r];
        for (words = a->words; words >= GP_AMX_WORDS; words -= GP_AMX_WORDS, at += a->step, b += GP_AMX_WORDS * width) {
            gp_amx_step(type, tall, wide, at, a, b, width, queue);
            for (int64_t i = queue->ahead_lines; i; i--, queue->ahead += 64)
                if (queue->is_near)
                    _mm_prefetch(queue->ahead, _MM_HINT_T0);
                else
                    _mm_prefetch(queue->ahead, _MM_HINT_T1);
        }
    }
    if (words > 0) { /* behind the last word of a panel may be the end of all: what is left is copied, zeros behind */
        float rest[GP_AMX_WORDS * GP_PANEL] __attribute__((aligned(64)));
        for (int64_t i = 0; i < GP_AMX_WORDS * width; i += GP_VL)
            gp_store(rest + i, gp_load_some(b + i, words * width - i));
        gp_amx_fence();
        gp_amx_step(type, tall, wide, at, a, rest, width, queue);
    }
    const int64_t row = GP_AMX_PITCH * 4;
    _tile_stored(0, to, row);
    if (wide)
        _tile_stored(1, to + GP_VL, row);
    if (tall)
        _tile_stored(2, to + GP_AMX_ROWS * GP_AMX_PITCH, row);
    if (tall && wide)
        _tile_stored(3, to + GP_AMX_ROWS * GP_AMX_PITCH + GP_VL, row);
    gp_amx_fence();
    gp_amx_finish_some(queue);
}

/* Sums of up to 32 rows by a group of panels, which begin with those at `from`, rows from_nbytes bytes apart, and go to `to`,
 * rows GP_AMX_PITCH apart. */
GP_INLINE void gp_amx_group(const enum gp_packed_type type, int64_t rows, int column, const gp_amx_source *a,
                            const float *b, int64_t width, int64_t panel_step, const float *from,
                            int64_t from_nbytes, float *to, gp_amx_queue *queue)
{
    const int panels = gp_column_panels(column);
    for (int panel = 0; panel < panels; panel++, b += panel_step, from += GP_PANEL, to += GP_PANEL) {
        if (rows > GP_AMX_ROWS && column)
            gp_amx_panel(type, 1, 1, a, b, width, from, from_nbytes, to, queue);
        else if (rows > GP_AMX_ROWS)
            gp_amx_panel(type, 1, 0, a, b, width, from, from_nbytes, to, queue);
        else if (column)
            gp_amx_panel(type, 0, 1, a, b, width, from, from_nbytes, to, queue);
        else
            gp_amx_panel(type, 0, 0, a, b, width, from, from_nbytes, to, queue);
    }
}

/* All rows of one group of panels; what is finished waits in the queue, whose functions are those of the type. All rows
 * together fetch what the next group reads, from L3 or memory; a single block, which waits for its own weights, these. */
static __attribute__((noinline)) void gp_amx_multiply(const enum gp_packed_type type, int column, const gp_amx_matrix *a,
                                                      const float *b, int64_t panel_step, gp_packed_sink sink,
                                                      gp_amx_queue *queue)
{
    const int64_t blocks = (a->rows + 2 * GP_AMX_ROWS - 1) / (2 * GP_AMX_ROWS), panels = gp_column_panels(column);
    const int vectors = column ? GP_PANEL_VECTORS : 1;
    float first[GP_TILE_PANELS * GP_PANEL] __attribute__((aligned(64))); /* the same for all rows */
    for (int j = 0; j < panels * vectors; j++)
        gp_store(first + j * GP_VL,
                 type == GP_PACKED_S8 && sink.is_first ? gp_first_sums(&sink, (int)panels, vectors, j) : (gp_vf){0});
    int is_new = 1;
    queue->ahead = blocks > 1 ? (const char *)(b + panels * panel_step) : (const char *)b + GP_AMX_AHEAD;
    queue->is_near = blocks == 1;
    queue->ahead_lines = (GP_AMX_WORDS * GP_PANEL * 4 / 64 + blocks - 1) / blocks;
    gp_amx_source source = a->blocks ? a->lying : a->packed;
    for (int64_t block = 0; block < blocks; block++, source.data += source.down) {
        if (block && block == a->blocks)
            source = a->packed;
        const int64_t count = gp_min(a->rows - block * 2 * GP_AMX_ROWS, 2 * GP_AMX_ROWS);
        float *sums = sink.is_last ? queue->sums[queue->next] : sink.partial;
        gp_amx_group(type, count, column, &source, b, gp_tile_width((int)panels, &sink), panel_step,
                     sink.is_first ? first : sink.partial, sink.is_first ? 0 : GP_AMX_PITCH * 4, sums, queue);
        if (sink.is_last) {
            gp_amx_finish_all(queue);
            if (is_new) { /* from then on it has come down by the rows before */
                queue->sink = sink;
                queue->column = column;
                queue->at = 0;
                queue->cols = a->cols;
                queue->pitch = a->pitch;
                is_new = 0;
            }
            queue->sink.partial = sums;
            queue->left = count;
            queue->next ^= 1;
            gp_amx_skip(queue);
        }
        sink.partial += count * GP_AMX_PITCH;
    }
}
#else
#define GP_HAS_AMX 0
#define gp_amx_begin(type) (void)(type)
#define gp_amx_end(type) (void)(type)
#endif

#endif
