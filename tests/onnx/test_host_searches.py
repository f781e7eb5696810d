"""What finds elements on the host: best boxes and unique values, with inputs left out; old opsets of other ops."""

import itertools

import numpy as np
import pytest
from onnx import TensorProto, ValueInfoProto, helper, numpy_helper

import graphpool as gp
from tests.helpers.onnx_models import random_array


def run(kind, inputs, elems, *, opset=18, constants=(), omit=False, **attributes):
    """The results; an input or output of None is left out, by an empty name or, at the end with `omit`, by none."""
    names = ["" if value is None else f"x{k}" for k, value in enumerate(inputs)]
    outputs = ["" if elem is None else f"y{k}" for k, elem in enumerate(elems)]
    given = {name: value for name, value in zip(names, inputs, strict=True) if name}
    fixed = {f"x{k}" for k in constants} & given.keys()
    while omit and not names[-1]:
        names.pop()
    node = helper.make_node(kind, names, outputs, name=f"the_{kind}", **attributes)
    infos = [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
             for name, value in given.items() if name not in fixed]  # fmt: skip
    results = [ValueInfoProto(name=name) for name in outputs if name]
    for result, elem in zip(results, [elem for elem in elems if elem], strict=True):
        result.type.tensor_type.elem_type = elem
        result.type.tensor_type.shape.SetInParent()
    tensors = [numpy_helper.from_array(given[name], name) for name in sorted(fixed)]
    graph = helper.make_graph([node], "g", infos, results, tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    with gp.onnx.load(model) as loaded:
        return list(loaded.run({name: value for name, value in given.items() if name not in fixed}).values())


def share(a, b):
    """Intersection over union of two boxes of corners."""
    sides = [min(a[k + 2], b[k + 2]) - max(a[k], b[k]) for k in (0, 1)]
    if min(sides) <= 0:
        return 0.0
    common = sides[0] * sides[1]
    return common / (sum((x[2] - x[0]) * (x[3] - x[1]) for x in (a, b)) - common)


def best_boxes(boxes, scores, most, overlap, least):
    """The definition, box by box."""
    found = []
    for batch, kind in np.ndindex(scores.shape[:2]):
        row, chosen = scores[batch, kind], []
        for place in sorted(range(len(row)), key=lambda place: (-row[place], place)):
            if len(chosen) == most or (least is not None and row[place] <= least):
                break
            if all(share(boxes[batch, place], boxes[batch, other]) <= overlap for other in chosen):
                chosen.append(place)
        found += [(batch, kind, place) for place in chosen]
    return np.array(found, np.int64).reshape(-1, 3)


RNG = np.random.default_rng(3)
CORNERS = np.sort(RNG.random((2, 2, 9, 2)), 1).transpose(0, 2, 1, 3).reshape(2, 9, 4).astype("float32")
SCORES = RNG.permutation(2 * 3 * 9).reshape(2, 3, 9).astype("float32") / 54
MOST, OVERLAP, LEAST = np.array([3]), np.array([0.2], "float32"), np.array([0.4], "float32")
LEFT_OUT = list(itertools.product([False, True], repeat=3))


@pytest.mark.parametrize("given", LEFT_OUT)
@pytest.mark.parametrize("constants", [(), (2, 3, 4), (0, 1, 2, 3, 4)])
def test_the_best_boxes_with_inputs_left_out(given, constants):
    limits = [value if is_given else None for value, is_given in zip((MOST, OVERLAP, LEAST), given, strict=True)]
    most, overlap, least = (None if value is None else value[0] for value in limits)
    wanted = best_boxes(CORNERS, SCORES, most or 0, overlap or 0, least)
    for omit in (False, True):
        [got] = run("NonMaxSuppression", [CORNERS, SCORES, *limits], [TensorProto.INT64], opset=11, omit=omit,
                    constants=constants)  # fmt: skip
        np.testing.assert_array_equal(got, wanted)


def test_limits_may_be_scalars_and_corners_lie_anyhow():
    turned = CORNERS[..., [2, 1, 0, 3]]
    limits = [value.reshape(()) for value in (MOST, OVERLAP, LEAST)]
    [got] = run("NonMaxSuppression", [turned, SCORES, *limits], [TensorProto.INT64], opset=11)
    np.testing.assert_array_equal(got, best_boxes(CORNERS, SCORES, 3, np.float32(0.2), np.float32(0.4)))


def test_boxes_of_centres():
    sizes = CORNERS[..., 2:] - CORNERS[..., :2]
    centred = np.concatenate([CORNERS[..., :2] + sizes / 2, sizes], -1)
    [got] = run("NonMaxSuppression", [centred, SCORES, MOST, OVERLAP, None], [TensorProto.INT64], opset=11,
                center_point_box=1)  # fmt: skip
    np.testing.assert_array_equal(got, best_boxes(CORNERS, SCORES, 3, np.float32(0.2), None))


def test_equal_scores_go_by_place_and_empty_boxes_overlap_nothing():
    boxes = np.zeros((1, 3, 4), "float32")
    [got] = run("NonMaxSuppression", [boxes, np.ones((1, 1, 3), "float32"), MOST, OVERLAP], [TensorProto.INT64])
    assert got.tolist() == [[0, 0, 0], [0, 0, 1], [0, 0, 2]]


@pytest.mark.parametrize("shape", [(1, 0, 4), (0, 3, 4)])
def test_no_boxes(shape):
    scores = np.zeros((shape[0], 2, shape[1]), "float32")
    [got] = run("NonMaxSuppression", [np.zeros(shape, "float32"), scores, MOST], [TensorProto.INT64])
    assert got.shape == (0, 3)


def unique_parts(x, axis, is_sorted):
    """The definition: values (of an axis: slices), where each is first, where each element went, how often."""
    slices = x.reshape(-1, 1) if axis is None else np.moveaxis(x, axis, 0).reshape(x.shape[axis], -1)
    rows = [tuple(row) for row in slices.tolist()]
    kinds = sorted(set(rows)) if is_sorted else list(dict.fromkeys(rows))
    first = [rows.index(kind) for kind in kinds]
    values = x.reshape(-1)[first] if axis is None else np.take(x, first, axis)
    return [values, np.array(first), np.array([kinds.index(row) for row in rows]),
            np.array([rows.count(kind) for kind in kinds])]  # fmt: skip


@pytest.mark.parametrize("is_sorted", [0, 1])
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("constants", [(), (0,)])
def test_unique_values_in_both_orders(is_sorted, axis, constants):
    x = np.random.default_rng(5).integers(0, 2, (5, 3)).astype("float32")[::-1].copy()
    options = {"sorted": is_sorted} | ({} if axis is None else {"axis": axis})
    wanted = unique_parts(x, axis, is_sorted)
    elems = [TensorProto.FLOAT, *[TensorProto.INT64] * 3]
    for kept in ((0, 1, 2, 3), (0,), (0, 2), (0, 3)):
        asked = [elem if k in kept else None for k, elem in enumerate(elems[: kept[-1] + 1])]
        results = run("Unique", [x], asked, constants=constants, opset=11, **options)
        for k, got in zip(kept, results, strict=True):
            np.testing.assert_array_equal(got, wanted[k])


@pytest.mark.parametrize("constants", [(), (0, 1, 2)])
def test_regions_of_old_opsets_lie_half_a_pixel_further(constants):
    x, regions = random_array((1, 2, 8, 8)), np.array([[0, 0, 5, 5], [1, 2, 7, 6]], "float32")
    sizes = {"output_height": 3, "output_width": 2}
    inputs = [x, regions, np.array([0, 0])]
    [old] = run("RoiAlign", inputs, [TensorProto.FLOAT], opset=10, constants=constants, **sizes)
    [new] = run("RoiAlign", inputs, [TensorProto.FLOAT], opset=16,
                coordinate_transformation_mode="output_half_pixel", **sizes)  # fmt: skip
    np.testing.assert_array_equal(old, new)


@pytest.mark.parametrize(("old", "new"), [("bilinear", "linear"), ("bicubic", "cubic"), ("nearest", "nearest")])
def test_names_of_interpolations_of_old_opsets(old, new):
    inputs = [random_array((1, 2, 4, 4)), random_array((1, 3, 3, 2))]
    results = [run("GridSample", inputs, [TensorProto.FLOAT], opset=opset, mode=mode, padding_mode="reflection")
               for opset, mode in ((16, old), (20, new))]  # fmt: skip
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize(("attributes", "dtype"), [({}, "int32"), ({"dtype": TensorProto.INT64, "seed": 2.0}, "int64")])
def test_classes_are_drawn_by_their_weights(attributes, dtype):
    weights = np.array([[0.1, 0.2, 0.7, 0], [0, 0.5, 0.5, 0], [0, 0, 0, 1]])
    with np.errstate(divide="ignore"):
        x = np.log(weights * [[1], [1e30], [1e-30]]).astype("float32")
    node = helper.make_node("Multinomial", ["x"], ["y"], sample_size=20000, **attributes)
    port = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 4])
    graph = helper.make_graph([node], "g", [port], [ValueInfoProto(name="y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    with gp.onnx.load(model, fallback=False) as loaded:
        first, second = (loaded.run({"x": x})["y"] for _ in range(2))
        with pytest.raises(gp.BackendError, match=r"Multinomial.*no numbers, or all zero"):
            loaded.run({"x": np.full_like(x, np.nan)})
    assert (first.dtype, first.shape) == (np.dtype(dtype), (3, 20000))
    shares = [np.bincount(row, minlength=4) / 20000 for row in first]
    np.testing.assert_allclose(shares, weights, atol=0.02)
    assert not np.array_equal(first, second)
    with gp.onnx.load(model) as one, gp.onnx.load(model) as other:
        again = [loaded.run({"x": x})["y"] for loaded in (one, other)]
    assert np.array_equal(*again) == ("seed" in attributes)


@pytest.mark.parametrize(("kind", "attributes", "mean", "spread"), [
    ("RandomNormal", {"mean": 3.0, "scale": 2.0, "shape": [400, 500]}, 3, 2),
    ("RandomNormalLike", {"mean": -1.0, "dtype": TensorProto.DOUBLE}, -1, 1),
    ("RandomUniform", {"low": 2.0, "high": 4.0, "shape": [400, 500]}, 3, 2 / 12**0.5),
    ("RandomUniformLike", {"seed": 5.0}, 0.5, 1 / 12**0.5),
    ("Bernoulli", {"dtype": TensorProto.DOUBLE}, 0.25, 0.25 * 3**0.5),
])  # fmt: skip
def test_random_numbers_differ_from_run_to_run(kind, attributes, mean, spread):
    names = [] if "shape" in attributes else ["x"]
    drawn = helper.make_node(kind, names, ["r"], **attributes)
    ports = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 500])]
    nodes = [drawn, helper.make_node("Neg", ["r"], ["y"]), helper.make_node("Neg", ["x"], ["z"])]
    graph = helper.make_graph(nodes, "g", ports, [ValueInfoProto(name="y"), ValueInfoProto(name="z")])
    file = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    x = np.full((400, 500), 0.25, np.float32)
    with gp.onnx.load(file, fallback=False) as model:
        first, second = (-model.run({"x": x})["y"] for _ in range(2))
    assert first.dtype == (np.float64 if attributes.get("dtype") else np.float32)
    assert first.shape == (400, 500)
    assert abs(first.mean() - mean) < 0.03
    assert abs(first.std() - spread) < 0.03
    assert not np.array_equal(first, second)
