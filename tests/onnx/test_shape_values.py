"""Nodes that compute with shapes give, of sizes that may vary, what ONNX's evaluator gives of plain numbers."""

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from graphpool._size_program import SizeProgram
from graphpool._sizes import Trace
from graphpool.onnx.node import make_node
from graphpool.onnx.shape_values import ShapeArray, compute_shapes, shape_array
from tests.helpers.onnx_models import node_model


def ints(*values, dtype=np.int64):
    return np.array(values, dtype)


V, W = ints(6, 4, 10), ints(3, 4, 5)
CASES = {
    "Gather": [([V, ints(2, 0)], {}), ([V, np.int64(1)], {}), ([V, np.int64(-1)], {"axis": 0}), ([W, ints(1)], {})],
    "Concat": [([V, W], {"axis": 0}), ([V, ints(1)], {"axis": -1})],
    "Unsqueeze": [([np.int64(7), ints(0)], {}), ([V, ints(0, 2)], {})],
    "Squeeze": [([ints(7), ints(0)], {}), ([ints(7)], {})],
    "Reshape": [([V, ints(3, 1)], {}), ([V, ints(-1)], {}), ([V, ints(0)], {})],
    "Slice": [
        ([V, ints(1), ints(3)], {}), ([V, ints(-2), ints(2**62), ints(0)], {}),
        ([V, ints(0), ints(9), ints(0), ints(2)], {}),
    ],
    "Cast": [([V], {"to": 7}), ([V], {"to": 6}), ([V], {"to": 1}), ([V.astype(np.int32)], {"to": 7})],
    "Identity": [([V], {})],
    "Where": [([np.array([True, False, True]), V, W], {})],
    "Add": [([V, W], {}), ([V, ints(1)], {})], "Sub": [([V, W], {})], "Mul": [([V, W], {})],
    "Div": [([V, W], {}), ([-V, W], {}), ([V, -W], {})], "Mod": [([V, W], {}), ([-V, W], {}), ([V, -W], {})],
    "Neg": [([V], {})], "Abs": [([-V], {})], "Min": [([V, W], {})], "Max": [([V, W, ints(5)], {})],
    "Equal": [([V, W], {})], "Less": [([V, W], {})], "Greater": [([V, W], {})], "LessOrEqual": [([V, W], {})],
    "GreaterOrEqual": [([V, W], {})],
    "ReduceProd": [([V, ints(0)], {}), ([V], {"keepdims": 0})], "ReduceSum": [([V, ints(-1)], {})],
    "ReduceMax": [([V], {})], "ReduceMin": [([V, ints(0)], {"keepdims": 0})],
}  # fmt: skip
ALL = [(kind, inputs, attrs) for kind, cases in CASES.items() for inputs, attrs in cases]
TABLE = np.arange(24, dtype=np.int32).reshape(2, 3, 4)


def evaluate(kind, inputs, attrs):
    model, given = node_model(kind, [np.asarray(x) for x in inputs], opset=18, **attrs)
    return ReferenceEvaluator(model).run(None, given)[0]


def varying(array, trace):
    """The array with each element a size."""
    sizes = np.array([trace.symbol(int(x)) for x in array.reshape(-1)] + [None], object)[:-1]
    return ShapeArray(sizes.reshape(array.shape), array.dtype)


def compute(kind, contents, attrs):
    node = make_node(kind, [f"x{k}" for k in range(len(contents))], ["y"], "", **attrs)
    return compute_shapes(node, contents, 18)


def plain(found, values):
    """The array for the values of the symbols."""
    if not isinstance(found, ShapeArray):
        return found
    return np.array([values.of(x) for x in found.items.reshape(-1)], found.dtype).reshape(found.shape)


@pytest.mark.parametrize(("kind", "inputs", "attrs"), ALL)
def test_the_data_may_vary(kind, inputs, attrs):
    where, trace = int(kind == "Where"), Trace()
    contents = [np.asarray(x) for x in inputs]
    contents[where] = varying(contents[where], trace)
    [found] = compute(kind, contents, attrs)
    program = SizeProgram(trace)
    now = np.asarray(inputs[where]).reshape(-1)
    accepted = 0
    for change in (0, 1, 2):
        values = program.compute((now + change * np.sign(now)).tolist())
        if values is None:
            continue
        accepted += 1
        others = list(inputs)
        others[where] = (now + change * np.sign(now)).reshape(np.shape(inputs[where])).astype(now.dtype)
        wanted = evaluate(kind, others, attrs)
        result = plain(found, values)
        assert result.dtype == wanted.dtype
        np.testing.assert_array_equal(result, wanted)
    assert accepted >= 1


@pytest.mark.parametrize(("kind", "inputs", "attrs"), [
    ("Gather", [TABLE, ints(1, dtype=np.int32)], {"axis": 1}), ("Gather", [TABLE, ints(1)], {}),
    ("Reshape", [TABLE, ints(4, 6)], {}), ("Slice", [TABLE, ints(1), ints(2)], {}),
    ("Unsqueeze", [TABLE, ints(1)], {}),
])  # fmt: skip
def test_what_is_not_the_data_may_vary(kind, inputs, attrs):
    trace = Trace()
    [found] = compute(kind, [inputs[0], varying(inputs[1], trace), *inputs[2:]], attrs)
    wanted = evaluate(kind, inputs, attrs)
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found, wanted)
    program = SizeProgram(trace)
    assert program.compute(inputs[1].tolist()) is not None
    assert program.compute((inputs[1] + 1).tolist()) is None


@pytest.mark.parametrize(("kind", "inputs", "attrs"), [
    ("Div", [V, ints(1, 0, 2)], {}), ("Mod", [V, ints(1, 0, 2)], {}), ("Mod", [-V, W], {"fmod": 1}),
    ("Cast", [V], {"to": 11}), ("Cast", [V * 2**22], {"to": 1}),
    ("Reshape", [V, ints(3)], {"allowzero": 1}), ("Gather", [V, ints(5)], {}),
    ("Concat", [V, W], {}), ("Slice", [V, ints(2), ints(0), ints(0), ints(-1)], {}), ("Sqrt", [V], {}),
    ("ReduceSum", [V], {"noop_with_empty_axes": 1}), ("ReduceSum", [V, ints(3)], {}), ("Split", [V], {}),
    ("Add", [V, np.float32(2)], {}), ("Add", [V, np.zeros(5000, np.int64)], {}), ("Squeeze", [V, ints(0)], {}),
])  # fmt: skip
def test_what_is_left_to_plain_numbers(kind, inputs, attrs):
    contents = [varying(np.asarray(inputs[0]), Trace()), *map(np.asarray, inputs[1:])]
    assert compute(kind, contents, attrs) is None


def test_parts_of_a_split():
    trace = Trace()
    data = varying(V, trace)
    node = make_node("Split", ["x", "s"], ["a", "b"], "")
    first, second = compute_shapes(node, [data, ints(1, 2)], 18)
    assert first.items.tolist() == data.items[:1].tolist()
    assert second.items.tolist() == data.items[1:].tolist()


def test_an_array_of_sizes_is_the_plain_one_for_numpy():
    trace = Trace()
    size = trace.symbol(5)
    array = shape_array([[size, 2], [3, size + 1]], np.int32)
    assert (array.shape, array.ndim, array.size, array.nbytes, array.dtype) == ((2, 2), 2, 4, 16, np.int32)
    assert isinstance(shape_array([1, 2]), np.ndarray)
    with pytest.raises(TypeError):
        _ = array == array
    program = SizeProgram(trace)
    assert program.compute([6]) is not None
    np.testing.assert_array_equal(np.asarray(array), [[5, 2], [3, 6]])
    assert np.asarray(array, np.float32).dtype == np.float32
    assert SizeProgram(trace).compute([6]) is None


@pytest.mark.parametrize(("kind", "attrs"), [("Mul", {}), ("Cast", {"to": 6}), ("Add", {})])
def test_numbers_beyond_int32_are_left_to_plain_numbers(kind, attrs):
    dtype = np.int64 if kind == "Cast" else np.int32
    small, large = ints(5, dtype=dtype), ints(2**31 - 1, dtype=dtype) + ints(kind == "Cast", dtype=dtype)
    trace = Trace()
    [found] = compute(kind, [varying(small, trace)] * (1 if kind == "Cast" else 2), attrs)
    assert found.dtype == np.int32
    assert SizeProgram(trace).compute([6]) is not None
    assert SizeProgram(trace).compute(large.tolist()) is None
    assert compute(kind, [varying(large, Trace())] * 1 + [large] * (kind != "Cast"), attrs) is None


def test_numbers_beyond_int64_are_left_to_plain_numbers():
    large = ints(2**40)
    assert compute("Mul", [varying(large, Trace()), large], {}) is None


REAL = np.float32([1, -2, 0])


@pytest.mark.parametrize(("kind", "other"), [("Add", REAL), ("Sub", REAL), ("Add", np.float32(7))])
def test_sums_of_whole_floats(kind, other):
    trace = Trace()
    data = np.float32([5, 6, 7])
    [found] = compute(kind, [varying(data, trace), np.asarray(other)], {})
    assert found.dtype == np.float32
    program = SizeProgram(trace)
    for values in (data, data + 3, data * 0):
        np.testing.assert_array_equal(
            plain(found, program.compute(values.astype(int).tolist())), evaluate(kind, [values, other], {})
        )
    assert program.compute([2**24 + 1, 6, 7]) is None


@pytest.mark.parametrize(("kind", "other"), [
    ("Add", np.float32([0.5, 1, 1])), ("Add", np.float32([-0.0, 1, 1])), ("Add", np.float32([2**24, 1, 1])),
    ("Add", np.float32([np.nan, 1, 1])), ("Mul", REAL), ("Add", np.float64([1, 1, 1])),
])  # fmt: skip
def test_floats_that_are_left_to_plain_numbers(kind, other):
    assert compute(kind, [varying(np.float32([5, 6, 7]), Trace()), other], {}) is None
