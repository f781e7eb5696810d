import numpy as np
import pytest
from onnx import helper

import graphpool as gp
from tests.helpers.onnx_models import assert_close, check_against_evaluator, node_model, random_array

X = random_array((2, 4, 9, 8))


@pytest.mark.parametrize("kind", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("attributes", [
    {}, {"strides": [2, 2]}, {"pads": [1, 1, 1, 1]}, {"strides": [2, 2], "ceil_mode": 1},
    {"auto_pad": "SAME_UPPER"}, {"strides": [3, 2], "auto_pad": "SAME_LOWER"},
])  # fmt: skip
def test_pool(kind, attributes):
    assert check_against_evaluator(*node_model(kind, [X], kernel_shape=[3, 2], **attributes)) == 0


@pytest.mark.parametrize("attributes", [{"strides": [2, 1], "pads": [1, 0, 1, 1]}, {"dilations": [2, 1]}])
def test_maxima_of_doubles(attributes):
    x = random_array((2, 3, 9, 8), "float64")
    assert check_against_evaluator(*node_model("MaxPool", [x], kernel_shape=[3, 2], **attributes)) == 0


def test_mean_over_padding_too():
    model = node_model("AveragePool", [X], kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1)
    assert check_against_evaluator(*model) == 0


@pytest.mark.parametrize("kind", ["MaxPool", "AveragePool"])
def test_no_window_starts_behind_the_input(kind):
    x = random_array((1, 1, 2, 2))
    assert check_against_evaluator(*node_model(kind, [x], kernel_shape=[1, 1], strides=[2, 2], ceil_mode=1)) == 0


@pytest.mark.parametrize("pads", [0, 1])
@pytest.mark.parametrize("kind", ["MaxPool", "AveragePool"])
def test_a_window_larger_than_the_input_is_one_window(kind, pads):
    """Where the input lacks less than a stride: the number of windows is rounded towards zero, as by ONNX Runtime."""
    x = random_array((2, 3, 2 - pads, 8))
    model, inputs = node_model(kind, [x], kernel_shape=[4, 1], strides=[3, 1], pads=[pads, 0, 0, 0])
    with gp.onnx.load(model, fallback=False) as loaded:
        result = loaded.run(inputs)["y0"]
    assert_close(result, (np.max if kind == "MaxPool" else np.mean)(x, axis=2, keepdims=True))


@pytest.mark.parametrize("kind", ["GlobalAveragePool", "GlobalMaxPool"])
def test_global_pool(kind):
    assert check_against_evaluator(*node_model(kind, [X])) == 0


@pytest.mark.parametrize("pads", [(0, 0, 0, 0), (1, 2, 1, 0)])
@pytest.mark.parametrize("includes_pads", [0, 1])
@pytest.mark.parametrize("rounds_up", [0, 1])
def test_a_dilated_mean(pads, includes_pads, rounds_up):
    options = {"kernel_shape": [3, 2], "dilations": [2, 3], "strides": [2, 3], "pads": list(pads)}
    model, inputs = node_model("Identity", [X])
    node = helper.make_node(
        "AveragePool", ["x0"], ["y0"], count_include_pad=includes_pads, ceil_mode=rounds_up, **options
    )
    model.graph.node[0].CopyFrom(node)
    with gp.onnx.load(model, fallback=False) as loaded:
        result = loaded.run(inputs)["y0"]
    assert_close(result, dilated_mean(X, options, includes_pads, rounds_up))


@pytest.mark.parametrize(("options", "shape"), [
    ({"kernel_shape": [1, 2, 3], "strides": [3, 3, 2]}, (3, 3, 4)),  # rounded down, down and up
    ({"kernel_shape": [1, 3, 2], "strides": [2, 3, 2], "auto_pad": "VALID"}, (4, 3, 4)),
    ({"kernel_shape": [2, 2, 9], "strides": [3, 3, 2], "pads": [0, 1, 0, 0, 0, 0]}, (3, 4, 1)),  # the last is short
])  # fmt: skip
@pytest.mark.parametrize("kind", ["MaxPool", "AveragePool", "AveragePool with pads"])
def test_each_axis_rounds_up_by_itself(kind, options, shape):
    x = random_array((2, 3, 8, 9, 8))
    model, inputs = node_model("Identity", [x])
    given = {"count_include_pad": 1} if kind.endswith("pads") else {}
    node = helper.make_node(kind.split()[0], ["x0"], ["y0"], ceil_mode=1, **options, **given)
    model.graph.node[0].CopyFrom(node)
    with gp.onnx.load(model, fallback=False) as loaded:
        result = loaded.run(inputs)["y0"]
    assert result.shape == (2, 3, *shape)
    begin = [*options.get("pads", [0] * 6)][:3]
    far = np.pad(x, [(0, 0), (0, 0), *((number, 9) for number in begin)], constant_values=np.nan)
    if given:  # pads count, what sticks out behind them does not
        far[:, :, : 8 + begin[0], : 9 + begin[1], : 8 + begin[2]] = np.nan_to_num(
            far[:, :, : 8 + begin[0], : 9 + begin[1], : 8 + begin[2]]
        )
    found = np.empty(result.shape, np.float32)
    for place in np.ndindex(*shape):
        spans = [slice(p * s, p * s + k)
                 for p, s, k in zip(place, options["strides"], options["kernel_shape"], strict=True)]  # fmt: skip
        best = np.nanmax if kind == "MaxPool" else np.nanmean
        found[(..., *place)] = best(far[(..., *spans)], axis=(2, 3, 4))
    assert_close(result, found)


def test_pads_count_where_the_input_lacks_less_than_a_stride():
    x = random_array((1, 2, 1, 7))
    model, inputs = node_model(
        "AveragePool", [x], kernel_shape=[2, 3], strides=[2, 3], pads=[0, 1, 0, 1], count_include_pad=1
    )
    with gp.onnx.load(model, fallback=False) as loaded:
        result = loaded.run(inputs)["y0"]
    padded = np.pad(x, [(0, 0), (0, 0), (0, 0), (1, 1)]).reshape(1, 2, 1, 3, 3)
    assert_close(result, padded.mean(-1))


def dilated_mean(x, options, includes_pads, rounds_up):
    """Window by window; NaN stands for what counts in no mean."""
    (top, left, bottom, right), fill = options["pads"], 0.0 if includes_pads else np.nan
    padded = np.pad(x, [(0, 0), (0, 0), (top, bottom), (left, right)], constant_values=fill)
    far = np.pad(padded, [(0, 0), (0, 0), (0, 9), (0, 9)], constant_values=np.nan)
    places = []
    for k in (0, 1):
        size, begin, stride = x.shape[2 + k], options["pads"][k], options["strides"][k]
        span = padded.shape[2 + k] - (options["kernel_shape"][k] - 1) * options["dilations"][k] - 1
        last = -(-span // stride) if rounds_up else span // stride
        starts = [stride * number for number in range(last + 1) if stride * number < size + begin]
        places.append(
            [[start + tap * options["dilations"][k] for tap in range(options["kernel_shape"][k])] for start in starts]
        )
    rows = [np.stack([np.nanmean(far[:, :, r][..., c], axis=(2, 3)) for c in places[1]], -1) for r in places[0]]
    return np.stack(rows, -2)


@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize("attributes", [{}, {"strides": [2, 2], "pads": [1, 0, 1, 1]}, {"auto_pad": "SAME_UPPER"}])
def test_norms_of_windows(p, attributes):
    assert check_against_evaluator(*node_model("LpPool", [X], kernel_shape=[3, 2], p=p, opset=18, **attributes)) == 0


@pytest.mark.parametrize("size", [1, 3, 4])
@pytest.mark.parametrize("shape", [(2, 6, 3, 4), (2, 5, 7)])
def test_normalisation_by_neighbouring_channels(size, shape):
    x = random_array(shape)
    radius = (size - 1) // 2, size // 2
    padded = np.pad(x.astype("float64") ** 2, [(0, 0), radius, *[(0, 0)] * (len(shape) - 2)])
    sums = sum(padded[:, k : k + shape[1]] for k in range(size))
    model, inputs = node_model("Identity", [x])
    model.graph.node[0].op_type = "LRN"
    model.graph.node[0].attribute.extend(
        [helper.make_attribute("size", size), helper.make_attribute("alpha", 0.3), helper.make_attribute("beta", 0.6)]
    )
    with gp.onnx.load(model, fallback=False) as loaded:
        assert_close(loaded.run(inputs)["y0"], (x / (1 + 0.3 / size * sums) ** 0.6).astype("float32"))


def test_maxima_of_bytes():
    x = random_array((1, 2, 6, 6), "uint8")
    assert check_against_evaluator(*node_model("MaxPool", [x], kernel_shape=[2, 2], strides=[2, 1])) == 0


def places_of_maxima(x, kernel, strides, begin, counts, dilations, is_column_major):
    """The definition: for each window the largest element, the first of equal ones, and its number."""
    values, places = np.zeros((2, *x.shape[:2], *counts))
    for index in np.ndindex(*values.shape):
        starts = [k * s - b for k, s, b in zip(index[2:], strides, begin, strict=True)]
        window = [(a + i * dilations[0], b + j * dilations[1]) for a, b in [starts]
                  for i in range(kernel[0]) for j in range(kernel[1])]  # fmt: skip
        inside = [place for place in window if all(0 <= v < size for v, size in zip(place, x.shape[2:], strict=True))]
        best = max(inside, key=lambda place: x[*index[:2], *place])
        number = np.ravel_multi_index(best, x.shape[2:], order="F" if is_column_major else "C")
        values[index] = x[*index[:2], *best]
        places[index] = (index[0] * x.shape[1] + index[1]) * x[0, 0].size + number
    return values.astype(x.dtype), places.astype("int64")


@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")  # ONNX's evaluator, asked for types, pads bytes
@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("dtype", ["float32", "uint8"])
@pytest.mark.parametrize("constants", [(), (0,)])
@pytest.mark.parametrize(("options", "begin", "counts"), [
    ({"strides": [2, 1], "pads": [1, 0, 1, 1]}, [1, 0], [3, 5]),
    ({"strides": [2, 3], "auto_pad": "SAME_UPPER"}, [0, 0], [3, 2]),
    ({"strides": [2, 3], "auto_pad": "SAME_LOWER", "ceil_mode": 1}, [1, 0], [3, 2]),
    ({"strides": [1, 1], "auto_pad": "SAME_LOWER"}, [1, 1], [5, 5]),
    ({"strides": [3, 2], "ceil_mode": 1, "dilations": [1, 2]}, [0, 0], [2, 2]),
])  # fmt: skip
def test_maxima_and_their_places(options, begin, counts, order, dtype, constants):
    x = random_array((2, 3, 5, 5), dtype)
    model, inputs = node_model("MaxPool", [x], constants=constants, noutputs=2, kernel_shape=[2, 2],
                               storage_order=order, **options)  # fmt: skip
    dilations = options.get("dilations", [1, 1])
    wanted = places_of_maxima(x, [2, 2], options["strides"], begin, counts, dilations, bool(order))
    with gp.onnx.load(model, fallback=False) as loaded:
        for got, expected in zip(loaded.run(inputs).values(), wanted, strict=True):
            np.testing.assert_array_equal(got, expected)


def test_a_global_norm_of_any_power():
    x = random_array((2, 3, 4, 5))
    model, inputs = node_model("Identity", [x])
    model.graph.node[0].op_type = "GlobalLpPool"
    model.graph.node[0].attribute.append(helper.make_attribute("p", 3))
    with gp.onnx.load(model, fallback=False) as loaded:
        wanted = (np.abs(x) ** 3).sum((2, 3), keepdims=True) ** (1 / 3)
        np.testing.assert_allclose(loaded.run(inputs)["y0"], wanted, rtol=1e-5)


@pytest.mark.parametrize("output_shape", [None, [2, 3, 9, 8]])
@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_maxima_put_back(output_shape, dtype):
    """Each at its place among zeros, which count in the smallest output; what is larger has zeros behind it."""
    x = random_array((2, 3, 8, 6), dtype)
    maxima, places = places_of_maxima(x, [2, 2], [2, 2], [0, 0], [4, 3], [1, 1], is_column_major=False)
    arrays = [maxima, places, *([] if output_shape is None else [np.array(output_shape)])]
    constants = () if output_shape is None else (2,)
    model, inputs = node_model("MaxUnpool", arrays, constants=constants, kernel_shape=[2, 2], strides=[2, 2])
    wanted = np.zeros(x.size, dtype)
    wanted[places.reshape(-1)] = maxima.reshape(-1)
    wanted = wanted.reshape(x.shape)
    if output_shape is not None:
        wanted = np.pad(wanted, [(0, last - size) for last, size in zip(output_shape, x.shape, strict=True)])
    with gp.onnx.load(model, fallback=False) as loaded:
        np.testing.assert_array_equal(loaded.run(inputs)["y0"], wanted)
