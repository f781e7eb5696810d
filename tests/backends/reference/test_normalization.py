import numpy as np
import pytest

from tests.helpers.reference import assert_gradient, channels_last, onnx_run, run, run_one

EPSILON = 2.0**-10
SPATIAL = [(2, 3, 4), (3, 2), (4, 3, 2, 2), (2, 2, 1, 3, 2)]
FORMATS = ["NCX", "NXC"]


def _batch(shape, data_format, **more):
    """An NCX tensor of `shape` in `data_format`, its attributes, and four vectors of length C."""
    rng = np.random.default_rng(1)
    src = rng.normal(size=shape)
    vectors = [rng.normal(size=shape[1]) for _ in range(3)] + [rng.uniform(0.5, 2, size=shape[1])]
    attrs = {"epsilon": EPSILON, "data_format": data_format, **more}
    return (channels_last(src) if data_format == "NXC" else src), attrs, vectors


def _ncx(array, data_format):
    return np.moveaxis(array, -1, 1) if data_format == "NXC" else array


def _batch_stats(src, data_format):
    moved = np.moveaxis(_ncx(src, data_format), 1, 0)
    flat = moved.reshape(moved.shape[0], -1)
    return flat.mean(1), flat.var(1)


@pytest.mark.parametrize("shape", SPATIAL)
@pytest.mark.parametrize("data_format", FORMATS)
def test_batch_norm_inference_agrees_with_onnx(shape, data_format):
    src, attrs, vectors = _batch(shape, data_format)
    expected = onnx_run("BatchNormalization", [_ncx(src, data_format), *vectors], epsilon=EPSILON)[0]
    result = run_one("BatchNormInference", src, *vectors, **attrs)
    np.testing.assert_allclose(_ncx(result, data_format), expected, rtol=1e-10)


@pytest.mark.parametrize("shape", SPATIAL)
@pytest.mark.parametrize("data_format", FORMATS)
@pytest.mark.parametrize("momentum", [0.25, None])
def test_batch_norm_training_gives_batch_and_running_statistics(shape, data_format, momentum):
    src, attrs, (gamma, beta, center, variance) = _batch(shape, data_format)
    if momentum is not None:
        attrs["momentum"] = momentum
    old = 0.5 if momentum is None else momentum
    results = run("BatchNormForwardTraining", [src, center, variance, gamma, beta], 5, **attrs)
    batch_mean, batch_variance = _batch_stats(src, data_format)
    np.testing.assert_allclose(results[3], batch_mean, atol=1e-12)
    np.testing.assert_allclose(results[4], batch_variance, rtol=1e-12)
    np.testing.assert_allclose(results[1], old * center + (1 - old) * batch_mean, rtol=1e-10)
    np.testing.assert_allclose(results[2], old * variance + (1 - old) * batch_variance, rtol=1e-12)
    inference = run_one("BatchNormInference", src, gamma, beta, batch_mean, batch_variance, **attrs)
    np.testing.assert_allclose(results[0], inference, rtol=1e-10)


@pytest.mark.parametrize("count", [0, 1])
def test_batch_norm_training_without_gamma_or_beta(count):
    src, attrs, (gamma, _, center, variance) = _batch((2, 3, 4), "NCX")
    dst = run_one("BatchNormForwardTraining", src, center, variance, *[gamma][:count], **attrs)
    scale = gamma if count else np.ones(3)
    full = run_one("BatchNormForwardTraining", src, center, variance, scale, np.zeros(3), **attrs)
    np.testing.assert_array_equal(dst, full)


@pytest.mark.parametrize("shape", SPATIAL)
@pytest.mark.parametrize("data_format", FORMATS)
@pytest.mark.parametrize("with_gamma", [True, False])
def test_batch_norm_gradients_equal_the_numerical_ones(shape, data_format, with_gamma):
    src, attrs, (gamma, beta, center, variance) = _batch(shape, data_format)
    gamma, beta = (gamma, beta) if with_gamma else (np.ones(shape[1]), np.zeros(shape[1]))
    diff_dst = np.random.default_rng(2).normal(size=src.shape)
    stats = _batch_stats(src, data_format)
    inputs = [src, diff_dst, *stats, gamma][: 5 if with_gamma else 4]
    gradients = run("BatchNormTrainingBackward", inputs, 3, **attrs)
    forward = [src, center, variance, gamma, beta]
    for wrt, actual in zip((0, 3, 4), gradients, strict=True):
        assert_gradient(actual, "BatchNormForwardTraining", forward, wrt, diff_dst, attrs)


def _affine_operands(shape, axes, *, flat=False):
    rng = np.random.default_rng(1)
    tail = tuple(shape[axis] for axis in axes)
    tail = (int(np.prod(tail)),) if flat else tail
    return rng.normal(size=shape), rng.normal(size=tail), rng.normal(size=tail)


LAYERS = [((2, 3, 4), -1), ((2, 3, 4), 1), ((2, 3, 4), 0), ((5,), -1), ((2, 1, 3, 2), 2), ((2, 3, 4), -2)]


def _layer(axis, **more):
    return {"begin_norm_axis": axis, "keep_stats": True, "use_affine": True, "epsilon": EPSILON, **more}


@pytest.mark.parametrize(("shape", "axis"), LAYERS)
def test_layer_norm_agrees_with_numpy_and_onnx(shape, axis):
    axes = tuple(range(axis % len(shape), len(shape)))
    src, gamma, beta = _affine_operands(shape, axes)
    dst, center, variance = run("LayerNorm", [src, gamma, beta], 3, **_layer(axis))
    assert center.shape == variance.shape == shape[: axes[0]]
    np.testing.assert_allclose(center, src.mean(axes), atol=1e-12)
    np.testing.assert_allclose(variance, src.var(axes), rtol=1e-12)
    normal = (src - src.mean(axes, keepdims=True)) / np.sqrt(src.var(axes, keepdims=True) + EPSILON)
    np.testing.assert_allclose(dst, normal * gamma + beta, rtol=1e-10, atol=1e-12)
    single = [x.astype(np.float32) for x in (src, gamma, beta)]
    expected = onnx_run("LayerNormalization", single, axis=axis, epsilon=EPSILON)[0]
    np.testing.assert_allclose(dst, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("keep_stats", [True, False])
def test_layer_norm_without_affine(keep_stats):
    src = np.random.default_rng(1).normal(size=(2, 4))
    attrs = _layer(-1, use_affine=False, keep_stats=keep_stats)
    plain = run_one("LayerNorm", src, **attrs)
    np.testing.assert_array_equal(plain, run_one("LayerNorm", src, np.full(4, 9.0), np.ones(4), **attrs))
    np.testing.assert_array_equal(plain, run_one("LayerNorm", src, **_layer(-1)))


@pytest.mark.parametrize(("shape", "axis"), LAYERS)
@pytest.mark.parametrize("flat", [True, False])
def test_layer_norm_gradients_equal_the_numerical_ones(shape, axis, flat):
    axes = tuple(range(axis % len(shape), len(shape)))
    src, gamma, beta = _affine_operands(shape, axes, flat=flat)
    diff_dst = np.random.default_rng(2).normal(size=shape)
    attrs = _layer(axis)
    _, center, variance = run("LayerNorm", [src, gamma, beta], 3, **attrs)
    gradients = run("LayerNormBackward", [src, diff_dst, center, variance, gamma, beta], 3, **attrs)
    for wrt, actual in enumerate(gradients):
        assert_gradient(actual, "LayerNorm", [src, gamma, beta], wrt, diff_dst, attrs)


def test_layer_norm_gradient_without_affine():
    src, gamma, beta = _affine_operands((3, 4), (1,))
    diff_dst = np.random.default_rng(2).normal(size=(3, 4))
    attrs = _layer(-1, use_affine=False)
    _, center, variance = run("LayerNorm", [src], 3, **attrs)
    gradient = run_one("LayerNormBackward", src, diff_dst, center, variance, **attrs)
    assert_gradient(gradient, "LayerNorm", [src], 0, diff_dst, attrs)
    np.testing.assert_array_equal(
        gradient, run_one("LayerNormBackward", src, diff_dst, center, variance, gamma, beta, **attrs)
    )


@pytest.mark.parametrize(("channels", "groups"), [(4, 1), (4, 2), (4, 4), (6, 3)])
@pytest.mark.parametrize("spatial", [(5,), (2, 3)])
@pytest.mark.parametrize("data_format", FORMATS)
def test_group_norm(channels, groups, spatial, data_format):
    rng = np.random.default_rng(1)
    src, gamma, beta = rng.normal(size=(2, channels, *spatial)), rng.normal(size=channels), rng.normal(size=channels)
    stored = channels_last(src) if data_format == "NXC" else src
    attrs = {"groups": groups, "keep_stats": True, "use_affine": True, "epsilon": EPSILON, "data_format": data_format}
    dst, center, variance = run("GroupNorm", [stored, gamma, beta], 3, **attrs)
    grouped = src.reshape(2, groups, -1)
    np.testing.assert_allclose(center, grouped.mean(2), atol=1e-12)
    np.testing.assert_allclose(variance, grouped.var(2), rtol=1e-12)
    # ONNX's evaluator holds the statistics in float32.
    expected = onnx_run("GroupNormalization", [src, gamma, beta], num_groups=groups, epsilon=EPSILON)[0]
    np.testing.assert_allclose(_ncx(dst, data_format), expected, rtol=1e-4, atol=1e-5)
    plain = run_one("GroupNorm", stored, **attrs)
    np.testing.assert_array_equal(plain, run_one("GroupNorm", stored, gamma, beta, **attrs | {"use_affine": False}))


@pytest.mark.parametrize(("shape", "axis"), LAYERS)
def test_rms_norm(shape, axis):
    axes = tuple(range(axis % len(shape), len(shape)))
    src, gamma, _ = _affine_operands(shape, axes)
    attrs = {"begin_norm_axis": axis, "epsilon": EPSILON}
    expected = src / np.sqrt((src**2).mean(axes, keepdims=True) + EPSILON)
    np.testing.assert_allclose(run_one("RMSNorm", src, **attrs), expected, rtol=1e-12)
    np.testing.assert_allclose(run_one("RMSNorm", src, gamma, **attrs), expected * gamma, rtol=1e-12)


def test_zero_sizes():
    dst, center, _ = run("LayerNorm", [np.zeros((0, 3))], 3, **_layer(-1))
    assert (dst.shape, center.shape) == ((0, 3), (0,))
    dst, center, _ = run("LayerNorm", [np.zeros((2, 0))], 3, **_layer(-1))
    assert dst.shape == (2, 0)
    assert np.isnan(center).all()
    _, attrs, (gamma, beta, mean, variance) = _batch((2, 3, 4), "NCX")
    results = run("BatchNormForwardTraining", [np.zeros((0, 3, 4)), mean, variance, gamma, beta], 5, **attrs)
    assert results[0].shape == (0, 3, 4)
    assert np.isnan(results[3]).all()
    attrs = {"groups": 3, "keep_stats": True, "use_affine": False, "epsilon": EPSILON, "data_format": "NCX"}
    assert [x.shape for x in run("GroupNorm", [np.zeros((0, 3, 4))], 3, **attrs)] == [(0, 3, 4), (0, 3), (0, 3)]


@pytest.mark.parametrize("kind", ["LayerNorm", "RMSNorm"])
def test_nan_stays_in_its_row(kind):
    result = run_one(kind, np.array([[np.nan, 1.0], [1.0, 2.0]]), **_layer(-1))
    assert np.isnan(result[0]).all()
    assert np.isfinite(result[1]).all()
