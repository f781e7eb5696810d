"""Ops between tensors of 8 bits, against float64."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import graphpool as gp
from tests.helpers.onnx_models import ContributedCase, random_array

DTYPES = ["uint8", "int8"]


def numbers(shape, dtype="uint8", seed=0):
    """All values of a type of 8 bits."""
    info = np.iinfo(dtype)
    return np.random.default_rng([seed, *shape]).integers(info.min, info.max + 1, shape).astype(dtype)


def parameters(k, dtype="uint8"):
    """Scale and zero point."""
    return np.float32(0.0130417 + 0.0117231 * k), np.array(3 * k + 2, dtype)


def floats(x, scale, point):
    return (x.astype(np.float64) - np.asarray(point).astype(np.float64)) * np.float64(scale)


def integers(y, scale, point):
    info = np.iinfo(point.dtype)
    return np.clip(np.round(y / np.float64(scale)) + point.astype(np.float64), info.min, info.max).astype(point.dtype)


def unary(kind, function, shape=(2, 3, 8, 8), dtype="uint8", **attributes):
    x, by, to = numbers(shape, dtype), parameters(1, dtype), parameters(0, dtype)
    expected = integers(function(floats(x, *by)), *to)
    return ContributedCase(kind, [x, *by, *to], [expected], (1, 2, 3, 4), attributes)


def binary(kind, function, shapes=((2, 3, 4), (2, 3, 4)), dtype="uint8", constants=(1, 2, 4, 5, 6, 7)):
    a, b = numbers(shapes[0], dtype), numbers(shapes[1], dtype, 1)
    of_a, of_b, to = (parameters(k, dtype) for k in (0, 1, 4))
    expected = integers(function(floats(a, *of_a), floats(b, *of_b)), *to)
    return ContributedCase(kind, [a, *of_a, b, *of_b, *to], [expected], constants)


def concat():
    parts = [numbers((2, k + 1, 3), seed=k) for k in range(3)]
    to = parameters(4)
    expected = integers(np.concatenate([floats(x, *parameters(k)) for k, x in enumerate(parts)], 1), *to)
    inputs = [*to, *(value for k, x in enumerate(parts) for value in (x, *parameters(k)))]
    return ContributedCase("QLinearConcat", inputs, [expected], (0, 1, 3, 4, 6, 7, 9, 10), {"axis": 1})


def where():
    condition, x, y = random_array((3, 1)) > 0, numbers((3, 4)), numbers((1, 4), seed=1)
    of_x, of_y, to = (parameters(k) for k in range(3))
    expected = integers(np.where(condition, floats(x, *of_x), floats(y, *of_y)), *to)
    inputs = [condition, x, *of_x, y, *of_y, *to]
    return ContributedCase("QLinearWhere", inputs, [expected], (2, 3, 5, 6, 7, 8))


def gemm(trans_a=0, trans_b=0, alpha=1.0, addend=None, per_column=False, is_float=False):
    a, b = numbers((4, 6) if trans_a else (6, 4)), numbers((5, 4) if trans_b else (4, 5), "int8", 1)
    of_a, to = parameters(0), (np.float32(0.11), np.uint8(120))
    scale = np.linspace(0.01, 0.02, 5).astype("float32") if per_column else np.float32(0.02)
    of_b = scale, np.zeros(np.shape(scale), "int8")
    left, right = floats(a.T if trans_a else a, *of_a), floats(b.T if trans_b else b, *of_b)
    total = left @ right
    c = None
    if addend is not None:
        c = np.random.default_rng(2).integers(-9000, 9000, addend).astype("int32")
        total = total + c * (np.float64(of_a[0]) * scale)
    total = total * alpha
    ends = [] if is_float else list(to)
    expected = total.astype("float32") if is_float else integers(total, *to)
    attributes = {"transA": trans_a, "transB": trans_b, "alpha": alpha}
    constants = (1, 2, 3, 4, 5, *(() if c is None else (6,)), *range(7, 7 + len(ends)))
    return ContributedCase("QGemm", [a, *of_a, b, *of_b, c, *ends], [expected], constants, attributes)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x, axis):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def averages(x, axes=(2, 3)):
    """Means of windows of 2 x 2, two apart, over the two axes."""
    first, second = axes
    pairs = [x.take(range(k, x.shape[first], 2), first) for k in (0, 1)]
    return np.mean([p.take(range(k, x.shape[second], 2), second) for p in pairs for k in (0, 1)], axis=0)


def convolve(x, weights, bias):
    """A convolution whose result is as large as its input, in float64."""
    taps = weights.shape[2]
    padded = np.pad(x, ((0, 0), (0, 0), *[(taps // 2, taps // 2)] * 2))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (taps, taps), axis=(2, 3))
    return np.einsum("nchwij,ocij->nohw", windows, weights) + bias[:, None, None]


def conv(channels_last):
    x, w = numbers((1, 3, 6, 5)), numbers((4, 3, 3, 3), "int8", 1)
    scale, bias = np.linspace(0.01, 0.02, 4).astype("float32"), random_array((4,), "int32") * 100
    of_x, to = parameters(0), (np.float32(0.21), np.uint8(120))
    by_channel = scale.astype(float)[:, None, None, None]
    total = convolve(floats(x, *of_x), w * by_channel, bias * (np.float64(of_x[0]) * scale))
    expected = integers(total, *to)
    if channels_last:
        x, expected = (np.ascontiguousarray(v.transpose(0, 2, 3, 1)) for v in (x, expected))
    inputs = [x, *of_x, w, scale, np.zeros(4, "int8"), *to, bias]
    attributes = {"channels_last": int(channels_last), "kernel_shape": [3, 3], "pads": [1] * 4}
    return ContributedCase("QLinearConv", inputs, [expected], range(1, 9), attributes)


def max_pool(dtype):
    x = numbers((2, 6, 4, 3), dtype)
    expected = x.reshape(2, 3, 2, 2, 2, 3).max((2, 4))
    return ContributedCase("NhwcMaxPool", [x], [expected], (), POOL)


POOL = {"kernel_shape": [2, 2], "strides": [2, 2]}
CASES = {
    **{f"sigmoid-{d}": unary("QLinearSigmoid", sigmoid, dtype=d) for d in DTYPES},
    "leaky-relu": unary("QLinearLeakyRelu", lambda x: np.where(x < 0, 0.2 * x, x), alpha=0.2),
    "reduce-mean": unary("QLinearReduceMean", lambda x: x.mean((1, 3)), axes=[1, 3], keepdims=0),
    **{f"average-pool-{d}": unary("QLinearAveragePool", averages, dtype=d, **POOL) for d in DTYPES},
    "average-pool-nhwc": unary("QLinearAveragePool", lambda x: averages(x, (1, 2)), (2, 6, 8, 3), channels_last=1,
                               **POOL),
    "global-pool": unary("QLinearGlobalAveragePool", lambda x: x.mean((2, 3), keepdims=True)),
    "global-pool-nhwc": unary("QLinearGlobalAveragePool", lambda x: x.mean((1, 2), keepdims=True), channels_last=1),
    "conv": conv(False), "conv-nhwc": conv(True), "max-pool-nhwc": max_pool("uint8"),
    "max-pool-nhwc-int8": max_pool("int8"),
    "softmax-13": unary("QLinearSoftmax", lambda x: softmax(x, 1), (3, 5, 4), axis=1, opset=13),
    "softmax-12": unary("QLinearSoftmax", lambda x: softmax(x.reshape(3, 20), 1).reshape(3, 5, 4), (3, 5, 4), axis=1,
                        opset=12),
    **{f"add-{d}": binary("QLinearAdd", np.add, dtype=d) for d in DTYPES},
    "add-broadcast": binary("QLinearAdd", np.add, ((2, 3, 4), (3, 1))),
    "add-constant": binary("QLinearAdd", np.add, ((2, 3, 4), (4,)), constants=range(1, 8)),
    "mul": binary("QLinearMul", np.multiply, ((2, 3, 4), (1, 4))),
    "concat": concat(), "where": where(),
    "gemm": gemm(), "gemm-transposed": gemm(1, 1), "gemm-bias": gemm(0, 1, addend=(5,)),
    "gemm-columns": gemm(per_column=True, addend=(5,)), "gemm-rows": gemm(addend=(6, 1)),
    "gemm-alpha": gemm(0, 1, alpha=0.5, addend=(1, 5), per_column=True), "gemm-float": gemm(addend=(5,), is_float=True),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_numpy_expects(name):
    CASES[name].check()


@pytest.mark.parametrize("name", [name for name in CASES if name != "reduce-mean"])  # has no kernel there
def test_onnx_runtime_expects_the_same(name):
    pytest.importorskip("onnxruntime")
    CASES[name].check_onnxruntime(rtol=1e-4, share=0.15 if "softmax" in name else 0.02)


def test_zero_points_may_be_left_out():
    x, scale = numbers((3, 4)), np.float32(0.02)
    expected = integers(sigmoid(floats(x, scale, 0)), np.float32(1 / 256), np.uint8(0))
    ContributedCase("QLinearSigmoid", [x, scale, None, np.float32(1 / 256), None], [expected], (1, 3)).check()


def test_numbers_that_are_not_known_ahead():
    binary("QLinearAdd", np.add, constants=()).check()


def test_a_node_of_constants_alone():
    case = unary("QLinearSigmoid", sigmoid)
    case.constants = (0, 1, 2, 3, 4)
    case.check()


def quantised_network():
    """Two convolutions side by side, joined, added to, pooled and classified: QOperator form."""
    rng = np.random.default_rng(0)
    constants = {}

    def constant(name, value):
        constants[name] = value
        return name

    def scale(name, number, point=128):
        return [constant(f"{name}_scale", np.float32(number)), constant(f"{name}_point", np.uint8(point))]

    def conv(name, x, scale_of_x, to, outputs, channels, taps):
        weights = rng.integers(-100, 100, (outputs, channels, taps, taps)).astype("int8")
        by = [
            constant(f"{name}_ws", np.full(outputs, 0.005, "float32")),
            constant(f"{name}_wz", np.zeros(outputs, "int8")),
        ]
        bias = constant(f"{name}_b", rng.integers(-500, 500, outputs).astype("int32"))
        return helper.make_node("QLinearConv", [x, *scale_of_x, constant(f"{name}_w", weights), *by, *to, bias], [name],
                                kernel_shape=[taps, taps], pads=[taps // 2] * 4)  # fmt: skip

    of_x, of_a, of_b, of_j, of_s, of_p, of_y = (
        scale(name, number) for name, number in zip("xabjspy", (0.02, 0.05, 0.06, 0.06, 0.1, 0.02, 0.02), strict=True)
    )

    def node(kind, inputs, output, **attributes):
        return helper.make_node(kind, inputs, [output], domain="com.microsoft", **attributes)

    of_w = constant("w", rng.integers(-100, 100, (10, 64)).astype("int8")), constant("ws", np.float32(0.005))
    nodes = [
        helper.make_node("QuantizeLinear", ["image", *of_x], ["x"]),
        conv("a", "x", of_x, of_a, 32, 16, 3), conv("b", "x", of_x, of_b, 32, 16, 1),
        node("QLinearConcat", [*of_j, "a", *of_a, "b", *of_b], "all", axis=1),
        helper.make_node("MaxPool", ["all"], ["j"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        conv("c", "j", of_j, of_a, 64, 64, 3),
        node("QLinearAdd", ["c", *of_a, "j", *of_j, *of_s], "s"),
        node("QLinearGlobalAveragePool", ["s", *of_s, *of_p], "p"),
        helper.make_node("Flatten", ["p"], ["f"]),
        node("QGemm", ["f", *of_p, *of_w, constant("wz", np.int8(0)), "", *of_y], "q", transB=1),
        helper.make_node("DequantizeLinear", ["q", *of_y], ["y"]),
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes, "network", [helper.make_tensor_value_info("image", TensorProto.FLOAT, (1, 16, 8, 8))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 10))],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )  # fmt: skip
    imports = [helper.make_opsetid("", 19), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9), constants


def expected_of(image, c):
    """What the network computes, each tensor rounded to 8 bits."""

    def rounded(y, name):
        by = c[f"{name}_scale"], c[f"{name}_point"]
        return floats(integers(y, *by), *by)

    def conv(name, x, scale_of_x, scale_of_y):
        by = c[f"{name}_ws"].astype(np.float64)
        bias = c[f"{name}_b"] * by * np.float64(c[f"{scale_of_x}_scale"])
        return rounded(convolve(x, c[f"{name}_w"] * by[:, None, None, None], bias), scale_of_y)

    x = rounded(image, "x")
    joined = rounded(np.concatenate([conv("a", x, "x", "a"), conv("b", x, "x", "b")], 1), "j")
    padded = np.pad(joined, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=-np.inf)
    joined = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3)).max((4, 5))
    total = rounded(conv("c", joined, "j", "a") + joined, "s")
    pooled = rounded(total.mean((2, 3)), "p")
    return rounded(pooled @ (c["w"].T * np.float64(c["ws"])), "y")


def test_a_network_of_bytes_multiplies_bytes():
    proto, constants = quantised_network()
    image = random_array((1, 16, 8, 8))
    with gp.onnx.load(proto, fallback=False) as model:
        names = " ".join(name for names in model.specialise({"image": image}).implementations for name in names)
        result = model.run({"image": image})["y"]
    assert names.count("s8_conv") >= 3
    assert "x8_max_pool" in names
    assert "f32_conv" not in names
    np.testing.assert_allclose(result, expected_of(image.astype(np.float64), constants), atol=0.041)


@pytest.mark.parametrize("dtype", ["uint8", "int16"])
def test_quantisation_under_the_domain_of_onnx_runtime(dtype):
    x, scale, point = random_array((3, 4)), np.float32(0.0213), np.array(7, dtype)
    quantised = integers(x.astype(float), scale, point)
    ContributedCase("QuantizeLinear", [x, scale, point], [quantised], (1, 2)).check()
    restored = floats(quantised, scale, point).astype("float32")
    ContributedCase("DequantizeLinear", [quantised, scale, point], [restored], (1, 2)).check()
