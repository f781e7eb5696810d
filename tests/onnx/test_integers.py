"""What dynamic quantisation makes of a model: recognised in its spellings, and computed as bytes."""

import numpy as np
import pytest
from onnx import TensorProto, helper

import graphpool as gp
from graphpool.onnx.source import read_model
from graphpool.onnx.specialise import rewrite
from tests.helpers.onnx_models import check_against_evaluator, make_model, random_array

X = random_array((3, 5, 33)) * 3
IMAGE = random_array((2, 8, 7, 6)) * 3


def integers(shape, dtype, seed=1):
    limits = np.iinfo(dtype)
    return np.random.default_rng([seed, *shape]).integers(limits.min, limits.max + 1, shape).astype(dtype)


def scales(shape, seed=2):
    return np.abs(random_array(shape, seed=seed)) * np.float32(0.01) + np.float32(0.001)


def chain(spelling, *, kind="MatMulInteger", zero="w_zero", to=TensorProto.FLOAT, tail=(), **attributes):
    """Nodes from x to y, with the scales as the spelling has them."""
    quantised = ["a", "w", "a_zero", *([zero] if zero else [])]
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["a", "a_scale", "a_zero"]),
        helper.make_node(kind, quantised, ["sums"], **attributes),
        helper.make_node("Cast", ["sums"], ["numbers"], to=to),
    ]
    spellings = {
        "together": [("a_scale", "w_scale", "scale"), ("numbers", "scale", "y")],
        "turned": [("w_scale", "a_scale", "scale"), ("scale", "numbers", "y")],
        "one by one": [("numbers", "a_scale", "half"), ("half", "w_scale", "y")],
        "weights first": [("numbers", "w_scale", "half"), ("half", "a_scale", "y")],
    }
    nodes += [helper.make_node("Mul", list(pair), [out]) for *pair, out in spellings[spelling]]
    return [*nodes, *tail]


def kinds(model):
    return [node.op_type for node in rewrite(read_model(model))[0]]


def check(model, x):
    """Whether the model computes what ONNX's evaluator does, on kernels of bytes; returns the names of its steps."""
    assert check_against_evaluator(model, {"x": x}) == 0
    with gp.onnx.load(model, threads=1) as loaded:
        return [name for names in loaded.specialise({"x": x}).implementations for name in names]


@pytest.mark.parametrize("spelling", ["together", "turned", "one by one", "weights first"])
@pytest.mark.parametrize("per_column", [False, True])
def test_spellings(spelling, per_column):
    constants = {"w": integers((33, 20), "int8"), "w_scale": scales((20,) if per_column else ()), "w_zero": np.int8(0)}
    model = make_model(chain(spelling), {"x": X}, ["y"], constants)
    assert {"DequantizeLinear", "MatMul"} <= set(kinds(model))
    assert not {"MatMulInteger", "Cast"} & set(kinds(model))
    assert any(name.startswith("s8_matmul_packed") for name in check(model, X))


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("scale_shape", [(), (1,), (20,)])
@pytest.mark.parametrize("zero", ["none", "nothing", "one", "columns"])
def test_numbers_of_weights(dtype, scale_shape, zero):
    points = {
        "none": None,
        "nothing": np.zeros(20, dtype),
        "one": np.array(7, dtype),
        "columns": integers((20,), dtype),
    }
    constants = {"w": integers((33, 20), dtype), "w_scale": scales(scale_shape)}
    constants |= {} if points[zero] is None else {"w_zero": points[zero]}
    model = make_model(chain("together", zero=None if zero == "none" else "w_zero"), {"x": X}, ["y"], constants)
    assert "MatMul" in kinds(model)
    check(model, X)


def test_bias_and_activation_are_done_on_registers():
    tail = [helper.make_node("Add", ["y", "b"], ["z"]), helper.make_node("Relu", ["z"], ["r"])]
    constants = {"w": integers((33, 20), "int8"), "w_scale": scales(()), "w_zero": np.int8(0), "b": random_array((20,))}
    names = check(make_model(chain("together", tail=tail), {"x": X}, ["r"], constants), X)
    products = [name for name in names if "matmul" in name and "_pack:" not in name]
    assert products
    assert all(name.startswith("s8_matmul_packed") and "Add+ReLU" in name for name in products)
    assert not any(name.startswith("f32_eltwise") for name in names)


def test_products_may_share_their_activations():
    nodes = [helper.make_node("DynamicQuantizeLinear", ["x"], ["a", "a_scale", "a_zero"])]
    constants = {}
    for k in range(3):
        constants |= {f"w{k}": integers((33, 20), "int8", k), f"s{k}": scales((), k)}
        nodes += [
            helper.make_node("MatMulInteger", ["a", f"w{k}", "a_zero"], [f"i{k}"]),
            helper.make_node("Cast", [f"i{k}"], [f"f{k}"], to=TensorProto.FLOAT),
            helper.make_node("Mul", ["a_scale", f"s{k}"], [f"m{k}"]),
            helper.make_node("Mul", [f"f{k}", f"m{k}"], [f"y{k}"]),
        ]
    names = check(make_model(nodes, {"x": X}, ["y0", "y1", "y2"], constants), X)
    assert len([name for name in names if name.startswith("s8_matmul_packed")]) >= 3
    assert len([name for name in names if name.startswith("f32_range")]) == 1


@pytest.mark.parametrize("scale_shape", [(), (8, 1, 1), (1, 8, 1, 1)])
@pytest.mark.parametrize("groups", [1, 2, 8])
def test_convolutions(scale_shape, groups):
    tail = [helper.make_node("Add", ["y", "b"], ["z"])]
    constants = {"w": integers((8, 8 // groups, 3, 3), "int8"), "w_scale": scales(scale_shape), "w_zero": np.int8(0),
                 "b": random_array((1, 8, 1, 1))}  # fmt: skip
    nodes = chain("together", kind="ConvInteger", tail=tail, pads=[1, 1, 1, 1], strides=[2, 1], group=groups)
    model = make_model(nodes, {"x": IMAGE}, ["z"], constants)
    assert "Conv" in kinds(model)
    assert "ConvInteger" not in kinds(model)
    assert any(name.startswith("s8_conv") for name in check(model, IMAGE))


def test_a_scale_along_another_axis_of_an_image_stays_behind():
    constants = {"w": integers((8, 8, 1, 1), "int8"), "w_scale": scales((6,)), "w_zero": np.int8(0)}
    model = make_model(chain("together", kind="ConvInteger"), {"x": IMAGE}, ["y"], constants)
    assert kinds(model).count("Mul") == 2
    check(model, IMAGE)


def test_a_product_of_two_measured_tensors():
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["a", "a_scale", "a_zero"]),
        helper.make_node("Transpose", ["x"], ["t"], perm=[0, 2, 1]),
        helper.make_node("DynamicQuantizeLinear", ["t"], ["b", "b_scale", "b_zero"]),
        helper.make_node("MatMulInteger", ["a", "b", "a_zero", "b_zero"], ["i"]),
        helper.make_node("Cast", ["i"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["b_scale", "a_scale"], ["m"]),
        helper.make_node("Mul", ["m", "f"], ["y"]),
    ]
    model = make_model(nodes, {"x": X}, ["y"])
    assert "MatMul" in kinds(model)
    check(model, X)


@pytest.mark.parametrize("output", ["sums", "numbers"])
def test_sums_that_somebody_else_reads_stay(output):
    constants = {"w": integers((33, 20), "int8"), "w_scale": scales(()), "w_zero": np.int8(0)}
    model = make_model(chain("together"), {"x": X}, ["y", output], constants)
    assert ("MatMulInteger" in kinds(model)) == (output == "sums")
    assert check_against_evaluator(model, {"x": X}) == 0


def test_sums_that_become_other_numbers_stay():
    constants = {"w": integers((33, 20), "int8"), "w_zero": np.int8(0)}
    nodes = chain("together", to=TensorProto.DOUBLE)[:3]
    model = make_model(nodes, {"x": X}, ["numbers"], constants)
    assert "MatMulInteger" in kinds(model)
    assert check_against_evaluator(model, {"x": X}) == 0


@pytest.mark.parametrize("shape", [(), (1,)])
def test_integers_that_were_not_measured(shape):
    nodes = [
        helper.make_node("MatMulInteger", ["x", "w", "zero"], ["i"]),
        helper.make_node("Cast", ["i"], ["y"], to=TensorProto.FLOAT),
    ]
    x = integers((3, 33), "uint8")
    model = make_model(nodes, {"x": x}, ["y"], {"w": integers((33, 20), "int8"), "zero": integers(shape, "uint8")})
    assert kinds(model) == ["DequantizeLinear", "DequantizeLinear", "MatMul"]
    check(model, x)
