"""What a store has of a model: how it begins, and its compiled forms. Imports nothing of the package onnx.

A file of the store holds the forms of one model, one set of options of `load` and of the engine, one processor and one
build of graphpool; see `graphpool.runtime.form_record` for its bytes. A packed store knows a model by its content. The
folder of programs is asked at each load, so it knows the model's file by what the system tells of it, and has no names
of packed weights, for which all of them would be read. Files beside the model's, in which its weights lie, are known by
path too.
"""

from __future__ import annotations

import os
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from graphpool._kernels.core._dispatch import isas
from graphpool.cache import PackedKey, program_store
from graphpool.cache.identity import Fingerprint, digest_of_text
from graphpool.log import compile_log
from graphpool.runtime.constant_part import held_nbytes
from graphpool.runtime.form_record import FORMAT, dump_record, load_record
from graphpool.runtime.stored_forms import StoredForms, StoredSpecialiser, build_name, context_of

from .files import ModelFiles, digest_of_file, identity_of_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from graphpool.cache import PackedStore
    from graphpool.mapped_file import MappedFile
    from graphpool.runtime import Engine
    from graphpool.runtime.executable import Executable
    from graphpool.runtime.scheduling import ScheduleOptions
    from graphpool.runtime.stored_forms import ModelHead

__all__ = ["open_stored"]


def open_stored(
    path: Path, engine: Engine, options: ScheduleOptions, weights: str, asked: str,
    read: Callable[[Path, ModelFiles], Any], is_trusted: bool,
) -> Any:  # fmt: skip
    """What specialises a model: of a store, else what `read` gives, whose compiled forms are stored from now on.

    `asked` are all other options that a compilation depends on. Where no store may have compiled forms, or these are
    not for others, it is what `read` gives; files of strangers leave something only in a packed store.
    """
    store, files = program_store(), ModelFiles()
    if store is None or not (is_trusted or store.keeps_weights) or (store.keeps_weights and not store.keeps_programs):
        return read(path, files)
    context = context_of(engine, options, weights)
    if context is None:
        return read(path, files)
    try:
        mapped = files.map(path)
    except (OSError, ValueError):
        return read(path, files)  # which says what is wrong
    digest = _name_in(store, mapped)
    if digest is None:
        return read(path, files)
    made_by = digest_of_text(repr((context, asked, _importer(), __file__)).encode()).hex()
    name = Fingerprint(digest, "u8", (len(mapped),))
    forms = _FolderForms(context, path.resolve().parent, files, store, PackedKey(name, FORMAT + made_by, isas()[-1]))
    head = forms.read()
    if head is not None:
        return StoredSpecialiser(head._replace(name=path.stem), partial(read, path.absolute(), files), forms)
    real = read(path, files)
    return StoredSpecialiser(real.head, lambda: real, forms)


def _name_in(store: PackedStore, mapped: MappedFile) -> bytes | None:
    """What a store calls a file; None where it was written so late that it may be written again under this name."""
    return digest_of_file(mapped) if store.keeps_weights else identity_of_file(mapped)


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
        self.names_weights, self.is_late = store.keeps_weights, not store.keeps_weights
        self._head: ModelHead | None = None

    def read(self) -> ModelHead | None:
        """Take what the store has now; how the model begins, or None if there is nothing that can be used."""
        try:
            buffer = self._store.get(self._key)
            if buffer is None:
                return None
            # a copy: while something has the mapping, the store would give it and not what others have written since
            build, head, beside, forms = load_record(bytes(memoryview(buffer)))
            if build != build_name():
                return None
            for name, digest in beside:
                if _name_in(self._store, self._mapped.map(self._folder / name, os.O_NOFOLLOW)) != digest:
                    return None
        except Exception as error:  # whatever lies there
            compile_log.info("stored forms of %s are not used: %s", self._folder, error)
            return None
        self.forms, self.files = [*forms], self._mapped.mapped()
        return cast("ModelHead", head)

    def keep(self, executable: Executable, specialise: Any) -> bool:
        """As of `StoredForms`, for other processes."""
        self.read()  # what others have stored since
        self.files = self._mapped.mapped()
        digest, *digests = [_name_in(self._store, file) for file in self.files]
        if digest != self._key.content.digest or None in digests or self._is_large(executable):
            return False
        is_kept = super().keep(executable, specialise)
        if is_kept:
            beside = [os.path.relpath(path, self._folder) for path in self._mapped.paths()[1:]]
            named = list(zip(beside, digests, strict=True))
            self._store.put(self._key, dump_record((build_name(), specialise.head, named, self.forms)))
            if self.names_weights:
                for file in self.files:
                    self._store.note(file)
        return is_kept

    def _is_large(self, executable: Executable) -> bool:
        """Whether the constants that were computed do not fit a file of the store."""
        return sum(map(held_nbytes, executable.form.constants.values())) > self._store.most_nbytes
