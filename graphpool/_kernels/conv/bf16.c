/* Convolution with weights in panels (gp_packed.h) of bf16: implicit matrix products (gp_conv_blocks.h) of images in bf16
 * or f32, in f32.
 *
 * The source is staged as bf16, its channels made even in number, so that each pair is a word. Padded channels are
 * zeros on both sides, so that an infinity beside them stays where it is. */
#define GP_CONV_TYPE GP_PACKED_BF16
#include "conv/gp_conv_blocks.h"
#include "conv/gp_conv_weights.h"
#include "core/gp_convert.h"

GP_RECORD(gp_conv_bf16, {
    gp_conv_blocks blocks;
    int64_t src_dtype, residual_arg, tile_in_scratch; /* residual_arg: 0 if there is none */
    float lo, hi;
});

static void move_pixels(const void *params, const char *src, int64_t count, char *dst)
{
    const gp_conv_bf16 *p = params;
    const int64_t step = p->blocks.window.src[2], channel = p->blocks.window.src_c, ic = p->blocks.ic;
    const int64_t pixel = p->blocks.pixel_nbytes / 2;
    const float *floats = (const float *)src;
    uint16_t *to = (uint16_t *)dst;
    if (p->src_dtype == GP_F32 && channel == 1 && step == pixel && ic == pixel) {
        gp_store_row(GP_BF16, floats, to, 0, 1, count * ic);
        return;
    }
    if (p->src_dtype == GP_BF16) {
        gp_copy(to, pixel, 1, src, step, channel, count, ic, sizeof *to);
    } else if (channel == 1 && ic >= GP_VL) {
        for (int64_t x = 0; x < count; x++)
            gp_store_row(GP_BF16, floats + x * step, to + x * pixel, 0, 1, ic);
    } else {
        for (int64_t c = 0; c < ic; c++)
            for (int64_t x = 0; x < count; x++)
                to[x * pixel + c] = gp_to_bf16(floats[x * step + c * channel]);
    }
    for (int64_t x = 0; ic < pixel && x < count; x++)
        to[x * pixel + ic] = 0;
}

static void task(const gp_conv_blocks *b, void *const *args, gp_conv_pixels *pixels,
                 const gp_conv_columns *columns, char *scratch)
{
    const gp_conv_bf16 *p = (const gp_conv_bf16 *)b;
    gp_packed_sink sink = {.lo = p->lo, .hi = p->hi, .residual_row = b->residual_pixel, .is_first = 1, .is_last = 1};
    sink.c = p->tile_in_scratch ? (float *)scratch : (float *)args[b->dst_arg] + columns->dst;
    sink.ldc = p->tile_in_scratch ? columns->cols : b->dst_pixel;
    sink.partial = (float *)scratch; /* not used: k is never split */
    sink.bias = gp_floats_at(args, b->bias_arg, columns->c);
    sink.residual = gp_floats_at(args, p->residual_arg, columns->residual);
    gp_multiply(b, pixels, columns, sink);
    if (b->has_epilogue)
        gp_finish_block(b, (const gp_eltwise *)(p + 1), args, pixels, columns, sink.c, sink.ldc);
}

GP_DEFINE_KERNEL(bf16_conv_packed) { gp_run_blocks(params, args, begin, end, scratch, 0, move_pixels, task); }

static void pack_panel(const gp_conv_pack *p, const float *from, int64_t cols, uint16_t *restrict to)
{
    const int64_t pixel = p->ic + p->ic % 2;
    memset(to, 0, (size_t)(p->runs * p->words * cols) * 4);
    for (int64_t tap = 0; tap < p->runs * p->merged; tap++) {
        const float *at = from + gp_tap_offset(p->kernel, p->w, tap);
        for (int64_t i = 0; i < p->ic; i++) {
            const int64_t element = tap % p->merged * pixel + i, word = tap / p->merged * p->words + element / 2;
            for (int64_t c = 0; c < cols; c++)
                to[(word * cols + c) * 2 + element % 2] = gp_to_bf16(at[i * p->w_ic + c * p->w_oc]);
        }
    }
}

/* A task is one panel of one group. args: weights, packed. */
GP_DEFINE_KERNEL(bf16_conv_pack)
{
    const gp_conv_pack *p = params;
    for (int64_t number = begin; number < end; number++) {
        const gp_conv_panel at = gp_find_conv_panel(p, number, p->runs * p->words);
        pack_panel(p, (const float *)args[0] + at.weight, at.cols, (uint16_t *)args[1] + at.word * 2);
    }
    gp_end_conv_panels(p, end - 1, args[1]);
}

/* The inverse, to floats. args: packed, weights. */
GP_DEFINE_KERNEL(bf16_conv_unpack)
{
    const gp_conv_pack *p = params;
    const int64_t pixel = p->ic + p->ic % 2;
    for (int64_t number = begin; number < end; number++) {
        const gp_conv_panel at = gp_find_conv_panel(p, number, p->runs * p->words);
        const uint16_t *from = (const uint16_t *)args[0] + at.word * 2;
        for (int64_t tap = 0; tap < p->runs * p->merged; tap++)
            for (int64_t i = 0; i < p->ic; i++) {
                const int64_t element = tap % p->merged * pixel + i, word = tap / p->merged * p->words + element / 2;
                float *to = (float *)args[1] + at.weight + gp_tap_offset(p->kernel, p->w, tap) + i * p->w_ic;
                for (int64_t c = 0; c < at.cols; c++)
                    to[c * p->w_oc] = gp_from_bf16(from[(word * at.cols + c) * 2 + element % 2]);
            }
    }
}

const gp_kernel_entry GP_KERNEL(conv_bf16_table)[] = {
    GP_ENTRY(bf16_conv_packed, gp_conv_bf16),
    GP_ENTRY(bf16_conv_pack, gp_conv_pack),
    GP_ENTRY(bf16_conv_unpack, gp_conv_pack),
    GP_INNER(gp_conv_blocks),
    GP_TABLE_END,
};
