"""Ensembles of decision trees of domain ai.onnx.ml, compared with walks over the attributes, one row at a time."""

from collections import defaultdict
from math import isnan

import numpy as np
import pytest
from onnx import helper, numpy_helper

import graphpool as gp
from tests.helpers.onnx_models import peer_session
from tests.helpers.variable_programs import Comparison

DOMAIN = "ai.onnx.ml"
MODES = {
    "BRANCH_LEQ": lambda x, t: x <= t, "BRANCH_LT": lambda x, t: x < t, "BRANCH_GTE": lambda x, t: x >= t,
    "BRANCH_GT": lambda x, t: x > t, "BRANCH_EQ": lambda x, t: x == t, "BRANCH_NEQ": lambda x, t: x != t,
}  # fmt: skip
LIMITS = [-np.inf, -1.0, -0.0, 0.25, 1.0, np.inf, np.nan]
NUMBERS = [*LIMITS, 0.1, 3e38, -3e38, -1e-45]


def random_trees(rng, ntrees, nfeatures, nout, *, prefix="target", modes=tuple(MODES), depth=5):
    """The attributes of random trees; ids of nodes have gaps and are not in order."""
    made = defaultdict(list)
    for tree in range(ntrees):
        names = (rng.permutation(300) * 3).tolist()

        def grow(number, depth, tree=tree, names=names):
            is_leaf = depth == 0 or rng.random() < 0.2
            children = [0, 0] if is_leaf else [names.pop(), names.pop()]
            for key, value in {
                "treeids": 5 - tree, "nodeids": number, "modes": "LEAF" if is_leaf else str(rng.choice(modes)),
                "featureids": int(rng.integers(nfeatures)), "values": float(rng.choice(LIMITS)),
                "missing_value_tracks_true": int(rng.integers(2)), "truenodeids": children[0],
                "falsenodeids": children[1],
            }.items():  # fmt: skip
                made[f"nodes_{key}"].append(value)
            for child in children if not is_leaf else ():
                grow(child, depth - 1)
            for _ in range(int(rng.integers(3)) if is_leaf else 0):
                entry = {"treeids": 5 - tree, "nodeids": number, "ids": int(rng.integers(nout)),
                         "weights": float(rng.integers(-20, 20)) / 8}  # fmt: skip
                for key, value in entry.items():
                    made[f"{prefix}_{key}"].append(value)

        grow(names.pop(), depth)
    return dict(made)


def leaf_of(a, row, tree):
    """The number of the leaf that a row comes to."""
    places = {number: k for k, number in enumerate(a["nodes_nodeids"]) if a["nodes_treeids"][k] == tree}
    at = min(places.values())
    while a["nodes_modes"][at] != "LEAF":
        x, mode = float(row[a["nodes_featureids"][at]]), a["nodes_modes"][at]
        is_true = MODES[mode](x, a["nodes_values"][at]) or (isnan(x) and a["nodes_missing_value_tracks_true"][at] == 1)
        at = places[a["nodes_truenodeids" if is_true else "nodes_falsenodeids"][at]]
    return a["nodes_nodeids"][at]


def scores_of(a, x, nout, aggregate="SUM", prefix="target"):
    y = np.zeros((len(x), nout))
    trees = sorted(set(a["nodes_treeids"]))
    for row, result in zip(x, y, strict=True):
        found = [[] for _ in range(nout)]
        for tree in trees:
            leaf = leaf_of(a, row, tree)
            for k, weight in enumerate(a.get(f"{prefix}_weights", ())):
                if (a[f"{prefix}_treeids"][k], a[f"{prefix}_nodeids"][k]) == (tree, leaf):
                    found[a[f"{prefix}_ids"][k]].append(weight)
        for target, numbers in enumerate(found):
            function = {"MIN": min, "MAX": max}.get(aggregate, sum)
            result[target] = function(numbers) if numbers else 0
    y = y / len(trees) if aggregate == "AVERAGE" else y
    return y + np.array(a.get("base_values", 0.0))


def make_model(op, attributes, x, outputs=("y",), opset=3):
    node = helper.make_node(op, ["x"], list(outputs), "the_trees", domain=DOMAIN, **attributes)
    source = helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), ["rows", x.shape[1]])
    results = [helper.make_empty_tensor_value_info(name) for name in outputs]
    imports = [helper.make_opsetid("", 18), helper.make_opsetid(DOMAIN, opset)]
    return helper.make_model(helper.make_graph([node], "g", [source], results), opset_imports=imports, ir_version=9)


def run(model, x):
    with gp.onnx.load(model, fallback=False) as loaded:
        results = list(loaded.run({"x": x}).values())
        assert all(partition.backend.name == "cpu" for partition in loaded.partitions)
    return results if len(results) > 1 else results[0]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("mode", [*MODES, "any"])
def test_regressor(mode, dtype):
    rng = np.random.default_rng(len(mode))
    modes = tuple(MODES) if mode == "any" else (mode,)
    for k, aggregate in enumerate(("SUM", "AVERAGE", "MIN", "MAX")):
        a = random_trees(rng, 1 + 5 * k, 3, 2, modes=modes)
        a |= {"base_values": [0.5, -0.25]} if k % 2 else {}
        x = rng.choice(NUMBERS, (40, 3)).astype(dtype)
        model = make_model("TreeEnsembleRegressor", {**a, "n_targets": 2, "aggregate_function": aggregate}, x)
        got = run(model, x)
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, scores_of(a, x, 2, aggregate), rtol=1e-6)


@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
def test_of_several_weights_of_a_leaf_for_one_target_the_first_counts(aggregate):
    """As in ONNX Runtime: skl2onnx gives a leaf its number as often as the forest has classes."""
    a = {"nodes_treeids": [0] * 3, "nodes_nodeids": [0, 1, 2], "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
         "nodes_featureids": [0] * 3, "nodes_values": [0.0] * 3, "nodes_truenodeids": [1, 0, 0],
         "nodes_falsenodeids": [2, 0, 0], "target_treeids": [0] * 5, "target_nodeids": [2, 1, 2, 1, 1],
         "target_ids": [0] * 5, "target_weights": [0.0, 2.0, 7.0, 1.0, 4.0]}  # fmt: skip
    x = np.array([[-1], [1]], np.float32)
    model = make_model("TreeEnsembleRegressor", {**a, "n_targets": 1, "aggregate_function": aggregate}, x)
    np.testing.assert_array_equal(run(model, x), [[2], [0]])
    pytest.importorskip("onnxruntime")
    [expected] = peer_session(model).run(None, {"x": x})
    np.testing.assert_array_equal(expected, [[2], [0]])


def test_thresholds_as_a_tensor_of_f64_meet_features_of_f32():
    """No f32 lies between 0.1 and the nearest f32, which is above it."""
    x = np.array([[np.float32(0.1)], [np.nextafter(np.float32(0.1), np.float32(0))]])
    for mode, compare in MODES.items():
        a = {"nodes_treeids": [0] * 3, "nodes_nodeids": [0, 1, 2], "nodes_modes": [mode, "LEAF", "LEAF"],
             "nodes_featureids": [0] * 3, "nodes_truenodeids": [1, 0, 0], "nodes_falsenodeids": [2, 0, 0],
             "target_treeids": [0, 0], "target_nodeids": [1, 2], "target_ids": [0, 0]}  # fmt: skip
        tensors = {"nodes_values": [0.1, 0, 0], "target_weights": [1.5, 1e-300]}
        a |= {f"{k}_as_tensor": numpy_helper.from_array(np.array(v, np.float64)) for k, v in tensors.items()}
        got = run(make_model("TreeEnsembleRegressor", {**a, "n_targets": 1}, x), x)
        np.testing.assert_array_equal(got[:, 0], [1.5 if compare(float(row[0]), 0.1) else 0.0 for row in x])


@pytest.mark.parametrize("post", ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"])
@pytest.mark.parametrize("labels", [[0, 1, 2], [7, -3, 12]])
def test_classifier(labels, post):
    rng = np.random.default_rng(1)
    a = random_trees(rng, 20, 4, 3, prefix="class") | {"base_values": [0.5, 0.25, 0.0]}
    x = rng.standard_normal((40, 4)).astype(np.float32)
    attributes = {**a, "classlabels_int64s": labels, "post_transform": post}
    label, scores = run(make_model("TreeEnsembleClassifier", attributes, x, ("label", "scores")), x)
    raw = scores_of(a, x, 3, prefix="class")
    np.testing.assert_array_equal(label, np.array(labels)[raw.argmax(1)])
    np.testing.assert_allclose(scores, transformed(raw, post), rtol=1e-5, atol=1e-6)


def transformed(raw, post):
    powers = np.exp(raw - raw.max(1, keepdims=True))
    if post == "SOFTMAX_ZERO":
        powers[raw == 0] = 0
    return {"NONE": raw, "LOGISTIC": 1 / (1 + np.exp(-raw))}.get(post, powers / powers.sum(1, keepdims=True))


@pytest.mark.parametrize("base", [[], [0.5]])
@pytest.mark.parametrize("are_shares", [False, True])
@pytest.mark.parametrize("post", ["NONE", "LOGISTIC"])
def test_two_classes_of_which_one_has_weights(post, are_shares, base):
    rng = np.random.default_rng(2)
    a = random_trees(rng, 9, 4, 1, prefix="class") | ({"base_values": base} if base else {})
    if are_shares:
        a["class_weights"] = [abs(weight) / 9 for weight in a["class_weights"]]
    x = rng.standard_normal((40, 4)).astype(np.float32)
    attributes = {**a, "classlabels_int64s": [5, 3], "post_transform": post}
    label, scores = run(make_model("TreeEnsembleClassifier", attributes, x, ("label", "scores")), x)
    raw = scores_of(a, x, 1, prefix="class")
    np.testing.assert_array_equal(label, np.where(raw[:, 0] > (0.5 if are_shares else 0), 3, 5))
    both = np.hstack([1 - raw if are_shares and post == "NONE" else -raw, raw])
    np.testing.assert_allclose(scores, transformed(both, post), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("are_shares", [False, True])
@pytest.mark.parametrize("post", ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"])
def test_two_classes_of_which_the_second_has_weights(post, are_shares):
    """The first one's score is 0, as in ONNX Runtime, which compares that of the second with the same number."""
    a = {"nodes_treeids": [0] * 3, "nodes_nodeids": [0, 1, 2], "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
         "nodes_featureids": [0] * 3, "nodes_values": [0.0] * 3, "nodes_truenodeids": [1, 0, 0],
         "nodes_falsenodeids": [2, 0, 0], "class_treeids": [0] * 2, "class_nodeids": [1, 2], "class_ids": [1] * 2,
         "class_weights": [0.2, 0.7] if are_shares else [-0.5, 0.2]}  # fmt: skip
    x = np.array([[-1], [1]], np.float32)
    attributes = {**a, "classlabels_int64s": [5, 3], "post_transform": post}
    model = make_model("TreeEnsembleClassifier", attributes, x, ("label", "scores"))
    label, scores = run(model, x)
    np.testing.assert_array_equal(label, [5, 3])
    raw = np.stack([np.zeros(2), a["class_weights"]], 1)
    np.testing.assert_allclose(scores, transformed(raw, post), rtol=1e-5)
    pytest.importorskip("onnxruntime")
    labels, expected = peer_session(model).run(None, {"x": x})
    np.testing.assert_array_equal(labels, label)
    np.testing.assert_allclose(scores, expected, rtol=1e-5)


def tensor(numbers, dtype):
    return numpy_helper.from_array(np.array(numbers, dtype))


def branches(dtype=np.float32, **changes):
    """Two trees of opset 5: x0 in {1, 3, 8} ? leaf 0 : x1 <= 2 ? leaf 1 : leaf 2, and x0 in {} ? leaf 0 : leaf 2."""
    return {
        "n_targets": 2, "tree_roots": [0, 2], "nodes_featureids": [0, 1, 0],
        "nodes_modes": tensor([6, 0, 6], np.uint8), "nodes_splits": tensor([0, 2, 0], dtype),
        "nodes_truenodeids": [0, 1, 0], "nodes_trueleafs": [1, 1, 1], "nodes_falsenodeids": [1, 2, 2],
        "nodes_falseleafs": [0, 1, 1], "leaf_targetids": [0, 1, 0], "leaf_weights": tensor([1, 2, 4], dtype),
        "membership_values": tensor([8, 1, 3, np.nan, np.nan], dtype),
    } | changes  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_sets_of_opset_5(dtype):
    x = np.array([[8, 0], [1, 9], [3, np.nan], [2, 2], [2, 3], [np.nan, 2], [np.nan, np.nan]], dtype)
    got = run(make_model("TreeEnsemble", branches(dtype), x, opset=5), x)
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, [[5, 0], [5, 0], [5, 0], [4, 2], [8, 0], [4, 2], [8, 0]])


def chain(*, length=1, true=None, **changes):
    """A tree of nodes that ask x == 0, x == 1, ..., and share the leaf of those that find it so."""
    inner = list(range(length))
    return {
        "nodes_treeids": [0] * (length + 2), "nodes_nodeids": list(range(length + 2)),
        "nodes_modes": ["BRANCH_EQ"] * length + ["LEAF"] * 2, "nodes_featureids": [0] * (length + 2),
        "nodes_values": [*map(float, inner), 0.0, 0.0],
        "nodes_truenodeids": [*([length] * length if true is None else true), 0, 0],
        "nodes_falsenodeids": [*[k + 1 for k in inner[:-1]], length + 1, 0, 0],
        "target_treeids": [0, 0], "target_nodeids": [length, length + 1], "target_ids": [0, 0],
        "target_weights": [1.0, 2.0], "n_targets": 1,
    } | changes  # fmt: skip


def test_nodes_may_share_a_child():
    x = np.array([[0], [7], [299], [300], [np.nan]], np.float32)
    got = run(make_model("TreeEnsembleRegressor", chain(length=300), x), x)
    np.testing.assert_array_equal(got[:, 0], [1, 1, 1, 2, 2])


def test_shared_children_do_not_multiply():
    """Forty nodes one below the other, each of which leads twice to the next: 2**40 ways."""
    links = [*range(1, 40), 40]
    x = np.array([[3.0]], np.float32)
    a = chain(length=40, true=links, nodes_falsenodeids=[*links, 0, 0])
    assert run(make_model("TreeEnsembleRegressor", a, x), x) == 1


X = np.zeros((2, 1), np.float32)


@pytest.mark.parametrize(("changes", "text"), [
    ({"nodes_truenodeids": [0, 0, 0]}, "without cycles"),
    ({"length": 2, "nodes_falsenodeids": [1, 0, 0, 0]}, "without cycles"),
    ({"nodes_truenodeids": [5, 0, 0]}, "node 5, which it has not"),
    ({"nodes_treeids": [0, 1, 0]}, "nodes of the same tree"),
    ({"nodes_nodeids": [0, 1, 1]}, "nodes_nodeids.*one twice"),
    ({"nodes_values": [0.0]}, "nodes_values.*3 numbers"),
    ({"nodes_modes": ["BRANCH_EQ", "LEAF", "BRANCH"]}, "nodes_modes"),
    ({"nodes_featureids": [-1, 0, 0]}, "nodes_featureids"),
    ({"nodes_featureids": [2**31, 0, 0]}, "nodes_featureids"),
    ({"target_ids": [0, 1]}, "target_ids"),
    ({"target_nodeids": [1, 7]}, "target_nodeids"),
    ({"target_treeids": [0, 3]}, "target_nodeids"),
    ({"n_targets": 0}, "n_targets"),
    ({"n_targets": 2**40}, "n_targets"),
])  # fmt: skip
def test_what_are_no_trees_is_refused(changes, text):
    with pytest.raises(gp.GraphpoolError, match=f"(?s)the_trees.*{text}") as caught:
        gp.onnx.load(make_model("TreeEnsembleRegressor", chain(**changes), X))
    assert caught.value.fields["node"] == "the_trees"


@pytest.mark.parametrize(("changes", "text"), [
    ({"tree_roots": [0, 3]}, "tree_roots"), ({"nodes_truenodeids": [3, 1, 0]}, "nodes_truenodeids"),
    ({"nodes_falsenodeids": [0, 2, 2]}, "without cycles"), ({"leaf_targetids": [0, 2, 0]}, "leaf_targetids"),
    ({"nodes_trueleafs": [2, 1, 1]}, "nodes_trueleafs"), ({"nodes_modes": tensor([7, 0, 6], np.uint8)}, "nodes_modes"),
    ({"membership_values": tensor([1.0, np.nan], np.float32)}, "membership_values"),
])  # fmt: skip
def test_what_are_no_branches_is_refused(changes, text):
    with pytest.raises(gp.InvalidOpError, match=f"the_trees.*{text}"):
        gp.onnx.load(make_model("TreeEnsemble", branches(**changes), X, opset=5))


def test_rows_have_the_features_that_trees_compare():
    model = make_model("TreeEnsembleRegressor", chain(nodes_featureids=[1, 0, 0]), X)
    with (
        gp.onnx.load(model, fallback=False) as loaded,
        pytest.raises(gp.UnsupportedError, match="trees that compare 2 features"),
    ):
        loaded.run({"x": X})


@pytest.mark.parametrize(("rows", "others"), [(3, (2, 17, 64)), (1000, (65, 128, 5000))])
def test_one_compilation_serves_many_batches(rows, others):
    """Of one block of 64 rows, or of more."""
    rng = np.random.default_rng(8)
    x = np.zeros((rows, 4), np.float32)
    a = random_trees(rng, 20, 4, 3, prefix="class") | {"classlabels_int64s": [4, 5, 6], "post_transform": "SOFTMAX"}
    model = make_model("TreeEnsembleClassifier", a, x, ("label", "scores"))
    with (
        gp.Engine("cpu", threads=2) as engine,
        gp.onnx.load(model, engine=engine) as loaded,
        Comparison.of(loaded, {"x": x}) as comparison,
    ):
        comparison.compare([{"x": (other, 4)} for other in others])
        assert comparison.counts == {"alike": len(others)}


def test_trees_are_packed_once():
    x = np.zeros((3, 4), np.float32)
    a = random_trees(np.random.default_rng(9), 5, 4, 1) | {"n_targets": 1}
    with gp.onnx.load(make_model("TreeEnsembleRegressor", a, x)) as loaded:
        loaded.run({"x": x})
        nbytes = loaded.stats().cached_nbytes
        loaded.run({"x": x[:2]})
        assert loaded.stats().cached_nbytes == nbytes > 0
