import numpy as np
import pytest

from graphpool._kernels.core import _dispatch
from graphpool._kernels.eltwise.eltwise import EltwiseBuilder
from graphpool._kernels.norm.norm import NormOptions, batch_moments, group_norm, layer_norm
from graphpool.errors import InvalidArgumentError, InvalidShapeError, UnsupportedError
from tests.helpers.kernel_outputs import Out, assert_near, execute, strided, unstride

ISAS = _dispatch.isas()
EPSILON = 1e-5

# (ulp, atol): results near 0 are differences of numbers near 1.
TOLERANCE = {"dst": (8, 2e-6), "mean": (2, 1e-7), "variance": (8, 1e-12)}


def sample(shape, shift=0.0):
    return (np.random.default_rng(sum(shape)).normal(size=shape) + shift).astype(np.float32)


def normal_form(x, axes):
    x = x.astype(np.float64)
    mean, variance = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    return (x - mean) / np.sqrt(variance + EPSILON), mean, variance


def group_reference(x, groups, axis):
    """Normal form of groups, (samples, groups) means and variances."""
    moved = np.moveaxis(x, axis, 1)
    grouped = moved.reshape(len(x), groups, -1)
    y, mean, variance = normal_form(grouped, 2)
    return np.moveaxis(y.reshape(moved.shape), 1, axis), mean[..., 0], variance[..., 0]


def check(name, got, expected):
    assert_near(got, expected, *TOLERANCE[name])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("shift", [0, 1000])
@pytest.mark.parametrize(
    ("shape", "begin"),
    [((1, 1), 1), ((3, 7), -1), ((5, 768), 1), ((2, 5000), 1), ((4, 3, 33), 1), ((0, 8), 1)],
    ids=str,
)
def test_layer_norm(shape, begin, shift, isa):
    x, inner = sample(shape, shift), shape[begin:]
    gamma, beta = sample(inner, 1), sample(inner)
    call = layer_norm(shape, begin, options=NormOptions(gamma=True, beta=True, keep_stats=True), isa=isa)
    stats_shape = shape[:begin]
    mean, variance, y = execute(call, x, gamma, beta, Out(stats_shape), Out(stats_shape), Out(shape))
    axes = tuple(range(begin % len(shape), len(shape)))
    expected, expected_mean, expected_variance = normal_form(x, axes)
    check("dst", y, expected * gamma + beta)
    check("mean", mean, expected_mean.reshape(stats_shape))
    check("variance", variance, expected_variance.reshape(stats_shape))


@pytest.mark.parametrize("isa", ISAS)
def test_layer_norm_without_affine_in_strides(isa):
    x = sample((3, 5, 40))
    src, src_strides = strided(x, (1, 2, 0))
    dst, dst_strides = strided(x, (2, 0, 1), pad=2)
    call = layer_norm(x.shape, 2, options=NormOptions(src_strides=src_strides, dst_strides=dst_strides), isa=isa)
    y = execute(call, src, Out((dst.size,)))
    check("dst", unstride(y, x.shape, dst_strides), normal_form(x, 2)[0])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("scale", [1, 1e25, 1e-25])
def test_rms_norm_survives_squares_out_of_range(scale, isa):
    x = (sample((7, 130)) * scale).astype(np.float32)
    gamma = sample((130,), 1)
    call = layer_norm(x.shape, is_rms=True, options=NormOptions(gamma=True, epsilon=0), isa=isa)
    wide = x.astype(np.float64)
    assert_near(
        execute(call, x, gamma, Out(x.shape)),
        wide / np.sqrt((wide**2).mean(1, keepdims=True)) * gamma,
        *TOLERANCE["dst"],
    )


@pytest.mark.parametrize("isa", ISAS)
def test_layer_norm_epilogue(isa):
    x = sample((6, 45))
    builder = EltwiseBuilder(x.shape)
    residual = builder.load(1, "f32")
    builder.store(0, "f32", None, builder.binary("add", builder.acc(), residual))
    y = execute(layer_norm(x.shape, options=NormOptions(epilogue=builder.epilogue()), isa=isa), x, Out(x.shape), x)
    check("dst", y, normal_form(x, 1)[0] + x)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("row", [[np.nan] + [1] * 8, [np.inf] + [1] * 8, [5] * 9, [0] * 9], ids=str)
def test_layer_norm_special_rows(row, isa):
    x = np.array([row, np.arange(9)], np.float32)
    with np.errstate(invalid="ignore"):
        expected = normal_form(x, 1)[0]
    check("dst", execute(layer_norm(x.shape, isa=isa), x, Out(x.shape)), expected)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("axis", [1, -1])
@pytest.mark.parametrize(
    ("channels", "groups", "points"),
    [(1, 1, (1,)), (12, 4, (5, 7)), (6, 6, (33,)), (200, 2, (3, 3)), (70, 35, (40,)), (96, 3, (0,))],
    ids=str,
)
def test_group_norm(channels, groups, points, axis, isa):
    shape = (2, channels, *points) if axis == 1 else (2, *points, channels)
    x, gamma, beta = sample(shape, 3), sample((channels,), 1), sample((channels,))
    call = group_norm(shape, groups, axis, options=NormOptions(gamma=True, beta=True, keep_stats=bool(x.size)), isa=isa)
    along = [1] * x.ndim
    along[axis] = channels
    if not x.size:
        assert execute(call, x, gamma, beta, Out(shape)).size == 0
        return
    mean, variance, y = execute(call, x, gamma, beta, Out((2, groups)), Out((2, groups)), Out(shape))
    expected, expected_mean, expected_variance = group_reference(x, groups, axis)
    check("dst", y, expected * gamma.reshape(along) + beta.reshape(along))
    check("mean", mean, expected_mean)
    check("variance", variance, expected_variance)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("order", [(1, 0, 3, 2), (0, 2, 3, 1), (3, 2, 1, 0)])
def test_group_norm_strides(order, isa):
    x = sample((3, 8, 4, 5))
    src, src_strides = strided(x, order, pad=1)
    dst, dst_strides = strided(x, order[::-1])
    call = group_norm(x.shape, 2, 1, options=NormOptions(src_strides=src_strides, dst_strides=dst_strides), isa=isa)
    y = execute(call, src, Out((dst.size,)))
    check("dst", unstride(y, x.shape, dst_strides), group_reference(x, 2, 1)[0])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("axis", [1, -1])
def test_group_norm_epilogue(axis, isa):
    x = sample((2, 6, 6, 6))
    builder = EltwiseBuilder(x.shape)
    builder.store(0, "f32", None, builder.unary("relu", builder.acc()))
    y = execute(
        group_norm(x.shape, 3, axis, options=NormOptions(epilogue=builder.epilogue()), isa=isa), x, Out(x.shape)
    )
    check("dst", y, np.maximum(group_reference(x, 3, axis)[0], 0))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("value", [1, 1e30, np.nan])
@pytest.mark.parametrize("shape", [(3, 8, 5, 7), (2, 24, 300), (1, 8, 1, 1)])
def test_in_place(shape, value, isa):
    """Results over what they are of are the same bits, of rows that are read once more in f64 too."""
    x = sample(shape)
    x.reshape(-1)[::97] = value
    calls = [layer_norm(shape, begin, isa=isa) for begin in (1, -1)]
    calls += [layer_norm(shape, -1, is_rms=True, isa=isa)]
    calls += [group_norm(shape, groups, axis, isa=isa) for groups, axis in ((4, 1), (shape[-1], -1), (1, -1))]
    for call in calls:
        y = x.copy()
        call(y, y)
        np.testing.assert_array_equal(y, execute(call, x, Out(shape)))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("shift", [0, 1000])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((3, 5, 7, 9), 1), ((3, 7, 9, 35), -1), ((1, 16), 1), ((4, 1, 6000), 1), ((6000, 17), -1)],
    ids=str,
)
def test_batch_moments(shape, axis, shift, isa):
    x = sample(shape, shift)
    results = [Out((shape[axis],)) for _ in range(4)]
    mean, variance, offset, scale = execute(batch_moments(shape, axis, epsilon=0.5, isa=isa), x, *results)
    others = tuple(k for k in range(x.ndim) if k != axis % x.ndim)
    expected, spread = x.astype(np.float64).mean(others), x.astype(np.float64).var(others)
    check("mean", mean, expected)
    check("variance", variance, spread)
    check("mean", offset, -expected / 4)
    check("mean", scale, 4 / np.sqrt(spread + 0.5))


def extremes(shape):
    """Rows that begin like others, and hold what f32 cannot add up or square, or infinities and NaN."""
    x, top = sample(shape), np.finfo(np.float32).max
    x[1, ::2], x[1, 1::2] = top, -top
    x[2, :] = top
    x[3, 4], x[4, 4], x[5, 4] = np.inf, -np.inf, np.nan
    x[6, 3], x[6, 4] = np.inf, -np.inf
    x[7, 5] = 1e30
    return x


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("size", [9, 70, 5000])
def test_extremes(size, isa):
    x = extremes((8, size))
    with np.errstate(all="ignore"):
        expected, mean, variance = (y.astype(np.float32) for y in normal_form(x, 1))
    bounds = 1e25, 2e-6, 2e-6  # the mean of the largest numbers of both signs may be anything beside them
    results = execute(
        layer_norm(x.shape, 1, options=NormOptions(keep_stats=True), isa=isa), x, Out((8,)), Out((8,)), Out(x.shape)
    )
    for got, wanted, atol in zip(results, (mean[:, 0], variance[:, 0], expected), bounds, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=2e-6, atol=atol)
    for axis in (1, -1):  # runs of points, and loops over channels
        points = np.ascontiguousarray(np.moveaxis(x[None], 1, axis))
        call = group_norm(points.shape, 8, axis, options=NormOptions(keep_stats=True), isa=isa)
        results = execute(call, points, Out((1, 8)), Out((1, 8)), Out(points.shape))
        wanted = mean.T, variance.T, np.moveaxis(expected[None], 1, axis)
        for got, values, atol in zip(results, wanted, bounds, strict=True):
            np.testing.assert_allclose(got, values, rtol=2e-6, atol=atol)


def test_bad_arguments():
    with pytest.raises(InvalidArgumentError, match="beta with gamma"):
        layer_norm((2, 3), options=NormOptions(beta=True))
    with pytest.raises(UnsupportedError, match="reorder first"):
        layer_norm((2, 3, 4), 1, options=NormOptions(src_strides=(12, 1, 3)))
    with pytest.raises(InvalidShapeError, match="groups of one size"):
        group_norm((2, 6, 5), 4, 1)
    with pytest.raises(InvalidShapeError, match="no such axis"):
        batch_moments((2, 6), 2)
