/* Functions of one byte: dst[i] = table[src[i]]. A task is a block of bytes. args: src, table of 256 bytes, dst. */
#include "core/gp_vec.h"
#include "core/gp_kernel.h"

GP_RECORD(gp_lookup, {
    int64_t n, block;
});

GP_DEFINE_KERNEL(x8_lookup)
{
    const gp_lookup *p = params;
    const int64_t first = begin * p->block, last = gp_min(end * p->block, p->n);
    const uint8_t *restrict src = args[0];
    uint8_t *restrict dst = args[2];
    uint8_t table[256]; /* a copy that stores to dst cannot change */
    memcpy(table, args[1], sizeof table);
    for (int64_t i = first; i < last; i++)
        dst[i] = table[src[i]];
}

const gp_kernel_entry GP_KERNEL(lookup_table)[] = {
    GP_ENTRY(x8_lookup, gp_lookup),
    GP_TABLE_END,
};
