"""Moves of quantised tensors move bytes; what quantises again by the same numbers goes."""

import numpy as np
import pytest
from onnx import helper

import graphpool as gp
from graphpool.backends.cpu.match.swaps import BYTES_MOVED, swap
from graphpool.backends.cpu.match.undone import drop_undone
from graphpool.graph.completion import complete_shapes
from tests.cases.graphs import GraphBuilder
from tests.helpers.onnx_models import make_model
from tests.helpers.partitions import run_partitions, run_reference

SHAPE = (2, 4, 6)
NUMBERS = {"scales": [0.03], "zps": [117]}
MOVES = {
    "StaticTranspose": {"order": [2, 0, 1]},
    "StaticReshape": {"shape": [4, 12], "special_zero": False},
    "Slice": {"starts": [1], "ends": [3], "axes": [1]},
    "Expand": {"shape": [3, 2, 4, 6]},
    "Tile": {"repeats": [2, 1, 1]},
}


class Bytes(GraphBuilder):
    """A graph of quantised tensors."""

    def quantize(self, x, dtype="u8", **numbers):
        return self.op("Quantize", x, dtype=dtype, **(numbers or NUMBERS))

    def dequantize(self, x, **numbers):
        return self.op("Dequantize", x, dtype="f32", **(numbers or NUMBERS))

    def numbers(self):
        """Numbers that went through bytes."""
        return self.dequantize(self.quantize(self.input(SHAPE)))


def check(g, outputs):
    """Rewrite the ops, compare the results with the reference bit by bit, and return the kinds that are left."""
    g.graph.finalize()
    ops = [op for op in g.graph.ops if op.kind != "End"]
    wanted = [lt.id for lt in outputs]
    shapes = complete_shapes(ops)
    moved = drop_undone(swap(BYTES_MOVED, ops, shapes, wanted), shapes, wanted)
    rng = np.random.default_rng(0)
    values = {lt.id: random_input(rng, lt) for lt in g.inputs}
    expected, got = run_reference(ops, values), run_reference(moved, values)
    for number in wanted:
        np.testing.assert_array_equal(got[number], expected[number])
    return [op.kind for op in moved]


def random_input(rng, lt):
    if lt.dtype.value == "f32":
        return rng.standard_normal(lt.shape, np.float32)
    return rng.integers(0, 4 if lt.dtype.value == "s64" else 100, lt.shape).astype(lt.dtype.numpy)


@pytest.mark.parametrize("kind", MOVES)
def test_a_move_between_equal_scales_moves_bytes_alone(kind):
    g = Bytes()
    y = g.dequantize(g.quantize(g.op(kind, g.numbers(), **MOVES[kind])))
    assert check(g, [y]) == ["Quantize", kind, "Dequantize"]


def test_a_look_up_between_equal_scales_looks_up_bytes():
    g = Bytes()
    y = g.dequantize(g.quantize(g.op("Gather", g.numbers(), g.input((3,), "s64"), axis=1)))
    assert check(g, [y]) == ["Quantize", "Gather", "Dequantize"]


@pytest.mark.parametrize(
    ("dtype", "numbers"),
    [
        ("u8", {"scales": [0.05], "zps": [117]}),
        ("u8", {"scales": [0.03], "zps": [7]}),
        ("s8", {"scales": [0.03], "zps": [117]}),
    ],
    ids=["scale", "zero point", "type"],
)
def test_other_numbers_quantise_again(dtype, numbers):
    g = Bytes()
    moved = g.op("StaticTranspose", g.numbers(), order=[2, 0, 1])
    y = g.dequantize(g.quantize(moved, dtype, **numbers), **numbers)
    assert check(g, [y]) == ["Quantize", "StaticTranspose", "Dequantize", "Quantize", "Dequantize"]


def test_every_output_of_a_split_is_dequantised():
    g = Bytes()
    a, b = g.op("Split", g.numbers(), n=2, axis=1, split=[1, 3])
    y = g.op("ReLU", b)
    assert sorted(check(g, [a, y])) == ["Dequantize", "Dequantize", "Quantize", "ReLU", "Split"]


def test_readers_of_the_numbers_keep_them():
    g = Bytes()
    x = g.numbers()
    outputs = [g.op("ReLU", x), g.op("Tanh", g.op("StaticTranspose", x, order=[0, 2, 1]))]
    assert sorted(check(g, outputs)) == ["Dequantize", "Dequantize", "Quantize", "ReLU", "StaticTranspose", "Tanh"]


def test_bytes_and_numbers_that_leave_are_computed():
    g = Bytes()
    moved = g.op("StaticTranspose", g.numbers(), order=[0, 2, 1])
    again, twice = g.quantize(moved), g.quantize(moved)
    outputs = [moved, again, twice, g.dequantize(again)]
    assert sorted(check(g, outputs)) == ["Dequantize", "Dequantize", "Quantize", "Quantize", "StaticTranspose"]


def test_inputs_that_leave_again_are_computed():
    g = Bytes()
    assert check(g, [g.quantize(g.dequantize(g.input(SHAPE, "u8")))]) == ["Dequantize", "Quantize"]


@pytest.mark.parametrize(
    "numbers",
    [{"scales": [0.1, 0.2, 0.3, 0.4], "qtype": "per_channel", "axis": 1}, {"scales": [1e-38], "zps": [0]}],
    ids=["channels", "without precision"],
)
def test_scales_that_do_not_find_the_byte_again_stay(numbers):
    g = Bytes()
    x = g.dequantize(g.quantize(g.input(SHAPE), **numbers), **numbers)
    y = g.dequantize(g.quantize(x, **numbers), **numbers)
    assert check(g, [y]) == ["Quantize", "Dequantize"] * 2


@pytest.mark.parametrize("property_", ["constant", "undef"])
def test_constants_are_not_moved_ahead(property_):
    g = Bytes()
    weights = g.dequantize(g.input((6, 4), "u8", property=property_))
    y = g.op("MatMul", g.input((3, 4)), g.op("StaticTranspose", weights, order=[1, 0]))
    kinds = check(g, [y])
    assert kinds == (
        ["Dequantize", "StaticTranspose", "MatMul"]
        if property_ == "constant"
        else ["StaticTranspose", "Dequantize", "MatMul"]
    )


@pytest.mark.parametrize("kind", [*MOVES, "Gather"])
def test_a_partition_moves_bytes(kind):
    g = Bytes()
    x = g.dequantize(g.input(SHAPE, "u8"))
    moved = g.op("Gather", x, g.input((3,), "s64"), axis=1) if kind == "Gather" else g.op(kind, x, **MOVES[kind])
    y = g.quantize(moved)
    [partition] = g.finish()
    rng = np.random.default_rng(0)
    values = {lt.id: random_input(rng, lt) for lt in g.inputs}
    with gp.Engine(threads=1) as engine:
        with partition.compile(partition.input_ports, [y], engine) as compiled:
            assert not any("eltwise" in name for name in compiled.implementations)
        got = run_partitions([partition], values, engine)
    np.testing.assert_array_equal(got[y.id], run_reference(g.graph.ops, values)[y.id])


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_a_look_up_in_a_quantised_table_dequantises_what_it_finds(dtype):
    table = np.random.default_rng(0).integers(0, 100, (500, 16)).astype(dtype)
    nodes = [
        helper.make_node("DequantizeLinear", ["table", "s", "zero"], ["numbers"]),
        helper.make_node("Gather", ["numbers", "rows"], ["y"]),
    ]
    rows = np.array([[3, 499], [0, 3]])
    model = make_model(nodes, {"rows": rows}, ["y"], {"table": table, "s": np.float32(0.1), "zero": dtype(9)})
    with gp.onnx.load(model) as loaded:
        assert loaded.predict_peak() < 500 * 16 * 4  # the whole table in f32
        np.testing.assert_array_equal(loaded.run({"rows": rows})["y"], (table[rows] - np.float32(9)) * np.float32(0.1))
