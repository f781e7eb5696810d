"""Gradients on kernels: what random graphs rarely reach."""

import numpy as np
import pytest

from tests.cases.graphs import GraphBuilder
from tests.helpers.partitions import kernels_of, run_partitions, run_reference

SLOPES = [
    ("ClampBackward", {"min": -1.0, "max": 2.0}),
    ("EluBackward", {"alpha": 0.7, "use_dst": False}),
    ("GELUBackward", {"mode": "gelu_erf"}),
    ("GELUBackward", {"mode": "gelu_tanh"}),
    ("HardSigmoidBackward", {"alpha": 0.2, "beta": 0.5}),
    ("HardSwishBackward", {}),
    ("MishBackward", {}),
    ("SigmoidBackward", {"use_dst": False}),
    ("SoftPlusBackward", {"beta": -2.0}),
    ("TanhBackward", {"use_dst": False}),
]
"""Functions that are flat, or straight, far from 0."""

FAR = [0.0, -0.0, 3.0, -3.0, 1e-40, -1e-40, 100.0, -100.0, 1e30, -1e30, 3e38, -3e38]


def run_op(engine, kind, *arrays, **attrs):
    """What the reference and the partitions compute for one op of f32, and the partitions' kernels."""
    builder = GraphBuilder()
    ports = [builder.input(array.shape) for array in arrays]
    result = builder.op(kind, *ports, **attrs)
    values = {port.id: array for port, array in zip(ports, arrays, strict=True)}
    partitions = builder.finish()
    expected = run_reference(builder.graph.ops, values)[result.id]
    return run_partitions(partitions, values, engine)[result.id], expected, kernels_of(partitions, engine)


@pytest.mark.parametrize(("kind", "attrs"), SLOPES, ids=[f"{kind}-{attrs}" for kind, attrs in SLOPES])
def test_slopes_are_those_of_the_formula_everywhere(engine, kind, attrs):
    x = np.concatenate([np.linspace(-12, 12, 4801), FAR]).astype(np.float32)
    gradient = np.linspace(0.5, 1.5, x.size, dtype=np.float32)
    found, expected, _ = run_op(engine, kind, x, gradient, **attrs)
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=5e-7)
    small = np.abs(expected) < 1e-6  # what a difference of nearly equal numbers would round away
    np.testing.assert_allclose(found[small], expected[small], rtol=2e-5, atol=1e-36)


def test_a_gradient_fits_beside_as_many_tensors_as_a_program_holds(engine):
    builder, rng = GraphBuilder(), np.random.default_rng(5)
    x, gradient, *others = (builder.input((40,)) for _ in range(17))
    slopes = [builder.op(kind, x, gradient, **attrs) for kind, attrs in SLOPES]
    total = builder.op("Add", x, gradient)
    for port in (*slopes, *others):
        total = builder.op("Add", total, port)
    values = {port.id: rng.normal(size=40).astype(np.float32) for port in (x, gradient, *others)}
    found = run_partitions(builder.finish(), values, engine)[total.id]
    np.testing.assert_allclose(found, run_reference(builder.graph.ops, values)[total.id], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize("size", [12, 13, 14])
def test_gradients_of_a_convolution_have_the_shapes_of_its_operands(engine, auto_pad, size):
    rng, attrs = np.random.default_rng(6), {"strides": [3, 2], "dilations": [1, 2], "groups": 2}
    pads = {
        "pads_begin": [0, 0],
        "pads_end": [0, 0],
        "auto_pad": auto_pad,
        "weights_format": "OIX",
        "data_format": "NCX",
    }
    shape, weights = (2, 4, size, size + 1), rng.normal(size=(6, 2, 3, 2)).astype(np.float32)
    builder = GraphBuilder()
    source, kernel = builder.input(shape), builder.input(weights.shape)
    gradient_shape = builder.graph_shape(builder.op("Convolution", source, kernel, **attrs, **pads))
    gradient = rng.normal(size=gradient_shape).astype(np.float32)
    image = rng.normal(size=shape).astype(np.float32)
    for kind, first, second, sizes in (
        ("ConvolutionBackwardData", gradient, weights, {"dst_shape": list(shape)}),
        ("ConvolutionBackwardWeights", image, gradient, {"weights_shape": list(weights.shape)}),
    ):
        found, expected, kernels = run_op(engine, kind, first, second, **attrs, **pads, **sizes)
        assert found.shape == tuple(*sizes.values())
        assert not any("reference" in kernel for kernel in kernels)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)
