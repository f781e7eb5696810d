"""Measured latencies of stages, kept by what was run and not by where, in memory and on disk."""

from __future__ import annotations

import itertools
import math
import os
import threading
from typing import TYPE_CHECKING

from graphpool.errors import InvalidArgumentError, brief, explain

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path


class LatencyCache:
    """Latencies by the signatures of the operations that ran together.

    Starts from the JSON file at `path`, if it exists; nothing is written before `save`. Latencies of a file from
    another `machine` are left alone, and replaced by `save`. Beyond `capacity`, the one that was not asked for the
    longest goes first. `version` grows with every `put`: what was decided by the latencies may have to be decided anew.

    Raises `InvalidArgumentError` where the file holds something else (field ``path``), or `capacity` is below 1.
    Threads: safe. Cost: one dictionary access; keys are compared in full. Source: profile cache of RAF's and IOS's
    schedulers.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, *, machine: str = "", capacity: int = 65536) -> None:
        if not isinstance(capacity, int) or isinstance(capacity, bool) or capacity < 1:
            message = explain("capacity", accepted="an int of at least 1", got=brief(capacity))
            raise InvalidArgumentError(message, capacity=capacity)
        self.path: Path | None = None
        if path is not None:
            from pathlib import Path

            self.path = Path(path)
        self.machine = machine
        self.capacity = capacity
        self.version = 0
        self._lock = threading.Lock()
        self._latencies: dict[str, float] = {}
        if self.path is not None:
            self._latencies = dict(itertools.islice(_load(self.path, machine).items(), capacity))

    @staticmethod
    def key(streams: Iterable[Sequence[str]]) -> str:
        """One string for what runs side by side: the order of the streams does not matter, that in a stream does."""
        import json  # not by all who ask whether anything was measured

        return json.dumps(sorted(map(list, streams)))

    def get(self, key: str) -> float | None:
        """The latency under `key`, if there is one."""
        with self._lock:
            found = self._latencies.pop(key, None)
            if found is not None:
                self._latencies[key] = found  # as the one asked for last
            return found

    def put(self, key: str, latency: float) -> None:
        """Keep a latency that was measured; raises `InvalidArgumentError` unless it is a time."""
        checked = checked_latency(latency, repr(key))
        with self._lock:
            self._latencies.pop(key, None)
            self._latencies[key] = checked
            while len(self._latencies) > self.capacity:
                del self._latencies[next(iter(self._latencies))]
            self.version += 1

    def save(self) -> None:
        """Write the file of `path` in one move, so that a reader sees the old one or the new one.

        What other processes have saved there in the meantime stays, as far as it fits the capacity. Raises
        `InvalidArgumentError` where the cache was made without a path.
        """
        import json
        import tempfile  # which brings in ten modules more
        from pathlib import Path

        if self.path is None:
            raise InvalidArgumentError(explain("this latency cache has no file", hint="give it a path"), path=None)
        others = _load(self.path, self.machine)
        with self._lock:
            own = dict(self._latencies)
        new = ((key, latency) for key, latency in others.items() if key not in own)
        own |= itertools.islice(new, self.capacity - len(own))
        text = json.dumps({"machine": self.machine, "latencies": own}, indent=0, sort_keys=True)
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
        return f"LatencyCache({len(self)} latencies)"


def checked_latency(latency: object, what: str) -> float:
    """`latency` as a float; raises `InvalidArgumentError` unless it is finite and at least 0."""
    try:
        value = float(latency)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        value = math.nan
    if not 0 <= value < math.inf:
        message = explain(f"latency of {what} is no time", accepted="a finite number, at least 0", got=brief(latency))
        raise InvalidArgumentError(message, latency=latency)
    return value


def _load(path: Path, machine: str) -> dict[str, float]:
    """What the file holds, if there is one and it is of this machine."""
    import json

    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        latencies = {key: checked_latency(value, repr(key)) for key, value in content["latencies"].items()}
        return latencies if content["machine"] == machine else {}
    except (ValueError, AttributeError, TypeError, KeyError) as error:
        hint = "delete the file or name another"
        message = explain(
            f"{path} holds no latencies", accepted="the JSON that save() wrote", got=str(error), hint=hint
        )
        raise InvalidArgumentError(message, path=str(path)) from error
