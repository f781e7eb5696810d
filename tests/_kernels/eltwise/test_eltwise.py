import math
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphpool._kernels.core._dispatch import call, isas
from graphpool._kernels.eltwise import eltwise
from graphpool._kernels.eltwise.eltwise import BINARY_OPS, OPS, TERNARY_OPS, UNARY_OPS, EltwiseBuilder
from graphpool.errors import InvalidArgumentError, InvalidShapeError, UnsupportedError
from tests.helpers.eltwise_cases import BINARY_CASES, UNARY_CASES, samples
from tests.helpers.guarded import Guarded

SIZES = (0, 1, 7, 8, 15, 16, 17, 255, 256, 257, 1000, 1023, 1024, 1025, 4096, 4100, 9000)
HEADER = Path(eltwise.__file__).parent / "gp_eltwise.h"


SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 0.5, 1e-40, 3e38], np.float32)


def apply_unary(name, x, isa, alpha=0.0, beta=0.0):
    builder = EltwiseBuilder(x.shape)
    builder.store(1, "f32", None, builder.unary(name, builder.load(0, "f32"), alpha, beta))
    out = Guarded(x.nbytes)
    builder.build(isa)(x, out.bytes)
    return out.array(np.float32, x.shape)


def apply_binary(name, x, y, isa):
    builder = EltwiseBuilder(x.shape)
    builder.store(2, "f32", None, builder.binary(name, builder.load(0, "f32"), builder.load(1, "f32")))
    out = Guarded(x.nbytes)
    builder.build(isa)(x, y, out.bytes)
    return out.array(np.float32, x.shape)


def header_names():
    body = re.search(r"GP_ENUM\(gp_eltwise_op,(.*?)\n\);", HEADER.read_text(), re.S).group(1)
    return re.findall(r"GP_OP_(\w+)", body)


def test_opcodes_are_those_of_the_header():
    names = header_names()
    unary = ["POW_SCALAR" if name == "pow" else name.upper() for name in UNARY_OPS]
    others = [name.upper() for name in (*BINARY_OPS, *TERNARY_OPS)]
    assert names == ["LOAD", "STORE", "ACC", "CONST", *unary, *others]
    codes = [*UNARY_OPS.values(), *BINARY_OPS.values(), *TERNARY_OPS.values()]
    assert codes == list(range(4, len(names)))


def test_every_operation_has_a_case():
    assert set(UNARY_CASES) == set(UNARY_OPS) & OPS["f32"]
    assert set(BINARY_CASES) == set(BINARY_OPS) & OPS["f32"]


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("name", UNARY_CASES)
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning", "ignore:divide by zero:RuntimeWarning")
def test_unary(name, isa):
    reference, alpha, beta, tolerance = UNARY_CASES[name]
    for n in SIZES:
        x = samples(n)
        if name in ("log", "sqrt", "rsqrt", "pow"):
            x = np.abs(x)
        if name in ("asin", "acos", "atanh"):
            x = np.clip(x / 8, -0.95, 0.95)
        if name == "acosh":
            x = 1.01 + np.abs(x)
        expected = reference(x.astype(np.float64))
        scale = np.abs(x) if name.startswith("gelu") else np.abs(expected)
        result = apply_unary(name, x, isa, alpha, beta)
        ok = (np.abs(result - expected) <= tolerance * scale) | (result == expected)
        assert ok.all(), (n, x[~ok], result[~ok], expected[~ok])


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("name", BINARY_CASES)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_binary(name, isa):
    for n in SIZES:
        x, y = samples(n), samples(n, seed=1)
        y[::3] = x[::3]
        np.testing.assert_allclose(
            apply_binary(name, x, y, isa), BINARY_CASES[name](x, y).astype(np.float32), rtol=2e-7
        )


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("name", BINARY_CASES)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_binary_of_special_values(name, isa):
    x, y = (np.ascontiguousarray(v).ravel() for v in np.meshgrid(SPECIAL, SPECIAL))
    expected = BINARY_CASES[name](x, y).astype(np.float32)
    np.testing.assert_array_equal(apply_binary(name, x, y, isa), expected)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize(
    "name", ["relu", "clamp", "leaky_relu", "elu", "hard_sigmoid", "mish", "softplus", "sign", "round"]
)
def test_nan_passes_through(name, isa):
    assert np.isnan(apply_unary(name, np.array([np.nan], np.float32), isa, 0.5, 1.0)).all()


@pytest.mark.parametrize("isa", isas())
def test_ternary(isa):
    for n in SIZES:
        c, x, y = (samples(n, seed) for seed in range(3))
        x[x == 0] = 1
        for name, expected, rtol in (
            ("select", np.where(c != 0, x, y), 0), ("fma", c * x + y, 1e-5), ("quantize_by", np.rint(c / x) + y, 0),
            ("dequantize_by", (c - y) * x, 0),
        ):  # fmt: skip
            builder = EltwiseBuilder((n,))
            builder.store(3, "f32", None, builder.ternary(name, *(builder.load(k, "f32") for k in range(3))))
            out = Guarded(4 * n)
            builder.build(isa)(c, x, y, out.bytes)
            np.testing.assert_allclose(out.array(np.float32, n), expected, rtol=rtol, atol=rtol)


@st.composite
def layouts(draw):
    """A shape, and for each of two inputs a permutation and the axes that it broadcasts."""
    shape = draw(st.lists(st.integers(1, 9), min_size=0, max_size=5))
    axes = range(len(shape))
    inputs = [
        (draw(st.permutations(list(axes))), draw(st.sets(st.sampled_from(axes)) if shape else st.just(set())))
        for _ in range(2)
    ]
    return tuple(shape), inputs, draw(st.integers(0, 3))


def strided_input(shape, order, broadcast, offset, rng):
    """(memory, strides, the array that they describe) with axes stored in `order`, some of them missing."""
    dims = [1 if axis in broadcast else shape[axis] for axis in order]
    memory = rng.normal(size=offset + int(np.prod(dims))).astype(np.float32)
    view = memory[offset:].reshape(dims).transpose(np.argsort(order))
    strides = [0 if axis in broadcast else s // 4 for axis, s in enumerate(view.strides)]
    return memory, strides, np.broadcast_to(view, shape)


@settings(max_examples=150, deadline=None)
@given(layouts())
def test_layouts(case):
    shape, inputs, offset = case
    rng = np.random.default_rng(0)
    (x, xs, x_array), (y, ys, y_array) = (strided_input(shape, *item, offset, rng) for item in inputs)
    builder = EltwiseBuilder(shape)
    total = builder.binary("add", builder.load(0, "f32", xs, offset=offset), builder.load(1, "f32", ys, offset=offset))
    builder.store(2, "f32", None, total)
    out = Guarded(4 * x_array.size)
    builder.build()(x, y, out.bytes)
    np.testing.assert_array_equal(out.array(np.float32, shape), x_array + y_array)


def test_twelve_axes_that_do_not_merge():
    shape, x = (2,) * 12, np.arange(2**12, dtype=np.float32).reshape((2,) * 12)
    strides = [1 << axis for axis in range(12)]
    builder = EltwiseBuilder(shape)
    builder.store(1, "f32", strides, builder.load(0, "f32"))
    out = np.zeros_like(x)
    builder.build()(x, out)
    np.testing.assert_array_equal(out, x.transpose())


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_strided_store_leaves_gaps_alone(stride):
    x = samples(300)
    builder = EltwiseBuilder((300,))
    builder.store(1, "f32", (stride,), builder.load(0, "f32"))
    out = np.full(900, -7, np.float32)
    builder.build()(x, out)
    expected = np.full(900, -7, np.float32)
    expected[: 300 * stride : stride] = x
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("isa", isas())
def test_tasks_make_the_same_result_in_any_split(isa):
    x = samples(3 * eltwise.TASK_SIZE + 77)
    builder = EltwiseBuilder(x.shape)
    builder.store(1, "bf16", None, builder.unary("gelu_erf", builder.load(0, "f32")))
    kernel = builder.build(isa)
    assert kernel.ntasks == 4
    whole, parts = np.zeros(x.size, np.uint16), np.zeros(x.size, np.uint16)
    kernel(x, whole)
    for begin, end in ((3, 4), (0, 1), (1, 3)):
        call(kernel.kernel, kernel.params, (x, parts), begin, end)
    np.testing.assert_array_equal(whole, parts)


@pytest.mark.parametrize("isa", isas())
def test_result_does_not_depend_on_place(isa):
    x = samples(600)
    whole = apply_unary("tanh", x, isa)
    for start in (1, 5, 255, 256):
        np.testing.assert_array_equal(apply_unary("tanh", x[start:].copy(), isa), whole[start:])


@st.composite
def programs(draw):
    """Operations whose f32 result is exact in NumPy too: (name, operand, operand), numbered from two inputs on."""
    names = st.sampled_from(["add", "sub", "mul", "max", "min", "ge", "relu", "abs", "neg"])
    count = draw(st.integers(1, 40))
    return [(draw(names), draw(st.integers(0, k + 1)), draw(st.integers(max(0, k - 3), k + 1))) for k in range(count)]


@settings(max_examples=100, deadline=None)
@given(programs())
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_chains(program):
    x, y = samples(300), samples(300, 1)
    builder = EltwiseBuilder((300,))
    values, expected = [builder.load(0, "f32"), builder.load(1, "f32")], [x, y]
    for name, a, b in program:
        if name in UNARY_OPS:
            values.append(builder.unary(name, values[a]))
            expected.append(UNARY_CASES[name][0](expected[a]).astype(np.float32))
        else:
            values.append(builder.binary(name, values[a], values[b]))
            expected.append(BINARY_CASES[name](expected[a], expected[b]).astype(np.float32))
    builder.store(2, "f32", None, values[-1])
    out = np.zeros_like(x)
    try:
        kernel = builder.build()
    except UnsupportedError:
        assert len(program) >= eltwise.N_REGISTERS - 2
        return
    kernel(x, y, out)
    np.testing.assert_array_equal(out, expected[-1])


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("width", [17, 256, 272, 300, 1024, 3072, 4096, 5000, 20000])
def test_a_number_for_each_row(isa, width):
    """An operand that is one number in a block: first, second, both, stored, and in the register of the result."""
    rows = 5
    x, column = 0.5 + np.abs(samples(rows * width)).reshape(rows, width), 1 + np.abs(samples(rows, seed=1))
    builder = EltwiseBuilder((rows, width))
    a, b = builder.load(0, "f32"), builder.load(1, "f32", (1, 0))
    one, ratio = builder.load(2, "f32", (0, 0)), builder.binary("div", b, a)
    both = builder.binary("mul", b, one)
    last = builder.ternary("fma", builder.binary("sub", ratio, both), builder.unary("square", b), both)
    for arg, value in enumerate((b, builder.binary("mul", a, b), both, last), start=3):
        builder.store(arg, "f32", None, value)
    outs = [Guarded(x.nbytes) for _ in range(4)]
    builder.build(isa)(x, column, np.array([3.0], np.float32), *[out.bytes for out in outs])
    found = [out.array(np.float32, x.shape) for out in outs]
    b = np.broadcast_to(column[:, None], x.shape)
    np.testing.assert_array_equal(found[0], b)
    np.testing.assert_array_equal(found[1], x * b)
    np.testing.assert_array_equal(found[2], b * np.float32(3))
    terms = (b / x - b * np.float32(3)).astype(np.float64) * (b * b)
    np.testing.assert_allclose(found[3], terms + b * 3, rtol=1e-6, atol=1e-6 * np.abs(terms).max())


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("shape", [(3, 5, 128), (2, 40, 17), (4, 1, 2800), (3, 300, 16), (70, 2, 48)])
def test_rows_for_each_matrix(isa, shape):
    """Operands that repeat within a matrix, as masks do, and within all: one row, one column, one number each."""
    x = samples(math.prod(shape)).reshape(shape)
    operands = [
        samples(math.prod(s), seed=1).reshape(s) for s in ((shape[0], 1, shape[2]), shape[2:], (shape[0], 1, 1))
    ]
    builder = EltwiseBuilder(shape)
    value, expected = builder.load(0, "f32"), x
    for arg, operand in enumerate(operands, start=1):
        strides = np.broadcast_to(operand, shape).strides
        value = builder.binary("add", value, builder.load(arg, "f32", [stride // 4 for stride in strides]))
        expected = expected + operand
    builder.store(4, "f32", None, value)
    out = Guarded(x.nbytes)
    builder.build(isa)(x, *operands, out.bytes)
    np.testing.assert_array_equal(out.array(np.float32, shape), expected)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("dtype", ["u8", "s8"])
@pytest.mark.parametrize("by", ["number", "loaded number", "loaded"])
@pytest.mark.parametrize("scale", [0.05, 1 / 3, 7.0, 1.9999999, 1e-30, 1e30, 0.0, np.inf])
def test_quantised_extremes(isa, dtype, by, scale):
    """Every tie, what saturates, and numbers that are none, as a division and a rounding give them."""
    ties = (np.arange(-300, 300) + 0.5) * (scale if np.isfinite(scale) else 1)
    special = [0.0, -0.0, np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-45, -1e-40, 1e-30, 2.5]
    x = np.concatenate([ties, np.nextafter(ties, 0), 50 * samples(999), special]).astype(np.float32)
    scales, zero_points = np.full(x.size, scale, np.float32), np.full(x.size, 3, np.float32)
    builder = EltwiseBuilder((x.size,))
    loaded = builder.load(0, "f32")
    if by == "number":
        value = builder.unary("quantize", loaded, np.float32(scale), 3.0)
    else:
        stride = (int(by == "loaded"),)
        value = builder.ternary("quantize_by", loaded, builder.load(1, "f32", stride), builder.load(2, "f32", stride))
    builder.store(3, dtype, None, value)
    out = Guarded(x.size)
    builder.build(isa)(x, scales, zero_points, out.bytes)
    with np.errstate(all="ignore"):
        rounded = np.rint(x / scales) + zero_points
    low, high = eltwise.BYTE_LIMITS[dtype]
    expected = np.clip(np.where(np.isnan(rounded), low, rounded), low, high).astype(
        np.uint8 if dtype == "u8" else np.int8
    )
    np.testing.assert_array_equal(out.array(expected.dtype, x.shape), expected)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("width", [1, 2, 3, 4, 5, 8, 15, 16, 17])
@pytest.mark.parametrize("steps", [(300, 1), (0, 1), (1, 0), (1, 4), (601, 2)])
def test_a_number_for_each_short_row(isa, steps, width):
    shape, memory = (4, 300, width), samples(3000)
    column = np.lib.stride_tricks.as_strided(memory, shape, (4 * steps[0], 4 * steps[1], 0))
    x = samples(column.size, seed=1).reshape(shape)
    builder = EltwiseBuilder(shape)
    builder.store(
        2, "f32", None, builder.binary("mul", builder.load(0, "f32"), builder.load(1, "f32", (*steps, 0)))
    )  # fmt: skip
    kernel, out = builder.build(isa), Guarded(x.nbytes)
    kernel(x, memory, out.bytes)
    np.testing.assert_array_equal(out.array(np.float32, shape), x * column)
    again = np.zeros(shape, np.float32)
    for task in range(kernel.ntasks):  # each begins within a row, or not
        call(kernel.kernel, kernel.params, [x, memory, again], task, task + 1)
    np.testing.assert_array_equal(again, x * column)


def test_a_long_chain_in_place():
    x = samples(1000)
    builder = EltwiseBuilder(x.shape)
    value = builder.load(0, "f32")
    one = builder.const(1.0)
    for _ in range(500):
        value = builder.binary("add", value, one)
    builder.store(0, "f32", None, value)
    out = x.copy()
    builder.build()(out)
    np.testing.assert_allclose(out, x + 500, rtol=1e-4)


def test_several_stores():
    x = samples(100)
    builder = EltwiseBuilder(x.shape)
    value = builder.load(0, "f32")
    builder.store(1, "f32", None, builder.unary("square", value))
    builder.store(2, "s8", None, builder.unary("round", value))
    square, rounded = np.zeros(100, np.float32), np.zeros(100, np.int8)
    builder.build()(x, square, rounded)
    np.testing.assert_array_equal(square, x * x)
    np.testing.assert_array_equal(rounded, np.rint(x))


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("n", [16, 256, 300])
def test_what_was_loaded_stays_when_its_memory_is_overwritten(isa, n):
    x = samples(n)
    builder = EltwiseBuilder((n,))
    value = builder.load(0, "f32")
    double = builder.binary("add", value, value)
    builder.store(0, "f32", None, double)
    builder.store(1, "f32", None, builder.binary("sub", value, double))
    first, second = x.copy(), np.zeros_like(x)
    builder.build(isa)(first, second)
    np.testing.assert_array_equal(first, x + x)
    np.testing.assert_array_equal(second, x - (x + x))


@pytest.mark.parametrize("n", [16, 256, 300])
def test_a_stored_result_that_is_read_again(n):
    x = samples(n)
    builder = EltwiseBuilder((n,))
    square = builder.unary("square", builder.load(0, "f32"))
    builder.store(1, "f32", None, square)
    builder.store(1, "f32", None, builder.unary("neg", square))
    builder.store(2, "f32", None, square)
    last, kept = np.zeros_like(x), np.zeros_like(x)
    builder.build()(x, last, kept)
    np.testing.assert_array_equal(last, -(x * x))
    np.testing.assert_array_equal(kept, x * x)


def test_steps_that_nothing_stores_are_left_out():
    builder = EltwiseBuilder((4,))
    value = builder.load(0, "f32")
    for _ in range(100):
        builder.unary("exp", builder.load(5, "f32"))
    builder.store(1, "f32", None, value)
    out = np.zeros(4, np.float32)
    builder.build()(np.arange(4, dtype=np.float32), out)
    np.testing.assert_array_equal(out, np.arange(4))


def test_sixteen_live_values_fit_and_seventeen_do_not():
    for count, fits in ((16, True), (17, False)):
        builder = EltwiseBuilder((4,))
        values = [builder.const(k) for k in range(count)]
        total = values[0]
        for value in values[1:]:
            total = builder.binary("add", total, value)
        builder.store(0, "f32", None, total)
        if fits:
            out = np.zeros(4, np.float32)
            builder.build()(out)
            np.testing.assert_array_equal(out, sum(range(count)))
        else:
            with pytest.raises(UnsupportedError, match="at most 16"):
                builder.build()


def test_quantisation_is_exact():
    x = np.linspace(-40, 40, 1001).astype(np.float32)
    builder = EltwiseBuilder(x.shape)
    scaled = builder.binary("div", builder.load(0, "f32"), builder.const(0.1))
    builder.store(1, "u8", None, builder.unary("round", builder.binary("add", scaled, builder.const(128.0))))
    out = np.zeros(x.shape, np.uint8)
    builder.build()(x, out)
    np.testing.assert_array_equal(out, np.clip(np.rint(x / np.float32(0.1) + np.float32(128)), 0, 255))


def test_errors():
    builder = EltwiseBuilder((4, 6))
    value = builder.load(0, "f32")
    with pytest.raises(UnsupportedError, match="undef"):
        builder.load(0, "undef")
    with pytest.raises(InvalidArgumentError, match="argument number"):
        builder.load(80, "f32")
    with pytest.raises(InvalidShapeError, match="2 of them"):
        builder.load(0, "f32", (1,))
    with pytest.raises(UnsupportedError, match="elementwise operation sinc"):
        builder.unary("sinc", value)
    with pytest.raises(InvalidArgumentError, match="of this builder"):
        builder.binary("add", value, EltwiseBuilder((4, 6)).load(0, "f32"))
    with pytest.raises(InvalidArgumentError, match="at least one store"):
        builder.build()
    with pytest.raises(InvalidShapeError, match="12 dimensions"):
        EltwiseBuilder((1,) * 13)
    builder.store(1, "f32", None, value)
    with pytest.raises(UnsupportedError, match="instruction set"):
        builder.build("vax")


def test_errors_of_four_bit_stores_and_accumulators():
    builder = EltwiseBuilder((4, 6))
    value = builder.acc()
    for strides, offset in (((12, 2), 0), ((8, 1), 0), (None, 1)):
        with pytest.raises(UnsupportedError, match="contiguous"):
            builder.store(0, "s4", strides, value, offset=offset)
    builder.store(0, "u4", None, value)
    with pytest.raises(UnsupportedError, match="4-bit"):
        builder.epilogue()
    with pytest.raises(InvalidArgumentError, match="epilogue"):
        builder.build()


def test_programs_that_differ_in_the_sign_of_a_zero_are_two():
    found = []
    for number in (0.0, -0.0):
        builder = EltwiseBuilder((3,))
        builder.store(0, "f32", None, builder.const(number))
        out = np.ones(3, np.float32)
        builder.build()(out)
        found.append(np.signbit(out).tolist())
    assert found == [[False] * 3, [True] * 3]


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize(("dtype", "low", "high"), [("u8", 0, 255), ("s8", -128, 127)])
@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_quantised_bytes(dtype, low, high, step, isa):
    for n in SIZES:
        x = np.resize(np.concatenate([SPECIAL, samples(200) * 40, np.arange(-9, 9, dtype=np.float32) / 8]), n)
        for scale, zero_point in ((0.25, 3), (0.3, 0)):
            builder = EltwiseBuilder((n,))
            value = builder.unary("quantize", builder.load(0, "f32"), scale, zero_point)
            builder.store(1, dtype, (step,), builder.unary("clamp", value, low, high))
            out = Guarded(max(n * step, 1))
            builder.build(isa)(x, out.bytes)
            steps = np.rint(x / np.float32(scale)) + np.float32(zero_point)
            expected = np.clip(np.nan_to_num(steps, nan=low, posinf=high, neginf=low), low, high)
            result = out.array(np.int8 if dtype == "s8" else np.uint8, max(n * step, 1))[: n * step : step]
            np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("dtype", ["u8", "s8"])
@pytest.mark.parametrize("strides", [(1, 0), (0, 1), (0, 0)])
@pytest.mark.parametrize("zero_strides", [(1, 0), (0, 1), (0, 0)])
def test_quantised_bytes_by_loaded_numbers(strides, zero_strides, dtype, isa):
    info = np.iinfo(dtype.replace("u", "uint").replace("s", "int"))
    for shape in ((3, 5), (7, 300), (5, 1024), (3, 5000)):
        rng, x = np.random.default_rng(shape[1]), samples(shape[0] * shape[1]).reshape(shape) * 40
        scale, zero = rng.uniform(0.1, 2, 5000).astype(np.float32), rng.integers(-9, 9, 5000).astype(np.int8)
        builder = EltwiseBuilder(shape)
        value = builder.ternary(
            "quantize_by", builder.load(0, "f32"), builder.load(1, "f32", strides), builder.load(2, "s8", zero_strides)
        )
        builder.store(3, dtype, None, builder.unary("clamp", value, info.min, info.max))
        out = Guarded(x.size)
        builder.build(isa)(x, scale, zero, out.bytes)
        spread = [
            np.lib.stride_tricks.as_strided(array, shape, [array.itemsize * step for step in steps])
            for array, steps in ((scale, strides), (zero, zero_strides))
        ]
        expected = np.clip(np.rint(x / spread[0]) + spread[1], info.min, info.max)
        np.testing.assert_array_equal(out.array(info.dtype, shape), expected)
