"""Inputs that are places in tables: what lies outside is refused before a run, by the name of who reads it."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import graphpool as gp
from graphpool.runtime.model_port import IndexRange
from tests.helpers.onnx_models import make_model

node = helper.make_node
TABLE = np.arange(12, dtype=np.float32).reshape(4, 3)
PLACES = np.array([[0, 3], [-4, 1]])


def table_model(*before, dtype=np.int64, read="i", op="Gather", table=TABLE, **attributes):
    """A node that reads a table at what other nodes make of the input."""
    nodes = [*before, node(op, ["table", read], ["y"], name="look_up", **attributes)]
    return make_model(nodes, {"i": PLACES.astype(dtype)}, ["y"], {"table": table}, shapes={"i": ["n", "m"]})


def ranges_of(model):
    with gp.onnx.load(model) as loaded:
        return {port.name: port.indices for port in loaded.inputs if port.indices is not None}


@pytest.mark.parametrize("dtype", [np.int64, np.int32])
@pytest.mark.parametrize("place", [4, -5, 2**31 - 1, -(2**31)])
def test_places_outside_are_refused_before_anything_runs(dtype, place):
    with gp.onnx.load(table_model(dtype=dtype)) as model:
        np.testing.assert_array_equal(model.run({"i": PLACES.astype(dtype)})["y"], TABLE[PLACES])
        given, result = PLACES.astype(dtype), np.full((2, 2, 3), 7, np.float32)
        given[1, 0] = place
        message = rf"input 'i': element \(1, 0\) lies outside .* node 'look_up' .*accepted: -4 to 3; got: {place}"
        for array in (given, np.asfortranarray(given), np.repeat(given, 2, axis=1)[:, ::2]):
            with pytest.raises(gp.InvalidArgumentError, match=message) as caught:
                model.run({"i": array}, {"y": result})
            assert caught.value.input_name == "i"
        assert (result == 7).all()
        assert model.run({"i": PLACES[:0].astype(dtype)})["y"].shape == (0, 2, 3)


@pytest.mark.parametrize(
    "before",
    [
        node("Cast", ["i"], ["j"], to=TensorProto.INT32),
        node("Unsqueeze", ["i", "first"], ["j"]),
        node("Transpose", ["i"], ["j"], perm=[1, 0]),
        node("Reshape", ["i", "whole"], ["j"]),
        node("Identity", ["i"], ["j"]),
    ],
    ids=lambda made: made.op_type,
)
def test_elements_are_followed_to_who_reads_them(before):
    nodes = [before, node("Gather", ["table", "j"], ["y"], name="look_up")]
    constants = {"table": TABLE, "first": np.array([0]), "whole": np.array([-1])}
    assert ranges_of(make_model(nodes, {"i": PLACES}, ["y"], constants)) == {"i": IndexRange(-4, 3, "look_up")}


def test_the_narrowest_table_counts_along_its_axis():
    nodes = [
        node("Gather", ["wide", "i"], ["a"], name="wide_one", axis=1),
        node("DequantizeLinear", ["bytes", "scale"], ["narrow"]),
        node("Gather", ["narrow", "i"], ["b"], name="narrow_one"),
        node("Gather", ["wide", "i"], ["c"], name="last", axis=-1),
    ]
    constants = {
        "wide": np.zeros((1, 9), np.float32), "bytes": np.zeros((5, 2), np.uint8), "scale": np.float32(1)
    }  # fmt: skip
    model = make_model(nodes, {"i": np.array([0])}, ["a", "b", "c"], constants)
    assert ranges_of(model) == {"i": IndexRange(-5, 4, "narrow_one")}


def test_elements_of_gathered_lines():
    line = node("GatherElements", ["table", "i"], ["y"], name="look_up", axis=0)
    model = make_model([line], {"i": np.array([[0, 3, -1]])}, ["y"], {"table": TABLE})
    assert ranges_of(model) == {"i": IndexRange(-4, 3, "look_up")}


def test_other_inputs_are_open():
    """A node whose result nobody asks for, sums of places, tables of unknown size, branches."""
    branch = helper.make_graph(
        [node("Gather", ["table", "i"], ["z"])], "then", [], [helper.make_empty_tensor_value_info("z")]
    )
    other = helper.make_graph(
        [node("Gather", ["large", "i"], ["w"])], "else", [], [helper.make_empty_tensor_value_info("w")]
    )
    nodes = [
        node("Gather", ["table", "i"], ["unused"]),
        node("Add", ["i", "i"], ["sum"]),
        node("Gather", ["large", "sum"], ["a"]),
        node("Gather", ["x", "i"], ["b"]),
        node("If", ["flag"], ["c"], then_branch=branch, else_branch=other),
    ]
    inputs = {"i": np.array([1]), "x": TABLE, "flag": np.array(True)}
    constants = {"table": TABLE, "large": np.zeros((9, 3), np.float32)}
    assert ranges_of(make_model(nodes, inputs, ["a", "b", "c"], constants, shapes={"x": ["n", 3]})) == {}


def test_table_that_is_an_input_of_known_shape():
    model = make_model([node("Gather", ["x", "i"], ["y"], name="look_up")], {"x": TABLE, "i": PLACES}, ["y"])
    assert ranges_of(model) == {"i": IndexRange(-4, 3, "look_up")}


def test_requests_and_stored_models(tmp_path, monkeypatch):
    path = tmp_path / "model.onnx"
    path.write_bytes(table_model().SerializeToString())
    monkeypatch.setenv("GRAPHPOOL_PACKED_STORE", str(tmp_path / "store"))
    outside = {"i": np.array([[9]])}
    for _ in range(2):  # the second one comes from the store
        with gp.onnx.load(path) as model:
            model.run({"i": PLACES})
            with pytest.raises(gp.InvalidArgumentError, match="look_up"):
                model.run_many([{"i": PLACES}, outside])
    with pytest.raises(gp.InvalidArgumentError, match="look_up"):
        gp.onnx.InferenceSession(str(path)).run(None, outside)


def test_session_keeps_its_state():
    nodes = [node("Gather", ["table", "i"], ["rows"], name="look_up"), node("Add", ["past", "rows"], ["present"])]
    nodes.append(node("Neg", ["present"], ["seen"]))
    inputs = {"i": np.array([1]), "past": np.ones((1, 3), np.float32)}
    with gp.onnx.load(make_model(nodes, inputs, ["present", "seen"], {"table": TABLE})) as model:
        session = model.session({"present": "past"})
        first = session.run({"i": np.array([1])})["seen"].copy()
        with pytest.raises(gp.InvalidArgumentError, match="look_up"):
            session.run({"i": np.array([4])})
        np.testing.assert_array_equal(session.run({"i": np.array([0])})["seen"], first - TABLE[:1])


def position_model():
    """The rows of a table of eight for the positions of words, behind as many as are past."""
    nodes = [
        node("Shape", ["i"], ["shape"]),
        node("Squeeze", ["shape"], ["count"]),
        node("Range", ["zero", "count", "one"], ["places"]),
        node("Shape", ["past"], ["behind"]),
        node("Add", ["places", "behind"], ["moved"]),
        node("Unsqueeze", ["moved", "first"], ["line"]),
        node("Gather", ["rows", "line"], ["y"], name="positions"),
    ]
    constants = {
        "zero": np.array(0), "one": np.array(1), "first": np.array([0]),
        "rows": np.arange(16, dtype=np.float32).reshape(8, 2),
    }  # fmt: skip
    inputs = {"i": np.zeros(3, np.int64), "past": np.zeros(2, np.float32)}
    return make_model(nodes, inputs, ["y"], constants, shapes={"i": ["n"], "past": ["p"]})


def words(n, past):
    return {"i": np.zeros(n, np.int64), "past": np.zeros(past, np.float32)}


def test_positions_beyond_a_table_are_refused():
    with gp.onnx.load(position_model()) as model:
        for n, past in ((1, 0), (3, 2), (4, 4), (8, 0), (1, 7), (7, 1)):
            np.testing.assert_array_equal(
                model.run(words(n, past))["y"][0, :, 0], np.arange(2 * past, 2 * (past + n), 2)
            )
        assert model.stats().compilations <= 4  # nothing past, one word, and both
        for n, past in ((9, 0), (1, 8), (4, 5), (100, 100)):
            with pytest.raises(gp.InvalidArgumentError, match=rf"'positions' .*accepted: -8 to 7; got: {past} to"):
                model.run(words(n, past))
        assert model.run(words(2, 6))["y"].shape == (1, 2, 2)
        assert model.run(words(0, 8))["y"].shape == (1, 0, 2)


def test_declared_sizes_that_leave_a_table_are_refused_at_load():
    model = position_model()
    with gp.onnx.load(model, shapes={"n": (1, 4), "p": (0, 4)}) as loaded:
        loaded.run(words(4, 4))
    with pytest.raises(gp.InvalidArgumentError, match="'positions'"):
        gp.onnx.load(model, shapes={"n": (1, 4), "p": (0, 5)})


def test_constant_places_outside_are_refused_where_they_always_run():
    outside = {"table": TABLE, "j": np.array([1, 4])}
    read = node("Gather", ["table", "j"], ["z"], name="look_up")
    kept = node("Identity", ["table"], ["z"])
    info = [helper.make_tensor_value_info("z", TensorProto.FLOAT, [None, 3])]
    choose = node(
        "If", ["flag"], ["y"], then_branch=helper.make_graph([read], "then", [], info),
        else_branch=helper.make_graph([kept], "else", [], info),
    )  # fmt: skip
    branches = make_model([choose], {"flag": np.array(False)}, ["y"], outside)
    with gp.onnx.load(branches) as model:
        np.testing.assert_array_equal(model.run({"flag": np.array(False)})["y"], TABLE)
    nodes = [read, node("Add", ["z", "x"], ["y"])]
    model = make_model(nodes, {"x": np.zeros((2, 3), np.float32)}, ["y"], outside | {"j": np.array([1, 3])})
    model.graph.initializer[1].CopyFrom(numpy_helper.from_array(np.array([1, 4]), "j"))
    with pytest.raises(gp.InvalidArgumentError, match="'look_up'"):
        gp.onnx.load(model)
