"""The caches of this process, made when they are first used: of primitives, of compiled partitions, of constants.

A capacity set by a function beats the environment variable, which is read once, which beats the default. Constants have
one cache for each (engine kind, device index); a capacity set for a kind holds for each of its devices.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections import Counter
from numbers import Integral
from typing import TYPE_CHECKING, Any

from graphpool._dataclasses import dataclass, field

from .. import config
from ..errors import InvalidArgumentError, brief, explain
from ..fork import reset_in_child
from ..mapped_file import can_identify
from .constants import ConstantTensorCache
from .lru import LruCache
from .policies import Policy, make_policy

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ..typing import MemoryResource
    from ._handle import ConstantBuffer
    from .identity import PackedKey
    from .packed_folder import PackedStore
    from .policies import PolicySource
    from .sealed_store import SealedStore

    PackedSource = PackedStore | SealedStore

ENGINE_KINDS = ("cpu", "gpu")
MB = 2**20
UNLIMITED_MB = (2**64 - 1) // MB
"""What an unlimited capacity reads as, like oneDNN's largest size in megabytes. Unit: 2**20 bytes."""


@dataclass(eq=False)
class _Caches:
    """All caches of the process. Its lock is held while they are made, never while they are used or flushed."""

    lock: Any = field(default_factory=threading.RLock)
    lru: dict[str, LruCache[Any, Any]] = field(default_factory=dict)
    constants: dict[tuple[str, int], ConstantTensorCache] = field(default_factory=dict)
    settings: dict[str, tuple[int, PolicySource | None]] = field(
        default_factory=dict
    )  # of kinds, by function: MB, policy
    stores: list[PackedStore | None] = field(default_factory=list)  # the one in use, once that was asked for or set
    programs: list[PackedStore | None] = field(default_factory=list)  # likewise, where there is no such store
    borrowed: Counter[PackedSource] = field(default_factory=Counter)  # where shared models find theirs: users of each

    def __post_init__(self) -> None:
        reset_in_child(self)

    def _reset_in_child(self) -> None:
        self.lock = threading.RLock()

    def lru_cache(self, name: str) -> LruCache[Any, Any]:
        with self.lock:
            if name not in self.lru:
                self.lru[name] = LruCache(config.get(f"{name}_capacity"), name=name.replace("_", " "))
            return self.lru[name]

    def setting(self, kind: str) -> tuple[int, PolicySource | None]:
        return self.settings.get(kind) or _configured(kind)


_caches = _Caches()


@atexit.register
def _let_go_of_constants() -> None:
    """Give constants back while what their resources are made of still works."""
    for cache in _caches.constants.values():
        cache.clear()


# ---- primitives and compiled partitions


def primitive_cache() -> LruCache[Any, Any]:
    """The cache of primitives. Keys and values are the backends'.

    Returns
    -------
    LruCache
    """
    return _caches.lru_cache("primitive_cache")


def compiled_partition_cache() -> LruCache[Any, Any]:
    """The cache of compiled partitions.

    Returns
    -------
    LruCache
    """
    return _caches.lru_cache("compiled_partition_cache")


def set_primitive_cache_capacity(entries: int, *, nbytes: int | str | None = None) -> None:
    """Bound the cache of primitives; those used longest ago leave at once if they are too many.

    Parameters
    ----------
    entries : int
        Unit: entries; 0 disables the cache.
    nbytes : int or str, optional
        Unit: bytes; None sets no bound in bytes.

    Raises
    ------
    InvalidArgumentError
        No count or no size; nothing is changed.
    """
    primitive_cache().resize(entries, nbytes=nbytes)


def get_primitive_cache_capacity() -> int:
    """Most entries of the cache of primitives: 1024 unless set. Unit: entries.

    Returns
    -------
    int
    """
    return primitive_cache().capacity


def set_compiled_partition_cache_capacity(entries: int, *, nbytes: int | str | None = None) -> None:
    """Bound the cache of compiled partitions; those used longest ago leave at once if they are too many.

    Parameters
    ----------
    entries : int
        Unit: entries; 0 disables the cache.
    nbytes : int or str, optional
        Unit: bytes; None sets no bound.

    Raises
    ------
    InvalidArgumentError
        No count or no size; nothing is changed.
    """
    compiled_partition_cache().resize(entries, nbytes=nbytes)


def get_compiled_partition_cache_capacity() -> int:
    """Most entries of the cache of compiled partitions: 1024 unless set. Unit: entries.

    Returns
    -------
    int
    """
    return compiled_partition_cache().capacity


# ---- constants


def constant_tensor_cache(kind: str, index: int = 0) -> ConstantTensorCache:
    """The constant tensor cache of one device.

    Parameters
    ----------
    kind : str
        ``"cpu"`` or ``"gpu"``.
    index : int, default=0
        Which device of that kind.

    Returns
    -------
    cache : ConstantTensorCache
        Made when it is first asked for, with the capacity that was set or that the environment tells.

    Raises
    ------
    InvalidArgumentError
        Unknown kind or impossible index, or the environment variable is malformed or names an unknown policy.
    """
    _check_device(kind, index)
    with _caches.lock:
        cache = _caches.constants.get((kind, index))
        if cache is None:
            megabytes, policy = _caches.setting(kind)
            name = f"constant tensor cache of {kind}:{index}"
            cache = ConstantTensorCache(_nbytes(megabytes), policy=policy, name=name)
            _caches.constants[kind, index] = cache
        return cache


def set_constant_tensor_cache_capacity(
    kind: str,
    megabytes: int | None,
    *,
    index: int | None = None,
    policy: PolicySource | None = None,
) -> None:
    """Set how much memory constants may take on each device of a kind; safe at any moment, whatever runs.

    All constants of these devices are evicted, also if the capacity grows; executions that use them end undisturbed.
    `ConstantTensorCache.resize` changes a capacity without that.

    Parameters
    ----------
    kind : {"cpu", "gpu"}
    megabytes : int or None
        For each device. Unit: 2**20 bytes; 0 disables the cache; None, or `UNLIMITED_MB` and more, sets no bound.
    index : int, optional
        One device; by default all of the kind, those to come included.
    policy : str, callable or Policy, optional
        Who leaves a full cache: ``"no_evict"`` (at first), ``"lru"``, ``"cost"``, the name of an installed one, a class
        or function that makes one for each device, or an object of your own, which serves one device only; None leaves
        the policy as it is.

    Raises
    ------
    InvalidArgumentError
        Unknown kind, impossible index, no count, unknown policy, or an object for several devices; nothing is changed.
    BackendError
        A class or function of yours failed; nothing is changed.
    """
    _check_device(kind, index or 0)
    limit = _check_megabytes(megabytes)
    if index is None and isinstance(policy, Policy) and not isinstance(policy, type):
        raise InvalidArgumentError(
            explain(
                "a policy object keeps the books of one cache",
                accepted="a name, a factory, or index= as well",
                got=policy,
            )
        )
    make_policy(policy)  # refuses before anything is changed
    if index is not None:
        constant_tensor_cache(kind, index).set_capacity(_nbytes(limit), policy=policy)
        return
    with _caches.lock:
        chosen = _caches.setting(kind)[1] if policy is None else policy
        _caches.settings[kind] = (limit, chosen)
        devices = [cache for (k, _), cache in _caches.constants.items() if k == kind]
    for cache in devices:
        cache.set_capacity(_nbytes(limit), policy=policy)


def get_constant_tensor_cache_capacity(kind: str, index: int = 0) -> int:
    """How much memory constants may take on a device.

    Parameters
    ----------
    kind : str
        ``"cpu"`` or ``"gpu"``.
    index : int, default=0
        Which device of that kind.

    Returns
    -------
    megabytes : int
        Unit: 2**20 bytes, rounded down; `UNLIMITED_MB` is no bound.

    Raises
    ------
    InvalidArgumentError
        As `constant_tensor_cache`.
    """
    nbytes = constant_tensor_cache(kind, index).capacity_nbytes
    return UNLIMITED_MB if nbytes is None else nbytes // MB


def set_constant_tensor_cache(flag: bool | int) -> None:
    """Turn the constant tensor caches of all kinds on, with the configured or else no bound, or off; flushes them.

    Parameters
    ----------
    flag : bool or {0, 1}

    Raises
    ------
    InvalidArgumentError
        Anything else; nothing is changed.
    """
    if not isinstance(flag, int) or flag not in (0, 1):
        raise InvalidArgumentError(explain("flag", accepted="0 or 1", got=brief(flag)), flag=flag)
    for kind in ENGINE_KINDS:
        set_constant_tensor_cache_capacity(kind, _configured(kind)[0] if flag else 0)


def get_constant_tensor_cache() -> bool:
    """Whether the constant tensor cache of any kind is on.

    Returns
    -------
    bool
    """
    return any(get_constant_tensor_cache_capacity(kind) > 0 for kind in ENGINE_KINDS)


# ---- packed weights


def packed_store() -> PackedStore | None:
    """The folder that keeps packed weights for all processes: the one set, else that of the environment, else None.

    Returns
    -------
    PackedStore or None

    Raises
    ------
    InvalidArgumentError
        The environment variable names no folder.
    """
    return _chosen(_caches.stores, lambda: _open_named(config.get("packed_store")))


def program_store() -> PackedStore | None:
    """Where compiled programs are kept: with weights in the packed store, else in the folder of programs, else nowhere.

    Returns
    -------
    PackedStore or None

    Raises
    ------
    InvalidArgumentError
        As `packed_store`.
    """
    store = packed_store()
    if store is not None:
        return store
    return _chosen(_caches.programs, lambda: _open_programs(config.program_folder()))


def _chosen(stores: list[PackedStore | None], find: Callable[[], PackedStore | None]) -> PackedStore | None:
    """The store in use, which the first who asks finds."""
    with _caches.lock:
        if not stores:
            stores.append(find())
        return stores[0]


def _open_named(path: str | None) -> PackedStore | None:
    return None if path is None else open_folder(path)


def _open_programs(path: str | None) -> PackedStore | None:
    from .program_folder import ProgramFolder

    return None if path is None or not can_identify() else ProgramFolder(path)


def open_folder(store: PackedStore | str | Path) -> PackedStore:
    """The store itself, or that of a path."""
    from .packed_folder import PackedStore

    if isinstance(store, PackedStore):
        return store
    if not isinstance(store, str | os.PathLike):
        raise InvalidArgumentError(
            explain("store", accepted="a PackedStore, or the path of a folder", got=brief(store))
        )
    return PackedStore(store)


def set_packed_store(store: PackedStore | str | Path | None) -> None:
    """Keep packed weights in a folder from now on; constants that are cached already stay as they are.

    Parameters
    ----------
    store : PackedStore, str, Path or None
        A store, or the path of a folder; None for none, whatever the environment says.

    Raises
    ------
    InvalidArgumentError
        Not a folder; nothing is changed.
    """
    chosen = store if store is None else open_folder(store)
    with _caches.lock:
        _caches.stores[:] = [chosen]


def set_program_folder(path: str | Path | None) -> None:
    """Keep compiled programs in a folder from now on, where there is no packed store.

    Parameters
    ----------
    path : str, Path or None
        Of a folder, which is made when it is needed; None to keep none, whatever the environment says.

    Raises
    ------
    InvalidArgumentError
        Not a path; nothing is changed.
    """
    if path is not None and not isinstance(path, str | os.PathLike):
        raise InvalidArgumentError(explain("folder of programs", accepted="the path of a folder", got=brief(path)))
    chosen = _open_programs(None if path is None else os.fspath(path))
    with _caches.lock:
        _caches.programs[:] = [chosen]


def borrow_packed(source: PackedSource) -> None:
    """Look for packed weights in `source` too, until `return_packed` was called as often."""
    with _caches.lock:
        _caches.borrowed[source] += 1


def return_packed(source: PackedSource) -> None:
    """Take back one `borrow_packed`."""
    with _caches.lock:
        _caches.borrowed[source] -= 1
        if _caches.borrowed[source] <= 0:
            del _caches.borrowed[source]


def has_packed() -> bool:
    """Whether there is anywhere to look for packed weights."""
    return bool(_caches.borrowed) or packed_store() is not None


def find_packed(key: PackedKey, resource: MemoryResource | None) -> ConstantBuffer | None:
    """A packed weight of whoever has it, or None; see `PackedStore.get`."""
    store = packed_store()
    with _caches.lock:
        sources = [*_caches.borrowed, *([] if store is None or store in _caches.borrowed else [store])]
    return next(filter(None, (source.get(key, resource) for source in sources)), None)


def _configured(kind: str) -> tuple[int, str | None]:
    """Megabytes and policy of a kind as the environment has them, or the defaults."""
    found: tuple[int, str | None] = config.get("constant_tensor_cache_capacity").get(kind, (UNLIMITED_MB, None))
    return found


def _nbytes(megabytes: int) -> int | None:
    return None if megabytes >= UNLIMITED_MB else megabytes * MB


def _check_device(kind: str, index: int) -> None:
    if kind not in ENGINE_KINDS:
        raise InvalidArgumentError(explain("engine kind", accepted=", ".join(ENGINE_KINDS), got=brief(kind)), kind=kind)
    if not isinstance(index, int) or isinstance(index, bool) or index < 0:
        raise InvalidArgumentError(explain("device index", accepted="an int >= 0", got=brief(index)), index=index)


def _check_megabytes(megabytes: int | None) -> int:
    if megabytes is None:
        return UNLIMITED_MB
    if not isinstance(megabytes, Integral) or isinstance(megabytes, bool) or megabytes < 0:
        accepted, hint = "megabytes as an int >= 0, or None for no bound", "resize of the cache takes sizes with units"
        raise InvalidArgumentError(explain("capacity", accepted=accepted, got=brief(megabytes), hint=hint))
    return min(int(megabytes), UNLIMITED_MB)
