"""What is valid for certain passes ONNX's checker, and so do the models that people have."""

import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from graphpool.onnx import arrays, op_table
from graphpool.onnx.build import Value
from graphpool.onnx.node import Node
from graphpool.onnx.proto import AttributeProto, ModelProto, as_onnx, as_own
from graphpool.onnx.result_types import plain_types, told_types
from graphpool.onnx.types import describe_type, static_shape
from graphpool.onnx.validity import is_valid, knows_op
from tests.fuzz.onnx_mutators import mutant
from tests.fuzz.onnx_seeds import all_models
from tools import make_op_table

X = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])
Y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])
RELU = helper.make_node("Relu", ["x"], ["y"])


def make_model(nodes=(RELU,), inputs=(X,), outputs=(Y,), opset=20, **options):
    graph = helper.make_graph(nodes, "graph", inputs, outputs)
    imports = options.pop("opset_imports", [helper.make_opsetid("", opset)])
    return helper.make_model(graph, opset_imports=imports, ir_version=options.pop("ir_version", 9), **options)


def node(kind, *inputs, outputs=("y",), **attrs):
    return helper.make_node(kind, inputs, outputs, **attrs)


def mistyped(**fields):
    made = node("LeakyRelu", "x")
    made.attribute.add(**fields)
    return made


def branch(kind, name):
    outputs = [helper.make_empty_tensor_value_info(name)]
    return helper.make_graph([node(kind, "x", outputs=(name,))], kind, [], outputs)


FLAG = node("Cast", "x", outputs=("c",), to=TensorProto.BOOL)
NUMBERS = helper.make_tensor("t", TensorProto.INT64, [2], [1, 2])
BYTES = helper.make_tensor("t", TensorProto.UINT8, [2], [1, 2])
TEXTS = helper.make_tensor("t", TensorProto.STRING, [2], ["a", "b"])
BRANCH = helper.make_graph([node("Identity", "x", outputs=("inner",))], "branch", [], [Y])
SHADOWS = helper.make_graph([node("Identity", "x", outputs=("x",))], "branch", [], [X])
COUNT, GOES_ON = (
    helper.make_tensor_value_info(name, kind, []) for name, kind in (("i", TensorProto.INT64), ("c", TensorProto.BOOL))
)
BODY = helper.make_graph(
    [node("Identity", "c", outputs=("on",)), node("Abs", "h", outputs=("next",))],
    "body",
    [COUNT, GOES_ON, helper.make_empty_tensor_value_info("h")],
    [helper.make_empty_tensor_value_info("on"), helper.make_empty_tensor_value_info("next")],
)
SHORT = TensorProto(data_type=TensorProto.FLOAT, dims=[3], raw_data=bytes(8))

UNSURE = {
    "no nodes of the name": make_model([node("Relu", "z")]),
    "an unknown operator": make_model([node("Rely", "x")]),
    "too many inputs": make_model([node("Relu", "x", "x")]),
    "too few inputs": make_model([node("Add", "x")]),
    "an input left out": make_model([node("Add", "x", "")]),
    "an output left out": make_model([node("Relu", "x", outputs=("",))]),
    "too many outputs": make_model([node("Relu", "x", outputs=("y", "z"))]),
    "given twice": make_model([RELU, node("Abs", "x")]),
    "given twice by a node": make_model([node("Split", "x", outputs=("y", "y"), num_outputs=2)]),
    "gives an input": make_model([node("Relu", "x", outputs=("x",))]),
    "read before it is given": make_model([node("Relu", "h"), node("Abs", "x", outputs=("h",))]),
    "an output of nobody": make_model([node("Relu", "x", outputs=("z",))]),
    "an attribute that it does not have": make_model([node("Relu", "x", alpha=1.0)]),
    "an attribute of another type": make_model([node("LeakyRelu", "x", alpha=1)]),
    "a required attribute left out": make_model([node("Cast", "x")]),
    "a field of another type": make_model([mistyped(name="alpha", type=AttributeProto.FLOAT, i=1)]),
    "two fields": make_model([mistyped(name="alpha", type=AttributeProto.FLOAT, f=1, i=1)]),
    "an attribute without a type": make_model([mistyped(name="alpha", f=1)]),
    "a tensor of another size": make_model([node("Constant", value=SHORT)], []),
    "an opset that nobody knows": make_model(opset=10**6),
    "an opset in which it was not there": make_model([node("Gelu", "x")], opset=19),
    "a deprecated operator": make_model([node("Upsample", "x", "x")], opset=10),
    "a domain without an opset": make_model([node("Any", "x", domain="other")]),
    "two opsets of a domain": make_model(opset_imports=[helper.make_opsetid("", 20), helper.make_opsetid("", 19)]),
    "no opset": make_model(opset_imports=[]),
    "an IR version to come": make_model(ir_version=1000),
    "no name": helper.make_model(helper.make_graph([RELU], "", [X], [Y])),
    "an input without a type": make_model(inputs=[onnx.ValueInfoProto(name="x")]),
    "a branch that gives an outer name": make_model(
        [
            FLAG,
            node("If", "c", then_branch=SHADOWS, else_branch=BRANCH),
        ]
    ),
}


@pytest.mark.parametrize("model", UNSURE.values(), ids=UNSURE.keys())
def test_what_may_be_wrong_is_left_to_the_checker(model):
    assert not is_valid(as_own(model))


VALID = {
    "plain": make_model(),
    "default domain by its name": make_model(opset_imports=[helper.make_opsetid("ai.onnx", 20)]),
    "an optional input left out": make_model([node("Clip", "x", "", "x")]),
    "an attribute": make_model([node("LeakyRelu", "x", alpha=0.5)]),
    "a tensor": make_model([node("ConstantOfShape", "x", value=numpy_helper.from_array(np.ones(1, np.float32)))]),
    "a tensor of numbers": make_model([node("Constant", value=NUMBERS)], []),
    "bytes as integers": make_model([node("Constant", value=BYTES)], []),
    "texts": make_model([node("Constant", value=TEXTS)], []),
    "another domain": make_model(
        [node("Any", "x", domain="other", what=3)],
        opset_imports=[helper.make_opsetid("", 20), helper.make_opsetid("other", 1)],
    ),
    "a loop without a trip count": make_model(
        [
            node("Constant", outputs=("going",), value=numpy_helper.from_array(np.array(True))),
            node("Loop", "", "going", "x", outputs=("y",), body=BODY),
        ]
    ),
    "branches": make_model(
        [
            FLAG,
            node(
                "If", "c",
                then_branch=branch("Abs", "a"),
                else_branch=branch("Neg", "b"),
            ),
        ]
    ),
}  # fmt: skip


@pytest.mark.parametrize("model", VALID.values(), ids=VALID.keys())
def test_what_is_valid_needs_no_checker(model):
    onnx.checker.check_model(model)
    assert is_valid(as_own(model))


def test_what_is_valid_of_mutants_passes_the_checker():
    models, nvalid = all_models(), 0
    for number in range(600):
        raw = mutant(models, 1, number)
        try:
            model = ModelProto.FromString(raw)
            theirs = onnx.ModelProto.FromString(raw)
        except Exception:
            continue
        del model.graph.initializer[:], theirs.graph.initializer[:]
        if is_valid(model):
            nvalid += 1
            onnx.checker.check_model(theirs)
    assert nvalid > 20


def test_the_table_is_that_of_the_package():
    """Of the package with which it was written or a newer one, which knows all that the table has."""
    if onnx.defs.onnx_opset_version() == op_table.NEWEST[""]:
        assert make_op_table.table() == make_op_table.TARGET.read_text()
    assert knows_op("Relu")
    assert not knows_op("Rely")


LOAD = """
import sys
import numpy as np
import graphpool as gp
from graphpool.demo import model_path
for name in ("digits_cnn", "digits_transformer"):
    with gp.onnx.load(model_path(name), threads=1) as model:
        shapes = {port.name: [dim if isinstance(dim, int) else 2 for dim in port.shape] for port in model.inputs}
        model.run({name: np.zeros(shape, np.float32) for name, shape in shapes.items()})
with gp.onnx.load(sys.argv[1], threads=1) as model:
    model.run({"x": np.ones(2, np.float32), "t": np.array([["a", "b"]], object)})
print("onnx" in sys.modules)
"""


def of_rare_nodes():
    """Numbers of 4 bits and halves, and nodes that are computed ahead or give texts."""
    bfloat16 = helper.tensor_dtype_to_np_dtype(TensorProto.BFLOAT16)
    half = np.array([0.5, -1], np.float32)
    given = {
        "half": half, "scale": np.array(0.5, np.float32), "first": np.array(0.0), "last": np.array(2.0),
        "one": np.array(1.0), "at": np.array([1]), "pads": np.array([0, 1]), "table": half.astype(bfloat16),
        "q16": np.array(300, np.uint16), "z16": np.array(299, np.uint16),
    }  # fmt: skip
    tensors = [numpy_helper.from_array(value, name) for name, value in given.items()]
    tensors += [
        helper.make_tensor("q4", TensorProto.INT4, [2], [3, -4]), helper.make_tensor("zero", TensorProto.INT4, [], [1]),
    ]  # fmt: skip
    nodes = [
        node("DequantizeLinear", "q4", "scale", "zero", outputs=("four",)),
        node("QuantizeLinear", "half", "scale", outputs=("q8",)),
        node("DequantizeLinear", "q8", "scale", outputs=("eight",)),
        node("Range", "first", "last", "one", outputs=("doubles",)),
        node("Cast", "doubles", outputs=("range",), to=TensorProto.FLOAT),
        node("Cast", "table", outputs=("row",), to=TensorProto.FLOAT),
        node("Pad", "half", "pads", outputs=("padded",)),
        node("Gather", "padded", "at", outputs=("last_one",)),
        node("DequantizeLinear", "q16", "scale", "z16", outputs=("sixteen",), domain="com.microsoft"),
        node("Sum", "x", "four", "eight", "range", "row", "last_one", "sixteen", outputs=("y",)),
        node("Gather", "t", "at", outputs=("column",), axis=1),
        node("LabelEncoder", "column", outputs=("label",), domain="ai.onnx.ml", keys_strings=["a", "b"],
             values_int64s=[3, 4]),
    ]  # fmt: skip
    texts = helper.make_tensor_value_info("t", TensorProto.STRING, ["n", 2])
    label = helper.make_tensor_value_info("label", TensorProto.INT64, ["n", 1])
    graph = helper.make_graph(nodes, "graph", [X, texts], [Y, label], tensors)
    imports = [helper.make_opsetid(*pair) for pair in (("", 21), ("ai.onnx.ml", 2), ("com.microsoft", 1))]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def test_loading_imports_no_package_onnx(tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(of_rare_nodes(), path)
    done = subprocess.run([sys.executable, "-c", LOAD, str(path)], check=True, capture_output=True, text=True)
    assert done.stdout == "False\n"


# ---- messages and arrays


def test_messages_are_those_of_the_package():
    theirs = onnx.ModelProto.DESCRIPTOR.file
    for name, ours in ModelProto.DESCRIPTOR.file.message_types_by_name.items():
        waiting = [(ours, theirs.message_types_by_name[name])]
        while waiting:
            own, other = waiting.pop()
            for field in own.fields:
                found = other.fields_by_name[field.name]
                assert (field.number, field.type) == (found.number, found.type)
                assert (field.is_packed, field.has_presence) == (found.is_packed, found.has_presence)
                assert (field.containing_oneof is None) == (found.containing_oneof is None)
            waiting += [(inner, other.nested_types_by_name[inner.name]) for inner in own.nested_types]
            for enum in own.enum_types:
                values = other.enum_types_by_name[enum.name].values_by_name
                assert all(value.number == values[value.name].number for value in enum.values if value.name in values)


@pytest.mark.parametrize("raw", all_models()[::7], ids=range(len(all_models()[::7])))
def test_a_message_goes_there_and_back(raw):
    own = ModelProto.FromString(raw)
    assert as_own(own) is own
    theirs = as_onnx(own)
    assert theirs == onnx.ModelProto.FromString(raw)
    assert as_onnx(theirs) is theirs
    assert as_own(theirs) == own


@pytest.mark.parametrize("elem_type", sorted(set(TensorProto.DataType.values()) - {TensorProto.UNDEFINED}))
@pytest.mark.parametrize("raw", [False, True])
def test_tensors_are_read_as_onnx_reads_them(elem_type, raw):
    texts = elem_type == TensorProto.STRING
    if texts and raw:
        pytest.skip("texts are no bytes")
    dtype = helper.tensor_dtype_to_np_dtype(elem_type)
    assert arrays.numpy_type(elem_type) == dtype
    array = np.array([["a", "b"]], object) if texts else np.array([[0, 1]]).astype(dtype)
    tensor = helper.make_tensor("t", elem_type, array.shape, [b"a", b"b"] if texts else array.ravel().tolist())
    if raw:
        tensor = numpy_helper.from_array(array, "t")
    found, expected = arrays.to_array(as_own(tensor)), numpy_helper.to_array(tensor)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    for own in (found, arrays.to_array(tensor)):
        assert own.tolist() == expected.tolist() if texts else own.tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("proto", "opset"),
    [(node("Flatten", "x", axis=2), 21), (node("Gather", "x", "at", axis=-2), 21),
     (node("LabelEncoder", "x", domain="ai.onnx.ml", keys_strings=["a"], values_floats=[1.0]), 2)],
    ids=lambda item: getattr(item, "op_type", ""),
)  # fmt: skip
def test_types_of_nodes_with_texts_are_those_that_onnx_infers(proto, opset):
    types = {"x": helper.make_tensor_type_proto(TensorProto.STRING, [2, 3, 4]),
             "at": helper.make_tensor_type_proto(TensorProto.INT64, [5, 1])}  # fmt: skip
    types = {name: types[name] for name in proto.input}
    theirs = onnx.shape_inference.infer_node_outputs(
        onnx.defs.get_schema(proto.op_type, opset, proto.domain), proto, types
    )
    values = {"x": Value(type=as_own(types["x"])), "at": Value(content=np.zeros((5, 1), np.int64))}
    own = {name: as_own(type_) for name, type_ in types.items()}
    found = told_types(Node(proto), {name: values[name] for name in proto.input}, own, {})
    assert describe_type(found["y"]) == describe_type(theirs["y"])
    assert static_shape(found["y"], {}) == static_shape(theirs["y"], {})


def test_a_tensor_of_another_size_is_refused():
    with pytest.raises(ValueError, match="reshape"):
        arrays.to_array(as_own(SHORT))


@pytest.mark.parametrize("value", [1, 1.5, "text", b"text", [1, 2], [0.5, 2], ["a", "b"], np.int64(3)])
def test_attributes_are_made_as_onnx_makes_them(value):
    assert as_onnx(arrays.make_attribute("name", value)) == helper.make_attribute("name", value)


@pytest.mark.parametrize("labels", [{"classlabels_int64s": [3, 4]}, {"classlabels_strings": ["a", "b"]}])
@pytest.mark.parametrize("categories", [{"cats_int64s": [1, 2, 3]}, {"cats_strings": ["a", "b"]}])
def test_types_of_scikit_learns_nodes_are_those_that_onnx_infers(labels, categories):
    schema = onnx.defs.get_schema
    nodes = [
        node("ZipMap", "x", domain="ai.onnx.ml", **labels),
        node("OneHotEncoder", "x", domain="ai.onnx.ml", **categories),
    ]
    for proto in nodes:
        types = {"x": helper.make_tensor_type_proto(TensorProto.FLOAT, ["n", 2])}
        theirs = onnx.shape_inference.infer_node_outputs(schema(proto.op_type, 1, "ai.onnx.ml"), proto, types)
        found = plain_types(Node(proto), {"x": as_own(types["x"])})
        assert describe_type(found["y"]) == describe_type(theirs["y"])
        assert static_shape(found["y"], {"n": 7}) == static_shape(theirs["y"], {"n": 7})
    assert plain_types(Node(node("Scaler", "x", domain="ai.onnx.ml")), types) is None
    assert plain_types(Node(node("Relu", "x")), types) is None
