"""Completes the shapes of a list of ops, from what is given and what each op infers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import InvalidShapeError, explain
from ..typing import UNKNOWN_DIM
from .logical_tensor import describe_shape
from .schema import get_schema

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .logical_tensor import LogicalTensor
    from .op import Op

Shape = tuple[int, ...] | None


def complete_shapes(
    ops: Sequence[Op],
    given: Mapping[int, Shape] | None = None,
    *,
    trust_ops: bool = True,
) -> dict[int, Shape]:
    """Shapes of all tensors of ops in topological order, as far as they can be known; `given` ones by tensor id.

    With `trust_ops` the shapes that the ops' own logical tensors carry must hold. Without it they only fill in what
    cannot be inferred: a partition may be compiled for other shapes than those that the graph was built with. Raises
    InvalidShapeError where an op infers a shape that contradicts one. Cost: linear in ops and ports.
    """
    shapes: dict[int, Shape] = dict(given or {})
    for op in ops:
        sources = []
        for tensor in op.inputs:
            known = shapes.get(tensor.id)
            if known is None:
                known = shapes[tensor.id] = tensor.shape
            sources.append(known)
        for tensor, shape in zip(op.outputs, _inferred(op, sources), strict=True):
            known = shapes.get(tensor.id)
            if known is None and (trust_ops or shape is None):
                known = tensor.shape
            shapes[tensor.id] = shape if known is None or known is shape else _merge(op, tensor, known, shape)
    return shapes


def _inferred(op: Op, sources: list[Shape]) -> list[Shape]:
    """What the op infers from these shapes of its inputs."""
    if op.is_inferred and sources == [tensor.shape for tensor in op.inputs]:
        return [tensor.shape for tensor in op.outputs]
    return get_schema(op.kind).infer_shapes(op, sources)


def _merge(op: Op, tensor: LogicalTensor, known: tuple[int, ...], inferred: Shape) -> tuple[int, ...]:
    """One shape from two that must not contradict each other."""
    if inferred is None or inferred == known:
        return known
    if len(known) != len(inferred):
        raise _contradiction(op, tensor, known, inferred, None)
    merged = []
    for axis, (a, b) in enumerate(zip(known, inferred, strict=True)):
        if UNKNOWN_DIM not in (a, b) and a != b:
            raise _contradiction(op, tensor, known, inferred, axis)
        merged.append(b if a == UNKNOWN_DIM else a)
    return tuple(merged)


def _contradiction(
    op: Op, tensor: LogicalTensor, known: tuple[int, ...], inferred: tuple[int, ...], axis: int | None
) -> InvalidShapeError:
    where = "rank" if axis is None else f"dimension {axis}"
    return InvalidShapeError(
        explain(
            f"{op.label}: {where} of output tensor {tensor.id}",
            accepted=f"{describe_shape(inferred)}, which follows from the inputs",
            got=describe_shape(known),
            hint="correct the tensor, or leave its shape unknown",
        ),
        op_id=op.id,
        tensor_id=tensor.id,
        dim=axis,
    )
