"""Shape rules against NumPy's and ONNX's, and the wording of shape errors."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from graphpool.errors import GraphpoolError, InvalidShapeError
from graphpool.graph import shapes
from graphpool.graph.schema import SCHEMAS, Attribute, get_schema
from graphpool.typing import UNKNOWN_DIM, DataType
from tests.helpers.schema_cases import CONV, POOL, FakeOp, case, make_op

U = UNKNOWN_DIM
DIMS = st.lists(st.sampled_from([0, 1, 1, 2, 3]), max_size=4).map(tuple)
PADDING = ("None", "VALID", "SAME_UPPER", "SAME_LOWER")


def text(shape: tuple[int, ...], dtype: str = "f32") -> str:
    return f"{dtype} " + ",".join("?" if dim == U else str(dim) for dim in shape)


def infer(kind: str, *inputs: tuple[int, ...], values: dict[int, Any] | None = None, **attrs: Any) -> Any:
    """Shape of the only output."""
    [shape] = make_op(kind, [text(shape) for shape in inputs], ["f32 *"], **attrs).infer(values)
    return shape


def numpy_shape(function: Any, *operands: tuple[int, ...]) -> Any:
    try:
        return function(*(np.zeros(shape, np.int8) for shape in operands)).shape
    except ValueError:
        return None


@given(DIMS, DIMS)
def test_broadcast_is_numpys(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    expected = numpy_shape(np.add, a, b)
    if expected is None:
        with pytest.raises(InvalidShapeError, match="does not broadcast"):
            infer("Add", a, b)
        axis = shapes.broadcast_shapes(a, b)
        assert isinstance(axis, int)
        assert a[axis] != b[axis]
    else:
        assert infer("Add", a, b) == shapes.broadcast_shapes(a, b) == expected
    assert shapes.is_broadcastable(a, b) is (expected == b)


@given(DIMS, DIMS, st.data())
def test_broadcast_of_unknown_dimensions_agrees_with_every_completion(
    a: tuple[int, ...], b: tuple[int, ...], data: st.DataObject
) -> None:
    expected = numpy_shape(np.add, a, b)
    assume(expected is not None)
    hidden = [tuple(U if data.draw(st.booleans()) else dim for dim in shape) for shape in (a, b)]
    found = shapes.broadcast_shapes(*hidden)
    assert not isinstance(found, int)
    assert len(found) == len(expected)
    assert all(x in (U, y) for x, y in zip(found, expected, strict=True))


@given(st.data(), st.booleans(), st.booleans())
def test_matmul_is_numpys(data: st.DataObject, transpose_a: bool, transpose_b: bool) -> None:
    sides = [data.draw(st.lists(st.sampled_from([1, 2, 3]), min_size=1, max_size=4).map(tuple)) for _ in "ab"]

    def product(a: Any, b: Any) -> Any:
        return np.matmul(
            a.swapaxes(-1, -2) if transpose_a and a.ndim > 1 else a,
            b.swapaxes(-1, -2) if transpose_b and b.ndim > 1 else b,
        )

    expected = numpy_shape(product, *sides)
    attrs = {"transpose_a": transpose_a, "transpose_b": transpose_b}
    if expected is None:
        with pytest.raises(InvalidShapeError):
            infer("MatMul", *sides, **attrs)
    else:
        assert infer("MatMul", *sides, **attrs) == expected


def test_matmul_message_names_everything() -> None:
    op = make_op("MatMul", ["f32 8,256", "f32 128,512"], ["f32 *"])
    with pytest.raises(InvalidShapeError) as info:
        op.infer()
    assert str(info.value) == (
        'op 3 "n" (MatMul): input "weights" (tensor 11) has the wrong dimension 0; accepted: 256 (the inner dimension '
        'of input "src" (tensor 10), (8, 256), transpose_a=False); got: 128 in shape (128, 512)'
    )
    fields = {"op_id": 3, "op_kind": "MatMul", "port": "weights", "tensor_id": 11, "dim": 0, "expected": 256}
    assert info.value.fields == fields
    with pytest.raises(InvalidShapeError, match="wrong dimension 1"):
        infer("MatMul", (8, 256), (512, 128), transpose_b=True)
    with pytest.raises(InvalidShapeError, match=r'input "bias" \(tensor 12\) does not broadcast to the result'):
        infer("MatMul", (2, 3), (3, 4), (2, 2, 4))
    with pytest.raises(InvalidShapeError, match=r"batch dimensions .* accepted: \(2,\), or 1; got: \(3,\)"):
        infer("MatMul", (2, 4, 4), (3, 4, 4))


def onnx_shape(kind: str, attrs: dict[str, Any], *inputs: tuple[int, ...], opset: int = 18) -> tuple[int, ...] | None:
    """ONNX's strict shape inference; None where it refuses or finds nothing."""
    values = [helper.make_tensor_value_info(f"x{i}", TensorProto.FLOAT, list(shape)) for i, shape in enumerate(inputs)]
    node = helper.make_node(kind, [value.name for value in values], ["y"], **attrs)
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "g", values, [out])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    try:
        inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True)
    except onnx.shape_inference.InferenceError:
        return None
    return tuple(dim.dim_value for dim in inferred.graph.output[0].type.tensor_type.shape.dim)


WINDOWS = st.fixed_dictionaries(
    {
        "size": st.integers(1, 9), "kernel": st.integers(1, 4), "stride": st.integers(1, 3),
        "dilation": st.integers(1, 2), "begin": st.integers(0, 2), "end": st.integers(0, 2),
    }
)  # fmt: skip


def _attrs(axes: list[dict[str, int]], auto_pad: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The same attributes in graphpool's and in ONNX's spelling."""
    columns = {name: [axis[name] for axis in axes] for name in axes[0]}
    both = {"strides": columns["stride"], "dilations": columns["dilation"]}
    ours = both | {"pads_begin": columns["begin"], "pads_end": columns["end"], "auto_pad": auto_pad}
    if auto_pad == "None":
        return ours, both | {"pads": columns["begin"] + columns["end"]}
    return ours, both | {"auto_pad": auto_pad}


def _fits(axes: list[dict[str, int]], auto_pad: str) -> bool:
    """Whether every window fits in its padded axis. ONNX's inference rounds towards zero and so overlooks some."""
    if auto_pad.startswith("SAME"):
        return True
    pads = [axis["begin"] + axis["end"] if auto_pad == "None" else 0 for axis in axes]
    spans = [axis["dilation"] * (axis["kernel"] - 1) + 1 for axis in axes]
    return all(axis["size"] + pad >= span for axis, pad, span in zip(axes, pads, spans, strict=True))


@settings(max_examples=60)
@given(st.lists(WINDOWS, min_size=1, max_size=3), st.sampled_from(PADDING), st.integers(1, 3), st.booleans())
def test_convolution_is_onnxs(axes: list[dict[str, int]], auto_pad: str, groups: int, channels_last: bool) -> None:
    ours, theirs = _attrs(axes, auto_pad)
    spatial, kernel = [axis["size"] for axis in axes], [axis["kernel"] for axis in axes]
    weights = (2 * groups, 2, *kernel)
    expected = onnx_shape("Conv", theirs | {"group": groups}, (2, 2 * groups, *spatial), weights)
    src = (2, *spatial, 2 * groups) if channels_last else (2, 2 * groups, *spatial)
    formats = {"data_format": "NXC" if channels_last else "NCX", "weights_format": "OIX"}
    if not _fits(axes, auto_pad):
        with pytest.raises(InvalidShapeError, match="gives no output along spatial dimension"):
            infer("Convolution", src, weights, **ours, groups=groups, **formats)
        return
    found = infer("Convolution", src, weights, **ours, groups=groups, **formats)
    assert found == ((2, *expected[2:], expected[1]) if channels_last else expected)
    gradient = {"dst_shape": src, "groups": groups, **formats}
    assert infer("ConvolutionBackwardData", found, weights, **ours, **gradient) == src
    gradient = {"weights_shape": weights, "groups": groups, **formats}
    assert infer("ConvolutionBackwardWeights", src, found, **ours, **gradient) == weights


@settings(max_examples=60)
@given(st.lists(WINDOWS, min_size=1, max_size=3), st.sampled_from(PADDING), st.integers(1, 3), st.integers(0, 1))
def test_transposed_convolution_is_onnxs(
    axes: list[dict[str, int]], auto_pad: str, groups: int, output_padding: int
) -> None:
    # Where the window is shorter than the stride, ONNX's SAME has gaps to fill that padding cannot express.
    assume(auto_pad in ("None", "VALID") or all(a["dilation"] * (a["kernel"] - 1) + 1 >= a["stride"] for a in axes))
    assume(output_padding == 0 or all(a["stride"] > 1 for a in axes))
    ours, theirs = _attrs(axes, auto_pad)
    spatial, kernel = [axis["size"] for axis in axes], [axis["kernel"] for axis in axes]
    extra = {"output_padding": [output_padding] * len(axes)}
    src, weights = (2, 2 * groups, *spatial), (2 * groups, 2, *kernel)
    formats = {"data_format": "NCX", "weights_format": "IOX", "groups": groups}
    expected = onnx_shape("ConvTranspose", theirs | extra | {"group": groups}, src, weights)
    if auto_pad.startswith("SAME"):
        expected = (2, 2 * groups, *(axis["size"] * axis["stride"] for axis in axes))
    if expected is None or min(expected) < 1:
        with pytest.raises(InvalidShapeError, match="gives no output along spatial dimension"):
            infer("ConvTranspose", src, weights, **ours, **extra, **formats)
        return
    found = infer("ConvTranspose", src, weights, **ours, **extra, **formats)
    assert found == expected
    if auto_pad == "None" and output_padding == 0:
        assert infer("ConvTransposeBackwardData", found, weights, **ours, **formats) == src
        shape = {"weights_shape": weights}
        assert infer("ConvTransposeBackwardWeights", src, found, **ours, **formats, **shape) == weights


@settings(max_examples=60)
@given(st.lists(WINDOWS, min_size=1, max_size=3), st.sampled_from(PADDING), st.booleans())
def test_pooling_is_onnxs(axes: list[dict[str, int]], auto_pad: str, ceil: bool) -> None:
    # ONNX drops a ceiling window that would start behind the input; oneDNN, and so graphpool, keeps it.
    assume(not ceil or (auto_pad == "None" and _fits(axes, auto_pad)))
    assume(not ceil or all(axis["end"] == 0 and axis["stride"] <= axis["kernel"] for axis in axes))
    ours, theirs = _attrs(axes, auto_pad)
    kernel = [axis["kernel"] for axis in axes]
    src = (2, 3, *(axis["size"] for axis in axes))
    expected = onnx_shape("MaxPool", theirs | {"kernel_shape": kernel, "ceil_mode": int(ceil)}, src)
    rounding = {"rounding_type": "ceil"} if ceil else {}
    common = {**ours, "kernel": kernel, "data_format": "NCX"}
    if not _fits(axes, auto_pad):
        with pytest.raises(InvalidShapeError, match="gives no output along spatial dimension"):
            infer("MaxPool", src, **common, **rounding)
        return
    found = infer("MaxPool", src, **common, **rounding)
    assert found == expected
    assert infer("MaxPoolBackward", src, found, **common) == src


@pytest.mark.parametrize(
    ("kernel", "stride", "size", "upper"),
    [(3, 1, 5, (1, 1)), (2, 1, 5, (0, 1)), (3, 2, 6, (0, 1)), (3, 2, 5, (1, 1)), (1, 2, 5, (0, 0))],
)
def test_same_padding_puts_the_odd_element_last_or_first(
    kernel: int, stride: int, size: int, upper: tuple[int, int]
) -> None:
    attrs = {"strides": (stride,), "dilations": (1,), "pads_begin": (9,), "pads_end": (9,)}
    begin, end = shapes.resolve_pads(attrs | {"auto_pad": "SAME_UPPER"}, [size], [kernel])
    assert (begin[0], end[0]) == upper
    begin, end = shapes.resolve_pads(attrs | {"auto_pad": "SAME_LOWER"}, [size], [kernel])
    assert (end[0], begin[0]) == upper
    assert shapes.resolve_pads(attrs | {"auto_pad": "VALID"}, [size], [kernel]) == ((0,), (0,))
    assert shapes.resolve_pads(attrs, [size], [kernel]) == ((9,), (9,))
    assert shapes.resolve_pads(attrs | {"auto_pad": "SAME_UPPER"}, [U], [kernel]) == ((0,), (0,))


def test_transposed_same_padding() -> None:
    attrs = {"auto_pad": "SAME_UPPER", "strides": (2,), "dilations": (1,), "output_padding": (0,) * 12}
    assert shapes.resolve_pads(attrs, [5], [3], transposed=True) == ((0,), (1,))
    assert shapes.resolve_pads(attrs | {"auto_pad": "SAME_LOWER"}, [5], [3], transposed=True) == ((1,), (0,))
    assert shapes.resolve_pads(attrs, [5], [1], transposed=True) == ((0,), (0,))


def test_axes_of_formats() -> None:
    assert shapes.spatial_axes(5, "NCX") == (2, 3, 4)
    assert shapes.spatial_axes(5, "NXC") == (1, 2, 3)
    assert (shapes.channel_axis(4, "NCX"), shapes.channel_axis(4, "NXC")) == (1, 3)
    assert shapes.conv_weight_axes(4, "OIX") == (1, 0, (2, 3))
    assert shapes.conv_weight_axes(4, "IOX") == (0, 1, (2, 3))
    assert shapes.conv_weight_axes(4, "XIO") == (2, 3, (0, 1))
    assert shapes.conv_weight_axes(4, "XOI") == (3, 2, (0, 1))


def test_list_attributes_have_one_number_per_axis() -> None:
    assert shapes.per_axis({"strides": (2, 3)}, "strides", 2) == (2, 3)
    assert shapes.per_axis({"dilations": (1,) * 12}, "dilations", 2) == (1, 1)
    assert shapes.per_axis({}, "output_padding", 2, 0) == (0, 0)
    with pytest.raises(InvalidShapeError, match='"strides" has the wrong length; accepted: 2, one for each'):
        shapes.per_axis({"strides": (2, 3, 4)}, "strides", 2)


def test_errors_of_geometry_name_the_op() -> None:
    with pytest.raises(InvalidShapeError, match=r'op 3 "n" \(Convolution\): attribute "strides" has the wrong') as info:
        infer("Convolution", (2, 8, 8, 4), (3, 3, 4, 6), **(CONV | {"strides": (1,)}))
    assert (info.value.op_id, info.value.attribute) == (3, "strides")


@given(DIMS, st.data(), st.booleans())
def test_reduction_is_numpys(shape: tuple[int, ...], data: st.DataObject, keep_dims: bool) -> None:
    ndim = len(shape)
    axes = data.draw(st.lists(st.integers(-ndim, ndim - 1), min_size=1, max_size=ndim)) if ndim else [0]
    try:
        expected = np.zeros(shape).sum(axis=tuple(axes), keepdims=keep_dims).shape
    except ValueError:
        with pytest.raises(InvalidShapeError, match=r'"axes" (names an axis twice|is out of range)'):
            infer("ReduceSum", shape, axes=axes, keep_dims=keep_dims)
        return
    assert infer("ReduceSum", shape, axes=axes, keep_dims=keep_dims) == expected
    values = {1: np.array(axes, np.int32)}
    assert infer("ReduceSum", shape, (len(axes),), keep_dims=keep_dims, values=values) == expected
    unknown = infer("ReduceSum", shape, (len(axes),), keep_dims=keep_dims)
    assert unknown == ((U,) * ndim if keep_dims else None)


@given(DIMS, st.lists(st.integers(-1, 4), max_size=4).map(tuple))
def test_reshape_is_numpys(shape: tuple[int, ...], target: tuple[int, ...]) -> None:
    expected = numpy_shape(lambda x: x.reshape(target), shape)
    if expected is None:
        with pytest.raises(InvalidShapeError, match=r"malformed|cannot be reshaped"):
            infer("StaticReshape", shape, shape=target, special_zero=False)
    else:
        assert infer("StaticReshape", shape, shape=target, special_zero=False) == expected


def test_reshape_copies_and_divides() -> None:
    assert infer("StaticReshape", (2, 3, 4), shape=(0, 0, -1), special_zero=True) == (2, 3, 4)
    assert infer("StaticReshape", (U, 3, 4), shape=(0, -1), special_zero=True) == (U, U)
    assert infer("StaticReshape", (U, 4), shape=(2, 8), special_zero=True) == (2, 8)
    with pytest.raises(InvalidShapeError, match="copies a dimension that src does not have"):
        infer("StaticReshape", (4,), shape=(2, 0), special_zero=True)
    with pytest.raises(InvalidShapeError, match=r"accepted: 7 elements, for shape \(7,\); got: 6 in \(2, 3\)"):
        infer("StaticReshape", (2, 3), shape=(7,), special_zero=True)
    for malformed in ((-1, -1), (-2,), (1,) * 13):
        with pytest.raises(InvalidShapeError, match='"shape" is malformed'):
            infer("StaticReshape", (1,), shape=malformed, special_zero=True)


@given(st.permutations(range(4)))
def test_transpose_is_numpys(order: list[int]) -> None:
    assert infer("StaticTranspose", (2, 3, 4, 5), order=order) == np.zeros((2, 3, 4, 5)).transpose(order).shape
    assert infer("StaticTranspose", (2, 3, 4, 5), order=[axis - 4 for axis in order]) == tuple(
        (2, 3, 4, 5)[axis] for axis in order
    )


def test_transpose_orders() -> None:
    assert infer("StaticTranspose", (2, 3, 4), order=()) == (4, 3, 2)
    for order, message in (((0, 0, 1), "no permutation"), ((0, 1), "no permutation"), ((0, 1, 3), "out of range")):
        with pytest.raises(ValueError, match=message):
            infer("StaticTranspose", (2, 3, 4), order=order)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=5), st.integers(-3, 2))
def test_concat_is_numpys(sizes: list[int], axis: int) -> None:
    parts = [tuple(size if i == axis % 3 else 2 for i in range(3)) for size in sizes]
    expected = np.concatenate([np.zeros(part) for part in parts], axis).shape
    assert infer("Concat", *parts, axis=axis) == expected


def test_concat_refuses_and_completes() -> None:
    assert infer("Concat", (2, U), (U, 3), axis=1) == (2, U)
    with pytest.raises(InvalidShapeError, match=r'"src_i" \(tensor 11\) has the wrong dimension 0; accepted: 2'):
        infer("Concat", (2, 3), (4, 3), axis=1)
    with pytest.raises(InvalidShapeError, match="has the wrong rank; accepted: 2-D"):
        infer("Concat", (2, 3), (2,), axis=1)
    with pytest.raises(InvalidShapeError, match=r'"axis" is out of range; accepted: -2 \.\. 1 for a 2-D input; got: 2'):
        infer("Concat", (2, 3), axis=2)


@pytest.mark.parametrize(
    ("kind", "inputs", "attrs", "message"),
    [
        ("Add", ["f32 2,3", "f32 2,4"], {}, r"dimension -1; accepted: 3 or 1 there, to fit \(2, 3\); got: 4 in"),
        ("Add", ["f32 2,3", "f32 3"], {"auto_broadcast": "none"}, 'as auto_broadcast is "none"'),
        ("Select", ["boolean 4,1", "f32 2,3", "f32 3"], {}, '"cond" .* does not broadcast'),
        ("Select", ["boolean 3", "f32 2,3", "f32 2,3"], {"auto_broadcast": "none"}, '"cond" .* wrong rank'),
        ("ReLUBackward", ["f32 2,3", "f32 2,4"], {}, '"diff_dst" .* dimension 1; accepted: 3'),
        ("BiasAdd", ["f32 2,3", "f32 2"], {}, r"accepted: 3 \(channels of src\); got: 2"),
        ("BiasAdd", ["f32 2,3", "f32 1,3"], {}, r"wrong rank; accepted: 1-D"),
        ("BiasAdd", ["f32 2", "f32 2"], {}, "at least 2-D"),
        ("PReLU", ["f32 2,3,4", "f32 3"], {}, "channels of src"),
        ("PReLU", ["f32 2,3,4", "f32 2,1"], {}, '"slope" .* does not broadcast'),
        ("PReLUBackward", ["f32 2,3,4", "f32 7", "f32 2,3,4"], {}, "channels of src"),
        ("PReLUBackward", ["f32 2,3,4", "f32 3", "f32 2,3,4"], {}, "channels of src"),
        ("PReLUBackward", ["f32 2,3,4", "f32 4", "f32 2,3,4"], {"data_format": "NCX"}, "channels of src"),
        ("PReLUBackward", ["f32 2,3,4", "f32 2,1", "f32 2,3,4"], {}, '"slope" .* does not broadcast'),
        ("Dropout", ["f32 2", "s64 2", "s64", "f32"], {}, '"seed" .* is not a scalar'),
        ("GenIndex", ["f32 2"], {"axis": 1}, '"axis" is out of range'),
        ("SoftMax", ["f32 2"], {}, r'"axis" is out of range; accepted: -1 .. 0 for a 1-D input; got: 1'),
        ("Convolution", ["f32 2,8,8,4", "f32 3,3,5,6"], CONV, r'"src" .* dimension 3; accepted: 5 .*; got: 4'),
        ("Convolution", ["f32 2,8,8,4", "f32 3,3,2,5"], CONV | {"groups": 2}, "do not divide into groups"),
        ("Convolution", ["f32 2,8,8,4", "f32 3,4,6"], CONV, "do not fit the data; accepted: 4-D"),
        ("Convolution", ["f32 2,2,8,4", "f32 3,3,4,6"], CONV, "size 2, padding 0, window 3"),
        ("Convolution", ["f32 2,8,8,4", "f32 0,3,4,6"], CONV, "gives no output"),
        ("Convolution", ["f32 2,8,8,4", "f32 3,3,4,6", "f32 5"], CONV, '"bias" .* accepted: 6'),
        ("ConvTranspose", ["f32 2,8,8,4", "f32 3,3,6,5"], CONV, '"src" .* dimension 3; accepted: 5'),
        ("MaxPool", ["f32 2,8"], POOL, "at least 3-D"),
        ("MaxPool", ["f32 2,1,8,4"], POOL, "gives no output along spatial dimension 0"),
        ("MaxPoolBackward", ["f32 2,8,8,4", "f32 2,3,4,4"], POOL, '"diff_dst" .* dimension 1; accepted: 4'),
        ("Interpolate", ["f32 2,8,8,4"], {"mode": "nearest", "sizes": (2,)}, '"sizes" does not fit src; accepted: 2'),
        ("Interpolate", ["f32 2,8,8,4"], {"mode": "nearest", "scales": (3e38, 3e38)}, "is too large"),
        ("LayerNorm", ["f32 2,3", "f32 2", "f32 2"], {}, '"gamma" .* normalised dimensions'),
        ("LayerNorm", ["f32 2,3"], {"begin_norm_axis": 2}, '"begin_norm_axis" is out of range'),
        ("GroupNorm", ["f32 2,8,3"], {"groups": 2}, "a multiple of groups=2; got: 3"),
    ],
)
def test_shapes_that_do_not_fit(kind: str, inputs: list[str], attrs: dict[str, Any], message: str) -> None:
    count = {"LayerNorm": 3, "GroupNorm": 3, "PReLUBackward": 2}.get(kind, 1)
    op = make_op(kind, inputs, ["f32 *"] * count, **attrs)
    with pytest.raises(InvalidShapeError, match=message) as info:
        op.infer()
    assert (info.value.op_id, info.value.op_kind) == (3, kind)


@pytest.mark.parametrize(
    ("kind", "attrs", "message"),
    [
        ("ConvolutionBackwardData", {"dst_shape": (2, 9, 8, 4)}, '"diff_dst" .* dimension 1; accepted: 7'),
        ("ConvolutionBackwardData", {"dst_shape": (2, 8, 8)}, '"dst_shape" is malformed'),
        ("ConvolutionBackwardData", {"dst_shape": (2, 8, 8, 5)}, r"dimension 3; accepted: 4"),
        ("ConvolutionBackwardWeights", {"weights_shape": (3, 4, 4, 6)}, '"diff_dst" .* dimension 2; accepted: 5'),
        ("ConvolutionBackwardWeights", {"weights_shape": (3, 3, 4)}, '"weights_shape" is malformed'),
        ("ConvTransposeBackwardWeights", {"weights_shape": (3, 4, 6, 4)}, '"src" .* dimension 2; accepted: 7'),
        ("AvgPoolBackward", {"src_shape": (2, 12, 8, 4)}, '"diff_dst" .* dimension 1; accepted: 6'),
        ("AvgPoolBackward", {"src_shape": (2, 8)}, '"src_shape" is malformed'),
    ],
)
def test_gradients_check_the_forward_shape(kind: str, attrs: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidShapeError, match=message):
        case(kind, **attrs).infer()


def test_shapes_from_constant_inputs() -> None:
    diff = {0: "f32 2,6,6,6", 1: "f32 3,3,4,6", 2: "s32 4"}
    op = make_op("ConvolutionBackwardData", list(diff.values()), ["f32 *"], **CONV)
    assert op.infer() == [(2, U, U, 4)]
    assert op.infer({2: np.array([2, 8, 8, 4], np.int32)}) == [(2, 8, 8, 4)]
    op = make_op("ConvolutionBackwardWeights", ["f32 2,8,8,4", "f32 2,6,6,6", "s32 4"], ["f32 *"], **CONV)
    assert op.infer() == [(U, U, U, U)]
    assert op.infer({2: np.array([3, 3, 4, 6], np.int32)}) == [(3, 3, 4, 6)]
    op = make_op("AvgPoolBackward", ["f32 2,4,4,4", "s32 4"], ["f32 *"], **POOL, exclude_pad=True)
    assert op.infer() == [(2, U, U, 4)]
    assert op.infer({1: np.array([2, 9, 8, 4], np.int32)}) == [(2, 9, 8, 4)]
    op = make_op("Interpolate", ["f32 2,8,8,4", "s32 2"], ["f32 *"], mode="nearest")
    assert op.infer() == [(2, U, U, 4)]
    assert op.infer({1: np.array([3, 5], np.int32)}) == [(2, 3, 5, 4)]


def test_ceiling_adds_the_last_partial_window() -> None:
    assert infer("MaxPool", (1, 5, 6, 2), **POOL, rounding_type="ceil") == (1, 3, 3, 2)
    assert infer("MaxPool", (1, 5, 6, 2), **POOL) == (1, 2, 3, 2)
    assert infer("MaxPoolBackward", (1, 5, 6, 2), (1, 3, 3, 2), **POOL) == (1, 5, 6, 2)


def test_scaled_sizes_are_taken_in_float32() -> None:
    assert int(0.29 * 100) == 28
    assert infer("Interpolate", (1, 100, 1), mode="nearest", scales=(0.29,)) == (1, 29, 1)


@pytest.mark.parametrize(("axis", "gamma", "stats"), [(-1, (4,), (2, 3)), (1, (3, 4), (2,)), (0, (2, 3, 4), ())])
def test_layer_norm_over_any_axis(axis: int, gamma: tuple[int, ...], stats: tuple[int, ...]) -> None:
    inputs = [text((2, 3, 4)), text(gamma), text(gamma)]
    assert make_op("LayerNorm", inputs, ["f32 *"] * 3, begin_norm_axis=axis).infer() == [(2, 3, 4), stats, stats]
    inputs = [text((2, 3, 4))] * 2 + [text(stats)] * 2
    op = make_op("LayerNormBackward", inputs, ["f32 *"] * 3, begin_norm_axis=axis)
    assert op.infer() == [(2, 3, 4), gamma, gamma]


def test_unknown_dimensions_propagate() -> None:
    assert infer("MatMul", (U, 3), (3, U)) == (U, U)
    assert infer("MatMul", (2, U), (3, 4)) == (2, 4)
    assert infer("Convolution", (U, 8, U, 4), (3, 3, 4, 6), **CONV) == (U, 6, U, 6)
    assert infer("MaxPool", (U, 8, U, 4), **POOL) == (U, 4, U, 4)
    assert infer("BiasAdd", (2, U), (3,)) == (2, 3)
    assert infer("ReLUBackward", (2, U), (U, 3)) == (2, 3)
    assert make_op("GroupNorm", ["f32 ?,8,4"], ["f32 *"] * 3, groups=2).infer() == [(U, 8, 4), (U, 2), (U, 2)]


def test_zero_sizes_are_legal() -> None:
    assert infer("MatMul", (0, 3), (3, 4)) == (0, 4)
    assert infer("Convolution", (0, 8, 8, 4), (3, 3, 4, 6), **CONV) == (0, 6, 6, 6)
    assert infer("Concat", (0, 3), (2, 3), axis=0) == (2, 3)


def test_inference_does_not_depend_on_given_outputs() -> None:
    op = make_op("MatMul", ["f32 2,3", "f32 3,4"], ["f32 9,9"])
    assert get_schema("MatMul").infer_shapes(op, [(2, 3), (3, 4)]) == [(2, 4)]


SIZES = st.sampled_from([U, 0, 1, 1, 2, 3, 4, 6, 8])
NUMBERS = st.lists(st.sampled_from([-3, -1, 0, 1, 2, 3, 7]), max_size=5).map(tuple)


@settings(max_examples=300)
@given(st.sampled_from(list(SCHEMAS)), st.data())
def test_odd_shapes_and_attributes_give_a_result_or_a_clear_error(kind: str, data: st.DataObject) -> None:
    """No rule fails in any other way than with an error of graphpool's, and results have as many shapes as outputs."""
    op, schema = case(kind), get_schema(kind)
    attrs = dict(op.attrs)
    for name, attribute in schema.attributes.items():
        if data.draw(st.integers(0, 3)) == 0:
            attrs[name] = data.draw(_attribute_values(attribute))
    inputs = tuple(
        dataclasses.replace(
            item, shape=data.draw(st.one_of(st.just(item.shape), st.none(), st.lists(SIZES, max_size=5).map(tuple)))
        )
        for item in op.inputs
    )
    values = {i: np.array(data.draw(NUMBERS), np.int32) for i, item in enumerate(inputs) if item.dtype is DataType.S32}
    odd = FakeOp(kind, inputs, op.outputs, attrs)
    with contextlib.suppress(GraphpoolError):
        odd.validate()
        found = odd.infer(values)
        assert len(found) == len(op.outputs)
        assert all(dim >= 0 or dim == U for shape in found if shape is not None for dim in shape)


def _attribute_values(attribute: Attribute) -> st.SearchStrategy[Any]:
    if attribute.choices:
        return st.sampled_from(attribute.choices)
    return {
        "bool": st.booleans(),
        "s64": st.integers(-3, 5),
        "str": st.text(max_size=3),
        "f32": st.floats(width=32),
        "s64[]": NUMBERS,
        "f32[]": st.lists(st.floats(width=32), max_size=3).map(tuple),
    }[attribute.kind]
