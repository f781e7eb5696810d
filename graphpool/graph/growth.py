"""How a match grows from op to op: producers that are absorbed, elementwise regions, clusters around an anchor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .pattern import Upstream

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .op import Op
    from .pattern import Cluster, OpNode, Ops
    from .view import GraphView

MAX_REGION = 64
"""Most ops that may lie between the two ends of one branching elementwise region, or inside one cluster."""

MAX_CHAIN = 1024
"""Ops from which on a match takes no further stages: what it reads and writes must fit one program."""


@dataclass(frozen=True)
class Growth:
    """The ops of a graph, by number, and which of them matches may take."""

    view: GraphView
    free: Sequence[bool]

    def takes(self, wanted: Ops, number: int) -> bool:
        """Whether an op is free and fits."""
        return self.free[number] and wanted.fits(self.view.ops[number])

    def inputs(self, node: OpNode, number: int) -> list[int]:
        """Producers that the node absorbs, each read by nobody else."""
        absorbed: list[int] = []
        for port, tensor in enumerate(self.view.ops[number].inputs):
            source = self.view.producer.get(tensor.id)
            if source is None or source in absorbed:
                continue
            for wanted in node.producers(port):
                if isinstance(wanted, Upstream):
                    found = self._upstream(wanted, source, number)
                elif self.takes(wanted, source) and self.view.is_read_within(source, {number}):
                    found = [source, *self.inputs(wanted, source)]
                else:
                    found = []
                if found:
                    absorbed += found
                    break
        return absorbed

    def _upstream(self, wanted: Upstream, source: int, reader: int) -> list[int]:
        """All producers behind `source`; empty when one of them does not fit, or is read elsewhere."""
        found: list[int] = []
        waiting = {source}
        while waiting:
            number = max(waiting)  # in reverse topological order, so that all readers of an op come before it
            waiting.remove(number)
            is_inside = self.takes(wanted, number) and self.view.is_read_within(number, {reader, *found})
            if not is_inside or len(found) == MAX_REGION:
                return []
            found.append(number)
            waiting.update(self.view.predecessors(number))
        return found

    def cluster(self, cluster: Cluster, anchor: int) -> tuple[list[int], list[int]]:
        """The ops of a cluster around `anchor`, and the border ops that it feeds; empty when it is none."""
        inside, feeding, fed = self._inside(cluster, anchor)
        counts = ((len(feeding), cluster.feeding), (len(fed), cluster.fed))
        if feeding & fed or not all(least <= count <= most for count, (least, most) in counts):
            return [], []
        port = cluster.shared_port
        if port is not None and len({self.view.ops[n].inputs[port].id for n in feeding}) > 1:
            return [], []
        taken = [*inside, *sorted(feeding | fed)]
        for number in sorted(feeding | fed):
            taken += [n for n in self.inputs(cluster.border, number) if n not in taken]
        return taken, sorted(fed)

    def _inside(self, cluster: Cluster, anchor: int) -> tuple[list[int], set[int], set[int]]:
        """The ops inside, the anchor first, and the border ops that feed it and that it feeds.

        Stops as soon as it has met more border ops than a cluster has. Cost: linear in the ops looked at, at most
        `MAX_REGION` of them taken.
        """
        view, inside, known = self.view, [anchor], {anchor}
        feeding: set[int] = set()
        fed: set[int] = set()
        at = 0
        while at < len(inside) and len(feeding) <= cluster.feeding[1] and len(fed) <= cluster.fed[1]:
            number = inside[at]
            at += 1
            behind = [(other, fed) for other in view.successors(number)]
            for other, border in (*behind, *((other, feeding) for other in view.predecessors(number))):
                if other in known or not self.free[other]:
                    continue
                if self.takes(cluster.border, other):
                    border.add(other)
                is_taken = border is fed or view.is_read_within(other, known)
                if len(inside) < MAX_REGION and self.takes(cluster, other) and is_taken:
                    known.add(other)
                    inside.append(other)
        return inside, feeding, fed

    def region(self, value: int, inside: set[int], fits: Callable[[Op], bool]) -> list[int]:
        """The smallest set of ops behind tensor `value` after which one value alone is left open; empty when none is.

        Takes the users of open values that are not `inside`, in topological order; a value is open while somebody
        outside the region reads it, or when nobody reads it at all (it leaves the graph). Cost: linear in the ops
        looked at, at most `MAX_REGION`.
        """
        view, region = self.view, list[int]()
        open_values = {value: [n for n in view.users(value) if n not in inside]}
        while not region or len(open_values) > 1:
            users = [numbers[0] for numbers in open_values.values() if numbers]
            if not users or (region and len(users) < len(open_values)) or len(region) == MAX_REGION:
                return []
            number = min(users)
            if not self.free[number] or not fits(view.ops[number]):
                return []
            region.append(number)
            for tensor, numbers in list(open_values.items()):
                if number in numbers:
                    numbers.remove(number)
                    if not numbers:
                        del open_values[tensor]
            open_values.update((tensor.id, list(view.users(tensor.id))) for tensor in view.ops[number].outputs)
        return region
