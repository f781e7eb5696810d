"""Products with weights of 8 and 4 bits, against the dequantised weights in float64."""

import itertools
import math
from dataclasses import replace
from typing import get_args

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphpool._kernels.core import _dispatch
from graphpool._kernels.eltwise.eltwise import EltwiseBuilder
from graphpool._kernels.gemm.compressed import BITS, CompressedFormat, Part
from graphpool._kernels.gemm.packed import lanes_of
from graphpool._kernels.gemm.post_ops import PostOps
from graphpool._kernels.gemm.problem import MatmulProblem
from graphpool._kernels.gemm.requant import Requant
from graphpool.errors import InvalidArgumentError, InvalidDataTypeError, InvalidShapeError, UnsupportedError
from tests.cases.inputs import normal
from tests.helpers.kernel_runs import guarded, run_all, run_checked, run_in_steps

ISAS = _dispatch.isas()
RANGES = {"s8": (-128, 128), "u8": (0, 256), "s4": (-8, 8), "u4": (0, 16)}
EPS = 2.0**-24
PARTS = get_args(Part)


def numbers(shape, dtype, seed=0):
    """Integers of a type, as int64."""
    return np.random.default_rng(seed).integers(*RANGES[dtype], shape)


def as_bytes(q, dtype):
    """Dense numbers as they lie in memory."""
    flat = q.reshape(-1).astype(np.int8).view(np.uint8)
    if BITS[dtype] == 8:
        return flat
    flat = np.append(flat & 15, np.zeros(flat.size % 2, np.uint8))
    return np.ascontiguousarray(flat[0::2] | flat[1::2] << 4)


def product(weights, m, a_strides=None, *, int8=False, **post_ops):
    """The call of a product of m rows with weights of a format."""
    n, k = weights.n, weights.k
    return weights.matmul(MatmulProblem((), m, n, k, a_strides or (k, 1), (n,)), PostOps(**post_ops), int8=int8)


class Weights:
    """Random weights k x n, the form that the kernels read, and what they stand for in float64."""

    def __init__(self, k, n, dtype, isa=None, *, group=None, zeros=False, transposed=False):
        self.k, self.n, self.dtype = k, n, dtype
        q = numbers((n, k) if transposed else (k, n), dtype)
        ngroups = max(-(-k // (group or max(k, 1))), 0)
        scales = 2.0 ** -(numbers((ngroups, n), "u4", 1) % 5).astype(np.float32)
        points = numbers((ngroups, n), dtype, 2).astype(np.int32 if BITS[dtype] == 4 else np.int64) if zeros else None
        spread = lambda x: np.repeat(x, group or max(k, 1), axis=0)[:k]  # noqa: E731
        self.scales = scales.astype(np.float64)
        logical = q.T if transposed else q
        self.values = (logical - (spread(points) if zeros else 0)) * spread(scales).astype(np.float64)
        self.format = CompressedFormat(k, n, dtype, group=group, zero=None if zeros else 0, isa=isa)
        self.packed = []
        self.pack("numbers", (1, k) if transposed else (n, 1), as_bytes(q, dtype))
        self.pack("scales", (n, 1), scales)
        if zeros:
            self.pack("zeros", (n, 1), points, "s32" if BITS[dtype] == 4 else "s64")

    def pack(self, part, strides, source, dtype=None):
        """Pack between guards."""
        whole, packed = guarded(self.format.nbytes(part), np.uint8, fill=0x55)
        run_in_steps(self.format.pack(part, strides, dtype), 2, source, packed)
        assert (whole[:32] == 0x55).all()
        assert (whole[-32:] == 0x55).all()
        self.packed.append(packed)

    def product(self, m, a_strides=None, **options):
        """The call on m rows, dense by default."""
        return product(self.format, m, a_strides, **options)

    def multiply(self, a, **options):
        """The product of rows, wherever they lie."""
        m = len(a)
        call = self.product(m, tuple(stride // 4 for stride in a.strides), **options)
        return run_checked(call, m * self.n, a.ctypes.data, *self.packed, dst_index=1 + len(self.packed)).reshape(
            m, self.n
        )

    def check(self, a):
        """Multiply rows a and compare."""
        out = self.multiply(a)
        error = (self.k + 4) * EPS * (np.abs(a).astype(np.float64) @ np.abs(self.values))
        error += 4 * EPS * np.abs(a).max(1, initial=0)[:, None] * np.abs(self.values).sum(0) + 1e-37
        assert (np.abs(out - a.astype(np.float64) @ self.values) <= error).all()


SIZES = [
    (1, 1, 1), (1, 15, 3), (1, 17, 8), (1, 128, 7), (1, 300, 64), (2, 31, 9), (2, 130, 16), (3, 97, 11), (4, 63, 25),
    (4, 64, 32), (5, 65, 4), (6, 200, 40), (7, 47, 19), (13, 7, 10), (97, 40, 33),
]  # fmt: skip


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", BITS)
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_sizes_around_every_tile_edge(isa, dtype, zeros, size):
    m, n, k = size
    Weights(k, n, dtype, isa, zeros=zeros).check(normal((m, k)))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("size", [(0, 3, 4), (3, 0, 4), (3, 4, 0), (9, 4, 0)], ids=str)
def test_zero_sizes(isa, size):
    m, n, k = size
    Weights(k, n, "s8", isa).check(normal((m, k)))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", BITS)
@pytest.mark.parametrize("m", [1, 3, 20])
@pytest.mark.parametrize(("k", "group"), [(64, 16), (64, 32), (100, 32), (20, 8), (3000, 128), (7, 100)])
def test_groups_of_rows_have_scales_of_their_own(isa, dtype, m, k, group):
    Weights(k, 70, dtype, isa, group=group, zeros=True).check(normal((m, k)))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", BITS)
@pytest.mark.parametrize("m", [1, 9])
def test_one_zero_point_of_all_weights(isa, dtype, m):
    k, n = 40, 50
    weights, a, point = Weights(k, n, dtype, isa), normal((m, k)), 5
    out = np.empty((m, n), np.float32)
    run_all(product(replace(weights.format, zero=point), m), a, *weights.packed, out)
    exact = Weights(k, n, dtype, isa)
    shifted = exact.values - point * np.broadcast_to(exact.scales, (k, n))
    np.testing.assert_allclose(out, a.astype(np.float64) @ shifted, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", BITS)
@pytest.mark.parametrize("k", [9, 64])
def test_weights_may_lie_transposed_and_activations_by_any_strides(isa, dtype, k):
    weights = Weights(k, 37, dtype, isa, transposed=True)
    weights.check(normal((k, 6)).T)
    weights.check(normal((12, 2 * k))[::-3, ::2])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("m", [2, 9])
def test_scales_and_zero_points_are_broadcast_and_converted(isa, m):
    k, n = 48, 40
    q, a = numbers((k, n), "u8"), normal((m, k))
    scale, points = np.array([0.25], ml_dtypes.bfloat16), numbers(n, "u8", 3).astype(np.uint8)
    weights = CompressedFormat(k, n, "u8", group=16, zero=None, isa=isa)
    packed, out = [np.empty(weights.nbytes(part), np.uint8) for part in PARTS], np.empty((m, n), np.float32)
    run_all(weights.pack("numbers", (n, 1)), q.astype(np.uint8), packed[0])
    run_all(weights.pack("scales", (0, 0), "bf16"), scale.view(np.uint16), packed[1])
    run_all(weights.pack("zeros", (0, 1), "u8"), points, packed[2])
    run_all(product(weights, m), a, *packed, out)
    np.testing.assert_allclose(out, a.astype(np.float64) @ ((q - points.astype(int)) * 0.25), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("m", [1, 4, 70])
@pytest.mark.parametrize("clamp", [None, (0, math.inf)])
def test_bias_residual_clamp_and_epilogue(isa, m, clamp):
    k, n = 40, 130
    weights, a, bias, held, row = (
        Weights(k, n, "s4", isa),
        normal((m, k)),
        normal(n, 2),
        normal((m, n), 3),
        normal(n, 4),
    )
    builder = EltwiseBuilder((m, n))
    builder.store(0, "f32", None, builder.binary("mul", builder.acc(), builder.load(1, "f32", (0, 1))))
    for epilogue, more in ((b"", []), (builder.epilogue(), [row])):
        call = weights.product(m, bias=True, residual_strides=(n,), clamp=clamp, epilogue=epilogue)
        out = run_checked(call, m * n, a, *weights.packed, bias, held, *more, dst_index=5).reshape(m, n)
        expected = np.clip(a @ weights.values + bias + held, *(clamp or (-np.inf, np.inf))) * (row if more else 1)
        np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("m", [1, 9])
def test_nan_and_infinity_stay_in_their_row(isa, m):
    weights, a = Weights(24, 50, "u4", isa), normal((m, 24))
    a[0, 3] = np.nan
    out = np.empty((m, 50), np.float32)
    run_all(weights.product(m), a, *weights.packed, out)
    assert np.isnan(out[0]).all()
    assert np.isfinite(out[1:]).all()


# ---- activations of 8 bits, by dynamic quantisation

INT8_SIZES = [
    (1, 1, 1, None), (2, 17, 7, None), (3, 33, 64, 16), (4, 70, 100, 32), (4, 16, 20, 8), (1, 130, 272, 64),
    (2, 9, 300, None), (3, 65, 272, 128), (5, 40, 512, 256), (37, 33, 48, 16),
]  # fmt: skip
"""Rows, columns, depth, rows of a group."""


def blocks_of(weights):
    """Where the blocks begin whose activations share a scale: groups in even parts of at most 128, and the end."""
    parts = -(-weights.group_rows // 128)
    size = -(-weights.group_rows // (parts * 8)) * 8
    starts = [i for first in range(0, weights.k, weights.group_rows)
              for i in range(first, min(first + weights.group_rows, weights.k), size)]  # fmt: skip
    return [*starts, weights.k]


def rounded(a, weights):
    """Activations as the kernel has them: integers of 8 bits times a factor for each block of a row."""
    q, factor, starts = np.zeros(a.shape, np.int64), np.zeros(a.shape, np.float32), blocks_of(weights)
    for first, end in itertools.pairwise(starts):
        most = np.abs(a[:, first:end]).max(1, keepdims=True)
        q[:, first:end] = np.rint(a[:, first:end] * (np.float32(127) / most))
        factor[:, first:end] = most / np.float32(127)
    return q, factor


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", BITS)
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("size", INT8_SIZES, ids=str)
def test_activations_of_8_bits(isa, dtype, zeros, size):
    m, n, k, group = size
    weights, a = Weights(k, n, dtype, isa, group=group, zeros=zeros), normal((m, k))
    out = weights.multiply(a, int8=True)
    q, factor = rounded(a, weights.format)
    seen, magnitudes = q * factor.astype(np.float64), np.abs(a).astype(np.float64) @ np.abs(weights.values)
    assert np.abs(q).max() == 127
    assert (np.abs(out - seen @ weights.values) <= (len(blocks_of(weights.format)) + 4) * EPS * magnitudes).all()
    bound = factor.astype(np.float64) / 2 @ np.abs(weights.values)
    assert (np.abs(out - a @ weights.values) <= bound + 1e-5 * magnitudes).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", BITS)
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("size", INT8_SIZES, ids=str)
def test_sums_of_8_bits_are_exact(isa, dtype, zeros, size):
    m, n, k, group = size
    weights = Weights(k, n, dtype, isa, group=group, zeros=zeros)
    a = np.random.default_rng(5).integers(-127, 128, (m, k)).astype(np.float32)
    a[:, blocks_of(weights.format)[:-1]] = 127
    np.testing.assert_array_equal(weights.multiply(a, int8=True), a.astype(np.float64) @ weights.values)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", ["u8", "s4"])
@pytest.mark.parametrize("extreme", [0, -1])
def test_numbers_at_the_ends_of_their_range_do_not_saturate(isa, dtype, extreme):
    k, n = 64, 40
    weights, value = CompressedFormat(k, n, dtype, isa=isa), range(*RANGES[dtype])[extreme]
    packed = [np.empty(weights.nbytes(part), np.uint8) for part in PARTS[:2]]
    q, out = as_bytes(np.full((k, n), value), dtype), np.empty((2, n), np.float32)
    run_all(weights.pack("numbers", (n, 1)), q, packed[0])
    run_all(weights.pack("scales", (0, 0)), np.ones(1, np.float32), packed[1])
    a = np.array([[127] * k, [-127] * k], np.float32)
    run_all(product(weights, 2, int8=True), a, *packed, out)
    np.testing.assert_array_equal(out, (a.sum(1, keepdims=True) * value).repeat(n, 1))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", BITS)
def test_a_row_of_8_bits_depends_on_no_other_row(isa, dtype):
    weights, a = Weights(80, 90, dtype, isa, group=16, zeros=True), normal((70, 80))
    a[5, 3], a[6, 70], a[7] = np.nan, np.inf, 0
    out = weights.multiply(a, int8=True)
    alone = np.concatenate([weights.multiply(row[None], int8=True) for row in a])
    np.testing.assert_array_equal(out, alone)
    np.testing.assert_array_equal(np.isnan(out).all(1), [k in (5, 6) for k in range(70)])
    assert not out[7].any()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", ["u8", "s4"])
def test_activations_of_8_bits_may_lie_by_any_strides(isa, dtype):
    weights, a = Weights(64, 37, dtype, isa, group=32), normal((12, 128))
    turned, skipped = normal((64, 6)).T, a[::-3, ::2]
    for rows in (turned, skipped):
        expected = weights.multiply(np.ascontiguousarray(rows), int8=True)
        np.testing.assert_array_equal(weights.multiply(rows, int8=True), expected)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("size", [1e-40, 1e-31, 1e-25, 1e25], ids=str)
def test_activations_of_8_bits_near_the_ends_of_the_range(isa, size):
    weights, a = Weights(32, 20, "s8", isa), normal((3, 32)) * np.float32(size)
    q, factor = rounded(a, weights.format) if size > 1e-31 else (0 * a, a)
    expected = q * factor.astype(np.float64) @ weights.values
    np.testing.assert_allclose(weights.multiply(a, int8=True), expected, rtol=1e-5, atol=size * 1e-5)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_random_geometry(data):
    m, n, k = (data.draw(st.integers(1, most)) for most in (12, 80, 60))
    dtype, isa = data.draw(st.sampled_from(list(BITS))), data.draw(st.sampled_from(ISAS))
    group = data.draw(st.sampled_from([None, 8, 16, 64]))
    zeros, transposed = data.draw(st.booleans()), data.draw(st.booleans())
    Weights(k, n, dtype, isa, group=group, zeros=zeros, transposed=transposed).check(normal((m, k)))


def test_layouts_take_a_quarter_and_an_eighth():
    full = 4096 * 4096 * 4
    bytes_of_one, nibbles = CompressedFormat(4096, 4096, "s8"), CompressedFormat(4096, 4096, "u4", group=32, zero=None)
    assert [bytes_of_one.nbytes(part) for part in PARTS] == [full // 4, 4096 * 4, 0]
    assert [nibbles.nbytes(part) for part in PARTS] == [full // 8, 128 * 4096 * 4, 128 * 4096 * 2]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", BITS)
@pytest.mark.parametrize("transposed", [False, True])
def test_unpacking_gives_every_number_back(isa, dtype, transposed):
    k, n = 19, 37
    q, strides = as_bytes(numbers((n, k) if transposed else (k, n), dtype), dtype), (1, k) if transposed else (n, 1)
    weights = CompressedFormat(k, n, dtype, group=8, zero=None, isa=isa)
    scales, points = normal((3, n)), numbers((3, n), dtype).astype(np.float32)
    for part, array, steps in zip(PARTS, (q, scales, points), (strides, (n, 1), (n, 1)), strict=True):
        packed, back = np.empty(weights.nbytes(part), np.uint8), np.zeros_like(array)
        run_all(weights.pack(part, steps), array, packed)
        run_all(weights.unpack(part, steps), packed, back)
        np.testing.assert_array_equal(back, array)
        if part == "scales":
            behind = packed.view(np.float32)[scales.size :]
            assert not behind[: -n % lanes_of(isa)].any()


@pytest.mark.parametrize(
    ("error", "change"),
    [
        (InvalidDataTypeError, {"dtype": "s32"}),
        (InvalidShapeError, {"k": -1}),
        (InvalidArgumentError, {"group": 0}),
        (InvalidArgumentError, {"group": 4}),
        (UnsupportedError, {"isa": "z80"}),
    ],
)
def test_bad_formats_raise(error, change):
    with pytest.raises(error):
        CompressedFormat(**({"k": 16, "n": 4, "dtype": "u8"} | change))


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("pack", ["pack", "unpack"])
def test_strides_of_packing_are_pairs(pack, part):
    for strides in ((), (1,), (1, 1, 1)):
        with pytest.raises(InvalidShapeError, match="2 strides"):
            getattr(CompressedFormat(16, 4, "s8", zero=None), pack)(part, strides)


@pytest.mark.parametrize(
    ("error", "change", "post_ops"),
    [
        (InvalidShapeError, {"k": 15}, {}),
        (UnsupportedError, {"batch_shape": (2,), "a_strides": (32, 16, 1), "c_strides": (8, 4)}, {}),
        (UnsupportedError, {"a_dtype": "bf16"}, {}),
        (UnsupportedError, {"c_strides": (5,)}, {}),
        (UnsupportedError, {}, {"residual_strides": (5,)}),
        (InvalidArgumentError, {}, {"clamp": (1, 0)}),
        (InvalidArgumentError, {}, {"requant": Requant()}),
    ],
)
def test_bad_products_raise(error, change, post_ops):
    good = {"batch_shape": (), "m": 2, "n": 4, "k": 16, "a_strides": (16, 1), "c_strides": (4,)}
    with pytest.raises(error):
        CompressedFormat(16, 4, "u8").matmul(MatmulProblem(**(good | change)), PostOps(**post_ops))
