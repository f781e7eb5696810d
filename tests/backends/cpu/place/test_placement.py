"""Places in the arena: temporaries and the scratch of kernels share bytes only when their steps lie apart."""

from itertools import pairwise

import numpy as np
import pytest

import graphpool as gp
from graphpool._kernels.norm.norm import layer_norm
from graphpool.backends.cpu.lower.steps import Step
from graphpool.backends.cpu.lower.values import Buffer, Value
from graphpool.backends.cpu.place.link import _with_scratch
from graphpool.backends.cpu.place.placement import find_temporaries
from graphpool.runtime._program import ARENA, FIRST_EXTERNAL, Program, count_scratch, count_threads
from graphpool.typing import DataType
from tests.cases.graphs import GraphBuilder
from tests.cases.inputs import random_inputs
from tests.helpers.partitions import assert_close, run_partitions, run_reference


def chain(rows, columns, count):
    """Layer norms one behind another, each from a temporary into the next."""
    call = layer_norm((rows, columns), 1)
    ends = Buffer(FIRST_EXTERNAL, rows * columns * 4), Buffer(FIRST_EXTERNAL + 1, rows * columns * 4)
    between = [Buffer(ARENA, rows * columns * 4) for _ in range(count - 1)]
    buffers = [ends[0], *between, ends[1]]
    values = [Value(DataType.F32, (rows, columns), (columns, 1), buffer) for buffer in buffers]
    return [Step(call, (target, source), "norm", (), k) for k, (source, target) in enumerate(pairwise(values))]


@pytest.mark.parametrize("threads", [1, 3, 64])
@pytest.mark.parametrize("count", [2, 5])
def test_scratch_is_a_temporary_of_its_step(threads, count):
    steps = chain(40, 200, count)
    nthreads = count_threads([step.call for step in steps], threads)
    steps = _with_scratch(steps, nthreads)
    temporaries = find_temporaries(steps)
    places, nbytes = temporaries.plan()
    offsets = temporaries.offsets(places)
    for step in steps:
        assert step.scratch.nbytes == count_scratch(800, nthreads)
        mine = [value.buffer for value in step.args if value.buffer.base == ARENA]
        for buffer in [*mine, step.scratch]:
            assert 0 <= offsets[buffer] <= nbytes - buffer.nbytes
        for buffer in mine:
            first, second = sorted([buffer, step.scratch], key=offsets.get)
            assert offsets[first] + first.nbytes <= offsets[second]
    live = [sum(value.buffer.nbytes for value in step.args if value.buffer.base == ARENA) for step in steps]
    assert nbytes <= max(live) + steps[0].scratch.nbytes + 64


@pytest.mark.parametrize("nthreads", [1, 2, 7])
def test_threads_have_cache_lines_of_their_own(nthreads):
    assert count_scratch(400, nthreads) == (nthreads - 1) * 448 + 400
    assert count_scratch(0, nthreads) == 0


def test_a_program_uses_the_scratch_where_it_is_told():
    """With guard bytes around it: the kernel writes nowhere else."""
    call = layer_norm((6, 100), 1)
    program = Program([(call, [(FIRST_EXTERNAL, 0), (FIRST_EXTERNAL + 1, 0)])], 4096, 2, scratch=[1024])
    assert program.arena_nbytes == 4096
    x, y = (gp.LogicalTensor(k, "f32", (6, 100)) for k in range(2))
    partition = gp.Partition.from_op(
        gp.Op(0, "LayerNorm", [x], [y], use_affine=False, keep_stats=False, begin_norm_axis=1)
    )
    with gp.Engine(threads=1) as engine, partition.compile([x], [y], engine, scratch="caller") as compiled:
        data = np.random.default_rng(0).standard_normal((6, 100)).astype(np.float32)
        raw = np.full(compiled.scratchpad_nbytes + 192, 7, np.uint8)
        start = 64 - raw.ctypes.data % 64
        pad = raw[start : start + compiled.scratchpad_nbytes]
        [result] = compiled.execute(gp.Stream(engine), [gp.Tensor(x, engine, data)], scratchpad=pad)
        expected = (data - data.mean(1, keepdims=True)) / np.sqrt(data.var(1, keepdims=True) + 1e-5)
        np.testing.assert_allclose(result.numpy(), expected, rtol=1e-4, atol=1e-4)
        assert (raw[:start] == 7).all()
        assert (raw[start + compiled.scratchpad_nbytes :] == 7).all()


@pytest.mark.parametrize("mode", ["SoftMax", "LogSoftmax", "LayerNorm", "GroupNorm"])
@pytest.mark.parametrize("is_needed", [False, True], ids=["dies", "is read again"])
def test_norms_write_over_what_they_are_of(mode, is_needed):
    """Between two reshapes by axes of one element, where nobody reads that again."""
    shape, nbytes = (2, 8, 64, 64), 2 * 8 * 64 * 64 * 4
    norm_attrs = {"use_affine": False, "keep_stats": False}
    attrs = {"LayerNorm": norm_attrs, "GroupNorm": norm_attrs | {"groups": 2}}.get(mode, {"axis": -1})
    b = GraphBuilder()
    before = b.op("StaticReshape", b.op("Exp", b.input(shape)), shape=(1, *shape), special_zero=False)
    source = b.op("StaticReshape", before, shape=shape, special_zero=False)
    scores = b.op("StaticReshape", b.op(mode, source, **attrs), shape=(1, *shape), special_zero=False)
    results = [b.op("StaticTranspose", scores, order=[0, 1, 2, 4, 3])]
    if is_needed:
        results += [b.op("StaticTranspose", source, order=[0, 1, 3, 2])]
    partition = b.graph.merge_partitions(b.finish())
    values = random_inputs(b, np.random.default_rng(0))
    expected = run_reference(partition.ops, values)
    with gp.Engine(threads=1) as engine:
        actual = run_partitions([partition], values, engine)
        with partition.compile(partition.input_ports, partition.output_ports, engine) as compiled:
            assert 1 + is_needed <= compiled.scratchpad_nbytes / nbytes < 1.1 + is_needed
    for result in results:
        assert_close(actual[result.id], expected[result.id], result.dtype, scale=16)
