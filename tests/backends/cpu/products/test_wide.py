"""Products of float64: in float64 throughout, with bias and post-ops behind them."""

import numpy as np
import pytest

from tests.cases.graphs import GraphBuilder
from tests.helpers.partitions import run_partitions, run_reference

SHAPES = {
    "matrices": ((5, 70), (70, 33), {}),
    "one row": ((1, 64), (64, 64), {}),
    "a batch": ((3, 1, 6, 40), (2, 40, 17), {}),
    "vector on the left": ((40,), (2, 40, 9), {}),
    "vector on the right": ((2, 9, 40), (40,), {}),
    "both turned": ((40, 7), (9, 40), {"transpose_a": True, "transpose_b": True}),
    "no terms": ((4, 0), (0, 5), {}),
    "large": ((130, 300), (300, 600), {}),
}


@pytest.mark.parametrize("result", ["f64", "f32"])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("case", SHAPES.values(), ids=SHAPES)
def test_product(engine, case, has_bias, result):
    left, right, attrs = case
    g = GraphBuilder()
    a, b = g.input(left, "f64"), g.input(right, "f64")
    columns = right[-2 if attrs.get("transpose_b") else -1] if len(right) > 1 else 9
    more = [g.input((columns,), "f64")] if has_bias else []
    last = g.op("MatMul", a, b, *more, dtype=result, **attrs)
    [partition] = g.finish()
    rng = np.random.default_rng(0)
    values = {port.id: rng.standard_normal(port.shape) for port in g.inputs}
    wanted = run_reference(g.graph.ops, values)[last.id]
    found = run_partitions([partition], values, engine)[last.id]
    assert found.dtype == wanted.dtype
    tolerance = 1e-12 if result == "f64" else 1e-6
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance * 20)


def test_post_ops_behind_a_product(engine):
    g = GraphBuilder()
    a, b, c = (g.input(shape, "f64") for shape in ((6, 50), (50, 20), (6, 20)))
    last = g.op("Exp", g.op("Add", g.op("MatMul", a, b), c))
    rng = np.random.default_rng(1)
    values = {port.id: rng.standard_normal(port.shape) * 0.1 for port in g.inputs}
    wanted = run_reference(g.graph.ops, values)[last.id]
    partitions = g.finish()
    found = run_partitions(partitions, values, engine)[last.id]
    np.testing.assert_allclose(found, wanted, rtol=1e-13)
    ports = partitions[0].input_ports, partitions[0].output_ports
    with partitions[0].compile(*ports, engine) as compiled:
        assert any("f64_matmul" in name for name in compiled.implementations)
