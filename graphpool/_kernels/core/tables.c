/* The tables of every family of kernels, in one instruction set. */
#include "core/gp_tables.h"

extern const gp_kernel_entry GP_KERNEL(eltwise_table)[];
extern const gp_kernel_entry GP_KERNEL(eltwise_wide_table)[];
extern const gp_kernel_entry GP_KERNEL(move_table)[];
extern const gp_kernel_entry GP_KERNEL(index_table)[];
extern const gp_kernel_entry GP_KERNEL(top_k_table)[];
extern const gp_kernel_entry GP_KERNEL(softmax_table)[];
extern const gp_kernel_entry GP_KERNEL(norm_table)[];
extern const gp_kernel_entry GP_KERNEL(channel_norm_table)[];
extern const gp_kernel_entry GP_KERNEL(reduce_table)[];
extern const gp_kernel_entry GP_KERNEL(scan_table)[];
extern const gp_kernel_entry GP_KERNEL(random_table)[];
extern const gp_kernel_entry GP_KERNEL(matmul_table)[];
extern const gp_kernel_entry GP_KERNEL(packed_table)[];
extern const gp_kernel_entry GP_KERNEL(packed_weights_table)[];
extern const gp_kernel_entry GP_KERNEL(compressed_table)[];
extern const gp_kernel_entry GP_KERNEL(compressed_weights_table)[];
extern const gp_kernel_entry GP_KERNEL(conv_table)[];
extern const gp_kernel_entry GP_KERNEL(conv_bf16_table)[];
extern const gp_kernel_entry GP_KERNEL(conv_packed_table)[];
extern const gp_kernel_entry GP_KERNEL(conv_s8_table)[];
extern const gp_kernel_entry GP_KERNEL(conv_depthwise_table)[];
extern const gp_kernel_entry GP_KERNEL(winograd_table)[];
extern const gp_kernel_entry GP_KERNEL(conv_weights_table)[];
extern const gp_kernel_entry GP_KERNEL(fold_table)[];
extern const gp_kernel_entry GP_KERNEL(lookup_table)[];
extern const gp_kernel_entry GP_KERNEL(quantize_table)[];
extern const gp_kernel_entry GP_KERNEL(pool_table)[];
extern const gp_kernel_entry GP_KERNEL(resample_table)[];
extern const gp_kernel_entry GP_KERNEL(attention_table)[];

gp_tables GP_KERNEL(tables) = {
    GP_KERNEL(eltwise_table),
    GP_KERNEL(eltwise_wide_table),
    GP_KERNEL(move_table),
    GP_KERNEL(index_table),
    GP_KERNEL(top_k_table),
    GP_KERNEL(softmax_table),
    GP_KERNEL(norm_table),
    GP_KERNEL(channel_norm_table),
    GP_KERNEL(reduce_table),
    GP_KERNEL(scan_table),
    GP_KERNEL(random_table),
    GP_KERNEL(matmul_table),
    GP_KERNEL(packed_table),
    GP_KERNEL(packed_weights_table),
    GP_KERNEL(compressed_table),
    GP_KERNEL(compressed_weights_table),
    GP_KERNEL(conv_table),
    GP_KERNEL(conv_bf16_table),
    GP_KERNEL(conv_packed_table),
    GP_KERNEL(conv_s8_table),
    GP_KERNEL(conv_depthwise_table),
    GP_KERNEL(winograd_table),
    GP_KERNEL(conv_weights_table),
    GP_KERNEL(fold_table),
    GP_KERNEL(lookup_table),
    GP_KERNEL(quantize_table),
    GP_KERNEL(pool_table),
    GP_KERNEL(resample_table),
    GP_KERNEL(attention_table),
    NULL,
};
