"""Products of bf16 by tensor cores: sizes around tiles, operands turned round, post-ops."""

import numpy as np
import pytest

import graphpool as gp
from tests.cases.graphs import GraphBuilder
from tests.cases.inputs import random_inputs
from tests.helpers.cuda_engine import kernels_of, run_partitions
from tests.helpers.partitions import assert_close, run_reference


@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True)], ids=str)
@pytest.mark.parametrize("sizes", [(1, 1, 1), (64, 64, 16), (65, 70, 33), (17, 130, 31), (3, 5, 0)], ids=str)
def test_products_of_bf16(driver, gpu, sizes, turned):
    rows, cols, depth = sizes
    g = GraphBuilder(graph=gp.Graph("gpu"))
    a = g.input((2, depth, rows) if turned[0] else (2, rows, depth), "bf16")
    b = g.input((cols, depth) if turned[1] else (depth, cols), "bf16")
    product = g.op("MatMul", a, b, g.input((cols,), "bf16"), transpose_a=turned[0], transpose_b=turned[1])
    y = g.op("ReLU", product)
    [partition] = g.finish()
    values = random_inputs(g, np.random.default_rng(rows))
    expected = run_reference(g.graph.ops, values)
    [kernel] = kernels_of([partition], {number: value.shape for number, value in expected.items()})
    assert "mma.sync" in kernel.text
    driver.seed(rows + cols)
    assert_close(run_partitions([partition], values, gpu)[y.id], expected[y.id], gp.DataType.BF16)
