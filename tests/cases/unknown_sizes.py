"""Small ONNX models of which input sizes are unknown, and inputs for any of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import TensorProto, ValueInfoProto, helper, numpy_helper

import graphpool as gp

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["MODELS", "DynamicModel"]

_TYPES = {"f": (TensorProto.FLOAT, np.float32), "i": (TensorProto.INT64, np.int64), "b": (TensorProto.BOOL, np.bool_)}
Node = helper.make_node


@dataclass(frozen=True)
class DynamicModel:
    """A model of nodes.

    Attributes
    ----------
    nodes : tuple of NodeProto
    inputs : dict of str to sequence
        Name -> letter of the type ("f", "i", "b"), then dimensions: ints, names, or what `eval` computes from them.
    outputs : dict of str to int
        Name -> rank; of f32.
    constants : dict of str to ndarray
    sizes : dict of str to (int, int)
        Name of each unknown size -> the least and the most that tests draw.
    values : dict of str to list
        What inputs may hold that are no random numbers.
    """

    nodes: tuple[Any, ...]
    inputs: dict[str, tuple[Any, ...]]
    outputs: dict[str, int]
    constants: dict[str, Any]
    sizes: dict[str, tuple[int, int]]
    values: Mapping[str, list[Any]] | None = None

    def proto(self, sizes: Mapping[str, int] | None = None) -> Any:
        """The ONNX model, with these sizes fixed."""
        infos = [
            helper.make_tensor_value_info(name, _TYPES[kind][0], [_dim(dim, sizes) for dim in dims])
            for name, (kind, *dims) in self.inputs.items()
        ]
        results = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * rank) for name, rank in self.outputs.items()
        ]
        tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in self.constants.items()]
        graph = helper.make_graph(self.nodes, "dynamic", infos, results, tensors)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)

    def load(self, engine: gp.Engine, sizes: Mapping[str, int] | None = None, **options: Any) -> Any:
        """The loaded model."""
        return gp.onnx.load(self.proto(sizes).SerializeToString(), engine=engine, **options)

    def draw(self, rng: np.random.Generator) -> dict[str, int]:
        """Random sizes."""
        return {name: int(rng.integers(least, most + 1)) for name, (least, most) in self.sizes.items()}

    def arrays(self, sizes: Mapping[str, int], rng: np.random.Generator) -> dict[str, np.ndarray[Any, Any]]:
        """Inputs of these sizes."""
        found = {}
        for name, (kind, *dims) in self.inputs.items():
            shape, dtype = [_dim(dim, sizes) for dim in dims], _TYPES[kind][1]
            if name in (self.values or {}):
                options = self.values[name]  # type: ignore[index]
                found[name] = np.array(options[int(rng.integers(len(options)))], dtype)
            else:
                found[name] = rng.standard_normal(shape).astype(dtype)
        return found


def _dim(dim: Any, sizes: Mapping[str, int] | None) -> Any:
    if isinstance(dim, int) or sizes is None:
        return dim if isinstance(dim, int) or dim.isidentifier() else None
    return eval(dim, dict(sizes))


def _weights(*shape: int) -> np.ndarray[Any, Any]:
    return (np.random.default_rng(shape).standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)


def _ints(*values: int) -> np.ndarray[Any, Any]:
    return np.array(values, np.int64)


def _branch(*nodes: Any, output: str) -> Any:
    return helper.make_graph(nodes, "branch", [], [ValueInfoProto(name=output)])


MLP = DynamicModel(
    (
        Node("Gemm", ["x", "w", "b"], ["h"]), Node("Relu", ["h"], ["r"]), Node("MatMul", ["r", "v"], ["s"]),
        Node("Softmax", ["s"], ["y"]),
    ),
    {"x": ("f", "n", 24)}, {"y": 2}, {"w": _weights(24, 48), "b": _weights(48), "v": _weights(48, 10)}, {"n": (0, 40)},
)  # fmt: skip

CNN = DynamicModel(
    (
        Node("Conv", ["x", "a"], ["c"], pads=[1] * 4), Node("Relu", ["c"], ["r"]),
        Node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        Node("Conv", ["p", "d"], ["e"], pads=[1] * 4, strides=[2, 2]), Node("Sigmoid", ["e"], ["g"]),
        Node("Conv", ["g", "k"], ["l"]), Node("Add", ["l", "e"], ["m"]), Node("GlobalAveragePool", ["m"], ["o"]),
        Node("Flatten", ["o"], ["f"]), Node("MatMul", ["f", "w"], ["y"]), Node("Relu", ["m"], ["z"]),
    ),
    {"x": ("f", "n", 3, "h", "w")}, {"y": 2, "z": 4},
    {"a": _weights(8, 3, 3, 3), "d": _weights(16, 8, 3, 3), "k": _weights(16, 16, 1, 1), "w": _weights(16, 5)},
    {"n": (0, 3), "h": (2, 33), "w": (2, 33)},
)  # fmt: skip

ATTENTION = DynamicModel(
    (
        Node("Shape", ["x"], ["sx"]), Node("Gather", ["sx", "k0"], ["batch"]), Node("Gather", ["sx", "k1"], ["length"]),
        Node("Unsqueeze", ["batch", "axis"], ["b1"]), Node("Unsqueeze", ["length", "axis"], ["l1"]),
        Node("Concat", ["b1", "l1", "heads", "depth"], ["split"], axis=0),
        Node("Concat", ["b1", "l1", "width"], ["joined"], axis=0),
        *[node for name in "qkv" for node in (
            Node("MatMul", ["x", f"w{name}"], [f"p{name}"]), Node("Reshape", [f"p{name}", "split"], [f"r{name}"]),
            Node("Transpose", [f"r{name}"], [f"t{name}"], perm=[0, 2, 1, 3]),
        )],
        Node("Concat", ["past_k", "tk"], ["keys"], axis=2), Node("Concat", ["past_v", "tv"], ["values"], axis=2),
        Node("Transpose", ["keys"], ["turned"], perm=[0, 1, 3, 2]), Node("MatMul", ["tq", "turned"], ["scores"]),
        Node("Mul", ["scores", "scale"], ["scaled"]), Node("Softmax", ["scaled"], ["weights"]),
        Node("MatMul", ["weights", "values"], ["mixed"]), Node("Transpose", ["mixed"], ["back"], perm=[0, 2, 1, 3]),
        Node("Reshape", ["back", "joined"], ["flat"]), Node("MatMul", ["flat", "wo"], ["out"]),
        Node("Add", ["out", "x"], ["y"]), Node("LayerNormalization", ["y", "gamma", "beta"], ["z"]),
    ),
    {"x": ("f", "b", "l", 32), "past_k": ("f", "b", 4, "p", 8), "past_v": ("f", "b", 4, "p", 8)},
    {"z": 3, "keys": 4, "values": 4},
    {
        **{f"w{name}": _weights(32, 32) for name in "qkvo"}, "k0": np.int64(0), "k1": np.int64(1), "axis": _ints(0),
        "heads": _ints(4), "depth": _ints(8), "width": _ints(32), "scale": np.float32(0.35),
        "gamma": np.ones(32, np.float32), "beta": np.zeros(32, np.float32),
    },
    {"b": (1, 3), "l": (1, 9), "p": (0, 20)},
)  # fmt: skip

SHARED = DynamicModel(
    (
        Node("MatMul", ["a", "w"], ["m"]), Node("Mul", ["m", "c"], ["s"]), Node("Concat", ["s", "a"], ["j"], axis=0),
        Node("ReduceMean", ["j", "axis"], ["y"], keepdims=1), Node("Transpose", ["s"], ["z"]),
    ),
    {"a": ("f", "n", 12), "c": ("f", "n", 12)}, {"y": 2, "z": 2}, {"w": _weights(12, 12), "axis": _ints(0)},
    {"n": (1, 60)},
)  # fmt: skip

HOST = DynamicModel(
    (
        Node("MatMul", ["x", "w"], ["m"]), Node("Det", ["m"], ["d"]), Node("Tanh", ["d"], ["t"]),
        Node("Unsqueeze", ["t", "axis"], ["u"]), Node("Mul", ["m", "u"], ["y"]),
    ),
    {"x": ("f", "n", 4, 4)}, {"y": 3, "t": 1}, {"w": _weights(4, 4), "axis": _ints(1, 2)}, {"n": (0, 30)},
)  # fmt: skip

DECIDING = DynamicModel(
    (
        Node("MatMul", ["x", "w"], ["m"]), Node("Relu", ["m"], ["r"]), Node("Reshape", ["r", "shape"], ["s"]),
        Node("Add", ["s", "s"], ["y"]),
    ),
    {"x": ("f", "n", 12), "shape": ("i", 2)}, {"y": 2}, {"w": _weights(12, 12)}, {"n": (1, 30)},
    {"shape": [[-1, 6], [4, -1], [-1, 3], [0, 12]]},
)  # fmt: skip

CONTROL = DynamicModel(
    (
        Node("MatMul", ["x", "w"], ["m"]), Node("Shape", ["x"], ["s"]), Node("Gather", ["s", "zero"], ["rows"]),
        Node("Greater", ["rows", "many"], ["is_large"]),
        Node("If", ["is_large"], ["i"],
             then_branch=_branch(Node("Relu", ["m"], ["large"]), output="large"),
             else_branch=_branch(Node("Sigmoid", ["m"], ["small"]), output="small")),
        Node("If", ["flag"], ["y"],
             then_branch=_branch(Node("Add", ["i", "m"], ["sum"]), output="sum"),
             else_branch=_branch(Node("Sub", ["i", "m"], ["rest"]), output="rest")),
    ),
    {"x": ("f", "n", 12), "flag": ("b",)}, {"y": 2},
    {"w": _weights(12, 12), "zero": np.int64(0), "many": np.int64(16)}, {"n": (1, 32)},
    {"flag": [True, False]},
)  # fmt: skip

COMPRESSED = DynamicModel(
    (
        Node("DequantizeLinear", ["w", "s"], ["f"], axis=1), Node("MatMul", ["x", "f"], ["h"]),
        Node("Relu", ["h"], ["r"]), Node("DequantizeLinear", ["v", "t"], ["g"]), Node("MatMul", ["r", "g"], ["y"]),
    ),
    {"x": ("f", "n", 24)}, {"y": 2},
    {"w": np.arange(24 * 70).reshape(24, 70).astype(np.int8), "s": np.abs(_weights(70)),
     "v": np.arange(70 * 10).reshape(70, 10).astype(np.int8), "t": np.float32(0.125)},
    {"n": (0, 32)},
)  # fmt: skip


def _bytes(source: str, result: str, name: str) -> tuple[Any, Any]:
    """Through bytes and back, by the scale and the zero point of a name."""
    numbers = [f"scale_{name}", f"zero_{name}"]
    return Node("QuantizeLinear", [source, *numbers], [f"{result}_q"]), Node(
        "DequantizeLinear", [f"{result}_q", *numbers], [result]
    )


ATTENTION_OF_BYTES = DynamicModel(
    (
        *_bytes("x", "bx", "x"),
        *[node for name, perm in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])) for node in (
            Node("DequantizeLinear", [f"w{name}", "scale_w"], [f"m{name}"]),
            Node("MatMul", ["bx", f"m{name}"], [f"p{name}"]), Node("Reshape", [f"p{name}", "split"], [f"r{name}"]),
            Node("Transpose", [f"r{name}"], [f"t{name}"], perm=perm),
            *_bytes(f"t{name}", f"b{name}", name),
        )],
        Node("MatMul", ["bq", "bk"], ["s"]), *_bytes("s", "bs", "s"), Node("Add", ["bs", "mask"], ["a"]),
        Node("Softmax", ["a"], ["e"]), *_bytes("e", "be", "e"), Node("MatMul", ["be", "bv"], ["o"]),
        *_bytes("o", "bo", "v"), Node("Transpose", ["bo"], ["back"], perm=[0, 2, 1, 3]),
        Node("Reshape", ["back", "joined"], ["y"]),
    ),
    {"x": ("f", "b", "l", 24), "mask": ("f", "b", 1, 1, "l")}, {"y": 3},
    {
        **{f"w{name}": (100 * _weights(24, 24)).astype(np.int8) for name in "qkv"}, "scale_w": np.float32(0.01),
        **{f"scale_{name}": np.float32(scale) for name, scale in zip("xqkvse", (2**-5,) * 5 + (2**-8,), strict=True)},
        **{f"zero_{name}": np.uint8(zero) for name, zero in zip("xqkvse", (120, 128, 93, 140, 128, 0), strict=True)},
        "split": _ints(0, 0, 3, 8), "joined": _ints(0, 0, 24),
    },
    {"b": (1, 3), "l": (1, 40)},
)  # fmt: skip

RECURRENT = DynamicModel(
    (
        Node("LSTM", ["x", "w", "r"], ["both", "", "c"], hidden_size=12, direction="bidirectional"),
        Node("Transpose", ["both"], ["turned"], perm=[0, 2, 1, 3]), Node("Reshape", ["turned", "width"], ["flat"]),
        Node("Abs", ["lengths"], ["counts"]), Node("Cast", ["counts"], ["short"], to=TensorProto.INT32),
        Node("ReverseSequence", ["flat", "counts"], ["back"]),
        Node("GRU", ["back", "v", "u", "b", "short", "h"], ["y", "z"], hidden_size=7, linear_before_reset=1),
    ),
    {"x": ("f", "t", "n", 9), "lengths": ("i", "n"), "h": ("f", 1, "n", 7)}, {"y": 4, "z": 3, "c": 3},
    {
        "w": _weights(2, 48, 9), "r": _weights(2, 48, 12), "width": _ints(0, 0, 24), "v": _weights(1, 21, 24),
        "u": _weights(1, 21, 7), "b": _weights(1, 42),
    },
    {"t": (8, 30), "n": (7, 9)},
)  # fmt: skip

POSITIONS = DynamicModel(
    (
        Node("Shape", ["x"], ["s"]), Node("Split", ["s", "ones"], ["b", "t", "f"], axis=0),
        Node("Squeeze", ["t", "axis"], ["steps"]), Node("Range", ["zero", "steps", "one"], ["row"]),
        Node("Range", ["steps", "minus", "back"], ["falling"]), Node("Unsqueeze", ["row", "axis"], ["columns"]),
        Node("Unsqueeze", ["row", "last"], ["rows"]), Node("Less", ["columns", "rows"], ["is_before"]),
        Node("Slice", ["table", "axis", "t", "axis"], ["places"]), Node("Add", ["x", "places"], ["placed"]),
        Node("Add", ["falling", "t"], ["later"]), Node("Cast", ["later"], ["weights"], to=TensorProto.FLOAT),
        Node("Concat", ["t", "t"], ["square"], axis=0), Node("ConstantOfShape", ["square"], ["none"]),
        Node("Expand", ["half", "square"], ["halves"]), Node("Trilu", ["halves", "one"], ["upper"], upper=1),
        Node("Where", ["is_before", "none", "upper"], ["mask"]),
        Node("Transpose", ["placed"], ["turned"], perm=[0, 2, 1]),
        Node("MatMul", ["placed", "turned"], ["scores"]), Node("Add", ["scores", "mask"], ["masked"]),
        Node("Mul", ["masked", "weights"], ["y"]),
    ),
    {"x": ("f", "n", "t", 8)}, {"y": 3},
    {
        "ones": _ints(1, 1, 1), "axis": _ints(0), "last": _ints(1), "zero": np.int64(0), "one": np.int64(1),
        "minus": np.int64(0), "back": np.int64(-1), "table": _weights(64, 8), "half": np.float32(0.5),
    },
    {"n": (2, 5), "t": (2, 40)},
)  # fmt: skip

RESIZED = DynamicModel(
    (
        Node("Resize", ["x", "", "twice"], ["a"], coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
        Node("Relu", ["a"], ["r"]), Node("Shape", ["other"], ["s"]),
        Node("Resize", ["r", "", "", "s"], ["b"], mode="linear", coordinate_transformation_mode="align_corners"),
        Node("Resize", ["x", "", "", "s"], ["c"], coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
        Node("Add", ["b", "c"], ["d"]), Node("Add", ["d", "other"], ["y"]),
    ),
    {"x": ("f", "n", 3, "h", "w"), "other": ("f", "n", 3, "p", "q")}, {"y": 4, "r": 4},
    {"twice": np.array([1, 1, 2, 2], np.float32)},
    {"n": (2, 4), "h": (5, 12), "w": (5, 12), "p": (13, 40), "q": (13, 40)},
)  # fmt: skip

MODELS = {
    "mlp": MLP, "cnn": CNN, "attention": ATTENTION, "attention_of_bytes": ATTENTION_OF_BYTES, "shared": SHARED,
    "host": HOST, "deciding": DECIDING, "control": CONTROL, "compressed": COMPRESSED, "recurrent": RECURRENT,
    "positions": POSITIONS, "resized": RESIZED,
}  # fmt: skip
