"""Small ONNX models to mutate: a node for each row of a table, a few that join several, and the demonstration's."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from graphpool.demo import MODELS, model_path

MICROSOFT = "com.microsoft"
ML = "ai.onnx.ml"
OPSET = 23
IMAGE, FILTERS = (1, 2, 6, 6), (3, 2, 3, 3)


def _floats(*shape):
    return np.linspace(0.1, 1.7, int(np.prod(shape)), dtype=np.float32).reshape(shape)


def _ints(*values):
    return np.array(values, np.int64)


def _bytes(*shape, dtype=np.uint8):
    return (np.arange(int(np.prod(shape))) % 7).astype(dtype).reshape(shape)


def _scalar(value, dtype=np.float32):
    return np.array(value, dtype)


ONE = ["Abs", "Acos", "Ceil", "Celu", "Cos", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish",
       "Identity", "LeakyRelu", "Log", "Mish", "Neg", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Sign",
       "Softplus", "Sqrt", "Tanh", "Hardmax", "LogSoftmax", "Softmax", "Shape", "Size", "Flatten", "IsNaN",
       "LpNormalization", "NonZero", "Det"]  # fmt: skip
"""Ops of one tensor."""

TWO = ["Add", "Div", "Equal", "Greater", "LessOrEqual", "Max", "Mean", "Mod", "Mul", "Pow", "PRelu", "Sub", "Sum"]
REDUCTIONS = ["ReduceL1", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceProd", "ReduceSum", "ReduceSumSquare"]

ROWS = [
    *((kind, [_floats(3, 3)], {}, (), "") for kind in ONE),
    *((kind, [_floats(2, 3), _floats(3)], {}, (1,), "") for kind in TWO),
    ("MeanVarianceNormalization", [_floats(3, 3)], {"axes": [0]}, (), ""),
    *((kind, [_floats(2, 3, 4), _ints(1)], {"keepdims": 1}, (1,), "") for kind in REDUCTIONS),
    ("ArgMax", [_floats(2, 3)], {"axis": 1, "keepdims": 0}, (), ""),
    ("Attention", [_floats(1, 2, 3, 4), _floats(1, 2, 3, 4), _floats(1, 2, 3, 4)], {"is_causal": 1}, (), ""),
    ("AveragePool", [_floats(*IMAGE)], {"kernel_shape": [2, 2], "strides": [2, 1], "ceil_mode": 1}, (), ""),
    ("BatchNormalization", [_floats(*IMAGE), *[_floats(2)] * 4], {"epsilon": 1e-3}, (1, 2, 3, 4), ""),
    ("BitShift", [_bytes(3), _bytes(3)], {"direction": "LEFT"}, (), ""),
    ("Cast", [_floats(2, 3)], {"to": 7}, (), ""),
    ("Clip", [_floats(2, 3), _scalar(0.2), _scalar(0.9)], {}, (1, 2), ""),
    ("Col2Im", [_floats(1, 8, 9), _ints(4, 4), _ints(2, 2)], {}, (1, 2), ""),
    ("Concat", [_floats(2, 3), _floats(2, 1)], {"axis": 1}, (1,), ""),
    ("ConstantOfShape", [_ints(2, 3)], {"value": numpy_helper.from_array(_floats(1))}, (0,), ""),
    ("Conv", [_floats(*IMAGE), _floats(*FILTERS), _floats(3)], {"pads": [1, 1, 1, 1], "group": 1}, (1, 2), ""),
    ("Conv", [_floats(1, 4, 9), _floats(4, 1, 3)], {"group": 4, "dilations": [2]}, (1,), ""),
    ("ConvInteger", [_bytes(*IMAGE), _bytes(*FILTERS), _scalar(1, np.uint8)], {}, (1, 2), ""),
    ("ConvTranspose", [_floats(1, 3, 4, 4), _floats(3, 2, 3, 3)], {"strides": [2, 2]}, (1,), ""),
    ("CumSum", [_floats(2, 3), _scalar(1, np.int64)], {"reverse": 1}, (1,), ""),
    ("DepthToSpace", [_floats(1, 8, 2, 3)], {"blocksize": 2, "mode": "CRD"}, (), ""),
    ("DequantizeLinear", [_bytes(4, 3), _floats(3), _bytes(3)], {"axis": 1}, (0, 1, 2), ""),
    ("DynamicQuantizeLinear", [_floats(3, 3)], {}, (), ""),
    ("Einsum", [_floats(2, 3, 4), _floats(2, 4, 5)], {"equation": "bij,bjk->bik"}, (), ""),
    ("Expand", [_floats(3, 1), _ints(2, 3, 4)], {}, (1,), ""),
    ("EyeLike", [_floats(3, 4)], {"k": 1}, (), ""),
    ("GRU", [_floats(4, 2, 3), _floats(1, 15, 3), _floats(1, 15, 5)], {"hidden_size": 5}, (1, 2), ""),
    ("Gather", [_floats(5, 3), _ints(0, 4, -1)], {"axis": 0}, (1,), ""),
    ("GatherElements", [_floats(2, 2), _ints(0, 1).reshape(1, 2)], {"axis": 0}, (1,), ""),
    ("GatherND", [_floats(2, 3, 4), _ints(0, 1).reshape(1, 2)], {"batch_dims": 0}, (1,), ""),
    ("Gemm", [_floats(2, 3), _floats(4, 3), _floats(4)], {"transB": 1, "alpha": 0.5}, (1, 2), ""),
    ("GlobalAveragePool", [_floats(*IMAGE)], {}, (), ""),
    ("GroupNormalization", [_floats(1, 4, 3), _floats(4), _floats(4)], {"num_groups": 2}, (1, 2), ""),
    ("InstanceNormalization", [_floats(*IMAGE), _floats(2), _floats(2)], {}, (1, 2), ""),
    ("LRN", [_floats(*IMAGE)], {"size": 3}, (), ""),
    ("LSTM", [_floats(4, 2, 3), _floats(1, 20, 3), _floats(1, 20, 5)], {"hidden_size": 5}, (1, 2), ""),
    ("LayerNormalization", [_floats(2, 3, 4), _floats(4), _floats(4)], {"axis": -1}, (1, 2), ""),
    ("LpPool", [_floats(*IMAGE)], {"kernel_shape": [2, 2], "p": 1}, (), ""),
    ("MatMul", [_floats(2, 3), _floats(3, 4)], {}, (1,), ""),
    ("MatMul", [_floats(2, 1, 3, 4), _floats(3, 4, 2)], {}, (), ""),
    ("MatMulInteger", [_bytes(2, 3), _bytes(3, 4), _scalar(1, np.uint8), _bytes(4)], {}, (1, 2, 3), ""),
    ("MaxPool", [_floats(*IMAGE)], {"kernel_shape": [3, 3], "pads": [1, 0, 1, 0], "dilations": [1, 2]}, (), ""),
    ("Not", [np.array([True, False])], {}, (), ""),
    ("OneHot", [_ints(0, 2), _scalar(3, np.int64), _floats(2)], {"axis": 0}, (1, 2), ""),
    ("Pad", [_floats(2, 3), _ints(1, 0, 0, 2), _scalar(0.5)], {"mode": "constant"}, (1, 2), ""),
    ("QLinearConv", [_bytes(*IMAGE), _scalar(0.1), _scalar(3, np.uint8), _bytes(*FILTERS, dtype=np.int8), _scalar(0.2),
                     _scalar(0, np.int8), _scalar(0.3), _scalar(5, np.uint8)], {}, (1, 2, 3, 4, 5, 6, 7), ""),
    ("QLinearMatMul", [_bytes(2, 3), _scalar(0.1), _scalar(3, np.uint8), _bytes(3, 4), _scalar(0.2),
                       _scalar(1, np.uint8), _scalar(0.3), _scalar(5, np.uint8)], {}, (1, 2, 3, 4, 5, 6, 7), ""),
    ("QuantizeLinear", [_floats(2, 6), _floats(2, 3), _bytes(2, 3)], {"axis": 1, "block_size": 2}, (1, 2), ""),
    ("RNN", [_floats(4, 2, 3), _floats(1, 5, 3), _floats(1, 5, 5)], {"hidden_size": 5}, (1, 2), ""),
    ("Range", [_scalar(0, np.int64), _scalar(5, np.int64), _scalar(2, np.int64)], {}, (0, 1, 2), ""),
    ("Reshape", [_floats(2, 6), _ints(3, -1)], {"allowzero": 0}, (1,), ""),
    ("Resize", [_floats(1, 2, 4, 4), np.zeros(0, np.float32), np.array([1, 1, 2, 1.5], np.float32)],
     {"mode": "linear"}, (1, 2), ""),
    ("RotaryEmbedding", [_floats(1, 2, 3, 4), _floats(8, 2), _floats(8, 2), _ints(0, 1, 2).reshape(1, 3)],
     {}, (1, 2, 3), ""),
    ("ScatterElements", [_floats(3, 3), _ints(0, 2).reshape(1, 2), _floats(1, 2)], {"reduction": "add"}, (1,), ""),
    ("ScatterND", [_floats(4, 3), _ints(0, 2).reshape(2, 1), _floats(2, 3)], {}, (1,), ""),
    ("Slice", [_floats(4, 6), _ints(0, 5), _ints(9, -7), _ints(0, 1), _ints(2, -1)], {}, (1, 2, 3, 4), ""),
    ("SpaceToDepth", [_floats(1, 2, 4, 4)], {"blocksize": 2}, (), ""),
    ("Split", [_floats(2, 6), _ints(2, 4)], {"axis": 1}, (1,), ""),
    ("Squeeze", [_floats(1, 3, 1), _ints(0)], {}, (1,), ""),
    ("Tile", [_floats(2, 3), _ints(2, 1)], {}, (1,), ""),
    ("TopK", [_floats(2, 6), _ints(3)], {"axis": 1, "largest": 0}, (1,), ""),
    ("Transpose", [_floats(2, 3, 4)], {"perm": [2, 0, 1]}, (), ""),
    ("Trilu", [_floats(3, 3), _scalar(1, np.int64)], {"upper": 0}, (1,), ""),
    ("Unsqueeze", [_floats(2, 3), _ints(0, 3)], {}, (1,), ""),
    ("Where", [np.array([True, False]), _floats(2), _floats(2)], {}, (0,), ""),
    ("MatMulNBits", [_floats(2, 32), _bytes(4, 1, 16), _floats(4)],
     {"K": 32, "N": 4, "bits": 4, "block_size": 32}, (1, 2), MICROSOFT),
    ("FusedMatMul", [_floats(2, 3), _floats(4, 3)], {"transB": 1, "alpha": 2.0}, (1,), MICROSOFT),
    ("FusedConv", [_floats(*IMAGE), _floats(*FILTERS)], {"activation": "Relu"}, (1,), MICROSOFT),
    ("BiasGelu", [_floats(2, 4), _floats(4)], {}, (1,), MICROSOFT),
    ("SkipLayerNormalization", [_floats(2, 3, 4), _floats(2, 3, 4), _floats(4)], {}, (2,), MICROSOFT),
    ("Attention", [_floats(1, 3, 4), _floats(4, 12), _floats(12)], {"num_heads": 2}, (1, 2), MICROSOFT),
    ("MultiHeadAttention", [_floats(1, 3, 4), _floats(1, 3, 4), _floats(1, 3, 4)], {"num_heads": 2}, (), MICROSOFT),
    ("GroupQueryAttention", [_floats(1, 1, 8), _floats(1, 1, 4), _floats(1, 1, 4), _floats(1, 1, 4, 4),
                             _floats(1, 1, 4, 4), np.array([0], np.int32), _scalar(1, np.int32)],
     {"num_heads": 2, "kv_num_heads": 1}, (5, 6), MICROSOFT),
    ("QLinearAdd", [_bytes(4), _scalar(0.1), _scalar(1, np.uint8), _bytes(4), _scalar(0.2), _scalar(2, np.uint8),
                    _scalar(0.3), _scalar(3, np.uint8)], {}, (1, 2, 4, 5, 6, 7), MICROSOFT),
    ("TreeEnsembleRegressor", [_floats(3, 2)],
     {"nodes_treeids": [0] * 5, "nodes_nodeids": [0, 1, 2, 3, 4], "nodes_featureids": [0, 1, 0, 0, 0],
      "nodes_modes": ["BRANCH_LEQ", "BRANCH_EQ", *["LEAF"] * 3], "nodes_values": [0.5, 1.0, 0.0, 0.0, 0.0],
      "nodes_truenodeids": [1, 2, 0, 0, 0], "nodes_falsenodeids": [4, 3, 0, 0, 0], "target_treeids": [0] * 3,
      "target_nodeids": [2, 3, 4], "target_ids": [0, 1, 0], "target_weights": [1.0, 2.0, 3.0], "n_targets": 2},
     (), ML),
]  # fmt: skip
"""Op, example inputs, attributes, numbers of the inputs that are initialisers, domain."""

NOUTPUTS = {"DynamicQuantizeLinear": 3, "GRU": 2, "LSTM": 3, "GroupQueryAttention": 3, "Split": 2, "TopK": 2}


def _info(name, array, shape=None):
    elem = helper.np_dtype_to_tensor_dtype(array.dtype)
    return helper.make_tensor_value_info(name, elem, array.shape if shape is None else shape)


def _model(nodes, inputs, constants, outputs, **fields):
    initialisers = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    infos = [info if isinstance(info, onnx.ValueInfoProto) else _info(name, info) for name, info in inputs.items()]
    results = [name if isinstance(name, onnx.ValueInfoProto) else onnx.ValueInfoProto(name=name) for name in outputs]
    graph = helper.make_graph(nodes, "g", infos, results, initialisers)
    versions = {"": OPSET, MICROSOFT: 1, ML: 3, "own": 1}
    imports = [helper.make_opsetid(domain, version) for domain, version in versions.items()]
    model = onnx.shape_inference.infer_shapes(
        helper.make_model(graph, opset_imports=imports, ir_version=10, **fields), data_prop=True
    )
    for result in model.graph.output:
        if not result.type.tensor_type.HasField("shape"):  # of an op that ONNX does not know
            result.type.tensor_type.elem_type = result.type.tensor_type.elem_type or TensorProto.FLOAT
            result.type.tensor_type.shape.SetInParent()
    return model


def _of_row(kind, arrays, attrs, fixed, domain):
    names = [f"x{k}" for k in range(len(arrays))]
    outputs = [f"y{k}" for k in range(NOUTPUTS.get(kind, 1))]
    node = helper.make_node(kind, names, outputs, f"the_{kind}", domain=domain, **attrs)
    inputs = {names[k]: array for k, array in enumerate(arrays) if k not in fixed}
    return _model([node], inputs, {names[k]: arrays[k] for k in fixed}, outputs)


def _residual():
    """Convolutions, normalisation, a sum, a product: what fusion and the rewriter look for; a symbolic batch."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["a", "s", "s", "s", "s"], ["b"]),
        helper.make_node("Relu", ["b"], ["c"]),
        helper.make_node("Conv", ["c", "w2"], ["d"], pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["d", "a"], ["e"]),
        helper.make_node("GlobalAveragePool", ["e"], ["f"]),
        helper.make_node("Flatten", ["f"], ["g"]),
        helper.make_node("Gemm", ["g", "m"], ["y"]),
    ]
    weights = {"w": _floats(*FILTERS), "s": _floats(3), "w2": _floats(3, 3, 3, 3), "m": _floats(3, 4)}
    return _model(nodes, {"x": _info("x", _floats(1), ["n", *IMAGE[1:]])}, weights, ["y"])


def _shapes():
    """Shapes that are computed: Shape, Gather, Concat, Reshape."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"]),
        helper.make_node("Concat", ["n", "rest"], ["t"], axis=0),
        helper.make_node("Reshape", ["x", "t"], ["r"]),
        helper.make_node("Transpose", ["r"], ["y"], perm=[1, 0]),
    ]
    return _model(nodes, {"x": _info("x", _floats(1), ["n", 2, 3])}, {"zero": _ints(0), "rest": _ints(-1)}, ["y"])


def _gelu():
    """A spelt-out function that the rewriter finds."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Div", ["a", "root"], ["b"]),
        helper.make_node("Erf", ["b"], ["c"]),
        helper.make_node("Add", ["c", "one"], ["d"]),
        helper.make_node("Mul", ["a", "d"], ["e"]),
        helper.make_node("Mul", ["e", "half"], ["y"]),
    ]
    constants = {"w": _floats(3, 4), "root": _scalar(2**0.5), "one": _scalar(1), "half": _scalar(0.5)}
    return _model(nodes, {"x": _floats(2, 3)}, constants, ["y"])


def _quantised():
    """Quantised operands, and a dynamically quantised product."""
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        helper.make_node("Reshape", ["d", "shape"], ["r"]),
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["v"]),
        helper.make_node("MatMul", ["r", "v"], ["m"]),
        helper.make_node("DynamicQuantizeLinear", ["m"], ["mq", "ms", "mz"]),
        helper.make_node("MatMulInteger", ["mq", "w2", "mz", "z"], ["i"]),
        helper.make_node("Cast", ["i"], ["f"], to=1),
        helper.make_node("Mul", ["ms", "s"], ["both"]),
        helper.make_node("Mul", ["f", "both"], ["y"]),
    ]
    constants = {"s": _scalar(0.1), "z": _scalar(3, np.uint8), "shape": _ints(2, 4), "w": _bytes(4, 3),
                 "w2": _bytes(3, 2)}  # fmt: skip
    return _model(nodes, {"x": _floats(4, 2)}, constants, ["y"])


def _branch():
    def graph(kind):
        results = [onnx.ValueInfoProto(name="r")]
        results[0].type.tensor_type.elem_type = TensorProto.FLOAT
        return helper.make_graph([helper.make_node(kind, ["x"], ["r"])], kind, [], results)

    node = helper.make_node("If", ["c"], ["y"], then_branch=graph("Relu"), else_branch=graph("Neg"))
    return _model([node], {"x": _floats(2, 3), "c": np.array(True)}, {}, ["y"])


def _loop():
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Add", ["v", "one"], ["w"]),
         helper.make_node("Identity", ["w"], ["out"])],
        "body",
        [info("i", TensorProto.INT64, []), info("go", TensorProto.BOOL, []), info("v", TensorProto.FLOAT, [2])],
        [info("on", TensorProto.BOOL, []), info("w", TensorProto.FLOAT, [2]), info("out", TensorProto.FLOAT, [2])],
        [numpy_helper.from_array(_floats(1), "one")],
    )  # fmt: skip
    node = helper.make_node("Loop", ["trips", "", "x"], ["y", "all"], body=body)
    return _model([node], {"x": _floats(2)}, {"trips": _scalar(3, np.int64)}, ["y", "all"])


def _scan():
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("Add", ["s", "e"], ["t"]), helper.make_node("Relu", ["t"], ["o"])], "body",
        [info("s", TensorProto.FLOAT, [2]), info("e", TensorProto.FLOAT, [2])],
        [info("t", TensorProto.FLOAT, [2]), info("o", TensorProto.FLOAT, [2])],
    )  # fmt: skip
    node = helper.make_node("Scan", ["s0", "x"], ["y", "z"], body=body, num_scan_inputs=1)
    return _model([node], {"s0": _floats(2), "x": _floats(3, 2)}, {}, ["y", "z"])


def _sequences():
    nodes = [
        helper.make_node("SequenceConstruct", ["x", "x"], ["s"]),
        helper.make_node("SequenceAt", ["s", "zero"], ["a"]),
        helper.make_node("ConcatFromSequence", ["s"], ["b"], axis=0),
        helper.make_node("Add", ["a", "b"], ["y"]),
    ]
    return _model(nodes, {"x": _floats(1, 3)}, {"zero": _scalar(0, np.int64)}, ["y"])


def _strings():
    texts = helper.make_tensor("t", TensorProto.STRING, [2], [b"a", b"b"])
    nodes = [helper.make_node("Constant", [], ["t"], value=texts), helper.make_node("Equal", ["t", "u"], ["e"]),
             helper.make_node("Cast", ["e"], ["y"], to=1)]  # fmt: skip
    model = _model(nodes, {}, {}, ["y"])
    model.graph.initializer.append(helper.make_tensor("u", TensorProto.STRING, [2], [b"a", b"c"]))
    return model


def _function():
    body = [helper.make_node("Mul", ["a", "a"], ["b"]), helper.make_node("Add", ["b", "a"], ["c"])]
    function = helper.make_function("own", "Square", ["a"], ["c"], body, [helper.make_opsetid("", OPSET)])
    call = helper.make_node("Square", ["x"], ["y"], domain="own")
    return _model([call], {"x": _floats(3)}, {}, ["y"], functions=[function])


def _sparse():
    values = numpy_helper.from_array(_floats(2), "w")
    indices = numpy_helper.from_array(_ints(1, 5), "w_indices")
    model = _model([helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": _floats(2, 3)}, {}, ["y"])
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [3, 2]))
    return model


def _tensors():
    """Initialisers of many element types and encodings, constants in every spelling."""
    model = _model(
        [
            helper.make_node("Constant", [], ["c0"], value_ints=[1, 2]),
            helper.make_node("Constant", [], ["c1"], value_floats=[1.0, 2.0]),
            helper.make_node("Cast", ["half"], ["h"], to=1),
            helper.make_node("Cast", ["four"], ["f"], to=1),
            helper.make_node("Sum", ["h", "f", "c1", "x", "large"], ["y"]),
        ],
        {"x": _floats(2)},
        {"half": np.array([1, 2], np.float16), "large": np.ones((512, 2), np.float32)},
        ["y", "c0"],
    )
    model.graph.initializer.append(helper.make_tensor("four", TensorProto.INT4, [2], [1, -2]))
    model.graph.initializer.append(helper.make_tensor("typed", TensorProto.FLOAT, [2], [1.0, 2.0]))
    return model


JOINED = [_residual, _shapes, _gelu, _quantised, _branch, _loop, _scan, _sequences, _strings, _function, _sparse,
          _tensors]  # fmt: skip


@functools.cache
def small_models():
    """Serialised models of the table, in a fixed order."""
    return [model.SerializeToString(deterministic=True) for model in (
        *(_of_row(*row) for row in ROWS), *(make() for make in JOINED))]  # fmt: skip


@functools.cache
def all_models():
    """Those, the demonstration's models, and the smaller light models of the onnx package."""
    light = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    named = [light / f"light_{name}.onnx" for name in ("squeezenet", "shufflenet", "inception_v1")]
    paths = [*(model_path(name) for name in MODELS), *(path for path in named if path.exists())]
    return [*small_models(), *(path.read_bytes() for path in paths)]
