"""What a backend can run as one partition, written as data.

A pattern is an anchor op with what may come before it and what may follow it::

    Pattern("matmul_post_ops", 8.8, "matmul_post_ops",
            anchor=OpNode("MatMul"), tail=[optional(OpNode("BiasAdd")), PostOps(POST_OPS)])

A tail is a chain: each element takes the value at the end of what was matched before it and hands its own result on.
`PostOps` absorbs whole regions of elementwise ops, however their values branch, as long as they end in one value
again; that covers plain chains of any length, Sigmoid-Multiply diamonds and decomposed GELUs alike. Matching is greedy
and does not backtrack: an optional element is taken when it fits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from .op import Op

__all__ = ["OpNode", "Pattern", "PostOps", "TailElement", "optional"]


@dataclass(frozen=True)
class OpNode:
    """One op of a pattern.

    Attributes
    ----------
    kinds : frozenset of str
        Kinds that fit.
    where : callable, optional
        A further condition on the op.
    ports : frozenset of int, optional
        In a tail: input ports at which the chain's value may arrive; any when None.
    inputs : mapping of int to OpNode
        Producers to absorb, by input port: taken when the producer fits and nobody else reads its result.
    is_optional : bool
        In a tail: skip it when it does not fit.
    """

    kinds: frozenset[str]
    where: Callable[[Op], bool] | None = None
    ports: frozenset[int] | None = None
    inputs: Mapping[int, OpNode] = field(default_factory=dict)
    is_optional: bool = False

    def __init__(
        self,
        kinds: str | Iterable[str],
        where: Callable[[Op], bool] | None = None,
        *,
        ports: Iterable[int] | None = None,
        inputs: Mapping[int, OpNode] | None = None,
        is_optional: bool = False,
    ) -> None:
        put = object.__setattr__
        put(self, "kinds", frozenset([kinds] if isinstance(kinds, str) else kinds))
        put(self, "where", where)
        put(self, "ports", None if ports is None else frozenset(ports))
        put(self, "inputs", dict(inputs or {}))
        put(self, "is_optional", is_optional)

    def fits(self, op: Op) -> bool:
        """Whether the op has the kind and satisfies the condition."""
        return op.kind in self.kinds and (self.where is None or self.where(op))


def optional(node: OpNode) -> OpNode:
    """The same node, skipped when it does not fit."""
    return OpNode(node.kinds, node.where, ports=node.ports, inputs=node.inputs, is_optional=True)


@dataclass(frozen=True)
class PostOps:
    """Any number of elementwise ops: regions that start and end in one value.

    Attributes
    ----------
    kinds : frozenset of str
        Kinds that may take part.
    where : callable, optional
        A further condition on each op.
    """

    kinds: frozenset[str]
    where: Callable[[Op], bool] | None = None

    def fits(self, op: Op) -> bool:
        """Whether the op may take part."""
        return op.kind in self.kinds and (self.where is None or self.where(op))


TailElement = OpNode | PostOps


@dataclass(frozen=True)
class Pattern:
    """An anchor with its tail; patterns are tried in descending order of priority.

    Attributes
    ----------
    name : str
        Unique within a backend.
    priority : float
        oneDNN's bands: above 20 large fusions, 8 to 20 normal ones, 8 single ops.
    kind : str
        Kind of the partitions it makes.
    anchor : OpNode
        Where matching starts.
    tail : tuple of OpNode or PostOps
        What may follow, in order.
    """

    name: str
    priority: float
    kind: str
    anchor: OpNode
    tail: tuple[TailElement, ...] = ()
