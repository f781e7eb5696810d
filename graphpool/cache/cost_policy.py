"""The policy `cost`: keeps what saves most time per byte, and is not fooled by loops over more than fits."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    from .policies import Item

MEMORY = 8192
"""Keys that are not kept but remembered, so that their second use is known as one."""

HORIZON = 10
"""Intervals of a key over which their mean is taken, about; older ones fade."""

PATIENCE = 2.0
"""How many of its usual intervals a key may stay unused before its worth begins to fall."""

MARGIN = 1.4
"""How much more a newcomer must save than its victims: evicting costs a production that keeping would not."""

STALENESS = 8
"""The order of victims is sorted anew after (kept entries / this) uses; a newcomer is weighed by present numbers."""


@dataclass(slots=True)
class _Mean:
    """A running mean: exact over the first values, then fading over `horizon` of them."""

    horizon: int
    count: int = 0
    value: float = 0.0

    def add(self, newest: float) -> None:
        self.count = min(self.count + 1, self.horizon)
        self.value += (newest - self.value) / self.count


@dataclass(slots=True)
class _Use:
    """What is known of a key; times are counted in uses of any key."""

    nbytes: int
    cost: float
    last: float
    interval: _Mean


class CostPolicy:
    """Keeps what saves most: cost x rate of use / bytes, where the rate ages while a key is not used.

    The rate of use is 1 / (mean interval between uses), or 1 / (time unused / patience) once that is longer. In a loop
    over more weights than fit, all rates are equal and nothing is exchanged, where recency would evict each weight just
    before its use; a model that is no longer run ages within a few of its intervals, and the next one takes its place.

    Notes
    -----
    Threads: called under its cache's lock. Cost, for n kept entries: O(1) while there is room; when the
    cache is full O(log n) on average, and O(n log n) after an exchange.
    Source: value per byte with ageing follows GreedyDual-Size (P. Cao, S. Irani, 1997) and GreedyDual-Size-Frequency
    (L. Cherkasova, 1998); the frequency is replaced by the interval between uses, as LRU-K has it (O'Neil and others,
    1993), because the plain methods evict in loops.
    """

    name = "cost"

    def __init__(self) -> None:
        self._now = 0.0
        self._typical = _Mean(HORIZON**2)  # of the intervals of all keys: what is expected of a key without one
        self._kept: dict[Hashable, _Use] = {}
        self._order: list[Hashable] | None = None  # of victims, as it was at `_order_time`
        self._order_time = 0.0
        self._ghosts: OrderedDict[Hashable, _Use] = OrderedDict()  # seen, not kept; the oldest first

    def on_insert(self, item: Item) -> None:
        """Keep what is known of it; one that came without `admits` is seen now."""
        use = self._ghosts.pop(item.key, None)
        if use is None or use.last != self._now:
            use = self._see(item, use)
        self._kept[item.key] = use
        self._order = None

    def on_hit(self, key: Hashable, count: int) -> None:
        """Count `count` uses."""
        self._now += count
        self._touch(self._kept[key], count)

    def on_remove(self, key: Hashable) -> None:
        """Remember the key for a while."""
        self._remember(key, self._kept.pop(key))
        self._order = None

    def victims(self) -> Iterable[Hashable]:
        """Least saved time per byte first."""
        if self._order is None or self._now - self._order_time > len(self._order) / STALENESS:
            density = {key: self._worth(use) / max(use.nbytes, 1) for key, use in self._kept.items()}
            self._order, self._order_time = sorted(density, key=density.__getitem__), self._now
        return self._order

    def admits(self, item: Item, victims: Sequence[Hashable]) -> bool:
        """Whether the newcomer saves more than its victims together."""
        use = self._see(item, self._ghosts.get(item.key))
        self._remember(item.key, use)
        return self._worth(use) > MARGIN * sum(self._worth(self._kept[key]) for key in victims)

    def _see(self, item: Item, use: _Use | None) -> _Use:
        """Count the uses of something that is not kept, as one moment: what is kept was used meanwhile as well."""
        self._now += 1
        if use is None:
            return _Use(item.nbytes, item.cost, self._now, _Mean(HORIZON))
        self._touch(use, item.uses)
        return use

    def _touch(self, use: _Use, count: int) -> None:
        newest = (self._now - use.last) / count
        if use.interval.count == 0 and self._typical.count:
            use.interval.add(self._typical.value)  # one interval alone says little
        use.interval.add(newest)
        self._typical.add(newest)
        use.last = self._now

    def _remember(self, key: Hashable, use: _Use) -> None:
        self._ghosts[key] = use
        self._ghosts.move_to_end(key)
        if len(self._ghosts) > MEMORY:
            self._ghosts.popitem(last=False)

    def _worth(self, use: _Use) -> float:
        """Time saved per use of any key, were it kept."""
        interval = use.interval if use.interval.count else self._typical
        if interval.count == 0:
            return 0.0
        unused = (self._now - use.last) / PATIENCE
        return use.cost / max(interval.value, unused)
