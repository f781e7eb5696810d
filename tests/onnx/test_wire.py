"""Weights found inside a serialised model."""

import gc
import weakref

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import graphpool as gp
from graphpool.onnx._wire import outline
from graphpool.onnx.proto import TypeProto
from graphpool.onnx.source import read_model

LARGE = 2**14  # elements of 4 bytes each


def make(weights, prefix="w"):
    nodes = [helper.make_node("MatMul", ["x", f"{prefix}0"], ["y"])]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, weights[0].shape[0]))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, (2, weights[0].shape[1]))
    tensors = [numpy_helper.from_array(w, f"{prefix}{k}") for k, w in enumerate(weights)]
    graph = helper.make_graph(nodes, "g", [x], [y], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def arrays(*shapes, dtype=np.float32):
    rng = np.random.default_rng(0)
    return [rng.integers(-9, 9, shape).astype(dtype) for shape in shapes]


def test_large_weights_stay_in_the_file_wherever_they_lie(tmp_path):
    for padding in range(4):
        weights = arrays((128, 256), (3, 5), (256, 128), (LARGE,))
        path = tmp_path / f"model{padding}.onnx"
        onnx.save(make(weights, prefix="w" * (1 + padding)), path)
        found = outline(memoryview(path.read_bytes()))
        assert sorted(found.places) == [0, 2, 3]
        assert len(found.model) < 1000
        model = read_model(path)
        for (_, array), weight in zip(model.constants.items(), weights, strict=True):
            np.testing.assert_array_equal(array, weight)
            assert not array.flags.writeable
        x = np.ones((2, 128), np.float32)
        with gp.onnx.load(path) as loaded:
            np.testing.assert_allclose(loaded.run({"x": x})["y"], x @ weights[0], rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int8, np.int64, np.bool_])
def test_every_type_of_whole_bytes_is_mapped(tmp_path, dtype):
    [weight] = arrays((2**17,), dtype=dtype)
    proto = make(arrays((128, 256)))
    proto.graph.initializer.append(numpy_helper.from_array(weight, "more"))
    onnx.save(proto, tmp_path / "m.onnx")
    array = read_model(tmp_path / "m.onnx").constants["more"]
    np.testing.assert_array_equal(array, weight)
    assert array.dtype == weight.dtype


def test_a_weight_of_another_size_than_its_shape_is_refused(tmp_path):
    proto = make(arrays((128, 256)))
    proto.graph.initializer[0].dims[0] = 129
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    with pytest.raises(gp.InvalidArgumentError, match="131072 bytes for 33024 elements"):
        gp.onnx.load(tmp_path / "m.onnx")


@given(st.data())
def test_what_is_no_model_is_left_to_its_parser(data):
    proto = make(arrays((128, 256))).SerializeToString()
    where = data.draw(st.integers(0, 300))
    broken = bytearray(proto)
    broken[where] ^= data.draw(st.integers(1, 255))
    cut = bytes(broken[: data.draw(st.integers(0, len(broken)))])
    found = outline(memoryview(cut))
    assert found.places == {} or len(found.model) + sum(size for _, size in found.places.values()) <= len(cut)
    assert all(0 <= start <= start + size <= len(cut) for start, size in found.places.values())


@pytest.mark.parametrize("typed", [False, True])
def test_tensors_of_nodes_stay_in_the_file_as_initialisers_do(typed, tmp_path):
    weight, bias = arrays((128, 256), (256,))
    proto = make([weight])
    del proto.graph.initializer[:]
    value = numpy_helper.from_array(weight, "called otherwise")
    if typed:
        value = TensorProto(data_type=TensorProto.FLOAT, dims=weight.shape, float_data=weight.ravel())
    proto.graph.node.insert(0, helper.make_node("Constant", [], ["w0"], value=value))
    proto.graph.node[1].output[0] = "product"
    proto.graph.node.append(helper.make_node("Constant", [], ["b"], value=numpy_helper.from_array(bias)))
    proto.graph.node.append(helper.make_node("Add", ["product", "b"], ["y"]))
    onnx.save(proto, tmp_path / "m.onnx")
    data = (tmp_path / "m.onnx").read_bytes()
    found = outline(memoryview(data))
    assert sorted(found.places) == [0, 1]
    assert len(found.model) < 1000
    x = np.ones((2, 128), np.float32)
    for source in (tmp_path / "m.onnx", data, proto):
        model = read_model(source)
        assert [node.op_type for node in model.nodes] == ["MatMul", "Add"]
        np.testing.assert_array_equal(model.constants["w0"], weight)
        np.testing.assert_array_equal(model.constants["b"], bias)
        with gp.onnx.load(source) as loaded:
            np.testing.assert_allclose(loaded.run({"x": x})["y"], x @ weight + bias, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("change", ["name", "twice", "output", "input", "domain"])
def test_nodes_that_are_no_constants_are_left_to_the_checker(change):
    proto = make(arrays((4, 256)))
    value = numpy_helper.from_array(arrays((LARGE,))[0])
    node = helper.make_node("Constant", ["x"] if change == "input" else [], ["c"], value=value)
    if change == "name":
        node.attribute[0].name = "values"
    elif change == "twice":
        node.attribute.append(node.attribute[0])
    elif change == "output":
        node.output.append("d")
    elif change == "domain":
        node.domain = "elsewhere"
    proto.graph.node.append(node)
    for source in (proto.SerializeToString(), proto):
        with pytest.raises((gp.InvalidArgumentError, gp.UnsupportedError)):
            gp.onnx.load(source).close()


def test_a_model_without_large_weights_is_kept_as_it_is():
    proto = make(arrays((4, 8))).SerializeToString()
    found = outline(memoryview(proto))
    assert found.places == {}
    assert onnx.ModelProto.FromString(found.model) == onnx.ModelProto.FromString(proto)


def test_classes_of_inner_messages_stay():
    """One that the collector takes apart while another thread is given it ends the process."""
    kind = weakref.ref(type(TypeProto().tensor_type.shape))
    gc.collect()
    assert kind() is type(TypeProto().tensor_type.shape)
