"""How a cache asks and tells its policy, whose errors leave the cache as it was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._unraisable import report_unraisable
from ..errors import BackendError, StateError, explain
from .policies import choose_victims

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

    from ._entry import FullKey
    from ._hits import Entry
    from .policies import Item, Policy


class PolicyGuard:
    """A policy and the entries that it decides about. Used under the cache's lock.

    Attributes
    ----------
    policy : Policy
    """

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

        Raises
        ------
        BackendError
            The policy failed, or named what is not there.
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
