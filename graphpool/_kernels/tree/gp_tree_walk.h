/* Walks down trees, for features of one type: GP_TREE_T, with nodes GP_TREE_NODE. Included once for each. */

#define GP_TREE_PASTE_(a, b) a##_##b
#define GP_TREE_PASTE(a, b) GP_TREE_PASTE_(a, b)
#define GP_TREE(name) GP_TREE_PASTE(name, GP_TREE_NODE)

/* From the nodes `at` to leaves, GP_TREE_LANES walks side by side: each is a chain of loads, which the others hide. */
GP_INLINE void GP_TREE(descend)(const GP_TREE_NODE *nodes, const GP_TREE_T *const *rows, int32_t *at, const int has_nan)
{
    int32_t moved;
    do {
        moved = 0;
        for (int i = 0; i < GP_TREE_LANES; i++) {
            const GP_TREE_NODE *node = nodes + at[i];
            const GP_TREE_T x = rows[i][node->feature & ~GP_NAN_SECOND];
            int32_t next = node->child + (x > node->threshold);
            if (has_nan)
                next += (x != x) & (node->feature >> 31);
            moved |= next ^ at[i];
            at[i] = next;
        }
    } while (moved);
}

/* One tree, some rows, at most GP_TREE_LANES. */
GP_INLINE void GP_TREE(walk_rows)(const tree_params *p, const char *packed, const GP_TREE_T *src, int64_t tree,
                                  int64_t count, double *sums, const int has_nan)
{
    const gp_tree_layout *t = &p->layout;
    const int32_t root = ((const int32_t *)(packed + t->roots))[tree];
    const GP_TREE_T *rows[GP_TREE_LANES];
    int32_t at[GP_TREE_LANES];
    for (int64_t i = 0; i < GP_TREE_LANES; i++) {
        rows[i] = src + gp_min(i, count - 1) * p->row_stride;
        at[i] = root;
    }
    GP_TREE(descend)((const GP_TREE_NODE *)packed, rows, at, has_nan);
    for (int64_t i = 0; i < count; i++)
        add_leaf(p, packed, at[i], sums + i * t->ntargets);
}

/* One row, some trees, at most GP_TREE_LANES. */
GP_INLINE void GP_TREE(walk_trees)(const tree_params *p, const char *packed, const GP_TREE_T *src, int64_t tree,
                                   int64_t count, double *sums, const int has_nan)
{
    const int32_t *roots = (const int32_t *)(packed + p->layout.roots) + tree;
    const GP_TREE_T *rows[GP_TREE_LANES];
    int32_t at[GP_TREE_LANES];
    for (int64_t i = 0; i < GP_TREE_LANES; i++) {
        rows[i] = src;
        at[i] = roots[gp_min(i, count - 1)];
    }
    GP_TREE(descend)((const GP_TREE_NODE *)packed, rows, at, has_nan);
    for (int64_t i = 0; i < count; i++)
        add_leaf(p, packed, at[i], sums);
}

/* All trees for some rows. Each row adds its leaves in the order of the trees, whichever way it is walked. */
GP_INLINE void GP_TREE(walk_block)(const tree_params *p, const char *packed, const GP_TREE_T *src, int64_t nrows,
                                   double *sums, const int has_nan)
{
    const int64_t ntrees = p->layout.ntrees, ntargets = p->layout.ntargets;
    const int64_t left = nrows % GP_TREE_LANES;
    const int64_t groups = left && left * gp_groups(ntrees) >= ntrees ? nrows : nrows - left;
    for (int64_t tree = 0; tree < ntrees; tree++)
        for (int64_t i = 0; i < groups; i += GP_TREE_LANES)
            GP_TREE(walk_rows)(p, packed, src + i * p->row_stride, tree, gp_min(GP_TREE_LANES, groups - i),
                               sums + i * ntargets, has_nan);
    for (int64_t tree = 0; tree < ntrees && groups < nrows; tree += GP_TREE_LANES)
        for (int64_t i = groups; i < nrows; i++)
            GP_TREE(walk_trees)(p, packed, src + i * p->row_stride, tree, gp_min(GP_TREE_LANES, ntrees - tree),
                                sums + i * ntargets, has_nan);
}

static int GP_TREE(has_nan)(const tree_params *p, const GP_TREE_T *src, int64_t nrows)
{
    int found = 0;
    for (int64_t i = 0; i < nrows; i++, src += p->row_stride)
        for (int64_t k = 0; k < p->layout.nfeatures; k++)
            found |= src[k] != src[k];
    return found;
}

GP_INLINE void GP_TREE(score)(const tree_params *p, void *const *args, int64_t begin, int64_t end, double *sums)
{
    const char *packed = args[1];
    int sends_nan;
    memcpy(&sends_nan, packed + p->layout.sends_nan, sizeof sends_nan);
    for (int64_t row = begin * p->block; row < gp_min(end * p->block, p->nrows); row += p->block) {
        const GP_TREE_T *src = (const GP_TREE_T *)args[0] + row * p->row_stride;
        const int64_t nrows = gp_min(p->block, p->nrows - row);
        start_sums(p, nrows, sums);
        if (sends_nan && GP_TREE(has_nan)(p, src, nrows))
            GP_TREE(walk_block)(p, packed, src, nrows, sums, 1);
        else
            GP_TREE(walk_block)(p, packed, src, nrows, sums, 0);
        write_sums(p, packed, sums, nrows, args[2], row);
    }
}

#undef GP_TREE
#undef GP_TREE_PASTE
#undef GP_TREE_PASTE_
#undef GP_TREE_T
#undef GP_TREE_NODE
