"""How a match grows from op to op: producers that are absorbed, elementwise regions, clusters around an anchor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .pattern import Upstream

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .op import Op
    from .pattern import Cluster, OpNode
    from .view import GraphView

__all__ = ["MAX_CHAIN", "MAX_REGION", "grow_region", "match_cluster", "match_inputs"]

MAX_REGION = 64
"""Most ops that may lie between the two ends of one branching elementwise region, or inside one cluster."""

MAX_CHAIN = 1024
"""Ops from which on a match takes no further stages: what it reads and writes must fit one program."""


def match_inputs(node: OpNode, view: GraphView, number: int, free: Sequence[bool]) -> list[int]:
    """Producers that the node absorbs, each read by nobody else."""
    absorbed: list[int] = []
    for port, tensor in enumerate(view.ops[number].inputs):
        source = view.producer.get(tensor.id)
        if source is None or source in absorbed:
            continue
        for wanted in node.producers(port):
            if isinstance(wanted, Upstream):
                found = _match_upstream(wanted, view, source, number, free)
            elif free[source] and wanted.fits(view.ops[source]) and _is_read_only_by(view, source, {number}):
                found = [source, *match_inputs(wanted, view, source, free)]
            else:
                found = []
            if found:
                absorbed += found
                break
    return absorbed


def _is_read_only_by(view: GraphView, number: int, readers: set[int]) -> bool:
    return all(user in readers for tensor in view.ops[number].outputs for user in view.users(tensor.id))


def _match_upstream(wanted: Upstream, view: GraphView, source: int, reader: int, free: Sequence[bool]) -> list[int]:
    """All producers behind `source`; empty when one of them does not fit, or is read elsewhere."""
    found: list[int] = []
    waiting = {source}
    while waiting:
        number = max(waiting)  # in reverse topological order, so that all readers of an op come before it
        waiting.remove(number)
        if not free[number] or not wanted.fits(view.ops[number]) or len(found) == MAX_REGION:
            return []
        if not _is_read_only_by(view, number, {reader, *found}):
            return []
        found.append(number)
        waiting.update(view.predecessors(number))
    return found


def match_cluster(cluster: Cluster, view: GraphView, anchor: int, free: Sequence[bool]) -> tuple[list[int], list[int]]:
    """The ops of a cluster around `anchor`, and the border ops that it feeds; empty when it is none."""
    inside, feeding, fed = _grow_inside(cluster, view, anchor, free)
    counts = ((len(feeding), cluster.feeding), (len(fed), cluster.fed))
    if feeding & fed or not all(least <= count <= most for count, (least, most) in counts):
        return [], []
    if cluster.shared_port is not None:
        shared = {view.ops[n].inputs[cluster.shared_port].id for n in feeding}
        if len(shared) > 1:
            return [], []
    taken = [*inside, *sorted(feeding | fed)]
    for number in sorted(feeding | fed):
        taken += [n for n in match_inputs(cluster.border, view, number, free) if n not in taken]
    return taken, sorted(fed)


def _grow_inside(
    cluster: Cluster, view: GraphView, anchor: int, free: Sequence[bool]
) -> tuple[list[int], set[int], set[int]]:
    """The ops inside, the anchor first, and the border ops that feed it and that it feeds.

    Stops as soon as it has met more border ops than a cluster has. Cost: linear in the ops looked at, at most
    `MAX_REGION` of them taken.
    """
    inside, known = [anchor], {anchor}
    feeding: set[int] = set()
    fed: set[int] = set()
    at = 0
    while at < len(inside) and len(feeding) <= cluster.feeding[1] and len(fed) <= cluster.fed[1]:
        number = inside[at]
        at += 1
        for others, border, behind in (
            (view.successors(number), fed, True),
            (view.predecessors(number), feeding, False),
        ):
            for other in others:
                if other in known or not free[other]:
                    continue
                op = view.ops[other]
                if cluster.border.fits(op):
                    border.add(other)
                if len(inside) < MAX_REGION and cluster.fits(op) and (behind or _is_read_only_by(view, other, known)):
                    known.add(other)
                    inside.append(other)
    return inside, feeding, fed


def grow_region(
    view: GraphView, value: int, inside: set[int], free: Sequence[bool], fits: Callable[[Op], bool]
) -> list[int]:
    """The smallest set of ops behind tensor `value` after which one value alone is left open; empty when none is.

    Parameters
    ----------
    view : GraphView
    value : int
        Id of the tensor at which the region starts.
    inside : set of int
        Numbers of ops that are taken already.
    free : sequence of bool
        Which ops may be taken.
    fits : callable
        Which ops may take part.

    Notes
    -----
    Takes the users of open values in topological order; a value is open while somebody outside the region reads it,
    or when nobody reads it at all (it leaves the graph). Cost: linear in the ops looked at, at most `MAX_REGION`.
    """
    region: list[int] = []
    open_values = {value: [n for n in view.users(value) if n not in inside]}
    while not region or len(open_values) > 1:
        users = [numbers[0] for numbers in open_values.values() if numbers]
        if not users or (region and len(users) < len(open_values)) or len(region) == MAX_REGION:
            return []
        number = min(users)
        op = view.ops[number]
        if not free[number] or not fits(op):
            return []
        region.append(number)
        for tensor, numbers in list(open_values.items()):
            if number in numbers:
                numbers.remove(number)
                if not numbers:
                    del open_values[tensor]
        for tensor_out in op.outputs:
            open_values[tensor_out.id] = list(view.users(tensor_out.id))
    return region
