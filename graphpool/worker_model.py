"""A model that goes to the processes of other machines, and is opened once in each."""

from __future__ import annotations

import pickle
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary, finalize

from .cache import packed_store, set_packed_store
from .cache.identity import digest_of
from .fork import Locked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .runtime import Model

    Payload = tuple[bytes, bytes, list[Any]]
    """Digest, pickle, and the buffers beside it."""

__all__ = ["DEFAULT_STORE", "WorkerModel"]

DEFAULT_STORE = "~/.cache/graphpool/packed"
"""Folder of a worker's machine for packed weights, where neither the caller nor its environment names one."""

_MOST_IDLE = 4
"""Models that a process keeps open though nobody has them: engines drop a task's objects before the next task."""


class WorkerModel:
    """A model, and how the processes that load its pickle open it.

    Parameters
    ----------
    model : Model
    store : str, optional
        Folder of the worker's machine in which packed weights are kept once for all its processes; a process that loads
        the pickle uses it if it has no packed store yet. ``~`` is the home there.

    Attributes
    ----------
    model : Model

    Notes
    -----
    Ownership: in a process that has loaded pickles, one model for all of one content, closed when nobody has it and
    some others were loaded since; else it is the caller's. Threads: safe. Cost: a read of the weights that are not in
    files, for their name, at the first pickle.
    """

    def __init__(self, model: Model, store: str | None = None) -> None:
        self.model = model
        self._store = store
        self._payload: Payload | None = None

    def predict_nbytes(self) -> int:
        """What one run at a time takes at most, weights in mapped files included. Unit: bytes.

        Raises `InvalidArgumentError` where the model has sizes that are neither static nor declared.
        """
        peak = self.model.predict_peak()
        return int(peak) + peak.mapped_nbytes

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        if self._payload is None:
            buffers: list[pickle.PickleBuffer] = []
            text = pickle.dumps(self.model, 5, buffer_callback=buffers.append)
            digests = [digest_of(text), *(digest_of(buffer.raw()) for buffer in buffers)]
            self._payload = digest_of(b"".join(digests)), text, buffers
        digest, text, data = self._payload
        parts = [pickle.PickleBuffer(part) if protocol >= 5 else bytes(part) for part in data]
        return _load, (digest, text, parts, self._store)


class _OpenModels(Locked):
    """Models of pickles that this process has loaded, one for all of one content."""

    def __init__(self) -> None:
        super().__init__()
        self._by_digest: WeakValueDictionary[bytes, WorkerModel] = WeakValueDictionary()
        self._recent: deque[WorkerModel] = deque(maxlen=_MOST_IDLE)

    def load(self, digest: bytes, text: bytes, buffers: Sequence[Any], store: str | None) -> WorkerModel:
        with self._lock:
            if store is not None and packed_store() is None:
                set_packed_store(Path(store).expanduser())
            opened = self._by_digest.get(digest)
            if opened is None:
                # a part of the pickle that is being loaded
                opened = WorkerModel(pickle.loads(text, buffers=buffers), store)  # noqa: S301
                opened._payload = digest, text, list(buffers)
                finalize(opened, opened.model.close)
                self._by_digest[digest] = opened  # whole: a child may be forked at any moment
            if opened not in self._recent:
                self._recent.append(opened)
        return opened


_open_models = _OpenModels()


def _load(digest: bytes, text: bytes, buffers: Sequence[Any], store: str | None) -> WorkerModel:
    return _open_models.load(digest, text, buffers, store)
