import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphpool._kernels.conv.depthwise import Int8DepthwiseFormat
from graphpool._kernels.conv.problem import ConvShape
from graphpool._kernels.core import _dispatch
from graphpool._kernels.eltwise.eltwise import EltwiseBuilder
from graphpool._kernels.gemm.requant import Dynamic, Requant, Residual, Rounding
from graphpool.errors import InvalidArgumentError, InvalidDataTypeError, InvalidShapeError, UnsupportedError
from tests.helpers.convolutions import convolve_with, expected_conv
from tests.helpers.kernel_runs import run_checked
from tests.helpers.layouts import lay_out, read_back, strides_of
from tests.helpers.requant import requantized

ISAS = _dispatch.isas()
REQUANT = Requant(
    inner=Rounding("s8", 0.125, -3), residual=Residual("u8", 0.5, 20), outer=Rounding("u8", 0.25, 7, rounds_first=True)
)


def check(
    channels, spatial, kernel, *, dtype=np.uint8, zero=113, isa=None, bias=False, requant=None, epilogue=False,
    dynamic=None, strides=None, begin=None, end=None, dilations=None, batch=2, extreme=False,
):  # fmt: skip
    """Compare, bit for bit, with the definition."""
    rng, ndim = np.random.default_rng(0), len(kernel)
    limits = np.iinfo(dtype)
    x = rng.integers(limits.min, limits.max + 1, (batch, channels, *spatial)).astype(dtype)
    w = rng.integers(-255, 256, (channels, 1, 1, *kernel))
    if extreme:
        x[:], w[:] = rng.choice([limits.min, limits.max], x.shape[:2] + (1,) * ndim), rng.choice([-255, 255])
    ones, zeros = (1,) * ndim, (0,) * ndim
    geometry = (strides or ones, begin or zeros, end or zeros, dilations or ones)
    sums = expected_conv(x.astype(np.int64) - zero, w, channels, *geometry)
    scales = 2.0 ** -rng.integers(6, 12, channels).astype(np.float32)
    along = (1, channels, *ones)
    numbers = rng.integers(-64, 64, channels).astype(np.float32) / 16
    real = sums.astype(np.float32) * scales.reshape(along) + (numbers.reshape(along) if bias else 0)
    requant, operands, residual = requant or Requant(), [], None
    if requant.residual is not None:
        residual = rng.integers(0, 256, real.shape).astype(np.uint8)
        operands.append(lay_out(residual, "NXC"))
    expected = requantized(real, requant, None, residual)
    expected = expected + np.float32(1) if epilogue else expected
    dst_strides = strides_of(expected.shape, "NXC")
    call = convolve_with(
        Int8DepthwiseFormat, batch, channels, channels, spatial, kernel, groups=channels,
        src_strides=strides_of(x.shape, "NXC"), dst_strides=dst_strides,
        src_dtype="u8" if dtype is np.uint8 else "s8", zero_point=0 if dynamic else zero, strides=strides,
        pads_begin=begin, pads_end=end, dynamic=dynamic,
        dilations=dilations, bias=bias, requant=None if epilogue else requant,
        residual_strides=None if residual is None else dst_strides,
        epilogue=plus_one(expected.shape) if epilogue else b"", isa=isa,
    )  # fmt: skip
    weights = np.ascontiguousarray(w.reshape(channels, -1).T).astype(np.float32)
    given = [np.array([0.5], np.float32), np.array([zero], dtype)] if dynamic else []
    own = [scales * 2, *given] if dynamic else [scales]
    inputs = [lay_out(x, "NXC"), weights, *own, *([numbers] if bias else []), *operands]
    flat = run_checked(call, expected.size, *inputs, dst_index=len(inputs), dtype=expected.dtype)
    np.testing.assert_array_equal(read_back(flat, expected.shape, "NXC"), expected)


def plus_one(shape):
    builder = EltwiseBuilder((shape[0], *shape[2:], shape[1]))
    builder.store(0, "f32", None, builder.binary("add", builder.acc(), builder.const(1.0)))
    return builder.epilogue()


CASES = {
    "3x3": ((21, (9, 11), (3, 3)), {"begin": (1, 1), "end": (1, 1)}),
    "whole_vectors": ((96, (7, 9), (3, 3)), {"begin": (1, 1), "end": (1, 1)}),
    "strided": ((40, (12, 13), (3, 5)), {"strides": (2, 2), "begin": (1, 2), "end": (1, 2)}),
    "dilated": ((17, (12, 13), (3, 3)), {"dilations": (2, 3), "begin": (2, 3), "end": (2, 3)}),
    "1d": ((5, (30,), (7,)), {"begin": (3,), "end": (3,)}),
    "wide": ((33, (3, 40), (3, 4)), {"begin": (1, 1), "end": (1, 2)}),
    "wide_strided": ((40, (4, 37), (3, 5)), {"strides": (1, 2), "begin": (1, 2), "end": (1, 2)}),
    "3d": ((6, (4, 5, 6), (2, 3, 2)), {"begin": (0, 1, 1), "end": (1, 1, 0)}),
    "16x16": ((20, (17, 18), (16, 16)), {}),
    "all_padding": ((3, (2, 2), (2, 2)), {"begin": (3, 3), "end": (3, 3)}),
    "many_channels": ((600, (3, 4), (3, 3)), {"begin": (1, 1), "end": (1, 1)}),
}


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("dtype", "zero"), [(np.uint8, 113), (np.int8, -7)])
def test_equals_the_definition(isa, case, dtype, zero):
    sizes, geometry = CASES[case]
    check(*sizes, isa=isa, dtype=dtype, zero=zero, **geometry)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("dtype", "zero"), [(np.uint8, 0), (np.uint8, 255), (np.int8, -128), (np.int8, 127)])
def test_the_largest_sums_are_exact(isa, dtype, zero):
    check(5, (17, 18), (16, 16), isa=isa, dtype=dtype, zero=zero, begin=(2, 1), end=(2, 1), extreme=True)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("dtype", "zero"), [(np.uint8, 200), (np.int8, -7)])
def test_numbers_of_the_image_may_be_arguments(isa, dtype, zero):
    sizes, geometry = CASES["3x3"]
    check(*sizes, isa=isa, dtype=dtype, zero=zero, bias=True, dynamic=Dynamic(True, True), **geometry)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("case", ["3x3", "whole_vectors", "many_channels"])
def test_bias_requantisation_and_epilogue(isa, case):
    sizes, geometry = CASES[case]
    check(*sizes, isa=isa, bias=True, requant=REQUANT, **geometry)
    check(*sizes, isa=isa, bias=True, epilogue=True, **geometry)


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_random_geometry(data):
    ndim = data.draw(st.integers(1, 3))

    def axes(least, most):
        return tuple(data.draw(st.integers(least, most)) for _ in range(ndim))

    kernel, strides, dilations, begin, end = axes(1, 3), axes(1, 3), axes(1, 2), axes(0, 2), axes(0, 2)
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True)]
    spatial = tuple(max(r - b - e, 1) + n for r, b, e, n in zip(reach, begin, end, axes(0, 9), strict=True))
    check(
        data.draw(st.integers(1, 40)), spatial, kernel, strides=strides, dilations=dilations, begin=begin, end=end,
        requant=data.draw(st.sampled_from([None, REQUANT])),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("error", "change"),
    [
        (InvalidShapeError, {"batch": -1}),
        (InvalidShapeError, {"residual_strides": (1, 2)}),
        (InvalidArgumentError, {"zero_point": 256}),
        (InvalidArgumentError, {"requant": Requant(), "epilogue": b"program"}),
        (InvalidDataTypeError, {"src_dtype": "f32"}),
        (UnsupportedError, {"kernel": (17, 16), "src_spatial": (20, 20)}),
        (UnsupportedError, {"src_strides": (64, 16, 4, 1)}),
        (UnsupportedError, {"isa": "sse"}),
    ],
)
def test_bad_arguments_raise(error, change):
    good = {
        "batch": 1, "in_channels": 4, "out_channels": 4, "groups": 4, "src_spatial": (4, 4), "kernel": (1, 1),
        "src_strides": (64, 1, 16, 4), "dst_strides": (64, 1, 16, 4), "src_dtype": "u8",
    }  # fmt: skip
    with pytest.raises(error):
        convolve_with(Int8DepthwiseFormat, **(good | change))


@pytest.mark.parametrize("shape", [(4, 8, (3, 3), 4), (4, 4, (3, 3), 2)])
def test_groups_of_several_channels_are_refused(shape):
    with pytest.raises(InvalidArgumentError, match="of bytes"):
        Int8DepthwiseFormat(ConvShape(*shape))
