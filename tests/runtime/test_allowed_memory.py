"""How much memory the process may take: planted control groups of both versions, ulimit, and what limits make of it."""

import pickle
import signal
import subprocess
import sys
import time
from functools import partial

import numpy as np
import pytest
from onnx import helper

import graphpool as gp
from graphpool.runtime import allowed_memory as module
from graphpool.runtime import group_room
from graphpool.runtime.allowed_memory import allowed_memory
from graphpool.runtime.cgroups import group_folders
from tests.helpers.memory import TIMEOUT_S, Worker
from tests.helpers.onnx_models import make_model

MIB = 2**20
NONE_V1 = "9223372036854771712\n"


def plant(folder, files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder, folder / "self", folder / "proc"


PHYSICAL = (None, "physical memory")


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, PHYSICAL),
        ({"self": "0::/\n"}, PHYSICAL),
        ({"self": "0::/a/b\n", "a/b/memory.max": "104857600\n"}, (100, "a/b/memory.max")),
        ({"self": "0::/a/b\n", "a/b/memory.max": "max\n", "a/memory.max": "52428800\n"}, (50, "a/memory.max")),
        ({"self": "0::/a/b\n", "a/b/memory.max": "104857600", "a/memory.max": "52428800"}, (50, "a/memory.max")),
        ({"self": "0::/a\n", "a/memory.max": "104857600\n", "a/memory.high": "52428800\n"}, (50, "a/memory.high")),
        ({"self": "0::/a\n", "a/memory.max": "104857600\n", "a/memory.high": "max\n"}, (100, "a/memory.max")),
        ({"self": "0::/seen/outside\n", "memory.max": "104857600\n"}, (100, "memory.max")),
        ({"self": "0::/a\n", "unified/a/memory.max": "104857600\n"}, (100, "unified/a/memory.max")),
        (
            {"self": "4:memory:/x\n", "memory/x/memory.limit_in_bytes": "104857600\n"},
            (100, "memory/x/memory.limit_in_bytes"),
        ),
        ({"self": "4:memory:/x\n", "memory/x/memory.limit_in_bytes": NONE_V1}, PHYSICAL),
        (
            {
                "self": "4:memory:/x/y\n",
                "memory/x/y/memory.limit_in_bytes": NONE_V1,
                "memory/x/memory.limit_in_bytes": "52428800\n",
            },
            (50, "memory/x/memory.limit_in_bytes"),
        ),
        (
            {
                "self": "4:memory:/x\n0::/x\n",
                "memory/x/memory.limit_in_bytes": "104857600\n",
                "x/memory.max": "52428800\n",
            },
            (50, "x/memory.max"),
        ),
        ({"self": "4:cpu:/x\n", "memory/x/memory.limit_in_bytes": "104857600\n"}, PHYSICAL),
        # malformed files limit nothing
        ({"self": "0::/a\n", "a/memory.max": ""}, PHYSICAL),
        ({"self": "0::/a\n", "a/memory.max": "a lot\n"}, PHYSICAL),
        ({"self": "0::/a\n", "a/memory.max": "-5\n"}, PHYSICAL),
        ({"self": "0::/a\n", "a/memory.max": "9" * 5000}, PHYSICAL),
        ({"self": "0::/a\n", "a/memory.max": b"\xff\xfe"}, PHYSICAL),
        ({"self": "0::/a\n", "a/memory.max/memory.max": "1"}, PHYSICAL),
        ({"self": "no colon\n\n4:memory\n0::/a\n", "a/memory.max": "104857600\n"}, (100, "a/memory.max")),
        ({"self": "0::/../../a\n", "memory.max": "104857600\n"}, (100, "memory.max")),
    ],
)
def test_the_least_of_all_groups_counts(tmp_path, files, expected):
    mib, source = expected
    found = allowed_memory(*plant(tmp_path, files))
    assert found.source.removeprefix(f"{tmp_path}/") == source
    assert found.counts_mapped == (mib is not None)
    if mib is not None:
        assert found.nbytes == mib * MIB


def test_auto_leaves_what_is_in_use_and_a_reserve(tmp_path):
    planted = plant(
        tmp_path, {"self": "0::/a\n", "a/memory.max": str(2000 * MIB), "proc/self/statm": "900000 25600 0 0 0 0 0\n"}
    )
    found = allowed_memory(*planted)
    assert (found.used_nbytes, found.reserve_nbytes) == (100 * MIB, 100 * MIB)
    assert found.auto_nbytes == 1800 * MIB


@pytest.mark.parametrize(
    ("files", "mib"),
    [
        ({"self": "0::/a\n", "a/memory.max": "2097152000", "a/memory.current": "314572800"}, 300),
        (
            {
                "self": "0::/a\n",
                "a/memory.max": "2097152000",
                "a/memory.current": "314572800",
                "a/memory.stat": "anon 1\ninactive_file 52428800\nactive_file 31457280\nshmem 5\n"
                "slab_reclaimable 20971520\nslab_unreclaimable 7\n",
            },
            200,
        ),
        (
            {
                "self": "4:memory:/a\n",
                "memory/a/memory.limit_in_bytes": "2097152000",
                "memory/a/memory.usage_in_bytes": "314572800",
                "memory/a/memory.stat": "inactive_file 1\ntotal_inactive_file 52428800\n",
            },
            250,
        ),
        ({"self": "0::/a\n", "a/memory.max": "2097152000", "a/memory.current": "1048576"}, 100),
    ],
)
def test_what_others_use_of_a_group_is_in_use(tmp_path, files, mib):
    found = allowed_memory(*plant(tmp_path, files | {"proc/self/statm": "900000 25600 0 0 0 0 0\n"}))
    assert found.used_nbytes == mib * MIB


@pytest.fixture
def container(tmp_path, monkeypatch):
    """A planted container of 512 MiB, of which the process takes 100."""
    files = {"self": "0::/a\n", "a/memory.max": str(512 * MIB), "proc/self/statm": "900000 25600 0 0 0 0 0\n"}
    planted = plant(tmp_path, files)
    monkeypatch.setattr(module, "allowed_memory", lambda: allowed_memory(*planted))
    return tmp_path


@pytest.mark.parametrize(
    ("value", "nbytes"),
    [("auto", 380 * MIB), (" AUTO ", 380 * MIB), ("50%", 256 * MIB), ("12.5 %", 64 * MIB), ("512MiB", 512 * MIB)],
)
def test_limits_of_engines(container, value, nbytes):
    with gp.Engine(memory_limit=value) as engine:
        assert (engine.memory_limit, engine.budget.limit) == (nbytes, nbytes)


def test_a_pickled_engine_looks_at_the_container_where_it_wakes_up(container):
    with gp.Engine(memory_limit="auto") as engine:
        data = pickle.dumps(engine)
    (container / "a/memory.max").write_text(str(1024 * MIB))
    with pickle.loads(data) as engine:
        assert engine.memory_limit == 1024 * MIB - 100 * MIB - int(51.2 * MIB)


@pytest.mark.parametrize("value", ["much", "-5%", "nan%", "%", "5%%", "auto%", 0.5, True, -1])
def test_what_is_no_limit_is_refused(container, value):
    with pytest.raises(gp.InvalidArgumentError, match=r"not a size.*auto.*60%"):
        gp.Engine(memory_limit=value)


@pytest.mark.parametrize("value", ["0%", "0.0000000001%"])
def test_a_share_that_is_nothing_is_refused_as_such(container, value):
    wanted = rf"'{value}' leaves nothing; accepted: more than \"0%\"; got: 0 of"
    with pytest.raises(gp.InvalidArgumentError, match=wanted):
        gp.Engine(memory_limit=value)


def test_a_container_that_is_too_small_for_the_process_is_named(container):
    (container / "a/memory.max").write_text(str(120 * MIB))
    with pytest.raises(gp.InvalidArgumentError, match=r"leaves nothing.*memory\.max"):
        gp.Engine(memory_limit="auto")


def product(tmp_path):
    weights = np.random.default_rng(0).standard_normal((256, 512)).astype(np.float32)
    x = np.ones((2, 256), np.float32)
    path = tmp_path / "product.onnx"
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    path.write_bytes(make_model(nodes, {"x": x}, ["y"], {"w": weights}).SerializeToString())
    return path, x, weights


@pytest.mark.parametrize("memory_limit", ["auto", "380MiB"])
def test_weights_in_mapped_files_count_where_the_container_counts_them(container, tmp_path, memory_limit):
    path, x, weights = product(tmp_path)
    counted = weights.nbytes if memory_limit == "auto" else 0
    with gp.Engine(threads=1, memory_limit=memory_limit) as engine, gp.onnx.load(path, engine=engine) as model:
        assert model.stats().constants_nbytes == counted
        assert engine.constants.held == counted + model.stats().cached_nbytes
        predicted = model.predict_peak()
        result = model.run({"x": x})["y"]
        assert predicted == engine.budget.peak
        np.testing.assert_allclose(result, x @ weights, rtol=1e-4, atol=1e-4)
    del result
    assert engine.budget.in_use == 0


def test_weights_that_a_run_finds_room_for_later_are_predicted(tmp_path):
    path, x, weights = product(tmp_path)
    with gp.Engine(threads=1, memory_limit="1200KiB") as engine:
        address = engine.resource.allocate(500 * 2**10)
        with gp.onnx.load(path.read_bytes(), engine=engine) as model:
            before = model.predict_peak({"x": x})
            engine.resource.deallocate(address, 500 * 2**10)
            predicted = model.predict_peak({"x": x})
            assert (predicted - before, predicted.is_exact) == (weights.nbytes, True)
            engine.budget.reset_peak()
            model.run({"x": x})
            assert engine.budget.peak == predicted


def test_what_has_too_little_room_to_be_packed_takes_none():
    with gp.Engine(threads=1, memory_limit="1KiB") as engine:
        engine.constants.check_room(1000)
        assert (engine.budget.in_use, engine.budget.peak) == (0, 1000)
        engine.budget.reset_peak()
        with pytest.raises(gp.OutOfMemoryError):
            engine.constants.check_room(1025)
        assert (engine.budget.in_use, engine.budget.peak) == (0, 0)


ULIMIT = """
import resource
import graphpool as gp
from graphpool.runtime.allowed_memory import allowed_memory
before = allowed_memory()
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, resource.RLIM_INFINITY))
allowed = allowed_memory()
assert (allowed.source, allowed.nbytes, allowed.counts_mapped) == ("ulimit -v", 4 << 30, True), allowed
assert allowed.used_nbytes > before.used_nbytes // 2
with gp.Engine(memory_limit="auto") as engine:
    assert 0 < engine.memory_limit < (4 << 30) - allowed.reserve_nbytes
with gp.Engine(memory_limit="25%") as engine:
    assert engine.memory_limit == 1 << 30
print("ok")
"""


@pytest.mark.native
def test_ulimit_counts_address_space():
    done = subprocess.run(
        [sys.executable, "-c", ULIMIT], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.stdout == "ok\n", done.stderr


@pytest.fixture
def group(tmp_path, monkeypatch):
    """A function that plants a control group of 512 MiB of which so much is in use."""

    def use(nbytes):
        plant(tmp_path, {"a/new": str(nbytes)})
        (tmp_path / "a/new").replace(tmp_path / "a/memory.current")  # in one step, for threads that read it

    plant(tmp_path, {"self": "0::/a\n", "a/memory.max": str(512 * MIB)})
    use(0)
    planted = group_folders("memory", tmp_path, tmp_path / "self")
    monkeypatch.setattr(group_room, "group_folders", lambda *_: planted)
    return use


def wide_model(rows):
    weights, x = np.ones((1024, 1024), np.float32), np.ones((rows, 1024), np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Softmax", ["h"], ["y"])]
    return make_model(nodes, {"x": x}, ["y"], {"w": weights}), {"x": x}


def test_a_copy_for_which_the_group_has_no_room_is_refused_before_it_is_made(group):
    model, _ = wide_model(8)
    wanted = r"memory\.max \(asked by loading\).*interpreter and caller"
    with gp.Engine(threads=1, memory_limit="100MiB") as engine:
        group(494 * MIB)  # 16 are left for what nobody counts
        with pytest.raises(gp.OutOfMemoryError, match=wanted) as caught:
            gp.onnx.load(model, engine=engine)
        assert (caught.value.requested, caught.value.in_use) == (4 * MIB, 494 * MIB)
        assert engine.budget.peak == 0


def test_a_run_for_which_the_group_has_no_room_is_refused(group):
    model, inputs = wide_model(1024)
    data = model.SerializeToString()
    with gp.Engine(threads=1, memory_limit="100MiB") as engine:
        group(494 * MIB)
        with pytest.raises(gp.OutOfMemoryError, match=r"memory\.max \(asked by a run of "):
            gp.onnx.load(data, engine=engine)
        assert engine.budget.in_use == 0
        group(0)
        with gp.onnx.load(data, engine=engine) as model:
            group(494 * MIB)
            with pytest.raises(gp.OutOfMemoryError, match=r"memory\.max \(asked by a run of "):  # its form was given up
                model.run(inputs)


@pytest.mark.parametrize(("used", "is_packed"), [(494, False), (0, True)])
def test_weights_are_packed_where_the_group_has_room(group, used, is_packed):
    model, inputs = wide_model(8)
    with gp.Engine(threads=1, memory_limit="100MiB") as engine:
        group(used * MIB)
        with gp.onnx.load(model.SerializeToString(), engine=engine) as loaded:
            loaded.run(inputs)
            assert (loaded.stats().cached_nbytes > 0) == is_packed


@pytest.fixture
def waiting(group):
    """An engine whose loads and runs wait."""
    with gp.Engine(threads=1, memory_limit="100MiB", on_pressure="wait", pressure_timeout_s=TIMEOUT_S) as engine:
        yield engine


def await_line(engine):
    deadline_s = time.monotonic() + TIMEOUT_S
    while not engine.queue.stats().waiting:
        assert time.monotonic() < deadline_s, "nobody waits"
        time.sleep(0.001)


def test_loads_and_runs_wait_until_the_group_has_room(group, waiting):
    model, inputs = wide_model(1024)
    group(494 * MIB)
    loading = Worker(partial(gp.onnx.load, model, engine=waiting))
    await_line(waiting)
    group(0)
    with loading.result() as loaded:
        group(494 * MIB)
        running = Worker(loaded.run, inputs)
        await_line(waiting)
        assert waiting.queue.stats().timeouts == 0
        group(0)
        np.testing.assert_allclose(running.result()["y"], np.full((1024, 1024), 1 / 1024), rtol=1e-6)
    assert waiting.queue.stats().waiting == 0


def test_the_deadline_ends_the_waiting_for_a_group(group):
    model, inputs = wide_model(1024)
    with (
        gp.Engine(threads=1, memory_limit="100MiB", on_pressure="wait", pressure_timeout_s=0.3) as engine,
        gp.onnx.load(model, engine=engine) as loaded,
    ):
        before = engine.budget.kept
        group(494 * MIB)
        begin_s = time.monotonic()
        with pytest.raises(gp.MemoryTimeoutError, match=r"control group.*within 0\.3 s.*let go of what others hold"):
            loaded.run(inputs)
        assert time.monotonic() - begin_s >= 0.3
        with pytest.raises(gp.MemoryTimeoutError, match=r"control group.*asked by loading"):
            gp.onnx.load(model, engine=engine)
        assert engine.budget.kept <= before
        group(0)
        loaded.run(inputs)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="the system has no timers that send signals")
def test_a_signal_ends_the_waiting_for_a_group(group, waiting):
    model, inputs = wide_model(1024)

    def stop(*_):
        raise KeyboardInterrupt

    with gp.onnx.load(model, engine=waiting) as loaded:
        group(494 * MIB)
        before = signal.signal(signal.SIGALRM, stop)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with pytest.raises(KeyboardInterrupt):
                loaded.run(inputs)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        group(0)
        loaded.run(inputs)


def test_without_a_limit_nobody_asks_the_group(group):
    model, inputs = wide_model(1024)
    group(512 * MIB)
    with gp.onnx.load(model, threads=1) as loaded:
        loaded.run(inputs)
