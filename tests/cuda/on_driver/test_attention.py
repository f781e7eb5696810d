"""Attention as one kernel of a GPU: the forms that the CPU's kernel computes, against the reference."""

import numpy as np
import pytest

import graphpool as gp
from tests.backends.cpu.products.test_attention import FUSED, SHAPES, attend, mask, repeated
from tests.backends.cpu.products.test_attention_gradient import HEADS, SCORES, content, hiding
from tests.cases.graphs import GraphBuilder
from tests.cases.inputs import random_inputs
from tests.cases.training import Training
from tests.helpers.cuda_engine import kernels_of, run_partitions
from tests.helpers.partitions import assert_close, run_reference


def with_post_op(g, **form):
    g.op("GELU", attend(g, **(SHAPES | form)))


def long(g, **form):
    attend(g, (2, 70, 72), (2, 150, 72), (2, 150, 67), [mask(70, 150)], **form)


def trained(g, **form):
    Training(g, **form).forward()


FORMS = {
    **{name: (with_post_op, form) for name, form in FUSED.items()},
    **{f"shared {n}": (repeated, form) for n, form in enumerate([{}, {"turned": True}, {"tail": ["GELU", "Abs"]}])},
    **{f"{scores}, {heads}": (trained, {**HEADS[heads], **form})
       for scores, form in SCORES.items() for heads in ("plain", "grouped") if scores != "dropout"},
    "tiles": (long, {}), "tiles in bf16": (long, {"dtype": "bf16"}),
}  # fmt: skip


class Case:
    def __init__(self, name):
        build, form = FORMS[name]
        g = GraphBuilder(graph=gp.Graph("gpu"))
        build(g, **form)
        self.partition = g.graph.merge_partitions(g.finish())
        rng = np.random.default_rng(len(name))
        self.inputs = random_inputs(g, rng, low=0.5) if build is not trained else self.small(g, rng)
        self.values = run_reference(self.partition.ops, self.inputs)

    def small(self, g, rng):
        return {lt.id: (hiding if lt.id % 2 else content)(rng, lt) for lt in g.inputs}

    def kernels(self):
        return kernels_of([self.partition], {number: value.shape for number, value in self.values.items()})


CASES = {name: Case(name) for name in FORMS}


@pytest.fixture(scope="module", autouse=True)
def prepared(twins):
    """The host forms of all kernels, compiled many at a time."""
    twins.add([kernel for case in CASES.values() for kernel in case.kernels()])


@pytest.mark.parametrize("name", CASES)
def test_form(driver, gpu, name):
    case = CASES[name]
    driver.seed(len(name))
    families = [kernel.family for kernel in case.kernels()]
    assert (families.count("attention"), families.count("softmax"), families.count("matmul")) == (1, 0, 0)
    found = run_partitions([case.partition], case.inputs, gpu)
    for port in case.partition.output_ports:
        assert_close(found[port.id], case.values[port.id], port.dtype, scale=64)
