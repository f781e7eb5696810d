"""Loops of programs: which steps a run takes, and what is refused."""

import numpy as np
import pytest

import graphpool as gp
from graphpool._kernels.core._team import Team
from graphpool._kernels.eltwise.eltwise import TASK_SIZE, EltwiseBuilder
from graphpool.runtime._program import FIRST_EXTERNAL, Program
from graphpool.runtime._row_loops import RowLoops

SIZE = 2 * TASK_SIZE


def plus_one():
    """dst, src: f32 vectors in two tasks."""
    builder = EltwiseBuilder((SIZE,))
    builder.store(0, "f32", (1,), builder.binary("add", builder.load(1, "f32", (1,)), builder.const(1.0)))
    return builder.build()


def chain(loops, threads=1):
    """Four steps between five tensors."""
    steps = [(plus_one(), [(FIRST_EXTERNAL + k + 1, 0), (FIRST_EXTERNAL + k, 0)]) for k in range(4)]
    return Program(steps, 0, 5, threads=threads, loops=loops)


@pytest.mark.parametrize("trials", [3, 0, -1])
@pytest.mark.parametrize("threads", [1, 3])
def test_each_trip_is_at_other_addresses(threads, trials):
    """Two loops of other lengths with a step in front: rows of the middle tensors come one after another."""
    row = 4 * SIZE
    program = chain([(1, 3, 3, (row,) * 4), (3, 4, 2, (row, row))], threads)
    program.trials = trials if threads > 1 else -1
    rng = np.random.default_rng(0)
    tensors = [rng.standard_normal((3, SIZE)).astype(np.float32) for _ in range(5)]
    expected = [tensor.copy() for tensor in tensors]
    expected[1][0] = expected[0][0] + 1
    expected[2] = expected[1] + 1
    expected[3] = expected[2] + 1
    expected[4][:2] = expected[3][:2] + 1
    team = Team(threads)
    try:
        program.time_runs([0, 0, *[tensor.ctypes.data for tensor in tensors]], team, 1)
    finally:
        team.close()
    for found, wanted in zip(tensors, expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_steps_of_trips_count():
    loops = RowLoops(7, [(1, 3, 4), (3, 4, 2)])
    assert (loops.count, loops.nturns) == (2, 1 + 8 + 2 + 3)
    assert loops.rows() == ((1, 3, 4), (3, 4, 2))
    assert loops.trips() == (0, 4, 4, 2, 0, 0, 0)


@pytest.mark.parametrize(
    "loops", [[(0, 2, 0)], [(0, 2, -1)], [(2, 2, 1)], [(3, 5, 1)], [(0, 2, 2), (1, 3, 2)], [(0, 1, 1 << 40)]]
)
def test_loops_are_checked(loops):
    with pytest.raises(gp.InvalidArgumentError, match=r"of a loop"):
        RowLoops(4, loops)


def test_a_run_has_a_most_of_steps():
    with pytest.raises(gp.InvalidArgumentError, match="steps of a run"):
        RowLoops(2, [(0, 1, 1 << 22), (1, 2, 2)])


def test_strides_are_checked():
    with pytest.raises(gp.InvalidArgumentError, match="strides of a loop"):
        chain([(0, 2, 2, (0,) * 3)])
