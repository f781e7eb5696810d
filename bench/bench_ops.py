"""How single ops compare with onnxruntime: convolutions, pools, resampling, elementwise, rows, moves, products, LSTM.

    python -m bench.bench_ops [--seconds 0.3] [--only convT]    a table, both in turns in one process

Models of one op, images channels first as ONNX has them, so that copies between layouts count; decoders are three
transposed convolutions with ReLU. One thread, processor time, the tenth percentile of many runs into arrays that are
there, and the least of four rounds.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import graphpool as gp


@dataclass(frozen=True)
class Node:
    """An ONNX node with one input that is no weight, and the shapes or values of its weights; None: left out.

    `unread` results follow the one that is.
    """

    kind: str
    weights: Sequence[Any] = ()
    attrs: dict[str, Any] = field(default_factory=dict)
    unread: int = 0


Case: TypeAlias = "tuple[Any, list[Node]]"
"""The shape of an image of floats, or the image, and the ops on it."""


def conv(*weights: int, **attrs: Any) -> list[Node]:
    """A convolution with bias."""
    return [Node("Conv", (weights, weights[:1]), attrs)]


def half(*shape: int) -> Any:
    """Weights of f16."""
    return (np.random.default_rng(5).standard_normal(shape, np.float32) * 0.05).astype(np.float16)


def half_convs(channels: int, pixels: int) -> Case:
    """Three convolutions of 3x3 in f16 with ReLU behind each, then three inverted bottlenecks."""
    wide, p1 = 4 * channels, {"pads": [1] * 4}
    nodes = []
    for _ in range(3):
        nodes += [Node("Conv", (half(channels, channels, 3, 3), half(channels)), p1), Node("Relu")]
    for _ in range(3):
        nodes += [Node("Conv", (half(wide, channels, 1, 1), half(wide))), Node("Relu")]
        nodes += [Node("Conv", (half(wide, 1, 3, 3), half(wide)), p1 | {"group": wide}), Node("Relu")]
        nodes += [Node("Conv", (half(channels, wide, 1, 1), half(channels)))]
    return half(1, channels, pixels, pixels), nodes


def conv_transpose(*weights: int, **attrs: Any) -> list[Node]:
    """A transposed convolution with bias."""
    channels = weights[1] * attrs.get("group", 1)
    return [Node("ConvTranspose", (weights, (channels,)), attrs)]


def decoder(kernel: int, **attrs: Any) -> list[Node]:
    """256 -> 128 -> 64 -> 32 channels, twice the pixels each time along both axes."""
    layers = [conv_transpose(c, c // 2, kernel, kernel, strides=[2, 2], **attrs) for c in (256, 128, 64)]
    return [node for layer in layers for node in (*layer, Node("Relu"))]


def resize(mode: str, *sizes: int) -> list[Node]:
    """To these sizes, or to twice the pixels along both axes."""
    more = {"nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"} if mode == "nearest" else {}
    size = (None, np.array(sizes)) if sizes else (np.array([1, 1, 2, 2], np.float32),)
    return [Node("Resize", (None, *size), {"mode": mode, **more})]


def numbers(dtype: str, *shape: int, largest: int = 100) -> Any:
    """An image of whole numbers from 1 up to a largest one."""
    return np.random.default_rng(2).integers(1, largest, shape, endpoint=True).astype(dtype)


def quantised(*shape: int) -> Any:
    """Weights of 8 bits, normal: the largest is about 127."""
    return (np.random.default_rng(4).normal(0, 25, shape)).clip(-127, 127).astype(np.int8)


def truths(*shape: int) -> Any:
    """An image of truth values."""
    return np.random.default_rng(3).random(shape) < 0.5


def cast(source: str, target: str) -> Case:
    """A case that converts 128 x 3072 elements."""
    x = truths(128, 3072) if source == "bool" else numbers(source, 128, 3072)
    return x, [Node("Cast", (), {"to": helper.np_dtype_to_tensor_dtype(np.dtype(target))})]


def binary(kind: str, shape: Sequence[int], other: Sequence[int], dtype: str = "float32") -> Case:
    """A case of two tensors of which the second broadcasts to the first."""
    return numbers(dtype, *shape), [Node(kind, (numbers(dtype, *other, largest=9),))]


def pool(kind: str, kernel: int, stride: int, pad: int, ndim: int = 2) -> list[Node]:
    """A pool over windows that are alike along all axes."""
    return [Node(kind, (), {"kernel_shape": [kernel] * ndim, "strides": [stride] * ndim, "pads": [pad] * 2 * ndim})]


def transpose(*shape: int, perm: str) -> Case:
    """A case that permutes the axes of x; digits name them."""
    return shape, [Node("Transpose", (), {"perm": [int(axis) for axis in perm]})]


def behind_transpose(*shape: int, perm: str) -> Case:
    """A case that takes a softmax of permuted axes, and scales it."""
    return shape, [*transpose(*shape, perm=perm)[1], Node("Softmax"), Node("Mul", ((1,),))]


def mean_of_rows(*shape: int) -> Case:
    """A case that takes the mean along the last axis."""
    return shape, [Node("ReduceMean", (np.array([-1]),))]


def layer_norm(*shape: int) -> Case:
    """A case that normalises along the last axis."""
    return shape, [Node("LayerNormalization", (shape[-1:], shape[-1:]))]


def lstm(steps: int, batch: int, width: int, hidden: int) -> Case:
    """A case of one layer in one direction."""
    weights = ((1, 4 * hidden, width), (1, 4 * hidden, hidden), (1, 8 * hidden))
    return (steps, batch, width), [Node("LSTM", weights, {"hidden_size": hidden})]


P1 = {"pads": [1] * 4}
CASES: dict[str, Case] = {
    "convT k2s2 128->64 28x28": ((1, 128, 28, 28), conv_transpose(128, 64, 2, 2, strides=[2, 2])),
    "convT k4s2 64->32 56x56": ((1, 64, 56, 56), conv_transpose(64, 32, 4, 4, strides=[2, 2], **P1)),
    "convT k4s2 256->128 14x14": ((1, 256, 14, 14), conv_transpose(256, 128, 4, 4, strides=[2, 2], **P1)),
    "convT k3s2 128->64 28x28": (
        (1, 128, 28, 28), conv_transpose(128, 64, 3, 3, strides=[2, 2], output_padding=[1, 1], **P1)),
    "convT 1-D k16s8 256->128 100": ((1, 256, 100), conv_transpose(256, 128, 16, strides=[8], pads=[4, 4])),
    "convT 3-D k2s2 64->32 8x16x16": ((1, 64, 8, 16, 16), conv_transpose(64, 32, 2, 2, 2, strides=[2] * 3)),
    "convT depthwise k4s2 64 28x28": (
        (1, 64, 28, 28), conv_transpose(64, 1, 4, 4, strides=[2, 2], group=64, **P1)),
    "convT k2s2 16->1 64x64": ((1, 16, 64, 64), conv_transpose(16, 1, 2, 2, strides=[2, 2])),
    "convT 1-D k4s2 64->2 400": ((1, 64, 400), conv_transpose(64, 2, 4, strides=[2], pads=[1, 1])),
    "convT k1s2 64->64 28x28": ((1, 64, 28, 28), conv_transpose(64, 64, 1, 1, strides=[2, 2])),
    "convT k4s2 64->3 64x64": ((1, 64, 64, 64), conv_transpose(64, 3, 4, 4, strides=[2, 2], **P1)),
    "convT 1-D k16s8 16->1 2000": ((1, 16, 2000), conv_transpose(16, 1, 16, strides=[8], pads=[4, 4])),
    "decoder k2s2 14x14": ((1, 256, 14, 14), decoder(2)),
    "decoder k4s2 14x14": ((1, 256, 14, 14), decoder(4, **P1)),
    "decoder k3s2 14x14": ((1, 256, 14, 14), decoder(3, output_padding=[1, 1], **P1)),
    "conv 1-D k3 64->64 1000": ((1, 64, 1000), conv(64, 64, 3, pads=[1, 1])),
    "conv 1-D k9 d4 128->128 500": ((1, 128, 500), conv(128, 128, 9, pads=[16, 16], dilations=[4])),
    "conv 1-D k10s5 1->512 16000": ((1, 1, 16000), conv(512, 1, 10, strides=[5])),
    "conv 1-D k3 80->384 3000": ((1, 80, 3000), conv(384, 80, 3, pads=[1, 1])),
    "conv 3-D k3 16->32 8x28x28": ((1, 16, 8, 28, 28), conv(32, 16, 3, 3, 3, pads=[1] * 6)),
    "conv 3-D k3 64->64 8x14x14": ((1, 64, 8, 14, 14), conv(64, 64, 3, 3, 3, pads=[1] * 6)),
    "conv 3-D k3 1->32 16x64x64": ((1, 1, 16, 64, 64), conv(32, 1, 3, 3, 3, pads=[1] * 6)),
    "conv 3-D k3 3->32 8x56x56": ((1, 3, 8, 56, 56), conv(32, 3, 3, 3, 3, pads=[1] * 6)),
    "convs in a row, f16 32 56x56": half_convs(32, 56),
    "conv 32 groups of 4 56x56": ((1, 128, 56, 56), conv(128, 4, 3, 3, group=32, **P1)),
    "conv 32 groups of 8 28x28": ((1, 256, 28, 28), conv(256, 8, 3, 3, group=32, **P1)),
    "conv 32 groups of 16 14x14": ((1, 512, 14, 14), conv(512, 16, 3, 3, group=32, **P1)),
    "conv 16 groups of 24 14x14": ((1, 384, 14, 14), conv(384, 24, 3, 3, group=16, **P1)),
    "conv k1 3 groups 240->240 28x28": ((1, 240, 28, 28), conv(240, 80, 1, 1, group=3)),
    "conv k3 d2 256->256 28x28": ((1, 256, 28, 28), conv(256, 256, 3, 3, pads=[2] * 4, dilations=[2, 2])),
    "conv k3 d12 256->64 32x32": ((1, 256, 32, 32), conv(64, 256, 3, 3, pads=[12] * 4, dilations=[12, 12])),
    "conv k1 24->144 56x56": ((1, 24, 56, 56), conv(144, 24, 1, 1)),
    "conv k1 144->24 56x56": ((1, 144, 56, 56), conv(24, 144, 1, 1)),
    "conv depthwise k3 144 56x56": ((1, 144, 56, 56), conv(144, 1, 3, 3, group=144, **P1)),
    "conv depthwise k3s2 144 56x56": ((1, 144, 56, 56), conv(144, 1, 3, 3, group=144, strides=[2, 2], **P1)),
    "conv depthwise k7 96 56x56": ((1, 96, 56, 56), conv(96, 1, 7, 7, pads=[3] * 4, group=96)),
    "max k3s2 64 112x112": ((1, 64, 112, 112), pool("MaxPool", 3, 2, 1)),
    "max k3s1 192 28x28": ((1, 192, 28, 28), pool("MaxPool", 3, 1, 1)),
    "max k2s2 16 56x56": ((1, 16, 56, 56), pool("MaxPool", 2, 2, 0)),
    "max k5s1 256 20x20": ((1, 256, 20, 20), pool("MaxPool", 5, 1, 2)),
    "max 3-D k2s2 32 8x56x56": ((1, 32, 8, 56, 56), pool("MaxPool", 2, 2, 0, 3)),
    "mean k3s1 192 35x35": ((1, 192, 35, 35), pool("AveragePool", 3, 1, 1)),
    "mean of all 2048 7x7": ((1, 2048, 7, 7), [Node("GlobalAveragePool")]),
    "mean of all 512 28x28": ((1, 512, 28, 28), [Node("GlobalAveragePool")]),
    "nearest x2 3 112x112": ((1, 3, 112, 112), resize("nearest")),
    "nearest x2 256 28x28": ((1, 256, 28, 28), resize("nearest")),
    "nearest x2 64 56x56": ((1, 64, 56, 56), resize("nearest")),
    "linear x2 64 56x56": ((1, 64, 56, 56), resize("linear")),
    "linear x2 256 28x28": ((1, 256, 28, 28), resize("linear")),
    **{f"{kind} 128x3072": ((128, 3072), [Node(kind)])
       for kind in ("Relu", "Exp", "Erf", "Gelu", "Sigmoid", "Tanh", "HardSwish", "Softplus", "Atan")},
    "Add of a row 128x3072": ((128, 3072), [Node("Add", ((3072,),))]),
    "Mul of a column 128x3072": ((128, 3072), [Node("Mul", ((128, 1),))]),
    "Softmax 12x128x128": ((12, 128, 128), [Node("Softmax")]),
    "Softmax 1182x197": ((1182, 197), [Node("Softmax")]),
    "Softmax 64x10000": ((64, 10000), [Node("Softmax")]),
    "Softmax 4096x16": ((4096, 16), [Node("Softmax")]),
    "Softmax 8x21x64x64 axis 1": ((8, 21, 64, 64), [Node("Softmax", (), {"axis": 1})]),
    "Softmax, Mul 1568x197": ((1568, 197), [Node("Softmax"), Node("Mul", ((1,),))]),
    "Softmax, Mul behind 0312 2x196x196x4": behind_transpose(2, 196, 196, 4, perm="0312"),
    "LayerNormalization 128x768": layer_norm(128, 768),
    "LayerNormalization 4096x64": layer_norm(4096, 64),
    "ReduceMean 128x768 rows": mean_of_rows(128, 768),
    "ReduceMean 4096x64 rows": mean_of_rows(4096, 64),
    "ReduceMean 12800x10 rows": mean_of_rows(12800, 10),
    "ReduceMax 12800x10 rows": ((12800, 10), [Node("ReduceMax", (np.array([-1]),))]),
    "ReduceMean 128x768 columns": ((128, 768), [Node("ReduceMean", (np.array([0]),))]),
    "Transpose 0213 8x128x12x64": transpose(8, 128, 12, 64, perm="0213"),
    "Transpose 021 64x196x256": transpose(64, 196, 256, perm="021"),
    "Transpose 10 1024x1024": transpose(1024, 1024, perm="10"),
    "Transpose 0231 1x64x112x112": transpose(1, 64, 112, 112, perm="0231"),
    "Transpose 0312 1x112x112x64": transpose(1, 112, 112, 64, perm="0312"),
    "Transpose 0312 1x224x224x3": transpose(1, 224, 224, 3, perm="0312"),
    "Transpose 02413 2x16x32x8x32": transpose(2, 16, 32, 8, 32, perm="02413"),
    "Transpose 013245 1x14x7x14x7x96": transpose(1, 14, 7, 14, 7, 96, perm="013245"),
    "LSTM 128->128, 100 steps": lstm(100, 1, 128, 128),
    "LSTM 256->256, 50 steps of 8": lstm(50, 8, 256, 256),
    "conv 1-D k16s8 1->64 8000": ((1, 1, 8000), conv(64, 1, 16, strides=[8])),
    "conv k3 1->32 28x28": ((1, 1, 28, 28), conv(32, 1, 3, 3, **P1)),
    "nearest x2, u8 3 112x112": (numbers("uint8", 1, 3, 112, 112), resize("nearest")),
    "nearest x2, u8 64 28x28": (numbers("uint8", 1, 64, 28, 28), resize("nearest")),
    "nearest 300x400 to 224x224": ((1, 3, 300, 400), resize("nearest", 1, 3, 224, 224)),
    "nearest 64 56x56 to 28x28": ((1, 64, 56, 56), resize("nearest", 1, 64, 28, 28)),
    "nearest 64 56x56 to 40x40": ((1, 64, 56, 56), resize("nearest", 1, 64, 40, 40)),
    "linear 300x400 to 224x224": ((1, 3, 300, 400), resize("linear", 1, 3, 224, 224)),
    "linear 300x400x3 to 224x224x3": ((1, 300, 400, 3), resize("linear", 1, 224, 224, 3)),
    "cubic x2 3 112x112": ((1, 3, 112, 112), resize("cubic")),
    **{f"{kind} 128x3072": ((128, 3072), [Node(kind)]) for kind in ("Abs", "LeakyRelu", "Softsign", "ThresholdedRelu")},
    **{f"{kind} 128x3072": (numbers("float32", 128, 3072), [Node(kind)]) for kind in ("Sqrt", "Log", "Reciprocal")},
    "Clip 128x3072": ((128, 3072), [Node("Clip", (np.float32(-1), np.float32(1)))]),
    "Pow 1.7 128x3072": (numbers("float32", 128, 3072), [Node("Pow", (np.float32(1.7),))]),
    "Div 128x3072": binary("Div", (128, 3072), (128, 3072)),
    "Add of channels 64x56x56": binary("Add", (1, 64, 56, 56), (64, 1, 1)),
    "Mul of channels 8x64x14x14": binary("Mul", (8, 64, 14, 14), (8, 64, 1, 1)),
    "Add of a mask 8x12x128x128": binary("Add", (8, 12, 128, 128), (8, 1, 1, 128)),
    "Mul of a column 50000x7": binary("Mul", (50000, 7), (50000, 1)),
    "Greater 128x3072": binary("Greater", (128, 3072), (128, 3072)),
    "Greater of a number 128x3072": binary("Greater", (128, 3072), (1,)),
    "Equal, s64 128x3072": binary("Equal", (128, 3072), (1,), "int64"),
    "And 128x3072": (truths(128, 3072), [Node("And", (truths(128, 3072),))]),
    "Not 128x3072": (truths(128, 3072), [Node("Not")]),
    "Where 128x3072": (truths(128, 3072), [Node("Where", ((128, 3072), np.float32(0)))]),
    "Add, s64 128x3072": binary("Add", (128, 3072), (128, 3072), "int64"),
    "Mod, s64 128x3072": binary("Mod", (128, 3072), (1,), "int64"),
    "Div, s32 128x3072": binary("Div", (128, 3072), (128, 3072), "int32"),
    "BitwiseAnd, u8 128x3072": binary("BitwiseAnd", (128, 3072), (128, 3072), "uint8"),
    **{f"Cast {source} to {target} 128x3072": cast(source, target) for source, target in (
        ("float32", "bool"), ("float32", "int64"), ("float32", "uint8"), ("float32", "float16"), ("int64", "float32"),
        ("float64", "float32"), ("float64", "uint8"), ("int8", "uint8"), ("uint8", "float32"), ("bool", "float32"))},
    "QuantizeLinear, u8 64x112x112": (
        (1, 64, 112, 112), [Node("QuantizeLinear", (np.float32(0.05), np.uint8(128)))]),
    "QuantizeLinear, u8 64x112x112, channels": ((1, 64, 112, 112), [
        Node("QuantizeLinear", (numbers("float32", 64) / 500, numbers("uint8", 64)), {"axis": 1})]),
    "DequantizeLinear, u8 64x112x112, channels": (numbers("uint8", 1, 64, 112, 112), [
        Node("DequantizeLinear", (numbers("float32", 64) / 500, numbers("uint8", 64)), {"axis": 1})]),
    **{f"Transpose {perm} 32x128x96": transpose(32, 128, 96, perm=perm) for perm in ("102", "120", "201", "210")},
    **{f"Transpose {perm} 8x12x64x32": transpose(8, 12, 64, 32, perm=perm)
       for perm in ("1023", "0132", "2301", "3210")},
    "Transpose 0231, u8 1x64x112x112": (numbers("uint8", 1, 64, 112, 112), transpose(perm="0231")[1]),
    "Concat 128x768": ((128, 768), [Node("Concat", ((128, 768),), {"axis": 1})]),
    "Slice 128x3072": ((128, 3072), [Node("Slice", (np.array([64]), np.array([2048]), np.array([1])))]),
    "Pad 3x224x224": ((1, 3, 224, 224), [Node("Pad", (np.array([0, 0, 3, 3, 0, 0, 3, 3]),))]),
    "Pad of rows 128x3072": ((128, 3072), [Node("Pad", (np.array([0, 0, 10, 0]),))]),
    "Col2Im k3 64 56x56": ((1, 576, 3136), [
        Node("Col2Im", (np.array([56, 56]), np.array([3, 3])), {"pads": [1, 1, 1, 1]})]),
    "Expand 8x1x128x64": ((8, 1, 128, 64), [Node("Expand", (np.array([8, 12, 128, 64]),))]),
    "SpaceToDepth 16x112x112": ((1, 16, 112, 112), [Node("SpaceToDepth", (), {"blocksize": 2})]),
    "Gather 128 rows 30000x768": ((30000, 768), [Node("Gather", (numbers("int64", 128, largest=29999),))]),
    "GatherElements 128x3072": ((128, 3072), [
        Node("GatherElements", (numbers("int64", 128, 500, largest=3000),), {"axis": 1})]),
    "CumSum 128x3072 rows": ((128, 3072), [Node("CumSum", (np.array(1),))]),
    "CumSum 128x3072 columns": ((128, 3072), [Node("CumSum", (np.array(0),))]),
    "ArgMax 128x3072 rows": ((128, 3072), [Node("ArgMax", (), {"axis": 1})]),
    "ArgMax 128x3072 columns": ((128, 3072), [Node("ArgMax", (), {"axis": 0})]),
    "TopK 5 64x1000": ((64, 1000), [Node("TopK", (np.array([5]),), unread=1)]),
    "TopK 1000 16x1000": ((16, 1000), [Node("TopK", (np.array([1000]),), unread=1)]),
    **{f"ReduceMean {axes} 16x32x64x48": ((16, 32, 64, 48), [Node("ReduceMean", (np.array(axes),))])
       for axes in ([0], [1], [2], [0, 1], [1, 2], [2, 3])},
    "ReduceMax 128x3072 columns": ((128, 3072), [Node("ReduceMax", (np.array([0]),))]),
    "InstanceNormalization 64x56x56": ((1, 64, 56, 56), [Node("InstanceNormalization", ((64,), (64,)))]),
    "InstanceNormalization 512x100": ((1, 512, 100), [Node("InstanceNormalization", ((512,), (512,)))]),
    "LayerNormalization 10000x17": layer_norm(10000, 17),
    **{f"Softmax {m}x{n}": ((m, n), [Node("Softmax")]) for m, n in ((2048, 50), (1000, 77), (512, 512), (12544, 3))},
    "Softmax 8x1500x7 axis 1": ((8, 1500, 7), [Node("Softmax", (), {"axis": 1})]),
    "ReduceSum 8x3x100x7 axis 1": ((8, 3, 100, 7), [Node("ReduceSum", (np.array([1]),))]),
    "BatchNormalization 64x56x56": (
        (1, 64, 56, 56), [Node("BatchNormalization", ((64,), (64,), (64,), np.ones(64, np.float32)))]),
    "DequantizeLinear, s8 768x768 rows": (numbers("int8", 768, 768), [
        Node("DequantizeLinear", (numbers("float32", 768) / 500, np.zeros(768, np.int8)), {"axis": 0})]),
    "Gather 512 rows 50257x64": ((50257, 64), [Node("Gather", (numbers("int64", 512, largest=50000),))]),
    **{f"MatMul {m}x{k}x{n}": ((m, k), [Node("MatMul", ((k, n),))])
       for m, k, n in ((1000, 64, 3), (1000, 3, 64), (10000, 4, 8), (10000, 8, 8), (64, 64, 64))},
    "MatMul 12x128x64x128": ((12, 128, 64), [Node("MatMul", ((12, 64, 128),))]),
    "Gemm, B turned 1x2048x1000": ((1, 2048), [Node("Gemm", ((1000, 2048), (1000,)), {"transB": 1})]),
    **{f"MatMul {m}x768x3072": ((m, 768), [Node("MatMul", ((768, 3072),))]) for m in (1, 4, 8, 16, 128)},
    **{f"MatMulInteger{name} {m}x768x3072": (numbers("uint8", m, 768, largest=255), [
        Node("MatMulInteger", (quantised(768, 3072), np.uint8(128))), *behind])
       for name, behind in (("", []), (", Cast", [Node("Cast", (), {"to": 1})])) for m in (1, 8, 128)},
    **{f"Attention {heads}x{queries}, {shared}x{keys}x{depth}": (
        (1, heads, queries, depth), [Node("Attention", ((1, shared, keys, depth), (1, shared, keys, depth)))])
       for heads, queries, shared, keys, depth in ((32, 1, 8, 2048, 128), (12, 1, 12, 160, 64), (12, 4, 12, 512, 64))},
}  # fmt: skip


def make_model(x: Any, nodes: Sequence[Node]) -> bytes:
    """A model of nodes one behind another."""
    rng = np.random.default_rng(0)
    made, name = [], "x"
    weights: list[onnx.TensorProto] = []
    for number, node in enumerate(nodes):
        inputs = [name]
        for value in node.weights:
            inputs.append("" if value is None else f"w{len(weights)}")
            if value is not None:
                array = rng.normal(0, 0.1, value).astype(np.float32) if isinstance(value, tuple) else np.asarray(value)
                weights.append(numpy_helper.from_array(array, inputs[-1]))
        name = "y" if number == len(nodes) - 1 else f"t{number}"
        unread = [f"{name}_{k}" for k in range(node.unread)]
        made.append(helper.make_node(node.kind, inputs, [name, *unread], **node.attrs))
    port = helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
    graph = helper.make_graph(made, "ops", [port], [helper.make_empty_tensor_value_info("y")], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    content: bytes = onnx.shape_inference.infer_shapes(model).SerializeToString()
    return content


def case_input(name: str) -> Any:
    """The image of a case."""
    x = CASES[name][0]
    return x if isinstance(x, np.ndarray) else np.random.default_rng(1).standard_normal(x, np.float32)


def own_runner(name: str, engine: gp.Engine) -> tuple[Callable[[], object], Any]:
    """What runs the case here, into an array that is there, and the array."""
    x = case_input(name)
    model = gp.onnx.load(make_model(x, CASES[name][1]), engine=engine)
    outputs = model.run({"x": x})
    return lambda: model.run({"x": x}, outputs), outputs["y"]


def peer_runner(name: str, _: gp.Engine) -> tuple[Callable[[], object], Any]:
    """The same in onnxruntime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    x = case_input(name)
    content = make_model(x, CASES[name][1])
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    [result] = session.run(None, {"x": x})
    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_ortvalue_output("y", onnxruntime.OrtValue.ortvalue_from_numpy(result.copy()))
    return lambda: session.run_with_iobinding(binding), result


LIBRARIES = {"graphpool": own_runner, "onnxruntime": peer_runner}


def runners(name: str, engine: gp.Engine) -> list[Callable[[], object]]:
    """What runs the case here, and in onnxruntime; both have given the same result."""
    (own, found), (peer, expected) = (make(name, engine) for make in LIBRARIES.values())
    bound = 1e-2 if found.dtype == np.float16 else 1e-4
    np.testing.assert_allclose(found, expected, rtol=bound, atol=bound * np.abs(expected).max())
    return [own, peer]


def count(name: str, result: Any) -> dict[str, int]:
    """Bytes that a case reads and writes at least, and operations where it is one convolution."""
    x, nodes = case_input(name), CASES[name][1]
    weights = [4 * math.prod(value) if isinstance(value, tuple) else np.asarray(value).nbytes
               for node in nodes for value in node.weights if value is not None]  # fmt: skip
    counted = {"nbytes": x.nbytes + sum(weights) + result.nbytes}
    if len(nodes) == 1 and nodes[0].kind in ("Conv", "ConvTranspose"):
        pixels = result.size if nodes[0].kind == "Conv" else x.size
        counted["flops"] = 2 * pixels * math.prod(nodes[0].weights[0][1:])
    return counted


def low_seconds(run: Callable[[], object], seconds: float) -> float:
    """Processor time below which a tenth of the runs stay.

    The least is at times next to nothing on virtual machines, whose hosts take time away from clocks afterwards.
    """
    times, end = [], time.process_time() + seconds
    while time.process_time() < end:
        start = time.process_time_ns()
        run()
        times.append(time.process_time_ns() - start)
    return float(np.percentile(times, 10)) / 1e9


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    print("| op | us | onnxruntime us | ratio |\n|---|---:|---:|---:|")
    for name in CASES:
        if options.only in name:
            with gp.Engine(threads=1) as engine:
                both = runners(name, engine)
                rounds = [[low_seconds(run, options.seconds / 4) * 1e6 for run in both] for _ in range(4)]
            own, other = map(min, zip(*rounds, strict=True))
            print(f"| {name} | {own:.0f} | {other:.0f} | {own / other:.2f} |", flush=True)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("library", LIBRARIES)
def test_op(benchmark: Any, library: str, name: str) -> None:
    """One run."""
    if library != "graphpool":
        pytest.importorskip(library, reason=f"{library} is not installed")
    with gp.Engine(threads=1) as engine:
        run, result = LIBRARIES[library](name, engine)
        benchmark.group = f"ops: {name.split()[0]}"
        benchmark.extra_info.update(threads=1, **count(name, result))
        benchmark(run)


if __name__ == "__main__":
    main()
