/* Copies, fills, and what an address is. */
#include <stdlib.h>

#include "driver.h"
#include "entries.h"

static bool is_pageable(const void *address) {
    return block_at(address) == NULL;
}

/* Pageable memory is read during the call, and written before the call returns. */
static CUresult copy(void *target, const void *source, size_t nbytes, CUstream handle, bool is_asynchronous) {
    Stream *stream = stream_of(handle);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    if (nbytes == 0) return CUDA_SUCCESS;
    Work work = {.kind = COPY, .target = target, .source = source, .nbytes = nbytes};
    if (!stream->capture && is_pageable(source)) work.staged = (char *)source;
    CUresult result = append_work(stream, &work);
    bool must_wait = !stream->capture && (!is_asynchronous || is_pageable(target));
    if (result == CUDA_SUCCESS && must_wait) wait_on_host(stream->tail);
    return result;
}

static CUresult fill(CUdeviceptr target, unsigned value, unsigned width, size_t count, CUstream handle) {
    Stream *stream = stream_of(handle);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    Work work = {.kind = FILL, .target = (char *)target, .value = value, .width = width, .nbytes = count * width};
    return count ? append_work(stream, &work) : CUDA_SUCCESS;
}

static CUresult pointer_attribute(void *value, CUpointer_attribute attribute, CUdeviceptr address) {
    const Block *block = block_at((void *)address);
    switch (attribute) {
        case CU_POINTER_ATTRIBUTE_IS_MANAGED: *(int *)value = 0; return CUDA_SUCCESS;
        case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
            *(int *)value = !block ? 0 : block->is_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
            return CUDA_SUCCESS;
        default: break;
    }
    if (!block) return CUDA_ERROR_INVALID_VALUE;
    switch (attribute) {
        case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)value = 0; return CUDA_SUCCESS;
        case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: *(CUdeviceptr *)value = address; return CUDA_SUCCESS;
        case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
            *(CUdeviceptr *)value = (CUdeviceptr)block->start;
            return CUDA_SUCCESS;
        case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *(size_t *)value = block->nbytes; return CUDA_SUCCESS;
        default: return CUDA_ERROR_NOT_SUPPORTED;
    }
}

/* ---- entry points */

CUresult test_cuMemcpyAsync(CUdeviceptr target, CUdeviceptr source, size_t nbytes, CUstream stream) {
    LOCKED;
    return copy((void *)target, (const void *)source, nbytes, stream, true);
}

CUresult test_cuMemcpyHtoDAsync(CUdeviceptr target, const void *source, size_t nbytes, CUstream stream) {
    LOCKED;
    return copy((void *)target, source, nbytes, stream, true);
}

CUresult test_cuMemcpyDtoHAsync(void *target, CUdeviceptr source, size_t nbytes, CUstream stream) {
    LOCKED;
    return copy(target, (const void *)source, nbytes, stream, true);
}

CUresult test_cuMemcpyDtoDAsync(CUdeviceptr target, CUdeviceptr source, size_t nbytes, CUstream stream) {
    LOCKED;
    return copy((void *)target, (const void *)source, nbytes, stream, true);
}

CUresult test_cuMemcpyHtoD(CUdeviceptr target, const void *source, size_t nbytes) {
    LOCKED;
    return copy((void *)target, source, nbytes, NULL, false);
}

CUresult test_cuMemcpyDtoH(void *target, CUdeviceptr source, size_t nbytes) {
    LOCKED;
    return copy(target, (const void *)source, nbytes, NULL, false);
}

CUresult test_cuMemsetD8Async(CUdeviceptr target, unsigned char value, size_t count, CUstream stream) {
    LOCKED;
    return fill(target, value, 1, count, stream);
}

CUresult test_cuMemsetD16Async(CUdeviceptr target, unsigned short value, size_t count, CUstream stream) {
    LOCKED;
    return fill(target, value, 2, count, stream);
}

CUresult test_cuMemsetD32Async(CUdeviceptr target, unsigned value, size_t count, CUstream stream) {
    LOCKED;
    return fill(target, value, 4, count, stream);
}

CUresult test_cuPointerGetAttribute(void *value, CUpointer_attribute attribute, CUdeviceptr address) {
    LOCKED;
    return pointer_attribute(value, attribute, address);
}

/* Attributes that an address does not have are left out, as the driver does. */
CUresult test_cuPointerGetAttributes(unsigned count, CUpointer_attribute *attributes, void **values,
                                     CUdeviceptr address) {
    LOCKED;
    for (unsigned i = 0; i < count; i++) pointer_attribute(values[i], attributes[i], address);
    return CUDA_SUCCESS;
}
