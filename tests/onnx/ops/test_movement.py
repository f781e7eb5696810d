import numpy as np
import pytest
from onnx import helper, numpy_helper

import graphpool as gp
from tests.helpers.onnx_models import check_against_evaluator, node_model, random_array

X = random_array((2, 3, 4, 1))


def ints(*values):
    return np.array(values, "int64")


@pytest.mark.parametrize("shape", [(6, 4), (0, -1), (-1,), (2, 0, 2, 2), (1, 2, 3, 4, 1)])
@pytest.mark.parametrize("is_constant", [True, False])
def test_reshape(shape, is_constant):
    model = node_model("Reshape", [X, ints(*shape)], constants={1} if is_constant else ())
    assert check_against_evaluator(*model) == 0


def reshape_that_keeps_zeros(shape, wanted):
    """The shape that a Reshape with `allowzero` gives to an array of ones."""
    infos = [helper.make_tensor_value_info("x", 1, ["a", "b", "c"]), helper.make_tensor_value_info("y", 1, None)]
    node = helper.make_node("Reshape", ["x", "shape"], ["y"], allowzero=1)
    constants = [numpy_helper.from_array(ints(*wanted), "shape")]
    graph = helper.make_graph([node], "g", infos[:1], infos[1:], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    with gp.onnx.load(model) as loaded:
        return loaded.run({"x": np.ones(shape, "float32")})["y"].shape


@pytest.mark.parametrize(
    ("shape", "wanted", "result"),
    [
        ((2, 0, 12), (2, 0, -1, 4), (2, 0, 3, 4)),
        ((0, 3, 12), (0, -1), (0, 36)),
        ((5, 0, 4), (-1, 0, 4), (5, 0, 4)),
        ((0, 2, 4), (0, -1, 0), (0, 8, 0)),
    ],
)
def test_reshape_of_nothing_whose_zeros_stay(shape, wanted, result):
    """PyTorch's exports meet it in empty batches; results are those of ONNX Runtime, since ONNX leaves them open."""
    assert reshape_that_keeps_zeros(shape, wanted) == result


@pytest.mark.parametrize(("shape", "wanted"), [((5, 0, 4), (0, -1, 3)), ((5, 2, 4), (0, -1))])
def test_reshape_that_no_size_fits_beside_zeros_that_stay(shape, wanted):
    with pytest.raises(gp.GraphpoolError, match="Reshape"):
        reshape_that_keeps_zeros(shape, wanted)


@pytest.mark.parametrize("axis", [0, 1, -1, 4])
def test_flatten(axis):
    assert check_against_evaluator(*node_model("Flatten", [X], axis=axis)) == 0


@pytest.mark.parametrize(
    ("kind", "axis"), [("Flatten", 5), ("Flatten", -5), ("Concat", 4), ("Hardmax", 4), ("Hardmax", -5)]
)
def test_axes_that_there_are_not(kind, axis):
    infos = helper.make_tensor_value_info("x", 1, X.shape), helper.make_tensor_value_info("y", 1, None)
    graph = helper.make_graph(
        [helper.make_node(kind, ["x"], ["y"], f"the_{kind}", axis=axis)], "g", *[[i] for i in infos]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    with pytest.raises(gp.InvalidShapeError, match=f"'the_{kind}' .*axis"):
        gp.onnx.load(model)


def test_squeeze_and_unsqueeze():
    assert check_against_evaluator(*node_model("Squeeze", [X])) == 0
    assert check_against_evaluator(*node_model("Squeeze", [X, ints(-1)])) == 0
    assert check_against_evaluator(*node_model("Unsqueeze", [X, ints(0, -1)])) == 0
    assert check_against_evaluator(*node_model("Unsqueeze", [X], opset=11, axes=[1])) == 0


@pytest.mark.parametrize(
    ("sizes", "attrs"), [((5, 1, 0, 4), {}), ((3, 4), {"axes": [-1, 1]}), ((2, 3, 4, 1), {}), ((7,), {"axes": [2]})]
)
def test_center_crop_pad(sizes, attrs):
    assert check_against_evaluator(*node_model("CenterCropPad", [X, ints(*sizes)], **attrs)) == 0


def test_center_crop_pad_with_a_size_too_few():
    node = helper.make_node("CenterCropPad", ["x", "sizes"], ["y"], "the_crop")
    x, y = (helper.make_tensor_value_info(name, 1, ["a", "b", "c"]) for name in "xy")
    graph = helper.make_graph([node], "g", [x, helper.make_tensor_value_info("sizes", 7, [2])], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    with gp.onnx.load(model) as loaded, pytest.raises(gp.InvalidShapeError, match=r"'the_crop' .*number of axes"):
        loaded.run({"x": random_array((5, 2, 1)), "sizes": ints(3, 3)})


def test_a_pad_with_a_quantised_number():
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["number"]),
        helper.make_node("Pad", ["x", "pads", "number"], ["y"]),
    ]
    given = {"q": np.uint8(9), "s": np.float32(0.5), "z": np.uint8(5), "pads": ints(0, 1, 0, 0)}
    constants = [numpy_helper.from_array(np.asarray(value), name) for name, value in given.items()]
    infos = [helper.make_tensor_value_info(name, 1, [2, None]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    x = random_array((2, 3))
    with gp.onnx.load(model, fallback=False) as loaded:
        [found] = loaded.run({"x": x}).values()
    np.testing.assert_array_equal(found, np.pad(x, ((0, 0), (1, 0)), constant_values=2.0))


@pytest.mark.parametrize("attributes", [{}, {"perm": [0, 2, 1, 3]}])
@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_transpose(attributes, dtype):
    check_against_evaluator(*node_model("Transpose", [X.astype(dtype)], **attributes))


@pytest.mark.parametrize("axis", [1, -2])
def test_concat(axis):
    assert check_against_evaluator(*node_model("Concat", [X, X * 2, X + 1], axis=axis)) == 0


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_depth_to_space_and_back(mode):
    assert (
        check_against_evaluator(*node_model("DepthToSpace", [random_array((2, 8, 3, 2))], blocksize=2, mode=mode)) == 0
    )
    assert check_against_evaluator(*node_model("SpaceToDepth", [random_array((2, 3, 4, 6))], blocksize=2)) == 0


@pytest.mark.parametrize("mode", ["linear", "circular"])
def test_a_cache_is_updated(mode):
    past, update = random_array((2, 3, 6, 2)), random_array((2, 3, 2, 2), seed=1)
    model = node_model("TensorScatter", [past, update, ints(1, 4)], opset=24, mode=mode)
    assert check_against_evaluator(*model) == 0


@pytest.mark.parametrize("attributes", [{"axis": 0}, {"axis": -2}])
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool"])
def test_gather(attributes, dtype):
    model = node_model("Gather", [X.astype(dtype), ints(0, -1)], **attributes)
    assert check_against_evaluator(*model) == 0


@pytest.mark.parametrize("index", [np.array(1), np.array(-1), ints(0), np.array([[2]], np.int32)], ids=repr)
@pytest.mark.parametrize("axis", [0, 2, -2])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "bool"])
def test_a_known_index_cuts_without_a_gather(index, axis, dtype):
    x = random_array((3, 4, 3, 5)).astype(dtype)
    model, inputs = node_model("Gather", [x, index], constants=(1,), axis=axis)
    assert check_against_evaluator(model, inputs) == 0
    with gp.onnx.load(model) as loaded:
        assert not any(op.kind == "Gather" for partition in loaded.partitions for op in partition.ops)


def test_scatter():
    updates = random_array((2, 3, 1, 1), seed=1)
    indices = np.array([[[[0]], [[3]], [[-1]]], [[[1]], [[1]], [[2]]]])
    assert check_against_evaluator(*node_model("ScatterElements", [X, indices, updates], axis=2)) == 0


@pytest.mark.parametrize("attributes", [{}, {"opset": 9, "starts": [0, 1], "ends": [2, -1], "axes": [0, 2]}])
def test_slice(attributes):
    bounds = [] if attributes else [ints(1, 3), ints(-4, 0), ints(0, 2), ints(-1, -2)]
    assert check_against_evaluator(*node_model("Slice", [X, *bounds], **attributes)) == 0


@pytest.mark.parametrize("sizes", [None, (1, 3), (4,)])
def test_split(sizes):
    inputs = [X] if sizes is None else [X, ints(*sizes)]
    count = 2 if sizes is None else len(sizes)
    options = {"num_outputs": 2} if sizes is None else {}
    assert check_against_evaluator(*node_model("Split", inputs, noutputs=count, axis=2, opset=18, **options)) == 0


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
def test_pad(mode):
    assert check_against_evaluator(*node_model("Pad", [X, ints(1, 2, 2, 0), None, ints(1, 2)], mode=mode)) == 0


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
def test_negative_pads_take_away(mode):
    """Before others are added, as in ONNX Runtime."""
    node = helper.make_node("Pad", ["x", "p", "v"], ["y"], mode=mode)
    inputs = {"x": X, "p": ints(0, -1, 1, 0, 0, 1, -2, 0), "v": np.array(2.5, "float32")}
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in inputs.items()
    ]
    graph = helper.make_graph([node], "g", infos, [helper.make_tensor_value_info("y", 1, [None] * 4)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    with gp.onnx.load(model, fallback=False) as loaded:
        result = loaded.run(inputs)["y"]
    options = {"constant_values": 2.5} if mode == "constant" else {}
    want = np.pad(X[:, 1:, :2], [(0, 0), (0, 1), (1, 0), (0, 0)], mode, **options)
    np.testing.assert_array_equal(result, want)


def test_copies():
    assert check_against_evaluator(*node_model("Expand", [X, ints(5, 1, 3, 1, 2)])) == 0
    assert check_against_evaluator(*node_model("Tile", [X, ints(2, 1, 1, 3)])) == 0
    assert check_against_evaluator(*node_model("Trilu", [X[0], np.array(1)], upper=0)) == 0


def test_more_than_64_parts_are_joined_in_stages():
    parts = [X * k for k in range(70)]
    assert check_against_evaluator(*node_model("Concat", parts, axis=1)) == 0


FAR = 2**63 - 1


@pytest.mark.parametrize("constants", [(), (0, 1, 2, 3, 4), (1, 2, 3, 4)])
@pytest.mark.parametrize(("start", "end", "step", "wanted"), [
    (-9, -FAR, -1, [0]), (-4, -FAR, -2, [0]), (-9, -9, -1, [0]), (FAR, -FAR, -2, [2, 0]), (1, -FAR, -1, [1, 0]),
    (-9, FAR, 2, [0, 2]), (-2, FAR, 1, [1, 2]), (2, 0, -1, [2, 1]), (9, 9, 1, []), (0, 0, -1, []), (-FAR, -9, 1, []),
])  # fmt: skip
def test_bounds_outside_are_taken_in_as_the_specification_says(start, end, step, wanted, constants):
    """A start in front of the axis is its first element, when steps go back too; NumPy finds nothing there."""
    x = random_array((2, 3))
    model, inputs = node_model("Slice", [x, *(ints(v) for v in (start, end, 1, step))], constants=constants)
    with gp.onnx.load(model, fallback=False) as loaded:
        np.testing.assert_array_equal(loaded.run(inputs)["y0"], x[:, wanted])


@pytest.mark.parametrize("step", [1, -1])
def test_a_slice_of_nothing(step):
    x = np.zeros((2, 0), "float32")
    model, inputs = node_model("Slice", [x, *(ints(v) for v in (-5, 5, 1, step))], constants=(1, 2, 3, 4))
    with gp.onnx.load(model, fallback=False) as loaded:
        assert loaded.run(inputs)["y0"].shape == (2, 0)


@pytest.mark.parametrize("constants", [(1, 2), (0, 1, 2)])
@pytest.mark.parametrize(("dtype", "number"), [("int64", FAR), ("int32", 2**31 - 1), ("float64", 0.1)])
def test_pads_of_a_number_that_float32_does_not_hold(dtype, number, constants):
    """Where others are taken away, too."""
    x = random_array((3, 4), dtype)
    pads = ints(1, 2, 1, 0)  # the evaluator, which says the type, takes no negative ones
    model, inputs = node_model("Pad", [x, pads, np.array(number, dtype)], constants=constants)
    tensor = next(tensor for tensor in model.graph.initializer if tensor.name == "x1")
    tensor.CopyFrom(numpy_helper.from_array(ints(-1, 2, 1, 0), "x1"))
    with gp.onnx.load(model, fallback=False) as loaded:
        result = loaded.run(inputs)["y0"]
    np.testing.assert_array_equal(result, np.pad(x[1:], [(0, 1), (2, 0)], constant_values=number))


A, B = np.ones((3, 4), np.float32), np.ones(6, np.float32)
INVALID = {
    "Reshape: two unknown": ("Reshape", {"a": B, "s": np.array([-1, -1])}, {}, {"s": np.array([2, -1])}),
    "Reshape: other size": ("Reshape", {"a": B, "s": np.array([2, 2])}, {}, {"s": np.array([2, 3])}),
    "Squeeze": ("Squeeze", {"a": A, "axes": np.array([0])}, {}, {"a": A[:1]}),
    "Split": ("Split", {"a": A, "s": np.array([4, -1])}, {}, {"s": np.array([2, 1])}),
    "TopK": ("TopK", {"a": A, "k": np.array([-1])}, {}, {"k": np.array([2])}),
    "Pad": ("Pad", {"a": B, "pads": np.array([-4, -3])}, {}, {"pads": np.array([-4, -2])}),
    "Split: more parts than there is": ("Split", {"a": A[:1]}, {"axis": 0, "num_outputs": 3}, {"a": A}),
    "Pad: nothing to repeat": (
        "Pad", {"a": A[:, :0], "pads": np.array([0, 0, 0, 1])}, {"mode": "edge"}, {"pads": np.zeros(4, np.int64)},
    ),
    "Resize": ("Resize", {"a": A, "s": np.array([-2, 4])}, {}, {"s": np.array([2, 4])}),
    "Resize: to nothing": ("Resize", {"a": A, "s": np.array([0, 4])}, {}, {"s": np.array([6, 4])}),
    "Resize: from nothing": ("Resize", {"a": A[:0], "s": np.array([2, 4])}, {}, {"a": A}),
    "ScatterElements": (
        "ScatterElements", {"a": A, "i": np.array([[0, 1]]), "u": A[:1, :3]}, {"axis": 1}, {"u": A[:1, :2]},
    ),
    "ScatterND": ("ScatterND", {"a": A, "i": np.array([[0], [1]]), "u": A[:2, :3]}, {}, {"u": A[:2]}),
    "GatherElements": (
        "GatherElements", {"a": A, "i": np.zeros((2, 5), np.int64)}, {}, {"i": np.zeros((2, 4), np.int64)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", INVALID)
def test_sizes_that_no_runtime_takes_are_refused_by_name(name):
    op, inputs, attributes, valid = INVALID[name]
    names = ["a", "", "", "s"] if op == "Resize" else list(inputs)
    outputs = ["y", "z", "w"][: attributes.get("num_outputs", 2)] if op in ("Split", "TopK") else ["y"]
    made = helper.make_node(op, names, outputs, name="it", **attributes)
    ports = [
        helper.make_tensor_value_info(
            key, helper.np_dtype_to_tensor_dtype(array.dtype), [None] * array.ndim if key in "aui" else array.shape
        )
        for key, array in inputs.items()
    ]
    results = [helper.make_tensor_value_info(key, 0, None) for key in outputs]
    graph = helper.make_graph([made], "g", ports, results)
    with gp.onnx.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])) as model:
        for _ in range(2):
            with pytest.raises(gp.InvalidArgumentError, match=rf"node 'it' \({op}\)"):
                model.run(inputs)
            assert model.run(inputs | valid)["y"].ndim > 0
