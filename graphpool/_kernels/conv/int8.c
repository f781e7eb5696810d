/* Int8 convolution with weights in panels: implicit GEMM (gp_conv_blocks.h) with s32 accumulators.
 *
 * Where bytes are multiplied pair by pair (gp_packed.h), a pixel that is one run comes to scratch less its shifts, if the zero
 * point promises some.
 *
 * The source is staged as unsigned bytes, the zero point where the padding is. That is cheap, for every byte is then
 * multiplied by all columns. The sums of the columns of a group stand behind its panels; words end in zeros where the
 * run does, so that what the last one reads beyond the run does not matter. args: src, packed weights, scales, then
 * those of the post-ops. */
#define GP_CONV_TYPE GP_PACKED_S8
#include "conv/gp_conv_blocks.h"
#include "conv/gp_conv_weights.h"

GP_RECORD(gp_conv_s8, {
    gp_conv_blocks blocks;
    int64_t src_dtype, zero; /* zero: the zero point of the source, as unsigned bytes have it */
    gp_requant requant;
    gp_dynamic dynamic;
});

static void flip_signs(uint8_t *bytes, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        bytes[i] ^= 0x80;
}

/* Pixels of planes. Where their number is known compilers interleave whole vectors. */
GP_INLINE void interleave(const int64_t ic, const uint8_t *from, int64_t step, int64_t channel, int64_t count,
                          uint8_t *restrict to)
{
    for (int64_t x = 0; x < count; x++)
        for (int64_t c = 0; c < ic; c++)
            to[x * ic + c] = from[x * step + c * channel];
}

static void move_pixels(const void *params, const char *src, int64_t count, char *dst)
{
    const gp_conv_s8 *p = params;
    const int64_t step = p->blocks.window.src[2], channel = p->blocks.window.src_c, ic = p->blocks.ic;
    const uint8_t *from = (const uint8_t *)src;
    uint8_t *restrict to = (uint8_t *)dst;
    if (channel == 1 && step == ic)
        memcpy(to, from, (size_t)(count * ic));
    else if (channel == 1)
        for (int64_t x = 0; x < count; x++)
            memcpy(to + x * ic, from + x * step, (size_t)ic);
    else if (ic == 3 && step == 1)
        interleave(3, from, 1, channel, count, to);
    else
        interleave(ic, from, step, channel, count, to);
    if (p->src_dtype == GP_S8)
        flip_signs(to, count * ic);
}

/* What the zero points of weights are multiplied by: the source less its own, summed over the window of each pixel. */
static void sum_pixels(const gp_conv_blocks *b, const gp_conv_pixels *pixels)
{
    const int64_t count = b->merged * b->ic, terms = b->runs * count;
    for (int64_t i = 0; i < pixels->at.rows * pixels->at.cols; i++) {
        uint32_t sum = 0; /* at most 255 * 2^15 */
        for (int64_t r = 0; r < b->runs; r++) {
            const uint8_t *bytes = (const uint8_t *)pixels->row[i] + pixels->run[r];
            for (int64_t k = 0; k < count; k++)
                sum += bytes[k];
        }
        pixels->sum[i] = (int32_t)sum - (int32_t)terms * pixels->zero;
    }
}

#if GP_HAS_PAIRS
/* Whether the words of pixels are multiplied less their shifts (gp_packed.h). */
static int is_shifted(const gp_conv_blocks *b, const gp_conv_pixels *pixels)
{
    return b->shifts && pixels->zero >= GP_LEAST_ZERO;
}

/* The largest bytes of the pairs of the pixels of all tiles, which come to scratch less their shifts first. */
static void find_largest(const gp_conv_blocks *b, const gp_conv_pixels *pixels)
{
    const char **row = pixels->row;
    uint8_t *to = pixels->largest;
    int32_t *shift = pixels->shift;
    char *words = pixels->words;
    int64_t rows = pixels->at.rows * pixels->at.cols;
    for (int64_t left = (rows + GP_TILE_ROWS - 1) / GP_TILE_ROWS; left; left--) {
        const int64_t height = (rows + left - 1) / left;
        if (is_shifted(b, pixels)) {
            gp_shift_rows(row, height, b->pitch / 4, words, b->pitch, shift);
            shift += b->shifts;
            for (int64_t i = 0; i < height; i++, words += b->pitch)
                row[i] = words;
        }
        for (int64_t r = 0; r < b->runs; r++, to += GP_PAIRS(b->words))
            gp_find_largest(row, height, pixels->run[r], b->words, to);
        row += height;
        rows -= height;
    }
}
#endif

static void task(const gp_conv_blocks *b, void *const *args, gp_conv_pixels *pixels,
                 const gp_conv_columns *columns, char *scratch)
{
    const gp_conv_s8 *p = (const gp_conv_s8 *)b;
    char *dst = (char *)args[b->dst_arg] + columns->dst * gp_element_nbytes(p->requant.dst_dtype);
    const gp_requant_sink requant =
        gp_make_requant(&p->requant, args, columns->c, b->has_epilogue ? scratch : dst,
                        b->has_epilogue ? columns->cols : b->dst_pixel, columns->residual, b->residual_pixel);
    const int32_t *zeros = p->dynamic.columns_arg ? (const int32_t *)args[p->dynamic.columns_arg] + columns->c : NULL;
    if (zeros && pixels->is_new)
        sum_pixels(b, pixels);
    const int64_t pairs = b->runs * GP_PAIRS(b->words);
    int64_t shifts = 0;
#if GP_HAS_PAIRS
    if (pixels->is_new)
        find_largest(b, pixels);
    shifts = is_shifted(b, pixels) ? b->shifts : 0;
#endif
    const int32_t *sums = (const int32_t *)(columns->b + b->runs * b->words * b->oc), *groups = sums + b->oc;
    gp_multiply(b, pixels, columns,
                (gp_packed_sink){
                    .partial = (float *)scratch, /* not used: k is never split */
                    .is_first = 1,
                    .is_last = 1,
                    .scale = (const float *)args[2] + columns->c,
                    .bias = gp_floats_at(args, b->bias_arg, columns->c),
                    .col_sum = sums + columns->j,
                    .group_sum = groups + columns->j * b->shifts,
                    .shift = pixels->shift,
                    .shifts = shifts,
                    .most = (const uint8_t *)(groups + b->oc * b->shifts) + columns->j / GP_PANEL * 2 * pairs,
                    .largest = pairs ? pixels->largest : NULL,
                    .pairs = pairs,
                    .a_zero = pixels->zero,
                    .a_scale = gp_dynamic_scale(&p->dynamic, args),
                    .col_zero = zeros,
                    .row_sum = zeros ? pixels->sum : NULL,
                    .requant = &requant,
                });
    if (b->has_epilogue)
        gp_finish_block(b, (const gp_eltwise *)(p + 1), args, pixels, columns, (const float *)scratch, columns->cols);
}

GP_DEFINE_KERNEL(s8_conv_packed)
{
    const gp_conv_s8 *p = params;
    const int zero = gp_dynamic_zero(&p->dynamic, args, p->src_dtype, p->zero);
    gp_run_blocks(&p->blocks, args, begin, end, scratch, zero, move_pixels, task);
}

/* The bytes of one run of one output channel, zeros behind; u8 weights become s8, less 128. */
static void gather_run(const gp_conv_pack *p, const uint8_t *from, int64_t run, uint8_t *restrict bytes)
{
    const int64_t ic = p->ic, step = p->w_ic, n = p->merged * ic;
    for (int64_t tap = 0; tap < p->merged; tap++) {
        uint8_t *restrict to = bytes + tap * ic;
        const uint8_t *channels = from + gp_tap_offset(p->kernel, p->w, run * p->merged + tap);
        if (step == 1)
            memcpy(to, channels, (size_t)ic);
        else
            for (int64_t c = 0; c < ic; c++)
                to[c] = channels[c * step];
    }
    if (p->w_dtype == GP_U8)
        flip_signs(bytes, n);
    memset(bytes + n, 0, (size_t)(p->words * 4 - n));
}

/* One column of a panel of that width: its words go to every width-th place; returns the sum of its bytes. */
static int32_t pack_column(const gp_conv_pack *p, const uint8_t *from, uint32_t *to, int64_t width, uint8_t *bytes)
{
    const int64_t words = p->words;
    int32_t sum = 0;
    for (int64_t run = 0; run < p->runs; run++) {
        gather_run(p, from, run, bytes);
        for (int64_t i = 0; i < words * 4; i++)
            sum += (int8_t)bytes[i];
        for (int64_t w = 0; w < words; w++, to += width)
            memcpy(to, bytes + w * 4, 4);
    }
    return sum;
}

/* A task is one panel of one group; scratch: the bytes of a run. args: weights, packed. */
GP_DEFINE_KERNEL(s8_conv_pack)
{
    const gp_conv_pack *p = params;
    const int64_t words = p->runs * p->words;
    for (int64_t number = begin; number < end; number++) {
        const gp_conv_panel at = gp_find_conv_panel(p, number, words);
        uint32_t *to = (uint32_t *)args[1] + at.word;
        int32_t *sums = (int32_t *)to + (p->oc - at.j) * words + at.j;
        const int64_t pairs = p->runs * GP_PAIRS(p->words);
        int32_t *groups = sums - at.j + p->oc;
        uint8_t *most = (uint8_t *)(groups + p->oc * p->shifts) + at.j / GP_PANEL * 2 * pairs;
        for (int64_t c = 0; c < at.cols; c++)
            sums[c] = pack_column(p, (const uint8_t *)args[0] + at.weight + c * p->w_oc, to + c, at.cols, scratch);
        if (p->shifts)
            gp_sum_groups((const int32_t *)to, at.cols, p->words, groups + at.j * p->shifts);
        for (int64_t run = 0; run < p->runs; run++)
            gp_limit_pairs(to + run * p->words * at.cols, at.cols, p->words, pairs,
                           most + run * GP_PAIRS(p->words));
    }
    gp_end_conv_panels(p, end - 1, args[1]);
}

/* The inverse. args: packed, weights. */
GP_DEFINE_KERNEL(s8_conv_unpack)
{
    const gp_conv_pack *p = params;
    const uint8_t flip = p->w_dtype == GP_U8 ? 128 : 0;
    for (int64_t number = begin; number < end; number++) {
        const gp_conv_panel at = gp_find_conv_panel(p, number, p->runs * p->words);
        const uint8_t *from = (const uint8_t *)((const uint32_t *)args[0] + at.word);
        for (int64_t tap = 0; tap < p->runs * p->merged; tap++)
            for (int64_t i = 0; i < p->ic; i++) {
                const int64_t byte = tap % p->merged * p->ic + i, word = tap / p->merged * p->words + byte / 4;
                uint8_t *to = (uint8_t *)args[1] + at.weight + gp_tap_offset(p->kernel, p->w, tap) + i * p->w_ic;
                for (int64_t c = 0; c < at.cols; c++)
                    to[c * p->w_oc] = from[(word * at.cols + c) * 4 + byte % 4] ^ flip;
            }
    }
}

const gp_kernel_entry GP_KERNEL(conv_s8_table)[] = {
    GP_ENTRY(s8_conv_packed, gp_conv_s8),
    GP_ENTRY(s8_conv_pack, gp_conv_pack),
    GP_ENTRY(s8_conv_unpack, gp_conv_pack),
    GP_TABLE_END,
};
