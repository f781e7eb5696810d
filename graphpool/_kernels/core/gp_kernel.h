/* The one calling convention of every kernel, and the table in which kernels are found.
 *
 * A kernel computes the tasks [begin, end) of the ntasks into which its work is divided; tasks may run on different
 * threads at the same time, so each writes its own part of the outputs. A kernel allocates nothing, holds no state, and
 * does all of its work: everything was checked when its parameter block was made, but for indices that are data. It
 * returns 0, or 1 where one of those lay outside of what it counts; no memory is overrun then. `scratch` is private to
 * the calling thread, of the size that was asked for, aligned to 64 bytes, and holds garbage.
 *
 * A source is compiled once per instruction set; GP_KERNEL(f32_relu) names the function gp_f32_relu__avx2 in
 * one build and gp_f32_relu__generic in another. Everything else in a source is static.
 */
#ifndef GP_KERNEL_H
#define GP_KERNEL_H

#include <stddef.h>
#include <stdint.h>

typedef int64_t (*gp_kernel_fn)(const void *params, void *const *args, int64_t begin, int64_t end, void *scratch);

/* A struct that Python fills in. `text` is its own, without comments and with sizes for their macros, so that Python's
 * description cannot differ (graphpool._kernels.core.records). */
typedef struct {
    const char *name, *text;
    int64_t nbytes;
} gp_record;

#define GP_TEXT(...) #__VA_ARGS__
#define GP_RECORD(type, ...)                                                                                           \
    typedef struct __VA_ARGS__ type;                                                                                   \
    static const gp_record type##_record __attribute__((unused)) = {#type, GP_TEXT(__VA_ARGS__), sizeof(type)}

/* An enumeration whose numbers Python reads from its text. */
#define GP_ENUM(type, ...)                                                                                             \
    enum type { __VA_ARGS__ };                                                                                         \
    static const gp_record type##_record __attribute__((unused)) = {#type, GP_TEXT(__VA_ARGS__), sizeof(enum type)}

typedef struct {
    const char *name;         /* without prefix and instruction set: "f32_relu" */
    gp_kernel_fn fn;          /* NULL: the entry tells of something that kernels share with Python */
    const gp_record *params;  /* the fixed part of its parameter block */
} gp_kernel_entry;

#define GP_PASTE_(a, b) gp_##a##__##b
#define GP_PASTE(a, b) GP_PASTE_(a, b)
#define GP_KERNEL(name) GP_PASTE(name, GP_ISA)

/* The same of a name that the source folder/file.c defines, where another one uses it: GP_OF(folder_file, name). A source
 * in which an instruction set changes nothing is compiled for a weaker one alone, which a macro names. */
#define GP_OF(source, name) GP_PASTE(name, GP_ISA_##source)
#define GP_WORK_(a, b) gp_##a##__##b##_work
#define GP_WORK(a, b) GP_WORK_(a, b)

/* The head of a kernel that its table has as GP_ENTRY and that reads indices: it returns whether one lay outside. */
#define GP_DEFINE_INDEX_KERNEL(name)                                                                                   \
    static int64_t GP_KERNEL(name)(const void *params, void *const *args, int64_t begin, int64_t end,                  \
                                   void *scratch __attribute__((unused)))

/* The head of any other kernel, which returns nothing. */
#define GP_DEFINE_KERNEL(name)                                                                                         \
    static void GP_WORK(name, GP_ISA)(const void *params, void *const *args, int64_t begin, int64_t end,               \
                                      void *scratch);                                                                  \
    GP_DEFINE_INDEX_KERNEL(name)                                                                                       \
    {                                                                                                                  \
        GP_WORK(name, GP_ISA)(params, args, begin, end, scratch);                                                      \
        return 0;                                                                                                      \
    }                                                                                                                  \
    static void GP_WORK(name, GP_ISA)(const void *params, void *const *args, int64_t begin, int64_t end,               \
                                      void *scratch __attribute__((unused)))

#define GP_ENTRY(name, params) {#name, GP_KERNEL(name), &params##_record}
#define GP_INNER(type) {#type, NULL, &type##_record} /* a struct within others, or an enumeration */
#define GP_NUMBER(macro) {#macro, NULL, &(const gp_record){#macro, GP_TEXT(macro), 0}}
#define GP_TABLE_END {NULL, NULL, NULL}

GP_ENUM(gp_dtype,
    GP_F32, GP_F64, GP_F16, GP_BF16, GP_F8_E5M2, GP_F8_E4M3, GP_S8, GP_U8, GP_S32, GP_S64, GP_BOOLEAN, GP_S4, GP_U4,
    GP_S16, GP_U16, GP_U32, GP_U64
);

#define GP_MAX_NDIM 12
#define GP_MAX_ARGS 80

#endif
