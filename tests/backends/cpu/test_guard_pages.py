"""Every row of the case table with each tensor, temporary and scratch memory between protected pages.

A kernel that reads or writes outside what it was given ends the process here, and one that reads what nobody wrote
reads NaN.
"""

import ctypes
import faulthandler

import numpy as np
import pytest

import graphpool as gp
from tests.cases.workloads import BY_NAME
from tests.helpers.guard_pages import PAGE, GuardedResource, guarded_array, guarded_copy, space_plans
from tests.helpers.memory import run_in_child
from tests.helpers.partitions import assert_close, evaluate_case


@pytest.mark.parametrize("name", BY_NAME)
def test_kernels_stay_inside_their_tensors(monkeypatch, name):
    case = BY_NAME[name]
    partitions, values = evaluate_case(case, 2)
    plans = space_plans(monkeypatch)
    context = object()  # nobody else may get what is compiled here
    with gp.Engine(threads=1, allocator=GuardedResource(plans), context=context) as engine:
        for partition in partitions:
            for lt, result in zip(partition.output_ports, run(partition, values, engine), strict=True):
                assert_close(result, values[lt.id], lt.dtype, scale=case.scale)


def run(partition, values, engine):
    """Results of a partition on guarded copies of its inputs, bound at addresses that are aligned to their elements."""
    inputs = [lt.replace(shape=values[lt.id].shape) for lt in partition.input_ports]
    with partition.compile(inputs, partition.output_ports, engine) as compiled:
        tensors = [gp.Tensor(lt, engine, guarded_copy(values[lt.id])) for lt in inputs]
        results = [compiled.query_logical_tensor(lt.id) for lt in partition.output_ports]
        arrays = [guarded_array(lt.shape, lt.dtype.numpy) for lt in results]
        bound = [gp.Tensor(lt, engine, array) for lt, array in zip(results, arrays, strict=True)]
        compiled.execute(gp.Stream(engine), tensors, bound)
        return [np.array(tensor.numpy()) for tensor in bound]


# ---- the guards themselves


@pytest.mark.native
@pytest.mark.parametrize("offset", [-65, 64, PAGE])
def test_a_touch_outside_ends_the_process(offset):
    address = GuardedResource().allocate(64)
    with pytest.raises(AssertionError, match="child failed"):
        run_in_child(lambda: (faulthandler.disable(), ctypes.memset(address + offset - PAGE * (offset < 0), 0, 1)))


def test_bytes_left_behind_by_alignment_are_compared():
    resource = GuardedResource()
    address = resource.allocate(60)
    ctypes.memset(address + 60, 0, 1)
    with pytest.raises(AssertionError, match="wrote behind the end"):
        resource.deallocate(address, 60)


def test_arrays_are_poisoned_and_end_at_a_page():
    array = guarded_array((3, 5), np.float32)
    assert np.isnan(array).all()
    assert (array.ctypes.data + array.nbytes) % PAGE == 0


def test_temporaries_lie_apart(monkeypatch):
    plans = space_plans(monkeypatch)
    offsets, nbytes = plans.place([64, PAGE, 100], 64)
    assert [(offset + size) % PAGE for offset, size in zip(offsets[:2], (64, PAGE), strict=True)] == [0, 0]
    resource = GuardedResource(plans)
    address = resource.allocate(nbytes)
    for offset, size in zip(offsets, (64, PAGE, 100), strict=True):
        ctypes.memset(address + offset, 0, size)
    resource.deallocate(address, nbytes)
