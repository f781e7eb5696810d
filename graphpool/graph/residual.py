"""Residual blocks: products one behind another, and a shortcut from their input to a sum at their end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .growth import MAX_REGION

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .growth import Growth
    from .pattern import Residual

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
