"""The files of one model, each mapped once. Imports nothing of the package onnx."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING

from graphpool.cache.identity import digest_of, digest_of_text
from graphpool.cache.process import packed_store
from graphpool.mapped_file import MappedFile

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["ModelFiles", "digest_of_file", "identity_of_file"]


class ModelFiles:
    """Files that are mapped, by path. Threads: one at a time."""

    def __init__(self) -> None:
        self._files: dict[Path, MappedFile] = {}

    def has(self, path: Path) -> bool:
        """Whether a file is mapped already."""
        return path.absolute() in self._files

    def map(self, path: Path, flags: int = 0) -> MappedFile:
        """A file, mapped, with the digests of its parts that other processes left in the packed store.

        `flags` are further ones of `os.open`. Raises as `MappedFile`.
        """
        mapped = self._files.get(path.absolute())
        if mapped is None:
            mapped, store = MappedFile(path, flags), packed_store()
            if store is not None:
                store.recall(mapped)
            self._files[path.absolute()] = mapped
        return mapped

    def mapped(self) -> list[MappedFile]:
        """All that are mapped, in the order in which they were."""
        return list(self._files.values())

    def paths(self) -> list[Path]:
        """Their paths, in the same order."""
        return list(self._files)


def identity_of_file(mapped: MappedFile) -> bytes | None:
    """A name for a file as the system tells of it, while nobody writes it; None of one that was written just before."""
    return digest_of_text(repr(mapped.identity).encode()) if mapped.is_settled else None


def digest_of_file(mapped: MappedFile) -> bytes:
    """A name for the content of all of a file; its pages need not stay. Cost: a read, unless somebody has noted it."""
    whole = 0, len(mapped)
    digest = mapped.known.get(whole) or mapped.taken.get(whole)
    if digest is None:
        digest = mapped.taken[whole] = digest_of(mapped)
        mapped.madvise(mmap.MADV_DONTNEED)  # all of it is in memory now, and few will read all of it
    return digest
