/* The one device, its context, and the names of errors. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "driver.h"
#include "entries.h"

enum { MAX_CONTEXT_DEPTH = 8 };

static const CUcontext primary_context = (CUcontext)(uintptr_t)0x1000; /* never followed */
static _Thread_local CUcontext contexts[MAX_CONTEXT_DEPTH];
static _Thread_local int depth; /* contexts[depth] is current */

bool is_context_current(void) {
    return contexts[depth] == primary_context;
}

int device_architecture(void) {
    return (int)setting("TEST_DRIVER_ARCHITECTURE", 90);
}

static CUresult check_device(CUdevice device) {
    return device == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

/* Those of an H100 where kernels could notice; what is not listed is 0: not there. */
static int device_attribute(CUdevice_attribute attribute) {
    switch (attribute) {
        case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: return device_architecture() / 10;
        case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: return device_architecture() % 10;
        case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: return 1024;
        case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X: return 1024;
        case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y: return 1024;
        case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z: return 64;
        case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X: return 2147483647;
        case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y: return 65535;
        case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z: return 65535;
        case CU_DEVICE_ATTRIBUTE_WARP_SIZE: return 32;
        case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: return 132;
        case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: return 49152;
        case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: return 232448;
        case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK: return 65536;
        case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED: return (int)setting("TEST_DRIVER_POOLS", 1);
#if CUDA_VERSION >= 13000
        case CU_DEVICE_ATTRIBUTE_HOST_MEMORY_POOLS_SUPPORTED: return 1;
#endif
        case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING: return 1;
        case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS: return 1;
        case CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED: return 1;
        default: return 0;
    }
}

/* ---- entry points */

CUresult test_cuInit(unsigned flags) {
    static pid_t first_process;
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    if (!first_process) first_process = getpid();
    if (getpid() != first_process) return CUDA_ERROR_NOT_INITIALIZED; /* a forked child, as NVIDIA's driver says it */
    return setting("TEST_DRIVER_DEVICES", 1) > 0 ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

CUresult test_cuDriverGetVersion(int *version) {
    *version = (int)setting("TEST_DRIVER_VERSION", CUDA_VERSION);
    return CUDA_SUCCESS;
}

CUresult test_cuDeviceGetCount(int *count) {
    *count = setting("TEST_DRIVER_DEVICES", 1) > 0;
    return CUDA_SUCCESS;
}

CUresult test_cuDeviceGet(CUdevice *device, int ordinal) {
    *device = ordinal;
    return check_device(ordinal);
}

CUresult test_cuDeviceGetName(char *name, int length, CUdevice device) {
    snprintf(name, (size_t)length, "test driver, sm_%d", device_architecture());
    return check_device(device);
}

CUresult test_cuDeviceGetUuid(CUuuid *uuid, CUdevice device) {
    memset(uuid, 0, sizeof *uuid);
    return check_device(device);
}

CUresult test_cuDeviceTotalMem(size_t *nbytes, CUdevice device) {
    *nbytes = (size_t)setting("TEST_DRIVER_MEMORY", 1L << 30);
    return check_device(device);
}

CUresult test_cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    *value = device_attribute(attribute);
    return check_device(device);
}

CUresult test_cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    *context = primary_context;
    return check_device(device);
}

CUresult test_cuDevicePrimaryCtxRelease(CUdevice device) {
    return check_device(device);
}

CUresult test_cuCtxGetCurrent(CUcontext *context) {
    *context = contexts[depth];
    return CUDA_SUCCESS;
}

CUresult test_cuCtxSetCurrent(CUcontext context) {
    contexts[depth] = context;
    return CUDA_SUCCESS;
}

CUresult test_cuCtxPushCurrent(CUcontext context) {
    if (depth + 1 == MAX_CONTEXT_DEPTH) return CUDA_ERROR_INVALID_VALUE;
    contexts[++depth] = context;
    return CUDA_SUCCESS;
}

CUresult test_cuCtxPopCurrent(CUcontext *context) {
    if (!contexts[depth]) return CUDA_ERROR_INVALID_CONTEXT;
    if (context) *context = contexts[depth];
    contexts[depth] = NULL;
    if (depth) depth--;
    return CUDA_SUCCESS;
}

CUresult test_cuCtxGetDevice(CUdevice *device) {
    *device = 0;
    return is_context_current() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult test_cuCtxGetId(CUcontext context, unsigned long long *id) {
    *id = 1;
    return context == primary_context || !context ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult test_cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return is_context_current() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult test_cuCtxSynchronize(void) {
    LOCKED;
    if (!is_context_current()) return CUDA_ERROR_INVALID_CONTEXT;
    if (is_any_capture_active()) return forbid_in_capture(NULL, "cuCtxSynchronize");
    wait_for_all_on_host();
    return CUDA_SUCCESS;
}

CUresult test_cuMemGetInfo(size_t *free_nbytes, size_t *total) {
    CUmemoryPool pool;
    cuuint64_t reserved;
    test_cuDeviceGetMemPool(&pool, 0);
    test_cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved);
    test_cuDeviceTotalMem(total, 0);
    *free_nbytes = *total - reserved;
    return CUDA_SUCCESS;
}

static const struct {
    CUresult error;
    const char *name, *text;
} errors[] = {
#define ERROR(name, text) {name, #name, text}
    ERROR(CUDA_SUCCESS, "no error"),
    ERROR(CUDA_ERROR_INVALID_VALUE, "invalid argument"),
    ERROR(CUDA_ERROR_OUT_OF_MEMORY, "out of memory"),
    ERROR(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected"),
    ERROR(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"),
    ERROR(CUDA_ERROR_INVALID_CONTEXT, "invalid device context"),
    ERROR(CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid"),
    ERROR(CUDA_ERROR_NO_BINARY_FOR_GPU, "no kernel image is available for execution on the device"),
    ERROR(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle"),
    ERROR(CUDA_ERROR_ILLEGAL_STATE, "the operation cannot be performed in the present state"),
    ERROR(CUDA_ERROR_NOT_FOUND, "named symbol not found"),
    ERROR(CUDA_ERROR_NOT_READY, "device not ready"),
    ERROR(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "too many resources requested for launch"),
    ERROR(CUDA_ERROR_NOT_SUPPORTED, "operation not supported"),
    ERROR(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "operation not permitted when stream is capturing"),
    ERROR(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "operation failed due to a previous error during capture"),
    ERROR(CUDA_ERROR_STREAM_CAPTURE_MERGE, "operation would result in a merge of separate capture sequences"),
    ERROR(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "capture was not ended in the same stream as it began"),
    ERROR(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "capturing stream has unjoined work"),
    ERROR(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "dependency created on uncaptured work in another stream"),
    ERROR(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "operation would make the legacy stream depend on a capturing one"),
    ERROR(CUDA_ERROR_CAPTURED_EVENT, "operation not permitted on an event last recorded in a capturing stream"),
    ERROR(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, "the graph update was not performed"),
};

CUresult test_cuGetErrorName(CUresult error, const char **name) {
    *name = NULL;
    for (size_t i = 0; i < LENGTH(errors); i++)
        if (errors[i].error == error) *name = errors[i].name;
    return *name ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult test_cuGetErrorString(CUresult error, const char **text) {
    *text = NULL;
    for (size_t i = 0; i < LENGTH(errors); i++)
        if (errors[i].error == error) *text = errors[i].text;
    return *text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
