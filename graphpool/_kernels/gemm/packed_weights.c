/* Bring weights into panels (gp_packed.h) and back.
 *
 * A task is GP_PACK_PANELS panels of one matrix: rows of B are read in runs of that many panels, and transposed ones in
 * blocks of GP_PACK_ROWS words, so that the lines being written stay in L1. args: b and packed; unpacking: packed and
 * b. */
#include "core/gp_convert.h"
#include "gemm/gp_batch.h"
#include "gemm/gp_packed.h"
#include "core/gp_quad.h"

#define GP_PACK_PANELS 4
#define GP_PACK_ROWS 128

GP_RECORD(gp_pack_params, {
    int64_t k, n;
    int64_t row, col; /* strides of b, in elements */
    int64_t nbatch;
    int64_t batch_shape[GP_MAX_BATCH], batch_strides[1][GP_MAX_BATCH]; /* of b */
    int64_t pitch;          /* bytes from one packed matrix to the next */
    int64_t dtype, b_dtype; /* of the panels and of b; they differ where f32 becomes bf16, and u8 less 128 becomes s8 */
});

typedef struct {
    const gp_pack_params *p;
    char *b, *packed;
    int64_t j, cols;
} gp_pack_task;

GP_INLINE int64_t element_nbytes(int64_t dtype)
{
    return dtype == GP_F32 ? 4 : dtype == GP_BF16 ? 2 : 1;
}

GP_INLINE int depth_of(int64_t dtype)
{
    return 4 / (int)element_nbytes(dtype);
}

GP_INLINE int64_t word_count(const gp_pack_params *p)
{
    return (p->k + depth_of(p->dtype) - 1) / depth_of(p->dtype);
}

/* The word of a column at row i of a panel; `left` rows exist from there on. Constant arguments make loops of it into
 * vector instructions where columns lie side by side. */
GP_INLINE uint32_t make_word(const int64_t dtype, const int64_t b_dtype, const char *b, int64_t step, const int64_t left)
{
    const int depth = depth_of(dtype);
    uint32_t word = 0;
    for (int r = 0; r < depth && r < left; r++, b += step) {
        float x;
        uint16_t h;
        if (dtype == GP_F32) {
            memcpy(&word, b, 4);
        } else if (dtype == GP_S8) {
            word |= (uint32_t)((uint8_t)*b ^ (b_dtype == GP_U8 ? 0x80 : 0)) << 8 * r;
        } else if (b_dtype == GP_F32) {
            memcpy(&x, b, 4);
            word |= (uint32_t)gp_to_bf16(x) << 16 * r;
        } else {
            memcpy(&h, b, 2);
            word |= (uint32_t)h << 16 * r;
        }
    }
    return word;
}

/* The same of elements that lie side by side and stay as they are, but for the sign of bytes. */
GP_INLINE uint32_t load_word(const int64_t b_dtype, const char *b)
{
    uint32_t word;
    memcpy(&word, b, 4);
    return word ^ (b_dtype == GP_U8 ? 0x80808080 : 0);
}

/* `count` rows of words of a panel of `cols` columns, from b on; strides in bytes. */
GP_INLINE void pack_rows(const int64_t dtype, const int64_t b_dtype, const char *restrict b, int64_t row, int64_t col,
                         uint32_t *restrict to, int64_t count, int64_t cols)
{
    const int depth = depth_of(dtype);
    for (int64_t w = 0; w < count; w++)
        for (int64_t c = 0; c < cols; c++)
            to[w * cols + c] = make_word(dtype, b_dtype, b + w * depth * row + c * col, row, depth);
}

/* The same from columns that are contiguous: four at a time become words, which are transposed in registers. */
GP_INLINE void pack_columns(const int64_t dtype, const int64_t b_dtype, const int64_t nbytes, const char *restrict b,
                            int64_t col, uint32_t *restrict to, int64_t count, int64_t cols)
{
    const int depth = depth_of(dtype);
    uint32_t words[4][GP_PACK_ROWS];
    for (int64_t c = 0; c < cols; c += 4) {
        const int64_t group = gp_min(cols - c, 4);
        for (int64_t r = 0; r < group; r++)
            for (int64_t w = 0; w < count; w++)
                words[r][w] = element_nbytes(dtype) == nbytes
                                  ? load_word(b_dtype, b + (c + r) * col + w * 4)
                                  : make_word(dtype, b_dtype, b + (c + r) * col + w * depth * nbytes, nbytes, depth);
        int64_t w = 0;
        for (; group == 4 && w + 4 <= count; w += 4)
            gp_transpose_quad(&words[0][w], &words[1][w], &words[2][w], &words[3][w], to + w * cols + c,
                              to + (w + 1) * cols + c, to + (w + 2) * cols + c, to + (w + 3) * cols + c);
        for (; w < count; w++)
            for (int64_t r = 0; r < group; r++)
                to[w * cols + c + r] = words[r][w];
    }
}

GP_INLINE void pack_panels(const gp_pack_task *t, const int64_t dtype, const int64_t b_dtype)
{
    const gp_pack_params *p = t->p;
    const int64_t depth = depth_of(dtype), nbytes = element_nbytes(b_dtype);
    const int64_t words = word_count(p), row = p->row * nbytes, col = p->col * nbytes, whole = p->k / depth;
    for (int64_t w = 0; w < words; w += GP_PACK_ROWS)
        for (int64_t j = t->j; j < t->j + t->cols; j += GP_PANEL) {
            const int64_t cols = gp_panel_width(j, p->n);
            const int64_t count = gp_min(whole - w, GP_PACK_ROWS);
            const char *b = t->b + w * depth * row + j * col;
            uint32_t *to = (uint32_t *)t->packed + j * words + w * cols;
            if (col == nbytes && cols == GP_PANEL)
                pack_rows(dtype, b_dtype, b, row, nbytes, to, count, GP_PANEL);
            else if (row == nbytes)
                pack_columns(dtype, b_dtype, nbytes, b, col, to, count, cols);
            else
                pack_rows(dtype, b_dtype, b, row, col, to, count, cols);
            if (w + GP_PACK_ROWS >= words && whole < words) /* the last word has fewer elements */
                for (int64_t c = 0; c < cols; c++)
                    to[count * cols + c] = make_word(dtype, b_dtype, b + count * depth * row + c * col, row, p->k % depth);
        }
}

/* Elements of the columns of a task back to where they came from. */
GP_INLINE void unpack_panels(const gp_pack_task *t, const int nbytes)
{
    const gp_pack_params *p = t->p;
    const int64_t words = word_count(p), depth = 4 / nbytes;
    for (int64_t j = t->j; j < t->j + t->cols; j++) {
        const int64_t first = j / GP_PANEL * GP_PANEL, width = gp_panel_width(first, p->n);
        const char *from = t->packed + (first * words + j - first) * 4;
        for (int64_t i = 0; i < p->k; i++)
            memcpy(t->b + (i * p->row + j * p->col) * nbytes, from + i / depth * width * 4 + i % depth * nbytes,
                   (size_t)nbytes);
    }
}

/* What s8 weights carry, read from the panels: sums over k, sums of groups and limits of pairs. */
static void add_columns(const gp_pack_task *t)
{
    const int64_t words = word_count(t->p), cols = t->p->n;
    const int32_t *panel = (const int32_t *)t->packed + t->j * words;
    int32_t *restrict sums = (int32_t *)t->packed + words * cols + t->j;
#if GP_HAS_PAIRS
    int32_t *groups = (int32_t *)t->packed + (words + 1) * cols;
    uint8_t *most = (uint8_t *)(groups + GP_SHIFTS(words) * cols) + t->j / GP_PANEL * 2 * GP_PAIRS(words);
    groups += t->j * GP_SHIFTS(words);
#endif
    for (int64_t j = t->j; j < t->j + t->cols; j += GP_PANEL, sums += GP_PANEL) {
        const int64_t width = gp_panel_width(j, t->p->n);
#if GP_HAS_PAIRS
        gp_sum_groups(panel, width, words, groups);
        gp_limit_pairs((const uint32_t *)panel, width, words, GP_PAIRS(words), most);
        groups += GP_SHIFTS(words) * width;
        most += 2 * GP_PAIRS(words);
#endif
        memset(sums, 0, (size_t)width * 4);
        for (int64_t w = 0; w < words; w++, panel += width)
            for (int64_t c = 0; c < width; c++)
                sums[c] += gp_sum_word(panel[c]);
    }
}

/* Zeros what tiles of floats read behind the last panel: what lies there might be subnormal, which multiplies slowly. */
static void end_panels(const gp_pack_task *t)
{
    const int64_t nbytes = word_count(t->p) * t->p->n * 4;
    memset(t->packed + nbytes, 0, (size_t)(t->p->pitch - nbytes));
}

static void pack_task(const gp_pack_task *t)
{
    if (t->p->dtype == GP_F32)
        pack_panels(t, GP_F32, GP_F32);
    else if (t->p->dtype == GP_BF16 && t->p->b_dtype == GP_F32)
        pack_panels(t, GP_BF16, GP_F32);
    else if (t->p->dtype == GP_BF16)
        pack_panels(t, GP_BF16, GP_BF16);
    else if (t->p->b_dtype == GP_U8)
        pack_panels(t, GP_S8, GP_U8);
    else
        pack_panels(t, GP_S8, GP_S8);
    if (t->p->dtype == GP_S8)
        add_columns(t);
    else if (t->j + t->cols == t->p->n)
        end_panels(t);
}

static void unpack_task(const gp_pack_task *t)
{
    if (t->p->dtype == GP_F32)
        unpack_panels(t, 4);
    else if (t->p->dtype == GP_BF16)
        unpack_panels(t, 2);
    else
        unpack_panels(t, 1);
}

GP_INLINE void run_tasks(const gp_pack_params *p, char *b, char *packed, int64_t begin, int64_t end,
                         void (*run)(const gp_pack_task *t))
{
    const int64_t step = GP_PACK_PANELS * GP_PANEL, groups = (p->n + step - 1) / step;
    for (int64_t number = begin; number < end; number++) {
        const int64_t matrix = number / groups, j = number % groups * step;
        int64_t at;
        gp_locate_batch(p->nbatch, p->batch_shape, p->batch_strides, 1, matrix, &at);
        const gp_pack_task t = {p, b + at * element_nbytes(p->b_dtype), packed + matrix * p->pitch, j,
                                gp_min(p->n - j, step)};
        run(&t);
    }
}

GP_DEFINE_KERNEL(any_matmul_pack) { run_tasks(params, args[0], args[1], begin, end, pack_task); }
GP_DEFINE_KERNEL(any_matmul_unpack) { run_tasks(params, args[1], args[0], begin, end, unpack_task); }

const gp_kernel_entry GP_KERNEL(packed_weights_table)[] = {
    GP_ENTRY(any_matmul_pack, gp_pack_params),
    GP_ENTRY(any_matmul_unpack, gp_pack_params),
    GP_TABLE_END,
};
