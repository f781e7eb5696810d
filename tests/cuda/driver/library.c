/* Cubins: their architecture, kernels and parameters, and the twins that run in their place.
 *
 * A cubin is an ELF file. A kernel's code lies in section `.text.<name>`, `.nv.info.<name>` holds its attributes, and
 * `.nv.info` those of all: format, attribute, and a value of 16 bits, which for format 4 is the bytes that follow. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <stdlib.h>
#include <string.h>

#include "control.h"
#include "driver.h"
#include "entries.h"

enum { CUDA_MACHINE = 190, SIZED_FORMAT = 4, PARAMETER_ATTRIBUTE = 0x17, REGISTERS_ATTRIBUTE = 0x2f };
enum { DEFAULT_DYNAMIC_SHARED = 49152, MAX_DYNAMIC_SHARED = 232448 };

struct Library {
    Object object;
    char *image;
    Kernel *kernels;
    int count;
};

/* ---- twins */

static const Twin *twins[4096];
static int ntwins;

/* What the running kernel does wrong by itself. */
static void report_kernel(const char *kind, const char *text) {
    report(kind, "%s: %s", describe_work(work_of(running_operation())), text);
}

int test_driver_load_twins(const char *path) {
    LOCKED;
    static const TwinHost host = {.access = access_memory, .report = report_kernel};
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    TwinTable table = library ? (TwinTable)dlsym(library, "test_driver_twins") : NULL;
    if (!table) {
        report("twins", "%s", dlerror());
        return -1;
    }
    int count;
    const Twin *found = table(&host, &count);
    for (int i = 0; i < count && ntwins < (int)LENGTH(twins); i++) twins[ntwins++] = &found[i];
    return count;
}

/* The one loaded last, so that a test can replace a kernel by a mistaken one. */
const Twin *find_twin(const char *name) {
    for (int i = ntwins - 1; i >= 0; i--)
        if (strcmp(twins[i]->name, name) == 0) return twins[i];
    return NULL;
}

/* ---- reading cubins */

/* A copy: the table of sections need not be aligned. */
static Elf64_Shdr section_at(const char *image, int number) {
    Elf64_Shdr section;
    memcpy(&section, image + ((const Elf64_Ehdr *)image)->e_shoff + sizeof section * (size_t)number, sizeof section);
    return section;
}

static const char *section_name(const char *image, int number) {
    int names = ((const Elf64_Ehdr *)image)->e_shstrndx;
    return image + section_at(image, names).sh_offset + section_at(image, number).sh_name;
}

static const char *suffix_after(const char *name, const char *prefix) {
    size_t length = strlen(prefix);
    return strncmp(name, prefix, length) == 0 ? name + length : NULL;
}

static size_t image_nbytes(const Elf64_Ehdr *header) {
    size_t sections = header->e_shoff + (size_t)header->e_shnum * header->e_shentsize;
    size_t segments = header->e_phoff + (size_t)header->e_phnum * header->e_phentsize;
    return sections > segments ? sections : segments;
}

/* 90 for sm_90. From ABI version 8 on it stands in the second byte of the flags. */
static int architecture_of(const Elf64_Ehdr *header) {
    return header->e_ident[EI_ABIVERSION] >= 8 ? header->e_flags >> 8 & 0xff : header->e_flags & 0xff;
}

/* A value of a parameter's attribute: index (32 bits), ordinal, offset (16 bits each), and flags with the size on top.
 */
static void read_parameter(Kernel *kernel, const unsigned char *value) {
    uint16_t ordinal, offset;
    uint32_t flags;
    memcpy(&ordinal, value + 4, sizeof ordinal);
    memcpy(&offset, value + 6, sizeof offset);
    memcpy(&flags, value + 8, sizeof flags);
    if (ordinal >= LENGTH(kernel->sizes)) return;
    int size = (int)(flags >> 18);
    kernel->sizes[ordinal] = size;
    kernel->offsets[ordinal] = offset;
    if (ordinal + 1 > kernel->nparams) kernel->nparams = ordinal + 1;
    if (offset + size > kernel->params_nbytes) kernel->params_nbytes = offset + size;
}

/* A value of the attribute of registers: the number of the kernel's symbol, and how many a thread takes. */
static void read_registers(Library *library, const unsigned char *value) {
    uint32_t words[2];
    memcpy(words, value, sizeof words);
    for (int i = 0; i < library->count; i++)
        if (library->kernels[i].symbol == words[0]) library->kernels[i].nregisters = (int)words[1];
}

/* Of one kernel, or of all where it is NULL. */
static void read_attributes(Library *library, Kernel *kernel, const unsigned char *at, const unsigned char *end) {
    while (at + 4 <= end) {
        size_t nbytes = at[0] == SIZED_FORMAT ? (size_t)(at[2] | at[3] << 8) : 0;
        if (kernel && at[1] == PARAMETER_ATTRIBUTE && nbytes >= 12) read_parameter(kernel, at + 4);
        if (!kernel && at[1] == REGISTERS_ATTRIBUTE && nbytes >= 8) read_registers(library, at + 4);
        at += 4 + nbytes;
    }
}

static void check_twin(const Kernel *kernel) {
    const Twin *twin = find_twin(kernel->name);
    if (!twin) return;
    bool fits = twin->nparams == kernel->nparams;
    for (int i = 0; fits && i < kernel->nparams; i++) fits = twin->sizes[i] == kernel->sizes[i];
    if (!fits) report("parameters", "%s takes other parameters in the cubin than on the host", kernel->name);
}

static Kernel *kernel_named(Library *library, const char *name) {
    for (int i = 0; i < library->count; i++)
        if (strcmp(library->kernels[i].name, name) == 0) return &library->kernels[i];
    return NULL;
}

static void read_kernels(Library *library) {
    int count = ((const Elf64_Ehdr *)library->image)->e_shnum;
    library->kernels = calloc((size_t)count, sizeof(Kernel));
    for (int i = 0; i < count; i++) {
        const char *name = suffix_after(section_name(library->image, i), ".text.");
        if (name)
            library->kernels[library->count++] = (Kernel){.library = library,
                                                          .name = strdup(name),
                                                          .symbol = section_at(library->image, i).sh_info & 0xffffff,
                                                          .max_dynamic_shared = DEFAULT_DYNAMIC_SHARED};
    }
    for (int i = 0; i < count; i++) {
        const char *name = suffix_after(section_name(library->image, i), ".nv.info");
        Kernel *kernel = name && *name ? kernel_named(library, name + 1) : NULL;
        Elf64_Shdr section = section_at(library->image, i);
        const unsigned char *start = (const unsigned char *)library->image + section.sh_offset;
        if (name && (kernel || !*name)) read_attributes(library, kernel, start, start + section.sh_size);
    }
    for (int i = 0; i < library->count; i++) check_twin(&library->kernels[i]);
}

/* A cubin runs on devices of its major version and at least its minor one. */
static CUresult check_image(const Elf64_Ehdr *header) {
    if (memcmp(header->e_ident, ELFMAG, SELFMAG) != 0 || header->e_machine != CUDA_MACHINE) {
        report("architecture", "what was loaded is no cubin");
        return CUDA_ERROR_INVALID_IMAGE;
    }
    int own = architecture_of(header), device = device_architecture();
    if (own / 10 == device / 10 && own % 10 <= device % 10) return CUDA_SUCCESS;
    report("architecture", "a cubin for sm_%d does not run on a device of sm_%d", own, device);
    return CUDA_ERROR_NO_BINARY_FOR_GPU;
}

/* ---- entry points */

CUresult test_cuLibraryLoadData(CUlibrary *handle, const void *code, CUjit_option *jit_options, void **jit_values,
                                unsigned njit, CUlibraryOption *options, void **values, unsigned noptions) {
    LOCKED;
    (void)jit_options, (void)jit_values, (void)njit, (void)options, (void)values, (void)noptions;
    CUresult result = forbid_beside_capture("cuLibraryLoadData");
    if (result == CUDA_SUCCESS) result = check_image(code);
    if (result != CUDA_SUCCESS) return result;
    Library *library = new_object(LIBRARY, sizeof *library);
    size_t nbytes = image_nbytes(code);
    library->image = memcpy(malloc(nbytes), code, nbytes);
    read_kernels(library);
    *handle = (CUlibrary)library;
    return CUDA_SUCCESS;
}

CUresult test_cuLibraryUnload(CUlibrary handle) {
    LOCKED;
    Library *library = live_object(handle, LIBRARY);
    if (!library) return CUDA_ERROR_INVALID_HANDLE;
    free(library->image);
    destroy_object(library);
    return CUDA_SUCCESS;
}

CUresult test_cuLibraryGetKernel(CUkernel *kernel, CUlibrary handle, const char *name) {
    LOCKED;
    Library *library = live_object(handle, LIBRARY);
    *kernel = library ? (CUkernel)kernel_named(library, name) : NULL;
    return *kernel ? CUDA_SUCCESS : library ? CUDA_ERROR_NOT_FOUND : CUDA_ERROR_INVALID_HANDLE;
}

CUresult test_cuKernelGetFunction(CUfunction *function, CUkernel kernel) {
    *function = (CUfunction)kernel; /* one context: a kernel is its function */
    return CUDA_SUCCESS;
}

CUresult test_cuKernelGetLibrary(CUlibrary *library, CUkernel kernel) {
    *library = (CUlibrary)((Kernel *)kernel)->library;
    return CUDA_SUCCESS;
}

CUresult test_cuKernelGetParamInfo(CUkernel handle, size_t index, size_t *offset, size_t *nbytes) {
    const Kernel *kernel = (Kernel *)handle;
    if (index >= (size_t)kernel->nparams) return CUDA_ERROR_INVALID_VALUE;
    *offset = (size_t)kernel->offsets[index];
    if (nbytes) *nbytes = (size_t)kernel->sizes[index];
    return CUDA_SUCCESS;
}

CUresult test_cuKernelGetAttribute(int *value, CUfunction_attribute attribute, CUkernel handle, CUdevice device) {
    LOCKED;
    const Kernel *kernel = (Kernel *)handle;
    switch (attribute) {
        case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = 1024; break;
        case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = kernel->nregisters; break;
        case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: *value = kernel->max_dynamic_shared; break;
        default: return CUDA_ERROR_NOT_SUPPORTED;
    }
    return device == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult test_cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel handle, CUdevice device) {
    LOCKED;
    if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) return CUDA_ERROR_NOT_SUPPORTED;
    if (value < 0 || value > MAX_DYNAMIC_SHARED || device != 0) return CUDA_ERROR_INVALID_VALUE;
    ((Kernel *)handle)->max_dynamic_shared = value;
    return CUDA_SUCCESS;
}
