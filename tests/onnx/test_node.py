import pickle

import numpy as np
import pytest
from google.protobuf.message import Message
from onnx import AttributeProto, TensorProto, helper, numpy_helper

import graphpool as gp
from graphpool.onnx.node import Node, Subgraph, count_reads, make_node, names_read
from graphpool.onnx.proto import as_onnx

BODY = helper.make_graph(
    [helper.make_node("Add", ["outer", "own"], ["sum"])],
    "inner",
    [],
    [helper.make_tensor_value_info("sum", TensorProto.FLOAT, None)],
    [numpy_helper.from_array(np.float32(1), "own")],
)
BRANCHES = make_node("If", ["condition"], ["y"], "branches", then_branch=BODY, else_branch=BODY)


@pytest.mark.parametrize(
    "value",
    [1, 1.5, b"text", [1, 2], [0.5, 1.5], [b"a", b"b"], TensorProto(name="t"), helper.make_tensor_type_proto(1, [2])],
)
def test_attributes_read_as_onnx_reads_them(value):
    proto = helper.make_node("Any", ["a", ""], ["b"], name="n", domain="d", value=value)
    node = Node(proto)
    read = {name: as_onnx(item) if isinstance(item, Message) else item for name, item in node.attrs.items()}
    assert read == {"value": helper.get_attribute_value(proto.attribute[0])} == {"value": value}
    assert (node.op_type, node.domain, node.name, node.input, node.output) == ("Any", "d", "n", ("a", ""), ("b",))
    assert node.captured == ()


def test_an_attribute_without_a_type_is_refused():
    proto = helper.make_node("Any", ["a"], ["b"])
    proto.attribute.append(AttributeProto(name="strange", i=1))
    with pytest.raises(gp.InvalidArgumentError, match="attribute 'strange'"):
        Node(proto)


def test_captured_names_are_those_of_the_outer_scope():
    assert BRANCHES.captured == ("outer",)
    graph = BRANCHES.attrs["then_branch"]
    assert isinstance(graph, Subgraph)
    assert (graph.inputs, graph.outputs, [node.op_type for node in graph.nodes]) == ((), ("sum",), ["Add"])
    assert graph.constants == {"own": 1}


def test_graphs_in_lists_capture_too():
    node = make_node("Any", ["a"], ["b"], "", bodies=[BODY, BODY])
    assert node.captured == ("outer",)


def test_reads_are_names_and_counts():
    square = make_node("Mul", ["x", "x"], ["y"], "")
    assert names_read([square, BRANCHES], ["y"]) == {"x", "y", "condition", "outer"}
    assert count_reads([square, BRANCHES], ["y"]) == {"x": 2, "y": 1, "condition": 1, "outer": 1}


def test_a_label_is_the_name_or_the_first_output():
    assert [make_node("Relu", ["x"], outputs, name).label for name, outputs in
            (("n", ["y"]), ("", ["", "y"]), ("", []))] == ["n", "y", "Relu"]  # fmt: skip


def test_a_changed_node_keeps_what_is_not_named():
    node = make_node("Scatter", ["x", "i", "u"], ["y"], "n", axis=1)
    other = node.changed(op_type="ScatterElements", outputs=["z"])
    assert (other.op_type, other.output) == ("ScatterElements", ("z",))
    assert (other.input, other.attrs) == (node.input, node.attrs)
    assert node.changed(inputs=["a"]).input == ("a",)
    assert (node.op_type, node.output) == ("Scatter", ("y",))


def test_nodes_pickle():
    other = pickle.loads(pickle.dumps(BRANCHES))
    assert other.proto == BRANCHES.proto
    assert other.captured == BRANCHES.captured
