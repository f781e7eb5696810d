"""What the driver does where nothing is wrong: pools and their books, graphs and their updates, events."""

import numpy as np
import pytest
from cuda.bindings import driver as cuda
from cuda.core import DeviceMemoryResource, DeviceMemoryResourceOptions

from tests.helpers.cuda_device import check, synchronize

MIB = 2**20
STEP = 32 * MIB
"""In which pools take memory of the device, an H200's and the test driver's."""
ATTRIBUTES = cuda.CUmemPool_attribute


@pytest.fixture
def pool(kit):
    pool = DeviceMemoryResource(kit.device, DeviceMemoryResourceOptions(max_size=2 * STEP))
    yield pool
    pool.close()


def set_attribute(pool, name, value):
    attribute = getattr(ATTRIBUTES, f"CU_MEMPOOL_ATTR_{name}")
    check(cuda.cuMemPoolSetAttribute(pool.handle, attribute, cuda.cuuint64_t(value)))


def test_pool_counts_what_is_used_and_reserved(kit, pool):
    first, second = (pool.allocate(STEP, stream=kit.a) for _ in range(2))
    assert (pool.attributes.used_mem_current, pool.attributes.reserved_mem_current) == (2 * STEP, 2 * STEP)
    first.close(kit.a)
    assert (pool.attributes.used_mem_current, pool.attributes.used_mem_high) == (STEP, 2 * STEP)
    assert pool.attributes.reserved_mem_current == 2 * STEP
    synchronize()  # the threshold is 0
    assert pool.attributes.reserved_mem_current == STEP
    set_attribute(pool, "USED_MEM_HIGH", 0)
    assert pool.attributes.used_mem_high == STEP
    second.close(kit.a)
    synchronize()
    assert pool.attributes.reserved_mem_current == 0


def test_threshold_keeps_memory_and_trim_gives_it_back(kit, pool):
    set_attribute(pool, "RELEASE_THRESHOLD", STEP + MIB)
    for buffer in [pool.allocate(STEP, stream=kit.a) for _ in range(2)]:
        buffer.close(kit.a)
    synchronize()
    assert pool.attributes.reserved_mem_current == STEP
    check(cuda.cuMemPoolTrimTo(pool.handle, MIB))
    assert pool.attributes.reserved_mem_current == STEP
    check(cuda.cuMemPoolTrimTo(pool.handle, 0))
    assert pool.attributes.reserved_mem_current == 0


def test_pool_holds_no_more_than_its_maximum(kit, pool):
    kept = pool.allocate(STEP, stream=kit.a)
    with pytest.raises(Exception, match="OUT_OF_MEMORY"):
        pool.allocate(STEP + MIB, stream=kit.a)
    assert pool.attributes.used_mem_current == STEP
    kept.close(kit.a)
    pool.allocate(2 * STEP, stream=kit.a).close(kit.a)


def test_memory_is_reused_where_its_release_came_before(kit, pool):
    set_attribute(pool, "REUSE_ALLOW_OPPORTUNISTIC", 0)  # or a device that is fast has nothing to wait for
    pool.allocate(STEP, stream=kit.a).close(kit.a)
    same = pool.allocate(STEP, stream=kit.a)
    assert pool.attributes.reserved_mem_current == STEP
    same.close(kit.a)
    other = pool.allocate(STEP, stream=kit.b)
    assert pool.attributes.reserved_mem_current == 2 * STEP
    other.close(kit.b)


def test_full_pool_lets_an_allocation_wait_for_releases(kit, pool):
    for policy in ("OPPORTUNISTIC", "INTERNAL_DEPENDENCIES"):
        set_attribute(pool, f"REUSE_ALLOW_{policy}", 0)
    pool.allocate(2 * STEP, stream=kit.a).close(kit.a)
    with pytest.raises(Exception, match="OUT_OF_MEMORY"):
        pool.allocate(STEP, stream=kit.b)
    set_attribute(pool, "REUSE_ALLOW_INTERNAL_DEPENDENCIES", 1)
    pool.allocate(STEP, stream=kit.b).close(kit.b)


def test_bytes_are_late_but_right(kit):
    for seed in range(5):
        x, y = kit.ready(2)
        kit.scale(kit.a, y, x, factor=seed)
        kit.scale(kit.a, x, y, factor=2)
        np.testing.assert_array_equal(kit.read(x), np.full(kit.n, 2.0 * seed, np.float32))


def capture(kit, *calls):
    builder = kit.device.create_graph_builder().begin_building()
    for call in calls:
        call(builder)
    return builder.end_building()


def test_graph_runs_as_often_as_it_is_launched(kit):
    x, y = kit.ready(2)
    graph = capture(kit, lambda g: kit.add(g, y, y, x)).complete()
    for stream in (kit.a, kit.b, kit.a):  # launches of one executable graph follow each other
        graph.launch(stream)
    kit.a.wait(kit.b.record())
    np.testing.assert_array_equal(kit.read(y), np.full(kit.n, 4, np.float32))
    graph.close()


def test_update_takes_over_parameters(kit):
    x, y, z = kit.ready(3)
    graph = capture(kit, lambda g: kit.scale(g, y, x, 3)).complete()
    graph.update(capture(kit, lambda g: kit.scale(g, z, x, 5)))
    graph.launch(kit.a)
    assert (kit.read(y)[0], kit.read(z)[0]) == (1, 5)
    graph.close()


def test_update_refuses_another_shape(kit):
    x, y = kit.ready(2)
    graph = capture(kit, lambda g: kit.scale(g, y, x)).complete()
    with pytest.raises(Exception, match="UPDATE"):
        graph.update(capture(kit, lambda g: kit.scale(g, y, x), lambda g: kit.scale(g, y, y)))
    graph.close()


def kernel_params(kit, out, source, factor):
    """Parameters of a node that scales, and what has to stay alive with them."""
    block = np.array([(int(out.handle), int(source.handle), factor, kit.n)], "u8,u8,f4,i4")
    nbytes = np.array([block.nbytes], np.uint64)
    extra = np.array([1, block.ctypes.data, 2, nbytes.ctypes.data, 0], np.uint64)
    params = cuda.CUDA_KERNEL_NODE_PARAMS()
    params.func = check(cuda.cuKernelGetFunction(kit.code.get_kernel("scale").handle))
    params.gridDimX, params.gridDimY, params.gridDimZ = 4, 1, 1
    params.blockDimX, params.blockDimY, params.blockDimZ = 64, 1, 1
    params.extra = extra.ctypes.data
    return params, (block, nbytes, extra)


def test_parameters_of_one_node_change_without_a_capture(kit):
    x, y, z = kit.ready(3)
    graph = check(cuda.cuGraphCreate(0))
    params, _kept = kernel_params(kit, y, x, 3)
    node = check(cuda.cuGraphAddKernelNode(graph, [], 0, params))
    executable = check(cuda.cuGraphInstantiate(graph, 0))
    params, _kept = kernel_params(kit, z, x, 5)
    check(cuda.cuGraphExecKernelNodeSetParams(executable, node, params))
    check(cuda.cuGraphLaunch(executable, kit.a.handle))
    assert (kit.read(y)[0], kit.read(z)[0]) == (1, 5)
    check(cuda.cuGraphExecDestroy(executable))
    check(cuda.cuGraphDestroy(graph))


def test_events_are_done_some_time(kit, driver):
    for seed in range(8):
        driver.seed(seed)
        x, y = kit.ready(2)
        kit.scale(kit.a, y, x)
        event = kit.a.record()
        while not event.is_done:
            pass
        kit.scale(kit.b, x, y)  # the host has seen the event, so this comes after it


def test_default_stream_waits_for_blocking_streams_only(kit):
    x, y = kit.ready(2)
    blocking = check(cuda.cuStreamCreate(0))
    check(cuda.cuMemsetD8Async(int(x.handle), 1, 8, blocking))
    check(cuda.cuMemsetD8Async(int(x.handle), 2, 8, 0))
    check(cuda.cuMemsetD8Async(int(x.handle), 3, 8, blocking))
    synchronize()
    check(cuda.cuStreamDestroy(blocking))
    assert set(kit.read(x)[:2].view(np.uint8)) == {3}
    assert kit.read(y)[0] == 1
