/* Matrix products of f32 with weights of 8 or 4 bits (gp_compressed.h), which are read as they are.
 *
 * With VNNI, rows of A become integers of three bytes (gp_digits.h), whose products with the numbers are summed exactly
 * for a block of rows of the weights, then scaled: three instructions for 64 weights, so that a single row takes the
 * time of reading the weights. Where one byte is enough (f32_matmul_compressed_dynamic) any instruction set does so,
 * with two to eight instructions a vector of weights.
 * Rows without digits, and other instruction sets, turn numbers into floats in registers.
 * There many rows are multiplied by panels of f32 instead, which a block of the weights becomes in scratch, small
 * enough to stay in L2.
 *
 * args: a, numbers, scales, zero points if there are any, then those of the post-ops. */
#include "gemm/gp_compressed.h"
#include "gemm/gp_digits.h"
#include "gemm/gp_packed_tile.h"
#include "gemm/gp_tile_table.h"
#include "eltwise/gp_sink.h"
#include "eltwise/gp_tile.h"

#define GP_FEW_ROWS 4

/* Bytes of the weights that are asked for ahead of those that are read, one stream of memory: one core alone then gets
 * nearly what memory gives, where four streams of their own accord got half of it. */
#define GP_AHEAD 8192

GP_RECORD(gp_compressed_matmul, {
    int64_t m, n, k;
    int64_t row_block, col_block, k_block;   /* k_block: rows of the weights that are panels at a time; 0: none are */
    int64_t group, ngroups, bits;            /* group: rows of a scale */
    int64_t has_zeros, zero;                 /* zero: the zero point of all where none are kept */
    int64_t a_row, a_col, dst_row, residual_row;
    int64_t bias_arg, residual_arg, dst_arg; /* 0: there is none */
    int64_t tile_in_scratch, has_epilogue;
    int64_t partial_offset, panels_offset;   /* bytes into scratch; the tile lies at 0 */
    int64_t ndigits;                         /* of a number of A: 3, or 1 by dynamic quantisation; 0: it stays f32 */
    int64_t digit_block, nblocks;            /* rows of the weights with one factor, at most */
    int64_t digits_offset, digits_nbytes;
    float lo, hi;
});

typedef struct {
    const char *numbers;
    const float *scales; /* of the first group */
    const int16_t *zeros;
    int64_t step, group_step; /* to the next panel's: bytes of the numbers, elements of scales and zero points */
    int64_t width;            /* of a panel */
} weights;

typedef struct {
    const float *a;
    const int32_t *digits; /* (four of k, row, digit), rows for GP_FEW_ROWS; NULL where there are none */
    const float *factors;  /* (block, row) */
    const int32_t *sums;   /* (block, row, digit) */
} matrix;

typedef gp_vi gp_zeros[GP_TILE_PANELS * GP_PANEL_VECTORS];

GP_INLINE int64_t group_at(const int vectors, weights w, int j)
{
    return j / vectors * w.group_step + j % vectors * GP_VL;
}

GP_INLINE void load_zeros(const gp_compressed_matmul *p, const int nv, const int vectors, weights w, gp_vi *zero)
{
    GP_EACH(j, nv)
        zero[j] = p->has_zeros ? gp_load_shorts(w.zeros + group_at(vectors, w, j))
                               : (int32_t)p->zero - (gp_vi){0};
}

GP_INLINE weights skip_groups(const gp_compressed_matmul *p, weights w, int64_t count)
{
    w.scales += count * w.width;
    w.zeros += p->has_zeros ? count * w.width : 0;
    return w;
}

GP_INLINE gp_vi words_of(const int vectors, weights w, int64_t word, int j)
{
    return gp_load_words(w.numbers + j / vectors * w.step + (word * w.width + j % vectors * GP_VL) * 4);
}

/* ---- rows as floats ---- */

/* Adds the products of `count` rows of the weights from i on, which a word holds. */
GP_INLINE void add_floats(const int bits, const int rows, const int panels, const int vectors,
                          const gp_compressed_matmul *p, const float *a, weights w, const gp_vi *zero, int64_t i,
                          const int64_t count, gp_acc sum)
{
    const int nv = panels * vectors, depth = 32 / bits;
    GP_EACH(j, nv) {
        const gp_vi words = words_of(vectors, w, i / depth, j);
        const gp_vf shift = __builtin_convertvector(zero[j], gp_vf);
        GP_EACH(t, depth) {
            if (t >= count)
                break;
            const gp_vf x = gp_numbers_of(bits, words, t) - shift;
            GP_EACH(r, rows)
                sum[r][j] = gp_vfma(gp_splat(a[r * p->a_row + (i + t) * p->a_col]), x, sum[r][j]);
        }
    }
}

GP_INLINE void float_rows(const int bits, const int rows, const int panels, const int vectors,
                          const gp_compressed_matmul *p, matrix x, weights w, const gp_packed_sink *sink)
{
    const int nv = panels * vectors, depth = 32 / bits;
    gp_acc total;
    gp_acc_begin(GP_PACKED_F32, rows, 1, nv, total, sink);
    for (int64_t i = 0; i < p->k;) {
        const int64_t end = gp_min(i + p->group, p->k);
        gp_acc sum;
        gp_zeros zero;
        gp_acc_begin(GP_PACKED_F32, rows, 1, nv, sum, sink);
        load_zeros(p, nv, vectors, w, zero);
        for (; i + depth <= end; i += depth)
            add_floats(bits, rows, panels, vectors, p, x.a, w, zero, i, depth, sum);
        if (i < end)
            add_floats(bits, rows, panels, vectors, p, x.a, w, zero, i, end - i, sum);
        i = end;
        GP_EACH(j, nv)
            GP_EACH(r, rows)
                total[r][j] = gp_vfma(sum[r][j], gp_load(w.scales + group_at(vectors, w, j)), total[r][j]);
        w = skip_groups(p, w, 1);
    }
    gp_acc_end(GP_PACKED_F32, rows, panels, vectors, total, sink);
}

/* ---- rows as digits ---- */

typedef gp_vi gp_digit_acc[GP_DIGITS][GP_FEW_ROWS][GP_PANEL_VECTORS]; /* of one panel */

/* Adds the products of the digits of all rows, from x on, with a word of each column. */
GP_INLINE void add_digits(const int bits, const int digits, const int rows, const int vectors, const int32_t *x,
                          const gp_vi *words, gp_vi (*sum)[GP_FEW_ROWS][GP_PANEL_VECTORS])
{
    GP_EACH(r, rows)
        GP_EACH(d, digits) {
            const char *at = (const char *)(x + r * digits + d);
            const gp_vi low = gp_splat_word(at), high = bits == 4 ? gp_splat_word(at + GP_FEW_ROWS * digits * 4) : low;
            GP_EACH(j, vectors)
                sum[d][r][j] = bits == 4 ? gp_dot_nibbles(words[j], low, high, sum[d][r][j])
                                         : gp_dot_digits(words[j], low, sum[d][r][j]);
        }
}

/* The accumulators of a block of rows of the weights, first to end, to `total`. */
GP_INLINE void digit_block(const int bits, const int digits, const int rows, const int vectors, matrix x,
                           int64_t block, weights w, const gp_vi *zero, int64_t first, int64_t end, gp_acc total)
{
    const int depth = 32 / bits, row_words = GP_FEW_ROWS * digits;
    gp_digit_acc sum;
    GP_EACH(r, rows)
        GP_EACH(d, digits) {
            /* of pairs of s16: the sum of at most 256 digits is one, and its partner is 0 */
            const int32_t digit_sum = x.sums[block * row_words + r * digits + d] & 0xffff;
            GP_EACH(j, vectors)
                sum[d][r][j] = gp_madd((gp_vh)-zero[j], (gp_vh)(digit_sum - (gp_vi){0}));
        }
    const int32_t *digit = x.digits + first / 4 * row_words;
    const char *from = w.numbers + first / depth * w.width * 4;
    for (int64_t left = end - first; left > 0; left -= depth) {
        gp_vi words[GP_PANEL_VECTORS];
        GP_EACH(j, vectors) {
            words[j] = gp_load_words(from + j * GP_VL * 4);
            if (j * GP_VL * 4 % 64 == 0)
                __builtin_prefetch((const void *)((uintptr_t)from + GP_AHEAD + j * GP_VL * 4));
        }
        add_digits(bits, digits, rows, vectors, digit, words, sum);
        digit += depth / 4 * row_words;
        from += w.width * 4;
    }
    GP_EACH(r, rows) {
        const gp_vf factor = gp_splat(x.factors[block * GP_FEW_ROWS + r]);
        GP_EACH(j, vectors) {
            gp_vf all = __builtin_convertvector(sum[0][r][j], gp_vf);
            for (int d = 1; d < digits; d++)
                all = gp_vfma(all, gp_splat(256.0f), __builtin_convertvector(sum[d][r][j], gp_vf));
            total[r][j] = gp_vfma(all * factor, gp_load(w.scales + j * GP_VL), total[r][j]);
        }
    }
}

GP_INLINE void digit_rows(const int bits, const int digits, const int rows, const int vectors,
                          const gp_compressed_matmul *p, matrix x, weights w, const gp_packed_sink *sink)
{
    gp_acc total;
    gp_acc_begin(GP_PACKED_F32, rows, 1, vectors, total, sink);
    for (int64_t i = 0, block = 0; i < p->k; w = skip_groups(p, w, 1)) {
        const int64_t end = gp_min(i + p->group, p->k);
        gp_zeros zero;
        load_zeros(p, vectors, vectors, w, zero);
        for (; i < end; i = gp_min(i + p->digit_block, end), block++)
            digit_block(bits, digits, rows, vectors, x, block, w, zero, i, gp_min(i + p->digit_block, end), total);
    }
    gp_acc_end(GP_PACKED_F32, rows, 1, vectors, total, sink);
}

/* The digits of a block of a number each, as digit_rows reads them; returns whether it has any. */
GP_INLINE int make_block(const gp_compressed_matmul *p, const float *a, int64_t count, int32_t *digits, float *factor,
                         int32_t *sums)
{
#if defined(__AVX512VNNI__)
    if (p->ndigits == GP_DIGITS)
        return gp_make_digits(a, count, digits, GP_FEW_ROWS * GP_DIGITS, factor, sums);
#endif
    gp_make_bytes(a, count, digits, GP_FEW_ROWS, factor, sums);
    return p->ndigits == 1;
}

/* The digits of row r, block after block; returns whether it has any. */
static int make_row(const gp_compressed_matmul *p, const float *a, int64_t r, int32_t *digits, float *factors,
                    int32_t *sums)
{
    const int64_t row_words = GP_FEW_ROWS * p->ndigits, own = r * p->ndigits;
    for (int64_t i = 0, block = 0; i < p->k; block++) {
        const int64_t end = gp_min(i / p->group * p->group + p->group, p->k), count = gp_min(p->digit_block, end - i);
        if (!make_block(p, a + i, count, digits + i / 4 * row_words + own, factors + block * GP_FEW_ROWS + r,
                        sums + block * row_words + own))
            return 0;
        i += count;
    }
    return 1;
}

/* ---- tiles ---- */

/* Up to 8 vectors of accumulators: with their addends they fit sixteen registers, as digits 32. Others are never called. */
GP_INLINE void any_rows(const int bits, const int rows, const int panels, const int vectors,
                        const gp_compressed_matmul *p, matrix x, weights w, const gp_packed_sink *sink)
{
    if (rows > GP_FEW_ROWS || rows * panels * vectors > 8 || (bits == 4 && panels > 2))
        return;
#if defined(__AVX512VNNI__)
    if (panels == 1 && x.digits && p->ndigits == GP_DIGITS) {
        digit_rows(bits, GP_DIGITS, rows, vectors, p, x, w, sink);
        return;
    }
#endif
    if (panels == 1 && x.digits)
        digit_rows(bits, 1, rows, vectors, p, x, w, sink);
    else
        float_rows(bits, rows, panels, vectors, p, x, w, sink);
}

#define GP_ROWS_PARAMETERS (const gp_compressed_matmul *p, matrix x, weights w, const gp_packed_sink *sink)

typedef void(*rows_fn) GP_ROWS_PARAMETERS;

GP_DEFINE_TILES(tiles_4, rows_fn, 4, any_rows, GP_ROWS_PARAMETERS, p, x, w, sink)
GP_DEFINE_TILES(tiles_8, rows_fn, 8, any_rows, GP_ROWS_PARAMETERS, p, x, w, sink)

/* ---- many rows as floats ---- */

/* Rows first to first + count of a panel of that many vectors as f32, whole words. */
GP_INLINE void expand(const int bits, const int vectors, const gp_compressed_matmul *p, weights w, int64_t first,
                      int64_t count, float *to)
{
    const int depth = 32 / bits;
    int64_t group_end = 0;
    gp_zeros zero = {{0}};
    gp_vf scale[2] = {{0}, {0}};
    for (int64_t i = first; i < first + count; i += depth) {
        if (i >= group_end) {
            const weights at = skip_groups(p, w, i / p->group);
            load_zeros(p, vectors, vectors, at, zero);
            for (int v = 0; v < vectors; v++)
                scale[v] = gp_load(at.scales + v * GP_VL);
            group_end = (i / p->group + 1) * p->group;
        }
        GP_EACH(t, depth)
            GP_EACH(v, vectors) { /* what is stored behind a row is overwritten by the next one */
                const gp_vf shift = __builtin_convertvector(zero[v], gp_vf);
                gp_store(to + (i - first + t) * w.width + v * GP_VL,
                         (gp_numbers_of(bits, words_of(vectors, w, i / depth, v), t) - shift) * scale[v]);
            }
    }
}

/* `panels` panels; scratch has room for whole words and vectors. */
static void expand_panels(const gp_compressed_matmul *p, weights w, int panels, int64_t first, int64_t count,
                          float *to, int64_t panel_step)
{
    for (int panel = 0; panel < panels; panel++) {
        if (p->bits == 8 && w.width > GP_VL)
            expand(8, 2, p, w, first, count, to);
        else if (p->bits == 8)
            expand(8, 1, p, w, first, count, to);
        else if (w.width > GP_VL)
            expand(4, 2, p, w, first, count, to);
        else
            expand(4, 1, p, w, first, count, to);
        w.numbers += w.step;
        w.scales += w.group_step;
        w.zeros += p->has_zeros ? w.group_step : 0;
        to += panel_step;
    }
}

static void many_rows(const gp_compressed_matmul *p, int column, int panels, int64_t rows, const float *a,
                      weights w, gp_packed_sink sink, float *room)
{
    const int64_t panel_step = p->k_block * GP_PANEL;
    int64_t first = 0;
    do {
        const int64_t count = gp_min(p->k - first, p->k_block);
        expand_panels(p, w, panels, first, count, room, panel_step);
        sink.is_first = first == 0;
        sink.is_last = first + count >= p->k;
        gp_f32_group(rows, column, count, a + first * p->a_col, p->a_row, p->a_col, room, panel_step, &sink);
        first += count;
    } while (first < p->k);
}

/* ---- blocks ---- */

/* The columns j to j + cols of `rows` rows, whose sink is at (0, j); few rows unless panels are made. */
static void columns(const gp_compressed_matmul *p, int64_t rows, int64_t j, int64_t cols, matrix x, void *const *args,
                    gp_packed_sink sink, char *scratch)
{
    const int64_t ntiles = (rows + GP_TILE_ROWS - 1) / GP_TILE_ROWS, words = gp_word_count(p->bits, p->k);
    for (int64_t left = cols; left > 0;) {
        int panels = rows > 2 || x.digits ? 1 : rows > 1 || p->bits == 4 ? 2 : 4; /* as many streams as memory likes */
        if (p->k_block) /* scratch has room for two */
            panels = (int)gp_min(gp_streams((rows + ntiles - 1) / ntiles, left), 2);
        while (panels > 1 && panels * GP_PANEL > left)
            panels /= 2;
        const int64_t step = gp_min(panels * GP_PANEL, left);
        const int column = gp_tile_column(panels, j, p->n);
        const weights w = {(const char *)args[1] + j * words * 4, (const float *)args[2] + j * p->ngroups,
                           p->has_zeros ? (const int16_t *)args[3] + j * p->ngroups : NULL, GP_PANEL * words * 4,
                           GP_PANEL * p->ngroups, panels > 1 ? GP_PANEL : step};
        sink.cols = step;
        if (p->k_block)
            many_rows(p, column, panels, rows, x.a, w, sink, (float *)(scratch + p->panels_offset));
        else
            (p->bits == 8 ? tiles_8 : tiles_4)[rows - 1][column](p, x, w, &sink);
        gp_sink_right(&sink, step);
        j += step;
        left -= step;
    }
}

/* The next few rows, with digits where they all have some: `room` holds as many. */
static matrix make_matrix(const gp_compressed_matmul *p, const float *a, int64_t rows, char *room)
{
    int32_t *digits = (int32_t *)room;
    float *factors = (float *)(room + p->digits_nbytes);
    int32_t *sums = (int32_t *)(factors + GP_FEW_ROWS * p->nblocks);
    float *row = (float *)(sums + GP_FEW_ROWS * p->ndigits * p->nblocks);
    int is_sound = p->ndigits > 0;
    for (int64_t r = 0; r < rows && is_sound; r++)
        is_sound = make_row(p, gp_gather(a + r * p->a_row, p->a_col, p->k, row), r, digits, factors, sums);
    return is_sound ? (matrix){a, digits, factors, sums} : (matrix){a, NULL, NULL, NULL};
}

static void task(const gp_compressed_matmul *p, void *const *args, int64_t i, int64_t j, char *scratch)
{
    const int64_t rows = gp_min(p->m - i, p->row_block), cols = gp_min(p->n - j, p->col_block);
    const int64_t most = p->k_block ? rows : GP_FEW_ROWS;
    gp_packed_sink sink = GP_MAKE_SINK(p, args, i * p->dst_row + j, p->dst_row, i * p->residual_row + j, p->residual_row, j,
                                       cols, scratch);
    const float *tile = sink.c, *a = (const float *)args[0] + i * p->a_row;
    for (int64_t r = 0; r < rows; r += most, a += most * p->a_row) {
        const int64_t count = gp_min(rows - r, most);
        const matrix x = make_matrix(p, a, p->k_block ? 0 : count, scratch + p->digits_offset);
        columns(p, count, j, cols, x, args, sink, scratch);
        gp_sink_down(&sink, count);
    }
    if (p->has_epilogue)
        gp_run_epilogue((const gp_eltwise *)(p + 1), args + p->dst_arg, tile, sink.ldc, rows, cols, i * p->n + j, p->n);
}

GP_DEFINE_KERNEL(f32_matmul_compressed)
{
    const gp_compressed_matmul *p = params;
    const int64_t col_blocks = (p->n + p->col_block - 1) / p->col_block;
    for (int64_t t = begin; t < end; t++)
        task(p, args, t / col_blocks * p->row_block, t % col_blocks * p->col_block, scratch);
}

/* The same by another name: with one digit. */
GP_DEFINE_KERNEL(f32_matmul_compressed_dynamic)
{
    GP_KERNEL(f32_matmul_compressed)(params, args, begin, end, scratch);
}

const gp_kernel_entry GP_KERNEL(compressed_table)[] = {
    GP_ENTRY(f32_matmul_compressed, gp_compressed_matmul),
    GP_ENTRY(f32_matmul_compressed_dynamic, gp_compressed_matmul),
    GP_TABLE_END,
};
