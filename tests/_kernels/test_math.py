"""The functions of gp_vmath.h and gp_math.h over the whole range of float32, through the elementwise kernel."""

import numpy as np
import pytest
from scipy import special

from graphpool._kernels.core._dispatch import isas
from graphpool._kernels.eltwise.eltwise import EltwiseBuilder

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

EDGES = np.array(
    [
        0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1.1754942e-38, 1.1754944e-38, 3.4028235e38, -3.4028235e38,
        1.0, -1.0, 0.625, 0.925, 4.0, 88.72283, 88.72284, -87.33654, -103.97208, -103.97209, 20.0, 1048576.0, 1048577.0,
    ],
    np.float32,
)  # fmt: skip


def every(step):
    """Every step-th float32 by bit pattern, the edges and the usual range."""
    patterns = np.arange(0, 2**32, step, dtype=np.uint64).astype(np.uint32).view(np.float32)
    usual = [np.linspace(-110, 110, 200_001, dtype=np.float32), np.linspace(-2, 2, 200_001, dtype=np.float32)]
    return np.concatenate([patterns, EDGES, *usual])


SAMPLE = every(4999)
FINE_SAMPLE = every(997)

# name: (reference in float64, beta, worst error in units of the last place as stated there)
CASES = {
    "exp": (np.exp, 0, 1.0),
    "log": (np.log, 0, 0.9),
    "tanh": (np.tanh, 0, 2.5),
    "sigmoid": (special.expit, 0, 2.3),
    "erf": (special.erf, 0, 1.3),
    "elu": (lambda x: np.where(x < 0, np.expm1(x), x), 0, 1.5),
    "softplus": (lambda x: np.logaddexp(0, x), 1, 1.9),
    "sin": (np.sin, 0, 0.6),
    "cos": (np.cos, 0, 0.6),
    "atan": (np.arctan, 0, 1.7),
    "asin": (np.arcsin, 0, 2.4),
    "acos": (np.arccos, 0, 1.5),
}


def evaluate(name, x, isa, alpha=1.0, beta=0.0):
    builder = EltwiseBuilder(x.shape)
    builder.store(1, "f32", None, builder.unary(name, builder.load(0, "f32"), alpha, beta))
    out = np.empty_like(x)
    builder.build(isa)(x, out)
    return out


FLUSHED = {"sigmoid": 2.0**-126}
"""Results below this, all denormal, may be 0."""


def errors_in_ulp(result, expected, flushed=0.0):
    """Distance to the float64 result in units of its last place; specials must be equal, and count as 0."""
    expected = np.where((np.abs(expected) < flushed) & (result == 0), 0, expected)
    rounded = expected.astype(np.float32)
    ordinary = np.isfinite(rounded)
    np.testing.assert_array_equal(result[~ordinary], rounded[~ordinary])
    np.testing.assert_array_equal(np.signbit(result[rounded == 0]), np.signbit(rounded[rounded == 0]))
    ulp = np.abs(np.spacing(rounded[ordinary])).astype(np.float64)
    return np.abs(result[ordinary] - expected[ordinary]) / ulp


@pytest.mark.parametrize("name", CASES)
def test_error_over_all_floats(name):
    reference, beta, limit = CASES[name]
    result = evaluate(name, FINE_SAMPLE, isas()[-1], beta=beta)
    assert errors_in_ulp(result, reference(FINE_SAMPLE.astype(np.float64)), FLUSHED.get(name, 0)).max() <= limit


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("name", CASES)
def test_error_in_every_instruction_set(name, isa):
    reference, beta, limit = CASES[name]
    result = evaluate(name, SAMPLE, isa, beta=beta)
    assert errors_in_ulp(result, reference(SAMPLE.astype(np.float64)), FLUSHED.get(name, 0)).max() <= limit


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("exponent", [0.0, 0.5, -0.5, 1.0, 2.0, 3.0, -1.0, 2.7, -0.3, 13.0, 1e9, np.inf, -np.inf])
def test_power(exponent, isa):
    exponent = np.float32(exponent)
    result = evaluate("pow", SAMPLE, isa, beta=exponent)
    assert errors_in_ulp(result, np.float_power(SAMPLE, exponent)).max() <= 0.6


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize(("name", "limit"), [("gelu_erf", 1.7), ("gelu_tanh", 2.1)])
def test_gelu_relative_to_its_argument(name, limit, isa):
    x = SAMPLE[np.isfinite(SAMPLE)]
    wide = x.astype(np.float64)
    inner = special.erf(wide / np.sqrt(2)) if name == "gelu_erf" else np.tanh(
        np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3)
    )  # fmt: skip
    error = np.abs(evaluate(name, x, isa) - 0.5 * wide * (1 + inner))
    assert (error / np.abs(np.spacing(x))).max() <= limit


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize(("name", "limit"), [("gelu_erf", 5e-5), ("gelu_tanh", 2e-5)])
def test_tail_of_gelu_relative_to_itself(name, limit, isa):
    x = np.concatenate([np.linspace(-14, -1e-3, 100_001, dtype=np.float32), [np.float32(-3e38), np.float32(-np.inf)]])
    wide = x.astype(np.float64)
    if name == "gelu_erf":
        expected = 0.5 * wide * special.erfc(-wide / np.sqrt(2))
    else:
        expected = wide * special.expit(2 * np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3))
    result = evaluate(name, x, isa)
    np.testing.assert_allclose(result, expected, rtol=limit, atol=2.0**-120)
    assert np.signbit(result[:-1]).all()


@pytest.mark.parametrize("isa", isas())
def test_nothing_overflows_on_the_way(isa):
    x = np.array([3e38, 1e38, 5.68e37, 20.0, -3e38], np.float32)
    np.testing.assert_array_equal(evaluate("hard_swish", x, isa), [*x[:4], 0])
    np.testing.assert_array_equal(evaluate("softplus", x, isa, beta=2.0), [*x[:4], 0])
    np.testing.assert_array_equal(evaluate("softplus", -x, isa, beta=-2.0), [*-x[:4], 0])


@pytest.mark.parametrize("isa", isas())
def test_mish(isa):
    x = SAMPLE[np.isfinite(SAMPLE)]
    wide = x.astype(np.float64)
    expected = wide * np.tanh(np.logaddexp(0, wide))
    error = np.abs(evaluate("mish", x, isa) - expected)
    assert (error <= 4 * np.abs(np.spacing(expected.astype(np.float32))) + 3e-43).all()


@pytest.mark.parametrize("isa", isas())
def test_sigmoid_and_tanh_are_bounded_and_monotonic_at_the_ends(isa):
    x = np.sort(np.linspace(-200, 200, 10_001).astype(np.float32))
    sigmoid, tanh = evaluate("sigmoid", x, isa), evaluate("tanh", x, isa)
    assert ((sigmoid >= 0) & (sigmoid <= 1)).all()
    assert (np.abs(tanh) <= 1).all()
    assert (sigmoid[-1], tanh[-1], tanh[0]) == (1, 1, -1)
