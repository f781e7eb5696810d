"""Identity by content: equal weights get equal names, in every model, session and process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from graphpool._dataclasses import NamedTuple

from ..errors import InvalidArgumentError, explain
from ..typing import DataType
from ._quick import quick_digest

if TYPE_CHECKING:
    from collections.abc import Sequence

DIGEST_NBYTES = 16


class Fingerprint(NamedTuple):
    """The name of a content: 128 bits of its digest, its data type and its shape."""

    digest: bytes
    dtype: str
    shape: tuple[int, ...]


class PackedKey(NamedTuple):
    """What the bytes of a packed weight depend on: its content, the layout's id, the instruction set it is for."""

    content: Fingerprint
    layout: str
    isa: str


class QuickFingerprint(NamedTuple):
    """The name of a content in this process alone: 126 bits of a keyed digest, its data type and its shape."""

    digest: bytes
    dtype: str
    shape: tuple[int, ...]


def digest_of(data: Any) -> bytes:
    """128 bits that name the bytes of a contiguous buffer; taken without the GIL."""
    import hashlib  # and with it OpenSSL: not by all who load a model

    return hashlib.sha256(data).digest()[:DIGEST_NBYTES]


def digest_of_text(text: Any) -> bytes:
    """128 bits that name the bytes of a text, without OpenSSL, whose load takes as long as this for two megabytes."""
    try:
        from _blake2 import blake2b
    except ImportError:  # an interpreter that leaves all digests to OpenSSL
        from hashlib import blake2b

    return blake2b(text, digest_size=DIGEST_NBYTES).digest()


def fingerprint(data: np.ndarray, *, dtype: DataType | str | None = None) -> Fingerprint:
    """Name an array by its elements in row-major order, its data type and its shape, alike in every process.

    Parameters
    ----------
    data : ndarray of any shape and strides
        Not changed during the call. An array that is not contiguous is copied first.
    dtype : DataType or str, optional
        graphpool's data type, where NumPy's does not tell (4-bit types, raw bytes); by default that of `data`.

    Returns
    -------
    name : Fingerprint
        Equal for equal content wherever it lies. Elements are compared as bits: 0.0 and -0.0 differ.

    Raises
    ------
    InvalidArgumentError
        `data` is no array, or holds Python objects.

    Notes
    -----
    Threads: safe; the digest is taken without the GIL. Cost: 1.8 GB/s on a processor with SHA instructions, less on
    others (``bench/bench_cache.py`` measures it); `quick_fingerprint` is for names that need not leave the process.
    That two different contents among n get one name has a chance of about n^2 / 2^129.
    Source: SHA-256 (FIPS 180-4), cut to 128 bits; chosen because processors compute it, which made it twice as fast as
    BLAKE2b here.
    """
    name, content = _describe(data, dtype)
    return Fingerprint(digest_of(content), name, data.shape)


def quick_fingerprint(data: np.ndarray, *, dtype: DataType | str | None = None) -> QuickFingerprint:
    """Name an array as `fingerprint` does, but in this process alone, at the speed of memory.

    Parameters, errors and threads are those of `fingerprint`. Two different contents, whoever chose them, get one name
    with a chance below 2^-100 up to 4 GiB, because the digest depends on numbers that this process drew at random.
    """
    name, content = _describe(data, dtype)
    return QuickFingerprint(quick_digest(content), name, data.shape)


def join_fingerprints(names: Sequence[Fingerprint]) -> Fingerprint:
    """One name for several contents in this order, alike in every process; that of a single content is its own."""
    if len(names) == 1:
        return names[0]
    return Fingerprint(digest_of_text(repr(list(names)).encode()), names[0].dtype, names[0].shape)


def _describe(data: np.ndarray, dtype: DataType | str | None) -> tuple[str, memoryview]:
    """The data type of an array, and its elements in row-major order as bytes."""
    if not isinstance(data, np.ndarray) or data.dtype.hasobject:
        raise InvalidArgumentError(explain("content to fingerprint", accepted="an array of numbers", got=type(data)))
    name = DataType.parse(data.dtype if dtype is None else dtype)
    return name.value, np.ascontiguousarray(data).reshape(-1).view(np.uint8).data
