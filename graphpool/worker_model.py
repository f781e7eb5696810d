"""A model that goes to the processes of other machines, and is opened once in each that uses it."""

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
        Folder of the worker's machine in which packed weights are kept once for all its processes; a process that opens
        the model of a pickle uses it if it has no packed store yet. ``~`` is the home there.

    Notes
    -----
    Ownership: in a process that has loaded pickles, one model for all of one content, opened when it is first asked
    for, since schedulers load what only workers run, and closed when nobody has it and some others were opened since;
    else it is the caller's. Threads: safe. Cost: a read of the weights that are not in files, for their name, at the
    first pickle.
    """

    def __init__(self, model: Model, store: str | None = None) -> None:
        self._model: Model | None = model
        self._store = store
        self._payload: Payload | None = None

    @classmethod
    def _of(cls, payload: Payload, store: str | None) -> WorkerModel:
        """Of a pickle; its model is not open yet."""
        self = cls.__new__(cls)
        self._model, self._store, self._payload = None, store, payload
        return self

    @property
    def model(self) -> Model:
        """The model, open."""
        return self._model or _open_models.open(self)

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
    """Models of pickles that this process has loaded, one for all of one content; open are those that were used."""

    def __init__(self) -> None:
        super().__init__()
        self._by_digest: WeakValueDictionary[bytes, WorkerModel] = WeakValueDictionary()
        self._recent: deque[WorkerModel] = deque(maxlen=_MOST_IDLE)

    def find(self, payload: Payload, store: str | None) -> WorkerModel:
        """The one of this content."""
        with self._lock:
            found = self._by_digest.setdefault(payload[0], WorkerModel._of(payload, store))
            if found._model is not None:
                self._keep(found)
        return found

    def open(self, found: WorkerModel) -> Model:
        """Its model, opened if nobody did."""
        with self._lock:
            if found._model is None:
                store = found._store
                if store is not None and packed_store() is None:
                    set_packed_store(Path(store).expanduser())
                assert found._payload is not None
                _, text, buffers = found._payload
                model: Model = pickle.loads(text, buffers=buffers)  # noqa: S301 - a part of one that was loaded
                finalize(found, model.close)
                found._model = model  # whole: a child may be forked at any moment
            self._keep(found)
            return found._model

    def _keep(self, found: WorkerModel) -> None:
        if found not in self._recent:
            self._recent.append(found)


_open_models = _OpenModels()


def _load(digest: bytes, text: bytes, buffers: Sequence[Any], store: str | None) -> WorkerModel:
    return _open_models.find((digest, text, list(buffers)), store)
