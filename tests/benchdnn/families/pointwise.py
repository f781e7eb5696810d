"""Elementwise chains, norms, softmaxes and moves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.benchdnn.families.parts import BINARY, UNARY, Build, Tensor, cast, chain, dequantized, quantized
from tests.cases.graphs import GraphBuilder


def elementwise(dtype: str) -> Iterator[tuple[str, Build]]:
    for kind in UNARY:
        yield f"{kind}_chain", lambda g, k=kind: chain(g, g.input((3, 4, 5), dtype), k, "Add", "MultiplyRow", "ReLU")
        yield f"{kind}_dropout", lambda g, k=kind: chain(g, g.input((3, 4, 5), dtype), k, "Dropout")
    for kind in BINARY:
        yield f"{kind}_chain", lambda g, k=kind: chain(g, g.input((3, 4, 5), dtype), k, "Sigmoid", "Maximum", "Square")
    yield "reciprocal_multiply", lambda g: chain(g, g.op("Reciprocal", g.input((3, 4), dtype)), "Multiply")

    def sums(g: GraphBuilder) -> Tensor:
        x = g.input((3, 4), dtype)
        for _ in range(6):
            x = g.op("Add", x, g.input((3, 4), dtype), auto_broadcast="none")
        return x

    yield "sums", sums
    yield "nineteen", lambda g: chain(g, g.input((3, 4), dtype), "ReLU", *["AddRow", "Clamp"] * 9)
    yield "add_swish_residual", lambda g: chain(g, g.input((3, 4), dtype), "Add", "Swish", "Add", "Swish")
    if dtype != "f32":
        yield "tc_quantize", lambda g: quantized(g, g.input((3, 4), dtype))
        yield "dequantize_tc", lambda g: dequantized(g, (3, 4), "u8", dtype, zp=2)


def norms(dtype: str) -> Iterator[tuple[str, Build]]:
    def layer(g: GraphBuilder) -> Tensor:
        return g.op("LayerNorm", g.input((2, 5, 16), dtype), g.input((16,)), g.input((16,)), keep_stats=False)

    def group(g: GraphBuilder) -> Tensor:
        params = g.input((8,)), g.input((8,))
        return g.op("GroupNorm", g.input((2, 8, 5, 3), dtype), *params, groups=4, keep_stats=False, data_format="NCX")

    def rms(g: GraphBuilder) -> Tensor:
        return g.op("RMSNorm", g.input((2, 5, 16), dtype), g.input((16,)))

    for name, norm in (("layernorm", layer), ("groupnorm", group), ("rmsnorm", rms)):
        for tail in (("GELU",), ("ReLU",), ("Multiply",), ("AddRow", "Swish"), ("Add", "Sigmoid", "Maximum")):
            yield f"{name}_{'_'.join(tail)}", lambda g, n=norm, t=tail: chain(g, n(g), *t)
        yield f"int8_{name}", lambda g, n=norm: quantized(g, n(g), "u8", 3)
        yield f"int8_{name}_multiply", lambda g, n=norm: quantized(g, chain(g, n(g), "Multiply", "ReLU"))
        if dtype != "f32":
            yield f"{name}_tc", lambda g, n=norm: chain(g, cast(g, n(g), "f32"), "MultiplyRow")

    def batch(g: GraphBuilder, x: Tensor) -> Tensor:
        return chain(g, x, "BatchNorm", "ReLU")

    yield "batchnorm_relu", lambda g: batch(g, g.input((2, 4, 5, 5), dtype))
    if dtype == "f32":
        yield "int8_batchnorm_relu", lambda g: quantized(g, batch(g, dequantized(g, (2, 4, 5, 5), "s8", zp=1)))
        yield "int8_batchnorm", lambda g: quantized(g, chain(g, dequantized(g, (2, 4, 5, 5), "u8", zp=1), "BatchNorm"))

    def training(g: GraphBuilder) -> Tensor:
        x = g.op("BatchNormForwardTraining", g.input((4, 3, 5, 5), dtype), *(g.input((3,)) for _ in range(4)), n=5,
                 dtype=[dtype] + ["f32"] * 4, epsilon=0.5, momentum=0.25, data_format="NCX")  # fmt: skip
        return g.op("ReLU", x[0])

    yield "batchnorm_training_relu", training


def softmaxes(dtype: str) -> Iterator[tuple[str, Build]]:
    for kind in ("SoftMax", "LogSoftmax"):
        for tail in (("Add",), ("Multiply", "ReLU"), ("MultiplyRow", "AddRow"), ("Swish",), ("Sigmoid",)):
            yield (
                f"{kind}_{'_'.join(tail)}",
                lambda g, k=kind, t=tail: chain(g, g.op(k, g.input((3, 4, 9), dtype), axis=-1), *t),
            )
        yield f"{kind}_dropout", lambda g, k=kind: chain(g, g.op(k, g.input((3, 4, 9), dtype), axis=-1), "Dropout")
        yield f"int8_{kind}", lambda g, k=kind: quantized(g, g.op(k, g.input((3, 4, 9), dtype), axis=1), "u8")
        if dtype != "f32":
            yield f"{kind}_tc", lambda g, k=kind: cast(g, g.op(k, g.input((3, 9), dtype), axis=-1), "f32")
    yield (
        "int8_softmax_multiply",
        lambda g: quantized(g, chain(g, g.op("SoftMax", g.input((3, 4, 9), dtype), axis=-1), "Multiply"), "u8"),
    )


def moves(dtype: str) -> Iterator[tuple[str, Build]]:
    yield "reorder_sum", lambda g: chain(g, g.op("Reorder", g.input((2, 3, 4), dtype)), "Add")
    if dtype == "f32":
        yield "int8_reorder", lambda g: quantized(g, g.op("Reorder", dequantized(g, (2, 3, 4), zp=1)), "u8", 3)
        yield (
            "int8_reorder_sum",
            lambda g: quantized(
                g,
                g.op("Add", g.op("Reorder", dequantized(g, (2, 3, 4), zp=1)), dequantized(g, (2, 3, 4), "u8")),
                "u8",
                3,
            ),
        )

    def shuffle(g: GraphBuilder, shape: Any, split: Any, order: Any) -> Tensor:
        x = g.op("StaticReshape", g.input(shape, dtype), shape=split, special_zero=False)
        return g.op("StaticReshape", g.op("StaticTranspose", x, order=order), shape=shape, special_zero=False)

    yield "shuffle_ncx", lambda g: shuffle(g, [2, 6, 4, 4], [2, 2, 3, 4, 4], [0, 2, 1, 3, 4])
    yield "shuffle_nxc", lambda g: shuffle(g, [2, 4, 4, 6], [2, 4, 4, 2, 3], [0, 1, 2, 4, 3])
    for source in ("s8", "u8"):
        for count in (2, 3, 8):

            def concat(g: GraphBuilder, source=source, count=count) -> Tensor:
                parts = [dequantized(g, (2, 3, 4), source, dtype, zp=1) for _ in range(count)]
                return quantized(g, g.op("Concat", *parts, axis=-1), source, 1)

            yield f"int8_concat_{source}_{count}", concat
