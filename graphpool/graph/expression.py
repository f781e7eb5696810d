"""Expressions of `Spelling`s, parsed: names, calls, and products and sums as a number and a multiset of parts."""

from __future__ import annotations

import ast
import math
from typing import TYPE_CHECKING, TypeAlias

from graphpool._dataclasses import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Name:
    """A tensor, to be captured."""

    name: str


@dataclass(frozen=True)
class Product:
    """A number, perhaps times a number to be captured, times powers."""

    number: float
    variable: str | None
    parts: tuple[tuple[Pattern, float], ...]


@dataclass(frozen=True)
class Sum:
    """A number, perhaps plus a number to be captured, plus terms with signs."""

    number: float
    variable: str | None
    parts: tuple[tuple[Pattern, float], ...]


@dataclass(frozen=True)
class Call:
    """An op, its inputs and then its numbers."""

    kind: str
    arguments: tuple[Pattern | float, ...]


Pattern: TypeAlias = Name | Product | Sum | Call


def parse(text: str, variables: Sequence[str]) -> Pattern:
    """The pattern that an expression says; `variables` are numbers to be captured."""
    pattern = _Parser(variables).pattern(ast.parse(text, mode="eval").body)
    assert not isinstance(pattern, float)  # a rule is no number
    return pattern


class _Parser:
    def __init__(self, variables: Sequence[str]) -> None:
        self._variables = variables

    def pattern(self, tree: ast.expr) -> Pattern | float:
        """A number where the expression is one, else the pattern."""
        number = _number(tree)
        if number is not None:
            return number
        if isinstance(tree, ast.Name):
            return Name(tree.id)
        if isinstance(tree, ast.List):  # brackets
            return self.pattern(tree.elts[0])
        if isinstance(tree, ast.BinOp) and isinstance(tree.op, (ast.Add, ast.Sub)):
            total = self._collect(tree, (ast.Add, ast.Sub), 0.0)
            return Sum(*total)
        if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and tree.func.id != "sqrt":
            return Call(tree.func.id, tuple(self.pattern(argument) for argument in tree.args))
        return Product(*self._collect(tree, (ast.Mult, ast.Div), 1.0))

    def _collect(
        self, tree: ast.expr, kinds: tuple[type, type], neutral: float
    ) -> tuple[float, str | None, tuple[tuple[Pattern, float], ...]]:
        """Number, captured number and parts of a chain of two operators, the second being the inverse of the first."""
        is_product, number, variable = neutral == 1, neutral, None
        parts: list[tuple[Pattern, float]] = []
        waiting: list[tuple[ast.expr, float]] = [(tree, 1.0)]
        while waiting:
            item, power = waiting.pop()
            known = _number(item)
            if known is not None:
                number = number * known**power if is_product else number + power * known
            elif isinstance(item, ast.BinOp) and isinstance(item.op, kinds):
                inverse = -power if isinstance(item.op, kinds[1]) else power
                waiting += [(item.left, power), (item.right, inverse)]
            elif isinstance(item, ast.Name) and item.id in self._variables:
                variable = item.id
            else:
                base, exponent = _power(item) if is_product else (item, 1.0)
                part = self.pattern(base)
                assert not isinstance(part, float)  # numbers were taken out above
                parts.append((part, power * exponent))
        return number, variable, tuple(parts)


def _number(tree: ast.expr) -> float | None:
    """The value of an expression of numbers alone."""
    if isinstance(tree, ast.Constant):
        return float(tree.value)  # type: ignore[arg-type]
    if isinstance(tree, ast.Name):
        return math.pi if tree.id == "pi" else None
    if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and tree.func.id == "sqrt":
        value = _number(tree.args[0])
        return None if value is None else math.sqrt(value)
    if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Div):
        left, right = _number(tree.left), _number(tree.right)
        return None if left is None or right is None else left / right
    return None


def _power(tree: ast.expr) -> tuple[ast.expr, float]:
    """Base and exponent."""
    if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Pow):
        exponent = _number(tree.right)
        assert exponent is not None  # patterns have known exponents
        return tree.left, exponent
    if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and tree.func.id == "sqrt":
        return tree.args[0], 0.5
    return tree, 1.0


def calls_of(pattern: Pattern | float) -> set[str]:
    """Ops that a pattern needs."""
    if isinstance(pattern, Call):
        return {pattern.kind}.union(*(calls_of(argument) for argument in pattern.arguments))
    if isinstance(pattern, (Product, Sum)):
        return set().union(*(calls_of(part) for part, _ in pattern.parts))
    return set()
