"""Memory groups and the tensors that they back with pooled memory while a function runs."""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING, cast

from graphpool.errors import InvalidArgumentError, StateError, brief, check_instance, explain

from ..fork import Locked
from ._check import check_request
from ._host import HostResource

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Self

    from graphpool.typing import MemoryResource

    from ._lease import Lease
    from .managers import MemoryManager

_DEFAULT_ALIGNMENT = 64


class TensorAllocator:
    """The memory of one tensor: its own, imported, or lent by a group while that is acquired.

    Parameters
    ----------
    nbytes : int, default=0
        Unit: bytes.
    alignment : int, default=0
        A power of two, or 0 for the default of 64. Unit: bytes.
    resource : MemoryResource, optional
        For memory of its own; host memory by default.

    Attributes
    ----------
    address : int or None
        None while nothing backs the tensor.
    is_resizable : bool
        Whether `init` may still change the size: until `allocate` or `import_memory`, and again after `free`.

    Notes
    -----
    Ownership: memory of its own, until `free`; one that is collected before frees it, with a `ResourceWarning`.
    Threads: one at a time; use `MemoryGroup.lease` for concurrency.
    Source: Arm Compute Library's TensorAllocator, as a behaviour.
    """

    def __init__(self, nbytes: int = 0, alignment: int = 0, resource: MemoryResource | None = None) -> None:
        self.resource = resource if resource is not None else HostResource()
        self.address: int | None = None
        self.is_resizable = True
        self._group: MemoryGroup | None = None
        self._is_own = False
        self.init(nbytes, alignment)

    def init(self, nbytes: int, alignment: int = 0) -> None:
        """Set size and alignment.

        Parameters
        ----------
        nbytes : int
            Unit: bytes.
        alignment : int, default=0
            A power of two, or 0 for the default of 64. Unit: bytes.

        Raises
        ------
        InvalidArgumentError
            No size, or no power of two.
        StateError
            The tensor is not resizable.
        """
        check_request(nbytes, alignment or _DEFAULT_ALIGNMENT)
        self._check_resizable()
        self.nbytes, self.alignment = nbytes, alignment or _DEFAULT_ALIGNMENT

    def set_associated_memory_group(self, group: MemoryGroup) -> None:
        """Let a group lend the memory from now on.

        Parameters
        ----------
        group : MemoryGroup

        Raises
        ------
        InvalidArgumentError
            It is no group.
        StateError
            Another group does already, or memory is there.
        """
        check_instance("group", group, MemoryGroup)
        self._check_resizable()
        if self._group not in (None, group):
            raise StateError(explain("the tensor is managed by another group"))
        self._group = group

    def allocate(self) -> None:
        """Take memory of its own; for a managed tensor, end its lifetime in the group.

        Raises
        ------
        StateError
            It has memory already.
        OutOfMemoryError
            The resource refused; nothing is changed.
        """
        self._check_resizable()
        if self._group is not None:
            self._group.finalize_memory(self, self.nbytes, self.alignment)
        else:
            self.address, self._is_own = self.resource.allocate(self.nbytes, self.alignment), True
        self.is_resizable = False

    def import_memory(self, address: int) -> None:
        """Use the caller's memory, which must outlive its use here.

        Parameters
        ----------
        address : int
            Aligned as the tensor asks.

        Raises
        ------
        InvalidArgumentError
            `address` is 0 or not aligned; the tensor is left as it was.
        StateError
            The tensor is managed by a group, or has memory already.
        """
        if not isinstance(address, int) or address <= 0 or address % self.alignment:
            raise InvalidArgumentError(
                explain("imported memory", accepted=f"an address aligned to {self.alignment}", got=brief(address))
            )
        self._check_resizable()
        if self._group is not None:
            raise StateError(explain("a managed tensor cannot import memory", hint="its group lends it"))
        self.address, self.is_resizable = address, False

    def free(self) -> None:
        """Give memory of its own back, forget any other; idempotent."""
        if self._is_own and self.address is not None:
            self.resource.deallocate(self.address, self.nbytes, self.alignment)
        self.address, self._is_own, self.is_resizable = None, False, True

    def _check_resizable(self) -> None:
        if not self.is_resizable:
            raise StateError(explain("the tensor has memory already", hint="free it first"))

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if getattr(self, "_is_own", False) and not is_finalizing():
            warnings.warn(f"{self!r} was not freed", ResourceWarning, source=self, stacklevel=2)
            self.free()

    def __repr__(self) -> str:
        return f"<TensorAllocator {self.nbytes} bytes>"


class GroupLease:
    """One execution's memory for a group: addresses by tensor, valid until `release`.

    Notes
    -----
    Ownership: a lease of one arena, if the group manages anything. Threads: any one may release, once.
    """

    def __init__(self, lease: Lease | None, addresses: Mapping[object, int]) -> None:
        self._lease = lease
        self.addresses = addresses

    def release(self) -> None:
        """Give the arena back; raises `StateError` the second time."""
        if self._lease is not None:
            self._lease.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.release()


class MemoryGroup(Locked):
    """Tensors whose memory is lent for the duration of a function.

    ``with group:`` acquires and releases. The order of `manage` and of each tensor's `allocate` says which are alive
    together.

    Parameters
    ----------
    memory_manager : MemoryManager, optional
        Without one, `manage` does nothing and tensors allocate memory of their own.

    Notes
    -----
    Ownership: holds an arena between `acquire` and `release`. Threads: `acquire` gives each tensor one address, so a
    second one before the release raises; `lease` gives every caller addresses of its own.
    Source: Arm Compute Library's MemoryGroup, as a behaviour.
    """

    def __init__(self, memory_manager: MemoryManager | None = None) -> None:
        super().__init__()
        self.memory_manager = memory_manager
        self._held: GroupLease | None = None

    @property
    def mappings(self) -> dict[object, tuple[int, int]]:
        """Blob number and offset in bytes of every tensor; those managed last are there when all are allocated."""
        if self.memory_manager is None:
            return {}
        places = self.memory_manager.lifetime_manager.places(self)
        return {handle: (place.blob, place.offset) for handle, place in places.items()}

    def manage(self, tensor: TensorAllocator) -> None:
        """Begin the lifetime of a tensor, which has memory of this group from now on.

        Parameters
        ----------
        tensor : TensorAllocator

        Raises
        ------
        InvalidArgumentError
            It is none.
        StateError
            It is managed by another group, has memory already, or its lifetime has begun.
        """
        check_instance("tensor", tensor, TensorAllocator)
        if self.memory_manager is None:
            return
        tensor.set_associated_memory_group(self)
        lifetimes = self.memory_manager.lifetime_manager
        lifetimes.register_group(self)
        lifetimes.start_lifetime(tensor, self)

    def finalize_memory(self, tensor: TensorAllocator, nbytes: int, alignment: int) -> None:
        """End the lifetime of a tensor of the group; called by its `allocate`.

        Parameters
        ----------
        tensor : TensorAllocator
        nbytes, alignment : int
            Unit: bytes.

        Raises
        ------
        StateError
            Its lifetime has not begun, or has ended.
        """
        if self.memory_manager is not None:
            self.memory_manager.lifetime_manager.end_lifetime(tensor, nbytes, alignment, self)

    def lease(self, timeout_s: float | None = None) -> GroupLease:
        """Memory for one execution, without touching the tensors: any number of threads may do so at once.

        Parameters
        ----------
        timeout_s : float, optional
            How long to wait for an arena; by default the pool's own time. Unit: seconds.

        Returns
        -------
        lease : GroupLease
            Addresses by tensor, until its `release`.

        Raises
        ------
        StateError
            There is no pool, it is too small for what was configured since, or a managed tensor is not allocated.
        OutOfMemoryError
            As `ArenaPool.lease`.
        """
        if self.memory_manager is None:
            return GroupLease(None, {})
        lifetimes = self.memory_manager.lifetime_manager
        if not lifetimes.is_finalized(self):
            raise StateError(explain("a managed tensor is not allocated", hint="allocate each before acquiring"))
        # what was freed since may get another size before it is managed again
        known = lifetimes.places(self).items()
        places = {handle: at for handle, at in known if not cast("TensorAllocator", handle).is_resizable}
        if not places:
            return GroupLease(None, {})
        pool = self.memory_manager.pool_manager.pool
        lease = pool.arenas.lease(timeout_s)
        try:
            return GroupLease(lease, pool.addresses(places, lease.address))
        except BaseException:
            lease.release()
            raise

    def acquire(self, timeout_s: float | None = None) -> None:
        """Back every tensor of the group with memory; does nothing for a group that manages none.

        Parameters
        ----------
        timeout_s : float, optional
            As for `lease`.

        Raises
        ------
        StateError
            The group is acquired already; otherwise as `lease`.
        """
        self._check_free()  # before the wait: what it waits for may be its own
        lease = self.lease(timeout_s)
        try:
            with self._lock:
                self._check_free()
                self._held = lease
                for tensor, address in lease.addresses.items():
                    tensor.address = address  # type: ignore[attr-defined]
        except StateError:
            lease.release()
            raise

    def _check_free(self) -> None:
        if self._held is not None:
            raise StateError(explain("the group is acquired already", hint="release it, or use lease() in each thread"))

    def release(self) -> None:
        """Take the memory back from the tensors; does nothing when the group is not acquired."""
        with self._lock:
            held, self._held = self._held, None
            for tensor in held.addresses if held is not None else ():
                tensor.address = None  # type: ignore[attr-defined]
        if held is not None:
            held.release()

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.release()
