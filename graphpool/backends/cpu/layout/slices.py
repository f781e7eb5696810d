"""Runs of groups that take some rows of a batch at a time, so that what lies between them stays in a cache.

A row is an index of axis 0: an image, or whatever a model computes by itself for each one. Images of a batch that leave
the caches are read from main memory by each group; a slice of them is not, but weights are read again for each slice.
That takes little time where a weight is multiplied with so many pixels of a slice that others arrive meanwhile.
Which groups go together, and how many rows a slice has, is a shortest path over the groups: a node for each number of
rows, an edge for each group, and one where the number changes and what is alive goes through memory.
"""

from __future__ import annotations

from itertools import groupby
from math import inf, prod
from typing import TYPE_CHECKING, Any

from graphpool._dataclasses import dataclass

from ...._kernels.core._dispatch import isas
from ...._kernels.gemm.packed import l2_nbytes
from ...._sizes import hint_of, is_variable, key_of
from ....graph.shapes import conv_weight_axes
from ....runtime.machine import (
    CACHED_NBYTES,
    MEMORY_BANDWIDTH,
    STEP_S,
    THREAD_BANDWIDTH,
    THREAD_FLOPS,
)
from ....typing import LayoutType, PropertyType
from ..match.groups import AnchorGroup, GradientGroup
from ..match.rows import ports_by_row

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from ....graph.logical_tensor import LogicalTensor
    from ....graph.op import Op
    from ..match.groups import Group

    Shapes = Mapping[int, tuple[int, ...]]

__all__ = ["Slices", "find_slices"]

_L3_SPEED = 8
"""How many times faster a thread moves what lies in a cache that others share than what lies in main memory."""

_NOT_HIDDEN = 1 / 16
"""What of the time to read weights again is left where products hide it: for 400 MB of ResNet-50's, on AVX-512, no more
than 2 % of a run could be seen; in MiniLM, of whose rows few leave a cache, slices lost 3 %."""

_UNEVEN = 0.18
"""By how much of the time of a product two threads wait for one another where they share one row; by less the more rows
they share: on two threads an image of ResNet-50 takes 0.60 of the time on one, eight 0.51."""

_WAIT_S = 5e-6
"""What one step more takes where threads share it. On a quiet machine 1 to 28 us make no difference to the time, and
the less it is the smaller are arenas; where others take processors away a thread may have to be woken. Unit: seconds.
"""

_LEAST_NBYTES = 1 << 16
"""What is alive of a row that is worth a trip: as much as main memory moves in the time of some steps."""

_MOST_TRIPS, _MOST_DIVISOR = 1 << 20, 1024
"""Groups that a run takes, each trip counted, of the four million steps that a run may have; and parts of a batch whose
number is known that are tried."""

_ANY_BATCH = 16
"""Rows for which it is decided where their number varies: few are no slower, and the next shape may have many."""


@dataclass(frozen=True)
class Slices:
    """Consecutive groups that run once for each slice of the rows.

    Attributes
    ----------
    groups : tuple of Group
    count : int
        Rows of a slice.
    trips : int
        Slices of the batch.
    read : frozenset of int
        Ids of tensors that others made, which the groups read row by row.
    made : frozenset of int
        Ids of all tensors that the groups compute.
    kept : frozenset of int
        Ids of those of them that others read.
    """

    groups: tuple[Group, ...]
    count: int
    trips: int
    read: frozenset[int]
    made: frozenset[int]
    kept: frozenset[int]


def find_slices(
    ops: Sequence[Op],
    groups: Sequence[Group],
    shapes: Shapes,
    inputs: Sequence[LogicalTensor],
    outputs: Sequence[LogicalTensor],
    threads: int,
) -> list[Slices]:
    """Runs of groups of these ops, disjoint and in order, that take less time by slices, on so many threads.

    Cost: linear in the ops, times the divisors of the batch.
    """
    whole = {t.id for t in inputs if t.property is PropertyType.CONSTANT} | {
        t.id for t in (*inputs, *outputs) if t.layout not in (LayoutType.STRIDED, LayoutType.UNDEF)
    }
    sites = [_Site.of(group, shapes, whole) for group in groups]
    own = [op for op in ops if op.kind != "End"]
    last_reads = {t.id: number for number, group in enumerate(groups) for op in _reads(group, own) for t in op.inputs}
    last_reads |= dict.fromkeys([tensor.id for tensor in outputs], len(groups))
    found: list[Slices] = []
    for chosen in _stretches(sites):
        found += _cut(groups, chosen, shapes[groups[next(iter(chosen))].result][0], last_reads, threads)
    return found


def _stretches(sites: Sequence[_Site | None]) -> list[dict[int, _Site]]:
    """Sites by number, in stretches that may be one loop: with as many rows, none of which one reads as a whole."""
    found: list[dict[int, _Site]] = []
    rows, made = None, set[int]()
    for number, site in enumerate(sites):
        if site is None:
            rows = None
            continue
        if site.rows != rows or not made.isdisjoint(site.whole):
            found.append({})
            rows, made = site.rows, set()
        found[-1][number] = site
        made.update(site.made)
    return found


@dataclass(frozen=True)
class _Site:
    """A group whose rows do not see one another.

    `rows` is equal where groups have as many; `read` and `made` have the bytes of one row of what it reads row by row
    and of what it computes, `whole` the bytes of what it reads as a whole. `flops` are those of the products of a row.
    """

    rows: Any
    read: dict[int, int]
    made: dict[int, int]
    whole: dict[int, int]
    flops: int

    @property
    def whole_nbytes(self) -> int:
        """What it reads as a whole. Unit: bytes."""
        return sum(self.whole.values())

    @classmethod
    def of(cls, group: Group, shapes: Shapes, whole: Collection[int]) -> _Site | None:
        """None where rows may see one another; the tensors `whole` are not read row by row."""
        if isinstance(group, GradientGroup) or (isinstance(group, AnchorGroup) and group.attention is not None):
            return None
        rows, without_rows = key_of(shapes[group.result][:1]), {*whole}
        read: dict[int, int] = {}
        made: dict[int, int] = {}
        given: dict[int, int] = {}
        for op in _ops(group):
            tensors = [*op.inputs, *op.outputs]
            if any(tensor.dtype.bits < 8 or any(map(is_variable, shapes[tensor.id][1:])) for tensor in tensors):
                return None  # rows begin within a byte, or what pays would be decided anew for each shape
            if all(tensor.id in without_rows for tensor in op.inputs):  # dequantises weights
                given.update((tensor.id, _nbytes(tensor, shapes[tensor.id])) for tensor in op.inputs)
                without_rows.update(tensor.id for tensor in op.outputs)
                continue
            ports = ports_by_row(op, shapes)
            if ports is None or key_of(shapes[op.outputs[0].id][:1]) != rows:
                return None
            for tensor, is_by_row in zip(op.inputs, ports, strict=True):
                if is_by_row:
                    read[tensor.id] = _nbytes(tensor, shapes[tensor.id][1:])
                else:
                    given[tensor.id] = _nbytes(tensor, shapes[tensor.id])
            made.update((tensor.id, _nbytes(tensor, shapes[tensor.id][1:])) for tensor in op.outputs)
        if not made or not without_rows.union(given).isdisjoint({*read, *made}):
            return None
        results = {tensor.id for tensor in group.outputs}
        made = {i: n if i in results else 0 for i, n in made.items()}  # others lie in no memory
        flops = _flops(group.anchor, shapes) if isinstance(group, AnchorGroup) else 0
        return cls(rows, {i: n for i, n in read.items() if i not in made}, made, given, flops)


def _reads(group: Group, ops: Sequence[Op]) -> list[Op]:
    """The ops of a group that is made of these, what an attention is made of among them."""
    attention = group.attention if isinstance(group, AnchorGroup) else None
    return [*_ops(group), *([] if attention is None else [ops[number] for number in attention.members])]


def _ops(group: Group) -> list[Op]:
    """All ops of a group, in an order in which they can be computed."""
    if not isinstance(group, AnchorGroup):
        return list(group.ops)
    front = [*group.dequantized.values(), *([] if group.compressed is None else [group.compressed])]
    return [*front, group.anchor, *group.ops]


def _flops(op: Op, shapes: Shapes) -> int:
    """Of the products of one row; none of other kinds."""
    if op.kind not in ("Convolution", "ConvTranspose", "MatMul"):
        return 0
    x, weights, results = ([int(hint_of(n)) for n in shapes[t.id]] for t in (*op.inputs[:2], op.outputs[0]))
    result = prod(results[1:])
    if op.kind == "MatMul":
        return 2 * result * x[-2 if op.attrs["transpose_a"] else -1]
    inner, outer, _ = conv_weight_axes(len(weights), op.attrs["weights_format"])
    if op.kind == "Convolution":
        return 2 * result * prod(weights) // max(weights[outer], 1)
    return 2 * prod(x[1:]) * prod(weights) // max(weights[inner], 1)


def _nbytes(tensor: LogicalTensor, shape: Sequence[int]) -> int:
    return tensor.dtype.nbytes(prod([hint_of(dim) for dim in shape]))


class _Path:
    """The fastest way through consecutive sites: of each, how many rows it takes at a time.

    `last_reads` has the number of the last group that reads each tensor, and `batch` is the number of rows.
    """

    def __init__(self, sites: Mapping[int, _Site], last_reads: Mapping[int, int], batch: int, threads: int) -> None:
        self.sites = sites
        self.batch = batch
        self._alive = self._count_alive(last_reads)
        self._threads, self._l2_nbytes = threads, threads * l2_nbytes()
        self._bandwidth = min(threads * THREAD_BANDWIDTH, MEMORY_BANDWIDTH)
        self._peak = threads * THREAD_FLOPS[isas()[-1]]
        self._step_s = STEP_S + (_WAIT_S if threads > 1 else 0.0)

    def _count_alive(self, last_reads: Mapping[int, int]) -> list[tuple[int, int]]:
        """Of each site the bytes of a row that are alive while it runs, and of those that are read behind it."""
        alive: dict[int, int] = {}
        found = []
        for number, site in self.sites.items():
            alive |= site.read | site.made
            during = sum(alive.values())
            alive = {i: nbytes for i, nbytes in alive.items() if last_reads.get(i, -1) > number}
            found.append((during, sum(alive.values())))
        return found

    @property
    def leaves_caches(self) -> bool:
        """Whether the batch does not lie in the second caches, and trips are worth while, at some site."""
        most = max(during for during, _ in self._alive)
        return most >= _LEAST_NBYTES and most * self.batch > self._l2_nbytes

    def fastest(self, counts: Sequence[int]) -> list[int]:
        """For each site one of the counts, the first of which is the batch."""
        times = dict.fromkeys(counts, 0.0)
        ways: list[dict[int, int]] = []
        border = 0
        for site, (during, behind) in zip(self.sites.values(), self._alive, strict=True):
            change = 2 * self._moving_s(border * self.batch, border * self.batch)
            first = min(counts, key=times.__getitem__)
            came = {count: first if times[first] + change < times[count] else count for count in counts}
            times = {
                count: times[before] + (change if before != count else 0.0) + self._site_s(site, during, count)
                for count, before in came.items()
            }
            ways.append(came)
            border = behind
        count = min(counts, key=times.__getitem__)
        path = []
        for came in reversed(ways):
            path.append(count)
            count = came[count]
        return path[::-1]

    def _site_s(self, site: _Site, during: int, count: int) -> float:
        """Seconds in which a site that takes so many rows at a time waits for memory, and of its steps."""
        if count != self.batch and during < _LEAST_NBYTES:
            return inf
        trips, own = self.batch // count, sum(site.read.values()) + sum(site.made.values())
        arriving_s, computing_s = site.whole_nbytes / self._bandwidth, site.flops * count / self._peak
        again_s = max(arriving_s - computing_s, arriving_s * _NOT_HIDDEN)
        waiting_s = trips * computing_s * _UNEVEN * (self._threads - 1) / count
        return self._moving_s(own * self.batch, during * count) + (trips - 1) * (again_s + self._step_s) + waiting_s

    def _moving_s(self, nbytes: int, alive_nbytes: int) -> float:
        """Seconds to move so many bytes, while so many are alive: each cache has the share of them that it holds."""
        if not alive_nbytes:
            return 0.0
        beyond_l2, beyond_l3 = (max(1 - cached / alive_nbytes, 0.0) for cached in (self._l2_nbytes, CACHED_NBYTES))
        return nbytes / self._bandwidth * (beyond_l3 + beyond_l2 / _L3_SPEED)


def _cut(
    groups: Sequence[Group], sites: Mapping[int, _Site], rows: int, last_reads: Mapping[int, int], threads: int
) -> list[Slices]:
    """The slices of consecutive groups with so many rows."""
    varies = is_variable(rows)
    batch = _ANY_BATCH if varies else rows
    most = _MOST_TRIPS // len(groups)
    ways = _Path(sites, last_reads, batch, threads)
    trips = [batch] if varies else [n for n in range(2, min(batch, most, _MOST_DIVISOR) + 1) if batch % n == 0]
    chosen = ways.fastest([batch, *[batch // n for n in trips]]) if ways.leaves_caches else [batch] * len(sites)
    if varies and set(chosen) != {batch} and rows > most:
        return []
    path = zip(sites, chosen, strict=True)
    found = []
    for count, stretch in groupby(path, key=lambda item: item[1]):
        numbers = [number for number, _ in stretch]
        if count != batch:
            own = [sites[number] for number in numbers]
            made = frozenset().union(*[site.made for site in own])
            read = frozenset().union(*[site.read for site in own]) - made
            kept = frozenset(i for i in made if last_reads.get(i, -1) > numbers[-1])
            members = tuple(groups[number] for number in numbers)
            found.append(Slices(members, count, rows if varies else rows // count, read, made, kept))
    return found
