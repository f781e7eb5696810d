"""The limit that a refused load or run names: it suffices, whatever ran before, and one byte less does not."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import graphpool as gp
from graphpool.runtime import load_room
from tests.cases.unknown_sizes import MODELS as UNKNOWN

RNG = np.random.default_rng(0)
X = {"x": RNG.standard_normal((3, 64)).astype(np.float32)}


def model_of(nodes, weights, rows="rows"):
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, 64])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "tiny", [x], [y], tensors)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def folded(rows="rows"):
    """Weights that loading computes, in several steps."""
    a, b = (RNG.standard_normal((64, 64)).astype(np.float32) for _ in range(2))
    nodes = [
        helper.make_node("Add", ["a", "b"], ["c"]), helper.make_node("Mul", ["c", "b"], ["d"]),
        helper.make_node("MatMul", ["x", "d"], ["h"]), helper.make_node("Softmax", ["h"], ["y"]),
    ]  # fmt: skip
    return model_of(nodes, {"a": a, "b": b}, rows)


def trees():
    """Lists that reading takes to tables."""
    n = 2001
    inner = np.arange(n) < n // 2
    lists = {
        "nodes_modes": np.where(inner, "BRANCH_LEQ", "LEAF"), "nodes_values": RNG.standard_normal(n),
        "nodes_featureids": RNG.integers(0, 64, n), "nodes_treeids": np.zeros(n, int), "nodes_nodeids": np.arange(n),
        "nodes_truenodeids": np.where(inner, 2 * np.arange(n) + 1, 0),
        "nodes_falsenodeids": np.where(inner, 2 * np.arange(n) + 2, 0),
        "target_treeids": np.zeros(n - n // 2, int), "target_nodeids": np.arange(n // 2, n),
        "target_ids": np.zeros(n - n // 2, int), "target_weights": RNG.standard_normal(n - n // 2),
    }  # fmt: skip
    given = {name: value.tolist() for name, value in lists.items()}
    return model_of(
        [helper.make_node("TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", n_targets=1, **given)], {}
    )


def dequantised():
    """A product by bytes, for which compilation makes tables."""
    weights = {"w": RNG.integers(-9, 9, (64, 256), np.int8), "scale": np.float32(0.5)}
    nodes = [helper.make_node("DequantizeLinear", ["w", "scale"], ["d"]), helper.make_node("MatMul", ["x", "d"], ["y"])]
    return model_of(nodes, weights)


MODELS = {"folded": folded(), "folded, static": folded(3), "trees": trees(), "dequantised": dequantised()}


def refusal(model, limit):
    """What is refused within a limit, the load or the run, and the limit that is named; None if nothing is."""
    try:
        loaded = gp.onnx.load(model, threads=1, memory_limit=limit)
    except gp.OutOfMemoryError as error:
        return "load", error.smallest_limit
    with loaded:
        try:
            loaded.run(X)
        except gp.OutOfMemoryError as error:
            return "run", error.smallest_limit
        assert loaded.engine.budget.peak <= limit
    return None


@pytest.mark.parametrize("source", ["bytes", "proto"])
@pytest.mark.parametrize("name", MODELS)
def test_the_first_refusal_names_a_limit_that_suffices(name, source):
    model = MODELS[name].SerializeToString() if source == "bytes" else MODELS[name]
    what, least = refusal(model, 1)
    named = [least]
    if what == "load" and refusal(model, least) is not None:  # the sizes of a run are not known before
        what, least = refusal(model, least)
        assert what == "run"
        named.append(least)
    for limit in (least // 9, least // 2, least - 1):
        assert refusal(model, limit)[1] in named
    assert refusal(model, least - 1)[1] == least
    assert refusal(model, least) is None


@pytest.mark.parametrize("rows", [(1, 40), (1, 4000)])
def test_the_first_refusal_of_declared_shapes_names_a_limit_that_suffices(rows):
    """Forms for parts of the ranges, which are compiled one after another, and weights in memory that they share."""

    def refused(limit):
        try:
            with gp.onnx.load(MODELS["folded"], threads=1, memory_limit=limit, shapes={"rows": rows}) as model:
                for size in rows:
                    model.run({"x": np.ones((size, 64), np.float32)})
                assert model.engine.budget.peak <= limit
        except gp.OutOfMemoryError as error:
            return error.smallest_limit
        return None

    least = refused(1)
    assert [refused(limit) for limit in (least // 9, least // 3, least - 1, least)] == [least, least, least, None]


def test_a_load_that_would_take_too_much_beyond_the_limit_names_what_it_asked_for(monkeypatch):
    monkeypatch.setattr(load_room, "MOST_BEYOND_NBYTES", 100)
    with pytest.raises(gp.OutOfMemoryError, match="asked by loading") as caught:
        gp.onnx.load(MODELS["folded, static"], threads=1, memory_limit=1)
    error = caught.value
    assert error.smallest_limit == error.in_use + error.requested < 100


def test_what_ran_before_takes_nothing_from_a_limit_that_suffices():
    x = {"x": RNG.standard_normal((400, 64)).astype(np.float32)}
    with (
        gp.onnx.load(MODELS["folded"], threads=1, memory_limit=40_000) as model,
        pytest.raises(gp.OutOfMemoryError) as caught,
    ):
        model.run(x)
    with gp.onnx.load(MODELS["folded"], threads=1, memory_limit=caught.value.smallest_limit) as model:
        small = model.run(X)["y"].copy()
        model.run(x)
        np.testing.assert_array_equal(model.run(X)["y"], small)
        assert model.engine.budget.peak <= caught.value.smallest_limit


def test_what_is_behind_searches_counts_from_the_first_refusal_on():
    """A wide part, and a product of what a NonZero finds in it, within the limit that loading names."""
    weights = {
        "wide": RNG.standard_normal((64, 2**15)).astype(np.float32),
        "narrow": RNG.standard_normal((2**15, 64)).astype(np.float32),
        "row": RNG.standard_normal((1, 64)).astype(np.float32), "w": RNG.standard_normal((64, 64)).astype(np.float32),
        "one": np.array([1]),
    }  # fmt: skip
    nodes = [
        helper.make_node("MatMul", ["x", "wide"], ["g"]), helper.make_node("Softmax", ["g"], ["s"]),
        helper.make_node("MatMul", ["s", "narrow"], ["r"]), helper.make_node("NonZero", ["r"], ["found"]),
        helper.make_node("Transpose", ["found"], ["places"]), helper.make_node("GatherND", ["r", "places"], ["values"]),
        helper.make_node("Unsqueeze", ["values", "one"], ["column"]), helper.make_node("Mul", ["column", "row"], ["h"]),
        helper.make_node("MatMul", ["h", "w"], ["y"]),
    ]  # fmt: skip
    model = model_of(nodes, weights, 3)
    with pytest.raises(gp.OutOfMemoryError) as caught:
        gp.onnx.load(model, threads=1, memory_limit="16MiB")
    alone = caught.value.requested
    for limit in (1, 40_000, alone // 2, alone - 1):
        what, least = refusal(model, limit)
        assert (what, refusal(model, least)) == ("load", None)
        assert alone < least


@pytest.mark.parametrize("shapes", [None, {"rows": (1, 300)}], ids=["static", "declared"])
def test_a_search_whose_model_fits_where_what_is_behind_it_does_not(shapes):
    """Limits between what the one takes and what both do; of declared shapes, for any of them."""
    weights = {"wide": RNG.standard_normal((1, 400)).astype(np.float32), "one": np.array([1])}
    nodes = [
        helper.make_node("Softmax", ["x"], ["s"]), helper.make_node("NonZero", ["s"], ["found"]),
        helper.make_node("Transpose", ["found"], ["places"]), helper.make_node("GatherND", ["s", "places"], ["values"]),
        helper.make_node("Unsqueeze", ["values", "one"], ["column"]),
        helper.make_node("MatMul", ["column", "wide"], ["h"]),
        helper.make_node("ReduceMax", ["h"], ["y"], axes=[0], keepdims=0),
    ]  # fmt: skip
    model = model_of(nodes, weights, 300 if shapes is None else "rows")
    model.opset_import[0].version = 17

    def refused(limit):
        try:
            with gp.onnx.load(model, threads=1, memory_limit=limit, shapes=shapes) as loaded:
                for rows in (300,) if shapes is None else (1, 299, 300):
                    loaded.run({"x": np.ones((rows, 64), np.float32)})
                assert loaded.engine.budget.peak <= limit
        except gp.OutOfMemoryError as error:
            return error.smallest_limit
        return None

    least = refused(1)
    assert {refused(least * part // 12) for part in range(1, 12)} == {least}
    assert [refused(least - 1), refused(least)] == [least, None]


def branch(name, inner=None):
    """Sums of what the graph around it has as x and a product by numbers that the branch holds and loading computes."""
    w, v = (numpy_helper.from_array(RNG.standard_normal((64, 256)).astype(np.float32)) for _ in range(2))
    nodes = [
        helper.make_node("Constant", [], [f"{name}w"], value=w),
        helper.make_node("Constant", [], [f"{name}v"], value=v),
        helper.make_node("Mul", [f"{name}w", f"{name}v"], [f"{name}t"]),
        helper.make_node("MatMul", ["x", f"{name}t"], [f"{name}p"]),
        inner or helper.make_node("Relu", [f"{name}p"], [f"{name}y"]),
    ]
    return helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(f"{name}y", TensorProto.FLOAT, None)])


@pytest.mark.parametrize("limit", [100, 40_000, 100_000])
def test_branches_that_hold_weights_are_compiled_in_the_limit_that_the_first_refusal_names(limit):
    inner = helper.make_node("If", ["is_wide"], ["thenp2"], then_branch=branch("a"), else_branch=branch("b"))
    then = branch("then", helper.make_node("Add", ["thenp", "thenp2"], ["theny"]))
    then.node.insert(4, inner)
    nodes = [
        helper.make_node("Equal", ["rate", "wide"], ["is_wide"]),
        helper.make_node("If", ["is_wide"], ["y"], then_branch=then, else_branch=branch("else")),
    ]
    model = model_of(nodes, {"wide": np.int64(16000)})
    model.graph.input.append(helper.make_tensor_value_info("rate", TensorProto.INT64, []))
    inputs = {**X, "rate": np.array(16000)}

    def refused(limit):
        with gp.onnx.load(model.SerializeToString(), threads=1, memory_limit=limit) as loaded:
            try:
                loaded.run(inputs)
            except gp.OutOfMemoryError as error:
                return error.smallest_limit
            assert not any(loaded.specialise(inputs).fallbacks)
            assert loaded.engine.budget.peak <= limit
        return None

    least = refused(limit)
    assert least > limit
    assert refused(least) is None


def test_a_run_behind_a_search_finds_room_in_the_limit_that_its_refusal_names():
    """Shapes that nobody declared: programs of which others are made take no part of it."""
    nodes = [helper.make_node("NonZero", ["x"], ["y"])]
    x = {"x": np.ones((4000, 64), np.float32)}

    def refused(limit):
        with gp.onnx.load(model_of(nodes, {}), threads=1, memory_limit=limit) as model:
            try:
                model.run(x)
            except gp.OutOfMemoryError as error:
                return error.smallest_limit
            assert model.engine.budget.peak <= limit
        return None

    least = refused("1MiB")
    assert [refused(limit) for limit in (least - 1, least)] == [least, None]


def test_what_compiling_computes_hides_nothing_that_a_run_takes_behind_a_search():
    """The numbers of a slice find no room beside the weights, which are all that the limit has room for."""
    weights = {"table": RNG.standard_normal((64, 200)).astype(np.float32), "last": np.array([1]), "zero": np.array([0])}
    nodes = [
        helper.make_node("NonZero", ["x"], ["found"]), helper.make_node("Gather", ["found", "last"], ["place"], axis=0),
        helper.make_node("Squeeze", ["place", "zero"], ["places"]),
        helper.make_node("Gather", ["table", "places"], ["rows"], axis=0), helper.make_node("Exp", ["rows"], ["y"]),
    ]  # fmt: skip
    model = model_of(nodes, weights).SerializeToString()
    what, least = refusal(model, 1)
    assert what == "load"
    what, enough = refusal(model, least)
    assert what == "run"
    assert enough > least + weights["table"].nbytes
    assert refusal(model, enough) is None


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_first_run_that_finds_no_room_is_compiled_once(name):
    case = UNKNOWN[name]
    rng = np.random.default_rng(0)
    inputs = case.arrays(case.draw(rng), rng)
    with gp.onnx.load(case.proto().SerializeToString(), threads=1) as model:
        wanted = model.run(inputs)

    def run(limit):
        try:
            loaded = gp.onnx.load(case.proto().SerializeToString(), threads=1, memory_limit=limit)
        except gp.OutOfMemoryError as error:  # its weights alone take more
            return error.smallest_limit, 1
        with loaded as model:
            try:
                results = model.run(inputs)
            except gp.OutOfMemoryError as error:
                return error.smallest_limit, model.stats().compilations
            assert model.engine.budget.peak <= limit
            assert model.stats().compilations == 1
            for result, array in wanted.items():
                np.testing.assert_array_equal(results[result], array)
        return None, 1

    least, compilations = run(16_000)
    while least is not None:
        assert compilations == 1
        limit = least
        least, compilations = run(limit)
        assert least is None or least > limit
