"""Constants of compiled partitions: what is cached under which name, and that results never depend on it."""

import threading

import numpy as np
import pytest

import graphpool as gp
from graphpool import demo
from graphpool.cache import packed_store, set_packed_store
from graphpool.cache.policies import NoEvictPolicy
from graphpool.cache.traces import replay
from graphpool.config import _values as config_values
from tests.helpers.constant_jobs import Job, K, M, N, compile_product, weights
from tests.helpers.memory import Worker


@pytest.fixture
def engine():
    with gp.Engine() as engine:
        yield engine


def test_the_first_execution_packs_and_the_next_ones_look_nothing_up(engine, cache):
    w = weights()
    before = cache.stats()
    with Job(engine) as job:
        tensor = job.tensor(w)
        for _ in range(3):
            job.check(tensor, w)
        stats = cache.stats()
        assert (stats.entries, stats.hits - before.hits, stats.misses - before.misses) == (1, 0, 1)
        assert stats.nbytes == sum(job.compiled.cached_constants().values()) > w.nbytes - 1
        assert engine.stats().current_nbytes == job.compiled.predict_peak()


def test_an_arena_is_leased_only_for_steps_on_plain_weights(engine, cache):
    with Job(engine) as job:
        tensor, before = job.tensor(weights()), job.compiled.stats().leases
        assert job.compiled.scratchpad_nbytes > 0
        for capacity, leases in (("1MiB", 0), (0, 1), (None, 1)):
            cache.set_capacity(capacity)
            job.check(tensor, weights())
            assert job.compiled.stats().leases - before == leases


def test_prepare_packs_before_the_first_execution(engine, cache):
    w = weights()
    with Job(engine) as job:
        tensor = job.tensor(w)
        job.compiled.prepare([gp.Tensor.at(job.compiled.inputs[0], engine), tensor])
        assert len(cache) == 1
        job.check(tensor, w)
    with pytest.raises(gp.StateError, match="closed"):
        job.compiled.prepare([job.source, tensor])


def test_a_change_is_seen_after_invalidate_and_the_old_form_leaves(engine, cache):
    w = weights()
    with Job(engine) as job:
        tensor = job.tensor(w)
        job.check(tensor, w)
        w *= 2
        tensor.invalidate()
        job.check(tensor, w)
        assert len(cache) == 1


def test_another_weight_at_the_same_address_is_another_weight(engine, cache):
    memory = np.empty((K, N), np.float32)
    with Job(engine) as job:
        for seed in (1, 2, 3):
            memory[...] = weights(seed)
            job.check(job.tensor(memory), memory.copy())


def test_one_compiled_partition_keeps_two_weights_apart(engine, cache):
    first, second = weights(1), weights(2)
    with Job(engine) as job:
        tensors = [(job.tensor(w), w) for w in (first, second)]
        for tensor, w in tensors * 3:
            job.check(tensor, w)
        assert len(cache) == 2


def test_equal_weights_of_two_graphs_share_one_entry(engine, cache):
    w = weights()
    with Job(engine) as one, Job(engine, first_id=50, m=9) as other:
        one.check(one.tensor(w), w)
        other.check(other.tensor(w.copy()), w)
        assert len(cache) == 1


def test_other_contexts_share_nothing(cache):
    w = weights()
    with gp.Engine(context="a") as a, gp.Engine(context="b") as b, Job(a) as one, Job(b) as other:
        one.check(one.tensor(w), w)
        other.check(other.tensor(w), w)
        assert len(cache) == 2


def test_a_tensor_id_names_the_content(engine, cache):
    w = weights()
    with Job(engine) as job:
        job.check(job.tensor(w, id=7), w)
        again = job.tensor(w, id=7)
        job.check(again, w)
        assert len(cache) == 1
        w += 1
        again.invalidate()
        job.check(again, w)


@pytest.mark.parametrize("is_warm", [True, False], ids=["warm", "cold"])
def test_a_change_said_of_one_tensor_holds_for_all_of_that_id(engine, cache, is_warm):
    w, twice = weights(), 2 * weights()
    with Job(engine) as job, Job(engine, first_id=50, m=9) as other:
        first, second = job.tensor(w, id=50), other.tensor(w, id=50)
        job.check(first, w)
        if is_warm:
            other.check(second, w)
        w[...] = twice
        second.invalidate()
        for _ in range(2):
            job.check(first, twice)
            other.check(second, twice)
        job.check(job.tensor(w, id=50), twice)
        assert first.version == second.version
        assert len(cache) == 1
        second.rebind(weights(3))
        first.rebind(weights(3))
        job.check(first, weights(3))
        other.check(second, weights(3))


def test_an_id_belongs_to_its_engine(engine, cache):
    with gp.Engine() as another, Job(engine) as job, Job(another) as other:
        for _ in range(2):
            job.check(job.tensor(weights(1), id=50), weights(1))
            other.check(other.tensor(weights(2), id=50), weights(2))
        assert len(cache) == 2


def test_an_id_has_a_hash(engine):
    with Job(engine) as job, pytest.raises(gp.InvalidArgumentError, match="id of a tensor"):
        job.tensor(weights(), id=[1])


def test_a_key_names_the_contents_of_an_execution(engine, cache):
    first, second = weights(1), weights(2)
    with Job(engine) as job:
        for _ in range(2):
            job.check(job.tensor(first), first, options=gp.ExecuteOptions(key="first"))
            job.check(job.tensor(second), second, options=gp.ExecuteOptions(key="second"))
        assert len(cache) == 2


@pytest.mark.parametrize("identity", ["content", "id", "key"])
def test_without_room_the_plain_kernel_runs(engine, cache, identity):
    w = weights()
    named = {"id": 3} if identity == "id" else {}
    options = gp.ExecuteOptions(key=5) if identity == "key" else None
    with Job(engine) as job:
        tensor = job.tensor(w, **named)
        for capacity in (None, 0, 100, None, w.nbytes // 2):
            cache.set_capacity(capacity)
            for _ in range(2):
                job.check(tensor, w, options=options)
            assert len(cache) == (capacity is None)


def test_a_partition_compiled_again_after_the_cache_was_disabled(engine, cache):
    w = weights()
    with Job(engine) as job:
        job.check(job.tensor(w), w)
    gp.set_constant_tensor_cache_capacity("cpu", 0)
    with Job(engine) as job:
        job.check(job.tensor(w), w)
    assert engine.stats().current_nbytes == 0 or len(cache) == 0


def test_an_engine_without_memory_for_the_form_runs_the_plain_kernel(cache):
    w = weights()
    with gp.Engine() as plenty, Job(plenty) as job:
        room = job.compiled.scratchpad_nbytes + job.compiled.primitive.nbytes + M * N * 4
    with gp.Engine(memory_limit=room) as engine, Job(engine) as job:
        job.check(job.tensor(w), w)
        assert len(cache) == 0


def test_scoped_weights_leave_with_their_last_user(engine, cache):
    w = weights()
    with Job(engine, weights="scoped") as outer:
        outer.check(outer.tensor(w), w)
        with Job(engine, weights="scoped") as inner:
            inner.check(inner.tensor(w), w)
        assert len(cache) == 1
    assert len(cache) == 0
    with pytest.raises(gp.InvalidArgumentError, match="weights"):
        compile_product(engine, weights="sometimes")


def test_cached_weights_outlive_their_compiled_partition(engine, cache):
    w = weights()
    with Job(engine) as job:
        job.check(job.tensor(w), w)
    assert len(cache) == 1


def test_an_unannounced_change_is_noticed_in_the_checking_mode(engine, cache, monkeypatch):
    monkeypatch.setitem(config_values, "check_constants", True)
    w = weights()
    with Job(engine) as job:
        tensor = job.tensor(w)
        job.check(tensor, w)
        w[3, 4] += 1
        with pytest.raises(gp.StateError, match="constant tensor 1 was changed without notice"):
            job.run(tensor)
        tensor.invalidate()
        job.check(tensor, w)


def test_an_id_of_two_contents_is_noticed_in_the_checking_mode(engine, cache, monkeypatch):
    monkeypatch.setitem(config_values, "check_constants", True)
    w = weights()
    with Job(engine) as job, Job(engine, first_id=50, m=9) as other:
        job.check(job.tensor(w, id=7), w)
        other.check(other.tensor(w.copy(), id=7), w)
        different = other.tensor(weights(2), id=7)
        with pytest.raises(gp.StateError, match="constant tensor 51 has another content than its id 7"):
            other.run(different)
        different.invalidate()
        other.check(different, weights(2))
        job.check(job.tensor(weights(2), id=7), weights(2))


def test_a_key_of_two_contents_is_noticed_in_the_checking_mode(engine, cache, monkeypatch):
    monkeypatch.setitem(config_values, "check_constants", True)
    w, named = weights(), gp.ExecuteOptions(key="layer 3")
    with Job(engine) as job, Job(engine, first_id=50, m=9) as other:
        for _ in range(2):
            job.check(job.tensor(w), w, options=named)
            other.check(other.tensor(w.copy()), w, options=named)
        for _ in range(2):
            with pytest.raises(gp.StateError, match="constant tensor 51 has another content than key 'layer 3'"):
                other.run(other.tensor(weights(2)), options=named)
        other.check(other.tensor(weights(2)), weights(2), options=gp.ExecuteOptions(key="layer 4"))
        cache.clear()
        other.check(other.tensor(weights(2)), weights(2), options=named)
        with pytest.raises(gp.StateError, match="constant tensor 1 has another content than key"):
            job.run(job.tensor(w), options=named)


@pytest.mark.parametrize("policy", ["no_evict", "lru", "cost"])
def test_results_hold_while_the_cache_is_resized_flushed_and_disabled(engine, cache, policy):
    contents = [weights(seed) for seed in range(4)]
    nbytes = contents[0].nbytes
    stop = threading.Event()

    def execute(seed):
        with Job(engine, seed=seed) as job:
            tensors = [(job.tensor(w), w) for w in contents]
            while not stop.is_set():
                for tensor, w in tensors:
                    job.check(tensor, w)

    threads = [Worker(execute, seed) for seed in range(6)]
    cache.set_capacity(None, policy=policy)
    for step in range(120):
        capacity = (None, 3 * nbytes, 0, nbytes)[step % 4]
        (cache.resize if step % 3 else cache.set_capacity)(capacity)
        assert capacity is None or cache.nbytes <= capacity
        if step % 5 == 0:
            cache.clear()
    stop.set()
    for thread in threads:
        thread.result()


def test_packed_weights_come_from_the_store(engine, cache, tmp_path):
    w = weights()
    set_packed_store(tmp_path)
    try:
        for _ in range(2):
            with Job(engine) as job:
                job.check(job.tensor(w), w)
                assert engine.stats().current_nbytes == job.compiled.scratchpad_nbytes  # the file is mapped
            cache.clear()
        stats = packed_store().stats()
        assert (stats.entries, stats.hits) == (1, 2)
        with Job(engine) as job:
            job.check(job.tensor(w, id=3), w)  # an id says nothing in other processes
        assert packed_store().stats().entries == 1
    finally:
        set_packed_store(None)


def test_a_damaged_file_of_the_store_is_packed_again(engine, cache, tmp_path):
    w = weights()
    set_packed_store(tmp_path)
    try:
        with Job(engine) as job:
            job.check(job.tensor(w), w)
            cache.clear()
            [path] = tmp_path.glob("*.packed")
            content = bytearray(path.read_bytes())
            content[-2000] ^= 1
            path.write_bytes(content)
            fresh = job.tensor(w)
            with pytest.warns(gp.PerformanceWarning, match="damaged and will be packed again"):
                job.check(fresh, w)
            job.check(fresh, w)
    finally:
        set_packed_store(None)


# ---- names, and what happens at them


def test_tensors_that_take_turns_and_keys_look_nothing_up(engine, cache):
    first, second = weights(1), weights(2)
    before = cache.stats()
    with Job(engine) as job:
        tensors = [(job.tensor(first), first, None), (job.tensor(second), second, None)]
        tensors += [(job.tensor(w), w, gp.ExecuteOptions(key=name)) for name, w in (("a", first), ("b", second))]
        for _ in range(5):
            for tensor, w, options in tensors:
                job.check(tensor, w, options=options)
        stats = cache.stats()
        assert (stats.entries, stats.misses - before.misses, stats.hits - before.hits) == (4, 4, 0)


def test_a_key_is_no_version(engine, cache):
    first, second = weights(1), weights(2)
    with Job(engine) as job:
        tensor = job.tensor(first)
        job.check(tensor, first)
        for key in (tensor.version, (tensor.version,)):
            job.check(job.tensor(second), second, options=gp.ExecuteOptions(key=key))
        job.check(tensor, first)
    with pytest.raises(gp.InvalidArgumentError, match="key of an execution"):
        gp.ExecuteOptions(key=[1])


def test_a_key_alone_is_no_options(engine):
    with Job(engine) as job, gp.Stream(engine) as stream:
        inputs = [job.source, job.tensor(weights())]
        with pytest.raises(gp.InvalidArgumentError, match="options; accepted: an instance of ExecuteOptions; got: 7"):
            job.compiled.execute(stream, inputs, options=7)
        with pytest.raises(gp.InvalidArgumentError, match="options; accepted: an instance of ExecuteOptions; got: 7"):
            job.compiled.prepare(inputs, options=7)


def test_more_contents_than_names_are_kept(engine, cache):
    w = weights()
    with Job(engine) as job:
        for seed in range(1030):
            job.compiled.prepare([job.source, job.tensor(w)], options=gp.ExecuteOptions(key=seed))
        assert len(cache) == 1030
        assert len(job.compiled.cached_constants()) <= 1025
        job.check(job.tensor(w), w, options=gp.ExecuteOptions(key=0))


def test_a_content_stays_while_another_tensor_of_the_partition_has_it(engine, cache):
    w = weights()
    with Job(engine) as job:
        mine, copy = w.copy(), w.copy()
        changed, other = job.tensor(mine), job.tensor(copy)
        job.check(changed, w)
        job.check(other, w)
        mine += 1
        changed.invalidate()
        job.check(changed, mine)
        assert len(cache) == 2
        misses = cache.stats().misses
        job.check(other, w)
        assert cache.stats().misses == misses
        copy += 1
        other.invalidate()
        job.check(other, copy)
        assert len(cache) == 1


@pytest.mark.parametrize("policy", ["no_evict", "cost"])
def test_a_full_cache_is_asked_ever_more_rarely_until_something_leaves(engine, cache, policy):
    kept, turned_away = weights(1), weights(2)
    with Job(engine) as first, Job(engine) as second:
        holder, tensor = first.tensor(kept), second.tensor(turned_away)
        first.check(holder, kept)
        cache.set_capacity(cache.nbytes * 3 // 2, policy=policy)
        first.check(holder, kept)
        cache.resize(cache.nbytes)
        asked = cache.stats().misses
        for _ in range(500):
            first.check(holder, kept)
            second.check(tensor, turned_away)
        assert cache.stats().misses - asked <= 60
        cache.clear()
        second.check(tensor, turned_away)
        assert len(cache) == 1


def test_uses_without_asking_are_told_to_the_policy(engine, cache):
    class Counting(NoEvictPolicy):
        name = "counting"
        uses = 0

        def admits(self, item, victims):
            self.uses += item.uses
            return False

    policy = Counting()
    with Job(engine) as first, Job(engine) as second:
        first.check(first.tensor(weights(1)), weights(1))
        cache.set_capacity(cache.nbytes, policy=policy)
        first.check(first.tensor(weights(1)), weights(1))
        tensor = second.tensor(weights(2))
        for _ in range(1 + 2 + 3 + 5 + 9):  # asked, then after resting 1, 2, 4 and 8 executions
            second.run(tensor)
    assert policy.uses == 1 + 2 + 3 + 5 + 9


def test_a_constant_that_does_not_fit_what_was_compiled_is_refused_by_prepare(engine, cache):
    with Job(engine) as job:
        lt = job.compiled.inputs[1]
        smaller = gp.Tensor(lt.replace(shape=(3, 4)), engine, np.ones((3, 4), np.float32))
        with pytest.raises(gp.InvalidShapeError, match="tensor 1 is not what was compiled"):
            job.compiled.prepare([job.source, smaller], options=gp.ExecuteOptions(key=1))
        with pytest.raises(gp.StateError, match="no data"):
            job.compiled.prepare([job.source, gp.Tensor.at(lt, engine)], options=gp.ExecuteOptions(key=1))
        with gp.Engine() as other, pytest.raises(gp.StateError, match="belongs to"):
            job.compiled.prepare([job.source, gp.Tensor(lt, other, weights())])
    assert len(cache) == 0


def test_a_recording_sees_every_use_in_order(engine, cache):
    contents = [weights(seed) for seed in (1, 2)]
    with Job(engine) as job:
        tensors = [(job.tensor(w), w) for w in contents]
        for tensor, w in tensors:
            job.check(tensor, w)
        with cache.record() as trace:
            for _ in range(3):
                for tensor, w in tensors:
                    job.check(tensor, w)
            with pytest.raises(gp.StateError, match="recorded already"), cache.record():
                pass
            new = weights(3)
            job.check(job.tensor(new), new)
        hits = cache.stats().hits
        for _ in range(3):
            for tensor, w in tensors:
                job.check(tensor, w)
        assert cache.stats().hits == hits + 2  # looked up once more, then through handles again
    nbytes = trace[0].nbytes
    assert [item.key for item in trace] == [0, 1] * 3 + [2]
    assert {item.nbytes for item in trace} == {nbytes}
    assert all(item.cost > 0 for item in trace)
    assert replay(trace, "lru", 2 * nbytes).hits == 4


def test_two_models_of_one_file_share_their_constants(cache):
    pytest.importorskip("onnx")
    path, image = demo.model_path("digits_transformer"), {"image": demo.test_images()[0][:3]}
    with gp.onnx.load(path) as first, gp.onnx.load(path) as second:
        expected = first.run(image)["probabilities"]
        entries, nbytes = len(cache), cache.nbytes
        assert entries > 0
        np.testing.assert_array_equal(second.run(image)["probabilities"], expected)
        assert (len(cache), cache.nbytes) == (entries, nbytes)


def test_the_end_of_an_engine_leaves_what_another_one_uses(cache):
    w = weights()
    with gp.Engine() as second, Job(second) as job:
        first = gp.Engine()
        with Job(first) as made:
            made.check(made.tensor(w), w)
            tensor = job.tensor(w)
            job.check(tensor, w)
            other = made.tensor(weights(7))
            made.check(other, weights(7))
            kept = cache.keys()
            assert len(kept) == 2
            first.close()
            assert cache.keys() == kept[:1]  # what it alone used has left, though its compiled partition is open
        nbytes, misses = cache.nbytes, cache.stats().misses
        assert first.budget.in_use >= nbytes
        job.check(tensor, w)
        job.check(job.tensor(w), w)
        assert cache.stats().misses == misses
        second.close()
        assert cache.keys() == []
    assert first.budget.holdings()["constants"] == 0
    assert first.stats().current_nbytes == 0


def test_an_execution_of_another_engine_goes_on_while_the_first_one_ends(cache):
    w = weights()
    with gp.Engine() as second, Job(second) as job:
        with gp.Engine() as first, Job(first) as made:
            made.check(made.tensor(w), w)
            tensor = job.tensor(w)
            job.check(tensor, w)
        job.check(tensor, w)
        assert len(cache) == 1
    assert len(cache) == 0  # the last user has let go of it


def test_clear_says_what_has_left(engine, cache):
    with Job(engine) as job:
        w = weights()
        tensor = job.tensor(w)
        job.check(tensor, w)
        cached = job.compiled.cached_constants()
        assert cached
        assert cache.clear() == cached
        assert cache.clear() == {}
        job.check(tensor, w)
