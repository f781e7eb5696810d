"""What do weights cost that the user has packed (option 2), beside those that the constant tensor cache keeps?

    python -m bench.bench_block_weights [--rounds 200] [--places 5] [--only TEXT]   the table
    python -m bench.bench_block_weights --wide      many shapes, each in every data type

The bars: as many bytes as plain weights, up to 6 % (Winograd aside), and at most 1.02 of the cached way's time.

Both ways write to the same results and run in turns on one thread, each round once, in changing order; times are
medians of processor time. Where buffers happen to lie changes times by up to 8 %, so all are made anew several times,
and the median ratio is told.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import graphpool as gp
from tests.cases.graphs import GraphBuilder
from tests.cases.inputs import random_array

Case = tuple[GraphBuilder, list[gp.LogicalTensor]]


def convolution(
    x: tuple[int, ...], w: tuple[int, ...], dtype: str = "f32", *, kind: str = "Convolution", prefer: str = "memory",
    **attrs: Any,
) -> Case:  # fmt: skip
    """A convolution as the document has it, channels first, and its weights."""
    builder = GraphBuilder(gp.Graph("cpu", prefer=prefer))
    weights = builder.input(w, "s8" if dtype == "u8" else dtype, property="constant")
    source: Any = builder.input(x, dtype)
    operands = [source, weights]
    if dtype == "u8":
        scales = ("u8", [0.05]), ("s8", [0.02])
        operands = [
            builder.op("Dequantize", lt, dtype="f32", scales=own, zps=[0])
            for lt, (_, own) in zip(operands, scales, strict=True)
        ]
    pads = [(w[-1] - 1) // 2] * 2
    given = {"strides": [1, 1], "dilations": [1, 1], "pads_begin": pads, "pads_end": pads} | attrs
    form = "IOX" if kind == "ConvTranspose" else "OIX"
    y = builder.op(kind, *operands, data_format="NCX", weights_format=form, **given)
    if dtype == "u8":
        builder.op("Quantize", y, dtype="u8", scales=[0.3], zps=[0])
    return builder, [weights]


def product(m: int, dtype: str) -> Case:
    """A product with weights of 1024 x 1024, those of 8 and 4 bits in groups of 64, and its constants."""
    builder = GraphBuilder()
    weights = builder.input((1024, 1024), dtype, property="constant")
    free, operand = [weights], weights
    if dtype not in ("f32", "bf16"):
        free.append(builder.input((16, 1024), property="constant"))
        operand = builder.op("DynamicDequantize", *free, dtype="f32", qtype="per_group", group_shape=[64, 1])
    builder.op("MatMul", builder.input((m, 1024), "bf16" if dtype == "bf16" else "f32"), operand)
    return builder, free


CASES: dict[str, Callable[[], Case]] = {
    "direct 3x3, 64": lambda: convolution((1, 64, 28, 28), (64, 64, 3, 3)),
    "the document's, 1x1": lambda: convolution((8, 32, 16, 16), (32, 32, 1, 1)),
    "Winograd 3x3, 64": lambda: convolution((1, 64, 28, 28), (64, 64, 3, 3), prefer="latency"),
    "depthwise 3x3, 256": lambda: convolution((1, 256, 28, 28), (256, 1, 3, 3), groups=256),
    "few channels 7x7": lambda: convolution((1, 3, 112, 112), (64, 3, 7, 7), strides=[2, 2]),
    "groups 3x3, 4 of 32": lambda: convolution((1, 128, 28, 28), (128, 32, 3, 3), groups=4),
    "transposed 4x4, stride 2": lambda: convolution(
        (1, 64, 28, 28), (64, 64, 4, 4), kind="ConvTranspose", strides=[2, 2]
    ),
    "bf16 3x3, 64": lambda: convolution((1, 64, 28, 28), (64, 64, 3, 3), "bf16"),
    "int8 3x3, 64": lambda: convolution((1, 64, 28, 28), (64, 64, 3, 3), "u8"),
    **{f"product, {dtype}, {m}": lambda m=m, dtype=dtype: product(m, dtype)  # type: ignore[misc]
       for dtype in ("f32", "bf16", "s8", "u4") for m in (1, 16)},
}  # fmt: skip


KINDS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "1x1, 64 to 256": ((1, 64, 28, 28), (256, 64, 1, 1), {}),
    "1x1, 37 to 64": ((1, 37, 28, 28), (64, 37, 1, 1), {}),
    "1x1, 64 to 37": ((1, 64, 28, 28), (37, 64, 1, 1), {}),
    "1x1, 64 to 5": ((1, 64, 28, 28), (5, 64, 1, 1), {}),
    "3x3, 64 to 64": ((1, 64, 28, 28), (64, 64, 3, 3), {}),
    "3x3, 3 to 32": ((1, 3, 56, 56), (32, 3, 3, 3), {}),
    "3x3, 64 to 3": ((1, 64, 56, 56), (3, 64, 3, 3), {}),
    "7x7, 3 to 64": ((1, 3, 112, 112), (64, 3, 7, 7), {"strides": [2, 2]}),
    "7x7, 1 to 8": ((1, 1, 56, 56), (8, 1, 7, 7), {}),
    "3x3, 4 groups of 32": ((1, 128, 28, 28), (128, 32, 3, 3), {"groups": 4}),
    "3x3, 8 groups of 4": ((1, 32, 28, 28), (32, 4, 3, 3), {"groups": 8}),
    "3x3, 3 groups of 19": ((1, 57, 28, 28), (57, 19, 3, 3), {"groups": 3}),
    "depthwise 3x3, 256": ((1, 256, 28, 28), (256, 1, 3, 3), {"groups": 256}),
    "depthwise 5x5, 40": ((1, 40, 28, 28), (40, 1, 5, 5), {"groups": 40}),
    "1-D 3, 64 to 64": ((1, 64, 256), (64, 64, 3), {"strides": [1], "dilations": [1], "pads": 1}),
    "1-D depthwise 5, 128": ((1, 128, 256), (128, 1, 5), {"strides": [1], "dilations": [1], "groups": 128, "pads": 2}),
    "3-D 3x3x3, 16 to 32": (
        (1, 16, 8, 14, 14), (32, 16, 3, 3, 3), {"strides": [1] * 3, "dilations": [1] * 3, "pads": 1},
    ),
    "transposed 4x4, 64 to 64": ((1, 64, 28, 28), (64, 64, 4, 4), {"kind": "ConvTranspose", "strides": [2, 2]}),
    "transposed 2x2, 64 to 24": ((1, 64, 28, 28), (64, 24, 2, 2), {"kind": "ConvTranspose", "strides": [2, 2]}),
}  # fmt: skip
"""Of the wide table: shapes of the input and the weights, and attributes; each in every data type that it is for."""


def wide(kind: str, dtype: str) -> Case:
    """A convolution of the wide table."""
    x, w, attrs = KINDS[kind]
    attrs = dict(attrs)
    if "pads" in attrs:
        pads = [attrs.pop("pads")] * (len(w) - 2)
        attrs |= {"pads_begin": pads, "pads_end": pads}
    return convolution(x, w, dtype, **attrs)


WIDE: dict[str, Callable[[], Case]] = {
    **{f"{kind}, {dtype}": lambda kind=kind, dtype=dtype: wide(kind, dtype)  # type: ignore[misc]
       for kind in KINDS for dtype in ("f32", "bf16", "f16", "u8")},
    **{f"product, {dtype}, {m}": lambda m=m, dtype=dtype: product(m, dtype)  # type: ignore[misc]
       for dtype in ("f32", "bf16", "s8", "u8", "s4", "u4") for m in (1, 16)},
}  # fmt: skip


def compile_both(case: Case, engine: gp.Engine) -> tuple[list[Callable[[], Any]], float]:
    """An execution with cached weights and one with packed ones; bytes of these over those of plain weights."""
    builder, free = case
    [partition] = builder.finish()
    stream, rng = gp.Stream(engine), np.random.default_rng(0)
    plain = {lt.id: gp.Tensor(lt, engine, random_array(lt, rng)) for lt in partition.input_ports}
    outputs = [lt.replace(shape=builder.graph_shape(lt)) for lt in partition.output_ports]
    asked = [lt.replace(layout="any") if any(lt.id == own.id for own in free) else lt for lt in partition.input_ports]
    ways = [partition.compile(list(partition.input_ports), outputs, engine), partition.compile(asked, outputs, engine)]
    packed = {own.id: pack(engine, plain[own.id], ways[1].query_logical_tensor(own.id)) for own in free}
    runs: list[Callable[[], Any]] = []
    results = None
    for compiled, tensors in zip(ways, (plain, plain | packed), strict=True):
        inputs = [tensors[lt.id] for lt in compiled.inputs]
        results = compiled.execute(stream, inputs, results)
        runs.append(lambda c=compiled, i=inputs, r=results: c.execute(stream, i, r))  # type: ignore[misc]
    ratio = sum(packed[own.id].nbytes for own in free) / sum(own.nbytes for own in free)
    return runs, ratio


def pack(engine: gp.Engine, tensor: gp.Tensor, wanted: gp.LogicalTensor) -> gp.Tensor:
    """The weights in the layout that was asked for."""
    source = tensor.lt.replace(id=wanted.id + 1000)
    partition = gp.Partition.from_op(gp.Op(0, "Reorder", [source], [wanted]))
    with partition.compile([source], [wanted], engine) as compiled:
        data = tensor.raw() if tensor.lt.dtype.bits < 8 else tensor.numpy()
        [packed] = compiled.execute(gp.Stream(engine), [gp.Tensor(source, engine, data)])
    return packed


def interleaved(runs: Sequence[Callable[[], Any]], rounds: int) -> list[float]:
    """Median processor time of each, in turns. Unit: seconds."""
    samples: list[list[int]] = [[] for _ in runs]
    for number in range(rounds):
        for k in range(len(runs)):
            which = (k + number) % len(runs)
            start = time.thread_time_ns()
            runs[which]()
            samples[which].append(time.thread_time_ns() - start)
    return [statistics.median(own) / 1e9 for own in samples]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--places", type=int, default=5)
    parser.add_argument("--wide", action="store_true", help="many shapes, each in every data type")
    parser.add_argument("--only", default="", help="the cases whose names have this")
    arguments = parser.parse_args()
    print(
        "| weights | bytes over plain | cached, µs | packed by the user, µs | over cached |\n|---|---:|---:|---:|---:|"
    )
    for name, make in (WIDE if arguments.wide else CASES).items():
        times = []
        if arguments.only not in name:
            continue
        for _ in range(arguments.places):
            with gp.Engine(threads=1) as engine:
                runs, ratio = compile_both(make(), engine)
                times.append(interleaved(runs, arguments.rounds))
        over = statistics.median(own / cached for cached, own in times)
        cells = " | ".join(f"{statistics.median(column) * 1e6:.0f}" for column in zip(*times, strict=True))
        print(f"| {name} | {ratio:.2f} | {cells} | {over:.3f} |", flush=True)


if __name__ == "__main__":
    main()
