/* Our own matrix product: for small problems, where a BLAS call costs more than the arithmetic, and for streams, whose
 * work must not meet BLAS's threads.
 *
 * Tile sizes are those of the micro-kernel model of Low et al. (2016): accumulators, one row of B and one broadcast
 * fill the register file (32 registers with AVX-512 and NEON, 16 otherwise). */
#include "gemm/gp_gemm.h"
#include "core/gp_quad.h"

/* ISO mode turns fused multiply-add off; here it is half of the speed. */
#if defined(__clang__)
#pragma STDC FP_CONTRACT ON
#elif defined(__GNUC__)
#pragma GCC optimize("fp-contract=fast")
#endif

#if defined(__AVX512F__)
#define GP_VECTOR_NBYTES 64
#define GP_ROWS 8
#define GP_VECTORS 3
#define GP_WIDE_VECTORS 8
#elif defined(__AVX2__)
#define GP_VECTOR_NBYTES 32
#define GP_ROWS 6
#define GP_VECTORS 2
#define GP_WIDE_VECTORS 4
#elif defined(__ARM_NEON)
#define GP_VECTOR_NBYTES 16
#define GP_ROWS 8
#define GP_VECTORS 3
#define GP_WIDE_VECTORS 8
#else
#define GP_VECTOR_NBYTES 16
#define GP_ROWS 6
#define GP_VECTORS 2
#define GP_WIDE_VECTORS 4
#endif
#define GP_WIDE_ROWS 2
#define GP_PACK_ROWS 32
#define GP_PACK_FROM 32
#define GP_DENSE_NBYTES 32768 /* an L1 data cache: rows of B within it, few panels wide, are read where they lie */
#define GP_CHAIN 256 /* terms that are summed without a break, so that rounding does not grow with their number */
#define GP_DOT_ROWS 8
#define GP_DOT_COLUMNS 64
#define GP_DOT_LEAST 64 /* numbers of a column from which on dot products are faster than to turn B */

_Static_assert(GP_WIDE_VECTORS *GP_VECTOR_NBYTES <= GP_PANEL_NBYTES, "a panel fits the room that builders reserve");

#define GP_REAL float
#define GP_GEMM f32_gemm
#include "gemm/gp_gemm_tile.h"
#undef GP_REAL
#undef GP_GEMM
#define GP_REAL double
#define GP_GEMM f64_gemm
#include "gemm/gp_gemm_tile.h"
