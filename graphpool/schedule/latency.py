"""Measured latencies of stages, kept by what was run and not by where, in memory and on disk."""

from __future__ import annotations

import json
import math
import os
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from graphpool.errors import InvalidArgumentError, explain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

__all__ = ["LatencyCache", "checked_latency"]


class LatencyCache:
    """Latencies by the signatures of the operations that ran together.

    Parameters
    ----------
    path : path, optional
        A JSON file to start from; it need not exist yet. Nothing is written before `save`.

    Attributes
    ----------
    hits, misses : int
        Of `get_or_measure`.
    version : int
        Grows with every `put`: what was decided by the latencies may have to be decided anew.

    Raises
    ------
    InvalidArgumentError
        The file holds something else than latencies (field ``path``).

    Notes
    -----
    Ownership: keeps strings and numbers. Threads: safe; two threads that miss the same key at once both measure, and
    the first result stays. Cost: one dictionary access a hit. Keys are compared in full. Source: profile cache of RAF's
    and IOS's schedulers.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.path = None if path is None else Path(path)
        self.hits = 0
        self.misses = 0
        self.version = 0
        self._lock = threading.Lock()
        self._latencies = {} if self.path is None else _load(self.path)

    @staticmethod
    def key(lanes: Iterable[Sequence[str]]) -> str:
        """One string for what runs side by side: the order of the lanes does not matter, that inside a lane does."""
        return json.dumps(sorted(map(list, lanes)))

    def get_or_measure(self, key: str, measure: Callable[[], float]) -> float:
        """The latency under `key`, taken from `measure` the first time. No lock is held while it measures."""
        with self._lock:
            if key in self._latencies:
                self.hits += 1
                return self._latencies[key]
            self.misses += 1
        latency = measure()
        with self._lock:
            return self._latencies.setdefault(key, latency)

    def get(self, key: str) -> float | None:
        """The latency under `key`, if there is one."""
        with self._lock:
            return self._latencies.get(key)

    def put(self, key: str, latency: float) -> None:
        """Keep a latency that was measured elsewhere; raises `InvalidArgumentError` unless it is a time."""
        checked = checked_latency(latency, repr(key))
        with self._lock:
            self._latencies[key] = checked
            self.version += 1

    def save(self) -> None:
        """Write the file of `path` in one move, so that a reader sees the old one or the new one.

        Raises
        ------
        InvalidArgumentError
            The cache was made without a path.
        OSError
            The file cannot be written.
        """
        if self.path is None:
            raise InvalidArgumentError(explain("this latency cache has no file", hint="give it a path"), path=None)
        with self._lock:
            text = json.dumps(self._latencies, indent=0, sort_keys=True)
        handle, temporary = tempfile.mkstemp(dir=self.path.parent, prefix=self.path.name)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            Path(temporary).replace(self.path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise

    def __len__(self) -> int:
        return len(self._latencies)

    def __repr__(self) -> str:
        return f"LatencyCache({len(self)} latencies, {self.hits} hits, {self.misses} misses)"


def checked_latency(latency: object, what: str) -> float:
    """`latency` as a float; raises `InvalidArgumentError` unless it is finite and at least 0."""
    try:
        value = float(latency)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        value = math.nan
    if not 0 <= value < math.inf:
        message = explain(f"latency of {what} is no time", accepted="a finite number, at least 0", got=repr(latency))
        raise InvalidArgumentError(message, latency=latency)
    return value


def _load(path: Path) -> dict[str, float]:
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return {key: checked_latency(value, repr(key)) for key, value in content.items()}
    except (ValueError, AttributeError) as error:
        hint = "delete the file or name another"
        message = explain(
            f"{path} holds no latencies", accepted="the JSON that save() wrote", got=str(error), hint=hint
        )
        raise InvalidArgumentError(message, path=str(path)) from error
