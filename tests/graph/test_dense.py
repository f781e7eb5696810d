"""Strides of plain shapes; other shapes are left to who checks them."""

import numpy as np
import pytest

from graphpool._sizes import Trace
from graphpool.graph._dense import dense_layout


@pytest.mark.parametrize(
    ("shape", "strides"),
    [
        ((), ()),
        ((5,), (1,)),
        ((2, 3, 4), (12, 4, 1)),
        ((2, 0, 4), (4, 4, 1)),
        ((2**30, 2**29), (2**29, 1)),
        ((2**60 - 1,), (1,)),
        ((0, 2**59, 1), (2**59, 1, 1)),
    ],
)
def test_plain_shapes_have_dense_strides(shape, strides):
    assert dense_layout(shape, 2**60) == strides


@pytest.mark.parametrize(
    "shape",
    [(2**60,), (2**30, 2**30), (-1,), (2, 2**70), (True, 2), (1.0,), (np.int64(3),), [2, 3], None, "ab", (0, 2**60)],
)
def test_other_shapes_have_none(shape):
    assert dense_layout(shape, 2**60) is None


def test_shapes_with_a_size_that_varies_have_none():
    trace = Trace()
    assert dense_layout((2, trace.symbol(3)), 2**60) is None
