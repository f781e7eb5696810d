import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphpool._kernels import _dispatch
from graphpool._kernels.matmul import choose_matmul, matmul, needs_pack
from graphpool.errors import InvalidArgumentError, InvalidDataTypeError, InvalidShapeError, UnsupportedError
from tests.helpers.kernel_runs import run_checked

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


def test_choice_depends_on_rows_and_on_the_side_of_b():
    assert choose_matmul(1) == "simd"
    assert choose_matmul(1000) == "blas"
    assert choose_matmul(16, isa="generic") == "blas"
    assert choose_matmul(1, transposed_b=True) == "blas"
    assert matmul((), 1, 8, 8, (8, 1), (8, 1), (8,)).kernel.name == "f32_matmul_simd"
    assert matmul((), 1, 8, 8, (8, 1), (8, 1), (8,), impl="blas").kernel.name == "f32_matmul_blas"


@pytest.mark.parametrize(
    ("geometry", "expected"),
    [
        ((3, 4, 4, 1), False), ((3, 4, 9, 1), False), ((3, 4, 1, 3), False), ((3, 4, 8, 2), True),
        ((3, 4, 0, 1), True), ((3, 4, -4, 1), True), ((1, 4, 0, 1), False), ((1, 4, 0, 2), False), ((3, 1, 7, 0), False),
        ((3, 4, 2**31, 1), True),
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
        (UnsupportedError, {"isa": "z80", "impl": "simd"}),
    ],
)
def test_bad_arguments_raise(error, change):
    good = {"batch_shape": (), "m": 2, "n": 4, "k": 3, "a_strides": (3, 1), "b_strides": (4, 1), "c_strides": (4,)}
    with pytest.raises(error):
        matmul(**(good | change))
