"""Long lists of attributes, read from the bytes of their messages: the same elements, from every kind of source."""

import pickle
from array import array
from contextlib import suppress

import numpy as np
import onnx
import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st
from onnx import AttributeProto, TensorProto, helper

import graphpool as gp
from graphpool.onnx._lists import read_choices, read_floats, read_ints, read_texts, split
from graphpool.onnx.encoders import listed
from graphpool.onnx.long_lists import LONG, LongList
from graphpool.onnx.node import Node
from graphpool.onnx.proto import as_onnx
from graphpool.onnx.source import read_model
from graphpool.onnx.specialise import rewrite

INTS = st.lists(st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(-300, 300)), min_size=1, max_size=40)
FLOATS = st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=40)
TEXTS = st.lists(st.binary(max_size=200), min_size=1, max_size=40)


def varint(value):
    out = bytearray()
    value &= 2**64 - 1
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def split_all(message):
    """As it lies behind something else."""
    return split(b"\0\0\0" + message, 3, 3 + len(message))


@given(FLOATS)
def test_floats(values):
    item = helper.make_attribute("a", values)
    message = item.SerializeToString()
    packed = AttributeProto(name="a", type=AttributeProto.FLOATS).SerializeToString()
    packed += b"\x3a" + varint(4 * len(values)) + np.array(values, np.float32).tobytes()
    for found in (message, packed):
        short, count, nbytes = split_all(found)
        assert (count, nbytes) == (len(values), 0)
        assert AttributeProto.FromString(short) == AttributeProto(name="a", type=AttributeProto.FLOATS)
        assert read_floats(found, count) == array("f", item.floats)


@given(INTS)
def test_ints(values):
    item = helper.make_attribute("a", values)
    numbers = b"".join(map(varint, values))
    packed = AttributeProto(name="a", type=AttributeProto.INTS).SerializeToString() + b"\x42" + varint(len(numbers))
    for found in (item.SerializeToString(), packed + numbers):
        assert list(AttributeProto.FromString(found).ints) == values
        _, count, _ = split_all(found)
        read = read_ints(found, count)
        assert read.tolist() == values
        assert (read.typecode == "i") == all(-(2**31) <= value < 2**31 for value in values)


@given(TEXTS)
def test_texts(values):
    item = AttributeProto(name="a", type=AttributeProto.STRINGS, strings=values, doc_string="what it is")
    message = item.SerializeToString()
    short, count, nbytes = split_all(message)
    assert (count, nbytes) == (len(values), sum(map(len, values)))
    assert AttributeProto.FromString(short).doc_string == "what it is"
    assert read_texts(message, count) == values
    choices = tuple(dict.fromkeys(values))
    assert [choices[place] for place in read_choices(message, count, choices)] == values
    with pytest.raises(LookupError) as caught:
        read_choices(message, count, choices[:-1])
    assert caught.value.args == (choices[-1],)


@given(st.data())
def test_what_is_broken_is_left_to_the_parser_or_refused(data):
    values = data.draw(st.one_of(FLOATS, INTS, TEXTS))
    message = bytearray(helper.make_attribute("a", values).SerializeToString())
    message[data.draw(st.integers(0, len(message) - 1))] ^= data.draw(st.integers(1, 255))
    cut = bytes(message[: data.draw(st.integers(0, len(message)))])
    found = split_all(cut)
    if found is not None:
        proto = AttributeProto.FromString(cut)
        lists = [*proto.floats, *proto.ints, *proto.strings]
        assert found[1] == len(lists)
    for reader in (read_floats, read_ints, read_texts):
        for count in (0, len(values), 2**20):
            with suppress(ValueError):
                assert len(reader(cut, count)) == count


@pytest.mark.parametrize("more", [
    {"i": 3}, {"s": b"x"}, {"t": TensorProto()}, {"ints": [1]}, {"strings": [b"x"]}, {"type": AttributeProto.INTS},
])  # fmt: skip
def test_attributes_of_two_values_or_another_type_stay_whole(more):
    item = AttributeProto(**{"name": "a", "type": AttributeProto.FLOATS, "floats": [1, 2]} | more)
    assert split_all(item.SerializeToString()) is None


@pytest.mark.parametrize(("begin", "end"), [(-1, 2), (3, 2), (0, 99)])
def test_no_part_of_the_data(begin, end):
    with pytest.raises(ValueError, match="no part"):
        split(b"\0" * 10, begin, end)


# ---- models


@given(INTS)
def test_integers_of_a_message_are_as_narrow_as_those_of_its_bytes(values):
    item = helper.make_attribute("a", values)
    found = LongList(item, 0, 0, len(values), 0).values(AttributeProto.INTS)
    assert found == read_ints(item.SerializeToString(), len(values))
    assert found.typecode == read_ints(item.SerializeToString(), len(values)).typecode


def test_floats_of_a_message_are_read_in_pieces():
    values = np.random.default_rng(0).standard_normal(20_000).astype(np.float32)
    item = helper.make_attribute("a", values)
    np.testing.assert_array_equal(LongList(item, 0, 0, len(values), 0).values(AttributeProto.FLOATS), values)


@pytest.mark.parametrize(
    "values", [{"values_int64s": range(LONG)}, {"values_strings": ["x"] * LONG}], ids=["integers", "texts"]
)
@pytest.mark.parametrize(
    "keys", [{"keys_int64s": range(LONG)}, {"keys_strings": [*map(str, range(LONG))]}], ids=["integers", "texts"]
)
def test_a_model_keeps_no_message_that_it_was_read_from(keys, values):
    lists = {name: list(given) for name, given in (keys | values).items()}
    node = helper.make_node("LabelEncoder", ["x"], ["y"], domain="ai.onnx.ml", **lists)
    kinds = [TensorProto.INT64 if name.endswith("64s") else TensorProto.STRING for name in lists]
    ports = [[helper.make_tensor_value_info(name, kind, [2])] for name, kind in zip("xy", kinds, strict=True)]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    proto = helper.make_model(helper.make_graph([node], "g", *ports), opset_imports=opsets, ir_version=8)
    nodes, _ = rewrite(read_model(proto))
    kept = [entry for own in nodes for entry in (*own.attrs.values(), *own._lists.values())]
    assert not any(isinstance(entry, LongList) and isinstance(entry._source, Message) for entry in kept)


def encoder(count):
    keys, values = np.arange(count) * 3 - count, np.arange(count) % 1000 / 8
    node = helper.make_node(
        "LabelEncoder", ["x"], ["y"], domain="ai.onnx.ml", name="codes", keys_int64s=keys.tolist(),
        values_floats=values.tolist(), default_float=-1.0,
    )  # fmt: skip
    ports = [helper.make_tensor_value_info("x", TensorProto.INT64, ["n"])]
    ports.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"]))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(helper.make_graph([node], "g", *([p] for p in ports)), opset_imports=opsets, ir_version=8)


def sources(proto, folder):
    onnx.save(proto, folder / "m.onnx")
    data = (folder / "m.onnx").read_bytes()
    return {"path": folder / "m.onnx", "bytes": data, "bytearray": bytearray(data), "proto": proto}


@pytest.mark.parametrize(("first", "narrow"), [(0, 4), (-(2**15), 4), (2**40, 8)])
def test_keys_in_a_row_are_never_there_as_wide_integers(first, narrow):
    count = 100_000
    values = np.random.default_rng(1).standard_normal(count).astype(np.float32)
    keys = list(range(first, first + count))
    node = helper.make_node(
        "LabelEncoder",
        ["x"],
        ["y"],
        domain="ai.onnx.ml",
        keys_int64s=keys,
        values_floats=values.tolist(),
        default_float=0.5,
    )
    x = np.array([first, first + 7, first + count - 1, first - 1, first + count])
    ports = [helper.make_tensor_value_info("x", TensorProto.INT64, x.shape)]
    results = [helper.make_tensor_value_info("y", TensorProto.FLOAT, x.shape)]
    graph = helper.make_graph([node], "g", ports, results)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("ai.onnx.ml", 4)], ir_version=10)
    with gp.onnx.load(proto.SerializeToString(), threads=1) as model:
        assert model.engine.budget.peak <= values.nbytes + max(values.nbytes, (narrow + 1) * count) + 10_000
        found = model.run({"x": x})["y"]
    np.testing.assert_array_equal(found, [*values[[0, 7, -1]], 0.5, 0.5])


def test_lists_are_the_same_from_every_source(tmp_path):
    proto = encoder(3 * LONG)
    original = proto.graph.node[0]
    x = np.array([-3 * LONG, 0, 3, 4, 6 * LONG - 3])
    expected = np.where(x == 4, -1, (x + 3 * LONG) // 3 % 1000 / 8)
    for source in sources(proto, tmp_path).values():
        [node] = read_model(source).nodes
        assert listed(node, "keys").tolist() == list(original.attribute[1].ints)
        assert as_onnx(node.proto) == original
        copy = pickle.loads(pickle.dumps(node))
        np.testing.assert_array_equal(listed(copy, "keys"), listed(node, "keys"))
        assert as_onnx(copy.proto) == original
        renamed = node.changed(outputs=["z"])
        assert (renamed.output, renamed.attrs.keys()) == (("z",), node.attrs.keys())
        np.testing.assert_array_equal(listed(renamed, "values"), listed(node, "values"))
        with gp.onnx.load(source, threads=1) as model:
            np.testing.assert_array_equal(model.run({"x": x})["y"], expected)


def test_short_lists_stay_lists(tmp_path):
    for source in sources(encoder(LONG - 1), tmp_path).values():
        [node] = read_model(source).nodes
        assert type(node.attrs["keys_int64s"]) is list


def test_lists_inside_functions_and_beside_them(tmp_path):
    proto = encoder(LONG)
    call = helper.make_node("Same", ["y"], ["z"], domain="local")
    body = [helper.make_node("Identity", ["a"], ["b"])]
    proto.functions.append(helper.make_function("local", "Same", ["a"], ["b"], body, [helper.make_opsetid("", 17)]))
    proto.opset_import.append(helper.make_opsetid("local", 1))
    proto.graph.node.insert(0, helper.make_node("Same", ["x"], ["same"], domain="local"))
    proto.graph.node[1].input[0] = "same"
    proto.graph.node.append(call)
    proto.graph.output[0].name = "z"
    for source in sources(proto, tmp_path).values():
        with gp.onnx.load(source, threads=1) as model:
            assert model.run({"x": np.array([-LONG + 3])})["z"].tolist() == [0.125]


@pytest.mark.parametrize("limits", [gp.Limits(items=LONG), gp.Limits(items=LONG + 1)])
def test_limits_hold_for_lists_that_are_not_parsed(limits, tmp_path):
    for source in sources(encoder(LONG + 1), tmp_path).values():
        if limits.items == LONG:
            with pytest.raises(gp.LimitError, match="'keys_int64s'"):
                gp.onnx.load(source, limits=limits)
        else:
            gp.onnx.load(source, limits=limits).close()


def test_a_file_that_changed_is_not_read(tmp_path):
    path = sources(encoder(LONG), tmp_path)["path"]
    [node] = read_model(path).nodes
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    with pytest.raises(gp.StateError, match="changed in place"):
        _ = node.proto


def test_a_node_of_its_own_keeps_no_message_of_protobuf():
    proto = encoder(2 * LONG).graph.node[0]
    node = Node(proto)
    expected = proto.SerializeToString(deterministic=True)
    proto.Clear()
    assert node.proto.SerializeToString(deterministic=True) == expected
