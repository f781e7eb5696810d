"""Shapes, order, parts and copies."""

from __future__ import annotations

import operator
from math import ceil, isfinite, prod
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from graphpool._sizes import is_variable, largest, least
from graphpool.errors import InvalidArgumentError, explain
from graphpool.graph.shapes import slice_end
from graphpool.onnx.arrays import to_array
from graphpool.onnx.build import DataDependent, Value
from graphpool.onnx.shape_values import ShapeArray, shape_array
from graphpool.onnx.types import data_type, is_f32_number
from graphpool.typing import DataType

from . import direct

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from graphpool.onnx.build import NodeView


def _reshape(n: NodeView) -> Value:
    wanted, shape = n.ints("shape", 1), n[0].shape
    n.require(wanted is not None, "no shape")
    dims, keeps_zero = list(wanted or ()), n.attr("allowzero", 0)
    if not keeps_zero:
        dims = [shape[axis] if dim == 0 else dim for axis, dim in enumerate(dims)]
    n.check(dims.count(-1) < 2, "shape", "at most one -1", wanted)
    if -1 in dims:
        whole, rest = prod(shape), prod(dim for dim in dims if dim != -1)
        if keeps_zero and rest == 0:  # ONNX leaves open what it is: what it would be if one element were there
            whole, rest = prod(dim for dim in shape if dim != 0), prod(dim for dim in dims if dim not in (0, -1))
            n.require(whole % rest == 0, "-1 beside a dimension of 0")
        n.require(rest != 0, "-1 beside a dimension of 0")
        dims[dims.index(-1)] = whole // rest
    return n.reshape(n[0], dims)


def _flatten(n: NodeView) -> Value:
    shape = n[0].shape
    axis = n.axis(1, len(shape), may_end=True)
    return n.reshape(n[0], (prod(shape[:axis]), prod(shape[axis:])))


def _squeeze(n: NodeView) -> Value:
    shape, axes = n[0].shape, n.ints("axes", 1)
    n.require(all(-len(shape) <= axis < len(shape) for axis in axes or ()), "an axis that there is not")
    gone = {axis % len(shape) for axis in axes} if axes is not None else {k for k, dim in enumerate(shape) if dim == 1}
    n.check(all(shape[axis] == 1 for axis in gone), "squeezed dimensions", "1", [shape[axis] for axis in sorted(gone)])
    return n.reshape(n[0], [dim for axis, dim in enumerate(shape) if axis not in gone])


def _unsqueeze(n: NodeView) -> Value:
    axes = n.ints("axes", 1) or []
    dims = list(n[0].shape)
    rank = len(dims) + len(axes)
    n.check(all(-rank <= axis < rank for axis in axes), "axes", f"{-rank} to {rank - 1}", axes)
    n.check(len({axis % rank for axis in axes}) == len(axes), "axes", "each once", axes)
    for axis in sorted(axis % rank for axis in axes):
        dims.insert(axis, 1)
    return n.reshape(n[0], dims)


def _transpose(n: NodeView) -> Value:
    order = n.attr("perm") or list(range(len(n[0].shape)))[::-1]
    return n.emit("StaticTranspose", n[0], order=order)


def _concat(n: NodeView) -> Value:
    return n.join([n[k] for k in range(len(n.inputs))], n.axis(1, len(n[0].shape)))


def _depth_to_space(n: NodeView) -> Value:
    batch, channels, height, width = n[0].shape
    block = n.attr("blocksize")
    depth = channels // block**2
    if n.attr("mode", "DCR") == "DCR":
        split, order = (batch, block, block, depth, height, width), (0, 3, 4, 1, 5, 2)
    else:
        split, order = (batch, depth, block, block, height, width), (0, 1, 4, 2, 5, 3)
    moved = n.emit("StaticTranspose", n.reshape(n[0], split), order=order)
    return n.reshape(moved, (batch, depth, height * block, width * block))


def _space_to_depth(n: NodeView) -> Value:
    batch, channels, height, width = n[0].shape
    block = n.attr("blocksize")
    split = n.reshape(n[0], (batch, channels, height // block, block, width // block, block))
    order = (0, 3, 5, 1, 2, 4) if n.attr("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    moved = n.emit("StaticTranspose", split, order=order)
    return n.reshape(moved, (batch, channels * block**2, height // block, width // block))


def _expand(n: NodeView) -> Value:
    shape = n.broadcast(n[0].shape, n.ints("shape", 1) or ())
    return n[0] if shape == n[0].shape else n.emit("Expand", n[0], shape=shape)


def _slice(n: NodeView) -> Value:
    starts, ends = n.ints("starts", 1), n.ints("ends", 2)
    n.require(starts is not None and ends is not None, "no bounds")
    axes = n.ints("axes", 3) or list(range(len(starts or ())))
    steps = n.ints("steps", 4) or [1] * len(axes)
    cuts = [
        _cut(n[0].shape[axis], *bounds) for axis, *bounds in zip(axes, starts or (), ends or (), steps, strict=True)
    ]
    starts, ends = [start for start, _ in cuts], [end for _, end in cuts]
    return n.emit("Slice", n[0], starts=starts, ends=ends, axes=axes, steps=steps)


def _cut(dim: int, start: int, end: int, step: int) -> tuple[int, int]:
    """Bounds within an axis. Unlike Python's, a start in front of it means its first element when steps go back."""
    first, last = slice_end(dim, start, step), slice_end(dim, end, step)
    first = first if step > 0 else largest(first, 0)
    return (first, last) if step > 0 or last >= 0 else (first, -dim - 1)


def _gather(n: NodeView) -> Value:
    """A slice, which takes no copy, where one index is known and is no size: how exporters write ``qkv[0]``."""
    data, indices = n[0], n[1]
    is_number = indices.is_known and not isinstance(indices.content, ShapeArray)
    if not is_number or prod(indices.shape) != 1 or not data.shape:
        return cast("Value", direct.CONVERTERS["Gather"](n))
    axis, index = n.attr("axis", 0) % len(data.shape), int(n.known(1).item())
    index += data.shape[axis] if index < 0 else 0
    if not 0 <= index < data.shape[axis]:
        return cast("Value", direct.CONVERTERS["Gather"](n))
    cut = n.emit("Slice", data, starts=[index], ends=[index + 1], axes=[axis], steps=[1])
    return n.reshape(cut, (*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :]))


def _split(n: NodeView) -> list[Value]:
    """Parts of the given sizes, else equal ones, of which the last may be smaller from opset 18 on."""
    axis, count = n.attr("axis", 0), len(n.node.output)
    size = n[0].shape[axis]
    sizes = n.ints("split", 1)
    if not sizes:
        n.check(n.opset >= 18 or size % count == 0, "size of the axis", f"a multiple of {count} parts", size)
        step = -(-size // count)
        sizes = [*[step] * (count - 1), size - step * (count - 1)]
    n.check(all(part >= 0 for part in sizes), "sizes of parts", "at least 0", sizes)
    return n.emit_several("Split", [n[0].dtype] * count, n[0], axis=axis, split=sizes)


def _pad(n: NodeView) -> Value:
    """Pads of some axes, positive or negative ones."""
    ndim, mode = len(n[0].shape), n.attr("mode", "constant")
    pads = n.ints("pads", 1) or list(n.attr("paddings") or ())
    axes = [axis % ndim for axis in n.ints("axes", 3) or range(ndim)]
    sides = dict(zip(axes, zip(pads[: len(axes)], pads[len(axes) :], strict=True), strict=True))
    value = n.known(2).item() if n.has(2) else n.attr("value", 0.0)
    return _padded(n, sides, mode, value)


def _center_crop_pad(n: NodeView) -> Value:
    """Each axis cut, or surrounded by zeros, at both ends alike; what is odd goes to the end."""
    targets, axes = n.ints("shape", 1) or [], n.attr("axes") or range(len(n[0].shape))
    n.check(len(targets) == len(axes), "number of sizes", f"{len(axes)}, one for each axis", len(targets))
    n.check(all(target >= 0 for target in targets), "sizes", "at least 0", targets)
    sides = {}
    for axis, target in zip(axes, targets, strict=True):
        size = n[0].shape[axis]
        first = largest(target - size, 0) // 2 - largest(size - target, 0) // 2
        sides[axis % len(n[0].shape)] = first, target - size - first
    return _padded(n, sides, "constant", 0.0)


def _padded(n: NodeView, sides: Mapping[int, tuple[int, int]], mode: str, value: Any) -> Value:
    """The first input with pads of axes, before and behind; negative ones take elements away first."""
    begin, end = zip(*(sides.get(axis, (0, 0)) for axis in range(len(n[0].shape))), strict=True)
    cut = n[0]
    is_either = mode == "constant" and any(map(is_variable, begin + end))
    if is_either or any(pad < 0 for pad in begin + end):
        starts = [largest(-first, 0) for first in begin]
        ends = [dim + least(last, 0) for dim, last in zip(cut.shape, end, strict=True)]
        sizes = list(map(operator.sub, ends, starts))
        n.check(all(size >= 0 for size in sizes), "sizes without what negative pads take", "at least 0", sizes)
        if is_either and (cut.dtype in _EXACT or is_f32_number(value)):
            return n.emit("Pad", cut, pads_begin=begin, pads_end=end, mode=mode, value=float(value))
        cut = n.emit("Slice", cut, starts=starts, ends=ends, axes=range(len(sizes)))
    pads_begin, pads_end = ([max(pad, 0) for pad in side] for side in (begin, end))
    if mode != "constant":
        padded = [dim for dim, *pads in zip(cut.shape, pads_begin, pads_end, strict=True) if any(pads)]
        n.check(all(padded), f"sizes of axes with pads of mode {mode!r}", "at least 1", padded)
    if mode == "constant" and cut.dtype not in _EXACT and not is_f32_number(value):
        return _surrounded(n, cut, list(zip(pads_begin, pads_end, strict=True)), value)
    return n.emit("Pad", cut, pads_begin=pads_begin, pads_end=pads_end, mode=mode, value=float(value))


def _surrounded(n: NodeView, value: Value, pads: list[tuple[int, int]], number: Any) -> Value:
    """The value between elements of a number that the attribute of a Pad, which is a float32, does not hold."""
    for axis, sides in enumerate(pads):
        begin, end = (
            [n.literal(np.full((*value.shape[:axis], pad, *value.shape[axis + 1 :]), number), value)] if pad else []
            for pad in sides
        )
        value = n.join([*begin, value, *end], axis)
    return value


_EXACT = (DataType.F32, DataType.F16, DataType.BF16)
"""Types of which float32 holds every value."""


def _tensor_scatter(n: NodeView) -> Value:
    """The cache with an update put in from an index of each batch entry on."""
    past, update = n[0], n[1]
    axis = n.axis(-2, len(past.shape))
    row = n.builder.numbers(0, update.shape[axis], axis, len(past.shape) - axis - 1)
    places = n.cast(row, DataType.S64)
    if n.has(2):
        places = n.emit("Add", n.reshape(n[2], (n[2].shape[0], *[1] * (len(past.shape) - 1))), places)
        if n.attr("mode", "linear") == "circular":
            places = n.emit("Mod", places, Value(content=shape_array(past.shape[axis])))
    return n.emit("ScatterElements", past, n.emit("Expand", places, shape=update.shape), update, axis=axis)


def _constant_of_shape(n: NodeView) -> Value:
    """One number, repeated."""
    given, shape = n.attr("value"), n.ints("shape", 0)
    number = np.zeros((), np.float32) if given is None else to_array(given).reshape(())
    n.require(shape is not None and number.dtype.kind in "fiub", "an unknown shape, or no number")
    value = n.builder.literal(number, DataType.parse(number.dtype))
    return n.emit("Expand", value, shape=shape) if shape else value


def _range(n: NodeView) -> Value:
    """Whole numbers: positions, scaled and shifted."""
    n.require(n[0].dtype in _COUNTED, "a range of another type")
    if not all(n[k].is_known for k in range(3)):
        return _late_range(n)
    start, end, step = (_whole_number(n, n[k].content) for k in range(3))
    n.require(step != 0, "a range without steps")
    count = -(-(end - start) // step)
    value = n.cast(n.builder.positions(count if count > 0 else 0), n[0].dtype)
    value = value if step == 1 else n.emit("Multiply", value, n.reshape(n[2], ()))
    value = value if start == 0 else n.emit("Add", value, n.reshape(n[0], ()))
    if count > 0:
        last = start + (count - 1) * step
        value.span = (start, last) if step > 0 else (last, start)
    return value


_COUNTED = (DataType.S64, DataType.S32, DataType.F32, DataType.F64)


def _late_range(n: NodeView) -> Value:
    """A range of which only a run tells the bounds: its length begins the data-dependent part."""
    given = [n[k] for k in range(3)]
    n.require(all(prod(value.shape) == 1 for value in given), "bounds that are no single numbers")
    parts = tuple({id(value): value for value in given if not value.is_known}.values())
    numbers = [next((k for k, part in enumerate(parts) if part is value), value.plain_content) for value in given]
    label, limits = n.node.label, n.builder.bounds.limits

    def cut(*bounds: Any) -> Any:
        found = [bounds[number] if isinstance(number, int) else number for number in numbers]
        start, end, step = (bound.reshape(())[()] for bound in found)
        distance = float(end) - float(start)
        what = f"node {label!r} (Range)"
        if step == 0 or not isfinite(distance / float(step)):
            got = f"{start}, {end}, {step}"
            raise InvalidArgumentError(explain(what, accepted="finite numbers and a step", got=got), node=label)
        count = max(ceil(distance / float(step)), 0)
        limits.check("folded_nbytes", count * start.itemsize, f"{what}: a result of {count} numbers", label)
        return start + np.arange(count).astype(start.dtype) * step

    def bound(*_: Any) -> None:
        return None

    return Value(data_dependent=DataDependent(parts, n[0].dtype, (None,), cut, bound))


def _whole_number(n: NodeView, content: Any) -> int:
    """The one element."""
    if isinstance(content, ShapeArray):
        return content.items.reshape(-1)[0]  # type: ignore[no-any-return]
    number = np.asarray(content).reshape(-1)[0].item()
    is_whole = isinstance(number, int) or (number == number // 1 and abs(number) < 2**24)
    n.require(is_whole, "a range of broken numbers")
    return int(number)


_MOST_SHIFT = 1 << 62
"""Of a diagonal: sums with positions are within 64 bits."""


def _eye_like(n: NodeView) -> Value:
    """Known as soon as the shape is; of sizes that vary, where the position in the row is that of the row, and k."""
    dtype = data_type(n.attr("dtype")) if n.attr("dtype") else n[0].dtype
    n.require(dtype is not None, "a type that we do not have")
    assert dtype is not None  # required above
    (rows, columns), k = n[0].shape, n.attr("k", 0)
    if abs(k) >= _MOST_SHIFT or not (is_variable(rows) or is_variable(columns)):
        n.allow_table(16 * rows * columns)
        return n.builder.literal(np.eye(rows, columns, k), dtype)
    down = n.cast(n.builder.numbers(0, rows, behind=1), DataType.S64)
    across = n.cast(n.builder.numbers(0, columns), DataType.S64)
    shifted = n.emit("Add", down, n.builder.literal(k, DataType.S64)) if k else down
    return n.cast(n.emit_several("Equal", [DataType.BOOLEAN], across, shifted)[0], dtype)


CONVERTERS: dict[str, Callable[[NodeView], Any]] = {
    "Reshape": _reshape, "Flatten": _flatten, "Squeeze": _squeeze, "Unsqueeze": _unsqueeze, "Transpose": _transpose,
    "Concat": _concat, "DepthToSpace": _depth_to_space, "SpaceToDepth": _space_to_depth, "Expand": _expand,
    "Gather": _gather, "Slice": _slice, "Split": _split, "Pad": _pad, "CenterCropPad": _center_crop_pad,
    "EyeLike": _eye_like, "TensorScatter": _tensor_scatter, "ConstantOfShape": _constant_of_shape, "Range": _range,
}  # fmt: skip
