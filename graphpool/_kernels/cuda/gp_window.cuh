// Windows of a convolution over images of up to three spatial axes, depth first. A transposed one reads where a
// convolution from the result to the source would write. GP_INDEX holds the offsets within one image.

#define GP_P(name) ((GP_INDEX)p.name)

#if GP_IS_TRANSPOSED
#define GP_START(result, axis) ((GP_INDEX)(result) + GP_P(pad_##axis))
#define GP_GAP(tap, axis) (-(tap) * GP_P(gap_##axis))
#define GP_MISSES(at, axis) ((at) < 0 || (at) % GP_P(step_##axis) || (at) / GP_P(step_##axis) >= GP_P(src_##axis))
#define GP_CELL(at, axis) ((at) / GP_P(step_##axis))
#else
#define GP_START(result, axis) ((GP_INDEX)(result) * GP_P(step_##axis) - GP_P(pad_##axis))
#define GP_GAP(tap, axis) ((tap) * GP_P(gap_##axis))
#define GP_MISSES(at, axis) ((at) < 0 || (at) >= GP_P(src_##axis))
#define GP_CELL(at, axis) (at)
#endif

// One of the terms of each sum: where its weight lies, its channel of the source, and how far its tap is from the
// start of a window.
struct Term {
    GP_INDEX weights, channel, d, h, w;
};

static __device__ __forceinline__ Term gp_term(const Params &p, GP_INDEX c, GP_INDEX kd, GP_INDEX kh, GP_INDEX kw) {
    const GP_INDEX tap = kd * GP_P(weight_d) + kh * GP_P(weight_h) + kw * GP_P(weight_w);
    return {tap + c * GP_P(weight_inner), c * GP_P(along_c), GP_GAP(kd, d), GP_GAP(kh, h), GP_GAP(kw, w)};
}

// Where the element of a term lies for the window that starts at (d, h, w); false: in the padding or between elements.
static __device__ __forceinline__ bool gp_place(const Params &p, const Term &term, GP_INDEX d, GP_INDEX h, GP_INDEX w,
                                                GP_INDEX &place) {
    const GP_INDEX id = d + term.d, ih = h + term.h, iw = w + term.w;
    if (GP_MISSES(id, d) || GP_MISSES(ih, h) || GP_MISSES(iw, w)) return false;
    const GP_INDEX row = GP_CELL(id, d) * GP_P(along_d) + GP_CELL(ih, h) * GP_P(along_h);
    place = term.channel + row + GP_CELL(iw, w) * GP_P(along_w);
    return true;
}

static __device__ __forceinline__ float gp_element(const Params &p, const char *src, long long from, const Term &term,
                                                   GP_INDEX d, GP_INDEX h, GP_INDEX w) {
    GP_INDEX place;
    return gp_place(p, term, d, h, w, place) ? gp_load_src(src, from + place) : 0.0f;
}
