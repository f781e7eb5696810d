"""Residual blocks: products one behind another, and a shortcut from their input to a sum at their end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .growth import MAX_REGION, match_inputs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .pattern import Residual
    from .view import GraphView

__all__ = ["match_residual", "next_joint"]

_NOWHERE = -1
"""In place of the number of an op: before all others."""


def match_residual(
    residual: Residual, view: GraphView, joint: int, free: Sequence[bool], start: int | None = None
) -> list[int]:
    """The ops of the block that ends in op `joint`, and what its products absorb; empty when there is none.

    Parameters
    ----------
    residual : Residual
    view : GraphView
    joint : int
        Number of the op at which the shortcut and the products meet.
    free : sequence of bool
        Which ops may be taken.
    start : int, optional
        Id of the tensor from which the block must start; any when None.

    Notes
    -----
    Cost: linear in the ops between the two ends, at most `MAX_REGION`, for each of a few tensors that may be the start.
    """
    ends = view.ops[joint].inputs[:2]
    makers = {end.id: _maker_inside(residual, view, end.id, free) for end in ends}
    for shortcut in ends:
        for fork in _forks(residual, view, shortcut.id, free):
            before = view.producer.get(fork, _NOWHERE)
            if not all(end == fork or maker > before for end, maker in makers.items()):
                continue
            inside = _between(residual, view, fork, joint, free)
            if not inside:
                continue
            taken = [*inside, *_absorbed(residual, view, inside, free)]
            if start is None or any(start == tensor.id for n in taken for tensor in view.ops[n].inputs):
                return taken
    return []


def next_joint(residual: Residual, view: GraphView, value: int, free: Sequence[bool]) -> list[int]:
    """Ops in topological order at which a block that starts from tensor `value` may end."""
    waiting = list(view.users(value)[: MAX_REGION + 1])
    seen, joints = set(waiting), []
    while waiting and len(seen) < MAX_REGION:
        number = waiting.pop(0)
        if not free[number] or not residual.fits(view.ops[number]):
            continue
        if view.ops[number].kind in residual.joints:
            joints.append(number)
        fresh = [n for n in view.successors(number) if n not in seen]
        seen.update(fresh)
        waiting += fresh
    return sorted(joints)


def _maker_inside(residual: Residual, view: GraphView, tensor: int, free: Sequence[bool]) -> int:
    """Number of the op that writes a tensor, if a block may hold it."""
    number = view.producer.get(tensor)
    return number if number is not None and _may_be_inside(residual, view, number, free) else _NOWHERE


def _may_be_inside(residual: Residual, view: GraphView, number: int, free: Sequence[bool]) -> bool:
    """Whether a block may hold the op."""
    return free[number] and residual.fits(view.ops[number])


def _forks(residual: Residual, view: GraphView, tensor: int, free: Sequence[bool]) -> Iterator[int]:
    """Tensors at which a shortcut that ends in `tensor` may begin: it holds one product at most."""
    products = 0
    while products < 2:
        yield tensor
        number = view.producer.get(tensor)
        if number is None or not _may_be_inside(residual, view, number, free):
            return
        if view.ops[number].kind in residual.joints:  # the end of another block
            return
        products += residual.product.fits(view.ops[number])
        tensor = view.ops[number].inputs[0].id


def _between(residual: Residual, view: GraphView, fork: int, joint: int, free: Sequence[bool]) -> list[int]:
    """All ops between a tensor and the joint, the joint last; empty when they are no block."""
    after = _reached(view, fork, joint)
    inside = {joint}
    for number in sorted(after, reverse=True):
        if any(successor in inside for successor in view.successors(number)):
            inside.add(number)
    if not all(t.id == fork or view.producer.get(t.id) in inside for t in view.ops[joint].inputs[:2]):
        return []
    for number in inside:
        if not _may_be_inside(residual, view, number, free):
            return []
        if number != joint and any(n not in inside for t in view.ops[number].outputs for n in view.users(t.id)):
            return []
    least, most = residual.length
    return sorted(inside) if least <= _longest(residual, view, inside) <= most else []


def _reached(view: GraphView, fork: int, joint: int) -> set[int]:
    """Ops before the joint that a tensor leads to; empty when there are more than a block has."""
    found: set[int] = set()
    waiting = [fork]
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


def _longest(residual: Residual, view: GraphView, inside: set[int]) -> int:
    """Most products that lie one behind another."""
    count: dict[int, int] = {}
    for number in sorted(inside):
        before = max((count.get(n, 0) for n in view.predecessors(number)), default=0)
        count[number] = before + residual.product.fits(view.ops[number])
    return max(count.values())


def _absorbed(residual: Residual, view: GraphView, inside: list[int], free: Sequence[bool]) -> list[int]:
    """What the products absorb, and the producers of the block's input that nobody else reads."""
    found: list[int] = []
    for number in inside:
        if residual.product.fits(view.ops[number]):
            found += [n for n in match_inputs(residual.product, view, number, free) if n not in (*inside, *found)]
    for number in inside:
        for source in view.predecessors(number):
            is_shared = all(n in inside for t in view.ops[source].outputs for n in view.users(t.id))
            if source not in (*inside, *found) and free[source] and residual.start.fits(view.ops[source]) and is_shared:
                found += [source, *match_inputs(residual.start, view, source, free)]
    return found
