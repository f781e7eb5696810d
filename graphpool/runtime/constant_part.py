"""What of a partition depends on constants alone, and by what name its results are known."""

from __future__ import annotations

import mmap
from sys import intern
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from graphpool._dataclasses import dataclass
from graphpool._version import __version__
from graphpool.cache import ConstantBuffer, LruCache, fingerprint
from graphpool.cache.identity import Fingerprint, QuickFingerprint, digest_of_text, quick_fingerprint
from graphpool.errors import check_hashable, check_instance
from graphpool.fork import cached_property
from graphpool.mapped_file import MappedFile, ReadMapping
from graphpool.memory._arrays import texts_nbytes
from graphpool.typing import DataType

from .constant_memory import memory_of

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from ._program import Program
    from ._tensor import Tensor

    N = TypeVar("N", Fingerprint, QuickFingerprint)

__all__ = [
    "ConstantPart",
    "ExecuteOptions",
    "address_of",
    "check_files",
    "drop_pages",
    "file_of",
    "files_of",
    "held_nbytes",
    "identity_of",
    "known_fingerprint",
    "lasting_fingerprint",
    "mapped_nbytes",
    "name_of",
    "place_in_mapping",
]

fingerprints: LruCache[Hashable, QuickFingerprint] = LruCache(4096, name="fingerprints")
"""Names of contents by tensor version, of the whole process: each version of a tensor is read once."""

PIECE_NBYTES = mmap.PAGESIZE**2 // 8
"""The most that is mapped where one page of a file is read: what a table of pages holds, at addresses aligned alike.

Linux maps 64 KiB, and since 6.18 all of the piece in which its cache has the file.
"""

_SMALL = 4096
"""Contents up to this size are read again in less time than it takes to remember a name. Unit: bytes."""


@dataclass(frozen=True, eq=False)
class ConstantPart:
    """A form of constants that kernels want, such as weights in panels: made once, kept by the constant tensor cache.

    `program` makes it of the inputs at the positions `sources`: external are these, then the result of `nbytes` bytes.
    Equal keys (the kernels with their parameter blocks) make equal bytes of equal sources. `restoring` is the program
    that makes its one source again, bit for bit, or what links that; it is None where that is impossible, or unless the
    part `replaces` its sources: nothing reads them while all that is packed of them is kept.
    """

    sources: tuple[int, ...]
    nbytes: int
    program: Program
    key: bytes
    restoring: Program | Callable[[], Program] | None = None
    replaces: bool = False

    @property
    def isa(self) -> str:
        """Instruction set of the kernels that make it."""
        return self.program.calls[-1].kernel.isa

    @property
    def name(self) -> str:
        """The kernels that make it: for logs, as the key is for machines; one object for all parts of a name."""
        return intern(" ".join([f"{call.kernel.name} {call.kernel.isa}" for call in self.program.calls]))

    @cached_property
    def restore(self) -> Program | None:
        """The program behind `restoring`. Few ask for it: those who keep weights packed alone."""
        return self.restoring() if callable(self.restoring) else self.restoring

    def __getstate__(self) -> dict[str, Any]:
        """For pickles: with that program."""
        return {name: value for name, value in vars(self).items() if name != "restore"} | {"restoring": self.restore}

    @cached_property
    def layout(self) -> str:
        """The key as a name for files, which holds for one version of graphpool."""
        return f"{__version__}:{digest_of_text(self.key).hex()}"


@dataclass(frozen=True)
class ExecuteOptions:
    """What one execution asks for beside its tensors.

    Parameters
    ----------
    key : hashable, optional
        Names the contents of all constant inputs of this execution, across tensors and compiled partitions: a cached
        form under this name is used without a look at the contents, so another content needs another key. It must not
        be changed while it is in use.

    Raises
    ------
    InvalidArgumentError
        The key has no hash.

    Notes
    -----
    Source: RFC "constant block weight", option 3.
    """

    key: Hashable = None

    def __post_init__(self) -> None:
        check_hashable("key of an execution", self.key)


def execution_key(options: ExecuteOptions | None) -> Hashable:
    """The key that an execution was given, if any; InvalidArgumentError for what are no options."""
    return None if options is None else check_instance("options", options, ExecuteOptions).key


def identity_of(tensor: Tensor, position: int, key: Hashable) -> Hashable:
    """The name of a constant's content: the execution's key, else the tensor's explicit id, else a fingerprint.

    One key names all constants of an execution, so the position of the input joins it. Cost: the first fingerprint of a
    tensor version reads the whole content, at the speed of memory; that of a small content is taken each time.
    """
    if key is not None:
        return "key", key, position
    if tensor.has_explicit_id:
        return "id", tensor.id, tensor.version  # which is that of this id in this engine alone
    content, dtype = content_of(tensor), tensor.lt.dtype
    if memory_of(content).nbytes <= _SMALL:
        return name_of(content, quick_fingerprint, dtype)
    place = _digest_place(tensor, content)
    if place is not None and place[1] in place[0].known:
        return Fingerprint(place[0].known[place[1]], dtype.value, content.shape)
    return known_fingerprint(tensor.version, content, dtype)


def known_fingerprint(version: Hashable, content: np.ndarray[Any, Any], dtype: DataType) -> QuickFingerprint:
    """The name of a content, taken when this version of its tensor is first asked for."""
    return fingerprints.get_or_create(version, lambda: name_of(content, quick_fingerprint, dtype))


def name_of(content: np.ndarray[Any, Any], take: Callable[..., N], dtype: DataType) -> N:
    """The name that `take`, a function as `fingerprint`, gives a content; of one number for all, that is read alone."""
    memory = memory_of(content)
    name = take(memory, dtype=dtype)
    return name if memory is content else name._replace(dtype=f"one {name.dtype}", shape=content.shape)


def lasting_fingerprint(tensor: Tensor) -> Fingerprint:
    """The name of a constant's content that holds in every process; what lies in a mapping is read for it once.

    Cost: a digest of the whole content, see `fingerprint`.
    """
    content, dtype = content_of(tensor), tensor.lt.dtype
    place = _digest_place(tensor, content)
    if place is None:
        return name_of(content, fingerprint, dtype)
    mapping, key = place
    digest = mapping.known.get(key) or mapping.taken.get(key)
    if digest is None:
        digest = mapping.taken[key] = fingerprint(content, dtype=dtype).digest
    return Fingerprint(digest, dtype.value, content.shape)


def _digest_place(tensor: Tensor, content: Any) -> tuple[ReadMapping, tuple[int, int]] | None:
    """The mapping in which the content of a tensor lies dense, and the key of its digest there."""
    mapping = _mapping_of(tensor.owner)
    if not isinstance(mapping, ReadMapping) or not content.flags.c_contiguous:
        return None
    offset = address_of(content) - address_of(mapping)
    is_inside = 0 <= offset <= len(mapping) - content.nbytes  # not what was unpacked
    return (mapping, (offset, content.nbytes)) if is_inside else None


def place_in_mapping(array: Any) -> tuple[mmap.mmap, int] | None:
    """The file or memory, mapped for reading only, in which an array lies dense, and the offset; else None.

    Unit: bytes.
    """
    base, array = _mapping_of(array), memory_of(array)
    if base is None or not array.flags.c_contiguous:
        return None
    return base, address_of(array) - address_of(base)


def address_of(content: Any) -> int:
    """Of the first byte of a buffer."""
    if isinstance(content, np.ndarray):
        address: int = content.__array_interface__["data"][0]
        return address
    if isinstance(content, ReadMapping):
        if content.address is None:
            content.address = _address_of_view(content)
        return content.address
    return _address_of_view(content)


def _address_of_view(content: Any) -> int:
    with memoryview(content) as view:
        return address_of(np.frombuffer(view, np.uint8))


def drop_pages(array: Any) -> None:
    """Take an array that lies in a file mapped for reading out of memory: the system reads it again where it is used.

    With what came with it, see `PIECE_NBYTES`. Other arrays, and files mapped for writing, whose pages may hold what
    the file does not, are left alone.
    """
    place = place_in_mapping(array) if getattr(array, "nbytes", 0) >= mmap.PAGESIZE else None
    if place is None:
        return
    base, begin = place
    start = address_of(base)
    first = max((start + begin) // PIECE_NBYTES * PIECE_NBYTES, start)
    last = -(-(start + begin + array.nbytes) // PIECE_NBYTES) * PIECE_NBYTES
    base.madvise(mmap.MADV_DONTNEED, first - start, min(last - start, len(base)) - (first - start))


def check_files(arrays: Iterable[Any]) -> None:
    """Raise `StateError` if one of these arrays lies in a mapped file that was changed in place: see `MappedFile`."""
    for file in files_of(arrays):
        file.check()


def files_of(arrays: Iterable[Any]) -> list[MappedFile]:
    """The mapped files in which these arrays lie, each once."""
    return [*{id(found): found for found in map(_mapping_of, arrays) if isinstance(found, MappedFile)}.values()]


def held_nbytes(weight: Any) -> int:
    """Memory of a constant beside what is packed of it: none in a file mapped for reading, or if it is packed."""
    if _mapping_of(weight) is not None:
        return 0
    memory = memory_of(weight)
    texts = texts_nbytes(memory) if isinstance(memory, np.ndarray) and memory.dtype.hasobject else 0
    return int(getattr(memory, "nbytes", 0)) + texts


def mapped_nbytes(weight: Any) -> int:
    """What a constant takes of a file mapped for reading. Unit: bytes."""
    return 0 if _mapping_of(weight) is None else int(memory_of(weight).nbytes)


def file_of(weight: Any) -> mmap.mmap | None:
    """The mapped file in which a constant lies; None if it lies elsewhere, or in memory that processes share."""
    mapping = _mapping_of(weight)
    return None if isinstance(mapping, ReadMapping) and not isinstance(mapping, MappedFile) else mapping


def _mapping_of(array: Any) -> mmap.mmap | None:
    """The file or memory in which an array lies, if it is mapped for reading only."""
    base: Any = array if type(array) is np.ndarray else memory_of(array)
    while base is not None:
        kind = type(base)
        if kind is np.ndarray:
            base = base.base
        elif isinstance(base, MappedFile):
            return base
        elif kind is bytes:
            return None
        elif kind is memoryview:
            base = base.obj
        elif kind is ConstantBuffer:
            base = base.owner
        elif isinstance(base, np.ndarray):
            base = base.base
        elif isinstance(base, mmap.mmap):
            with memoryview(base) as view:
                return base if view.readonly else None
        else:
            return None
    return None


def content_of(tensor: Tensor) -> Any:
    """The elements of a tensor as an array; raw bytes where NumPy has no such elements."""
    return tensor.raw() if tensor.lt.dtype.bits < 8 else tensor.numpy()
