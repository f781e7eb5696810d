"""Groups and tensors: Arm Compute Library's asserted behaviours, scopes, concurrency."""

import pytest

from graphpool.errors import InvalidArgumentError, OutOfMemoryError, StateError
from graphpool.memory import (
    BlobLifetimeManager,
    HostResource,
    LimitingResource,
    MemoryGroup,
    MemoryManagerOnDemand,
    OffsetLifetimeManager,
    TensorAllocator,
)
from tests.helpers.memory import read_bytes, run_threads, write_bytes


@pytest.fixture(params=[BlobLifetimeManager, OffsetLifetimeManager])
def manager(request):
    with MemoryManagerOnDemand(request.param()) as manager:
        yield manager


def test_tensors_are_resizable_until_allocated(manager):
    """ACL NEON/UNIT/MemoryManager BlobMemoryManagerSimpleWithinFunctionLevel."""
    first, second = (MemoryGroup(manager) for _ in range(2))
    tensors = [TensorAllocator(1000) for _ in range(3)]
    for group, tensor in zip((first, first, second), tensors, strict=True):
        group.manage(tensor)
        assert tensor.is_resizable
    for tensor in tensors:
        tensor.allocate()
        assert not tensor.is_resizable
    assert manager.lifetime_manager.are_all_finalized()
    manager.populate(HostResource(), 1)
    for group in (first, second):
        with group:
            assert all(tensor.address for tensor in tensors if tensor in group.mappings)
    assert all(tensor.address is None for tensor in tensors)
    manager.clear()
    assert manager.pool_manager.num_pools == 0


def test_mappings_appear_with_the_last_tensor(manager):
    group, tensors = MemoryGroup(manager), [TensorAllocator(100), TensorAllocator(200)]
    for tensor in tensors:
        group.manage(tensor)
    tensors[0].allocate()
    assert group.mappings == {}
    tensors[1].allocate()
    assert set(group.mappings) == set(tensors)
    assert len(set(group.mappings.values())) == 2


def test_tensors_keep_their_values_while_acquired(manager):
    group, tensors = MemoryGroup(manager), [TensorAllocator(256) for _ in range(4)]
    for tensor in tensors:
        group.manage(tensor)
    for tensor in tensors:
        tensor.allocate()
    manager.populate(HostResource())
    with group:
        for value, tensor in enumerate(tensors):
            write_bytes(tensor.address, 256, value)
        for value, tensor in enumerate(tensors):
            assert read_bytes(tensor.address, 256) == bytes([value]) * 256


def test_a_group_reconfigured_batch_by_batch(manager):
    """ACL BlobMemoryManagerReconfigure2: batch 30 down to 3, configured anew at each step, populated once."""
    group, hidden, output = MemoryGroup(manager), TensorAllocator(), TensorAllocator()
    for batch in range(30, 2, -1):
        for tensor, width in ((hidden, 112), (output, 40)):
            tensor.free()
            tensor.init(batch * width * 4)
            group.manage(tensor)
        hidden.allocate()
        output.allocate()
        if batch == 30:
            manager.populate(HostResource())
        with group:
            write_bytes(hidden.address, hidden.nbytes, 1)
            write_bytes(output.address, output.nbytes, 2)
            assert read_bytes(hidden.address, hidden.nbytes) == b"\1" * hidden.nbytes


def test_an_exception_releases_the_scope(manager):
    group, tensor = MemoryGroup(manager), TensorAllocator(100)
    group.manage(tensor)
    tensor.allocate()
    manager.populate(HostResource())
    with pytest.raises(KeyError), group:
        raise KeyError
    assert tensor.address is None
    with group:
        pass


def test_acquiring_twice_is_refused_not_corrupted(manager):
    group, tensor = MemoryGroup(manager), TensorAllocator(100)
    group.manage(tensor)
    tensor.allocate()
    manager.populate(HostResource(), 2)
    with group:
        address = tensor.address
        with pytest.raises(StateError, match="acquired already"):
            group.acquire()
        assert tensor.address == address
        assert manager.pool_manager.pool.arenas.stats().leased == 1
    group.release()


def test_a_failed_acquire_leaves_the_group_usable(manager):
    group, tensor = MemoryGroup(manager), TensorAllocator(100)
    group.manage(tensor)
    tensor.allocate()
    with pytest.raises(StateError, match="no pool"):
        group.acquire()
    manager.populate(HostResource())
    with group.lease(), pytest.raises(OutOfMemoryError):
        group.acquire(timeout_s=0.01)
    with group:
        pass


def test_a_group_that_manages_nothing_acquires_nothing(manager):
    with MemoryGroup(manager), MemoryGroup():
        pass
    assert manager.pool_manager.num_pools == 0


def test_without_a_manager_tensors_have_memory_of_their_own():
    group, tensor = MemoryGroup(), TensorAllocator(100)
    group.manage(tensor)
    tensor.allocate()
    with group:
        assert tensor.address
    assert group.mappings == {}
    tensor.free()


def test_threads_run_one_function_at_once(manager):
    """ACL's group has one pool pointer and may not; `lease` gives each execution addresses of its own."""
    group, tensors = MemoryGroup(manager), [TensorAllocator(128) for _ in range(3)]
    for tensor in tensors:
        group.manage(tensor)
    for tensor in tensors:
        tensor.allocate()
    manager.populate(HostResource(), 2)

    def execute(i):
        for n in range(40):
            with group.lease() as lease:
                for k, tensor in enumerate(tensors):
                    write_bytes(lease.addresses[tensor], 128, (i * 40 + n + k) % 256)
                for k, tensor in enumerate(tensors):
                    assert read_bytes(lease.addresses[tensor], 128) == bytes([(i * 40 + n + k) % 256]) * 128

    run_threads(5, execute)


def test_managing_twice_or_by_two_groups_is_refused(manager):
    group, tensor = MemoryGroup(manager), TensorAllocator(100)
    group.manage(tensor)
    with pytest.raises(StateError, match="started already"):
        group.manage(tensor)
    with pytest.raises(StateError, match="another group"):
        MemoryGroup(manager).manage(tensor)


def test_import_memory_checks_and_leaves_the_tensor_resizable():
    """ACL UNIT/TensorAllocator ImportMemory."""
    host = HostResource()
    address = host.allocate(1000, 64)
    tensor = TensorAllocator(1000, 64)
    for wrong in (0, None, address + 1, "memory"):
        with pytest.raises(InvalidArgumentError, match="imported memory"):
            tensor.import_memory(wrong)
        assert tensor.is_resizable
    tensor.import_memory(address)
    assert (tensor.is_resizable, tensor.address) == (False, address)
    with pytest.raises(StateError, match="free it first"):
        tensor.import_memory(address)
    tensor.free()
    assert (tensor.is_resizable, tensor.address) == (True, None)
    host.deallocate(address, 1000, 64)


def test_import_into_a_managed_tensor_is_refused(manager):
    group, tensor = MemoryGroup(manager), TensorAllocator(100)
    group.manage(tensor)
    with pytest.raises(StateError, match="managed"):
        tensor.import_memory(2**20)
    assert tensor.is_resizable


def test_aligned_allocation():
    """ACL UNIT/TensorAllocator AlignedAlloc."""
    tensor = TensorAllocator(100, 1024)
    tensor.allocate()
    assert tensor.alignment == 1024
    assert tensor.address % 1024 == 0
    with pytest.raises(StateError):
        tensor.init(200)
    tensor.free()
    tensor.free()
    tensor.init(200)
    assert (tensor.nbytes, tensor.alignment) == (200, 64)
    with pytest.raises(InvalidArgumentError):
        tensor.init(10, 339)


def test_an_allocation_that_fails_leaves_the_tensor_resizable():
    tensor = TensorAllocator(100, resource=LimitingResource(HostResource(), 50))
    with pytest.raises(OutOfMemoryError):
        tensor.allocate()
    assert (tensor.is_resizable, tensor.address) == (True, None)


def test_a_second_acquire_is_refused_without_waiting_for_the_first(manager):
    group, tensor = MemoryGroup(manager), TensorAllocator(100)
    group.manage(tensor)
    tensor.allocate()
    manager.populate(HostResource(), 1)
    with group, pytest.raises(StateError, match="acquired already"):
        group.acquire()
    with group:
        assert tensor.address


def test_memory_of_a_tensor_that_is_collected_goes_back():
    host = HostResource()
    tensor = TensorAllocator(1000, resource=host)
    tensor.allocate()
    with pytest.warns(ResourceWarning, match="TensorAllocator 1000 bytes> was not freed"):
        del tensor
    assert host.nbytes == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda manager: MemoryGroup(manager).manage("tensor"), "tensor; accepted: an instance of TensorAllocator"),
        (lambda _: TensorAllocator(8).set_associated_memory_group("g"), "group; accepted: an instance of MemoryGroup"),
        (lambda manager: manager.populate("host"), "resource; accepted: an object with allocate and deallocate"),
        (lambda manager: manager.pool_manager.register_pool("pool"), "pool; accepted: an instance of MemoryPool"),
        (lambda _: MemoryManagerOnDemand("lifetimes"), "lifetime_manager; accepted: an instance of LifetimeManager"),
        (lambda _: MemoryManagerOnDemand(OffsetLifetimeManager(), 3), "pool_manager; accepted: an instance of PoolM"),
        (lambda _: MemoryManagerOnDemand(OffsetLifetimeManager(), budget=3), "budget; accepted: an instance of Budg"),
    ],
)
def test_what_is_no_part_of_memory_management_is_named(manager, call, message):
    with pytest.raises(InvalidArgumentError, match=message):
        call(manager)
