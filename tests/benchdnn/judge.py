"""Whether results agree with the reference (`spec` 6.4): exactly where arithmetic is exact, else within a bound.

Every op adds to the bound of what is computed from it; products of small integers, moves and comparisons add nothing.
Where values are summed that were not exact any more, cancellation makes the bound one on the largest value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

import graphpool as gp
from graphpool.typing import DataType

EPSILON = {DataType.F32: 2.0**-23, DataType.BF16: 2.0**-7, DataType.F16: 2.0**-10,
           DataType.F8_E4M3: 2.0**-3, DataType.F8_E5M2: 2.0**-2}  # fmt: skip
F32 = EPSILON[DataType.F32]
ELTWISE = 4e-6
LOOSE_ELTWISE = 4e-5

BOUNDS = {
    **dict.fromkeys(["Exp", "Sigmoid", "Sqrt", "Square", "HardSwish", "HardSigmoid", "SoftPlus", "Reciprocal", "Pow",
                     "SigmoidBackward", "SqrtBackward", "HardSwishBackward", "HardSigmoidBackward", "SoftPlusBackward"],
                    ELTWISE),
    **dict.fromkeys(["GELU", "Elu", "Tanh", "Mish", "Log", "GELUBackward", "EluBackward", "TanhBackward",
                     "MishBackward"], LOOSE_ELTWISE),
    "SoftMax": 10 * F32, "LogSoftmax": 50 * F32, "SoftMaxBackward": 40 * F32, "LogSoftmaxBackward": 200 * F32,
    **dict.fromkeys(["BatchNormInference", "BatchNormForwardTraining", "BatchNormTrainingBackward", "LayerNorm",
                     "LayerNormBackward", "GroupNorm", "RMSNorm"], 2e-5),
    **dict.fromkeys(["AvgPool", "ReduceMean", "ReduceL2", "ReduceProd", "Divide", "Interpolate", "Dropout"], 10 * F32),
}  # fmt: skip
"""Relative error of one op in float32; kinds that are not named are exact on exact inputs."""

SUMS = frozenset({"MatMul", "Convolution", "ConvTranspose", "Add", "Subtract", "ReduceSum", "ReduceMean", "ReduceL2",
                  "ReduceL1", "AvgPool", "BatchNormInference", "LayerNorm", "SoftMaxBackward", "SquaredDifference",
                  "BiasAdd", "LogSoftmax", "Interpolate", "BatchNormForwardTraining", "GroupNorm", "RMSNorm",
                  "BatchNormTrainingBackward", "LayerNormBackward", "SoftMax"})  # fmt: skip
"""Kinds that may cancel."""

PRODUCTS = frozenset({"MatMul", "Convolution", "ConvTranspose"})
EXACT = frozenset({"TypeCast", "StaticReshape", "StaticTranspose", "Reorder", "Concat", "Quantize", "Dequantize",
                   "DynamicDequantize"})  # fmt: skip
"""Kinds behind which content that was chosen for a product still gives exact sums."""

FLOOR = 2e-5
"""Absolute error that is accepted behind a function of one input, if not the type's epsilon is larger."""

MATCHING_NORM = 3e-3
FEW = 1024

CHUNK = 1 << 16
"""Elements that are compared at a time, in cache."""


@dataclass(frozen=True)
class Bound:
    """How far a tensor may be from its reference: relative to the value, to the tensor's largest one, absolutely."""

    relative: float
    of_largest: float
    absolute: float = 0.0


def bounds(ops: Sequence[gp.Op]) -> dict[int, Bound]:
    """The bound of every tensor that a partition computes, its inputs taken as exact."""
    known: dict[int, Bound] = {}
    computed: set[int] = set()
    for op in ops:
        before = [known.get(tensor.id, Bound(0.0, 0.0)) for tensor in op.inputs]
        relative, largest = _grown(op, before, any(tensor.id in computed for tensor in op.inputs))
        absolute = max((b.absolute for b in before), default=0.0)
        if BOUNDS.get(op.kind) in (ELTWISE, LOOSE_ELTWISE):
            absolute = FLOOR
        for tensor in op.outputs:
            rounding = EPSILON.get(tensor.dtype, 0.0)
            if rounding == F32 and not (relative or largest):
                rounding = 0.0
            known[tensor.id] = Bound(relative + rounding, largest, absolute)
            if op.kind not in EXACT or any(source.id in computed for source in op.inputs):
                computed.add(tensor.id)
    return known


def _grown(op: gp.Op, before: Sequence[Bound], is_computed: bool) -> tuple[float, float]:
    """The bounds of an op's results before they are rounded to their type."""
    relative = sum(b.relative for b in before)
    largest = sum(b.of_largest for b in before)
    if op.kind in SUMS and (relative or largest):
        relative, largest = 0.0, largest + relative
    if op.kind in BOUNDS and op.kind in SUMS:
        largest += BOUNDS[op.kind]
    relative += BOUNDS.get(op.kind, 0.0)
    if op.kind in PRODUCTS and (largest or is_computed):
        largest += 16 * F32
    return relative, largest


def compare(actual: np.ndarray, expected: np.ndarray, dtype: DataType, bound: Bound) -> str | None:
    """What is wrong with a result; None when nothing is. Memory: a few times `CHUNK` elements in float64."""
    if actual.shape != expected.shape:
        return f"shape {actual.shape} instead of {expected.shape}"
    if dtype is DataType.BOOLEAN or (dtype not in EPSILON and not (bound.relative or bound.of_largest)):
        wrong = np.count_nonzero(actual != expected)
        return f"{wrong} of {actual.size} elements differ" if wrong else None
    largest = 0.0
    for _, _, e in _chunks(actual, expected, dtype):
        largest = max(largest, float(np.max(np.abs(e), where=np.isfinite(e), initial=0.0)))
    wrong, worst, error, size = 0, (-1.0, ""), 0.0, 0.0
    for start, a, e in _chunks(actual, expected, dtype):
        if np.array_equal(a, e):
            size += float(np.square(e, where=np.isfinite(e), out=np.zeros_like(e)).sum())
            continue
        fine, excess = _judge(a, e, dtype, bound, largest)
        finite = np.isfinite(e)
        error += float(np.square(a[finite] - e[finite]).sum()) if np.array_equal(np.isfinite(a), finite) else np.inf
        size += float(np.square(e[finite]).sum())
        wrong += fine.size - np.count_nonzero(fine)
        at = int(np.argmax(excess))
        if excess[at] > worst[0]:
            where = tuple(map(int, np.unravel_index(start + at, expected.shape)))
            worst = float(excess[at]), f"worst at {where}: {a[at]!r} instead of {e[at]!r}"
    norm = np.sqrt(error / size if size else error)
    if not wrong or (wrong <= actual.size // FEW and norm <= MATCHING_NORM):
        return None
    return f"{wrong} of {actual.size} elements differ, {worst[1]}"


def _chunks(actual: np.ndarray, expected: np.ndarray, dtype: DataType) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Where a chunk begins, and its content on both sides in float64."""
    flat = actual.reshape(-1), expected.reshape(-1)
    for start in range(0, actual.size, CHUNK):
        a, e = (array[start : start + CHUNK].astype(np.float64) for array in flat)
        if dtype is DataType.F16:  # a value next to the largest one may overflow on one side only
            a, e = (np.clip(x, -(2.0**16), 2.0**16) for x in (a, e))
        yield start, a, e


def _judge(
    a: np.ndarray, e: np.ndarray, dtype: DataType, bound: Bound, largest: float
) -> tuple[np.ndarray, np.ndarray]:
    """Which elements are within the bound, and by how much the others are outside."""
    step = 1.0 if dtype not in EPSILON else 0.0
    finite = np.isfinite(e)
    with np.errstate(invalid="ignore"):
        error = np.abs(a - e)
        room = np.maximum(bound.relative * np.abs(e), bound.of_largest * largest) + step
        if bound.relative:
            room = np.maximum(room, F32)
        if bound.absolute:
            room = np.maximum(room, max(bound.absolute, EPSILON.get(dtype, 0.0)))
        fine = (a == e) | (np.isnan(a) & np.isnan(e)) | (finite & (error <= room))
        excess = np.where(fine, -1.0, np.nan_to_num(error - room, nan=np.inf, posinf=np.inf))
    return fine, excess
