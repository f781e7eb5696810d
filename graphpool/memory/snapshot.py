"""SnapshotResource: remembers who took memory when, and writes it in the format that PyTorch's memory viewer reads."""

from __future__ import annotations

import pickle
import sys
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphpool.errors import InvalidArgumentError, OutOfMemoryError, explain

from ._check import not_held
from .adaptors import Adaptor

if TYPE_CHECKING:
    from graphpool.typing import MemoryResource

_LARGE_NBYTES = 2**20
_PROTOCOL = 4  # the newest that the viewer unpickles


class SnapshotResource(Adaptor):
    """Records each allocation with its Python stack, and each event in a ring.

    Pass it to an engine as its allocator. Arenas, constants and tensors of the engine then are segments of the
    snapshot, each with one active block; what a plan places inside an arena is not an allocation and not shown.

    Parameters
    ----------
    upstream : MemoryResource
    max_entries : int, default=100_000
        Events to keep; the oldest are forgotten.
    depth : int, default=32
        Frames to keep of each stack, the innermost ones.

    Raises
    ------
    InvalidArgumentError
        `max_entries` is below 0, or `depth` below 1.

    Notes
    -----
    Ownership: keeps the upstream. Threads: safe. Cost: some microseconds an allocation; executions that lease what is
    there already are not seen and not slowed.
    Source: PyTorch's documentation, "Snapshot API Reference", for the format.

    Examples
    --------
    >>> from graphpool.memory import HostResource, SnapshotResource
    >>> resource = SnapshotResource(HostResource())
    >>> address = resource.allocate(4096)
    >>> [segment["total_size"] for segment in resource.snapshot()["segments"]]
    [4096]
    >>> resource.deallocate(address, 4096)
    """

    def __init__(self, upstream: MemoryResource, *, max_entries: int = 100_000, depth: int = 32) -> None:
        super().__init__(upstream)
        if not isinstance(max_entries, int) or max_entries < 0 or not isinstance(depth, int) or depth < 1:
            raise InvalidArgumentError(
                explain("max_entries and depth", accepted="ints from 0 and from 1 on", got=(max_entries, depth))
            )
        self._depth = depth
        self._live: dict[int, tuple[int, list[dict[str, Any]]]] = {}
        self._events: deque[dict[str, Any]] = deque(maxlen=max_entries)

    def allocate(self, nbytes: int, alignment: int = 64, stream: object = None) -> int:
        """Allocate from the upstream and record; a refusal is an event too."""
        frames = _stack(self._depth)
        try:
            address = self.upstream.allocate(nbytes, alignment, stream)
        except OutOfMemoryError as error:
            free = max((error.fields.get("limit") or 0) - (error.fields.get("in_use") or 0), 0)
            self._note("oom", 0, nbytes, frames, device_free=free)
            raise
        self._live[address] = nbytes, frames
        self._note("segment_alloc", address, nbytes, frames)
        self._note("alloc", address, nbytes, frames)
        return address

    def deallocate(self, address: int, nbytes: int, alignment: int = 64, stream: object = None) -> None:
        """Record and give back. The record goes first: the upstream may hand the address out again at once.

        Raises
        ------
        StateError
            Not live here, or of another size; the upstream is not called.
        """
        record = self._live.pop(address, None)
        if record is None or record[0] != nbytes:
            if record is not None:
                self._live[address] = record
            raise not_held("SnapshotResource", address, nbytes)
        frames = _stack(self._depth)
        for action in ("free_requested", "free_completed", "segment_free"):
            self._note(action, address, nbytes, frames)
        try:
            self.upstream.deallocate(address, nbytes, alignment, stream)
        except BaseException:
            self._live[address] = record
            raise

    def _note(self, action: str, address: int, nbytes: int, frames: list[dict[str, Any]], **more: int) -> None:
        event = {"action": action, "addr": address, "size": nbytes, "stream": 0, "frames": frames}
        self._events.append(event | {"time_us": time.time_ns() // 1000} | more)

    def snapshot(self) -> dict[str, Any]:
        """What is allocated now and what happened, as the viewer wants it.

        Returns
        -------
        snapshot : dict
            ``segments``: one for each live allocation; ``device_traces``: one list of events, oldest first. Sizes are
            in bytes, times in microseconds since 1970.
        """
        return {
            "segments": [_segment(address, *record) for address, record in sorted(self._live.copy().items())],
            "device_traces": [list(self._events)],
            "allocator_settings": {},
            "external_annotations": [],
        }

    def dump(self, path: str | Path) -> None:
        """Write the snapshot to a file, which docs.pytorch.org/memory_viz opens without sending it anywhere.

        Parameters
        ----------
        path : path
            Of a file, which is overwritten.

        Raises
        ------
        OSError
            The file cannot be written.
        """
        Path(path).write_bytes(pickle.dumps(self.snapshot(), protocol=_PROTOCOL))


def _segment(address: int, nbytes: int, frames: list[dict[str, Any]]) -> dict[str, Any]:
    block = {"address": address, "size": nbytes, "requested_size": nbytes, "state": "active_allocated"}
    return {
        "address": address,
        "total_size": nbytes,
        "allocated_size": nbytes,
        "active_size": nbytes,
        "requested_size": nbytes,
        "device": 0,
        "stream": 0,
        "segment_type": "large" if nbytes >= _LARGE_NBYTES else "small",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": frames,
        "blocks": [block | {"frames": frames}],
    }


def _stack(depth: int) -> list[dict[str, Any]]:
    """The Python frames of the caller's caller, innermost first."""
    frame = sys._getframe(2)
    found: list[dict[str, Any]] = []
    while frame is not None and len(found) < depth:
        found.append({"filename": frame.f_code.co_filename, "line": frame.f_lineno, "name": frame.f_code.co_name})
        frame = frame.f_back  # type: ignore[assignment]
    return found
