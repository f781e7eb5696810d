"""What is computed when a model is loaded: our own ops on the reference backend, exactly, before ONNX's evaluator."""

import subprocess
import sys
import weakref

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import graphpool as gp
from graphpool.onnx import fold, host
from tests.helpers.onnx_models import random_array

LARGE = 2**62 - 1
"""An integer that float64 does not hold."""


def folded(kind, inputs, elem, *, noutputs=1, opset=21, **attributes):
    """The results of a node whose inputs are all initialisers; an input of None is left out."""
    names = ["" if value is None else f"x{k}" for k, value in enumerate(inputs)]
    outputs = [f"y{k}" for k in range(noutputs)]
    node = helper.make_node(kind, names, outputs, name=f"the_{kind}", **attributes)
    tensors = [numpy_helper.from_array(np.asarray(v), n) for n, v in zip(names, inputs, strict=True) if n]
    infos = [helper.make_tensor_value_info(name, elem if k == 0 else TensorProto.INT64, [None] * np.ndim(inputs[0]))
             for k, name in enumerate(outputs)]  # fmt: skip
    graph = helper.make_graph([node], "g", [], infos, tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    with gp.onnx.load(model) as loaded:
        results = list(loaded.run({}).values())
    return results if noutputs > 1 else results[0]


@pytest.fixture
def no_evaluator(monkeypatch):
    """Fails where ONNX's evaluator is asked."""

    def refuse(self, inputs, outputs):
        raise AssertionError("ONNX's evaluator was asked")

    monkeypatch.setattr(host._Evaluator, "__call__", refuse)


@pytest.mark.usefixtures("no_evaluator")
@pytest.mark.parametrize(("kind", "inputs", "wanted"), [
    ("Add", (LARGE, 5), LARGE + 5), ("Sub", (-LARGE, 7), -LARGE - 7), ("Mul", (LARGE // 3, 3), LARGE // 3 * 3),
    ("Div", (LARGE, -1), -LARGE), ("Mod", (LARGE, 1000), LARGE % 1000), ("Neg", (LARGE,), -LARGE),
    ("Pow", (3, 39), 3**39), ("Max", (LARGE, LARGE - 1), LARGE), ("Min", (LARGE, LARGE - 1), LARGE - 1),
    ("Abs", (-LARGE,), LARGE), ("Clip", (LARGE, 0, LARGE - 1), LARGE - 1), ("Identity", (LARGE,), LARGE),
])  # fmt: skip
@pytest.mark.parametrize("shape", [(), (2, 3)])
def test_integers_are_exact(kind, inputs, wanted, shape):
    arrays = [np.full(shape if k == 0 else (), value) for k, value in enumerate(inputs)]
    np.testing.assert_array_equal(folded(kind, arrays, TensorProto.INT64), np.full(shape, wanted))


@pytest.mark.usefixtures("no_evaluator")
@pytest.mark.parametrize(("kind", "attributes", "wanted"), [
    ("Shape", {}, [2, 3, 0, 5]), ("Shape", {"start": 1, "end": -1}, [3, 0]),
    ("Shape", {"start": -9, "end": 9}, [2, 3, 0, 5]),
    ("Shape", {"start": 3, "end": 1}, []), ("Size", {}, 0),
])  # fmt: skip
@pytest.mark.parametrize("dtype", [np.float32, np.bool_, np.object_])
def test_shapes_of_constants_are_read(kind, attributes, wanted, dtype):
    """The evaluator takes tens of megabytes; torch asks for the shapes of shapes."""
    found = folded(kind, [np.zeros((2, 3, 0, 5), dtype)], TensorProto.INT64, **attributes)
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, np.array(wanted, np.int64))


WHOLE = np.arange(-3, 3, dtype=np.int32).reshape(2, 1, 3)


@pytest.mark.usefixtures("no_evaluator")
@pytest.mark.parametrize(("kind", "inputs", "attributes", "wanted"), [
    ("Unsqueeze", [[0, -1]], {}, WHOLE.reshape(1, 2, 1, 3, 1)), ("Unsqueeze", [[-1, 1]], {}, WHOLE[:, None, ..., None]),
    ("Squeeze", [[-2]], {}, WHOLE[:, 0]), ("Squeeze", [], {}, WHOLE[:, 0]),
    ("Flatten", [], {"axis": 0}, WHOLE.reshape(1, 6)), ("Flatten", [], {"axis": -1}, WHOLE.reshape(2, 3)),
    ("Flatten", [], {"axis": 3}, WHOLE.reshape(6, 1)),
    ("Reshape", [[0, -1]], {}, WHOLE.reshape(2, 3)), ("Reshape", [[3, 2]], {"allowzero": 1}, WHOLE.reshape(3, 2)),
    ("Slice", [[0], [2**63 - 1], [2], [2]], {}, WHOLE[..., ::2]), ("Slice", [[-9], [-1], [-1]], {}, WHOLE[..., :-1]),
    ("Cast", [], {"to": TensorProto.UINT8}, WHOLE.astype(np.uint8)), ("Cast", [], {"to": TensorProto.BOOL}, WHOLE != 0),
])  # fmt: skip
def test_integers_are_moved_and_cast(kind, inputs, attributes, wanted):
    found = folded(kind, [WHOLE, *map(np.array, inputs)], attributes.get("to", TensorProto.INT32), **attributes)
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.usefixtures("no_evaluator")
@pytest.mark.parametrize("bounds", [(0, 5, 1), (5, 0, -2), (3, 3, 1), (-3, 9, 4), (0, -5, 1)])
@pytest.mark.parametrize("dtype", ["int16", "int32", "int64"])
def test_ranges_of_integers(bounds, dtype):
    elem = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    found = folded("Range", [np.array(number, dtype) for number in bounds], elem)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, np.arange(*bounds))


@pytest.mark.usefixtures("no_evaluator")
@pytest.mark.parametrize("kind", ["ReduceSum", "ReduceMax", "ReduceMin", "CumSum", "TopK"])
def test_reductions_of_large_integers_are_exact(kind):
    x = np.array([LARGE, 3, -LARGE - 2, 1 - LARGE])
    if kind == "TopK":
        values, places = folded(kind, [x, np.array([2])], TensorProto.INT64, noutputs=2)
        assert (values.tolist(), places.tolist()) == ([LARGE, 3], [0, 1])
        return
    inputs = [x, np.array(0)] if kind == "CumSum" else [x]
    wanted = {"ReduceSum": [x.sum()], "ReduceMax": [LARGE], "ReduceMin": [-LARGE - 2], "CumSum": np.cumsum(x)}[kind]
    np.testing.assert_array_equal(folded(kind, inputs, TensorProto.INT64), wanted)


@pytest.mark.usefixtures("no_evaluator")
@pytest.mark.parametrize("base", [-3, -1, 0, 1, 2])
def test_integers_to_negative_powers(base):
    wanted = {-1: -1, 1: 1}.get(base, 0)
    assert folded("Pow", [np.array([base]), np.array([-3])], TensorProto.INT64) == [wanted]


@pytest.mark.usefixtures("no_evaluator")
@pytest.mark.parametrize("count", [3, 40])
def test_gather_elements_along_more_entries_than_a_choice_of_numpy_has(count):
    data, indices = random_array((count, 4)), np.arange(count * 4).reshape(count, 4) % count
    wanted = np.take_along_axis(data, indices, 0)
    np.testing.assert_array_equal(folded("GatherElements", [data, indices], TensorProto.FLOAT), wanted)


@pytest.mark.usefixtures("no_evaluator")
def test_a_sum_of_f32_is_rounded_once():
    x = np.array([1e8, *[0.25] * 64], "float32")
    result = folded("ReduceSum", [x], TensorProto.FLOAT, keepdims=0)
    assert result == np.float32(x.astype("float64").sum())
    assert result.dtype == np.float32


@pytest.mark.usefixtures("no_evaluator")
def test_bounds_that_f32_does_not_hold():
    x = np.array([-1.0, 0.0, 1.0])
    np.testing.assert_array_equal(
        folded("Clip", [x, np.array(-0.1), np.array(0.1)], TensorProto.DOUBLE), [-0.1, 0, 0.1]
    )


@pytest.mark.usefixtures("no_evaluator")
def test_bounds_beyond_f32():
    x = np.array([-1.0, 1e300])
    limits = np.finfo("float64")
    np.testing.assert_array_equal(folded("Clip", [x, limits.min, limits.max], TensorProto.DOUBLE), x)


@pytest.mark.parametrize(("saturate", "wanted"), [(1, 448), (0, np.nan)])
def test_a_cast_to_f8_saturates_as_asked(saturate, wanted):
    to = TensorProto.FLOAT8E4M3FN
    result = folded("Cast", [np.array([1e6, 2], "float32")], to, to=to, saturate=saturate)
    np.testing.assert_array_equal(result.astype("float32"), [wanted, 2])


@pytest.mark.parametrize("kind", ["Cast", "CastLike"])
def test_a_cast_to_four_bits_keeps_the_low_ones(kind):
    """As ONNX's cases have it; a converter would saturate."""
    x, like = np.array([9.0, -9, 3], "float32"), helper.make_tensor("like", TensorProto.INT4, [1], [0])
    inputs, options = ([x], {"to": TensorProto.INT4}) if kind == "Cast" else ([x, numpy_helper.to_array(like)], {})
    assert folded(kind, inputs, TensorProto.INT4, **options).astype("int8").tolist() == [-7, 7, 3]


def test_what_has_no_expression_goes_to_the_evaluator():
    result = folded("Compress", [np.arange(4), np.array([True, False, True, False])], TensorProto.INT64)
    assert result.tolist() == [0, 2]


def test_extents_that_only_a_run_tells_need_no_evaluator(monkeypatch):
    """How many elements are not 0 is known at the run only; our own ops find them and add them up."""
    calls, ask = [], host._Evaluator.__call__
    monkeypatch.setattr(host._Evaluator, "__call__", lambda *arguments: calls.append(1) or ask(*arguments))
    x = np.array([0, 1, 0, 2, 3], "float32")
    nodes = [helper.make_node("NonZero", ["x"], ["places"]), helper.make_node("CumSum", ["places", "axis"], ["y"])]
    info = helper.make_tensor_value_info("x", TensorProto.FLOAT, [5])
    result = helper.make_tensor_value_info("y", TensorProto.INT64, [1, None])
    graph = helper.make_graph(nodes, "g", [info], [result], [numpy_helper.from_array(np.array(1), "axis")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    with gp.onnx.load(model) as loaded:
        assert loaded.run({"x": x})["y"].tolist() == [[1, 4, 8]]
    assert not calls


def test_constants_are_read_without_onnx_s_evaluator():
    code = """
import sys, numpy as np, graphpool as gp
from onnx import TensorProto, helper
made = [
    helper.make_node("Constant", [], ["a"], value=helper.make_tensor("a", TensorProto.FLOAT, [2], [1.0, 2.0])),
    helper.make_node("Constant", [], ["b"], value_float=3.0),
    helper.make_node("Constant", [], ["c"], value_ints=[2]),
    helper.make_node("ConstantOfShape", ["c"], ["d"], value=helper.make_tensor("d", TensorProto.FLOAT, [1], [0.5])),
    helper.make_node("Sum", ["x", "a", "b", "d"], ["y"]),
]
x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy")
opset = [helper.make_opsetid("", 21)]
model = helper.make_model(helper.make_graph(made, "g", [x], [y]), opset_imports=opset, ir_version=10)
with gp.onnx.load(model) as loaded:
    assert loaded.run({"x": np.ones(2, np.float32)})["y"].tolist() == [5.5, 6.5]
assert "onnx.reference.ops" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_what_was_computed_before_is_not_computed_again(monkeypatch):
    computed = []

    def counted(source, node, *rest):
        computed.append(node.label)
        return compute(source, node, *rest)

    compute = fold.compute
    monkeypatch.setattr(fold, "compute", counted)
    numbers = {"a": [1, 2], "b": [1, 2], "c": [2, 1]}
    nodes = [helper.make_node("Neg", [name], [f"-{name}"], name=f"Neg {name}") for name in numbers]
    nodes += [helper.make_node("Cast", ["a"], [name], name=name, to=elem)
              for name, elem in (("f32", TensorProto.FLOAT), ("f64", TensorProto.DOUBLE))]  # fmt: skip
    tensors = [numpy_helper.from_array(np.array(value), name) for name, value in numbers.items()]
    names = [name for node in nodes for name in node.output]
    graph = helper.make_graph(nodes, "g", [], [helper.make_empty_tensor_value_info(name) for name in names], tensors)
    with gp.onnx.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)) as loaded:
        found = loaded.run({})
    assert computed == ["Neg a", "Neg c", "f32", "f64"]
    assert {name: found[name].tolist() for name in names[:3]} == {"-a": [-1, -2], "-b": [-1, -2], "-c": [-2, -1]}
    assert [found[name].dtype for name in names[3:]] == [np.float32, np.float64]


def test_contents_on_the_way_to_others_go_when_they_were_read(monkeypatch):
    alive, found = [], []

    def watched(source, node, *rest):
        alive.append(sum(ref() is not None for ref in found))
        contents = compute(source, node, *rest)
        found.extend(map(weakref.ref, contents))
        return contents

    compute = fold.compute
    monkeypatch.setattr(fold, "compute", watched)
    nodes = [helper.make_node("Neg", [f"x{k}"], [f"x{k + 1}"]) for k in range(6)]
    tensor = numpy_helper.from_array(np.arange(1000, dtype=np.float32), "x0")
    shown = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1000]) for name in ("x2", "x6")]
    graph = helper.make_graph(nodes, "g", [], shown, [tensor])
    with gp.onnx.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)) as loaded:
        results = loaded.run({})
    assert max(alive) <= 3  # one that is an output, one that is read, and what was computed before
    np.testing.assert_array_equal(results["x6"], np.arange(1000))
    np.testing.assert_array_equal(results["x2"], np.arange(1000))
