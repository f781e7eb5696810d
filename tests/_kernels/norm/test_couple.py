"""Probabilities of classes from those of their pairs: f32_couple."""

import numpy as np
import pytest

from graphpool._kernels.core._dispatch import isas
from graphpool._kernels.norm.couple import couple
from tests.helpers.guarded import Guarded
from tests.oracle import KINDS


def coupled(pairs, nclasses, isa):
    found = Guarded(4 * len(pairs) * nclasses)
    couple(len(pairs), nclasses, isa=isa)(pairs, found.bytes)
    return found.array(np.float32, (len(pairs), nclasses))


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("nclasses", [2, 3, 4, 10, 33])
def test_couple(nclasses, isa):
    """Rows around the 16 of a task; shares near 0 and 1 too."""
    rng = np.random.default_rng(nclasses)
    for nrows in (0, 1, 15, 16, 33):
        pairs = (1 / (1 + np.exp(-4 * rng.normal(size=(nrows, nclasses * (nclasses - 1) // 2))))).astype(np.float32)
        wanted = KINDS["CouplePairs"]({}, pairs.astype(np.float64))
        got = coupled(pairs, nclasses, isa)
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(got.sum(1), np.ones(nrows), rtol=1e-5)


@pytest.mark.parametrize("isa", isas())
def test_what_are_no_shares_ends(isa):
    pairs = np.array([[np.nan] * 3, [np.inf] * 3, [1.0] * 3, [0.0] * 3, [-5.0, 7.0, 1e30]], np.float32)
    assert coupled(pairs, 3, isa).shape == (5, 3)
