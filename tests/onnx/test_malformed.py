"""Models that break a rule: an error of graphpool that names the place, and nothing else."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import graphpool as gp
from graphpool.onnx._wire import outline
from graphpool.onnx.boundary import Boundary
from graphpool.onnx.node import make_node
from graphpool.onnx.source import read_model
from tests.helpers.onnx_models import check_against_evaluator, make_model, node_model, random_array

X, W = random_array((2, 3)), random_array((3, 4))


def product():
    return node_model("MatMul", [X, W], constants={1})[0]


def with_weight(change):
    """A product whose weight was changed."""
    model = product()
    change(model.graph.initializer[0])
    return model


def fields(**values):
    """What sets fields of a tensor, clears those that are None, and replaces repeated ones."""

    def change(tensor):
        for name, value in values.items():
            tensor.ClearField(name)
            if isinstance(value, list):
                getattr(tensor, name).extend(value)
            elif value is not None:
                setattr(tensor, name, value)

    return change


ONES = [1.0] * 12

TENSORS = {
    "short raw data": (fields(raw_data=bytes(47)), "47 bytes for 12 elements"),
    "long raw data": (fields(raw_data=bytes(52)), "52 bytes for 12 elements"),
    "raw and typed data": (fields(float_data=ONES), "both float_data and raw_data"),
    "two kinds of typed data": (fields(raw_data=None, float_data=ONES, int32_data=[1]), "both float_data and int32"),
    "data of another type": (fields(raw_data=None, int32_data=[1] * 12), "size 0"),
    "short typed data": (fields(raw_data=None, float_data=ONES[1:]), "size 11"),
    "negative dimensions": (fields(dims=[-3, -4]), r"shape \[-3, -4\]"),
    "a dimension to be guessed": (fields(raw_data=None, float_data=ONES, dims=[-1, 12]), r"shape \[-1, 12\]"),
    "more elements than memory has": (fields(dims=[2**62, 4]), r"shape \[4611686018427387904, 4\]"),
    "no elements of too many": (fields(dims=[2**62, 4, 0], raw_data=b""), "shape"),
    "an unknown type": (fields(data_type=99), "data type 99"),
    "no type": (fields(data_type=0), "data type 0"),
    "strings that are no text": (fields(raw_data=None, data_type=8, string_data=[b"\xff"] * 12), "utf-8"),
    "strings as raw data": (fields(data_type=8), "size 0"),
    "short 4-bit data": (fields(data_type=TensorProto.INT4, raw_data=b"12345"), "5 bytes for 12 elements"),
    "external data without a file": (fields(data_location=1), "load the model by its path"),
}


@pytest.mark.parametrize("case", TENSORS.values(), ids=TENSORS.keys())
def test_a_weight_that_breaks_a_rule_is_named(case):
    change, text = case
    with pytest.raises(gp.InvalidArgumentError, match=f"tensor 'x1'.*{text}"):
        gp.onnx.load(with_weight(change).SerializeToString())


@pytest.mark.parametrize("offset", ["-4", "x", "9" * 40])
def test_external_data_at_no_offset(tmp_path, offset):
    model = with_weight(fields(raw_data=None, data_location=1))
    model.graph.initializer[0].external_data.add(key="location", value="w.bin")
    model.graph.initializer[0].external_data.add(key="offset", value=offset)
    (tmp_path / "w.bin").write_bytes(bytes(64))
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(gp.InvalidArgumentError, match="'x1'"):
        gp.onnx.load(tmp_path / "m.onnx")


def test_external_data_of_four_bits_is_half_as_long(tmp_path):
    model = with_weight(fields(raw_data=None, data_location=1, data_type=TensorProto.FLOAT4E2M1))
    model.graph.initializer[0].external_data.add(key="location", value="w.bin")
    (tmp_path / "w.bin").write_bytes(bytes(6))
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    weight = np.asarray(read_model(tmp_path / "m.onnx").constants["x1"])
    assert weight.shape == (3, 4)
    assert not weight.astype(np.float32).any()


def test_errors_of_sparse_initialisers_name_them():
    model = product()
    dense = model.graph.initializer.pop()
    values = numpy_helper.from_array(np.ones(2, np.float32), dense.name)
    indices = numpy_helper.from_array(np.array([1, 5, 7]), "indices")
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [3, 4]))
    with pytest.raises(gp.InvalidArgumentError, match="sparse tensor 'x1'"):
        gp.onnx.load(model)


def chain():
    """Two nodes in a row."""
    nodes = [helper.make_node("Relu", ["x"], ["a"], "first"), helper.make_node("Exp", ["a"], ["y"], "second")]
    return make_model(nodes, {"x": X}, ["y"])


def twice(values):
    values.append(values[0])


GRAPHS = {
    "two initialisers of a name": (product, lambda m: twice(m.graph.initializer), "'x1'"),
    "two inputs of a name": (product, lambda m: twice(m.graph.input), "'x0'"),
    "two nodes that give a name": (chain, lambda m: m.graph.node[1].output.__setitem__(0, "a"), "'a'"),
    "a cycle": (chain, lambda m: m.graph.node[0].input.__setitem__(0, "y"), "'y'"),
    "an output that nobody gives": (chain, lambda m: setattr(m.graph.output[0], "name", "z"), "'z'"),
    "an input of an unknown type": (
        chain, lambda m: setattr(m.graph.input[0].type.tensor_type, "elem_type", 77), "'x' has an element type.*77"),
    "two versions of a domain": (chain, lambda m: m.opset_import.add(domain="ai.onnx", version=3), "opset of domain"),
    "an opset of the future": (chain, lambda m: setattr(m.opset_import[0], "version", 2**40), "version"),
    "more elements than an array has": (
        chain, lambda m: setattr(m.graph.input[0].type.tensor_type.shape.dim[0], "dim_value", 2**62), "input 'x'"),
}  # fmt: skip


@pytest.mark.parametrize("case", GRAPHS.values(), ids=GRAPHS.keys())
def test_a_graph_that_breaks_a_rule_is_refused(case):
    make, change, text = case
    model = make()
    change(model)
    with pytest.raises(gp.InvalidArgumentError, match=text):
        gp.onnx.load(model.SerializeToString())


def test_a_branch_that_is_missing_is_named():
    empty = helper.make_graph([helper.make_node("Relu", ["x"], ["r"])], "g", [], [onnx.ValueInfoProto(name="r")])
    node = helper.make_node("If", ["c"], ["y"], then_branch=empty, else_branch=empty)
    model = make_model([node], {"x": X, "c": np.array(True)}, ["y"])
    del model.graph.node[0].attribute[1]
    with pytest.raises(gp.InvalidArgumentError, match=r"Required attribute .*_branch"):
        gp.onnx.load(model)


@pytest.mark.parametrize("name", [b"x0", b"x1", b"y0", b"the_MatMul", b"MatMul"])
def test_names_that_are_no_text(name):
    broken = b"\xff\xfe" + name[2:]
    with pytest.raises(gp.InvalidArgumentError, match="UTF-8"):
        gp.onnx.load(product().SerializeToString().replace(name, broken))


def test_negative_dimensions_of_inputs_are_unknown_ones():
    model = chain()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    with gp.onnx.load(model) as loaded:
        assert loaded.inputs[0].shape == (None, 3)
        np.testing.assert_allclose(loaded.run({"x": X})["y"], np.exp(np.maximum(X, 0)), rtol=1e-6)


@pytest.mark.parametrize("size", [5, 8, 11])
def test_a_window_of_more_channels_than_there_are(size):
    model, inputs = node_model(
        "LRN", [random_array((4, 4, 3, 3))], size=size, alpha=0.5
    )  # the evaluator counts images for channels
    check_against_evaluator(model, inputs)


def test_nodes_whose_first_output_is_left_out_are_kept():
    arrays = [random_array((4, 2, 3)), random_array((1, 20, 3)), random_array((1, 20, 5))]
    nodes = [helper.make_node("LSTM", ["x", "w", "r"], ["", f"h{k}"], hidden_size=5) for k in range(2)]
    nodes.append(helper.make_node("Sub", ["h0", "h1"], ["y"]))
    model = make_model(nodes, {"x": arrays[0]}, ["y"], {"w": arrays[1], "r": arrays[2]})
    check_against_evaluator(model, {"x": arrays[0]})


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [("GatherND", "batch_dims", -7), ("LayerNormalization", "axis", 2**31), ("Split", "num_outputs", 2**31),
     ("Split", "num_outputs", 1), ("Split", "axis", 2**63 - 1), ("Einsum", "equation", "a-b,bc->ac"),
     ("Einsum", "equation", "....,bc"), ("Einsum", "equation", b"a\xa6b,bc")],
)  # fmt: skip
def test_attributes_with_which_shape_inference_leaves_its_arrays_or_never_ends(kind, name, value):
    node = helper.make_node(kind, ["x", "w"][: 1 + (kind != "Split")], ["y", "z"][: 1 + (kind == "Split")], "the_node")
    node.attribute.append(helper.make_attribute(name, value))
    infos = [helper.make_tensor_value_info(n, 1, [2, 3]) for n in ("x", "y")]
    weight = numpy_helper.from_array(np.zeros((1, 2), np.int64) if kind == "GatherND" else W[:, 0], "w")
    model = helper.make_model(helper.make_graph([node], "g", infos[:1], infos[1:], [weight]), ir_version=10)
    with pytest.raises(gp.InvalidOpError, match=rf"node 'the_node' \({kind}\): attribute '{name}'") as caught:
        gp.onnx.load(model)
    assert caught.value.node == "the_node"


VECTOR = [helper.make_tensor_value_info(name, 1, [3]) for name in ("a", "b")]
BODY = helper.make_graph([helper.make_node("Add", ["a", "b"], ["c"])], "body", VECTOR, [onnx.ValueInfoProto(name="c")])


@pytest.mark.parametrize(
    ("kind", "count", "attributes", "name"),
    [
        ("LSTM", 3, {"hidden_size": 4, "direction": "ü"}, "direction"), ("GRU", 3, {"direction": "x"}, "direction"),
        ("Cast", 1, {"to": 0}, "to"), ("Cast", 1, {"to": 2**40}, "to"), ("EyeLike", 1, {"dtype": 99}, "dtype"),
        ("HannWindow", 1, {"output_datatype": -7}, "output_datatype"),
        ("DequantizeLinear", 2, {"block_size": -1}, "block_size"),
        ("Attention", 3, {"qk_matmul_output_mode": 7}, "qk_matmul_output_mode"),
        ("Attention", 3, {"q_num_heads": 0, "kv_num_heads": 1}, "q_num_heads"), ("LRN", 1, {"size": 0}, "size"),
        ("GroupNormalization", 3, {"num_groups": 0}, "num_groups"), ("LpNormalization", 1, {"p": 3}, "p"),
        ("Resize", 3, {"nearest_mode": "x"}, "nearest_mode"), ("Resize", 3, {"mode": "x"}, "mode"),
        ("Scan", 2, {"body": BODY, "num_scan_inputs": 7}, "num_scan_inputs"),
        ("Scan", 2, {"body": BODY, "num_scan_inputs": 1, "scan_input_axes": [0, 0]}, "scan_input_axes"),
        ("Scan", 2, {"body": BODY, "num_scan_inputs": 1, "scan_output_directions": [0, 1]}, "scan_output_directions"),
    ],
)  # fmt: skip
def test_values_of_attributes_that_onnx_does_not_define(kind, count, attributes, name):
    inputs = [f"x{k}" for k in range(count)]
    node = helper.make_node(kind, inputs, ["y"], "the_node", **attributes)
    infos = [helper.make_tensor_value_info(key, 1, [1, 3, 3]) for key in inputs]
    graph = helper.make_graph([node], "g", infos, [onnx.ValueInfoProto(name="y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    with pytest.raises(
        gp.InvalidOpError, match=rf"node 'the_node' \({kind}\): attribute '{name}'; accepted: "
    ) as caught:
        gp.onnx.load(model)
    assert (caught.value.node, caught.value.op_type) == ("the_node", kind)


def test_a_size_beyond_all_memory_names_the_node():
    model, _ = node_model("SpaceToDepth", [random_array((1, 1, 2, 2))], blocksize=2)
    model.graph.node[0].attribute[0].i = 2**31 - 1
    with pytest.raises(gp.InvalidShapeError, match=r"node 'the_SpaceToDepth' \(SpaceToDepth\)"):
        gp.onnx.load(model)


@pytest.mark.parametrize(
    ("kind", "shape", "attributes", "expected", "text"),
    [
        ("Transpose", (2, 3), {"perm": [0, 7]}, gp.InvalidShapeError, "Invalid attribute perm"),
        ("DepthToSpace", (1, 4, 2, 2), {"blocksize": 0}, gp.InvalidShapeError, "must be positive"),
        ("AveragePool", (1, 2, 4, 4), {"kernel_shape": [2]}, gp.InvalidShapeError, "kernel_shape has incorrect size"),
        ("LpPool", (1, 2, 4, 4), {"kernel_shape": [2, 2], "p": 0}, gp.InvalidShapeError, "attribute 'p'"),
        ("GlobalLpPool", (1, 2, 4, 4), {"p": 0}, gp.InvalidShapeError, "attribute 'p'"),
    ],
)
def test_attributes_that_do_not_fit_name_the_node(kind, shape, attributes, expected, text):
    node = helper.make_node(kind, ["x"], ["y"], "the_node", **attributes)
    infos = [helper.make_tensor_value_info(name, 1, shape) for name in ("x", "y")]
    model = helper.make_model(helper.make_graph([node], "g", infos[:1], infos[1:]), ir_version=10)
    with pytest.raises(expected, match=rf"node 'the_node' \({kind}\).*{text}"):
        gp.onnx.load(model)


@pytest.mark.parametrize("kind", ["ReduceSum", "ReduceL2", "ReduceLogSumExp", "ReduceMax"])
@pytest.mark.parametrize("is_constant", [True, False])
def test_axes_that_repeat_name_the_node(kind, is_constant):
    x, axes = random_array((2, 3, 4)), np.array([1, -2])
    model = node_model(kind, [x, axes[:1]])[0]
    if is_constant:
        model.graph.initializer.append(numpy_helper.from_array(axes, model.graph.input.pop().name))
        given = {"x0": x}
    else:
        model.graph.input[1].type.tensor_type.shape.dim[0].dim_value = 2
        given = {"x0": x, "x1": axes}
    wanted = rf"node 'the_{kind}' \({kind}\).*\"axes\" names an axis twice; accepted: distinct axes; got: \(1, -2\)"
    with pytest.raises(gp.InvalidShapeError, match=wanted), gp.onnx.load(model) as loaded:
        loaded.run(given)


@pytest.mark.parametrize("kind", ["ArgMax", "ArgMin"])
def test_an_extreme_of_no_elements_names_the_node(kind):
    infos = [helper.make_tensor_value_info("x", 1, [3, 0]), helper.make_tensor_value_info("y", 7, [3, 1])]
    graph = helper.make_graph([helper.make_node(kind, ["x"], ["y"], "the_node", axis=1)], "g", infos[:1], infos[1:])
    with pytest.raises(gp.InvalidShapeError, match=rf"node 'the_node' \({kind}\).* no element along the axis"):
        gp.onnx.load(helper.make_model(graph, ir_version=10))


BOXES = [np.zeros((1, 2, 4)), np.zeros((1, 1, 2)), np.array([1])]


@pytest.mark.parametrize(
    ("kind", "inputs", "attributes", "what"),
    [
        ("NonMaxSuppression", [*BOXES, np.array(1.5)], {}, "iou_threshold"),
        ("NonMaxSuppression", [*BOXES, np.array(np.nan)], {}, "iou_threshold"),
        ("Dropout", [np.zeros(3), np.array(1.0)], {}, "ratio"), ("Dropout", [np.zeros(3), np.array(-0.5)], {}, "ratio"),
        ("Resize", [np.zeros((2, 3)), None, np.zeros(2)], {}, "scales"),
        ("LSTM", [np.zeros((2, 1, 3)), np.zeros((1, 8, 3)), np.zeros((1, 8, 2))], {"hidden_size": 3}, "hidden_size"),
        ("DepthToSpace", [np.zeros((1, 3, 2, 2))], {"blocksize": 2}, "cannot be reshaped"),
        ("Attention", [np.zeros((1, 3, 8))] * 3, {"q_num_heads": 3, "kv_num_heads": 3}, "columns of an input"),
        ("GroupNormalization", [np.zeros((1, 4, 3)), np.ones(4), np.ones(4)], {"num_groups": 3}, "channels"),
    ],
)  # fmt: skip
def test_what_nothing_runs_is_refused_by_name(kind, inputs, attributes, what):
    names = ["" if value is None else f"x{k}" for k, value in enumerate(inputs)]
    arrays = [None if value is None else value.astype("f4") if value.dtype.kind == "f" else value for value in inputs]
    weights = [numpy_helper.from_array(value, name) for name, value in zip(names, arrays, strict=True) if name][1:]
    first = helper.make_tensor_value_info("x0", 1, arrays[0].shape)
    node = helper.make_node(kind, names, ["y"], "the_node", **attributes)
    graph = helper.make_graph([node], "g", [first], [onnx.ValueInfoProto(name="y")], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    with pytest.raises(gp.InvalidShapeError, match=rf"node 'the_node' \({kind}\).*{what}"):
        gp.onnx.load(model)


# ---- the wire format


def field(number, content):
    return bytes([number << 3 | 2]) + len(content).to_bytes(1, "little") + content


def long_field(number, content):
    size = len(content)
    return bytes([number << 3 | 2, size & 127 | 128, size >> 7]) + content


def weight(name, value):
    return numpy_helper.from_array(np.full(300, value, np.float32), name).SerializeToString()


def test_weights_of_a_graph_in_two_parts_are_not_mixed_up():
    """Protobuf joins the parts: the first large weight of the second part is not initialiser number 0."""
    small = numpy_helper.from_array(np.zeros(2, np.float32), "s").SerializeToString()
    data = field(7, field(5, small)) + long_field(7, long_field(5, weight("w", 1)))
    parsed = onnx.ModelProto.FromString(outline(memoryview(data)).model)
    assert [tensor.name for tensor in parsed.graph.initializer] == ["s", "w"]
    places = outline(memoryview(data)).places
    assert all(parsed.graph.initializer[number].name == "w" for number in places)
    assert places or len(parsed.graph.initializer[1].raw_data) == 1200


def test_fields_of_another_wire_type_are_no_weights():
    data = long_field(7, bytes([5 << 3 | 0, 1]) + long_field(5, weight("w", 1)))
    found = outline(memoryview(data))
    assert list(found.places) == [0]
    assert len(onnx.ModelProto.FromString(found.model).graph.initializer) == 1


# ---- the boundary


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (KeyError("axis"), gp.InvalidGraphError),
        (IndexError("out of range"), gp.InvalidGraphError),
        (ZeroDivisionError(), gp.InvalidGraphError),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), gp.InvalidGraphError),
        (RecursionError("deep"), gp.InvalidGraphError),
        (NotImplementedError("no"), gp.UnsupportedError),
        (MemoryError(), gp.OutOfMemoryError),
    ],
)
def test_whatever_is_raised_becomes_an_error_that_names_the_node(raised, expected):
    node = make_node("Relu", ["x"], ["y"], "the_node")
    with (
        pytest.raises(expected, match=r"node 'the_node' \(Relu\) cannot be converted") as caught,
        Boundary("converted", node),
    ):
        raise raised
    assert (caught.value.node, caught.value.op_type) == ("the_node", "Relu")
    assert caught.value.__cause__ is raised


@pytest.mark.parametrize("raised", [KeyboardInterrupt(), gp.StateError("closed"), FileNotFoundError("m.onnx")])
def test_interrupts_and_what_speaks_for_itself_pass(raised):
    with pytest.raises(type(raised)) as caught, Boundary("read", "the model"):
        raise raised
    assert caught.value is raised


def test_an_array_without_memory_says_how_large_it_is():
    with pytest.raises(gp.OutOfMemoryError) as caught, Boundary("read", "the model"):
        np.empty((2**45, 8), np.float32)
    assert caught.value.requested == 2**50
    assert caught.value.smallest_limit is None
