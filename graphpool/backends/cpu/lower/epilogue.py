"""Post-ops as the epilogue of an anchor's kernel."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from graphpool._dataclasses import dataclass
from graphpool._sizes import Preference, largest

from ...._kernels.gemm.post_ops import PostOps
from ....typing import DataType, dense_strides
from ..layout.images import axes_of, pick
from .instructions import apply
from .integers import scaled
from .post_ops import Tail
from .region import Region, region_name
from .values import strides_in

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...._kernels.core.call import KernelCall
    from ...._kernels.gemm.requant import Dynamic
    from ....graph.op import Op
    from ..match.groups import AnchorGroup
    from .lowering import Lowering
    from .values import Value

__all__ = ["Epilogue", "emit_anchor", "emit_by_rows", "emit_sum_of_parts", "find_image", "make_epilogue"]

_RUN_NS, _STEP_NS, _ELEMENTS_A_NS = 90, 1000, 7
"""What it takes to begin the program of an epilogue, and a step of its own; and how many results that reads and writes.

Measured with a Multiply behind a SoftMax, whose rows of 197 to 1,600 were in caches or not."""


@dataclass(frozen=True)
class Epilogue:
    """What runs on an anchor's results.

    `block` is the elementwise program, empty when the kernel writes f32 straight to `place`, which is the kernel's last
    own argument; `operands` follow it. `name` is for reports. `order` are the axes of the result as the kernel numbers
    its elements, outermost first.
    """

    block: bytes
    place: Value
    operands: list[Value]
    name: str | None
    order: tuple[int, ...]

    @property
    def row_strides(self) -> tuple[int, ...] | None:
        """Strides by which kernels that leave gaps between rows may use the place as accumulators; None: not at all."""
        return self.place.row_strides(self.order) if self.place.dtype is DataType.F32 else None

    def strides_in(self, shape: Sequence[int]) -> tuple[int, ...] | None:
        """`row_strides` for a kernel that sees the result in this shape, with axes of one element more."""
        if self.place.shape == tuple(shape):
            return self.row_strides
        return dense_strides(shape) if self.is_dense_f32 else None

    def tail(self, *, needs_scratch: bool, bias: Value | None = None, dynamic: Dynamic | None = None) -> Tail:
        """What a kernel does to its accumulators, a bias first of all; they lie in scratch or in the place."""
        post_ops = PostOps(dynamic=dynamic, bias=bias is not None, epilogue=self.block, dst_needs_scratch=needs_scratch)
        return Tail(post_ops, [*([] if bias is None else [bias]), self.place, *self.operands], self.name)

    @property
    def is_dense_f32(self) -> bool:
        """Whether the kernel may use the place itself as accumulators."""
        return self.place.dtype is DataType.F32 and self.place.lies_in(self.order)


def make_epilogue(
    lowering: Lowering,
    group: AnchorGroup,
    bias: Value | None = None,
    bias_axis: int | None = None,
    *,
    skipped: int = 0,
    place: Value | None = None,
    gaps: bool = False,
) -> Epilogue:
    """The epilogue of a group with an anchor.

    A bias is added first: along `bias_axis`, or with numpy broadcasting when that is None. The kernel has computed the
    `skipped` first ops behind the anchor already, and can leave `gaps` between rows of its result. That goes where
    `Lowering.target` says unless a `place` is given.
    """
    ops = group.ops[skipped:]
    first = group.reached(skipped)
    order = lowering.order_of(group.result)
    region = Region(lowering, lowering.shapes[group.result], accumulator=first, order=order)
    sums = region.get(first)
    added = None
    if bias is not None:
        added = region.load(bias) if bias_axis is None else region.load_along(bias, bias_axis)
    _apply(region, group, first, added, ops)
    if bias is None and not ops and place is None and region.get(first) is sums:
        place = lowering.target(group.result, dtype=DataType.F32, order=order, gaps=gaps)
        return Epilogue(b"", place, [], None, order)
    place = region.store(group.result, place)
    name = region_name(ops) if ops else None
    return Epilogue(region.builder.epilogue(), place, region.operands, name, order)


def find_image(
    lowering: Lowering, group: AnchorGroup, source: Value, epilogue: Epilogue, bias: Value | None = None
) -> dict[str, Any]:
    """The geometry that all kernels over windows take, and the epilogue; a kernel adds the bias in front of it."""
    op = group.anchor
    result = lowering.shapes[op.outputs[0].id]
    axes = axes_of(op, len(source.shape))
    return {
        "batch": source.shape[0],
        "channels": source.shape[axes[1]],
        "src_spatial": pick(source.shape, axes[2:]),
        "dst_spatial": pick(result, axes[2:]),
        "src_strides": pick(source.strides, axes),
        "dst_strides": pick(epilogue.row_strides or strides_in(result, epilogue.order), axes),
        "post_ops": epilogue.tail(needs_scratch=epilogue.row_strides is None, bias=bias).post_ops,
    }


def emit_anchor(
    lowering: Lowering, group: AnchorGroup, call: KernelCall, args: Sequence[Value], epilogue: Epilogue,
    *, is_in_place: bool = False,
) -> None:  # fmt: skip
    """Emit an anchor's kernel with its epilogue; `args` are those in front of the place of the result.

    `is_in_place`: the kernel has read what it needs of its first argument when it writes over that.
    """
    in_place = (len(args), 0) if is_in_place else ()
    lowering.emit(call, [*args, epilogue.place, *epilogue.operands], epilogue.name, in_place=in_place)
    lowering.finish(group.result, epilogue.place)


def emit_by_rows(
    lowering: Lowering, group: AnchorGroup, make: Callable[[bytes], KernelCall], args: Sequence[Value],
    epilogue: Epilogue, row: tuple[int, int], *, is_in_place: bool = False,
) -> None:  # fmt: skip
    """`emit_anchor` of the kernel for a program, which is handed over rows: so many results, so far apart.

    Where rows are so short, or have gaps, that this takes longer, the program is a step of its own.
    """
    count, step = row
    shape = lowering.shapes[group.result]
    total = prod(shape)
    with Preference(count, step, total):
        nruns = total // largest(count, 1) if step == 1 else total
        is_apart = bool(epilogue.block) and nruns * _RUN_NS > _STEP_NS + total // _ELEMENTS_A_NS
    if not is_apart:
        emit_anchor(lowering, group, make(epilogue.block), args, epilogue, is_in_place=is_in_place)
        return
    sums = lowering.temporary(shape)
    lowering.emit(make(b""), [*args, sums], in_place=(len(args), 0) if is_in_place else ())
    emit_sum_of_parts(lowering, group, sums.reshaped((1, *shape)), None, epilogue.place, epilogue.name)
    lowering.finish(group.result, epilogue.place)


def emit_sum_of_parts(
    lowering: Lowering, group: AnchorGroup, parts: Value, bias: Value | None, place: Value, name: str | None
) -> None:
    """Add up the sums of an anchor's kernel that split them in parts, with the bias and the post-ops of the group.

    The parts are dense, f32, along one axis in front of the result's; a bias is broadcast; the name is for reports.
    """
    shape = lowering.shapes[group.result]
    region = Region(lowering, shape)
    first, *others = (region.load(parts.cut(0, part, 1).reshaped(shape)) for part in range(parts.shape[0]))
    for other in others:
        first = region.binary("add", first, other)
    result = group.reached()
    region.put(result, first)
    _apply(region, group, result, None if bias is None else region.load(bias), group.ops)
    region.store(group.result, place)
    region.emit(name or "eltwise(sum of parts)")


def _apply(region: Region, group: AnchorGroup, first: int, bias: Any, ops: Sequence[Op]) -> None:
    """The scales, the bias and the ops behind the tensor `first`, which the region knows as sums."""
    region.put(first, scaled(region, group, region.get(first)))
    if bias is not None:
        region.put(first, region.binary("add", region.get(first), bias))
    for op in ops:
        apply(region, op)
