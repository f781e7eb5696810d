"""Shape rules of convolution, pooling and interpolation. Each docstring says the rule in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from graphpool.graph.logical_tensor import describe_shape
from graphpool.graph.shapes import (
    channel_axis,
    conv_weight_axes,
    per_axis,
    resolve_pads,
    spatial_axes,
    transposed_size,
    window_extent,
    window_size,
)
from graphpool.typing import UNKNOWN_DIM

from .query import Shape, ShapeQuery
from .rules_basic import data_axis, vector

if TYPE_CHECKING:
    from collections.abc import Sequence


def _join(query: ShapeQuery, batch: int, channels: int, spatial: Sequence[int]) -> tuple[int, ...]:
    """A data tensor's shape in the op's data_format."""
    return (batch, channels, *spatial) if query.attrs["data_format"] == "NCX" else (batch, *spatial, channels)


def _split(query: ShapeQuery, shape: Sequence[int]) -> tuple[int, int, list[int]]:
    """Batch, channels and spatial sizes of a data tensor."""
    data_format = query.attrs["data_format"]
    spatial = [shape[axis] for axis in spatial_axes(len(shape), data_format)]
    return shape[0], shape[channel_axis(len(shape), data_format)], spatial


def _source(query: ShapeQuery, index: int, name: str) -> tuple[int, ...] | None:
    """A shape that comes as the content of input `index`, or else as attribute `name`; None when not known."""
    if len(query.op.inputs) > index:
        return query.sizes(index)
    value: tuple[int, ...] = query.attrs[name]
    return value if any(value) else None


def _forward(query: ShapeQuery, src: Sequence[int], weights: Sequence[int], transposed: bool, port: int
             ) -> tuple[int, ...]:  # fmt: skip
    """Output shape of the forward convolution; `port` is blamed for a channel mismatch."""
    query.rank(0, len(src), "at least 3-D", len(src) >= 3)
    _same_rank(query, weights, len(src))
    attrs, groups = query.attrs, query.attrs["groups"]
    batch, channels, spatial = _split(query, src)
    i_axis, o_axis, kernel_axes = conv_weight_axes(len(weights), attrs["weights_format"])
    kernel = [weights[axis] for axis in kernel_axes]
    inner = weights[i_axis]
    if not transposed and inner != UNKNOWN_DIM:
        inner *= groups
    if channels != inner:
        why = f"the weights' input channels in {describe_shape(weights)}, groups={groups}"
        query.dim(port, channel_axis(len(src), attrs["data_format"]), channels, inner, why)
    outer = _grouped(query, weights[i_axis if transposed else o_axis], weights[o_axis], transposed)
    return _join(query, batch, outer, _conv_sizes(query, spatial, kernel, transposed))


def _same_rank(query: ShapeQuery, weights: Sequence[int], ndim: int) -> None:
    if len(weights) != ndim:
        query.fail(f"weights of shape {describe_shape(weights)} do not fit the data", accepted=f"{ndim}-D, as the data",
                   got=f"{len(weights)}-D")  # fmt: skip


def _grouped(query: ShapeQuery, divided: int, out: int, transposed: bool) -> int:
    """Output channels; `divided` is the weights' dimension that groups must divide."""
    groups = query.attrs["groups"]
    if divided != UNKNOWN_DIM and divided % groups:
        query.fail("has channels that do not divide into groups", port=1, accepted=f"a multiple of groups={groups}",
                   got=divided, attribute="groups")  # fmt: skip
    return out * groups if transposed and out != UNKNOWN_DIM else out


def _conv_sizes(query: ShapeQuery, spatial: Sequence[int], kernel: Sequence[int], transposed: bool) -> list[int]:
    attrs, count = query.attrs, len(spatial)
    begin, end = resolve_pads(attrs, spatial, kernel, transposed=transposed)
    strides, dilations = per_axis(attrs, "strides", count), per_axis(attrs, "dilations", count)
    extra = per_axis(attrs, "output_padding", count, 0)
    sizes = []
    for i in range(count):
        pads = begin[i] + end[i]
        if transposed:
            size = transposed_size(spatial[i], kernel[i], strides[i], dilations[i], pads, extra[i])
        else:
            size = window_size(spatial[i], kernel[i], strides[i], dilations[i], pads)
        sizes.append(_checked(query, i, size, spatial[i], kernel[i], dilations[i], pads))
    return sizes


def _checked(query: ShapeQuery, i: int, out: int, size: int, kernel: int, dilation: int, pads: int) -> int:
    """`out`, unless it is a size that no window position gives."""
    if kernel == 0 or (out != UNKNOWN_DIM and out < (1 if size else 0)):
        query.fail(
            f"gives no output along spatial dimension {i}", port=0, dim=i, accepted="a window of at least 1 that fits "
            "in the padded input", got=f"size {size}, padding {pads}, window {window_extent(kernel, dilation)}",
        )  # fmt: skip
    return out


def _with_bias(query: ShapeQuery, out: tuple[int, ...]) -> Sequence[Shape]:
    axis = channel_axis(len(out), query.attrs["data_format"])
    channels = vector(query, 2, out[axis], "output channels")
    return [(*out[:axis], channels, *out[axis + 1 :])]


def conv(query: ShapeQuery) -> Sequence[Shape]:
    """Batch of src, output channels of weights, floor((in + pads - (d (k - 1) + 1)) / stride) + 1 along spatial axes.

    bias has one element for each output channel.
    """
    src, weights = query.shape(0), query.shape(1)
    if src is None or weights is None:
        return [None]
    return _with_bias(query, _forward(query, src, weights, False, 0))


def conv_transpose(query: ShapeQuery) -> Sequence[Shape]:
    """Batch of src, output channels of weights times groups, and the enlarged spatial sizes.

    Along a spatial axis it is stride (in - 1) + d (k - 1) + 1 - pads + output_padding. bias has one element for each
    output channel.
    """
    src, weights = query.shape(0), query.shape(1)
    if src is None or weights is None:
        return [None]
    return _with_bias(query, _forward(query, src, weights, True, 0))


def _expect(query: ShapeQuery, port: int, expected: tuple[int, ...]) -> None:
    query.match(port, expected, "what the forward operation gives")


def conv_backward_data(query: ShapeQuery) -> Sequence[Shape]:
    """dst_shape, as attribute or content of the third input.

    diff_dst has the shape that a Convolution of such a tensor gives.
    """
    diff_dst, weights = query.shape(0), query.shape(1)
    shape = _source(query, 2, "dst_shape")
    rank = None if shape is None or diff_dst is None else len(diff_dst)
    if shape is not None and (not shape or any(dim < 0 for dim in shape) or rank not in (None, len(shape))):
        query.fail('"dst_shape" is malformed', accepted="as many sizes as diff_dst has, of 0 or more", got=shape,
                   attribute="dst_shape")  # fmt: skip
    if weights is None or diff_dst is None:
        return [shape]
    if shape is not None:
        _expect(query, 0, _forward(query, shape, weights, False, 1))
        return [shape]
    query.rank(0, len(diff_dst), "at least 3-D", len(diff_dst) >= 3)
    _same_rank(query, weights, len(diff_dst))
    inner = weights[conv_weight_axes(len(weights), query.attrs["weights_format"])[0]]
    channels = UNKNOWN_DIM if inner == UNKNOWN_DIM else inner * query.attrs["groups"]
    return [_join(query, diff_dst[0], channels, [UNKNOWN_DIM] * (len(diff_dst) - 2))]


def _transposed_source(query: ShapeQuery, diff_dst: tuple[int, ...], weights: tuple[int, ...], port: int
                       ) -> tuple[int, ...]:  # fmt: skip
    """Shape of the src of a ConvTranspose, from that of its output, which is input `port`."""
    query.rank(port, len(diff_dst), "at least 3-D", len(diff_dst) >= 3)
    _same_rank(query, weights, len(diff_dst))
    batch, channels, spatial = _split(query, diff_dst)
    i_axis, o_axis, kernel_axes = conv_weight_axes(len(weights), query.attrs["weights_format"])
    outer = _grouped(query, weights[i_axis], weights[o_axis], True)
    axis = channel_axis(len(diff_dst), query.attrs["data_format"])
    query.dim(port, axis, channels, outer, f"the weights' output channels in {describe_shape(weights)}")
    return _join(query, batch, weights[i_axis], _conv_sizes(query, spatial, [weights[k] for k in kernel_axes], False))


def conv_transpose_backward_data(query: ShapeQuery) -> Sequence[Shape]:
    """Batch of diff_dst, input channels of weights, and the spatial sizes that a Convolution of diff_dst gives."""
    diff_dst, weights = query.shape(0), query.shape(1)
    if diff_dst is None or weights is None:
        return [None]
    return [_transposed_source(query, diff_dst, weights, 0)]


def _weights_shape(query: ShapeQuery) -> tuple[int, ...] | None:
    """Shape of the weights; unknown dimensions where only the rank is known."""
    data = query.shape(0) or query.shape(1)
    shape = _source(query, 2, "weights_shape")
    if shape is None:
        return None if data is None else (UNKNOWN_DIM,) * len(data)
    if not shape or any(dim < 1 for dim in shape) or (data is not None and len(shape) != len(data)):
        rank = "" if data is None else f"{len(data)} "
        query.fail('"weights_shape" is malformed', accepted=f"{rank}sizes of at least 1", got=shape,
                   attribute="weights_shape")  # fmt: skip
    return shape


def conv_backward_weights(query: ShapeQuery) -> Sequence[Shape]:
    """weights_shape, as attribute or content of the third input.

    diff_dst has the shape that a Convolution with such weights gives.
    """
    src, shape = query.shape(0), _weights_shape(query)
    if src is not None and shape is not None:
        _expect(query, 1, _forward(query, src, shape, False, 0))
    return [shape]


def conv_transpose_backward_weights(query: ShapeQuery) -> Sequence[Shape]:
    """weights_shape, as attribute or content of the third input.

    src has the shape that a Convolution of diff_dst with such weights gives.
    """
    diff_dst, shape = query.shape(1), _weights_shape(query)
    if diff_dst is not None and shape is not None:
        _expect(query, 0, _transposed_source(query, diff_dst, shape, 1))
    return [shape]


def _pool_sizes(query: ShapeQuery, spatial: Sequence[int], ceil: bool) -> list[int]:
    attrs, count = query.attrs, len(spatial)
    kernel = per_axis(attrs, "kernel", count)
    begin, end = resolve_pads(attrs, spatial, kernel)
    strides, dilations = per_axis(attrs, "strides", count), per_axis(attrs, "dilations", count)
    sizes = []
    for i in range(count):
        pads = begin[i] + end[i]
        size = window_size(spatial[i], kernel[i], strides[i], dilations[i], pads, ceil=ceil)
        sizes.append(_checked(query, i, size, spatial[i], kernel[i], dilations[i], pads))
    return sizes


def pool(query: ShapeQuery) -> Sequence[Shape]:
    """Batch and channels of src, and (in + pads - (d (k - 1) + 1)) / stride + 1 along each spatial axis.

    rounding_type rounds the quotient.
    """
    found = data_axis(query, ndim_min=3)
    if found is None:
        return [None]
    batch, channels, spatial = _split(query, found[1])
    return [_join(query, batch, channels, _pool_sizes(query, spatial, query.attrs["rounding_type"] == "ceil"))]


def _pool_backward(query: ShapeQuery, src: tuple[int, ...] | None, port: int) -> Sequence[Shape]:
    """`src`, when diff_dst (input `port`) is what pooling gives for it, rounded down or up."""
    diff_dst = query.shape(port)
    if src is None or diff_dst is None:
        return [src]
    query.rank(port, len(diff_dst), f"{len(src)}-D, as src", len(diff_dst) == len(src) >= 3)
    batch, channels, spatial = _split(query, src)
    floor = _join(query, batch, channels, _pool_sizes(query, spatial, False))
    ceil = _join(query, batch, channels, _pool_sizes(query, spatial, True))
    if not any(all(UNKNOWN_DIM in (a, b) or a == b for a, b in zip(diff_dst, way, strict=True))
               for way in (floor, ceil)):  # fmt: skip
        _expect(query, port, floor)
    return [src]


def pool_backward_src(query: ShapeQuery) -> Sequence[Shape]:
    """The shape of src; diff_dst has the shape that pooling gives for it, rounded down or up."""
    return _pool_backward(query, query.shape(0), 1)


def pool_backward_src_shape(query: ShapeQuery) -> Sequence[Shape]:
    """src_shape, as attribute or content of the second input.

    diff_dst has the shape that pooling gives for it, rounded down or up.
    """
    diff_dst, shape = query.shape(0), _source(query, 1, "src_shape")
    if shape is None and diff_dst is not None:
        query.rank(0, len(diff_dst), "at least 3-D", len(diff_dst) >= 3)
        batch, channels, spatial = _split(query, diff_dst)
        return [_join(query, batch, channels, [UNKNOWN_DIM] * len(spatial))]
    if shape is not None and (len(shape) < 3 or any(dim < 0 for dim in shape)):
        query.fail('"src_shape" is malformed', accepted="at least 3 sizes of 0 or more", got=shape,
                   attribute="src_shape")  # fmt: skip
    return _pool_backward(query, shape, 0)


def _scaled(size: int, scale: float) -> int:
    """trunc(size * scale), the product taken in float32, the attribute's type: 100 * 0.29f is 29, not 28."""
    if size == UNKNOWN_DIM:
        return size
    # Two float32 multiply exactly in float64. A huge product is cut, and then refused for its element count.
    exact = size * float(np.float32(min(scale, 2.0**63)))
    return int(np.float32(min(exact, 2.0**63)))


def _interpolated(query: ShapeQuery, sizes_port: int) -> Shape:
    found = data_axis(query, ndim_min=3)
    if found is None:
        return None
    batch, channels, spatial = _split(query, found[1])
    scales = query.attrs.get("scales") or ()
    sizes = query.sizes(sizes_port) if len(query.op.inputs) > sizes_port else query.attrs.get("sizes")
    if sizes is None and not scales:
        return _join(query, batch, channels, [UNKNOWN_DIM] * len(spatial))
    given = scales or sizes or ()
    if len(given) != len(spatial) or any(number <= 0 for number in given):
        name = "scales" if scales else "sizes"
        query.fail(f'"{name}" does not fit src', accepted=f"{len(spatial)} positive numbers, one for each spatial axis",
                   got=given, attribute=name)  # fmt: skip
    if scales:
        sizes = tuple(_scaled(dim, scale) for dim, scale in zip(spatial, scales, strict=True))
    return _join(query, batch, channels, sizes or ())


def interpolate(query: ShapeQuery) -> Sequence[Shape]:
    """Batch and channels of src, and spatial sizes from sizes or scales.

    sizes is an attribute or the content of the second input; scales gives trunc(in * scale), computed in float32.
    """
    return [_interpolated(query, 1)]


def interpolate_backward(query: ShapeQuery) -> Sequence[Shape]:
    """The shape of src; diff_dst has its batch and channels, and spatial sizes of its own, which decide.

    Scales are not compared with them: the forward operation truncates, and a scale written with six digits misses.
    """
    found, diff_dst = data_axis(query, ndim_min=3), query.shape(1)
    if found is None or diff_dst is None:
        return [query.shape(0)]
    src = found[1]
    query.rank(1, len(diff_dst), f"{len(src)}-D, as src", len(diff_dst) == len(src))
    query.match(1, _join(query, src[0], src[found[0]], _split(query, diff_dst)[2]), "batch and channels of src")
    return [src]
