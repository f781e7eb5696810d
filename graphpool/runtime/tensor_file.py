"""Tensors in files: what was packed once is loaded as it is, on processors of the same instruction set.

    0      magic, 8 bytes
    8      length of the JSON text, 4 bytes, little-endian
    12     JSON: the logical tensor but for its id, the instruction set and version of graphpool that wrote it, the
           number of bytes that follow and their digest; zeros up to the end of the page
    4096   the bytes of the tensor

Nothing in a file is trusted: sizes are derived from type, shape and layout, and compared.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphpool._kernels.core._dispatch import isas
from graphpool._version import __version__
from graphpool.cache.identity import digest_of
from graphpool.errors import InvalidArgumentError, check_instance, explain
from graphpool.graph.logical_tensor import LogicalTensor
from graphpool.mapped_file import open_regular
from graphpool.typing import LayoutType

from ._tensor import Tensor

if TYPE_CHECKING:
    from .engine import Engine

__all__ = ["load_tensor", "save_tensor"]

_MAGIC = b"GPTENSR\x01"
_PAGE_NBYTES = 4096
_CHUNK_NBYTES = 64 << 20
_FIELDS = ("dtype", "shape", "strides", "layout", "layout_id", "property")


def save_tensor(path: str | Path, tensor: Tensor) -> None:
    """Write a tensor with what describes it, opaque layouts included; a file of that name is replaced as a whole.

    Parameters
    ----------
    path : str or Path
    tensor : Tensor
        Not written meanwhile.

    Raises
    ------
    InvalidArgumentError
        It is no tensor.
    OSError
        The file cannot be written; another one of this name stays as it was.
    StateError
        The tensor has no data.

    Notes
    -----
    Cost: one read of the tensor, one write of the file, which is on the disk afterwards.
    """
    check_instance("tensor", tensor, Tensor)
    lt, data = tensor.lt, tensor.raw()
    strides = lt.strides if lt.layout is LayoutType.STRIDED and not lt.is_dense else None
    values = lt.dtype.value, lt.shape, strides, lt.layout.value, lt.layout_id, lt.property.value
    text = json.dumps(
        dict(zip(_FIELDS, values, strict=True))
        | {"isa": isas()[-1], "graphpool": __version__, "nbytes": data.nbytes, "digest": digest_of(data.data).hex()}
    ).encode()
    page = (_MAGIC + len(text).to_bytes(4, "little") + text).ljust(_PAGE_NBYTES, b"\0")
    target = Path(path)
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=target.name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(page)
            file.write(data.data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def load_tensor(path: str | Path, engine: Engine, *, id: int = 0) -> Tensor:
    """Read a tensor of `save_tensor` into memory of an engine.

    Parameters
    ----------
    path : str or Path
    engine : Engine
        Its budget is charged.
    id : int, default=0
        Of the logical tensor.

    Returns
    -------
    tensor : Tensor

    Raises
    ------
    InvalidArgumentError
        The file is no tensor, is damaged, or holds weights packed for another instruction set or version of graphpool:
        the message names both, and what to do.
    InvalidDataTypeError, InvalidShapeError
        It describes no tensor.
    OutOfMemoryError
        The engine's budget has no room.
    OSError
        The file cannot be read, or is none.

    Notes
    -----
    Threads: safe. Cost: one read of the file, and one of the tensor.
    """
    with os.fdopen(open_regular(path), "rb", buffering=0) as file:
        page, nbytes = file.read(_PAGE_NBYTES), os.fstat(file.fileno()).st_size - _PAGE_NBYTES
        found = _parse(page, path)
        try:
            lt = LogicalTensor(id, **{name: found[name] for name in _FIELDS})
        except TypeError as error:
            raise _damaged(path, "the description of a tensor", str(error)) from error
        if lt.nbytes != nbytes or found["nbytes"] != nbytes:
            raise _damaged(path, f"{lt.nbytes} bytes for {lt}", f"{nbytes} bytes")
        tensor = Tensor(lt, engine)
        content, at = tensor.raw().data, 0
        while at < nbytes and (count := file.readinto(content[at : at + _CHUNK_NBYTES])):
            at += count
    if digest_of(content).hex() != found["digest"]:
        raise _damaged(path, "the bytes that were written", "others")
    return tensor


def _parse(page: bytes, path: str | Path) -> dict[str, Any]:
    """The JSON of a first page, with all its fields."""
    length = int.from_bytes(page[8:12], "little")
    found: Any = None
    if page[:8] == _MAGIC and length <= _PAGE_NBYTES - 12:
        try:
            found = json.loads(page[12 : 12 + length])
        except (ValueError, RecursionError):
            found = None
    if not isinstance(found, dict) or not {*_FIELDS, "nbytes", "digest"} <= found.keys():
        raise _damaged(path, "a file of save_tensor", "another one")
    return found


def _damaged(path: str | Path, accepted: str, got: str) -> InvalidArgumentError:
    return InvalidArgumentError(explain(f"file {str(path)!r} is no whole tensor", accepted=accepted, got=got))
