"""Policies: who leaves a full cache, and whether a newcomer is worth it.

A policy keeps only numbers about keys. The cache tells it what happens, asks it for the order in which entries would
leave, takes as many from the front as make room, and asks whether the newcomer is worth those.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from graphpool._dataclasses import NamedTuple, dataclass

from .._unraisable import report_unraisable
from ..errors import BackendError, InvalidArgumentError, StateError, brief, explain

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
    from importlib.metadata import EntryPoint
    from typing import TypeAlias

    from ._entry import FullKey
    from ._hits import Entry

    PolicySource: TypeAlias = "str | Policy | Callable[[], Policy]"

ENTRY_POINT_GROUP = "graphpool.policies"
"""Entry points of this group name further policies: each loads a callable that returns a new policy."""


class Item(NamedTuple):
    """A newcomer: its key, its size in bytes, and what it costs to make it again (any unit; seconds by default).

    `uses` says how often it was needed since the policy was last asked about it.
    """

    key: Hashable
    nbytes: int
    cost: float
    uses: int = 1


class UseRecorder:
    """Uses of constants in order, as a trace. Used under the cache's lock.

    `trace` grows; its keys are numbers in the order of first use.
    """

    def __init__(self) -> None:
        self.trace: list[Item] = []
        self._names: dict[Hashable, int] = {}

    def note(self, key: Hashable, item: Item) -> None:
        """Record as many uses as the item tells."""
        name = self._names.setdefault(key, len(self._names))
        self.trace += [item._replace(key=name, uses=1)] * item.uses


@runtime_checkable
class Policy(Protocol):
    """Decides for one cache. Called under that cache's lock: it must not block, nor call the cache.

    Attributes
    ----------
    name : str
        Shown in reports.
    """

    name: str

    def on_insert(self, item: Item) -> None:
        """Told that an item is kept from now on.

        Parameters
        ----------
        item : Item
        """
        ...

    def on_hit(self, key: Hashable, count: int) -> None:
        """Told that a kept entry was used since it was last told.

        Parameters
        ----------
        key : hashable
        count : int
            How often.
        """
        ...

    def on_remove(self, key: Hashable) -> None:
        """Told that an entry has left, for whatever reason.

        Parameters
        ----------
        key : hashable
        """
        ...

    def victims(self) -> Iterable[Hashable]:
        """The kept keys in the order in which they should leave.

        Returns
        -------
        iterable of Hashable
        """
        ...

    def admits(self, item: Item, victims: Sequence[Hashable]) -> bool:
        """Whether a newcomer, which was asked for, is worth evicting others.

        Parameters
        ----------
        item : Item
            The newcomer.
        victims : sequence of hashable
            Keys that would leave: the first of `victims` that make room.

        Returns
        -------
        is_admitted : bool
        """
        ...


class LruPolicy:
    """Keeps what was used last: the entry whose use is longest ago leaves, and every newcomer is worth it."""

    name = "lru"

    def __init__(self) -> None:
        self._order: OrderedDict[Hashable, None] = OrderedDict()  # oldest use first

    def on_insert(self, item: Item) -> None:
        """Put the newcomer last."""
        self._order[item.key] = None

    def on_hit(self, key: Hashable, count: int) -> None:
        """Put the key last."""
        self._order.move_to_end(key)

    def on_remove(self, key: Hashable) -> None:
        """Forget the key."""
        del self._order[key]

    def victims(self) -> Iterable[Hashable]:
        """Oldest use first."""
        return iter(self._order)

    def admits(self, item: Item, victims: Sequence[Hashable]) -> bool:
        """Always."""
        return True


class NoEvictPolicy(LruPolicy):
    """Keeps what came first: nothing leaves for a newcomer; memory pressure takes old uses."""

    name = "no_evict"

    def admits(self, item: Item, victims: Sequence[Hashable]) -> bool:
        """Never."""
        return False


# ---- cost: keeps what saves most time per byte, and is not fooled by loops over more than fits

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


# ---- by name

_BUILTIN: dict[str, Callable[[], Policy]] = {
    "no_evict": NoEvictPolicy,
    "lru": LruPolicy,
    "cost": CostPolicy,
}


def policy_names() -> list[str]:
    """The names that `make_policy` knows: those that come with graphpool, then installed ones in order."""
    return [*_BUILTIN, *sorted(_installed().keys() - _BUILTIN.keys())]


def _installed() -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points  # takes ten milliseconds, and a policy of one's own is rare

    return {entry.name.lower(): entry for entry in entry_points(group=ENTRY_POINT_GROUP)}


def make_policy(policy: PolicySource | None) -> Policy:
    """A policy for one cache.

    Parameters
    ----------
    policy : str, Policy, callable or None
        ``"no_evict"`` (also None), ``"lru"``, ``"cost"``, a name registered under the entry point group
        ``graphpool.policies``, an object with the methods of `Policy`, or a class or function that returns a new one.
        Names are taken in any case.

    Returns
    -------
    policy : Policy
        The object itself, or a new one.

    Raises
    ------
    InvalidArgumentError
        No policy has this name, or methods are missing.
    BackendError
        A class or function failed; the message names it.
    """
    if policy is None:
        return NoEvictPolicy()
    if not isinstance(policy, str):
        accepted = "a name, an object with the methods of Policy, or what returns one"
        found = policy if isinstance(policy, Policy) and not isinstance(policy, type) else _call(policy, accepted)
        if not isinstance(found, Policy) or isinstance(found, type):
            raise InvalidArgumentError(explain("policy", accepted=accepted, got=brief(found)))
        return found
    name = policy.lower()
    if name in _BUILTIN:
        return _BUILTIN[name]()
    found = _installed()
    if name not in found:
        raise InvalidArgumentError(
            explain(f"no policy is named {policy!r}", accepted=", ".join([*_BUILTIN, *found])), policy=policy
        )
    return make_policy(found[name].load())


def _call(factory: Any, accepted: str) -> Any:
    """What a class or function returns."""
    if not callable(factory):
        raise InvalidArgumentError(explain("policy", accepted=accepted, got=brief(factory)))
    try:
        return factory()
    except Exception as error:
        name = getattr(factory, "__qualname__", repr(factory))
        raise BackendError(explain(f"the policy factory {name} failed", got=repr(error)), backend=name) from error


def choose_victims(
    policy: Policy, item: Item, need_nbytes: int, nbytes_of: Callable[[Hashable], int]
) -> list[Hashable] | None:
    """The keys to evict so that `need_nbytes` get free for `item`; None declines it."""
    chosen: dict[Hashable, None] = {}
    for key in policy.victims():
        if need_nbytes <= 0:
            break
        if key not in chosen:
            chosen[key] = None
            need_nbytes -= nbytes_of(key)
    is_worth_it = policy.admits(item, list(chosen))  # asked in any case: a policy may learn from those it turns away
    return list(chosen) if need_nbytes <= 0 and is_worth_it else None


# ---- what guards a cache against its policy


class PolicyGuard:
    """A policy and the entries that it decides about. Used under the cache's lock."""

    def __init__(self, policy: Policy, entries: Mapping[FullKey, Entry]) -> None:
        self.policy = policy
        self._entries = entries

    def tell(self, told: Callable[..., object], *what: Any) -> None:
        """Tell the policy, by one of its methods; an error cannot leave the cache half changed."""
        try:
            told(*what)
        except Exception as error:
            report_unraisable(error, told)

    def choose(self, item: Item, missing: int) -> list[Entry] | None:
        """Whom to evict for a newcomer that misses so many bytes; None declines it.

        Raises BackendError where the policy failed, or named what is not there.
        """
        try:
            keys = choose_victims(self.policy, item, missing, lambda key: self._kept(key).item.nbytes)
            return None if keys is None else [self._kept(key) for key in keys]
        except Exception as error:
            raise BackendError(explain(f"policy {self.policy.name} failed", got=repr(error))) from error

    def order(self) -> list[Entry]:
        """The entries that are not being produced, in the order in which the policy would evict.

        Those that it does not name come last: memory that must be given up does not depend on the policy.
        """
        named: dict[Hashable, Entry] = {}
        try:
            named.update((key, self._kept(key)) for key in self.policy.victims())
        except Exception as error:
            report_unraisable(error, self.policy.victims)
        others = [e for e in self._entries.values() if e.buffer is not None and e.full not in named]
        return [*named.values(), *others]

    def _kept(self, key: Any) -> Entry:
        """The entry that a policy names."""
        entry = self._entries.get(key)
        if entry is None or entry.buffer is None:
            raise StateError(explain(f"policy {self.policy.name} names {key!r}", accepted="keys that it was told of"))
        return entry
