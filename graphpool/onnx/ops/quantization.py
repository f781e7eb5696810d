"""Quantise and dequantise, by scales of a tensor, of channels or of blocks, and products of quantised tensors.

ONNX rounds x / scale and then adds the zero point; oneDNN's Quantize rounds the sum, which differs where a half is
rounded to even: hence our attribute `rounds_first`. Where the numbers are not known ahead, ops of their own round.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from graphpool._dataclasses import dataclass
from graphpool.onnx.arrays import unpacked
from graphpool.onnx.build import Value
from graphpool.onnx.types import data_type
from graphpool.runtime.constant_memory import memory_of
from graphpool.runtime.constant_part import drop_pages
from graphpool.runtime.nibbles import Nibbles, in_bytes
from graphpool.typing import DataType

from . import direct
from .window import dilations_of, window

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from graphpool.onnx.build import NodeView

_BYTES = (DataType.U8, DataType.S8)
_F8 = (DataType.F8_E4M3, DataType.F8_E5M2)
_RANGES = {DataType.U8: (0, 255), DataType.S8: (-128, 127), DataType.U16: (0, 65535), DataType.S16: (-32768, 32767)}
_EXACT = 2**24
"""Integers up to this are exact in float32."""

_PART_TERMS = 64
"""Terms in whose multiples long sums are split: kernels read whole cache lines of bytes."""


@dataclass(frozen=True)
class _Scaling:
    """Scale and zero point of a tensor: of all of it, along an axis, or of blocks along it.

    There is no zero point where it is known to be zero.
    """

    scale: Value
    point: Value | None
    axis: int
    block: int = 0

    @property
    def is_known(self) -> bool:
        """Whether all numbers are known, and finite, as attributes have to be: calibration over -inf gives others."""
        known = self.scale.is_known and (self.point is None or self.point.is_known)
        return known and bool(np.isfinite(self.scale.plain_content).all())

    def options(self) -> dict[str, Any]:
        """Attributes of the kinds that take scales."""
        if self.scale.shape in ((), (1,)):
            return {"qtype": "per_tensor"}
        return {"qtype": "per_channel", "axis": self.axis}


def scaling(n: NodeView, first: int, axis: int, block: int = 0) -> _Scaling:
    """Scale and zero point that are inputs one behind the other."""
    return _scaling_by(n[first], n[first + 1] if n.has(first + 1) else None, axis, block)


def _scaling_by(scale: Value, point: Value | None, axis: int, block: int = 0) -> _Scaling:
    """The same of values."""
    is_zero = point is not None and point.is_known and not np.asarray(point.content).any()
    return _Scaling(scale, None if is_zero else point, axis, block)


def _given_scaling(n: NodeView) -> _Scaling:
    block = n.attr("block_size", 0)
    n.require(bool(block) or len(n[1].shape) <= 1, "scales of blocks without their size")
    return scaling(n, 1, n.attr("axis", 1), block)


# ---- one tensor


def _quantize_linear(n: NodeView) -> Value:
    wanted = data_type(n.attr("output_dtype", 0))
    target = n[2].dtype if n.has(2) else wanted or DataType.U8
    return quantize(n, n[0], _given_scaling(n), target, bool(n.attr("saturate", 1)))


def quantize(n: NodeView, x: Value, by: _Scaling, target: DataType, saturate: bool = True) -> Value:
    """The integers that stand for numbers, by scale and zero point."""
    x = n.cast(x, DataType.F32)
    if target in _BYTES and not by.block:
        return _quantize_to_bytes(n, x, by, target)
    shape, x = x.shape, _in_blocks(n, x, by)
    quotient = n.emit("Divide", x, _spread(n, by.scale, x, by))
    if target in _F8:
        return n.reshape(n.cast(quotient, target, **({} if saturate else {"saturate": False})), shape)
    n.require(target in _RANGES, "no integer of 8 or 16 bits")
    low, high = _RANGES[target]
    rounded = n.emit("Round", quotient)
    if by.point is not None:
        rounded = n.emit("Add", rounded, _spread(n, by.point, x, by))
    if low < 0:  # of NaN the least integer, which a cast makes 0
        least = n.literal(float(low), rounded)
        [is_number] = n.emit_several("GreaterEqual", [DataType.BOOLEAN], rounded, least)
        rounded = n.emit_several("Select", [DataType.F32], is_number, rounded, least)[0]
    return n.reshape(n.cast(n.emit("Clamp", rounded, min=low, max=high), target), shape)


def _quantize_to_bytes(n: NodeView, x: Value, by: _Scaling, target: DataType) -> Value:
    if by.point is None:
        return _apply(n, "Quantize", target, x, _Scaling(by.scale, None, by.axis))
    if by.is_known:
        return _apply(n, "Quantize", target, x, by, rounds_first=True)
    rounded = n.emit("Round", n.emit("Divide", x, _spread(n, by.scale, x, by)))
    ones = n.literal(np.ones(by.scale.shape), x)
    return _apply(n, "Quantize", target, rounded, _Scaling(ones, by.point, by.axis))


def _apply(n: NodeView, kind: str, target: DataType, x: Value, by: _Scaling, **attrs: Any) -> Value:
    """Quantize or Dequantize with known numbers, else the kind that takes tensors."""
    options, scale = by.options() | attrs, n.cast(by.scale, DataType.F32)
    if by.is_known:
        options["scales"] = np.asarray(scale.content, np.float64).reshape(-1)
        if by.point is not None:
            options["zps"] = np.asarray(by.point.content, np.int64).reshape(-1)
        return n.emit_several(kind, [target], x, **options)[0]
    points = [by.point] if by.point is not None else []
    return n.emit_several(f"Dynamic{kind}", [target], x, scale, *points, **options)[0]


def _dequantize_linear(n: NodeView) -> Value:
    result = dequantize(n, n[0], _given_scaling(n))
    return n.cast(result, data_type(n.attr("output_dtype", 0)) or n[1].dtype)


def dequantize(n: NodeView, x: Value, by: _Scaling) -> Value:
    """The numbers that a quantised tensor stands for, in f32."""
    if by.block or x.dtype not in _BYTES:
        found = dequantize_matrix(n, x, by.scale, by.point, by.axis, by.block)
        if found is not None:
            return found
        if x.is_known:
            x = _in_bytes(n, x)
    if x.dtype in _BYTES and not by.block:
        return _apply(n, "Dequantize", DataType.F32, x, by)
    if x.is_known and by.is_known and not by.block:
        return _dequantized(n, x, by)
    shape, numbers = x.shape, _in_blocks(n, n.cast(x, DataType.F32), by)
    if by.point is not None:
        numbers = n.emit("Subtract", numbers, _spread(n, by.point, numbers, by))
    return n.reshape(n.emit("Multiply", numbers, _spread(n, by.scale, numbers, by)), shape)


def _in_bytes(n: NodeView, x: Value) -> Value:
    """Known numbers of 8 or 4 bits as a constant of one byte each, which no op is to compute with ahead."""
    if x.dtype.bits == 4:
        content = x.content.in_bytes if isinstance(x.content, Nibbles) else in_bytes(x.content)
        drop_pages(memory_of(x.content))
        x = Value(content=content, is_static=x.is_static and isinstance(x.content, Nibbles))
    return Value(tensor=n.builder.tensor(x), is_static=x.is_static) if x.dtype in _BYTES else x


def _dequantized(n: NodeView, x: Value, by: _Scaling) -> Value:
    """Known numbers of as many bits as f32 has, biases above all, dequantised once and for all."""
    scale, point = (
        0.0 if part is None else np.asarray(part.content, np.float64).reshape(_spread_shape(part, x, by))
        for part in (by.scale, by.point)
    )
    return n.builder.literal(((x.content - point) * scale).astype(np.float32), DataType.F32)


def _in_blocks(n: NodeView, x: Value, by: _Scaling) -> Value:
    """X with the axis of the blocks split into (blocks, elements of one)."""
    if not by.block:
        return x
    n.require(len(by.scale.shape) == len(x.shape), "scales of blocks of another rank")
    axis, size = by.axis % len(x.shape), x.shape[by.axis]
    n.require(size == by.scale.shape[axis] * by.block, "a block that is cut off")
    return n.reshape(x, (*x.shape[:axis], size // by.block, by.block, *x.shape[axis + 1 :]))


def _spread_shape(numbers: Value, x: Value, by: _Scaling) -> tuple[int, ...]:
    """The shape in which scales of x or of one of its axes broadcast with it."""
    if numbers.shape in ((), (1,)):
        return ()
    return tuple(numbers.shape[0] if k == by.axis % len(x.shape) else 1 for k in range(len(x.shape)))


def _spread(n: NodeView, numbers: Value, x: Value, by: _Scaling) -> Value:
    """Scales or zero points in f32, in a shape that broadcasts with x."""
    if by.block:
        axis = by.axis % (len(x.shape) - 1)
        shape = (*numbers.shape[: axis + 1], 1, *numbers.shape[axis + 1 :])
    else:
        shape = _spread_shape(numbers, x, by)
    if numbers.is_known:
        return n.builder.literal(np.reshape(numbers.content, shape), DataType.F32)
    return n.reshape(n.cast(numbers, DataType.F32), shape)


# ---- weights of 8 or 4 bits with scales of blocks: they stay as they are, behind a DynamicDequantize

_NUMBERS = frozenset({DataType.S8, DataType.U8, DataType.S4, DataType.U4})


def dequantize_matrix(n: NodeView, x: Value, scale: Value, point: Value | None, axis: int, block: int) -> Value | None:
    """A known matrix in f32, by known scales of blocks along an axis, of the axis (block 0), or of all of it.

    None where x, scale or zero point is not known, or x is no matrix of such numbers.
    """
    numbers = [x, scale, *([point] if point is not None else [])]
    if not all(value.is_known for value in numbers) or x.dtype not in _NUMBERS or len(x.shape) != 2:
        return None
    options: dict[str, Any] = {"qtype": "per_tensor"}
    if block:
        n.require(x.shape[axis] == scale.shape[axis] * block, "a block that is cut off")
        options = {"qtype": "per_group", "group_shape": [block if k == axis % 2 else 1 for k in range(2)]}
    elif scale.shape not in ((), (1,)):
        options = {"qtype": "per_channel", "axis": axis}
    sides = [n.vector(value) for value in numbers[1:]]
    return n.emit_several(
        "DynamicDequantize", [DataType.F32], x, n.cast(sides[0], DataType.F32), *sides[1:], **options
    )[0]


# ---- products


def _qlinear_matmul(n: NodeView) -> Value:
    """Rows of a and columns of b may have scales of their own."""
    a, b = dequantize(n, n[0], scaling(n, 1, -2)), dequantize(n, n[3], scaling(n, 4, -1))
    return quantize(n, n.emit("MatMul", a, b), scaling(n, 6, -2), n[7].dtype)


def _qlinear_conv(n: NodeView) -> Value:
    """Weights may have a scale for each output channel; the bias has the product of both scales.

    ONNX Runtime's own has channels first or last.
    """
    x, by_channel = dequantize(n, n[0], scaling(n, 1, 1)), scaling(n, 4, 0)
    inputs = [x, dequantize(n, n[3], by_channel)]
    if n.has(8):
        inputs.append(integer_bias(n, n[8], (n[1], n[4])))
    return quantize(n, _convolution(n, inputs), scaling(n, 6, 1), n[7].dtype)


def integer_bias(n: NodeView, numbers: Value, scales: tuple[Value, Value]) -> Value:
    """A bias of integers times the product of both operands' scales."""
    if numbers.is_known and all(scale.is_known for scale in scales):
        first, second = (np.asarray(scale.content, np.float64) for scale in scales)
        return n.builder.literal((numbers.content * (first * second)).astype(np.float32), DataType.F32)
    product = n.emit("Multiply", *(n.cast(scale, DataType.F32) for scale in scales))
    return n.emit("Multiply", n.cast(numbers, DataType.F32), n.reshape(product, product.shape or (1,)))


def _convolution(n: NodeView, inputs: Sequence[Value]) -> Value:
    spatial = len(n[0].shape) - 2
    options = window(n, spatial) | ({"data_format": "NXC"} if n.attr("channels_last", 0) else {})
    return n.emit(
        "Convolution", *inputs, **options, dilations=dilations_of(n, spatial), groups=n.attr("group", 1),
        weights_format="OIX",
    )  # fmt: skip


def _integers(n: NodeView, x: Value, point: int, axis: int) -> Value:
    """8-bit integers less their zero point, in f32: what they stand for where the scale is 1."""
    given = n[point] if n.has(point) else None
    ones = n.builder.literal(np.ones(() if given is None else given.shape), DataType.F32)
    return dequantize(n, x, _scaling_by(ones, given, axis))


def _matmul_integer(n: NodeView) -> Value:
    inner = -2 if len(n[1].shape) > 1 else -1

    def product(a: Value, b: Value) -> Value:
        return n.emit("MatMul", _integers(n, a, 2, -2), _integers(n, b, 3, -1))

    return _sum_of_parts(n, (-1, inner), _exact_ends(n, inner, (inner,)), product)


def _conv_integer(n: NodeView) -> Value:
    ends = _exact_ends(n, 1, tuple(range(1, len(n[1].shape))))
    n.require(len(ends) == 1 or n.attr("group", 1) == 1, "a sum that float32 does not hold")

    def product(x: Value, weights: Value) -> Value:
        return _convolution(n, [_integers(n, x, 2, 1), _integers(n, weights, 3, 0)])

    return _sum_of_parts(n, (1, 1), ends, product)


def _exact_ends(n: NodeView, axis: int, summed: tuple[int, ...]) -> list[int]:
    """Ends of the parts of an axis of input 1, one of those that are summed, whose sums float32 holds.

    How many terms these may be depends on the weights, if they are known: few of them are the largest of their type.
    """
    weights, points = n[1], _zero_points(n, 3)
    size, others = weights.shape[axis], math.prod(weights.shape[other] for other in summed if other != axis)
    limit, largest = _EXACT // _largest_integer(n, 0, 2), _largest_integer(n, 1, 3) * others
    if size * largest <= limit:
        return [size]
    unit = max(_PART_TERMS // others, 1)
    known = weights.plain_content if weights.is_known and len(points) == 1 else None
    ends, total = [], np.zeros((), np.int64)
    for start in range(0, size, unit):
        end = min(start + unit, size)
        terms = np.asarray((end - start) * largest)
        if known is not None:
            part = known[(slice(None),) * (axis % known.ndim) + (slice(start, end),)]
            terms = np.abs(part.astype(np.int32) - points[0]).sum(summed)
        n.require(bool((terms <= limit).all()), "a sum that float32 does not hold")
        if (total + terms > limit).any():
            ends.append(start)
            total = np.zeros((), np.int64)
        total = total + terms
    return [*ends, size]


def _zero_points(n: NodeView, port: int) -> list[int]:
    """The zero points that an operand may have."""
    if not n.has(port):
        return [0]
    if not n[port].is_known:
        return [*_RANGES[n[port].dtype]]
    return sorted(set(n[port].plain_content.reshape(-1).tolist())) or [0]  # np.unique loads numpy.ma, 8 ms


def _largest_integer(n: NodeView, port: int, point: int) -> int:
    """The largest distance of an operand from its zero point that its type allows."""
    low, high = _RANGES[n[port].dtype]
    return max(max(high - zero, zero - low) for zero in _zero_points(n, point))


def _sum_of_parts(n: NodeView, axes: tuple[int, int], ends: Sequence[int], product: Callable[..., Value]) -> Value:
    """A product of inputs 0 and 1, exact: parts of the axes that are summed, whose sums float32 holds."""
    if len(ends) == 1:
        return n.cast(product(n[0], n[1]), DataType.S32)
    total: Value | None = None
    for start, end in zip((0, *ends), ends, strict=False):
        parts = (
            n.emit("Slice", value, starts=[start], ends=[end], axes=[axis])
            for value, axis in zip((n[0], n[1]), axes, strict=True)
        )
        part = n.cast(product(*parts), DataType.S32)
        total = part if total is None else n.emit("Add", total, part)
    assert total is not None  # there are ends
    return total


# ---- ops that ONNX Runtime contributes


def _matmul_integer_to_float(n: NodeView) -> Value:
    """Source: the operators of domain com.microsoft, as ONNX Runtime documents them."""
    a = dequantize(n, n[0], _scaling_by(n[2], n[4] if n.has(4) else None, -2))
    return _times_weights(n, a, _scaling_by(n[3], n[5] if n.has(5) else None, -1), 6)


def _dynamic_quantize_matmul(n: NodeView) -> Value:
    """The same of activations that are quantised by their range."""
    x, scale, point = direct.CONVERTERS["DynamicQuantizeLinear"](n)
    return _times_weights(n, dequantize(n, x, _Scaling(scale, point, -2)), scaling(n, 2, -1), 4)


def _times_weights(n: NodeView, a: Value, by: _Scaling, bias: int) -> Value:
    """The product with input 1, and the bias that input `bias` may be."""
    product = n.emit("MatMul", a, dequantize(n, n[1], _in_one_shape(n, by)))
    return n.emit("Add", product, n[bias]) if n.has(bias) else product


def _in_one_shape(n: NodeView, by: _Scaling) -> _Scaling:
    """Scale and zero point for as many columns as one of them has."""
    if by.point is None or by.point.shape == by.scale.shape:
        return by
    n.require(by.is_known, "zero points and scales of different shapes")
    scale, point = np.broadcast_arrays(by.scale.content, by.point.content)
    return _Scaling(n.literal(scale, by.scale), n.literal(point, by.point), by.axis)


def _matmul_nbits(n: NodeView) -> Value:
    """A times the transpose of B, whose rows are blocks of 4 or 8 bits, the first number in the low bits.

    The accuracy level is the least precision of A: 1 f32, 2 f16, 3 bf16, 4 int8; 0 leaves it to the float mode.
    Source: the operators of domain com.microsoft, as ONNX Runtime documents them.
    """
    bits, block, rows, k = n.attr("bits", 4), n.attr("block_size", 0), n.attr("N", 0), n.attr("K", 0)
    n.require(bits in (4, 8) and block > 0, "such bits or blocks")
    n.require(not n.has(4), "an order of the groups")
    n.check(n[0].shape[-1] == k, "columns of input A", k, n[0].shape[-1])
    groups = -(-k // block)
    a = _filled_up(n, n[0], groups * block)  # zeros for what the last block has too many
    dtype = DataType.U4 if bits == 4 else DataType.U8
    n.require(n[1].is_known and n[1].dtype is DataType.U8, "weights that are not known")
    n.require(n[1].content.size == rows * groups * block * bits // 8, "the size of the weights")
    weights = n.builder.reinterpreted(n[1], dtype, (rows, groups * block))
    scale = n.cast(n.builder.literal(n.known(2).reshape(rows, groups), n[2].dtype), a.dtype)
    are_floats = n.has(3) and n[3].dtype is not DataType.U8
    points = n.builder.literal(_points(n, bits, rows, groups), DataType.U8)
    kinds = {"qtype": "per_group", "group_shape": [1, block]}
    floats = n.emit_several("DynamicDequantize", [a.dtype], weights, scale, points, **kinds)[0]
    level = n.attr("accuracy_level", 0)
    n.require(level in range(5), "such an accuracy level")
    mode = {"fpmath": "int8" if level == 4 and not are_floats else "strict"} if level else {}
    product = n.emit("MatMul", a, floats, *([n[5]] if n.has(5) else []), transpose_b=True, **mode)
    return n.emit("Add", product, _shift(n, a, bits, block)) if are_floats else product


def _filled_up(n: NodeView, x: Value, size: int) -> Value:
    """X with zeros behind its last axis, which has so many elements then."""
    missing, rest = size - x.shape[-1], [0] * (len(x.shape) - 1)
    if not missing:
        return x
    return n.emit("Pad", x, pads_begin=[*rest, 0], pads_end=[*rest, missing], mode="constant", value=0.0)


def _shift(n: NodeView, a: Value, bits: int, block: int) -> Value:
    """What zero points that are floats add to a product in which they are half the range."""
    scale = n.known(2).astype(np.float32).reshape(n.attr("N"), -1)
    shift = ((1 << (bits - 1)) - n.known(3).astype(np.float32).reshape(scale.shape)) * scale
    blocks = n.reshape(n.cast(a, DataType.F32), (*a.shape[:-1], a.shape[-1] // block, block))
    sums = n.emit("ReduceSum", blocks, axes=[len(a.shape)], keep_dims=False)
    return n.cast(n.emit("MatMul", sums, n.literal(shift, sums), transpose_b=True), a.dtype)


def _points(n: NodeView, bits: int, rows: int, groups: int) -> np.ndarray[Any, Any]:
    """The zero point of each block, or of all: half the range where none are given, or floats."""
    if not n.has(3) or n[3].dtype is not DataType.U8:
        return np.full((1, 1), 1 << (bits - 1), np.uint8)
    packed = n.known(3)
    n.require(packed.size == rows * -(-groups * bits // 8), "the size of the zero points")
    return unpacked(packed.reshape(rows, -1), bits)[:, :groups]


_NORMAL_FLOATS = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
"""NF4: quantiles of the normal distribution. Source: Dettmers et al., QLoRA (2023), appendix E."""

_SMALL_FLOATS = (0.0, 1 / 192, 2 / 3, 1.0, 1 / 3, 1 / 2, 1 / 6, 1 / 4)
"""FP4, of the library bitsandbytes: what the low three bits say; the high one is the sign."""


def _matmul_bnb4(n: NodeView) -> Value:
    """A times a matrix of numbers of a table, by scales of blocks of the matrix laid flat; the high bits come first.

    Source: the operators of domain com.microsoft, as ONNX Runtime documents them.
    """
    rows, k, block, kind = (n.attr(name, 0) for name in ("N", "K", "block_size", "quant_type"))
    n.require(kind in (0, 1) and block > 0, "such numbers or blocks")
    n.require(bool(n.attr("transB", 1)), "a matrix that is not turned, which gradients have")
    n.allow_table(rows * k * 4)
    table = _NORMAL_FLOATS if kind else (*_SMALL_FLOATS, *(-number for number in _SMALL_FLOATS))
    packed, scale = n.known(1).reshape(-1), n.known(2).astype(np.float32).reshape(-1)
    n.require(packed.size * 2 >= rows * k and scale.size * block >= rows * k, "the size of the weights or scales")
    both = np.array([(high, low) for high in table for low in table], np.float32)
    numbers = both[packed].reshape(-1)[: rows * k]
    whole = numbers.size // block
    numbers[: whole * block].reshape(whole, block)[:] *= scale[:whole, None]
    numbers[whole * block :] *= scale[whole : whole + 1]
    weights = n.literal(numbers.reshape(rows, k), n[0])
    return n.emit("MatMul", n[0], weights, transpose_b=True)


def _gather_quantized(n: NodeView) -> Value:
    """Rows of a table of 8 or 4 bits, by scales of blocks of a row; bytes have half the range for zero by default.

    Source: the operators of domain com.microsoft, as ONNX Runtime documents them.
    """
    data, scale, block, rank = n[0], n[2], n.attr("block_size", 128), len(n[0].shape)
    bits = n.attr("bits", 4) if data.dtype is DataType.U8 else data.dtype.bits
    n.require(data.dtype in _NUMBERS and bits in (4, 8) and block > 0, "such bits or blocks")
    axes = [n.attr("gather_axis", 0) % rank, n.attr("quantize_axis", 1) % rank]
    n.require(rank > 1 and axes == [0, rank - 1], "other axes than the first for indices and the last for blocks")
    point = 0 if data.dtype.bits == 4 else 1 << (bits - 1)
    numbers, scales = _rows_as_floats(n, data, bits), n.cast(n.emit("Gather", scale, n[1], axis=0), DataType.F32)
    groups, width = scales.shape[-1], numbers.shape[-1]
    numbers = _filled_up(n, numbers, groups * block)
    numbers = n.reshape(numbers, (*numbers.shape[:-1], groups, block))
    points = n.literal(float(point), numbers)
    if n.has(3):
        points = _rows_as_floats(n, n[3], bits)
        points = n.emit("Slice", points, starts=[0], ends=[groups], axes=[len(points.shape) - 1])
        points = n.reshape(points, (*points.shape, 1))
    shifted = n.emit("Subtract", numbers, points)
    result = n.emit("Multiply", shifted, n.reshape(scales, (*scales.shape, 1)))
    result = n.reshape(result, (*scales.shape[:-1], groups * block))
    if groups * block != width:
        result = n.emit("Slice", result, starts=[0], ends=[width], axes=[len(result.shape) - 1])
    return n.cast(result, scale.dtype)


def _rows_as_floats(n: NodeView, table: Value, bits: int) -> Value:
    """Rows that input 1 picks, in f32; of bytes, in which elements of 4 bits are packed, the low bits come first."""
    width, is_signed = table.shape[-1], table.dtype is DataType.S4
    if isinstance(table.content, Nibbles) and width % 2 == 0:
        raw = Value(content=table.content.raw, is_static=table.is_static)
        table = n.builder.reinterpreted(raw, DataType.U8, (*table.shape[:-1], width // 2))
    elif table.dtype.bits == 4:
        n.require(table.is_known, "a table that is not known")
        table, bits = _in_bytes(n, table), 8
    found = n.cast(n.emit("Gather", table, n[1], axis=0), DataType.F32)
    if bits == 8:
        return found
    whole = n.reshape(found, (*found.shape, 1))
    both = n.emit("Floor", n.emit("Multiply", whole, n.literal([1, 1 / 16], found)))
    found = n.reshape(_remainder(n, both, 16.0), (*found.shape[:-1], found.shape[-1] * 2))
    if not is_signed:
        return found
    return n.emit("Subtract", _remainder(n, n.emit("Add", found, n.literal(8.0, found)), 16.0), n.literal(8.0, found))


def _remainder(n: NodeView, x: Value, divisor: float) -> Value:
    """Of whole numbers that are not negative, by a power of two."""
    quotient = n.emit("Floor", n.emit("Multiply", x, n.literal(1 / divisor, x)))
    return n.emit("Subtract", x, n.emit("Multiply", quotient, n.literal(divisor, x)))


CONTRIBUTED = {
    "DynamicQuantizeMatMul": _dynamic_quantize_matmul, "MatMulIntegerToFloat": _matmul_integer_to_float,
    "MatMulNBits": _matmul_nbits, "MatMulBnb4": _matmul_bnb4,
    "GatherBlockQuantized": _gather_quantized,
}  # fmt: skip

CONVERTERS = {
    "QuantizeLinear": _quantize_linear, "DequantizeLinear": _dequantize_linear, "QLinearMatMul": _qlinear_matmul,
    "QLinearConv": _qlinear_conv, "MatMulInteger": _matmul_integer,
    "ConvInteger": _conv_integer,
}  # fmt: skip
