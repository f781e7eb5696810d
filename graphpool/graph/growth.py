"""How a match grows from op to op: producers that are absorbed, elementwise regions, clusters around an anchor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphpool._dataclasses import dataclass

from .pattern import Upstream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from .op import Op
    from .pattern import Cluster, OpNode, Ops, Residual
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
        readers = [n for n in view.users(value) if n not in inside]
        if not readers or not self.free[readers[0]] or not fits(view.ops[readers[0]]):
            return region  # as mostly
        open_values = {value: readers}
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


# ---- residual blocks: products one behind another, and a shortcut from their input to a sum at their end


_NOWHERE = -1
"""In place of the number of an op: before all others."""


@dataclass(frozen=True)
class Blocks:
    """The residual blocks of a graph."""

    residual: Residual
    growth: Growth

    def ending_in(self, joint: int, start: int | None = None) -> list[int]:
        """The ops of the block that ends in op `joint`, and what its products absorb; empty when there is none.

        With `start`, the id of a tensor, a block that starts from it. Cost: linear in the ops between the two ends, at
        most `MAX_REGION`, for each of a few tensors that may be the start.
        """
        view = self.growth.view
        ends = [tensor.id for tensor in view.ops[joint].inputs[:2]]
        makers = {end: self._maker(end) for end in ends}
        for shortcut in ends:
            for fork in self._forks(shortcut):
                before = view.producer.get(fork, _NOWHERE)
                if not all(end == fork or maker > before for end, maker in makers.items()):
                    continue
                inside = self._between(fork, joint)
                taken = [*inside, *self._absorbed(inside)]
                if inside and (start is None or any(start == t.id for n in taken for t in view.ops[n].inputs)):
                    return taken
        return []

    def joints_behind(self, value: int) -> list[int]:
        """Ops in topological order at which a block that starts from tensor `value` may end."""
        view = self.growth.view
        waiting = list(view.users(value)[: MAX_REGION + 1])
        seen, joints = set(waiting), []
        while waiting and len(seen) < MAX_REGION:
            number = waiting.pop(0)
            if not self.growth.takes(self.residual, number):
                continue
            if view.ops[number].kind in self.residual.joints:
                joints.append(number)
            fresh = [n for n in view.successors(number) if n not in seen]
            seen.update(fresh)
            waiting += fresh
        return sorted(joints)

    def _maker(self, tensor: int) -> int:
        """Number of the op that writes a tensor, if a block may hold it."""
        number = self.growth.view.producer.get(tensor, _NOWHERE)
        return number if number != _NOWHERE and self.growth.takes(self.residual, number) else _NOWHERE

    def _forks(self, tensor: int) -> Iterator[int]:
        """Tensors at which a shortcut that ends in `tensor` may begin: it holds one product at most."""
        view, products = self.growth.view, 0
        while products < 2:
            yield tensor
            number = self._maker(tensor)
            if number == _NOWHERE or view.ops[number].kind in self.residual.joints:  # the end of another block
                return
            products += self.residual.product.fits(view.ops[number])
            tensor = view.ops[number].inputs[0].id

    def _between(self, fork: int, joint: int) -> list[int]:
        """All ops between a tensor and the joint, the joint last; empty when they are no block."""
        view, inside = self.growth.view, {joint}
        for number in sorted(self._reached(fork, joint), reverse=True):
            if any(successor in inside for successor in view.successors(number)):
                inside.add(number)
        is_closed = (
            all(t.id == fork or view.producer.get(t.id) in inside for t in view.ops[joint].inputs[:2])
            and all(self.growth.takes(self.residual, number) for number in inside)
            and all(view.is_read_within(number, inside) for number in inside - {joint})
        )
        least, most = self.residual.length
        return sorted(inside) if is_closed and least <= self._longest(inside) <= most else []

    def _reached(self, fork: int, joint: int) -> set[int]:
        """Ops before the joint that a tensor leads to; empty when there are more than a block has."""
        view, found, waiting = self.growth.view, set[int](), [fork]
        while waiting:
            for number in view.users(waiting.pop()):
                if number >= joint:  # users are in order
                    break
                if number not in found:
                    found.add(number)
                    waiting += [tensor.id for tensor in view.ops[number].outputs]
                    if len(found) > MAX_REGION:
                        return set()
        return found

    def _longest(self, inside: set[int]) -> int:
        """Most products that lie one behind another."""
        view, count = self.growth.view, dict[int, int]()
        for number in sorted(inside):
            before = max((count.get(n, 0) for n in view.predecessors(number)), default=0)
            count[number] = before + self.residual.product.fits(view.ops[number])
        return max(count.values())

    def _absorbed(self, inside: list[int]) -> list[int]:
        """What the products absorb, and the producers of the block's input that nobody else reads."""
        view, residual, growth = self.growth.view, self.residual, self.growth
        found: list[int] = []
        for number in inside:
            if residual.product.fits(view.ops[number]):
                found += [n for n in growth.inputs(residual.product, number) if n not in (*inside, *found)]
        for number in inside:
            for source in view.predecessors(number):
                is_shared = growth.takes(residual.start, source) and view.is_read_within(source, inside)
                if source not in (*inside, *found) and is_shared:
                    found += [source, *growth.inputs(residual.start, source)]
        return found
