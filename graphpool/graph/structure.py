"""What a partition computes, free of ids, names and addresses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .op import Op


class Structure:
    """Ops with their attributes, types, wires and known values; tensors numbered in the order in which ops name them.

    Equal for the layers of a network that differ in nothing but their weights, and for graphs that were numbered
    differently. It is compared in full, and hashed once. `ops` are in topological order; `numbers` is tensor id ->
    number. Threads: immutable, safe. Cost: about a microsecond an op.
    """

    __slots__ = ("_content", "_hash", "numbers")

    def __init__(self, ops: Sequence[Op], fpmath: str, prefer: str = "memory") -> None:
        numbers: dict[int, int] = {}
        self.numbers = numbers
        self._content: tuple[Any, ...] = (
            (fpmath, prefer),
            tuple(
                (
                    op.kind,
                    tuple(op.attrs.items()),
                    tuple((numbers.setdefault(t.id, len(numbers)), t.dtype, t.value) for t in op.inputs),
                    tuple((numbers.setdefault(t.id, len(numbers)), t.dtype) for t in op.outputs),
                )
                for op in ops
            ),
        )
        self._hash = hash(self._content)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if type(other) is not Structure:
            return NotImplemented
        return self is other or (self._hash == other._hash and self._content == other._content)
