/* Launches: what a device would refuse, and copies of the parameters. */
#include <stdlib.h>
#include <string.h>

#include "driver.h"
#include "entries.h"

enum { MAX_THREADS = 1024, MAX_BLOCK_Z = 64, MAX_GRID_YZ = 65535, MAX_REGISTERS = 65536 };

static CUresult check_shape(const Kernel *kernel, const uint32_t grid[3], const uint32_t block[3], unsigned shared) {
    uint64_t threads = (uint64_t)block[0] * block[1] * block[2];
    bool has_room = block[0] <= MAX_THREADS && block[1] <= MAX_THREADS && block[2] <= MAX_BLOCK_Z &&
                    threads <= MAX_THREADS && grid[0] <= INT32_MAX && grid[1] <= MAX_GRID_YZ && grid[2] <= MAX_GRID_YZ;
    bool is_empty = threads == 0 || grid[0] == 0 || grid[1] == 0 || grid[2] == 0;
    if (!has_room || is_empty || shared > (unsigned)kernel->max_dynamic_shared) {
        report("launch limit", "%s: grid %u x %u x %u, block %u x %u x %u, %u bytes of dynamic shared memory",
               kernel->name, grid[0], grid[1], grid[2], block[0], block[1], block[2], shared);
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (threads * (uint64_t)kernel->nregisters <= MAX_REGISTERS) return CUDA_SUCCESS;
    report("launch limit", "%s: %u threads of %d registers", kernel->name, (unsigned)threads, kernel->nregisters);
    return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
}

/* Where each parameter lies: in an array of pointers, or in one block whose size has to be the kernel's. */
static CUresult locate_params(const Kernel *kernel, void **params, void **extra, const char *found[]) {
    if (params) {
        for (int i = 0; i < kernel->nparams; i++) found[i] = params[i];
        return CUDA_SUCCESS;
    }
    const char *start = NULL;
    size_t nbytes = 0;
    for (; extra && *extra != CU_LAUNCH_PARAM_END; extra += 2) {
        if (extra[0] == CU_LAUNCH_PARAM_BUFFER_POINTER) start = extra[1];
        if (extra[0] == CU_LAUNCH_PARAM_BUFFER_SIZE) nbytes = *(size_t *)extra[1];
    }
    if (nbytes != (size_t)kernel->params_nbytes) {
        report("parameters", "%s takes %d bytes of parameters, and got %zu", kernel->name, kernel->params_nbytes,
               nbytes);
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (int i = 0; i < kernel->nparams; i++) found[i] = start + kernel->offsets[i];
    return CUDA_SUCCESS;
}

static CUresult check_addresses(const Twin *twin, const char *const params[]) {
    for (int i = 0; i < twin->nparams; i++) {
        const void *address;
        if (!twin->is_pointer[i]) continue;
        memcpy(&address, params[i], sizeof address);
        if (!address || block_at(address)) continue;
        report("parameters", "%s: parameter %d is no address that the device may touch", twin->name, i);
        return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

static const Twin *twin_of(const Kernel *kernel) {
    const Twin *twin = find_twin(kernel->name);
    if (twin && twin->nparams == kernel->nparams) return twin;
    report("twins", "%s has no form for the host", kernel->name);
    return NULL;
}

CUresult prepare_launch(Work *work, Kernel *kernel, const uint32_t grid[3], const uint32_t block[3],
                        unsigned shared_nbytes, void **params, void **extra) {
    const char *found[LENGTH(kernel->sizes)] = {0};
    const Twin *twin = twin_of(kernel);
    CUresult result = twin ? check_shape(kernel, grid, block, shared_nbytes) : CUDA_ERROR_NOT_SUPPORTED;
    if (result == CUDA_SUCCESS) result = locate_params(kernel, params, extra, found);
    if (result == CUDA_SUCCESS) result = check_addresses(twin, found);
    if (result != CUDA_SUCCESS) return result;
    Work borrowed = {.kind = KERNEL, .twin = twin};
    memcpy(borrowed.launch.grid, grid, sizeof borrowed.launch.grid);
    memcpy(borrowed.launch.block, block, sizeof borrowed.launch.block);
    for (int i = 0; i < twin->nparams; i++) borrowed.params[i] = (char *)found[i];
    *work = copy_work(&borrowed);
    return CUDA_SUCCESS;
}

static CUresult launch(Kernel *kernel, const uint32_t grid[3], const uint32_t block[3], unsigned shared,
                       CUstream handle, void **params, void **extra) {
    Stream *stream = stream_of(handle);
    Work work;
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    CUresult result = prepare_launch(&work, kernel, grid, block, shared, params, extra);
    if (result != CUDA_SUCCESS) return result;
    result = append_work(stream, &work);
    release_work(&work);
    return result;
}

/* ---- entry points */

CUresult test_cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                             unsigned block_y, unsigned block_z, unsigned shared, CUstream stream, void **params,
                             void **extra) {
    LOCKED;
    const uint32_t grid[] = {grid_x, grid_y, grid_z}, block[] = {block_x, block_y, block_z};
    return launch((Kernel *)function, grid, block, shared, stream, params, extra);
}

CUresult test_cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **params, void **extra) {
    LOCKED;
    if (config->numAttrs) return CUDA_ERROR_NOT_SUPPORTED; /* clusters, cooperative launches */
    const uint32_t grid[] = {config->gridDimX, config->gridDimY, config->gridDimZ};
    const uint32_t block[] = {config->blockDimX, config->blockDimY, config->blockDimZ};
    return launch((Kernel *)function, grid, block, config->sharedMemBytes, config->hStream, params, extra);
}

CUresult test_cuLaunchHostFunc(CUstream handle, CUhostFn function, void *data) {
    LOCKED;
    Stream *stream = stream_of(handle);
    return stream ? append_work(stream, &(Work){.kind = HOST_FUNCTION, .function = function, .data = data})
                  : CUDA_ERROR_INVALID_HANDLE;
}
