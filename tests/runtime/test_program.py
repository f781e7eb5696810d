"""Programs: arguments that are refused, threads and the arena, and when a run is shared."""

import numpy as np
import pytest

import graphpool as gp
from graphpool._kernels.core._team import Team
from graphpool._kernels.eltwise.eltwise import TASK_SIZE, EltwiseBuilder
from graphpool._kernels.norm.norm import layer_norm
from graphpool._kernels.norm.softmax import softmax
from graphpool.runtime._program import ARENA, FIRST_EXTERNAL, Program
from graphpool.schedule.control import ListedCall


def relu(size):
    """dst, src: f32 vectors of `size` elements, in tasks of TASK_SIZE."""
    builder = EltwiseBuilder((size,))
    builder.store(0, "f32", (1,), builder.unary("relu", builder.load(1, "f32", (1,))))
    return builder.build()


def add_first(size):
    """dst, src: adds to `size` elements of dst the first one of src, in tasks of TASK_SIZE."""
    builder = EltwiseBuilder((size,))
    total = builder.binary("add", builder.load(0, "f32", (1,)), builder.load(1, "f32", (0,)))
    builder.store(0, "f32", (1,), total)
    return builder.build()


def test_bases_are_checked():
    with pytest.raises(gp.InvalidArgumentError, match="base"):
        Program([(relu(4), [(FIRST_EXTERNAL, 0), (FIRST_EXTERNAL + 1, 0)])], 0, 1)


@pytest.mark.parametrize("threads", [0, -1])
def test_threads_are_checked(threads):
    with pytest.raises(gp.InvalidArgumentError, match="threads"):
        Program([], 0, 0, threads=threads)


@pytest.mark.parametrize(("tasks", "threads", "expected"), [(1, 8, 1), (3, 8, 3), (8, 3, 3), (5, 1, 1)])
def test_threads_are_no_more_than_tasks(tasks, threads, expected):
    program = Program([(relu(tasks * TASK_SIZE), [(2, 0), (3, 0)])], 0, 2, threads=threads)
    assert (program.nthreads, program.trials) == (expected, 3 if expected > 1 else -1)


def test_an_empty_program_has_one_thread():
    program = Program([], 10, 0, threads=4)
    assert (len(program), program.nthreads, program.arena_nbytes) == (0, 1, 10)


def test_every_thread_has_scratch_of_its_own_behind_the_arena():
    call = layer_norm((6, 100), 1)
    args = [(ARENA, 0), (FIRST_EXTERNAL, 0)]
    assert call.scratch_nbytes == 400
    assert Program([(call, args)], 100, 1).arena_nbytes == 128 + 400
    assert Program([(call, args)], 100, 1, threads=4).arena_nbytes == 128 + 3 * 448 + 400


def test_a_program_decides_for_good_after_its_trials():
    x, y = (gp.LogicalTensor(i, "f32", (3 * TASK_SIZE,)) for i in range(2))
    partition = gp.Partition.from_op(gp.Op(0, "ReLU", [x], [y]))
    with gp.Engine(threads=2) as engine, gp.Stream(engine) as stream, partition.compile([x], [y], engine) as compiled:
        source = gp.Tensor(x, engine, np.linspace(-1, 1, 3 * TASK_SIZE, dtype=np.float32))
        for _ in range(4):
            [result] = compiled.execute(stream, [source])
            np.testing.assert_array_equal(result.numpy(), np.maximum(source.numpy(), 0))
        assert compiled.program.trials in (-1, 0)


def test_the_kernels_of_a_program_are_named():
    program = Program([(softmax((2, 8), 1), [(2, 0), (3, 0)])], 0, 2)
    assert "softmax" in repr(program)
    assert [call.kernel.name for call in program.calls] == ["f32_softmax"]


@pytest.mark.parametrize("threads", [2, 8, 9, 40, 130])
def test_more_threads_than_processors_run_each_task_once_and_steps_in_order(threads):
    """Each step adds the first element of the array that the one before changed: numbers tell what ran, and when."""
    tasks = [300, 1, 7, 64, 2, 0, 1, 150, 17, 3]
    arrays = [np.ones(300 * TASK_SIZE, np.float32) for _ in range(2)]
    steps = [(add_first(n * TASK_SIZE), [(2 + k % 2, 0), (3 - k % 2, 0)]) for k, n in enumerate(tasks)]
    program = Program(steps, 0, 2, threads=threads)
    assert program.nthreads == threads
    team = Team(threads)
    for repeat in range(6):
        program.trials = 0 if repeat % 2 else 1  # from the start, and from a task within a step
        for array in arrays:
            array[:] = 1
        program.time_runs([0, 0, *[array.ctypes.data for array in arrays]], team, 1)
        expected = [np.ones(300), np.ones(300)]  # of each task
        for k, n in enumerate(tasks):
            expected[k % 2][:n] += expected[1 - k % 2][0]
        for array, values in zip(arrays, expected, strict=True):
            np.testing.assert_array_equal(array.reshape(300, -1), np.repeat(values[:, None], TASK_SIZE, 1))


@pytest.mark.parametrize("threads", [2, 8, 9, 40, 130])
def test_more_threads_than_processors_run_each_task_of_streams_once_and_in_order(threads):
    """Streams 0 and 1 read one another's arrays, 2 and 3 have two each: numbers tell what ran, and when."""
    tasks = [300, 17, 2, 64, 1, 150, 3, 0, 40, 9, 33, 128, 2, 70, 1, 20, 300, 5, 16, 8]
    arrays = [np.ones(300 * TASK_SIZE, np.float32) for _ in range(6)]
    steps, lists, ends = [], [[] for _ in range(4)], []
    for k, n in enumerate(tasks):
        stream, others = k % 4, lists[1 - k % 4] if k % 4 < 2 else []
        pair = (0, 1) if stream < 2 else (stream, stream + 2)
        to = stream if stream < 2 else len(lists[stream]) % 2
        ends.append((pair[to], pair[1 - to]))
        steps.append((add_first(n * TASK_SIZE), [(2 + end, 0) for end in ends[k]]))
        lists[stream].append(ListedCall((k,), ((1 - stream, len(others)),) if others else (), stream < 2))
    program = Program(steps, 0, len(arrays), threads=threads, streams=lists)
    team = Team(threads)
    for repeat in range(6):
        program.trials = 0 if repeat % 2 else 1  # from the start, and from a task within a step
        for array in arrays:
            array[:] = 1
        program.time_runs([0, 0, *[array.ctypes.data for array in arrays]], team, 1)
        expected = [np.ones(300) for _ in arrays]  # of each task
        for (to, source), n in zip(ends, tasks, strict=True):
            expected[to][:n] += expected[source][0]
        for array, values in zip(arrays, expected, strict=True):
            np.testing.assert_array_equal(array.reshape(300, -1), np.repeat(values[:, None], TASK_SIZE, 1))
    team.close()
