import numpy as np
import pytest
from onnx import helper

import graphpool as gp
from tests.helpers.onnx_models import check_against_evaluator, node_model, random_array

X = random_array((3, 4, 5)) * 3
Y, ROW = random_array((3, 4, 5), seed=1), random_array((4, 1), seed=2)
POSITIVE = np.abs(X) + 0.1

UNARY = [
    ("Elu", X, {"alpha": 1.5}), ("LeakyRelu", X, {"alpha": 0.1}), ("LeakyRelu", X, {}),
    ("HardSigmoid", X, {"alpha": 0.3, "beta": 0.4}), ("HardSigmoid", X, {}),
    ("Gelu", X, {}), ("Gelu", X, {"approximate": "tanh"}), ("Softsign", X, {}), ("Selu", X, {}),
    ("Selu", X, {"alpha": 2.0, "gamma": 3.0}), ("Celu", X, {"alpha": 2.0}), ("ThresholdedRelu", X, {"alpha": 0.5}),
    ("ThresholdedRelu", X, {}), ("Shrink", X, {"bias": 0.5, "lambd": 1.5}), ("Shrink", X, {}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "x", "attributes"), UNARY, ids=lambda v: v if isinstance(v, str) else "")
def test_unary_runs_natively(kind, x, attributes):
    assert check_against_evaluator(*node_model(kind, [x], opset=22, **attributes)) == 0


@pytest.mark.parametrize("kind", ["Add", "Sub", "Mul", "Div"])
@pytest.mark.parametrize("other", [Y, ROW, np.float32(2.5)], ids=["same", "broadcast", "scalar"])
def test_binary_broadcasts(kind, other):
    assert check_against_evaluator(*node_model(kind, [X, np.asarray(other)])) == 0
    assert check_against_evaluator(*node_model(kind, [np.asarray(other), X], constants={0})) == 0


@pytest.mark.parametrize("kind", ["Add", "Less", "Max", "MatMul", "Concat"])
def test_sizes_that_vary_and_do_not_fit_are_refused_before_a_run(kind):
    nodes = [
        helper.make_node("Slice", ["x", "begin", "end", "axis", "step"], ["half"]),
        helper.make_node("Resize", ["x", "", "", "sizes"], ["other"]),
        helper.make_node(kind, ["half", "other"], ["y"], name="it", **({"axis": 0} if kind == "Concat" else {})),
    ]
    sizes = {"begin": [0], "end": [2**40], "axis": [1], "step": [2], "sizes": [4 if kind == "MatMul" else 3, 4]}
    constants = [helper.make_tensor(name, 7, [len(value)], value) for name, value in sizes.items()]
    infos = [helper.make_tensor_value_info("x", 1, [3, "n"])]
    graph = helper.make_graph(nodes, "g", infos, [helper.make_tensor_value_info("y", 0, None)], constants)
    with gp.onnx.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])) as model:
        for n in (8, 6, 9, 7):
            inputs = {"x": np.ones((3, n), np.float32)}
            if n in (7, 8):
                assert model.run(inputs)["y"].shape == (6 if kind == "Concat" else 3, 4)
                continue
            with pytest.raises(gp.InvalidArgumentError, match=rf"node 'it' \({kind}\)"):
                model.run(inputs)


@pytest.mark.parametrize("kind", ["Sum", "Max", "Min", "Mean"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_variadic(kind, count):
    assert check_against_evaluator(*node_model(kind, [X, ROW, Y][:count])) == 0


@pytest.mark.parametrize("kind", ["Add", "Sub", "Mul"])
@pytest.mark.parametrize("dtype", ["int64", "int32", "float64"])
def test_other_types_are_left_to_the_host_or_are_exact(kind, dtype):
    a, b = random_array((3, 4), dtype), random_array((4,), dtype, 1)
    check_against_evaluator(*node_model(kind, [a, b]))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_half_precision(dtype):
    assert check_against_evaluator(*node_model("Mul", [X.astype(dtype), Y.astype(dtype)])) == 0


@pytest.mark.parametrize("bounds", [(-1.0, 1.0), (-1.0, None), (None, 1.0), (None, None)])
@pytest.mark.parametrize("is_constant", [True, False])
def test_clip(bounds, is_constant):
    inputs = [X, *(None if bound is None else np.array(bound, "float32") for bound in bounds)]
    assert check_against_evaluator(*node_model("Clip", inputs, constants={1, 2} if is_constant else ())) == 0


def test_clip_by_attributes():
    assert check_against_evaluator(*node_model("Clip", [X], opset=6, min=-0.5, max=0.5)) == 0


@pytest.mark.parametrize("exponent", [2.0, 3.0, -0.5, 0.0])
def test_power_by_a_known_number(exponent):
    model = node_model("Pow", [POSITIVE, np.array(exponent, "float32")], constants={1})
    assert check_against_evaluator(*model) == 0


@pytest.mark.parametrize("dtypes", [("float32", "float32"), ("float32", "int64"), ("int32", "float32")])
def test_power_by_a_tensor(dtypes):
    base, exponent = np.round(POSITIVE + 1).astype(dtypes[0]), np.round(np.abs(Y)).astype(dtypes[1])
    assert check_against_evaluator(*node_model("Pow", [base, exponent])) == 0


@pytest.mark.parametrize("kind", ["Add", "Sub", "Mul", "Div", "Max", "Min", "Mod", "Greater", "LessOrEqual", "Equal"])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "uint16"])
def test_integers(kind, dtype):
    a, b = random_array((4, 5), dtype), random_array((5,), dtype, seed=1) + np.array(1, dtype)
    assert check_against_evaluator(*node_model(kind, [a, b])) == 0


@pytest.mark.parametrize("kind", ["And", "Or", "Xor"])
def test_logic(kind):
    a, b = random_array((4, 5)) > 0, random_array((4, 1), seed=1) > 0
    assert check_against_evaluator(*node_model(kind, [a, b])) == 0
    assert check_against_evaluator(*node_model("Not", [a])) == 0


def test_a_condition_may_enlarge_what_it_chooses_from():
    condition = random_array((3, 4, 5), seed=5) > 0
    assert check_against_evaluator(*node_model("Where", [condition, random_array((5,)), random_array((1,))])) == 0


@pytest.mark.parametrize("dtype", ["int8", "int64"])
def test_clip_keeps_integers(dtype):
    x = np.array([-7, 0, 3, 100], dtype)
    assert check_against_evaluator(*node_model("Clip", [x, np.array(-2, dtype), np.array(9, dtype)])) == 0


@pytest.mark.parametrize("slope", [(5,), (4, 1), (1,), (3, 4, 5)])
def test_prelu_broadcasts_the_slope_to_the_last_dimensions(slope):
    assert check_against_evaluator(*node_model("PRelu", [X, random_array(slope, seed=3)])) == 0


@pytest.mark.parametrize("kind", ["GreaterOrEqual", "LessOrEqual", "Greater", "Less", "Equal"])
def test_comparison(kind):
    check_against_evaluator(*node_model(kind, [np.round(X), np.round(Y)]))


def test_where():
    assert check_against_evaluator(*node_model("Where", [X > 0, X, ROW])) == 0


@pytest.mark.parametrize(("source", "target", "hosted"), [
    ("float32", 10, 0), ("float16", 1, 0), ("float32", 7, 0), ("int64", 1, 0), ("float32", 1, 0),
])  # fmt: skip
def test_cast(source, target, hosted):
    assert check_against_evaluator(*node_model("Cast", [(X * 4).astype(source)], to=target)) == hosted


@pytest.mark.parametrize("source", ["int8", "uint8", "bool"])
@pytest.mark.parametrize("target", ["int8", "uint8", "bool"])
@pytest.mark.parametrize("size", [7, 5000])
def test_cast_of_bytes(source, target, size):
    x = np.random.default_rng(4).integers(0, 256, size, np.uint8)
    to = helper.np_dtype_to_tensor_dtype(np.dtype(target))
    x = x % 2 == 0 if source == "bool" else x.view(source)
    assert check_against_evaluator(*node_model("Cast", [x], to=to)) == 0


@pytest.mark.parametrize("kind", ["Add", "Sub", "Mul", "BitwiseXor", "Equal", "Less", "Max", "Div"])
def test_signed_bytes(kind):
    rng = np.random.default_rng(5)
    x, y = (rng.integers(-128, 128, 3000, np.int8) for _ in range(2))
    y[y == 0] = 1
    assert check_against_evaluator(*node_model(kind, [x, y])) == 0


@pytest.mark.parametrize("kind", ["And", "Or", "Xor"])
def test_logic_of_rows(kind):
    x = np.random.default_rng(6).random((9, 700)) < 0.5
    for y in (x[::-1].copy(), x[0], x[:, :1].copy()):
        assert check_against_evaluator(*node_model(kind, [x, y])) == 0


def test_dropout_and_identity_do_nothing():
    assert check_against_evaluator(*node_model("Dropout", [X])) == 0
    assert check_against_evaluator(*node_model("Identity", [X])) == 0


@pytest.mark.parametrize(("shape", "axis"), [((4,), 1), ((4, 5), None), ((3, 4), 0), ((5,), None)])
def test_broadcast_of_old_opsets(shape, axis):
    other = random_array(shape, seed=1)
    attributes = {"broadcast": 1} | ({} if axis is None else {"axis": axis})
    node = helper.make_node("Sub", ["x", "b"], ["y"], **attributes)
    infos = [helper.make_tensor_value_info(key, 1, value.shape) for key, value in (("x", X), ("b", other))]
    graph = helper.make_graph([node], "old", infos, [helper.make_tensor_value_info("y", 1, X.shape)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 6)], ir_version=3)
    start = X.ndim - other.ndim if axis is None else axis
    wanted = X - other.reshape(other.shape + (1,) * (X.ndim - start - other.ndim))
    with gp.onnx.load(model, fallback=False) as loaded:
        np.testing.assert_array_equal(loaded.run({"x": X, "b": other})["y"], wanted)


@pytest.mark.parametrize("kind", ["ThresholdedRelu", "Shrink"])
@pytest.mark.parametrize("constants", [(), (0,)])
def test_what_is_neither_above_nor_below_is_zero(kind, constants):
    x = np.array([np.nan, 0.2, 2, -2, np.inf, -np.inf], "float32")
    model, inputs = node_model(kind, [x], constants=constants, opset=18)
    wanted = [0, 0, 2, 0 if kind == "ThresholdedRelu" else -2, np.inf, 0 if kind == "ThresholdedRelu" else -np.inf]
    with gp.onnx.load(model, fallback=False) as loaded:
        np.testing.assert_array_equal(loaded.run(inputs)["y0"], np.array(wanted, "float32"))
