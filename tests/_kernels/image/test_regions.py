"""Bilinear samples of regions: f32_regions."""

import numpy as np
import pytest

from graphpool._kernels.core._dispatch import call, isas
from graphpool._kernels.image.regions import MOST_SAMPLES, regions
from graphpool.errors import InvalidArgumentError, InvalidShapeError
from tests.helpers.guarded import Guarded
from tests.oracle import KINDS


def sampled(x, rois, images, size, isa=None, **options):
    kernel = regions(x.shape, len(rois), size, isa=isa, **options)
    shape = (len(rois), x.shape[1], *size)
    out = Guarded(4 * int(np.prod(shape)))
    kernel(x, rois, images, out.bytes)
    return out.array(np.float32, shape)


def wanted(x, rois, images, size, ratio=0, scale=1.0, is_half=True, is_max=False):
    attrs = {
        "output_height": size[0], "output_width": size[1], "sampling_ratio": ratio, "spatial_scale": scale,
        "coordinate_transformation_mode": "half_pixel" if is_half else "output_half_pixel",
        "mode": "max" if is_max else "avg",
    }  # fmt: skip
    return KINDS["RoiAlign"](attrs, x, rois, images)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("is_max", [False, True])
@pytest.mark.parametrize("is_half", [False, True])
def test_means_and_extremes_of_bins(is_half, is_max, isa):
    rng = np.random.default_rng(4)
    for height, width, size, ratio in ((1, 1, (1, 1), 0), (5, 7, (2, 3), 0), (9, 4, (3, 1), 2), (6, 6, (7, 7), 1)):
        x = rng.standard_normal((2, 3, height, width)).astype(np.float32)
        corners = rng.integers(-12, 40, (6, 4)) / 2 + 0.125  # no place lies on the border of what counts
        rois = np.concatenate([corners[:5], [[3.0, 2.0, 1.0, 0.5]]]).astype(np.float32)  # the last is turned round
        images = np.array([0, 1, -1, 1, 0, 1])
        given = {"ratio": ratio, "scale": 0.5, "is_half": is_half, "is_max": is_max}
        got = sampled(x, rois, images, size, isa, **given)
        np.testing.assert_allclose(got, wanted(x, rois, images, size, **given), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("isa", isas())
def test_regions_as_far_and_large_as_they_like(isa):
    """What they cost, and the memory for samples, are bounded by the image."""
    x = np.ones((1, 1, 3, 4), np.float32)
    numbers = [np.nan, np.inf, -np.inf, 3e38, -3e38, 1e9, -1e9, 0.0, 5.0]
    rois = np.random.default_rng(5).choice(numbers, (200, 4)).astype(np.float32)
    for ratio in (0, 1, MOST_SAMPLES):
        for is_half in (False, True):
            out = sampled(x, rois, np.zeros(200, np.int64), (2, 3), isa, ratio=ratio, is_half=is_half)
            assert ((out >= 0) & (out <= 1.0001)).all()
    whole = np.array([[-1e6, -1e6, 1e6, 1e6]], np.float32)
    assert 0 < sampled(x, whole, np.zeros(1, np.int64), (1, 1), isa)[0, 0, 0, 0] < 1e-10


@pytest.mark.parametrize("isa", isas())
def test_a_nan_is_the_largest_corner_wherever_it_lies(isa):
    rois, images = np.array([[0, 0, 4, 4]], np.float32), np.zeros(1, np.int64)
    for place in np.ndindex(4, 4):
        x = np.ones((1, 1, 4, 4), np.float32)
        x[(0, 0, *place)] = np.nan
        assert np.isnan(sampled(x, rois, images, (1, 1), isa, ratio=4, is_max=True)).all()


def test_images_by_index_and_those_without_pixels():
    x = np.arange(3, dtype=np.float32).reshape(3, 1, 1, 1)
    rois = np.tile(np.float32([0, 0, 1, 1]), (5, 1))
    got = sampled(x, rois, np.array([0, 2, -1, 2**62, -(2**62)]), (1, 1))
    assert got.reshape(-1).tolist() == [0, 2, 2, 2, 0]
    kernel, out = regions(x.shape, 5, (1, 1)), np.empty((5, 1, 1, 1), np.float32)
    status = [kernel(x, rois, np.array([0, 2, number, -3, 1]), out) for number in (-3, -4, 2, 3, 2**62)]
    assert status == [0, 1, 0, 1, 1]
    for shape in ((1, 2, 0, 3), (1, 2, 3, 0)):
        assert not sampled(np.zeros(shape, np.float32), rois, np.zeros(5, np.int64), (2, 2)).any()
    assert sampled(x[:0], rois[:0], np.zeros(0, np.int64), (2, 2)).shape == (0, 1, 2, 2)


def test_tasks_are_regions():
    rng = np.random.default_rng(6)
    x, images = rng.standard_normal((1, 2, 8, 8)).astype(np.float32), np.zeros(9, np.int64)
    rois = rng.uniform(0, 8, (9, 4)).astype(np.float32)
    kernel, out = regions(x.shape, 9, (2, 2)), np.empty((9, 2, 2, 2), np.float32)
    for task in reversed(range(kernel.ntasks)):
        call(kernel.kernel, kernel.params, [x, rois, images, out], task, task + 1, kernel.scratch_nbytes)
    np.testing.assert_array_equal(out, sampled(x, rois, images, (2, 2)))


def test_what_is_refused():
    with pytest.raises(InvalidShapeError, match="at least one image"):
        regions((0, 1, 3, 3), 1, (2, 2))
    with pytest.raises(InvalidArgumentError, match="samples of a bin"):
        regions((1, 1, 3, 3), 1, (2, 2), ratio=MOST_SAMPLES + 1)
