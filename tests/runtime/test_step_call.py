"""Programs on addresses: what is refused before anything runs, and arrays of other forms than planned."""

import numpy as np
import pytest

import graphpool as gp
from graphpool.runtime._step_call import Addresses, StepCall, StepPorts
from graphpool.runtime.described import Described

F32 = np.dtype(np.float32)


def compile_product(engine):
    x, y = gp.LogicalTensor(0, "f32", (5, 64)), gp.LogicalTensor(2, "f32", (5, 48))
    w = gp.LogicalTensor(1, "f32", (64, 48), property="constant")
    return gp.Partition.from_op(gp.Op(0, "MatMul", [x, w], [y])).compile([x, w], [y], engine, scratch="caller")


def test_numbers_and_constants_are_checked(engine):
    with compile_product(engine) as compiled, gp.Stream(engine) as stream:
        assert compiled.primitive.constant_parts
        with pytest.raises(gp.StateError, match="constant input 1"):
            StepPorts(compiled, stream, [None, None], [0, 1, 2], 3)
        weights = gp.Tensor(compiled.inputs[1], engine, np.ones((64, 48), np.float32))
        ports = StepPorts(compiled, stream, [None, weights], [0, 1, 2], 3)
        with pytest.raises(IndexError):
            StepCall(ports, compiled.program, Addresses(3))
        with pytest.raises(IndexError):
            Addresses(3).put(3, 0)


def test_a_product_runs_on_addresses(engine):
    with compile_product(engine) as compiled, gp.Stream(engine) as stream:
        w = np.linspace(-1, 1, 64 * 48, dtype=np.float32).reshape(64, 48)
        weights = gp.Tensor(compiled.inputs[1], engine, w)
        ports = StepPorts(compiled, stream, [None, weights], [0, 2, 1], 3)
        addresses = Addresses(4)
        addresses.put(2, weights.data_ptr)
        scratch = np.zeros(compiled.scratchpad_nbytes + 64, np.uint8)
        addresses.put(3, -(-scratch.ctypes.data // 64) * 64)
        x, y = np.full((5, 64), 2, np.float32), np.empty((5, 48), np.float32)
        wanted = [Described((5, 64), (64, 1), F32, x.nbytes), Described((5, 48), (48, 1), F32, y.nbytes)]
        addresses.bind((7, 8), {7: x, 8: y}, wanted, None)
        call = StepCall(ports, compiled.program, addresses)
        call()
        np.testing.assert_allclose(y, x @ w, rtol=1e-5, atol=1e-5)
    with pytest.raises(gp.StateError, match="closed"):
        call()


@pytest.mark.parametrize(
    "array", [np.zeros((3, 2)), np.zeros((2, 3), np.float32), np.zeros((2, 3), np.float32).T, np.zeros(6), b"bytes"]
)
def test_what_is_not_as_planned_is_left_to_a_tensor(engine, array):
    asked = []

    def tensor_of(number, given):
        asked.append((number, given is array))
        raise gp.InvalidShapeError("as a tensor says")

    addresses = Addresses(1)
    with pytest.raises(gp.InvalidShapeError):
        addresses.bind((5,), {5: array}, [Described((3, 2), (2, 1), F32, 24)], tensor_of)
    assert asked == [(5, True)]
