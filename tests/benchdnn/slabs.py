"""The reference of a partition, slab by slab along the first axis where its ops allow that: float64 stays in cache."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

import graphpool as gp
from graphpool.backends.reference import OutputSpec, evaluate
from tests.benchdnn.fill import Filler, place

ELEMENTS = 1 << 18
"""Elements of the largest tensor of a slab."""

ONE_AXIS = frozenset({"SoftMax", "LogSoftmax", "GenIndex", "Concat"})
WINDOWS = frozenset({"Convolution", "ConvTranspose", "AvgPool", "MaxPool", "Interpolate"})
FREE = WINDOWS | {
    "TypeCast", "Reorder", "Quantize", "Dequantize", "End", "Select", "GreaterEqual", "Add", "Subtract", "Multiply",
    "Divide", "Maximum", "Minimum", "MatMul", "BiasAdd", "BatchNormInference", "Abs", "Exp", "Tanh", "ReLU", "GELU",
    "Sigmoid", "HardSwish", "Log", "Mish", "Round", "Sqrt", "Square", "Clamp", "Elu", "LeakyReLU", "HardSigmoid",
    "SoftPlus", "GroupNorm",
}  # fmt: skip
"""Kinds that work on each index of the first axis by itself, operands without that axis aside."""


def evaluate_partition(partition: gp.Partition, filler: Filler, values: dict[int, np.ndarray]) -> dict[int, np.ndarray]:
    """The tensors that leave a partition, op by op, every tensor rounded to its type.

    Inputs that are missing in `values` are filled and put there.
    """
    length = _common_length(partition.ops)
    wanted = [lt.id for lt in partition.output_ports]
    pieces: dict[int, list[np.ndarray]] = {number: [] for number in wanted}
    made: dict[int, list[np.ndarray]] = {}
    for slab in _slabs(partition.ops, length):
        known = _evaluate_slab(partition.ops, slab, filler, values, made, set(wanted))
        for number in wanted:
            pieces[number].append(known[number])
    for lt in partition.input_ports:
        if lt.id in made:
            values[lt.id] = place(_join(made[lt.id]), lt)
    return {number: _join(arrays) for number, arrays in pieces.items()}


def _join(pieces: list[np.ndarray]) -> np.ndarray:
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def _slabs(ops: Sequence[gp.Op], length: int) -> Iterator[slice]:
    if length < 2:
        yield slice(None)
        return
    step = max(1, length * ELEMENTS // max(1, *(t.size for op in ops for t in op.outputs)))
    for start in range(0, length, step):
        yield slice(start, start + step)


def _common_length(ops: Sequence[gp.Op]) -> int:
    """Length of the first axis that all computed tensors share and no op mixes; 0 when there is none."""
    shapes = {t.shape for op in ops for t in op.outputs}
    lengths = {shape[0] for shape in shapes if len(shape) > 2}
    if len(lengths) != 1 or any(len(shape) < 3 for shape in shapes) or not all(map(_is_parallel, ops)):
        return 0
    computed = {t.id for op in ops for t in op.outputs}
    if any(t.id in computed for op in ops if op.kind in WINDOWS for t in op.inputs[1:]):
        return 0
    return lengths.pop()


def _is_parallel(op: gp.Op) -> bool:
    """Whether an op computes each index of the first axis by itself."""
    ndim = len(op.inputs[0].shape)
    if op.kind in ONE_AXIS:
        return op.attrs["axis"] % ndim != 0
    if op.kind in ("LayerNorm", "RMSNorm"):
        return op.attrs["begin_norm_axis"] % ndim != 0
    if op.kind == "ReduceSum":
        return all(axis % ndim for axis in op.attrs["axes"]) and bool(op.attrs["axes"])
    if op.kind in ("Quantize", "Dequantize"):
        return op.attrs["qtype"] == "per_tensor"
    if op.kind == "MatMul":
        return len(op.outputs[0].shape) > 2 and not (len(op.inputs[1].shape) < 3 and op.attrs["transpose_a"])
    if op.kind == "StaticReshape":
        return not op.attrs["special_zero"] and op.attrs["shape"][:1] == op.inputs[0].shape[:1]
    if op.kind == "StaticTranspose":
        return bool(op.attrs["order"]) and op.attrs["order"][0] % ndim == 0
    return op.kind in FREE


def _cut(array: np.ndarray, slab: slice, shape: Sequence[int], ndim: int) -> np.ndarray:
    """The slab of an input that has the first axis of the results; others are broadcast along it."""
    return array[slab] if len(shape) == ndim and shape[0] > 1 else array


def _evaluate_slab(
    ops: Sequence[gp.Op], slab: slice, filler: Filler, values: dict[int, np.ndarray],
    made: dict[int, list[np.ndarray]], wanted: set[int],
) -> dict[int, np.ndarray]:  # fmt: skip
    known: dict[int, np.ndarray] = {}
    last = {tensor.id: number for number, op in enumerate(ops) for tensor in op.inputs}
    for number, op in enumerate(ops):
        ports = op.inputs if op.kind == "StaticReshape" else (*op.inputs, *op.outputs)
        ndim = max(len(tensor.shape) for tensor in ports)
        for port, tensor in enumerate(op.inputs):
            if tensor.id in known:
                continue
            if tensor.id not in values and filler.depends(op, port):
                known[tensor.id] = filler.fill(_shortened(tensor, known), op, port, known)
                made.setdefault(tensor.id, []).append(known[tensor.id])
                continue
            if tensor.id not in values:
                values[tensor.id] = filler.fill(tensor, op, port, known | values)
            is_whole = op.kind in WINDOWS and port > 0
            known[tensor.id] = values[tensor.id] if is_whole else _cut(values[tensor.id], slab, tensor.shape, ndim)
        arrays = [known[t.id] for t in op.inputs]
        specs = [OutputSpec(tensor.dtype) for tensor in op.outputs]
        results = evaluate(op.kind, arrays, _attrs(op, arrays, slab), specs) if op.outputs else []
        known.update(zip((tensor.id for tensor in op.outputs), results, strict=True))
        for tensor in op.inputs:
            if last[tensor.id] == number and tensor.id not in wanted:
                known.pop(tensor.id, None)
    return known


def _attrs(op: gp.Op, arrays: Sequence[np.ndarray], slab: slice) -> Mapping[str, Any]:
    """The attributes of an op on a slab: a reshape names the length of the first axis."""
    if op.kind != "StaticReshape" or slab == slice(None):
        return op.attrs
    return dict(op.attrs) | {"shape": (len(arrays[0]), *op.attrs["shape"][1:])}


def _shortened(tensor: gp.LogicalTensor, known: dict[int, np.ndarray]) -> gp.LogicalTensor:
    """The tensor with as many indices of its first axis as the slab has."""
    length = next((array.shape[0] for array in known.values() if array.ndim == len(tensor.shape)), tensor.shape[0])
    return tensor.replace(shape=(min(length, tensor.shape[0]), *tensor.shape[1:]))
