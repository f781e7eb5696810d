/* The tables of every family of kernels, by its source, in one instruction set. */
#include "core/gp_tables.h"

#define GP_FAMILIES(X)                                                                                                 \
    X(eltwise_eltwise, eltwise_table) X(eltwise_eltwise_wide, eltwise_wide_table) X(move_move, move_table)             \
    X(move_index, index_table) X(move_top_k, top_k_table) X(norm_softmax, softmax_table) X(norm_norm, norm_table)      \
    X(norm_channel_norm, channel_norm_table) X(norm_reduce, reduce_table) X(norm_scan, scan_table)                     \
    X(eltwise_random, random_table) X(gemm_matmul, matmul_table) X(gemm_packed, packed_table)                          \
    X(gemm_packed_weights, packed_weights_table) X(gemm_compressed, compressed_table)                                  \
    X(gemm_compressed_weights, compressed_weights_table) X(conv_direct, conv_table) X(conv_bf16, conv_bf16_table)      \
    X(conv_packed, conv_packed_table) X(conv_int8, conv_s8_table) X(conv_depthwise, conv_depthwise_table)              \
    X(conv_winograd, winograd_table) X(conv_weights, conv_weights_table) X(norm_fold, fold_table)                      \
    X(eltwise_lookup, lookup_table) X(gemm_quantize, quantize_table) X(image_pool, pool_table)                         \
    X(image_resample, resample_table) X(gemm_attention, attention_table)                                               \
    X(gemm_attention_backward, attention_backward_table) X(rnn_recurrent, recurrent_table) X(tree_tree, tree_table)    \
    X(tree_tree_weights, tree_weights_table) X(move_search, search_table) X(image_regions, regions_table)              \
    X(norm_couple, couple_table) X(norm_reduce_wide, reduce_wide_table) X(conv_overlap, conv_overlap_table)

static const gp_kernel_entry core_table[] = {
    GP_INNER(gp_dtype),
    GP_NUMBER(GP_MAX_ARGS),
    GP_TABLE_END,
};

#define GP_DECLARE(source, table) extern const gp_kernel_entry GP_OF(source, table)[];
#define GP_ADDRESS(source, table) GP_OF(source, table),

GP_FAMILIES(GP_DECLARE)

gp_tables GP_KERNEL(tables) = {core_table, GP_FAMILIES(GP_ADDRESS) NULL};
