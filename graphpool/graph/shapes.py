"""Geometry that shape inference and lowering share: broadcasting, windows, padding, where channels lie.

Pure functions of shapes and completed attributes. Dimensions may be UNKNOWN_DIM where a docstring says so. They raise
no error of their own unless a docstring says so: shape inference has vetted an op before lowering sees it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphpool._sizes import is_variable, largest, least
from graphpool.errors import InvalidShapeError, explain
from graphpool.typing import MAX_NDIM, UNKNOWN_DIM

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def channel_axis(ndim: int, data_format: str) -> int:
    """Axis of the channels: 1 in "NCX", the last one in "NXC"."""
    return 1 if data_format == "NCX" else ndim - 1


def spatial_axes(ndim: int, data_format: str) -> tuple[int, ...]:
    """Axes that are neither batch nor channel, in order: 2 .. ndim-1 in "NCX", 1 .. ndim-2 in "NXC"."""
    return tuple(range(2, ndim)) if data_format == "NCX" else tuple(range(1, ndim - 1))


def conv_weight_axes(ndim: int, weights_format: str) -> tuple[int, int, tuple[int, ...]]:
    """Axes of the input channels, of the output channels and of the kernel in a convolution's weights.

    Channels are seen from the forward operation: of a Convolution the input axis is divided by `groups`, of a
    ConvTranspose the output axis. `weights_format` is XIO, OIX, XOI or IOX.
    """
    leading = weights_format.endswith("X")
    letters = weights_format.replace("X", "")
    first = 0 if leading else ndim - 2
    kernel = tuple(range(2, ndim)) if leading else tuple(range(ndim - 2))
    return first + letters.index("I"), first + letters.index("O"), kernel


def per_axis(attrs: Mapping[str, Any], name: str, count: int, default: int = 1) -> tuple[int, ...]:
    """A list attribute that has one number for each of `count` spatial axes; InvalidShapeError for another length.

    A schema default is as long as the highest rank and is cut; an attribute that the op lacks reads as `default`
    everywhere.
    """
    values: tuple[int, ...] | None = attrs.get(name)
    if values is None:
        return (default,) * count
    if len(values) != count and not (len(values) == MAX_NDIM and len(set(values)) == 1):
        raise InvalidShapeError(
            explain(f'attribute "{name}" has the wrong length', accepted=f"{count}, one for each spatial axis",
                    got=f"{len(values)} in {values}"), attribute=name, expected=count,
        )  # fmt: skip
    return values[:count]


def window_extent(kernel: int, dilation: int) -> int:
    """Elements that a dilated window spans: d (k - 1) + 1."""
    return dilation * (kernel - 1) + 1


def window_size(size: int, kernel: int, stride: int, dilation: int, pads: int, *, ceil: bool = False) -> int:
    """Positions of a window along one axis: floor((size + pads - extent) / stride) + 1, or rounded up.

    `pads` is the sum of both sides. UNKNOWN_DIM in `size` or `kernel` gives UNKNOWN_DIM; a result below 1 means that
    the window does not fit.
    """
    if UNKNOWN_DIM in (size, kernel):
        return UNKNOWN_DIM
    span = size + pads - window_extent(kernel, dilation)
    return (-(-span // stride) if ceil else span // stride) + 1


def transposed_size(size: int, kernel: int, stride: int, dilation: int, pads: int, output_padding: int) -> int:
    """Output size of a transposed convolution along one axis: s (size - 1) + extent - pads + output_padding.

    UNKNOWN_DIM in `size` or `kernel` gives UNKNOWN_DIM.
    """
    if UNKNOWN_DIM in (size, kernel):
        return UNKNOWN_DIM
    return stride * (size - 1) + window_extent(kernel, dilation) - pads + output_padding


def resolve_pads(
    attrs: Mapping[str, Any], spatial_in: Sequence[int], kernel: Sequence[int], *, transposed: bool = False
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The padding at both ends of each spatial axis that an op really has, after `auto_pad`.

    `spatial_in` are input sizes of the *forward* operation, which is a ConvTranspose if `transposed`; an UNKNOWN_DIM
    among them or in `kernel` pads by 0 under SAME, where the output is unknown too. Raises InvalidShapeError for a list
    of another length. SAME makes the output ceil(in / stride) long, for a transposed one in * stride; the odd element
    of padding is at the end for SAME_UPPER and at the beginning for SAME_LOWER, and padding is never negative. VALID
    pads nothing. Source: ONNX operator specification, Conv and ConvTranspose, the latter as the former.
    """
    count = len(spatial_in)
    auto_pad = attrs.get("auto_pad", "None")
    if auto_pad == "None":
        return per_axis(attrs, "pads_begin", count, 0), per_axis(attrs, "pads_end", count, 0)
    if auto_pad == "VALID":
        return (0,) * count, (0,) * count
    strides, dilations = per_axis(attrs, "strides", count), per_axis(attrs, "dilations", count)
    extra = per_axis(attrs, "output_padding", count, 0)
    totals = [
        _same_total(spatial_in[i], kernel[i], strides[i], dilations[i], extra[i], transposed) for i in range(count)
    ]
    smaller = tuple(total // 2 for total in totals)
    larger = tuple(total - total // 2 for total in totals)
    return (smaller, larger) if auto_pad == "SAME_UPPER" else (larger, smaller)


def _same_total(size: int, kernel: int, stride: int, dilation: int, extra: int, transposed: bool) -> int:
    if UNKNOWN_DIM in (size, kernel):
        return 0
    extent = window_extent(kernel, dilation)
    covered = extent + extra - stride if transposed else (-(-size // stride) - 1) * stride + extent - size
    return max(covered, 0)


def slice_size(size: int, start: int, end: int, step: int) -> int:
    """Elements of a Python slice along an axis of `size`; UNKNOWN_DIM gives UNKNOWN_DIM. The step is not 0."""
    return UNKNOWN_DIM if size == UNKNOWN_DIM else slice_part(size, start, end, step)[1]


def slice_part(size: int, start: int, end: int, step: int) -> tuple[int, int]:
    """First element of a Python slice along an axis of `size`, and how many there are. The step is not 0.

    Of sizes that vary the results are terms, so that they hold for all of them.
    """
    first, last = slice_end(size, start, step), slice_end(size, end, step)
    steps = (last - first + step - 1) // step if step > 0 else (first - last - step - 1) // -step
    return largest(first, 0), largest(steps, 0)


_FAR = 2**31 - 1
"""What files write for an end beyond every axis."""


def slice_end(size: int, place: int, step: int) -> int:
    """An end of a Python slice within an axis of `size`: before its first element it is 0, or -1 if steps go back."""
    low, high = (0, size) if step > 0 else (-1, size - 1)
    if not is_variable(place) and place >= _FAR and place >= high:
        return high
    return least(largest(place + size if place < 0 else place, low), high)


def broadcast_shapes(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...] | int:
    """NumPy's broadcast of two shapes whose dimensions may be UNKNOWN_DIM, or the negative axis at which they clash.

    An unknown dimension against n > 1 gives n: nothing else is legal. Against 1 it stays unknown.
    """
    ndim = max(len(a), len(b))
    out = [1] * ndim
    for axis in range(-1, -ndim - 1, -1):
        x = a[axis] if -axis <= len(a) else 1
        y = b[axis] if -axis <= len(b) else 1
        if y == 1 or x == y:
            out[axis] = x
        elif x in (1, UNKNOWN_DIM):
            out[axis] = y
        elif y == UNKNOWN_DIM:
            out[axis] = x
        else:
            return axis
    return tuple(out)


def are_equal(a: Sequence[int], b: Sequence[int]) -> bool:
    """Whether two shapes are the same; sizes of shapes of different ranks are not compared."""
    return len(a) == len(b) and a == b


def is_broadcastable(small: Sequence[int], big: Sequence[int]) -> bool:
    """Whether `small` broadcasts one way to `big`: as far as known, each of its dimensions is 1 or that of `big`."""
    if len(small) > len(big):
        return False
    tail = big[len(big) - len(small) :]
    return all(x in (y, 1, UNKNOWN_DIM) or y == UNKNOWN_DIM for x, y in zip(small, tail, strict=True))


def scale_group_axis(shape: Sequence[int], axis: int, count: int) -> int:
    """The axis whose blocks are the groups, where an op along `axis` has a scale for each (group, channel).

    Weights of a grouped ConvTranspose lie so: channels of the result at axis 1 and groups along axis 0, or both among
    the last two axes. `axis` is not negative. Raises InvalidShapeError where `count`, the number of scales, is no
    multiple of ``shape[axis]``, or the axis of the groups does not divide into them.
    """
    groups, rest = divmod(count, shape[axis])
    for channels, other in ((1, 0), (len(shape) - 2, len(shape) - 1)):
        if groups and not rest and axis == channels and 0 <= other < len(shape) and shape[other] % groups == 0:
            return other
    accepted = f"{shape[axis]}, or a multiple for weights of a grouped ConvTranspose"
    raise InvalidShapeError(explain(f"scales along axis {axis} of {tuple(shape)}", accepted=accepted, got=count))
