"""What is not zero, and boxes that overlap no better one: any_nonzero, f32_suppress, any_suppress_pack."""

import numpy as np
import pytest

from graphpool._kernels.core._dispatch import call, isas
from graphpool._kernels.move.search import nonzero, suppress
from graphpool.errors import InvalidArgumentError
from tests.helpers.guarded import Guarded
from tests.oracle import KINDS

NAN, INF = np.nan, np.inf


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("dtype", ["f4", "f8", "f2", "i1", "u1", "i2", "i4", "i8", "?"])
def test_places_of_what_is_not_zero(dtype, isa):
    rng = np.random.default_rng(1)
    for shape in ((0,), (1,), (257,), (3, 0, 2), (5, 7), (2, 3, 4, 5)):
        for share in (0.0, 0.3, 1.0):
            x = (rng.random(shape) < share).astype(dtype)
            if np.issubdtype(x.dtype, np.floating):
                x.reshape(-1)[: x.size // 2 : 3] = [-0.0, NAN, -INF][x.size % 3]
            places, count = Guarded(8 * x.size * x.ndim), Guarded(8)
            nonzero(shape, x.itemsize, is_float=x.dtype.kind == "f", isa=isa)(x, places.bytes, count.bytes)
            [found] = count.array(np.int64, (1,))
            got = places.array(np.int64, (x.size * x.ndim,))
            np.testing.assert_array_equal(got[: found * x.ndim].reshape(x.ndim, found), np.array(np.nonzero(x)))
            assert not got[found * x.ndim :].any()


def test_an_element_of_another_size_is_refused():
    with pytest.raises(InvalidArgumentError, match="1, 2, 4, 8"):
        nonzero((3,), 16)


def selected(boxes, scores, most, isa=None, **options):
    """Rows of batch, class and box, and what lies behind them."""
    nbatch, nclasses, nboxes = scores.shape
    find, join = suppress(nbatch, nclasses, nboxes, most, isa=isa, **options)
    rows = nbatch * nclasses
    chosen, counts = np.full(rows * most, -1), np.full(rows, -1)
    for task in reversed(range(find.ntasks)):  # which do not depend on one another
        call(find.kernel, find.params, [boxes, scores, chosen, counts], task, task + 1, find.scratch_nbytes)
    places, count = Guarded(rows * most * 3 * 8), Guarded(8)
    join(chosen, counts, places.bytes, count.bytes)
    return places.array(np.int64, (rows * most * 3,)), count.array(np.int64, (1,))


def wanted(boxes, scores, most, overlap=0.0, least_score=None, is_centred=False):
    attrs = {"max_boxes": most, "iou_threshold": overlap, "center_point_box": is_centred}
    if least_score is not None:
        attrs["score_threshold"] = least_score
    return KINDS["SelectBoxes"](attrs, boxes, scores)


def random_boxes(rng, nbatch, nboxes, grid):
    """Corners on a grid, so that there are equal boxes, empty ones, and overlaps of just the share that is allowed."""
    return (rng.integers(0, grid, (nbatch, nboxes, 4)) / 4).astype(np.float32)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("is_centred", [False, True])
def test_the_best_boxes(is_centred, isa):
    rng = np.random.default_rng(2)
    for nbatch, nclasses, nboxes in ((1, 1, 0), (1, 1, 1), (2, 3, 15), (1, 2, 16), (1, 1, 17), (0, 3, 5), (2, 1, 70)):
        boxes = random_boxes(rng, nbatch, nboxes, 24)
        scores = (rng.integers(-4, 9, (nbatch, nclasses, nboxes)) / 8).astype(np.float32)
        for most in {0, min(1, nboxes), nboxes // 2, nboxes}:
            for overlap in (0.0, 0.25, 0.5, 1.0):
                for least in (None, 0.25):
                    given = {"overlap": overlap, "least_score": least, "is_centred": is_centred}
                    got, expected = selected(boxes, scores, most, isa, **given), wanted(boxes, scores, most, **given)
                    for one, other in zip(got, expected, strict=True):
                        np.testing.assert_array_equal(one, other.astype(np.int64))


@pytest.mark.parametrize("isa", isas())
def test_scores_and_boxes_that_are_no_numbers(isa):
    scores = np.array([[[0.5, NAN, INF, -INF, -0.0, 0.0]]], np.float32)
    apart = np.array([[[k, 0, k + 0.5, 1] for k in range(6)]], np.float32)
    assert selected(apart, scores, 6, isa)[0][2::3].tolist() == [2, 0, 4, 5, 3, 1]
    assert selected(apart, scores, 6, isa, least_score=0.0)[0][2::3].tolist()[:2] == [2, 0]
    assert selected(apart, scores, 6, isa, least_score=0.0)[1] == 2
    odd = np.array([[[NAN] * 4, [0, 0, INF, INF], [-INF, -INF, INF, INF], [1, 1, 0, 0], [0, 0, 1, 1], [3e38] * 4]])
    places, count = selected(odd.astype(np.float32), np.zeros((1, 1, 6), np.float32), 6, isa, overlap=0.5)
    assert count == 5  # of the two equal ones the first stays, whatever corner comes first
    assert places[2::3].tolist() == [0, 1, 2, 3, 5, 0]
