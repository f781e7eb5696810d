import numpy as np
import pytest
from onnx import helper

import graphpool as gp
from tests.helpers.onnx_models import assert_close, check_against_evaluator, make_model, random_array


def ints(*values):
    return np.array(values, "int64")


def two_layer_model():
    nodes = [
        helper.make_node("Gemm", ["x", "w"], ["a"], transB=1),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "v"], ["y"]),
    ]
    constants = {"w": random_array((8, 4)), "v": random_array((8, 3), seed=1)}
    model = make_model(nodes, {"x": random_array((2, 4))}, ["y"], constants, shapes={"x": ["batch", 4]})
    return model, lambda x: np.maximum(x @ constants["w"].T, 0) @ constants["v"]


def test_each_batch_size_is_compiled_once():
    model, expected = two_layer_model()
    with gp.onnx.load(model) as loaded:
        for batch in (2, 7, 2):
            x = random_array((batch, 4), seed=batch)
            assert_close(loaded.run({"x": x})["y"], expected(x))
        stats = loaded.stats()
    assert (stats.misses, stats.hits, stats.forms, stats.runs) == (2, 1, 2, 3)


def test_weights_are_not_copied_for_another_batch_size():
    model, _ = two_layer_model()
    with gp.onnx.load(model) as loaded:
        loaded.run({"x": random_array((2, 4))})
        once = loaded.stats().constants_nbytes
        loaded.run({"x": random_array((5, 4))})
        assert loaded.stats().constants_nbytes == once == (8 * 4 + 8 * 3) * 4


def test_content_that_decides_a_shape_is_part_of_the_key():
    x = random_array((4, 6))
    model = make_model(
        [helper.make_node("Reshape", ["x", "s"], ["r"]), helper.make_node("Relu", ["r"], ["y"])],
        {"x": x, "s": ints(3, 8)},
        ["y"],
    )
    with gp.onnx.load(model, fallback=False) as loaded:
        for shape in ((3, 8), (2, -1), (3, 8)):
            result = loaded.run({"x": x, "s": ints(*shape)})["y"]
            np.testing.assert_array_equal(result, np.maximum(x, 0).reshape(shape))
        assert loaded.stats().misses == 2


def test_content_that_decides_nothing_is_no_part_of_the_key():
    table = random_array((10, 4))
    model = make_model([helper.make_node("Gather", ["t", "i"], ["y"])], {"i": ints(1, 2)}, ["y"], {"t": table})
    with gp.onnx.load(model) as loaded:
        for indices in (ints(1, 2), ints(9, -10)):
            np.testing.assert_array_equal(loaded.run({"i": indices})["y"], table[indices])
        assert loaded.stats().misses == 1


def test_arithmetic_on_shapes_is_folded():
    """Reshape to (batch * 3, -1), as exporters write it."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["batch"]),
        helper.make_node("Mul", ["batch", "three"], ["rows"]),
        helper.make_node("Concat", ["rows", "rest"], ["shape"], axis=0),
        helper.make_node("Reshape", ["x", "shape"], ["y"]),
    ]
    constants = {"zero": ints(0), "three": ints(3), "rest": ints(-1)}
    x = random_array((2, 3, 5))
    model = make_model(nodes, {"x": x}, ["y"], constants, shapes={"x": ["n", 3, 5]})
    with gp.onnx.load(model, fallback=False) as loaded:
        for batch in (2, 4):
            assert loaded.run({"x": random_array((batch, 3, 5))})["y"].shape == (batch * 3, 5)


def test_constant_nodes_are_folded():
    nodes = [
        helper.make_node("Constant", [], ["c"], value_floats=[1.0, 2.0, 3.0]),
        helper.make_node("Sqrt", ["c"], ["r"]),
        helper.make_node("Add", ["x", "r"], ["y"]),
    ]
    x = random_array((2, 3))
    model = make_model(nodes, {"x": x}, ["y"])
    assert check_against_evaluator(model, {"x": x}) == 0
    with gp.onnx.load(model) as loaded:
        assert len(loaded.partitions) == 1


@pytest.mark.parametrize("kind", ["Slice", "Split", "Expand", "Tile", "Pad"])
@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_data_movement_on_the_host(kind, dtype):
    x = random_array((4, 6), dtype)
    more = {
        "Slice": [ints(1, -5), ints(3, 2**62), ints(0, 1), ints(1, 2)], "Split": [ints(2, 4)],
        "Expand": [ints(3, 1, 6)], "Tile": [ints(2, 3)], "Pad": [ints(0, 1, 2, 0)],
    }[kind]  # fmt: skip
    names = [f"c{k}" for k in range(len(more))]
    outputs = ["y", "z"] if kind == "Split" else ["y"]
    node = helper.make_node(kind, ["x", *names], outputs, **({"axis": 1} if kind == "Split" else {}))
    check_against_evaluator(make_model([node], {"x": x}, outputs, dict(zip(names, more, strict=True))), {"x": x})


@pytest.mark.parametrize("kind", ["Slice", "Split", "Expand"])
def test_data_movement_by_inputs(kind):
    x = random_array((4, 6))
    more = {"Slice": [ints(1), ints(3)], "Split": [ints(2, 2)], "Expand": [ints(3, 4, 6)]}[kind]
    outputs = ["y", "z"] if kind == "Split" else ["y"]
    inputs = {"x": x} | {f"c{k}": value for k, value in enumerate(more)}
    check_against_evaluator(make_model([helper.make_node(kind, list(inputs), outputs)], inputs, outputs), inputs)


@pytest.mark.parametrize("model", ["digits_cnn", "digits_transformer"])
def test_demo_models(model):
    from importlib.resources import files

    import onnx
    from onnx.reference import ReferenceEvaluator

    path = files("graphpool.demo") / f"{model}.onnx"
    with gp.onnx.load(str(path)) as loaded:
        port = loaded.inputs[0]
        shape = [dim if isinstance(dim, int) else 5 for dim in port.shape]
        x = np.abs(random_array(shape)).astype(port.dtype.numpy)
        [result] = loaded.run({port.name: x}).values()
    assert_close(result, ReferenceEvaluator(onnx.load(str(path))).run(None, {port.name: x})[0])


def test_what_only_gave_its_shape_is_not_computed():
    nodes = [
        helper.make_node("Slice", ["x", "one", "end"], ["part"]), helper.make_node("Shape", ["part"], ["shape"]),
        helper.make_node("ConstantOfShape", ["shape"], ["y"]),
    ]  # fmt: skip
    x = random_array((5, 4))
    constants = {"one": ints(1), "end": ints(9)}
    model = make_model(nodes, {"x": x}, ["y"], constants, shapes={"x": ["rows", 4]})
    with gp.onnx.load(model, fallback=False) as loaded:
        np.testing.assert_array_equal(loaded.run({"x": x})["y"], np.zeros((4, 4)))
        assert all(op.kind != "Slice" for op in loaded._forms.last().form.graph.ops)
