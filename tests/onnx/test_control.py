import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import graphpool as gp
from graphpool.errors import InvalidShapeError
from tests.helpers.onnx_models import check_against_evaluator, make_model, random_array

X = random_array((3, 4))


def info(name, shape=(), elem=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, elem, shape)


def body_graph(nodes, inputs, outputs, name="body"):
    return helper.make_graph(nodes, name, inputs, outputs)


def if_model(flag):
    branches = {
        f"{name}_branch": body_graph([helper.make_node(kind, ["h"], ["r"])], [], [info("r", [3, 4])], name)
        for name, kind in (("then", "Neg"), ("else", "Relu"))
    }
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["h"]),
        helper.make_node("If", ["flag"], ["z"], **branches),
        helper.make_node("Exp", ["z"], ["y"]),
    ]
    inputs = {"x": X, "flag": np.array(flag)}
    return make_model(nodes, inputs, ["y"]), inputs


@pytest.mark.parametrize("flag", [True, False])
def test_the_branch_taken_is_compiled(flag):
    assert check_against_evaluator(*if_model(flag)) == 0


def test_each_branch_is_a_form_of_its_own():
    model, inputs = if_model(True)
    with gp.onnx.load(model) as loaded:
        for flag in (True, False, True):
            wanted = np.exp(-X * X) if flag else np.exp(X * X)
            np.testing.assert_allclose(loaded.run(inputs | {"flag": np.array(flag)})["y"], wanted, rtol=1e-5)
        assert loaded.stats().misses == 2


def placed(loaded):
    """What runs the form that was used last, partition by partition."""
    return [names[0] for names in loaded._forms.last().implementations if names]


def test_a_condition_that_is_computed_takes_one_of_two_models():
    branches = {
        f"{name}_branch": body_graph([helper.make_node(kind, ["x"], ["r"])], [], [info("r", [3, 4])], name)
        for name, kind in (("then", "Neg"), ("else", "Relu"))
    }
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["total"], keepdims=0),
        helper.make_node("Greater", ["total", "zero"], ["flag"]),
        helper.make_node("If", ["flag"], ["y"], **branches),
    ]
    model = make_model(nodes, {"x": X}, ["y"], {"zero": np.float32(0)})
    check_against_evaluator(model, {"x": X})
    with gp.onnx.load(model, fallback=False) as loaded:
        for x in (X - 9, X + 9, X - 8):
            np.testing.assert_array_equal(loaded.run({"x": x})["y"], -x if x.sum() > 0 else np.maximum(x, 0))
        assert placed(loaded)[-1] == "branch"


def unfit_branches(condition, *unfit):
    """Two branches of which these add what does not broadcast, where x has 2 rows."""
    inner = {True: helper.make_node("Add", ["x", "rows"], ["r"]), False: helper.make_node("Neg", ["x"], ["r"])}
    branches = {}
    for name in ("then", "else"):
        inner[name in unfit].name = f"own_{name}"
        branches[f"{name}_branch"] = body_graph([inner[name in unfit]], [], [info("r", None)], name)
    nodes = [*condition, helper.make_node("If", ["flag"], ["y"], name="pick", **branches)]
    graph = helper.make_graph(
        nodes, "g", [info("x", ["n", 4]), info("given", [], TensorProto.BOOL)], [info("y", None)],
        [numpy_helper.from_array(np.zeros((3, 4), np.float32), "rows"), numpy_helper.from_array(np.float32(0), "zero")],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


GIVEN = [helper.make_node("Identity", ["given"], ["flag"])]
COMPUTED = [
    helper.make_node("ReduceSum", ["x"], ["total"], keepdims=0),
    helper.make_node("Greater", ["total", "zero"], ["flag"]),
]


@pytest.mark.parametrize("condition", [GIVEN, COMPUTED])
def test_a_branch_that_is_invalid_is_refused_where_it_is_taken(condition):
    with gp.onnx.load(unfit_branches(condition, "then")) as loaded:
        for rows, sign in ((2, -1), (2, 1), (3, 1), (2, -1), (5, -1), (5, 1)):
            x = np.full((rows, 4), sign, np.float32)
            if sign > 0 and rows != 3:
                with pytest.raises(InvalidShapeError, match=rf"'own_then' \(Add\).* \({rows}, 4\), \(3, 4\)"):
                    loaded.run({"x": x, "given": np.array(True)})
            else:
                [y] = loaded.run({"x": x, "given": np.array(sign > 0)}).values()
                np.testing.assert_array_equal(y, x if sign > 0 else -x)


@pytest.mark.parametrize("condition", [GIVEN, COMPUTED])
def test_branches_that_are_both_invalid_are_refused_before_the_run(condition):
    with gp.onnx.load(unfit_branches(condition, "then", "else")) as loaded:
        for sign in (1, -1):
            inputs = {"x": np.full((2, 4), sign, np.float32), "given": np.array(sign > 0)}
            name = "else" if condition is GIVEN and sign < 0 else "then"
            with pytest.raises(InvalidShapeError, match=f"'own_{name}'"):
                loaded.run(inputs)
            with pytest.raises(InvalidShapeError, match=f"'own_{name}'"):
                loaded.predict_peak(inputs)


def chosen(one, other, behind=(), elem=TensorProto.FLOAT):
    """One of two constants, by the sum of x, and what nodes make of it."""
    branches = {
        f"{name}_branch": helper.make_graph(
            [helper.make_node("Identity", ["c"], ["r"])], name, [], [info("r", number.shape, elem)],
            [numpy_helper.from_array(number, "c")],
        )
        for name, number in (("then", one), ("else", other))
    }  # fmt: skip
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["total"], keepdims=0),
        helper.make_node("Greater", ["total", "zero"], ["flag"]),
        helper.make_node("If", ["flag"], ["z"], **branches), *behind,
    ]  # fmt: skip
    shown = behind[-1].output[0] if behind else "z"
    elem = TensorProto.INT64 if behind and behind[-1].op_type == "Shape" else elem
    graph = helper.make_graph(
        nodes, "g", [info("x", [3, 4])], [info(shown, None, elem)],
        [numpy_helper.from_array(np.float32(0), "zero"), numpy_helper.from_array(np.float32([2]), "two")],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def check_chosen(model, wanted):
    """Run for a sum above 0 and below; what ran the form last."""
    with gp.onnx.load(model, fallback=False) as loaded:
        for x, result in zip((X + 9, X - 9, X + 8), (*wanted, wanted[0]), strict=True):
            [found] = loaded.run({"x": x}).values()
            assert (found.shape, found.dtype) == (result.shape, result.dtype)
            np.testing.assert_array_equal(found, result)
        return placed(loaded)


@pytest.mark.parametrize(("shape", "dtype"), [((), bool), ((3,), np.float32), ((2, 2), np.int64), ((0,), np.float32)])
def test_of_branches_of_few_numbers_both_are_computed(shape, dtype):
    pair = np.ones(shape, dtype), np.zeros(shape, dtype)
    model = chosen(*pair, elem=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
    assert "branch" not in check_chosen(model, pair)


def test_branches_of_many_numbers_stay_apart():
    pair = np.ones(65, np.float32), np.zeros(65, np.float32)
    assert "branch" in check_chosen(chosen(*pair), pair)


@pytest.mark.parametrize(("count", "is_branch"), [(4094, False), (4095, True)])
def test_of_branches_that_reduce_few_numbers_both_are_computed(count, is_branch):
    """As what PyTorch writes for `a and b` of which b asks for the largest element."""
    last = [
        helper.make_node("ReduceMax", ["x"], ["largest"], keepdims=0),
        helper.make_node("Less", ["largest", "limit"], ["r"]),
    ]
    branches = {
        "then_branch": helper.make_graph(last, "then", [], [info("r", [], TensorProto.BOOL)]),
        "else_branch": helper.make_graph(
            [helper.make_node("Identity", ["flag"], ["r"])], "else", [], [info("r", [], TensorProto.BOOL)]
        ),
    }
    nodes = [
        helper.make_node("Gather", ["x", "first"], ["number"]),
        helper.make_node("Greater", ["number", "zero"], ["flag"]),
        helper.make_node("If", ["flag"], ["z"], **branches),
    ]  # fmt: skip
    constants = {"first": np.int64(0), "zero": np.float32(0), "limit": np.float32(5)}
    graph = helper.make_graph(
        nodes, "g", [info("x", ["n"])], [info("z", [], TensorProto.BOOL)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    with gp.onnx.load(model, fallback=False) as loaded:
        for first, largest in ((1, 4), (1, 9), (-1, 4), (-1, 9)):
            x = np.full(count, first, np.float32)
            x[-1] = largest
            assert loaded.run({"x": x})["z"] == (first > 0 and largest < 5)
        assert ("branch" in placed(loaded)) == is_branch


TIMES_TWO = helper.make_node("Mul", ["z", "two"], ["y"])


@pytest.mark.parametrize("shapes", [((), (1,)), ((1,), ())])
def test_numbers_whose_rank_is_lost(shapes):
    pair = np.full(shapes[0], 3, np.float32), np.full(shapes[1], 5, np.float32)
    model = chosen(*pair, [helper.make_node("Neg", ["z"], ["n"]), helper.make_node("Mul", ["n", "two"], ["y"])])
    assert "branch" not in check_chosen(model, (np.float32([-6]), np.float32([-10])))


@pytest.mark.parametrize(("behind", "wanted"), [
    ([], (np.float32(3), np.float32([5]))),
    ([helper.make_node("Neg", ["z"], ["y"])], (np.float32(-3), np.float32([-5]))),
    ([helper.make_node("Shape", ["z"], ["y"])], (np.zeros(0, np.int64), np.array([1]))),
    ([TIMES_TWO, helper.make_node("Shape", ["z"], ["s"])], (np.zeros(0, np.int64), np.array([1]))),
])  # fmt: skip
def test_numbers_whose_rank_shows(behind, wanted):
    model = chosen(np.array(3, np.float32), np.float32([5]), behind)
    wanted = [np.asarray(result) for result in wanted]
    assert "branch" in check_chosen(model, wanted)


def test_a_condition_of_several_elements_is_refused():
    branches = {
        f"{name}_branch": body_graph([helper.make_node(kind, ["x"], ["r"])], [], [info("r", [3, 4])], name)
        for name, kind in (("then", "Neg"), ("else", "Relu"))
    }
    nodes = [
        helper.make_node("Not", ["flags"], ["turned"]),
        helper.make_node("If", ["turned"], ["y"], name="pick", **branches),
    ]
    ports = [info("x", [3, 4]), info("flags", ["n"], TensorProto.BOOL)]
    graph = helper.make_graph(nodes, "g", ports, [info("y", [3, 4])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    with gp.onnx.load(model) as loaded:
        assert loaded.run({"x": X, "flags": np.ones(1, bool)})["y"].shape == (3, 4)
        with pytest.raises(InvalidShapeError, match=r"'pick'; accepted: one element; got: shape \(3,\)"):
            loaded.run({"x": X, "flags": np.ones(3, bool)})


def loop_model(trips, cond_nodes=(), cond="more"):
    """s becomes tanh(s x) in each iteration, and is shown."""
    body = body_graph(
        [*cond_nodes, helper.make_node("Identity", ["c"], ["more"]), helper.make_node("Mul", ["s", "x"], ["product"]),
         helper.make_node("Tanh", ["product"], ["next"]), helper.make_node("Identity", ["next"], ["seen"])],
        [info("i", (), TensorProto.INT64), info("c", (), TensorProto.BOOL), info("s", [3, 4])],
        [info(cond, (), TensorProto.BOOL), info("next", [3, 4]), info("seen", [3, 4])],
    )  # fmt: skip
    node = helper.make_node("Loop", ["n", "go", "x"], ["last", "all"], body=body)
    inputs = {"x": X, "n": np.array(trips), "go": np.array(True)}
    ports = [info("x", [3, 4]), info("n", (), TensorProto.INT64), info("go", (), TensorProto.BOOL)]
    graph = helper.make_graph([node], "g", ports, [info("last", [3, 4]), info("all", [None, 3, 4])])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), inputs


def states_after(trips):
    states = [X]
    for _ in range(trips):
        states.append(np.tanh(states[-1] * X))
    return np.array(states[1:])


@pytest.mark.parametrize("trips", [1, 3, 70])
def test_a_loop(trips):
    model, inputs = loop_model(trips)
    with gp.onnx.load(model, fallback=False) as loaded:
        results = loaded.run(inputs)
    wanted = states_after(trips)
    np.testing.assert_allclose(results["all"], wanted, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(results["last"], wanted[-1], rtol=1e-4, atol=1e-6)


def test_a_loop_ends_by_its_own_condition():
    less = helper.make_node("Less", ["i", "two"], ["again"])
    two = helper.make_node("Constant", [], ["two"], value_int=2)
    model, inputs = loop_model(10, [two, less], "again")
    with gp.onnx.load(model, fallback=False) as loaded:
        np.testing.assert_allclose(loaded.run(inputs)["all"], states_after(3), rtol=1e-4, atol=1e-6)


def test_a_trip_count_of_the_run_needs_no_compilation():
    model, inputs = loop_model(0)
    with gp.onnx.load(model, fallback=False) as loaded:
        for trips in (0, 1, 7, 300, 3):
            results = loaded.run(inputs | {"n": np.array(trips)})
            np.testing.assert_allclose(results["all"], states_after(trips).reshape(trips, 3, 4), rtol=1e-4, atol=1e-6)
        assert loaded.stats().compilations == 1
        assert placed(loaded) == ["loop"]


def test_a_loop_whose_end_is_computed():
    nodes = [
        helper.make_node("ReduceMax", ["s"], ["top"], keepdims=0),
        helper.make_node("Less", ["top", "x_top"], ["again"]),
    ]
    body = body_graph(
        [*nodes, helper.make_node("Add", ["s", "s"], ["next"])],
        [info("i", (), TensorProto.INT64), info("c", (), TensorProto.BOOL), info("s", [3, 4])],
        [info("again", (), TensorProto.BOOL), info("next", [3, 4])],
    )
    node = helper.make_node("Loop", ["n", "go", "x"], ["y"], body=body)
    inputs = {"x": np.abs(X), "n": np.array(9), "go": np.array(True), "x_top": np.array(20, "float32")}
    model = make_model([node], inputs, ["y"])
    check_against_evaluator(model, inputs)
    with gp.onnx.load(model, fallback=False) as loaded:
        loaded.run(inputs)
        assert placed(loaded) == ["loop"]


@pytest.mark.parametrize("options", [
    {}, {"scan_input_directions": [1]}, {"scan_output_directions": [1]}, {"scan_input_axes": [1]},
    {"scan_output_axes": [-1]},
])  # fmt: skip
def test_a_scan_is_unrolled(options):
    axis = options.get("scan_input_axes", [0])[0]
    width = X.shape[1 - axis]
    body = body_graph(
        [helper.make_node("Add", ["s", "e"], ["next"]), helper.make_node("Tanh", ["next"], ["seen"])],
        [info("s", [width]), info("e", [width])],
        [info("next", [width]), info("seen", [width])],
    )
    node = helper.make_node("Scan", ["start", "x"], ["last", "all"], body=body, num_scan_inputs=1, **options)
    inputs = {"start": random_array((width,), seed=1), "x": X}
    ports = [info(name, value.shape) for name, value in inputs.items()]
    graph = helper.make_graph([node], "g", ports, [info("last", [width]), info("all", [None, None])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    with gp.onnx.load(model, fallback=False) as loaded:
        results = loaded.run(inputs)
    steps = np.moveaxis(X, axis, 0)[:: -1 if options.get("scan_input_directions") else 1]
    states = np.cumsum([inputs["start"], *steps], axis=0)[1:]
    seen = np.tanh(states)[:: -1 if options.get("scan_output_directions") else 1]
    np.testing.assert_allclose(results["last"], states[-1], rtol=1e-5)
    np.testing.assert_allclose(results["all"], seen.T if "scan_output_axes" in options else seen, rtol=1e-5)


def test_a_scan_of_batches_has_entries():
    body = body_graph([helper.make_node("Add", ["s", "e"], ["t"]), helper.make_node("Neg", ["t"], ["seen"])],
                      [info("s", [2]), info("e", [2])], [info("t", [2]), info("seen", [2])])  # fmt: skip
    node = helper.make_node("Scan", ["", "start", "x"], ["last", "all"], "the_scan", body=body, num_scan_inputs=1)
    ports = [info("start", [None, 2]), info("x", [None, None, 2])]
    graph = helper.make_graph([node], "g", ports, [info("last", [None, 2]), info("all", [None, None, 2])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 8)], ir_version=3)
    with gp.onnx.load(model) as loaded:
        x = random_array((3, 4, 2))
        found = loaded.run({"start": x[:, 0], "x": x})
        np.testing.assert_allclose(found["last"], x[:, 0] + x.sum(axis=1), rtol=1e-5)
        for shape in ((3, 0, 2), (0, 4, 2)):
            with pytest.raises(gp.UnsupportedError, match=r"'the_scan'.*a scan of no entries"):
                loaded.run({"start": np.zeros((shape[0], 2), "float32"), "x": np.zeros(shape, "float32")})


def vector(name, *numbers):
    return numpy_helper.from_array(np.array(numbers, "float32"), name)


def inner_nodes(source, target):
    """Reads a Constant, an initialiser `own` of the graph, what they make, and a constant `outer` of the model."""
    return [
        helper.make_node("Constant", [], ["c"], value=vector("c", 1, 2, 3, 4)),
        helper.make_node("Add", ["c", "c"], ["doubled"]),
        helper.make_node("Add", ["doubled", "own"], ["shifted"]),
        helper.make_node("Mul", ["shifted", "outer"], ["scaled"]),
        helper.make_node("Add", [source, "c"], ["moved"]),
        helper.make_node("Mul", ["moved", "scaled"], [target]),
    ]


def inner_graph(source, target, inputs, outputs, more=(), own=5.0):
    nodes = [*more, *inner_nodes(source, target)]
    return helper.make_graph(nodes, "inner", inputs, outputs, [vector("own", own)])


def if_by_shape():
    """The condition follows from the batch, and nodes behind the If read what only its branch decides."""
    branches = {
        f"{name}_branch": helper.make_graph(
            [*inner_nodes("x", "t"), helper.make_node("Constant", [], ["k"], value=vector("k", number))],
            name, [], [info("t", [None, 4]), info("k", [1])], [vector("own", number)],
        )
        for name, number in (("then", 7.0), ("else", -3.0))
    }  # fmt: skip
    return [
        helper.make_node("Shape", ["x"], ["shape"], end=1),
        helper.make_node("Greater", ["shape", "three"], ["flag"]),
        helper.make_node("If", ["flag"], ["t", "k"], **branches),
        helper.make_node("Mul", ["k", "outer"], ["factor"]),
        helper.make_node("Mul", ["t", "factor"], ["y"]),
    ]


def loop_by_shape():
    iteration = [info("i", (), TensorProto.INT64), info("go", (), TensorProto.BOOL), info("s", [None, 4])]
    same = helper.make_node("Identity", ["go"], ["again"])
    body = inner_graph("s", "next", iteration, [info("again", (), TensorProto.BOOL), info("next", [None, 4])], [same])
    return [
        helper.make_node("Shape", ["x"], ["shape"], end=1),
        helper.make_node("Squeeze", ["shape"], ["trips"]),
        helper.make_node("Loop", ["trips", "yes", "x"], ["y"], body=body),
    ]


def scan_over_rows():
    seen = helper.make_node("Add", ["s", "e"], ["next"])
    body = inner_graph("next", "row", [info("s", [4]), info("e", [4])], [info("next", [4]), info("row", [4])], [seen])
    return [
        helper.make_node("Identity", ["outer"], ["start"]),
        helper.make_node("Scan", ["start", "x"], ["last", "y"], body=body, num_scan_inputs=1),
    ]


@pytest.mark.parametrize("nodes", [if_by_shape, loop_by_shape, scan_over_rows])
def test_constants_of_inner_graphs_serve_every_form(nodes):
    constants = {"outer": np.array([1, -1, 0.5, 2], "float32"), "three": np.array([3]), "yes": np.array(True)}
    model = make_model(nodes(), {"x": X}, ["y"], constants, shapes={"x": ["n", 4]})
    with gp.onnx.load(model) as loaded:
        for count in (3, 2, 5, 4, 3):
            x = random_array((count, 4), seed=count)
            [wanted] = ReferenceEvaluator(model).run(None, {"x": x})
            np.testing.assert_allclose(loaded.run({"x": x})["y"], wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max())
        assert "host" not in placed(loaded)


def test_a_form_does_not_take_what_another_branch_made():
    """A node behind an If is computed anew where the If gave another constant."""
    branches = {
        f"{name}_branch": helper.make_graph(
            [helper.make_node("Constant", [], ["k"], value=vector("k", number))], name, [], [info("k", [1])]
        )
        for name, number in (("then", 7.0), ("else", -3.0))
    }
    nodes = [
        helper.make_node("If", ["flag"], ["k"], **branches),
        helper.make_node("Mul", ["k", "k"], ["square"]),
        helper.make_node("Mul", ["x", "square"], ["y"]),
    ]
    model = make_model(nodes, {"x": X, "flag": np.array(True)}, ["y"])
    with gp.onnx.load(model) as loaded:
        for flag in (True, False, True, False):
            wanted = X * (49 if flag else 9)
            np.testing.assert_allclose(loaded.run({"x": X, "flag": np.array(flag)})["y"], wanted, rtol=1e-6)
