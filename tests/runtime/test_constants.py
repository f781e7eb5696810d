"""Constants of compiled partitions: what is cached under which name, and that results never depend on it."""

import threading

import numpy as np
import pytest

import graphpool as gp
from graphpool.cache import constant_tensor_cache, packed_store, set_packed_store
from graphpool.config import _values as config_values

M, K, N = 5, 24, 40


@pytest.fixture
def cache():
    """The cache of the CPU, without a bound; as it was afterwards."""
    cache = constant_tensor_cache("cpu")
    cache.set_capacity(None, policy="no_evict")
    yield cache
    cache.set_capacity(None, policy="no_evict")


@pytest.fixture
def engine():
    with gp.Engine() as engine:
        yield engine


def compile_product(engine, first_id=0, m=M, **modes):
    x = gp.LogicalTensor(first_id, "f32", (m, K))
    w = gp.LogicalTensor(first_id + 1, "f32", (K, N), property="constant")
    y = gp.LogicalTensor(first_id + 2, "f32", (m, N))
    graph = gp.Graph("cpu")
    graph.add_op(gp.Op(first_id, "MatMul", [x, w], [y]))
    graph.finalize()
    [partition] = graph.get_partitions()
    return partition.compile([x, w], [y], engine, **modes)


class Job:
    """A compiled product with tensors of its own for everything but the weights."""

    def __init__(self, engine, *, seed=0, **options):
        self.compiled = compile_product(engine, **options)
        self.stream = gp.Stream(engine)
        lt = self.compiled.inputs[0]
        self.x = np.random.default_rng(seed).standard_normal(lt.shape).astype(np.float32)
        self.source = gp.Tensor(lt, engine, self.x)

    def tensor(self, weights, **options):
        return gp.Tensor(self.compiled.inputs[1], self.compiled.engine, weights, **options)

    def run(self, tensor, **options):
        [y] = self.compiled.execute(self.stream, [self.source, tensor], **options)
        return y.numpy()

    def check(self, tensor, weights, **options):
        np.testing.assert_allclose(self.run(tensor, **options), self.x @ weights, rtol=1e-4, atol=1e-4)

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.compiled.close()


def weights(seed=1):
    return np.random.default_rng(seed).standard_normal((K, N)).astype(np.float32)


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


@pytest.mark.parametrize("policy", ["no_evict", "lru", "cost"])
def test_results_hold_while_the_cache_is_resized_flushed_and_disabled(engine, cache, policy):
    contents = [weights(seed) for seed in range(4)]
    nbytes = contents[0].nbytes
    stop = threading.Event()
    failures = []

    def execute(seed):
        try:
            with Job(engine, seed=seed) as job:
                tensors = [(job.tensor(w), w) for w in contents]
                while not stop.is_set():
                    for tensor, w in tensors:
                        job.check(tensor, w)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=execute, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    cache.set_capacity(None, policy=policy)
    for step in range(120):
        capacity = (None, 3 * nbytes, 0, nbytes)[step % 4]
        (cache.resize if step % 3 else cache.set_capacity)(capacity)
        assert capacity is None or cache.nbytes <= capacity
        if step % 5 == 0:
            cache.clear()
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures


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
