/* Batched matrix products with weights in panels (gp_packed.h), for f32, bf16 and 8-bit integers.
 *
 * A task is row_block x col_block results of one matrix of the batch: its panels one group after the other, for each
 * all rows, so that a group is read from memory once and then lies in L2. K is split only where a group would not fit
 * there, or where few results would make too few tasks: then a task is one part of k too, and dst has a matrix for each
 * part, to be added up later. A is read where it lies if its rows are words; else the task's rows become words in
 * scratch first, or tiles where AMX multiplies them (gp_amx.h).
 *
 * args: a, packed b, scales of s8, then those of the post-ops. */
#include "core/gp_convert.h"
#include "gemm/gp_amx.h"
#include "gemm/gp_batch.h"
#include "gemm/gp_tile_table.h"
#include "eltwise/gp_tile.h"

GP_RECORD(gp_packed_matmul, {
    int64_t m, n, k;
    int64_t row_block, col_block, word_block; /* word_block: steps along k at a time */
    int64_t parts, part_words, dst_part;      /* parts of k that are tasks of their own; elements from one's dst on */
    int64_t nbatch;
    int64_t batch_shape[GP_MAX_BATCH], batch_strides[4][GP_MAX_BATCH]; /* of b: bytes */
    int64_t a_row, a_col, dst_row, residual_row;
    int64_t bias_arg, residual_arg, scale_arg, dst_arg; /* 0: there is none */
    int64_t tile_in_scratch, has_epilogue;
    int64_t partial_offset, words_offset, row_offset; /* bytes into scratch; the tile lies at 0 */
    int64_t largest_offset, shift_offset;             /* likewise, of pairs and shifts (gp_packed.h) */
    int64_t a_dtype, a_zero;
    int64_t has_one_scale, has_one_zero; /* s8: one number for all columns instead of one for each */
    float lo, hi;
    gp_requant requant; /* s8: instead of residual, lo and hi */
    gp_dynamic dynamic; /* s8 */
});

/* A matrix of words: byte strides, on the average where they lie as tiles of AMX. */
typedef struct {
    const char *data;
    int64_t row, col;
    const int32_t *sums; /* of the rows of s8, less their zero point */
    struct gp_amx_queue *queue; /* of tiles; else NULL */
} gp_words;

#define GP_PACKED_PARAMETERS                                                                                           \
    (int64_t words, const char *a, int64_t a_row, int64_t a_col, const float *b, int64_t panel_step,                   \
     const gp_packed_sink *sink)

typedef void(*gp_packed_fn) GP_PACKED_PARAMETERS;

#define GP_DEFINE_TYPE(type)                                                                                           \
    GP_DEFINE_TILES(tiles_##type, gp_packed_fn, type, gp_packed_tile, GP_PACKED_PARAMETERS, words, a, a_row, a_col, b, \
                    panel_step, sink)

GP_DEFINE_TYPE(GP_PACKED_F32)
GP_DEFINE_TYPE(GP_PACKED_BF16)
GP_DEFINE_TYPE(GP_PACKED_S8)
#if GP_HAS_AMX
GP_DEFINE_FINISH(finish_GP_PACKED_BF16, GP_PACKED_BF16)
GP_DEFINE_FINISH(finish_GP_PACKED_S8, GP_PACKED_S8)
#endif

static void bf16_words(const gp_packed_matmul *p, const char *a, int64_t first, int64_t k, uint16_t *words, float *row)
{
    if (p->a_dtype == GP_BF16 && p->a_col == 1) {
        memcpy(words, (const uint16_t *)a + first, (size_t)k * 2);
    } else if (p->a_dtype == GP_F32 && p->a_col == 1) {
        gp_store_row(GP_BF16, (const float *)a + first, words, 0, 1, k);
    } else {
        gp_load_row((int)p->a_dtype, row, a, first, p->a_col, k);
        gp_store_row(GP_BF16, row, words, 0, 1, k);
    }
}

/* k unsigned bytes, flipped by 0x80 if they are signed; returns their sum. Bytes alias everything: hence restrict. */
static int64_t byte_words(int64_t k, const uint8_t *restrict from, int64_t step, uint8_t flip, uint8_t *restrict words)
{
    uint32_t sum = 0; /* at most 255 * 2^15 */
    if (step == 1)
        for (int64_t i = 0; i < k; i++)
            words[i] = from[i] ^ flip;
    else
        for (int64_t i = 0; i < k; i++)
            words[i] = from[i * step] ^ flip;
    for (int64_t i = 0; i < k; i++)
        sum += words[i];
    return sum;
}

/* Whether the rows of A are words as they lie. */
GP_INLINE int is_words(const enum gp_packed_type type, const gp_packed_matmul *p)
{
    if (type == GP_PACKED_F32)
        return 1;
    if (type == GP_PACKED_BF16)
        return p->a_dtype == GP_BF16 && p->a_col == 1 && p->k % 2 == 0;
    return p->a_dtype == GP_U8 && p->a_col == 1 && p->k % 4 == 0 && !p->dynamic.columns_arg;
}

/* k elements of a row of A as words, zeros behind them; returns the sum of s8, less their zero points. */
GP_INLINE int32_t load_row_words(const enum gp_packed_type type, const gp_packed_matmul *p, const char *a, int64_t first,
                                 int64_t k, int64_t words, int32_t a_zero, char *to, char *scratch)
{
    if (words)
        memset(to + (words - 1) * 4, 0, 4);
    if (type == GP_PACKED_BF16) {
        bf16_words(p, a, first, k, (uint16_t *)to, (float *)(scratch + p->row_offset));
        return 0;
    }
    const uint8_t flip = p->a_dtype == GP_S8 ? 0x80 : 0;
    return (int32_t)(byte_words(k, (const uint8_t *)a + first, p->a_col, flip, (uint8_t *)to) - k * a_zero);
}

/* k elements of rows of A, from element `first` on, as the tiles read them; behind the words of s8, one s32 a
 * row. */
GP_INLINE gp_words load_words(const enum gp_packed_type type, const gp_packed_matmul *p, const char *a, int64_t first,
                              int64_t rows, int64_t k, int64_t words, int32_t a_zero, char *scratch)
{
    const int64_t nbytes = type == GP_PACKED_F32 ? 4 : type == GP_PACKED_BF16 ? 2 : 1;
    if (is_words(type, p))
        return (gp_words){.data = a + first * nbytes, .row = p->a_row * nbytes, .col = p->a_col * 4};
    char *to = scratch + p->words_offset;
    int32_t *sums = (int32_t *)(to + p->row_block * words * 4);
    for (int64_t i = 0; i < rows; i++, first += p->a_row, to += words * 4)
        sums[i] = load_row_words(type, p, a, first, k, words, a_zero, to, scratch);
    return (gp_words){.data = scratch + p->words_offset, .row = words * 4, .col = 4, .sums = sums};
}

#if GP_HAS_AMX
/* The same as tiles. Rows that are no words become such one by one. */
GP_INLINE gp_words load_tiles(const enum gp_packed_type type, const gp_packed_matmul *p, const char *a, int64_t first,
                              int64_t rows, int64_t k, int64_t words, int32_t a_zero, char *scratch,
                              gp_amx_queue *queue)
{
    const int64_t nbytes = type == GP_PACKED_BF16 ? 2 : 1, depth = gp_amx_depth(words);
    char *tiles = scratch + p->words_offset;
    char *line = tiles + gp_amx_depth(p->row_block) * depth * GP_AMX_NBYTES;
    int32_t *sums = (int32_t *)(line + words * 4);
    gp_amx_piece *pieces = (gp_amx_piece *)(sums + p->row_block + p->row_block % 2);
    const int64_t start = 0, count = gp_amx_find_pieces(&start, 1, words, pieces);
    for (int64_t i = 0; i < rows; i++, first += p->a_row) {
        const char *row = a + first * nbytes;
        if (!is_words(type, p)) {
            sums[i] = load_row_words(type, p, a, first, k, words, a_zero, line, scratch);
            row = line;
        }
        gp_amx_pack_row(row, pieces, count, words, i, depth, tiles);
    }
    return (gp_words){tiles, depth * GP_AMX_NBYTES / GP_AMX_ROWS, GP_AMX_NBYTES / GP_AMX_WORDS, sums, queue};
}
#endif

/* Which words along k are summed: `count` from `first` on, `block` at a time, of the `all` that a panel has. */
typedef struct {
    int64_t all, first, count, block;
} gp_depth;

/* Two tiles of f32, one below the other, by a vector of columns: of one alone each sum would wait for the addition before. */
static __attribute__((noinline)) void tall_tile(int64_t words, const char *a, int64_t a_row, int64_t a_col, const float *b,
                                                const gp_packed_sink *sink)
{
    gp_packed_sink below = *sink;
    gp_sink_down(&below, GP_TILE_ROWS);
    gp_acc acc, acc_below;
    gp_acc_begin(GP_PACKED_F32, GP_TILE_ROWS, 1, 1, acc, sink);
    gp_acc_begin(GP_PACKED_F32, GP_TILE_ROWS, 1, 1, acc_below, &below);
    const char *from[4]; /* three rows a pointer: one address register each */
    GP_EACH(i, 4)
        from[i] = a + 3 * i * a_row;
    gp_acc_room own, own_below;
    const float *before = gp_acc_before(sink), *before_below = gp_acc_before(&below);
    for (int64_t chain = gp_chain_left(sink);; chain = GP_CHAIN) {
        for (int64_t left = gp_min(words, chain); left; left--, words--, b += sink->cols) {
            const char *word[2 * GP_TILE_ROWS];
            GP_EACH(i, 4)
                GP_EACH(row, 3)
                    word[3 * i + row] = from[i] + row * a_row;
            gp_tile_step(GP_PACKED_F32, GP_TILE_ROWS, 1, 1, word, 0, b, 0, acc);
            gp_tile_step(GP_PACKED_F32, GP_TILE_ROWS, 1, 1, word + GP_TILE_ROWS, 0, b, 0, acc_below);
            GP_EACH(i, 4)
                from[i] += a_col;
        }
        if (!words)
            break;
        before = gp_acc_put(GP_TILE_ROWS, 1, acc, before, sink->total ? sink->total : own);
        before_below = gp_acc_put(GP_TILE_ROWS, 1, acc_below, before_below, sink->total ? below.total : own_below);
    }
    if (sink->is_last || !sink->total) {
        gp_acc_join(GP_TILE_ROWS, 1, acc, before);
        gp_acc_join(GP_TILE_ROWS, 1, acc_below, before_below);
    }
    gp_acc_end(GP_PACKED_F32, GP_TILE_ROWS, 1, 1, acc, sink);
    gp_acc_end(GP_PACKED_F32, GP_TILE_ROWS, 1, 1, acc_below, &below);
}

/* All rows of one group of panels, for one part of k; tiles differ by at most one row. */
static void group_rows(const gp_packed_fn (*tiles)[4], int column, int64_t rows, int64_t words, gp_words a,
                       const float *b, int64_t panel_step, gp_packed_sink sink)
{
#if GP_HAS_AMX
    if (a.queue) {
        const int64_t depth = a.row * GP_AMX_ROWS / GP_AMX_NBYTES;
        const gp_amx_matrix matrix = {
            .packed = gp_amx_tiles(a.data, words, depth), .rows = rows, .cols = rows, .pitch = rows};
        if (tiles == tiles_GP_PACKED_S8)
            gp_amx_multiply(GP_PACKED_S8, column, &matrix, b, panel_step, sink, a.queue);
        else
            gp_amx_multiply(GP_PACKED_BF16, column, &matrix, b, panel_step, sink, a.queue);
        return;
    }
#endif
    for (const int64_t height = 2 * GP_TILE_ROWS; tiles == tiles_GP_PACKED_F32 && !column && rows >= height; rows -= height) {
        tall_tile(words, a.data, a.row, a.col, b, &sink);
        a.data += height * a.row;
        gp_sink_down(&sink, height);
    }
    const int64_t ntiles = (rows + GP_TILE_ROWS - 1) / GP_TILE_ROWS;
    for (int64_t left = ntiles; left; left--) {
        const int64_t height = (rows + left - 1) / left;
        if (GP_FETCHES_AHEAD && height > GP_WAITING_ROWS)
            gp_sink_ahead(&sink, words, gp_column_panels(column), ntiles - left, ntiles);
        else if (ntiles > 1)
            sink.ahead = 0; /* the tile before has brought the weights near */
        tiles[height - 1][column](words, a.data, a.row, a.col, b, panel_step, &sink);
        rows -= height;
        a.data += height * a.row;
        gp_sink_down(&sink, height);
    }
}

/* One group of panels: the blocks of k in order. */
static void group(const gp_packed_fn (*tiles)[4], int column, int64_t rows, gp_depth depth, gp_words a, const float *b,
                  int64_t width, gp_packed_sink sink)
{
    b += depth.first * width;
    if (tiles == tiles_GP_PACKED_F32 && depth.block < depth.count && depth.block % GP_CHAIN)
        sink.total = sink.partial + rows * GP_TILE_PANELS * GP_PANEL;
    int64_t w = 0;
    do {
        const int64_t step = gp_min(depth.count - w, depth.block);
        sink.word = sink.total ? w : 0;
        sink.is_first = w == 0;
        sink.is_last = w + step >= depth.count;
        sink.largest += sink.largest && w ? depth.block / 2 : 0;
        sink.most += sink.most && w ? depth.block / 2 : 0;
        group_rows(tiles, column, rows, step, a, b + w * width, depth.all * GP_PANEL, sink);
        a.data += step * a.col;
        w += step;
    } while (w < depth.count);
}

/* The columns j .. j + cols - 1 of n, of rows whose sink is at (0, j). */
static void block(const gp_packed_fn (*tiles)[4], int64_t rows, int64_t j, int64_t cols, int64_t n, gp_depth depth,
                  gp_words a, const float *b, gp_packed_sink sink)
{
    const int64_t ntiles = (rows + GP_TILE_ROWS - 1) / GP_TILE_ROWS;
    sink.ahead = n * depth.all * 4 > GP_FAR_NBYTES;
    for (int64_t left = cols; left > 0;) {
        const int panels = gp_streams((rows + ntiles - 1) / ntiles, left);
        const int64_t width = gp_panel_width(j, n), step = gp_min(panels * GP_PANEL, left);
        sink.cols = step;
        group(tiles, gp_tile_column(panels, j, n), rows, depth, a, b + j * depth.all, width, sink);
        gp_sink_right(&sink, step);
        j += step;
        left -= step;
    }
}

void gp_f32_panels(int64_t rows, int64_t j, int64_t cols, int64_t n, int64_t k, const float *a, int64_t a_row,
                           const float *b, float *c, int64_t ldc)
{
    const gp_words words = {.data = (const char *)a, .row = a_row * 4, .col = 4};
    const gp_packed_sink sink = {.c = c, .ldc = ldc, .lo = -INFINITY, .hi = INFINITY};
    block(tiles_GP_PACKED_F32, rows, j, cols, n, (gp_depth){k, 0, k, k > 1 ? k : 1}, words, b, sink);
}

void gp_f32_group(int64_t rows, int column, int64_t k, const float *a, int64_t a_row, int64_t a_col,
                          const float *b, int64_t panel_step, const gp_packed_sink *sink)
{
    group_rows(tiles_GP_PACKED_F32, column, rows, k, (gp_words){.data = (const char *)a, .row = a_row * 4, .col = a_col * 4}, b, panel_step,
               *sink);
}

#if GP_HAS_PAIRS
/* Finds the largest bytes of the pairs of the rows of all tiles, which come to scratch less their shifts first, where the
 * zero point promises some. Returns where the rows are. */
static gp_words prepare_pairs(const gp_packed_matmul *p, gp_words a, int64_t rows, int64_t words, int32_t a_zero,
                              char *scratch, gp_packed_sink *sink)
{
    const gp_words shifted = {.data = scratch + p->words_offset, .row = words * 4, .col = 4};
    const int is_shifted = a_zero >= GP_LEAST_ZERO && rows >= GP_PAIR_ROWS && words >= GP_PAIR_WORDS;
    const gp_words result = is_shifted ? shifted : a;
    uint8_t *largest = (uint8_t *)scratch + p->largest_offset;
    int32_t *shift = (int32_t *)(scratch + p->shift_offset);
    char *to = scratch + p->words_offset;
    sink->largest = largest;
    sink->pairs = GP_PAIRS(words);
    sink->shift = shift;
    sink->shifts = is_shifted ? GP_SHIFTS(words) : 0;
    for (int64_t left = (rows + GP_TILE_ROWS - 1) / GP_TILE_ROWS; left; left--) {
        const int64_t height = (rows + left - 1) / left;
        const char *row[GP_TILE_ROWS];
        for (int64_t i = 0; i < height; i++, a.data += a.row)
            row[i] = a.data;
        if (is_shifted)
            gp_shift_rows(row, height, words, to, shifted.row, shift);
        for (int64_t i = 0; i < height && is_shifted; i++, to += shifted.row)
            row[i] = to;
        gp_find_largest(row, height, 0, words, largest);
        rows -= height;
        largest += sink->pairs;
        shift += sink->shifts;
    }
    return result;
}
#endif

GP_INLINE void task(const enum gp_packed_type type, const gp_packed_fn (*tiles)[4], const gp_packed_matmul *p,
                    void *const *args, int64_t batch, int64_t i, int64_t j, int64_t part, char *scratch)
{
    const int64_t in_word = type == GP_PACKED_F32 ? 1 : type == GP_PACKED_BF16 ? 2 : 4;
    const int64_t words = (p->k + in_word - 1) / in_word, first = part * p->part_words;
    const gp_depth depth = {words, first, gp_min(words - first, p->part_words), p->word_block};
    const int64_t rows = gp_min(p->m - i, p->row_block), cols = gp_min(p->n - j, p->col_block);
    int64_t at[4];
    gp_locate_batch(p->nbatch, p->batch_shape, p->batch_strides, 4, batch, at);
    at[GP_A] += i * p->a_row + first * in_word * p->a_col;
    at[GP_DST] += part * p->dst_part;
    const float *b = (const float *)((const char *)args[1] + at[GP_B]);
    const int64_t k = gp_min(p->k - first * in_word, depth.count * in_word);
    const int32_t a_zero = type == GP_PACKED_S8 ? gp_dynamic_zero(&p->dynamic, args, p->a_dtype, p->a_zero) : 0;
    gp_words a;
#if GP_HAS_AMX
    gp_amx_queue queue;
    gp_amx_start(&queue, type == GP_PACKED_S8 ? finish_GP_PACKED_S8 : finish_GP_PACKED_BF16);
    if (gp_takes_amx(type, rows))
        a = load_tiles(type, p, args[0], at[GP_A], rows, k, depth.count, a_zero, scratch, &queue);
    else
#endif
        a = load_words(type, p, args[0], at[GP_A], rows, k, depth.count, a_zero, scratch);
    gp_packed_sink sink = GP_MAKE_SINK(p, args, at[GP_DST] + i * p->dst_row + j, p->dst_row,
                                       at[GP_RESIDUAL] + i * p->residual_row + j, p->residual_row, j, cols, scratch);
    const float *tile = sink.c;
    gp_requant_sink requant;
    if (type == GP_PACKED_S8) {
        const int32_t *sums = (const int32_t *)(b + words * p->n);
        sink.col_sum = sums + j;
        if (p->dynamic.columns_arg) {
            const int32_t *zeros = args[p->dynamic.columns_arg];
            sink.col_zero = p->has_one_zero ? NULL : zeros + j;
            sink.b_zero = zeros[0];
            sink.row_sum = a.sums;
        }
#if GP_HAS_PAIRS
        a = prepare_pairs(p, a, rows, words, a_zero, scratch, &sink);
        const int32_t *groups = sums + p->n;
        sink.group_sum = groups + j * GP_SHIFTS(words);
        sink.most = (const uint8_t *)(groups + p->n * GP_SHIFTS(words)) + j / GP_PANEL * 2 * sink.pairs;
#endif
        char *dst = (char *)args[p->dst_arg] + (at[GP_DST] + i * p->dst_row + j) * gp_element_nbytes(p->requant.dst_dtype);
        requant = gp_make_requant(&p->requant, args, j, p->tile_in_scratch ? scratch : dst, sink.ldc,
                                  at[GP_RESIDUAL] + i * p->residual_row + j, p->residual_row);
        sink.requant = &requant;
        sink.a_zero = a_zero;
        const float *scales = args[p->scale_arg];
        sink.scale = p->has_one_scale ? NULL : scales + j;
        sink.a_scale = gp_dynamic_scale(&p->dynamic, args) * (p->has_one_scale ? scales[0] : 1);
        sink.c = NULL;
    }
    block(tiles, rows, j, cols, p->n, depth, a, b, sink);
#if GP_HAS_AMX
    gp_amx_finish_all(&queue);
#endif
    if (p->has_epilogue)
        gp_run_epilogue((const gp_eltwise *)(p + 1), args + p->dst_arg, tile, sink.ldc, rows, cols,
                        (batch * p->m + i) * p->n + j, p->n);
}

GP_INLINE void run(const enum gp_packed_type type, const gp_packed_fn (*tiles)[4], const gp_packed_matmul *p,
                   void *const *args, int64_t begin, int64_t end, char *scratch)
{
    const int64_t row_blocks = (p->m + p->row_block - 1) / p->row_block;
    const int64_t col_blocks = (p->n + p->col_block - 1) / p->col_block;
    gp_amx_begin(type);
    for (int64_t t = begin; t < end; ++t) {
        const int64_t tile = t / p->parts;
        task(type, tiles, p, args, tile / col_blocks / row_blocks, tile / col_blocks % row_blocks * p->row_block,
             tile % col_blocks * p->col_block, t % p->parts, scratch);
    }
    gp_amx_end(type);
}

GP_DEFINE_KERNEL(f32_matmul_packed) { run(GP_PACKED_F32, tiles_GP_PACKED_F32, params, args, begin, end, scratch); }
GP_DEFINE_KERNEL(bf16_matmul_packed) { run(GP_PACKED_BF16, tiles_GP_PACKED_BF16, params, args, begin, end, scratch); }
GP_DEFINE_KERNEL(s8_matmul_packed) { run(GP_PACKED_S8, tiles_GP_PACKED_S8, params, args, begin, end, scratch); }

const gp_kernel_entry GP_KERNEL(packed_table)[] = {
    GP_ENTRY(f32_matmul_packed, gp_packed_matmul),
    GP_ENTRY(bf16_matmul_packed, gp_packed_matmul),
    GP_ENTRY(s8_matmul_packed, gp_packed_matmul),
    GP_INNER(gp_rounding),
    GP_INNER(gp_requant),
    GP_INNER(gp_dynamic),
    GP_TABLE_END,
};
