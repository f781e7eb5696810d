/* Constant weights of 8 or 4 bits with a scale, and perhaps a zero point, for each group of rows of each column.
 *
 * A weight is (u - zero) * scale. The numbers u, unsigned (signed ones are stored plus half their range, and so are
 * their zero points), lie in words of 32 bits, each holding one column's next 4 bytes, or 8 nibbles: the first four in
 * the low halves of the bytes, the others in the high halves, so that a mask gives words of bytes. Words lie in panels
 * of GP_PANEL columns as in gp_packed.h, zeros behind the last row. Behind the panels lie the scales, f32, then the zero
 * points, s16, in panels too: for each group one a column, so that a product reads every part in order. */
#ifndef GP_COMPRESSED_H
#define GP_COMPRESSED_H

#include "gemm/gp_packed.h"

/* Numbers of a word. */
GP_INLINE int64_t gp_word_depth(int64_t bits)
{
    return 32 / bits;
}

GP_INLINE int64_t gp_word_count(int64_t bits, int64_t k)
{
    return (k + gp_word_depth(bits) - 1) / gp_word_depth(bits);
}

/* Lowest bit of number t of a word. */
GP_INLINE int gp_word_shift(const int bits, const int t)
{
    return bits == 8 ? 8 * t : 8 * (t % 4) + 4 * (t / 4);
}

GP_INLINE gp_vi gp_load_words(const char *from)
{
    gp_vi words;
    memcpy(&words, from, sizeof words);
    return words;
}

GP_INLINE gp_vi gp_load_shorts(const int16_t *from)
{
    int16_t shorts __attribute__((vector_size(2 * GP_VL)));
    memcpy(&shorts, from, sizeof shorts);
    return __builtin_convertvector(shorts, gp_vi);
}

/* Number t of every word as f32: nibbles by one look-up in a register where there are sixteen lanes. */
GP_INLINE gp_vf gp_numbers_of(const int bits, gp_vi words, const int t)
{
    const gp_vi low = (gp_vi)((gp_vu)words >> gp_word_shift(bits, t));
#if defined(__AVX512F__)
    const gp_vf floats = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    if (bits == 4)
        return (gp_vf)_mm512_permutexvar_ps((__m512i)low, (__m512)floats);
#endif
    return __builtin_convertvector(low & (bits == 8 ? 255 : 15), gp_vf);
}

#endif
