"""The figures that exporters report: names, units, and where each is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from graphpool._dataclasses import dataclass

from ..cache import compiled_partition_cache, constant_tensor_cache, primitive_cache
from ..errors import InvalidArgumentError, brief, explain
from ..fork import Locked
from ..runtime import Engine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    Samples = Iterable[tuple[dict[str, str], float]]
    Reader = Callable[["WatchedEngines"], Samples]

__all__ = ["FIGURES", "Figure", "WatchedEngines"]

_UNLIMITED = 1 << 62
_PARTS = ("packed", "constants", "programs", "forms", "arenas", "results", "states")


class WatchedEngines(Locked):
    """Engines by name, held weakly; those that were closed or collected are left out.

    Parameters
    ----------
    engines : Engine or mapping of str to Engine, optional
        One engine has the name of its device, ``cpu:0``.

    Raises
    ------
    InvalidArgumentError
        Neither of them.

    Notes
    -----
    Threads: safe.
    """

    def __init__(self, engines: Engine | Mapping[str, Engine] | None = None) -> None:
        super().__init__()
        self._engines: WeakValueDictionary[str, Engine] = WeakValueDictionary()
        if isinstance(engines, Mapping):
            for name, engine in engines.items():
                self.add(engine, name)
        elif engines is not None:
            self.add(engines)

    def add(self, engine: Engine, name: str | None = None) -> None:
        """One engine more; by default it has the name of its device.

        Raises
        ------
        InvalidArgumentError
            No engine, a name that is no string, or that of another engine that is open.
        """
        if not isinstance(engine, Engine):
            accepted = "an Engine, such as model.engine, or a mapping of names to engines"
            raise InvalidArgumentError(explain("engines", accepted=accepted, got=brief(engine)))
        if not isinstance(name, str | None):
            raise InvalidArgumentError(explain("name of an engine", accepted="a string", got=brief(name)))
        name = f"{engine.kind}:{engine.index}" if name is None else name
        with self._lock:
            known = self._engines.get(name)
            if known is not None and known is not engine and not known.is_closed:
                raise InvalidArgumentError(explain(f"{name!r} is the name of another engine", hint="give another name"))
            self._engines[name] = engine

    def __iter__(self) -> Iterator[tuple[str, Engine]]:
        with self._lock:
            engines = sorted(self._engines.items())
        return iter([(name, engine) for name, engine in engines if not engine.is_closed])


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure.

    Attributes
    ----------
    name : str
        Dots between its parts, without the unit.
    unit : {"bytes", "seconds", ""}
    only_grows : bool
        Whether it counts from the beginning of the process on, or of an engine.
    text : str
        What it is.
    read : callable
        Takes `WatchedEngines`; gives labels and values, which cost microseconds to milliseconds.
    """

    name: str
    unit: str
    only_grows: bool
    text: str
    read: Reader


def _engines(read: Callable[[Engine], float]) -> Reader:
    return lambda watched: [({"engine": name}, read(engine)) for name, engine in watched]


def _budgets(count: str) -> Reader:
    return _engines(lambda engine: getattr(engine.budget.stats(), count))


def _queues(count: str) -> Reader:
    return _engines(lambda engine: getattr(engine.queue.stats(), count))


def _limits(watched: WatchedEngines) -> Samples:
    limits = [({"engine": name}, engine.budget.limit) for name, engine in watched]
    return [(labels, limit) for labels, limit in limits if limit < _UNLIMITED]


def _holdings(watched: WatchedEngines) -> Samples:
    for name, engine in watched:
        for holder, nbytes in engine.budget.holdings().items():
            yield {"engine": name, "holder": holder}, nbytes


def _model_nbytes(watched: WatchedEngines) -> Samples:
    for name, engine in watched:
        found: Counter[tuple[str, str]] = Counter()
        for usage in engine.models():
            for part in _PARTS:
                found[usage.name, part] += getattr(usage, f"{part}_nbytes")
        for (model, part), nbytes in found.items():
            yield {"engine": name, "model": model, "part": part}, nbytes


def _models(count: str) -> Reader:
    def samples(watched: WatchedEngines) -> Samples:
        for name, engine in watched:
            for model, counts in engine.model_memory.counts().items():
                yield {"engine": name, "model": model}, getattr(counts, count)

    return samples


def _caches(count: str) -> Reader:
    def samples(watched: WatchedEngines) -> Samples:
        caches: dict[str, Any] = {"primitives": primitive_cache(), "compiled partitions": compiled_partition_cache()}
        for kind, index in sorted({(engine.kind, engine.index) for _, engine in watched}):
            caches[f"constants of {kind}:{index}"] = constant_tensor_cache(kind, index)
        for name, cache in caches.items():
            value = getattr(cache.stats(), count)
            if value is not None:
                yield {"cache": name}, value

    return samples


def _gauge(name: str, unit: str, text: str, read: Reader) -> Figure:
    return Figure(name, unit, False, text, read)


def _count(name: str, unit: str, text: str, read: Reader) -> Figure:
    return Figure(name, unit, True, text, read)


FIGURES: tuple[Figure, ...] = (
    _gauge("budget.limit", "bytes", "memory_limit of the engine; absent where there is none", _limits),
    _gauge("budget.in_use", "bytes", "what the engine's budget counts, by what holds it", _holdings),
    _gauge("budget.peak", "bytes", "the most that it counted at once", _engines(lambda e: e.budget.peak)),
    _count("budget.reclaims", "", "times that holders were asked for memory", _budgets("reclaims")),
    _count("budget.refusals", "", "requests that did not fit in the end", _budgets("refusals")),
    _gauge("arenas.leased", "bytes", "arenas that runs are using now", _engines(lambda e: e.budget.pending)),
    _count("allocations", "", "arenas, constants and tensors allocated", _engines(lambda e: e.stats().total_count)),
    _count("allocated", "bytes", "their size", _engines(lambda e: e.stats().total_nbytes)),
    _gauge("queue.waiting", "", "runs and loads that wait for memory", _queues("waiting")),
    _count("queue.waits", "", "runs and loads that had to wait", _queues("waits")),
    _count("queue.wait", "seconds", "how long, all together", _queues("waited_s")),
    _count("queue.timeouts", "", "those that waited in vain", _queues("timeouts")),
    _gauge("models", "", "models that are open", _engines(lambda e: len(e.models()))),
    _gauge("model", "bytes", "what open models hold; shared parts count at each", _model_nbytes),
    _count("runs", "", "runs of models that ended", _models("runs")),
    _count("compilations", "", "how often models were compiled", _models("compilations")),
    _count("cache.hits", "", "lookups that found a value", _caches("hits")),
    _count("cache.misses", "", "lookups that did not", _caches("misses")),
    _count("cache.evictions", "", "entries that have left", _caches("evictions")),
    _count("cache.declined", "", "newcomers that did not fit", _caches("declined")),
    _gauge("cache.entries", "", "entries of a cache", _caches("entries")),
    _gauge("cache.size", "bytes", "what they are charged", _caches("nbytes")),
    _gauge("cache.entries_limit", "", "most entries; absent where there is no bound", _caches("capacity")),
    _gauge("cache.limit", "bytes", "most bytes; absent where there is no bound", _caches("capacity_nbytes")),
)
"""All of them; those of one moment may be of slightly different moments where other threads work meanwhile."""
