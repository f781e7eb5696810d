"""Which elements may be NaN, infinite or finite as a kernel likes: what docs/concepts/numerics.md leaves open.

An op begins to be free where numbers near the ends of the range meet in sums, where padding meets weights that are not
finite, and so on; what reads a free element is free where another content of that element changes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from graphpool.graph.schema import get_schema
from tests.oracle import compute
from tests.oracle.numbers import FLOATS, exact, round_to

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .cases import Case, Node

__all__ = ["free_elements"]

HUGE, TINY = 2.0**60, 2.0**-100
"""Numbers beyond these leave float32 where a few are multiplied."""

CHAINS = frozenset({
    "AvgPool", "AvgPoolBackward", "BatchNormForwardTraining", "BatchNormInference", "BatchNormTrainingBackward",
    "BiasAddBackward", "ConvTranspose", "ConvTransposeBackwardData", "ConvTransposeBackwardWeights", "Convolution",
    "ConvolutionBackwardData", "ConvolutionBackwardWeights", "CumProd", "CumSum", "Interpolate", "InterpolateBackward",
    "LayerNormBackward", "LogSoftmaxBackward", "MatMul", "PReLUBackward", "Recurrent", "ReduceProd", "ReduceSum",
    "RoiAlign", "RotaryEmbedding", "SoftMaxBackward", "SqrtBackward",
})  # fmt: skip
"""Kinds with sums or chains of operations, where a part may overflow, or be cancelled, and the whole does not."""

NORM_GRADIENTS = frozenset({"BatchNormTrainingBackward", "LayerNormBackward"})
"""Kinds that multiply the square of a normalised number by a gradient, so that numbers beyond 2^40 may overflow."""

FOLDED = frozenset({"Add", "BatchNormInference", "BiasAdd", "Divide", "Multiply", "Subtract"})
"""Kinds whose constants may be folded into weights."""

PRODUCTS = frozenset({"ConvTranspose", "Convolution", "MatMul"})
"""Kinds into whose weights constants are folded."""

PADDED = frozenset({
    "ConvTranspose", "ConvTransposeBackwardData", "ConvTransposeBackwardWeights", "Convolution",
    "ConvolutionBackwardData", "ConvolutionBackwardWeights",
})  # fmt: skip
"""Kinds whose padding meets weights, or the gradient of a result."""

JOINED = {
    "Recurrent": (0, 1, 2, 4, 5, 6),
    "BatchNormForwardTraining": (1, 2, 3, 4),
    "BatchNormInference": (1, 2, 3, 4),
    "GroupNorm": (1, 2),
}
"""Kinds with parameters that are joined to one factor and one summand, or that meet gates, and the ports of these."""

SCALED = {"LayerNorm": 1, "LayerNormBackward": 4, "RMSNorm": 1}
"""Kinds that multiply numbers that may round to 0 by a parameter, and its port."""

NARROW = frozenset({"bf16", "f16", "f8_e4m3", "f8_e5m2"})

Mask = np.ndarray[Any, Any]


def free_elements(case: Case, values: Mapping[int, Any], dtypes: Mapping[int, str]) -> dict[int, Mask]:
    """For every tensor, which of its elements are free."""
    tensors = Tensors(case, values, dtypes)
    for node in case.nodes:
        tensors.add(node)
    return tensors.free


class Tensors:
    """The tensors of a case: their contents, and which elements are free, op by op.

    `of_bytes` are products of dequantised tensors, and what is computed of these. `hidden` are infinities to which a
    tensor of a narrow type is rounded, which ops that are fused may see as numbers.
    """

    def __init__(self, case: Case, values: Mapping[int, Any], dtypes: Mapping[int, str]) -> None:
        self.case, self.values, self.dtypes = case, values, dtypes
        self.free: dict[int, Mask] = {i: np.zeros(np.shape(values[i]), bool) for i in case.sources}
        self.hidden: dict[int, Mask] = {}
        self.dequantised: set[int] = set()
        self.of_bytes: set[int] = set()
        self.constants = {i for i, source in case.sources.items() if source.constant}

    def add(self, node: Node) -> None:
        """The outputs of an op whose inputs are known."""
        ids, dtypes = [i for i, _ in node.outputs], [dtype for _, dtype in node.outputs]
        inputs = [self.values[i] for i in node.inputs]
        found = [np.zeros(np.shape(self.values[i]), bool) for i in ids]
        read = [self.free[i] | self.is_open(node, port, i) for port, i in enumerate(node.inputs)]
        if any(mask.any() for mask in read):
            for content in (np.nan, np.inf, -np.inf, 0.0, 1.0):
                moved = [_filled(x, mask, content) for x, mask in zip(inputs, read, strict=True)]
                found = [a | b for a, b in zip(found, self.changed(node, moved), strict=True)]
        if node.kind in PADDED:
            found[0] |= self.changed(node, inputs)[0]
        if node.kind == "Convolution" and self.case.options.get("prefer") == "latency":
            found[0] |= self.mixed_tiles(node)
        if node.kind == "Quantize" and node.inputs[0] in self.of_bytes:
            found[0] |= np.isnan(self.real(node.inputs[0]))
        if node.kind == "Dequantize":
            self.dequantised.update(ids)
        elif self.of_bytes.intersection(node.inputs) or (
            node.kind in PRODUCTS and self.dequantised.intersection(node.inputs)
        ):
            self.of_bytes.update(ids)
        self.free.update(zip(ids, found, strict=True))
        for i, dtype, real in zip(ids, dtypes, self.computed(node, inputs), strict=True):
            if dtype in NARROW:
                self.hidden[i] = np.isfinite(np.asarray(real).astype(np.float64)) & np.isinf(self.real(i))

    def real(self, tensor_id: int) -> Any:
        """The content of floats."""
        return np.asarray(self.values[tensor_id]).astype(np.float64)

    def is_open(self, node: Node, port: int, tensor_id: int) -> Mask:
        """Numbers with which this op may overflow, and factors that may be joined with others."""
        if self.dtypes[tensor_id] not in FLOATS:
            return np.zeros(np.shape(self.values[tensor_id]), bool)
        size, is_constant = np.abs(self.real(tensor_id)), tensor_id in self.constants
        is_chain = node.kind in CHAINS or node.attrs.get("reduction") in ("add", "mul")
        most = 2.0**40 if node.kind in NORM_GRADIENTS else HUGE
        found = self.hidden.get(tensor_id, False) | ((size > most) & np.isfinite(size) & is_chain)
        if (node.kind in FOLDED and is_constant) or port in JOINED.get(node.kind, ()):
            found |= ~(size <= HUGE) | ((size > 0) & (size < TINY))
        if node.kind in PRODUCTS and port < 2:
            found |= (size > 0) & (size < TINY)
        if port == SCALED.get(node.kind):
            found |= np.isinf(size)
        return np.asarray(found)

    def computed(self, node: Node, inputs: list[Any], **extra: Any) -> list[Any]:
        """The outputs before they are rounded, of these inputs and with more attributes."""
        attrs = dict(get_schema(node.kind).complete(node.kind, node.attrs)) | extra
        types, out_types = [self.dtypes[i] for i in node.inputs], [dtype for _, dtype in node.outputs]
        return compute(node.kind, attrs, inputs, types, out_types)

    def changed(self, node: Node, inputs: list[Any]) -> list[Mask]:
        """Elements of the outputs that are others with these inputs, padding multiplied by weights."""
        results = zip(node.outputs, self.computed(node, inputs, padding_counts=True), strict=True)
        return [_differs(exact(round_to(result, dtype), dtype), exact(self.values[i], dtype))
                for (i, dtype), result in results]  # fmt: skip

    def mixed_tiles(self, node: Node) -> Mask:
        """The images of which Winograd's transforms mix pixels, or weights, that are not finite or huge."""
        x, weights = (np.abs(self.real(i)) for i in node.inputs[:2])
        is_mixed = ~(x <= HUGE).all(axis=tuple(range(1, x.ndim))) | (not (weights <= HUGE).all())
        shape = np.shape(self.values[node.outputs[0][0]])
        return np.broadcast_to(is_mixed.reshape(-1, *(1,) * (len(shape) - 1)), shape)


def _filled(x: Any, mask: Mask, content: float) -> Any:
    """With other elements where they are free; integers are small ones."""
    if not mask.any():
        return x
    number = content if np.asarray(x).dtype.kind in "fV" else int(content == 1)
    return np.where(mask, np.asarray(number).astype(x.dtype), x)


def _differs(a: Any, b: Any) -> Mask:
    if a.shape != b.shape:
        return np.ones(b.shape, bool)
    return np.asarray((a != b) & ((a == a) | (b == b)), bool)
