"""Windows: convolution, and pooling: maxima, means, sums and norms, over space and over channels."""

from __future__ import annotations

import operator
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from graphpool._dataclasses import dataclass
from graphpool._sizes import is_variable, largest
from graphpool.graph.shapes import are_equal
from graphpool.typing import DataType

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from graphpool.onnx.build import NodeView, Value


_SAME = ("SAME_UPPER", "SAME_LOWER")


def window(n: NodeView, spatial: int) -> dict[str, Any]:
    """Strides and pads in our spelling; VALID are no pads."""
    auto_pad = n.attr("auto_pad", "NOTSET")
    pads = list((auto_pad != "VALID" and n.attr("pads")) or [0] * (2 * spatial))
    return {
        "strides": n.attr("strides") or [1] * spatial,
        "pads_begin": pads[:spatial],
        "pads_end": pads[spatial:],
        "data_format": "NCX",
        "auto_pad": auto_pad if auto_pad in _SAME else "None",
    }


def pool_window(n: NodeView, kernel: list[int], dilations: list[int]) -> dict[str, Any]:
    """`window` of pooling with `rounding_type`: our op has as many windows as `window_axes` tells.

    Where neither rounding gives these along all axes, the pads behind the input have room for them.
    """
    options = window(n, len(kernel)) | {"rounding_type": "floor"}
    if options["auto_pad"] in _SAME:
        return options
    reaches = [dilation * (size - 1) + 1 for size, dilation in zip(kernel, dilations, strict=True)]
    rounds_up = bool(n.attr("ceil_mode", 0))
    if rounds_up and all(map(operator.le, map(operator.add, options["pads_end"], options["strides"]), reaches)):
        return options | {"rounding_type": "ceil"}  # every window that sticks out starts before the end, at any size
    axes = window_axes(n, kernel, dilations)
    if rounds_up and all(axis.longer or not axis.rest for axis in axes):
        return options | {"rounding_type": "ceil"}
    ends = [int(axis.needed_end) if axis.longer else axis.end for axis in axes]
    return options | {"pads_end": ends}


def dilations_of(n: NodeView, spatial: int) -> list[int]:
    """One number for each spatial axis."""
    return list(n.attr("dilations") or [1] * spatial)


def _conv(n: NodeView) -> Value:
    spatial = len(n[0].shape) - 2
    inputs = [n[k] for k in range(3) if n.has(k)]
    return n.emit(
        "Convolution", *inputs, **window(n, spatial), dilations=dilations_of(n, spatial), groups=n.attr("group", 1),
        weights_format="OIX",
    )  # fmt: skip


def _conv_transpose(n: NodeView) -> Value:
    spatial = len(n[0].shape) - 2
    options, dilations = window(n, spatial), dilations_of(n, spatial)
    padding = list(n.attr("output_padding") or [0] * spatial)
    if n.attr("output_shape") is not None:
        options |= _pads_for(n, list(n.attr("output_shape"))[-spatial:], options["strides"], dilations, padding)
    inputs = [n[k] for k in range(3) if n.has(k)]
    return n.emit(
        "ConvTranspose", *inputs, **options, dilations=dilations, groups=n.attr("group", 1), weights_format="IOX",
        output_padding=padding,
    )  # fmt: skip


def _pads_for(
    n: NodeView, wanted: list[int], strides: list[int], dilations: list[int], padding: list[int]
) -> dict[str, Any]:
    """Pads with which a transposed convolution gives the wanted shape (ONNX specification of ConvTranspose)."""
    begin, end = [], []
    for k, size in enumerate(wanted):
        reach = (n[1].shape[2 + k] - 1) * dilations[k] + 1
        total = strides[k] * (n[0].shape[2 + k] - 1) + padding[k] + reach - size
        padding[k] += largest(-total, 0)  # the full result is smaller than what is wanted
        total = largest(total, 0)
        small, large = total // 2, total - total // 2
        is_upper = n.attr("auto_pad", "NOTSET") == "SAME_UPPER"
        begin.append(small if is_upper else large)
        end.append(large if is_upper else small)
    return {"pads_begin": begin, "pads_end": end, "auto_pad": "None"}


def _col2im(n: NodeView) -> Value:
    """Sums of overlapping blocks: a transposed convolution whose kernels put each element in its place.

    Channels do not meet, so each is an image of its own.
    """
    image, block = n.ints("image_shape", 1), n.known(2).tolist()
    assert image is not None  # ONNX has it as an input alone
    spatial, size = len(image), prod(block)
    options, dilations = window(n, spatial), dilations_of(n, spatial)
    extents = [dilation * (kernel - 1) + 1 for dilation, kernel in zip(dilations, block, strict=True)]
    counts, rests = [], []
    for k, extent in enumerate(extents):
        room = image[k] + options["pads_begin"][k] + options["pads_end"][k] - extent
        count, rest = divmod(room, options["strides"][k])
        counts.append(count + 1)
        rests.append(rest)
    batch, channels = n[0].shape[0], n[0].shape[1] // size
    n.allow_table(16 * size * size)
    places = n.literal(np.eye(size).reshape(size, 1, *block), n[0])
    images = n.emit(
        "ConvTranspose", n.reshape(n[0], (batch * channels, size, *counts)), places, **options,
        dilations=dilations, weights_format="IOX", output_padding=rests,
    )  # fmt: skip
    return n.reshape(images, (batch, channels, *image))


def _max_unpool(n: NodeView) -> Value:
    """Maxima at their places among zeros; a larger output has the rest behind these (ONNX specification)."""
    x, space = n[0], n[0].shape[2:]
    kernel, ndim = n.attr("kernel_shape"), len(space)
    options = window(n, ndim)
    n.require(
        ndim > 0 and len(kernel) == ndim and are_equal(n[1].shape, x.shape), "places that are not those of maxima"
    )
    pads = map(operator.add, options["pads_begin"], options["pads_end"])
    full = [(size - 1) * stride + extent - pad
            for size, stride, extent, pad in zip(space, options["strides"], kernel, pads, strict=True)]  # fmt: skip
    n.require(all(size > 0 for size in full), "nothing to unpool to")
    shape = (*x.shape[:2], *full)
    zeros = n.emit("Expand", n.literal(np.zeros(1), x), shape=(prod(shape),))
    places, elements = (n.reshape(value, (prod(x.shape),)) for value in (n[1], x))
    found = n.reshape(n.emit("ScatterElements", zeros, places, elements, axis=0), shape)
    wanted = n.ints("", 2) or shape
    n.require(len(wanted) == len(shape), "an output of another rank")
    rests = list(map(operator.sub, wanted, shape))
    n.require(all(rest >= 0 for rest in rests), "an output smaller than what maxima come from")
    if all(rest == 0 for rest in rests):
        return found
    return n.emit("Pad", found, pads_begin=[0] * len(shape), pads_end=rests, mode="constant", value=0.0)


# ---- pooling


_BYTES = (DataType.U8, DataType.S8)


def _max_pool(n: NodeView) -> list[Value]:
    """Maxima and, where they are read, their places; those of f64, which no kernel takes, are found by their places."""
    kernel = list(n.attr("kernel_shape"))
    if n.gives(1) or n[0].dtype is DataType.F64:
        return _max_with_places(n, window_axes(n, kernel, dilations_of(n, len(kernel))))[: 1 + n.gives(1)]
    return [maxima(n)]


def maxima(n: NodeView) -> Value:
    """Maxima; those of bytes between a Dequantize and a Quantize, as the kernels of bytes are spelt."""
    kernel = list(n.attr("kernel_shape"))
    dilations = dilations_of(n, len(kernel))
    as_bytes = {"qtype": "per_tensor", "scales": [1.0]} if n[0].dtype in _BYTES else None
    source = n[0] if as_bytes is None else n.emit_several("Dequantize", [DataType.F32], n[0], **as_bytes)[0]
    result = n.emit("MaxPool", source, kernel=kernel, dilations=dilations, **pool_window(n, kernel, dilations))
    return result if as_bytes is None else n.emit_several("Quantize", [n[0].dtype], result, **as_bytes)[0]


def _max_with_places(n: NodeView, axes: list[WindowAxis]) -> list[Value]:
    """Maxima and, for each, its number in the whole input: windows are gathered."""
    batch, channels, *space = n[0].shape
    rows, counts = batch * channels, [axis.count for axis in axes]
    table, places = (_window_places(n, axes, order) for order in (0, n.attr("storage_order", 0)))
    nwindows, ntaps = table.shape
    windows = n.emit("Gather", n.reshape(n[0], (rows, prod(space))), table, axis=1)
    best = n.emit_several("ArgMax", [DataType.S64], windows, axis=2, keep_dims=True)[0]
    values = n.emit("GatherElements", windows, best, axis=2)
    row = _arranged(n, places, (nwindows * ntaps,))
    found = n.emit("Gather", row, n.emit("Add", best, n.multiples(nwindows, ntaps, behind=1)), axis=0)
    found = n.emit("Add", found, n.multiples(rows, *space, behind=2))
    return [n.reshape(value, (batch, channels, *counts)) for value in (values, found)]


def _window_places(n: NodeView, axes: list[WindowAxis], storage_order: int) -> Value:
    """Numbers of the elements of each window within the space, s64, row by row or column by column.

    In place of elements of the pads stands one that exists and comes first, so that no number of a pad is the largest.
    """
    ndim, number = len(axes), None
    for k, axis in reversed(list(enumerate(axes))) if storage_order else enumerate(axes):
        place = axis.places(n)
        shape = [1] * (2 * ndim)
        shape[k], shape[ndim + k] = place.shape
        place = _arranged(n, place, shape)
        if number is not None and number.is_known and place.is_known:
            place = n.literal(number.content * axis.size + place.content, place)
        elif number is not None:
            place = n.emit("Add", n.emit("Multiply", number, n.count(axis.size)), place)
        number = place
    assert number is not None  # there is an axis
    shape = [prod(number.shape[:ndim]), prod(number.shape[ndim:])]
    return _arranged(n, number, shape)


def _arranged(n: NodeView, value: Value, shape: Sequence[int]) -> Value:
    """The value in another shape, known where it is."""
    return n.literal(value.content.reshape(shape), value) if value.is_known else n.reshape(value, shape)


def _average_pool(n: NodeView) -> Value:
    kernel, has_pads = list(n.attr("kernel_shape")), bool(n.attr("count_include_pad", 0))
    dilations = dilations_of(n, len(kernel))
    options = pool_window(n, kernel, dilations)
    if max(dilations) > 1 or (has_pads and options["pads_end"] != window(n, len(kernel))["pads_end"]):
        return _mean_by_count(n, kernel, dilations, has_pads)
    return n.emit("AvgPool", n[0], kernel=kernel, exclude_pad=not has_pads, **options)


def _mean_by_count(n: NodeView, kernel: list[int], dilations: list[int], has_pads: bool) -> Value:
    """Sums of windows by the numbers of elements in them, which follow from sizes."""
    axes = window_axes(n, kernel, dilations)
    total, counts = _window_sums(n, n[0], axes), None
    for k, axis in enumerate(axes):
        count = axis.counts(n, has_pads)
        shape = (*[1] * (k + 2), axis.count, *[1] * (len(axes) - 1 - k))
        count = _arranged(n, count, shape)
        if counts is not None and counts.is_known and count.is_known:
            count = n.literal(counts.content * count.content, count)
        elif counts is not None:
            count = n.emit("Multiply", counts, count)
        counts = count
    assert counts is not None  # there is an axis
    return n.emit("Divide", total, n.cast(counts, total.dtype))


def _power(n: NodeView) -> float:
    """Of the norm, by which a root is drawn."""
    power: float = n.attr("p", 2)
    n.check(power != 0, "attribute 'p'", "another number than 0", power)
    return power


def _lp_pool(n: NodeView) -> Value:
    """The p-th root of sums of p-th powers."""
    p = _power(n)
    size = n.emit("Abs", n[0])
    powers = size if p == 1 else n.emit("Square", size) if p == 2 else n.emit("Pow", size, beta=p)
    kernel = list(n.attr("kernel_shape"))
    total = _window_sums(n, powers, window_axes(n, kernel, dilations_of(n, len(kernel))))
    return total if p == 1 else n.emit("Sqrt", total) if p == 2 else n.emit("Pow", total, beta=1 / p)


@dataclass(frozen=True)
class WindowAxis:
    """Windows along one spatial axis."""

    size: int
    kernel: int
    stride: int
    dilation: int
    begin: int
    end: int
    count: int
    """Positions of the window."""

    rest: int
    """Elements behind the last window that lies within the input and its pads."""

    longer: int
    """1 where one more window sticks out behind these, else 0."""

    @property
    def needed_end(self) -> int:
        """Pad behind the input with which a convolution has as many positions."""
        reach = (self.count - 1) * self.stride + self.dilation * (self.kernel - 1) + 1
        return max(reach - self.size - self.begin, 0)

    @property
    def varies(self) -> bool:
        """Whether sizes do, so that places are computed in runs."""
        return any(map(is_variable, (self.size, self.begin, self.end, self.count)))

    def _taps(self) -> np.ndarray[Any, Any]:
        """Elements of each window, in the input or its pads."""
        return np.arange(self.count)[:, None] * self.stride - self.begin + np.arange(self.kernel) * self.dilation

    def _starts(self, n: NodeView) -> Value:
        """The first column of `_taps`, s64."""
        return n.emit("Subtract", n.multiples(self.count, self.stride, behind=1), n.count(self.begin))

    def _is_within(self, n: NodeView, starts: Value, low: int, size: int) -> tuple[Value, Value]:
        """`_taps`, and which of them are elements from `low` to before `size`."""
        place = n.emit("Add", starts, n.literal(np.arange(self.kernel) * self.dilation, starts))
        within = n.emit("Maximum", n.emit("Minimum", place, n.count(size - 1)), n.count(low))
        return place, n.emit_several("Equal", [DataType.BOOLEAN], within, place)[0]

    def places(self, n: NodeView) -> Value:
        """Elements of each window, s64: (count, kernel), known where no size varies.

        In place of those of the pads stands the first one that exists.
        """
        if not self.varies:
            taps = self._taps()
            exists = (taps >= 0) & (taps < self.size)
            known = np.where(exists, taps, np.take_along_axis(taps, np.argmax(exists, axis=1)[:, None], 1))
            return n.builder.literal(known, DataType.S64)
        start = self._starts(n)
        before = n.emit("Maximum", n.emit("Subtract", n.count(0), start), n.count(0))
        steps = n.emit("Divide", n.emit("Add", before, n.count(self.dilation - 1)), n.count(self.dilation))
        first = n.emit("Add", start, n.emit("Multiply", steps, n.count(self.dilation)))
        place, is_inside = self._is_within(n, start, 0, self.size)
        first = n.emit("Minimum", first, n.count(self.size - 1))
        return n.emit_several("Select", [DataType.S64], is_inside, place, first)[0]

    def counts(self, n: NodeView, includes_pads: bool) -> Value:
        """Elements in each window, f32, known where no size varies: of the input, or of the input and its pads."""
        low, size = (-self.begin, self.size + self.end) if includes_pads else (0, self.size)
        if not self.varies:
            taps = self._taps()
            return n.builder.literal(np.sum((taps >= low) & (taps < size), axis=1), DataType.F32)
        _, is_inside = self._is_within(n, self._starts(n), low, size)
        return n.emit("ReduceSum", n.cast(is_inside, DataType.F32), axes=[1], keep_dims=False)


def window_axes(n: NodeView, kernel: list[int], dilations: list[int]) -> list[WindowAxis]:
    """The windows of a pooling node along each axis.

    Rounded up, a window that would start behind the input and its first pad is left out. Where the input lacks less
    than a stride of a whole window there is one: ONNX's shape inference and ONNX Runtime round towards zero.
    """
    options, rounds_up = window(n, len(kernel)), bool(n.attr("ceil_mode", 0))
    found = []
    for k, size in enumerate(n[0].shape[2:]):
        stride, begin, end = options["strides"][k], options["pads_begin"][k], options["pads_end"][k]
        extent = dilations[k] * (kernel[k] - 1) + 1
        if options["auto_pad"] in _SAME:
            count = -(-size // stride)
            total = max((count - 1) * stride + extent - size, 0)
            begin = total // 2 if options["auto_pad"] == "SAME_UPPER" else total - total // 2
            found.append(WindowAxis(size, kernel[k], stride, dilations[k], begin, total - begin, count, 0, 0))
            continue
        room = size + begin + end - extent
        count, rest = room // stride + 1, room % stride
        sticks_out = rounds_up and rest and count * stride < size + begin
        longer = int(bool(sticks_out or (room < 0 and -room < stride and size > 0)))
        found.append(WindowAxis(size, kernel[k], stride, dilations[k], begin, end, count + longer, rest, longer))
    return found


def _window_sums(n: NodeView, value: Value, axes: list[WindowAxis]) -> Value:
    """Sums over windows: a convolution of each channel with ones, of which there is one where their number varies."""
    shape = value.shape
    channels = 1 if is_variable(shape[1]) else shape[1]
    n.allow_table(16 * channels * prod(axis.kernel for axis in axes))
    ones = n.literal(np.ones((channels, 1, *(axis.kernel for axis in axes))), value)
    batch = prod(shape[:2]) if is_variable(shape[1]) else shape[0]
    images = n.reshape(value, (batch, channels, *shape[2:]))
    found = n.emit(
        "Convolution", images, ones, strides=[axis.stride for axis in axes], pads_begin=[axis.begin for axis in axes],
        pads_end=[axis.needed_end for axis in axes], dilations=[axis.dilation for axis in axes], groups=channels,
        data_format="NCX", weights_format="OIX",
    )  # fmt: skip
    return n.reshape(found, (*shape[:2], *found.shape[2:]))


def _lrn(n: NodeView) -> Value:
    """X / (bias + alpha * mean of the squares of neighbouring channels) ^ beta: a mean pool along the channels."""
    batch, channels, *space = n[0].shape
    size = min(n.attr("size"), 2 * channels)  # from there on every window holds all channels
    squares = n.reshape(n.emit("Square", n[0]), (batch, 1, channels, prod(space)))
    means = n.emit(
        "AvgPool", squares, kernel=[size, 1], strides=[1, 1], pads_begin=[(size - 1) // 2, 0], pads_end=[size // 2, 0],
        exclude_pad=False, rounding_type="floor", data_format="NCX",
    )  # fmt: skip
    alpha = n.literal(n.attr("alpha", 1e-4) * size / n.attr("size"), n[0])
    scaled = n.emit("Multiply", n.reshape(means, n[0].shape), alpha)
    base = n.emit("Add", scaled, n.literal(n.attr("bias", 1.0), n[0]))
    return n.emit("Multiply", n[0], n.emit("Pow", base, beta=-n.attr("beta", 0.75)))


def _global(kind: str) -> Callable[[NodeView], Value]:
    return lambda n: n.emit(kind, n[0], axes=list(range(2, len(n[0].shape))), keep_dims=True)


def _global_lp(n: NodeView) -> Value:
    p = _power(n)
    if p in (1, 2):
        return _global(f"ReduceL{p}")(n)
    powers = n.emit("Pow", n.emit("Abs", n[0]), beta=p)
    total = n.emit("ReduceSum", powers, axes=list(range(2, len(n[0].shape))), keep_dims=True)
    return n.emit("Pow", total, beta=1 / p)


CONVERTERS: dict[str, Callable[[NodeView], Any]] = {
    "Conv": _conv, "ConvTranspose": _conv_transpose, "Col2Im": _col2im, "MaxPool": _max_pool, "MaxUnpool": _max_unpool,
    "AveragePool": _average_pool, "LpPool": _lp_pool, "LRN": _lrn,
    "GlobalAveragePool": _global("ReduceMean"), "GlobalMaxPool": _global("ReduceMax"), "GlobalLpPool": _global_lp,
}  # fmt: skip
