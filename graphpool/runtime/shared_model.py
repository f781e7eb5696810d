"""`share`: the weights of a model once for all processes of a machine, and a handle by which they find them."""

from __future__ import annotations

import pickle
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from graphpool._collection import collection_paused
from graphpool._dataclasses import NamedTuple
from graphpool.cache import ConstantBuffer, PackedKey, packed_store
from graphpool.cache.identity import Fingerprint, digest_of, digest_of_text
from graphpool.cache.process import open_folder
from graphpool.cache.sealed_store import SealedName, SealedStore
from graphpool.errors import InvalidArgumentError, StateError, explain
from graphpool.mapped_file import ReadMapping

from .constant_memory import memory_of, read_as, reading_of
from .constant_part import address_of
from .engine import Engine
from .file_arrays import open_references, refer_to_files
from .model import Model
from .model_step import ALIGNMENT
from .stored_forms import SharedForms, StoredForm, StoredSpecialiser, build_name

if TYPE_CHECKING:
    from pathlib import Path

    from graphpool.cache import PackedStore

__all__ = ["SharedModel", "share"]

_LEAST_NBYTES = 64 * 2**10
"""Arrays from this size on have names of their own. Unit: bytes."""


class SharedModel:
    """A handle of a model that other processes open, made by `share`; it pickles in less than 5 KB.

    Attributes
    ----------
    name : str
        Of the model, its first 100 characters.

    Notes
    -----
    Ownership: the handle, its copies in other processes and the models opened through them hold the anonymous memory
    together; it is gone with the last of them, or with the last process. A folder stays. As a context manager the
    handle is closed at the end. Threads: safe. In a forked process the handle is usable as it is.
    """

    def __init__(self, name: str, store: PackedStore | SealedStore | SealedName, description: PackedKey) -> None:
        self.name = name[:100]  # whatever a file says
        self._store: PackedStore | SealedStore | SealedName | None = store
        self._description = description
        if isinstance(store, SealedName):
            with suppress(StateError):  # from now on this process holds it; `open` tells if it is gone
                self._store = SealedStore.open(store)

    @property
    def nbytes(self) -> int | None:
        """Size of the anonymous memory; None where a folder has the weights. Unit: bytes."""
        store = self._open_store
        return store.nbytes if isinstance(store, SealedStore | SealedName) else None

    @property
    def _open_store(self) -> PackedStore | SealedStore | SealedName:
        store = self._store
        if store is None:
            raise StateError(explain(f"the handle of shared model {self.name!r} is closed", hint="share it again"))
        return store

    @collection_paused()
    def open(self, *, engine: Engine | None = None) -> Model:
        """The model, over the shared weights.

        Parameters
        ----------
        engine : Engine, optional
            Where it runs; by default one of its own with the options of the shared model's engine, which it closes.

        Returns
        -------
        model : Model
            Compiled already if all input shapes are static or declared.

        Raises
        ------
        InvalidArgumentError
            `engine` is none.
        StateError
            The handle is closed, the memory or the folder does not have the model any more, or a file of the model was
            changed since, which the message names.
        OutOfMemoryError
            It does not fit the engine's limit.
        OSError
            A file of the model is not there or cannot be read.

        Notes
        -----
        Close the model, or use it as a context manager. Threads: safe. Cost: that of mapping; what the sharing process
        has compiled and packed is used as it is, in an engine like its own. For other shapes the importer is asked.
        """
        if engine is not None and not isinstance(engine, Engine):
            raise InvalidArgumentError(explain("engine", accepted="an Engine, or None", got=type(engine).__name__))
        store = self._open_store
        if isinstance(store, SealedName):
            store = SealedStore.open(store)
        # pickles of the process that made this handle, which is one itself
        make, inputs, outputs, own, importer, forms = pickle.loads(self._text(store, self._description))  # noqa: S301
        specialise = self._specialiser(store, importer, forms)
        used = pickle.loads(own) if engine is None else engine  # noqa: S301
        model: Model = make(inputs, outputs, specialise, used, owns_engine=engine is None, packed=store)
        try:
            if model.is_static:
                model.specialise()
        except BaseException:
            model.close()
            raise
        return model

    def _specialiser(self, store: PackedStore | SealedStore, importer: _Text, forms: _Text | None) -> Any:
        """The importer's, which is opened where a shape was not compiled by the sharing process."""
        if forms is None:
            return self._load(store, importer)
        build, context, written, references, readings = self._load(store, forms)
        if build != build_name():
            return self._load(store, importer)
        memory = open_references(references).values()
        told = [StoredForm(pattern, sizes, self._text(store, key), own) for pattern, sizes, key, own in written]
        shared = SharedForms(context, told, [read_as(*pair) for pair in zip(memory, readings, strict=True)])
        return StoredSpecialiser(None, partial(self._load, store, importer), shared)

    def _load(self, store: PackedStore | SealedStore, text: _Text) -> Any:
        """What a pickle of the sharing process holds."""
        own = self._text(store, text.own)
        buffers: list[Any] = []
        for place in pickle.loads(own[text.places :]):  # noqa: S301
            if isinstance(place, PackedKey):
                buffers.append(self._content(store, place))
                _name_content(buffers[-1], place)
            else:
                buffers.append(own[slice(*place)])
        return pickle.loads(own[text.content :], buffers=map(memoryview, buffers))  # noqa: S301

    def _text(self, store: PackedStore | SealedStore, key: PackedKey) -> memoryview:
        """What can do whatever code can: it is that of which the handle has the digest, or refused."""
        text = self._content(store, key)
        if digest_of_text(text) != key.content.digest:
            raise self._is_gone(store)
        return memoryview(text)

    def _content(self, store: PackedStore | SealedStore, key: PackedKey) -> ConstantBuffer:
        buffer = store.get(key)
        if buffer is None:
            raise self._is_gone(store)
        return buffer

    def _is_gone(self, store: PackedStore | SealedStore) -> StateError:
        hint = "share the model again; a store that is full removes what was used longest ago"
        return StateError(explain(f"shared model {self.name!r} is not in {store!r}", hint=hint))

    def close(self) -> None:
        """Let go of the memory: this handle opens nothing more, its copies and opened models stay. Idempotent."""
        self._store = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        store = self._open_store
        return SharedModel, (self.name, store.name if isinstance(store, SealedStore) else store, self._description)

    def __repr__(self) -> str:
        return f"<SharedModel {self.name!r}{', closed' if self._store is None else f' in {self._store!r}'}>"


def share(model: Model, *, store: PackedStore | str | Path | None = None) -> SharedModel:
    """Put the weights of a model where all processes of the machine can map them, once.

    Parameters
    ----------
    model : Model
        Open, and compiled for the shapes to come: run it, call `Model.specialise`, or declare shapes. It uses the
        shared weights itself from now on.
    store : PackedStore, str or Path, optional
        A folder, which outlives all processes. By default the one of `GRAPHPOOL_PACKED_STORE` or
        `graphpool.cache.set_packed_store`; without either anonymous memory, which is gone with the last process that
        has it.

    Returns
    -------
    handle : SharedModel
        Give it to other processes as an argument, and call its `open` there. It works in those that were forked,
        started by a fork server, or started anew.

    Raises
    ------
    InvalidArgumentError
        Not a model, not a folder, or the folder's capacity is too small.
    StateError
        The model is closed, nothing of it is compiled, or its file was changed in place.
    OutOfMemoryError
        There is no memory for them.
    UnsupportedError
        The system has no anonymous memory that can be sealed: Linux has.
    TypeError
        The model, or its engine, does not pickle.

    Notes
    -----
    Shared are packed weights, what was compiled, and constants that lie in memory; those in mapped files stay there,
    and processes map the files, whose content is checked when they are opened. Not shared are what a process packs for
    shapes that were not known here, steps that the host runs, arenas, results, and what the interpreter has. A model
    with ``weights="packed"`` keeps its own copy, and is compiled by each process. Budgets do not count shared weights,
    which every process would; `Engine.process_report` and the resident size that is predicted do. A model of bytes or
    of a ModelProto keeps its plain weights beside them until it is closed.
    Ownership: the model and the handle hold the memory. Threads: safe; runs may be going on. Cost: a read of all
    weights for their names, and a write of the packed ones.

    Examples
    --------
    >>> import graphpool as gp
    >>> from graphpool.demo import model_path, test_images
    >>> with gp.onnx.load(model_path("digits_cnn"), shapes={"batch": (1, 8)}) as model:
    ...     handle = gp.share(model)
    >>> with handle.open() as copy:   # in a worker
    ...     copy.run({"image": test_images()[0][:2]})["probabilities"].shape
    (2, 10)
    """
    if not isinstance(model, Model):
        raise InvalidArgumentError(explain("model to share", accepted="a graphpool.Model", got=type(model).__name__))
    chosen = packed_store() if store is None else open_folder(store)
    contents: dict[PackedKey, Any] = dict(model.packed_constants())
    make, (inputs, outputs, specialise, engine) = model.__reduce__()
    arrays: dict[PackedKey, Any] = {}
    text = pickle.dumps(
        (make, inputs, outputs, pickle.dumps(engine), _Text.of(specialise, arrays), _forms_of(model, arrays))
    )
    description = _add_text(arrays, text, "model")
    contents |= arrays
    kept: PackedStore | SealedStore = SealedStore.make(contents) if chosen is None else _keep(chosen, contents)
    model.use_packed(kept)
    return SharedModel(model.name, kept, description)


def _forms_of(model: Model, arrays: dict[PackedKey, Any]) -> _Text | None:
    """What is compiled, with its constants, of which large ones are added to `arrays`; None where nothing can be so."""
    context, written = model.written_forms()
    if context is None or not written:
        return None
    distinct = {id(content): content for *_, own in written for content in own}
    numbers = {key: number for number, key in enumerate(distinct)}
    told = [
        (pattern, sizes, _add_text(arrays, data), tuple([numbers[id(content)] for content in own]))
        for pattern, sizes, data, own in written
    ]
    contents = list(distinct.values())
    references = refer_to_files({str(number): memory_of(content) for number, content in enumerate(contents)})
    readings = [reading_of(content) for content in contents]
    return _Text.of((build_name(), context, told, references, readings), arrays)


class _Text(NamedTuple):
    """Where a pickle is, and the arrays that it leaves out, all of which workers map.

    What has the key `own` begins with the small ones. From `places` on is a list, told by a pickle: of each array begin
    and end, or the key of a large one. From `content` on is the pickle.
    """

    own: PackedKey
    places: int
    content: int

    @classmethod
    def of(cls, content: Any, arrays: dict[PackedKey, Any]) -> _Text:
        """A pickle; it and the arrays that it leaves out are added to others."""
        places: list[PackedKey | tuple[int, int]] = []
        small = bytearray()

        def keep_out(buffer: pickle.PickleBuffer) -> None:
            raw = buffer.raw()
            if raw.nbytes >= _LEAST_NBYTES:
                places.append(_add(arrays, raw, "array", digest_of(raw)))
                return
            small.extend(bytes(-len(small) % ALIGNMENT))
            places.append((len(small), len(small) + raw.nbytes))
            small.extend(raw)

        text = pickle.dumps(content, 5, buffer_callback=keep_out)
        told = pickle.dumps(places, 5)
        return cls(_add_text(arrays, bytes(small) + told + text), len(small), len(small) + len(told))


def _add_text(contents: dict[PackedKey, Any], text: bytes, what: str = "text") -> PackedKey:
    """The key of a pickle, which is added to contents."""
    return _add(contents, text, what, digest_of_text(text))


def _add(contents: dict[PackedKey, Any], data: Any, what: str, digest: bytes) -> PackedKey:
    """The key of bytes, which are added to contents."""
    key = PackedKey(Fingerprint(digest, "u8", (memoryview(data).nbytes,)), what, "any")
    contents[key] = data
    return key


def _keep(store: PackedStore, contents: dict[PackedKey, Any]) -> PackedStore:
    """The store, which has all contents, those that it had already included."""
    for key, data in contents.items():
        if store.get(key) is None and not store.put(key, data):
            nbytes = memoryview(data).nbytes
            raise InvalidArgumentError(
                explain(
                    f"store at {store.path} does not keep {nbytes} bytes",
                    accepted=f"capacity_nbytes of at least {sum(memoryview(c).nbytes for c in contents.values())}",
                    got=store.capacity_nbytes,
                )
            )
    return store


def _name_content(buffer: ConstantBuffer, key: PackedKey) -> None:
    """Let the mapping in which a content lies know its digest, so that nobody reads it for its name."""
    mapping = buffer.owner
    if isinstance(mapping, ReadMapping):
        mapping.known[buffer.address - address_of(mapping), buffer.nbytes] = key.content.digest
