"""Determinants and inverses of matrices of up to four rows, by minors."""

from __future__ import annotations

from itertools import combinations
from math import prod
from typing import TYPE_CHECKING

from graphpool.typing import DataType

if TYPE_CHECKING:
    from graphpool.onnx.build import NodeView, Value

__all__ = ["CONTRIBUTED", "CONVERTERS"]

_MOST_ROWS = 4
"""Beyond, minors are many, and lose more digits than elimination does."""


class _Minors:
    """Minors of square matrices, each computed once: values of shape (matrices, 1), f64 or f32."""

    def __init__(self, n: NodeView) -> None:
        shape = n[0].shape
        n.require(len(shape) >= 2 and shape[-1] == shape[-2] and 0 < shape[-1] <= _MOST_ROWS, "matrices of other sizes")
        x = n[0] if n[0].dtype is DataType.F64 else n.cast(n[0], DataType.F32)
        self.size, self._n = int(shape[-1]), n
        self._known: dict[tuple[tuple[int, ...], tuple[int, ...]], Value] = {((), ()): n.literal([[1.0]], x)}
        count = self.size**2
        flat = n.reshape(x, (prod(shape[:-2]), count))
        parts = n.emit_several("Split", [x.dtype] * count, flat, axis=1, split=[1] * count)
        for place, part in enumerate(parts):
            self._known[(place // self.size,), (place % self.size,)] = part

    @property
    def determinant(self) -> Value:
        """That of the matrices."""
        return self.of(tuple(range(self.size)), tuple(range(self.size)))

    def of(self, rows: tuple[int, ...], columns: tuple[int, ...]) -> Value:
        """The determinant of these rows and columns, along the first row."""
        if (rows, columns) not in self._known:
            total: Value | None = None
            for number, column in enumerate(columns):
                rest = self.of(rows[1:], (*columns[:number], *columns[number + 1 :]))
                term = self._n.emit("Multiply", self.of(rows[:1], (column,)), rest)
                kind = "Subtract" if number % 2 else "Add"
                total = term if total is None else self._n.emit(kind, total, term)
            assert total is not None  # of one row at least
            self._known[rows, columns] = total
        return self._known[rows, columns]


def _determinant(n: NodeView) -> Value:
    return n.cast(n.reshape(_Minors(n).determinant, n[0].shape[:-2]), n[0].dtype)


def _inverse(n: NodeView) -> Value:
    """The matrix of cofactors, turned, by the determinant.

    Source: the operators of domain com.microsoft, as ONNX Runtime documents them.
    """
    minors = _Minors(n)
    every = tuple(range(minors.size))
    others = list(combinations(every, minors.size - 1))[::-1]  # all but each one
    found = [minors.of(others[column], others[row]) for row in every for column in every]
    signed = [n.emit("Neg", x) if sum(divmod(k, minors.size)) % 2 else x for k, x in enumerate(found)]
    quotients = [n.emit("Divide", x, minors.determinant) for x in signed]
    return n.cast(n.reshape(n.join(quotients, 1), n[0].shape), n[0].dtype)


CONVERTERS = {"Det": _determinant}
CONTRIBUTED = {"Inverse": _inverse}
