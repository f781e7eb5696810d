"""C structs as Python writes them, beside NumPy's aligned records."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphpool._kernels.core.records import Record

TYPES = {
    "i4": st.integers(-(2**31), 2**31 - 1), "i8": st.integers(-(2**63), 2**63 - 1), "f4": st.floats(width=32),
    "u4": st.integers(0, 2**32 - 1), "u8": st.integers(0, 2**64 - 1), "f8": st.floats(),
}  # fmt: skip


@st.composite
def structs(draw):
    """Fields, and values of some of them."""
    fields, values = [], {}
    for number in range(draw(st.integers(1, 8))):
        name, kind = f"f{number}", draw(st.sampled_from(sorted(TYPES)))
        shape = draw(st.lists(st.integers(1, 4), max_size=2))
        fields.append((name, kind, tuple(shape)) if shape else (name, kind))
        value = TYPES[kind]
        for size in reversed(shape):
            value = st.lists(value, max_size=size)
        if draw(st.booleans()):
            values[name] = draw(value)
    return fields, values


def numpy_bytes(layout, values):
    record = np.zeros((), layout)
    for name, value in values.items():
        if not record[name].shape:
            record[name] = value
        elif record[name].ndim == 1:
            record[name][: len(value)] = value
        else:
            for k, row in enumerate(value):
                record[name][k, : len(row)] = row
    return record.tobytes()


@given(structs())
def test_alignment_and_bytes_are_those_of_compilers(case):
    fields, values = case
    layout = np.dtype(fields, align=True)
    record = Record(fields)
    assert record.nbytes == layout.itemsize
    found = np.frombuffer(record.pack(values), layout)
    assert found.tobytes() == np.frombuffer(numpy_bytes(layout, values), layout).tobytes()


def test_records_within_records_are_bytes():
    inner = Record([("n", "i4"), ("x", "f8")])
    outer = Record([("flag", "i4"), ("inner", inner), ("last", "i4")])
    same = np.dtype([("flag", "i4"), ("inner", np.dtype([("n", "i4"), ("x", "f8")], align=True)), ("last", "i4")], True)
    assert outer.nbytes == same.itemsize
    found = np.frombuffer(outer.pack({"inner": inner.pack({"n": 3, "x": 0.5}), "last": 7}), same)[0]
    assert (found["flag"], found["inner"]["n"], found["inner"]["x"], found["last"]) == (0, 3, 0.5, 7)


def test_rows_follow_each_other():
    record = Record([("a", "i4"), ("b", "f4")])
    assert record.pack_rows([(1, 2.0), (3, 4.0)]) == record.pack({"a": 1, "b": 2.0}) + record.pack({"a": 3, "b": 4.0})
    assert record.pack_rows([]) == b""


def test_floats_beyond_f32_become_infinite():
    found = np.frombuffer(Record([("x", "f4", 4)]).pack({"x": [1e300, -1e39, 1.5, math.inf]}), np.float32)
    assert found.tolist() == [math.inf, -math.inf, 1.5, math.inf]


@pytest.mark.parametrize(
    ("values", "error"),
    [({"b": 1}, KeyError), ({"a": [1, 2, 3, 4]}, ValueError), ({"c": [[1], [2], [3]]}, ValueError),
     ({"c": [[1, 2, 3]]}, ValueError)],
)  # fmt: skip
def test_what_has_no_place_is_refused(values, error):
    with pytest.raises(error):
        Record([("a", "i8", 3), ("c", "i8", (2, 2))]).pack(values)
