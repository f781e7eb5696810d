"""Each mistake that the driver is for: planted, and it is found; put right, and nothing is."""

import ctypes
import re

import numpy as np
import pytest
from cuda.bindings import driver as cuda
from cuda.core import LaunchConfig, ObjectCode, launch

from tests.helpers.cuda_device import SOURCE, check, compile_cubin, synchronize

MISTAKES = {}
"""kind of report -> {name: function of a kit and of whether to make the mistake}"""


def finds(kind):
    """Decorate a scenario ``function(kit, is_wrong)``."""

    def register(function):
        MISTAKES.setdefault(kind, {})[function.__name__] = function
        return function

    return register


# ---- order


@finds("use without order")
def read_of_what_another_stream_writes(kit, is_wrong):
    x, y, z = kit.ready(3)
    kit.scale(kit.a, y, x)
    if not is_wrong:
        kit.b.wait(kit.a.record())
    kit.scale(kit.b, z, y)


@finds("use without order")
def write_of_what_another_stream_reads(kit, is_wrong):
    x, y, z = kit.ready(3)
    kit.scale(kit.a, y, x)
    if not is_wrong:
        kit.b.wait(kit.a.record())
    kit.scale(kit.b, x, z)


@finds("use without order")
def two_writes(kit, is_wrong):
    x, y, z = kit.ready(3)
    kit.scale(kit.a, z, x)
    kit.scale(kit.b, y if not is_wrong else z, x)


@finds("use without order")
def event_recorded_too_early(kit, is_wrong):
    x, y, z = kit.ready(3)
    event = kit.a.record()
    kit.scale(kit.a, y, x)
    if not is_wrong:
        event = kit.a.record()
    kit.b.wait(event)
    kit.scale(kit.b, z, y)


@finds("use without order")
def order_through_a_third_stream(kit, is_wrong):
    x, y, z = kit.ready(3)
    third = kit.device.create_stream()
    kit.scale(kit.a, y, x)
    third.wait(kit.a.record())
    if not is_wrong:
        kit.b.wait(third.record())
    kit.scale(kit.b, z, y)
    third.close()


@finds("use without order")
def host_waits_for_the_other_stream(kit, is_wrong):
    x, y, z = kit.ready(3)
    kit.scale(kit.a, y, x)
    (kit.b if is_wrong else kit.a).sync()
    kit.scale(kit.b, z, y)


@finds("use without order")
def copy_to_page_locked_memory(kit, is_wrong):
    (x,), pinned = kit.ready(1), kit.keep(kit.pinned.allocate(4 * kit.n))
    x.copy_to(pinned, stream=kit.a)
    if not is_wrong:
        kit.b.wait(kit.a.record())
    x.copy_from(pinned, stream=kit.b)


@finds("use without order")
def ranges_that_overlap_by_a_byte(kit, is_wrong):
    (x,) = kit.ready(1)
    first = int(x.handle)
    check(cuda.cuMemsetD8Async(first, 1, 100, kit.a.handle))
    check(cuda.cuMemsetD8Async(first + (99 if is_wrong else 100), 2, 100, kit.b.handle))


def _fork(kit, is_joined, x, y, z):
    """A graph of two branches: one writes y, the other reads it; ordered or not."""
    builder = kit.device.create_graph_builder().begin_building()
    left, right = builder.split(2)
    kit.scale(left, y, x)
    if is_joined:
        right.stream.wait(left.stream.record())
    kit.scale(right, z, y)
    return type(builder).join(left, right).end_building()


@finds("use without order")
def branches_of_a_graph(kit, is_wrong):
    x, y, z = kit.ready(3)
    graph = _fork(kit, not is_wrong, x, y, z).complete()
    graph.launch(kit.a)
    synchronize()
    graph.close()


@finds("use without order")
def graph_beside_a_stream(kit, is_wrong):
    x, y, z = kit.ready(3)
    graph = _fork(kit, True, x, y, z).complete()
    graph.launch(kit.a)
    if not is_wrong:
        kit.b.wait(kit.a.record())
    kit.scale(kit.b, x, y)
    synchronize()
    graph.close()


# ---- allocation


@finds("free while in use")
def freed_on_the_stream_of_its_allocation(kit, is_wrong):
    x, y = kit.ready(2)
    kit.scale(kit.b, y, x)
    if not is_wrong:
        kit.a.wait(kit.b.record())
    x.close(kit.a)


@finds("free while in use")
def dropped_buffer(kit, is_wrong):
    (y,), x = kit.ready(1), kit.pool.allocate(4 * kit.n, stream=kit.a)
    x.fill(0, stream=kit.a)
    synchronize()
    kit.scale(kit.b, y, x)
    if not is_wrong:
        x.set_deallocation_stream(kit.b)
    del x


@finds("use before allocation")
def used_on_another_stream_at_once(kit, is_wrong):
    x = kit.empty(kit.a)
    if not is_wrong:
        kit.b.wait(kit.a.record())
    x.fill(0, stream=kit.b)


@finds("use after free")
def used_after_it_was_freed(kit, is_wrong):
    x, y = kit.ready(2)
    address = int(x.handle)
    if is_wrong:
        x.close(kit.a)
    check(cuda.cuMemcpyDtoDAsync(int(y.handle), address, 16, kit.a.handle))


@finds("use after free")
def graph_after_its_buffer(kit, is_wrong):
    x, y, z = kit.ready(3)
    graph = _fork(kit, True, x, y, z).complete()
    if is_wrong:
        x.close(kit.a)
    graph.launch(kit.a)
    synchronize()
    graph.close()


@finds("uninitialised read")
def read_before_any_write(kit, is_wrong):
    x, y = kit.empty(), kit.empty()
    if not is_wrong:
        x.fill(0, stream=kit.a)
    kit.scale(kit.a, y, x)


@finds("uninitialised read")
def last_byte_was_never_written(kit, is_wrong):
    x = kit.empty()
    check(cuda.cuMemsetD8Async(int(x.handle), 0, x.size - is_wrong, kit.a.handle))
    check(cuda.cuMemcpyDtoHAsync(np.empty(x.size, np.uint8), int(x.handle), x.size, kit.a.handle))


@finds("out of bounds")
def kernel_one_byte_too_far(kit, is_wrong):
    x, y = kit.empty(nbytes=101), kit.empty(nbytes=101)
    x.fill(0, stream=kit.a)
    config = LaunchConfig(grid=2, block=64)
    launch(kit.a, config, kit.code.get_kernel("copy_bytes"), y, x, np.int32(101 + is_wrong))


@finds("out of bounds")
def copy_one_byte_too_far(kit, is_wrong):
    (x,) = kit.ready(1)
    check(cuda.cuMemcpyHtoDAsync(int(x.handle), bytes(x.size + 1), x.size + is_wrong, kit.a.handle))


@finds("double free")
def freed_twice(kit, is_wrong):
    address = int(check(cuda.cuMemAllocAsync(100, kit.a.handle)))
    check(cuda.cuMemFreeAsync(address, kit.a.handle))
    if is_wrong:
        assert cuda.cuMemFreeAsync(address, kit.a.handle)[0] == cuda.CUresult.CUDA_ERROR_INVALID_VALUE


@finds("double free")
def freed_in_the_middle(kit, is_wrong):
    address = int(check(cuda.cuMemAllocAsync(100, kit.a.handle)))
    if is_wrong:
        assert cuda.cuMemFreeAsync(address + 8, kit.a.handle)[0] == cuda.CUresult.CUDA_ERROR_INVALID_VALUE
    check(cuda.cuMemFreeAsync(address, kit.a.handle))


# ---- capture


def _begin(kit, mode=cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED):
    check(cuda.cuStreamBeginCapture(kit.a.handle, mode))


def _end(kit, expected=None):
    """End a capture on stream a, with an error of a name or well."""
    error, graph = cuda.cuStreamEndCapture(kit.a.handle)
    assert error.name == (f"CUDA_ERROR_{expected}" if expected else "CUDA_SUCCESS")
    if not expected:
        check(cuda.cuGraphDestroy(graph))


@finds("capture")
def host_waits_in_a_capture(kit, is_wrong):
    x, y = kit.ready(2)
    _begin(kit)
    kit.scale(kit.a, y, x)
    if is_wrong:
        error = cuda.cuStreamSynchronize(kit.a.handle)[0]
        assert error == cuda.CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
    _end(kit, "STREAM_CAPTURE_INVALIDATED" if is_wrong else None)


@finds("capture")
def branch_that_is_not_joined(kit, is_wrong):
    x, y, z = kit.ready(3)
    _begin(kit)
    kit.scale(kit.a, y, x)
    kit.b.wait(kit.a.record())
    kit.scale(kit.b, z, x)
    if not is_wrong:
        kit.a.wait(kit.b.record())
    _end(kit, "STREAM_CAPTURE_UNJOINED" if is_wrong else None)


@finds("capture")
def wait_for_an_event_from_outside(kit, is_wrong):
    x, y = kit.ready(2)
    event = kit.b.record()
    _begin(kit)
    if is_wrong:
        error = cuda.cuStreamWaitEvent(kit.a.handle, event.handle, 0)[0]
        assert error == cuda.CUresult.CUDA_ERROR_STREAM_CAPTURE_ISOLATION
    else:
        kit.scale(kit.a, y, x)
    _end(kit, "STREAM_CAPTURE_INVALIDATED" if is_wrong else None)


@finds("capture")
def event_of_a_capture_that_is_over(kit, is_wrong):
    _begin(kit)
    inside = kit.a.record()
    _end(kit)
    event = inside if is_wrong else kit.a.record()
    error = cuda.cuStreamWaitEvent(kit.b.handle, event.handle, 0)[0]
    assert (error != cuda.CUresult.CUDA_SUCCESS) == is_wrong


@finds("capture")
def query_of_a_captured_event(kit, is_wrong):
    _begin(kit)
    event = kit.a.record()
    if is_wrong:
        assert cuda.cuEventQuery(event.handle)[0] == cuda.CUresult.CUDA_ERROR_CAPTURED_EVENT
    _end(kit, "STREAM_CAPTURE_INVALIDATED" if is_wrong else None)


@finds("capture")
def end_on_another_stream(kit, is_wrong):
    x, y = kit.ready(2)
    _begin(kit)
    kit.b.wait(kit.a.record())
    kit.scale(kit.b, y, x)
    kit.a.wait(kit.b.record())
    if is_wrong:
        assert cuda.cuStreamEndCapture(kit.b.handle)[0] == cuda.CUresult.CUDA_ERROR_STREAM_CAPTURE_UNMATCHED
    _end(kit, "STREAM_CAPTURE_INVALIDATED" if is_wrong else None)


@finds("capture")
def two_captures_merged(kit, is_wrong):
    relaxed = cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    _begin(kit)
    check(cuda.cuStreamBeginCapture(kit.b.handle, relaxed))
    event = kit.b.record()
    if is_wrong:
        error = cuda.cuStreamWaitEvent(kit.a.handle, event.handle, 0)[0]
        assert error == cuda.CUresult.CUDA_ERROR_STREAM_CAPTURE_MERGE
    check(cuda.cuGraphDestroy(check(cuda.cuStreamEndCapture(kit.b.handle))))
    _end(kit, "STREAM_CAPTURE_INVALIDATED" if is_wrong else None)


@finds("capture")
def default_stream_beside_a_capture(kit, is_wrong):
    (x,) = kit.ready(1)
    _begin(kit)
    if is_wrong:
        error = cuda.cuMemsetD8Async(int(x.handle), 0, 4, 0)[0]
        assert error == cuda.CUresult.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
    else:
        check(cuda.cuMemsetD8Async(int(x.handle), 0, 4, kit.b.handle))
    _end(kit, "STREAM_CAPTURE_INVALIDATED" if is_wrong else None)


@finds("capture")
def allocation_beside_a_strict_capture(kit, is_wrong):
    modes = cuda.CUstreamCaptureMode
    _begin(kit, modes.CU_STREAM_CAPTURE_MODE_GLOBAL if is_wrong else modes.CU_STREAM_CAPTURE_MODE_RELAXED)
    error, address = cuda.cuMemAllocHost(64)
    assert (error != cuda.CUresult.CUDA_SUCCESS) == is_wrong
    _end(kit, "STREAM_CAPTURE_INVALIDATED" if is_wrong else None)
    if not is_wrong:
        check(cuda.cuMemFreeHost(address))


@finds("capture")
def allocation_in_a_capture(kit, is_wrong):
    _begin(kit)
    stream = kit.a if is_wrong else kit.b
    error, address = cuda.cuMemAllocAsync(64, stream.handle)
    assert (error != cuda.CUresult.CUDA_SUCCESS) == is_wrong
    _end(kit, "STREAM_CAPTURE_INVALIDATED" if is_wrong else None)
    if not is_wrong:
        check(cuda.cuMemFreeAsync(address, kit.b.handle))


# ---- launches


def _launch(kit, name, *arguments, grid=1, block=1, shared=0):
    """The error of a launch, as the bindings return it."""
    function = check(cuda.cuKernelGetFunction(kit.code.get_kernel(name).handle))
    grid, block = ((*size, 1, 1)[:3] if isinstance(size, tuple) else (size, 1, 1) for size in (grid, block))
    types = tuple(ctypes.c_void_p if hasattr(value, "handle") else ctypes.c_int for value in arguments)
    values = tuple(int(value.handle) if hasattr(value, "handle") else value for value in arguments)
    return cuda.cuLaunchKernel(function, *grid, *block, shared, kit.a.handle, (values, types), 0)[0]


@finds("launch limit")
def threads_of_a_block(kit, is_wrong):
    x, y = kit.ready(2)
    error = _launch(kit, "copy_bytes", y, x, 4, block=1024 + is_wrong)
    assert (error == cuda.CUresult.CUDA_ERROR_INVALID_VALUE) == is_wrong


@finds("launch limit")
def depth_of_a_block(kit, is_wrong):
    x, y = kit.ready(2)
    error = _launch(kit, "copy_bytes", y, x, 1, block=(1, 1, 64 + is_wrong))
    assert (error == cuda.CUresult.CUDA_ERROR_INVALID_VALUE) == is_wrong


@finds("launch limit")
def height_of_a_grid(kit, is_wrong):
    x, y = kit.ready(2)
    error = _launch(kit, "copy_bytes", y, x, 0, grid=(1, 65535 + is_wrong))
    assert (error == cuda.CUresult.CUDA_ERROR_INVALID_VALUE) == is_wrong


@finds("launch limit")
def empty_grid(kit, is_wrong):
    x, y = kit.ready(2)
    error = _launch(kit, "copy_bytes", y, x, 1, grid=1 - is_wrong)
    assert (error == cuda.CUresult.CUDA_ERROR_INVALID_VALUE) == is_wrong


@finds("launch limit")
def dynamic_shared_memory(kit, is_wrong):
    x, y = kit.ready(2)
    error = _launch(kit, "copy_bytes", y, x, 1, shared=49152 + is_wrong)
    assert (error == cuda.CUresult.CUDA_ERROR_INVALID_VALUE) == is_wrong


@finds("launch limit")
def registers_of_a_block(kit, is_wrong):
    x, y = kit.ready(2)
    error = _launch(kit, "many_registers", y, x, block=1024 if is_wrong else 1)
    assert (error == cuda.CUresult.CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES) == is_wrong


@finds("architecture")
def cubin_of_another_architecture(kit, is_wrong):
    code = compile_cubin(SOURCE.read_text(), "sm_80" if is_wrong else "sm_90")
    if is_wrong:
        with pytest.raises(Exception, match="NO_BINARY_FOR_GPU"):
            code.get_kernel("scale")
    else:
        code.get_kernel("scale")


@finds("architecture")
def no_cubin_at_all(kit, is_wrong):
    code = kit.code.code if not is_wrong else b"\x7fELF" + bytes(200)
    if is_wrong:
        with pytest.raises(Exception, match="INVALID_IMAGE"):
            ObjectCode.from_cubin(code).get_kernel("scale")
    else:
        ObjectCode.from_cubin(code).get_kernel("scale")


@finds("parameters")
def block_of_parameters_of_another_size(kit, is_wrong):
    x, y = kit.ready(2)
    block = np.array([(int(y.handle), int(x.handle), 4)], np.dtype([("out", "u8"), ("in", "u8"), ("n", "i4")]))
    nbytes = np.array([block.nbytes + 4 * is_wrong], np.uint64)
    pointer, size, end = 1, 2, 0  # CU_LAUNCH_PARAM_BUFFER_POINTER, _BUFFER_SIZE, _END
    extra = np.array([pointer, block.ctypes.data, size, nbytes.ctypes.data, end], np.uint64)
    function = check(cuda.cuKernelGetFunction(kit.code.get_kernel("copy_bytes").handle))
    error = cuda.cuLaunchKernel(function, 1, 1, 1, 4, 1, 1, 0, kit.a.handle, 0, extra.ctypes.data)[0]
    assert (error == cuda.CUresult.CUDA_ERROR_INVALID_VALUE) == is_wrong


@finds("parameters")
def address_of_pageable_memory(kit, is_wrong):
    x, y = kit.ready(2)
    host = np.zeros(64, np.uint8)
    source = int(host.ctypes.data) if is_wrong else int(x.handle)
    config = LaunchConfig(grid=1, block=4)
    arguments = (y, np.uint64(source), np.int32(4))
    if is_wrong:
        with pytest.raises(Exception, match="INVALID_VALUE"):
            launch(kit.a, config, kit.code.get_kernel("copy_bytes"), *arguments)
    else:
        launch(kit.a, config, kit.code.get_kernel("copy_bytes"), *arguments)


@finds("parameters")
def cubin_with_other_parameters_than_the_host_form(kit, is_wrong):
    source = 'extern "C" __global__ void add(float *out, const float *a, const float *b, TYPE n) { out[0] = n; }'
    code = compile_cubin(source.replace("TYPE", "long long" if is_wrong else "int")).code
    ObjectCode.from_cubin(code).get_kernel("add")  # loaded anew: it is compared when it is loaded


@finds("twins")
def kernel_without_a_host_form(kit, is_wrong):
    (x,) = kit.ready(1)
    name = "unheard_of" if is_wrong else "scale"
    source = f'extern "C" __global__ void {name}(float *out, const float *in, float factor, int n) {{ out[0] = n; }}'
    config = LaunchConfig(grid=1, block=1)
    arguments = (x, x, np.float32(1), np.int32(1))
    kernel = compile_cubin(source).get_kernel(name)
    if is_wrong:
        with pytest.raises(Exception, match="NOT_SUPPORTED"):
            launch(kit.a, config, kernel, *arguments)
    else:
        launch(kit.a, config, kernel, *arguments)


# ---- handles and calls


@finds("stale handle")
def event_after_its_end(kit, is_wrong):
    event = kit.a.record()
    handle = int(event.handle)
    if is_wrong:
        event.close()
    error = cuda.cuStreamWaitEvent(kit.b.handle, handle, 0)[0]
    assert (error == cuda.CUresult.CUDA_ERROR_INVALID_HANDLE) == is_wrong


@finds("missing")
def call_that_is_not_there(kit, is_wrong):
    error = (cuda.cuCtxGetLimit(cuda.CUlimit.CU_LIMIT_STACK_SIZE) if is_wrong else cuda.cuCtxGetDevice())[0]
    assert (error == cuda.CUresult.CUDA_ERROR_NOT_SUPPORTED) == is_wrong


# ---- threads of a block


def in_blocks(kit, name, threads, *numbers, blocks=1):
    x, y = kit.ready(2)
    launch(kit.a, LaunchConfig(grid=blocks, block=threads), kit.code.get_kernel(name), y, x, *numbers)
    return kit.read(y)


@finds("use without order")
def shared_memory_written_while_others_read(kit, is_wrong):
    in_blocks(kit, "reverse_block", 64, np.int32(not is_wrong), blocks=4)


@finds("uninitialised read")
def shared_memory_that_nobody_wrote(kit, is_wrong):
    found = in_blocks(kit, "read_half", 64, np.int32(48 if is_wrong else 64))
    assert np.isnan(found[16:32]).all() == is_wrong


@finds("barrier")
def barrier_for_a_part_of_the_threads(kit, is_wrong):
    in_blocks(kit, "wait_in_part", 64, np.uint32(32 if is_wrong else 64))


@finds("barrier")
def shuffle_in_a_part_of_a_warp(kit, is_wrong):
    found = in_blocks(kit, "sum_warps", 48 if is_wrong else 64)
    assert (found[:32] == 32).all()


CASES = [pytest.param(kind, run, id=name) for kind, found in MISTAKES.items() for name, run in found.items()]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("kind", "scenario"), CASES)
def test_mistake_is_found(driver, kit, kind, scenario, seed):
    driver.seed(seed)
    scenario(kit, True)
    synchronize()
    assert driver.kinds() == {kind}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("kind", "scenario"), CASES)
def test_correct_twin_is_silent(driver, kit, kind, scenario, seed):
    driver.seed(seed)
    scenario(kit, False)
    synchronize()
    assert driver.reports() == []


def test_every_kind_of_report_has_a_mistake():
    """The names in the driver's source, but for what is only seen when a process ends (`test_processes.py`)."""
    texts = [path.read_text() for path in (SOURCE.parents[1] / "driver").glob("*.c")]
    kinds = {kind for text in texts for kind in re.findall(r'report\(\s*"([^"]+)"', text)}
    kinds |= {"free while in use", "use before allocation", "use without order"}  # chosen by one expression
    assert kinds - MISTAKES.keys() == {"host function"}
