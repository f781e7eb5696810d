"""The judge accepts rounding and nothing more; filling keeps products exact."""

import numpy as np

from graphpool.typing import DataType
from tests.benchdnn.fill import Filler
from tests.benchdnn.judge import Bound, bounds, compare
from tests.benchdnn.runner import is_mistrusted
from tests.cases.graphs import GraphBuilder

EXACT = Bound(0.0, 0.0)


def bound_of(build):
    """The bound of the last tensor of what `build` adds to a graph."""
    builder = GraphBuilder()
    last = build(builder)
    builder.graph.finalize()
    return bounds(builder.graph.ops)[last.id]


def test_products_of_integers_are_exact():
    bound = bound_of(lambda g: g.op("ReLU", g.op("MatMul", g.input((2, 3)), g.input((3, 4)))))
    assert bound == EXACT
    a = np.array([[1.0, 2.0]], np.float32)
    assert compare(a, a.copy(), DataType.F32, bound) is None
    assert "1 of 2" in compare(a, np.nextafter(a, np.array([[1.0, 9.0]], np.float32)), DataType.F32, bound)


def test_bounds_grow_with_inexact_ops():
    one = bound_of(lambda g: g.op("Exp", g.input((4,))))
    two = bound_of(lambda g: g.op("Exp", g.op("Exp", g.input((4,)))))
    assert 0 < one.relative < two.relative
    summed = bound_of(lambda g: g.op("Add", g.op("Exp", g.input((4,))), g.input((4,))))
    assert summed.of_largest >= one.relative


def test_half_precision_results_may_differ_by_their_epsilon():
    bound = bound_of(lambda g: g.op("Add", g.input((4,), "bf16"), g.input((4,), "bf16")))
    assert bound.relative == 2.0**-7


def test_shape_special_values_and_integers():
    e = np.array([np.nan, np.inf, 1.0], np.float32)
    assert compare(e.copy(), e, DataType.F32, EXACT) is None
    assert compare(np.array([np.nan, 5.0, 1.0], np.float32), e, DataType.F32, Bound(1e-3, 1e-3)) is not None
    assert "shape" in compare(e[:2], e, DataType.F32, EXACT)
    s = np.array([3, 4] * 9, np.int8)
    assert compare(s + 1, s, DataType.S8, EXACT) is not None
    assert compare(s + 1, s, DataType.S8, Bound(1e-6, 0.0)) is None
    assert compare(s + 2, s, DataType.S8, Bound(1e-6, 0.0)) is not None


def test_few_mismatches_pass_by_the_norm():
    e = np.ones(4096, np.float32)
    a = e.copy()
    a[:4] += 1e-3
    assert compare(a, e, DataType.F32, EXACT) is None
    a[:5] += 1e-3
    assert compare(a, e, DataType.F32, EXACT) is not None


def test_filled_products_are_exact_in_float32():
    g = GraphBuilder()
    g.op("MatMul", g.input((3, 40000)), g.input((40000, 2)))
    g.graph.finalize()
    [op] = g.graph.ops
    filler = Filler(g.graph, 0)
    a, b = (filler.fill(tensor, op, port, {}) for port, tensor in enumerate(op.inputs))
    assert np.abs(a).max() == 64
    assert np.abs(b).max() == 128
    assert np.abs(a).astype(np.float64).sum(axis=1).max() * 128 < 2**24 * 2


def test_results_that_say_little_are_mistrusted():
    zeros = np.zeros(1000, np.float32)
    assert is_mistrusted(zeros, DataType.F32)
    assert not is_mistrusted(zeros[:8], DataType.F32)
    assert not is_mistrusted(zeros.astype(bool), DataType.BOOLEAN)
    zeros[::10] = np.nan
    assert not is_mistrusted(zeros, DataType.F32)


def test_clamped_content_lies_on_both_sides_of_the_limits():
    g = GraphBuilder()
    g.op("Clamp", g.input((1000,)), min=-1.0, max=3.0)
    g.graph.finalize()
    [op] = g.graph.ops
    content = Filler(g.graph, 0).fill(op.inputs[0], op, 0, {})
    shares = [(content < -1).mean(), (content > 3).mean(), ((content > -1) & (content < 3)).mean()]
    assert min(shares) > 0.1


def test_masks_and_statistics():
    g = GraphBuilder()
    scores = g.op("Add", g.op("MatMul", g.input((4, 4)), g.input((4, 4))), g.input((4, 4)))
    g.op("SoftMax", scores, axis=-1)
    g.graph.finalize()
    filler = Filler(g.graph, 0)
    add = next(op for op in g.graph.ops if op.kind == "Add")
    mask = filler.fill(add.inputs[1], add, 1, {})
    assert np.array_equal(np.isneginf(mask), np.triu(np.ones((4, 4), bool), 1))
