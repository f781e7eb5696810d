"""Sizes told by arithmetic are those that ONNX infers."""

import numpy as np
import onnx
import pytest
from onnx import helper

from graphpool.limits import Limits
from graphpool.onnx import bounds
from graphpool.onnx.build import Value
from graphpool.onnx.node import Node
from graphpool.onnx.result_sizes import known_nbytes
from graphpool.onnx.source import read_model
from tests.helpers.onnx_models import make_model

A, ROW, FLAGS = np.ones((3, 4, 5), np.float32), np.ones((1, 4, 1), np.float32), np.ones((3, 1), bool)


def ints(*numbers):
    return np.array(numbers, np.int64)


CASES = [
    ("Identity", [A], {}), ("Transpose", [A], {"perm": [2, 0, 1]}), ("Reshape", [A, ints(-1, 5)], {}),
    ("Unsqueeze", [A, ints(0)], {}), ("Flatten", [A], {"axis": 2}), ("Tanh", [A], {}), ("Not", [FLAGS], {}),
    ("Add", [A, ROW], {}), ("Pow", [ROW, A], {}), ("Xor", [FLAGS, FLAGS.T], {}), ("Max", [ROW, A, ROW], {}),
    ("Less", [A, ROW], {}), ("Equal", [ints(1, 2), ints(1)], {}),
    ("Cast", [A], {"to": onnx.TensorProto.DOUBLE}), ("Cast", [A], {"to": onnx.TensorProto.BOOL}),
    ("Concat", [A, A[:1]], {"axis": 0}), ("Concat", [A, A], {"axis": -1}),
    ("ConstantOfShape", [ints(3, 7)], {}), ("ConstantOfShape", [np.zeros(0, np.int64)], {}),
    ("ConstantOfShape", [ints(3, 7)], {"value": onnx.numpy_helper.from_array(ints(1))}),
    ("DequantizeLinear", [A.astype(np.int8), np.array(0.5, np.float32)], {}),
    ("DequantizeLinear", [A.astype(np.uint8), np.ones(4, np.float32), np.ones(4, np.uint8)], {"axis": 1}),
    ("Expand", [ROW, ints(2, 1, 6)], {}), ("Tile", [A, ints(2, 1, 3)], {}),
    ("Gather", [A, ints(1, 1)], {}), ("Gather", [A, np.zeros((2, 3), np.int64)], {"axis": -2}),
    ("Range", [np.array(1.5, np.float32), np.array(7, np.float32), np.array(2, np.float32)], {}),
    ("Range", [np.array(9), np.array(2), np.array(-3)], {}), ("Range", [np.array(9), np.array(2), np.array(3)], {}),
    ("Slice", [A, ints(1), ints(2**62)], {}),
    ("Slice", [A, ints(-1, 0), ints(-(2**62), 2), ints(1, 2), ints(-2, 1)], {}),
    ("Slice", [A, ints(3), ints(1), ints(0)], {}),
    ("Split", [A, ints(1, 2)], {"axis": 0}),
    ("Shape", [A], {}), ("Shape", [A], {"start": 1}), ("Shape", [A], {"start": -2, "end": -1}),
    ("Shape", [A], {"start": 2, "end": 1}), ("Where", [FLAGS, ROW[0, :3], np.ones((), np.float32)], {}),
    ("Where", [FLAGS, ints(1), ints(2)], {}), ("ScatterND", [A, ints(0).reshape(1, 1), A[:1]], {}),
    ("Clip", [A, np.ones((), np.float32)], {}), ("Softmax", [A], {}), ("CumSum", [A, np.array(1)], {}),
    ("IsNaN", [A], {}), ("LayerNormalization", [A, A[0, 0], A[0, 0]], {}),
    ("MatMul", [A, np.ones((5, 7), np.float32)], {}), ("MatMul", [A, A[0, 0]], {}), ("MatMul", [A[0, 0], A[0].T], {}),
    ("MatMul", [A[:, None], np.ones((2, 5, 1), np.float32)], {}), ("MatMul", [A[0, 0], A[0, 0]], {}),
    ("ReduceSum", [A, ints(1, -1)], {}), ("ReduceMax", [A, ints(0)], {}),
    ("QuantizeLinear", [A, np.array(0.5, np.float32)], {}),
    ("QuantizeLinear", [A, np.array(0.5, np.float32), np.array(3, np.int16)], {}),
    ("GatherND", [A, ints(0, 1, 2, 3).reshape(2, 2)], {}), ("GatherND", [A, ints(0, 1)], {}),
    ("Gemm", [A[0], A[1], A[0, 0, :4]], {"transB": 1}), ("Gemm", [A[0], A[1]], {"transA": 1}), ("Trilu", [A], {}),
    ("OneHot", [ints(1, 0, 3), np.array(5), A[0, 0, :2]], {}), ("Pad", [A, ints(0, 1, 2, 0, -1, 3)], {}),
    ("Pad", [A, ints(2, 1), np.float32(0), ints(-1)], {}),
    ("BatchNormalization", [A, *[A[0, :, 0]] * 4], {}),
    ("MatMulInteger", [A.astype(np.uint8), np.ones((5, 7), np.int8)], {}),
    ("ScatterElements", [ROW, ints(0).reshape(1, 1, 1), ROW[:, :1]], {}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "contents", "attrs"), CASES, ids=[case[0] for case in CASES])
def test_sizes_are_those_that_onnx_infers(kind, contents, attrs):
    names = [f"x{number}" for number in range(len(contents))]
    proto = helper.make_node(kind, names, ["y", "z"] if kind == "Split" else ["y"], **attrs)
    source = read_model(make_model([helper.make_node("Relu", ["x"], ["y"])], {"x": A}, ["y"]), "map", Limits())
    node, values = Node(proto), {name: Value(content=item) for name, item in zip(names, contents, strict=True)}
    assert known_nbytes(node, contents) == bounds._result_nbytes(source, node, values)


@pytest.mark.parametrize(
    ("kind", "contents", "attrs"),
    [
        ("Add", [A, np.ones(3, np.float32)], {}),
        ("Gather", [A, ints(1)], {"axis": 3}),
        ("Gather", [A[:0], ints(0)], {}),
        ("Range", [np.array(1), np.array(2), np.array(0)], {}),
        ("Range", [np.array(0.0), np.array(np.inf), np.array(1.0)], {}),
        ("ConstantOfShape", [ints(-1)], {}),
        ("Tile", [A, ints(2, -1, 1)], {}),
        ("Tile", [A, ints(2)], {}),
        ("Slice", [A], {"starts": [0], "ends": [1]}),
        ("Slice", [A, ints(0), ints(1), ints(0), ints(0)], {}),
        ("Cast", [A], {"to": onnx.TensorProto.INT4}),
        ("DequantizeLinear", [A.astype(np.int8), np.array(0.5, np.float16)], {}),
        ("Identity", [np.array(["text"], object)], {}),
        ("MatMul", [A, A], {}),
        ("MatMul", [A, np.ones((), np.float32)], {}),
        ("ReduceSum", [A], {}),
        ("ReduceSum", [A, ints(3)], {}),
    ],
)
def test_other_nodes_are_left_to_onnx(kind, contents, attrs):
    assert (
        known_nbytes(Node(helper.make_node(kind, ["x", "w", "v"][: len(contents)], ["y"], **attrs)), contents) is None
    )


def test_inputs_that_are_left_out_move_no_other():
    node = Node(helper.make_node("Pad", ["x", "pads", "", "axes"], ["y"]))
    assert known_nbytes(node, [A, ints(2, 1), ints(-1)]) == 3 * 4 * 8 * 4


def test_two_sizes_of_one_op_are_added():
    node = Node(helper.make_node("DynamicQuantizeLinear", ["x"], ["y", "scale", "zero"]))
    assert known_nbytes(node, [A]) == A.size + 4 + 1


def test_an_op_of_another_domain_is_left_to_onnx():
    node = Node(helper.make_node("Identity", ["x"], ["y"], domain="other"))
    assert known_nbytes(node, [A]) is None
