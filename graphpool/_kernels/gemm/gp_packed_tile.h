/* The tile of packed products: arithmetic of each type, the loop along k, and what happens to finished accumulators. */
#ifndef GP_PACKED_TILE_H
#define GP_PACKED_TILE_H

#include "gemm/gp_packed.h"
#include "gemm/gp_requant.h"

/* Two or three rows wait for their weights. What a core fetches by itself ends with a page; asked for so many steps before,
 * weights that lie in memory take 0.84 to 0.94 of the time. From L2, which holds those of fewer bytes than GP_FAR_NBYTES,
 * they would take 1.1 times as long. One row would gain nothing, and reads from L3 1.05 to 1.15 times as long then. */
#define GP_WAITING_ROWS 3
#define GP_STEPS_AHEAD 16
#define GP_FAR_NBYTES (2 << 20)

/* GCC takes expressions apart and moves the parts about; what has passed here is in a register. */
GP_INLINE gp_vi gp_keep(gp_vi v)
{
#if defined(__AVX512F__)
    __asm__ volatile("" : "+v"(v));
#elif defined(__SSE2__)
    __asm__ volatile("" : "+x"(v));
#endif
    return v;
}

/* The same of sums, which would outgrow 16 registers. */
GP_INLINE gp_vi gp_keep_sum(gp_vi v)
{
    return GP_TILE_VECTORS > 12 ? v : gp_keep(v);
}

/* The instruction of ARM multiplies signed bytes alone: what is unsigned is taken less 128, and the sums of the columns
 * so many times more at the beginning (gp_first_sums). */
#if defined(__ARM_FEATURE_DOTPROD)
#define GP_BYTE_OFFSET 128
#else
#define GP_BYTE_OFFSET 0
#endif

/* s8 without the instruction for it: even and odd bytes widen to s16, which no product of 255 * 128 can overflow. */
GP_INLINE gp_vi gp_dot_bytes(gp_vi y, gp_vi x, gp_vi acc)
{
#if defined(__AVX512VNNI__)
    return (gp_vi)_mm512_dpbusd_epi32((__m512i)acc, (__m512i)y, (__m512i)x);
#elif defined(__AVXVNNI__)
    return gp_keep_sum((gp_vi)_mm256_dpbusd_avx_epi32((__m256i)acc, (__m256i)y, (__m256i)x));
#elif defined(__ARM_FEATURE_DOTPROD)
    return (gp_vi)vdotq_s32((int32x4_t)acc, (int8x16_t)(y ^ (int32_t)0x80808080), (int8x16_t)x);
#else
    const gp_vi a_even = y & 0x00ff00ff, a_odd = (gp_vi)((gp_vuh)y >> 8);
    const gp_vi b_odd = (gp_vi)((gp_vh)x >> 8), b_even = (gp_vi)((gp_vh)((gp_vh)x << 8) >> 8);
    return gp_keep_sum(gp_keep_sum(acc + gp_madd((gp_vh)a_even, (gp_vh)b_even)) + gp_madd((gp_vh)a_odd, (gp_vh)b_odd));
#endif
}

#if GP_HAS_PAIRS

/* Fewer rows spend their time on reading weights, fewer words of a run on branches that nobody predicts. */
#define GP_PAIR_ROWS 4
#define GP_PAIR_WORDS 8

/* Words ahead of which weights are fetched, since a processor does not see far enough behind branches. */
#define GP_PAIR_AHEAD 8

#if defined(__AVX2__)
#define GP_FITTING 32 /* pairs whose limits are compared at once */
#else
#define GP_FITTING 16
#endif

/* Products of unsigned and signed bytes, added pair by pair in s16, where they saturate. */
GP_INLINE gp_vh gp_madd_bytes(gp_vi y, gp_vi x)
{
#if defined(__AVX512BW__)
    return (gp_vh)_mm512_maddubs_epi16((__m512i)y, (__m512i)x);
#elif defined(__AVX2__)
    return (gp_vh)_mm256_maddubs_epi16((__m256i)y, (__m256i)x);
#else
    return (gp_vh)_mm_maddubs_epi16((__m128i)y, (__m128i)x);
#endif
}

/* acc plus the sums of pairs of s16. */
GP_INLINE gp_vi gp_add_halves(gp_vh halves, gp_vi acc)
{
    return gp_keep_sum(acc + gp_madd(halves, (gp_vh)((gp_vi){0} + 0x00010001)));
}

/* Which of the next pairs stay within their limits in all panels, as bits; those behind the `count` that exist do not. */
GP_INLINE uint32_t gp_fitting_pairs(const int panels, const uint8_t *largest, const uint8_t *most, int64_t pitch,
                                    int64_t count)
{
    typedef uint8_t bytes __attribute__((vector_size(GP_FITTING)));
    bytes a, limit, fit = {0};
    memcpy(&a, largest, sizeof a);
    fit = ~fit;
    GP_EACH(i, panels) {
        memcpy(&limit, most + i * pitch, sizeof limit);
        fit &= (bytes)(a <= limit);
    }
#if defined(__AVX2__)
    const uint32_t bits = (uint32_t)_mm256_movemask_epi8((__m256i)fit);
#else
    const uint32_t bits = (uint32_t)_mm_movemask_epi8((__m128i)fit);
#endif
    return bits & (uint32_t)((1ull << count) - 1);
}

/* The largest byte of each pair of words of some rows, `offset` bytes behind where each points. */
static __attribute__((unused)) void gp_find_largest(const char *const *row, int64_t rows, int64_t offset, int64_t words,
                                                    uint8_t *to)
{
    int64_t q = 0;
    if (rows < GP_PAIR_ROWS || words < GP_PAIR_WORDS)
        return;
#if defined(__AVX2__)
    for (; q + 4 <= words / 2; q += 4) {
        __m256i most = _mm256_setzero_si256();
        for (int64_t i = 0; i < rows; i++)
            most = _mm256_max_epu8(most, _mm256_loadu_si256((const __m256i *)(row[i] + offset + q * 8)));
        for (int bits = 32; bits > 4; bits /= 2)
            most = _mm256_max_epu8(most, _mm256_srli_epi64(most, bits));
        const __m256i pairs = _mm256_shuffle_epi8(most, _mm256_set1_epi16(0x0800));
        const uint32_t low = (uint16_t)_mm256_extract_epi16(pairs, 0), high = (uint16_t)_mm256_extract_epi16(pairs, 8);
        memcpy(to + q, &(uint32_t){low | high << 16}, 4);
    }
#endif
    for (; q < words / 2; q++) {
        __m128i most = _mm_setzero_si128();
        for (int64_t i = 0; i < rows; i++)
            most = _mm_max_epu8(most, _mm_loadl_epi64((const __m128i *)(row[i] + offset + q * 8)));
        for (int bits = 32; bits > 4; bits /= 2)
            most = _mm_max_epu8(most, _mm_srli_epi64(most, bits));
        to[q] = (uint8_t)_mm_cvtsi128_si32(most);
    }
}

/* A group of each of some rows less the least byte of all, which it returns; rows of the results lie to_row apart. */
GP_INLINE uint8_t gp_shift_group(const char *const *row, int64_t rows, int64_t at, char *to, int64_t to_row)
{
#if defined(__AVX2__)
    __m256i least = _mm256_set1_epi8(-1);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t k = at; k < at + GP_SHIFT_WORDS * 4; k += 32)
            least = _mm256_min_epu8(least, _mm256_loadu_si256((const __m256i *)(row[i] + k)));
    const __m128i half = _mm_min_epu8(_mm256_castsi256_si128(least), _mm256_extracti128_si256(least, 1));
#else
    __m128i half = _mm_set1_epi8(-1);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t k = at; k < at + GP_SHIFT_WORDS * 4; k += 16)
            half = _mm_min_epu8(half, _mm_loadu_si128((const __m128i *)(row[i] + k)));
#endif
    const __m128i pairs = _mm_min_epu8(half, _mm_srli_epi16(half, 8)) & _mm_set1_epi16(255);
    const int shift = _mm_cvtsi128_si32(_mm_minpos_epu16(pairs)) & 255;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t k = at; k < at + GP_SHIFT_WORDS * 4; k += 16) {
            const __m128i bytes = _mm_sub_epi8(_mm_loadu_si128((const __m128i *)(row[i] + k)), _mm_set1_epi8((char)shift));
            _mm_storeu_si128((__m128i *)(to + i * to_row + k), bytes);
        }
    return (uint8_t)shift;
}

/* The same of a group that has `count` bytes only. */
static __attribute__((unused)) uint8_t gp_shift_rest(const char *const *row, int64_t rows, int64_t at, int64_t count,
                                                     char *to, int64_t to_row)
{
    char bytes[GP_TILE_ROWS][GP_SHIFT_WORDS * 4];
    const char *copy[GP_TILE_ROWS];
    memset(bytes, 255, sizeof bytes);
    for (int64_t i = 0; i < rows; i++)
        copy[i] = memcpy(bytes[i], row[i] + at, (size_t)count);
    const uint8_t shift = gp_shift_group(copy, rows, 0, bytes[0], sizeof bytes[0]);
    for (int64_t i = 0; i < rows; i++)
        memcpy(to + i * to_row + at, bytes[i], (size_t)count);
    return shift;
}

/* The words of some rows, each group less the least byte that a row has in it (gp_packed.h), which may be where the rows
 * are; and what was taken away. */
static __attribute__((unused)) void gp_shift_rows(const char *const *row, int64_t rows, int64_t words, char *to,
                                                  int64_t to_row, int32_t *shift)
{
    const int64_t group = GP_SHIFT_WORDS * 4, count = words * 4;
    memset(shift, 0, (size_t)GP_SHIFTS(words) * 4);
    for (int64_t at = 0; at < count; at += group) {
        const int32_t least = at + group <= count ? gp_shift_group(row, rows, at, to, to_row)
                                                  : gp_shift_rest(row, rows, at, count - at, to, to_row);
        shift[at / group / 2] |= least << at / group % 2 * 16;
    }
}

#endif

/* bf16 without the instruction for it: the halves of a word are floats once they stand on top. */
GP_INLINE gp_vf gp_dot_halves(gp_vi y, gp_vi x, gp_vf acc)
{
#if defined(__AVX512BF16__)
    return (gp_vf)_mm512_dpbf16_ps((__m512)acc, (__m512bh)y, (__m512bh)x);
#else
    const int32_t top = (int32_t)0xffff0000;
    acc = gp_vfma((gp_vf)(y << 16), (gp_vf)(x << 16), acc);
    return gp_vfma((gp_vf)(y & top), (gp_vf)(x & top), acc);
#endif
}

/* acc plus the product of a row's word and the words of a vector of columns; s8 keeps integers in the same bits. */
GP_INLINE gp_vf gp_dot(const enum gp_packed_type type, gp_vi y, gp_vf x, gp_vf acc)
{
    if (type == GP_PACKED_S8)
        return (gp_vf)gp_dot_bytes(y, (gp_vi)x, (gp_vi)acc);
    return type == GP_PACKED_BF16 ? gp_dot_halves(y, (gp_vi)x, acc) : gp_vfma((gp_vf)y, x, acc);
}

/* Columns of each panel of a tile: of one alone those that there are. */
GP_INLINE int64_t gp_tile_width(const int panels, const gp_packed_sink *sink)
{
    return panels > 1 ? GP_PANEL : sink->cols;
}

/* Where the s32 accumulators of vector j of the columns begin: what the zero point of a takes away, and shifts add. */
GP_INLINE gp_vf gp_first_sums(const gp_packed_sink *sink, const int panels __attribute__((unused)),
                              const int vectors __attribute__((unused)), const int j)
{
    gp_vi sums;
    memcpy(&sums, sink->col_sum + j * GP_VL, sizeof sums);
    sums *= GP_BYTE_OFFSET - sink->a_zero;
#if GP_HAS_PAIRS
    const int64_t width = gp_tile_width(panels, sink), first = j / vectors * GP_PANEL * sink->shifts + j % vectors * GP_VL;
    for (int64_t s = 0; s < sink->shifts; s++) {
        const gp_vu groups = gp_load_integers(sink->group_sum + first + s * width, GP_VL);
        sums += gp_madd((gp_vh)groups, (gp_vh)gp_splat_word((const char *)(sink->shift + s)));
    }
#endif
    return (gp_vf)sums;
}

/* s32 accumulators, less what the zero points of the weights take away, as floats. */
GP_INLINE void gp_convert_sums(const int rows, const int nv, const int is_whole, gp_acc acc, const gp_packed_sink *sink)
{
    if (sink->row_sum)
        GP_EACH(j, nv) {
            const int64_t left = gp_columns_left(is_whole, sink->cols, j);
            const gp_vu zero = sink->col_zero ? gp_load_integers(sink->col_zero + j * GP_VL, left)
                                              : (uint32_t)sink->b_zero - (gp_vu){0};
            GP_EACH(i, rows)
                acc[i][j] = (gp_vf)((gp_vu)acc[i][j] - zero * (uint32_t)sink->row_sum[i]);
        }
    GP_EACH(i, rows)
        GP_EACH(j, nv)
            acc[i][j] = __builtin_convertvector((gp_vi)acc[i][j], gp_vf);
}

/* Post-ops on finished accumulators, and their store. One pass over the registers for each operation, so that what is
 * asked for is asked once; is_whole: all lanes of all vectors count. */
GP_INLINE void gp_finish(const enum gp_packed_type type, const int rows, const int nv, const int is_whole,
                         gp_acc acc, const gp_packed_sink *sink)
{
    if (type == GP_PACKED_S8) {
        gp_convert_sums(rows, nv, is_whole, acc, sink);
        gp_requantize(rows, nv, is_whole, rows, acc, sink);
        return;
    }
    const gp_packed_sink s = *sink; /* a copy that the stores cannot change */
    const gp_vf lo = gp_splat(s.lo), hi = gp_splat(s.hi);
    GP_EACH(j, nv) {
        const int64_t left = is_whole ? GP_VL : s.cols - j * GP_VL;
        const gp_vf bias = s.bias ? gp_load_some(s.bias + j * GP_VL, left) : gp_splat(-0.0f);
        GP_EACH(i, rows)
            acc[i][j] += bias;
    }
    if (s.residual)
        GP_EACH(i, rows)
            GP_EACH(j, nv)
                acc[i][j] += gp_load_some(s.residual + i * s.residual_row + j * GP_VL,
                                          is_whole ? GP_VL : s.cols - j * GP_VL);
    GP_EACH(i, rows)
        GP_EACH(j, nv)
            gp_store_part(s.c + i * s.ldc + j * GP_VL, gp_vclamp(acc[i][j], lo, hi),
                          is_whole ? GP_VL : s.cols - j * GP_VL);
}

/* What accumulators begin with, or those that an earlier part of k left. */
GP_INLINE void gp_acc_begin(const enum gp_packed_type type, const int rows, const int panels, const int vectors,
                            gp_acc acc, const gp_packed_sink *sink)
{
    GP_EACH(j, panels * vectors) {
        const gp_vf first = type == GP_PACKED_S8 && sink->is_first ? gp_first_sums(sink, panels, vectors, j) : (gp_vf){0};
        GP_EACH(i, rows)
            acc[i][j] = sink->is_first ? first : gp_load(sink->partial + i * GP_TILE_PANELS * GP_PANEL + j * GP_VL);
    }
}

typedef float gp_acc_room[GP_TILE_ROWS * GP_TILE_PANELS * GP_PANEL];

/* Adds the chains of a sum that have ended before (GP_CHAIN), if any. */
GP_INLINE void gp_acc_join(const int rows, const int nv, gp_acc acc, const float *before)
{
    if (before)
        GP_EACH(i, rows)
            GP_EACH(j, nv)
                acc[i][j] += gp_load(before + i * GP_TILE_PANELS * GP_PANEL + j * GP_VL);
}

/* Ends a chain: it and those before come to `room`, which is returned, and the next one begins. */
GP_INLINE const float *gp_acc_put(const int rows, const int nv, gp_acc acc, const float *before, float *room)
{
    gp_acc_join(rows, nv, acc, before);
    GP_EACH(i, rows)
        GP_EACH(j, nv) {
            gp_store(room + i * GP_TILE_PANELS * GP_PANEL + j * GP_VL, acc[i][j]);
            acc[i][j] = (gp_vf){0};
        }
    return room;
}

/* Where the chains lie that have ended in parts of k before: NULL if none has, or if accumulators begin with them. */
GP_INLINE const float *gp_acc_before(const gp_packed_sink *sink)
{
    return sink->total && sink->word > GP_CHAIN ? sink->total : NULL;
}

/* Words to the end of the chain with which accumulators begin. */
GP_INLINE int64_t gp_chain_left(const gp_packed_sink *sink)
{
    return sink->is_first ? GP_CHAIN : -sink->word & (GP_CHAIN - 1);
}

/* Finishes the accumulators, or leaves them for the next part of k. Several panels are always whole. */
GP_INLINE void gp_acc_end(const enum gp_packed_type type, const int rows, const int panels, const int vectors,
                           gp_acc acc, const gp_packed_sink *sink)
{
    const int nv = panels * vectors;
    if (sink->is_last) {
        if (panels > 1 || sink->cols == nv * GP_VL)
            gp_finish(type, rows, nv, 1, acc, sink);
        else
            gp_finish(type, rows, nv, 0, acc, sink);
        return;
    }
    GP_EACH(i, rows)
        GP_EACH(j, nv)
            gp_store(sink->partial + i * GP_TILE_PANELS * GP_PANEL + j * GP_VL, acc[i][j]);
}

/* A step along k: the word `offset` bytes behind where each row points by the vectors of all columns. */
GP_INLINE void gp_tile_step(const enum gp_packed_type type, const int rows, const int nv, const int vectors,
                            const char *const *row, int64_t offset, const float *b, int64_t panel_step, gp_acc acc)
{
    gp_vf x[GP_TILE_PANELS * GP_PANEL_VECTORS];
    GP_EACH(j, nv)
        x[j] = gp_load(b + j / vectors * panel_step + j % vectors * GP_VL);
    GP_EACH(i, rows) {
        gp_vi y = gp_splat_word(row[i] + offset);
        if (type == GP_PACKED_S8 && GP_HAS_PAIRS)
            y = gp_keep(y); /* or GCC masks the word before it spreads it, which takes two more instructions */
        GP_EACH(j, nv)
            acc[i][j] = gp_dot(type, y, x[j], acc[i][j]);
    }
}

#if GP_HAS_PAIRS
/* The pair of words from number `at` on, whose sums fit s16: of both words together, or of each. */
GP_INLINE void gp_tile_pair(const int is_together, const int rows, const int nv, const int vectors, int64_t width,
                            int64_t at, const char *const *row, const float *b, int64_t panel_step, gp_acc acc)
{
    b += at * width;
    GP_EACH(j, nv) {
        const float *x = b + GP_PAIR_AHEAD * width + j / vectors * panel_step + j % vectors * GP_VL;
        if (j * GP_VL % 16 == 0) { /* a line */
            __builtin_prefetch(x);
            __builtin_prefetch(x + width);
        }
    }
    GP_EACH(i, rows) {
        const gp_vi y = gp_splat_word(row[i] + at * 4), z = gp_splat_word(row[i] + at * 4 + 4);
        GP_EACH(j, nv) {
            const float *x = b + j / vectors * panel_step + j % vectors * GP_VL;
            const gp_vh first = gp_madd_bytes(y, (gp_vi)gp_load(x)), second = gp_madd_bytes(z, (gp_vi)gp_load(x + width));
            if (is_together)
                acc[i][j] = (gp_vf)gp_add_halves(first + second, (gp_vi)acc[i][j]);
            else
                acc[i][j] = (gp_vf)gp_add_halves(second, gp_add_halves(first, (gp_vi)acc[i][j]));
        }
    }
}

/* The pairs among `words` words, each in the cheapest way that is exact; pair: the number of the first one. */
GP_INLINE void gp_tile_pairs(const int rows, const int panels, const int vectors, int64_t words, const char *const *row,
                             const float *b, int64_t panel_step, gp_acc acc, const gp_packed_sink *sink, int64_t pair)
{
    const int nv = panels * vectors;
    const int64_t width = gp_tile_width(panels, sink);
    for (int64_t p = 0, left = words / 2; left > 0; p += 2 * GP_FITTING, pair += GP_FITTING, left -= GP_FITTING) {
        const uint8_t *largest = sink->largest + pair, *most = sink->most + pair;
        const int64_t count = gp_min(left, GP_FITTING), pitch = 2 * sink->pairs;
        uint32_t together = gp_fitting_pairs(panels, largest, most, pitch, count);
        uint32_t each = gp_fitting_pairs(panels, largest, most + sink->pairs, pitch, count) & ~together;
        uint32_t others = (uint32_t)((1ull << count) - 1) & ~together & ~each;
        if (__builtin_popcount(others) * 2 > count) { /* then a loop of known length is faster than three */
            others |= together | each;
            together = each = 0;
        }
        for (; together; together &= together - 1)
            gp_tile_pair(1, rows, nv, vectors, width, p + 2 * __builtin_ctz(together), row, b, panel_step, acc);
        for (; each; each &= each - 1)
            gp_tile_pair(0, rows, nv, vectors, width, p + 2 * __builtin_ctz(each), row, b, panel_step, acc);
        for (; others; others &= others - 1)
            for (int64_t at = p + 2 * __builtin_ctz(others), end = at + 2; at < end; at++)
                gp_tile_step(GP_PACKED_S8, rows, nv, vectors, row, at * 4, b + at * width, panel_step, acc);
    }
}
#endif

/* Steps along k: `words` words, which lie behind where each row points and in the panels from b on. pair: the number of
 * the first pair of s8 (gp_packed.h). */
GP_INLINE void gp_tile_steps(const enum gp_packed_type type, const int rows, const int panels, const int vectors,
                             int64_t words, const char *const *row, const float *b, int64_t panel_step, gp_acc acc,
                             const gp_packed_sink *sink, int64_t pair __attribute__((unused)))
{
    const int64_t width = gp_tile_width(panels, sink);
    int64_t p = 0;
#if GP_HAS_PAIRS
    if (type == GP_PACKED_S8 && rows >= GP_PAIR_ROWS && words >= GP_PAIR_WORDS) {
        gp_tile_pairs(rows, panels, vectors, words, row, b, panel_step, acc, sink, pair);
        p = words / 2 * 2;
    }
#endif
    for (; p < words; p++)
        gp_tile_step(type, rows, panels * vectors, vectors, row, p * 4, b + p * width, panel_step, acc);
}

/* What a step of more than GP_WAITING_ROWS rows fetches for later ones. */
GP_INLINE void gp_fetch_ahead(const int rows, const char **ahead, const gp_packed_sink *sink)
{
    if (GP_FETCHES_AHEAD && rows > GP_WAITING_ROWS) {
        __builtin_prefetch(*ahead);
        *ahead += sink->ahead_step;
    }
}

/* What step p of `words` fetches of weights that lie in memory for fewer rows: all that a step reads GP_STEPS_AHEAD later, at
 * the end of a group of panels what the next one begins with. */
GP_INLINE void gp_fetch_panels(const int rows, const int nv, const int vectors, int64_t p, int64_t words, int64_t width,
                               const float *b, int64_t panel_step, const gp_packed_sink *sink)
{
    if (!GP_FETCHES_AHEAD || rows == 1 || rows > GP_WAITING_ROWS || !sink->ahead)
        return;
    const int is_next = p + GP_STEPS_AHEAD >= words && panel_step == words * width;
    b += (p + GP_STEPS_AHEAD) * width + (is_next ? (nv / vectors - 1) * panel_step : 0);
    GP_EACH(j, nv)
        if (j * GP_VL % 16 == 0) /* a line */
            __builtin_prefetch(b + j / vectors * panel_step + j % vectors * GP_VL);
}

/* rows x (panels * vectors) vectors of results. `a` holds words at byte strides; panels lie panel_step words apart. */
GP_INLINE void gp_packed_tile(const enum gp_packed_type type, const int rows, const int panels, const int vectors,
                              int64_t words, const char *a, int64_t a_row, int64_t a_col, const float *b,
                              int64_t panel_step, const gp_packed_sink *sink)
{
    const int nv = panels * vectors;
    const int64_t width = gp_tile_width(panels, sink);
    gp_acc acc;
    const char *second = a + (rows > 3 ? 3 : 0) * a_row; /* three rows a pointer: one address register each */
    gp_acc_begin(type, rows, panels, vectors, acc, sink);
    if (type == GP_PACKED_S8 && GP_HAS_PAIRS) {
        const char *row[GP_TILE_ROWS];
        GP_EACH(i, rows)
            row[i] = a + i * a_row;
        gp_tile_steps(type, rows, panels, vectors, words, row, b, panel_step, acc, sink, 0);
        words = 0;
    }
    const char *ahead = (const char *)b + sink->ahead;
    gp_acc_room own;
    float *room = sink->total ? sink->total : own;
    const float *before = type == GP_PACKED_F32 ? gp_acc_before(sink) : NULL;
    for (int64_t p = 0, end = type == GP_PACKED_F32 ? gp_chain_left(sink) : words;; end += GP_CHAIN) {
        for (const int64_t last = gp_min(end, words); p < last; p++, a += a_col, second += a_col) {
            const char *word[GP_TILE_ROWS];
            gp_fetch_ahead(rows, &ahead, sink);
            gp_fetch_panels(rows, nv, vectors, p, words, width, b, panel_step, sink);
            GP_EACH(i, rows)
                word[i] = i < 3 ? a + i * a_row : second + (i - 3) * a_row;
            gp_tile_step(type, rows, nv, vectors, word, 0, b + p * width, panel_step, acc);
        }
        if (p >= words)
            break;
        before = gp_acc_put(rows, nv, acc, before, room);
    }
    if (sink->is_last || !sink->total)
        gp_acc_join(rows, nv, acc, before);
    gp_acc_end(type, rows, panels, vectors, acc, sink);
}

/* The same for a convolution: every tap is a product of its own, whose rows lie wherever rows[tap * pitch + i] points
 * and whose panels lie tap_step words behind those of the tap before. A tap of which all rows are `padding` is left
 * out: it would add zeros. Chains of sums end in taps that are longer, with the tap that fills one, and with the part
 * of k. */
GP_INLINE void gp_taps_tile(const enum gp_packed_type type, const int rows, const int panels, const int vectors,
                            int64_t taps, int64_t words, const char *const *row, int64_t pitch, const char *padding,
                            const float *b, int64_t tap_step, int64_t panel_step, const gp_packed_sink *sink)
{
    const int nv = panels * vectors;
    const int64_t width = gp_tile_width(panels, sink);
    gp_acc acc;
    gp_acc_room room;
    const float *before = NULL;
    int64_t chain = sink->is_first ? 0 : GP_CHAIN;
    gp_acc_begin(type, rows, panels, vectors, acc, sink);
    for (; taps; taps--, row += pitch, b += tap_step) {
        if (chain >= GP_CHAIN) {
            before = gp_acc_put(rows, nv, acc, before, room);
            chain = 0;
        }
        chain += words;
        const char *a[GP_TILE_ROWS];
        int is_padding = 1;
        GP_EACH(i, rows) {
            a[i] = row[i];
            is_padding &= a[i] == padding;
        }
        const float *at = b;
        const char *ahead = (const char *)b + sink->ahead;
        for (int64_t p = 0; !is_padding; before = gp_acc_put(rows, nv, acc, before, room)) {
            const int64_t end = gp_min(p + GP_CHAIN, words);
            for (; p < end; p++, at += width) {
                gp_fetch_ahead(rows, &ahead, sink);
                gp_tile_step(type, rows, nv, vectors, a, p * 4, at, panel_step, acc);
            }
            if (p >= words)
                break;
        }
    }
    gp_acc_join(rows, nv, acc, before);
    gp_acc_end(type, rows, panels, vectors, acc, sink);
}

/* The same for runs of words: each begins `run` bytes behind where a pixel's row points, and goes on with the next words
 * of the panels. */
GP_INLINE void gp_runs_tile(const enum gp_packed_type type, const int rows, const int panels, const int vectors,
                            int64_t runs, int64_t words, const char *const *row, const int64_t *run, const float *b,
                            int64_t panel_step, const gp_packed_sink *sink)
{
    const int64_t width = gp_tile_width(panels, sink);
    gp_acc acc;
    gp_acc_begin(type, rows, panels, vectors, acc, sink);
    for (int64_t r = 0; r < runs; r++, b += words * width) {
        const char *a[GP_TILE_ROWS];
        GP_EACH(i, rows)
            a[i] = row[i] + run[r];
        gp_tile_steps(type, rows, panels, vectors, words, a, b, panel_step, acc, sink, r * (words / 2));
    }
    gp_acc_end(type, rows, panels, vectors, acc, sink);
}

/* Panels to read at once: as many as the registers of `rows` rows hold and `cols` columns fill. */
GP_INLINE int gp_streams(int64_t rows, int64_t cols)
{
    int panels = GP_TILE_PANELS;
    while (panels > 1 && (rows * panels * GP_PANEL_VECTORS > GP_TILE_VECTORS || panels * GP_PANEL > cols))
        panels /= 2;
    return panels;
}

/* The place among the tiles of one height (gp_tile_table.h) of that for so many panels from column j of n on. */
GP_INLINE int gp_tile_column(int panels, int64_t j, int64_t n)
{
    return gp_panel_width(j, n) <= GP_VL ? 0 : panels == 4 ? 3 : panels;
}

/* The panels of such a column. */
GP_INLINE int gp_column_panels(int column)
{
    return column == 3 ? 4 : column == 2 ? 2 : 1;
}

/* What the next of `ntiles` tiles of a group of panels fetches, of which each reads `words` words a column. */
GP_INLINE void gp_sink_ahead(gp_packed_sink *sink, int64_t words, int64_t panels, int64_t tile, int64_t ntiles)
{
    const int64_t line = panels * GP_PANEL * (int64_t)sizeof *sink->c;
    sink->ahead = ntiles > 1 ? words * line + tile * words * line / ntiles : GP_TILE_AHEAD;
    sink->ahead_step = ntiles > 1 ? (line - 1) / ntiles + 1 : line / panels;
}

/* Moves a sink down by the rows of a tile, or to the right by columns. */
GP_INLINE void gp_sink_down(gp_packed_sink *sink, int64_t rows)
{
    sink->c += sink->c ? rows * sink->ldc : 0;
    sink->row += rows;
    sink->partial += rows * GP_TILE_PANELS * GP_PANEL;
    sink->total += sink->total ? rows * GP_TILE_PANELS * GP_PANEL : 0;
    sink->residual += sink->residual ? rows * sink->residual_row : 0;
    sink->row_sum += sink->row_sum ? rows : 0;
    sink->largest += sink->largest ? sink->pairs : 0;
    sink->shift += sink->shifts;
}

GP_INLINE void gp_sink_right(gp_packed_sink *sink, int64_t cols)
{
    sink->c += sink->c ? cols : 0;
    sink->col += cols;
    sink->bias += sink->bias ? cols : 0;
    sink->residual += sink->residual ? cols : 0;
    sink->scale += sink->scale ? cols : 0;
    sink->col_sum += sink->col_sum ? cols : 0;
    sink->col_zero += sink->col_zero ? cols : 0;
    sink->most += sink->most ? cols / GP_PANEL * 2 * sink->pairs : 0;
    sink->group_sum += cols * sink->shifts;
}

#endif
