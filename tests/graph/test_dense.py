"""Strides of dense shapes; other shapes are left to who checks them."""

import numpy as np
import pytest

from graphpool._size_program import SizeProgram
from graphpool._sizes import Trace, is_variable
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


@pytest.mark.parametrize("other", [0, 4])
def test_strides_of_sizes_that_vary_are_terms(other):
    trace = Trace()
    a, b = trace.symbol(3), trace.symbol(other)
    strides = dense_layout((2, a, b, 5), 2**60)
    assert [is_variable(step) for step in strides] == [True, other != 0, False, False]
    assert tuple(map(int, strides)) == (15 * (other or 1), 5 * (other or 1), 5, 1)


@pytest.mark.parametrize("shape", [(-1, 3), (2**30, 2**30), (2.0, 3)])
def test_other_shapes_with_a_size_that_varies_have_none(shape):
    first, last = shape
    assert dense_layout((first, Trace().symbol(last)), 2**60) is None


def test_strides_of_sizes_that_vary_hold_below_the_limit_only():
    trace = Trace()
    a, b = trace.symbol(3), trace.symbol(2)
    dense_layout((a, 5, b), 2**60)
    program = SizeProgram(trace)
    for taken in ([2**28, 2**28], [0, 2], [1, 1]):  # none depends on the first
        assert program.compute(taken) is not None
    for refused in ([2**29, 2**30], [0, 2**60], [3, 0], [-1, 2]):
        assert program.compute(refused) is None
