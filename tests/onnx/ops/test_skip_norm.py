"""Normalised sums and embeddings, against float64."""

import numpy as np
import onnx
import pytest

import graphpool as gp
from tests.helpers.onnx_models import ContributedCase, random_array

X, SKIP = random_array((2, 3, 16)), random_array((2, 3, 16), seed=1)
GAMMA, BETA, BIAS = (random_array((16,), seed=k) for k in (2, 3, 4))
EPSILON = 1e-3


def layer_norm(x, gamma=GAMMA, beta=BETA):
    """Result, mean and inverse standard deviation."""
    x = x.astype(float)
    mean, inverse = x.mean(-1, keepdims=True), 1 / np.sqrt(x.var(-1, keepdims=True) + EPSILON)
    return (x - mean) * inverse * gamma + beta, mean, inverse


def rms_norm(x):
    x = x.astype(float)
    inverse = 1 / np.sqrt(np.mean(x**2, -1, keepdims=True) + EPSILON)
    return x * inverse * GAMMA, inverse


def case(kind, inputs, expected, dtype="float32", **attributes):
    results = [value if value is None or value.dtype.kind == "i" else value.astype(dtype) for value in expected]
    return ContributedCase(kind, inputs, results, (), {"epsilon": EPSILON} | attributes)


def embed(*, segments=True, mask=False, places=None, outputs=2):
    rng = np.random.default_rng(0)
    ids, sort = rng.integers(0, 20, (2, 5)).astype("int32"), rng.integers(0, 2, (2, 5)).astype("int32")
    words, table, sorts = random_array((20, 16)), random_array((9, 16), seed=5), random_array((2, 16), seed=6)
    shown = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], "int32") if mask else None
    total = words[ids].astype(float) + table[np.arange(5) if places is None else places]
    total = total + sorts[sort] if segments else total
    counts = shown.sum(1).astype("int32") if mask else np.zeros(2, "int32")
    inputs = [ids, sort if segments else None, words, table, sorts if segments else None, GAMMA, BETA, shown, places]
    return case("EmbedLayerNormalization", inputs, [layer_norm(total)[0], counts, total][:outputs])


def quantised_embed():
    rng = np.random.default_rng(0)
    ids, sort = rng.integers(0, 20, (2, 5)).astype("int32"), rng.integers(0, 2, (2, 5)).astype("int32")
    tables = [rng.integers(0, 256, shape).astype("uint8") for shape in ((20, 16), (9, 16), (2, 16), (16,), (16,))]
    scales = [np.float32(0.01 * (k + 1)) for k in range(5)]
    points = [np.uint8(100 + k) for k in range(5)]
    words, table, sorts, gamma, beta = (
        (t.astype(float) - z) * np.float64(s) for t, s, z in zip(tables, scales, points, strict=True)
    )
    total = words[ids] + table[:5] + sorts[sort]
    inputs = [ids, sort, *tables, None, *scales, *points]
    return case("QEmbedLayerNormalization", inputs, [layer_norm(total, gamma, beta)[0], np.zeros(2, "int32")])


TOTAL = X.astype(float) + SKIP
CASES = {
    "skip": case("SkipLayerNormalization", [X, SKIP, GAMMA, BETA], layer_norm(TOTAL)[:1]),
    "skip-bias": case("SkipLayerNormalization", [X, SKIP, GAMMA, BETA, BIAS], layer_norm(TOTAL + BIAS)[:1]),
    "skip-no-beta": case("SkipLayerNormalization", [X, SKIP, GAMMA], layer_norm(TOTAL, beta=0)[:1]),
    "skip-sum": case("SkipLayerNormalization", [X, SKIP, GAMMA, BETA, BIAS],
                     [layer_norm(TOTAL + BIAS)[0], None, None, TOTAL + BIAS]),
    "skip-broadcast": case("SkipLayerNormalization", [X, SKIP[:1], GAMMA, BETA], layer_norm(X + SKIP[:1])[:1]),
    "skip-rows": case("SkipLayerNormalization", [X, SKIP[0], GAMMA, BETA], layer_norm(X + SKIP[0])[:1]),
    "skip-half": case("SkipLayerNormalization", [v.astype("float16") for v in (X, SKIP, GAMMA, BETA)],
                      layer_norm(TOTAL)[:1], "float16"),
    "skip-rms": case("SkipSimplifiedLayerNormalization", [X, SKIP, GAMMA], rms_norm(TOTAL)[:1]),
    "skip-rms-sum": case("SkipSimplifiedLayerNormalization", [X, SKIP, GAMMA, BIAS],
                         [rms_norm(TOTAL + BIAS)[0], None, None, TOTAL + BIAS]),
    "embed": embed(), "embed-words": embed(segments=False), "embed-mask": embed(mask=True),
    "embed-sum": embed(outputs=3), "embed-places": embed(places=np.array([[4, 3, 2, 1, 0]] * 2, "int32")),
    "embed-bytes": quantised_embed(),
}  # fmt: skip
OWN = {
    "skip-stats": case("SkipLayerNormalization", [X, SKIP, GAMMA, BETA], [*layer_norm(TOTAL), TOTAL]),
    "rms-stats": case("SimplifiedLayerNormalization", [X, GAMMA], rms_norm(X), axis=-1),
}
"""What ONNX Runtime does not compute, or not on a CPU."""


@pytest.mark.parametrize("name", [*CASES, *OWN])
def test_what_numpy_expects(name):
    (CASES | OWN)[name].check()


@pytest.mark.parametrize("name", CASES)
def test_onnx_runtime_expects_the_same(name):
    pytest.importorskip("onnxruntime")
    CASES[name].check_onnxruntime(rtol=1e-4, atol=4e-3 if "half" in name else 1e-5)


OLD = {
    "SimplifiedLayerNormalization": case("SimplifiedLayerNormalization", [X, GAMMA], rms_norm(X)[:1]),
    "LayerNormalization": case("LayerNormalization", [X, GAMMA, BETA], layer_norm(X)[:1]),
    "LayerNormalization, wide": case("LayerNormalization", [X, GAMMA[None, None], BETA[None, None]], layer_norm(X)[:1]),
    "SimplifiedLayerNormalization, wide": case("SimplifiedLayerNormalization", [X, GAMMA[None, None]], rms_norm(X)[:1]),
}
"""Wide: numbers with dimensions of 1 in front of the axes that are normalised."""


@pytest.mark.parametrize("domain", ["", "com.microsoft"])
@pytest.mark.parametrize("kind", OLD)
def test_an_op_that_onnx_runtime_writes_under_the_domain_of_onnx(kind, domain):
    model, inputs = OLD[kind].model()
    model.graph.node[0].domain = domain
    if not domain:
        del model.opset_import[1:]
        model.opset_import[0].version = 14
    with gp.onnx.load(model, fallback=False) as loaded:
        np.testing.assert_allclose(loaded.run(inputs)["y0"], OLD[kind].expected[0], rtol=1e-5, atol=1e-5)
    assert model.graph.node[0].domain == domain  # the caller's model is as it was


def test_statistics_of_a_skipped_rms_norm_are_refused():
    model, _ = case("SkipSimplifiedLayerNormalization", [X, SKIP, GAMMA], [X, X[..., :1]]).model()
    with pytest.raises(gp.UnsupportedError, match="output mean or inv_std_var"):
        gp.onnx.load(model)


def test_more_words_than_places_are_refused():
    model, inputs = embed().model()
    model.graph.input[3].type.tensor_type.shape.dim[0].dim_value = 3
    onnx.checker.check_model(model)
    with pytest.raises(gp.UnsupportedError, match="position_embedding"), gp.onnx.load(model) as loaded:
        loaded.run(inputs | {"x3": inputs["x3"][:3]})
