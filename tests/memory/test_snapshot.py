"""The snapshot: every live allocation a segment, every event in order, readable by PyTorch's viewer."""

import pickle
import pickletools

import numpy as np
import pytest

import graphpool as gp
from graphpool.errors import InvalidArgumentError, OutOfMemoryError
from graphpool.memory import HostResource, LimitingResource, SnapshotResource


def allocate_here(resource, nbytes):
    return resource.allocate(nbytes)


def test_segments_are_the_live_allocations_with_their_stacks():
    resource = SnapshotResource(HostResource())
    first, second = allocate_here(resource, 4096), allocate_here(resource, 2 << 20)
    resource.deallocate(first, 4096)
    [segment] = resource.snapshot()["segments"]
    assert (segment["address"], segment["total_size"], segment["segment_type"]) == (second, 2 << 20, "large")
    [block] = segment["blocks"]
    assert (block["address"], block["size"], block["state"]) == (second, 2 << 20, "active_allocated")
    assert block["frames"][0]["name"] == "allocate_here"
    assert block["frames"][0]["filename"] == __file__
    resource.deallocate(second, 2 << 20)
    assert resource.snapshot()["segments"] == []


def test_events_come_in_order_and_the_oldest_are_forgotten():
    resource = SnapshotResource(LimitingResource(HostResource(), 1000), max_entries=6)
    address = resource.allocate(600)
    with pytest.raises(OutOfMemoryError):
        resource.allocate(600)
    resource.deallocate(address, 600)
    [events] = resource.snapshot()["device_traces"]
    actions = ["segment_alloc", "alloc", "oom", "free_requested", "free_completed", "segment_free"]
    assert [event["action"] for event in events] == actions
    assert [event["addr"] for event in events] == [address, address, 0, address, address, address]
    assert events[2]["device_free"] == 400
    assert [event["time_us"] for event in events] == sorted(event["time_us"] for event in events)
    resource.deallocate(resource.allocate(8), 8)
    assert len(resource.snapshot()["device_traces"][0]) == 6


def test_the_file_is_a_pickle_that_the_viewer_reads(tmp_path):
    """Of protocol 4, and of plain types only."""
    resource = SnapshotResource(HostResource(), depth=2)
    with gp.Engine(allocator=resource, threads=1) as engine:
        tensor = gp.Tensor(gp.LogicalTensor(0, "f32", (100,)), engine)
        resource.dump(tmp_path / "snapshot.pickle")
    data = (tmp_path / "snapshot.pickle").read_bytes()
    ops = list(pickletools.genops(data))
    assert ops[0][1] == 4
    assert not {"GLOBAL", "STACK_GLOBAL", "REDUCE"} & {op.name for op, _, _ in ops}
    loaded = pickle.loads(data)
    assert loaded == resource.snapshot() | {"segments": loaded["segments"], "device_traces": loaded["device_traces"]}
    [segment] = loaded["segments"]
    assert segment["total_size"] == tensor.nbytes
    assert len(segment["frames"]) == 2


def test_a_model_under_a_snapshot():
    """Constants, arena and nothing else are segments; closing ends all of them."""
    resource = SnapshotResource(HostResource())
    with gp.Engine(allocator=resource, threads=1) as engine:
        x, y = gp.LogicalTensor(0, "f32", (64, 64)), gp.LogicalTensor(1, "f32", (64, 64))
        partition = gp.Partition.from_op(gp.Op(0, "SoftMax", [x], [y], axis=1))
        with partition.compile([x], [y], engine) as compiled:
            data = np.ones((64, 64), np.float32)
            compiled.execute(gp.Stream(engine), [gp.Tensor(x, engine, data)])
            sizes = [segment["total_size"] for segment in resource.snapshot()["segments"]]
            assert sum(sizes) == engine.stats().current_nbytes
    assert resource.snapshot()["segments"] == []


@pytest.mark.parametrize("keywords", [{"max_entries": -1}, {"depth": 0}, {"depth": "all"}])
def test_refuses(keywords):
    with pytest.raises(InvalidArgumentError, match="max_entries and depth"):
        SnapshotResource(HostResource(), **keywords)
