"""What does a layer take on a GPU, beside PyTorch on the same one?

    python -m bench.cuda.bench_layers [--width 1024] [--seconds 1] [--calls 50] [--only NAME]

Tensors lie on the device; calls follow one another on one stream. PyTorch runs eagerly, f32 products without TF32. A
row of f32 and of bf16 for each layer: microseconds a call, and the largest difference of the results by the largest
number. Without PyTorch, or where it has no CUDA, its column is empty. Needs a device.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

import graphpool as gp
from bench.cuda.common import Work, as_row, least_times
from tests.cases.graphs import GraphBuilder

POSITIONS, PIXELS, HEADS = 128, 28, 8


class Layer(NamedTuple):
    """Shapes of the inputs, and the same layer for graphpool and for ``torch.nn.functional``."""

    shapes: tuple[tuple[int, ...], ...]
    build: Callable[..., Any]
    run: Callable[..., Any]


def attend(g: GraphBuilder, q: Any, k: Any, v: Any) -> Any:
    """Attention without scale."""
    return g.op("MatMul", g.op("SoftMax", g.op("MatMul", q, k, transpose_b=True), axis=-1), v)


def layers(width: int) -> dict[str, Layer]:
    """All layers, by name."""
    rows, image = (8 * POSITIONS, width), (8, width // 8, PIXELS, PIXELS)
    heads = (8, HEADS, POSITIONS, max(width // HEADS, 1))
    windows = {"strides": [1, 1], "pads_begin": [1, 1], "pads_end": [1, 1], "dilations": [1, 1], "data_format": "NCX",
               "weights_format": "OIX"}  # fmt: skip
    return {
        "product": Layer((rows, (width, width)), lambda g, x, w: g.op("MatMul", x, w), lambda f, x, w: x @ w),
        "product and GELU": Layer(
            (rows, (width, 4 * width)), lambda g, x, w: g.op("GELU", g.op("MatMul", x, w)),
            lambda f, x, w: f.gelu(x @ w),
        ),
        "product of a row": Layer(
            ((1, width), (width, width)), lambda g, x, w: g.op("MatMul", x, w), lambda f, x, w: x @ w
        ),
        "convolution": Layer(
            (image, (width // 8, width // 8, 3, 3)), lambda g, x, w: g.op("Convolution", x, w, **windows),
            lambda f, x, w: f.conv2d(x, w, padding=1),
        ),
        "attention": Layer(
            (heads,) * 3, attend, lambda f, q, k, v: f.scaled_dot_product_attention(q, k, v, scale=1.0)
        ),
        "softmax": Layer((rows,), lambda g, x: g.op("SoftMax", x, axis=-1), lambda f, x: f.softmax(x, -1)),
        "layer norm": Layer(
            (rows, (width,), (width,)), lambda g, x, a, b: g.op("LayerNorm", x, a, b, epsilon=1e-5, keep_stats=False),
            lambda f, x, a, b: f.layer_norm(x, (x.shape[-1],), a, b, 1e-5),
        ),
        "sum and ReLU": Layer(
            (rows, rows), lambda g, x, y: g.op("ReLU", g.op("Add", x, y)), lambda f, x, y: f.relu(x + y)
        ),
    }  # fmt: skip


def own_work(engine: gp.Engine, stream: gp.Stream, layer: Layer, arrays: list[Any], dtype: str) -> tuple[Work, Any]:
    """A call of graphpool, and its result."""
    g = GraphBuilder(graph=gp.Graph("gpu"))
    ports = [g.input(shape, dtype) for shape in layer.shapes]
    layer.build(g, *ports)
    partition = g.graph.merge_partitions(g.finish())
    compiled = partition.compile(
        partition.input_ports, [lt.replace(shape=None) for lt in partition.output_ports], engine
    )
    content = dict(zip([port.id for port in ports], arrays, strict=True))
    inputs = [gp.Tensor(lt, engine) for lt in compiled.inputs]
    for tensor in inputs:
        tensor.fill(content[tensor.lt.id].astype(tensor.lt.dtype.numpy))
    [result] = compiled.execute(stream, inputs)
    return Work(lambda: compiled.execute(stream, inputs, [result]), stream.wait), result


def torch_work(layer: Layer, arrays: list[Any], dtype: str) -> tuple[Work, Any]:
    """A call of PyTorch, and its result as an array."""
    import torch

    type_of = {"f32": torch.float32, "bf16": torch.bfloat16}
    inputs = [torch.from_numpy(array).to("cuda", type_of[dtype]) for array in arrays]
    result = layer.run(torch.nn.functional, *inputs).float().cpu().numpy()
    return Work(lambda: layer.run(torch.nn.functional, *inputs), torch.cuda.synchronize), result


def has_torch() -> bool:
    """Whether PyTorch is there, and finds a device."""
    if find_spec("torch") is None:
        return False
    import torch

    return bool(torch.cuda.is_available())


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--calls", type=int, default=50)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    rng, other = np.random.default_rng(0), has_torch()
    print("| layer | type | graphpool, us | PyTorch, us | difference |\n|---|---|---:|---:|---:|")
    for name, layer in layers(arguments.width).items():
        for dtype in ("f32", "bf16") if arguments.only in name else ():
            arrays = [(rng.standard_normal(shape) / shape[-1] ** 0.5).astype(np.float32) for shape in layer.shapes]
            with gp.Engine("gpu") as engine, gp.Stream(engine) as stream:
                work, result = own_work(engine, stream, layer, arrays, dtype)
                works, expected = [work], None
                if other:
                    theirs, expected = torch_work(layer, arrays, dtype)
                    works.append(theirs)
                times = [1e6 * seconds for seconds in least_times(works, arguments.seconds, arguments.calls)]
                found = result.numpy().astype(np.float32)
                differs = "" if expected is None else float(abs(found - expected).max() / abs(expected).max())
                print(as_row([name, dtype, times[0], times[1] if other else "", differs]), flush=True)
                del work, works, result


if __name__ == "__main__":
    main()
