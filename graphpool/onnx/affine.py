"""Folds multiplications and additions per channel into the weights of the convolution in front of them.

BatchNormalization of known statistics is one: a x + c with a = scale / sqrt(variance + epsilon) and c = bias - a mean
(Ioffe and Szegedy, 2015). Mul, Add, Sub and Div by a constant for each channel are others; behind a BatchNormalization
that stands alone they go into its scale and bias.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from graphpool.runtime.constant_part import held_nbytes

from .boundary import Boundary
from .node import count_reads

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from .node import Node
    from .source import OnnxModel

__all__ = ["fold_affine"]

_Array: TypeAlias = "np.ndarray[Any, Any]"
_MOST_COPIED = 2**18
"""Weights beyond this size are replaced, but not copied, as those of a mapped file and those that others read too would
be: arithmetic behind large weights costs little, since their layers have few elements for each. Unit: bytes."""
_KEEPS_RANK = frozenset({
    "AveragePool", "BatchNormalization", "Clip", "Concat", "Dropout", "Elu", "GlobalAveragePool", "GlobalMaxPool",
    "HardSigmoid", "HardSwish", "LRN", "LeakyRelu", "MaxPool", "PRelu", "Relu", "Sigmoid", "Swish", "Tanh", "Transpose",
})  # fmt: skip
_ELEMENTWISE = frozenset({"Add", "Div", "Mul", "Sub", "Sum"})


_NUMPY_BROADCAST = 7
"""Opset from which on arithmetic broadcasts as in NumPy."""


def fold_affine(source: OnnxModel, nodes: Sequence[Node], constants: dict[str, Any]) -> list[Node]:
    """The nodes without those that were folded; new weights are added to the constants."""
    if source.opsets.get("", 1) < _NUMPY_BROADCAST:
        return list(nodes)
    ranks = {port.name: len(port.shape) for port in source.inputs if port.shape is not None}
    return list(_Folder(nodes, constants, ranks, [port.name for port in source.outputs]).fold().values())


class _Folder:
    """One pass from the inputs to the outputs, so that whole chains go into one convolution."""

    def __init__(
        self,
        nodes: Sequence[Node],
        constants: dict[str, Any],
        ranks: Mapping[str, int],
        outputs: Sequence[str],
    ) -> None:
        self._nodes = {next(name for name in node.output if name): node for node in nodes}
        self._constants = constants
        self._ranks = dict(ranks)
        self._uses = count_reads(nodes, outputs)

    def fold(self) -> dict[str, Node]:
        """Output -> node, in topological order."""
        for name, node in list(self._nodes.items()):
            with Boundary("rewritten", node):
                self._fold_node(name, node)
        return self._nodes

    def _fold_node(self, name: str, node: Node) -> None:
        change = self._change_of(node)
        merged = None if change is None else self._merge(node, *change)
        if change is not None and merged is not None:
            del self._nodes[change[0]]
            self._nodes[name] = node = merged
        self._note_rank(node)

    def _note_rank(self, node: Node) -> None:
        if node.op_type in ("Conv", "ConvTranspose") and node.input[1] in self._constants:
            self._ranks[node.output[0]] = np.ndim(self._constants[node.input[1]])
        elif node.op_type in _KEEPS_RANK and node.input[0] in self._ranks:
            self._ranks[node.output[0]] = self._ranks[node.input[0]]
        elif node.op_type in _ELEMENTWISE and all(self._rank(name) is not None for name in node.input):
            self._ranks[node.output[0]] = max(self._rank(name) or 0 for name in node.input)

    def _rank(self, name: str) -> int | None:
        return np.ndim(self._constants[name]) if name in self._constants else self._ranks.get(name)

    def _known(self, names: Collection[str]) -> list[_Array] | None:
        found = [self._constants.get(name) for name in names]
        floats = [v for v in found if isinstance(v, np.ndarray) and v.dtype.kind == "f"]
        return floats if len(floats) == len(found) else None

    # ---- what a node does: a x + c

    def _change_of(self, node: Node) -> tuple[str, _Array, _Array] | None:
        """X, a and c, the two as one number or one for each channel."""
        if node.domain not in ("", "ai.onnx"):
            return None
        if node.op_type == "BatchNormalization":
            return self._normalisation(node)
        return self._arithmetic(node) if node.op_type in ("Mul", "Div", "Add", "Sub") else None

    def _normalisation(self, node: Node) -> tuple[str, _Array, _Array] | None:
        attrs, known = node.attrs, self._known(node.input[1:])
        is_training = attrs.get("training_mode", 0) or not attrs.get("spatial", 1)
        if is_training or len(node.output) > 1 or known is None:
            return None
        scale, bias, mean, variance = (value.astype(np.float64) for value in known)
        factor = scale / np.sqrt(variance + attrs.get("epsilon", 1e-5))
        return node.input[0], factor, bias - factor * mean

    def _arithmetic(self, node: Node) -> tuple[str, _Array, _Array] | None:
        left, right = node.input
        data, other = (right, left) if left in self._constants else (left, right)
        rank, known = self._rank(data), self._known([other])
        if data in self._constants or known is None or rank is None or (node.op_type == "Div" and data != left):
            return None
        number = self._per_channel(known[0].astype(np.float64), rank)
        if number is None or (node.op_type == "Div" and not np.all(number)):
            return None
        one, zero = np.ones(()), np.zeros(())
        if node.op_type in ("Mul", "Div"):
            return data, number if node.op_type == "Mul" else 1 / number, zero
        if node.op_type == "Add":
            return data, one, number
        return (data, one, -number) if data == left else (data, -one, number)

    def _per_channel(self, value: _Array, rank: int) -> _Array | None:
        """A constant as one number or one for each index of axis 1; None when it varies along another axis."""
        if value.size == 1 and value.ndim <= rank:
            return value.reshape(())
        if value.ndim > rank or rank < 2:
            return None
        full = value.reshape((1,) * (rank - value.ndim) + value.shape)
        return full.reshape(-1) if full.size == full.shape[1] else None

    # ---- into the node in front

    def _merge(self, node: Node, data: str, factor: _Array, shift: _Array) -> Node | None:
        producer = self._nodes.get(data)
        if producer is None or self._uses[data] != 1 or producer.domain not in ("", "ai.onnx"):
            return None
        if producer.op_type == "Conv":
            return self._merge_weights(producer, node, factor, shift, 0)
        if producer.op_type == "ConvTranspose" and producer.attrs.get("group", 1) == 1:
            return self._merge_weights(producer, node, factor, shift, 1)
        if producer.op_type == "BatchNormalization" and node.op_type != "BatchNormalization":
            return self._merge_normalisation(producer, node, factor, shift)
        return None

    def _merge_weights(self, producer: Node, node: Node, factor: _Array, shift: _Array, axis: int) -> Node | None:
        """A convolution with weights times a and bias times a plus c; `axis` of the weights is the output channel."""
        known = self._known([name for name in producer.input[1:] if name])
        if known is None or not _fits(known[0].shape[axis], factor, shift):
            return None
        is_copied = self._uses[producer.input[1]] > 1 or not held_nbytes(known[0])
        if is_copied and (known[0].nbytes > _MOST_COPIED or _is_folded_later(producer, node, known[0])):
            return None
        weights, channels = known[0], known[0].shape[axis]
        bias = known[1].astype(np.float64) if len(known) > 1 else np.zeros(channels)
        across = [-1 if k == axis else 1 for k in range(weights.ndim)]
        scaled = weights * factor.astype(weights.dtype).reshape(across if factor.ndim else ())
        moved = np.broadcast_to(bias * factor + shift, (channels,)).astype(weights.dtype)
        return self._replace(producer, node, {1: scaled, 2: moved})

    def _merge_normalisation(self, producer: Node, node: Node, factor: _Array, shift: _Array) -> Node | None:
        known = self._known(producer.input[1:3])
        if known is None or len(producer.output) > 1 or not _fits(known[0].size, factor, shift):
            return None
        scale, bias = known
        moved = bias.astype(np.float64) * factor + shift
        return self._replace(producer, node, {1: (scale * factor).astype(scale.dtype), 2: moved.astype(bias.dtype)})

    def _replace(self, producer: Node, node: Node, inputs: Mapping[int, _Array]) -> Node:
        """The producer with other constants, giving what `node` gave."""
        names = [*producer.input, *[""] * (max(inputs) + 1 - len(producer.input))]
        for index, value in inputs.items():
            names[index] = f"{node.output[0]}/folded{index}"
            value.flags.writeable = False
            self._constants[names[index]] = value
        return producer.changed(inputs=names, outputs=node.output)


def _is_folded_later(producer: Node, node: Node, weights: _Array) -> bool:
    """Whether packing folds the node into the weights, as long as they stay in their file."""
    is_norm_of_conv = node.op_type == "BatchNormalization" and producer.op_type == "Conv"
    return is_norm_of_conv and weights.dtype == np.float32 and not held_nbytes(weights)


def _fits(channels: int, factor: _Array, shift: _Array) -> bool:
    return all(value.ndim == 0 or value.size == channels for value in (factor, shift))
