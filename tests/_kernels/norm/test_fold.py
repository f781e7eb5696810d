"""BatchNorms folded into what stands in front of them, bit for bit as their formula says in float64, rounded once."""

import numpy as np
import pytest

from graphpool._kernels.core import _dispatch
from graphpool._kernels.norm.fold import fold_batch_norm
from graphpool.errors import InvalidShapeError
from tests.helpers.kernel_runs import assert_guards, guarded, run_in_steps

EPSILON = 1e-3


def numbers(channels, seed=0):
    rng = np.random.default_rng(seed)
    gamma, beta, mean, own = (rng.standard_normal(channels).astype(np.float32) for _ in range(4))
    return gamma, beta, mean, rng.uniform(0.01, 4.0, channels).astype(np.float32), own


def run(kernel, inputs, nresult, channels):
    """Both results, between guards, with all tasks at once and one by one."""
    found = []
    for step in (max(kernel.ntasks, 1), 1):
        (whole, scaled), (ends, shift) = guarded(nresult), guarded(channels)
        run_in_steps(kernel, step, *inputs, scaled, shift)
        assert_guards(whole, scaled)
        assert_guards(ends, shift)
        found.append((scaled, shift))
    for first, second in zip(*found, strict=True):
        np.testing.assert_array_equal(first, second)
    return found[0]


@pytest.mark.parametrize("isa", _dispatch.isas())
@pytest.mark.parametrize("channels", [0, 1, 16, 37])
def test_scale_and_shift(isa, channels):
    gamma, beta, mean, variance, _ = numbers(channels)
    call = fold_batch_norm(channels, EPSILON, isa=isa)
    scale, shift = run(call, [gamma, beta, mean, variance], channels, channels)
    wanted = gamma / np.sqrt(variance.astype(np.float64) + EPSILON)
    np.testing.assert_array_equal(scale, wanted.astype(np.float32))
    np.testing.assert_array_equal(shift, (beta - mean * wanted).astype(np.float32))


@pytest.mark.parametrize("isa", _dispatch.isas())
@pytest.mark.parametrize(("shape", "axis"), [((21, 3, 3, 3), 0), ((3, 3, 5, 33), 3), ((4, 18, 2), 1), ((16, 0), 0)])
@pytest.mark.parametrize("bias", [False, True])
def test_weights_and_bias(isa, shape, axis, bias):
    channels = shape[axis]
    gamma, beta, mean, variance, own = numbers(channels, 1)
    weights = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
    call = fold_batch_norm(channels, EPSILON, weights=shape, axis=axis, bias=bias, isa=isa)
    inputs = [gamma, beta, mean, variance, weights, *([own] if bias else [])]
    scaled, shift = run(call, inputs, weights.size, channels)
    scale = gamma / np.sqrt(variance.astype(np.float64) + EPSILON)
    along = scale.astype(np.float32).reshape([-1 if k == axis else 1 for k in range(len(shape))])
    np.testing.assert_array_equal(scaled.reshape(shape), weights * along)
    wanted = beta - mean * scale
    np.testing.assert_array_equal(shift, (wanted + own * scale if bias else wanted).astype(np.float32))


@pytest.mark.parametrize(("channels", "more"), [(-1, {}), (3, {"weights": (4, 2)}), (3, {"weights": (3,), "axis": 1})])
def test_weights_without_these_channels_raise(channels, more):
    with pytest.raises(InvalidShapeError):
        fold_batch_norm(channels, EPSILON, **more)
