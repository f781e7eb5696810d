"""Static planning: from sizes and lifetimes to offsets in one arena.

``plan`` runs a portfolio of greedy orders and, when a deadline allows it, the exact search. A plan is a value: it can
be computed long before any memory exists, and `check_plan` verifies it without sharing a line of code.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from graphpool._dataclasses import dataclass, replace
from graphpool.errors import InvalidArgumentError, brief, check_choice, check_instance, explain

from ._check import out_of_memory
from ._greedy import ORDERS, place

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence
    from pathlib import Path

    from matplotlib.figure import Figure

    Live = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]
    """Times at which the set of live buffers changes, and the bytes that are live from each to the next."""

METHODS = ("auto", "greedy", "exact", *(f"{order}_{fit}" for order in ORDERS for fit in ("best", "first")))
"""What ``plan(method=)`` accepts: a strategy, or one greedy order with best or first fit."""

MAX_TOTAL = 2**60
# What the portfolio may spend before it stops with fewer passes: counted, not timed, so that plans repeat. Unit: looks
# at a placed buffer, about 2 ns each.
_GREEDY_EFFORT = 3.5e8
_EXACT_NODES = 200_000


@dataclass(frozen=True, slots=True)
class BufferInfo:
    """One buffer to be planned.

    Attributes
    ----------
    id : hashable
        Name of the buffer, unique in a plan.
    lower, upper : int
        Half-open lifetime ``[lower, upper)`` in any unit of time that orders the uses.
    size : int
        Unit: bytes.
    alignment : int, default=1
        Of its offset. Unit: bytes.
    offset : int, optional
        Fixes the place of the buffer. Unit: bytes.
    gaps : tuple of (int, int), default=()
        Half-open parts of the lifetime in which its bytes may serve others.
    """

    id: Hashable
    lower: int
    upper: int
    size: int
    alignment: int = 1
    offset: int | None = None
    gaps: tuple[tuple[int, int], ...] = ()

    @classmethod
    def used_at(cls, id: Hashable, steps: Collection[int], size: int) -> BufferInfo:
        """A buffer that lives from the first to the last of the steps that use it.

        Parameters
        ----------
        id : hashable
        steps : collection of int
            Not empty.
        size : int
            Unit: bytes.

        Returns
        -------
        buffer : BufferInfo

        Raises
        ------
        InvalidArgumentError
            There are no steps, or they are no ints.
        """
        if not isinstance(steps, Collection) or not steps or not all(isinstance(step, int) for step in steps):
            what = f"steps of buffer {id!r}"
            raise InvalidArgumentError(explain(what, accepted="a collection of ints, not empty", got=brief(steps)))
        return cls(id, min(steps), max(steps) + 1, size)

    @property
    def windows(self) -> list[tuple[int, int]]:
        """The lifetime without its gaps: half-open intervals, ascending, none empty."""
        found, start = [], self.lower
        for lower, upper in sorted(self.gaps):
            if start < lower:
                found.append((start, lower))
            start = max(start, upper)
        return [*found, (start, self.upper)] if start < self.upper else found


@dataclass(frozen=True, slots=True, eq=False)
class MemoryPlan:
    """Offsets of buffers in one arena.

    Attributes
    ----------
    offsets : mapping from id to int
        Unit: bytes.
    nbytes : int
        Size of the arena. Unit: bytes.
    lower_bound : int
        No plan needs less: the most bytes that are live at once, or more where the search has proved it. Unit: bytes.
    is_optimal : bool
        Whether it is proved that no smaller arena exists.
    method : str
        What found it.
    seconds : float
        Time that planning took.
    """

    offsets: Mapping[Hashable, int]
    nbytes: int
    lower_bound: int
    is_optimal: bool
    method: str
    seconds: float

    @property
    def ratio(self) -> float:
        """``nbytes / lower_bound``; 1.0 is perfect, also when both are zero."""
        return self.nbytes / self.lower_bound if self.lower_bound else 1.0

    def offset_of(self, buffer: BufferInfo) -> int:
        """The offset of a buffer.

        Parameters
        ----------
        buffer : BufferInfo
            Of those that were planned.

        Returns
        -------
        offset : int
            Unit: bytes.

        Raises
        ------
        InvalidArgumentError
            The plan has no such buffer (field ``id``).
        """
        if buffer.id not in self.offsets:
            message = explain("the plan has no such buffer", accepted="what was planned", got=brief(buffer.id))
            raise InvalidArgumentError(message, id=buffer.id)
        return self.offsets[buffer.id]

    def _repr_html_(self) -> str:
        """For notebooks."""
        from graphpool.drawing import describe_size
        from graphpool.notebook import html_table

        rows = {
            "buffers": len(self.offsets),
            "arena": describe_size(self.nbytes),
            "lower bound": describe_size(self.lower_bound),
            "optimal": "proved" if self.is_optimal else "not proved",
            "found by": f"{self.method} in {self.seconds:.3g} s",
        }
        return html_table("MemoryPlan", rows)

    def plot(self, buffers: Iterable[BufferInfo]) -> Figure:
        """Draw the arena over time: a rectangle for each buffer where and while it lies there.

        Parameters
        ----------
        buffers : iterable of BufferInfo
            What was planned.

        Returns
        -------
        figure : matplotlib.figure.Figure
            Not shown, and not registered with pyplot.

        Raises
        ------
        InvalidArgumentError
            A buffer is malformed, or the plan does not have it (field ``id``).
        UnsupportedError
            matplotlib is not installed; it comes with the extra ``graphpool[profile]``.
        """
        from graphpool.drawing import Bar, draw_arena

        bars = []
        items = _as_buffers(buffers)
        check_buffers(items)
        for buffer in items:
            low = self.offset_of(buffer)
            bars += [Bar("", str(buffer.id), *window, low, low + buffer.size) for window in buffer.windows]
        title = f"{len(self.offsets)} buffers planned by {self.method}"
        return draw_arena(bars, self.nbytes, self.lower_bound, title, "time (unit of the lifetimes)")


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """Buffers as int64 arrays of shape (n,); `windows` has shape (m, 3): buffer, lower, upper.

    In place of windows, bits of `conflicts`, of shape (n, n / 8), uint8, the lowest of a byte first, say which buffers
    must lie apart although their lifetimes meet.
    """

    lower: np.ndarray[Any, Any]
    upper: np.ndarray[Any, Any]
    size: np.ndarray[Any, Any]
    alignment: np.ndarray[Any, Any]
    fixed: np.ndarray[Any, Any]
    windows: np.ndarray[Any, Any]
    conflicts: np.ndarray[Any, Any] | None = None


def plan(
    buffers: Iterable[BufferInfo],
    alignment: int = 64,
    method: str = "auto",
    deadline_s: float = 0.0,
    capacity: int | None = None,
    *,
    node_limit: int | None = None,
    on_improve: Callable[[MemoryPlan], object] | None = None,
) -> MemoryPlan:
    """Offsets at which no two buffers share bytes while both live, in an arena that is as small as can be found.

    Parameters
    ----------
    buffers : iterable of BufferInfo
    alignment : int, default=64
        Of every offset, besides each buffer's own. Unit: bytes.
    method : str, default="auto"
        One of `METHODS`. ``"auto"``: the greedy portfolio, then the search if `deadline_s` or `node_limit` allows it;
        ``"exact"``: the same, with a limit of 200,000 nodes if neither is given.
    deadline_s : float, default=0.0
        Time for the search; it leaves problems with fixed offsets, or more than 4,096 buffers, to the greedy passes,
        and keeps gaps closed. Unit: seconds. Zero plans without looking at a clock: equal input, equal plan.
    capacity : int, optional
        Size that is good enough: the search stops there. Unit: bytes.
    node_limit : int, optional
        Nodes that the search may visit, 3 to 40 us each; by default as many as `deadline_s` allows.
    on_improve : callable, optional
        Called with the greedy plan, and then with each better one at once, in the caller's thread. What it raises
        ends planning and propagates.

    Returns
    -------
    MemoryPlan
        The best that was found, whatever ended the search.

    Raises
    ------
    InvalidArgumentError
        A buffer, a limit or `on_improve` is malformed, an id occurs twice, or fixed buffers overlap.
    OutOfMemoryError
        No plan within `capacity` was found; ``smallest_limit`` is the smallest arena that was.

    Notes
    -----
    Threads: safe, runs without the GIL; Ctrl-C ends a search within a tenth of a second. Cost: at most ten greedy
    passes of O(n * placed); fewer above about 8,000 buffers.
    Source: greedy orders after Pisarchyk and Lee, "Efficient memory management for deep neural net inference" (2020);
    search after Moffitt, "MiniMalloc" (ASPLOS 2024).

    Examples
    --------
    >>> from graphpool.memory import BufferInfo, plan
    >>> found = plan([BufferInfo("a", 0, 2, 100), BufferInfo("b", 1, 3, 50), BufferInfo("c", 2, 4, 100)], alignment=1)
    >>> found.nbytes, found.is_optimal, dict(found.offsets)
    (150, True, {'a': 0, 'b': 100, 'c': 0})
    """
    start = time.perf_counter()
    items = _as_buffers(buffers)
    check_choice("method", method, METHODS)
    _check_limits(deadline_s, capacity, node_limit, on_improve)
    problem = _as_arrays(items, alignment)
    live = _live_sizes(problem)
    bound = _lower_bound(problem, live)

    def made(offsets: np.ndarray[Any, Any], nbytes: int, bound: int, used: str) -> MemoryPlan:
        by_id = {item.id: int(offset) for item, offset in zip(items, offsets, strict=True)}
        return MemoryPlan(by_id, nbytes, bound, nbytes <= bound, used, time.perf_counter() - start)

    best = _plan_greedily(problem, live, bound, method)
    if on_improve is not None:
        on_improve(made(best[0], best[1], bound, best[2]))

    def improved(offsets: np.ndarray[Any, Any], nbytes: int) -> None:
        nonlocal best
        best = offsets, nbytes, "exact"
        if on_improve is not None:
            on_improve(made(offsets, nbytes, bound, "exact"))

    target = max(bound, capacity or 0)
    is_limited = method == "exact" and not deadline_s
    nodes = node_limit or (_EXACT_NODES if is_limited else 2**62 if deadline_s else 0)
    proved = bound
    if nodes and method in ("auto", "exact") and best[1] > target:
        from ._search import search

        proved = search(problem, best[1], bound, target, nodes, deadline_s, improved)
    offsets, nbytes, used = best
    if capacity is not None and nbytes > capacity:
        hint = f"the smallest arena found takes {nbytes} bytes (no less than {proved} can do)"
        raise out_of_memory(nbytes, in_use=0, limit=capacity, resource="plan", smallest_limit=nbytes, hint=hint)
    return made(offsets, nbytes, proved, used)


class Lifetimes:
    """Buffers of which the sizes vary: what does not hang on them is prepared once for all plans.

    Parameters
    ----------
    lives : sequence of (int, int)
        Half-open lifetime of each, as of `BufferInfo`; none is empty.
    alignment : int, default=64
        Of every offset. Unit: bytes.

    Notes
    -----
    Threads: immutable, safe.
    """

    def __init__(self, lives: Sequence[tuple[int, int]], alignment: int = 64) -> None:
        n = len(lives)
        lower, upper = np.array(lives, np.int64).reshape(n, 2).T.copy()
        windows = np.stack([np.arange(n), lower, upper], axis=1)
        self._problem = Problem(lower, upper, np.zeros(n, np.int64), np.full(n, alignment), np.full(n, -1), windows)
        self._most = MAX_TOTAL - n * alignment

    def plan(self, sizes: Sequence[int]) -> tuple[list[int], int]:
        """Offsets for these sizes, of at least 0, and the size of the arena: those of `plan`. Unit: bytes."""
        total = sum(sizes)
        if total > self._most:
            raise InvalidArgumentError(explain("the buffers are too large to plan", accepted="2**60 bytes", got=total))
        problem = replace(self._problem, size=np.array(sizes, np.int64))
        live = _live_sizes(problem)
        offsets, nbytes, _ = _plan_greedily(problem, live, _lower_bound(problem, live), "auto")
        return offsets.tolist(), nbytes


def _check_limits(
    deadline_s: float, capacity: int | None, node_limit: int | None, on_improve: Callable[[MemoryPlan], object] | None
) -> None:
    if not isinstance(deadline_s, int | float) or not deadline_s >= 0:
        raise InvalidArgumentError(explain("deadline_s", accepted="seconds, at least 0", got=brief(deadline_s)))
    if capacity is not None and (not isinstance(capacity, int) or capacity < 0):
        raise InvalidArgumentError(explain("capacity", accepted="bytes, at least 0, or None", got=brief(capacity)))
    if on_improve is not None and not callable(on_improve):
        raise InvalidArgumentError(explain("on_improve", accepted="a callable, or None", got=brief(on_improve)))
    if node_limit is not None and (not isinstance(node_limit, int) or not 0 < node_limit < 2**62):
        raise InvalidArgumentError(explain("node_limit", accepted="an int from 1, or None", got=brief(node_limit)))


def lower_bound(items: Sequence[BufferInfo], alignment: int = 64) -> int:
    """The least that any plan needs, as `MemoryPlan` has it; raises as `plan` does. Unit: bytes."""
    problem = _as_arrays(items, alignment)
    return _lower_bound(problem, _live_sizes(problem))


def _as_buffers(given: Iterable[BufferInfo]) -> list[BufferInfo]:
    items = list(given) if isinstance(given, Iterable) else [given]
    for item in items:
        if not isinstance(item, BufferInfo):
            raise InvalidArgumentError(explain("buffers", accepted="an iterable of BufferInfo", got=brief(item)))
    return items


def _as_arrays(items: Sequence[BufferInfo], alignment: int) -> Problem:
    check_buffers(items)
    if not isinstance(alignment, int) or not 0 < alignment <= 2**30:
        raise InvalidArgumentError(explain("alignment", accepted="an int from 1 to 2**30", got=brief(alignment)))
    aligned = [math.lcm(alignment, item.alignment) for item in items]
    total = sum(item.size + step + (item.offset or 0) for item, step in zip(items, aligned, strict=True))
    if total > MAX_TOTAL:
        raise InvalidArgumentError(explain("the buffers are too large to plan", accepted="2**60 bytes", got=total))
    windows = [(i, *window) for i, item in enumerate(items) for window in item.windows]

    def column(values: list[int]) -> np.ndarray[Any, Any]:
        return np.array(values, dtype=np.int64)

    return Problem(
        column([item.lower for item in items]),
        column([item.upper for item in items]),
        column([item.size for item in items]),
        column(aligned),
        column([-1 if item.offset is None else item.offset for item in items]),
        np.array(windows, dtype=np.int64).reshape(-1, 3),
    )


def check_buffers(items: Sequence[BufferInfo]) -> None:
    """Refuse buffers that have no meaning, and ids that occur twice."""
    for item in items:
        _check_buffer(item)
    _check_ids(items)


def _check_ids(items: Sequence[BufferInfo]) -> None:
    """Refuse ids that occur twice."""
    seen: set[Hashable] = set()
    for item in items:
        if item.id in seen:
            raise InvalidArgumentError(explain(f"buffer {item.id!r} occurs twice", accepted="unique ids"))
        seen.add(item.id)


def _check_buffer(item: BufferInfo, where: str = "") -> None:
    """Refuse what has no meaning, naming the buffer, and where it was read."""
    try:
        hash(item.id)
    except TypeError:
        what = f"id of buffer {brief(item.id)}"
        raise InvalidArgumentError(explain(what, accepted="what has a hash", got=type(item.id).__name__)) from None
    if not isinstance(item.gaps, tuple) or not all(isinstance(gap, tuple) and len(gap) == 2 for gap in item.gaps):
        what = f"gaps of buffer {item.id!r}"
        raise InvalidArgumentError(explain(what, accepted="a tuple of (int, int)", got=brief(item.gaps)))
    numbers = [item.lower, item.upper, item.size, item.alignment, 0 if item.offset is None else item.offset]
    numbers += [time for gap in item.gaps for time in gap]
    if not all(issubclass(kind, int) for kind in set(map(type, numbers))) or max(map(abs, numbers)) >= 2**62:
        problem = f"{brief(numbers)} are not all ints below 2**62"
    elif item.lower >= item.upper:
        problem = f"lifetime [{item.lower}, {item.upper}) is empty"
    elif item.size < 0 or (item.offset or 0) < 0:
        problem = f"size {item.size} or offset {item.offset} is negative"
    elif not 0 < item.alignment <= 2**30:
        problem = f"alignment {item.alignment} is not between 1 and 2**30"
    elif any(not item.lower <= lower < upper <= item.upper for lower, upper in item.gaps):
        problem = f"gaps {item.gaps} leave the lifetime or are empty"
    else:
        return
    raise InvalidArgumentError(explain(f"{where}buffer {item.id!r}: {problem}"), buffer_id=item.id)


def _live_sizes(problem: Problem) -> Live:
    which, lower, upper = problem.windows.T
    times = np.concatenate([lower, upper])  # np.unique takes 20 ms once: it loads numpy.ma
    order = np.argsort(times)
    times, change = times[order], np.concatenate([problem.size[which], -problem.size[which]])[order]
    is_last = np.append(times[1:] != times[:-1], True)[: len(times)]  # of those at one time
    return times[is_last], np.cumsum(change)[is_last]


def _lower_bound(problem: Problem, live: Live) -> int:
    """The most bytes live at once, or the end of the highest fixed buffer if that is more."""
    fixed = problem.fixed >= 0
    ends = (problem.fixed + problem.size)[fixed]
    return int(max(live[1].max(initial=0), ends.max(initial=0)))


def _plan_greedily(problem: Problem, live: Live, bound: int, method: str) -> tuple[np.ndarray[Any, Any], int, str]:
    """Offsets, arena size and name of the best greedy pass; passes stop early when the bound is met."""
    names = [name for name in METHODS if name.endswith(("_best", "_first"))]
    if method in names:
        names = [method]
    affordable = max(1, int(_GREEDY_EFFORT / _pass_effort(problem)))
    best: tuple[np.ndarray[Any, Any], int, str] | None = None
    for name in names[:affordable]:
        order, fit = name.rsplit("_", 1)
        limit = best[1] - 1 if best else MAX_TOTAL * 2
        offsets = np.empty(len(problem.size), dtype=np.int64)
        nbytes = place(problem, _sorted_by(_order_key(order, problem, live), problem), fit == "best", limit, offsets)
        if nbytes >= 0:
            best = (offsets, nbytes, name)
        if best and best[1] <= bound:
            break
    assert best is not None  # the first pass has no limit to exceed
    return best


def _pass_effort(problem: Problem) -> float:
    """Looks at placed buffers in one greedy pass; one that lives at the same time costs about eight times as much."""
    n = len(problem.size)
    born_before_end = np.searchsorted(np.sort(problem.lower), problem.upper)
    dead_before_birth = np.searchsorted(np.sort(problem.upper), problem.lower, side="right")
    return float(n * n / 2 + 4 * (born_before_end - dead_before_birth).sum() + 1)


def _order_key(order: str, problem: Problem, live: Live) -> np.ndarray[Any, Any]:
    """What a greedy order sorts by, largest first."""
    if order == "size":
        return problem.size
    if order == "birth":
        return -problem.lower
    if order == "breadth":
        times, nbytes = live
        return _range_max(nbytes, np.searchsorted(times, problem.lower), np.searchsorted(times, problem.upper))
    lifetime: np.ndarray[Any, Any] = (problem.upper - problem.lower).astype(np.float64)
    return lifetime * problem.size if order == "area" else lifetime


def _sorted_by(key: np.ndarray[Any, Any], problem: Problem) -> np.ndarray[Any, Any]:
    """Indices by falling key; ties by size, then by first use, then by index. Fixed buffers come first."""
    return np.lexsort((problem.lower, -problem.size, -key, problem.fixed < 0)).astype(np.int64)


def _range_max(
    values: np.ndarray[Any, Any], start: np.ndarray[Any, Any], stop: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """``values[start:stop].max()`` for each pair (never empty), from maxima over powers of two. Cost: O(n log n)."""
    if not len(start) or not len(values):
        return np.zeros(len(start), dtype=np.int64)
    start = np.minimum(start, len(values) - 1)
    stop = np.maximum(stop, start + 1)
    level = np.int64(np.log2(stop - start))
    result, table = np.zeros(len(start), dtype=np.int64), values
    for power in range(int(level.max()) + 1):
        chosen = level == power
        result[chosen] = np.maximum(table[start[chosen]], table[stop[chosen] - 2**power])
        table = np.maximum(table[: -(2**power)], table[2**power :]) if len(table) > 2**power else table
    return result


# ---- by conflicts instead of lifetimes: programs whose steps run on several streams


def plan_conflicts(nbytes: Sequence[int], conflicts: Sequence[int], alignment: int = 64) -> tuple[tuple[int, ...], int]:
    """Offsets at which no two conflicting buffers share bytes, and the size of the arena. Unit: bytes.

    `conflicts` has for each buffer the others that must lie apart from it, as a bit set; symmetric. Cost: three greedy
    passes of O(n * placed), n * n / 8 bytes. Source: weighted interval colouring on any interference graph; orders as
    in `plan`: largest first, most bytes of neighbours first, as given.
    """
    if len(nbytes) != len(conflicts) or min(nbytes, default=0) < 0 or alignment < 1:
        accepted = "one size of at least 0 and one bit set a buffer, alignment of at least 1"
        got = f"{len(nbytes)} sizes, {len(conflicts)} bit sets, alignment {alignment}"
        raise InvalidArgumentError(explain("buffers", accepted=accepted, got=got))
    count = len(nbytes)
    sizes = np.array([-(-size // alignment) * alignment for size in nbytes], np.int64)
    width = -(-count // 8)
    rows = b"".join([mask.to_bytes(width, "little") for mask in conflicts])
    apart = np.frombuffer(rows, np.uint8).reshape(count, width)
    weights = sizes + [_total(sizes, row) for row in apart]
    numbers = np.arange(count)
    orders = [np.lexsort((numbers, -sizes)), np.lexsort((numbers, -sizes, -weights)), numbers]
    plans = [_place(sizes, apart, order) for order in orders]
    offsets = min(plans, key=lambda plan: _end(plan, nbytes))
    return tuple(offsets), _end(offsets, nbytes)


def _total(sizes: np.ndarray[Any, Any], row: np.ndarray[Any, Any]) -> int:
    """Bytes of the buffers whose bits are set."""
    return int(sizes[np.unpackbits(row, count=len(sizes), bitorder="little").view(bool)].sum())


def _place(sizes: np.ndarray[Any, Any], apart: np.ndarray[Any, Any], order: np.ndarray[Any, Any]) -> list[int]:
    """Each buffer in the smallest gap between its placed neighbours that holds it, else behind them."""
    offsets, ones, windows = np.empty_like(sizes), np.ones_like(sizes), np.empty((0, 3), np.int64)
    place(Problem(ones - 1, ones, sizes, ones, -ones, windows, apart), order, True, MAX_TOTAL, offsets)
    return [int(offset) for offset in offsets]


def _end(offsets: Sequence[int], nbytes: Sequence[int]) -> int:
    return max((offset + size for offset, size in zip(offsets, nbytes, strict=True)), default=0)


# ---- buffers from CSV files, in the columns that MiniMalloc's benchmarks use


_REQUIRED = ("id", "lower", "upper", "size")


def read_csv(path: str | Path) -> list[BufferInfo]:
    """Buffers of a CSV file with the columns id, lower, upper, size and optionally alignment, offset, gaps.

    Parameters
    ----------
    path : str or Path
        Gaps are written ``lower-upper``, separated by spaces. Other columns are ignored; ids stay strings.

    Returns
    -------
    list of BufferInfo

    Raises
    ------
    InvalidArgumentError
        The file is no CSV in UTF-8, a column is missing, or an id occurs twice; or a value is no number or a buffer has
        no meaning, and the message names the line.
    """
    from graphpool.csv_rows import read_rows

    items = []
    for where, row in read_rows(path, _REQUIRED):
        items.append(_parse(row, where))
        _check_buffer(items[-1], f"{where}: ")
    _check_ids(items)
    return items


def write_csv(path: str | Path, buffers: Iterable[BufferInfo], plan: MemoryPlan | None = None) -> None:
    """Write buffers as `read_csv` reads them.

    Parameters
    ----------
    path : str or Path
    buffers : iterable of BufferInfo
        Their ids become text.
    plan : MemoryPlan, optional
        Whose offsets are written in place of fixed ones.

    Raises
    ------
    InvalidArgumentError
        A buffer is malformed, or the plan does not have it. The file stays as it was.
    OSError
        The file cannot be written.
    """
    from graphpool.csv_rows import write_rows

    items = _as_buffers(buffers)
    check_buffers(items)
    offsets = {item.id: item.offset for item in items}
    if plan is not None:
        check_instance("plan", plan, MemoryPlan)
        offsets = {item.id: plan.offset_of(item) for item in items}
    rows = [
        [
            *(item.id, item.lower, item.upper, item.size, item.alignment, offsets[item.id]),
            " ".join(f"{lower}-{upper}" for lower, upper in item.gaps),
        ]
        for item in items
    ]
    write_rows(path, [[*_REQUIRED, "alignment", "offset", "gaps"], *rows])


def _parse(row: dict[str, str | None], where: str) -> BufferInfo:
    try:
        if row["id"] is None:
            raise ValueError("the line ends before its id")
        return BufferInfo(
            row["id"],
            int(row["lower"] or ""),
            int(row["upper"] or ""),
            int(row["size"] or ""),
            int(row.get("alignment") or 1),
            int(row["offset"] or "") if row.get("offset") else None,
            tuple(_parse_gap(gap) for gap in (row.get("gaps") or "").split()),
        )
    except ValueError as error:
        raise InvalidArgumentError(explain(f"{where} is malformed", accepted="integers", got=brief(row))) from error


def _parse_gap(text: str) -> tuple[int, int]:
    lower, _, upper = text[1:].partition("-")  # the first character may be the sign of a number
    return int(text[:1] + lower), int(upper)
