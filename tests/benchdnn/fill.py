"""Inputs of a run, chosen so that exact arithmetic stays exact (benchdnn's rules, `spec` 6.4).

A tensor is filled when the op that reads it first is about to be evaluated, so that content may depend on what that op
reads elsewhere. Through ops that only cast, move or dequantise, the reader behind them decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

import numpy as np

import graphpool as gp
from graphpool.graph.view import GraphView
from graphpool.typing import DataType

TRANSPARENT = frozenset({"TypeCast", "StaticReshape", "StaticTranspose", "Reorder", "Concat", "Quantize"})
DEQUANTIZE = frozenset({"Dequantize", "DynamicDequantize"})
PRODUCTS = frozenset({"MatMul", "Convolution", "ConvTranspose"})
QUANTIZED = {DataType.S8: (-4, 4), DataType.U8: (0, 8), DataType.S4: (-2, 2), DataType.U4: (0, 4),
             DataType.F8_E4M3: (-2, 2), DataType.F8_E5M2: (-2, 2)}  # fmt: skip
"""Range of quantised content, relative to the zero point."""
PRODUCT_RANGES = {DataType.F32: (64, 128), DataType.BF16: (4, 2), DataType.F16: (4, 2)}
"""Largest absolute value of the first and the second operand of a product."""
EXACT_SUM = 2**24
"""Integers below this are exact in float32."""

Array = np.ndarray


class Filler:
    """Content for the inputs of a graph.

    Parameters
    ----------
    graph : Graph
        Finalised.
    seed : int
    """

    def __init__(self, graph: gp.Graph, seed: int) -> None:
        self.view = GraphView(graph.ops)
        self.seed = seed

    def fill(self, tensor: gp.LogicalTensor, op: gp.Op, port: int, values: dict[int, Array]) -> Array:
        """Content of an input that `op` reads at `port`, as an array of the tensor's strides."""
        rng = np.random.default_rng([self.seed, crc32(str(tensor.id).encode())])
        content = self._content(tensor, op, port, values, rng)
        return place(np.asarray(content), tensor)

    def fill_all(self, partition: gp.Partition, values: dict[int, Array]) -> None:
        """Put content for the inputs of a partition that are missing into `values`."""
        for op in partition.ops:
            for port, tensor in enumerate(op.inputs):
                if tensor.id not in values and tensor.id in {lt.id for lt in partition.input_ports}:
                    values[tensor.id] = self.fill(tensor, op, port, values)

    def depends(self, op: gp.Op, port: int) -> bool:
        """Whether content at a port depends on what `op` reads at its other one."""
        if op.kind != "Subtract" or port != 1 or not _is_computed(self, op.inputs[0]):
            return False
        return op.inputs[1].shape == (*op.inputs[0].shape[:-1], 1) and _leads_to(self, op, "Exp")

    def _content(
        self, tensor: gp.LogicalTensor, op: gp.Op, port: int, values: dict[int, Array], rng: np.random.Generator
    ) -> Array:
        shape = tensor.shape
        if op.kind in DEQUANTIZE or op.kind == "DynamicQuantize":
            return self._quantization(tensor, op, port, rng)
        if tensor.dtype is DataType.BOOLEAN:
            return rng.random(shape) < 0.9
        if op.kind == "Dropout" and port > 0:
            return np.asarray([7, 3, 0.5][port - 1])
        if tensor.dtype in (DataType.S32, DataType.S64):
            return rng.integers(-8, 9, shape)
        if op.kind in TRANSPARENT:
            op, port = self._reader(op, port)
        rule = RULES.get(op.kind)
        content = None if rule is None else rule(self, tensor, op, port, values, rng)
        return numbers(rng, shape, 8) if content is None else content

    def _reader(self, op: gp.Op, port: int) -> tuple[gp.Op, int]:
        """The op behind ops that pass their input on, and the port at which it reads."""
        while op.kind in TRANSPARENT or op.kind in DEQUANTIZE:
            users = self.view.consumers.get(op.outputs[0].id)
            if not users:
                return op, port
            number, port = users[0]
            op = self.view.ops[number]
        return op, port

    def _quantization(self, tensor: gp.LogicalTensor, op: gp.Op, port: int, rng: np.random.Generator) -> Array:
        if port == 1:
            return 2.0 ** rng.integers(-2, 1, tensor.shape)
        if port == 2:
            return rng.integers(0, 3, tensor.shape)
        if op.kind == "DynamicQuantize":
            return numbers(rng, tensor.shape, 8)
        low, high = QUANTIZED[tensor.dtype]
        zps = op.attrs.get("zps") or [0]
        content = rng.integers(low, high + 1, tensor.shape) + zps[0]
        reader, reader_port = self._reader(op, port)
        if reader.kind in PRODUCTS and reader_port < 2:
            content = np.where(rng.random(tensor.shape) < self._density(reader, high, high), content, zps[0])
        limits = {DataType.S8: (-128, 127), DataType.U8: (0, 255), DataType.S4: (-8, 7), DataType.U4: (0, 15)}
        return np.clip(content, *limits[tensor.dtype]) if tensor.dtype in limits else content

    def _density(self, op: gp.Op, first: int, second: int) -> float:
        """Share of elements that are not zero, so that every sum of the product is exact in float32."""
        src, weights = op.inputs[0].shape, op.inputs[1].shape
        if op.kind == "MatMul":
            terms = src[-2 if op.attrs["transpose_a"] and len(src) > 1 else -1]
        else:
            terms = max(1, int(np.prod(weights)) // max(1, min(weights[0], weights[-1], weights[1])))
        return min(1.0, EXACT_SUM / max(1, terms * first * second))


def numbers(rng: np.random.Generator, shape: Sequence[int], top: int, low: int | None = None) -> Array:
    """Integers from -top (or low) to top, as float32."""
    return rng.integers(-top if low is None else low, top + 1, tuple(shape), dtype=np.int16).astype(np.float32)


def place(content: Array, tensor: gp.LogicalTensor) -> Array:
    """The content in the tensor's type, strides and alignment."""
    dtype = tensor.dtype.numpy
    if tensor.is_dense or tensor.dtype.bits < 8:
        return np.ascontiguousarray(np.broadcast_to(content, tensor.shape).astype(dtype)).reshape(tensor.shape)
    room = np.zeros(tensor.nbytes, np.uint8)
    array = np.ndarray(tensor.shape, dtype, room, strides=[s * dtype.itemsize for s in tensor.strides])
    array[...] = content.astype(dtype)
    return array


# ---- rules: (filler, tensor, op, port, values, rng) -> content, or None for small integers


def _product(filler, tensor, op, port, values, rng):
    if port > 1:
        return None
    tops = PRODUCT_RANGES[op.inputs[0].dtype] if op.kind == "MatMul" else (8, 4)
    top = tops[port]
    content = numbers(rng, tensor.shape, top)
    density = filler._density(op, *tops)
    return content if density >= 1 else content * (rng.random(tensor.shape, np.float32) < density)


def _second_factor(filler, tensor, op, port, values, rng):
    if port == 1 or _is_computed(filler, op.inputs[1 - port]):
        return 2.0 ** rng.integers(-2, 1, tensor.shape)
    return None


def _second_divisor(filler, tensor, op, port, values, rng):
    return 2.0 ** rng.integers(1, 4, tensor.shape) if port == 1 else None


def _mask(filler, tensor, op, port, values, rng):
    """Of an Add in front of a SoftMax: minus infinity above the diagonal where the mask is a matrix, else zeros."""
    if not _leads_to(filler, op, "SoftMax") or not _is_computed(filler, op.inputs[1 - port]):
        return None
    content = np.zeros(tensor.shape, np.float32)
    if len(tensor.shape) > 1 and min(tensor.shape[-2:]) > 1:
        content += np.triu(np.full(tensor.shape[-2:], -np.inf, np.float32), 1)
    return content


def _statistics(filler, tensor, op, port, values, rng):
    """Of a Subtract in front of an Exp: the log of the sum of exponentials, as the forward pass has kept it."""
    if not filler.depends(op, port):
        return None
    scores = values[op.inputs[0].id].astype(np.float64)
    top = np.max(scores, axis=-1, keepdims=True)
    top = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore"):
        return top + np.log(np.sum(np.exp(scores - top), axis=-1, keepdims=True))


def _select(filler, tensor, op, port, values, rng):
    return np.full(tensor.shape, -10000.0, np.float32) if _leads_to(filler, op, "SoftMax", "Exp") else None


def _positive(filler, tensor, op, port, values, rng):
    return numbers(rng, tensor.shape, 32, 1) / 8


def _fraction(filler, tensor, op, port, values, rng):
    return numbers(rng, tensor.shape, 32) / 8


def _variance(filler, tensor, op, port, values, rng):
    """Inputs of norms: small integers, a positive variance where there is one."""
    is_variance = (op.kind, port) in {("BatchNormInference", 4), ("BatchNormForwardTraining", 2),
                                      ("BatchNormTrainingBackward", 3), ("LayerNormBackward", 3)}  # fmt: skip
    return numbers(rng, tensor.shape, 4, 1) if is_variance else numbers(rng, tensor.shape, 4)


def _around_the_limits(filler, tensor, op, port, values, rng):
    """Of a Clamp: a quarter below, half inside, a quarter above; of its gradient small integers, not zero."""
    if port == 1:
        return numbers(rng, tensor.shape, 8, 1)
    low, high = (float(np.clip(op.attrs[name], -64, 64)) for name in ("min", "max"))
    return low + (high - low) * (numbers(rng, tensor.shape, 24, -8) / 16)


def _product_of_all(filler, tensor, op, port, values, rng):
    """Mostly ones, so that a product of thousands neither vanishes nor overflows."""
    choice = np.asarray([0.5, 1, 1, 1, 1, 1, 1, 2, -1], np.float32)
    return choice[rng.integers(0, len(choice), tensor.shape)]


def _is_computed(filler: Filler, tensor: gp.LogicalTensor) -> bool:
    return tensor.id in filler.view.producer


def _leads_to(filler: Filler, op: gp.Op, *kinds: str) -> bool:
    """Whether a chain of elementwise ops ends in one of the kinds."""
    for _ in range(6):
        users = filler.view.users(op.outputs[0].id)
        if not users:
            return False
        op = filler.view.ops[users[-1]]
        if op.kind in kinds:
            return True
        if op.kind not in ("Add", "Select", "Divide", "Multiply", "Subtract", "TypeCast", "StaticReshape",
                           "StaticTranspose", "Reorder"):  # fmt: skip
            return False
    return False


RULES = {
    **dict.fromkeys(PRODUCTS, _product),
    "Multiply": _second_factor,
    "Divide": _second_divisor,
    "Add": _mask,
    "Subtract": _statistics,
    "Select": _select,
    "ReduceProd": _product_of_all,
    **dict.fromkeys(["Clamp", "ClampBackward"], _around_the_limits),
    **dict.fromkeys(["Log", "Sqrt", "Pow", "Reciprocal", "SqrtBackward"], _positive),
    **dict.fromkeys(["Exp", "Tanh", "Sigmoid", "GELU", "Elu", "Mish", "SoftPlus", "HardSwish", "HardSigmoid",
                     "SoftMax", "LogSoftmax", "Round"], _fraction),
    **dict.fromkeys(["BatchNormInference", "BatchNormForwardTraining", "BatchNormTrainingBackward", "LayerNorm",
                     "LayerNormBackward", "GroupNorm", "RMSNorm"], _variance),
}  # fmt: skip
