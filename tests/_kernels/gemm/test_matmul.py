import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphpool._kernels.core import _dispatch
from graphpool._kernels.eltwise.eltwise import EltwiseBuilder
from graphpool._kernels.gemm.matmul import choose_matmul, needs_pack
from graphpool.errors import InvalidArgumentError, InvalidDataTypeError, InvalidShapeError, UnsupportedError
from tests.helpers.kernel_runs import run_all, run_checked
from tests.helpers.products import matmul

ISAS = _dispatch.isas()
RTOL = {"f32": 2e-6, "f64": 4e-15}
NUMPY = {"f32": np.float32, "f64": np.float64}
IMPLS = [("blas", None), *(("simd", isa) for isa in ISAS)]


def element_strides(array):
    return tuple(stride // array.itemsize for stride in array.strides)


def check(a, b, *, dtype="f32", impl="auto", isa=None, row_stride=None):
    """Multiply views a (..., m, k) and b (..., k, n) of flat arrays and compare with float64."""
    (*batch, m, k), n = np.broadcast_shapes(a.shape[:-2], b.shape[:-2]) + a.shape[-2:], b.shape[-1]
    wide_a, wide_b = np.broadcast_to(a, (*batch, m, k)), np.broadcast_to(b, (*batch, k, n))
    row = n if row_stride is None else row_stride
    c_strides = [m * row * int(np.prod(batch[axis + 1 :])) for axis in range(len(batch))] + [row]
    call = matmul(
        batch, m, n, k, element_strides(wide_a), element_strides(wide_b), c_strides, dtype=dtype, impl=impl, isa=isa
    )
    size = int(np.prod(batch)) * m * row
    flat = run_checked(call, size, a.ctypes.data, b.ctypes.data, dst_index=2, dtype=NUMPY[dtype])
    out = flat.reshape(*batch, m, row)
    expected = np.matmul(wide_a.astype(np.float64), wide_b.astype(np.float64))
    magnitude = np.matmul(np.abs(wide_a.astype(np.float64)), np.abs(wide_b.astype(np.float64)))
    assert (np.abs(out[..., :n] - expected) <= RTOL[dtype] * magnitude + 1e-30).all()
    assert np.isnan(out[..., n:]).all()
    return call


def normal(shape, dtype="f32", seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(NUMPY[dtype])


SIZES = [
    (1, 1, 1), (1, 7, 5), (2, 3, 4), (5, 48, 16), (6, 47, 9), (7, 49, 11), (8, 127, 13), (9, 129, 64),
    (1, 130, 33), (2, 257, 3), (65, 31, 17), (300, 20, 6), (3, 600, 4),
]  # fmt: skip


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("m", "n"), [(1, 200), (20, 30)])
def test_long_sums_are_made_of_chains(isa, m, n):
    k, term = 2**14, np.float32(1 + 2.0**-12)
    call = matmul((), m, n, k, (k, 1), (n, 1), (n,), impl="simd", isa=isa)
    out = run_checked(call, m * n, np.ones((m, k), np.float32), np.full((k, n), term), dst_index=2)
    assert (out == k * term).all(), "one chain loses the last bit of each term behind 4096"


@pytest.mark.parametrize(("impl", "isa"), IMPLS)
@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_sizes_around_every_tile_edge(impl, isa, dtype, size):
    m, n, k = size
    check(normal((m, k), dtype), normal((k, n), dtype, 1), dtype=dtype, impl=impl, isa=isa)


@pytest.mark.parametrize(("impl", "isa"), IMPLS)
@pytest.mark.parametrize("transpose", ["a", "b", "ab"])
def test_transposed_operands(impl, isa, transpose):
    a = normal((37, 19)).T if "a" in transpose else normal((19, 37))
    b = normal((70, 37), seed=1).T if "b" in transpose else normal((37, 70), seed=1)
    check(a, b, impl=impl, isa=isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("m", [1, 2, 3])
@pytest.mark.parametrize(("n", "k"), [(1, 200), (7, 63), (65, 64), (130, 77), (600, 129)])
def test_few_rows_by_columns_that_lie_side_by_side(isa, dtype, m, n, k):
    b = normal((n, k), dtype, 1).T
    for a in (normal((m, k), dtype), normal((k, m), dtype).T):
        check(a, b, dtype=dtype, impl="simd", isa=isa)


@pytest.mark.parametrize(("impl", "isa"), IMPLS)
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_operands_with_no_contiguous_axis(impl, isa, dtype):
    a, b = normal((20, 2, 30, 3), dtype)[:, 0, :, 1], normal((30, 3, 50, 2), dtype)[:, 1, :, 1]
    check(a, b, dtype=dtype, impl=impl, isa=isa)


@pytest.mark.parametrize(("impl", "isa"), IMPLS)
def test_operands_with_repeated_and_reversed_rows(impl, isa):
    a = np.broadcast_to(normal((1, 30)), (11, 30))
    b = np.broadcast_to(normal((30, 1)), (30, 13))
    check(a, b, impl=impl, isa=isa)
    check(normal((11, 30))[::-1], normal((30, 13)), impl=impl, isa=isa)


@pytest.mark.parametrize(("impl", "isa"), IMPLS)
@pytest.mark.parametrize(
    ("a_shape", "b_shape"),
    [
        ((3, 4, 5), (3, 5, 6)), ((3, 4, 5), (5, 6)), ((4, 5), (3, 5, 6)), ((2, 1, 4, 5), (1, 3, 5, 6)),
        ((2, 3, 1, 5), (5, 6)), ((2, 1, 7, 5), (2, 1, 5, 6)), ((0, 4, 5), (5, 6)),
    ],
)  # fmt: skip
def test_batches_broadcast(impl, isa, a_shape, b_shape):
    check(normal(a_shape), normal(b_shape, seed=1), impl=impl, isa=isa)


def test_batches_that_share_b_fold_into_one_matrix():
    assert check(normal((8, 16, 5)), normal((5, 6)), impl="blas").ntasks == 1
    assert check(normal((8, 16, 5)), normal((8, 5, 6)), impl="blas").ntasks == 8


@pytest.mark.parametrize("impl", ["auto", "blas", "simd"])
@pytest.mark.parametrize("size", [(0, 3, 4), (3, 0, 4), (3, 4, 0), (0, 0, 0)], ids=str)
def test_zero_sizes(impl, size):
    m, n, k = size
    check(normal((m, k)), normal((k, n)), impl=impl)
    check(normal((2, m, k)), normal((2, k, n)), impl=impl)


@pytest.mark.parametrize(("impl", "isa"), IMPLS)
def test_rows_of_dst_may_lie_apart(impl, isa):
    check(normal((70, 9)), normal((9, 33)), impl=impl, isa=isa, row_stride=40)


@pytest.mark.parametrize(("impl", "isa"), IMPLS)
@pytest.mark.parametrize("epilogue", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
def test_exact_depth_sums_integers_as_s32_does(impl, isa, epilogue, transposed):
    m, n, k = 7, 50, 3001
    rng = np.random.default_rng(0)
    a, b = rng.integers(200, 256, (m, k)), rng.integers(100, 128, (k, n))
    expected = (a @ b).astype(np.float32)  # some 50 million: many terms beyond what float32 counts exactly
    stored = b.astype(np.float32)
    stored = np.asfortranarray(stored) if transposed else stored
    call = matmul(
        (), m, n, k, (k, 1), element_strides(stored), (n,), impl=impl, isa=isa, exact_depth=2**24 // (255 * 127),
        epilogue=bias_relu((), m, n) if epilogue else b"",
    )  # fmt: skip
    bias = (np.zeros(n, np.float32),) if epilogue else ()
    out = run_checked(call, m * n, a.astype(np.float32), stored.ctypes.data, *bias, dst_index=2)
    np.testing.assert_array_equal(out.reshape(m, n), expected)


@pytest.mark.parametrize("isa", ISAS)
def test_nan_and_infinity_stay_in_their_row(isa):
    a, b = normal((5, 8)), normal((8, 50))
    a[1, 3], a[2, 0] = np.nan, np.inf
    call = matmul((), 5, 50, 8, (8, 1), (50, 1), (50,), impl="simd", isa=isa)
    out = run_checked(call, 250, a, b, dst_index=2).reshape(5, 50)
    assert np.isnan(out[1]).all()
    assert np.isinf(out[2]).all()
    assert np.isfinite(out[[0, 3, 4]]).all()


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_random_geometry(data):
    size = st.integers(1, 20)
    m, n, k, batch = (data.draw(size) for _ in range(4))
    a_order, b_order = (data.draw(st.permutations(range(3))) for _ in range(2))
    a_step, b_step = (data.draw(st.integers(1, 2)) for _ in range(2))

    def view(shape, order, step, seed):
        stored = [shape[axis] for axis in order]
        stored[-1] *= step
        return normal(stored, seed=seed)[..., ::step].transpose(np.argsort(order))

    a, b = view((batch, m, k), a_order, a_step, 0), view((batch, k, n), b_order, b_step, 1)
    impl, isa = data.draw(st.sampled_from(IMPLS))
    check(a, b, impl=impl, isa=isa, row_stride=n + data.draw(st.integers(0, 2)))


EPILOGUE_SIZES = [((), 1, 5, 3), ((), 7, 600, 20), ((), 300, 33, 4), ((3,), 5, 17, 0), ((2, 3), 70, 40, 9)]


def bias_relu(batch, m, n, dtype="f32", strides=None):
    """max(product + bias, 0) stored as `dtype`; argument 1 is the bias of shape (n,)."""
    builder = EltwiseBuilder((*batch, m, n))
    total = builder.binary("add", builder.acc(), builder.load(1, "f32", (*[0] * (len(batch) + 1), 1)))
    builder.store(0, dtype, strides, builder.unary("relu", total))
    return builder.epilogue()


def dense(batch, *shape):
    """Row-major strides of (*batch, *shape)."""
    return tuple(stride // 4 for stride in np.empty((*batch, *shape), np.float32).strides)


@pytest.mark.parametrize(("impl", "isa"), IMPLS)
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(("batch", "m", "n", "k"), EPILOGUE_SIZES)
def test_epilogue_runs_on_every_result(impl, isa, in_place, batch, m, n, k):
    a, b, bias = normal((*batch, m, k)), normal((*batch, k, n), seed=1), normal(n, seed=2)
    call = matmul(
        batch, m, n, k, dense(batch, m, k), dense(batch, k, n), dense(batch, m, n)[:-1], impl=impl, isa=isa,
        epilogue=bias_relu(batch, m, n), dst_needs_scratch=not in_place,
    )  # fmt: skip
    out = run_checked(call, int(np.prod(batch)) * m * n, a, b, bias, dst_index=2)
    expected = np.maximum(np.matmul(a.astype(np.float64), b.astype(np.float64)) + bias, 0)
    np.testing.assert_allclose(out.reshape(expected.shape), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("impl", ["blas", "simd"])
def test_epilogue_stores_another_type_by_other_strides(impl):
    m, n, k = 70, 33, 9
    a, b, bias = normal((m, k)), normal((k, n), seed=1), normal(n, seed=2)
    epilogue = bias_relu((), m, n, "s8", (1, m))
    call = matmul((), m, n, k, (k, 1), (n, 1), (n,), impl=impl, epilogue=epilogue)
    out = np.full(m * n, -99, np.int8)
    run_all(call, a, b, out, bias)
    expected = np.rint(np.clip(a @ b + bias, 0, 127))
    assert (np.abs(out.reshape(n, m).T - expected) <= 1).all()


@pytest.mark.parametrize("impl", ["blas", "simd"])
def test_epilogue_may_add_to_what_dst_held(impl):
    a, b, held = normal((300, 9)), normal((9, 40), seed=1), normal((300, 40), seed=2)
    builder = EltwiseBuilder((300, 40))
    builder.store(0, "f32", None, builder.binary("add", builder.acc(), builder.load(0, "f32")))
    call = matmul((), 300, 40, 9, (9, 1), (40, 1), (40,), impl=impl, epilogue=builder.epilogue())
    out = held.copy()
    run_all(call, a, b, out)
    np.testing.assert_allclose(out, a @ b + held, rtol=1e-5, atol=1e-5)


def test_choice_depends_on_rows_and_on_the_side_of_b():
    assert choose_matmul(1) == "simd"
    assert choose_matmul(1000, isa="avx512") == "simd"
    assert choose_matmul(1000, isa="avx2") == choose_matmul(16, isa="generic") == "blas"
    assert choose_matmul(9, transposed_b=True, isa="generic") == "blas"
    assert choose_matmul(1, transposed_b=True) == choose_matmul(3, transposed_b=True) == "simd"
    assert choose_matmul(2, transposed_b=True, isa="avx2", macs=1000) == "simd"
    assert matmul((), 1, 8, 8, (8, 1), (8, 1), (8,)).kernel.name == "f32_matmul_simd"
    assert matmul((), 1, 8, 8, (8, 1), (8, 1), (8,), impl="blas").kernel.name == "f32_matmul_blas"


@pytest.mark.parametrize(
    ("geometry", "expected"),
    [
        ((3, 4, 4, 1), False), ((3, 4, 9, 1), False), ((3, 4, 1, 3), False), ((3, 4, 8, 2), True),
        ((3, 4, 0, 1), True), ((3, 4, -4, 1), True), ((1, 4, 0, 1), False), ((1, 4, 0, 2), False),
        ((3, 1, 7, 0), False), ((3, 4, 2**31, 1), True),
    ],
)  # fmt: skip
def test_needs_pack(geometry, expected):
    assert needs_pack(*geometry) is expected


@pytest.mark.parametrize(
    ("error", "change"),
    [
        (InvalidShapeError, {"m": -1}),
        (InvalidShapeError, {"a_strides": (1,)}),
        (InvalidShapeError, {"c_strides": (3,)}),
        (InvalidShapeError, {"batch_shape": (1,) * 11}),
        (InvalidDataTypeError, {"dtype": "f16"}),
        (InvalidArgumentError, {"impl": "magic"}),
        (UnsupportedError, {"k": 2**31, "impl": "blas"}),
        (UnsupportedError, {"dtype": "f64", "epilogue": b"12345678"}),
        (UnsupportedError, {"dtype": "f64", "exact_depth": 2}),
        (InvalidArgumentError, {"exact_depth": -1}),
        (UnsupportedError, {"isa": "z80", "impl": "simd"}),
    ],
)
def test_bad_arguments_raise(error, change):
    good = {"batch_shape": (), "m": 2, "n": 4, "k": 3, "a_strides": (3, 1), "b_strides": (4, 1), "c_strides": (4,)}
    with pytest.raises(error):
        matmul(**(good | change))


def test_scratch_of_few_columns_is_a_panel_of_few():
    x = normal((1, 4096))
    assert check(x, x.T, impl="simd").scratch_nbytes == 64 * x.size
    assert check(x, normal((4096, 3)), impl="simd").scratch_nbytes == 64 * x.size
