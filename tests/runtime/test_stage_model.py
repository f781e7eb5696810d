import pytest

from graphpool.runtime.costs import stage_latencies
from graphpool.runtime.machine import MEMORY_BANDWIDTH
from graphpool.runtime.stage_model import StageModel


def model(costs, speedups, threads=2):
    return StageModel(costs, speedups, [f"step {k}" for k in range(len(costs))], threads)


def test_streams_without_help_take_as_long_as_the_longest():
    stage = model([1.0, 2.0, 4.0], [1.0] * 3)
    assert stage(((0, 1), (2,))) == 4.0
    assert stage(((0, 1, 2),)) == 7.0


def test_a_row_by_itself_has_all_threads():
    assert model([6.0, 4.0], [2.0, 2.0])(((0, 1),)) == 5.0
    assert model([8.0], [4.0], threads=4)(((0,),)) == 2.0


def test_streams_that_end_early_help_the_others():
    stage = model([2.0, 6.0], [2.0, 2.0])
    assert stage(((0,), (1,))) == 2.0 + 4.0 / 2
    assert model([2.0, 6.0], [2.0, 1.0])(((0,), (1,))) == 6.0  # what cannot be shared is not


@pytest.mark.parametrize("threads", [2, 3, 4, 8])
def test_no_stage_beats_all_threads_on_all_the_work(threads):
    costs = [1.0, 3.0, 2.0, 5.0]
    stage = model(costs, [threads] * 4, threads)
    for streams in (((0, 1, 2, 3),), ((0, 1), (2, 3)), ((0,), (1, 2, 3))):
        assert sum(costs) / threads - 1e-12 <= stage(streams) <= sum(costs)


def test_a_measured_stage_is_taken_as_it_was_whatever_the_order_of_its_streams():
    key = model([1.0, 2.0, 0.0], [1.0] * 3).key(((0, 2), (1,)))
    stage_latencies().put(key, 0.5)
    stage = model([1.0, 2.0, 0.0], [1.0] * 3)
    assert stage(((1,), (0, 2))) == 0.5
    assert stage(((0,), (1,))) == 0.5  # what costs nothing leaves no trace
    assert stage(((0, 1),)) == 3.0
    assert StageModel([1.0, 2.0], [1.0] * 2, [], 2)(((0,), (1,))) == 2.0
    assert model([1.0, 2.0], [1.0] * 2, threads=3)(((0,), (1,))) == 2.0


def test_main_memory_is_read_no_faster_whatever_runs_at_once():
    streams = ((0,), (1,))
    assert StageModel([1.0, 2.0], [1.0] * 2, [], 2, [MEMORY_BANDWIDTH, 2 * MEMORY_BANDWIDTH])(streams) == 3.0
    assert StageModel([1.0, 2.0], [1.0] * 2, [], 2, [MEMORY_BANDWIDTH, 0.0])(streams) == 2.0
