import math

import numpy as np
import pytest

from tests.helpers.reference import assert_gradient, onnx_run, run_one

SHAPES = [(), (7,), (2, 3, 5), (0, 4), (3, 0)]

# kind: (attributes, formula of one float)
FORWARD = {
    "Abs": ({}, abs),
    "Clamp": ({"min": -0.5, "max": 0.75}, lambda x: min(max(x, -0.5), 0.75)),
    "Elu": ({"alpha": 0.5}, lambda x: x if x > 0 else 0.5 * (math.exp(x) - 1)),
    "Exp": ({}, math.exp),
    "GELU": ({"mode": "gelu_erf"}, lambda x: 0.5 * x * (1 + math.erf(x / math.sqrt(2)))),
    "HardSigmoid": ({"alpha": 0.25, "beta": 0.5}, lambda x: min(max(0.25 * x + 0.5, 0), 1)),
    "HardSwish": ({}, lambda x: x * min(max(x + 3, 0), 6) / 6),
    "LeakyReLU": ({"alpha": 0.25}, lambda x: x if x > 0 else 0.25 * x),
    "Mish": ({}, lambda x: x * math.tanh(math.log(1 + math.exp(x)))),
    "Reciprocal": ({}, lambda x: 1 / x),
    "ReLU": ({}, lambda x: max(x, 0.0)),
    "Round": ({}, round),
    "Sigmoid": ({}, lambda x: 1 / (1 + math.exp(-x))),
    "SoftPlus": ({"beta": 2.0}, lambda x: math.log(1 + math.exp(2 * x)) / 2),
    "Square": ({}, lambda x: x * x),
    "Tanh": ({}, math.tanh),
}
POSITIVE = {"Log": ({}, math.log), "Pow": ({"beta": 2.5}, lambda x: x**2.5), "Sqrt": ({}, math.sqrt)}

# backward kind: (forward kind, attributes, takes dst, sample points)
LINE = np.linspace(-4.13, 4.27, 29)
BACKWARD = {
    "AbsBackward": ("Abs", {}, False),
    "ClampBackward": ("Clamp", {"min": -0.5, "max": 1.25}, True),
    "EluBackward": ("Elu", {"alpha": 0.5}, True),
    "GELUBackward": ("GELU", {"mode": "gelu_erf"}, False),
    "HardSigmoidBackward": ("HardSigmoid", {"alpha": 0.25, "beta": 0.5}, False),
    "HardSwishBackward": ("HardSwish", {}, False),
    "MishBackward": ("Mish", {}, False),
    "ReLUBackward": ("ReLU", {}, True),
    "SigmoidBackward": ("Sigmoid", {}, True),
    "SoftPlusBackward": ("SoftPlus", {"beta": 1.5}, False),
    "SqrtBackward": ("Sqrt", {}, True),
    "TanhBackward": ("Tanh", {}, True),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", [*FORWARD, *POSITIVE])
def test_forward_follows_its_formula(kind, shape):
    attrs, formula = (FORWARD | POSITIVE)[kind]
    src = np.random.default_rng(1).normal(size=shape) * 2
    src = np.abs(src) + 0.1 if kind in POSITIVE else src
    expected = np.reshape([formula(x) for x in np.ravel(src).tolist()], shape)
    np.testing.assert_allclose(run_one(kind, src, **attrs), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("kind", "op", "attrs", "onnx_attrs"),
    [
        ("GELU", "Gelu", {"mode": "gelu_tanh"}, {"approximate": "tanh"}),
        ("GELU", "Gelu", {"mode": "gelu_erf"}, {}),
        ("HardSwish", "HardSwish", {}, {}),
        ("Mish", "Mish", {}, {}),
        ("Round", "Round", {}, {}),
        ("SoftPlus", "Softplus", {"beta": 1.0}, {}),
        ("Elu", "Elu", {"alpha": 0.5}, {"alpha": 0.5}),
        ("HardSigmoid", "HardSigmoid", {"alpha": 0.25, "beta": 0.5}, {"alpha": 0.25, "beta": 0.5}),
    ],
)
def test_forward_agrees_with_onnx(kind, op, attrs, onnx_attrs):
    src = np.linspace(-5, 5, 41)
    np.testing.assert_allclose(run_one(kind, src, **attrs), onnx_run(op, [src], **onnx_attrs)[0], rtol=1e-6, atol=1e-7)


def test_round_takes_halves_to_even():
    assert run_one("Round", np.array([0.5, 1.5, 2.5, -0.5, -1.5])).tolist() == [0, 2, 2, 0, -2]


@pytest.mark.parametrize("kind", [*FORWARD, *POSITIVE])
def test_nan_propagates_forward(kind):
    attrs = (FORWARD | POSITIVE)[kind][0]
    assert np.isnan(run_one(kind, np.array([np.nan]), **attrs)[0])


@pytest.mark.parametrize(
    ("kind", "point", "expected"),
    [
        ("Exp", -np.inf, 0.0),
        ("Exp", 1000.0, np.inf),
        ("Sigmoid", -1000.0, 0.0),
        ("SoftPlus", 1000.0, 1000.0),
        ("SoftPlus", -np.inf, 0.0),
        ("Log", 0.0, -np.inf),
        ("Log", -1.0, np.nan),
        ("Sqrt", -1.0, np.nan),
        ("Reciprocal", 0.0, np.inf),
        ("Clamp", -np.inf, -0.5),
        ("ReLU", np.inf, np.inf),
        ("Elu", -np.inf, -0.5),
        ("GELU", np.inf, np.inf),
        ("GELU", -np.inf, np.nan),
    ],
)
def test_extreme_points(kind, point, expected):
    attrs = (FORWARD | POSITIVE)[kind][0]
    np.testing.assert_equal(run_one(kind, np.array([point]), **attrs)[0], expected)


def _gradient_case(kind):
    forward, attrs, _ = BACKWARD[kind]
    src = np.abs(LINE) + 0.2 if forward == "Sqrt" else LINE
    return forward, attrs, src, np.random.default_rng(2).normal(size=src.shape)


def _tanh_argument(x):
    return math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)


def _distribution(x):
    return math.erfc(-x / math.sqrt(2)) / 2


@pytest.mark.parametrize(
    ("kind", "attrs", "point", "expected"),
    [
        ("GELU", {"mode": "gelu_erf"}, -9.0, -9 * _distribution(-9)),
        ("GELU", {"mode": "gelu_tanh"}, -8.0, -8 / (1 + math.exp(-2 * _tanh_argument(-8)))),
        ("GELUBackward", {"mode": "gelu_erf"}, -9.0,
         _distribution(-9) - 9 * math.exp(-81 / 2) / math.sqrt(2 * math.pi)),
        ("GELUBackward", {"mode": "gelu_tanh"}, -8.0,
         math.exp(2 * _tanh_argument(-8)) * (1 - 16 * math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * 64))),
        ("SigmoidBackward", {"use_dst": False}, 40.0, math.exp(-40)),
        ("TanhBackward", {"use_dst": False}, 20.0, 4 * math.exp(-40)),
    ],
)  # fmt: skip
def test_tails_do_not_cancel(kind, attrs, point, expected):
    gradient = [1.0] if kind.endswith("Backward") else []
    np.testing.assert_allclose(run_one(kind, point, *gradient, **attrs), expected, rtol=1e-13)


def test_pow_is_that_of_c():
    np.testing.assert_array_equal(run_one("Pow", [-np.inf, 0.0, np.inf], beta=0.5), [np.inf, 0, np.inf])
    assert not np.signbit(run_one("Pow", -0.0, beta=0.5))


@pytest.mark.parametrize("kind", BACKWARD)
def test_gradient_from_src_equals_the_numerical_one(kind):
    forward, attrs, src, diff_dst = _gradient_case(kind)
    actual = run_one(kind, src, diff_dst, use_dst=False, **attrs)
    assert_gradient(actual, forward, [src], 0, diff_dst, attrs)


@pytest.mark.parametrize("kind", [kind for kind, case in BACKWARD.items() if case[2]])
def test_gradient_from_dst_equals_the_one_from_src(kind):
    forward, attrs, src, diff_dst = _gradient_case(kind)
    from_src = run_one(kind, src, diff_dst, use_dst=False, **attrs)
    from_dst = run_one(kind, run_one(forward, src, **attrs), diff_dst, use_dst=True, **attrs)
    np.testing.assert_allclose(from_dst, from_src, rtol=1e-10, atol=1e-12)


def test_gelu_tanh_gradient_equals_the_numerical_one():
    diff_dst = np.random.default_rng(3).normal(size=LINE.shape)
    attrs = {"mode": "gelu_tanh"}
    assert_gradient(run_one("GELUBackward", LINE, diff_dst, **attrs), "GELU", [LINE], 0, diff_dst, attrs)


@pytest.mark.parametrize("kind", BACKWARD)
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_gradients_keep_the_shape(kind, shape):
    _, attrs, _ = BACKWARD[kind]
    assert run_one(kind, np.ones(shape), np.ones(shape), use_dst=False, **attrs).shape == shape


@pytest.mark.parametrize(
    ("kind", "point", "attrs"),
    [
        ("AbsBackward", 0.0, {}),
        ("ReLUBackward", 0.0, {}),
        ("ClampBackward", 1.0, {"min": -1.0, "max": 1.0}),
        ("ClampBackward", -1.0, {"min": -1.0, "max": 1.0}),
        ("HardSigmoidBackward", 2.0, {"alpha": 0.25, "beta": 0.5}),
        ("HardSwishBackward", -3.0, {}),
    ],
)
def test_gradient_at_a_kink_is_zero(kind, point, attrs):
    assert run_one(kind, np.array([point]), np.array([5.0]), use_dst=True, **attrs)[0] == 0
