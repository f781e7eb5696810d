"""Small ONNX models with states: caches of attention, one that is stacked, recurrent ones, one of unknown length."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from .unknown_sizes import ATTENTION, DynamicModel

__all__ = ["GROUPED", "KEPT", "MIXED", "PAIRS", "RECURRENT", "STACKED", "capacity_of", "group_query"]

Node = helper.make_node


def _weights(*shape: int) -> np.ndarray:
    return (np.random.default_rng(shape).standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)


GROUPED = DynamicModel(
    (
        *[node for name, head in (("q", "four"), ("k", "two"), ("v", "two")) for node in (
            Node("MatMul", ["x", f"w{name}"], [f"p{name}"]), Node("Reshape", [f"p{name}", head], [f"r{name}"]),
            Node("Transpose", [f"r{name}"], [f"t{name}"], perm=[0, 2, 1, 3]),
        )],
        Node("Shape", ["x"], ["sx"]), Node("Gather", ["sx", "first"], ["batch"]),
        *[node for name in "kv" for node in (
            Node("Concat", [f"past_{name}", f"t{name}"], [f"all_{name}"], axis=2),
            Node("Unsqueeze", [f"all_{name}", "axis"], [f"u{name}"]), Node("Shape", [f"all_{name}"], [f"s{name}"]),
            Node("Gather", [f"s{name}", "third"], [f"n{name}"]),
            Node("Concat", ["batch", "twice", f"n{name}", "depth"], [f"e{name}"], axis=0),
            Node("Expand", [f"u{name}", f"e{name}"], [f"x{name}"]),
            Node("Reshape", [f"x{name}", "joined"], [f"y{name}"]),
        )],
        Node("Transpose", ["yk"], ["turned"], perm=[0, 1, 3, 2]), Node("MatMul", ["tq", "turned"], ["scores"]),
        Node("Mul", ["scores", "scale"], ["scaled"]), Node("Softmax", ["scaled"], ["weights"]),
        Node("MatMul", ["weights", "yv"], ["mixed"]), Node("Transpose", ["mixed"], ["z"], perm=[0, 2, 1, 3]),
    ),
    {"x": ("f", "b", "l", 32), "past_k": ("f", "b", 2, "p", 8), "past_v": ("f", "b", 2, "p", 8)},
    {"z": 4, "all_k": 4, "all_v": 4},
    {
        "wq": _weights(32, 32), "wk": _weights(32, 16), "wv": _weights(32, 16), "four": np.array([0, 0, 4, 8]),
        "two": np.array([0, 0, 2, 8]), "joined": np.array([0, 4, -1, 8]), "axis": np.array([2]),
        "first": np.array([0]), "third": np.array([2]), "twice": np.array([2, 2]), "depth": np.array([8]),
        "scale": np.float32(0.35),
    },
    {"b": (1, 3), "l": (1, 9), "p": (0, 20)},
)  # fmt: skip
"""Two heads of keys and values, repeated for four of queries."""

RECURRENT = DynamicModel(
    (
        Node("MatMul", ["x", "w"], ["a"]), Node("MatMul", ["h", "u"], ["c"]), Node("Add", ["a", "c"], ["s"]),
        Node("Tanh", ["s"], ["hn"]), Node("MatMul", ["hn", "v"], ["y"]), Node("Identity", ["k"], ["kn"]),
        Node("Add", ["t", "one"], ["tn"]),
    ),
    {"x": ("f", "b", 8), "h": ("f", "b", 16), "k": ("f", 4, 4), "t": ("f", 1)},
    {"y": 2, "hn": 2, "kn": 2, "tn": 1},
    {"w": _weights(8, 16), "u": _weights(16, 16), "v": _weights(16, 5), "one": np.ones(1, np.float32)}, {"b": (1, 5)},
)  # fmt: skip
"""A cell; a state that only passes through; one that counts the runs."""

STACKED = DynamicModel(
    (
        Node("Split", ["past", "halves"], ["k", "v"], axis=0), Node("Unsqueeze", ["x", "axis"], ["n"]),
        Node("Concat", ["k", "n"], ["ks"], axis=2), Node("Mul", ["n", "two"], ["m"]),
        Node("Concat", ["v", "m"], ["vs"], axis=2), Node("Concat", ["ks", "vs"], ["present"], axis=0),
        Node("ReduceSum", ["vs", "long"], ["y"], keepdims=0),
    ),
    {"x": ("f", "b", "l", 8), "past": ("f", 2, "b", "p", 8)}, {"y": 3, "present": 4},
    {"halves": np.array([1, 1]), "axis": np.array([0]), "long": np.array([2]), "two": np.float32(2)},
    {"b": (1, 3), "l": (1, 4), "p": (0, 20)},
)  # fmt: skip
"""Keys and values as one tensor, which no Concat appends to."""

MIXED = DynamicModel(
    (
        Node("Concat", ["past_x", "x"], ["all"], axis=1), Node("ReduceSum", ["all", "axis"], ["sum"], keepdims=0),
        Node("Add", ["sum", "h"], ["hn"]), Node("Tanh", ["hn"], ["y"]), Node("Relu", ["past_x"], ["before"]),
        Node("ReduceSum", ["before", "axis"], ["z"], keepdims=0),
    ),
    {"x": ("f", "b", "l", 8), "past_x": ("f", "b", "p", 8), "h": ("f", "b", 8)}, {"y": 2, "z": 2, "all": 3, "hn": 2},
    {"axis": np.array([1])}, {"b": (1, 3), "l": (1, 4), "p": (0, 20)},
)  # fmt: skip
"""One state that grows and is read twice, one that does not."""

KEPT = DynamicModel(
    (
        Node("Concat", ["past_x", "x"], ["all"], axis=0), Node("Greater", ["all", "zero"], ["is_kept"]),
        Node("Compress", ["all", "is_kept"], ["present_x"], axis=0), Node("ReduceSum", ["present_x"], ["y"]),
    ),
    {"x": ("f", "l"), "past_x": ("f", "p")}, {"y": 1, "present_x": 1}, {"zero": np.float32(0)},
    {"l": (1, 4), "p": (0, 20)},
)  # fmt: skip
"""How long the state becomes depends on numbers."""


def group_query() -> bytes:
    """A layer of `GroupQueryAttention` with a cache; its lengths are sums of a mask, as exporters write them."""
    weights = {"wq": _weights(32, 32), "wk": _weights(32, 16), "wv": _weights(32, 16)}
    constants = weights | {
        "one": np.array([1]),
        "one32": np.array([1], np.int32),
        "cos": _weights(64, 4),
        "sin": _weights(64, 4),
    }
    nodes = [
        *[Node("MatMul", ["x", name], [f"p{name}"]) for name in weights],
        Node("ReduceSum", ["mask", "one"], ["sum"], keepdims=0), Node("Cast", ["sum"], ["sum32"], to=TensorProto.INT32),
        Node("Sub", ["sum32", "one32"], ["last"]), Node("Shape", ["mask"], ["length"], start=1, end=2),
        Node("Squeeze", ["length"], ["number"]), Node("Cast", ["number"], ["total"], to=TensorProto.INT32),
        Node("GroupQueryAttention", ["pwq", "pwk", "pwv", "past.key", "past.value", "last", "total", "cos", "sin"],
             ["y", "present.key", "present.value"], domain="com.microsoft", num_heads=4, kv_num_heads=2, do_rotary=1),
    ]  # fmt: skip
    dims = {"x": ["b", "l", 32], "mask": ["b", "t"], "y": ["b", "l", 32]}
    dims |= {f"past.{name}": ["b", 2, "p", 8] for name in ("key", "value")}
    dims |= {f"present.{name}": ["b", 2, "t", 8] for name in ("key", "value")}
    infos = {
        name: helper.make_tensor_value_info(name, TensorProto.INT64 if name == "mask" else TensorProto.FLOAT, shape)
        for name, shape in dims.items()
    }
    results = [infos.pop(name) for name in ("y", "present.key", "present.value")]
    tensors = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "group_query", list(infos.values()), results, tensors)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()


PAIRS = {
    "attention": (ATTENTION, {"keys": "past_k", "values": "past_v"}),
    "grouped": (GROUPED, {"all_k": "past_k", "all_v": "past_v"}),
    "recurrent": (RECURRENT, {"hn": "h", "kn": "k", "tn": "t"}),
    "stacked": (STACKED, {"present": "past"}),
    "mixed": (MIXED, {"all": "past_x", "hn": "h"}),
    "kept": (KEPT, {"present_x": "past_x"}),
}
"""Name -> the model, and its states."""


def capacity_of(case: DynamicModel, positions: int = 24) -> dict[str, int]:
    """Capacities for the largest batch that tests draw."""
    return {name: positions if name == "p" else case.sizes[name][1] for name in case.sizes if name in "pb"}
