"""Results do not depend on the number of threads, on who else runs, on a fork, or on the end of the process."""

import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import graphpool as gp
from graphpool.backends.cpu.products import choice
from graphpool.cache import compiled_partition_cache, primitive_cache
from tests.cases.workloads import BY_NAME
from tests.helpers.memory import run_in_child, run_threads
from tests.helpers.whole_programs import compile_whole

THREADS = (1, 2, 3, 5)
TIMEOUT_S = 60
CONV = {"pads_begin": [1, 1], "pads_end": [1, 1], "strides": [1, 1], "dilations": [1, 1]}


def _layers(g):
    """Steps of many tasks and of one in turn."""
    x = g.input((300, 96))
    for _ in range(4):
        y = g.op("LayerNorm", x, g.input((96,)), g.input((96,)), keep_stats=False, use_affine=True)
        y = g.op("GELU", g.op("MatMul", y, g.input((96, 96), property="constant"), g.input((96,))))
        total = g.op("ReduceSum", g.op("ReduceSum", y, axes=[0], keep_dims=True), axes=[1], keep_dims=True)
        x = g.op("Add", g.op("SoftMax", g.op("Add", y, total), axis=-1), x)


def _image(g):
    x = g.input((2, 8, 40, 40))
    for channels in (16, 8):
        w = g.input((channels, g.graph_shape(x)[1], 3, 3), property="constant")
        x = g.op("ReLU", g.op("Convolution", x, w, **CONV, data_format="NCX", weights_format="OIX"))
    g.op("MaxPool", x, kernel=[2, 2], strides=[2, 2], pads_begin=[0, 0], pads_end=[0, 0], data_format="NCX")


def _chain(g):
    x = g.input((200_003,))
    for kind in ("Exp", "Tanh", "Sigmoid", "Square"):
        x = g.op(kind, x)


def _product(g):
    g.op("ReLU", g.op("MatMul", g.input((260, 300)), g.input((300, 280), property="constant")))


LARGE = {"layers": _layers, "image": _image, "chain": _chain, "product": _product}


def run_on(build, threads, runs=1, **how):
    """The outputs of a few runs, which must agree."""
    with compile_whole(build, threads, **how) as job, gp.Stream(job.engine) as stream:
        results = [job.run(stream) for _ in range(runs)]
    assert all(result == results[0] for result in results)
    return results[0]


@pytest.mark.parametrize("name", BY_NAME)
def test_every_workload_gives_the_same_bytes_on_any_number_of_threads(name):
    case = BY_NAME[name]
    results = [run_on(case.build, threads, 3, **case.bounds) for threads in THREADS]
    assert results[1:] == results[:1] * 3


@pytest.mark.parametrize("name", LARGE)
def test_large_graphs_give_the_same_bytes_on_any_number_of_threads(name):
    results = [run_on(LARGE[name], threads, 10) for threads in THREADS]
    assert results[1:] == results[:1] * 3


@pytest.mark.parametrize("trials", [1, 3])
@pytest.mark.parametrize("name", LARGE)
def test_runs_that_begin_alone_give_the_same_bytes(name, trials):
    with compile_whole(LARGE[name], 3) as job, gp.Stream(job.engine) as stream:
        expected = job.run(stream)
        job.compiled.program.trials = trials
        assert [job.run(stream) for _ in range(5)] == [expected] * 5
        assert job.compiled.program.trials in (-1, 0)


@st.composite
def programs(draw):
    """A chain of ops over (rows, columns), as a list of names with the shape."""
    kinds = st.sampled_from(["Exp", "SoftMax", "ReduceMax", "MatMul", "Transpose", "Sigmoid"])
    return draw(st.integers(1, 300)), draw(st.integers(1, 70)), draw(st.lists(kinds, min_size=1, max_size=8))


def _build(program):
    rows, columns, kinds = program

    def build(g):
        x = g.input((rows, columns))
        for kind in kinds:
            shape = g.graph_shape(x)
            if kind == "SoftMax":
                x = g.op(kind, x, axis=-1)
            elif kind == "ReduceMax":
                x = g.op("Add", x, g.op(kind, x, axes=[0], keep_dims=True))
            elif kind == "MatMul":
                x = g.op(kind, x, g.input((shape[1], 33), property="constant"))
            elif kind == "Transpose":
                x = g.op("StaticTranspose", x, order=[1, 0])
            else:
                x = g.op(kind, x)

    return build


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(programs(), st.integers(2, 5))
def test_random_programs_give_the_same_bytes(program, threads):
    bounds = {"low": -1.0, "high": 0.5}
    assert run_on(_build(program), threads, 3, **bounds) == run_on(_build(program), 1, **bounds)


def test_eight_threads_on_two_streams_do_not_disturb_one_another():
    with ExitStack() as stack:
        jobs = [stack.enter_context(compile_whole(build, 3, seed)) for seed, build in enumerate(LARGE.values())]
        streams = [[stack.enter_context(gp.Stream(job.engine)) for _ in range(2)] for job in jobs]
        expected = [job.run(streams[k][0]) for k, job in enumerate(jobs)]

        def work(i):
            for n in range(24):
                k = (i + n) % len(jobs)
                assert jobs[k].run(streams[k][(i // 4 + n) % 2]) == expected[k]

        run_threads(8, work)


def test_a_program_of_single_tasks_starts_no_thread():
    with compile_whole(BY_NAME["ReLU_f32"].build, 4) as job, gp.Stream(job.engine) as stream:
        assert job.compiled.program.nthreads == 1
        job.run(stream)
        assert stream.team.nstarted == 0


def test_a_shared_run_starts_the_stream_s_threads_and_close_ends_them():
    with compile_whole(_layers, 3) as job:
        stream = gp.Stream(job.engine)
        job.run(stream)
        assert stream.team.nstarted == 2
        stream.close()
        assert (stream.team.nstarted, stream.team.is_closed) == (0, True)
        with pytest.raises(gp.StateError, match="closed"):
            job.run(stream)


def test_an_engine_of_one_thread_has_streams_without_a_team():
    with gp.Engine(threads=1) as engine, gp.Stream(engine) as stream:
        assert stream.team is None


def test_the_arena_holds_scratch_for_every_thread(monkeypatch):
    monkeypatch.setattr(choice, "_SMALL_NBYTES", -1)  # kernels that pack weights as they run take scratch
    compiled_partition_cache().clear()
    primitive_cache().clear()
    nbytes = []
    for threads in (1, 2, 5):
        with compile_whole(_layers, threads) as job:
            nbytes.append(job.compiled.scratchpad_nbytes)
            predicted = job.compiled.predict_peak()
            with gp.Stream(job.engine) as stream:
                job.run(stream)
            assert predicted == nbytes[-1] + sum(job.compiled.cached_constants().values())
    assert 0 < nbytes[1] - nbytes[0] <= (nbytes[2] - nbytes[0]) / 4 + 64


def test_a_child_forked_while_the_team_is_busy_computes_the_same():
    with compile_whole(_layers, 3) as job, gp.Stream(job.engine) as stream:
        expected = job.run(stream)
        done = threading.Event()

        def check():
            assert [job.run(stream) for _ in range(5)] == [expected] * 5
            stream.close()

        def work(i):
            try:
                if i == 0:
                    for _ in range(10):
                        run_in_child(check)
                while i != 0 and not done.is_set():
                    assert job.run(stream) == expected
            finally:
                done.set()

        run_threads(3, work)


@pytest.mark.native
@pytest.mark.parametrize("ending", ["", "stream.close()", "del stream", "raise SystemExit"])
def test_the_process_ends_while_a_daemon_thread_executes(ending):
    script = f"""
import threading
import numpy as np
import graphpool as gp
x, y = (gp.LogicalTensor(i, "f32", (1 << 20,)) for i in range(2))
graph = gp.Graph()
graph.add_op(gp.Op(0, "Tanh", [x], [y]))
graph.finalize()
[partition] = graph.get_partitions()
engine = gp.Engine(threads=3)
compiled = partition.compile([x], [y], engine)
stream = gp.Stream(engine)
started = threading.Event()
def work(stream):
    a, b = gp.Tensor(x, engine, np.ones(1 << 20, np.float32)), gp.Tensor(y, engine)
    try:
        while True:
            compiled.execute(stream, [a], [b])
            started.set()
    except gp.StateError:
        pass
threading.Thread(target=work, args=[stream], daemon=True).start()
started.wait()
print("ok", flush=True)
{ending}
"""
    root = Path(__file__).parents[2]
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=TIMEOUT_S, check=False, cwd=root
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "ok\n", "")
