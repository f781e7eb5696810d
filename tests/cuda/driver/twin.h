/* Between the driver and kernels compiled for the host: a twin is what runs in place of a kernel of a cubin. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    uint32_t grid[3], block[3];
    uint64_t seed; /* of the order in which blocks and threads run */
} TwinLaunch;

typedef struct {
    const char *name;
    int nparams;
    const int *sizes;      /* of each parameter, bytes */
    const int *is_pointer; /* 1 where a parameter is a device address */
    void (*run)(const TwinLaunch *launch, char *const *params);
} Twin;

/* What the driver offers: told of every access to memory before it happens, and of what a kernel does wrong. */
typedef struct {
    void (*access)(const void *address, size_t nbytes, int is_write);
    void (*report)(const char *kind, const char *text);
} TwinHost;

/* The one function that a library of twins exports, as `test_driver_twins`. */
typedef const Twin *(*TwinTable)(const TwinHost *host, int *count);

#ifdef __cplusplus
}
#endif
