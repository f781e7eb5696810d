/* Elements by index: rows picked from a tensor (gather), rows put or reduced into one (scatter). */
#include "core/gp_convert.h"
#include "move/gp_rows.h"

#include <string.h>

/* Positions are numbered row-major over dims. At each lie a tuple of indices (at index_strides) and a row of
 * `row_nbytes`, dense in the order of positions. The tuple, and the position itself (base_strides), say where in the
 * tensor that is read or written its row is. */
GP_RECORD(index_params, {
    int64_t ndim, dims[GP_MAX_NDIM], index_strides[GP_MAX_NDIM], base_strides[GP_MAX_NDIM]; /* base: bytes */
    int64_t tuple_size, tuple_dims[GP_MAX_NDIM], tuple_strides[GP_MAX_NDIM];                /* strides: bytes */
    int64_t index_dtype; /* GP_S32 or GP_S64 */
    int64_t npositions, row_nbytes, rows_per_task;
    int64_t dtype, reduction; /* of scatter */
});

/* What a row of a scatter does to what is there: NONE replaces it. */
GP_ENUM(scatter_reduction, NONE = -1, ADD, MUL, MAX, MIN);

/* The element of the axis that an index means: negative ones count from the end. One outside is noted, and means the last
 * element, so that no memory is overrun. */
static int64_t index_at(const index_params *p, const void *indices, int64_t at, int64_t dim, uint64_t *outside)
{
    const int64_t i = p->index_dtype == GP_S64 ? ((const int64_t *)indices)[at] : ((const int32_t *)indices)[at];
    const uint64_t wrapped = (uint64_t)(i < 0 ? i + dim : i), last = (uint64_t)(dim - 1);
    const uint64_t found = wrapped < last ? wrapped : last;
    *outside |= wrapped ^ found;
    return (int64_t)found;
}

/* What a position says: where its tuple of indices lies, and bytes to where its row would be with indices of zero. */
typedef struct {
    int64_t indices, base;
} place;

/* A position on its way, with its coordinates: no division a line. */
typedef struct {
    place at;
    int64_t coordinate[GP_MAX_NDIM];
} walker;

static walker start_at(const index_params *p, int64_t linear)
{
    walker w = {.at = {0, 0}};
    for (int64_t k = p->ndim - 1; k >= 0 && linear; k--) {
        w.coordinate[k] = k ? linear % p->dims[k] : linear;
        linear = k ? linear / p->dims[k] : 0;
        w.at.indices += w.coordinate[k] * p->index_strides[k];
        w.at.base += w.coordinate[k] * p->base_strides[k];
    }
    return w;
}

/* Go on by n positions, at most to the end of a line. */
static void go_on(const index_params *p, walker *w, int64_t n)
{
    for (int64_t k = p->ndim - 1; k >= 0; k--, n = 1) {
        w->coordinate[k] += n;
        w->at.indices += n * p->index_strides[k];
        w->at.base += n * p->base_strides[k];
        if (w->coordinate[k] < p->dims[k])
            return;
        w->coordinate[k] = 0;
        w->at.indices -= p->dims[k] * p->index_strides[k];
        w->at.base -= p->dims[k] * p->base_strides[k];
    }
}

/* Bytes from the start of the tensor to the row that the indices at a place mean. */
static int64_t row_at(const index_params *p, const void *indices, place at, uint64_t *outside)
{
    int64_t offset = at.base;
    for (int64_t k = 0; k < p->tuple_size; k++)
        offset += index_at(p, indices, at.indices + k, p->tuple_dims[k], outside) * p->tuple_strides[k];
    return offset;
}

/* The element of the axis that the first index of a tuple means, which is inside. */
static inline int64_t inside(const index_params *p, const void *indices, int64_t at)
{
    const int64_t i = p->index_dtype == GP_S64 ? ((const int64_t *)indices)[at] : ((const int32_t *)indices)[at];
    return i + (i >> 63 & p->tuple_dims[0]);
}

/* Positions that differ along the last axis alone, at most `most`, and how each goes on from the last. */
static int64_t line_of(const index_params *p, const walker *w, int64_t most, place *step)
{
    const int64_t last = p->ndim - 1, left = p->ndim ? p->dims[last] - w->coordinate[last] : 1;
    *step = p->ndim ? (place){p->index_strides[last], p->base_strides[last]} : (place){0, 0};
    return left < most ? left : most;
}

#define GP_DIFFER(type)                                                                                                \
    do {                                                                                                               \
        const type *x = (const type *)indices + at.indices;                                                            \
        if (x[step.indices] != x[0])                                                                                   \
            return 0;                                                                                                  \
        for (int64_t i = 0; i < count; i++)                                                                            \
            differ |= (uint64_t)(x[i * step.indices] ^ x[0]);                                                          \
    } while (0)

/* Whether the rows of a line of at least two positions lie side by side: one index for all, as exporters spread it. */
static int is_one_row(const index_params *p, const void *indices, place at, place step, int64_t count)
{
    uint64_t differ = 0;
    if (count < 2 || step.base != p->row_nbytes || p->tuple_size != 1)
        return 0;
    if (p->index_dtype == GP_S64)
        GP_DIFFER(int64_t);
    else
        GP_DIFFER(int32_t);
    return differ == 0;
}

/* Whether indices that lie `step` apart are within -dim .. dim - 1: a sign is left of one that is not. */
#define GP_LOOK_AT(type, step)                                                                                         \
    for (int64_t i = 0; i < count; i++) {                                                                              \
        const uint64_t index = (uint64_t)(int64_t)((const type *)indices)[at + i * (step)];                            \
        signs |= (index + (uint64_t)dim) | ((uint64_t)dim - 1 - index);                                                \
    }

static int are_inside(const index_params *p, const void *indices, int64_t at, int64_t step, int64_t count)
{
    const int64_t dim = p->tuple_dims[0];
    uint64_t signs = 0;
    if (p->index_dtype == GP_S64 && step == 1) {
        GP_LOOK_AT(int64_t, 1)
    } else if (p->index_dtype == GP_S64) {
        GP_LOOK_AT(int64_t, step)
    } else if (step == 1) {
        GP_LOOK_AT(int32_t, 1)
    } else {
        GP_LOOK_AT(int32_t, step)
    }
    return !(signs >> 63);
}

/* Rows of three and four floats, which may lie anywhere. */
typedef struct __attribute__((packed)) {
    uint32_t word[3];
} three_words;
typedef struct __attribute__((packed)) {
    uint64_t word[2];
} four_words;

/* The rows of a line that are elements of a type, by one index each: read from the tensor, or written into it. */
#define GP_MOVE_ELEMENTS(index_type, type)                                                                             \
    const index_type *x = (const index_type *)indices + at.indices;                                                    \
    for (int64_t i = 0; i < count; i++) {                                                                              \
        const int64_t index = x[i * step.indices], found = index + (index >> 63 & dim);                                \
        type *element = (type *)(tensor + at.base + i * step.base + found * stride), *row = (type *)rows + i;          \
        *(is_read ? row : element) = *(is_read ? element : row);                                                       \
    }

/* The same where elements are read that one index after the other picks of a row that lies side by side. Functions of their
 * own have registers enough: the shorter the loop, the more of its loads are on their way at once. */
#define GP_PICK(index_type, type)                                                                                      \
    static __attribute__((noinline)) void pick_##type##_##index_type(                                                  \
        const index_type *restrict x, const type *restrict from, type *restrict to, int64_t count, int64_t dim)        \
    {                                                                                                                  \
        _Pragma("GCC unroll 4") for (int64_t i = 0; i < count; i++)                                                    \
        {                                                                                                              \
            const int64_t index = x[i];                                                                                \
            to[i] = from[index < 0 ? index + dim : index];                                                             \
        }                                                                                                              \
    }
#define GP_PICKS(type) GP_PICK(int64_t, type) GP_PICK(int32_t, type)

GP_PICKS(uint8_t)
GP_PICKS(uint16_t)
GP_PICKS(uint32_t)
GP_PICKS(uint64_t)
GP_PICKS(three_words)
GP_PICKS(four_words)

#define GP_PICK_ELEMENTS(index_type, type)                                                                             \
    pick_##type##_##index_type((const index_type *)indices + at.indices, (const type *)(tensor + at.base),             \
                               (type *)rows, count, dim);

#define GP_MOVE_LINE(type)                                                                                             \
    if (is_read && step.indices == 1 && step.base == 0 && stride == (int64_t)sizeof(type)) {                           \
        if (p->index_dtype == GP_S64) {                                                                                \
            GP_PICK_ELEMENTS(int64_t, type)                                                                            \
        } else {                                                                                                       \
            GP_PICK_ELEMENTS(int32_t, type)                                                                            \
        }                                                                                                              \
    } else if (p->index_dtype == GP_S64) {                                                                             \
        GP_MOVE_ELEMENTS(int64_t, type)                                                                                \
    } else {                                                                                                           \
        GP_MOVE_ELEMENTS(int32_t, type)                                                                                \
    }                                                                                                                  \
    return 1;

/* Whether that is what the rows of a line are, and no index is outside; then they are moved. */
static inline __attribute__((always_inline)) int move_elements(const index_params *p, const void *indices, place at,
                                                               place step, int64_t count, char *tensor, char *rows,
                                                               const int is_read)
{
    const int64_t dim = p->tuple_dims[0], stride = p->tuple_strides[0];
    if (p->tuple_size != 1 || p->row_nbytes > 16 || !are_inside(p, indices, at.indices, step.indices, count))
        return 0;
    switch (p->row_nbytes) {
    case 1:
        GP_MOVE_LINE(uint8_t)
    case 2:
        GP_MOVE_LINE(uint16_t)
    case 4:
        GP_MOVE_LINE(uint32_t)
    case 8:
        GP_MOVE_LINE(uint64_t)
    case 12:
        GP_MOVE_LINE(three_words)
    case 16:
        GP_MOVE_LINE(four_words)
    }
    return 0;
}

/* Lines of a few elements, at most GP_FEW, that have the same indices, as columns that are picked from rows, are read
 * index by index; GP_LINES of them at a time, whose rows stay in cache. */
#define GP_FEW 16
#define GP_LINES 64

#define GP_READ_COLUMNS(type)                                                                                          \
    for (int64_t j = 0; j < width; j++) {                                                                              \
        const char *from = tensor + row_at(p, indices, at, outside);                                                   \
        for (int64_t i = 0; i < lines; i++)                                                                            \
            memcpy(rows + (i * width + j) * (int64_t)sizeof(type), from + i * down, sizeof(type));                     \
        at.indices += p->index_strides[last], at.base += p->base_strides[last];                                        \
    }                                                                                                                  \
    return lines;

/* How many such lines begin at a position, of which `most` are left; they are read. */
static int64_t read_columns(const index_params *p, const void *indices, const walker *w, int64_t most,
                            const char *tensor, char *rows, uint64_t *outside)
{
    const int64_t last = p->ndim - 1, width = p->ndim > 1 ? p->dims[last] : 0;
    if (width == 0 || width > GP_FEW || w->coordinate[last] != 0 || p->index_strides[last - 1] != 0)
        return 0;
    const int64_t down = p->base_strides[last - 1], left = p->dims[last - 1] - w->coordinate[last - 1];
    const int64_t whole = most / width < left ? most / width : left, lines = whole < GP_LINES ? whole : GP_LINES;
    place at = w->at;
    switch (lines > 1 ? p->row_nbytes : 0) {
    case 1:
        GP_READ_COLUMNS(uint8_t)
    case 2:
        GP_READ_COLUMNS(uint16_t)
    case 4:
        GP_READ_COLUMNS(uint32_t)
    case 8:
        GP_READ_COLUMNS(uint64_t)
    }
    return 0;
}

/* Rows lie anywhere in a large table: several are on their way from memory while one is copied. */
#define GP_AHEAD 8
#define GP_AHEAD_NBYTES 1024

/* Fetches a row, unless it follows another one so closely that it is fetched without being asked. */
static inline void fetch_row(const char *row, const char *before, int64_t nbytes)
{
    if ((uint64_t)(row - before) > (uint64_t)(2 * GP_AHEAD * nbytes))
        for (int64_t at = 0; at < nbytes && at < GP_AHEAD_NBYTES; at += 64)
            __builtin_prefetch(row + at);
}

/* The rows of a line, of more than 16 bytes, by indices that are all inside. */
GP_INLINE void read_rows(const index_params *p, const void *indices, place at, place step, int64_t count,
                         const char *tensor, char *to, const int has_parts)
{
    const int64_t nbytes = p->row_nbytes, ahead = GP_AHEAD * step.base;
    tensor += at.base;
    for (int64_t i = 0; i < count; i++, to += nbytes, tensor += step.base, at.indices += step.indices) {
        const char *from = tensor + inside(p, indices, at.indices) * p->tuple_strides[0];
        if (i + GP_AHEAD < count) {
            const int64_t next = inside(p, indices, at.indices + GP_AHEAD * step.indices);
            fetch_row(tensor + ahead + next * p->tuple_strides[0], from, nbytes);
        }
        if (has_parts)
            gp_copy_parts(to, from, nbytes);
        else
            gp_copy_rows(to, 0, from, 0, nbytes, 1);
    }
}

/* args: src, indices, dst */
GP_DEFINE_INDEX_KERNEL(any_gather)
{
    const index_params *p = params;
    uint64_t outside = 0, ahead = 0;
    const int64_t limit = end * p->rows_per_task, last = limit < p->npositions ? limit : p->npositions;
    char *to = (char *)args[2] + begin * p->rows_per_task * p->row_nbytes;
    walker w = start_at(p, begin * p->rows_per_task);
    for (int64_t row = begin * p->rows_per_task, count; row < last; row += count, go_on(p, &w, count)) {
        place step, at = w.at;
        const int64_t lines = read_columns(p, args[1], &w, last - row, args[0], to, &outside);
        count = line_of(p, &w, last - row, &step);
        if (lines > 0) { /* as many positions, of which the last line is the one that goes on */
            to += lines * count * p->row_nbytes;
            row += (lines - 1) * count;
            w.coordinate[p->ndim - 2] += lines - 1;
            w.at.base += (lines - 1) * p->base_strides[p->ndim - 2];
            continue;
        }
        if (is_one_row(p, args[1], at, step, count)) {
            memcpy(to, (const char *)args[0] + row_at(p, args[1], at, &outside), count * p->row_nbytes);
            to += count * p->row_nbytes;
            continue;
        }
        if (move_elements(p, args[1], at, step, count, args[0], to, 1)) {
            to += count * p->row_nbytes;
            continue;
        }
        if (p->tuple_size == 1 && p->row_nbytes > 16 && are_inside(p, args[1], at.indices, step.indices, count)) {
            if (p->row_nbytes > 64 && p->row_nbytes <= GP_SHORT_COPY)
                read_rows(p, args[1], at, step, count, args[0], to, 1);
            else
                read_rows(p, args[1], at, step, count, args[0], to, 0);
            to += count * p->row_nbytes;
            continue;
        }
        for (int64_t i = 0; i < count; i++, to += p->row_nbytes, at.indices += step.indices, at.base += step.base) {
            const char *from = (const char *)args[0] + row_at(p, args[1], at, &outside);
            if (i + GP_AHEAD < count) {
                const place later = {at.indices + GP_AHEAD * step.indices, at.base + GP_AHEAD * step.base};
                fetch_row((const char *)args[0] + row_at(p, args[1], later, &ahead), from, p->row_nbytes);
            }
            gp_copy_rows(to, 0, from, 0, p->row_nbytes, 1);
        }
    }
    return outside != 0;
}

/* ---- scatter ---- */

#define GP_REDUCE(NAME, type, wide, value, element)                                                                    \
    case NAME:                                                                                                         \
        for (int64_t i = 0; i < n / (int64_t)sizeof(type); i++) {                                                      \
            type m = ((const type *)dst)[i];                                                                           \
            const wide x = (wide)(value);                                                                              \
            m = ((const type *)src)[i];                                                                                \
            const wide y = (wide)(value);                                                                              \
            const wide v = reduction == ADD   ? x + y                                                                  \
                           : reduction == MUL ? x * y                                                                  \
                           : reduction == MAX ? (x > y || x != x ? x : y)                                              \
                                              : (x < y || x != x ? x : y);                                             \
            ((type *)dst)[i] = (type)(element);                                                                        \
        }                                                                                                              \
        break;

/* dst = dst + src, dst * src, the larger or the smaller one; integers wrap. */
static void reduce_row(int64_t dtype, int64_t reduction, void *dst, const void *src, int64_t n)
{
    switch (dtype) {
        GP_REDUCE(GP_F32, float, float, m, v)
        GP_REDUCE(GP_F64, double, double, m, v)
        GP_REDUCE(GP_F16, uint16_t, float, gp_from_f16(m), gp_to_f16(v))
        GP_REDUCE(GP_BF16, uint16_t, float, gp_from_bf16(m), gp_to_bf16(v))
        GP_REDUCE(GP_S8, int8_t, int32_t, m, v)
        GP_REDUCE(GP_U8, uint8_t, int32_t, m, v)
        GP_REDUCE(GP_S16, int16_t, int32_t, m, v)
        GP_REDUCE(GP_U16, uint16_t, uint32_t, m, v)
        GP_REDUCE(GP_U32, uint32_t, uint32_t, m, v)
        GP_REDUCE(GP_U64, uint64_t, uint64_t, m, v)
    case GP_S32:
        if (reduction <= MUL)
            return reduce_row(GP_U32, reduction, dst, src, n); /* signed overflow is not defined; the bits are the same */
        switch (0) { GP_REDUCE(0, int32_t, int32_t, m, v) }
        break;
    case GP_S64:
        if (reduction <= MUL)
            return reduce_row(GP_U64, reduction, dst, src, n);
        switch (0) { GP_REDUCE(0, int64_t, int64_t, m, v) }
        break;
    }
}

/* args: updates, indices, dst; one task, since positions may name one row twice: the last one stays */
GP_DEFINE_INDEX_KERNEL(any_scatter)
{
    (void)begin, (void)end;
    const index_params *p = params;
    uint64_t outside = 0;
    const char *from = args[0];
    walker w = start_at(p, 0);
    for (int64_t row = 0, count; row < p->npositions; row += count, go_on(p, &w, count)) {
        place step, at = w.at;
        count = line_of(p, &w, p->npositions - row, &step);
        const int64_t nrows = is_one_row(p, args[1], at, step, count) ? count : 1, nbytes = nrows * p->row_nbytes;
        if (nrows == 1 && p->reduction == NONE &&
            move_elements(p, args[1], at, step, count, args[2], (char *)from, 0)) {
            from += count * p->row_nbytes;
            continue;
        }
        for (int64_t i = 0; i < count; i += nrows, from += nbytes, at.indices += step.indices, at.base += step.base) {
            char *to = (char *)args[2] + row_at(p, args[1], at, &outside);
            if (p->reduction == NONE)
                gp_copy_rows(to, 0, from, 0, nbytes, 1);
            else
                reduce_row(p->dtype, p->reduction, to, from, nbytes);
        }
    }
    return outside != 0;
}

const gp_kernel_entry GP_KERNEL(index_table)[] = {
    GP_ENTRY(any_gather, index_params),
    GP_ENTRY(any_scatter, index_params),
    GP_INNER(scatter_reduction),
    GP_TABLE_END,
};
