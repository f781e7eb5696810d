"""The reference backend: every op by itself, in NumPy."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import InvalidShapeError, UnsupportedError, explain
from ...graph.schema import get_schema
from ...runtime._compiled import CompiledPartition
from ...runtime.dynamic_partition import DynamicPartition
from ...runtime.scheduling import parse_options
from ...typing import UNKNOWN_DIM, LayoutType
from .registry import OutputSpec, evaluate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...graph.logical_tensor import LogicalTensor
    from ...graph.op import Op
    from ...graph.partition import Partition
    from ...graph.pattern import Pattern
    from ...graph.spelling import Spelling

NOT_EVALUATED = frozenset({"End", "Wildcard"})
"""The kinds without a meaning of their own."""


class ReferenceBackend:
    """Runs every op kind, clearly and slowly; the oracle of the tests, and what is left when nothing faster fits.

    It makes partitions of one op each, and is the one backend that computes outputs whose shape depends on the content
    of an input.

    Notes
    -----
    Threads: immutable, safe.
    """

    name = "reference"
    engine_kind = "cpu"
    priority = 0
    merges = False
    patterns: Sequence[Pattern | Spelling] = ()

    def supports(self, op: Op) -> bool:
        """Whether the op has an evaluation: all kinds but End and Wildcard."""
        return op.kind not in NOT_EVALUATED

    def opaque_nbytes(self, tensor: LogicalTensor) -> int | None:
        """None: the backend reads and writes plain layouts only."""
        return None

    compile_dynamic = staticmethod(DynamicPartition)

    def compile(
        self,
        partition: Partition,
        inputs: Sequence[LogicalTensor],
        outputs: Sequence[LogicalTensor],
        engine: Any,
        *,
        scratch: str = "primitive",
        weights: str = "cached",
        schedule: str = "sequential",
        streams: int = 1,
    ) -> CompiledPartition:
        """A partition that evaluates its ops one after another on arrays; see `Partition.compile`."""
        parse_options(schedule, streams)
        outputs = partition.complete(inputs, outputs)
        for tensor in (*inputs, *outputs):
            if tensor.layout is LayoutType.OPAQUE:
                raise UnsupportedError(
                    explain(
                        f"tensor {tensor.id}: the reference backend reads plain layouts",
                        accepted="strided",
                        got="opaque",
                        hint="put a Reorder op in front",
                    ),
                    tensor_id=tensor.id,
                )
        outputs = [
            tensor.replace(layout="strided") if tensor.layout is LayoutType.ANY else tensor for tensor in outputs
        ]
        run = partial(run_ops, partition.ops, [t.id for t in inputs], {t.id: t.shape for t in outputs})
        return CompiledPartition(
            partition,
            inputs,
            outputs,
            engine,
            host_function=run,
            implementations=[f"ref:numpy {op.kind}" for op in partition.ops],
            scratch=scratch,
            weights=weights,
        )


def run_ops(
    ops: Sequence[Op],
    input_ids: Sequence[int],
    outputs: dict[int, tuple[int, ...] | None],
    arrays: Sequence[np.ndarray[Any, Any]],
) -> list[np.ndarray[Any, Any]]:
    """Evaluate ops, in topological order, on arrays of the tensors `input_ids`; the results in the order of `outputs`.

    `outputs` is wanted tensor -> shape, None or with unknown dimensions where it is not known. Raises InvalidShapeError
    where a result has another one: it depends on the content of an input, such as axes or sizes.
    """
    values = dict(zip(input_ids, arrays, strict=True))
    for op in ops:
        results = _run_op(op, [values[tensor.id] for tensor in op.inputs])
        values.update(zip((tensor.id for tensor in op.outputs), results, strict=True))
    for tensor_id, shape in outputs.items():
        _check_result(tensor_id, shape, values[tensor_id].shape)
    return [values[tensor_id] for tensor_id in outputs]


def _run_op(op: Op, inputs: Sequence[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    """Evaluate an op, unless all its results are empty: then no attribute, however large, makes work."""
    if not op.is_inferred or any(0 in (tensor.shape or ()) for tensor in op.outputs):
        contents = {port: array for port, array in enumerate(inputs) if array.dtype.kind == "i"}
        shapes = get_schema(op.kind).infer_shapes(op, [array.shape for array in inputs], contents)
        if all(shape is not None and 0 in shape and UNKNOWN_DIM not in shape for shape in shapes):
            sizes = [shape for shape in shapes if shape is not None]
            return [np.empty(shape, tensor.dtype.numpy) for shape, tensor in zip(sizes, op.outputs, strict=True)]
    return evaluate(op.kind, inputs, op.attrs, [OutputSpec(tensor.dtype, None) for tensor in op.outputs])


def _check_result(tensor_id: int, wanted: tuple[int, ...] | None, got: tuple[int, ...]) -> None:
    """Refuse a result that does not fit where it is to go."""
    if wanted is None or UNKNOWN_DIM in wanted or wanted == got:
        return
    hint = "give the output the shape that follows from the axes or sizes"
    message = explain(f"output tensor {tensor_id}", accepted=wanted, got=got, hint=hint)
    raise InvalidShapeError(message, tensor_id=tensor_id)
