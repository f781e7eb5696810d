"""Recorders: what they keep, what they refuse, and that interleavings which they force change no result."""

import threading

import pytest

import graphpool as gp
from graphpool.runtime._trace import Recorder, clock_ns, current
from graphpool.runtime.scheduling import POLICIES
from tests.cases.stream_graphs import branches, random_branches
from tests.helpers.memory import run_in_child, run_threads
from tests.helpers.whole_programs import compile_whole


@pytest.fixture
def recorder():
    made = Recorder()
    yield made
    made.stop()


def test_every_task_of_every_step_is_recorded_once(recorder):
    with compile_whole(branches, 3, schedule="list", streams=3) as job, gp.Stream(job.engine) as stream:
        program = job.compiled.program
        job.run(stream)
        recorder.start()
        begin = clock_ns()
        for _ in range(4):
            job.run(stream)
        recorder.stop()
        job.run(stream)  # recorded no more
        tasks = {}
        for serial, run, thread, step, thread_index, ntasks, start, end, trip in recorder.slices():
            assert (serial, thread, trip) == (program.serial, threading.get_ident(), 0)
            assert 0 <= thread_index < 3
            assert begin <= start <= end <= clock_ns()
            tasks[run, step] = tasks.get((run, step), 0) + ntasks
        assert tasks == {(run, k): program.calls[k].ntasks for run in range(1, 5) for k in _taken(job)}
        assert recorder.dropped == 0


def _taken(job):
    """The steps that runs take: not those that pack weights which are not kept, nor the products behind these."""
    names = job.compiled.implementations
    packing = {k for k, name in enumerate(names) if name.startswith("any_matmul_pack:")}
    return set(range(len(names))) - packing - {k + 1 for k in packing}


@pytest.mark.parametrize("threads", [1, 2])
def test_programs_without_streams_are_recorded_too(recorder, threads):
    with compile_whole(branches, threads) as job, gp.Stream(job.engine) as stream:
        recorder.start()
        job.run(stream)
        recorder.stop()
        assert {piece[3] for piece in recorder.slices()} == _taken(job)


def test_a_full_recorder_counts_what_it_drops():
    recorder = Recorder(capacity=3)
    with compile_whole(branches, 1) as job, gp.Stream(job.engine) as stream:
        job.run(stream)  # the first run packs the weights, in programs of their own
        recorder.start()
        job.run(stream)
        recorder.stop()
        assert len(recorder.slices()) == 3
        assert recorder.dropped == len(_taken(job)) - 3


def test_one_recorder_at_a_time(recorder):
    assert current() is None
    recorder.start()
    assert current() is recorder
    assert recorder.is_on
    with pytest.raises(gp.StateError, match="on already"):
        Recorder().start()
    recorder.stop()
    recorder.stop()
    assert current() is None
    assert not recorder.is_on


@pytest.mark.parametrize("arguments", [(0,), (-1,), (1, -1), (1, 10**9)])
def test_bad_sizes_are_refused(arguments):
    with pytest.raises(gp.InvalidArgumentError, match="capacity"):
        Recorder(*arguments)


def test_recorders_come_and_go_while_threads_run():
    with compile_whole(branches, 2, schedule="list", streams=2) as job, gp.Stream(job.engine) as stream:
        expected = job.run(stream)
        done = threading.Event()

        def work(i):
            try:
                if i == 0:
                    for _ in range(60):
                        recorder = Recorder(capacity=64)
                        recorder.start()
                        recorder.stop()
                        del recorder
                while i != 0 and not done.is_set():
                    assert job.run(stream) == expected
            finally:
                done.set()

        run_threads(3, work)


def test_a_child_has_no_recorder_on(recorder):
    recorder.start()

    def check():
        assert current() is None
        other = Recorder()
        other.start()
        other.stop()

    run_in_child(check)


@pytest.mark.parametrize("policy", POLICIES[1:])
@pytest.mark.parametrize("seed", range(3))
def test_forced_interleavings_give_the_same_bytes(policy, seed):
    """Every piece of a step starts up to 0.2 ms late, at random: 30 runs a policy and graph, on up to four streams."""
    build = random_branches(seed + 100)
    with compile_whole(build, 1) as job, gp.Stream(job.engine) as stream:
        expected = job.run(stream)
    recorder = Recorder(jitter_ns=200_000)
    with compile_whole(build, 4, schedule=policy, streams=4) as job, gp.Stream(job.engine) as stream:
        recorder.start()
        try:
            assert [job.run(stream) for _ in range(30)] == [expected] * 30
        finally:
            recorder.stop()


@pytest.mark.native  # a sanitizer of threads rightly calls it a race
def test_delays_spoil_what_a_wrong_memory_plan_shares(monkeypatch):
    """The test above would notice: buffers placed as if steps followed one another are overwritten too early."""
    import graphpool.backends.cpu.place.link as link
    from graphpool.backends.cpu.place import placement

    monkeypatch.setattr(link, "find_temporaries", lambda steps, *_: placement.find_temporaries(steps))
    with compile_whole(branches, 1) as job, gp.Stream(job.engine) as stream:
        expected = job.run(stream)
    recorder = Recorder(jitter_ns=300_000)
    gp.cache.primitive_cache().clear()
    try:
        with compile_whole(branches, 4, schedule="nimble", streams=4) as job, gp.Stream(job.engine) as stream:
            recorder.start()
            try:
                assert any(job.run(stream) != expected for _ in range(60))
            finally:
                recorder.stop()
    finally:
        gp.cache.primitive_cache().clear()
