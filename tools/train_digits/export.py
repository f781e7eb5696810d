# ruff: noqa: D102 (the operators are documented once, in models.Ops)
"""OnnxWriter: the `Ops` interpreter whose values are names of tensors in an ONNX graph that it writes."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import TensorProto, checker, helper, numpy_helper

from .autodiff import EPSILON
from .models import CLASSES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from onnx import ModelProto, NodeProto

    from .autodiff import Array, Training

__all__ = ["OnnxWriter", "export"]

_IR_VERSIONS = {17: 8, 18: 8, 19: 9, 20: 9}
"""The oldest IR version that may carry an opset (ONNX, Versioning.md)."""


def export(model: Callable[[OnnxWriter, str], str], trained: Training, name: str, opset: int) -> ModelProto:
    """A checked ONNX model of `model` with the weights in `trained`: image (batch, 1, 8, 8) -> probabilities."""
    writer = OnnxWriter(trained)
    writer.emit("Softmax", [model(writer, "image")], output="probabilities", axis=-1)
    graph = helper.make_graph(
        writer.nodes,
        name,
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 1, 8, 8])],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["batch", CLASSES])],
        [numpy_helper.from_array(array, key) for key, array in writer.initializers.items()],
    )
    opsets = [helper.make_opsetid("", opset)]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSIONS[opset], producer_name="graphpool")
    checker.check_model(proto, full_check=True)
    return proto


class OnnxWriter:
    """Values are tensor names; `nodes` and `initializers` hold what was written."""

    def __init__(self, trained: Training) -> None:
        self.nodes: list[NodeProto] = []
        self.initializers: dict[str, Array | np.ndarray[Any, np.dtype[np.int64]]] = {}
        self._trained = trained
        self._counts: Counter[str] = Counter()

    def emit(self, op_type: str, inputs: Sequence[str], output: str | None = None, **attributes: Any) -> str:
        """Append a node with one output; return the name of that output."""
        name = f"{op_type.lower()}_{self._counts[op_type]}"
        self._counts[op_type] += 1
        output = output or f"{name}.out"
        self.nodes.append(helper.make_node(op_type, inputs, [output], name=name, **attributes))
        return output

    def parameter(self, name: str, shape: tuple[int, ...], std: float, mean: float = 0.0) -> str:
        return self._initializer(name, self._trained.parameters[name].value)

    def constant(self, value: float) -> str:
        return self._initializer(f"scalar.{value:.6g}", np.array(value, np.float32))

    def add(self, a: str, b: str) -> str:
        return self.emit("Add", [a, b])

    def mul(self, a: str, b: str) -> str:
        return self.emit("Mul", [a, b])

    def div(self, a: str, b: str) -> str:
        return self.emit("Div", [a, b])

    def matmul(self, a: str, b: str) -> str:
        return self.emit("MatMul", [a, b])

    def relu(self, x: str) -> str:
        return self.emit("Relu", [x])

    def erf(self, x: str) -> str:
        return self.emit("Erf", [x])

    def softmax(self, x: str) -> str:
        return self.emit("Softmax", [x], axis=-1)

    def reshape(self, x: str, shape: Sequence[int]) -> str:
        return self.emit("Reshape", [x, self._integers("shape", shape)])

    def transpose(self, x: str, perm: Sequence[int]) -> str:
        return self.emit("Transpose", [x], perm=list(perm))

    def conv(self, x: str, weight: str) -> str:
        return self.emit("Conv", [x, weight], kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[1, 1])

    def batch_norm(self, x: str, name: str, channels: int) -> str:
        state = {key: self._trained.parameters[f"{name}.{key}"].value for key in ("scale", "bias")}
        state |= {key: self._trained.averages[f"{name}.{key}"] for key in ("mean", "var")}
        inputs = [self._initializer(f"{name}.{key}", array.reshape(channels)) for key, array in state.items()]
        return self.emit("BatchNormalization", [x, *inputs], epsilon=EPSILON)

    def max_pool(self, x: str) -> str:
        return self.emit("MaxPool", [x], kernel_shape=[2, 2], strides=[2, 2])

    def global_average_pool(self, x: str) -> str:
        return self.emit("GlobalAveragePool", [x])

    def flatten(self, x: str) -> str:
        return self.emit("Flatten", [x], axis=1)

    def gemm(self, x: str, weight: str, bias: str) -> str:
        return self.emit("Gemm", [x, weight, bias])

    def layer_norm(self, x: str, scale: str, bias: str) -> str:
        return self.emit("LayerNormalization", [x, scale, bias], axis=-1, epsilon=EPSILON)

    def gelu_tanh(self, x: str) -> str:
        return self.emit("Gelu", [x], approximate="tanh")

    def reduce_mean(self, x: str, axis: int) -> str:
        return self.emit("ReduceMean", [x, self._integers("axes", (axis,))], keepdims=0)

    def _integers(self, kind: str, values: Sequence[int]) -> str:
        return self._initializer(f"{kind}.{'_'.join(map(str, values))}", np.array(values, np.int64))

    def _initializer(self, name: str, array: Array | np.ndarray[Any, np.dtype[np.int64]]) -> str:
        self.initializers[name] = array
        return name
