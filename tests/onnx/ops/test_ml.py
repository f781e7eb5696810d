"""Ops of domain ai.onnx.ml that are not trees, without fallback."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import graphpool as gp

DOMAIN = "ai.onnx.ml"
RNG = np.random.default_rng(0)
X = (RNG.standard_normal((7, 4)) * 3).astype(np.float32)
X[2] = 0
INTS = RNG.integers(0, 6, (7, 4))


def load(kind, inputs, noutputs=1, opset=3, **attributes):
    outputs = [f"y{k}" for k in range(noutputs)]
    node = helper.make_node(kind, list(inputs), outputs, "the_node", domain=DOMAIN, **attributes)
    sources = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), [None, *x.shape[1:]])
        for name, x in inputs.items()
    ]
    graph = helper.make_graph([node], "g", sources, [helper.make_empty_tensor_value_info(name) for name in outputs])
    imports = [helper.make_opsetid("", 18), helper.make_opsetid(DOMAIN, opset)]
    return gp.onnx.load(helper.make_model(graph, opset_imports=imports, ir_version=9), fallback=False)


def run(kind, *inputs, noutputs=1, opset=3, **attributes):
    named = {f"x{k}": x for k, x in enumerate(inputs)}
    with load(kind, named, noutputs, opset, **attributes) as model:
        results = list(model.run(named).values())
    return results if noutputs > 1 else results[0]


def check(got, expected, dtype="float32"):
    assert got.dtype == dtype
    np.testing.assert_allclose(got, expected, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "int32"])
def test_scaler(dtype):
    x = X.astype(dtype)
    offset, scale = [0.1, 0.2, 0.3, 0.4], [2.0, 3.0, 4.0, 0.5]
    check(run("Scaler", x, offset=offset, scale=scale), (x - np.float32(offset)) * np.float32(scale))
    check(run("Scaler", x, offset=[1.0], scale=[0.5]), (x - 1.0) * 0.5)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_normalizer(dtype):
    x = X.astype(dtype)
    for norm, sizes in (("MAX", x.max(1)), ("L1", np.abs(x).sum(1)), ("L2", np.sqrt(np.square(x).sum(1)))):
        check(run("Normalizer", x, norm=norm), x / np.where(sizes == 0, 1, sizes)[:, None])


KERNELS = {
    "LINEAR": lambda x, v: x @ v.T,
    "POLY": lambda x, v: (0.2 * (x @ v.T) + 0.7) ** 3,
    "SIGMOID": lambda x, v: np.tanh(0.2 * (x @ v.T) + 0.7),
    "RBF": lambda x, v: np.exp(-0.2 * np.square(x[:, None] - v).sum(2)),
}


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_svm_regressor(kernel, dtype):
    x, vectors = X.astype(dtype), RNG.standard_normal((9, 4)).astype(np.float32)
    weights = RNG.standard_normal(9).astype(np.float32)
    numbers = {"n_supports": 9, "support_vectors": vectors.ravel().tolist(), "coefficients": weights.tolist()}
    given = {"kernel_type": kernel, "kernel_params": [0.2, 0.7, 3.0], "rho": [0.3], **numbers}
    wanted = KERNELS[kernel](x.astype(np.float64), vectors.astype(np.float64)) @ weights[:, None] + 0.3
    got = run("SVMRegressor", x, **given)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max())
    check(run("SVMRegressor", x, **given, one_class=1), np.where(wanted > 0, 1, -1))


def test_svm_regressor_without_vectors_is_linear():
    weights = RNG.standard_normal(4).astype(np.float32)
    check(run("SVMRegressor", X, coefficients=weights.tolist(), rho=[0.3]), X @ weights[:, None] + np.float32(0.3))
    given = {"coefficients": weights.tolist(), "rho": [0.3]}
    for wrong in ({**given, "n_supports": 2, "support_vectors": [1.0] * 7}, {**given, "coefficients": [1.0] * 3}):
        with pytest.raises(gp.UnsupportedError, match="SVMRegressor"):
            run("SVMRegressor", X, **wrong)
    with pytest.raises(gp.UnsupportedError, match="no rho"):
        run("SVMRegressor", X, coefficients=weights.tolist())


CLASSES = {
    2: {"vectors_per_class": [4, 5], "rho": [0.3]},
    4: {"vectors_per_class": [3, 1, 0, 5], "rho": [0.3, -0.2, 0.1, 0.5, -0.4, 0.2]},
}


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("count", CLASSES)
def test_svm_classifier(kernel, count):
    """Against the definition: each pair has the weights that its two classes have for one another."""
    rng = np.random.default_rng(count)
    vectors, weights = rng.standard_normal((9, 4)).astype(np.float32), rng.standard_normal((count - 1, 9)) / 8
    rho, sizes = CLASSES[count]["rho"], CLASSES[count]["vectors_per_class"]
    labels = [7, -3, 5, 0][:count]
    given = {
        "kernel_type": kernel, "kernel_params": [0.2, 0.7, 3.0], "support_vectors": vectors.ravel().tolist(),
        "coefficients": weights.ravel().tolist(), "classlabels_ints": labels, **CLASSES[count],
    }  # fmt: skip
    likeness, owner = KERNELS[kernel](X.astype(np.float64), vectors.astype(np.float64)), np.repeat(range(count), sizes)
    pairs = [(i, j) for i in range(count) for j in range(i + 1, count)]
    wanted = np.stack([
        likeness[:, owner == i] @ weights[j - 1, owner == i] + likeness[:, owner == j] @ weights[i, owner == j] + r
        for (i, j), r in zip(pairs, rho, strict=True)
    ], 1)  # fmt: skip
    votes = np.zeros((len(X), count))
    for k, (i, j) in enumerate(pairs):
        votes[range(len(X)), np.where(wanted[:, k] > 0, i, j)] += 1
    label, scores = run("SVMClassifier", X, noutputs=2, **given)
    np.testing.assert_array_equal(label, np.array(labels)[votes.argmax(1)])
    both = np.hstack([-wanted, wanted]) if count == 2 else wanted
    np.testing.assert_allclose(scores, both, rtol=1e-5, atol=1e-5 * np.abs(both).max())
    _, powers = run("SVMClassifier", X, noutputs=2, **given, post_transform="LOGISTIC")
    np.testing.assert_allclose(powers, 1 / (1 + np.exp(-both)), rtol=1e-4, atol=1e-6)


def test_distances_of_a_support_vector_machine_do_not_cancel_out():
    """Of points far from the origin, whose squares float32 would not tell apart."""
    x, vectors = (X + 1000).astype(np.float32), (RNG.standard_normal((9, 4)) + 1000).astype(np.float32)
    weights = RNG.standard_normal(9).astype(np.float32)
    got = run(
        "SVMRegressor", x, kernel_type="RBF", kernel_params=[0.2, 0.0, 3.0], rho=[0.3], n_supports=9,
        support_vectors=vectors.ravel().tolist(), coefficients=weights.tolist(),
    )  # fmt: skip
    wanted = KERNELS["RBF"](x.astype(np.float64), vectors.astype(np.float64)) @ weights[:, None] + 0.3
    np.testing.assert_allclose(got, wanted, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.parametrize(("changes", "reason"), [
    ({"vectors_per_class": [0, 0]}, "no support vectors"), ({"vectors_per_class": [9, -1]}, "no support vectors"),
    ({"coefficients": [1.0]}, "coefficients"), ({"coefficients": [1.0] * 9}, "negative"), ({"rho": None}, "rho"),
    ({"support_vectors": [1.0]}, "support vectors"), ({"prob_a": [1.0, 2.0], "prob_b": [0.5]}, "prob_a"),
    ({"kernel_type": "COSINE"}, "kernel COSINE"), ({"post_transform": "PROBIT"}, "PROBIT"),
])  # fmt: skip
def test_what_is_no_support_vector_classifier(changes, reason):
    given = {
        "kernel_params": [0.2, 0.7, 3.0], "support_vectors": [0.5] * 36, "coefficients": [-1.0] * 9,
        "classlabels_ints": [0, 1], **CLASSES[2],
    }  # fmt: skip
    with pytest.raises(gp.UnsupportedError, match=reason):
        run("SVMClassifier", X, noutputs=2, **{k: v for k, v in (given | changes).items() if v is not None})


def test_linear_regressor():
    c = RNG.standard_normal(8).astype(np.float32)
    scores = X @ c.reshape(2, 4).T + np.float32([0.5, 0.1])
    numbers = {"coefficients": c.tolist(), "intercepts": [0.5, 0.1], "targets": 2}
    check(run("LinearRegressor", X, **numbers), scores)
    powers = np.exp(scores - scores.max(1, keepdims=True))
    check(run("LinearRegressor", X, **numbers, post_transform="SOFTMAX"), powers / powers.sum(1, keepdims=True))
    check(run("LinearRegressor", X, coefficients=c[:4].tolist()), X @ c[:4, None])


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_linear_classifier(dtype):
    c, x = RNG.standard_normal(12).astype(np.float32), X.astype(dtype)
    numbers = {"coefficients": c.tolist(), "intercepts": [0.1, 0.2, 0.3], "classlabels_ints": [5, 9, -6]}
    scores = x @ c.reshape(3, 4).T + np.float32([0.1, 0.2, 0.3])
    labels, got = run("LinearClassifier", x, noutputs=2, **numbers, post_transform="LOGISTIC")
    np.testing.assert_array_equal(labels, np.array([5, 9, -6])[scores.argmax(1)])
    check(got, 1 / (1 + np.exp(-scores)))


def test_binarizer():
    check(run("Binarizer", X, threshold=0.25), X > 0.25)


@pytest.mark.parametrize("replaced", [float("nan"), 0.0])
def test_imputer(replaced):
    x = X.copy()
    x[0, 1] = x[3] = np.nan
    is_replaced = np.isnan(x) if np.isnan(replaced) else x == replaced
    for values in ([1.0, 2.0, 3.0, 4.0], [7.0]):
        got = run("Imputer", x, imputed_value_floats=values, replaced_value_float=replaced)
        check(got, np.where(is_replaced, np.float32(values), x))


def test_imputer_of_integers():
    got = run("Imputer", INTS, imputed_value_int64s=[7, 8, 9, 2**60], replaced_value_int64=3)
    np.testing.assert_array_equal(got, np.where(INTS == 3, [7, 8, 9, 2**60], INTS))


def test_array_feature_extractor():
    for places in (np.array([2, 0, 2]), np.array([[3, 1]])):
        check(run("ArrayFeatureExtractor", X, places), X[:, places.reshape(-1)])
    check(run("ArrayFeatureExtractor", X[0], np.array([2, 0])), X[:1, [2, 0]])


@pytest.mark.parametrize("dtype", ["int64", "int32"])
def test_one_hot_encoder(dtype):
    for x in (INTS.astype(dtype), INTS[0].astype(dtype)):
        got = run("OneHotEncoder", x, cats_int64s=[3, 1, 5])
        check(got, x[..., None] == [3, 1, 5])


def test_label_encoder():
    table = {3: 0.5, 1: 1.5, 5: 2.5}
    want = np.vectorize(lambda x: table.get(x, 9.0))(INTS)
    keys, values = {"keys_int64s": list(table)}, {"values_floats": list(table.values()), "default_float": 9.0}
    check(run("LabelEncoder", INTS, **keys, **values), want)
    keys = {"keys_floats": list(map(float, table))}
    check(run("LabelEncoder", INTS.astype(np.float32), **keys, **values), want)
    tensors = {"keys_tensor": list(table), "values_tensor": [2, 4, 6], "default_tensor": [-3]}
    tensors = {name: helper.make_tensor(name, TensorProto.INT64, [len(v)], v) for name, v in tensors.items()}
    got = run("LabelEncoder", INTS, opset=4, **tensors)
    np.testing.assert_array_equal(got, np.vectorize(lambda x: {3: 2, 1: 4, 5: 6}.get(x, -3))(INTS))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.int32])
@pytest.mark.parametrize("count", [2, 3, 7, 64, 5000])
def test_label_encoder_of_many_keys(dtype, count):
    rng = np.random.default_rng(count)
    keys = np.unique(rng.integers(-10 * count, 10 * count, 2 * count))[:count].astype(dtype)
    keys = rng.permutation(keys if np.dtype(dtype).kind == "i" else keys / dtype(3))
    others = [*keys + dtype(1), np.iinfo(np.int32).max] if dtype in (np.int64, np.int32) else [
        *np.nextafter(keys, dtype(np.inf)), np.nan, np.inf, -np.inf]  # fmt: skip
    x = np.array([*keys, *others], dtype)[: 2 * count + 1].reshape(1, -1)
    tensors = {"keys_tensor": keys, "values_tensor": np.arange(count) * 3, "default_tensor": np.array([-3])}
    tensors = {name: numpy_helper.from_array(value, name) for name, value in tensors.items()}
    table = dict(zip(keys.tolist(), (np.arange(count) * 3).tolist(), strict=True))
    want = [[table.get(item, -3) for item in x[0].tolist()]]
    np.testing.assert_array_equal(run("LabelEncoder", x, opset=4, **tensors), want)


def test_feature_vectorizer():
    got = run("FeatureVectorizer", X, INTS, inputdimensions=[4, 4])
    check(got, np.hstack([X, INTS]))


@pytest.mark.parametrize(("kind", "x", "attributes", "reason"), [
    ("Scaler", X, {"offset": [0.0, 1.0], "scale": [1.0]}, "the length of offset"),
    ("LinearClassifier", X, {"coefficients": [1.0] * 4, "intercepts": [0.0], "classlabels_ints": [3, 4]}, "of labels"),
    ("LinearRegressor", X, {"coefficients": [1.0] * 5}, "the number of coefficients"),
    ("OneHotEncoder", INTS, {"cats_int64s": [1, 1]}, "comes twice"),
    ("Imputer", X, {"imputed_value_floats": [1.0, 2.0]}, "the number of values"),
    ("Normalizer", X, {"norm": "L3"}, "another norm"),
])  # fmt: skip
def test_the_rest_is_for_the_host(kind, x, attributes, reason):
    noutputs = 2 if kind == "LinearClassifier" else 1
    with load(kind, {"x": x}, noutputs, **attributes) as model, pytest.raises(gp.UnsupportedError, match=reason):
        model.run({"x": x})
