"""Every row of the case table equals the reference, fuses as it says, and writes nothing beside its outputs."""

import numpy as np
import pytest

import graphpool as gp
from tests.cases.workloads import BY_NAME, CASES
from tests.helpers.partitions import check_graph, evaluate_case


def test_names_are_unique():
    assert len(BY_NAME) == len(CASES)


@pytest.mark.parametrize("name", BY_NAME)
def test_equals_reference(engine, name):
    case = BY_NAME[name]
    rng = np.random.default_rng(len(name))
    partitions = check_graph(case.builder(), engine, rng, scale=case.scale, **case.bounds)
    assert [p.backend_name for p in partitions] == ["cpu"] * len(partitions)
    assert len(partitions) == case.partitions


@pytest.mark.parametrize("name", BY_NAME)
def test_writes_its_outputs_and_nothing_else(engine, name):
    """Outputs lie between guards in poisoned memory, the scratchpad is poisoned, inputs are read-only."""
    partitions, values = evaluate_case(BY_NAME[name], 1)
    stream = gp.Stream(engine)
    for partition in partitions:
        inputs = [lt.replace(shape=values[lt.id].shape) for lt in partition.input_ports]
        with partition.compile(inputs, partition.output_ports, engine) as compiled:
            tensors = []
            for lt in inputs:
                array = np.array(values[lt.id])
                array.flags.writeable = False
                tensors.append(gp.Tensor(lt, engine, array))
            guarded = [_guarded(compiled.query_logical_tensor(lt.id)) for lt in partition.output_ports]
            results = [
                gp.Tensor(compiled.query_logical_tensor(lt.id), engine, array)
                for lt, (array, _) in zip(partition.output_ports, guarded, strict=True)
            ]
            compiled.execute(stream, tensors, results, scratchpad=_poisoned(compiled.scratchpad_nbytes))
            first = [np.array(array) for array, _ in guarded]
            assert all(np.all(guard == 0xA5) for _, guards in guarded for guard in guards)
            compiled.execute(stream, tensors, results, scratchpad=_poisoned(compiled.scratchpad_nbytes))
            for (array, _), before in zip(guarded, first, strict=True):
                assert array.tobytes() == before.tobytes()


def _guarded(lt):
    """An array for a logical tensor, in the middle of poisoned bytes that it returns too."""
    size = lt.nbytes
    raw = np.full(size + 256, 0xA5, np.uint8)
    start = 128 - raw.ctypes.data % 64
    array = raw[start : start + size].view(lt.dtype.numpy).reshape(lt.shape)
    return array, (raw[:start], raw[start + size :])


def _poisoned(nbytes):
    raw = np.full(nbytes + 64, 0xFF, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + nbytes] if nbytes else raw[start : start + 1]
