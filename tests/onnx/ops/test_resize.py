import numpy as np
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import graphpool as gp
from tests.helpers.onnx_models import check_against_evaluator, node_model, peer_session, random_array

X = random_array((1, 2, 4, 6))
EMPTY = np.array([], "float32")


def resize(scales=None, sizes=None, **attributes):
    inputs = [X, EMPTY, EMPTY if scales is None else np.array(scales, "float32")]
    if sizes is not None:
        inputs = [X, None, None, np.array(sizes, "int64")]
    return node_model("Resize", inputs, constants={1, 2, 3}, opset=19, **attributes)


@pytest.mark.parametrize("size", [
    {"scales": [1, 1, 2, 3]}, {"sizes": [1, 2, 8, 9]}, {"scales": [1, 1, 0.5, 0.5]}, {"sizes": [1, 5, 9, 6]},
    {"scales": [1, 2, 0.5, 1]},
])  # fmt: skip
def test_linear(size):
    assert check_against_evaluator(*resize(mode="linear", **size)) == 0


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32"])
@pytest.mark.parametrize("factor", [2, 4])
def test_linear_integers_are_cut_off(dtype, factor):
    """As in ONNX Runtime."""
    x = random_array((1, 2, 4, 6), dtype)
    scales = np.array([1, 1, factor, factor], "float32")
    reals, given = node_model("Resize", [x.astype("float32"), EMPTY, scales], constants={1, 2}, opset=19, mode="linear")
    [expected] = ReferenceEvaluator(reals).run(None, given)
    model, given = node_model("Resize", [x, EMPTY, scales], constants={1, 2}, opset=19, mode="linear")
    with gp.onnx.load(model, fallback=False) as loaded:
        [found] = loaded.run(given).values()
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, np.trunc(expected))


@pytest.mark.parametrize("mode", ["linear", "cubic", "nearest"])
@pytest.mark.parametrize(("scales", "sizes"), [([1, 1, 1.7, 1.3], [1, 2, 6, 7]), ([1, 1, 1.2, 2.5], [1, 2, 4, 15])])
def test_aligned_corners_of_larger_sizes_follow_from_whole_ones(mode, scales, sizes):
    """As in PyTorch and ONNX Runtime."""
    coordinates = {"coordinate_transformation_mode": "align_corners", "mode": mode}
    [expected] = ReferenceEvaluator(resize(sizes=sizes, **coordinates)[0]).run(None, resize(sizes=sizes)[1])
    model, given = resize(scales=scales, **coordinates)
    with gp.onnx.load(model, fallback=False) as loaded:
        np.testing.assert_allclose(loaded.run(given)["y0"], expected, atol=1e-5)


def test_aligned_corners():
    coordinates = {"coordinate_transformation_mode": "align_corners"}
    assert check_against_evaluator(*resize(mode="linear", sizes=[1, 2, 7, 11], **coordinates)) == 0


@pytest.mark.parametrize(("attributes", "hosted"), [
    ({}, 0),
    ({"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}, 0),
    ({"coordinate_transformation_mode": "asymmetric", "nearest_mode": "ceil"}, 0),
])  # fmt: skip
def test_nearest(attributes, hosted):
    assert check_against_evaluator(*resize(scales=[1, 1, 2, 3], mode="nearest", **attributes)) == hosted


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16", "int32", "int64"])
@pytest.mark.parametrize("scales", [[1, 1, 2, 2], [1, 1, 1, 3], [1, 5, 4, 1], [1, 1, 1.5, 0.5]])
def test_nearest_of_integers(dtype, scales):
    info, rng = np.iinfo(dtype), np.random.default_rng(2)
    x = rng.integers(info.min, info.max, X.shape, dtype, endpoint=True)
    inputs = [x, EMPTY, np.array(scales, "float32")]
    attributes = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    model = node_model("Resize", inputs, constants={1, 2}, opset=19, mode="nearest", **attributes)
    assert check_against_evaluator(*model) == 0


@pytest.mark.parametrize("rounding", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
@pytest.mark.parametrize(
    "size", [{"scales": [1, 1, 0.5, 0.5]}, {"sizes": [1, 2, 7, 5]}, {"scales": [1, 2, 0.625, 1.75]}]
)
def test_ties_between_two_elements(rounding, size):
    assert check_against_evaluator(*resize(mode="nearest", nearest_mode=rounding, **size)) == 0


@pytest.mark.parametrize("target", [(3, 5), (2, 3), (2, 5), (400, 401)])
def test_nearest_pixels_of_planes(target):
    """Steps of one length, tables of pixels, and tables of rows and columns where those would be too large."""
    model, inputs = resize(
        sizes=[1, 2, *target], mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"
    )
    rows, columns = (
        np.floor(np.arange(n, dtype="float32") / (np.float32(n) / np.float32(size))).astype(int)
        for n, size in zip(target, X.shape[2:], strict=True)
    )
    with gp.onnx.load(model, fallback=False) as loaded:
        np.testing.assert_array_equal(loaded.run(inputs)["y0"], X[:, :, rows[:, None], columns])


@pytest.mark.parametrize("coordinates", [
    "half_pixel", "half_pixel_symmetric", "align_corners", "asymmetric", "pytorch_half_pixel",
])  # fmt: skip
@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("size", [{"scales": [1, 1, 2, 0.4]}, {"sizes": [1, 2, 3, 11]}, {"scales": [2, 1, 1, 1.5]}])
def test_weighted(coordinates, mode, size):
    assert check_against_evaluator(*resize(mode=mode, coordinate_transformation_mode=coordinates, **size)) == 0


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("exclude", [0, 1])
def test_antialiasing(mode, exclude):
    options = {"antialias": 1, "exclude_outside": exclude}
    assert check_against_evaluator(*resize(mode=mode, scales=[1, 1, 0.5, 0.3], **options)) == 0


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
def test_a_kept_aspect_ratio(policy):
    assert (
        check_against_evaluator(*resize(mode="cubic", sizes=[9, 8], axes=[3, 2], keep_aspect_ratio_policy=policy)) == 0
    )


def test_a_cropped_part_with_values_outside():
    roi = np.array([0, 0, -0.2, 0.3, 1, 1, 0.7, 1.4], "float32")
    sizes = np.array([1, 2, 5, 3], "int64")
    options = {"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 3.5}
    assert check_against_evaluator(*node_model("Resize", [X, roi, None, sizes], opset=19, **options)) == 0


def test_upsample():
    scales = np.array([1, 1, 2, 3], "float32")
    assert check_against_evaluator(*node_model("Upsample", [X, scales], constants={1}, opset=9)) == 0


@pytest.mark.parametrize("target", [2, 3, 7, 10])
def test_half_pixels_for_the_nearest_element_as_opset_11_has_them(target):
    x = random_array((1, 1, 5, 1))
    node = helper.make_node(
        "Resize", ["x", "roi", "roi", "sizes"], ["y"], mode="nearest", nearest_mode="floor",
        coordinate_transformation_mode="tf_half_pixel_for_nn",
    )  # fmt: skip
    info = helper.make_tensor_value_info("x", 1, x.shape)
    tensors = [helper.make_tensor("roi", 1, [0], []), helper.make_tensor("sizes", 7, [4], [1, 1, target, 1])]
    graph = helper.make_graph([node], "g", [info], [helper.make_tensor_value_info("y", 1, [None] * 4)], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=8)
    places = np.floor((np.arange(target) + 0.5) * 5 / target).astype(int)
    with gp.onnx.load(model, fallback=False) as loaded:
        np.testing.assert_array_equal(loaded.run({"x": x})["y"], x[:, :, places])


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("coordinates", ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"])
def test_any_sizes_of_one_compilation(mode, coordinates):
    resized = helper.make_node(
        "Resize", ["x", "", "", "sizes"], ["y"], mode=mode, coordinate_transformation_mode=coordinates
    )
    nodes = [
        helper.make_node("Shape", ["like"], ["to"], start=1),
        helper.make_node("Concat", ["first", "to"], ["sizes"], axis=0),
        resized,
    ]
    ports = [
        helper.make_tensor_value_info(name, 1, shape)
        for name, shape in {"x": [1, 2, "h", "w"], "like": [1, "a", "b"], "y": None}.items()
    ]
    first = helper.make_tensor("first", 7, [2], [1, 2])
    graph = helper.make_graph(nodes, "g", ports[:2], ports[2:], [first])
    file = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    oracle = ReferenceEvaluator(file)
    with gp.onnx.load(file.SerializeToString(), fallback=False) as model:
        for size, target in (((4, 6), (7, 11)), ((5, 9), (3, 12)), ((12, 7), (6, 7)), ((9, 9), (30, 14))):
            given = {"x": random_array((1, 2, *size)), "like": np.zeros((1, *target), np.float32)}
            np.testing.assert_allclose(model.run(given)["y"], oracle.run(None, given)[0], atol=2e-5)
        assert model.stats().compilations <= 2


@pytest.mark.parametrize("scale", [0.6, 1.7, 1 / 3])
@pytest.mark.parametrize("coordinates", ["half_pixel", "asymmetric", "pytorch_half_pixel"])
@pytest.mark.parametrize(
    "attributes",
    [
        {"mode": "linear"}, {"mode": "cubic"}, {"nearest_mode": "floor"}, {"nearest_mode": "ceil"},
        {"nearest_mode": "round_prefer_floor"}, {"nearest_mode": "round_prefer_ceil"},
    ],
)  # fmt: skip
def test_any_size_by_a_scale_that_is_no_fraction(attributes, coordinates, scale):
    node = helper.make_node(
        "Resize", ["x", "", "scales"], ["y"], coordinate_transformation_mode=coordinates, **attributes
    )

    def resized(height, width):
        ports = [helper.make_tensor_value_info(*port) for port in (("x", 1, [1, 2, height, width]), ("y", 1, None))]
        scales = helper.make_tensor("scales", 1, [4], [1, 1, scale, scale])
        graph = helper.make_graph([node], "g", ports[:1], ports[1:], [scales])
        file = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
        return gp.onnx.load(file.SerializeToString(), fallback=False)

    with resized("h", "w") as model:
        for size in ((10, 20), (11, 9), (17, 30), (35, 8)):
            x = random_array((1, 2, *size))
            with resized(*size) as fixed:
                wanted = fixed.run({"x": x})["y"]
            np.testing.assert_allclose(model.run({"x": x})["y"], wanted, atol=1e-6 if "mode" in attributes else 0)
        assert model.stats().compilations == 1


def line_model(size, scale=None, target=None, **attributes):
    """A Resize of (1, 1, size)."""
    values = [None, None, np.array([1, 1, scale], "float32"), None]
    if scale is None:
        values = [None, None, None, np.array([1, 1, target], "int64")]
    inputs = [np.arange(size, dtype="float32").reshape(1, 1, size), *values[1:]]
    return node_model("Resize", inputs, constants={2, 3}, opset=19, **attributes)


@pytest.mark.parametrize("coordinates", ["half_pixel", "pytorch_half_pixel", "asymmetric"])
@pytest.mark.parametrize("rounding", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
def test_the_nearest_element_is_that_of_onnx_runtime(coordinates, rounding):
    """It finds places in f32, where whole numbers and middles come out otherwise than in double precision."""
    pytest.importorskip("onnxruntime")
    rng = np.random.default_rng(0)
    for number in range(40):
        size = int(rng.integers(2, 300))
        length = (
            {"target": int(rng.integers(1, 300))} if number % 2 else {"scale": round(float(rng.uniform(0.3, 4)), 1)}
        )
        options = {"coordinate_transformation_mode": coordinates, "nearest_mode": rounding}
        model, inputs = line_model(size, mode="nearest", **length, **options)
        session = peer_session(model)
        [expected] = session.run(None, inputs)
        for dim in (None, "width"):
            if dim:
                model.graph.input[0].type.tensor_type.shape.dim[2].dim_param = dim
            with gp.onnx.load(model) as loaded:
                np.testing.assert_array_equal(loaded.run(inputs)["y0"], expected, f"{size} {length}")


@pytest.mark.parametrize(("size", "scale", "target"), [(28, 79 / 28, 79), (10, 1.7, 17), (100, 0.29, 29), (3, 0.4, 1)])
def test_a_size_is_a_product_of_f32(size, scale, target):
    """As ONNX infers it, though the scale may be a little less than the fraction that was meant."""
    for dim in (None, "width"):
        model, inputs = line_model(size, scale, mode="linear")
        if dim:
            model.graph.input[0].type.tensor_type.shape.dim[2].dim_param = dim
        with gp.onnx.load(model) as loaded:
            assert loaded.run(inputs)["y0"].shape == (1, 1, target)


def test_a_scale_that_changes_no_size_changes_nothing():
    model, inputs = line_model(52, 1.001, mode="nearest", nearest_mode="floor")
    with gp.onnx.load(model) as loaded:
        np.testing.assert_array_equal(loaded.run(inputs)["y0"], inputs["x0"])


@pytest.mark.parametrize("size", [{"scales": np.float32([1, 1, 2, 1.5])}, {"sizes": np.int64([0, 2, 8, 9])}])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_a_batch_of_no_images(size, mode):
    [(name, numbers)] = size.items()
    node = helper.make_node("Resize", ["x", "", "s"] if name == "scales" else ["x", "", "", "s"], ["y"], mode=mode)
    ports = [helper.make_tensor_value_info(key, 1, list("abcd")) for key in ("x", "y")]
    graph = helper.make_graph([node], "g", ports[:1], ports[1:], [numpy_helper.from_array(numbers, "s")])
    with gp.onnx.load(helper.make_model(graph), fallback=False) as loaded:
        assert loaded.run({"x": np.ones((0, 2, 4, 6), np.float32)})["y"].shape == (0, 2, 8, 9)
