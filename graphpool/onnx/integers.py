"""Products of integers that become floats, as products of the floats: what dynamic quantisation of a model makes.

    Mul(Cast(MatMulInteger(a, b, a_zero, b_zero)), Mul(a_scale, b_scale))
        -> MatMul(DequantizeLinear(a, a_scale, a_zero), DequantizeLinear(b, b_scale, b_zero))

and likewise ConvInteger. This is the form in which our graph has quantised products; where they are computed, integers
are multiplied and their sums scaled, as here. Scales that are not found in front are left behind the product.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

from .boundary import Boundary
from .node import count_reads, make_node
from .proto import TensorProto

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .node import Node
    from .source import OnnxModel

_PRODUCTS = {"MatMulInteger": "MatMul", "ConvInteger": "Conv"}


def restore_floats(source: OnnxModel, nodes: Sequence[Node], constants: dict[str, Any]) -> list[Node]:
    """The nodes, with products of floats in place of the last nodes of such chains; constants that are new are added.

    What is in front of those last nodes stays, for others may read it.
    """
    finder = _Finder(nodes, constants, [port.name for port in source.outputs])
    made: dict[str, list[Node]] = {}
    for node in nodes:
        if node.op_type == "Cast" and node.domain in ("", "ai.onnx"):
            with Boundary("rewritten", node):
                made |= finder.find(node)
    return [new for node in nodes for new in made.get(node.output[0], [node])]


class _Finder:
    """Finds chains of a model."""

    def __init__(self, nodes: Sequence[Node], constants: dict[str, Any], outputs: Sequence[str]) -> None:
        self._producer = {name: node for node in nodes for name in node.output}
        self._constants = constants
        self._uses = count_reads(nodes, outputs)
        self._readers: defaultdict[str, list[Node]] = defaultdict(list)
        for node in nodes:
            for name in node.input:
                self._readers[name].append(node)

    def find(self, cast: Node) -> dict[str, list[Node]]:
        """The chain that goes through a Cast: the output of its last node -> the nodes that give it; empty if none."""
        product = self._producer.get(cast.input[0])
        if product is None or product.op_type not in _PRODUCTS or cast.attrs.get("to") != TensorProto.FLOAT:
            return {}
        if self._uses[cast.input[0]] != 1:
            return {}
        last, scales = self._scales_behind(cast, product)
        operands = [self._dequantize(last, product, port, scales[port]) for port in (0, 1)]
        if operands[0] is None or operands[1] is None:
            return {}
        names = [operand.output[0] for operand in operands if operand is not None]
        made = make_node(_PRODUCTS[product.op_type], names, last.output, product.name, **product.attrs)
        return {last.output[0]: [operands[0], operands[1], made]}

    # ---- scales

    def _scales_behind(self, cast: Node, product: Node) -> tuple[Node, list[str | None]]:
        """The last node of the chain, and the name of each operand's scale; None for 1."""
        readers = self._readers[cast.output[0]]
        if self._uses[cast.output[0]] == 1 and len(readers) == 1 and readers[0].op_type == "Mul":
            [other] = [name for name in readers[0].input if name != cast.output[0]]
            leaves = self._leaves(other)
            for order in ([*leaves, None], [None, *leaves]) if len(leaves) == 1 else (leaves, leaves[::-1]):
                if len(order) == 2 and all(self._is_scale(name, product, port) for port, name in enumerate(order)):
                    return readers[0], order
        return cast, [None, None]

    def _leaves(self, name: str) -> list[str | None]:
        """The factors of a product of scales."""
        node = self._producer.get(name)
        return [*node.input] if node is not None and node.op_type == "Mul" else [name]

    def _is_scale(self, name: str | None, product: Node, port: int) -> bool:
        """Whether a factor of the sums is the scale of an operand, or of each of its columns or channels."""
        if name is None or self._is_measured(product, port, name, 1):
            return True
        value = self._constants.get(name)
        if value is None or value.dtype != np.float32:
            return False
        return (value.size == 1 and value.ndim < 2) or (port == 1 and self._is_along(value, product))

    def _is_along(self, value: np.ndarray[Any, Any], product: Node) -> bool:
        """Whether broadcasting with the result gives each column or channel of constant weights a number of its own."""
        weights = self._constants.get(product.input[1])
        if weights is None or weights.ndim < 2:
            return False
        if product.op_type == "MatMulInteger":
            return bool(value.shape == weights.shape[-1:])
        trailing = (weights.shape[0], *[1] * (weights.ndim - 2))
        return value.shape in (trailing, (1, *trailing))

    def _is_measured(self, product: Node, port: int, name: str, output: int) -> bool:
        """Whether a name is that output of the node that quantises an operand by its range."""
        source = self._producer.get(product.input[port])
        return source is not None and source.op_type == "DynamicQuantizeLinear" and source.output[output] == name

    # ---- operands

    def _dequantize(self, last: Node, product: Node, port: int, scale: str | None) -> Node | None:
        """The node that turns an operand into floats; None where its zero points are none of a DequantizeLinear."""
        numbers = self._numbers(last, product, port, scale)
        if numbers is None:
            return None
        axis = -1 if product.op_type == "MatMulInteger" else 0
        name = f"{last.output[0]}/operand{port}"
        return make_node("DequantizeLinear", [product.input[port], *numbers], [name], name, axis=axis)

    def _numbers(self, last: Node, product: Node, port: int, scale: str | None) -> list[str] | None:
        """Names of scale and, where it is not 0, zero point of an operand, in one shape."""
        zero = product.input[2 + port] if len(product.input) > 2 + port else ""
        factors = np.ones((), np.float32) if scale is None else self._constants.get(scale)
        if not zero or not np.any(self._constants.get(zero, 1)):
            return [self._known(last, f"scale{port}", factors) if factors is not None else str(scale)]
        if self._is_measured(product, port, zero, 2) and (factors is None or factors.size == 1):
            return [self._known(last, f"scale{port}", factors) if factors is not None else str(scale), zero]
        points = self._constants.get(zero)
        if points is None or (points.size > 1 and not (port == 1 and self._is_along_columns(points, product))):
            return None
        if factors is None:
            return [str(scale), zero] if points.size == 1 else None
        count = max(factors.size, points.size)
        return [
            self._known(last, f"{name}{port}", np.broadcast_to(value.reshape(-1), (count,)))
            for name, value in (("scale", factors), ("zero", points))
        ]

    def _is_along_columns(self, points: np.ndarray[Any, Any], product: Node) -> bool:
        """Whether constant weights have that many columns or channels."""
        weights = self._constants.get(product.input[1])
        axis = -1 if product.op_type == "MatMulInteger" else 0
        return weights is not None and weights.ndim > 1 and points.shape == (weights.shape[axis],)

    def _known(self, last: Node, name: str, value: np.ndarray[Any, Any]) -> str:
        """The name of a new constant: a vector, or of one number a scalar."""
        name = f"{last.output[0]}/{name}"
        made = np.array(value.reshape(() if value.size == 1 else (-1,)))
        made.setflags(write=False)
        self._constants[name] = made
        return name
