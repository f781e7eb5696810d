"""Policies judged on traces: a simulator, and what a policy that knew the future could save.

A trace is a sequence of accesses (key, nbytes, cost); its file is CSV with these three columns and a header.
"""

from __future__ import annotations

import csv
import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from graphpool._dataclasses import NamedTuple

from ..csv_rows import write_rows
from ..drawing import make_figure, size_unit
from ..errors import InvalidArgumentError, brief, check_instance, explain
from ..mapped_file import open_regular
from ..typing import parse_nbytes
from .policies import Item, choose_victims, make_policy, policy_names

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence
    from pathlib import Path

    from matplotlib.figure import Figure

    from .policies import Item, Policy, PolicySource

HEADER = ["key", "nbytes", "cost"]

MOST = 2**62
"""Sizes and costs of a file are below."""


class Replay(NamedTuple):
    """What a policy achieved: hits, misses, cost of the hits, cost of all accesses, most bytes held at once."""

    hits: int
    misses: int
    saved_cost: float
    total_cost: float
    peak_nbytes: int

    @property
    def saved_share(self) -> float:
        """Share of the cost that hits saved, from 0 to 1."""
        return self.saved_cost / self.total_cost if self.total_cost else 0.0


class Clairvoyant(NamedTuple):
    """Bounds on what the best policy that knows the future saves: `achievable_cost` <= best <= `bound_cost`."""

    achievable_cost: float
    bound_cost: float
    total_cost: float

    @property
    def achievable_share(self) -> float:
        """`achievable_cost` as a share of the total, from 0 to 1."""
        return self.achievable_cost / self.total_cost if self.total_cost else 0.0

    @property
    def bound_share(self) -> float:
        """`bound_cost` as a share of the total, from 0 to 1."""
        return self.bound_cost / self.total_cost if self.total_cost else 0.0


def replay(trace: Iterable[Item], policy: PolicySource, capacity_nbytes: int) -> Replay:
    """Run a policy over a trace, with the decisions that `ConstantTensorCache` would take.

    Raises InvalidArgumentError for what is no trace, policy or size.

    Sizes and costs of one key do not change; a policy that is an object, not a name as for `make_policy`, must be new.
    Cost: that of the policy; about 1 µs an access besides.
    """
    policy = make_policy(policy)
    trace, capacity_nbytes = _accesses(trace), parse_nbytes(capacity_nbytes)
    kept: dict[Hashable, int] = {}
    untold: dict[Hashable, int] = {}  # hits of each key since the policy was last told, in the order of the last one
    in_use = peak = hits = misses = 0
    saved = total = 0.0
    for item in trace:
        total += item.cost
        if item.key in kept:
            hits, saved = hits + 1, saved + item.cost
            untold[item.key] = untold.pop(item.key, 0) + 1
            continue
        misses += 1
        if item.nbytes <= capacity_nbytes:
            for key, count in untold.items():
                policy.on_hit(key, count)
            untold.clear()
        victims = _room(policy, item, in_use + item.nbytes - capacity_nbytes, kept, capacity_nbytes)
        if victims is None:
            continue
        for key in victims:
            in_use -= kept.pop(key)
            policy.on_remove(key)
        kept[item.key] = item.nbytes
        in_use += item.nbytes
        peak = max(peak, in_use)
        policy.on_insert(item)
    return Replay(hits, misses, saved, total, peak)


def _accesses(trace: Iterable[Item]) -> Sequence[Item]:
    """The accesses of a trace; InvalidArgumentError for what is none."""
    try:
        accesses = list(trace)
    except TypeError as error:
        raise InvalidArgumentError(explain("trace", accepted="an iterable of Items", got=brief(trace))) from error
    for access in accesses:
        check_instance("access of a trace", access, Item)
    return accesses


def _room(
    policy: Policy, item: Item, need_nbytes: int, kept: dict[Hashable, int], capacity_nbytes: int
) -> list[Hashable] | None:
    if item.nbytes > capacity_nbytes:
        return None
    return [] if need_nbytes <= 0 else choose_victims(policy, item, need_nbytes, kept.__getitem__)


def clairvoyant(trace: Sequence[Item], capacity_nbytes: int) -> Clairvoyant:
    """Bounds on the cost that the best policy with knowledge of the future saves, newcomers turned away included.

    For sizes that differ the optimum is NP-hard, so two bounds are computed over the intervals between two uses of a
    key, each of which, if kept, saves one production and occupies nbytes x length of the space capacity x accesses.
    `bound_cost` is the best fraction of intervals by cost per space in that total space; no policy saves more.
    `achievable_cost` takes intervals greedily in the same order wherever they fit at every access; a policy that knew
    the future would save this.

    Cost: O(n log n) for the bound, O(n x mean interval) for the other, for n accesses. Source: the relaxation of D.
    Berger, N. Beckmann, M. Harchol-Balter, "Practical bounds on optimal caching with variable object sizes" (2018).
    """
    trace, capacity_nbytes = _accesses(trace), min(parse_nbytes(capacity_nbytes), MOST)
    starts, ends, sizes, costs = _intervals(trace, capacity_nbytes)
    spaces = sizes.astype(np.float64) * (ends - starts)
    order = np.argsort(-costs / np.maximum(spaces, 1), kind="stable")
    room = np.full(len(trace), capacity_nbytes, np.int64)
    achievable = 0.0
    for i in order:
        span = room[starts[i] : ends[i]]
        if span.min() >= sizes[i]:
            span -= sizes[i]
            achievable += float(costs[i])
    space = np.cumsum(np.concatenate([[0.0], spaces[order]]))
    saved = np.cumsum(np.concatenate([[0.0], costs[order]]))
    bound = float(np.interp(float(capacity_nbytes) * len(trace), space, saved))
    return Clairvoyant(achievable, max(bound, achievable), float(sum(item.cost for item in trace)))


def _intervals(trace: Sequence[Item], capacity_nbytes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """First access, second access, bytes and cost of every interval between two uses of a key that could be kept."""
    last: dict[Hashable, int] = {}
    rows: list[tuple[int, int, int, float]] = []
    for now, item in enumerate(trace):
        if item.key in last and item.nbytes <= capacity_nbytes:
            rows.append((last[item.key], now, item.nbytes, item.cost))
        last[item.key] = now
    starts, ends, sizes, costs = zip(*rows, strict=True) if rows else ((), (), (), ())
    return (
        np.array(starts, np.int64),
        np.array(ends, np.int64),
        np.array(sizes, np.int64),
        np.array(costs, np.float64),
    )


def read_trace(path: str | Path) -> list[Item]:
    """The accesses of a CSV file with the columns key, nbytes, cost.

    Raises InvalidArgumentError where the file is no CSV in UTF-8, or the header or a line is not of this form, OSError
    where it cannot be opened or is no regular file: a pipe would wait for its writer.
    """
    with os.fdopen(open_regular(path), newline="", encoding="utf-8-sig") as file:
        rows = csv.reader(file)
        try:
            if next(rows, None) != HEADER:
                raise InvalidArgumentError(explain(f"{path} is no trace", accepted=f"first line {','.join(HEADER)}"))
            return [_parse(row, path, rows.line_num) for row in rows]
        except (csv.Error, UnicodeDecodeError) as error:
            where = f"{path}, behind line {rows.line_num}"
            raise InvalidArgumentError(explain(where, accepted="CSV in UTF-8", got=error)) from error


def _parse(row: list[str], path: str | Path, line: int) -> Item:
    try:
        key, nbytes, cost = row[0], int(row[1]), float(row[2])
        if len(row) == 3 and 0 <= nbytes < MOST and 0 <= cost < MOST:
            return Item(key, nbytes, cost)
    except (IndexError, ValueError):
        pass
    accepted = f"{','.join(HEADER)}, numbers from 0 to below 2**62"
    raise InvalidArgumentError(explain(f"{path}, line {line}", accepted=accepted, got=brief(row)), line=line)


def write_trace(path: str | Path, trace: Iterable[Item]) -> None:
    """Write accesses as `read_trace` reads them; keys become text.

    Parameters
    ----------
    path : path
        Of a CSV file, which is overwritten.
    trace : iterable of Item

    Raises
    ------
    OSError
        The file cannot be written.
    """
    write_rows(path, [HEADER, *[(item.key, item.nbytes, repr(item.cost)) for item in trace]])


# ---- several policies at several capacities


class Comparison(NamedTuple):
    """One capacity in bytes: what each policy achieved there, by name, and the bounds on what any could."""

    capacity_nbytes: int
    results: dict[str, Replay]
    best: Clairvoyant


class Comparisons(tuple[Comparison, ...]):
    """Comparisons at several capacities, in the order of these."""

    __slots__ = ()

    def plot(self, title: str = "") -> Figure:
        """Draw the share of the cost that each policy saves against the capacity, and the bounds as a band.

        Parameters
        ----------
        title : str, default=""

        Returns
        -------
        figure : matplotlib.figure.Figure
            Not shown, and not registered with pyplot.

        Raises
        ------
        UnsupportedError
            matplotlib is not installed; it comes with the extra ``graphpool[profile]``.
        """
        rows = sorted(self)
        unit, size = size_unit(max((row.capacity_nbytes for row in rows), default=0))
        capacities = [row.capacity_nbytes / size for row in rows]
        figure = make_figure(8, 4.5)
        axes = figure.subplots()
        low, high = ([100 * row.best.achievable_share for row in rows], [100 * row.best.bound_share for row in rows])
        axes.fill_between(capacities, low, high, color="0.85", label="best with foresight: achievable to bound")
        for name in rows[0].results if rows else ():
            axes.plot(capacities, [100 * row.results[name].saved_share for row in rows], marker="o", label=name)
        axes.set(xlabel=f"capacity ({unit})", ylabel="cost saved (%)", ylim=(0, 102), title=title)
        figure.legend(loc="outside lower center", ncols=3, frameon=False)
        return figure


def distinct_nbytes(trace: Iterable[Item]) -> int:
    """What all constants of a trace take together. Unit: bytes."""
    return sum({item.key: item.nbytes for item in trace}.values())


def compare_policies(
    trace: Sequence[Item], capacities_nbytes: Iterable[int], policies: Sequence[PolicySource] | None = None
) -> Comparisons:
    """Replay a trace with every policy at every capacity; one comparison a capacity, in their order.

    Policies are names, or classes and functions that make new ones, as for `make_policy`, whose errors come before
    anything is replayed; by default all names, installed ones included. Results go by the policies' names. Cost: about
    a microsecond an access and policy, and `clairvoyant` once a capacity.
    """
    chosen = policy_names() if policies is None else policies
    sources = {source if isinstance(source, str) else make_policy(source).name: source for source in chosen}
    for source in sources.values():
        make_policy(source)
    return Comparisons(
        Comparison(nbytes, {k: replay(trace, v, nbytes) for k, v in sources.items()}, clairvoyant(trace, nbytes))
        for nbytes in capacities_nbytes
    )
