"""How single ops compare with onnxruntime: convolutions, pools, resampling, elementwise functions, rows, moves, LSTM.

    python -m bench.bench_ops [--seconds 0.3] [--only convT]    a table, both in turns in one process

Models of one op, images channels first as ONNX has them, so that copies between layouts count; decoders are three
transposed convolutions with ReLU. One thread, processor time, the least of many runs into arrays that are there.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import graphpool as gp


@dataclass(frozen=True)
class Node:
    """An ONNX node with one input that is no weight, and the shapes or values of its weights; None: left out."""

    kind: str
    weights: Sequence[Any] = ()
    attrs: dict[str, Any] = field(default_factory=dict)


def conv(*weights: int, **attrs: Any) -> list[Node]:
    """A convolution with bias."""
    return [Node("Conv", (weights, weights[:1]), attrs)]


def conv_transpose(*weights: int, **attrs: Any) -> list[Node]:
    """A transposed convolution with bias."""
    channels = weights[1] * attrs.get("group", 1)
    return [Node("ConvTranspose", (weights, (channels,)), attrs)]


def decoder(kernel: int, **attrs: Any) -> list[Node]:
    """256 -> 128 -> 64 -> 32 channels, twice the pixels each time along both axes."""
    layers = [conv_transpose(c, c // 2, kernel, kernel, strides=[2, 2], **attrs) for c in (256, 128, 64)]
    return [node for layer in layers for node in (*layer, Node("Relu"))]


def resize(mode: str) -> list[Node]:
    """Twice the pixels along both axes."""
    more = {"nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"} if mode == "nearest" else {}
    return [Node("Resize", (None, np.array([1, 1, 2, 2], np.float32)), {"mode": mode, **more})]


def pool(kind: str, kernel: int, stride: int, pad: int, ndim: int = 2) -> list[Node]:
    """A pool over windows that are alike along all axes."""
    return [Node(kind, (), {"kernel_shape": [kernel] * ndim, "strides": [stride] * ndim, "pads": [pad] * 2 * ndim})]


def transpose(*shape: int, perm: str) -> tuple[tuple[int, ...], list[Node]]:
    """A case that permutes the axes of x; digits name them."""
    return shape, [Node("Transpose", (), {"perm": [int(axis) for axis in perm]})]


def behind_transpose(*shape: int, perm: str) -> tuple[tuple[int, ...], list[Node]]:
    """A case that takes a softmax of permuted axes, and scales it."""
    return shape, [*transpose(*shape, perm=perm)[1], Node("Softmax"), Node("Mul", ((1,),))]


def mean_of_rows(*shape: int) -> tuple[tuple[int, ...], list[Node]]:
    """A case that takes the mean along the last axis."""
    return shape, [Node("ReduceMean", (np.array([-1]),))]


def layer_norm(*shape: int) -> tuple[tuple[int, ...], list[Node]]:
    """A case that normalises along the last axis."""
    return shape, [Node("LayerNormalization", (shape[-1:], shape[-1:]))]


def lstm(steps: int, batch: int, width: int, hidden: int) -> tuple[tuple[int, ...], list[Node]]:
    """A case of one layer in one direction."""
    weights = ((1, 4 * hidden, width), (1, 4 * hidden, hidden), (1, 8 * hidden))
    return (steps, batch, width), [Node("LSTM", weights, {"hidden_size": hidden})]


P1 = {"pads": [1] * 4}
CASES: dict[str, tuple[tuple[int, ...], list[Node]]] = {
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
    **{f"MatMul {m}x768x3072": ((m, 768), [Node("MatMul", ((768, 3072),))]) for m in (1, 4, 16, 128)},
}  # fmt: skip


def make_model(shape: Sequence[int], nodes: Sequence[Node]) -> bytes:
    """A model of nodes one behind another."""
    rng = np.random.default_rng(0)
    made, weights, name = [], [], "x"
    for number, node in enumerate(nodes):
        inputs = [name]
        for value in node.weights:
            inputs.append("" if value is None else f"w{len(weights)}")
            if value is not None:
                array = value if isinstance(value, np.ndarray) else rng.normal(0, 0.1, value).astype(np.float32)
                weights.append(numpy_helper.from_array(array, inputs[-1]))
        name = "y" if number == len(nodes) - 1 else f"t{number}"
        made.append(helper.make_node(node.kind, inputs, [name], **node.attrs))
    ports = [helper.make_tensor_value_info(port, onnx.TensorProto.FLOAT, dims) for port, dims in
             (("x", shape), ("y", None))]  # fmt: skip
    graph = helper.make_graph(made, "ops", ports[:1], ports[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    content: bytes = model.SerializeToString()
    return content


def case_input(name: str) -> Any:
    """The image of a case."""
    return np.random.default_rng(1).standard_normal(CASES[name][0], np.float32)


def own_runner(name: str, engine: gp.Engine) -> tuple[Callable[[], object], Any]:
    """What runs the case here, into an array that is there, and the array."""
    x = case_input(name)
    model = gp.onnx.load(make_model(*CASES[name]), engine=engine)
    outputs = model.run({"x": x})
    return lambda: model.run({"x": x}, outputs), outputs["y"]


def peer_runner(name: str, _: gp.Engine) -> tuple[Callable[[], object], Any]:
    """The same in onnxruntime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    content, x = make_model(*CASES[name]), case_input(name)
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
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
    return [own, peer]


def count(name: str, result: Any) -> dict[str, int]:
    """Bytes that a case reads and writes at least, and operations where it is one convolution."""
    shape, nodes = CASES[name]
    weights = [np.size(value) if isinstance(value, np.ndarray) else math.prod(value)
               for node in nodes for value in node.weights if value is not None]  # fmt: skip
    counted = {"nbytes": 4 * (math.prod(shape) + sum(weights)) + result.nbytes}
    if len(nodes) == 1 and nodes[0].kind in ("Conv", "ConvTranspose"):
        pixels = result.size if nodes[0].kind == "Conv" else math.prod(shape)
        counted["flops"] = 2 * pixels * math.prod(nodes[0].weights[0][1:])
    return counted


def least_seconds(run: Callable[[], object], seconds: float) -> float:
    """Least processor time of a run."""
    best, end = np.inf, time.process_time() + seconds
    while time.process_time() < end:
        start = time.process_time_ns()
        run()
        best = min(best, (time.process_time_ns() - start) / 1e9)
    return best


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
                own, other = (least_seconds(run, options.seconds) * 1e6 for run in runners(name, engine))
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
