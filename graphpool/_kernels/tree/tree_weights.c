/* Packs ensembles of decision trees. Whatever the numbers are, what is packed is an ensemble: indices outside their
 * range become the nearest ones, and a node whose children do not come behind it is a leaf. */
#include "tree/gp_trees.h"

GP_RECORD(tree_pack_params, {
    gp_tree_layout layout;
    int64_t weights_are_f64;
});

static int64_t clamped(int64_t index, int64_t count)
{
    return index < 0 ? 0 : index < count ? index : count - 1;
}

static double number_at(int is_f64, const void *numbers, int64_t at)
{
    return is_f64 ? ((const double *)numbers)[at] : ((const float *)numbers)[at];
}

static void put_node(const gp_tree_layout *t, void *packed, int64_t i, double threshold, int64_t child, uint32_t feature)
{
    if (t->is_f64)
        ((gp_tree_node_f64 *)packed)[i] = (gp_tree_node_f64){threshold, (int32_t)child, feature};
    else
        ((gp_tree_node_f32 *)packed)[i] = (gp_tree_node_f32){(float)threshold, (int32_t)child, feature};
}

/* Returns whether a node sends NaN to its second child. */
static int pack_nodes(const gp_tree_layout *t, const void *thresholds, const int32_t *nodes, char *packed)
{
    gp_tree_leaf *leaves = (gp_tree_leaf *)(packed + t->leaves);
    int sends_nan = 0;
    for (int64_t i = 0; i < t->nnodes; i++, nodes += 3) {
        const int64_t child = nodes[1];
        leaves[i] = (gp_tree_leaf){0, 0};
        if (child > i && child + 1 < t->nnodes) {
            const uint32_t flag = nodes[2] ? GP_NAN_SECOND : 0;
            put_node(t, packed, i, number_at((int)t->is_f64, thresholds, i), child,
                     (uint32_t)clamped(nodes[0], t->nfeatures) | flag);
            sends_nan |= flag != 0;
            continue;
        }
        put_node(t, packed, i, NAN, i, 0);
        const int64_t begin = clamped(nodes[0], t->nentries + 1), most = t->nentries - begin;
        leaves[i] = (gp_tree_leaf){(int32_t)begin, (int32_t)(begin + clamped(nodes[2], most + 1))};
    }
    return sends_nan;
}

/* args: thresholds, nodes, roots, weights, targets, base, packed. One task. */
static void pack_trees(const tree_pack_params *p, void *const *args)
{
    const gp_tree_layout *t = &p->layout;
    char *packed = args[6];
    const int sends_nan = pack_nodes(t, args[0], args[1], packed);
    gp_tree_entry *entries = (gp_tree_entry *)(packed + t->entries);
    for (int64_t i = 0; i < t->nentries; i++) {
        const int64_t target = clamped(((const int32_t *)args[4])[i], t->ntargets);
        entries[i] = (gp_tree_entry){number_at((int)p->weights_are_f64, args[3], i), target};
    }
    for (int64_t i = 0; i < t->ntargets; i++)
        ((double *)(packed + t->base))[i] = number_at((int)p->weights_are_f64, args[5], i);
    for (int64_t i = 0; i < t->ntrees; i++)
        ((int32_t *)(packed + t->roots))[i] = (int32_t)clamped(((const int32_t *)args[2])[i], t->nnodes);
    memcpy(packed + t->sends_nan, &sends_nan, sizeof sends_nan);
}

GP_DEFINE_KERNEL(any_tree_ensemble_pack)
{
    for (int64_t task = begin; task < end; task++)
        pack_trees(params, args);
}

const gp_kernel_entry GP_KERNEL(tree_weights_table)[] = {
    GP_ENTRY(any_tree_ensemble_pack, tree_pack_params),
    GP_INNER(gp_tree_layout),
    GP_INNER(gp_tree_node_f32),
    GP_INNER(gp_tree_node_f64),
    GP_INNER(gp_tree_leaf),
    GP_INNER(gp_tree_entry),
    GP_TABLE_END,
};
