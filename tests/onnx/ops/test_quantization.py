import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import graphpool as gp
from tests.helpers.onnx_models import assert_close, check_against_evaluator, make_model, node_model, random_array

X = random_array((3, 4, 5)) * 4


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("is_constant", [True, False])
@pytest.mark.parametrize("per_channel", [True, False])
def test_quantize_and_dequantize(dtype, is_constant, per_channel):
    shape = (4,) if per_channel else ()
    scale = np.abs(random_array(shape, seed=1)).astype("float32") + np.float32(0.05)
    point = random_array(shape, dtype, seed=2)
    constants = {1, 2} if is_constant else ()
    assert check_against_evaluator(*node_model("QuantizeLinear", [X, scale, point], constants=constants, axis=1)) == 0
    q = random_array((3, 4, 5), dtype, seed=3)
    assert check_against_evaluator(*node_model("DequantizeLinear", [q, scale, point], constants=constants, axis=1)) == 0


def test_the_zero_point_may_be_left_out():
    assert check_against_evaluator(*node_model("QuantizeLinear", [np.abs(X), np.float32(0.1)], constants={1})) == 0


def test_a_quantised_weight_is_not_folded():
    q = random_array((6, 5), "int8")
    model, _ = node_model("DequantizeLinear", [q, np.float32(0.5)], constants={0, 1})
    assert check_against_evaluator(model, {}) == 0


@pytest.mark.parametrize("point", [None, 0, 7])
@pytest.mark.parametrize("is_constant", [True, False])
def test_an_infinite_scale(point, is_constant):
    points = [] if point is None else [np.array(point, "uint8")]
    constants = {1, 2} if is_constant else ()
    scale = np.float32(np.inf)
    assert check_against_evaluator(*node_model("QuantizeLinear", [X, scale, *points], constants=constants)) == 0
    q = np.array([0, 7, 9], "uint8")
    with np.errstate(invalid="ignore"):
        model, inputs = node_model("DequantizeLinear", [q, scale, *points], constants=constants)
    with gp.onnx.load(model, fallback=False) as loaded:
        [found] = loaded.run(inputs).values()
    shifted = q.astype("float32") - (point or 0)
    expected = np.select([shifted > 0, shifted < 0], [np.inf, -np.inf], np.nan)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("shape", [(), (4,)])
@pytest.mark.parametrize("point", [None, 5])
def test_nan_is_quantised_to_the_least_byte_where_bytes_are_never_stored(shape, point):
    """As it is where they are: the two nodes run as one kernel with what follows."""
    names, arrays = ["s"], [np.full(shape, 0.5, np.float32)]
    if point is not None:
        names, arrays = ["s", "p"], [*arrays, np.full(shape, point, np.int8)]
    q = helper.make_node("QuantizeLinear", ["x", *names], ["q"], axis=1, **({} if names[1:] else {"output_dtype": 3}))
    nodes = [q, helper.make_node("DequantizeLinear", ["q", *names], ["d"], axis=1)]
    nodes.append(helper.make_node("Add", ["d", "d"], ["y"]))
    x = np.array([[np.nan, np.inf, -np.inf, 1.0]], np.float32)
    model = make_model(nodes, {"x": np.ones_like(x)}, ["y"], dict(zip(names, arrays, strict=True)))
    with gp.onnx.load(model, fallback=False) as loaded:
        [found] = loaded.run({"x": x}).values()
    point = point or 0
    np.testing.assert_array_equal(found, [[-128 - point, 127 - point, -128 - point, 2]])


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
@pytest.mark.parametrize("size", [3, 64, 1000])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_nan_is_quantised_to_the_least_integer(dtype, size):
    """An infinite scale too, as calibration gives it for masks of minus infinity, makes NaN of infinities."""
    x = np.linspace(-3, 3, size, dtype=np.float32)
    x[:2] = np.nan, -np.inf
    for scale in (0.5, np.inf):
        constants = {"s": np.float32(scale), "p": np.array(0, dtype)}
        model = make_model([helper.make_node("QuantizeLinear", ["x", "s", "p"], ["y"])], {"x": x}, ["y"], constants)
        wanted = np.rint(x / np.float32(scale))
        limits = np.iinfo(dtype)
        wanted = np.clip(np.where(np.isnan(wanted), limits.min, wanted), limits.min, limits.max)
        with gp.onnx.load(model, fallback=False) as loaded:
            np.testing.assert_array_equal(loaded.run({"x": x})["y"], wanted)


@pytest.mark.parametrize("is_constant", [True, False])
def test_blocks(is_constant):
    scale = np.abs(random_array((3, 2, 5), seed=1)) + np.float32(0.1)
    point = random_array((3, 2, 5), "int8", seed=2)
    options = {"axis": 1, "block_size": 2, "constants": {1, 2} if is_constant else ()}
    assert check_against_evaluator(*node_model("QuantizeLinear", [X, scale, point], **options)) == 0
    q = random_array((3, 4, 5), "int8", seed=3)
    assert check_against_evaluator(*node_model("DequantizeLinear", [q, scale, point], **options)) == 0


@pytest.mark.parametrize("dtype", ["uint16", "int16"])
def test_sixteen_bits(dtype):
    inputs = [X * 1000, np.float32(0.03), np.array(7, dtype)]
    assert check_against_evaluator(*node_model("QuantizeLinear", inputs)) == 0


def test_the_quotient_is_rounded_before_the_zero_point_is_added():
    x = np.array([0.5, 1.5, 2.5, -0.5, -1.5], "float32")
    inputs = [x, np.float32(1), np.array(7, "uint8")]
    assert check_against_evaluator(*node_model("QuantizeLinear", inputs)) == 0
    assert check_against_evaluator(*node_model("QuantizeLinear", inputs, constants={1, 2})) == 0


def test_dynamic_quantisation():
    assert check_against_evaluator(*node_model("DynamicQuantizeLinear", [X], noutputs=3)) == 0


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_a_product_of_quantised_matrices(dtype):
    a, b = random_array((2, 3, 4), dtype), random_array((4, 5), dtype, seed=1)
    scales = [np.float32(0.1), np.abs(random_array((5,), seed=2)) + np.float32(0.1), np.float32(0.5)]
    points = [np.array(2, dtype), random_array((5,), dtype, seed=3), np.array(3, dtype)]
    inputs = [a, scales[0], points[0], b, scales[1], points[1], scales[2], points[2]]
    assert check_against_evaluator(*node_model("QLinearMatMul", inputs)) == 0


def test_a_quantised_convolution_with_a_scale_for_each_channel():
    x, weights = random_array((1, 2, 6, 6), "uint8"), random_array((4, 2, 3, 3), "int8", seed=1)
    scale = np.abs(random_array((4,), seed=2)) + np.float32(0.1)
    bias = random_array((4,), "int32", seed=3)
    inputs = [x, np.float32(0.5), np.uint8(1), weights, scale, np.zeros(4, "int8"), np.float32(2), np.uint8(9), bias]
    inputs = [np.asarray(value) for value in inputs]
    _, s, _, _, ws, _, ys, yz, b = (value.astype("float64") for value in inputs)
    [sums] = ReferenceEvaluator(node_model("ConvInteger", [x, weights, inputs[2]])[0]).run(
        None, {"x0": x, "x1": weights, "x2": inputs[2]}
    )
    expected = np.clip(np.round((sums + b[:, None, None]) * (s * ws)[:, None, None] / ys) + yz, 0, 255)
    assert_close(run_node("QLinearConv", inputs, "uint8", 4), expected.astype("uint8"))


@pytest.mark.parametrize("constants", [(), (1, 3), (1,)])
@pytest.mark.parametrize("least", [0, 120, 200])
def test_long_sums_of_integers_are_exact(least, constants):
    rng = np.random.default_rng(1)
    a, b = (rng.integers(low, 256, shape).astype("uint8") for low, shape in ((200, (3, 700)), (least, (700, 4))))
    expected = a.astype("int64") @ (b.astype("int64") - 130)
    inputs = [a, b, None, np.array(130, "uint8")]
    assert_close(run_node("MatMulInteger", inputs, "int32", 2, constants=constants), expected.astype("int32"))


@pytest.mark.parametrize("largest", [1, 127])
def test_long_sums_over_channels_are_exact(largest):
    rng = np.random.default_rng(1)
    x, weights = rng.integers(0, 256, (1, 130, 4, 5)), rng.integers(-largest, largest + 1, (3, 130, 3, 2))
    x, weights = x.astype("uint8"), weights.astype("int8")
    inputs = [x, weights, np.uint8(0)]
    expected = ReferenceEvaluator(node_model("ConvInteger", inputs)[0]).run(
        None, {f"x{k}": np.asarray(value) for k, value in enumerate(inputs)}
    )
    assert_close(run_node("ConvInteger", inputs[:2], "int32", 4, constants=(1,)), expected[0])


def test_known_zero_points_load_no_masked_arrays(tmp_path):
    """`np.unique` does at its first call, which takes longer than many models."""
    inputs = [np.ones((1, 2, 4, 4), "uint8"), np.ones((3, 2, 3, 3), "int8"), np.uint8(3), np.int8(0)]
    model, _ = node_model("ConvInteger", inputs, constants={1, 2, 3})
    onnx.save(model, tmp_path / "model.onnx")
    code = f"""if True:
        import sys, numpy as np, graphpool as gp
        with gp.onnx.load({str(tmp_path / "model.onnx")!r}) as model:
            model.run({{"x0": np.ones((1, 2, 4, 4), "uint8")}})
        print("numpy.ma" in sys.modules)
    """
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "False\n"


@pytest.mark.parametrize(("largest", "count"), [(20, 1), (127, 3)])
def test_weights_that_are_small_are_multiplied_at_once(largest, count):
    weights = np.full((1300, 4), largest, "int8")
    node = helper.make_node("MatMulInteger", ["x", "w"], ["y"])
    infos = [helper.make_tensor_value_info(name, kind, [2, None]) for name, kind in (("x", 2), ("y", 6))]
    graph = helper.make_graph([node], "product", infos[:1], infos[1:], [numpy_helper.from_array(weights, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    x = np.full((2, 1300), 255, "uint8")
    with gp.onnx.load(model, fallback=False) as loaded:
        np.testing.assert_array_equal(loaded.run({"x": x})["y"], x.astype("int64") @ weights.astype("int64"))
        assert sum("MatMul" in [op.kind for op in partition.ops] for partition in loaded.partitions) == count


@pytest.mark.parametrize("kind", ["DynamicQuantizeMatMul", "MatMulIntegerToFloat"])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize(
    ("scale_shape", "point_shape"), [((), None), ((), ()), ((20,), (20,)), ((20,), (1,)), ((), (20,))]
)
@pytest.mark.parametrize("has_bias", [True, False])
def test_products_that_onnxruntime_contributes(kind, dtype, scale_shape, point_shape, has_bias):
    x, rng = random_array((2, 3, 33)), np.random.default_rng(0)
    quantise = node_model("DynamicQuantizeLinear", [x], noutputs=3)
    a, a_scale, a_point = ReferenceEvaluator(quantise[0]).run(None, quantise[1])
    limits = np.iinfo(dtype)
    b = rng.integers(limits.min, limits.max + 1, (33, 20)).astype(dtype)
    b_scale = np.abs(random_array(scale_shape, seed=1)) * np.float32(0.01) + np.float32(0.01)
    b_point = None if point_shape is None else rng.integers(limits.min, limits.max + 1, point_shape).astype(dtype)
    bias = random_array((20,), seed=3) if has_bias else None
    sums = (a.astype("int64") - a_point) @ (b.astype("int64") - (0 if b_point is None else b_point))
    expected = sums * (a_scale * b_scale).astype("float64") + (0 if bias is None else bias)
    front = [x, b, b_scale, b_point] if kind == "DynamicQuantizeMatMul" else [a, b, a_scale, b_scale, a_point, b_point]
    constants = {1, 2, 3, 4} if kind == "DynamicQuantizeMatMul" else {1, 3, 5, 6}
    assert_close(
        run_node(kind, [*front, bias], "float32", 3, "com.microsoft", constants), expected.astype("float32")
    )  # fmt: skip


def run_node(kind, inputs, dtype, rank, domain="", constants=()):
    """The node on graphpool without a host."""
    names = ["" if value is None else f"x{k}" for k, value in enumerate(inputs)]
    given = {
        name: value for k, (name, value) in enumerate(zip(names, inputs, strict=True)) if name and k not in constants
    }
    fixed = {name: value for name, value in zip(names, inputs, strict=True) if name and name not in given}
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in given.items()
    ]
    result = helper.make_tensor_value_info("y", helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), [None] * rank)
    node = helper.make_node(kind, names, ["y"], domain=domain)
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in fixed.items()]
    graph = helper.make_graph([node], "node", infos, [result], tensors)
    opsets = [helper.make_opsetid("", 21), *([helper.make_opsetid(domain, 1)] if domain else [])]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    with gp.onnx.load(model, fallback=False) as loaded:
        return loaded.run(given)["y"]
