"""Access by index: gather, scatter, reversed sequences, one-hot, rotary embedding."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from ....typing import DataType
from ..lower.region import Region
from ..support import MOST_STEPS, register_of_type, rule

if TYPE_CHECKING:
    from ....graph.op import Op
    from ..lower.lowering import Lowering
    from ..lower.values import Value


def _along_axis(value: Value, indices: Value, axis: int) -> dict[str, Any]:
    """Geometry of GatherElements and ScatterElements: a position stands for itself but along the axis."""
    itemsize, axis = value.dtype.bits // 8, axis % len(value.shape)
    bases = [0 if k == axis else stride * itemsize for k, stride in enumerate(value.strides)]
    return {
        "shape": indices.shape, "index_strides": indices.strides, "base_strides": bases,
        "tuple_axes": [(value.shape[axis], value.strides[axis] * itemsize)], "row_nbytes": itemsize,
    }  # fmt: skip


def _by_tuples(value: Value, indices: Value, batch: int) -> dict[str, Any]:
    """Geometry of GatherND and ScatterND: the last dimension of indices is a tuple; rows are what it leaves."""
    itemsize, size = value.dtype.bits // 8, indices.shape[-1]
    steps = [stride * itemsize for stride in value.strides]
    ahead = len(indices.shape) - 1
    return {
        "shape": indices.shape[:-1], "index_strides": indices.strides[:-1],
        "base_strides": [*steps[:batch], *[0] * (ahead - batch)],
        "tuple_axes": list(zip(value.shape[batch : batch + size], steps[batch : batch + size], strict=True)),
        "row_nbytes": prod(value.shape[batch + size :]) * itemsize,
    }  # fmt: skip


def _along_rows(value: Value, indices: Value, axis: int) -> dict[str, Any]:
    """Geometry of Gather: the dimensions before the axis, then those of indices; rows lie behind the axis."""
    itemsize, axis = value.dtype.bits // 8, axis % len(value.shape)
    steps = [stride * itemsize for stride in value.strides]
    return {
        "shape": (*value.shape[:axis], *indices.shape), "index_strides": (*[0] * axis, *indices.strides),
        "base_strides": (*steps[:axis], *[0] * len(indices.shape)), "tuple_axes": [(value.shape[axis], steps[axis])],
        "row_nbytes": prod(value.shape[axis + 1 :]) * itemsize,
    }  # fmt: skip


def geometry(op: Op, value: Value, indices: Value) -> dict[str, Any]:
    """What a kernel of a Gather or Scatter asks."""
    if op.kind == "Gather":
        return _along_rows(value, indices, op.attrs["axis"])
    if op.kind in ("GatherElements", "ScatterElements"):
        return _along_axis(value, indices, op.attrs["axis"])
    return _by_tuples(value, indices, op.attrs.get("batch_dims", 0))


def _is_indexable(indices: Value, op: Op) -> bool:
    """Whether the tuples of indices lie side by side, as the kernels read them."""
    return not op.kind.endswith("ND") or indices.strides[-1] == 1


@rule("Gather", "GatherElements", "GatherND")
def lower_gather(lowering: Lowering, op: Op) -> None:
    """One kernel picks the rows."""
    source, indices = (lowering.value(tensor.id) for tensor in op.inputs)
    source = source if op.kind == "GatherElements" else lowering.dense(source, source.dtype)
    indices = indices if _is_indexable(indices, op) else lowering.dense(indices, indices.dtype)
    place = lowering.target(op.outputs[0].id)
    lowering.gather(geometry(op, source, indices), source, indices, place)
    lowering.finish(op.outputs[0].id, place)


@rule("ScatterElements", "ScatterND")
def lower_scatter(lowering: Lowering, op: Op) -> None:
    """A copy, into which one kernel puts the rows; sums and products of 16-bit floats are f32, rounded once."""
    source, indices, updates = (lowering.value(tensor.id) for tensor in op.inputs)
    indices = indices if _is_indexable(indices, op) else lowering.dense(indices, indices.dtype)
    is_wide = op.attrs["reduction"] in ("add", "mul") and source.dtype in (DataType.BF16, DataType.F16)
    dtype = DataType.F32 if is_wide else source.dtype
    updates = lowering.dense(updates, dtype)
    place = lowering.target(op.outputs[0].id, dtype=dtype, any_strides=op.kind == "ScatterElements")
    is_there = source.is_at(place)
    if not is_there:
        lowering.move(source, place)
    lowering.scatter(geometry(op, place, indices), updates, indices, place, op.attrs["reduction"], rewrites=is_there)
    lowering.finish(op.outputs[0].id, place)


@rule("ReverseSequence")
def lower_reverse_sequence(lowering: Lowering, op: Op) -> None:
    """For each sequence and step the step that comes there, then a gather of rows; a length below 0 leads outside."""
    source, lengths = (lowering.value(tensor.id) for tensor in op.inputs)
    place = lowering.target(op.outputs[0].id)
    batch, time = (op.attrs[name] % len(source.shape) for name in ("batch_axis", "time_axis"))
    outer = max(batch, time) + 1
    shape = tuple([dim if axis in (batch, time) else 1 for axis, dim in enumerate(source.shape[:outer])])
    steps = lowering.temporary(shape, DataType.S64)
    numbers = lowering.positions(shape[time])
    region = Region(lowering, shape, register="s64")
    step, length = region.load_along(numbers, time), region.load_along(lengths, batch)
    from_end = region.binary("sub", region.binary("sub", length, region.builder.const(1)), step)
    found = region.builder.ternary("select", region.binary("lt", step, length), from_end, step)
    below = region.binary("max", region.binary("min", length, region.builder.const(0)), region.builder.const(-1))
    far = region.binary("mul", below, region.builder.const(1 << 40))
    region.write(steps, region.binary("sub", found, far))
    region.emit("eltwise(reversed steps)")
    source = lowering.dense(source, source.dtype)
    itemsize = source.dtype.bits // 8
    bases = [stride * itemsize for stride in source.strides[:outer]]
    rows = {
        "shape": source.shape[:outer],
        "index_strides": [stride if axis in (batch, time) else 0 for axis, stride in enumerate(steps.strides)],
        "base_strides": [0 if axis == time else base for axis, base in enumerate(bases)],
        "tuple_axes": [(source.shape[time], bases[time])], "row_nbytes": prod(source.shape[outer:]) * itemsize,
    }  # fmt: skip
    lowering.gather(rows, source, steps, place)
    lowering.finish(op.outputs[0].id, place)


@rule("OneHot", where=lambda op: op.attrs["depth"] < MOST_STEPS)
def lower_one_hot(lowering: Lowering, op: Op) -> None:
    """Where the position along the new axis is the index: a comparison, then a selection."""
    indices, values = (lowering.value(tensor.id) for tensor in op.inputs)
    place = lowering.target(op.outputs[0].id, any_strides=True)
    axis, depth = op.attrs["axis"] % len(place.shape), op.attrs["depth"]
    is_hot = lowering.temporary(place.shape, DataType.BOOLEAN)
    _compare_positions(lowering, indices.unsqueezed(axis), is_hot, axis, depth)
    region = Region(lowering, place.shape, register=register_of_type(place.dtype))
    off, on = (region.load(values.cut(0, k, 1)) for k in (0, 1))
    region.write(place, region.builder.ternary("select", region.load(is_hot), on, off))
    region.emit("eltwise(OneHot)")
    lowering.finish(op.outputs[0].id, place)


def _compare_positions(lowering: Lowering, indices: Value, is_hot: Value, axis: int, depth: int) -> None:
    """Whether an index, or what it is counted from the end, is the position along the axis."""
    register = register_of_type(indices.dtype, depth)
    region = Region(lowering, is_hot.shape, register=register)
    index = region.load(indices)
    if register in ("f32", "f64"):
        index = region.unary("trunc", index)
    positions = lowering.positions(depth)
    result = region.binary("eq", index, region.load_along(positions, axis))
    if register != "u64":
        left = region.load_along(positions.cut(0, depth - 1, depth, -1), axis)  # positions behind this one
        from_end = region.binary("sub", region.builder.const(-1), left)
        result = region.binary("or", result, region.binary("eq", index, from_end))
    region.write(is_hot, result)
    region.emit("eltwise(position)")


@rule("RotaryEmbedding")
def lower_rotary(lowering: Lowering, op: Op) -> None:
    """Each half of the pairs is one program over (batch, heads, length, pairs); what is not rotated is copied."""
    source, cos, sin, *ids = (lowering.value(tensor.id) for tensor in op.inputs)
    if ids:
        cos, sin = (_pick_positions(lowering, cache, ids[0]) for cache in (cos, sin))
    place = lowering.target(op.outputs[0].id, any_strides=True)
    x, y = (_by_heads(value, op.attrs["num_heads"]) for value in (source, place))
    half, size = cos.shape[-1], x.shape[-1]
    step = 2 if op.attrs["interleaved"] else 1
    second = 1 if op.attrs["interleaved"] else half
    (a, b), (first, last) = ((value.cut(3, 0, half, step), value.cut(3, second, half, step)) for value in (x, y))
    region = Region(lowering, a.shape)
    cosine, sine = (region.load(_between_heads(cache, x.shape[1])) for cache in (cos, sin))
    left, right = region.load(a), region.load(b)
    for target, name, parts in ((first, "sub", ((left, cosine), (right, sine))),
                                (last, "add", ((left, sine), (right, cosine)))):  # fmt: skip
        region.write(target, region.binary(name, *(region.binary("mul", *part) for part in parts)))
    region.emit("eltwise(RotaryEmbedding)")
    if size > 2 * half:
        lowering.move(x.cut(3, 2 * half, size - 2 * half), y.cut(3, 2 * half, size - 2 * half))
    lowering.finish(op.outputs[0].id, place)


def _pick_positions(lowering: Lowering, cache: Value, ids: Value) -> Value:
    """The rows of a cache for each element of ids."""
    cache = lowering.dense(cache, cache.dtype)
    place = lowering.temporary((*ids.shape, cache.shape[1]), cache.dtype)
    lowering.gather(_along_rows(cache, ids, 0), cache, ids, place)
    return place


def _by_heads(value: Value, num_heads: int) -> Value:
    """(batch, length, heads * size) or (batch, heads, length, size) as the latter, in place."""
    if len(value.shape) == 4:
        return value
    batch, length, width = value.shape
    size = width // num_heads
    (first, row, item), shape = value.strides, (batch, num_heads, length, size)
    return type(value)(value.dtype, shape, (first, size * item, row, item), value.buffer, value.offset)


def _between_heads(cache: Value, num_heads: int) -> Value:
    """(batch, length, pairs) as (batch, heads, length, pairs): the same for all heads."""
    batch, length, pairs = cache.shape
    first, row, item = cache.strides
    shape, strides = (batch, num_heads, length, pairs), (first, 0, row, item)
    return type(cache)(cache.dtype, shape, strides, cache.buffer, cache.offset)
