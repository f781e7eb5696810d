"""Convolutions, plain and transposed, in floats and int8."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.benchdnn.families.parts import (
    BINARY,
    IMAGE,
    POINT,
    UNARY,
    Build,
    Tensor,
    cast,
    chain,
    dequantized,
    quantized,
    requantized,
)
from tests.cases.graphs import GraphBuilder


def convolutions(dtype: str) -> Iterator[tuple[str, Build]]:
    def conv(g: GraphBuilder, **own: Any) -> Tensor:
        src, weights = g.input((2, 4, 9, 9), dtype), g.input((6, 4, 3, 3), dtype)
        return g.op("Convolution", src, weights, weights_format="OIX", **IMAGE | own)

    def transposed(g: GraphBuilder) -> Tensor:
        src, weights = g.input((2, 4, 5, 5), dtype), g.input((4, 6, 3, 3), dtype)
        return g.op("ConvTranspose", src, weights, weights_format="IOX", **IMAGE | {"strides": [2, 2]})

    def pointwise(g: GraphBuilder) -> Tensor:
        return g.op(
            "Convolution", g.input((2, 4, 9, 9), dtype), g.input((6, 4, 1, 1), dtype), weights_format="OIX", **POINT
        )

    def depthwise(g: GraphBuilder, x: Tensor, stride: int) -> Tensor:
        own = IMAGE | {"strides": [stride] * 2, "groups": 6}
        return g.op("Convolution", x, g.input((6, 1, 3, 3), dtype), weights_format="OIX", **own)

    tails = [("BiasAdd", kind) for kind in UNARY] + [(kind,) for kind in BINARY] + [
        ("Swish",), ("BiasAdd", "Swish"), ("Add", "Swish", "ReLU"), ("Add", "Sigmoid", "Multiply", "ReLU"),
        ("BiasAdd", "Add", "ReLU", "Multiply", "Clamp", "Subtract"),
        *([("BatchNorm", "ReLU"), ("BatchNorm", "Add", "ReLU"), ("BiasAdd", "BatchNorm", "Swish")]
          if dtype == "f32" else [("BatchNorm", "ReLU")]),
    ]  # fmt: skip
    for tail in tails:
        yield f"conv_{'_'.join(tail)}", lambda g, tail=tail: chain(g, conv(g), *tail)
        yield f"convtranspose_{'_'.join(tail)}", lambda g, tail=tail: chain(g, transposed(g), *tail)
    if dtype != "f32":
        yield "conv_tc", lambda g: cast(g, chain(g, conv(g), "BiasAdd", "ReLU"), "f32")
    for stride in (1, 2):
        yield f"conv_depthwise_{stride}", lambda g, s=stride: depthwise(g, chain(g, pointwise(g), "BiasAdd", "ReLU"), s)
    yield (
        "conv_depthwise_post_ops",
        lambda g: chain(g, depthwise(g, chain(g, pointwise(g), "BiasAdd", "Swish"), 1), "BiasAdd", "Clamp", "Add"),
    )


def quantized_convolutions(dtype: str) -> Iterator[tuple[str, Build]]:
    def conv(
        g: GraphBuilder, weights: str = "tensor", source: str = "u8", groups: int = 1, kind: str = "Convolution"
    ) -> Tensor:
        shape = (4, 6, 3, 3) if kind == "ConvTranspose" else (6, 4 // groups, 3, 3)
        axis = 1 if kind == "ConvTranspose" else 0
        src = dequantized(g, (2, 4, 9, 9), source, dtype, zp=2)
        if weights == "requantized":
            w = requantized(g, shape, dtype, axis)
        else:
            w = dequantized(g, shape, dtype=dtype, axis=axis if weights == "channel" else None)
        own = IMAGE | {"groups": groups, "weights_format": "IOX" if kind == "ConvTranspose" else "OIX"}
        return g.op(kind, src, w, **own)

    def summed(g: GraphBuilder, x: Tensor, source: str = "s8", zp: int = 1) -> Tensor:
        return g.op("Add", x, dequantized(g, g.graph_shape(x), source, dtype, zp=zp))

    for kind in ("Convolution", "ConvTranspose"):
        name = kind.lower()
        for weights in ("tensor", "channel", "requantized"):
            for tail in ((), ("BiasAdd",), ("BiasAdd", "ReLU"), ("BiasAdd", "GELU", "Multiply"), ("BiasAdd", "Swish")):

                def build(g: GraphBuilder, kind=kind, weights=weights, tail=tail) -> Tensor:
                    return quantized(g, chain(g, conv(g, weights, kind=kind), *tail), "u8", 3)

                yield f"int8_{name}_{weights}_{'_'.join(tail)}", build
        yield f"int8_{name}_sum", lambda g, k=kind: quantized(g, chain(g, summed(g, conv(g, kind=k)), "ReLU"))
        yield (
            f"int8_{name}_bias_sum_mul",
            lambda g, k=kind: quantized(g, chain(g, summed(g, chain(g, conv(g, "channel", kind=k), "BiasAdd"), "u8"),
                                                 "ReLU", "Multiply")),
        )  # fmt: skip
        yield f"int8_{name}_float_result", lambda g, k=kind: chain(g, conv(g, "channel", kind=k), "BiasAdd", "ReLU")
    yield "int8_conv_s8", lambda g: quantized(g, chain(g, conv(g, "channel", "s8"), "BiasAdd", "Mish"))
    yield "int8_conv_grouped", lambda g: quantized(g, chain(g, conv(g, "channel", groups=2), "ReLU"))

    def reshaped_weights(g: GraphBuilder) -> Tensor:
        w = dequantized(g, (3, 3, 4, 2), dtype=dtype)
        w = g.op("StaticReshape", w, shape=[3, 3, 1, 8], special_zero=False)
        src = dequantized(g, (2, 9, 9, 4), "u8", dtype, zp=2)
        own = IMAGE | {"data_format": "NXC", "weights_format": "XIO", "groups": 4}
        return quantized(g, chain(g, g.op("Convolution", src, w, **own), "ReLU"), "u8")

    yield "int8_conv_reshaped_weights", reshaped_weights
