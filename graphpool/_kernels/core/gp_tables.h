/* What the dispatcher sees of the kernels: one list of tables per instruction set, and a probe of the processor. */
#ifndef GP_TABLES_H
#define GP_TABLES_H

#include "core/gp_kernel.h"

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
long syscall(long number, ...); /* unistd.h declares it for GNU C alone */
#endif
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

/* NULL-terminated list of tables, each ended by an entry without a name. */
typedef const gp_kernel_entry *const gp_tables[];

extern gp_tables gp_tables__generic;
extern gp_tables gp_tables__avx2;
extern gp_tables gp_tables__avx2_vnni;
extern gp_tables gp_tables__avx512;
extern gp_tables gp_tables__avx512_bf16;
extern gp_tables gp_tables__avx512_amx;
extern gp_tables gp_tables__neon;
extern gp_tables gp_tables__neon_dotprod;

typedef struct {
    const char *isa;
    const gp_kernel_entry *const *tables;
    int supported;
} gp_isa;

#if defined(__x86_64__)
#define GP_HAS_AVX2 (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
#define GP_HAS_AVX512                                                                                                  \
    (GP_HAS_AVX2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&                         \
     __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
#define GP_HAS_AVX512_BF16                                                                                             \
    (GP_HAS_AVX512 && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16"))

/* AVX-VNNI, which compilers do not all know by name: leaf 7, subleaf 1, bit 4 of EAX. */
static inline int gp_has_avx2_vnni(void)
{
    unsigned eax, ebx, ecx, edx;
    return GP_HAS_AVX2 && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) && (eax >> 4 & 1);
}

/* AMX: leaf 7, bits 22, 24 and 25 of EDX for tiles and their products of bf16 and bytes, and a system that saves tiles. Linux
 * wants to be asked before the first use, on behalf of all threads; a child keeps what its parent was given. */
static inline int gp_has_avx512_amx(void)
{
#if defined(__linux__)
    const unsigned features = 1u << 22 | 1u << 24 | 1u << 25;
    const long ask_permission = 0x1023, tile_data = 18; /* ARCH_REQ_XCOMP_PERM, since Linux 5.16 */
    unsigned eax, ebx, ecx, edx;
    return GP_HAS_AVX512_BF16 && __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && (edx & features) == features &&
           syscall(SYS_arch_prctl, ask_permission, tile_data) == 0;
#else
    return 0;
#endif
}
#elif defined(__aarch64__)
/* SDOT: HWCAP_ASIMDDP of Linux, whose older headers lack the name; all of Apple's processors for macOS have it. */
#if defined(__linux__)
#define GP_HAS_NEON_DOTPROD (getauxval(AT_HWCAP) >> 20 & 1)
#elif defined(__APPLE__)
#define GP_HAS_NEON_DOTPROD 1
#else
#define GP_HAS_NEON_DOTPROD 0
#endif
#endif

/* The instruction sets of this build, weakest first; returns how many. `list` has room for 8. */
static inline int gp_list_isas(gp_isa *list)
{
    int n = 0;
    list[n++] = (gp_isa){"generic", gp_tables__generic, 1};
#ifdef GP_HAVE_NEON
    list[n++] = (gp_isa){"neon", gp_tables__neon, 1};
#endif
#ifdef GP_HAVE_NEON_DOTPROD
    list[n++] = (gp_isa){"neon_dotprod", gp_tables__neon_dotprod, GP_HAS_NEON_DOTPROD};
#endif
#ifdef GP_HAVE_AVX2
    list[n++] = (gp_isa){"avx2", gp_tables__avx2, GP_HAS_AVX2};
#endif
#ifdef GP_HAVE_AVX2_VNNI
    list[n++] = (gp_isa){"avx2_vnni", gp_tables__avx2_vnni, gp_has_avx2_vnni()};
#endif
#ifdef GP_HAVE_AVX512
    list[n++] = (gp_isa){"avx512", gp_tables__avx512, GP_HAS_AVX512};
#endif
#ifdef GP_HAVE_AVX512_BF16
    list[n++] = (gp_isa){"avx512_bf16", gp_tables__avx512_bf16, GP_HAS_AVX512_BF16};
#endif
#ifdef GP_HAVE_AVX512_AMX
    list[n++] = (gp_isa){"avx512_amx", gp_tables__avx512_amx, gp_has_avx512_amx()};
#endif
    return n;
}

#endif
