"""Long lists among the attributes of nodes, such as those of decision trees: they stay where they are until read.

A number of such a list takes 2 to 5 bytes of a file. Protobuf's own objects take 4 to 24 of memory and Python's 40, so
neither is made: nodes are parsed without these lists, and the lists are read from the bytes of the message.
"""

from __future__ import annotations

import mmap
import zlib
from array import array
from typing import TYPE_CHECKING, Any

from google.protobuf.message import Message

from graphpool.mapped_file import MappedFile
from graphpool.runtime.heap import trim_heap

from ._lists import read_choices, read_floats, read_ints, read_texts
from .proto import AttributeProto, NodeProto

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ._lists import Buffer

LONG = 2**10
"""Lists of so many elements are long."""

_FIELDS: dict[int, str] = {
    AttributeProto.FLOATS: "floats", AttributeProto.INTS: "ints", AttributeProto.STRINGS: "strings",
}  # fmt: skip


_LARGE = 2**20
"""A copy of a message from this size on is given back at once. Unit: bytes."""


class _Compressed(bytes):
    """By zlib."""


class LongList:
    """The list of an attribute, whose message lies from `first` to `last` in `source`, or is it.

    `count` is its length, `text_nbytes` that of its texts together. Pickles with the bytes. Ownership: keeps the
    source. Threads: immutable, safe. Cost of reading: a pass over the bytes, and the result.
    """

    __slots__ = ("_first", "_last", "_source", "count", "text_nbytes")

    def __init__(
        self, source: Buffer | MappedFile | Message, first: int, last: int, count: int, text_nbytes: int
    ) -> None:
        self._source, self._first, self._last = source, first, last
        self.count, self.text_nbytes = count, text_nbytes

    def __len__(self) -> int:
        return self.count

    def __reduce__(self) -> tuple[Any, ...]:
        message = bytes(self.message())
        return LongList, (message, 0, len(message), self.count, self.text_nbytes)

    def kept(self) -> LongList:
        """The same, without a reference into a message of protobuf, which would keep all of that.

        Its bytes are seldom asked for again, and repeat themselves: compressed, those of a forest take a fifth.
        """
        if not isinstance(self._source, Message):
            return self
        message = self._source.SerializeToString()
        return LongList(_Compressed(zlib.compress(message, 1)), 0, len(message), self.count, self.text_nbytes)

    def message(self) -> Buffer:
        """The bytes of the attribute."""
        if isinstance(self._source, Message):
            return bytes(self._source.SerializeToString())
        if isinstance(self._source, _Compressed):
            return zlib.decompress(self._source, bufsize=self._last)
        if isinstance(self._source, MappedFile):
            self._source.check()
        return memoryview(self._source)[self._first : self._last]

    def values(self, kind: int) -> Sequence[Any]:
        """Its elements, where the attribute has this type: an array of the narrowest type, or texts as bytes."""
        if isinstance(self._source, Message) and kind in _TYPE_CODES:
            return _read_field(getattr(self._source, _FIELDS[kind]), _TYPE_CODES[kind])
        return self._read(_READERS[kind])

    def places(self, choices: tuple[bytes, ...]) -> Sequence[int]:
        """Where among the choices its texts are. Raises LookupError, which has the text, for one that is no choice."""
        return self._read(read_choices, choices)

    def _read(self, reader: Callable[..., Sequence[Any]], *more: Any) -> Sequence[Any]:
        message = self.message()
        try:
            return reader(message, self.count, *more)
        finally:
            if not isinstance(message, memoryview) and len(message) >= _LARGE:
                del message
                trim_heap()
            if isinstance(self._source, MappedFile):  # what was read of a file need not stay in memory
                start = self._first // mmap.PAGESIZE * mmap.PAGESIZE
                self._source.madvise(mmap.MADV_DONTNEED, start, self._last - start)


def _read_field(numbers: Sequence[Any], codes: str) -> array[Any]:
    """The numbers of a message as an array of the first of these types that holds them.

    A piece at a time: protobuf writes a message to twice the room that it takes.
    """
    for code in codes:
        found = array(code)
        try:
            for first in range(0, len(numbers), _PIECE):
                found.fromlist(list(numbers[first : first + _PIECE]))
        except OverflowError:
            continue
        return found
    raise OverflowError(f"numbers of none of the types {codes!r}")


_TYPE_CODES: dict[int, str] = {AttributeProto.FLOATS: "f", AttributeProto.INTS: "iq"}
_PIECE = 2**13
"""Numbers that are objects of Python at once."""


_READERS: dict[int, Callable[..., Sequence[Any]]] = {
    AttributeProto.FLOATS: read_floats, AttributeProto.INTS: read_ints, AttributeProto.STRINGS: read_texts,
}  # fmt: skip


def without_lists(proto: NodeProto) -> tuple[NodeProto, dict[str, LongList]]:
    """A node without its long lists, and these, which refer to it; the node itself where it has none."""
    long = [item for item in proto.attribute if item.type in _FIELDS and len(getattr(item, _FIELDS[item.type])) >= LONG]
    if not long:
        return proto, {}
    lists = {}
    for item in long:
        texts = item.strings if item.type == AttributeProto.STRINGS else ()
        values = getattr(item, _FIELDS[item.type])
        lists[item.name] = LongList(item, 0, 0, len(values), sum(map(len, texts)))
    short = type(proto)(op_type=proto.op_type, domain=proto.domain, name=proto.name)
    short.input.extend(proto.input)
    short.output.extend(proto.output)
    for item in proto.attribute:
        if item.name in lists:
            short.attribute.add(name=item.name, type=item.type)
        else:
            short.attribute.append(item)
    return short, lists


def with_lists(short: NodeProto, lists: Mapping[str, LongList]) -> NodeProto:
    """A node with its lists again, the given one where it has none."""
    if not lists:
        return short
    proto = NodeProto()
    proto.CopyFrom(short)
    for item in proto.attribute:
        if item.name in lists:
            item.MergeFromString(bytes(lists[item.name].message()))
    return proto
