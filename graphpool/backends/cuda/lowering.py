"""Lowering to launches: the CPU's, with copies and elementwise programs as kernels of a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..._kernels.cuda.index import gather, scatter
from ..._kernels.cuda.products import eltwise
from ...graph.shapes import channel_axis
from ..cpu.lower.instructions import apply
from ..cpu.lower.lowering import Lowering
from ..cpu.lower.region import Region, region_name
from ..cpu.support import FLOATS, common_register, register_between, register_of_type

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..._kernels.cuda.source import CudaCall
    from ..._kernels.eltwise.eltwise import EltwiseBuilder, Program
    from ...graph.op import Op
    from ...runtime.cuda.cublas_lt import CublasLt, LibraryProduct
    from ..cpu.lower.values import Value
    from ..cpu.match.groups import AnchorGroup

__all__ = ["CudaLowering", "Tail", "as_float", "lower_elementwise", "split_axis"]


class CudaLowering(Lowering):
    """A lowering whose kernel calls are launches; types are those that kernels read and write."""

    products: CublasLt | None = None

    def launch(
        self,
        call: CudaCall | LibraryProduct,
        args: Sequence[Value],
        name: str | None = None,
        *,
        is_elementwise: bool = False,
        rewrites: bool = False,
    ) -> None:
        """Append a launch on these values; steps read what it has in common with calls of the CPU's kernels."""
        in_place = range(len(args)) if is_elementwise else ()
        self.emit(call, args, name, in_place=in_place, rewrites=rewrites)  # type: ignore[arg-type]

    def move(self, source: Value, place: Value) -> None:
        """Copy or convert one value into another of the same shape."""
        register = register_between(source.dtype, place.dtype)
        region = Region(self, place.shape, register=register, order=place.order)
        region.write(place, region.load(source))
        region.emit(is_elementwise=True)

    def run_program(
        self, builder: EltwiseBuilder, args: Sequence[Value], name: str | None = None, *, is_elementwise: bool = False
    ) -> None:
        """Append an elementwise program."""
        self.launch(eltwise(builder.program()), args, name, is_elementwise=is_elementwise)

    def positions(self, count: int) -> Value:
        """The numbers 0, 1, ..., s32: literals."""
        return self.literal(np.arange(count, dtype=np.int32))

    def gather(self, geometry: Mapping[str, Any], source: Value, indices: Value, place: Value) -> None:
        """Pick rows."""
        call = gather(**geometry, itemsize=source.dtype.bits // 8, index_dtype=indices.dtype.value)
        self.launch(call, [source, indices, place])

    def scatter(
        self,
        geometry: Mapping[str, Any],
        updates: Value,
        indices: Value,
        place: Value,
        reduction: str,
        *,
        rewrites: bool = False,
    ) -> None:
        """Put rows, in order."""
        call = scatter(
            **geometry, itemsize=place.dtype.bits // 8, index_dtype=indices.dtype.value, dtype=place.dtype.value,
            register=register_of_type(place.dtype), reduction=reduction,
        )  # fmt: skip
        self.launch(call, [updates, indices, place], rewrites=rewrites)


class Tail:
    """What a kernel does with the accumulators of an anchor: a bias, the ops behind it, and where the result goes.

    Parameters
    ----------
    lowering : CudaLowering
    group : AnchorGroup
    bias : Value, optional
    axis : int, optional
        Of the result, along which the bias lies; None for numpy broadcasting.
    sums : sequence of Value, optional
        Where parts of the accumulators lie, dense, which are added in this order, if no kernel hands them over.

    Attributes
    ----------
    program : Program
        Its index space is the shape of the result, row-major.
    args : list of Value
        The place of the result, then what the program reads.
    """

    def __init__(
        self,
        lowering: CudaLowering,
        group: AnchorGroup,
        bias: Value | None = None,
        axis: int | None = None,
        *,
        sums: Sequence[Value] | None = None,
    ) -> None:
        self._lowering, self._group, shape = lowering, group, lowering.shapes[group.result]
        region = Region(lowering, shape, accumulator=group.reached() if sums is None else None)
        if sums is not None:
            first, *others = [region.load(part.reshaped(shape)) for part in sums]
            for other in others:
                first = region.binary("add", first, other)
            region.put(group.reached(), first)
        if bias is not None:
            added = region.load(bias) if axis is None else region.load_along(bias, axis)
            region.put(group.reached(), region.binary("add", region.get(group.reached()), added))
        for op in group.ops:
            apply_op(region, op)
        place = region.store(group.result)
        self.program: Program = region.builder.program()
        self.args: list[Value] = [place, *region.operands]

    def emit(self, call: CudaCall, args: Sequence[Value] = ()) -> None:
        """Emit the anchor's kernel, whose own arguments are `args`."""
        name = region_name(self._group.ops) if self._group.ops else None
        self._lowering.launch(call, [*args, *self.args], name)
        self._lowering.finish(self._group.result, self.args[0])


def lower_elementwise(lowering: CudaLowering, ops: Sequence[Op]) -> None:
    """Emit elementwise ops as one kernel."""
    result = ops[-1].outputs[0].id
    shape, order = lowering.shapes[result], lowering.order_of(result)
    region = Region(lowering, shape, register=common_register(ops), order=order)
    for op in ops:
        apply_op(region, op)
    place = region.store(result)
    region.emit(region_name(ops), is_elementwise=True)
    lowering.finish(result, place)


def apply_op(region: Region, op: Op) -> None:
    """Compute an elementwise op in a region."""
    if op.kind == "BatchNormInference":
        region.put(op.outputs[0].id, _batch_norm(region, op))
    else:
        apply(region, op)


def _batch_norm(region: Region, op: Op) -> Any:
    """(x - mean) / sqrt(variance + epsilon) * gamma + beta; the CPU computes scale and shift once a channel."""
    axis = channel_axis(len(region.shape), op.attrs["data_format"])
    gamma, beta, mean, variance = (region.along(tensor.id, axis) for tensor in op.inputs[1:])
    epsilon = region.builder.const(op.attrs["epsilon"])
    scale = region.binary("mul", gamma, region.unary("rsqrt", region.binary("add", variance, epsilon)))
    return region.builder.ternary("fma", region.binary("sub", region.operand(op), mean), scale, beta)


def as_float(lowering: CudaLowering, tensor_id: int) -> Value:
    """A tensor of floats where it lies."""
    value = lowering.value(tensor_id)
    return value if value.dtype in FLOATS else lowering.dense(value)


def split_axis(value: Value, axis: int, count: int) -> Value:
    """The same memory with one axis as two, the first of which has `count` indices."""
    inner = value.shape[axis] // count
    shape = (*value.shape[:axis], count, inner, *value.shape[axis + 1 :])
    step = value.strides[axis]
    return value._replace(shape=shape, strides=(*value.strides[:axis], step * inner, step, *value.strides[axis + 1 :]))
