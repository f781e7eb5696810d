"""One budget per engine: what it counts, in which order it gets memory back, what it refuses; memory that returns."""

import os
import random
import threading
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import graphpool as gp
from graphpool.cache import ConstantBuffer, compiled_partition_cache, constant_tensor_cache, primitive_cache
from graphpool.memory import CONSTANTS_TRACE_DOMAIN, TRACE_DOMAIN, HostResource, StatisticsResource
from tests.helpers.memory import TIMEOUT_S, Worker, run_in_child, run_threads, write_bytes
from tests.runtime.test_model import batch, expected, make_model

MIB = 2**20
STATM = Path("/proc/self/statm")


@pytest.fixture(autouse=True)
def empty_caches():
    primitive_cache().clear()
    compiled_partition_cache().clear()
    yield
    constant_tensor_cache("cpu").clear()


def matmul(engine, rows=4, depth=16, columns=8, **options):
    shapes = [(rows, depth), (depth, columns), (rows, columns)]
    x, w, y = (gp.LogicalTensor(k, "f32", shape) for k, shape in enumerate(shapes))
    return gp.Partition.from_op(gp.Op(0, "MatMul", [x, w], [y])).compile([x, w], [y], engine, **options)


def run(compiled, engine, stream=None):
    arrays = [np.full(lt.shape, k + 1, np.float32) for k, lt in enumerate(compiled.inputs)]
    tensors = [gp.Tensor(lt, engine, a) for lt, a in zip(compiled.inputs, arrays, strict=True)]
    out = gp.Tensor(compiled.outputs[0], engine, np.empty(compiled.outputs[0].shape, np.float32))
    compiled.execute(stream or gp.Stream(engine), tensors, [out])
    return (out.numpy() == 2 * compiled.inputs[0].shape[1]).all()


def cached_constant(engine, key, nbytes):
    return constant_tensor_cache("cpu").get_or_add(
        "test", key, nbytes, lambda buffer: None, resource=engine.constants.resource
    )


def test_the_budget_counts_programs_arenas_weights_constants_and_tensors():
    with gp.Engine(threads=1) as engine:
        with matmul(engine) as compiled:
            tensor = gp.Tensor(gp.LogicalTensor(9, "u8", (1000,)), engine)
            cached_constant(engine, "c", 500)
            assert engine.budget.holdings() == {
                "arenas": compiled.scratchpad_nbytes,
                "compiled entries": compiled.primitive.nbytes,
                "constants": 500,
                "tensors": 1000,
            }
            with make_model(engine) as model:
                model.run({"x": batch(3)})
                stats = model.stats()
                assert engine.budget.holdings()["constants"] == 500 + stats.constants_nbytes + stats.cached_nbytes
                assert engine.budget.holdings()["arenas"] == compiled.scratchpad_nbytes + stats.arena_nbytes
        assert sum(engine.budget.holdings().values()) == engine.budget.in_use
    assert engine.budget.in_use == tensor.nbytes == engine.stats().current_nbytes
    del tensor
    assert engine.budget.in_use == 0


class Stopping:
    """A holder that a budget under pressure asks in vain, and that stops it on the way."""

    def __init__(self, during):
        self.reclaim = lambda nbytes: during() or 0


@pytest.mark.parametrize("others", ["hold", "release"])
def test_weights_are_charged_whoever_else_has_them_while_they_are_refused(others):
    weight, large = np.ones(MIB // 4, np.float32), np.ones(5 * MIB // 8, np.float32)
    with gp.Engine("cpu", memory_limit="4MiB", threads=1) as engine:
        constants, started = engine.constants, []
        act = {"hold": lambda: constants.hold([weight], holder="other"), "release": lambda: constants.release([weight])}

        def during():
            if not started:
                started.append(Worker(act[others]))
                started[0].join(0.2)

        stopping = Stopping(during)
        engine.budget.register(stopping, stage=0)
        engine.budget.charge(MIB)
        if others == "release":
            act["hold"]()
        with pytest.raises(gp.OutOfMemoryError):
            constants.hold([weight, large], holder="second")
        started[0].result()
        assert constants.held == engine.budget.in_use - MIB == (MIB if others == "hold" else 0)
        if others == "hold":
            act["release"]()
        assert (constants.held, engine.budget.in_use) == (0, MIB)


def test_relief_comes_from_idle_arenas_then_primitives_then_reserved_arenas_then_constants():
    """The order of the design, seen from what is left after each charge."""
    with gp.Engine(threads=1, memory_limit=MIB) as engine:
        idle, kept = matmul(engine, 3), matmul(engine, 4)
        idle_program, kept_program = idle.primitive.nbytes, kept.primitive.nbytes
        arena = idle.scratchpad_nbytes
        assert arena == kept.scratchpad_nbytes > 0
        idle.close()
        cached_constant(engine, "c", 1000)

        def squeeze(nbytes):
            """What is left when so much less is free than is in use."""
            free = engine.budget.limit - engine.budget.in_use
            engine.budget.charge(free + nbytes)
            left = engine.budget.holdings()
            engine.budget.uncharge(free + nbytes)
            return left["arenas"], left["compiled entries"], left["constants"]

        assert squeeze(0) == (2 * arena, idle_program + kept_program, 1000)
        assert squeeze(1) == (arena, idle_program + kept_program, 1000)
        assert squeeze(1) == (arena, kept_program, 1000)
        assert squeeze(1) == (0, kept_program, 1000)
        assert squeeze(1) == (0, kept_program, 0)
        with pytest.raises(gp.OutOfMemoryError) as caught:
            squeeze(1)
        assert caught.value.in_use == kept_program
        assert run(kept, engine)  # it makes its arena anew
        kept.close()


@pytest.mark.parametrize("seed", range(3))
def test_what_primitives_give_back_is_summed_as_users_come_and_go(seed):
    rng = random.Random(seed)
    with gp.Engine(threads=1, memory_limit=MIB) as engine:
        primitives, compiled = engine.primitives, []
        for _ in range(60):
            action = rng.random()
            if action < 0.5 or not compiled:
                compiled.append(matmul(engine, rng.randrange(1, 8)))
            elif action < 0.9:
                compiled.pop(rng.randrange(len(compiled))).close()
            else:
                rng.choice(compiled).primitive.evict()
            idle = sum(share.primitive.nbytes for share in primitives._all() if share.users == 0)
            assert primitives.reclaimable == idle
            arenas = sum(share.arenas.stats().nbytes for share in primitives._all() if share.arenas is not None)
            assert engine.budget.reclaimable == idle + arenas
        kept = sum(share.primitive.nbytes for share in primitives._all() if share.users)
        engine.budget.check(MIB - kept)
        with pytest.raises(gp.OutOfMemoryError) as caught:
            engine.budget.check(MIB - kept + 1)
        assert caught.value.smallest_limit == MIB + 1
        for item in compiled:
            item.close()
    assert (primitives.reclaimable, primitives.held) == (0, 0)


def test_an_idle_primitive_leaves_the_caches_under_pressure():
    with gp.Engine(threads=1, memory_limit=MIB) as engine:
        compiled = matmul(engine)
        key = compiled.primitive.key
        compiled.close()
        assert (key in primitive_cache(), len(compiled_partition_cache())) == (True, 1)
        engine.budget.charge(MIB)
        assert (key in primitive_cache(), len(compiled_partition_cache())) == (False, 0)
        engine.budget.uncharge(MIB)


def test_what_another_engine_uses_stays_in_the_cache():
    with gp.Engine(threads=1, memory_limit=MIB) as engine, gp.Engine(threads=1) as other, matmul(other) as compiled:
        matmul(engine).close()
        engine.budget.charge(MIB)
        assert compiled.primitive.key in primitive_cache()
        assert other.budget.holdings()["compiled entries"] == compiled.primitive.nbytes
        engine.budget.uncharge(MIB)


def test_constants_of_another_engine_are_left_alone():
    with gp.Engine(memory_limit=1000) as engine, gp.Engine() as other:
        theirs = cached_constant(other, "theirs", 300)
        cached_constant(engine, "mine", 300)
        engine.budget.charge(1000)
        assert constant_tensor_cache("cpu").keys() == [("test", "theirs")]
        assert isinstance(theirs, ConstantBuffer)
        engine.budget.uncharge(1000)


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 300), st.integers(0, 3))
def test_the_limit_that_a_model_names_will_do_and_one_byte_less_will_not(rows, others):
    """Whatever else the engine holds for good."""

    def held(engine):
        return [gp.Tensor(gp.LogicalTensor(k, "u8", (100 * (k + 1),)), engine) for k in range(others)]

    with gp.Engine(threads=1, memory_limit=others * 1000) as engine:
        tensors = held(engine)
        with make_model(engine) as model, pytest.raises(gp.OutOfMemoryError) as caught:
            model.predict_peak({"x": (rows, 4)})
        kept = sum(tensor.nbytes for tensor in tensors)
        assert engine.budget.in_use == caught.value.in_use == kept
    enough = caught.value.smallest_limit
    with gp.Engine(threads=1, memory_limit=enough) as engine:
        tensors = held(engine)
        with make_model(engine) as model:
            assert model.predict_peak({"x": (rows, 4)}) + kept == enough
            x = batch(rows)
            for _ in range(2):
                np.testing.assert_allclose(model.run({"x": x})["y"], expected(x), rtol=1e-5, atol=1e-5)
            assert engine.budget.peak == enough
    with gp.Engine(threads=1, memory_limit=enough - 1) as engine:
        tensors = held(engine)
        with make_model(engine) as model, pytest.raises(gp.OutOfMemoryError) as caught:
            model.run({"x": batch(rows)})
        assert caught.value.smallest_limit == enough
        assert engine.budget.peak <= enough - 1


def test_runs_wait_for_one_another_where_the_limit_has_room_for_one():
    with gp.Engine(threads=1) as engine, make_model(engine) as model:
        enough = model.predict_peak({"x": (500, 4)}) + 3 * batch(500)[:, :3].nbytes  # the results of the others
    with gp.Engine(threads=1, memory_limit=enough) as engine, make_model(engine) as model:

        def work(seed):
            for k in range(20):
                x = batch(500, seed + k)
                np.testing.assert_allclose(model.run({"x": x})["y"], expected(x), rtol=1e-4, atol=1e-4)

        run_threads(4, work)
        assert engine.budget.peak <= enough


def test_a_lease_is_waited_for_and_then_reclaimed():
    with gp.Engine(threads=1) as engine, matmul(engine, depth=256) as compiled:
        enough = compiled.scratchpad_nbytes + compiled.primitive.nbytes
    with gp.Engine(threads=1, memory_limit=2 * enough) as engine, matmul(engine, depth=256) as compiled:
        lease = engine.primitives.share_of(compiled.primitive).arenas.lease()
        second = matmul(engine, depth=128)
        third = Worker(lambda: matmul(engine, depth=384, columns=12, scratch="shared"))
        assert third.result().scratchpad_nbytes > 0
        waiting = Worker(lambda: run(third.result(), engine))
        while engine.budget.stats().reclaims == 0:
            time.sleep(0.001)
        lease.release()
        assert waiting.result()
        assert engine.budget.peak <= 2 * enough
        second.close()
        third.result().close()


def test_many_threads_compile_run_and_evict_under_a_limit():
    with gp.Engine(threads=1) as engine, matmul(engine, 40, 40, 40, scratch="none") as compiled:
        limit = 3 * (compiled.scratchpad_nbytes + compiled.primitive.nbytes)
    with gp.Engine(threads=1, memory_limit=limit) as engine:

        def work(seed):
            rng = np.random.default_rng(seed)
            done = 0
            for _ in range(40):
                scratch = str(rng.choice(["primitive", "shared", "none"]))
                try:
                    with matmul(engine, *map(int, rng.integers(1, 41, 3)), scratch=scratch) as compiled:
                        assert run(compiled, engine)
                        done += 1
                except gp.OutOfMemoryError:
                    pass
                assert engine.budget.in_use <= limit
            return done

        assert sum(run_threads(6, work)) > 0
        assert engine.budget.peak <= limit
        primitive_cache().clear()
        engine.trim()
        assert engine.budget.in_use == engine.stats().current_nbytes == 0


# ---- memory comes back


def resident_nbytes():
    return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def touch(pool):
    with pool.lease() as lease:
        write_bytes(lease.address, lease.nbytes, 1)


@pytest.mark.skipif(not STATM.exists(), reason="needs /proc")
@pytest.mark.parametrize("way", ["trim", "decay", "close", "reclaim"])
def test_the_resident_size_falls_when_memory_is_given_back(way):
    with gp.Engine(memory_limit="200MiB", idle_decay_s=3600) as engine:
        engine.shared_arenas.require(64 * MIB)
        before = resident_nbytes()
        touch(engine.shared_arenas.current())
        assert resident_nbytes() - before >= 60 * MIB
        if way == "trim":
            assert engine.trim() == 64 * MIB
        elif way == "decay":
            assert engine.decay(now_s=time.monotonic() + 3599) == 0
            assert engine.decay(now_s=time.monotonic() + 3601) == 64 * MIB
        elif way == "close":
            engine.close()
        else:
            engine.budget.charge(150 * MIB)
            engine.budget.uncharge(150 * MIB)
        assert resident_nbytes() - before <= 4 * MIB
        assert engine.budget.in_use == 0


def test_a_thread_gives_idle_memory_back_by_itself():
    with gp.Engine(idle_decay_s=0.02) as engine:
        engine.shared_arenas.require(4 * MIB)
        touch(engine.shared_arenas.current())
        deadline = time.monotonic() + 30
        while engine.budget.in_use and time.monotonic() < deadline:
            time.sleep(0.005)
        assert engine.budget.in_use == 0


def sweepers():
    return [thread for thread in threading.enumerate() if thread.name == "graphpool idle decay"]


def test_what_the_thread_is_giving_back_when_the_engine_is_closed_is_charged_until_it_is_back():
    """`close` waits for no other thread: that one ends soon, and what it frees last is its own till then."""
    entered, may_go, threads = threading.Event(), threading.Event(), []

    class Slow(StatisticsResource):
        def deallocate(self, *given):
            threads.append(threading.current_thread())
            if threads[-1] in sweepers():
                entered.set()
                assert may_go.wait(TIMEOUT_S)
            super().deallocate(*given)

    upstream = Slow(HostResource())
    engine = gp.Engine(allocator=upstream, idle_decay_s=0.02)
    engine.shared_arenas.require(MIB)
    engine.shared_arenas.current().lease().release()
    assert entered.wait(TIMEOUT_S)
    engine.close()
    assert (engine.budget.in_use, upstream.stats().current_nbytes) == (MIB, MIB)
    may_go.set()
    threads[0].join(TIMEOUT_S)
    assert (engine.budget.in_use, upstream.stats().current_nbytes) == (0, 0)


def test_one_thread_serves_all_engines_and_ends_with_the_last():
    with gp.Engine(idle_decay_s=0.02), gp.Engine(idle_decay_s=0.05):
        assert len(sweepers()) == 1
    deadline = time.monotonic() + 30
    while sweepers() and time.monotonic() < deadline:
        time.sleep(0.005)
    assert sweepers() == []


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_idle_memory_decays_in_a_forked_child_too():
    with gp.Engine(idle_decay_s=0.02) as engine:

        def child():
            engine.shared_arenas.require(4 * MIB)
            touch(engine.shared_arenas.current())
            deadline = time.monotonic() + 30
            while engine.budget.in_use and time.monotonic() < deadline:
                time.sleep(0.005)
            assert engine.budget.in_use == 0

        run_in_child(child)


@pytest.mark.parametrize("seconds", [0, -1, "soon"])
def test_the_time_of_decay_is_checked(seconds):
    with pytest.raises(gp.InvalidArgumentError, match="idle_decay_s; accepted: seconds > 0, or None"):
        gp.Engine(idle_decay_s=seconds)


def test_an_allocator_of_the_users_gets_everything_back():
    upstream = StatisticsResource(HostResource())
    with gp.Engine(threads=1, allocator=upstream, memory_limit=MIB) as engine:
        with matmul(engine) as compiled:
            assert run(compiled, engine)
        cached_constant(engine, "c", 100)
        assert upstream.stats().current_nbytes == compiled.scratchpad_nbytes + 100
    assert upstream.stats().current_nbytes == 0


# ---- cached constants are a luxury


def test_constants_take_what_is_free_and_make_nobody_give_memory_back():
    with gp.Engine(threads=1, memory_limit=MIB) as engine:
        matmul(engine).close()
        before = engine.budget.holdings()
        assert before["arenas"] > 0
        with pytest.raises(gp.OutOfMemoryError, match="spare"):
            cached_constant(engine, "too large", MIB - engine.budget.in_use + 1)
        cached_constant(engine, "fits", MIB - engine.budget.in_use)
        assert engine.budget.holdings()["arenas"] == before["arenas"]
        assert engine.budget.stats().reclaims == 0


def test_constants_leave_room_for_the_arena_of_a_model_and_do_not_thrash():
    """With room for a part of the cached forms, runs settle: what fits stays, nothing is packed again."""
    with gp.Engine(threads=1) as engine, make_model(engine) as model:
        everything = model.predict_peak({"x": (200, 4)})
        cached = model.stats().cached_nbytes
        assert cached > 0
    for limit in (everything, everything - 1, everything - cached):
        with gp.Engine(threads=1, memory_limit=limit) as engine, make_model(engine) as model:
            x = batch(200)
            for _ in range(3):
                np.testing.assert_allclose(model.run({"x": x})["y"], expected(x), rtol=1e-5, atol=1e-5)
            assert model.stats().cached_nbytes == (cached if limit == everything else 0)
            assert engine.budget.stats().reclaims == 0
            assert engine.budget.peak <= limit


def test_tracemalloc_tells_arenas_from_constants():
    with gp.Engine(threads=1) as engine:
        tracemalloc.start()
        try:
            tensor = gp.Tensor(gp.LogicalTensor(0, "u8", (5000,)), engine)
            cached_constant(engine, "c", 3000)
            snapshot = tracemalloc.take_snapshot()
            traced = {trace.domain: trace.size for trace in snapshot.traces if trace.domain}
            assert traced == {TRACE_DOMAIN: tensor.nbytes, CONSTANTS_TRACE_DOMAIN: 3000}
            constant_tensor_cache("cpu").clear()
            traces = tracemalloc.take_snapshot().traces
            assert [trace.size for trace in traces if trace.domain] == [tensor.nbytes]
        finally:
            tracemalloc.stop()
