"""Rewrites the nodes of a model once: spelt-out GELU becomes one node, dead nodes go, Scatter gets its new name.

GELU is a product of x, 1/2 and either ``1 + erf(x / sqrt 2)`` or ``1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))``
(Hendrycks and Gimpel, 2016). Exporters write the product in every order, so its factors are compared as a set.
"""

from __future__ import annotations

from math import isclose, pi, sqrt
from typing import TYPE_CHECKING

import numpy as np
from onnx import helper, numpy_helper

from .source import captured_names

if TYPE_CHECKING:
    from onnx import NodeProto

    from .source import OnnxModel

__all__ = ["rewrite"]

_CUBIC = 0.044715


def rewrite(source: OnnxModel) -> list[NodeProto]:
    """The nodes that are needed, in topological order."""
    nodes = list(source.nodes)
    if any(node.op_type in ("Erf", "Tanh") for node in nodes):
        finder = _GeluFinder(source)
        nodes = [finder.match(node) or node for node in nodes]
    nodes = [_renamed(node) if node.op_type == "Scatter" else node for node in nodes]
    needed = {port.name for port in source.outputs}
    kept = []
    for node in reversed(nodes):
        if any(name in needed for name in node.output):
            needed.update((*node.input, *captured_names(node)))
            kept.append(node)
    return kept[::-1]


def _renamed(node: NodeProto) -> NodeProto:
    """ScatterElements, which took the place of Scatter."""
    other = type(node)()
    other.CopyFrom(node)
    other.op_type = "ScatterElements"
    return other


class _GeluFinder:
    """Looks backwards from a product for GELU."""

    def __init__(self, source: OnnxModel) -> None:
        self._producer = {name: node for node in source.nodes for name in node.output}
        self._scalars = {name: float(v.reshape(())) for name, v in source.constants.items() if _is_scalar(v)}
        for node in source.nodes:
            if node.op_type == "Constant" and node.attribute[0].name == "value":
                value = numpy_helper.to_array(node.attribute[0].t)
                if _is_scalar(value):
                    self._scalars[node.output[0]] = float(value.reshape(()))
        self._uses: dict[str, int] = {}
        for name in [n for node in source.nodes for n in (*node.input, *captured_names(node))]:
            self._uses[name] = self._uses.get(name, 0) + 1

    def match(self, node: NodeProto) -> NodeProto | None:
        """The Gelu node that gives what `node` gives, if it is the last product of a GELU."""
        if node.op_type != "Mul":
            return None
        half, others = self._split([*self._factors(node.input[0]), *self._factors(node.input[1])])
        if not isclose(half, 0.5, rel_tol=1e-6) or len(others) != 2:
            return None
        for x, gate in (others, others[::-1]):
            kind = self._gate_of(x, gate)
            if kind is not None:
                return helper.make_node("Gelu", [x], [node.output[0]], name=node.name, approximate=kind)
        return None

    def _factors(self, name: str) -> list[str]:
        """What `name` is the product of; products that others read too count as one factor."""
        node = self._producer.get(name)
        if node is None or node.op_type != "Mul" or self._uses.get(name) != 1:
            return [name]
        return [factor for source in node.input for factor in self._factors(source)]

    def _split(self, factors: list[str]) -> tuple[float, list[str]]:
        """The product of the numbers, and the other factors."""
        number, others = 1.0, []
        for name in factors:
            if name in self._scalars:
                number *= self._scalars[name]
            else:
                others.append(name)
        return number, others

    def _gate_of(self, x: str, gate: str) -> str | None:
        """``"none"`` or ``"tanh"`` when `gate` is the factor that belongs to `x` in that form of GELU."""
        term = self._other_term(gate, 1.0)
        inner = None if term is None else self._producer.get(term)
        if inner is None:
            return None
        if inner.op_type == "Erf" and self._is_scaled(inner.input[0], x, sqrt(0.5)):
            return "none"
        return "tanh" if inner.op_type == "Tanh" and self._is_tanh_argument(inner.input[0], x) else None

    def _other_term(self, name: str, number: float) -> str | None:
        """Y when `name` is the sum of `number` and y."""
        node = self._producer.get(name)
        if node is None or node.op_type != "Add":
            return None
        for one, other in (tuple(node.input), tuple(node.input)[::-1]):
            if isclose(self._scalars.get(one, 0.0), number, rel_tol=1e-6):
                return str(other)
        return None

    def _is_scaled(self, name: str, x: str, scale: float) -> bool:
        node = self._producer.get(name)
        if node is not None and node.op_type == "Div" and node.input[0] == x:
            return isclose(self._scalars.get(node.input[1], 0.0) * scale, 1.0, rel_tol=1e-4)
        number, others = self._split(self._factors(name))
        return others == [x] and isclose(number, scale, rel_tol=1e-4)

    def _is_tanh_argument(self, name: str, x: str) -> bool:
        """Whether it is sqrt(2 / pi) (x + 0.044715 x^3), or the same with x taken out of the bracket."""
        number, others = self._split(self._factors(name))
        if not isclose(number, sqrt(2 / pi), rel_tol=1e-4):
            return False
        if len(others) == 1:
            node = self._producer.get(others[0])
            terms = list(node.input) if node is not None and node.op_type == "Add" else []
            return x in terms and self._is_power(terms[1 - terms.index(x)], x, 3)
        if len(others) != 2 or x not in others:
            return False
        term = self._other_term(others[1 - others.index(x)], 1.0)
        return term is not None and self._is_power(term, x, 2)

    def _is_power(self, name: str, x: str, exponent: int) -> bool:
        """Whether it is 0.044715 times a power of x."""
        number, others = self._split(self._factors(name))
        return isclose(number, _CUBIC, rel_tol=1e-4) and sum(self._degree(other, x) for other in others) == exponent

    def _degree(self, name: str, x: str) -> float:
        """Exponent of a power of x; not a number for anything else."""
        if name == x:
            return 1
        node = self._producer.get(name)
        if node is not None and node.op_type == "Pow" and node.input[0] == x:
            return self._scalars.get(node.input[1], float("nan"))
        if node is not None and node.op_type == "Mul":
            return sum(self._degree(source, x) for source in node.input)
        return float("nan")


def _is_scalar(value: object) -> bool:
    return isinstance(value, np.ndarray) and value.size == 1 and value.dtype.kind == "f"
