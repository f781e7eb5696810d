"""Texts of knobs."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphpool.errors import GraphpoolError, InvalidArgumentError
from graphpool.graph.dumps.knobs import KNOBS, Shape, expand_knobs, parse_knobs
from graphpool.typing import DataType


def test_shapes():
    knobs = parse_knobs({"in-shapes": "0:2x3*acb+1:*3x1+2:-+3:0x4"})
    assert knobs.shapes == {
        0: Shape((2, 3), "acb"), 1: Shape(None, (3, 1)), 2: Shape((), None), 3: Shape((0, 4), None),
    }  # fmt: skip


def test_the_other_knobs():
    knobs = parse_knobs(
        {"op-attrs": "4:strides:2x2*mode:linear+5:axis:-1", "dt": "bf16", "dtm": "7:s8", "op-kind": "1:Add+2:undef",
         "tensor-property": "3:constant", "mb": "16", "attr-fpmath": "bf16:true", "expected-n-partitions": "2"}
    )  # fmt: skip
    assert knobs.attrs == {4: {"strides": "2x2", "mode": "linear"}, 5: {"axis": "-1"}}
    assert (knobs.dtype, knobs.dtypes) == (DataType.BF16, {7: DataType.S8})
    assert (knobs.kinds, knobs.properties) == ({1: "Add", 2: None}, {3: "constant"})
    assert (knobs.batch, knobs.fpmath, knobs.expected_partitions) == (16, ("bf16", True), 2)
    assert parse_knobs({"dt": "0:f16+1:f32"}).dtypes == {0: DataType.F16, 1: DataType.F32}
    assert parse_knobs({"dt": "", "mb": ""}) == parse_knobs({})


@pytest.mark.parametrize(
    ("name", "text"),
    [("in-shapes", "0"), ("in-shapes", "a:2x3"), ("in-shapes", "0:2xx3"), ("in-shapes", "0:2x-3"),
     ("in-shapes", "0:2x3*"), ("in-shapes", "0:2x" + "9" * 30), ("op-attrs", "0:axis"), ("op-kind", "Add"),
     ("mb", "-1"), ("mb", "two"), ("expected-n-partitions", "1.5"), ("attr-fpmath", "bf16:yes"), ("dt", "0:f99")],
)  # fmt: skip
def test_texts_without_their_form(name, text):
    with pytest.raises(InvalidArgumentError):
        parse_knobs({name: text})


def test_an_unknown_knob():
    with pytest.raises(InvalidArgumentError, match="unknown knob 'in-shape'; accepted: in-shapes"):
        parse_knobs({"in-shape": "0:2"})


def test_alternatives_run_in_benchdnns_order():
    found = list(expand_knobs({"dt": "f32,bf16", "in-shapes": ",0:2x3", "mb": ""}))
    assert found == [
        {"dt": "f32"}, {"dt": "bf16"}, {"in-shapes": "0:2x3", "dt": "f32"}, {"in-shapes": "0:2x3", "dt": "bf16"},
    ]  # fmt: skip
    assert list(expand_knobs({})) == [{}]


@given(st.sampled_from(sorted(KNOBS)), st.text("0123456789:*+x-,.abcdf ", max_size=20))
def test_any_text_is_read_or_refused(name, text):
    with contextlib.suppress(GraphpoolError):
        assert parse_knobs({name: text})
