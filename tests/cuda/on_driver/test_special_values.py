"""Elementwise kinds on a GPU: NaN, infinities, denormals, zeros and the largest numbers as in the reference."""

import numpy as np
import pytest

import graphpool as gp
from graphpool.backends.cuda.support import supports
from graphpool.typing import DataType
from tests.cases.graphs import GraphBuilder
from tests.helpers.cuda_engine import kernels_of, run_partitions
from tests.helpers.kinds import BINARY, UNARY, accepted, fixed_result, required
from tests.helpers.partitions import run_reference
from tests.helpers.special_values import HUGE, NOT_FINITE, SMALL, assert_alike, special_array

SHAPE = (1100,)
ATTRS = {
    "GELU": [{"mode": "gelu_erf"}, {"mode": "gelu_tanh"}], "SoftPlus": [{"beta": beta} for beta in (1.0, 0.5, -1.5)],
    "Pow": [{"beta": beta} for beta in (0.0, 0.5, 2.0, -1.0, 1.5)], "Clamp": [{"min": -1.0, "max": 1.0}],
    "HardSigmoid": [{"alpha": 0.2, "beta": 0.5}], "Elu": [{"alpha": alpha} for alpha in (1.0, -0.5)],
    "LeakyReLU": [{"alpha": 0.1}], "Mod": [{"fmod": False}, {"fmod": True}],
}  # fmt: skip
ULPS = {"GELU": 1e6, "SoftPlus": 1e3, "Mish": 1e3}
"""Units of the last place, where results near 0 come of arguments with rounding errors."""
FLOOR = {"GELU": 1e-6, "HardSigmoid": 5e-7, "Mish": 1e-6}


def graph_of(kind, attrs):
    builder = GraphBuilder(graph=gp.Graph("gpu"))
    inputs = [builder.input(SHAPE) for _ in range(1 if kind in UNARY else 2)]
    result = builder.op(kind, *inputs, dtype=fixed_result(kind) or "f32", **attrs)
    return builder, result


def is_computed(kind):
    return "f32" in accepted(kind) and supports(graph_of(kind, ATTRS.get(kind, [required(kind)])[0])[0].graph.ops[0])


KINDS = [kind for kind in (*UNARY, *BINARY) if is_computed(kind)]


@pytest.fixture(scope="module", autouse=True)
def prepared(twins):
    """The host forms of all kernels, compiled many at a time."""
    graphs = [graph_of(kind, attrs) for kind in KINDS for attrs in ATTRS.get(kind, [required(kind)])]
    shapes = dict.fromkeys(range(3), SHAPE)
    twins.add([kernel for builder, _ in graphs for kernel in kernels_of(builder.finish(), shapes)])


def test_most_kinds_are_there():
    assert len(KINDS) > 50


@pytest.mark.parametrize("kind", KINDS)
def test_kind(gpu, kind):
    for attrs in ATTRS.get(kind, [required(kind)]):
        builder, result = graph_of(kind, attrs)
        rng = np.random.default_rng(len(kind))
        values = {
            lt.id: special_array(rng, lt, SMALL + NOT_FINITE + HUGE, 0.6, low=-13, high=13) for lt in builder.inputs
        }
        partitions = builder.finish()
        with np.errstate(all="ignore"):
            expected = run_reference(builder.graph.ops, values)[result.id]
            found = run_partitions(partitions, values, gpu)[result.id]
            dtype = DataType(result.dtype)
            assert_alike(found, expected, dtype, ULPS.get(kind, 6.0), 0.0, FLOOR.get(kind, 1e-38))
