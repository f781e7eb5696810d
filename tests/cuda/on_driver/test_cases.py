"""The rows of the CPU backend's table of cases that kernels of a GPU compute, against the reference."""

import numpy as np
import pytest

import graphpool as gp
from graphpool.backends.cuda.support import supports
from tests.cases.inputs import random_inputs
from tests.cases.workloads import CASES
from tests.helpers.cuda_engine import kernels_of, run_partitions
from tests.helpers.partitions import assert_close, run_reference

SAME_BUT_FOR_TYPES = {
    case.name.removesuffix("f32") + dtype for case in CASES if case.name.endswith("_f32") for dtype in ("bf16", "f16")
}
"""Elementwise kinds in other types: loads and stores are the same for all of them."""


def on_gpu(graph):
    """The same ops for engines of kind gpu."""
    found = gp.Graph("gpu", fpmath=graph.fpmath, prefer=graph.prefer)
    for op in graph.ops:
        found.add_op(op)
    return found


class Row:
    """A case as a graph for a GPU, and what the reference computes."""

    def __init__(self, case, seed):
        self.case = case
        builder = case.builder()
        builder.graph = on_gpu(builder.graph)
        inputs = random_inputs(builder, np.random.default_rng(seed), **case.bounds)
        self.partitions = builder.finish()
        self.values = run_reference(builder.graph.ops, inputs)
        self.inputs = {lt.id: inputs[lt.id] for lt in builder.inputs}

    @property
    def is_on_device(self):
        return all(partition.backend_name == "cuda" for partition in self.partitions)

    def kernels(self):
        return kernels_of(self.partitions, {number: value.shape for number, value in self.values.items()})


def is_computed(case):
    builder = case.builder()
    wanted = case.name not in SAME_BUT_FOR_TYPES - {"Add_bf16", "Exp_bf16", "Add_f16", "Exp_f16"}
    return wanted and all(supports(op) for op in builder.graph.ops)


ROWS = {case.name: Row(case, number) for number, case in enumerate(CASES) if is_computed(case)}


@pytest.fixture(scope="module", autouse=True)
def prepared(twins):
    """The host forms of all kernels, compiled many at a time."""
    twins.add([kernel for row in ROWS.values() for kernel in row.kernels()])


def test_most_kinds_are_there():
    assert len(ROWS) > 100
    assert all(row.is_on_device for row in ROWS.values())


@pytest.mark.parametrize("name", ROWS)
def test_case(driver, gpu, name):
    row = ROWS[name]
    driver.seed(sum(map(ord, name)))
    found = run_partitions(row.partitions, row.inputs, gpu)
    assert found
    ports = {lt.id: lt for partition in row.partitions for lt in partition.output_ports}
    for number, array in found.items():
        assert_close(array, row.values[number], ports[number].dtype, scale=row.case.scale)
