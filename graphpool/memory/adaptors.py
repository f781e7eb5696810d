"""Resources that wrap another one: each does a single thing, and any stack of them works.

Every adaptor changes its own books only when the upstream has done its part, so a refused or mistaken call changes
nothing. Locks are re-entrant, because a collected lease may give memory back in the middle of a call.
"""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Any, TextIO

from graphpool._dataclasses import dataclass
from graphpool.errors import BackendError, InvalidArgumentError, OutOfMemoryError, explain

from ..fork import Locked
from ._budget import Budget
from ._check import check_request, check_resource, not_held, out_of_memory
from ._host import trace, untrace
from ._stats import AllocationStats

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Self

    from graphpool.typing import MemoryResource


class Adaptor(Locked):
    """What all adaptors share: the upstream, checked once."""

    def __init__(self, upstream: MemoryResource) -> None:
        check_resource("upstream", upstream)
        super().__init__()
        self.upstream = upstream

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.upstream!r})"


class CallbackResource(Locked):
    """A user's pair of functions as a resource: what oneDNN calls an allocator.

    Parameters
    ----------
    malloc : callable
        ``malloc(nbytes, alignment)`` gives an address as an int; 0 or None when there is no memory.
    free : callable
        ``free(address)``.

    Raises
    ------
    InvalidArgumentError
        One of them is not callable.

    Notes
    -----
    Ownership: both functions are kept. Threads: safe if the functions are. Cost: theirs, and one table entry.

    Examples
    --------
    >>> from graphpool.memory import CallbackResource, HostResource
    >>> host, sizes = HostResource(), {}
    >>> def malloc(nbytes, alignment):
    ...     address = host.allocate(nbytes, alignment)
    ...     sizes[address] = nbytes
    ...     return address
    >>> resource = CallbackResource(malloc, lambda address: host.deallocate(address, sizes.pop(address)))
    >>> resource.deallocate(resource.allocate(100), 100)
    """

    def __init__(self, malloc: Callable[[int, int], int | None], free: Callable[[int], Any]) -> None:
        if not callable(malloc) or not callable(free):
            raise InvalidArgumentError(explain("malloc and free", accepted="callables", got=(malloc, free)))
        super().__init__()
        self._malloc, self._free = malloc, free
        self._live: dict[int, int] = {}

    def allocate(self, nbytes: int, alignment: int = 64, stream: object = None) -> int:
        """Return what `malloc` gives, checked.

        Raises
        ------
        OutOfMemoryError
            `malloc` gave nothing.
        BackendError
            `malloc` raised what is no `MemoryError`, or gave what is no aligned address; it was freed.
        """
        check_request(nbytes, alignment)
        reason = None
        try:
            address = self._malloc(nbytes, alignment)
        except MemoryError as error:
            address, reason = None, error
        except Exception as error:
            raise _failed("malloc", error) from error
        if address is None or address == 0:
            in_use = sum(self._live.copy().values())
            raise out_of_memory(nbytes, in_use=in_use, limit=in_use, resource="the user's malloc") from reason
        if not isinstance(address, int) or address % alignment or address in self._live:
            if isinstance(address, int) and address not in self._live:
                self._call_free(address)
            raise BackendError(explain("malloc", accepted=f"a new address aligned to {alignment}", got=address))
        self._live[address] = nbytes
        return address

    def deallocate(self, address: int, nbytes: int, alignment: int = 64, stream: object = None) -> None:
        """Hand `address` to `free`.

        Raises
        ------
        StateError
            It is not live, or of another size; nothing is freed.
        BackendError
            `free` raised; the address counts as given back.
        """
        with self._lock:
            if nbytes is None or self._live.get(address) != nbytes:
                raise not_held("CallbackResource", address, nbytes)
            del self._live[address]
        self._call_free(address)

    def _call_free(self, address: int) -> None:
        try:
            self._free(address)
        except Exception as error:
            raise _failed("free", error) from error


def _failed(name: str, error: Exception) -> BackendError:
    """What callers get when a user's function raises."""
    return BackendError(explain(f"the user's {name} failed", got=repr(error)))


class LimitingResource(Adaptor):
    """At most so many bytes at once, at every instant.

    Parameters
    ----------
    upstream : MemoryResource
    limit : int, str or Budget
        Bytes, a size such as ``"512MiB"``, or a budget that others share.
    takes_spare : bool, default=False
        Take only what is free and not spoken for, see `Budget.try_charge_spare`; nobody is asked for memory.

    Attributes
    ----------
    budget : Budget
        Counts the bytes; ``budget.limit`` and ``budget.in_use``.

    Notes
    -----
    Ownership: keeps upstream and budget. Threads: safe: bytes are counted by one compare-and-swap before the upstream
    is asked, and taken off after it has them back. Cost: one atomic step per call.
    """

    def __init__(self, upstream: MemoryResource, limit: int | str | Budget, *, takes_spare: bool = False) -> None:
        super().__init__(upstream)
        self.budget = limit if isinstance(limit, Budget) else Budget(limit)
        self._takes_spare = takes_spare

    def allocate(self, nbytes: int, alignment: int = 64, stream: object = None) -> int:
        """Allocate within the limit.

        Raises
        ------
        OutOfMemoryError
            It would exceed the limit, or the upstream refused; nothing is counted.
        """
        check_request(nbytes, alignment)
        if not self._takes_spare:
            self.budget.charge(nbytes, holder="LimitingResource")
        elif not self.budget.try_charge_spare(nbytes):
            budget = self.budget
            raise out_of_memory(nbytes, in_use=budget.in_use, limit=budget.limit, resource="LimitingResource (spare)")
        try:
            return self.upstream.allocate(nbytes, alignment, stream)
        except BaseException:
            self.budget.uncharge(nbytes)
            raise

    def deallocate(self, address: int, nbytes: int, alignment: int = 64, stream: object = None) -> None:
        """Give back, then stop counting."""
        self.upstream.deallocate(address, nbytes, alignment, stream)
        self.budget.uncharge(nbytes)


class StatisticsResource(Adaptor):
    """Counts what goes through: live, peak and total, of bytes and of allocations.

    Parameters
    ----------
    upstream : MemoryResource

    Notes
    -----
    Ownership: keeps the upstream. Threads: safe. Cost: one lock per call.
    Source: the counters of RMM's statistics adaptor, as a behaviour.
    """

    def __init__(self, upstream: MemoryResource) -> None:
        super().__init__(upstream)
        self._stats = AllocationStats()

    def allocate(self, nbytes: int, alignment: int = 64, stream: object = None) -> int:
        """Allocate from the upstream and count."""
        address = self.upstream.allocate(nbytes, alignment, stream)
        self._count(nbytes, 1)
        return address

    def deallocate(self, address: int, nbytes: int, alignment: int = 64, stream: object = None) -> None:
        """Give back to the upstream and count."""
        self.upstream.deallocate(address, nbytes, alignment, stream)
        self._count(-nbytes, -1)

    def _count(self, nbytes: int, n: int) -> None:
        while True:
            with self._lock:
                old = self._stats
                current, count = old.current_nbytes + nbytes, old.current_count + n
                new = AllocationStats(
                    current,
                    max(old.peak_nbytes, current),
                    old.total_nbytes + max(nbytes, 0),
                    count,
                    max(old.peak_count, count),
                    old.total_count + max(n, 0),
                )
                if self._stats is old:  # else a finaliser has struck in between, and counted
                    self._stats = new
                    return

    def stats(self) -> AllocationStats:
        """The counters now.

        Returns
        -------
        AllocationStats
        """
        return self._stats


@dataclass(frozen=True, slots=True)
class Allocation:
    """A live allocation: its size in bytes, and the Python stack that made it, innermost call last."""

    nbytes: int
    stack: tuple[str, ...]


class TrackingResource(Adaptor):
    """Knows every live allocation, and who made it.

    Parameters
    ----------
    upstream : MemoryResource

    Notes
    -----
    Ownership: keeps the upstream. Threads: safe. Cost: tens of microseconds per allocation, for its stack.
    """

    def __init__(self, upstream: MemoryResource) -> None:
        super().__init__(upstream)
        self._live: dict[int, Allocation] = {}

    def allocate(self, nbytes: int, alignment: int = 64, stream: object = None) -> int:
        """Allocate from the upstream and record."""
        import traceback

        address = self.upstream.allocate(nbytes, alignment, stream)
        self._live[address] = Allocation(nbytes, tuple(traceback.format_stack()[:-1]))
        return address

    def deallocate(self, address: int, nbytes: int, alignment: int = 64, stream: object = None) -> None:
        """Forget and give back. The record goes first: the upstream may hand the address out again at once.

        Raises
        ------
        StateError
            Not live here; the upstream is not called.
        """
        record = self._live.pop(address, None)
        if record is None:
            raise not_held("TrackingResource", address, nbytes)
        try:
            self.upstream.deallocate(address, nbytes, alignment, stream)
        except BaseException:
            self._live[address] = record
            raise

    def outstanding(self) -> dict[int, Allocation]:
        """Live allocations by address.

        Returns
        -------
        dict of int to Allocation
        """
        return self._live.copy()

    def report(self) -> str:
        """Live allocations as text, largest first, each with its innermost call.

        Returns
        -------
        str
        """
        rows = sorted(self.outstanding().items(), key=lambda row: -row[1].nbytes)
        return "\n".join(
            f"{record.nbytes:>14,} bytes at {address:#x} {record.stack[-1].strip()}" for address, record in rows
        )


class TracedResource(Adaptor):
    """Shows what passes through it to `tracemalloc` in a domain of its own.

    What `HostResource` has recorded in `TRACE_DOMAIN` moves there, so that nothing is counted twice. Threads: safe.
    """

    def __init__(self, upstream: MemoryResource, domain: int) -> None:
        super().__init__(upstream)
        self._domain = domain

    def allocate(self, nbytes: int, alignment: int = 64, stream: object = None) -> int:
        """Allocate from the upstream and trace."""
        address = self.upstream.allocate(nbytes, alignment, stream)
        trace(self._domain, address, nbytes)
        return address

    def deallocate(self, address: int, nbytes: int, alignment: int = 64, stream: object = None) -> None:
        """Give back, then trace no more."""
        self.upstream.deallocate(address, nbytes, alignment, stream)
        untrace(self._domain, address)


class LoggingResource(Adaptor):
    """Writes each call to a CSV file, which ``bench/replay.py`` can run again.

    Parameters
    ----------
    upstream : MemoryResource
    path : str, Path or text file
        Replaced if it exists. Columns: thread, time_ns, action, address, nbytes, alignment; action is allocate,
        deallocate or refuse.

    Notes
    -----
    Ownership: a file opened from a path is closed by `close`; the caller's own file is not. Threads: safe; rows are in
    the order in which calls ended. Cost: one formatted row per call.
    """

    COLUMNS = ("thread", "time_ns", "action", "address", "nbytes", "alignment")

    def __init__(self, upstream: MemoryResource, path: str | Path | TextIO) -> None:
        import csv

        super().__init__(upstream)
        self._owns_file = isinstance(path, str | os.PathLike)
        if isinstance(path, str | os.PathLike):
            from pathlib import Path

            self._file: TextIO = Path(path).open("w", newline="", encoding="utf-8")  # noqa: SIM115 - closed by close()
        else:
            self._file = path
        self._writer = csv.writer(self._file)
        self._writer.writerow(self.COLUMNS)

    def allocate(self, nbytes: int, alignment: int = 64, stream: object = None) -> int:
        """Allocate from the upstream and log."""
        try:
            address = self.upstream.allocate(nbytes, alignment, stream)
        except OutOfMemoryError:
            self._log("refuse", 0, nbytes, alignment)
            raise
        self._log("allocate", address, nbytes, alignment)
        return address

    def deallocate(self, address: int, nbytes: int, alignment: int = 64, stream: object = None) -> None:
        """Give back and log. Logged under the lock, so that no other thread logs the reused address before."""
        with self._lock:
            self.upstream.deallocate(address, nbytes, alignment, stream)
            self._log("deallocate", address, nbytes, alignment)

    def _log(self, action: str, address: int, nbytes: int, alignment: int) -> None:
        with self._lock:
            if not self._file.closed:
                row = (threading.get_ident(), time.monotonic_ns(), action, hex(address), nbytes, alignment)
                self._writer.writerow(row)

    def close(self) -> None:
        """End the log; idempotent. The resource goes on working."""
        with self._lock:
            if self._owns_file:
                self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class FailureCallbackResource(Adaptor):
    """Asks a function what to do when memory is short.

    Parameters
    ----------
    upstream : MemoryResource
    callback : callable
        ``callback(nbytes)`` frees what it can and returns whether to try again.

    Raises
    ------
    InvalidArgumentError
        `upstream` is no resource, or `callback` not callable.

    Notes
    -----
    Ownership: keeps both. Threads: safe if the callback is; it is called without a lock, once per failure.
    """

    def __init__(self, upstream: MemoryResource, callback: Callable[[int], bool]) -> None:
        super().__init__(upstream)
        if not callable(callback):
            raise InvalidArgumentError(explain("callback", accepted="a callable", got=callback))
        self._callback = callback

    def allocate(self, nbytes: int, alignment: int = 64, stream: object = None) -> int:
        """Allocate, trying again for as long as the callback says so; raises `BackendError` if it raises."""
        while True:
            try:
                return self.upstream.allocate(nbytes, alignment, stream)
            except OutOfMemoryError:
                if not self._asks_again(nbytes):
                    raise

    def _asks_again(self, nbytes: int) -> bool:
        try:
            return self._callback(nbytes)
        except Exception as error:
            raise _failed("callback", error) from error

    def deallocate(self, address: int, nbytes: int, alignment: int = 64, stream: object = None) -> None:
        """Give back to the upstream."""
        self.upstream.deallocate(address, nbytes, alignment, stream)
