/* Sums and maxima of as many vectors as a vector has lanes, at once: what rows of a few elements spend their time on. */
#ifndef GP_LANES_H
#define GP_LANES_H

#include "core/gp_vec.h"

/* One step of the trees below: of lanes l and l ^ width, those of a where l has no such bit, those of b where it has. */
GP_INLINE void gp_halve(gp_vf a, gp_vf b, const int width, gp_vf *here, gp_vf *there)
{
    const gp_vi from_b = ((GP_LANE_NUMBERS & width) != 0) & GP_VL;
    *here = gp_pick_both(a, b, GP_LANE_NUMBERS + from_b);
    *there = gp_pick_both(a, b, (GP_LANE_NUMBERS ^ width) + from_b);
}

/* Lane i is gp_lane_sum(v[i]), the same bits, or the largest lane of v[i], where none is NaN; v is overwritten. */
GP_INLINE gp_vf gp_across_lanes(const int is_max, gp_vf *v)
{
#pragma GCC unroll 4
    for (int width = GP_VL / 2; width; width /= 2)
#pragma GCC unroll 8
        for (int i = 0; i < width; i++) {
            gp_vf here, there;
            gp_halve(v[i], v[i + width], width, &here, &there);
            v[i] = is_max ? gp_vmax(here, there) : here + there;
        }
    return v[0];
}

#endif
