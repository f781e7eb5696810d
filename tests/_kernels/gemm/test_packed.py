import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphpool._kernels.core import _dispatch
from graphpool._kernels.eltwise.eltwise import EltwiseBuilder
from graphpool._kernels.gemm.packed import LANES, PackedFormat, k_parts, pair_count, shift_count
from graphpool._kernels.gemm.problem import MatmulProblem
from graphpool._kernels.gemm.requant import Dynamic, Requant, Rounding
from graphpool.errors import InvalidArgumentError, InvalidDataTypeError, InvalidShapeError, UnsupportedError
from graphpool.typing import dense_strides
from tests.cases.inputs import normal
from tests.helpers.byte_operands import BYTE_OPERANDS, byte_operands
from tests.helpers.kernel_runs import guarded, run_all, run_checked, run_in_steps
from tests.helpers.products import packed_matmul
from tests.helpers.requant import requantized

ISAS = _dispatch.isas()
NUMPY = {"f32": np.float32, "bf16": ml_dtypes.bfloat16, "f16": np.float16, "s8": np.int8, "u8": np.uint8}
EPS = 2.0**-24


def integers(shape, dtype, seed=0):
    info = np.iinfo(NUMPY[dtype])
    return np.random.default_rng(seed).integers(info.min, info.max + 1, shape).astype(NUMPY[dtype])


def element_strides(array):
    return tuple(stride // array.itemsize for stride in array.strides)


def packed(b, dtype="f32", isa=None, b_dtype=None):
    """b of shape (..., k, n), any strides, in panels: on guarded memory, odd task splits."""
    (*batch, k, n), (*batch_strides, row, col) = b.shape, element_strides(b)
    count = math.prod(batch)
    weights = PackedFormat(k, n, dtype, batch=count, isa=isa)
    call = weights.pack((row, col), batch_shape=batch, batch_strides=batch_strides, b_dtype=b_dtype)
    whole, part = guarded(weights.nbytes, np.uint8, fill=0x55)
    run_in_steps(call, 2, b.ctypes.data, part)
    assert (whole[:32] == 0x55).all()
    assert (whole[-32:] == 0x55).all()
    if dtype != "s8":
        assert not part.reshape(count, weights.pitch)[:, weights.words * n * 4 :].any()
    return part.copy()


def bound(a, b, terms):
    """How far a sum of products in f32, in any order, may lie from the exact one, and that."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    return a @ b, (terms + 1) * EPS * (np.abs(a) @ np.abs(b)) + 1e-37


def check(a, b, isa, *, row_stride=None):
    """Multiply views a (m, k) and b (k, n) and compare with float64."""
    (m, k), n = a.shape, b.shape[1]
    row = n if row_stride is None else row_stride
    call = packed_matmul((), m, n, k, element_strides(a), (row,), isa=isa)
    out = run_checked(call, m * row, a.ctypes.data, packed(b, isa=isa), dst_index=2).reshape(m, row)
    expected, error = bound(a, b, k)
    assert (np.abs(out[:, :n] - expected) <= error).all()
    assert np.isnan(out[:, n:]).all()
    return call


SIZES = [
    (1, 1, 1), (1, 15, 3), (1, 16, 5), (1, 17, 2), (1, 128, 7), (1, 257, 31), (2, 31, 9), (2, 129, 16), (3, 97, 11),
    (3, 33, 1), (4, 63, 13), (4, 64, 17), (5, 65, 4), (6, 32, 6), (6, 96, 2), (7, 47, 19), (8, 49, 8), (11, 23, 29),
    (12, 8, 12), (13, 7, 10), (96, 5, 3), (97, 40, 5), (193, 131, 2), (7, 65, 513), (12, 16, 530), (16, 97, 600),
    (1, 790, 700), (2, 16500, 33), (3, 600, 900),
]  # fmt: skip


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_sizes_around_every_tile_edge(isa, size):
    m, n, k = size
    check(normal((m, k)), normal((k, n), 1), isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("n", [20, 90])
def test_long_sums_are_made_of_chains(isa, n):
    k, term = 2**14, np.float32(1 + 2.0**-12)
    b = packed(np.full((k, n), term), isa=isa)
    for m in (1, 4, 7, 13, 40):  # panels are read in parts or as a whole
        call = packed_matmul((), m, n, k, (k, 1), (n,), isa=isa)
        out = run_checked(call, m * n, np.ones((m, k), np.float32), b, dst_index=2)
        assert (out == k * term).all(), "one chain loses the last bit of each term behind 4096"


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("k", [700, 2**14])
def test_a_row_does_not_depend_on_how_many_there_are(isa, k):
    n, most = 50, 40
    a, b = normal((most, k)), packed(normal((k, n), 1), isa=isa)
    rows = set()
    for m in (1, 4, 7, 13, most):
        call = packed_matmul((), m, n, k, (k, 1), (n,), isa=isa)
        rows.add(run_checked(call, m * n, a[:m].copy(), b, dst_index=2)[:n].tobytes())
    assert len(rows) == 1


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("size", [(0, 3, 4), (3, 0, 4), (3, 4, 0), (0, 0, 0)], ids=str)
def test_zero_sizes(isa, size):
    m, n, k = size
    check(normal((m, k)), normal((k, n)), isa)


@pytest.mark.parametrize("isa", ISAS)
def test_operands_by_any_strides(isa):
    check(normal((37, 19)).T, normal((37, 70), 1), isa)
    check(normal((19, 37)), normal((70, 37), 1).T, isa)
    check(normal((20, 2, 30, 3))[:, 0, :, 1], normal((30, 3, 50, 2), 1)[:, 1, :, 1], isa)
    check(normal((11, 30))[::-1], normal((30, 13))[:, ::-1], isa)
    check(np.broadcast_to(normal((1, 30)), (11, 30)), np.broadcast_to(normal((30, 1)), (30, 13)), isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("m", [1, 3, 8, 20])
def test_rows_of_dst_may_lie_apart(isa, m):
    check(normal((m, 9)), normal((9, 33)), isa, row_stride=40)


@pytest.mark.parametrize("isa", ISAS)
def test_sums_in_parts_of_k_are_the_sums_of_few_rows(isa):
    k, n = 26000, 40
    a, b = normal((7, k)), normal((k, n), 1)
    weights, many, few = packed(b, isa=isa), np.empty((7, n), np.float32), np.empty((1, n), np.float32)
    run_all(packed_matmul((), 7, n, k, (k, 1), (n,), isa=isa), a, weights, many)
    run_all(packed_matmul((), 1, n, k, (k, 1), (n,), isa=isa), a, weights, few)
    np.testing.assert_array_equal(many[:1], few)
    expected, error = bound(a, b, k)
    assert (np.abs(many - expected) <= error).all()


@pytest.mark.parametrize("isa", ISAS)
def test_a_row_does_not_depend_on_the_number_of_rows(isa):
    a, weights = normal((50, 70)), packed(normal((70, 300), 1), isa=isa)
    results = []
    for m in range(1, 51):
        out = np.empty((m, 300), np.float32)
        run_all(packed_matmul((), m, 300, 70, (70, 1), (300,), isa=isa), a, weights, out)
        results.append(out)
    assert all((out == results[-1][: len(out)]).all() for out in results)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize(("batch", "m", "n", "k", "parts"), [
    ((), 1, 16, 4099, 2), ((), 7, 40, 26000, 3), ((2, 3), 5, 33, 1000, 8), ((), 200, 5, 31, 1), ((), 3, 50, 100, 4),
])  # fmt: skip
def test_parts_of_k_as_tasks_add_up(isa, dtype, batch, m, n, k, parts):
    a, b = normal((*batch, m, k)), normal((k, n), 1)
    rounded = b.astype(NUMPY[dtype])
    c_strides = dense_strides((*batch, m, n))[:-1]
    call = packed_matmul(batch, m, n, k, element_strides(a), c_strides, dtype=dtype, parts=parts, isa=isa)
    assert call.ntasks >= parts
    flat = run_checked(call, parts * math.prod(batch) * m * n, a, packed(rounded, dtype, isa), dst_index=2)
    out = flat.reshape(parts, *batch, m, n)
    expected, error = bound(a.astype(NUMPY[dtype]), rounded, k)
    assert (np.abs(out.sum(0, dtype=np.float64) - expected) <= error).all()
    if parts > 1:
        first = -(-k // (parts * 32)) * 32 if dtype == "bf16" else -(-k // (parts * 16)) * 16
        expected, error = bound(a.astype(NUMPY[dtype])[..., :first], rounded[:first], first)
        assert (np.abs(out[0] - expected) <= error).all()


def test_k_is_split_where_there_are_few_results_and_much_work():
    assert k_parts(1, 16, 65536) > 1
    assert k_parts(66, 32, 25088) > 1
    assert k_parts(4, 16, 2048) == 1  # little work
    assert k_parts(64, 4096, 25088) == 1  # columns enough
    assert k_parts(4096, 16, 25088) == 1  # rows enough
    assert k_parts(0, 16, 65536) == k_parts(1, 0, 65536) == k_parts(1, 16, 0) == 1


BATCHES = [
    ((3, 4, 5), (3, 5, 6), (1,)), ((3, 4, 5), (5, 6), (0,)), ((3, 1, 5), (5, 6), (0,)), ((0, 4, 5), (5, 6), (0,)),
    ((2, 3, 7, 5), (3, 5, 33), (0, 1)), ((2, 3, 7, 5), (2, 5, 33), (1, 0)), ((2, 1, 1, 9), (9, 40), (0, 0)),
]  # fmt: skip


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("a_shape", "b_shape", "weight_strides"), BATCHES)
def test_batches(isa, a_shape, b_shape, weight_strides):
    a, b = normal(a_shape), normal(b_shape, 1)
    (*batch, m, k), n = a_shape, b_shape[-1]
    a_strides, c_strides = element_strides(a), dense_strides((*batch, m, n))[:-1]
    call = packed_matmul(batch, m, n, k, a_strides, c_strides, weight_strides=weight_strides, isa=isa)
    out = run_checked(call, math.prod(batch) * m * n, a, packed(b, isa=isa), dst_index=2).reshape(*batch, m, n)
    if weight_strides == (1, 0):
        b = b[:, None]
    np.testing.assert_allclose(out, a.astype(np.float64) @ b.astype(np.float64), rtol=1e-4, atol=1e-5)


def test_batches_that_share_weights_fold_into_one_matrix():
    shared = packed_matmul((8,), 5, 6, 5, (25, 5, 1), (30, 6))
    assert shared.ntasks == 1
    assert packed_matmul((8,), 5, 6, 5, (25, 5, 1), (30, 6), weight_strides=(1,)).ntasks == 8
    assert packed_matmul((8,), 5, 6, 5, (50, 5, 1), (30, 6)).ntasks == 8
    assert packed_matmul((8,), 5, 6, 5, (25, 5, 1), (30, 6), residual_strides=(60, 6)).ntasks == 8
    assert packed_matmul((8,), 1, 6, 5, (50, 0, 1), (30, 6)).ntasks == 1


# ---- what happens to a sum


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("size", [(1, 130, 5), (3, 17, 4), (5, 64, 9), (70, 33, 3), (9, 40, 20000)], ids=str)
@pytest.mark.parametrize("clamp", [None, (0, math.inf), (-0.5, 6.0)])
def test_bias_residual_and_clamp(isa, size, clamp):
    m, n, k = size
    a, b, bias, residual = normal((m, k)), normal((k, n), 1), normal(n, 2), normal((m, n + 3), 3)[:, :n]
    call = packed_matmul((), m, n, k, (k, 1), (n,), bias=True, residual_strides=(n + 3,), clamp=clamp, isa=isa)
    args = a, packed(b, isa=isa), bias, residual.ctypes.data
    out = run_checked(call, m * n, *args, dst_index=4).reshape(m, n)
    product, error = bound(a, b, k)
    expected = np.clip(product + bias + residual, *(clamp or (-np.inf, np.inf)))
    assert (np.abs(out - expected) <= error + 2 * EPS * (np.abs(product) + np.abs(bias) + np.abs(residual))).all()


@pytest.mark.parametrize("isa", ISAS)
def test_residual_may_be_dst_itself(isa):
    m, n, k = 9, 40, 20000  # k in several parts
    a, b, held = normal((m, k)), normal((k, n), 1), normal((m, n), 2)
    out = held.copy()
    run_all(packed_matmul((), m, n, k, (k, 1), (n,), residual_strides=(n,), isa=isa), a, packed(b, isa=isa), out, out)
    np.testing.assert_allclose(out, a.astype(np.float64) @ b + held, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("isa", ISAS)
def test_nan_and_infinity_stay_in_their_row_and_pass_the_clamp(isa):
    a, b = normal((7, 8)), normal((8, 50))
    a[1, 3], a[2, 0] = np.nan, np.inf
    out = np.empty((7, 50), np.float32)
    run_all(packed_matmul((), 7, 50, 8, (8, 1), (50,), clamp=(-1, 1), isa=isa), a, packed(b, isa=isa), out)
    assert np.isnan(out[1]).all()
    assert (np.abs(out[2]) == 1).all()
    assert np.isfinite(out[[0, 3, 4, 5, 6]]).all()


def bias_relu(batch, m, n, dtype="f32", strides=None):
    """max(accumulator + bias, 0) stored as `dtype`; argument 1 is the bias of shape (n,)."""
    builder = EltwiseBuilder((*batch, m, n))
    total = builder.binary("add", builder.acc(), builder.load(1, "f32", (*[0] * (len(batch) + 1), 1)))
    builder.store(0, dtype, strides, builder.unary("relu", total))
    return builder.epilogue()


EPILOGUE_SIZES = [((), 1, 5, 3), ((), 7, 600, 20), ((), 300, 33, 4), ((3,), 5, 17, 0), ((2, 3), 70, 40, 9)]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(("batch", "m", "n", "k"), EPILOGUE_SIZES)
def test_epilogue_runs_on_every_result(isa, in_place, batch, m, n, k):
    a, b, bias = normal((*batch, m, k)), normal((math.prod(batch), k, n), 1), normal(n, 2)
    weight_strides = tuple(math.prod(batch[axis + 1 :]) for axis in range(len(batch)))
    call = packed_matmul(
        batch, m, n, k, element_strides(a), dense_strides((*batch, m, n))[:-1],
        weight_strides=weight_strides, epilogue=bias_relu(batch, m, n), dst_needs_scratch=not in_place, isa=isa,
    )  # fmt: skip
    out = run_checked(call, math.prod(batch) * m * n, a, packed(b, isa=isa), bias, dst_index=2)
    expected = np.maximum(a.astype(np.float64) @ b.reshape(*batch, k, n) + bias, 0)
    np.testing.assert_allclose(out.reshape(expected.shape), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("isa", ISAS)
def test_epilogue_reads_what_bias_and_clamp_made_and_stores_another_type(isa):
    m, n, k = 70, 33, 9
    a, b, bias = normal((m, k)), normal((k, n), 1), normal(n, 2)
    epilogue = bias_relu((), m, n, "s8", (1, m))
    call = packed_matmul((), m, n, k, (k, 1), (n,), bias=True, clamp=(-1, 3), epilogue=epilogue, isa=isa)
    out = np.full(m * n, -99, np.int8)
    run_all(call, a, packed(b, isa=isa), bias, out, bias)
    expected = np.rint(np.maximum(np.clip(a @ b + bias, -1, 3) + bias, 0))
    assert (np.abs(out.reshape(n, m).T - expected) <= 1).all()


# ---- packing


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", ["f32", "bf16", "s8"])
@pytest.mark.parametrize("size", [(1, 1), (5, 16), (33, 17), (64, 130), (7, 31), (0, 5), (5, 0)], ids=str)
@pytest.mark.parametrize("transposed", [False, True])
def test_unpacking_gives_back_every_bit(isa, dtype, size, transposed):
    k, n = size
    raw = integers((2, n, k) if transposed else (2, k, n), "u8")
    b = np.ascontiguousarray(np.repeat(raw, np.dtype(NUMPY[dtype]).itemsize, -1)).view(NUMPY[dtype])
    strides = (1, k) if transposed else (n, 1)
    view = b.transpose(0, 2, 1) if transposed else b
    whole, part = guarded(b.size, NUMPY[dtype], fill=3)
    call = PackedFormat(k, n, dtype, batch=2, isa=isa).unpack(strides, batch_shape=(2,), batch_strides=(k * n,))
    run_in_steps(call, 2, packed(view, dtype, isa), part)
    assert part.tobytes() == b.tobytes()
    assert (whole[:32] == 3).all()
    assert (whole[len(whole) - 32 :] == 3).all()


def test_matrices_begin_on_cache_lines():
    assert PackedFormat(768, 3072, isa="generic").nbytes == 768 * 3072 * 4
    assert PackedFormat(5, 3, "bf16", batch=4, isa="generic").nbytes == 4 * 64


@pytest.mark.parametrize("isa", ISAS)
def test_packing_rounds_f32_to_bf16_to_nearest_even(isa):
    b = normal((31, 50))
    np.testing.assert_array_equal(packed(b, "bf16", isa, "f32"), packed(b.astype(ml_dtypes.bfloat16), "bf16", isa))


# ---- narrower types


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("a_dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("size", [(1, 40, 7), (3, 130, 16), (7, 33, 9), (100, 65, 5), (4, 5, 0)], ids=str)
def test_bf16(isa, a_dtype, size):
    m, n, k = size
    a = normal((m, k + 1)).astype(NUMPY[a_dtype])[:, :k]
    b = normal((k, n), 1).astype(ml_dtypes.bfloat16)
    call = packed_matmul((), m, n, k, (k + 1, 1), (n,), dtype="bf16", a_dtype=a_dtype, isa=isa)
    out = run_checked(call, m * n, a.ctypes.data, packed(b, "bf16", isa), dst_index=2).reshape(m, n)
    expected, error = bound(a.astype(ml_dtypes.bfloat16), b, k)
    assert (np.abs(out - expected) <= 2 * error).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("a_dtype", ["f32", "bf16"])
def test_bf16_transposed(isa, a_dtype):
    a, b = normal((30, 9)).astype(NUMPY[a_dtype]).T, normal((40, 30), 1).astype(ml_dtypes.bfloat16).T
    call = packed_matmul((), 9, 40, 30, (1, 9), (40,), dtype="bf16", a_dtype=a_dtype, isa=isa)
    out = run_checked(call, 360, a.ctypes.data, packed(b, "bf16", isa), dst_index=2).reshape(9, 40)
    expected, error = bound(a.astype(ml_dtypes.bfloat16), b, 30)
    assert (np.abs(out - expected) <= 2 * error).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("a_dtype", ["u8", "s8"])
@pytest.mark.parametrize("zero_points", [(0, 0), (13, 0), (-5, 7)])
@pytest.mark.parametrize(
    "size", [(1, 40, 7), (3, 130, 16), (7, 33, 9), (100, 65, 5), (4, 5, 0), (16, 65, 2090)], ids=str
)
def test_s8_sums_are_exact(isa, a_dtype, zero_points, size):
    m, n, k = size
    a, b = integers((k, m), a_dtype).T, integers((n, k), "s8", 1).T
    a = a if m == 7 else np.ascontiguousarray(a)
    scales = 2.0 ** (np.arange(n, dtype=np.float32) % 5 - 3)
    zero, columns = zero_points[0], zero_points[1] * (np.arange(n, dtype=np.int32) % 37 - 18)
    given = [columns] if columns.any() else []
    call = packed_matmul(
        (), m, n, k, element_strides(a), (n,), dtype="s8", a_dtype=a_dtype, zero_point=zero,
        dynamic=Dynamic(columns=bool(given)), isa=isa,
    )  # fmt: skip
    inputs = [a.ctypes.data, packed(b, "s8", isa), scales, *given]
    out = run_checked(call, m * n, *inputs, dst_index=len(inputs)).reshape(m, n)
    sums = (a.astype(np.int64) - zero) @ (b.astype(np.int64) - columns)
    np.testing.assert_array_equal(out, sums.astype(np.float32) * scales)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtypes", [("u8", "u8"), ("u8", "s8"), ("s8", "u8"), ("s8", "s8")], ids="-".join)
@pytest.mark.parametrize("size", [(1, 40, 8), (7, 130, 33), (20, 65, 64)], ids=str)
@pytest.mark.parametrize("is_transposed", [False, True])
def test_one_number_for_all_columns_of_heads_that_lie_in_one_another(isa, dtypes, size, is_transposed):
    (m, n, k), (batch, heads) = size, (2, 3)
    a_dtype, b_dtype = dtypes
    a = integers((batch, m, heads, k), a_dtype).transpose(0, 2, 1, 3)
    b = integers((batch, n, heads, k) if is_transposed else (batch, k, heads, n), b_dtype, 1)
    b = b.transpose((0, 2, 3, 1) if is_transposed else (0, 2, 1, 3))
    for a_zero, b_zero in (
        (np.iinfo(a.dtype).max, np.iinfo(b.dtype).min),
        (np.iinfo(a.dtype).min, np.iinfo(b.dtype).max),
    ):
        given = [np.array([b_zero - (128 if b_dtype == "u8" else 0)], np.int32)]
        call = packed_matmul(
            (batch, heads), m, n, k, element_strides(a), (heads * m * n, m * n, n), dtype="s8", a_dtype=a_dtype,
            zero_point=int(a_zero), dynamic=Dynamic(columns=True), weight_strides=(heads, 1), one_scale=True,
            one_zero=True, isa=isa,
        )  # fmt: skip
        inputs = [a.ctypes.data, packed(b, "s8", isa, b_dtype), np.array([0.25], np.float32), *given]
        out = run_checked(call, batch * heads * m * n, *inputs, dst_index=len(inputs))
        sums = (a.astype(np.int64) - a_zero) @ (b.astype(np.int64) - b_zero)
        np.testing.assert_array_equal(out.reshape(sums.shape), sums.astype(np.float32) / 4)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("a_dtype", "zero"), [("u8", 0), ("u8", 200), ("s8", -128), ("s8", 77)])
@pytest.mark.parametrize("has_columns", [False, True])
@pytest.mark.parametrize("size", [(1, 40, 8), (7, 130, 33), (100, 65, 5)], ids=str)
def test_numbers_of_the_activations_may_be_arguments(isa, a_dtype, zero, has_columns, size):
    m, n, k = size
    a, b = integers((m, k), a_dtype), integers((k, n), "s8", 1)
    scales, bias = 2.0 ** (np.arange(n, dtype=np.float32) % 5 - 8), normal(n, 2).round(2)
    given = [np.array([0.25], np.float32), np.array([zero], NUMPY[a_dtype])]
    options = {"dtype": "s8", "a_dtype": a_dtype, "bias": True, "isa": isa}
    panels = packed(b, "s8", isa)
    columns = [np.arange(n, dtype=np.int32) % 200 - 100] if has_columns else []
    static = packed_matmul((), m, n, k, (k, 1), (n,), zero_point=zero, dynamic=Dynamic(columns=has_columns), **options)
    inputs = [a, panels, scales * given[0], *columns, bias]
    wanted = run_checked(static, m * n, *inputs, dst_index=len(inputs))
    for has_zero, chosen, static_zero in ((True, given, 0), (False, given[:1], zero)):
        dynamic = Dynamic(True, has_zero, has_columns)
        call = packed_matmul((), m, n, k, (k, 1), (n,), zero_point=static_zero, dynamic=dynamic, **options)
        inputs = [a, panels, scales, *chosen, *columns, bias]
        out = run_checked(call, m * n, *inputs, dst_index=len(inputs))
        np.testing.assert_array_equal(out, wanted)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("rounds_first", [False, True])
@pytest.mark.parametrize(("dtype", "zero"), [("u8", 0), ("u8", 7), ("u8", 255), ("s8", -128), ("s8", 0), ("s8", 127)])
@pytest.mark.parametrize("clamp", [(-math.inf, math.inf), (0, math.inf), (-3, 17)])
@pytest.mark.parametrize("scale", [2.0**-40, 2.0**-6, 2.0**20])
def test_bytes_saturate_at_both_ends(isa, rounds_first, dtype, zero, clamp, scale):
    """From sums too large for any integer, or around every limit and between two integers, to none but zeros."""
    requant = Requant(outer=Rounding(dtype, scale, zero, rounds_first, clamp))
    for m, n in ((6, 64), (5, 32), (3, 130), (2, 200), (1, 33), (13, 70)):
        k = 12
        a, b = integers((m, k), "u8"), integers((k, n), "s8", 1)
        a[: m // 2] //= 64
        scales = np.resize(np.array([2.0**-12, -(2.0**-9), 2.0**-7], np.float32), n)
        call = packed_matmul((), m, n, k, (k, 1), (n,), dtype="s8", requant=requant, isa=isa)
        out = run_checked(call, m * n, a, packed(b, "s8", isa), scales, dst_index=3, dtype=NUMPY[dtype])
        sums = a.astype(np.int64) @ b.astype(np.int64)
        np.testing.assert_array_equal(out.reshape(m, n), requantized(sums.astype(np.float32) * scales, requant))


@pytest.mark.parametrize("isa", [isa for isa in ISAS if LANES[isa] > 4])
@pytest.mark.parametrize("rounds_first", [False, True])
@pytest.mark.parametrize("dtype", ["u8", "s8"])
def test_nan_in_whole_tiles_is_the_least_integer(isa, rounds_first, dtype):
    m, n, k = 12, 64, 8
    bias = np.zeros(n, np.float32)
    bias[[1, 40]] = np.nan
    requant = Requant(outer=Rounding(dtype, 0.5, 3, rounds_first))
    call = packed_matmul((), m, n, k, (k, 1), (n,), dtype="s8", bias=True, requant=requant, isa=isa)
    operands = np.zeros((m, k), np.uint8), packed(np.ones((k, n), np.int8), "s8", isa), np.ones(n, np.float32), bias
    out = run_checked(call, m * n, *operands, dst_index=4, dtype=NUMPY[dtype]).reshape(m, n)
    assert (out == np.where(np.isnan(bias), np.iinfo(NUMPY[dtype]).min, 3)).all()


@pytest.mark.parametrize("isa", ISAS)
def test_s8_of_the_largest_operands_does_not_saturate(isa):
    m, n, k = 2, 20, 2**15
    a, b = np.full((m, k), 255, np.uint8), np.full((k, n), -128, np.int8)
    call = packed_matmul((), m, n, k, (k, 1), (n,), dtype="s8", isa=isa)
    out = run_checked(call, m * n, a, packed(b, "s8", isa), np.ones(n, np.float32), dst_index=3)
    assert (out == -128.0 * 255 * k).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", BYTE_OPERANDS)
@pytest.mark.parametrize("zero", [0, 128])
def test_s8_sums_that_leave_16_bits_are_exact(isa, kind, zero):
    sizes = [(m, k) for m in (1, 2, 3, 5, 6, 7, 12, 13) for k in (*range(1, 18), 31, 32, 33, 63, 66, 128, 131, 260)]
    for number, (m, k) in enumerate(sizes):
        n = (1, 8, 17, 33, 70, 130)[number % 6]
        a, b = byte_operands(kind, (m, k), (n, k))
        call = packed_matmul((), m, n, k, (k, 1), (n,), dtype="s8", zero_point=zero, isa=isa)
        out = np.empty((m, n), np.float32)
        run_all(call, a, packed(b.T, "s8", isa), np.ones(n, np.float32), out)
        np.testing.assert_array_equal(out, ((a.astype(np.int64) - zero) @ b.T.astype(np.int64)).astype(np.float32))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", BYTE_OPERANDS)
@pytest.mark.parametrize("zero", [0, 128])
def test_s8_of_so_many_terms_that_k_is_split(isa, kind, zero):
    m, n, k = 20, 40, 2**15 - 3
    a, b = byte_operands(kind, (m, k), (n, k))
    call = packed_matmul((), m, n, k, (k, 1), (n,), dtype="s8", zero_point=zero, isa=isa)
    out = run_checked(call, m * n, a, packed(b.T, "s8", isa), np.ones(n, np.float32), dst_index=3).reshape(m, n)
    np.testing.assert_array_equal(out, ((a.astype(np.int64) - zero) @ b.T.astype(np.int64)).astype(np.float32))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("a_dtype", ["u8", "s8"])
@pytest.mark.parametrize("size", [(4, 9, 32), (7, 40, 65), (13, 50, 200), (100, 33, 512)], ids=str)
def test_bytes_about_the_middle_are_multiplied_as_they_lie(isa, a_dtype, size):
    """Activations far from zero in every group, which products without VNNI shift, and are not written to."""
    m, n, k = size
    middle = np.linspace(60, 180, k).round()
    a = np.clip(np.rint(middle + 20 * normal((m, k))), 0, 255).astype(np.uint8)
    a = a if a_dtype == "u8" else (a ^ 0x80).view(np.int8)
    b, kept = integers((k, n), "s8", 1), a.copy()
    for zero in (-3, 100):
        call = packed_matmul((), m, n, k, (k, 1), (n,), dtype="s8", a_dtype=a_dtype, zero_point=zero, isa=isa)
        out = np.empty((m, n), np.float32)
        run_all(call, a, packed(b, "s8", isa), np.ones(n, np.float32), out)
        np.testing.assert_array_equal(out, ((a.astype(np.int64) - zero) @ b.astype(np.int64)).astype(np.float32))
    np.testing.assert_array_equal(a, kept)


@pytest.mark.parametrize("isa", [isa for isa in ISAS if pair_count(2, "s8", isa)])
@pytest.mark.parametrize("kind", BYTE_OPERANDS)
def test_limits_of_pairs_of_words_are_the_largest_safe_bytes(isa, kind):
    k, n = 50, 90
    _, b = byte_operands(kind, (1, k), (n, k))
    weights = PackedFormat(k, n, "s8", isa=isa)
    pairs, panels = pair_count(weights.words, "s8", isa), -(-n // weights.panel)
    first = (weights.words + 1 + shift_count(weights.words, "s8", isa)) * weights.n * 4
    limits = packed(b.T, "s8", isa)[first:][: panels * 2 * pairs].reshape(panels, 2, pairs).astype(int)
    halves = b[:, : pairs * 8].astype(int).reshape(n, pairs, 2, 2, 2)  # words of a pair, halves, bytes
    for panel in range(panels):
        own = halves[panel * weights.panel :][: weights.panel]
        for together, axes in ((0, (2, 4)), (1, (4,))):
            largest = [np.maximum(side, 0).sum(axes).reshape(len(own), pairs, -1).max((0, 2)) for side in (own, -own)]
            found = limits[panel, together]
            assert (found * largest[0] <= 2**15 - 1).all()
            assert (found * largest[1] <= 2**15).all()
            assert ((found == 255) | ((found + 2) * (np.maximum(*largest) + 1) > 2**15 - 1)).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", ["bf16", "s8"])
def test_narrow_types_take_bias_residual_clamp_and_epilogue(isa, dtype):
    m, n, k = 9, 70, 30
    a = normal((m, k)) if dtype == "bf16" else integers((m, k), "u8")
    b = normal((k, n), 1).astype(ml_dtypes.bfloat16) if dtype == "bf16" else integers((k, n), "s8", 1)
    scales = [] if dtype == "bf16" else [np.full(n, 1e-4, np.float32)]
    bias, residual, more = normal(n, 2), normal((m, n), 3), normal(n, 4)
    call = packed_matmul(
        (), m, n, k, (k, 1), (n,), dtype=dtype, bias=True, residual_strides=(n,), clamp=(-1, 1),
        epilogue=bias_relu((), m, n), isa=isa,
    )  # fmt: skip
    weights = packed(b, dtype, isa)
    out = run_checked(call, m * n, a, weights, *scales, bias, residual, more, dst_index=4 + len(scales))
    product = a.astype(np.float64) @ b.astype(np.float64) * (scales[0] if scales else 1)
    expected = np.maximum(np.clip(product + bias + residual, -1, 1) + more, 0)
    np.testing.assert_allclose(out.reshape(m, n), expected, rtol=0.02, atol=0.1 if dtype == "bf16" else 1e-5)


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_random_geometry(data):
    size = st.integers(1, 40)
    m, n, k, batch = (data.draw(size) for _ in range(4))
    isa = data.draw(st.sampled_from(ISAS))
    a_order, b_order = data.draw(st.permutations(range(3))), data.draw(st.permutations(range(2)))
    is_shared, gap = data.draw(st.booleans()), data.draw(st.integers(0, 2))
    a = normal([(batch, m, k)[axis] for axis in a_order]).transpose(np.argsort(a_order))
    b = normal([1 if is_shared else batch, *((k, n)[axis] for axis in b_order)], 1)
    b = b.transpose(0, *(1 + np.argsort(b_order)))
    row = n + gap
    call = packed_matmul(
        (batch,), m, n, k, element_strides(a), (m * row, row), weight_strides=(0 if is_shared else 1,), isa=isa
    )
    out = run_checked(call, batch * m * row, a.ctypes.data, packed(b, isa=isa), dst_index=2).reshape(batch, m, row)
    expected, error = bound(a, b, k)
    assert (np.abs(out[..., :n] - expected) <= error).all()
    assert np.isnan(out[..., n:]).all()


# ---- bad arguments

GOOD = {"batch_shape": (), "m": 2, "n": 4, "k": 3, "a_strides": (3, 1), "c_strides": (4,)}


@pytest.mark.parametrize(
    ("error", "change"),
    [
        (InvalidShapeError, {"m": -1}),
        (InvalidShapeError, {"k": -1}),
        (InvalidShapeError, {"a_strides": (1,)}),
        (InvalidShapeError, {"c_strides": (3,)}),
        (InvalidShapeError, {"weight_strides": (1,)}),
        (InvalidShapeError, {"residual_strides": ()}),
        (InvalidShapeError, {"batch_shape": (1,) * 11}),
        (InvalidDataTypeError, {"dtype": "f16"}),
        (InvalidDataTypeError, {"a_dtype": "bf16"}),
        (InvalidDataTypeError, {"dtype": "s8", "a_dtype": "f32"}),
        (InvalidArgumentError, {"clamp": (1, 0)}),
        (InvalidArgumentError, {"clamp": (math.nan, 0)}),
        (InvalidArgumentError, {"zero_point": 1}),
        (InvalidArgumentError, {"parts": 2, "bias": True}),
        (InvalidArgumentError, {"parts": 2, "clamp": (0, 1)}),
        (InvalidArgumentError, {"parts": 2, "dtype": "s8"}),
        (InvalidArgumentError, {"parts": 5}),
        (UnsupportedError, {"k": 2**15 + 1, "dtype": "s8"}),
        (UnsupportedError, {"isa": "z80"}),
    ],
)
def test_bad_arguments_of_a_product_raise(error, change):
    with pytest.raises(error):
        packed_matmul(**(GOOD | change))


@pytest.mark.parametrize(
    ("error", "change"),
    [
        (InvalidShapeError, {"k": -1}),
        (InvalidShapeError, {"batch": -1}),
        (InvalidShapeError, {"strides": (1,)}),
        (InvalidShapeError, {"batch": 2}),
        (InvalidShapeError, {"batch": 2, "batch_shape": (2,)}),
        (InvalidShapeError, {"batch_shape": (1,) * 11, "batch_strides": (1,) * 11}),
        (InvalidDataTypeError, {"dtype": "u8"}),
        (InvalidDataTypeError, {"b_dtype": "bf16"}),
        (UnsupportedError, {"isa": "z80"}),
    ],
)
def test_bad_arguments_of_packing_raise(error, change):
    options = {"k": 2, "n": 4, "strides": (4, 1)} | change
    packing = {
        name: options.pop(name) for name in ("strides", "b_dtype", "batch_shape", "batch_strides") if name in options
    }
    with pytest.raises(error):
        PackedFormat(**options).pack(**packing)


def test_weights_of_another_size_are_refused():
    with pytest.raises(InvalidShapeError, match="k and n"):
        PackedFormat(3, 5).matmul(MatmulProblem((), 2, 4, 3, (3, 1), (4,)))
