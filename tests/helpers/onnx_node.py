"""One ONNX node on the reference evaluator of the onnx package."""

from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator


def run_node(operator, inputs, *, opset=19, **attributes):
    """The first output of `operator` for float arrays by name; a name of "" leaves an optional input out."""
    names = list(inputs)
    node = helper.make_node(operator, names, ["out"], **attributes)
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, inputs[name].shape) for name in names if name]
    result = helper.make_tensor_value_info("out", TensorProto.FLOAT, None)
    model = helper.make_model(
        helper.make_graph([node], "node", infos, [result]), opset_imports=[helper.make_opsetid("", opset)]
    )
    return ReferenceEvaluator(model).run(None, {name: value for name, value in inputs.items() if name})[0]
