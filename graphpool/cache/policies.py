"""Policies: who leaves a full cache, and whether a newcomer is worth it.

A policy keeps only numbers about keys. The cache tells it what happens, asks it for the order in which entries would
leave, takes as many from the front as make room, and asks whether the newcomer is worth those.
"""

from __future__ import annotations

from collections import OrderedDict
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from .._unraisable import report_unraisable
from ..errors import BackendError, InvalidArgumentError, StateError, explain
from .cost_policy import CostPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
    from importlib.metadata import EntryPoint

    from ._entry import FullKey
    from ._hits import Entry

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
        """`item` is kept from now on."""
        ...

    def on_hit(self, key: Hashable, count: int) -> None:
        """A kept entry was used `count` times since it was last told."""
        ...

    def on_remove(self, key: Hashable) -> None:
        """An entry has left, for whatever reason."""
        ...

    def victims(self) -> Iterable[Hashable]:
        """The kept keys in the order in which they should leave."""
        ...

    def admits(self, item: Item, victims: Sequence[Hashable]) -> bool:
        """Whether the newcomer, which was asked for, is worth evicting `victims`."""
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
    """Keeps what came first (the seeds' default): nothing leaves for a newcomer; memory pressure takes old uses."""

    name = "no_evict"

    def admits(self, item: Item, victims: Sequence[Hashable]) -> bool:
        """Never."""
        return False


_BUILTIN: dict[str, Callable[[], Policy]] = {
    "no_evict": NoEvictPolicy,
    "lru": LruPolicy,
    "cost": CostPolicy,
}


def policy_names() -> list[str]:
    """The names that `make_policy` knows: those that come with graphpool, then installed ones in order."""
    return [*_BUILTIN, *sorted(_installed().keys() - _BUILTIN.keys())]


def _installed() -> dict[str, EntryPoint]:
    return {entry.name.lower(): entry for entry in entry_points(group=ENTRY_POINT_GROUP)}


def make_policy(policy: str | Policy | None) -> Policy:
    """A policy for one cache.

    Parameters
    ----------
    policy : str, Policy or None
        ``"no_evict"`` (also None), ``"lru"``, ``"cost"``, a name registered under the entry point group
        ``graphpool.policies``, or an object with the methods of `Policy`. Names are taken in any case.

    Returns
    -------
    policy : Policy
        The object itself, or a new one.

    Raises
    ------
    InvalidArgumentError
        No policy has this name, or methods are missing.
    """
    if policy is None:
        return NoEvictPolicy()
    if not isinstance(policy, str):
        if isinstance(policy, type) or not isinstance(policy, Policy):
            raise InvalidArgumentError(
                explain("policy", accepted="a name, or an object with the methods of Policy", got=repr(policy))
            )
        return policy
    name = policy.lower()
    if name in _BUILTIN:
        return _BUILTIN[name]()
    found = _installed()
    if name not in found:
        raise InvalidArgumentError(
            explain(f"no policy is named {policy!r}", accepted=", ".join([*_BUILTIN, *found])), policy=policy
        )
    return make_policy(found[name].load()())


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
