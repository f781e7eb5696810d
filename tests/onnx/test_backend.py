"""ONNX's backend interface, driven by the suites of the onnx package: converted, operator and simple models."""

import warnings

import numpy as np
import pytest

import graphpool as gp

onnx = pytest.importorskip("onnx")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import onnx.backend.test
    from onnx import helper

    from graphpool.onnx import backend

    suite = onnx.backend.test.BackendTest(backend, __name__)
    suite.include(r"_cpu$")
    # automatic differentiation is no inference: neither graphpool nor the evaluator has the op
    suite.xfail(r"test_gradient_of_add\w*_cpu$")
    CLASSES = {
        name: suite.test_cases[name]
        for name in (
            "OnnxBackendPyTorchConvertedModelTest",
            "OnnxBackendPyTorchOperatorModelTest",
            "OnnxBackendSimpleModelTest",
        )
    }
FEWEST = {
    "OnnxBackendPyTorchConvertedModelTest": 82,
    "OnnxBackendPyTorchOperatorModelTest": 35,
    "OnnxBackendSimpleModelTest": 23,
}
"""An empty corpus would pass in silence."""
KNOWN = ("test_gradient_of_add_cpu", "test_gradient_of_add_and_mul_cpu")


def cases():
    return [(name, test) for name, cls in CLASSES.items() for test in sorted(dir(cls)) if test.endswith("_cpu")]


@pytest.mark.parametrize("name", CLASSES)
def test_the_corpus_is_there(name):
    assert len([1 for cls, _ in cases() if cls == name]) >= FEWEST[name]


@pytest.mark.parametrize(("name", "test"), [case for case in cases() if case[1] not in KNOWN])
def test_case(name, test):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        getattr(CLASSES[name](test), test)()


def relu_model():
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2, 3]) for name in "xy")
    return helper.make_model(helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y]))


@pytest.mark.parametrize("form", ["array", "sequence", "mapping"])
def test_inputs_in_every_form(form):
    x = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
    given = {"array": x, "sequence": [x], "mapping": {"x": x}}[form]
    with backend.prepare(relu_model()) as prepared:
        outputs = prepared.run(given)
        np.testing.assert_array_equal(outputs.y, np.maximum(x, 0))
        np.testing.assert_array_equal(outputs[0], np.maximum(x, 0))
        with pytest.raises(gp.InvalidArgumentError, match="inputs; accepted: at most 1; got: 2"):
            prepared.run([x, x])


def test_one_node():
    a, b = np.float32([[1, 2]]), np.float32([[3], [4]])
    [result] = backend.run_node(helper.make_node("MatMul", ["a", "b"], ["c"]), [a, b])
    np.testing.assert_array_equal(result, [[11]])


def test_devices():
    assert backend.supports_device("CPU")
    assert backend.supports_device("CPU:0")
    assert not backend.supports_device("CUDA:0")
    assert backend.is_compatible(relu_model())
    with pytest.raises(gp.UnsupportedError, match="device CUDA; accepted: CPU"):
        backend.prepare(relu_model(), "CUDA")
