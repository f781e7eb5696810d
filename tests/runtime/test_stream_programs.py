"""Programs on several streams give the same bytes as on one, in memory that no two of them may spoil."""

import pickle
import threading

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import graphpool as gp
from graphpool.runtime.scheduling import POLICIES
from tests.cases.stream_graphs import branches, random_branches
from tests.cases.workloads import BY_NAME
from tests.helpers.memory import run_in_child, run_threads
from tests.helpers.whole_programs import compile_whole


def run_on(build, threads=1, runs=1, **how):
    """The outputs of a few runs, which must agree, and the streams that they ran on."""
    with compile_whole(build, threads, **how) as job, gp.Stream(job.engine) as stream:
        results = [job.run(stream) for _ in range(runs)]
        streams = job.compiled.program.streams
    assert all(result == results[0] for result in results)
    return results[0], 1 if streams is None else streams.nstreams


@pytest.mark.parametrize("name", BY_NAME)
def test_every_workload_gives_the_same_bytes(name):
    case = BY_NAME[name]
    expected, _ = run_on(case.build, **case.bounds)
    assert run_on(case.build, 3, 2, schedule="list", streams=3, **case.bounds)[0] == expected


@example(382, (2, 2))  # the product is added to a sum of itself, on the tile
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 10_000), st.sampled_from([(2, 2), (3, 3), (5, 4)]))
def test_random_graphs_give_the_same_bytes_with_every_policy(seed, size):
    threads, streams = size
    build = random_branches(seed)
    expected, _ = run_on(build)
    for policy in POLICIES:
        assert run_on(build, threads, 3, schedule=policy, streams=streams)[0] == expected


@pytest.mark.parametrize("policy", POLICIES[1:-1])
def test_every_policy_uses_its_streams(policy):
    expected, _ = run_on(branches)
    for streams in (2, 3):
        assert run_on(branches, 4, 20, schedule=policy, streams=streams) == (expected, streams)


@pytest.mark.parametrize("trials", [0, 3])
@pytest.mark.parametrize("seed", range(6))
def test_without_cached_constants_other_steps_run_and_give_the_same_bytes(seed, trials):
    gp.set_constant_tensor_cache(False)
    try:
        build = random_branches(seed)
        expected, _ = run_on(build)
        with compile_whole(build, 3, schedule="list", streams=3) as job, gp.Stream(job.engine) as stream:
            for _ in range(4):
                job.compiled.program.trials = trials
                assert job.run(stream) == expected
    finally:
        gp.set_constant_tensor_cache(True)


@pytest.mark.parametrize("trials", [1, 3])
def test_runs_that_begin_alone_give_the_same_bytes(trials):
    expected, _ = run_on(branches)
    with compile_whole(branches, 3, schedule="list", streams=3) as job, gp.Stream(job.engine) as stream:
        for _ in range(10):
            job.compiled.program.trials = trials
            assert job.run(stream) == expected


def test_streams_never_outnumber_the_threads():
    assert run_on(branches, 1, schedule="list", streams=4)[1] == 1
    assert run_on(branches, 2, schedule="list", streams=4)[1] == 2


def test_threads_share_one_program_and_one_stream():
    expected, _ = run_on(branches)
    with compile_whole(branches, 3, schedule="list", streams=3) as job, gp.Stream(job.engine) as stream:

        def work(i):
            for _ in range(30):
                assert job.run(stream) == expected

        run_threads(4, work)


def test_a_forked_child_computes_the_same():
    expected, _ = run_on(branches)
    with compile_whole(branches, 3, schedule="list", streams=3) as job, gp.Stream(job.engine) as stream:
        done = threading.Event()

        def check():
            assert [job.run(stream) for _ in range(5)] == [expected] * 5

        def work(i):
            try:
                if i == 0:
                    for _ in range(5):
                        run_in_child(check)
                while i != 0 and not done.is_set():
                    assert job.run(stream) == expected
            finally:
                done.set()

        run_threads(2, work)


def test_the_arena_is_planned_for_the_schedule():
    """Towers that run at once cannot share bytes; the sequential need stands beside."""
    with compile_whole(branches, 2, schedule="list", streams=2) as job:
        alone_nbytes = job.compiled.sequential_nbytes
        assert alone_nbytes < job.compiled.scratchpad_nbytes < 3 * alone_nbytes
        with compile_whole(branches, 2) as alone:
            assert alone.compiled.scratchpad_nbytes == alone.compiled.sequential_nbytes == alone_nbytes
            more = job.compiled.predict_peak() - alone.compiled.predict_peak()
        assert more == job.compiled.scratchpad_nbytes - alone_nbytes


def test_steps_are_named_in_issue_order():
    with compile_whole(branches, 2, schedule="list", streams=2) as job:
        program, compiled = job.compiled.program, job.compiled
        names = [name.split()[0] for name in compiled.implementations]
        assert names == [f"{call.kernel.name}:{call.kernel.isa}" for call in program.calls]
        kinds = {op.id: op.kind for op in compiled.partition.ops}
        assert {kinds[i] for i, n in zip(compiled.step_ops, names, strict=True) if "softmax" in n} == {"SoftMax"}


def test_inplace_ports_hold_for_the_streams():
    """The input of two branches is overwritten by neither, unless one always ends before the other."""

    def build(g):
        x = g.input((64, 64))
        for _ in range(2):
            g.op("Sigmoid", g.op("SoftMax", g.op("Sigmoid", x), axis=-1))

    with compile_whole(build, 2, schedule="list", streams=2) as job:
        assert job.compiled.program.streams.nstreams == 2
        assert job.compiled.inplace_ports == ()


def test_unknown_schedules_are_refused():
    x, y = gp.LogicalTensor(0, "f32", (4,)), gp.LogicalTensor(1, "f32", (4,))
    partition = gp.Partition.from_op(gp.Op(0, "ReLU", [x], [y]))
    with gp.Engine(threads=2) as engine:
        with pytest.raises(gp.InvalidArgumentError, match="accepted: sequential, wavefront") as caught:
            partition.compile([x], [y], engine, schedule="best")
        assert caught.value.schedule == "best"
        for streams in (0, True, "two"):
            with pytest.raises(gp.InvalidArgumentError, match="streams"):
                partition.compile([x], [y], engine, schedule="list", streams=streams)


def test_a_model_reports_the_sequential_peak_beside_its_own():
    from graphpool.runtime.executable import Executable
    from graphpool.runtime.model_form import ModelForm
    from graphpool.runtime.scheduling import ScheduleOptions

    x = gp.LogicalTensor(0, "f32", (128, 64))
    towers = [gp.LogicalTensor(k, "f32", (128, 64)) for k in range(1, 9)]
    y = gp.LogicalTensor(9, "f32", (128, 256))
    graph = gp.Graph("cpu")
    for k in range(4):
        graph.add_op(gp.Op(2 * k, "SoftMax", [x], [towers[2 * k]], axis=-1))
        graph.add_op(gp.Op(2 * k + 1, "SoftMax", [towers[2 * k]], [towers[2 * k + 1]], axis=0))
    graph.add_op(gp.Op(8, "Concat", towers[1::2], [y], axis=1))
    graph.finalize()
    form = ModelForm(graph, {}, {"x": 0}, {"y": 9}, {})
    value = np.random.default_rng(0).standard_normal((128, 64)).astype(np.float32)
    with gp.Engine(threads=2) as engine:
        alone = Executable(form, engine)
        expected = alone.run({"x": value})["y"]
        both = Executable(form, engine, options=ScheduleOptions("list", 2))
        before = engine.stats().current_nbytes
        np.testing.assert_array_equal(both.run({"x": value})["y"], expected)
        assert (alone.streams, both.streams) == (1, 2)
        assert both.sequential_arena_nbytes == alone.arena_nbytes == alone.sequential_arena_nbytes
        assert engine.stats().current_nbytes - before == both.arena_nbytes > alone.arena_nbytes
        both.close()
        alone.close()


def test_pickles_keep_the_streams():
    with compile_whole(branches, 3, schedule="list", streams=3) as job, gp.Stream(job.engine) as stream:
        expected = job.run(stream)
        copy = pickle.loads(pickle.dumps(job.compiled))
        with copy.engine, copy:
            assert copy.program.streams.nstreams == 3
            sources = [gp.Tensor(t.lt, copy.engine, t.numpy()) for t in job.inputs]
            with gp.Stream(copy.engine) as other:
                assert [t.numpy().tobytes() for t in copy.execute(other, sources)] == expected
