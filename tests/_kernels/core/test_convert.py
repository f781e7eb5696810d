import ml_dtypes
import numpy as np
import pytest

from graphpool._kernels.core._dispatch import isas
from graphpool._kernels.eltwise.eltwise import DTYPES, EltwiseBuilder
from tests.helpers.guarded import Guarded

NUMPY = {
    "f32": np.float32, "f64": np.float64, "f16": np.float16, "bf16": ml_dtypes.bfloat16,
    "f8_e5m2": ml_dtypes.float8_e5m2, "f8_e4m3": ml_dtypes.float8_e4m3fn, "s8": np.int8, "u8": np.uint8,
    "s16": np.int16, "u16": np.uint16, "s32": np.int32, "u32": np.uint32, "s64": np.int64, "u64": np.uint64,
    "boolean": np.bool_,
}  # fmt: skip
SMALL_FLOATS = ("f16", "bf16", "f8_e5m2", "f8_e4m3")
SIZES = (0, 1, 7, 8, 15, 16, 17, 255, 256, 257, 1000)


def convert(memory, n, src, dst, isa, src_stride=1, dst_stride=1):
    """n elements of type src, as bytes of type dst."""
    builder = EltwiseBuilder((n,))
    builder.store(1, dst, (dst_stride,), builder.load(0, src, (src_stride,)))
    nbytes = (n + 1) // 2 if dst in ("s4", "u4") else n * dst_stride * np.dtype(NUMPY[dst]).itemsize
    out = Guarded(nbytes)
    builder.build(isa)(memory, out.bytes)
    return out.array(np.uint8, nbytes)


def all_codes(dtype):
    itemsize = np.dtype(NUMPY[dtype]).itemsize
    return np.arange(256**itemsize, dtype=f"u{itemsize}").view(NUMPY[dtype])


def halfway_points(values):
    """The values, the midpoints of neighbours, and the floats next to those midpoints."""
    finite = np.unique(values.astype(np.float64)[np.isfinite(values.astype(np.float64))])
    middle = ((finite[1:] + finite[:-1]) / 2).astype(np.float32)
    near = [np.nextafter(middle, np.float32(side)) for side in (np.inf, -np.inf)]
    return np.concatenate([finite.astype(np.float32), middle, *near])


def test_all_types_are_tested():
    assert set(NUMPY) | {"s4", "u4"} == DTYPES["f32"]


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("dtype", [*SMALL_FLOATS, "s8", "u8"])
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # of NumPy, on some processors
def test_load_of_every_code(dtype, isa):
    codes = all_codes(dtype)
    result = convert(codes.view(np.uint8), codes.size, dtype, "f32", isa).view(np.float32)
    np.testing.assert_array_equal(result, codes.astype(np.float32))
    signs = np.signbit(result) == np.signbit(codes.astype(np.float32))
    assert signs[~np.isnan(result)].all()


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("dtype", SMALL_FLOATS)
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning", "ignore:invalid value:RuntimeWarning")
def test_store_rounds_to_nearest_even(dtype, isa):
    edges = [np.inf, -np.inf, np.nan, 0.0, -0.0, 1e-45, -1e-45, 3.4e38, -3.4e38, 448, 464, 465, 61440, 65519, 65520]
    x = np.concatenate([halfway_points(all_codes(dtype)), np.array(edges, np.float32)])
    itemsize = np.dtype(NUMPY[dtype]).itemsize
    result = convert(x, x.size, "f32", dtype, isa).view(NUMPY[dtype])
    expected = x.astype(NUMPY[dtype])
    is_nan = np.isnan(expected.astype(np.float32))
    np.testing.assert_array_equal(np.isnan(result.astype(np.float32)), is_nan)
    np.testing.assert_array_equal(result.view(f"u{itemsize}")[~is_nan], expected.view(f"u{itemsize}")[~is_nan])


@pytest.mark.parametrize("isa", isas())
def test_nan_of_any_payload_stays_nan(isa):
    payloads = np.array([0x7F800001, 0xFF800001, 0x7F80FFFF, 0x7FFFFFFF, 0xFFC00000], np.uint32).view(np.float32)
    for dtype in SMALL_FLOATS:
        for x in (payloads, np.tile(payloads, 8)):
            result = convert(x, x.size, "f32", dtype, isa).view(NUMPY[dtype]).astype(np.float32)
            assert np.isnan(result).all()
            np.testing.assert_array_equal(np.signbit(result), np.signbit(x))


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("dtype", ["s8", "u8", "s32", "s64"])
def test_integer_stores_saturate(dtype, isa):
    info = np.iinfo(NUMPY[dtype])
    edges = [
        -0.5,
        0.5,
        1.5,
        2.5,
        -1.5,
        127.5,
        126.5,
        254.5,
        255.5,
        -128.5,
        -129,
        3e9,
        -3e9,
        1e30,
        -1e30,
        np.inf,
        -np.inf,
    ]
    edges += [2147483520, 2147483648, -2147483648, 2.0**63, -(2.0**63), 9.223371e18, np.nan]
    x = np.resize(np.array(edges, np.float32), 100)
    expected = [0 if np.isnan(v) else int(min(max(np.rint(v), info.min), info.max + 1)) for v in x.astype(float)]
    expected = np.array([min(v, int(info.max)) for v in expected], NUMPY[dtype])
    np.testing.assert_array_equal(convert(x, x.size, "f32", dtype, isa).view(NUMPY[dtype]), expected)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("odd", [2.0**31, -(2.0**31), 2147483520.0, np.nan, np.inf])
def test_one_large_number_among_small_ones_becomes_s64(odd, isa):
    x = np.arange(-500, 500, dtype=np.float32) / 4
    x[700] = odd
    expected = [0 if np.isnan(v) else int(np.rint(v)) if np.isfinite(v) else 2**63 - 1 for v in x.astype(float)]
    np.testing.assert_array_equal(convert(x, x.size, "f32", "s64", isa).view(np.int64), expected)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("src", ["f32", "f64", "s32", "s64", "boolean", "bf16"])
def test_sizes_and_strides(src, isa):
    memory = (np.arange(3000) % 5 - 2).astype(NUMPY[src])
    for n in SIZES:
        for stride in (0, 1, 2, 3):
            expected = memory[np.arange(n) * stride]
            for dst in ("f32", "f64", "f16", "boolean", "s8", "s64"):
                result = convert(memory, n, src, dst, isa, stride).view(NUMPY[dst])
                np.testing.assert_array_equal(result, expected.astype(np.float32).astype(NUMPY[dst]))


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("dst", [*SMALL_FLOATS, "s32", "s64", "u8"])
def test_strided_stores(dst, isa):
    x = np.arange(100, dtype=np.float32)
    result = convert(x, 100, "f32", dst, isa, dst_stride=3).view(NUMPY[dst])
    np.testing.assert_array_equal(result[::3], x.astype(NUMPY[dst]))


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize(("dtype", "low"), [("s4", -8), ("u4", 0)])
def test_four_bits(dtype, low, isa):
    for n in (*SIZES, 20001):
        x = np.random.default_rng(n).normal(low + 8, 6, n).astype(np.float32)
        expected = np.clip(np.rint(x), low, low + 15).astype(np.int8)
        packed = convert(x, n, "f32", dtype, isa)
        nibbles = np.stack([packed & 15, packed >> 4], axis=1).ravel()[:n]
        np.testing.assert_array_equal(nibbles, expected.view(np.uint8) & 15)
        np.testing.assert_array_equal(convert(packed, n, dtype, "f32", isa).view(np.float32), expected)


def test_an_odd_four_bit_store_leaves_the_last_nibble():
    packed = np.full(2, 0x77, np.uint8)
    builder = EltwiseBuilder((3,))
    builder.store(1, "u4", None, builder.load(0, "f32"))
    builder.build()(np.array([1, 2, 3], np.float32), packed)
    assert packed.tolist() == [0x21, 0x73]


def test_four_bit_load_by_stride():
    packed = np.array([0x10, 0x32, 0x54], np.uint8)
    result = convert(packed, 2, "u4", "f32", isas()[-1], src_stride=3).view(np.float32)
    assert result.tolist() == [0, 3]


@pytest.mark.parametrize("isa", isas())
def test_vectors_give_the_bits_of_single_numbers_of_f8_e4m3(isa):
    """NaN included, whose sign stays."""
    codes = all_codes("f8_e4m3")
    apart = np.zeros(3 * len(codes), codes.dtype)
    apart[::3] = codes
    whole = convert(codes, 256, "f8_e4m3", "f32", isa)
    np.testing.assert_array_equal(whole, convert(apart, 256, "f8_e4m3", "f32", isa, src_stride=3))
