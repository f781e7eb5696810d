"""Matrix products in floats and int8, with compressed weights, and gated MLPs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.benchdnn.families.parts import (
    BINARY,
    UNARY,
    Build,
    Tensor,
    cast,
    chain,
    dequantized,
    moved,
    quantized,
    requantized,
)
from tests.cases.graphs import GraphBuilder


def products(dtype: str) -> Iterator[tuple[str, Build]]:
    def product(g: GraphBuilder, bias: bool = False, a: Any = (2, 5, 8), b: Any = (8, 6), **own: Any) -> Tensor:
        extra = [g.input((6,), dtype)] if bias else []
        return g.op("MatMul", g.input(a, dtype), g.input(b, dtype), *extra, **own)

    tails = [(kind,) for kind in (*UNARY, *BINARY, "Select", "Dropout")] + [
        ("Swish",), ("AddRow", "ReLU"), ("MultiplyRow", "AddRow"), ("Divide", "Add"), ("Add", "Swish", "Clamp"),
        ("AddRow", "GELU", "Dropout"), ("Add", "Add", "Add"), ("SubtractRow", "Exp"), ("Divide", "Select"),
    ]  # fmt: skip
    for tail in tails:
        yield f"matmul_{'_'.join(tail)}", lambda g, tail=tail: chain(g, product(g), *tail)
        yield f"matmul_bias_{'_'.join(tail)}", lambda g, tail=tail: chain(g, product(g, True), *tail)
    heads = {"a": (2, 3, 5, 8), "b": (2, 3, 8, 6)}
    yield "matmul_moved", lambda g: moved(g, product(g, **heads))
    yield "matmul_transposed_reordered", lambda g: moved(g, product(g, **heads), "Reorder")
    yield "matmul_transpose_b", lambda g: chain(g, product(g, b=(6, 8), transpose_b=True), "ReLU")

    def split_heads(g: GraphBuilder) -> Tensor:
        x = g.op("StaticReshape", product(g, True), shape=[2, 5, 3, 2], special_zero=False)
        return g.op("StaticTranspose", x, order=[0, 2, 1, 3])

    yield "matmul_split_heads", split_heads
    yield "matmul_split_heads_reordered", lambda g: g.op("Reorder", split_heads(g))
    if dtype != "f32":
        yield "matmul_tc", lambda g: cast(g, chain(g, product(g, True), "ReLU"), "f32")
        yield (
            "matmul_f32_result",
            lambda g: chain(
                g, g.op("MatMul", g.input((2, 5, 8), dtype), g.input((8, 6), dtype), dtype="f32"), "AddRow"
            ),
        )

    def binary_both_sides(g: GraphBuilder) -> Tensor:
        a = chain(g, g.input((4, 6), dtype), "Add", "MultiplyRow")
        b = chain(g, g.input((6, 6), dtype), "Subtract")
        return chain(g, g.op("MatMul", a, b), "Divide", "AddRow")

    yield "binary_matmul_binary", binary_both_sides


def quantized_products(dtype: str) -> Iterator[tuple[str, Build]]:
    def product(g: GraphBuilder, weights: str = "tensor", bias: bool = False, source: str = "u8", a: Any = (2, 5, 8),
                b: Any = (8, 6)) -> Tensor:  # fmt: skip
        src = dequantized(g, a, source, dtype, zp=2)
        if weights == "requantized":
            w = requantized(g, b, dtype, 1)
        else:
            w = dequantized(g, b, dtype=dtype, axis=len(b) - 1 if weights == "channel" else None)
        return g.op("MatMul", src, w, *([g.input(b[-1:], dtype)] if bias else []))

    def summed(g: GraphBuilder, x: Tensor) -> Tensor:
        return g.op("Add", x, dequantized(g, g.graph_shape(x), "s8", dtype, zp=1))

    tails = ((), ("ReLU",), ("GELU",), ("AddRow", "Sigmoid"), ("Add", "Multiply", "ReLU"), ("Swish",),
             ("Divide", "Add"), ("Select",))  # fmt: skip
    for weights in ("tensor", "channel", "requantized"):
        for bias in (False, True):
            for tail in tails:

                def build(g: GraphBuilder, weights=weights, bias=bias, tail=tail) -> Tensor:
                    return quantized(g, chain(g, product(g, weights, bias), *tail), "u8", 3)

                yield f"int8_matmul_{weights}_{'bias_' * bias}{'_'.join(tail)}", build
    yield "int8_matmul_sum", lambda g: quantized(g, chain(g, summed(g, product(g, "channel", True)), "ReLU"))
    yield "int8_matmul_sum_mul", lambda g: quantized(g, chain(g, summed(g, product(g)), "Multiply", "Add", "ReLU"))
    yield "int8_matmul_float_result", lambda g: chain(g, product(g, "channel", True), "GELU")
    heads = {"a": (2, 3, 5, 8), "b": (2, 3, 8, 6)}
    yield "int8_matmul_moved", lambda g: quantized(g, moved(g, product(g, **heads)))
    yield "int8_matmul_reordered", lambda g: quantized(g, moved(g, product(g, **heads), "Reorder"))

    def smooth(g: GraphBuilder, kind: str = "Multiply") -> Tensor:
        x = chain(g, product(g, "channel", True), "ReLU")
        return quantized(g, g.op(kind, cast(g, x, "f32"), g.input((6,))), "u8", 1)

    yield "int8_matmul_smooth_quant_mul", smooth
    yield "int8_matmul_smooth_quant_div", lambda g: smooth(g, "Divide")


def compressed(dtype: str) -> Iterator[tuple[str, Build]]:
    """Products with weights that DynamicDequantize unpacks."""
    for source in ("s8", "u8", "s4", "u4"):
        for scheme, scales, own in (
            ("per_tensor", (1,), {}),
            ("per_channel", (6,), {"axis": 1}),
            ("per_group", (2, 6), {"group_shape": [4, 1]}),
        ):  # fmt: skip
            for zero_points in (False, True):

                def build(
                    g: GraphBuilder, source=source, scheme=scheme, scales=scales, own=own, z=zero_points
                ) -> Tensor:
                    more = [g.input(scales, source)] if z else []
                    w = g.op("DynamicDequantize", g.input((8, 6), source), g.input(scales, dtype), *more,
                             dtype=dtype, qtype=scheme, **own)  # fmt: skip
                    return chain(g, g.op("MatMul", g.input((2, 5, 8), dtype), w), "AddRow", "ReLU")

                yield f"matmul_{source}_{scheme}{'_zps' * zero_points}", build

    def dynamic(g: GraphBuilder) -> Tensor:
        own = g.input((1,)), g.input((1,), "s8")
        x = g.op("DynamicQuantize", cast(g, g.input((2, 5, 8), dtype), "f32"), *own, dtype="s8")
        x = cast(g, g.op("DynamicDequantize", x, *own, dtype="f32"), dtype)
        w = g.op(
            "DynamicDequantize", g.input((8, 6), "s4"), g.input((6,), dtype), dtype=dtype, qtype="per_channel", axis=1
        )
        return chain(g, g.op("MatMul", x, w), "AddRow", "ReLU")

    yield "matmul_dynamic_activations", dynamic


def gated_mlps(dtype: str) -> Iterator[tuple[str, Build]]:
    def weights(g: GraphBuilder, shape: Any, source: str | None) -> Tensor:
        if source is None:
            return g.input(shape, dtype)
        scales = (shape[0] // 4, shape[1])
        return g.op("DynamicDequantize", g.input(shape, source), g.input(scales, dtype), g.input(scales, source),
                    dtype=dtype, qtype="per_group", group_shape=[4, 1])  # fmt: skip

    def mlp(g: GraphBuilder, activation: str, source: str | None = None, order: int = 1, inner: str = dtype,
            shape: Any = (5, 8)) -> Tensor:  # fmt: skip
        x = g.input(shape, dtype)
        gate = g.op("MatMul", x, weights(g, (8, 16), source), dtype=inner)
        up = g.op("MatMul", x, weights(g, (8, 16), source), dtype=inner)
        gate = chain(g, gate, activation) if activation else gate
        hidden = cast(g, g.op("Multiply", *(gate, up)[::order]), dtype)
        return g.op("MatMul", hidden, weights(g, (16, 8), source), dtype=dtype)

    for activation in ("", "Swish", "Sigmoid", "GELU", "ReLU", "HardSwish", "Mish", "Tanh", "Elu", "Clamp"):
        for order in (1, -1):
            yield f"gated_mlp_{activation}{order}", lambda g, a=activation, o=order: mlp(g, a, order=o)
        for source in ("s4", "u4", "s8", "u8"):
            yield f"gated_mlp_{activation}_{source}", lambda g, a=activation, s=source: mlp(g, a, s)
        if dtype != "f32":
            yield f"gated_mlp_{activation}_f32_inside", lambda g, a=activation: mlp(g, a, inner="f32")
    yield "gated_mlp_batched", lambda g: mlp(g, "Swish", shape=(2, 5, 8))
