"""Arrays that lie in files, as pickles hold them: by the file's path and content, and their place in it."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from graphpool._dataclasses import NamedTuple
from graphpool.mapped_file import FileContent, MappedFile

from .constant_part import place_in_mapping

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["FileArray", "open_references", "refer_to_files"]


class FileArray(NamedTuple):
    """A dense array in a file, from `offset` on; `digest` is that of its bytes where that is known. Unit: bytes."""

    file: FileContent
    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    digest: bytes | None


def refer_to_files(constants: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any] | FileArray]:
    """The arrays, and in place of those that lie in mapped files where they lie.

    An array stays what it is if its file has lost its name, or may lose it any time, as files of a packed store do.
    Cost: a read of each file, the first time.
    """
    return {name: _refer(array) for name, array in constants.items()}


def _refer(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | FileArray:
    place = place_in_mapping(array)
    mapped, offset = (None, 0) if place is None else place
    content = mapped.content() if isinstance(mapped, MappedFile) else None
    if content is None or not isinstance(mapped, MappedFile):
        return array
    key = offset, array.nbytes
    return FileArray(content, offset, array.dtype, array.shape, mapped.known.get(key) or mapped.taken.get(key))


def open_references(constants: Mapping[str, np.ndarray[Any, Any] | FileArray]) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays again, mapped.

    Raises `StateError` where a file has other content than it had, OSError where it is not there.
    """
    files: dict[FileContent, MappedFile] = {}
    found = {}
    for name, value in constants.items():
        if isinstance(value, FileArray):
            if value.file not in files:
                files[value.file] = value.file.open()
            value = _map(value, files[value.file])
        found[name] = value
    return found


def _map(place: FileArray, mapped: MappedFile) -> np.ndarray[Any, Any]:
    nbytes = prod(place.shape) * place.dtype.itemsize
    if place.digest is not None:
        mapped.known[place.offset, nbytes] = place.digest
    return np.frombuffer(mapped, np.uint8, nbytes, place.offset).view(place.dtype).reshape(place.shape)
