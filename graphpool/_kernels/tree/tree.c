/* Scores of rows by ensembles of decision trees, packed as tree_weights.c does. Weights are added in f64. */
#include "tree/gp_trees.h"

GP_ENUM(tree_aggregate, GP_TREE_SUM, GP_TREE_AVERAGE, GP_TREE_MIN, GP_TREE_MAX);

GP_RECORD(tree_params, {
    gp_tree_layout layout;
    int64_t nrows, row_stride;          /* src; elements */
    int64_t block;                      /* rows of a task */
    int64_t aggregate, dst_is_f64;
});

/* Walks side by side: all go on until the longest one has ended, and more than these hide no more loads. */
#define GP_TREE_LANES 8

static int64_t gp_groups(int64_t count)
{
    return (count + GP_TREE_LANES - 1) / GP_TREE_LANES;
}

/* NaN: nothing was found for a target yet. */
static void start_sums(const tree_params *p, int64_t nrows, double *sums)
{
    const double start = p->aggregate == GP_TREE_MIN || p->aggregate == GP_TREE_MAX ? NAN : 0;
    for (int64_t i = 0; i < nrows * p->layout.ntargets; i++)
        sums[i] = start;
}

GP_INLINE void add_leaf(const tree_params *p, const char *packed, int64_t node, double *sums)
{
    const gp_tree_leaf leaf = ((const gp_tree_leaf *)(packed + p->layout.leaves))[node];
    const gp_tree_entry *entries = (const gp_tree_entry *)(packed + p->layout.entries);
    for (int64_t k = leaf.begin; k < leaf.end; k++) {
        double *sum = sums + entries[k].target;
        const double weight = entries[k].weight;
        if (p->aggregate == GP_TREE_MIN)
            *sum = fmin(*sum, weight);
        else if (p->aggregate == GP_TREE_MAX)
            *sum = fmax(*sum, weight);
        else
            *sum += weight;
    }
}

/* The scores: what was found, 0 for nothing, and the base. */
static void write_sums(const tree_params *p, const char *packed, const double *sums, int64_t nrows, void *dst,
                       int64_t row)
{
    const double *base = (const double *)(packed + p->layout.base);
    const int64_t ntargets = p->layout.ntargets;
    const double divisor = p->aggregate == GP_TREE_AVERAGE && p->layout.ntrees ? (double)p->layout.ntrees : 1;
    const int is_sum = p->aggregate == GP_TREE_SUM || p->aggregate == GP_TREE_AVERAGE;
    for (int64_t i = 0; i < nrows; i++)
        for (int64_t k = 0; k < ntargets; k++) {
            const double sum = sums[i * ntargets + k], found = is_sum || sum == sum ? sum / divisor : 0;
            const int64_t at = (row + i) * ntargets + k;
            if (p->dst_is_f64)
                ((double *)dst)[at] = found + base[k];
            else
                ((float *)dst)[at] = (float)(found + base[k]);
        }
}

#define GP_TREE_T float
#define GP_TREE_NODE gp_tree_node_f32
#include "tree/gp_tree_walk.h"

#define GP_TREE_T double
#define GP_TREE_NODE gp_tree_node_f64
#include "tree/gp_tree_walk.h"

/* args: src, packed, dst; scratch: block x ntargets doubles. A task is a block of rows. */
GP_DEFINE_KERNEL(f32_tree_ensemble)
{
    score_gp_tree_node_f32(params, args, begin, end, scratch);
}

GP_DEFINE_KERNEL(f64_tree_ensemble)
{
    score_gp_tree_node_f64(params, args, begin, end, scratch);
}

const gp_kernel_entry GP_KERNEL(tree_table)[] = {
    GP_ENTRY(f32_tree_ensemble, tree_params),
    GP_ENTRY(f64_tree_ensemble, tree_params),
    GP_INNER(tree_aggregate),
    GP_NUMBER(GP_TREE_LANES),
    GP_TABLE_END,
};
