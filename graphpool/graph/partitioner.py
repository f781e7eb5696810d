"""Covers a graph with partitions: finds the backends' patterns, keeps the partitions acyclic, orders them.

Greedy by priority, each pattern over the ops in topological order (the policy of oneDNN Graph). A match is
kept only if merging its ops leaves the graph of partitions acyclic; `Quotient` keeps a topological order of that graph
up to date and searches only the part of it that a merge affects (after Pearce and Kelly, "A dynamic topological sort
algorithm for directed acyclic graphs", 2006).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from graphpool._dataclasses import dataclass

from .growth import MAX_CHAIN, Blocks, Growth
from .pattern import ANY_PORT, OpNode, Pattern, PostOps
from .spelling import Spelling, possible_spellings, respell
from .view import GraphView

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from .backend import Backend
    from .op import Op
    from .pattern import Residual, TailElement


@dataclass(frozen=True)
class Cover:
    """One partition to be: its kind, its ops (numbers of the view, in topological order), its backend if it has one."""

    kind: str
    numbers: tuple[int, ...]
    backend: Backend | None


def cover(
    view: GraphView,
    backends: Sequence[Backend],
    policy: str,
    shapes: Mapping[int, tuple[int, ...] | None] | None = None,
) -> list[Cover]:
    """Cover all ops of `view`, in topological order of the partitions.

    With policy ``"debug"`` every op becomes a partition of its own; with ``"fusion"`` what the backends' spellings find
    counts as one op, and then the backends' patterns are matched. Ops that no backend supports become partitions
    without a backend; an End, which computes nothing, may join a pattern of any backend. `shapes` are those of the
    tensors, as far as they are known.
    """
    if policy != "fusion":
        return [Cover(op.kind, (number,), _first_supporting(op, backends)) for number, op in enumerate(view.ops)]
    spelt, members = _respell(view, backends, shapes or {})
    owner = [_first_supporting(op, backends) for op in spelt.ops]
    quotient = Quotient(spelt)
    kinds: dict[int, str] = {}
    by_kind: dict[str, list[int]] = {}
    for number, op in enumerate(spelt.ops):
        by_kind.setdefault(op.kind, []).append(number)
    for backend in backends:
        free = [o is backend or (o is None and op.kind == "End") for o, op in zip(owner, spelt.ops, strict=True)]
        patterns = [pattern for pattern in backend.patterns if isinstance(pattern, Pattern)]
        for pattern in sorted(patterns, key=lambda p: -p.priority):
            _apply(pattern, spelt, by_kind, free, quotient, kinds)
    return [
        Cover(
            kinds.get(numbers[0], spelt.ops[numbers[0]].kind),
            tuple(sorted(member for number in numbers for member in members[spelt.ops[number].id])),
            owner[numbers[0]],
        )
        for numbers in quotient.groups_in_order()
    ]


def _respell(
    view: GraphView, backends: Sequence[Backend], shapes: Mapping[int, tuple[int, ...] | None]
) -> tuple[GraphView, dict[int, tuple[int, ...]]]:
    """The view with one op for what backends know as one, and op id -> numbers in the view given."""
    members: dict[int, tuple[int, ...]] = {op.id: (number,) for number, op in enumerate(view.ops)}
    for backend in backends:
        spellings = possible_spellings([p for p in backend.patterns if isinstance(p, Spelling)], view.ops)
        if spellings:
            found = respell(view, spellings, shapes, partial(_falls_to, backend, backends))
            if len(found) == len(view.ops):  # nothing is spelt out
                continue
            members = {
                new.op.id: tuple([member for n in new.numbers for member in members[view.ops[n].id]]) for new in found
            }
            view = GraphView([new.op for new in found])
    return view, members


def _falls_to(backend: Backend, backends: Sequence[Backend], op: Op) -> bool:
    return _first_supporting(op, backends) is backend


def _first_supporting(op: Op, backends: Sequence[Backend]) -> Backend | None:
    return next((backend for backend in backends if backend.supports(op)), None)


def sole_backend(ops: Sequence[Op], backends: Sequence[Backend]) -> Backend | None:
    """The backend that all of these ops fall to; None where there is none."""
    backend = next((backend for backend in backends if any(map(backend.supports, ops))), None)
    return None if backend is None or not all(map(backend.supports, ops)) else backend


def _apply(
    pattern: Pattern,
    view: GraphView,
    by_kind: dict[str, list[int]],
    free: list[bool],
    quotient: Quotient,
    kinds: dict[int, str],
) -> None:
    """Match one pattern wherever it fits among the free ops, and merge what it finds."""
    if pattern.cluster is not None:
        borders = sum(len(by_kind.get(kind, ())) for kind in pattern.cluster.border.kinds)
        if borders < pattern.cluster.feeding[0] + pattern.cluster.fed[0]:
            return
    anchors = sorted(number for kind in pattern.anchor.kinds for number in by_kind.get(kind, ()))
    growth = Growth(view, free)
    for anchor in anchors:
        if not free[anchor]:
            continue
        match = _Match(pattern, growth, anchor)
        while match.ends and not quotient.merge(match.taken[: match.ends[-1]]):
            match.ends.pop()
        if match.ends:
            taken = match.taken[: match.ends[-1]]
            for number in taken:
                free[number] = False
            kinds[min(taken)] = pattern.kind


class _Match:
    """What one pattern takes from an anchor on: ops, and how many of them each stage ends with.

    When the whole would close a cycle, later stages are given up first, but never a required element. There is no stage
    when the pattern does not fit.
    """

    def __init__(self, pattern: Pattern, growth: Growth, anchor: int) -> None:
        self.taken: list[int] = []
        self.ends: list[int] = []
        self._growth = growth
        self._view = growth.view
        if not pattern.anchor.fits(growth.view.ops[anchor]):
            return
        if pattern.residual is not None:
            self._take_blocks(pattern.residual, pattern.tail, anchor)
            return
        chains = [anchor]
        if pattern.cluster is None:
            self._end([anchor, *growth.inputs(pattern.anchor, anchor)])
        else:
            taken, chains = growth.cluster(pattern.cluster, anchor)
            self._end(taken)
        if not all(self._take_tail(pattern.tail, end) for end in chains):
            self.ends = []

    def _end(self, numbers: list[int]) -> None:
        """Take a stage."""
        self.taken += [n for n in numbers if n not in self.taken]
        if numbers:
            self.ends.append(len(self.taken))

    def _take_blocks(self, residual: Residual, tail: Sequence[TailElement], joint: int) -> None:
        """Residual blocks with their tails, one after another."""
        blocks = Blocks(residual, self._growth)
        block = blocks.ending_in(joint)
        while block:
            self._end(block)
            self._take_tail(tail, joint)
            if len(self.taken) >= MAX_CHAIN:
                return
            value = self._view.ops[max(self.taken)].outputs[0].id  # every op of a block leads to its last one
            found = ((joint, blocks.ending_in(joint, value)) for joint in blocks.joints_behind(value))
            joint, block = next((each for each in found if each[1]), (joint, []))

    def _take_tail(self, tail: Sequence[TailElement], end: int) -> bool:
        """Take what follows op `end`; False when a required element does not fit."""
        for element in tail:
            if isinstance(element, PostOps):
                end = self._take_post_ops(element, end)
                continue
            found = [n for n in self._next(element, end) if n not in self.taken]
            if found:
                self._end(found)
                end = found[0]
            if not element.is_optional:
                if not found:
                    return False
                del self.ends[:-1]
        return True

    def _take_post_ops(self, element: PostOps, end: int) -> int:
        """Take all regions that follow op `end`, with what their further operands absorb; returns the new end."""
        inside = set(self.taken)
        sides = None if element.sides is None else OpNode((), inputs={ANY_PORT: element.sides})
        while len(self.taken) < MAX_CHAIN:
            region = self._growth.region(self._view.ops[end].outputs[0].id, inside, element.fits)
            if not region:
                break
            inside.update(region)
            self.taken += region
            end = region[-1]
            for number in region:
                found = [] if sides is None else self._growth.inputs(sides, number)
                absorbed = [n for n in found if n not in inside]
                inside.update(absorbed)
                self.taken += absorbed
            self.ends.append(len(self.taken))
        return end

    def _next(self, element: OpNode, end: int) -> list[int]:
        """The op that reads the result of op `end`, alone, then the producers that it absorbs; empty if none fits."""
        users = self._view.consumers.get(self._view.ops[end].outputs[0].id, [])
        if len(users) != 1:
            return []
        number, port = users[0]
        if not self._growth.takes(element, number) or (element.ports is not None and port not in element.ports):
            return []
        return [number, *self._growth.inputs(element, number)]


class Quotient:
    """The graph of groups of ops, at first of one each, kept in topological order while groups merge.

    Cost of a merge: the wires of the ops that join, or of the groups between first and last, whichever are fewer. A
    group that grows op by op is therefore not looked through again with each of them.
    """

    def __init__(self, view: GraphView) -> None:
        self._view = view
        count = len(view.ops)
        self._group = list(range(count))
        self._members: dict[int, list[int]] = {number: [number] for number in range(count)}
        self._rank: list[int] = list(range(count))
        self._at: list[int | None] = list(range(count))

    def merge(self, numbers: Iterable[int]) -> bool:
        """Make one group of the groups of these ops; False, and nothing changes, if that would close a cycle."""
        groups = {self._group[number] for number in numbers}
        if len(groups) <= 1:
            return True
        last = max(groups, key=self._rank.__getitem__)
        low = min(self._rank[g] for g in groups)
        high = self._rank[last]
        if sum(len(self._members[g]) for g in groups if g != last) <= high - low:
            after = self._reachable(groups, high)
        else:
            after = self._following(groups, low, high)
        if any(successor in groups for g in after for successor in self._successors(g)):
            return False
        self._reorder(groups, after, low, high)
        return True

    def _reachable(self, groups: set[int], high: int) -> set[int]:
        """Groups outside `groups` that some member reaches, as far as rank `high`: searched from the members."""
        found: set[int] = set()
        starts = [g for g in groups if self._rank[g] < high]
        stack = [s for g in starts for s in self._successors(g) if s not in groups and self._rank[s] < high]
        while stack:
            g = stack.pop()
            if g not in found:
                found.add(g)
                stack += [s for s in self._successors(g) if s not in groups and self._rank[s] < high]
        return found

    def _following(self, groups: set[int], low: int, high: int) -> set[int]:
        """The same, found by going through the groups between the ranks in order."""
        reached = set(groups)
        for rank in range(low + 1, high):
            g = self._at[rank]
            if g is not None and g not in groups and any(p in reached for p in self._predecessors(g)):
                reached.add(g)
        return reached - groups

    def _reorder(self, groups: set[int], after: set[int], low: int, high: int) -> None:
        """Merge, and rank anew what lies between: what may come before, the merged group, what must come after."""
        target = max(groups, key=lambda g: len(self._members[g]))  # so that few change their group
        between = []
        if after:  # else what lies between may all come before
            between = [g for g in self._at[low : high + 1] if g is not None and g not in groups]
        for g in groups:
            self._at[self._rank[g]] = None
            if g != target:
                members = self._members.pop(g)
                self._members[target] += members
                for number in members:
                    self._group[number] = target
        if not after:
            self._rank[target], self._at[high] = high, target
            return
        order = [g for g in between if g not in after] + [target] + [g for g in between if g in after]
        ranks = [low, *(self._rank[g] for g in between)]  # ascending, as `between` is
        self._at[low : high + 1] = [None] * (high + 1 - low)
        for g, rank in zip(order, ranks, strict=True):
            self._rank[g] = rank
            self._at[rank] = g

    def _successors(self, group: int) -> Iterable[int]:
        return self._neighbours(group, self._view.successors)

    def _predecessors(self, group: int) -> Iterable[int]:
        return self._neighbours(group, self._view.predecessors)

    def _neighbours(self, group: int, wires: Callable[[int], list[int]]) -> Iterable[int]:
        for number in self._members[group]:
            for other in wires(number):
                if self._group[other] != group:
                    yield self._group[other]

    def groups_in_order(self) -> list[list[int]]:
        """The groups' ops, each in topological order, the groups in topological order."""
        return [sorted(self._members[g]) for g in sorted(self._members, key=self._rank.__getitem__)]
