"""C structs as Python writes them, beside NumPy's aligned records, and those of the kernels."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphpool._kernels.core._dispatch import describe, lookup, names
from graphpool._kernels.core.call import DTYPE_CODES, pack
from graphpool._kernels.core.records import Record, enumeration, number, record
from tests.helpers.tree import ROOT

TYPES = {
    "i4": st.integers(-(2**31), 2**31 - 1), "i8": st.integers(-(2**63), 2**63 - 1), "f4": st.floats(width=32),
    "u4": st.integers(0, 2**32 - 1), "u8": st.integers(0, 2**64 - 1), "f8": st.floats(),
}  # fmt: skip
C_TYPES = {
    "i4": "int32_t", "i8": "int64_t", "f4": "float", "u4": "uint32_t", "u8": "uint64_t", "f8": "double",
}  # fmt: skip


def spelt_in_c(fields):
    """The same fields as the text of a C struct."""
    return " ".join(
        [
            f"{C_TYPES[kind]} {name}" + "".join([f"[{n}]" for s in shape for n in s]) + ";"
            for name, kind, *shape in fields
        ]
    )


@st.composite
def structs(draw):
    """Fields, and values of some of them."""
    fields, values = [], {}
    for index in range(draw(st.integers(1, 8))):
        name, kind = f"f{index}", draw(st.sampled_from(sorted(TYPES)))
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
    read = Record(spelt_in_c(fields))
    assert read.nbytes == layout.itemsize
    found = np.frombuffer(read.pack(values), layout)
    assert found.tobytes() == np.frombuffer(numpy_bytes(layout, values), layout).tobytes()


def test_structs_within_structs_are_mappings():
    outer = Record("int32_t flag; gp_dynamic inner; int32_t last;")
    inner = np.dtype([(name, "i8") for name in ("scale_arg", "zero_arg", "columns_arg")], align=True)
    same = np.dtype([("flag", "i4"), ("inner", inner), ("last", "i4")], align=True)
    assert outer.nbytes == same.itemsize
    found = np.frombuffer(outer.pack({"inner": {"zero_arg": 3}, "last": 7}), same)[0]
    assert (found["flag"], *found["inner"], found["last"]) == (0, 0, 3, 0, 7)


def test_one_declaration_may_name_several_fields():
    block = Record("{ int32_t a, b[2]; float c; }").pack({"a": 1, "b": [2, 3], "c": 0.5})
    assert block == Record("int32_t a; int32_t b[2]; float c;").pack({"a": 1, "b": [2, 3], "c": 0.5})


def test_rows_follow_each_other():
    read = Record("int32_t a; float b;")
    assert read.pack_rows([(1, 2.0), (3, 4.0)]) == read.pack({"a": 1, "b": 2.0}) + read.pack({"a": 3, "b": 4.0})
    assert read.pack_rows([]) == b""


def test_floats_beyond_f32_become_infinite():
    found = np.frombuffer(Record("float x[4];").pack({"x": [1e300, -1e39, 1.5, math.inf]}), np.float32)
    assert found.tolist() == [math.inf, -math.inf, 1.5, math.inf]


@pytest.mark.parametrize(
    ("values", "error"),
    [({"b": 1}, KeyError), ({"a": [1, 2, 3, 4]}, ValueError), ({"c": [[1], [2], [3]]}, ValueError),
     ({"c": [[1, 2, 3]]}, ValueError)],
)  # fmt: skip
def test_what_has_no_place_is_refused(values, error):
    with pytest.raises(error):
        Record("int64_t a[3], c[2][2];").pack(values)


def test_every_struct_of_a_kernel_is_read_as_the_compiler_lays_it_out():
    structs = {lookup(name).params for name in names()}
    assert len(structs) > 25
    for struct in structs:
        assert record(struct).nbytes == describe(struct)[1]


def test_fields_are_those_of_the_c_source():
    """The text of a struct is what the compiler read: names in order, sizes for their macros, no comments."""
    source = (ROOT / "graphpool" / "_kernels" / "eltwise" / "gp_sink.h").read_text()
    assert "int64_t dim[GP_MAX_NDIM];" in source
    fields, _ = describe("gp_space")
    assert fields == "{ int64_t ndim; int64_t dim[12]; int64_t stride[4][12]; }"


def test_numbers_are_those_of_the_c_source(monkeypatch):
    assert list(DTYPE_CODES)[:4] == ["f32", "f64", "f16", "bf16"]
    assert list(DTYPE_CODES.values()) == list(range(17))
    assert enumeration("scatter_reduction") == {"none": -1, "add": 0, "mul": 1, "max": 2, "min": 3}
    source = (ROOT / "graphpool" / "_kernels" / "eltwise" / "gp_eltwise.h").read_text()
    assert f"#define GP_ELTWISE_TASK {number('GP_ELTWISE_TASK')}\n" in source
    monkeypatch.setattr("graphpool._kernels.core.records.describe", lambda name: ("A, GP_B = 7, GP_C", 4))
    assert enumeration.__wrapped__("any", "GP_") == {"a": 0, "b": 7, "c": 8}


@pytest.mark.parametrize("wrong", ["sise", "dtype"])
def test_a_field_that_the_kernel_has_not_is_refused(wrong):
    with pytest.raises(KeyError, match=wrong):
        pack("f32_dropout", {"size": 8, wrong: 1}, ntasks=1)


def test_a_struct_that_is_not_read_whole_is_refused(monkeypatch):
    monkeypatch.setattr("graphpool._kernels.core._records.describe", lambda name: ("{ int64_t n; }", 16))
    with pytest.raises(AssertionError, match="struct of 16 bytes, read as 8"):
        record.__wrapped__("gp_lookup")
