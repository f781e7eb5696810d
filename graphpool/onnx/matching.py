"""Finds the expressions of patterns.py among a model's nodes.

Pattern and graph are compared as products of powers and sums, each as a multiset with one number: a match assigns the
factors (terms) of the pattern to those of the graph, with backtracking over the few orders that there are.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from .boundary import Boundary
from .expression import Call, Name, Product, Sum, calls_of
from .node import count_reads, make_node

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from .expression import Pattern
    from .node import Node
    from .patterns import Rule

__all__ = ["Matcher"]


_Parts: TypeAlias = list[tuple[str, float]]
_Captured: TypeAlias = dict[str, Any]


class Matcher:
    """Looks for rules at nodes.

    Parameters
    ----------
    rules : sequence of Rule
    nodes : sequence of Node
    constants : mapping of str to array
    outputs : sequence of str
        Of the graph.

    Notes
    -----
    Threads: safe after construction. Cost: a few microseconds a node that no rule fits.
    """

    def __init__(
        self, rules: Sequence[Rule], nodes: Sequence[Node], constants: Mapping[str, Any], outputs: Sequence[str]
    ) -> None:
        self._producer = {name: node for node in nodes for name in node.output}
        self._constants = constants
        self._uses = count_reads(nodes, outputs)
        kinds = {_kind_of(node) for node in nodes}
        self._rules = [rule for rule in rules if calls_of(rule.tree) <= kinds]

    def find(self, node: Node) -> Node | None:
        """The node that gives what `node` gives, by the first rule that fits."""
        wanted = {"Mul": Product, "Div": Product, "Add": Sum, "Sub": Sum}.get(node.op_type)
        with Boundary("rewritten", node):
            for rule in self._rules if wanted is not None else ():
                if isinstance(rule.tree, wanted):  # type: ignore[arg-type]
                    for captured in self._match(rule.tree, node.output[0], {}):
                        if all(self._is_vector(captured[name]) for name in rule.vectors):
                            return self._replacement(rule, node, captured)
        return None

    def _replacement(self, rule: Rule, node: Node, captured: _Captured) -> Node:
        attributes = {
            key: value[1:-1] if value.startswith('"') else captured[value] for key, value in rule.attributes.items()
        }
        inputs = [captured[name] for name in rule.inputs]
        return make_node(rule.kind, inputs, node.output, node.name, **attributes)

    def _is_vector(self, name: str) -> bool:
        return name in self._constants and np.ndim(self._constants[name]) == 1

    def _scalar(self, name: str) -> float | None:
        value = self._constants.get(name)
        is_number = isinstance(value, np.ndarray) and value.size == 1 and value.dtype.kind in "fiu"
        return float(value.reshape(())) if is_number and value is not None else None

    # ---- matching

    def _match(self, pattern: Pattern, name: str, captured: _Captured) -> Iterator[_Captured]:
        """Every way in which the pattern fits what `name` holds, given what was captured."""
        if isinstance(pattern, Name):
            if captured.get(pattern.name, name) == name:
                yield captured | {pattern.name: name}
        elif isinstance(pattern, Call):
            yield from self._match_call(pattern, name, captured)
        else:
            is_product = isinstance(pattern, Product)
            number, parts = self._factors(name) if is_product else self._terms(name)
            bound = _bind_number(pattern, number, captured)
            if bound is not None and len(parts) == len(pattern.parts):
                yield from self._match_parts(pattern.parts, parts, bound)

    def _match_parts(
        self, wanted: Sequence[tuple[Pattern, float]], parts: _Parts, captured: _Captured
    ) -> Iterator[_Captured]:
        if not wanted:
            yield captured
            return
        (pattern, power), rest = wanted[0], wanted[1:]
        for k, (name, own) in enumerate(parts):
            if own == power:
                for found in self._match(pattern, name, captured):
                    yield from self._match_parts(rest, parts[:k] + parts[k + 1 :], found)

    def _match_call(self, pattern: Call, name: str, captured: _Captured) -> Iterator[_Captured]:
        node = self._producer.get(name)
        if node is None or _kind_of(node) != pattern.kind:
            return
        arguments = self._arguments(node)
        if arguments is None or len(arguments) != len(pattern.arguments):
            return
        ways = iter([captured])
        for wanted, given in zip(pattern.arguments, arguments, strict=True):
            ways = self._match_argument(wanted, given, ways)
        yield from ways

    def _match_argument(
        self, wanted: Pattern | float, given: str | float, ways: Iterator[_Captured]
    ) -> Iterator[_Captured]:
        for captured in ways:
            if isinstance(wanted, float):
                number = self._scalar(given) if isinstance(given, str) else given
                if number is not None and _is_close(number, wanted):
                    yield captured
            elif isinstance(given, str):
                yield from self._match(wanted, given, captured)

    def _arguments(self, node: Node) -> list[str | float] | None:
        """Inputs of a node and numbers among its attributes; None where it is not the plain form of its op."""
        attrs = node.attrs
        if node.op_type == "ReduceMean":
            axes = attrs.get("axes") if len(node.input) < 2 else np.reshape(self._constants.get(node.input[1], ()), -1)
            is_last = axes is not None and list(axes) == [-1]
            return [node.input[0]] if is_last and attrs.get("keepdims", 1) else None
        if node.op_type == "Clip" and len(node.input) < 3:
            return [node.input[0], attrs.get("min", -math.inf), attrs.get("max", math.inf)]
        if node.op_type == "HardSigmoid":
            return [node.input[0], attrs.get("alpha", 0.2), attrs.get("beta", 0.5)]
        return list(node.input)

    # ---- products and sums of the graph

    def _inner(self, name: str, is_top: bool) -> Node | None:
        """The node behind a name, where it may be taken apart: nobody else reads what it gives."""
        return self._producer.get(name) if is_top or self._uses[name] == 1 else None

    def _factors(self, name: str) -> tuple[float, _Parts]:
        """A number and powers whose product the value is."""
        number, powers = 1.0, Counter[str]()
        waiting: list[tuple[str, float, bool]] = [(name, 1.0, True)]
        while waiting:
            item, power, is_top = waiting.pop()
            scalar, node = self._scalar(item), self._inner(item, is_top)
            kind = None if node is None else node.op_type
            if scalar is not None and scalar != 0:
                number *= scalar**power
            elif node is not None and kind in ("Mul", "Div"):
                waiting += [(node.input[0], power, False), (node.input[1], -power if kind == "Div" else power, False)]
            elif node is not None and kind == "Reciprocal":
                waiting.append((node.input[0], -power, False))
            elif node is not None and kind == "Neg":
                number = -number
                waiting.append((node.input[0], power, False))
            else:
                base, exponent = self._power(node)
                powers[item if base is None else base] += power * exponent  # type: ignore[assignment]
        return number, [(item, power) for item, power in powers.items() if power]

    def _power(self, node: Node | None) -> tuple[str | None, float]:
        """Base and exponent of a power; no base for anything else."""
        if node is not None and node.op_type == "Sqrt":
            return node.input[0], 0.5
        exponent = self._scalar(node.input[1]) if node is not None and node.op_type == "Pow" else None
        return (None, 1.0) if node is None or exponent is None else (node.input[0], exponent)

    def _terms(self, name: str) -> tuple[float, _Parts]:
        """A number and signed terms whose sum the value is."""
        number, parts = 0.0, []
        waiting: list[tuple[str, float, bool]] = [(name, 1.0, True)]
        while waiting:
            item, sign, is_top = waiting.pop()
            scalar, node = self._scalar(item), self._inner(item, is_top)
            if scalar is not None:
                number += sign * scalar
            elif node is not None and node.op_type in ("Add", "Sub"):
                waiting += [
                    (node.input[0], sign, False),
                    (node.input[1], -sign if node.op_type == "Sub" else sign, False),
                ]
            else:
                parts.append((item, sign))
        return number, parts


def _kind_of(node: Node) -> str:
    """What patterns call an op."""
    return "Mean" if node.op_type == "ReduceMean" else node.op_type


def _bind_number(pattern: Product | Sum, number: float, captured: _Captured) -> _Captured | None:
    """What was captured with the pattern's number variable, or None where the numbers differ."""
    if pattern.variable is None:
        return captured if _is_close(number, pattern.number) else None
    value = number / pattern.number if isinstance(pattern, Product) else number - pattern.number
    known = captured.get(pattern.variable, value)
    return captured | {pattern.variable: value} if _is_close(known, value) else None


def _is_close(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=1e-4, abs_tol=1e-12)
