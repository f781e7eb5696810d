"""Programs on integers and f64: `u8_eltwise`, `s32_eltwise`, `s64_eltwise`, `u64_eltwise` and `f64_eltwise`."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphpool._kernels.core._dispatch import isas
from graphpool._kernels.core.call import DTYPE_CODES
from graphpool._kernels.eltwise.eltwise import BINARY_OPS, DTYPES, OPS, UNARY_OPS, EltwiseBuilder
from graphpool.errors import UnsupportedError
from tests.helpers.eltwise_cases import UNARY_CASES
from tests.helpers.guarded import Guarded

SIZES = (0, 1, 7, 8, 15, 16, 17, 127, 128, 129, 1000)
LOGIC = {
    "max": np.maximum, "min": np.minimum, "ge": np.greater_equal, "gt": np.greater, "le": np.less_equal,
    "lt": np.less, "eq": np.equal, "ne": np.not_equal, "and": np.logical_and, "or": np.logical_or,
    "xor": np.logical_xor,
}  # fmt: skip
WHOLE = LOGIC | {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": lambda x, y: _cut_off(x, y), "mod": np.remainder,
    "fmod": np.fmod, "bit_and": np.bitwise_and, "bit_or": np.bitwise_or, "bit_xor": np.bitwise_xor,
    "shift_left": np.left_shift, "shift_right": np.right_shift, "pow": lambda x, y: _power(x, y),
}  # fmt: skip
WHOLE_UNARY = {
    "abs": np.abs, "neg": np.negative, "not": np.logical_not, "sign": np.sign, "bit_not": np.bitwise_not,
    "narrow": lambda x: x.astype(np.int8), "pow": np.ones_like,
}  # fmt: skip
REAL = LOGIC | {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "mod": np.remainder,
                "fmod": np.fmod, "pow": np.power}  # fmt: skip
REAL_UNARY = {name: UNARY_CASES[name][0] for name in UNARY_OPS if name in OPS["f64"]} | {
    "clamp": lambda x: np.clip(x, 1, 0.5), "is_inf": np.isinf, "narrow": lambda x: x,
    "pow": lambda x: np.power(x, np.full_like(x, 0.5)),
}  # fmt: skip
NUMPY = {"s8": np.int8, "s16": np.int16, "s32": np.int32, "s64": np.int64, "u8": np.uint8, "u16": np.uint16,
         "u32": np.uint32, "u64": np.uint64}  # fmt: skip
SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 0.3, -0.3, 1.0, -1.0, 2.5, -7.5, 1e-310, 1e300])


def _cut_off(x, y):
    """The quotient towards 0, of integers that NumPy divides downwards."""
    rest = np.remainder(x, y)
    return np.where(y == 0, 0, np.floor_divide(x, y) + ((rest != 0) & ((x < 0) != (y < 0))).astype(x.dtype))


def _power(x, y):
    """Wraps; cut off where the exponent is negative, and 0 for 0 then."""

    def power(a, b):
        return pow(a, b, 2**64) if b >= 0 else a ** (b & 1) % 2**64 if abs(a) == 1 else 0

    return np.array([power(*pair) for pair in zip(x.tolist(), y.tolist(), strict=True)], np.uint64).astype(x.dtype)


def run(register, isa, op, arrays, dtype, out_type, out_name, *numbers):
    builder = EltwiseBuilder(arrays[0].shape, register=register)
    loads = [builder.load(k, dtype) for k in range(len(arrays))]
    value = (builder.unary, builder.binary, builder.ternary)[len(arrays) - 1](op, *loads, *numbers)
    builder.store(len(arrays), out_name, None, value)
    out = Guarded(arrays[0].size * np.dtype(out_type).itemsize)
    builder.build(isa)(*arrays, out.bytes)
    return out.array(out_type, arrays[0].shape)


def test_every_operation_has_a_case():
    for register in ("u8", "s32", "s64", "u64"):
        assert set(WHOLE) == OPS[register] & set(BINARY_OPS)
        assert set(WHOLE_UNARY) == OPS[register] & set(UNARY_OPS)
    assert set(REAL) == OPS["f64"] & set(BINARY_OPS)


REGISTERS = [
    ("u64", "u64"), ("u8", "u8"), *(("s64", dtype) for dtype in NUMPY if dtype != "u64"),
    *(("s32", dtype) for dtype in NUMPY if dtype in DTYPES["s32"]),
]  # fmt: skip


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize(("register", "dtype"), REGISTERS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_integers_are_exact_and_wrap(register, dtype, isa):
    info, narrow = np.iinfo(NUMPY[dtype]), "u8" if register == "u8" else "s8"
    rng = np.random.default_rng(2)
    for n in SIZES:
        x, y = (rng.integers(info.min, info.max, n, NUMPY[dtype], endpoint=True) for _ in range(2))
        y[::4], y[1::4] = x[::4], rng.integers(0, 5, y[1::4].size)
        for op, function in WHOLE.items():
            with np.errstate(all="ignore"):
                expected = function(x, y)
            out = "boolean" if expected.dtype == bool else dtype
            result = run(register, isa, op, (x, y), dtype, expected.dtype, out)
            np.testing.assert_array_equal(result, expected, op)
        for op, function in WHOLE_UNARY.items():
            expected = (x if register == "u8" and op == "narrow" else function(x)).astype(NUMPY[dtype])
            result = run(register, isa, op, (x,), dtype, NUMPY[dtype], dtype, DTYPE_CODES[narrow])
            np.testing.assert_array_equal(result, expected, op)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_f64_is_numpys(isa):
    rng = np.random.default_rng(3)
    for n in SIZES:
        x, y = rng.normal(size=n) * 3, rng.normal(size=n)
        x[: SPECIAL.size], y[: SPECIAL.size] = SPECIAL[:n], np.flip(SPECIAL)[:n]
        for op, function in REAL.items():
            result = run("f64", isa, op, (x, y), "f64", np.float64, "f64")
            np.testing.assert_allclose(result, function(x, y).astype(np.float64), 1e-14, err_msg=op)
        quantised = np.rint(x / y) + 3
        quantised[np.isnan(quantised)] = -np.inf
        for op, expected in (("quantize_by", quantised), ("dequantize_by", (x - 3) * y)):
            result = run("f64", isa, op, (x, y, np.full(n, 3.0)), "f64", np.float64, "f64")
            np.testing.assert_array_equal(result, expected, op)
        for op, function in REAL_UNARY.items():
            result = run("f64", isa, op, (x,), "f64", np.float64, "f64", 1.0, 0.5)
            np.testing.assert_allclose(result, function(x).astype(np.float64), 1e-14, err_msg=op)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("register", ["u8", "s32"])
def test_operands_of_other_types_and_strides(register, isa):
    rng = np.random.default_rng(7)
    for dtype in sorted(DTYPES[register] - {"boolean"}):
        x = rng.integers(0, 120, (9, 70)).astype(NUMPY[dtype])
        row, column, one = x[0].copy(), x[:, 0].copy(), x[:1, :1].copy()
        for y, strides in ((row, (0, 1)), (column[:, None], (1, 0)), (one, (0, 0))):
            builder = EltwiseBuilder(x.shape, register=register)
            loaded = builder.load(0, dtype), builder.load(1, dtype, strides)
            builder.store(2, dtype, None, builder.binary("add", *loaded))
            builder.store(3, "boolean", (1, 9), builder.binary("gt", *loaded))
            sums, above = np.zeros_like(x), np.zeros((70, 9), bool)
            builder.build(isa)(x, y, sums, above)
            np.testing.assert_array_equal(sums, x + y)
            np.testing.assert_array_equal(above.T, x > y)


@pytest.mark.parametrize("isa", isas())
def test_quotients_of_32_bits_are_exact(isa):
    edges = np.array([-(2**31), 1 - 2**31, -7, -2, -1, 0, 1, 2, 3, 7, 2**30, 2**31 - 2, 2**31 - 1])
    x, y = (np.ascontiguousarray(part.ravel(), np.int32) for part in np.meshgrid(edges, edges))
    rng = np.random.default_rng(5)
    x, y = (np.concatenate([part, rng.integers(-(2**31), 2**31, 999, np.int32) >> rng.integers(0, 31, 999, np.int32)])
            for part in (x, y))  # fmt: skip
    with np.errstate(all="ignore"):
        for op in ("div", "mod", "fmod"):
            expected = np.where(y == 0, 0, WHOLE[op](x, np.where(y == 0, 1, y)))
            np.testing.assert_array_equal(run("s32", isa, op, (x, y), "s32", np.int32, "s32"), expected, op)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("register", ["s64", "u64", "f64"])
def test_select_of_a_constant(register, isa):
    condition, x = np.array([True, False, True, False, True]), np.arange(5, dtype=np.uint16) + 65000
    builder = EltwiseBuilder((5,), register=register)
    loads = builder.load(0, "boolean"), builder.load(1, "u16")
    builder.store(2, "s64", None, builder.ternary("select", *loads, builder.const(7.0)))
    out = np.zeros(5, np.int64)
    builder.build(isa)(condition, x, out)
    np.testing.assert_array_equal(out, np.where(condition, x.astype(int), 7))


NARROW = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f8_e5m2": ml_dtypes.float8_e5m2,
          "f8_e4m3": ml_dtypes.float8_e4m3fn}  # fmt: skip


def _between(dtype, code, nudge):
    """A number beside the middle of two neighbours of a narrow type; f64 tells on which side."""
    itemsize = np.dtype(NARROW[dtype]).itemsize
    grid = np.array([code, code + 1]).astype(f"u{itemsize}").view(NARROW[dtype]).astype(np.float64)
    return (grid[0] + grid[1]) / 2 * (1 + nudge * 2.0**-40), grid[0] if nudge < 0 else grid[1]


@pytest.mark.parametrize("isa", isas())
@given(st.sampled_from(list(NARROW)), st.integers(1, 100), st.sampled_from([-1, 1]), st.sampled_from([-1, 1]))
def test_f64_is_rounded_once(isa, dtype, code, nudge, sign):
    number, expected = _between(dtype, code, nudge)
    builder = EltwiseBuilder((9,), register="f64")
    builder.store(1, dtype, None, builder.load(0, "f64"))
    out = np.zeros(9, NARROW[dtype])
    builder.build(isa)(np.full(9, sign * number), out.view(np.uint8))
    assert (out.astype(np.float64) == sign * expected).all()


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("dtype", NARROW)
def test_f64_beyond_narrow_types(dtype, isa):
    x = np.array([np.nan, np.inf, -np.inf, 1e300, -1e300, 1e-300, -1e-300, 1.0])
    builder = EltwiseBuilder(x.shape, register="f64")
    builder.store(1, dtype, None, builder.load(0, "f64"))
    out = np.zeros(x.size, NARROW[dtype])
    builder.build(isa)(x, out.view(np.uint8))
    found, huge = out.astype(np.float64), np.nan if dtype == "f8_e4m3" else np.inf
    np.testing.assert_array_equal(found, [np.nan, huge, -huge, huge, -huge, 0, 0, 1])
    assert np.signbit(found[5:7]).tolist() == [False, True]


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("dtype", NUMPY)
def test_f64_saturates_at_integers(dtype, isa):
    info = np.iinfo(NUMPY[dtype])
    x = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, 0.5, 1.5, 2.5, 100.0])
    builder = EltwiseBuilder(x.shape, register="f64")
    builder.store(1, dtype, None, builder.load(0, "f64"))
    out = Guarded(x.size * info.dtype.itemsize)
    builder.build(isa)(x, out.bytes)
    assert out.array(NUMPY[dtype], x.size).tolist() == [0, *[info.max, info.min] * 2, 0, 2, 2, 100]


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("dtype", [*NUMPY, "boolean"])
@pytest.mark.parametrize("n", [7, 4000])
def test_f64_is_cut_off_for_integers(n, dtype, isa):
    info = np.iinfo(NUMPY.get(dtype, np.uint8))
    special = [np.nan, np.inf, -np.inf, -0.999, float(info.min) - 0.999, 1e-300, 126.99999999999999]
    x = np.resize([*special, *np.random.default_rng(0).uniform(-140, 300, 1000)], n)
    builder = EltwiseBuilder(x.shape, register="f64")
    builder.store(1, dtype, None, builder.unary("trunc", builder.load(0, "f64")))
    out = Guarded(x.size * info.dtype.itemsize)
    builder.build(isa)(x, out.bytes)
    wanted = np.nan_to_num(np.trunc(x), posinf=2.0**64, neginf=-(2.0**64))
    exact = [min(max(int(value), info.min), info.max) for value in wanted]
    if dtype == "boolean":
        exact = [int(value != 0) for value in np.trunc(x)]
    assert out.array(info.dtype, x.size).tolist() == exact


@pytest.mark.parametrize("register", ["s64", "u64", "f64"])
def test_errors_of_wide_programs(register):
    builder = EltwiseBuilder((4,), register=register)
    value = builder.load(0, "s32")
    for wrong in (
        builder.acc,
        lambda: builder.load(0, "s4"),
        lambda: builder.unary("gelu_erf", value),
        lambda: builder.binary("prelu", value, value),
        builder.epilogue,
    ):
        with pytest.raises(UnsupportedError):
            wrong()
