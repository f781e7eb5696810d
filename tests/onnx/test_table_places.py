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


def test_a_sequence_among_constants():
    nodes = [
        node("SequenceEmpty", [], ["none"]), node("Gather", ["table", "i"], ["g"]),
        node("SequenceInsert", ["none", "g"], ["some"]), node("ConcatFromSequence", ["some"], ["y"], axis=0),
    ]  # fmt: skip
    with gp.onnx.load(make_model(nodes, {"i": PLACES}, ["y"], {"table": TABLE})) as model:
        np.testing.assert_array_equal(model.run({"i": PLACES})["y"], TABLE[PLACES])


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
            with pytest.raises(gp.InvalidArgumentError, match=r"'positions' .*accepted: -8 to 7; got: ") as refused:
                model.run(words(n, past))
            assert f"got: {past} to" in str(refused.value) or f"n={n}, p={past} is refused alike" in str(refused.value)
        assert model.run(words(2, 6))["y"].shape == (1, 2, 2)
        assert model.run(words(0, 8))["y"].shape == (1, 0, 2)


def test_what_was_refused_is_refused_again_without_a_walk():
    with gp.onnx.load(position_model()) as model:
        model.run(words(3, 2))
        texts = []
        for n, past in ((9, 3), (9, 3), (12, 3), (40, 70)):
            with pytest.raises(gp.InvalidArgumentError) as refused:
                model.run(words(n, past))
            texts.append((str(refused.value), refused.value.node, model.stats().compilations))
        (first, node_name, compilations), *others = texts
        assert (node_name, "alike" in first) == ("positions", False)
        assert others[0] == texts[0]
        assert others[1] == (f"{first}, with n=9, p=3; n=12, p=3 is refused alike", "positions", compilations)
        assert others[2] == (f"{first}, with n=9, p=3; n=40, p=70 is refused alike", "positions", compilations)
        assert model.run(words(2, 6))["y"].shape == (1, 2, 2)


def test_what_numbers_of_ops_tell_apart_is_refused_again_without_a_walk():
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]), helper.make_node("Expand", ["zero", "s"], ["z"]),
        helper.make_node("ScatterElements", ["z", "i", "u"], ["y"], name="scatter"),
    ]  # fmt: skip
    inputs = {"x": np.zeros(4, np.float32), "i": np.zeros(3, np.int64), "u": np.ones(3, np.float32)}
    model = make_model(nodes, inputs, ["y"], {"zero": np.float32([0])}, shapes={"x": ["n"], "i": ["k"], "u": ["l"]})
    with gp.onnx.load(model) as loaded:
        loaded.run(inputs)
        counts = []
        for k, length in ((3, 2), (3, 2), (4, 2), (7, 5), (5, 7)):
            with pytest.raises(gp.InvalidShapeError, match="'scatter'") as refused:
                loaded.run(inputs | {"i": np.zeros(k, np.int64), "u": np.ones(length, np.float32)})
            assert refused.value.node == "scatter"
            counts.append(loaded.stats().compilations)
        assert counts == counts[:1] * 5
        assert loaded.run(inputs | {"x": np.zeros(9, np.float32)})["y"].sum() == 1


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


def outside(name):
    return pytest.raises(gp.InvalidArgumentError, match=rf"op '{name}' .*: an index.*outside its axis")


def counted_model():
    """Positions counted from a mask, as encoders have them, in a table of five rows."""
    nodes = [
        node("CumSum", ["mask", "axis"], ["counted"]),
        node("Mul", ["counted", "mask"], ["places"]),
        node("Gather", ["rows", "places"], ["found"], name="positions"),
        node("Neg", ["found"], ["y"]),
    ]
    constants = {"axis": np.array(1), "rows": np.arange(10, dtype=np.float32).reshape(5, 2)}
    return make_model(nodes, {"mask": np.ones((1, 3), np.int64)}, ["y"], constants, shapes={"mask": ["b", "n"]})


@pytest.mark.parametrize("threads", [1, 2])
def test_places_that_a_run_computes(threads):
    with gp.Engine("cpu", threads=threads) as engine, gp.onnx.load(counted_model(), engine=engine) as model:
        for shape in ((1, 4), (3, 2)):
            mask = np.ones(shape, np.int64)
            expected = -2.0 * np.cumsum(mask, 1)
            np.testing.assert_array_equal(model.run({"mask": mask})["y"][..., 0], expected)
            for _ in range(3):
                with outside("positions") as caught:
                    model.run({"mask": np.ones((900, 5), np.int64)})
            assert caught.value.node == "positions"
            hidden = np.array([[1, 1, 0, 0, 0, 1, 1, 0]])
            np.testing.assert_array_equal(model.run({"mask": hidden})["y"][0, :, 0], [-2, -4, 0, 0, 0, -6, -8, 0])
            with outside("positions"):
                model.run_many([{"mask": mask}, {"mask": np.ones((1, 9), np.int64)}])
            np.testing.assert_array_equal(model.run({"mask": mask})["y"][..., 0], expected)


def test_a_trace_sees_the_run_that_raises():
    with gp.onnx.load(counted_model()) as model:
        model.run({"mask": np.ones((1, 3), np.int64)})
        with gp.profile.trace() as recorded, outside("positions"):
            model.run({"mask": np.ones((1, 7), np.int64)})
        assert any("gather" in step.name for step in recorded.steps)
        assert model.run({"mask": np.ones((1, 4), np.int64)})["y"].shape == (1, 4, 2)


def test_equal_ops_are_told_apart():
    nodes = [
        node("Cast", ["x"], ["i"], to=TensorProto.INT64),
        node("Gather", ["table", "i"], ["a"], name="first"),
        node("Neg", ["i"], ["j"]),
        node("Gather", ["table", "j"], ["b"], name="second"),
    ]
    model = make_model(nodes, {"x": np.zeros(2, np.float32)}, ["a", "b"], {"table": TABLE})
    with gp.onnx.load(model) as loaded:
        for given, name in (([4, 0], "first"), ([-4, -3], "second"), ([3, 3], None)):
            x = np.array(given, np.float32)
            if name is None:
                np.testing.assert_array_equal(loaded.run({"x": x})["b"], TABLE[[1, 1]])
                continue
            with outside(name):
                loaded.run({"x": x})


@pytest.mark.parametrize("kind", ["Loop", "If"])
def test_in_loops_and_branches(kind):
    """Each trip reads the row that is one behind that of the last."""
    read = [
        node("Cast", ["start"], ["i"], to=TensorProto.INT64),
        node("Gather", ["table", "i"], ["z"], name="look_up"),
        node("Add", ["start", "one"], ["next"]),
    ]
    info = helper.make_tensor_value_info
    row = info("z", TensorProto.FLOAT, [3])
    constants = {"table": TABLE, "one": np.float32(1)}
    if kind == "If":
        kept = [node("ReduceSum", ["table", "zero"], ["z"], keepdims=0)]
        then, other = (helper.make_graph(nodes, "branch", [], [row]) for nodes in (read[:2], kept))
        nodes = [node("If", ["flag"], ["y"], then_branch=then, else_branch=other)]
        inputs = {"start": np.float32(0), "flag": np.array(True)}
        model = make_model(nodes, inputs, ["y"], constants | {"zero": np.array([0])})
        with gp.onnx.load(model) as loaded:
            assert loaded.run({"start": np.float32(9), "flag": np.array(False)})["y"].shape == (3,)
            assert loaded.run({"start": np.float32(3), "flag": np.array(True)})["y"][0] == 9
            with outside("look_up"):
                loaded.run({"start": np.float32(4), "flag": np.array(True)})
        return
    go, start = info("go", TensorProto.BOOL, []), info("start", TensorProto.FLOAT, [])
    body = helper.make_graph(
        [*read, node("Identity", ["go"], ["on"])], "body", [info("trip", TensorProto.INT64, []), go, start],
        [info("on", TensorProto.BOOL, []), info("next", TensorProto.FLOAT, []), row],
    )  # fmt: skip
    nodes = [node("Loop", ["trips", "going", "begin"], ["end", "y"], body=body)]
    inputs = {"trips": np.array(2), "begin": np.float32(0)}
    model = make_model(nodes, inputs, ["end", "y"], constants | {"going": np.array(True)})
    with gp.onnx.load(model) as loaded:
        for _ in range(2):
            np.testing.assert_array_equal(loaded.run({"trips": np.array(4), "begin": np.float32(0)})["y"], TABLE)
            for trips, begin in ((5, 0), (1, 4), (40, 2)):
                with outside("look_up"):
                    loaded.run({"trips": np.array(trips), "begin": np.float32(begin)})


def test_a_session_whose_run_raises_keeps_its_state():
    nodes = [
        node("Cast", ["x"], ["i"], to=TensorProto.INT64),
        node("Gather", ["table", "i"], ["rows"], name="look_up"),
        node("Concat", ["past", "rows"], ["present"], axis=0),
        node("ReduceSum", ["present", "first"], ["y"], keepdims=0),
    ]
    inputs = {"x": np.zeros(1, np.float32), "past": np.zeros((2, 3), np.float32)}
    model = make_model(
        nodes, inputs, ["present", "y"], {"table": TABLE, "first": np.array([0])},
        shapes={"x": ["n"], "past": ["p", 3]},
    )  # fmt: skip
    with gp.onnx.load(model) as loaded:
        session = loaded.session({"present": "past"}, capacity={"p": 16})
        total = np.zeros(3)
        for row in (1, 3, 0, 2):
            with outside("look_up"):
                session.run({"x": np.array([0, 7], np.float32)})
            total += TABLE[row]
            np.testing.assert_array_equal(session.run({"x": np.array([row], np.float32)})["y"], total)
        assert session.length == 4
