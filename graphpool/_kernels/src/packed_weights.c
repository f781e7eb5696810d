/* Bring weights into panels (gp_packed.h) and back.
 *
 * A task is GP_PACK_PANELS panels of one matrix: rows of B are read in runs of that many panels, and transposed ones in
 * blocks of GP_PACK_ROWS rows, so that the lines being written stay in L1. args: b and packed; unpacking: packed and b. */
#include "gp_convert.h"
#include "gp_packed.h"

#define GP_PACK_PANELS 4
#define GP_PACK_ROWS 32

typedef struct {
    int64_t k, n;
    int64_t row, col, batch; /* strides of b, in elements */
    int64_t pitch;           /* bytes from one packed matrix to the next */
    int64_t dtype, b_dtype;  /* of the panels and of b; they differ only where f32 becomes bf16 */
} gp_pack_params;

/* Which part of which matrix a task has. */
typedef struct {
    const gp_pack_params *p;
    char *b, *packed;
    int64_t j, cols;
} gp_pack_task;

static int64_t element_nbytes(int64_t dtype)
{
    return dtype == GP_F32 ? 4 : dtype == GP_BF16 ? 2 : 1;
}

static int64_t word_count(const gp_pack_params *p)
{
    const int64_t depth = 4 / element_nbytes(p->dtype);
    return (p->k + depth - 1) / depth;
}

/* Address of an element of the panels. */
GP_INLINE char *locate_packed(const gp_pack_task *t, int64_t words, int64_t i, int64_t j, const int nbytes)
{
    const int64_t first = j / GP_PANEL * GP_PANEL, depth = 4 / nbytes;
    const int64_t word = first * words + i / depth * gp_panel_width(first, t->p->n) + (j - first);
    return t->packed + word * 4 + i % depth * nbytes;
}

GP_INLINE void move_element(char *b, char *packed, const int nbytes, const int rounds, const int is_packing)
{
    if (rounds) {
        float x;
        memcpy(&x, b, 4);
        const uint16_t y = gp_to_bf16(x);
        memcpy(packed, &y, 2);
    } else if (is_packing) {
        memcpy(packed, b, (size_t)nbytes);
    } else {
        memcpy(b, packed, (size_t)nbytes);
    }
}

/* The elements of rows [i, last) and columns [j, j + cols) of one panel. */
GP_INLINE void move_part(const gp_pack_task *t, int64_t words, int64_t i, int64_t last, int64_t j, int64_t cols,
                         const int nbytes, const int rounds, const int is_packing)
{
    const gp_pack_params *p = t->p;
    const int64_t b_nbytes = rounds ? 4 : nbytes, depth = 4 / nbytes;
    const int64_t width = gp_panel_width(j, p->n) * 4;
    char *b = t->b + (i * p->row + j * p->col) * b_nbytes, *to = locate_packed(t, words, i, j, nbytes);
    if (p->row == 1 && p->col != 1) {
        for (int64_t c = 0; c < cols; c++)
            for (int64_t r = 0; r < last - i; r++)
                move_element(b + (r + c * p->col) * b_nbytes, to + r / depth * width + r % depth * nbytes + c * 4, nbytes,
                             rounds, is_packing);
        return;
    }
    for (int64_t r = 0; r < last - i; r++)
        for (int64_t c = 0; c < cols; c++)
            move_element(b + (r * p->row + c * p->col) * b_nbytes, to + r / depth * width + r % depth * nbytes + c * 4,
                         nbytes, rounds, is_packing);
}

GP_INLINE void move_panels(const gp_pack_task *t, const int nbytes, const int rounds, const int is_packing)
{
    const int64_t words = word_count(t->p);
    for (int64_t i = 0; i < t->p->k; i += GP_PACK_ROWS)
        for (int64_t c = 0; c < t->cols; c += GP_PANEL)
            move_part(t, words, i, gp_min(i + GP_PACK_ROWS, t->p->k), t->j + c, gp_min(t->cols - c, GP_PANEL), nbytes,
                      rounds, is_packing);
}

/* Zeros wherever no element will come: behind the last column, and behind the last row where words are not full. */
static void clear_padding(const gp_pack_task *t)
{
    const gp_pack_params *p = t->p;
    const int64_t words = word_count(p), depth = 4 / element_nbytes(p->dtype);
    const int64_t first = t->j * words, last = gp_min(t->j + GP_PACK_PANELS * GP_PANEL, gp_packed_cols(p->n)) * words;
    if (p->k % depth || t->cols < GP_PACK_PANELS * GP_PANEL)
        memset(t->packed + first * 4, 0, (size_t)(last - first) * 4);
}

/* The sums over k that s8 weights carry, zeros for the columns of the padding. */
static void add_columns(const gp_pack_task *t)
{
    const gp_pack_params *p = t->p;
    const int64_t cols = gp_min(GP_PACK_PANELS * GP_PANEL, gp_packed_cols(p->n) - t->j);
    int32_t *sums = (int32_t *)t->packed + word_count(p) * gp_packed_cols(p->n) + t->j;
    memset(sums, 0, (size_t)cols * 4);
    for (int64_t i = 0; i < p->k; i++)
        for (int64_t c = 0; c < t->cols; c++)
            sums[c] += (int8_t)t->b[i * p->row + (t->j + c) * p->col];
}

static void pack_task(const gp_pack_task *t)
{
    clear_padding(t);
    if (t->p->dtype == GP_F32)
        move_panels(t, 4, 0, 1);
    else if (t->p->dtype == GP_BF16 && t->p->b_dtype == GP_F32)
        move_panels(t, 2, 1, 1);
    else if (t->p->dtype == GP_BF16)
        move_panels(t, 2, 0, 1);
    else
        move_panels(t, 1, 0, 1), add_columns(t);
}

static void unpack_task(const gp_pack_task *t)
{
    if (t->p->dtype == GP_F32)
        move_panels(t, 4, 0, 0);
    else if (t->p->dtype == GP_BF16)
        move_panels(t, 2, 0, 0);
    else
        move_panels(t, 1, 0, 0);
}

static gp_pack_task make_task(const gp_pack_params *p, char *b, char *packed, int64_t number)
{
    const int64_t step = GP_PACK_PANELS * GP_PANEL, groups = (p->n + step - 1) / step;
    const int64_t matrix = number / groups, j = number % groups * step;
    b += matrix * p->batch * element_nbytes(p->b_dtype);
    return (gp_pack_task){p, b, packed + matrix * p->pitch, j, gp_min(p->n - j, step)};
}

static void GP_KERNEL(pack_weights)(const void *params, void *const *args, int64_t begin, int64_t end, void *scratch)
{
    (void)scratch;
    for (int64_t number = begin; number < end; number++) {
        const gp_pack_task t = make_task(params, args[0], args[1], number);
        pack_task(&t);
    }
}

static void GP_KERNEL(unpack_weights)(const void *params, void *const *args, int64_t begin, int64_t end, void *scratch)
{
    (void)scratch;
    for (int64_t number = begin; number < end; number++) {
        const gp_pack_task t = make_task(params, args[1], args[0], number);
        unpack_task(&t);
    }
}

const gp_kernel_entry GP_KERNEL(packed_weights_table)[] = {
    {"pack_weights", GP_KERNEL(pack_weights), sizeof(gp_pack_params)},
    {"unpack_weights", GP_KERNEL(unpack_weights), sizeof(gp_pack_params)},
    {NULL, NULL, 0},
};
