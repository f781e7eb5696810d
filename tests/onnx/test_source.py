import os

import numpy as np
import onnx
import pytest
from onnx import TensorProto, ValueInfoProto, external_data_helper, helper, numpy_helper

import graphpool as gp
from graphpool.mapped_file import MappedFile
from graphpool.onnx.source import read_model
from tests.helpers.onnx_models import make_model, random_array

W = random_array((64, 8))


@pytest.fixture
def model():
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="product")
    return make_model([node], {"x": random_array((3, 64))}, ["y"], {"w": W}, name="tiny")


@pytest.fixture
def external(model, tmp_path):
    """The model with its weight in a file beside it."""
    path = tmp_path / "tiny.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    return path


def test_every_kind_of_source_gives_the_same_model(model, tmp_path):
    path = tmp_path / "tiny.onnx"
    onnx.save(model, path)
    for source in (model, model.SerializeToString(), path, str(path)):
        found = read_model(source)
        assert [port.name for port in found.inputs] == ["x"]
        assert found.inputs[0].shape == (3, 64)
        np.testing.assert_array_equal(found.constants["w"], W)
        assert found.opsets == {"": 21}


def test_a_given_proto_is_not_changed(model):
    before = model.SerializeToString()
    read_model(model)
    assert model.SerializeToString() == before


def test_constants_are_read_only(model):
    with pytest.raises(ValueError, match="read-only"):
        read_model(model).constants["w"][0] = 1


def test_external_data_is_mapped(external):
    found = read_model(external).constants["w"]
    np.testing.assert_array_equal(found, W)
    base = found
    while isinstance(base, np.ndarray):
        base = base.base
    assert isinstance(getattr(base, "obj", base), MappedFile)


def test_missing_external_data_names_tensor_and_file(external):
    (external.parent / "weights.bin").unlink()
    with pytest.raises(gp.InvalidArgumentError, match=r"tensor 'w': file 'weights.bin' is missing") as caught:
        read_model(external)
    assert caught.value.tensor_name == "w"
    assert caught.value.location == "weights.bin"


def test_short_external_data_says_how_much_is_missing(external):
    (external.parent / "weights.bin").write_bytes(bytes(100))
    with pytest.raises(gp.InvalidArgumentError, match=rf"too short; accepted: {W.nbytes} bytes.*got: 100 bytes"):
        read_model(external)


def test_external_data_needs_the_path(external):
    with pytest.raises(gp.InvalidArgumentError, match=r"'w'.*load the model by its path"):
        read_model(external.read_bytes())


def place_at(model, path, location, **entries):
    """The model in a file, with its weight at a location."""
    tensor = model.graph.initializer[0]
    tensor.raw_data = b""
    external_data_helper.set_external_data(tensor, location, **entries)
    tensor.ClearField("raw_data")
    path.write_bytes(model.SerializeToString())
    return path


def test_external_data_is_a_regular_file_in_the_folder(model, tmp_path):
    folder = tmp_path / "inner"
    (folder / "sub").mkdir(parents=True)
    (tmp_path / "secret.bin").write_bytes(W.tobytes())
    (folder / "link.bin").symlink_to("../secret.bin")
    (folder / "zero").symlink_to("/dev/zero")
    os.mkfifo(folder / "pipe")
    for location in ("link.bin", "zero", "pipe", "sub", ".", "/dev/zero", str(tmp_path / "secret.bin"), "a\0b", ""):
        path = place_at(model, folder / "m.onnx", location)
        with pytest.raises(gp.InvalidArgumentError, match=r"outside the model's folder|is no file"):
            read_model(path)
    (folder / "sub" / "w.bin").write_bytes(W.tobytes())
    found = read_model(place_at(model, folder / "m.onnx", "sub/w.bin"))
    np.testing.assert_array_equal(found.constants["w"], W)


@pytest.mark.parametrize("entries", [{"offset": -4}, {"offset": 2**62}, {"offset": 1}, {"length": 4}, {"length": -1}])
def test_external_data_lies_inside_its_file(model, tmp_path, entries):
    (tmp_path / "w.bin").write_bytes(W.tobytes())
    with pytest.raises(gp.InvalidArgumentError, match=r"tensor 'w': file 'w.bin'"):
        read_model(place_at(model, tmp_path / "m.onnx", "w.bin", **entries))


def test_of_external_data_no_more_is_read_than_needed(tmp_path):
    with (tmp_path / "w.bin").open("wb") as file:
        file.write(b"\x21" * 8)
        file.truncate(1 << 34)
    tensor = onnx.TensorProto(name="w", data_type=onnx.TensorProto.UINT4, dims=[2, 3])
    infos = [helper.make_tensor_value_info(name, onnx.TensorProto.UINT4, [2, 3]) for name in "xy"]
    nodes = [helper.make_node("Identity", ["x"], ["y"])]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], [tensor])
    small = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    small.graph.initializer[0].raw_data = b"abc"
    found = read_model(place_at(small, tmp_path / "m.onnx", "w.bin", offset=4, length=3))
    assert found.constants["w"].astype(int).tolist() == [[1, 2, 1], [2, 1, 2]]


def sparse_model(dims, indices):
    values = numpy_helper.from_array(np.ones(1, np.float32), "s")
    places = numpy_helper.from_array(np.array(indices, np.int64), "i")
    infos = [helper.make_tensor_value_info(name, 1, [None] * len(dims)) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Add", ["x", "s"], ["y"])], "g", infos[:1], infos[1:],
                              sparse_initializer=[helper.make_sparse_tensor(values, places, dims)])  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize("indices", [[5], [[1, 2]]])
def test_sparse_initialisers_become_dense(indices):
    expected = np.zeros((2, 3), np.float32)
    expected[1, 2] = 1
    np.testing.assert_array_equal(read_model(sparse_model([2, 3], indices)).constants["s"], expected)


def test_sparse_initialisers_that_do_not_fit_are_refused():
    for indices in ([6], [-1], [[1, 3]], [[0, 0, 0]]):
        with pytest.raises(gp.InvalidArgumentError, match="no valid ONNX model"):
            read_model(sparse_model([2, 3], indices))
    with pytest.raises(gp.LimitError, match="sparse tensor 's': as a dense one, it exceeds the limit folded_nbytes"):
        read_model(sparse_model([1 << 40], [5]))


def test_external_data_must_lie_beside_the_model(model, tmp_path):
    (tmp_path / "secret.bin").write_bytes(W.tobytes())
    tensor = model.graph.initializer[0]
    external_data_helper.set_external_data(tensor, "../secret.bin", 0, W.nbytes)
    tensor.ClearField("raw_data")
    (tmp_path / "inner").mkdir()
    path = tmp_path / "inner" / "tiny.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(gp.InvalidArgumentError, match="outside the model's folder"):
        read_model(path)


@pytest.mark.parametrize("keep", [0, 1, 10, 0.5, 0.99])
def test_truncated_files_are_refused(model, tmp_path, keep):
    data = model.SerializeToString()
    path = tmp_path / "cut.onnx"
    path.write_bytes(data[: keep if isinstance(keep, int) else int(len(data) * keep)])
    with pytest.raises(gp.InvalidArgumentError, match=r"cut\.onnx' is no valid ONNX model"):
        read_model(path)


def test_other_files_are_refused():
    for data in (b"", b"PK\x03\x04 a zip file", b"{}", bytes(1000)):
        with pytest.raises(gp.InvalidArgumentError, match="no valid ONNX model"):
            read_model(data)
    with pytest.raises(gp.InvalidArgumentError, match=r"accepted: a path, bytes or an onnx.ModelProto; got: int"):
        read_model(3)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.onnx"):
        read_model(tmp_path / "none.onnx")


def test_a_malformed_graph_is_refused(model):
    model.graph.node[0].input[0] = "nowhere"
    with pytest.raises(gp.InvalidArgumentError, match=r"'tiny' is no valid ONNX model.*nowhere"):
        read_model(model)


def test_an_initialiser_that_is_also_an_input_is_a_constant(model):
    model.graph.input.append(helper.make_tensor_value_info("w", 1, W.shape))
    found = read_model(model)
    assert [port.name for port in found.inputs] == ["x"]


def constant(name, tensor, **fields):
    """A Constant that holds a tensor, with other fields of its attribute."""
    node = helper.make_node("Constant", [], [name], value=tensor)
    for field, value in fields.items():
        setattr(node.attribute[0], field, value)
    return node


def with_constant_weights(model, *nodes):
    """The model with nodes in place of its initialisers."""
    del model.graph.initializer[:]
    kept = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend([*nodes, *kept])
    return model


def test_a_constant_that_holds_a_tensor_is_an_initialiser(model):
    found = read_model(with_constant_weights(model, constant("w", numpy_helper.from_array(W))))
    assert [node.op_type for node in found.nodes] == ["MatMul"]
    assert np.array_equal(found.constants["w"], W)
    assert not found.constants["w"].flags.writeable


@pytest.mark.parametrize("fields", [{"f": 1.0}, {"type": 1}])
def test_a_constant_with_other_fields_is_checked(model, fields):
    with pytest.raises(gp.InvalidArgumentError, match="no valid ONNX model"):
        read_model(with_constant_weights(model, constant("w", numpy_helper.from_array(W), **fields)))


def test_a_constant_by_another_attribute_stays_a_node(model):
    node = helper.make_node("Constant", [], ["w"], value_floats=[1.0] * 64)
    assert [node.op_type for node in read_model(with_constant_weights(model, node)).nodes] == ["Constant", "MatMul"]


@pytest.mark.parametrize("name", ["x", "w", "y"])
def test_a_constant_takes_no_name_that_there_is(model, name):
    model.graph.node.insert(0, constant(name, numpy_helper.from_array(W)))
    with pytest.raises(gp.InvalidArgumentError, match="no valid ONNX model"):
        read_model(model)


def test_two_constants_of_one_name_are_refused(model):
    twice = [constant("w", numpy_helper.from_array(W))] * 2
    with pytest.raises(gp.InvalidArgumentError, match="no valid ONNX model"):
        read_model(with_constant_weights(model, *twice))


def test_functions_of_the_model_are_inlined(model):
    body = [helper.make_node("Relu", ["a"], ["b"]), helper.make_node("Neg", ["b"], ["c"])]
    model.functions.append(helper.make_function("mine", "Twist", ["a"], ["c"], body, [helper.make_opsetid("", 21)]))
    model.opset_import.append(helper.make_opsetid("mine", 1))
    model.graph.node[0].output[0] = "h"
    model.graph.node.append(helper.make_node("Twist", ["h"], ["y"], domain="mine"))
    assert [node.op_type for node in read_model(model).nodes] == ["MatMul", "Relu", "Neg"]
    x = random_array((3, 64))
    with gp.onnx.load(model, fallback=False) as loaded:
        np.testing.assert_allclose(loaded.run({"x": x})["y"], -np.maximum(x @ W, 0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("kind", "is_inlined"), [("Relu", True), ("Sin", False)])
def test_functions_of_older_opsets_are_inlined_where_their_ops_have_not_changed(kind, is_inlined):
    """Sin changed in opset 22; the checker does not look into branches."""
    branch = helper.make_graph([helper.make_node(kind, ["a"], ["b"])], "branch", [], [ValueInfoProto(name="b")])
    body = [helper.make_node("If", ["yes"], ["c"], then_branch=branch, else_branch=branch)]
    function = helper.make_function("mine", "Twist", ["a", "yes"], ["c"], body, [helper.make_opsetid("", 21)])
    info = helper.make_tensor_value_info("x", TensorProto.FLOAT, [3])
    yes = helper.make_tensor("yes", TensorProto.BOOL, [], [True])
    node = helper.make_node("Twist", ["x", "yes"], ["y"], domain="mine")
    graph = helper.make_graph([node], "g", [info], [ValueInfoProto(name="y")], [yes])
    imports = [helper.make_opsetid("", 22), helper.make_opsetid("mine", 1)]
    model = helper.make_model(graph, functions=[function], opset_imports=imports, ir_version=10)
    assert [node.op_type for node in read_model(model).nodes] == (["If"] if is_inlined else ["Twist"])


def unknown(side, change):
    """Change the declared type of a port of a product."""
    return lambda model: change(getattr(model.graph, side)[0].type)


def negative(type_):
    type_.tensor_type.shape.dim[0].dim_value = -1


UNKNOWN = {
    "input of unknown rank": unknown("input", lambda type_: type_.tensor_type.ClearField("shape")),
    "output of unknown rank": unknown("output", lambda type_: type_.tensor_type.ClearField("shape")),
    "output without a type": unknown("output", lambda type_: type_.Clear()),
    "output without an element type": unknown("output", lambda type_: type_.tensor_type.ClearField("elem_type")),
    "output of another shape": unknown(
        "output", lambda type_: setattr(type_.tensor_type.shape.dim[0], "dim_value", -1)
    ),
    "input of another shape": unknown("input", negative),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_what_a_file_does_not_say_of_its_ports_is_inferred(model, case):
    UNKNOWN[case](model)
    x = random_array((3, 64))
    with gp.onnx.load(model, fallback=False) as loaded:
        np.testing.assert_allclose(loaded.run({"x": x})["y"], x @ W, rtol=1e-4, atol=1e-5)


def test_an_input_without_a_type_is_refused(model):
    model.graph.input[0].ClearField("type")
    with pytest.raises(gp.InvalidArgumentError, match="'type'"):
        read_model(model)


def test_negative_dimensions_inside_sequences_are_unknown_ones():
    tensor = helper.make_tensor_type_proto(TensorProto.FLOAT, [-1, 3])
    info = helper.make_value_info("x", helper.make_sequence_type_proto(tensor))
    node = helper.make_node("ConcatFromSequence", ["x"], ["y"], axis=0)
    graph = helper.make_graph([node], "g", [info], [ValueInfoProto(name="y")])
    parts = [random_array((2, 3)), random_array((4, 3))]
    with gp.onnx.load(helper.make_model(graph, ir_version=9)) as loaded:
        np.testing.assert_array_equal(loaded.run({"x": parts})["y"], np.concatenate(parts))


def texts(shape, kind="Identity"):
    """A model of one node on an array of texts."""
    info = helper.make_tensor_value_info("x", TensorProto.STRING, shape)
    graph = helper.make_graph([helper.make_node(kind, ["x"], ["y"])], "g", [info], [ValueInfoProto(name="y")])
    return helper.make_model(graph, ir_version=9)


@pytest.mark.parametrize("given", [
    np.array([["a", "ü"]]), np.array([["a", "ü"]], object), [["a", "ü"]], np.array([[np.str_("a"), "ü"]], object),
])  # fmt: skip
def test_texts_come_in_any_form_and_leave_as_objects(given):
    with gp.onnx.load(texts((-1, 2))) as loaded:
        assert str(loaded.inputs[0].shape) == "(None, 2)"
        found = loaded.run({"x": given})["y"]
        assert loaded.predict_peak({"x": (5, 2)}) >= 0
    assert found.dtype == object
    assert found.tolist() == [["a", "ü"]]


@pytest.mark.parametrize(("given", "error", "text"), [
    (np.array([["a", 3]], object), gp.InvalidDataTypeError, "each a str; got: int"),
    (np.array([["a"]]), gp.InvalidShapeError, "input 'x': dimension 1 is 1"),
    (np.ones((1, 2)), gp.InvalidDataTypeError, "each a str; got: float"),
])  # fmt: skip
def test_texts_that_do_not_fit_are_named(given, error, text):
    with gp.onnx.load(texts((None, 2))) as loaded, pytest.raises(error, match=text):
        loaded.run({"x": given})


@pytest.mark.parametrize("nbytes", [8, 4096])
@pytest.mark.parametrize("dims", [[-1, -1], [-1], [10**6]])
def test_initialisers_whose_size_is_not_that_of_their_shape_are_refused(model, tmp_path, nbytes, dims):
    tensor = model.graph.initializer[0]
    tensor.raw_data = bytes(nbytes)
    tensor.dims[:] = dims
    path = tmp_path / "odd.onnx"
    path.write_bytes(model.SerializeToString())
    for source in (model, path):
        with pytest.raises(gp.InvalidArgumentError, match="tensor 'w' is no valid ONNX model"):
            read_model(source)


def test_an_empty_initialiser_has_its_shape(model):
    tensor = model.graph.initializer[0]
    tensor.raw_data = b""
    tensor.dims[:] = [0, 5]
    assert read_model(model).constants["w"].shape == (0, 5)


def test_a_name_is_one_object_in_all_nodes():
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"], name="a"), helper.make_node("Relu", ["h"], ["y"], name="b")]
    found = read_model(make_model(nodes, {"x": random_array((3, 64))}, ["y"], {"w": W}))
    (product, relu), [weight] = found.nodes, found.constants
    assert product.output[0] is relu.input[0]
    assert product.input[1] is weight
