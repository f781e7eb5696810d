"""What ONNX Runtime fuses, against float64."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import erf

import graphpool as gp
from tests.helpers.onnx_models import ContributedCase, random_array

X, BIAS = random_array((2, 3, 8)), random_array((8,), seed=1)
A, B, C = random_array((5, 4), seed=2), random_array((4, 6), seed=3), random_array((6,), seed=4)
IMAGE, TAPS, ADDED = random_array((1, 3, 6, 6)), random_array((4, 3, 1, 1), seed=5), random_array((1, 4, 6, 6), seed=6)


def gelu(x):
    return 0.5 * x * (1 + erf(x / np.sqrt(2)))


def fast_gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


ACTIVATIONS = {
    "Relu": (lambda x: np.maximum(x, 0), ()), "Tanh": (np.tanh, ()), "Sigmoid": (sigmoid, ()),
    "LeakyRelu": (lambda x: np.where(x < 0, 0.2 * x, x), (0.2,)),
    "HardSigmoid": (lambda x: np.clip(0.3 * x + 0.4, 0, 1), (0.3, 0.4)),
    "Clip": (lambda x: np.clip(x, -0.5, 1), (-0.5, 1.0)),
}  # fmt: skip


def case(kind, inputs, expected, dtype="float32", **attributes):
    return ContributedCase(kind, inputs, [np.asarray(expected, dtype)], (), attributes)


def square(size):
    return random_array((2, 3, size, size)) + 3 * np.eye(size, dtype=np.float32)


def conv(name, with_bias=True, with_sum=True):
    function, parameters = ACTIVATIONS[name]
    total = np.einsum("nchw,oc->nohw", IMAGE.astype(float), TAPS[:, :, 0, 0])
    total = total + (BIAS[:4, None, None] if with_bias else 0) + (ADDED if with_sum else 0)
    inputs = [IMAGE, TAPS, BIAS[:4] if with_bias else None, *([ADDED] if with_sum else [])]
    attributes = {"activation_params": list(parameters)} if parameters else {}
    return case("FusedConv", inputs, function(total), activation=name, **attributes)


def gemm(name, **attributes):
    function, parameters = ACTIVATIONS[name]
    named = {f"activation_{key}": value for key, value in zip(("alpha", "beta"), parameters, strict=False)}
    inputs = [A.T.copy() if attributes.get("transA") else A, B.T.copy() if attributes.get("transB") else B, C]
    total = attributes.get("alpha", 1) * (A.astype(float) @ B) + attributes.get("beta", 1) * C
    return case("FusedGemm", inputs, function(total), activation=name, **named, **attributes)


def matmul(a, b, expected, alpha=1.0, **flags):
    return case("FusedMatMul", [a, b], alpha * expected, alpha=alpha, **flags)


def causal_conv(activation="none", with_bias=True, taps=4, length=5):
    x, past = random_array((2, 3, length), seed=10), random_array((2, 3, taps - 1), seed=11)
    weights, bias = random_array((3, 1, taps), seed=12), random_array((3,), seed=13) if with_bias else None
    whole = np.concatenate([past, x], axis=2)
    windows = np.lib.stride_tricks.sliding_window_view(whole.astype(float), taps, axis=2)
    total = np.einsum("nclk,ck->ncl", windows, weights[:, 0]) + (bias[:, None] if with_bias else 0)
    if activation != "none":
        total = total * sigmoid(total)
    attributes = {"activation": activation, "ndim": 1}
    results, constants = [total.astype(np.float32), whole[:, :, length:]], (1, 2) if with_bias else (1,)
    return ContributedCase("CausalConvWithState", [x, weights, bias, past], results, constants, attributes)


def linear_attention(rule, length=5, heads=2, size=4):
    queries, keys, values = (random_array((2, length, heads * size), seed=14 + k) for k in range(3))
    past = random_array((2, heads, size, size), seed=17)
    decay = -np.abs(random_array((2, length, heads), seed=18)) if "gated" in rule else None
    rates = sigmoid(random_array((2, length, heads), seed=19)) if "delta" in rule else None
    state, results = past.astype(float), []
    for t in range(length):
        q, k, v = (x[:, t].astype(float).reshape(2, heads, size, 1) for x in (queries, keys, values))
        if decay is not None:
            state = state * np.exp(decay[:, t, :, None, None])
        change = v.swapaxes(2, 3)
        if rates is not None:
            change = rates[:, t, :, None, None] * (change - k.swapaxes(2, 3) @ state)
        state = state + k * change
        results.append((q.swapaxes(2, 3) @ state).reshape(2, -1) / np.sqrt(size))
    inputs = [queries, keys, values, past, decay, *([] if rates is None else [rates])]
    expected = [np.stack(results, 1).astype(np.float32), state.astype(np.float32)]
    attributes = {"q_num_heads": heads, "kv_num_heads": heads, "update_rule": rule}
    return ContributedCase("LinearAttention", inputs, expected, (), attributes)


LEFT, RIGHT = random_array((2, 3, 5, 4), seed=7), random_array((2, 3, 4, 6), seed=8)
PRODUCT = LEFT.astype(float) @ RIGHT
ROW, COLUMN = A[:, None, :].astype(float), random_array((3, 4), seed=9)[None]
SQUARES = ((ROW - COLUMN) ** 2).sum(axis=2)
TURNED = {side: np.ascontiguousarray(x.swapaxes(2, 3)) for side, x in (("A", LEFT), ("B", RIGHT))}
ROWS = {side: np.ascontiguousarray(x.transpose(2, 0, 1, 3)) for side, x in (("A", LEFT), ("B", RIGHT))}
BOTH = np.ascontiguousarray(LEFT.transpose(3, 0, 1, 2))
GRID = np.linspace(-1, 1, 6, dtype=np.float32)
CASES = {
    "gelu": case("Gelu", [X], gelu(X)), "bias-gelu": case("BiasGelu", [X, BIAS], gelu(X + BIAS)),
    "fast-gelu": case("FastGelu", [X], fast_gelu(X)),
    "fast-gelu-bias": case("FastGelu", [X, BIAS], fast_gelu(X + BIAS)),
    "quick-gelu": case("QuickGelu", [X], X * sigmoid(1.702 * X)),
    "quick-gelu-alpha": case("QuickGelu", [X], X * sigmoid(0.7 * X), alpha=0.7),
    "fast-gelu-half": case("FastGelu", [X.astype("float16")], fast_gelu(X), "float16"),
    **{f"conv-{name}": conv(name) for name in ACTIVATIONS},
    "conv-plain": conv("Relu", with_bias=False, with_sum=False), "conv-sum": conv("Relu", with_bias=False),
    **{f"gemm-{name}": gemm(name) for name in ACTIVATIONS if name != "Clip"},
    "gemm-all": gemm("Relu", transA=1, transB=1, alpha=0.5, beta=2.0),
    "matmul": matmul(LEFT, RIGHT, PRODUCT), "matmul-alpha": matmul(LEFT, RIGHT, PRODUCT, 0.125),
    "matmul-old-name": replace(matmul(LEFT, TURNED["B"], PRODUCT, 2.0, transB=1), kind="TransposeMatMul"),
    "matmul-turned": matmul(TURNED["A"], TURNED["B"], PRODUCT, transA=1, transB=1),
    "matmul-rows": matmul(ROWS["A"], ROWS["B"], PRODUCT, transBatchA=1, transBatchB=1),
    "matmul-rows-turned": matmul(BOTH, RIGHT, PRODUCT, transA=1, transBatchA=1),
    "squared-distances": case("CDist", [A, COLUMN[0]], SQUARES, metric="sqeuclidean"),
    "distances": case("CDist", [A, COLUMN[0]], np.sqrt(SQUARES), metric="euclidean"),
    "distances-double": case("CDist", [A.astype(float), COLUMN[0].astype(float)], np.sqrt(SQUARES), "float64",
                             metric="euclidean"),
    "distances-of-none": case("CDist", [A[:0], COLUMN[0]], SQUARES[:0], metric="euclidean"),
    "causal-conv": causal_conv(), "causal-conv-silu": causal_conv("silu", with_bias=False),
    "causal-conv-step": causal_conv("swish", length=1), "causal-conv-point": causal_conv(taps=1),
    **{f"linear-{rule}": linear_attention(rule) for rule in ("linear", "gated", "delta", "gated_delta")},
    "trilu": case("Trilu", [A, np.array(1)], np.triu(A, 1)), "trilu-low": case("Trilu", [A], np.tril(A), upper=0),
    "pad": replace(case("Pad", [A, np.array([1, 0, 0, 2])], np.pad(A, ((1, 0), (0, 2)))), constants=(1,)),
    "expand-dims": replace(case("ExpandDims", [A, np.array(1, np.int32)], A[:, None]), constants=(1,)),
    "gather-nd": case("GatherND", [A, np.array([[0, 1], [4, 3]])], A[[0, 4], [1, 3]]),
    "range": replace(case("Range", [np.array(n, np.float32) for n in (1, 7, 2)], [1, 3, 5]), constants=(0, 1, 2)),
    **{f"inverse-{size}": case("Inverse", [square(size)], np.linalg.inv(square(size))) for size in (1, 2, 3, 4)},
    "grid": case("GridSample", [IMAGE, np.stack(np.meshgrid(GRID, GRID), -1)[None]], IMAGE, align_corners=1),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_numpy_expects(name):
    CASES[name].check()


@pytest.mark.parametrize("name", [name for name in CASES if name != "fast-gelu-half"])
def test_onnx_runtime_expects_the_same(name):
    pytest.importorskip("onnxruntime")
    CASES[name].check_onnxruntime(rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("attributes", "reason"), [
    ({"activation": "Selu"}, "activation 'Selu'"), ({"activation": "Clip"}, "activation 'Clip' without its parameters"),
])  # fmt: skip
def test_an_activation_that_has_no_expression_is_refused(attributes, reason):
    model, _ = case("FusedConv", [IMAGE, TAPS], ADDED, **attributes).model()
    for fallback in (False, True):
        with pytest.raises(gp.UnsupportedError, match=reason):
            gp.onnx.load(model, fallback=fallback)


@pytest.mark.parametrize("fallback", [False, True])
def test_states_of_each_token_are_refused(fallback):
    attention = linear_attention("linear")
    model, _ = replace(attention, attributes=attention.attributes | {"state_window": 2}).model()
    with pytest.raises(gp.UnsupportedError, match="LinearAttention"):
        gp.onnx.load(model, fallback=fallback)


@pytest.mark.parametrize("fallback", [False, True])
def test_layouts_of_one_machine_are_refused_with_advice(fallback):
    model, _ = case("Conv", [IMAGE, TAPS], ADDED).model()
    model.graph.node[0].domain = "com.microsoft.nchwc"
    model.opset_import.add(domain="com.microsoft.nchwc", version=1)
    with pytest.raises(gp.UnsupportedError, match=r"save the model at level ORT_ENABLE_EXTENDED$"):
        gp.onnx.load(model, fallback=fallback)
