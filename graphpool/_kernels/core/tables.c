/* The tables of every family of kernels, in one instruction set. */
#include "core/gp_tables.h"

#define GP_FAMILIES(X)                                                                                                 \
    X(eltwise_table) X(eltwise_wide_table) X(move_table) X(index_table) X(top_k_table) X(softmax_table)                \
    X(norm_table) X(channel_norm_table) X(reduce_table) X(scan_table) X(random_table) X(matmul_table)                  \
    X(packed_table) X(packed_weights_table) X(compressed_table) X(compressed_weights_table) X(conv_table)              \
    X(conv_bf16_table) X(conv_packed_table) X(conv_s8_table) X(conv_depthwise_table)                                   \
    X(winograd_table) X(conv_weights_table) X(fold_table) X(lookup_table) X(quantize_table) X(pool_table)              \
    X(resample_table) X(attention_table) X(attention_backward_table) X(recurrent_table) X(tree_table)                  \
    X(tree_weights_table) X(search_table) X(regions_table) X(couple_table) X(reduce_wide_table)                \
    X(conv_overlap_table)

static const gp_kernel_entry core_table[] = {
    GP_INNER(gp_dtype),
    GP_NUMBER(GP_MAX_ARGS),
    GP_TABLE_END,
};

#define GP_DECLARE(table) extern const gp_kernel_entry GP_KERNEL(table)[];
#define GP_ADDRESS(table) GP_KERNEL(table),

GP_FAMILIES(GP_DECLARE)

gp_tables GP_KERNEL(tables) = {core_table, GP_FAMILIES(GP_ADDRESS) NULL};
