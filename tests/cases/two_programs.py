"""A model of two programs with host functions between them, and names that a page must not run."""

from onnx import TensorProto, helper

from tests.helpers.onnx_models import make_model, random_array

SCRIPT = "</svg><script>window.hacked = 1</script>"
INPUTS = {"x": random_array((64, 256))}


def two_programs():
    """MatMul, Relu and Add; on the host two BitCasts; then Softmax, MatMul, Add and Tanh."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name=SCRIPT),
        helper.make_node("Relu", ["a"], ["b"], name='"relu" & <b>'),
        helper.make_node("Add", ["b", "x"], [f"sum{SCRIPT}"], name=f"add {SCRIPT}"),
        helper.make_node("BitCast", [f"sum{SCRIPT}"], ["u"], name=f"cast {SCRIPT}", to=TensorProto.FLOAT),
        helper.make_node("Softmax", [f"sum{SCRIPT}"], ["p"], name="softmax"),
        helper.make_node("BitCast", ["u"], ["s"], name="again", to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["p", "w"], ["c"], name="second"),
        helper.make_node("Add", ["c", "s"], ["d"], name="plus"),
        helper.make_node("Tanh", ["d"], ["y"], name="tanh"),
    ]
    return make_model(nodes, INPUTS, ["y"], {"w": random_array((256, 256))}, name=f"model {SCRIPT}", opset=26)
