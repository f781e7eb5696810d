"""Pooling, interpolation and reductions; stages of residual networks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tests.benchdnn.families.parts import IMAGE, POOL, Build, Tensor, cast, chain, dequantized, quantized
from tests.cases.graphs import GraphBuilder


def images(dtype: str) -> Iterator[tuple[str, Build]]:
    """Pooling, interpolation, reductions."""

    def pool(g: GraphBuilder, kind: str, x: Tensor) -> Tensor:
        return g.op(kind, x, **POOL | ({"exclude_pad": True} if kind == "AvgPool" else {}))

    for kind in ("AvgPool", "MaxPool"):
        for tail in (("Add",), ("Add", "ReLU"), ("Multiply", "Maximum"), ("Add", "Multiply", "Swish")):
            yield (
                f"{kind}_{'_'.join(tail)}",
                lambda g, k=kind, t=tail: chain(g, pool(g, k, g.input((2, 4, 6, 6), dtype)), *t),
            )

        def int8(g: GraphBuilder, kind=kind) -> Tensor:
            return pool(g, kind, dequantized(g, (2, 4, 6, 6), "u8", dtype, zp=2))

        yield f"int8_{kind}", lambda g, f=int8: quantized(g, f(g), "u8", 2)
        yield (
            f"int8_{kind}_sum",
            lambda g, f=int8: quantized(g, g.op("Add", f(g), dequantized(g, (2, 4, 3, 3), "s8", dtype, zp=1))),
        )
        yield f"int8_{kind}_mul_relu", lambda g, f=int8: quantized(g, chain(g, f(g), "Multiply", "ReLU"))
        yield (
            f"int8_{kind}_reshape",
            lambda g, f=int8: quantized(g, g.op("StaticReshape", f(g), shape=[2, 36], special_zero=False)),
        )
        yield (
            f"int8_{kind}_transpose",
            lambda g, f=int8: quantized(g, g.op("StaticTranspose", f(g), order=[0, 2, 3, 1])),
        )
    for mode in ("nearest", "linear", "bilinear"):
        for tail in ((), ("Multiply",), ("Add", "ReLU"), ("Swish", "Clamp")):
            yield (
                f"interpolate_{mode}_{'_'.join(tail)}",
                lambda g, m=mode, t=tail: chain(
                    g, g.op("Interpolate", g.input((2, 3, 4, 4), dtype), mode=m, sizes=[8, 6], data_format="NCX"), *t
                ),
            )
    for kind in ("L1", "L2", "Max", "Mean", "Min", "Prod", "Sum"):
        for keep in (False, True):
            for tail in (("Add",), ("Sqrt",), ("Multiply", "Sigmoid", "Maximum", "Square")):
                yield (
                    f"reduce{kind}_{'keep_' * keep}{'_'.join(tail)}",
                    lambda g, k=kind, keep=keep, t=tail: chain(
                        g, g.op(f"Reduce{k}", g.input((2, 5, 6), dtype), axes=[1], keep_dims=keep), *t
                    ),
                )


def residual_stages(dtype: str) -> Iterator[tuple[str, Build]]:
    """Blocks of residual networks: bottlenecks (1x1, 3x3, 1x1) and basic ones (3x3, 3x3)."""

    def stage(
        g: GraphBuilder, kernels: Sequence[int] = (1, 3, 1), blocks: int = 3, norm: str = "BiasAdd",
        shortcut: bool = True, int8: str = "", stride: int = 1,
    ) -> Tensor:  # fmt: skip
        def conv(x: Tensor, size: int, channels: int, stride: int = 1) -> Tensor:
            shape = (channels, g.graph_shape(x)[1], size, size)
            w = dequantized(g, shape, dtype=dtype, axis=0) if int8 else g.input(shape, dtype)
            own = IMAGE | {"strides": [stride] * 2, "pads_begin": [size // 2] * 2, "pads_end": [size // 2] * 2}
            y = g.op("Convolution", x, w, weights_format="OIX", **own)
            return chain(g, y, *norm.split())

        def loaded(q: Tensor) -> Tensor:
            return cast(g, g.op("Dequantize", q, dtype="f32", scales=[0.5], zps=[0]), dtype) if int8 else q

        def activated(x: Tensor) -> Tensor:
            if dtype == "f16" and not int8:  # sums stay f32 between kernels, where the reference's overflow
                return g.op("Clamp", x, min=0.0, max=6.0)
            return chain(g, x, "ReLU")

        def stored(x: Tensor) -> Tensor:
            return quantized(g, x, "u8") if int8 else x

        def block(q: Tensor, first: bool) -> Tensor:
            step = stride if first else 1
            x = loaded(q)
            short = x if int8 == "shared" else loaded(q)
            y, last = x, len(kernels) - 1
            for k, size in enumerate(kernels):
                y = conv(y, size, 8 if k == last else 4, step if k == 0 else 1)
                if k < last:
                    y = loaded(stored(activated(y)))
            if first and shortcut:
                short = conv(short, 1, 8, step)
                short = loaded(stored(short)) if int8 else short
            return stored(activated(g.op("Add", y, short)))

        x = g.input((2, 4 if shortcut else 8, 8, 8), "u8" if int8 else dtype)
        for number in range(blocks):
            x = block(x, number == 0)
        return x

    for form, own in (("", {}), ("batch_norm", {"norm": "BatchNorm"}), ("basic", {"kernels": (3, 3)}),
                      ("identity", {"shortcut": False}), ("strided", {"stride": 2}), ("bare", {"norm": ""}),
                      ("one_block", {"blocks": 1}), ("long", {"blocks": 6})):  # fmt: skip
        yield f"stage_{form}", lambda g, own=own: stage(g, **own)
        if form == "batch_norm" and dtype != "f32":
            own = own | {"blocks": 1}  # further blocks make a step of 1 in a quantised tensor saturate
        for int8 in ("own", "shared"):
            yield f"int8_stage_{form}_{int8}", lambda g, own=own, int8=int8: stage(g, int8=int8, **own)
