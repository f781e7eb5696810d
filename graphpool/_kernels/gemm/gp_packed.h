/* Matrix products with weights that lie in panels: the layout, and the tile that stays in registers.
 *
 * Layout. A matrix B of k x n is cut into words of 32 bits, each holding one column's next f32, 2 bf16 or 4 s8 along k
 * (`depth` elements, zeros behind the last), so that all types share every loop here. GP_PANEL columns are a panel: for
 * each of the `words` steps along k its words in a row. Panels follow one another; the last one has as many columns as
 * there are. Tiles read whole vectors all the same: lanes behind the last column hold what comes next in memory, and are
 * never stored; so what holds weights is longer by what a last row lacks of whole vectors. s8 weights are followed by one s32
 * a column, the sum over k. Where there is no instruction for products of bytes, sums of groups follow, in panels of their
 * own, and the limits of pairs.
 *
 * Pairs. Without that instruction the cheapest exact way for all bytes is to widen them to s16. vpmaddubsw, which adds
 * two products of bytes in s16, would saturate: 255 * 127 twice is 64770. But both factors are rarely large. Of each two
 * words that follow each other the panel knows the largest byte of activations with which no sum of four products leaves
 * s16, whatever the other bytes are, and that for the sums of two within either word. A tile compares both with the
 * largest byte of its rows, and multiplies pair by pair in the cheapest of three ways: two vpmaddubsw, whose sums are
 * added and then widened; each widened; or bytes widened first. All are exact.
 *
 * Shifts. Signed numbers lie about the middle of their bytes, so that few pairs would fit. Products bring the rows of a
 * tile to scratch, less the least byte that any of them has in each group of GP_SHIFT_WORDS words. What that takes from the
 * results is so many times the sum of the column's weights in the group. Two such sums, in s16, are a word: so the shifts
 * of two groups cost one multiplication a vector of columns. A zero point below GP_LEAST_ZERO says that numbers are of one
 * sign, with some near zero in each group: these rows stay as they are.
 *
 * Tile. rows x (panels * vectors) accumulators stay in registers while k runs; every step loads one vector per column
 * vector and broadcasts one word per row. 6 x 4 vectors with 32 registers, 6 x 2 with 16: the largest for which
 * accumulators, one step of B and a broadcast fit (Low et al., "Analytical modeling is enough for high-performance
 * BLIS", 2016), with rows few enough that a stride of a power of two does not exceed the 8 ways of L1. Fewer rows take
 * up to 4 panels at once, each its own stream of memory. An element is summed in the order of k whatever the tile, in
 * chains of the same length, so a row's result does not depend on how many rows there are or how they are divided. */
#ifndef GP_PACKED_H
#define GP_PACKED_H

#include "core/gp_kernel.h"
#include "core/gp_vec.h"

#define GP_PANEL_VECTORS 2
#define GP_PANEL (GP_PANEL_VECTORS * GP_VL)
#define GP_TILE_ROWS 6
#define GP_TILE_PANELS 4

/* Words of f32 that are summed in one chain, a power of two. Longer sums are made of several, added one after the other:
 * in a single one each rounding would be as coarse as all of the sum. */
#define GP_CHAIN 256
#if defined(__AVX512F__) || defined(__ARM_NEON)
#define GP_TILE_VECTORS 24
#else
#define GP_TILE_VECTORS 12
#endif

/* Whether tiles fetch weights ahead of their use. Their 6 x 16 ask for a line of weights every 6 cycles, twice what tiles of
 * 6 x 32 ask for in the time, and the first tile of each group of panels gets it from L3 or memory, which took a tenth of
 * all time; of those of 6 x 64 where L3 is far, a fifth. So the tiles of a group fetch what the next group reads, a part each;
 * and one that is alone what it reads itself, GP_TILE_AHEAD bytes later. Measured on one core of an AMD EPYC (family 25,
 * Zen 3) and of an Intel Xeon (Emerald Rapids). */
#define GP_FETCHES_AHEAD (GP_VL >= 8)
#define GP_TILE_AHEAD 1024

/* Whether products of bytes are added in s16 for want of an instruction that adds them in s32; pairs of so many words. */
#if defined(__SSE4_1__) && !defined(__AVX512VNNI__) && !defined(__AVXVNNI__)
#define GP_HAS_PAIRS 1
#else
#define GP_HAS_PAIRS 0
#endif
#define GP_PAIRS(words) (GP_HAS_PAIRS ? (words) / 2 : 0)

/* Words of one shift; the least zero point with shifts; words that hold the shifts of a row, or the sums of a column, two
 * each. */
#define GP_SHIFT_WORDS 16
#define GP_LEAST_ZERO 32
#define GP_SHIFTS(words) (GP_HAS_PAIRS ? ((words) + 2 * GP_SHIFT_WORDS - 1) / (2 * GP_SHIFT_WORDS) : 0)

/* What a word holds and how two words are multiplied: f32; 2 bf16; 4 u8 by 4 s8, summed in s32. */
enum gp_packed_type { GP_PACKED_F32, GP_PACKED_BF16, GP_PACKED_S8 };

/* Width of the panel that begins at column j. */
GP_INLINE int64_t gp_panel_width(int64_t j, int64_t n)
{
    return gp_min(n - j, GP_PANEL);
}

typedef gp_vf gp_acc[GP_TILE_ROWS][GP_TILE_PANELS * GP_PANEL_VECTORS]; /* of a tile; with fewer rows or more too */

/* Where a tile's results go. Sums over a part of k pass through `partial`, rows of GP_TILE_PANELS panels. */
typedef struct {
    float *c;
    int64_t ldc, cols;
    float *partial;
    int is_first, is_last;
    float *total; /* f32: like partial, for chains that have ended; NULL where chains end with the parts of k */
    int64_t word; /* f32: from where k begins, where there is a total; else 0 */
    const float *bias;        /* NULL: none; one for each column */
    const float *residual;    /* NULL: none */
    int64_t residual_row;
    float lo, hi;             /* -inf and inf where nothing is clamped; NaN passes */
    /* s8 only: result = (acc - a_zero * col_sum[column] - row_sum[row] * col_zero[column]) * scale[column] * a_scale */
    const float *scale; /* NULL: 1 */
    float a_scale;
    const int32_t *col_sum;
    const int32_t *row_sum;  /* NULL: weights without zero points */
    const int32_t *col_zero; /* NULL: b_zero for all columns */
    int32_t a_zero, b_zero;
    const uint8_t *most;    /* limits of the pairs of the first panel, two times `pairs` a panel */
    const uint8_t *largest; /* bytes of the pairs of the tile's rows, `pairs` a tile; NULL: not s8 */
    int64_t pairs;
    const int32_t *group_sum; /* of the first panel, `shifts` words a column */
    const int32_t *shift;     /* of the tile, so many words */
    int64_t shifts;           /* 0: its rows are as they were */
    const struct gp_requant_sink *requant; /* where results go instead of c, which is NULL (gp_requant.h) */
    int64_t row, col;                      /* of the tile, from where that begins */
    int64_t ahead, ahead_step; /* what steps fetch, from the weights that are read on; from step to step: bytes */
} gp_packed_sink;

/* The numbers from `offset` on of the argument `arg`; none where it is 0. */
GP_INLINE const float *gp_floats_at(void *const *args, int64_t arg, int64_t offset)
{
    return arg ? (const float *)args[arg] + offset : NULL;
}

/* The sink of rows of `count` columns from `channel` on, by the parameters p of a kernel: its first result lies `at`
 * elements behind the start of dst, its residual `from`. */
#define GP_MAKE_SINK(p, args, at, row, from, from_row, channel, count, scratch)                                        \
    {                                                                                                                  \
        .c = (p)->tile_in_scratch ? (float *)(scratch) : (float *)(args)[(p)->dst_arg] + (at),                         \
        .ldc = (p)->tile_in_scratch ? (count) : (row), .partial = (float *)((scratch) + (p)->partial_offset),          \
        .bias = gp_floats_at(args, (p)->bias_arg, channel), .residual = gp_floats_at(args, (p)->residual_arg, from),   \
        .residual_row = (from_row), .lo = (p)->lo, .hi = (p)->hi, .is_first = 1, .is_last = 1,                         \
    }

typedef uint32_t gp_vu __attribute__((vector_size(4 * GP_VL)));
typedef int16_t gp_vh __attribute__((vector_size(4 * GP_VL)));
typedef uint16_t gp_vuh __attribute__((vector_size(4 * GP_VL)));

/* Products of pairs of s16, added pair by pair in s32. */
GP_INLINE gp_vi gp_madd(gp_vh a, gp_vh b)
{
#if defined(__AVX512BW__)
    return (gp_vi)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
    return (gp_vi)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(__SSE2__)
    return (gp_vi)_mm_madd_epi16((__m128i)a, (__m128i)b);
#else
    const gp_vi x = (gp_vi)a, y = (gp_vi)b;
    return (x >> 16) * (y >> 16) + ((gp_vi)((gp_vu)x << 16) >> 16) * ((gp_vi)((gp_vu)y << 16) >> 16);
#endif
}

/* The largest byte by which weights can be multiplied whose positive and negative ones add up to so much in s16. */
GP_INLINE uint8_t gp_largest_factor(int32_t positive, int32_t negative)
{
    return (uint8_t)gp_min(gp_min(INT16_MAX / (positive | 1), -INT16_MIN / (negative | 1)), 255);
}

/* The limits of the pairs of `words` words of a panel: first those of pairs, then those of either word by itself. */
static inline __attribute__((unused)) void gp_limit_pairs(const uint32_t *panel, int64_t width, int64_t words, int64_t pairs,
                                                          uint8_t *most)
{
    for (int64_t q = 0; q < GP_PAIRS(words); q++, panel += 2 * width) {
        int32_t up = 0, down = 0, word_up = 0, word_down = 0;
        for (int half = 0; half < 32; half += 16)
            for (int64_t c = 0; c < width; c++) {
                int32_t positive[2], negative[2];
                for (int i = 0; i < 2; i++) {
                    const int32_t a = (int8_t)(panel[i * width + c] >> half), b = (int8_t)(panel[i * width + c] >> (half + 8));
                    positive[i] = (a > 0 ? a : 0) + (b > 0 ? b : 0);
                    negative[i] = positive[i] - a - b;
                    word_up = positive[i] > word_up ? positive[i] : word_up;
                    word_down = negative[i] > word_down ? negative[i] : word_down;
                }
                up = positive[0] + positive[1] > up ? positive[0] + positive[1] : up;
                down = negative[0] + negative[1] > down ? negative[0] + negative[1] : down;
            }
        most[q] = gp_largest_factor(up, down);
        most[pairs + q] = gp_largest_factor(word_up, word_down);
    }
}

/* Sums of the bytes of a word. */
GP_INLINE int32_t gp_sum_word(int32_t word)
{
    return (int8_t)word + (int8_t)(word >> 8) + (int8_t)(word >> 16) + (word >> 24);
}

/* Sums of the groups of a panel, two in a word. */
static inline __attribute__((unused)) void gp_sum_groups(const int32_t *panel, int64_t width, int64_t words,
                                                         int32_t *restrict groups)
{
    memset(groups, 0, (size_t)(GP_SHIFTS(words) * width) * 4);
    for (int64_t w = 0; w < words; w += GP_SHIFT_WORDS) {
        int32_t sums[GP_PANEL] = {0};
        for (int64_t end = gp_min(w + GP_SHIFT_WORDS, words), at = w; at < end; at++)
            for (int64_t c = 0; c < width; c++)
                sums[c] += gp_sum_word(panel[at * width + c]);
        const int64_t group = w / GP_SHIFT_WORDS;
        for (int64_t c = 0; c < width; c++)
            groups[group / 2 * width + c] |= (int32_t)((uint32_t)(uint16_t)sums[c] << group % 2 * 16);
    }
}

GP_INLINE gp_vi gp_splat_word(const char *p)
{
    int32_t word;
    memcpy(&word, p, sizeof word);
    return word - (gp_vi){0};
}

/* c = a * b for the columns j .. j + cols - 1 of n, f32: j at the start of a panel, b the panels of all n columns, k not
 * split. A part of other kernels; strides in elements. */
#define gp_f32_panels GP_OF(gemm_packed, f32_panels)
void gp_f32_panels(int64_t rows, int64_t j, int64_t cols, int64_t n, int64_t k, const float *a, int64_t a_row,
                           const float *b, float *c, int64_t ldc);

/* All rows of one group of panels, f32, for one part of k; column: 0 for a vector or less, 1, 2, or 3 for four. */
#define gp_f32_group GP_OF(gemm_packed, f32_group)
void gp_f32_group(int64_t rows, int column, int64_t k, const float *a, int64_t a_row, int64_t a_col,
                          const float *b, int64_t panel_step, const gp_packed_sink *sink);

#endif
