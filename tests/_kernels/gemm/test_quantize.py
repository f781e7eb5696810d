import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper
from onnx.reference import ReferenceEvaluator

from graphpool._kernels.core import _dispatch
from graphpool._kernels.gemm.quantize import nparts_of, quantize_dynamic, range_of_parts
from graphpool.errors import InvalidShapeError
from tests.helpers.kernel_runs import run_all, run_checked
from tests.helpers.onnx_models import make_model

ISAS = _dispatch.isas()
SIZES = [0, 1, 3, 15, 16, 17, 63, 64, 65, 1000, 8192, 8193, 40_000]


def normal(n, seed=0, shift=0.0):
    return (np.random.default_rng(seed).standard_normal(n) + shift).astype(np.float32)


def quantized(x, isa=None):
    """Bytes, scale and zero point of the kernels, between guards."""
    shape = (nparts_of(x.size), 2)
    ranges = run_checked(range_of_parts(x.size, isa), 2 * shape[0], x, dst_index=1).reshape(shape)
    scale, zero = np.full(1, np.nan, np.float32), np.full(1, 99, np.uint8)
    call = quantize_dynamic(x.size, isa)
    out = run_checked(call, x.size, x, ranges, scale, zero, dst_index=2, dtype=np.uint8)
    return out, scale[0], zero[0]


def evaluated(x):
    """The same of ONNX's reference evaluator."""
    node = helper.make_node("DynamicQuantizeLinear", ["x"], ["y", "scale", "zero"])
    return ReferenceEvaluator(make_model([node], {"x": x}, ["y", "scale", "zero"])).run(None, {"x": x})


def assert_same(x, isa):
    for result, wanted in zip(quantized(x, isa), evaluated(x), strict=True):
        np.testing.assert_array_equal(result, wanted)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("n", SIZES[1:])
@pytest.mark.parametrize("shift", [0.0, 9.0, -9.0])
def test_bytes_are_those_of_onnx(isa, n, shift):
    assert_same(normal(n, n, shift), isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    "numbers",
    [[0.0, 0.0], [-0.0], [1.0, 2.0], [-1.0, -3.0], [1e-42, 0.0], [1e38, -1e38], [-1.0, 254.0], [0.5, 1.5, 2.5, 255.0],
     [-127.5, 127.5], [-126.5, 128.5]],
)  # fmt: skip
def test_ranges_that_are_special(isa, numbers):
    with np.errstate(all="ignore"):
        assert_same(np.array(numbers, np.float32), isa)


@pytest.mark.parametrize("isa", ISAS)
def test_nothing_has_the_scale_of_a_range_without_numbers(isa):
    out, scale, zero = quantized(np.zeros(0, np.float32), isa)
    assert (out.size, scale, zero) == (0, np.float32(1) / np.float32(255), 0)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("place", [0, 5, 40, 99])
def test_nan_does_not_spoil_the_range(isa, place):
    x = normal(100)
    x[place] = np.nan
    out, scale, zero = quantized(x, isa)
    rest = np.delete(x, place)
    bytes_, wanted_scale, wanted_zero = evaluated(rest)
    assert (scale, zero) == (wanted_scale, wanted_zero)
    np.testing.assert_array_equal(np.delete(out, place), bytes_)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(width=32, allow_nan=False, min_value=-(2.0**100), max_value=2.0**100), min_size=1, max_size=70)
)
def test_any_numbers(numbers):
    x = np.array(numbers, np.float32)
    with np.errstate(all="ignore"):
        wanted = evaluated(x)
    if np.isfinite(wanted[1]) and wanted[1] > 0:
        for isa in ISAS:
            for result, expected in zip(quantized(x, isa), wanted, strict=True):
                np.testing.assert_array_equal(result, expected)


def test_parts_are_few_and_cover_everything():
    for n in (*SIZES, 2**21, 2**21 + 1, 10**9):
        part = int(np.asarray(range_of_parts(n).params).view("i8")[1])
        assert 1 <= nparts_of(n) <= 256
        assert n <= part * nparts_of(n) < n + part + (n == 0)
        assert part % 16 == 0


def test_scale_and_zero_point_do_not_depend_on_who_writes_them():
    x = normal(30_000)
    ranges = np.empty((nparts_of(x.size), 2), np.float32)
    run_all(range_of_parts(x.size), x, ranges)
    np.testing.assert_array_equal(ranges.min(0)[0], x.min())
    np.testing.assert_array_equal(ranges.max(0)[1], x.max())


@pytest.mark.parametrize("make", [range_of_parts, quantize_dynamic])
def test_a_negative_size_raises(make):
    with pytest.raises(InvalidShapeError):
        make(-1)
