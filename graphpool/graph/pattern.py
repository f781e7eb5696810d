"""What a backend can run as one partition, written as data.

A pattern is an anchor op with what may come before it and what may follow it::

    Pattern("matmul_post_ops", 8.8, "matmul_post_ops",
            anchor=OpNode("MatMul", inputs={1: DEQUANTIZE}), tail=[optional(OpNode("BiasAdd")), PostOps(POST_OPS)])

A tail is a chain: each element takes the value at the end of what was matched before it and hands its own result on.
`PostOps` absorbs whole regions of elementwise ops, however their values branch, as long as they end in one value
again; that covers plain chains of any length, Sigmoid-Multiply diamonds and decomposed GELUs alike.

`Cluster` is for what is no chain: the ops around the anchor, in both directions, as far as the products that feed them
and that they feed. Attention, forward and backward, and gated MLPs are clusters::

    Pattern("attention", 22, "attention", anchor=OpNode("SoftMax"), tail=[PostOps(POST_OPS)],
            cluster=Cluster(ELTWISE, OpNode("MatMul"), feeding=(1, 1), fed=(1, 1)))

`Residual` is for blocks of products around which a shortcut leads; blocks that follow one another are one match.

Matching is greedy and does not backtrack: an optional element is taken when it fits. Its cost is linear in the ops
looked at. `Growth` is what all of it shares.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphpool._dataclasses import dataclass, field, replace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from .op import Op

ANY_PORT = -1
"""As a key of `OpNode.inputs`: every input port that has no entry of its own."""


@dataclass(frozen=True)
class Ops:
    """Ops of these kinds."""

    kinds: frozenset[str]

    def fits(self, op: Op) -> bool:
        """Whether the op is one of them."""
        return op.kind in self.kinds


class Upstream(Ops):
    """Ops that lead to an input: all producers of these kinds, as far back as nobody else reads their results.

    They are absorbed only if nothing that they read is computed by another op, so that no op is taken away from what
    comes before it.
    """


@dataclass(frozen=True, init=False)
class OpNode(Ops):
    """One op of a pattern.

    Attributes
    ----------
    kinds : frozenset of str
        Kinds that fit.
    where : callable, optional
        A further condition on the op.
    ports : frozenset of int, optional
        In a tail: input ports at which the chain's value may arrive; any when None.
    inputs : mapping of int to tuple of OpNode or Upstream
        Producers to absorb, by input port or `ANY_PORT`: the first of them that fits, if nobody else reads its result.
    is_optional : bool
        In a tail: skip it when it does not fit.
    """

    where: Callable[[Op], bool] | None = None
    ports: frozenset[int] | None = None
    inputs: Mapping[int, tuple[OpNode | Upstream, ...]] = field(default_factory=dict)
    is_optional: bool = False

    def __init__(
        self,
        kinds: str | Iterable[str],
        where: Callable[[Op], bool] | None = None,
        *,
        ports: Iterable[int] | None = None,
        inputs: Mapping[int, OpNode | Upstream | tuple[OpNode | Upstream, ...]] | None = None,
        is_optional: bool = False,
    ) -> None:
        put = object.__setattr__
        put(self, "kinds", frozenset([kinds] if isinstance(kinds, str) else kinds))
        put(self, "where", where)
        put(self, "ports", None if ports is None else frozenset(ports))
        put(self, "inputs", {k: v if isinstance(v, tuple) else (v,) for k, v in (inputs or {}).items()})
        put(self, "is_optional", is_optional)

    def fits(self, op: Op) -> bool:
        """Whether the op has the kind and satisfies the condition."""
        return op.kind in self.kinds and (self.where is None or self.where(op))

    def producers(self, port: int) -> tuple[OpNode | Upstream, ...]:
        """What may be absorbed at an input port."""
        return self.inputs.get(port) or self.inputs.get(ANY_PORT, ())


def optional(node: OpNode) -> OpNode:
    """The same node, skipped when it does not fit."""
    return replace(node, is_optional=True)


@dataclass(frozen=True)
class PostOps(Ops):
    """Any number of elementwise ops of these kinds: regions that start and end in one value.

    Attributes
    ----------
    sides : OpNode, optional
        Producers of further operands to absorb, such as their dequantisation.
    """

    sides: OpNode | None = None


@dataclass(frozen=True)
class Cluster(Ops):
    """The ops around an anchor, in both directions, and the border ops (products) at which they begin and end.

    The inside grows from the anchor to all ops of `kinds` that read a value of it, and to their producers that nobody
    outside reads. Border ops next to it are taken with what they absorb, and nothing is looked at behind them.

    Attributes
    ----------
    kinds : frozenset of str
        Kinds of the ops inside, the anchor's besides.
    border : OpNode
    feeding, fed : (int, int)
        Least and most border ops whose results the inside reads, and that read results of the inside.
    shared_port : int, optional
        An input port at which all feeding ops must read one tensor.
    """

    border: OpNode
    feeding: tuple[int, int]
    fed: tuple[int, int]
    shared_port: int | None = None


@dataclass(frozen=True)
class Residual(Ops):
    """Products one behind another, and a shortcut around them that begins at their input and ends at the anchor.

    The shortcut may hold one product. Nobody outside reads what lies between. A block that starts from the result of
    another, its tail included, belongs to the same match: that makes one partition of a stage of a residual network.

    Attributes
    ----------
    kinds : frozenset of str
        Kinds between the products.
    product : OpNode
    joints : frozenset of str
        Kinds of the anchor.
    length : (int, int)
        Least and most products one behind another.
    start : OpNode
        What may come before the block's input, as long as only the block reads it.
    """

    product: OpNode
    joints: frozenset[str]
    length: tuple[int, int]
    start: OpNode

    def fits(self, op: Op) -> bool:
        """Whether a block may hold the op."""
        return op.kind in self.kinds or self.product.fits(op)


TailElement = OpNode | PostOps


@dataclass(frozen=True)
class Pattern:
    """An anchor with what surrounds it; patterns are tried in descending order of priority.

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
        What may follow, in order: the anchor, or each op that a cluster feeds.
    cluster : Cluster, optional
        What must surround the anchor.
    residual : Residual, optional
        What must lie before the anchor.
    """

    name: str
    priority: float
    kind: str
    anchor: OpNode
    tail: tuple[TailElement, ...] = ()
    cluster: Cluster | None = None
    residual: Residual | None = None
