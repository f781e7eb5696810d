/* The door: programs ask cuGetProcAddress for every function by name and version. */
#include "entries.h"

#include <stdio.h>
#include <string.h>

#include "driver.h"

typedef struct {
    const char *name;
    int version; /* the first with this signature; 0: of any version, and not there */
    void *function;
} Entry;

/* Assigning to the types of cudaTypedefs.h is what checks the signatures. */
#define ENTRY(name, version) static const PFN_##name##_v##version typed_##name##_##version = test_##name;
#define OTHER_ENTRY(name, version) \
    static const PFN_##name##_v##version typed_##name##_##version = test_##name##_v##version;
#include "entries.inc"
#undef ENTRY
#undef OTHER_ENTRY

/* Names of cudaTypedefs.h that nothing above stands for; the build lists them. */
#define MISSING(name)                                                           \
    static CUresult missing_##name(void) {                                      \
        fprintf(stderr, "test driver: " #name " is not there\n");               \
        report("missing", #name " was called");                                 \
        return CUDA_ERROR_NOT_SUPPORTED;                                        \
    }
#include "missing.inc"
#undef MISSING

/* A table cannot be initialised with converted function pointers, so that it is filled on first use. */
static Entry entries[2048];
static int nentries;

static void add_entry(const char *name, int version, const void *function) {
    Entry *entry = &entries[nentries++];
    entry->name = name;
    entry->version = version;
    memcpy(&entry->function, function, sizeof entry->function);
}

static void fill_entries(void) {
    if (nentries) return;
#define ENTRY(name, version) add_entry(#name, version, &typed_##name##_##version);
#define OTHER_ENTRY(name, version) add_entry(#name, version, &typed_##name##_##version);
#define MISSING(name) CUresult (*pointer_##name)(void) = missing_##name; add_entry(#name, 0, &pointer_##name);
#include "entries.inc"
#include "missing.inc"
#undef ENTRY
#undef OTHER_ENTRY
#undef MISSING
}

static const Entry *find_entry(const char *name, int version) {
    const Entry *best = NULL;
    for (int i = 0; i < nentries; i++) {
        const Entry *entry = &entries[i];
        if (strcmp(entry->name, name) == 0 && entry->version <= version && (!best || entry->version > best->version))
            best = entry;
    }
    return best;
}

EXPORTED CUresult cuGetProcAddress_v2(const char *name, void **function, int version, cuuint64_t flags,
                                      CUdriverProcAddressQueryResult *status) {
    LOCKED;
    (void)flags; /* one kind of default stream */
    fill_entries();
    const Entry *entry = find_entry(name, version);
    bool is_door = strcmp(name, "cuGetProcAddress") == 0;
    CUresult (*door)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *) = cuGetProcAddress_v2;
    if (is_door) memcpy(function, &door, sizeof door);
    else *function = entry ? entry->function : NULL;
    if (status) *status = *function ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
