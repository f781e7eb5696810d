"""What the packed store has of a model: how it begins, and its compiled forms. Imports nothing of the package onnx.

A file of the store holds the forms of one content, one set of options of `load` and of the engine, one processor and
one build of graphpool; see `graphpool.runtime.form_record` for its bytes. Files beside the model's, in which its
weights lie, are known by path and content too.
"""

from __future__ import annotations

import os
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from graphpool._kernels.core._dispatch import isas
from graphpool.cache import PackedKey, packed_store
from graphpool.cache.identity import Fingerprint, digest_of
from graphpool.log import compile_log
from graphpool.runtime.form_record import FORMAT, dump_record, load_record
from graphpool.runtime.stored_forms import StoredForms, StoredSpecialiser, context_of

from .files import ModelFiles, digest_of_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from graphpool.cache import PackedStore
    from graphpool.runtime import Engine
    from graphpool.runtime.executable import Executable
    from graphpool.runtime.scheduling import ScheduleOptions
    from graphpool.runtime.stored_forms import FormRequest, ModelHead

__all__ = ["open_stored"]


def open_stored(
    path: Path, engine: Engine, options: ScheduleOptions, weights: str, asked: str,
    read: Callable[[Path, ModelFiles], Any],
) -> Any:  # fmt: skip
    """What specialises a model: of the store, else what `read` gives, whose compiled forms are stored from now on.

    `asked` are all other options that a compilation depends on. Where no store may have compiled forms, or these are
    not for others, it is what `read` gives.
    """
    store, files = packed_store(), ModelFiles()
    context = None if store is None or not store.keeps_programs else context_of(engine, options, weights)
    if store is None or context is None:
        return read(path, files)
    try:
        mapped = files.map(path)
    except (OSError, ValueError):
        return read(path, files)  # which says what is wrong
    made_by = digest_of(repr((context, asked, _importer())).encode()).hex()
    name = Fingerprint(digest_of_file(mapped), "u8", (len(mapped),))
    forms = _FolderForms(context, path.resolve().parent, files, store, PackedKey(name, FORMAT + made_by, isas()[-1]))
    head = forms.read()
    if head is not None:
        return StoredSpecialiser(head._replace(name=path.stem), partial(read, path.absolute(), files), forms)
    real = read(path, files)
    return StoredSpecialiser(real.head, lambda: real, forms)


def _importer() -> tuple[str | None, int]:
    """Which package onnx there is, which is not imported for that."""
    found = find_spec("onnx")
    origin = None if found is None else found.origin
    return origin, 0 if origin is None else Path(origin).stat().st_mtime_ns


class _FolderForms(StoredForms):
    """Those of a file in the store; `folder` is that of the model, whose `files` are mapped."""

    def __init__(self, context: str, folder: Path, files: ModelFiles, store: PackedStore, key: PackedKey) -> None:
        super().__init__(context)
        self._folder, self._mapped, self._store, self._key = folder, files, store, key
        self._head: ModelHead | None = None

    def read(self) -> ModelHead | None:
        """Take what the store has now; how the model begins, or None if there is nothing that can be used."""
        buffer = self._store.get(self._key)
        if buffer is None:
            return None
        try:
            # a copy: while something has the mapping, the store would give it and not what others have written since
            head, beside, forms = load_record(bytes(memoryview(buffer)))
            for name, digest in beside:
                if digest_of_file(self._mapped.map(self._folder / name, os.O_NOFOLLOW)) != digest:
                    return None
        except Exception as error:  # whatever lies there
            compile_log.info("stored forms of %s are not used: %s", self._folder, error)
            return None
        self.forms, self.files = [*forms], self._mapped.mapped()
        return cast("ModelHead", head)

    def keep(self, request: FormRequest, executable: Executable, specialise: Any) -> bool:
        """As of `StoredForms`, for other processes."""
        self.read()  # what others have stored since
        self.files = self._mapped.mapped()
        is_kept = super().keep(request, executable, specialise)
        if is_kept:
            _, *beside = zip(self._mapped.paths(), self.files, strict=True)
            named = [(os.path.relpath(path, self._folder), digest_of_file(file)) for path, file in beside]
            self._store.put(self._key, dump_record((specialise.head, named, self.forms)))
            for file in self.files:
                self._store.note(file)
        return is_kept
