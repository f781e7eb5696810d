"""Memory of a GPU: bounds and refusals, budgets and pools on top, leases of several streams, copies through chunks."""

import gc
import random
import warnings

import numpy as np
import pytest
from cuda.bindings import driver as cuda
from cuda.core import Device, Stream

import graphpool as gp
from graphpool.errors import BackendError, InvalidArgumentError, OutOfMemoryError, StateError
from graphpool.memory import ArenaPool, Budget, LimitingResource, StatisticsResource
from graphpool.memory.cuda import (
    CudaDevice,
    CudaResource,
    HostStaging,
    PinnedResource,
    StreamLease,
    UpstreamResource,
    as_cuda_core,
    open_device,
)
from tests.helpers import cuda_device
from tests.helpers.cuda_device import check
from tests.helpers.memory import run_in_child, run_threads

MIB = 2**20
STEP = 32 * MIB
"""In which pools take memory of the device, an H200's and the test driver's."""


@pytest.fixture
def resource(driver):
    with CudaResource(limit="16MiB") as resource:
        yield resource
        assert resource.count == 0


@pytest.fixture
def streams(driver):
    device = open_device()
    handles = [device.new_stream() for _ in range(3)]
    yield handles
    for handle in handles:
        device.destroy_stream(handle)


def synchronize():
    """Wait for everything; no context is current in these tests, as the package leaves it to its caller."""
    with open_device().current():
        cuda_device.synchronize()


def fill(stream, address, nbytes, value=1):
    check(cuda.cuMemsetD8Async(address, value, nbytes, stream))


def order(first, second):
    """Let the second stream wait for the first."""
    device = open_device()
    event = device.new_event()
    device.record(event, first)
    device.wait(second, event)
    device.destroy_event(event)


# ---- bounds


def test_limit_holds_and_says_what_would_do(resource):
    kept = resource.allocate(10 * MIB)
    with pytest.raises(
        OutOfMemoryError, match=f"smallest limit that serves this request is {17 * MIB} bytes"
    ) as caught:
        resource.allocate(7 * MIB)
    error = caught.value
    assert (error.requested, error.in_use, error.limit) == (7 * MIB, 10 * MIB, 16 * MIB)
    resource.deallocate(kept, 10 * MIB)
    with CudaResource(limit=error.smallest_limit) as larger:
        first, second = larger.allocate(10 * MIB), larger.allocate(7 * MIB)
        larger.deallocate(first, 10 * MIB)
        larger.deallocate(second, 7 * MIB)


def test_request_beyond_the_device_names_its_size(driver):
    total = open_device().total_nbytes
    with CudaResource() as resource:
        assert resource.limit == total
        with pytest.raises(OutOfMemoryError, match=f"the device has {total} bytes") as caught:
            resource.allocate(total + 1)
        assert caught.value.smallest_limit is None


def test_memory_that_others_hold_is_told(driver):
    total = open_device().total_nbytes
    with CudaResource() as first, CudaResource(limit="64MiB") as second:
        kept = second.allocate(2 * MIB)
        with pytest.raises(OutOfMemoryError, match=f"others hold the rest of the {total} bytes of the device"):
            first.allocate(total)
        second.deallocate(kept, 2 * MIB)
        first.deallocate(first.allocate(2 * MIB), 2 * MIB)


def test_limit_counts_what_alignment_takes(driver):
    with CudaResource(limit=2 * MIB) as resource:
        with pytest.raises(OutOfMemoryError) as caught:
            resource.allocate(MIB, 2 * MIB)
        assert caught.value.smallest_limit == 3 * MIB - 256


def test_memory_given_back_on_another_stream_serves_within_the_limit(resource, streams):
    for turn in range(6):
        stream = streams[turn % 3]
        address = resource.allocate(16 * MIB, stream=stream)
        fill(stream, address, 64)
        resource.deallocate(address, 16 * MIB, stream=stream)
    assert resource.reserved_peak <= STEP


def test_trim_gives_back_what_is_kept(driver):
    with CudaResource() as resource:
        kept = resource.allocate(MIB)
        others = [resource.allocate(STEP) for _ in range(3)]
        for address in others:
            resource.deallocate(address, STEP)
        synchronize()
        assert resource.reserved == 4 * STEP
        assert resource.trim(2 * STEP + MIB) == STEP
        assert resource.trim() == 2 * STEP
        assert (resource.reserved, resource.reserved_peak) == (STEP, 4 * STEP)
        resource.deallocate(kept, MIB)


def test_threshold_gives_back_without_being_asked(driver):
    with CudaResource(release_threshold=STEP + MIB) as resource:
        for address in [resource.allocate(STEP) for _ in range(3)]:
            resource.deallocate(address, STEP)
        synchronize()
        assert resource.reserved == STEP


# ---- closing


def test_closed_resource_lets_live_memory_end(driver):
    resource = CudaResource()
    address = resource.allocate(100)
    resource.close()
    resource.close()
    with pytest.raises(StateError, match="closed"):
        resource.allocate(1)
    resource.deallocate(address, 100)
    assert (resource.reserved, resource.trim()) == (0, 0)


def test_resource_that_is_dropped_warns(driver):
    with pytest.warns(ResourceWarning, match="was not closed"):
        CudaResource()


def test_forked_child_is_told(resource):
    def use():
        with pytest.raises(StateError, match="spawn"):
            resource.allocate(1)
        with pytest.raises(StateError, match="spawn"):
            open_device()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking a process with threads
        run_in_child(use)


def test_context_is_current_inside_blocks_alone(driver):
    """However blocks of devices lie in one another, and whatever they raise; to the thread that is in them."""
    device, other = open_device(), CudaDevice(0)
    found = []

    def look(*_):
        found.append(int(check(cuda.cuCtxGetCurrent())))

    def fail():
        with device.current(), device.current(), other.current(), device.current():
            look()
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    look()
    with device.current():
        with other.current(), device.current():
            look()
        look()
        run_threads(1, look)
        look()
    look()
    context = found[0]
    assert found == [context, 0, context, context, 0, context, 0]
    assert context


@pytest.mark.parametrize("stream", ["0", -1, True, 1.5, object()])
def test_refuses_what_is_no_stream(resource, stream):
    with pytest.raises(InvalidArgumentError, match="__cuda_stream__"):
        resource.allocate(1, stream=stream)


def test_takes_streams_of_cuda_core(resource, streams):
    stream = Stream.from_handle(streams[0])
    address = resource.allocate(64, stream=stream)
    fill(streams[0], address, 64)
    resource.deallocate(address, 64, stream=stream)


# ---- under what the CPU uses


def test_budget_bounds_what_stands_on_the_device(resource):
    budget = Budget("4MiB")
    counted = StatisticsResource(LimitingResource(resource, budget))
    address = counted.allocate(3 * MIB)
    with pytest.raises(OutOfMemoryError) as caught:
        counted.allocate(2 * MIB)
    assert (caught.value.limit, caught.value.smallest_limit, budget.in_use) == (4 * MIB, 5 * MIB, 3 * MIB)
    counted.deallocate(address, 3 * MIB)
    assert (budget.in_use, counted.stats().peak_nbytes) == (0, 3 * MIB)


def test_arenas_of_a_device_are_reused_trimmed_and_closed(resource, driver):
    budget = Budget("4MiB")
    with ArenaPool(resource, MIB, alignment=256, budget=budget) as pool:
        with pool.lease() as first, pool.lease() as second:
            assert first.address != second.address
            assert budget.in_use == 2 * MIB
        with pool.lease() as again:
            assert again.address % 256 == 0
        assert (resource.count, budget.in_use) == (2, 2 * MIB)
        assert budget.trim() == 2 * MIB
        assert (resource.count, budget.in_use) == (0, 0)
        with pool.lease():
            pass
    assert (resource.count, budget.in_use) == (0, 0)


def test_budget_takes_idle_arenas_of_a_device_for_a_request(resource):
    budget = Budget("4MiB")
    with ArenaPool(resource, 3 * MIB, budget=budget) as pool:
        with pool.lease():
            pass
        limited = LimitingResource(resource, budget)
        limited.deallocate(limited.allocate(4 * MIB), 4 * MIB)
    assert budget.in_use == 0


# ---- leases


@pytest.mark.parametrize("seed", range(8))
def test_lease_holds_memory_until_the_last_reader_ended(driver, resource, streams, seed):
    driver.seed(seed)
    own, *readers = streams
    out = resource.allocate(3 * 64)
    with StreamLease(resource, 64, own) as lease:
        fill(own, lease.address, 64)
        for i, reader in enumerate(readers):
            order(own, reader)
            check(cuda.cuMemcpyDtoDAsync(out + 64 * i, lease.address, 64, reader))
            lease.used_on(reader)
    other = StreamLease(resource, 16 * MIB - 256, own)  # waits for the bytes, on its stream only
    fill(own, other.address, 64)
    other.release()
    synchronize()
    resource.deallocate(out, 3 * 64)


@pytest.mark.planted
@pytest.mark.parametrize("seed", range(8))
def test_reader_that_the_lease_is_not_told_of_is_found(driver, resource, streams, seed):
    driver.seed(seed)
    own, reader, _ = streams
    out = resource.allocate(64)
    with StreamLease(resource, 64, own) as lease:
        fill(own, lease.address, 64)
        order(own, reader)
        check(cuda.cuMemcpyDtoDAsync(out, lease.address, 64, reader))
    synchronize()
    assert driver.kinds() == {"free while in use"}
    resource.deallocate(out, 64)


def test_last_use_of_a_stream_counts(driver, resource, streams):
    own, reader, _ = streams
    out = resource.allocate(64)
    lease = StreamLease(resource, 64, own)
    fill(own, lease.address, 64)
    order(own, reader)
    for _ in range(3):
        check(cuda.cuMemcpyDtoDAsync(out, lease.address, 64, reader))
        lease.used_on(reader)
    before = driver.live()
    lease.used_on(reader)  # makes no further event
    assert driver.live() == before
    lease.release()
    synchronize()
    resource.deallocate(out, 64)


def test_lease_is_released_once(resource, streams):
    lease = StreamLease(resource, 64, streams[0])
    assert lease.is_live
    assert resource.nbytes == 64
    lease.release()
    assert not lease.is_live
    for wrong in (lease.release, lambda: lease.used_on(streams[1]), lambda: lease.address):
        with pytest.raises(StateError, match="holds no memory"):
            wrong()
    assert resource.count == 0


def test_dropped_lease_gives_back_in_order_and_warns(driver, resource, streams):
    own, reader, _ = streams
    out = resource.allocate(64)
    lease = StreamLease(resource, 64, own)
    fill(own, lease.address, 64)
    order(own, reader)
    check(cuda.cuMemcpyDtoDAsync(out, lease.address, 64, reader))
    lease.used_on(reader)
    with pytest.warns(ResourceWarning, match="never released"):
        del lease
    synchronize()
    resource.deallocate(out, 64)


def test_leases_stand_under_a_budget(resource, streams):
    budget = Budget(100)
    limited = LimitingResource(resource, budget)
    with StreamLease(limited, 64, streams[0]), pytest.raises(OutOfMemoryError):
        StreamLease(limited, 64, streams[1])
    assert budget.in_use == 0


def test_leases_of_threads(driver, resource):
    def churn(seed):
        rng, device = random.Random(seed), resource.device
        stream = device.new_stream()
        for _ in range(30):
            with StreamLease(resource, rng.randrange(1, 5000), stream) as lease:
                fill(stream, lease.address, lease.nbytes, seed)
                host = np.zeros(lease.nbytes, np.uint8)
                check(cuda.cuMemcpyDtoHAsync(host, lease.address, lease.nbytes, stream))
                assert set(host) == {seed}
        device.destroy_stream(stream)

    run_threads(3, churn)


# ---- staging


@pytest.fixture
def staging(driver):
    pinned = PinnedResource()
    with HostStaging(pinned, chunk=1000) as staging:
        assert pinned.nbytes == 2000
        yield staging
    assert pinned.count == 0


@pytest.mark.parametrize("nbytes", [0, 1, 999, 1000, 1001, 2000, 2001, 12345])
@pytest.mark.parametrize("seed", range(3))
def test_bytes_come_back_as_they_went(driver, resource, streams, staging, nbytes, seed):
    driver.seed(seed)
    sent = np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)
    kept, found = sent.copy(), np.zeros_like(sent)
    with StreamLease(resource, nbytes, streams[0]) as lease:
        staging.upload(sent, lease.address, streams[0])
        sent[:] = 0  # the caller's again, though nothing has run yet
        staging.download(lease.address, found, streams[0])
    np.testing.assert_array_equal(found, kept)


def test_chunks_are_not_filled_before_they_are_copied(driver, resource, streams, staging):
    with StreamLease(resource, 8000, streams[0]) as lease:
        for value in range(4):
            staging.upload(np.full(4000, value, np.uint8), lease.address + 4000 * (value % 2), streams[0])
        found = np.zeros((2, 4000), np.uint8)
        staging.download(lease.address, found, streams[0])
    assert [set(row) for row in found] == [{2}, {3}]


def test_staging_refuses_what_it_cannot_copy(resource, streams, staging):
    array = np.zeros((4, 4), np.float32)
    array.flags.writeable = False
    for call in (
        lambda: staging.upload(array.T[1:], 0, streams[0]),
        lambda: staging.upload([1.0], 0, streams[0]),
        lambda: staging.download(0, array, streams[0]),
    ):
        with pytest.raises(InvalidArgumentError, match="array"):
            call()


def test_closed_staging_refuses(driver, streams):
    staging = HostStaging(PinnedResource(), chunk=64)
    staging.close()
    staging.close()
    with pytest.raises(StateError, match="closed"):
        staging.upload(np.zeros(4), 0, streams[0])
    with pytest.raises(InvalidArgumentError, match="chunk"):
        HostStaging(PinnedResource(), chunk=0)


def test_staging_that_is_dropped_warns(driver):
    with pytest.warns(ResourceWarning, match="was not closed"):
        HostStaging(PinnedResource(), chunk=64)


# ---- as a resource of cuda.core


def test_buffers_of_cuda_core_count_in_our_budget(driver, resource):
    device = Device(0)
    device.set_current()
    stream = device.create_stream()
    budget = Budget(3 * MIB)
    ours = as_cuda_core(LimitingResource(resource, budget))
    assert (ours.is_device_accessible, ours.is_host_accessible, ours.device_id) == (True, False, 0)
    buffer = ours.allocate(2 * MIB, stream=stream)
    assert (buffer.size, buffer.is_device_accessible, budget.in_use) == (2 * MIB, True, 2 * MIB)
    buffer.fill(1, stream=stream)
    with pytest.raises(OutOfMemoryError, match="cannot supply"):
        ours.allocate(2 * MIB, stream=stream)
    buffer.close()
    assert budget.in_use == 0
    other = ours.allocate(3 * MIB, stream=stream)
    other.fill(2, stream=stream)
    del other
    assert (budget.in_use, resource.count) == (0, 0)
    stream.sync()
    stream.close()


# ---- on another library's allocator


class Pool:
    """An allocator as another library has it; `calls` has what it was asked for, with streams."""

    def __init__(self):
        self.calls = []

    def malloc(self, nbytes, stream):
        self.calls.append(("malloc", nbytes, stream))
        return int(check(cuda.cuMemAllocAsync(nbytes, stream)))

    def free(self, address, nbytes, stream):
        self.calls.append(("free", nbytes, stream))
        check(cuda.cuMemFreeAsync(address, stream))


def test_memory_of_another_library_in_the_order_of_streams(driver, streams):
    pool = Pool()
    resource = UpstreamResource(pool.malloc, pool.free)
    with StreamLease(resource, 1000, streams[0]) as lease:
        fill(streams[0], lease.address, 1000)
    assert pool.calls == [("malloc", 1000, streams[0]), ("free", 1000, streams[0])]
    address = resource.allocate(64, 1024)
    assert (address % 1024, resource.nbytes, resource.count, pool.calls[-1][1]) == (0, 64, 1, 64 + 1024 - 256)
    with pytest.raises(StateError, match="does not hold 65 bytes"):
        resource.deallocate(address, 65)
    resource.deallocate(address, 64, 1024)
    assert (resource.nbytes, resource.count) == (0, 0)


def test_errors_of_another_library_are_told(driver):
    def refuses(nbytes, stream):
        raise MemoryError

    def fails(*call):
        raise ValueError("broken")

    with pytest.raises(OutOfMemoryError, match="the upstream allocator cannot supply 7 bytes"):
        UpstreamResource(refuses, fails).allocate(7)
    with pytest.raises(BackendError, match="the upstream malloc failed; got: ValueError"):
        UpstreamResource(fails, fails).allocate(7)
    with pytest.raises(BackendError, match="accepted: an address aligned to 256; got: 0"):
        UpstreamResource(lambda nbytes, stream: 0, fails).allocate(7)
    with pytest.raises(InvalidArgumentError, match="callables"):
        UpstreamResource(None, fails)
    resource = UpstreamResource(lambda nbytes, stream: 1 << 40, fails)
    with pytest.raises(BackendError, match="the upstream free failed; got: ValueError"):
        resource.deallocate(resource.allocate(7), 7)
    assert resource.count == 0


def test_engine_on_the_memory_of_another_library(driver, twins):
    pool = Pool()
    with gp.Engine("gpu", allocator=UpstreamResource(pool.malloc, pool.free), memory_limit="1MiB") as engine:
        tensor = gp.Tensor(gp.LogicalTensor(0, "f32", (5,)), engine)
        tensor.fill(np.arange(5, dtype=np.float32))
        assert (tensor.numpy().tolist(), engine.budget.in_use) == ([0, 1, 2, 3, 4], 20)
        with pytest.raises(OutOfMemoryError, match="smallest limit"):
            gp.Tensor(gp.LogicalTensor(0, "f32", (1 << 18,)), engine).fill(np.float32(1))
        del tensor
    gc.collect()
    names = [name for name, *_ in pool.calls]
    assert names.count("malloc") == names.count("free") == 1
