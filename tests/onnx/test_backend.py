"""ONNX's backend interface; `test_suite` runs the cases of the onnx package through it."""

import warnings

import numpy as np
import pytest

import graphpool as gp

onnx = pytest.importorskip("onnx")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from onnx import helper

    from graphpool.onnx import backend


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
