from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphpool.backends.reference.rounding import round_to, widen
from graphpool.typing import DataType

NARROW = ["f16", "bf16", "f8_e4m3", "f8_e5m2"]
FINITE_LIMIT = {"f8_e4m3": 448.0, "f8_e5m2": 57344.0}


def _finite_values(dtype):
    """Every finite value of a type, ascending, without duplicates."""
    words = np.arange(1 << dtype.bits, dtype=np.uint16 if dtype.bits == 16 else np.uint8)
    with np.errstate(invalid="ignore"):
        values = words.view(dtype.numpy).astype(np.float64)
    return np.unique(values[np.isfinite(values)])


GRIDS = {name: _finite_values(DataType(name)) for name in NARROW}


@pytest.mark.parametrize("name", NARROW)
@given(data=st.data())
def test_rounding_is_to_the_nearest_value_in_one_step(name, data):
    grid = GRIDS[name]
    index = data.draw(st.integers(0, len(grid) - 2))
    low, high = Fraction(grid[index]), Fraction(grid[index + 1])
    nudge = data.draw(st.sampled_from([-1, 1])) * Fraction(1, 2**40)
    point = float((low + high) / 2 + (high - low) * nudge)
    expected = low if Fraction(point) - low < high - Fraction(point) else high
    assert round_to(np.array([point]), DataType(name)).astype(np.float64)[0] == float(expected)


@pytest.mark.parametrize("name", NARROW)
def test_ties_go_to_the_even_value(name):
    dtype = DataType(name)
    grid = GRIDS[name][GRIDS[name] > 0][:-1]
    ties = (grid[:-1] + grid[1:]) / 2
    words = round_to(ties, dtype).view(np.uint16 if dtype.bits == 16 else np.uint8)
    assert not np.any(words & 1)


@pytest.mark.parametrize("name", NARROW)
def test_nan_stays_nan(name):
    assert np.isnan(round_to(np.array([np.nan]), DataType(name)).astype(np.float32)[0])


@pytest.mark.parametrize("name", ["f16", "bf16", "f32"])
def test_a_float_overflows_to_infinity(name):
    with np.errstate(over="ignore"):
        assert round_to(np.array([1e300, -1e300]), DataType(name)).astype(np.float64).tolist() == [np.inf, -np.inf]


@pytest.mark.parametrize(("name", "limit"), FINITE_LIMIT.items())
def test_f8_saturates(name, limit):
    result = round_to(np.array([1e9, -np.inf]), DataType(name)).astype(np.float64)
    assert result.tolist() == [limit, -limit]


@pytest.mark.parametrize("name", ["s8", "u8", "s4", "u4", "s16", "s32", "u32", "s64", "u64"])
def test_floats_saturate_at_integers_and_integers_wrap(name):
    dtype = DataType(name)
    low = -(2 ** (dtype.bits - 1)) if name[0] == "s" else 0
    high = low + 2**dtype.bits - 1
    result = [int(x) for x in round_to(np.array([-np.inf, -1e30, 1e30, np.inf, np.nan]), dtype)]
    assert result == [low, low, high, high, 0]
    assert int(round_to(np.array([high + 2 if dtype.bits < 64 else low + 1], np.int64), dtype)[0]) == low + 1


def test_integers_round_half_to_even():
    assert round_to(np.array([0.5, 1.5, -0.5, -2.5, 2.501]), DataType.S8).tolist() == [0, 2, 0, -2, 3]


def test_rank_zero_is_kept():
    assert round_to(np.asarray(1.25), DataType.F32).shape == ()
    assert round_to(np.asarray(1.25), DataType.BF16).shape == ()


@pytest.mark.parametrize("dtype", [t for t in DataType if t is not DataType.UNDEF])
def test_widening_keeps_the_values(dtype):
    array = np.array([0, 1, 2, 3]).astype(dtype.numpy)
    wide = widen(array)
    assert wide.dtype in (np.float64, np.int64, np.uint64, np.bool_)
    np.testing.assert_array_equal(wide.astype(dtype.numpy).astype(np.float64), array.astype(np.float64))
