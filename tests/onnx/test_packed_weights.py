"""Models that keep one copy of their weights: results, memory, and what may happen at any moment."""

import gc
import multiprocessing
import pickle

import numpy as np
import pytest
from onnx import helper

import graphpool as gp
from graphpool.cache import ConstantTensorCache, constant_tensor_cache
from graphpool.errors import InvalidArgumentError, StateError
from graphpool.runtime.packed_weight import PackedWeight
from tests.helpers.caches import in_thread
from tests.helpers.memory import TIMEOUT_S, run_threads
from tests.helpers.onnx_models import make_model, random_array

K, HIDDEN, N = 48, 320, 37


def weights():
    return {"w0": random_array((K, HIDDEN)), "w1": random_array((N, HIDDEN), seed=1), "b": random_array((N,), seed=2)}


def mlp(rows=4, extra=(), outputs=("y",)):
    """Two products, the second with a transposed weight; `rows` may be a name."""
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["a"]),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("Gemm", ["r", "w1", "b"], ["y"], transB=1),
        *extra,
    ]
    x = random_array((4, K))
    return make_model(nodes, {"x": x}, outputs, weights(), shapes={"x": (rows, K)}).SerializeToString()


def load(model, **options):
    return gp.onnx.load(model, **({"weights": "packed", "threads": None if "engine" in options else 1} | options))


def expected(x):
    w = weights()
    return np.maximum(x @ w["w0"], 0) @ w["w1"].T + w["b"]


def check(model, rows=4, seed=7):
    x = random_array((rows, K), seed=seed)
    np.testing.assert_allclose(model.run({"x": x})["y"], expected(x), rtol=1e-4, atol=1e-3)


def plain_nbytes(*names):
    return sum(weights()[name].nbytes for name in names)


def test_the_plain_weights_are_gone_and_can_be_read(cache):
    with load(mlp()) as model:
        check(model)
        assert model.stats().constants_nbytes == plain_nbytes("b")
        assert model.stats().cached_nbytes == cache.nbytes
        for name, weight in weights().items():
            again = model.read_weight(name)
            assert again.tobytes() == weight.tobytes()
            assert (again.dtype, again.shape, again.flags.writeable) == (weight.dtype, weight.shape, False)
        with pytest.raises(InvalidArgumentError, match="no weight 'w9'; accepted: b, w0, w1"):
            model.read_weight("w9")
    with pytest.raises(StateError):
        model.read_weight("w0")


def test_other_modes_keep_them():
    with load(mlp(), weights="scoped") as model:
        assert model.stats().constants_nbytes == plain_nbytes("w0", "w1", "b")
        assert model.read_weight("w0").tobytes() == weights()["w0"].tobytes()


@pytest.mark.parametrize("mode", ["none", None, 1])
def test_an_unknown_mode_is_refused(mode):
    with pytest.raises(InvalidArgumentError, match="weights; accepted: scoped, cached, packed"):
        load(mlp(), weights=mode)


@pytest.mark.parametrize(("mode", "is_left"), [("scoped", False), ("cached", True), ("packed", False)])
def test_what_is_left_in_the_cache(cache, mode, is_left):
    with gp.Engine("cpu", threads=1) as engine:
        load(mlp(), weights=mode, engine=engine).close()
        assert (len(cache) > 0) == is_left
        assert engine.constants.held == cache.nbytes


def test_predicted_is_measured(tmp_path):
    (tmp_path / "m.onnx").write_bytes(mlp())
    with load(tmp_path / "m.onnx") as model:
        predicted = model.predict_peak()
        check(model)
        assert predicted == model.engine.budget.peak


def test_loading_takes_the_weights_and_the_largest_in_both_forms():
    with load(mlp()) as model:
        programs = model.stats().programs_nbytes
        assert model.engine.budget.peak <= plain_nbytes("w0", "w1", "b") + programs + max(
            model.specialise().cached_constants().values()
        )


def conv(w_shape, groups=1, dilations=(1, 1), dtype="float32", size=9):
    x = random_array((1, w_shape[1] * groups, size, size), dtype)
    node = helper.make_node(
        "Conv", ["x", "w"], ["y"], group=groups, dilations=list(dilations), pads=[1, 1, 1, 1], kernel_shape=w_shape[2:]
    )
    w = random_array(w_shape, dtype, seed=3)
    return make_model([node], {"x": x}, ["y"], {"w": w}).SerializeToString(), x, w


@pytest.mark.parametrize(
    ("shape", "groups", "dilations"),
    [((40, 24, 3, 3), 1, (1, 1)), ((40, 3, 3, 3), 1, (1, 1)), ((48, 12, 3, 3), 2, (2, 2)), ((32, 1, 3, 3), 32, (1, 1)),
     ((33, 64, 1, 1), 1, (1, 1))],
)  # fmt: skip
def test_convolutions(shape, groups, dilations):
    model, x, w = conv(shape, groups, dilations)
    with load(model, weights="scoped", prefer="memory") as plain:
        wanted = plain.run({"x": x})["y"]
    with load(model, prefer="memory") as packed:
        np.testing.assert_array_equal(packed.run({"x": x})["y"], wanted)
        stats = packed.stats()
        assert stats.constants_nbytes == (0 if stats.cached_nbytes else w.nbytes)
        assert stats.cached_nbytes or shape[1] == 3 or shape[2:] == (1, 1)  # plain images: panels would gain nothing
        assert packed.read_weight("w").tobytes() == w.tobytes()


def test_what_cannot_be_undone_is_kept_beside():
    model, x, w = conv((64, 64, 3, 3), size=40)  # Winograd rounds
    with load(model) as packed, load(model, weights="scoped") as plain:
        np.testing.assert_array_equal(packed.run({"x": x})["y"], plain.run({"x": x})["y"])
        assert packed.stats().constants_nbytes == w.nbytes
        assert packed.stats().cached_nbytes > w.nbytes
        assert packed.read_weight("w").tobytes() == w.tobytes()


def test_a_weight_that_something_else_reads_is_kept():
    gather = helper.make_node("Gather", ["w0", "rows"], ["picked"], axis=0)
    nodes = [helper.make_node("MatMul", ["x", "w0"], ["y"]), gather]
    x, rows = random_array((4, K)), np.array([5, 0], np.int64)
    model = make_model(nodes, {"x": x, "rows": rows}, ["y", "picked"], {"w0": weights()["w0"]})
    with load(model.SerializeToString()) as packed:
        got = packed.run({"x": x, "rows": rows})
        assert packed.stats().constants_nbytes == plain_nbytes("w0")
    np.testing.assert_array_equal(got["picked"], weights()["w0"][rows])
    np.testing.assert_allclose(got["y"], x @ weights()["w0"], rtol=1e-4, atol=1e-4)


def test_a_weight_that_is_an_output_is_kept():
    with load(mlp(outputs=("y", "w0"))) as model:
        assert model.stats().constants_nbytes >= plain_nbytes("w0")
        np.testing.assert_array_equal(model.run({"x": random_array((4, K))})["w0"], weights()["w0"])


def test_a_weight_that_the_host_reads_is_kept():
    det = helper.make_node("Det", ["s"], ["d"])
    square = random_array((8, 8), seed=4)
    nodes = [helper.make_node("MatMul", ["x", "s"], ["m"]), det, helper.make_node("Add", ["m", "d"], ["y"])]
    x = random_array((3, 8))
    model = make_model(nodes, {"x": x}, ["y"], {"s": square}).SerializeToString()
    with load(model) as packed:
        np.testing.assert_allclose(packed.run({"x": x})["y"], x @ square + np.linalg.det(square), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("mode", ["scoped", "packed"])
def test_threads_share_the_packing(mode):
    w, x = random_array((1024, 2048), seed=5), random_array((3, 1024))
    model = make_model([helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": x}, ["y"], {"w": w}).SerializeToString()
    results = []
    for threads in (1, 3):
        constant_tensor_cache("cpu").clear()
        with gp.onnx.load(model, weights=mode, threads=threads) as loaded:
            results.append(loaded.run({"x": x})["y"])
            assert loaded.read_weight("w").tobytes() == w.tobytes()
            [part] = loaded.specialise().compiled[0].primitive.constant_parts
            assert part.program.nthreads == threads
    np.testing.assert_array_equal(*results)


# ---- new shapes


def test_forms_for_other_shapes_share_the_packed_weights():
    with load(mlp(rows="n")) as model:
        check(model, 1)
        cached = model.stats().cached_nbytes
        for rows in (2, 7, 64, 200):
            check(model, rows)
        assert model.stats().forms == 5
        assert model.stats().cached_nbytes == cached
        assert model.stats().constants_nbytes == plain_nbytes("b")


def test_a_form_that_wants_another_packing_unpacks():
    w = random_array((64, 64, 3, 3), seed=3)
    x = random_array((1, 64, 6, 6))
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])
    data = make_model([node], {"x": x}, ["y"], {"w": w}, shapes={"x": (1, 64, "h", "w")}).SerializeToString()
    with load(data) as model, load(data, weights="scoped") as plain:
        kinds = set()
        for size in (3, 6, 40, 5, 41):
            x = random_array((1, 64, size, size), seed=size)
            np.testing.assert_array_equal(model.run({"x": x})["y"], plain.run({"x": x})["y"])
            kinds |= {name for names in model.specialise({"x": x.shape}).implementations for name in names}
        assert len(kinds) > 1
        assert model.read_weight("w").tobytes() == w.tobytes()


# ---- the cache does what it likes


def remove_each(cache):
    keys = cache.keys()
    for key in keys:
        cache.remove_if_exist(*key)


CHANGES = {
    "flush": lambda cache: cache.clear(),
    "disable": lambda cache: cache.set_capacity(0),
    "shrink": lambda cache: cache.resize(1),
    "set": lambda cache: cache.set_capacity(10**6, policy="lru"),
    "reclaim": lambda cache: cache.reclaim(10**9),
    "remove": remove_each,
}


@pytest.mark.parametrize("change", CHANGES)
def test_weights_outlive_their_entries(cache, change):
    with load(mlp(rows="n")) as model:
        check(model)
        CHANGES[change](cache)
        check(model)
        check(model, 9)
        assert model.read_weight("w1").tobytes() == weights()["w1"].tobytes()
        cache.set_capacity(None)
        check(model, 11)
    gc.collect()
    assert cache.nbytes == 0


def test_a_disabled_cache_leaves_plain_weights(cache):
    cache.set_capacity(0)
    with load(mlp()) as model:
        check(model)
        assert model.stats().constants_nbytes == plain_nbytes("w0", "w1", "b")
        cache.set_capacity(None)
        check(model)


def test_what_the_cache_declines_stays_plain(cache):
    cache.set_capacity(plain_nbytes("w0") + 2**12)
    with load(mlp()) as model:
        check(model)
        assert model.stats().constants_nbytes == plain_nbytes("w1", "b")
        assert cache.nbytes <= cache.capacity_nbytes


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("call", [1, 2, 3, 4])
def test_changes_between_packing_and_keeping(cache, monkeypatch, change, call):
    """Forced: the change happens right after the n-th look-up of the load."""
    calls, find = [], ConstantTensorCache.lookup_or_reserve

    def look_up(self, *given, **options):
        found = find(self, *given, **options)
        calls.append(1)
        if len(calls) == call:
            in_thread(lambda: CHANGES[change](cache)).result(TIMEOUT_S)
        return found

    monkeypatch.setattr(ConstantTensorCache, "lookup_or_reserve", look_up)
    with load(mlp()) as model:
        check(model)
        for name, weight in weights().items():
            assert model.read_weight(name).tobytes() == weight.tobytes()
    gc.collect()
    assert cache.nbytes == 0


@pytest.mark.parametrize("change", CHANGES)
def test_an_entry_that_leaves_before_it_is_pinned(cache, monkeypatch, change):
    make = PackedWeight.__init__

    def late(self, *given):
        CHANGES[change](cache)
        make(self, *given)

    monkeypatch.setattr(PackedWeight, "__init__", late)
    with load(mlp(rows="n")) as model:
        check(model)
        check(model, 3)
        assert model.read_weight("w0").tobytes() == weights()["w0"].tobytes()


def test_nothing_under_pressure_gives_the_weights_up(cache):
    with load(mlp()) as model:
        kept = cache.nbytes
        assert cache.reclaim(10**9) == 0
        assert cache.nbytes == kept
        check(model)


def test_models_share_the_packed_weights(cache):
    with gp.Engine("cpu", threads=1) as engine:
        first = load(mlp(), engine=engine)
        kept = cache.nbytes
        second = load(mlp(), engine=engine)
        assert cache.nbytes == kept
        first.close()
        assert cache.nbytes == kept
        check(second)
        second.close()
        assert cache.nbytes == 0


def test_threads_run_read_and_meet_new_shapes_while_the_cache_changes(cache):
    changes = list(CHANGES.values())
    with load(mlp(rows="n")) as model:
        tasks = [
            lambda number: check(model, 4, number),
            lambda number: check(model, 1 + number % 9, number),
            lambda number: check(model, 50 + number, number),
            lambda number: np.testing.assert_array_equal(model.read_weight("w0"), weights()["w0"]),
            lambda number: changes[number % len(changes)](cache),
        ]
        check(model)
        run_threads(len(tasks), lambda i: [tasks[i](number) for number in range(30)])
    cache.set_capacity(None)


# ---- life


def test_it_pickles_with_its_weights():
    with load(mlp()) as model, pickle.loads(pickle.dumps(model, protocol=5)) as again:
        check(again)
        assert again.weights == "packed"
        assert again.stats().constants_nbytes == plain_nbytes("b")


def _child(model, queue):
    check(model)
    queue.put(model.read_weight("w0").tobytes() == weights()["w0"].tobytes())
    model.close()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_has_them():
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    with load(mlp()) as model:
        child = context.Process(target=_child, args=(model, queue))
        child.start()
        assert queue.get(timeout=TIMEOUT_S)
        child.join(TIMEOUT_S)
        assert child.exitcode == 0
        check(model)


def test_closing_frees_everything(cache):
    with gp.Engine("cpu", threads=1) as engine:
        model = load(mlp(rows="n"), engine=engine)
        check(model)
        check(model, 9)
        model.close()
        model.close()
        gc.collect()
        assert cache.nbytes == 0
        assert engine.stats().current_nbytes == 0


def test_a_model_that_is_closed_while_it_is_specialised_leaves_nothing(cache, monkeypatch):
    with gp.Engine("cpu", threads=1) as engine:
        model = load(mlp(rows="n"), engine=engine)
        make = PackedWeight.__init__

        def late(self, *given):
            make(self, *given)
            model.close()

        monkeypatch.setattr(PackedWeight, "__init__", late)
        x = random_array((4, K))
        np.testing.assert_allclose(model.run({"x": x})["y"], expected(x), rtol=1e-4, atol=1e-3)
        gc.collect()
        assert cache.nbytes == 0
        assert engine.constants.held == 0


def test_a_model_that_is_closed_while_its_specialisation_fails_leaves_nothing(cache, monkeypatch):
    make, made = PackedWeight.__init__, []

    def close_and_fail(self, *given):
        if made:
            raise RuntimeError("no luck")
        made.append(self)
        make(self, *given)
        model.close()

    monkeypatch.setattr(PackedWeight, "__init__", close_and_fail)
    with gp.Engine("cpu", threads=1) as engine:
        model = load(mlp(rows="n"), engine=engine)
        with pytest.raises(RuntimeError, match="no luck"):
            model.run({"x": random_array((4, K))})
        assert (cache.nbytes, engine.constants.held) == (0, 0)


def test_a_run_whose_model_is_closed_while_it_compiles_says_so(cache, monkeypatch):
    with gp.Engine("cpu", threads=1) as engine:
        model = load(mlp(rows="n"), engine=engine)
        check(model)
        read = PackedWeight.buffer.fget

        def close_and_read(self):
            model.close()
            return read(self)

        monkeypatch.setattr(PackedWeight, "buffer", property(close_and_read))
        with pytest.raises(gp.StateError, match="is closed; load the model again"):
            model.run({"x": random_array((1, K))})
        assert (cache.nbytes, engine.constants.held) == (0, 0)


def test_a_load_that_fails_halfway_leaves_nothing(cache, monkeypatch):
    with gp.Engine("cpu", threads=1) as engine:
        make, made = PackedWeight.__init__, []

        def fail(self, *given):
            if made:
                raise RuntimeError("no luck")
            made.append(self)
            make(self, *given)

        monkeypatch.setattr(PackedWeight, "__init__", fail)
        with pytest.raises(RuntimeError, match="no luck"):
            load(mlp(), engine=engine)
        gc.collect()
        monkeypatch.undo()
        with load(mlp(), engine=engine) as model:
            check(model)
        gc.collect()
        assert cache.nbytes == 0
        assert engine.constants.held == 0


def test_a_budget_that_refuses_packed_weights_keeps_nothing(monkeypatch):
    """A limit that is lowered meanwhile refuses even what takes no memory of its own."""
    model, _, _ = conv((8, 8, 3, 3))
    with gp.Engine(threads=1) as engine:
        hold = engine.constants.hold

        def refuse(weights, *, holder):
            if holder == "packed weights":
                raise gp.OutOfMemoryError("lowered")
            hold(weights, holder=holder)

        monkeypatch.setattr(engine.constants, "hold", refuse)
        with pytest.raises(gp.OutOfMemoryError, match="lowered"):
            gp.onnx.load(model, engine=engine, weights="packed")
        assert not engine.constants._weights
