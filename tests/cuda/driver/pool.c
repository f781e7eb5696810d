/* Memory pools and allocation, ordered by streams and not.
 *
 * A pool holds what is in use and what was given back. Bytes that were given back serve an allocation only where their
 * release is before it; where the limit leaves no other way, and the pool may, the allocation waits for releases. */
#include <stdlib.h>
#include <string.h>

#include "driver.h"
#include "entries.h"

/* Pools take memory in steps of so many bytes, and round their maximum up to one: seen on an H200, driver 580. */
static const size_t STEP = (size_t)32 << 20;

typedef struct Returning {
    int operation; /* that released the bytes */
    size_t nbytes; /* not taken again yet */
} Returning;

static Pool *device_pool;

static size_t device_nbytes(void) {
    return (size_t)setting("TEST_DRIVER_MEMORY", 1L << 30);
}

static size_t in_steps(size_t nbytes) {
    return (nbytes + STEP - 1) / STEP * STEP;
}

static Pool *new_pool(size_t max_nbytes, bool is_host) {
    Pool *pool = new_object(POOL, sizeof *pool);
    pool->max_nbytes = max_nbytes ? in_steps(max_nbytes) : device_nbytes();
    pool->is_host = is_host;
    for (size_t i = 0; i < LENGTH(pool->reuse); i++) pool->reuse[i] = 1;
    return pool;
}

/* The device's own pool, which nobody destroys. */
static Pool *default_pool(void) {
    if (!device_pool) {
        device_pool = new_pool(0, false);
        destroy_object(device_pool);
        device_pool->object.is_live = true;
    }
    return device_pool;
}

static size_t returning_nbytes(const Pool *pool) {
    size_t sum = 0;
    for (int i = 0; i < pool->nreturning; i++) sum += pool->returning[i].nbytes;
    return sum;
}

static size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}

static void drop_empty_returns(Pool *pool) {
    int kept = 0;
    for (int i = 0; i < pool->nreturning; i++)
        if (pool->returning[i].nbytes) pool->returning[kept++] = pool->returning[i];
    pool->nreturning = kept;
}

static Pool *pools[256];
static int npools;

static void settle(Pool *pool) {
    for (int i = 0; i < pool->nreturning; i++)
        if (is_forgotten(pool->returning[i].operation)) pool->returning[i].nbytes = 0;
    drop_empty_returns(pool);
    size_t needed = in_steps(pool->used + returning_nbytes(pool));
    if (pool->reserved > pool->release_threshold)
        pool->reserved = larger(needed, pool->release_threshold / STEP * STEP);
}

void settle_pools(void) {
    for (int i = 0; i < npools; i++) settle(pools[i]);
}

/* What a pool may hold beside the others of the device, which give up what they keep unused. */
static size_t most_nbytes(const Pool *pool) {
    size_t left = device_nbytes();
    for (int i = 0; i < npools && !pool->is_host; i++)
        if (pools[i] != pool && !pools[i]->is_host) left -= pools[i]->used + returning_nbytes(pools[i]);
    return left < pool->max_nbytes ? left : pool->max_nbytes;
}

/* Where an allocation of `nbytes` bytes finds room: what was given back before it, then what is new. Operations that it
 * has to wait for beside are appended to `preds`. */
static bool find_room(Pool *pool, size_t nbytes, int *preds, int *npreds, int room) {
    size_t held = pool->used + returning_nbytes(pool), most = most_nbytes(pool);
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < pool->nreturning && nbytes > 0; i++) {
            Returning *entry = &pool->returning[i];
            bool must_wait = !is_before_any(entry->operation, preds, *npreds);
            if (must_wait && (pass == 0 || !pool->reuse[2] || *npreds == room)) continue;
            if (must_wait) preds[(*npreds)++] = entry->operation;
            size_t taken = entry->nbytes < nbytes ? entry->nbytes : nbytes;
            entry->nbytes -= taken;
            nbytes -= taken;
        }
        if (held + nbytes <= most) break;
    }
    if (held + nbytes > most) return false;
    pool->reserved = larger(pool->reserved, in_steps(held + nbytes));
    return true;
}

static void count_use(Pool *pool, size_t nbytes) {
    drop_empty_returns(pool);
    pool->used += nbytes;
    pool->used_high = larger(pool->used_high, pool->used);
    pool->reserved_high = larger(pool->reserved_high, pool->reserved);
}

static CUresult allocate(CUdeviceptr *address, size_t nbytes, Pool *pool, Stream *stream) {
    int preds[64], npreds = stream ? predecessors(stream, preds, LENGTH(preds)) : 0;
    Returning before[pool->nreturning + 1];
    for (int i = 0; i < pool->nreturning; i++) before[i] = pool->returning[i];
    if (!find_room(pool, nbytes, preds, &npreds, LENGTH(preds))) {
        for (int i = 0; i < pool->nreturning; i++) pool->returning[i] = before[i];
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    Block *block = new_block(nbytes, pool->is_host, pool);
    if (!block) return CUDA_ERROR_OUT_OF_MEMORY;
    count_use(pool, nbytes);
    Work work = {.kind = ALLOCATE, .target = block->start, .nbytes = nbytes};
    int operation = enqueue(&work, stream ? stream->object.number : -1, preds, npreds);
    if (stream) stream->tail = operation;
    else wait_on_host(operation);
    *address = (CUdeviceptr)block->start;
    return CUDA_SUCCESS;
}

static Block *freeable_block(const void *address) {
    Block *block = block_at(address);
    if (!block || block->start != (char *)address) {
        report("double free", "%p is not the start of an allocation", address);
        return NULL;
    }
    if (!block->is_live) {
        report("double free", "allocation %d of %zu bytes was given back twice", block->number, block->nbytes);
        return NULL;
    }
    return block;
}

static void return_to_pool(Pool *pool, const Block *block) {
    if (!pool) return;
    pool->used -= block->nbytes;
    pool->returning = realloc(pool->returning, sizeof(Returning) * (size_t)(pool->nreturning + 1));
    pool->returning[pool->nreturning++] = (Returning){.operation = block->freed_by, .nbytes = block->nbytes};
}

/* Without a stream the host waits for everything first, as cuMemFree does. */
static CUresult release(const void *address, Stream *stream) {
    if (!address) return CUDA_SUCCESS;
    Block *block = freeable_block(address);
    if (!block) return CUDA_ERROR_INVALID_VALUE;
    if (!stream) wait_for_all_on_host();
    int preds[64], npreds = stream ? predecessors(stream, preds, LENGTH(preds)) : 0;
    Work work = {.kind = FREE, .target = block->start, .nbytes = block->nbytes};
    block->is_live = false;
    block->freed_by = enqueue(&work, stream ? stream->object.number : -1, preds, npreds);
    return_to_pool(block->pool, block);
    if (stream) stream->tail = block->freed_by;
    else wait_on_host(block->freed_by);
    return CUDA_SUCCESS;
}

/* ---- entry points: pools */

CUresult test_cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props) {
    LOCKED;
    if (npools == LENGTH(pools)) return CUDA_ERROR_OUT_OF_MEMORY;
    bool is_host = props->location.type != CU_MEM_LOCATION_TYPE_DEVICE;
    pools[npools] = new_pool(props->maxSize, is_host);
    *pool = (CUmemoryPool)pools[npools++];
    return CUDA_SUCCESS;
}

CUresult test_cuMemPoolDestroy(CUmemoryPool handle) {
    LOCKED;
    Pool *pool = live_object(handle, POOL);
    if (!pool || pool == device_pool) return CUDA_ERROR_INVALID_VALUE;
    destroy_object(pool);
    for (int i = 0; i < npools; i++)
        if (pools[i] == pool) pools[i] = pools[--npools];
    return CUDA_SUCCESS;
}

CUresult test_cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc *access, size_t count) {
    LOCKED;
    for (size_t i = 0; i < count; i++)
        if (access[i].location.id != 0) return CUDA_ERROR_INVALID_DEVICE; /* there is one device */
    return live_object(handle, POOL) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult test_cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device) {
    LOCKED;
    if (device != 0) return CUDA_ERROR_INVALID_DEVICE;
    if (!device_pool) pools[npools++] = default_pool();
    *pool = (CUmemoryPool)device_pool;
    return CUDA_SUCCESS;
}

CUresult test_cuMemPoolTrimTo(CUmemoryPool handle, size_t keep) {
    LOCKED;
    Pool *pool = live_object(handle, POOL);
    if (!pool) return CUDA_ERROR_INVALID_VALUE;
    size_t least = larger(in_steps(pool->used + returning_nbytes(pool)), in_steps(keep));
    if (pool->reserved > least) pool->reserved = least;
    return CUDA_SUCCESS;
}

static size_t *pool_counter(Pool *pool, CUmemPool_attribute attribute) {
    switch (attribute) {
        case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: return &pool->reserved;
        case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: return &pool->reserved_high;
        case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: return &pool->used;
        case CU_MEMPOOL_ATTR_USED_MEM_HIGH: return &pool->used_high;
        default: return NULL;
    }
}

static int *reuse_policy(Pool *pool, CUmemPool_attribute attribute) {
    switch (attribute) {
        case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES: return &pool->reuse[0];
        case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC: return &pool->reuse[1];
        case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES: return &pool->reuse[2];
        default: return NULL;
    }
}

CUresult test_cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void *value) {
    LOCKED;
    Pool *pool = live_object(handle, POOL);
    if (!pool) return CUDA_ERROR_INVALID_VALUE;
    const size_t *counter = pool_counter(pool, attribute);
    const int *policy = reuse_policy(pool, attribute);
    if (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) *(cuuint64_t *)value = pool->release_threshold;
    else if (counter) *(cuuint64_t *)value = *counter;
    else if (policy) *(int *)value = *policy;
    else return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

/* Of the counters only the high-water marks can be set, to zero: they begin again at what is current. */
static CUresult reset_high(Pool *pool, CUmemPool_attribute attribute, cuuint64_t value) {
    if (value != 0) return CUDA_ERROR_INVALID_VALUE;
    if (attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) pool->reserved_high = pool->reserved;
    else if (attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH) pool->used_high = pool->used;
    else return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

CUresult test_cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void *value) {
    LOCKED;
    Pool *pool = live_object(handle, POOL);
    if (!pool) return CUDA_ERROR_INVALID_VALUE;
    int *policy = reuse_policy(pool, attribute);
    if (policy) *policy = *(int *)value;
    else if (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) pool->release_threshold = *(cuuint64_t *)value;
    else return reset_high(pool, attribute, *(cuuint64_t *)value);
    return CUDA_SUCCESS;
}

/* ---- entry points: allocation */

static CUresult allocate_on_stream(CUdeviceptr *address, size_t nbytes, Pool *pool, CUstream handle, const char *call) {
    Stream *stream = stream_of(handle);
    if (!stream || !pool) return CUDA_ERROR_INVALID_HANDLE;
    if (stream->capture) return forbid_in_capture(stream, call); /* memory nodes are not modelled */
    return nbytes ? allocate(address, nbytes, pool, stream) : CUDA_ERROR_INVALID_VALUE;
}

CUresult test_cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t nbytes, CUmemoryPool pool, CUstream stream) {
    LOCKED;
    return allocate_on_stream(address, nbytes, live_object(pool, POOL), stream, "cuMemAllocFromPoolAsync");
}

CUresult test_cuMemAllocAsync(CUdeviceptr *address, size_t nbytes, CUstream stream) {
    LOCKED;
    CUmemoryPool pool;
    test_cuDeviceGetMemPool(&pool, 0);
    return allocate_on_stream(address, nbytes, device_pool, stream, "cuMemAllocAsync");
}

CUresult test_cuMemFreeAsync(CUdeviceptr address, CUstream handle) {
    LOCKED;
    Stream *stream = stream_of(handle);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    if (stream->capture) return forbid_in_capture(stream, "cuMemFreeAsync");
    return release((void *)address, stream);
}

CUresult test_cuMemAlloc(CUdeviceptr *address, size_t nbytes) {
    LOCKED;
    if (!is_context_current()) return CUDA_ERROR_INVALID_CONTEXT;
    if (nbytes == 0) return CUDA_ERROR_INVALID_VALUE;
    CUmemoryPool pool;
    test_cuDeviceGetMemPool(&pool, 0);
    CUresult refused = forbid_beside_capture("cuMemAlloc");
    return refused ? refused : allocate(address, nbytes, device_pool, NULL);
}

CUresult test_cuMemFree(CUdeviceptr address) {
    LOCKED;
    CUresult refused = forbid_beside_capture("cuMemFree");
    return refused ? refused : release((void *)address, NULL);
}

CUresult test_cuMemAllocHost(void **address, size_t nbytes) {
    LOCKED;
    if (!is_context_current()) return CUDA_ERROR_INVALID_CONTEXT;
    CUresult refused = forbid_beside_capture("cuMemAllocHost");
    if (refused) return refused;
    Block *block = nbytes ? new_block(nbytes, true, NULL) : NULL;
    if (!block) return nbytes ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
    block->is_open = true;
    *address = block->start;
    return CUDA_SUCCESS;
}

CUresult test_cuMemFreeHost(void *address) {
    LOCKED;
    CUresult refused = forbid_beside_capture("cuMemFreeHost");
    return refused ? refused : release(address, NULL);
}
