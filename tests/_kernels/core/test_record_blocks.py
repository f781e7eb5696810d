"""Parameter blocks of which some numbers vary: where these lie, through nested structs and joined blocks."""

import struct

import pytest

from graphpool._kernels.core import _records
from graphpool._kernels.core.records import Block, Record, join_blocks
from graphpool._size_program import SizeProgram
from graphpool._sizes import Trace

INNER = "int32_t n; int64_t strides[2];"
OUTER = "int32_t a; inner_t one; int64_t b; inner_t many[2]; uint32_t tail; float f;"


@pytest.fixture
def outer(monkeypatch):
    inner = Record(INNER)
    monkeypatch.setattr(_records, "record", lambda name: {"inner_t": inner}[name])
    return Record(OUTER)


@pytest.fixture
def trace():
    return Trace()


def patched(block, program, values):
    """The block for other values, patched by hand."""
    data, found = bytearray(block.data), program.compute(values)
    for place, letter, size in block.patches:
        struct.pack_into(f"<{letter}", data, place, found.of(size))
    return bytes(data)


def values_of(m, n):
    return {
        "a": m, "one": {"n": n, "strides": [m * n, 1]}, "b": m + n, "many": [], "tail": n * 2, "f": 1.5,
    }  # fmt: skip


def inner_blocks(inner, m, n):
    return [inner.pack({"n": m - 1, "strides": [4, n]}), inner.pack({"n": 3, "strides": [m, m]})]


def pack_all(outer, m, n):
    inner = Record(INNER)
    packed = [m, inner.pack({"n": n, "strides": [m * n, 1]}), m + n, *inner_blocks(inner, m, n), n * 2, 1.5]
    return outer.pack_rows([packed, packed])


def test_patches_lie_where_the_numbers_lie(outer, trace):
    m, n = trace.symbol(5), trace.symbol(7)
    block = pack_all(outer, m, n)
    assert isinstance(block, Block)
    assert block.data == pack_all(outer, 5, 7)
    assert len(block) == 2 * outer.nbytes
    for values in ((5, 7), (1, 0), (9, 1000)):
        assert patched(block, SizeProgram(trace), values) == pack_all(outer, *values)


def test_fields_that_are_named_lie_in_nested_structs(outer, trace):
    m, n = trace.symbol(5), trace.symbol(7)
    block = outer.pack(values_of(m, n))
    assert block.data == outer.pack(values_of(5, 7))
    assert sorted(letter for _, letter, _ in block.patches) == ["I", "i", "i", "q", "q"]
    assert patched(block, SizeProgram(trace), (2, 3)) == outer.pack(values_of(2, 3))


def test_floats_vary_with_sizes(trace):
    size = trace.symbol(3)
    block = Record("float f; double d;").pack({"f": size, "d": 1 / size})
    assert block.data == struct.pack("<f4xd", 3, 1 / 3)
    for value in (4, 2**24 + 1, -7):
        assert patched(block, SizeProgram(trace), [value]) == struct.pack("<f4xd", value, 1 / value)


def test_an_integer_fixes_a_real_number(trace):
    size = trace.symbol(4)
    assert Record("int32_t n;").pack({"n": int(size / 2)}) == struct.pack("<i", 2)
    assert SizeProgram(trace).compute([4]) is not None
    assert SizeProgram(trace).compute([5]) is None


def test_joined_blocks_keep_their_patches(trace):
    size = trace.symbol(3)
    one, other = (Record("int32_t a, b;").pack({"b": size + k}) for k in range(2))
    joined = join_blocks([b"head", one, b"between.", other])
    assert joined.data == b"head" + one.data + b"between." + other.data
    assert [(place, letter) for place, letter, _ in joined.patches] == [(8, "i"), (24, "i")]
    for same in (b"head" + one + b"between." + other, b"head" + (one + (b"between." + other))):
        assert same.data == joined.data
        assert [patch[:2] for patch in same.patches] == [patch[:2] for patch in joined.patches]
    assert join_blocks([b"only", b" bytes"]) == b"only bytes"
    assert join_blocks([]) == b""
    assert patched(joined, SizeProgram(trace), [9])[8:12] == (9).to_bytes(4, "little")


def test_what_does_not_vary_stays_bytes(outer, trace):
    size = trace.symbol(3)
    assert isinstance(outer.pack(values_of(5, 7)), bytes)
    assert isinstance(Record("int64_t n;").pack({"n": size - size}), bytes)
    with pytest.raises(KeyError):
        outer.pack({"missing": size})
    with pytest.raises(ValueError, match="many"):
        Record("int32_t many[2];").pack({"many": [size] * 3})
