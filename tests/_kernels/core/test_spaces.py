import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphpool._kernels.core.spaces import collapse
from graphpool.errors import InvalidShapeError
from graphpool.typing import dense_strides


def offsets(dims, strides):
    """The offset of every point, the last axis fastest."""
    points = itertools.product(*(range(dim) for dim in dims))
    return [sum(i * s for i, s in zip(point, strides, strict=True)) for point in points]


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(-6, 6), st.sampled_from([0, 1])), max_size=5))
def test_every_point_keeps_its_offset(axes):
    shape = [dim for dim, _, _ in axes]
    layouts = [
        [stride for _, stride, _ in axes],
        [s * k for s, (_, _, k) in zip(dense_strides(shape), axes, strict=True)],
    ]
    merged = collapse(shape, *layouts)
    dims = [axis[0] for axis in reversed(merged)]
    for number, strides in enumerate(layouts, 1):
        assert offsets(dims, [axis[number] for axis in reversed(merged)]) == offsets(shape, strides)


def test_dense_is_one_axis():
    assert collapse((2, 3, 4), (12, 4, 1), (12, 4, 1)) == [(24, 1, 1)]
    assert collapse((2, 3, 4), (12, 4, 1), (0, 1, 0)) == [(4, 1, 0), (3, 4, 1), (2, 12, 0)]
    assert collapse((1, 1)) == collapse(()) == [(1,)]


def test_errors():
    with pytest.raises(InvalidShapeError, match="2 of them"):
        collapse((2, 3), (1,))
    with pytest.raises(InvalidShapeError, match="each at least 0"):
        collapse((2, -3))
