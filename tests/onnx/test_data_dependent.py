"""Nodes whose shapes follow from what a run computes: a model of its own, compiled once, natively."""

import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from onnx import TensorProto, ValueInfoProto, helper, numpy_helper

import graphpool as gp
from graphpool.cli import main
from tests.oracle import KINDS

node = helper.make_node
CONSTANTS = {
    "zero": np.array([0]), "one": np.array([1]), "two": np.array([2]), "five": np.array([5]), "all": np.array([-1]),
    "columns": np.array([-1, 2, 2]), "weights": np.arange(12, dtype=np.float32).reshape(4, 3),
    "row": np.ones((1, 4), np.float32), "many": np.array([2**31]), "share": np.array([0.5], np.float32),
    "image": np.random.default_rng(1).random((1, 3, 8, 8), np.float32),
}  # fmt: skip
FOUND = [
    node("NonZero", ["mask"], ["places"], "search"),
    node("Squeeze", ["places", "zero"], ["rows"]),
    node("Gather", ["x", "rows"], ["g"], axis=0),
]


def make(nodes, outputs, inputs=None, opset=17):
    inputs = inputs or {"x": (TensorProto.FLOAT, ["n", 4]), "mask": (TensorProto.BOOL, ["n"])}
    infos = [helper.make_tensor_value_info(name, elem, shape) for name, (elem, shape) in inputs.items()]
    tensors = [numpy_helper.from_array(value, name) for name, value in CONSTANTS.items()]
    graph = helper.make_graph(nodes, "g", infos, [ValueInfoProto(name=name) for name in outputs], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def data_dependent_of(model):
    """The data-dependent part of the form that was used last."""
    return model._forms.last().form.inner[-1].model


def feeds(count, n=60, seed=0):
    rng = np.random.default_rng(seed)
    mask = rng.permutation(np.arange(n) < count)
    return {"x": rng.standard_normal((n, 4)).astype(np.float32), "mask": mask}


def softmax(x):
    e = np.exp(x - x.max(1, keepdims=True, initial=-np.inf))
    return e / e.sum(1, keepdims=True)


CASES = {
    "gather": ([node("Identity", ["g"], ["y"])], lambda x, g: g),
    "elementwise": ([node("Add", ["g", "row"], ["h"]), node("Relu", ["h"], ["y"])], lambda x, g: np.maximum(g + 1, 0)),
    "product": ([node("MatMul", ["g", "weights"], ["y"])], lambda x, g: g @ CONSTANTS["weights"]),
    "softmax": ([node("Softmax", ["g"], ["y"])], lambda x, g: softmax(g)),
    "shape": ([node("Shape", ["g"], ["y"])], lambda x, g: g.shape),
    "reshape": ([node("Reshape", ["g", "columns"], ["y"])], lambda x, g: g.reshape(-1, 2, 2)),
    "concat": ([node("Concat", ["g", "x", "g"], ["y"], axis=0)], lambda x, g: np.concatenate([g, x, g])),
    "slice": ([node("Slice", ["g", "zero", "five", "zero"], ["y"])], lambda x, g: g[:5]),
    "tail": ([node("Slice", ["g", "one", "many", "zero", "two"], ["y"])], lambda x, g: g[1::2]),
    "top": (
        [node("Shape", ["rows"], ["n_"]), node("Min", ["n_", "five"], ["k"]),
         node("Slice", ["g", "zero", "one", "one"], ["c"]), node("TopK", ["c", "k"], ["y", "where"], axis=0)],
        lambda x, g: np.sort(g[:, :1], 0)[::-1][:5]),
    "scatter": (
        [node("Unsqueeze", ["rows", "one"], ["at"]), node("Neg", ["g"], ["h"]),
         node("ScatterND", ["x", "at", "h"], ["y"])],
        lambda x, g: np.where((x[:, None] == g[None]).all(-1).any(-1)[:, None], -x, x)),
    "another search": ([node("NonZero", ["g"], ["y"])], lambda x, g: np.array(np.nonzero(g))),
    "regions": (
        [node("Mul", ["rows", "zero"], ["none"]), node("RoiAlign", ["image", "g", "none"], ["y"], output_height=2)],
        lambda x, g: KINDS["RoiAlign"](
            {"output_height": 2, "output_width": 1, "sampling_ratio": 0, "spatial_scale": 1.0, "mode": "avg",
             "coordinate_transformation_mode": "half_pixel"}, CONSTANTS["image"], g, np.zeros(len(g), int))),
    "sizes of inputs": (
        [node("Shape", ["x"], ["s"]), node("Expand", ["row", "s"], ["big"]),
         node("Concat", ["g", "big"], ["y"], axis=0)],
        lambda x, g: np.concatenate([g, np.ones_like(x)])),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_results_for_any_number_found(case):
    """All by our own kernels; no number but 0 and 1, for which dimensions vanish, needs a compilation of its own."""
    nodes, wanted = CASES[case]
    with gp.onnx.load(make([*FOUND, *nodes], ["y"]), fallback=False) as model:
        for number, count in enumerate((30, 31, 59, 7, 60, 12, *([3] if case == "top" else []))):
            given = feeds(count, seed=number)
            expected = wanted(given["x"], given["x"][given["mask"]])
            np.testing.assert_allclose(model.run(given)["y"], expected, rtol=1e-5, atol=1e-6)
        if case not in ("shape", "sizes of inputs"):  # numbers made of sizes are those of one compilation
            assert data_dependent_of(model).stats().compilations == 1
        assert model.stats().compilations == 1
        for count in (0, 1, 2):
            given = feeds(count)
            expected = wanted(given["x"], given["x"][given["mask"]])
            np.testing.assert_allclose(model.run(given)["y"], expected, rtol=1e-5, atol=1e-6)


def test_other_shapes_of_the_inputs_need_no_compilation():
    with gp.onnx.load(make([*FOUND, node("Softmax", ["g"], ["y"])], ["y"])) as model:
        for n, count in ((60, 9), (61, 10), (300, 200), (33, 32)):
            given = feeds(count, n)
            np.testing.assert_allclose(model.run(given)["y"], softmax(given["x"][given["mask"]]), rtol=1e-5)
        assert model.stats().compilations == 1
        assert data_dependent_of(model).stats().compilations == 1


def test_outputs_on_either_side():
    """What is known before, what is found, and what follows from it, under their own names."""
    nodes = [*FOUND, node("Relu", ["x"], ["r"]), node("Neg", ["g"], ["y"])]
    with gp.onnx.load(make(nodes, ["r", "places", "y", "x"])) as model:
        given = feeds(8)
        found = model.run(given)
    assert list(found) == ["r", "places", "y", "x"]
    np.testing.assert_array_equal(found["r"], np.maximum(given["x"], 0))
    np.testing.assert_array_equal(found["places"], [np.nonzero(given["mask"])[0]])
    np.testing.assert_array_equal(found["y"], -given["x"][given["mask"]])
    np.testing.assert_array_equal(found["x"], given["x"])


def test_loops_of_searches_need_no_compilation_for_another_count():
    """As torchvision pastes masks: a trip for each row found, in which something is searched, and results grow."""
    body = helper.make_graph(
        [node("Gather", ["g", "i"], ["r"]), node("Greater", ["r", "nothing"], ["is_large"]),
         node("Compress", ["r", "is_large"], ["large"]), node("ReduceSum", ["large", "zero"], ["sum"], keepdims=1),
         node("Concat", ["sums", "sum"], ["more"], axis=0), node("Identity", ["go"], ["on"])],
        "body",
        [helper.make_tensor_value_info("i", TensorProto.INT64, []),
         helper.make_tensor_value_info("go", TensorProto.BOOL, []),
         helper.make_tensor_value_info("sums", TensorProto.FLOAT, ["k"])],
        [helper.make_tensor_value_info("on", TensorProto.BOOL, []),
         helper.make_tensor_value_info("more", TensorProto.FLOAT, ["k1"])],
    )  # fmt: skip
    nodes = [
        *FOUND, node("Cast", ["zero"], ["nothing"], to=TensorProto.FLOAT), node("Shape", ["rows"], ["shape"]),
        node("Squeeze", ["shape"], ["trips"]), node("Loop", ["trips", "", "share"], ["y"], body=body),
    ]  # fmt: skip
    with gp.onnx.load(make(nodes, ["y"]), fallback=False) as model:
        for count in (40, 41, 60, 32):
            given = feeds(count)
            rows = given["x"][given["mask"]]
            want = [0.5, *np.where(rows > 0, rows, 0).sum(1)]
            np.testing.assert_allclose(model.run(given)["y"], want, rtol=1e-5, atol=1e-6)
        assert data_dependent_of(model).stats().compilations == 1


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_compress(axis):
    options = {} if axis is None else {"axis": axis}
    inputs = {"x": (TensorProto.FLOAT, [5, 4]), "mask": (TensorProto.BOOL, [4])}
    x = np.random.default_rng(2).standard_normal((5, 4)).astype(np.float32)
    with gp.onnx.load(
        make([node("Compress", ["x", "mask"], ["y"], **options)], ["y"], inputs), fallback=False
    ) as model:
        for mask in np.array([[0, 1, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1]], bool):
            np.testing.assert_array_equal(model.run({"x": x, "mask": mask})["y"], np.compress(mask, x, axis))


def branch(*nodes):
    return helper.make_graph(list(nodes), "branch", [], [ValueInfoProto(name=nodes[-1].output[0])])


def test_a_branch_that_an_extent_decides():
    """As torchvision has them, with a search in the branch, which sees what is outside."""
    taken = branch(node("Concat", ["rows", "five"], ["none_kept"], axis=0))
    other = branch(node("NonZero", ["g"], ["inner"]), node("ReduceMax", ["inner"], ["kept"], axes=[1], keepdims=0))
    nodes = [
        *FOUND, node("Size", ["rows"], ["count"]), node("Squeeze", ["zero"], ["nothing"]),
        node("Equal", ["count", "nothing"], ["is_none"]),
        node("If", ["is_none"], ["y"], then_branch=taken, else_branch=other),
        node("Add", ["y", "five"], ["z"]),
    ]  # fmt: skip
    with gp.onnx.load(make(nodes, ["z"])) as model:
        assert model.run(feeds(0))["z"].tolist() == [10]
        assert model.run(feeds(9))["z"].tolist() == [13, 8]
        assert model.run(feeds(4))["z"].tolist() == [8, 8]


@pytest.mark.parametrize("flag", [True, False])
def test_compress_in_a_branch_whose_condition_is_known(flag):
    taken = branch(node("Compress", ["x", "mask"], ["kept"], axis=0), node("Neg", ["kept"], ["minus"]))
    nodes = [node("If", ["flag"], ["y"], then_branch=taken, else_branch=branch(node("Identity", ["x"], ["same"])))]
    inputs = {"x": (TensorProto.FLOAT, ["n", 4]), "mask": (TensorProto.BOOL, ["n"]), "flag": (TensorProto.BOOL, [])}
    with gp.onnx.load(make(nodes, ["y"], inputs), fallback=False) as model:
        for count in (7, 0):
            given = feeds(count)
            want = -given["x"][given["mask"]] if flag else given["x"]
            np.testing.assert_array_equal(model.run({**given, "flag": np.array(flag)})["y"], want)


def test_branches_of_a_branch_whose_condition_is_known():
    """They read what the branch found, and one of them has another inside it."""
    deepest = node("If", ["is_few"], ["deep"], then_branch=branch(node("Add", ["own", "g"], ["sum"])),
                   else_branch=branch(node("Mul", ["own", "g"], ["product"])))  # fmt: skip
    inner = node("If", ["is_some"], ["part"], then_branch=branch(deepest),
                 else_branch=branch(node("Neg", ["own"], ["minus"])))  # fmt: skip
    taken = branch(
        *FOUND, node("Add", ["g", "row"], ["own"]), node("Size", ["own"], ["count"]),
        node("Greater", ["count", "none"], ["is_some"]), node("Less", ["count", "limit"], ["is_few"]), inner,
        node("Relu", ["part"], ["result"]),
    )  # fmt: skip
    nodes = [node("Squeeze", ["zero"], ["none"]), node("Size", ["weights"], ["limit"])]
    nodes.append(node("If", ["flag"], ["y"], then_branch=taken, else_branch=branch(node("Neg", ["x"], ["minus_x"]))))
    inputs = {"x": (TensorProto.FLOAT, ["n", 4]), "mask": (TensorProto.BOOL, ["n"]), "flag": (TensorProto.BOOL, [])}
    with gp.onnx.load(make(nodes, ["y"], inputs), fallback=False) as model:
        for count in (0, 2, 9):
            given = feeds(count)
            g = given["x"][given["mask"]]
            want = np.maximum(g + 1 + g if count == 2 else (g + 1) * g, 0)
            np.testing.assert_array_equal(model.run({**given, "flag": np.array(True)})["y"], want)
            np.testing.assert_array_equal(model.run({**given, "flag": np.array(False)})["y"], -given["x"])


def detector():
    """Scores and boxes of an image, a suppression for each class, and the best of what it leaves."""
    nodes = [
        node("Sigmoid", ["s"], ["scores"]),
        node("NonMaxSuppression", ["b", "scores", "many", "share"], ["kept"]),
        node("Gather", ["kept", "two"], ["k"], axis=1), node("Squeeze", ["k", "one"], ["rows"]),
        node("Squeeze", ["b", "zero"], ["boxes"]), node("Gather", ["boxes", "rows"], ["found"], axis=0),
        node("Slice", ["found", "zero", "five", "zero"], ["y"]),
    ]  # fmt: skip
    inputs = {"b": (TensorProto.FLOAT, [1, "n", 4]), "s": (TensorProto.FLOAT, [1, 2, "n"])}
    return make(nodes, ["y", "kept"], inputs)


def boxes_and_scores(n, seed):
    rng = np.random.default_rng(seed)
    corners = rng.random((1, n, 2))
    boxes = np.concatenate([corners, corners + rng.random((1, n, 2)) / 3], -1).astype(np.float32)
    return {"b": boxes, "s": rng.standard_normal((1, 2, n)).astype(np.float32)}


def test_a_detector():
    with gp.onnx.load(detector(), fallback=False) as model:
        for n in (200, 150, 33):
            given = boxes_and_scores(n, n)
            found = model.run(given)
            attrs = {"max_boxes": n, "iou_threshold": 0.5, "center_point_box": False}
            places, [count] = KINDS["SelectBoxes"](attrs, given["b"], 1 / (1 + np.exp(-given["s"])))
            rows = places.astype(np.int64).reshape(-1, 3)[:count]
            np.testing.assert_array_equal(found["kept"], rows)
            np.testing.assert_array_equal(found["y"], given["b"][0][rows[:5, 2]])
        assert data_dependent_of(model).stats().compilations == 1
        assert model.run(boxes_and_scores(0, 0))["y"].shape == (0, 4)


def test_thresholds_that_are_inputs():
    made = [node("NonMaxSuppression", ["b", "s", "most", "overlap", "least"], ["y"], "suppression")]
    floats = dict.fromkeys(("overlap", "least"), (TensorProto.FLOAT, [1]))
    inputs = {"b": (TensorProto.FLOAT, [1, "n", 4]), "s": (TensorProto.FLOAT, [1, 2, "n"]), **floats,
              "most": (TensorProto.INT64, [1])}  # fmt: skip
    given = boxes_and_scores(40, 1)
    with gp.onnx.load(make(made, ["y"], inputs), fallback=False) as model:
        for most, overlap, least in ((5, 0.5, 0.1), (40, 0.2, -1), (3, 1, 0.5), (0, 0.5, 0.1)):
            attrs = {"max_boxes": most, "iou_threshold": overlap, "score_threshold": least, "center_point_box": False}
            places, [count] = KINDS["SelectBoxes"](attrs, given["b"], given["s"])
            numbers = {"most": np.array([most]), "overlap": np.float32([overlap]), "least": np.float32([least])}
            rows = places.astype(np.int64).reshape(-1, 3)[:count]
            np.testing.assert_array_equal(model.run(given | numbers)["y"], rows)
        with pytest.raises(gp.InvalidShapeError, match=r"'suppression'.*iou_threshold; accepted: 0 to 1"):
            model.run(given | numbers | {"overlap": np.float32([1.5])})


def test_the_peak_counts_the_most_that_may_be_found():
    """A limit of so many bytes will do, whatever is found; a smaller one is refused before anything runs."""
    given = boxes_and_scores(400, 1)
    shapes = {"b": (1, 400, 4), "s": (1, 2, 400)}
    apart = np.arange(400, dtype=np.float32).reshape(1, 400, 1) + np.float32([[[0, 0, 0.5, 0.5]]])
    with gp.onnx.load(detector()) as model:
        peak = model.predict_peak(shapes)
        for boxes in (given["b"], apart, np.zeros_like(apart)):
            model.run(given | {"b": boxes})
        assert 0 < model.engine.budget.peak <= peak
    with gp.onnx.load(detector(), memory_limit=peak) as model:
        assert model.run(given | {"b": apart})["kept"].shape == (800, 3)
    with gp.onnx.load(detector(), memory_limit=peak // 4) as model, pytest.raises(gp.OutOfMemoryError):
        model.run(given)


def test_the_peak_of_a_range_counts_the_data_dependent_part():
    apart = np.arange(400, dtype=np.float32).reshape(1, 400, 1) + np.float32([[[0, 0, 0.5, 0.5]]])
    with gp.onnx.load(detector(), shapes={"n": (2, 400)}) as model:
        peak = model.predict_peak()
        for n in (400, 300, 399, 17, 2):
            found = model.run(boxes_and_scores(n, n) | {"b": apart[:, :n].copy()})
            assert found["kept"].shape == (2 * n, 3)
            del found
        assert model.engine.budget.peak <= peak


def test_what_a_host_function_finds_is_followed_by_our_own_kernels():
    nodes = [node("Unique", ["x"], ["values"], axis=0), node("Mul", ["values", "values"], ["y"])]
    with gp.onnx.load(make(nodes, ["y"], {"x": (TensorProto.FLOAT, ["n", 2])})) as model:
        for n in (5, 9, 2):
            x = np.random.default_rng(n).integers(0, 3, (n, 2)).astype(np.float32)
            np.testing.assert_array_equal(model.run({"x": x})["y"], np.unique(x, axis=0) ** 2)
        assert not any(data_dependent_of(model).specialise({"values": (3, 2)}).fallbacks)


def unique_parts(x, is_sorted):
    """What Unique gives of all elements."""
    values, first, inverse, counts = np.unique(
        x.reshape(-1), return_index=True, return_inverse=True, return_counts=True
    )
    order = np.argsort(values if is_sorted else first, kind="stable")
    return values[order], first[order], np.argsort(order)[inverse.reshape(-1)], counts[order]


@pytest.mark.parametrize("kind", [TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32])
@pytest.mark.parametrize("is_sorted", [True, False])
@pytest.mark.parametrize("asked", ["vfic", "v", "fc", "i"])
def test_unique_elements_are_found_by_kernels(kind, is_sorted, asked):
    names = [name if name == "v" or name in asked else "" for name in "vfic"]  # the first one is obligatory
    nodes = [node("Relu" if kind == TensorProto.FLOAT else "Abs", ["x"], ["r"]),
             node("Unique", ["r"], names, sorted=int(is_sorted)),
             *(node("Add", [name, name], [f"y_{name}"]) for name in asked)]  # fmt: skip
    model = make(nodes, [f"y_{name}" for name in asked], {"x": (kind, ["n", "m"])})
    rng = np.random.default_rng(kind)
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    with gp.onnx.load(model, fallback=False) as loaded:
        for shape in ((3, 4), (40, 7), (1, 1), (0, 3), (5, 0), (33, 2)):
            x = rng.integers(0, 9, shape).astype(dtype)
            if kind == TensorProto.INT64:
                x += 2**61  # more than f64 tells apart
            if kind == TensorProto.FLOAT and x.size > 4:
                x.flat[[1, 4]] = np.nan
            found = loaded.run({"x": x})
            for name, part in zip("vfic", unique_parts(x, is_sorted), strict=True):
                if name in asked:
                    np.testing.assert_array_equal(found[f"y_{name}"], part + part)


def test_unique_elements_in_branches_and_loops():
    body = helper.make_graph(
        [node("Unique", ["s"], ["u"]), node("Shape", ["u"], ["k"]), node("Cast", ["k"], ["f"], to=TensorProto.FLOAT),
         node("Sub", ["s", "f"], ["t"]), node("Identity", ["go"], ["on"])],
        "body",
        [helper.make_tensor_value_info("i", TensorProto.INT64, []),
         helper.make_tensor_value_info("go", TensorProto.BOOL, []),
         helper.make_tensor_value_info("s", TensorProto.FLOAT, ["n"])],
        [helper.make_tensor_value_info("on", TensorProto.BOOL, []),
         helper.make_tensor_value_info("t", TensorProto.FLOAT, ["n"])],
    )  # fmt: skip
    nodes = [node("Loop", ["trips", "", "x"], ["y"], body=body)]
    model = make(nodes, ["y"], {"x": (TensorProto.FLOAT, ["n"]), "trips": (TensorProto.INT64, [])})
    with gp.onnx.load(model) as loaded:
        for n, trips in ((5, 3), (8, 0), (6, 40)):
            x = np.random.default_rng(n).integers(0, 4, n).astype(np.float32)
            found = loaded.run({"x": x, "trips": np.array(trips)})["y"]
            np.testing.assert_array_equal(found, x - trips * np.float32(len(np.unique(x))))


def test_a_closed_model_closes_its_data_dependent_part():
    model = gp.onnx.load(make([*FOUND, node("Neg", ["g"], ["y"])], ["y"]))
    model.run(feeds(3))
    part = data_dependent_of(model)
    model.close()
    assert part.is_closed


def test_inspect_and_traces_tell_the_data_dependent_part(tmp_path, capsys):
    path = tmp_path / "model.onnx"
    path.write_bytes(make([*FOUND, node("Neg", ["g"], ["y"])], ["y"]).SerializeToString())
    assert main(["inspect", str(path), "--shape", "x=60x4", "--shape", "mask=60"]) == 0
    told = capsys.readouterr().out
    assert "any_nonzero" in told
    assert "data_dependent" in told
    assert "Neg" in told
    with gp.onnx.load(path) as model:
        given = feeds(7)
        model.run(given)
        with gp.profile.trace() as recorded:
            model.run(given)
        recorded.name_ops(model.specialise(given))
    assert len({step.program for step in recorded.steps}) == 2
    assert all(step.program for step in recorded.steps)


def test_threads_within_the_limit_of_one_run():
    """Runs that find too little memory for the data-dependent part let go of all that they have, and go on alone."""
    given = [boxes_and_scores(400, seed) for seed in range(4)]
    with gp.onnx.load(detector()) as model:
        peak = model.predict_peak({"b": (1, 400, 4), "s": (1, 2, 400)})
        wanted = [model.run(each)["kept"] for each in given]
    with gp.onnx.load(detector(), memory_limit=peak) as model, ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            found = pool.map(lambda each: model.run(each)["kept"].copy(), given)
            for got, expected in zip(found, wanted, strict=True):
                np.testing.assert_array_equal(got, expected)


def test_a_model_and_its_data_dependent_part_can_be_pickled():
    with gp.onnx.load(make([*FOUND, node("Softmax", ["g"], ["y"])], ["y"])) as model:
        given = feeds(9)
        wanted = model.run(given)["y"]
        copied = pickle.loads(pickle.dumps(model))
    with copied.engine, copied:
        np.testing.assert_array_equal(copied.run(given)["y"], wanted)


def ranged(number=TensorProto.INT64, between=()):
    """The squares of a range whose end is the last of the nodes `between`, or without them the sum of x."""
    dtype = helper.tensor_dtype_to_np_dtype(number)
    nodes = [
        node("ReduceSum", ["x"], ["total"], keepdims=0), *between, node("Cast", [between[-1].output[0] if between else
        "total"], ["end"], to=number), node("Range", ["start", "end", "step"], ["places"], "the_range"),
        node("Cast", ["places"], ["numbers"], to=TensorProto.FLOAT), node("Mul", ["numbers", "numbers"], ["y"]),
    ]  # fmt: skip
    inputs = {"x": (TensorProto.FLOAT, ["n", "n"])}
    proto = make(nodes, ["y"], inputs)
    proto.graph.initializer.extend(
        [numpy_helper.from_array(np.array(value, dtype), name) for name, value in (("start", 2), ("step", 3))]
    )
    return proto


@pytest.mark.parametrize("number", [TensorProto.INT64, TensorProto.INT32, TensorProto.FLOAT])
def test_a_range_whose_end_only_the_run_tells(number):
    product = node("MatMul", ["x", "x"], ["product"])
    total = node("ReduceSum", ["product"], ["sum"], keepdims=0)
    with gp.onnx.load(ranged(number, [product, total]), fallback=False) as model:
        for root in (0, 2, 3, 6, 5, 1):
            x = np.zeros((3, 3), np.float32)
            x[0, 0] = root
            wanted = np.arange(2, root**2, 3, np.float32) ** 2
            np.testing.assert_allclose(model.run({"x": x})["y"], wanted)
        assert model.stats().compilations == 1  # behind a product of matrices no content makes a form of its own
        with pytest.raises(gp.GraphpoolError, match="the_range"):
            model.run({"x": np.full((3, 3), 1e8, np.float32)})
        with pytest.raises(gp.GraphpoolError, match="the_range"):
            model.run({"x": np.full((3, 3), np.nan, np.float32)} if number == TensorProto.FLOAT else {
                "x": np.full((3, 3), 1e8, np.float32)})  # fmt: skip


# ---- sizes that a run computes

SIZES = {
    "fill": (
        [node("ConstantOfShape", ["k"], ["y"])],
        lambda x, k: np.zeros(k, np.float32)),
    "repeat": (
        [node("Expand", ["share", "k"], ["y"])],
        lambda x, k: np.full(k, 0.5, np.float32)),
    "tile": (
        [node("Concat", ["one", "k"], ["times"], axis=0), node("Tile", ["x", "times"], ["y"])],
        lambda x, k: np.tile(x, (1, k))),
    "slice, of negative bounds too": (
        [node("Neg", ["k"], ["from"]), node("Slice", ["x", "from", "k", "zero"], ["y"])],
        lambda x, k: x[-k:k]),
    "pad, away too": (
        [node("Sub", ["k", "five"], ["d"]), node("Concat", ["zero", "zero", "k", "d"], ["pads"], axis=0),
         node("Pad", ["x", "pads"], ["y"])],
        lambda x, k: np.pad(x, ((0, k), (0, max(k - 5, 0))))[:, : 4 + k - 5]),
    "shape": (
        [node("Expand", ["row", "k"], ["e"]), node("Concat", ["k", "all"], ["s"], axis=0),
         node("Mul", ["k", "two"], ["kk"]), node("Expand", ["share", "kk"], ["h"]), node("Reshape", ["h", "s"], ["y"])],
        lambda x, k: np.full((k, 2), 0.5, np.float32)),
    "two of one number": (
        [node("ConstantOfShape", ["k"], ["a"]), node("Range", ["start", "count", "step"], ["b"]),
         node("Range", ["start", "count", "step"], ["c"]), node("Add", ["b", "c"], ["d"]),
         node("Cast", ["d"], ["e"], to=1), node("Add", ["a", "e"], ["y"])],
        lambda x, k: 2 * np.arange(k, dtype=np.float32)),
}  # fmt: skip
COUNTED = [
    node("ReduceMax", ["x"], ["top"], keepdims=0),
    node("Cast", ["top"], ["count"], to=TensorProto.INT64),
    node("Reshape", ["count", "one"], ["k"]),
    node("Sub", ["count", "count"], ["start"]),
    node("Squeeze", ["one"], ["step"]),
]


@pytest.mark.parametrize("name", SIZES)
def test_sizes_that_a_run_computes(name):
    nodes, expected = SIZES[name]
    file = make(COUNTED + nodes, ["y"], {"x": (TensorProto.FLOAT, ["n", 4])}).SerializeToString()
    with gp.onnx.load(file, fallback=False) as model:
        for count in (3, 5, 9, 2, 1):
            x = np.random.default_rng(count).random((7, 4), np.float32)
            x[2, 1] = count + 0.5
            np.testing.assert_array_equal(model.run({"x": x})["y"], expected(x, count))
        before = data_dependent_of(model).stats().compilations
        x[2, 1] = 8.5
        np.testing.assert_array_equal(model.run({"x": x})["y"], expected(x, 8))
        assert model.stats().compilations == 1
        assert data_dependent_of(model).stats().compilations == before


def test_large_inputs_make_no_forms_of_their_own():
    nodes = [node("ReduceMax", ["lengths"], ["k"]), node("ConstantOfShape", ["k"], ["y"])]
    ports = {"lengths": (TensorProto.INT64, ["batch"])}
    with gp.onnx.load(make(nodes, ["y"], ports).SerializeToString(), fallback=False) as model:
        for lengths in ([3, 7, 2], [8, 8, 1], [4, 5, 6]):
            assert model.run({"lengths": np.array(lengths)})["y"].shape == (max(lengths),)
        assert model.stats().compilations == 1


def test_extents_that_agree_in_every_run():
    """Of which the largest ones do not: as many rows as there are columns are found, in masks of any size."""
    nodes = [*FOUND, node("ReduceSum", ["g", "one"], ["s"], keepdims=0), node("Add", ["s", "w"], ["y"])]
    inputs = {"x": (TensorProto.FLOAT, ["n", 4]), "mask": (TensorProto.BOOL, ["n"]), "w": (TensorProto.FLOAT, ["k"])}
    with gp.onnx.load(make(nodes, ["y"], inputs), fallback=False) as model:
        for count, n in ((5, 60), (7, 60), (3, 20)):
            given = feeds(count, n)
            w = np.arange(count, dtype=np.float32)
            result = model.run({**given, "w": w})["y"]
            np.testing.assert_allclose(result, given["x"][given["mask"]].sum(1) + w, rtol=1e-6, atol=1e-6)
        with pytest.raises(gp.InvalidShapeError, match=r"\(Add\)"):
            model.run({**feeds(5), "w": np.ones(6, np.float32)})


def test_a_branch_of_data_dependent_results():
    def graph(nodes, result):
        return helper.make_graph(nodes, result, [], [helper.make_tensor_value_info(result, TensorProto.FLOAT, None)])

    found = graph([*FOUND, node("Identity", ["g"], ["a"])], "a")
    whole = graph([node("Identity", ["x"], ["b"])], "b")
    nodes = [
        node("ReduceMax", ["x"], ["top"], keepdims=0),
        node("Squeeze", ["row_of_one"], ["least"]),
        node("Greater", ["top", "least"], ["is_large"]),
        node("If", ["is_large"], ["c"], then_branch=found, else_branch=whole),
        node("Neg", ["c"], ["y"]),
    ]
    file = make(nodes, ["y"])
    file.graph.initializer.append(numpy_helper.from_array(np.array([10], np.float32), "row_of_one"))
    with gp.onnx.load(file.SerializeToString(), fallback=False) as model:
        for scale in (1, 100, 1, 50):
            given = feeds(20, seed=scale)
            given["x"] *= scale
            want = given["x"] if scale == 1 else given["x"][given["mask"]]
            np.testing.assert_array_equal(model.run(given)["y"], -want)


def test_branches_that_read_bounds_of_slices_and_state_no_types():
    """A branch slices by integers of the run, which a branch inside it reads as numbers."""
    inner = node(
        "If", ["is_long"], ["part"],
        then_branch=branch(node("Cast", ["count"], ["float"], to=TensorProto.FLOAT),
                           node("Div", ["sum", "float"], ["mean"])),
        else_branch=branch(node("Identity", ["sum"], ["same"])),
    )  # fmt: skip
    sliced = [
        node("Slice", ["x", "first", "last"], ["rows"]), node("ReduceSum", ["rows", "zero"], ["sum"]),
        node("Sub", ["last", "first"], ["count"]), node("Greater", ["count", "one"], ["is_long"]), inner,
    ]  # fmt: skip
    nodes = [
        node("Greater", ["last", "first"], ["is_some"]),
        node("If", ["is_some"], ["y"], then_branch=branch(*sliced),
             else_branch=branch(node("Identity", ["row"], ["ones"]))),
    ]  # fmt: skip
    bounds = {name: (TensorProto.INT64, ["k"]) for name in ("from", "to")}
    nodes[:0] = [node("Add", [own, "zero"], [name]) for own, name in (("from", "first"), ("to", "last"))]
    x = np.random.default_rng(0).standard_normal((9, 4)).astype(np.float32)
    with gp.onnx.load(make(nodes, ["y"], {"x": (TensorProto.FLOAT, ["n", 4]), **bounds}), fallback=False) as model:
        for first, last in ((2, 6), (3, 4), (5, 5)):
            want = x[first:last].mean(0, keepdims=True) if last > first else np.ones((1, 4))
            got = model.run({"x": x, "from": np.array([first]), "to": np.array([last])})["y"]
            np.testing.assert_allclose(got, want, rtol=1e-5)
