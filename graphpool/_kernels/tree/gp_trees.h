/* Ensembles of decision trees as they are packed.
 *
 * Nodes lie in the order that they were given in. A node sends a row to the node `child` or, where the row's feature is
 * above the threshold, to the one behind that; so a walk has no branches. A leaf sends every row to itself, by a
 * threshold that is NaN. Children come behind their parents, so every walk ends. */
#ifndef GP_TREES_H
#define GP_TREES_H

#include "core/gp_kernel.h"
#include "core/gp_vec.h"

/* Where the parts lie in a packed ensemble, in bytes; nodes are first. */
GP_RECORD(gp_tree_layout, {
    int64_t nnodes, ntrees, nentries, ntargets, nfeatures;
    int64_t is_f64;                                         /* thresholds */
    int64_t leaves, entries, base, roots, sends_nan;
});

/* The top bit of `feature`: a NaN goes to the second child. */
#define GP_NAN_SECOND (1u << 31)

GP_RECORD(gp_tree_node_f32, {
    float threshold;
    int32_t child;
    uint32_t feature;
});

GP_RECORD(gp_tree_node_f64, {
    double threshold;
    int32_t child;
    uint32_t feature;
});

/* The entries of each node, none for those that are no leaves. */
GP_RECORD(gp_tree_leaf, {
    int32_t begin, end;
});

GP_RECORD(gp_tree_entry, {
    double weight;
    int64_t target;
});

#endif
