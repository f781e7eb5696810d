"""Attention in the forms that exporters give it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tests.benchdnn.families.parts import Build, Tensor, cast, dequantized, moved, quantized
from tests.cases.graphs import GraphBuilder


def attentions(dtype: str) -> Iterator[tuple[str, Build]]:
    """Attention with inputs of a type and scores of it or of f32."""

    def attention(
        g: GraphBuilder, *, grouped: bool = False, inner: str = dtype, scale: str = "Divide", mask: str = "",
        causal: str = "", cap: bool = False, select: str = "", stats: bool = False, dropout: bool = False,
        dropped: bool = False, casts: bool = False,
        tail: str = "", transpose_b: bool = True, batch: Any = (2, 3), kv: Callable[[Any], Tensor] | None = None,
        q: Tensor | None = None, quantize: bool = False,
    ) -> Tensor:  # fmt: skip
        outer = (2, 2) if grouped else batch
        shape = (*outer, 3, 8, 4) if grouped else (*outer, 8, 4)
        kv_shape = (*outer, 1, 8, 4) if grouped else (*outer, 8, 4)
        k_shape = kv_shape if transpose_b else (*kv_shape[:-2], 4, 8)
        make = kv or (lambda shape: g.input(shape, dtype))
        s = g.op("MatMul", q or g.input(shape, dtype), make(k_shape), dtype=dtype if casts else inner,
                 transpose_b=transpose_b)  # fmt: skip
        s = cast(g, s, inner)
        if select == "before":
            s = _select(g, s)
        if scale:
            s = g.op(scale, s, g.input((1,), inner))
        if cap:
            s = g.op("Multiply", g.op("Tanh", g.op("Divide", s, g.input((1,), inner))), g.input((1,), inner))
        if mask == "before_causal" or (mask and not causal):
            s = g.op("Add", s, g.input(_mask_shape(g.graph_shape(s), mask), inner))
        if causal:
            s = _causal(g, s, causal)
        if select == "after":
            s = _select(g, s)
        p = g.op("SoftMax", s, axis=-1, mode="inf_as_zero", n=1 + stats,
                 dtype=[inner if casts else dtype, "f32"][: 1 + stats])  # fmt: skip
        p = cast(g, p[0] if stats else p, dtype)
        if dropout:
            more = [g.input((), "s64"), g.input((), "s64"), g.input((), "f32")]
            p = g.op("Dropout", p, *more, n=1 + dropped, dtype=[dtype, "u8"][: 1 + dropped])
            p = p[0] if dropped else p
        if quantize:
            own = {"scales": [1 / 128], "zps": [0]}
            q8 = g.op("Quantize", cast(g, p, "f32"), dtype="u8", **own)
            p = cast(g, g.op("Dequantize", q8, dtype="f32", **own), dtype)
        y = g.op("MatMul", p, make(kv_shape), dtype=dtype)
        if quantize:
            y = quantized(g, moved(g, y, "Reorder"), "u8")
        return moved(g, y, tail) if tail else y

    def _mask_shape(scores: Any, mask: str) -> Any:
        if mask == "padding":
            return (scores[0], *[1] * (len(scores) - 2), scores[-1])
        return scores if mask == "full" else scores[-2:]

    def _select(g: GraphBuilder, s: Tensor) -> Tensor:
        return g.op("Select", g.input((2, *[1] * (len(g.graph_shape(s)) - 2), 8), "boolean"), s, g.input((), s.dtype),
                    dtype=s.dtype)  # fmt: skip

    def _causal(g: GraphBuilder, s: Tensor, corner: str) -> Tensor:
        rows, columns = (g.op("GenIndex", s, dtype="s32", axis=axis) for axis in (-2, -1))
        if corner == "bottom_right":
            rows = g.op("Add", rows, g.input((), "s32"))
            rows = g.op("Subtract", rows, g.input((), "s32"))
        keep = g.op("GreaterEqual", rows, columns, dtype="boolean")
        return g.op("Select", keep, s, g.input((1,), s.dtype), dtype=s.dtype)

    forms: dict[str, dict[str, Any]] = {
        "plain": {}, "no_scale": {"scale": ""}, "multiply": {"scale": "Multiply"},
        "no_transpose": {"transpose_b": False},
        "mask": {"mask": "full"}, "padding_mask": {"mask": "padding"}, "matrix_mask": {"mask": "matrix"},
        "causal": {"causal": "top_left"}, "bottom_right": {"causal": "bottom_right"},
        "causal_masked": {"causal": "top_left", "mask": "before_causal"}, "select": {"select": "after"},
        "select_before_scale": {"select": "before"}, "select_and_mask": {"select": "before", "mask": "padding"},
        "cap": {"cap": True}, "cap_mask": {"cap": True, "mask": "full"},
        "cap_causal": {"cap": True, "causal": "top_left"},
        "reshaped": {"tail": "StaticReshape"}, "reordered": {"tail": "Reorder"}, "stats": {"stats": True},
        "stats_mask": {"stats": True, "mask": "full"}, "dropout": {"dropout": True, "mask": "full"},
        "stats_dropout": {"stats": True, "dropout": True}, "casts": {"casts": True, "mask": "full"},
        "dropout_mask": {"stats": True, "dropout": True, "dropped": True, "mask": "full"}, "batch_3d": {"batch": (6,)},
    }  # fmt: skip
    for name, form in forms.items():
        yield f"sdpa_{name}", lambda g, form=form: attention(g, **form)
        if "tail" not in form and "batch" not in form:
            yield f"gqa_{name}", lambda g, form=form: attention(g, grouped=True, **form)
        if dtype != "f32":
            yield f"sdpa_{name}_f32_inside", lambda g, form=form: attention(g, inner="f32", **form)
            if "tail" not in form and "batch" not in form:
                yield f"gqa_{name}_f32_inside", lambda g, form=form: attention(g, grouped=True, inner="f32", **form)
    for name in ("plain", "mask", "padding_mask", "select", "no_scale"):
        form = forms[name]

        def int8(g: GraphBuilder, form=form) -> Tensor:
            def load(shape: Any) -> Tensor:
                return dequantized(g, shape, "u8", dtype, zp=1)

            return attention(g, q=load((2, 3, 8, 4)), kv=load, quantize=True, **form)

        yield f"int8_sdpa_{name}", int8
    for source in ("s8", "u8", "s4", "u4"):
        for which in ("k", "v", "kv"):
            for name in ("plain", "mask", "causal"):

                def build(g: GraphBuilder, source=source, which=which, form=forms[name]) -> Tensor:
                    turn = iter("kv")

                    def load(shape: Any) -> Tensor:
                        if next(turn) not in which:
                            return g.input(shape, dtype)
                        scales = (*shape[:-1], shape[-1] // 2)
                        return g.op("DynamicDequantize", g.input(shape, source), g.input(scales, dtype),
                                    g.input(scales, source), dtype=dtype, qtype="per_group",
                                    group_shape=[*[1] * (len(shape) - 1), 2])  # fmt: skip

                    return attention(g, kv=load, transpose_b=False, **form)

                yield f"sdpa_compressed_{which}_{source}_{name}", build

    def regrouped(g: GraphBuilder) -> Tensor:
        def grouped(shape: Any, split: Any) -> Tensor:
            return g.op("StaticReshape", g.input(shape, dtype), shape=split, special_zero=False)

        q, k = grouped((2, 6, 8, 4), [2, 2, 3, 8, 4]), grouped((2, 2, 8, 4), [2, 2, 1, 8, 4])
        s = g.op("Divide", g.op("MatMul", q, k, transpose_b=True), g.input((1,), dtype))
        mask = grouped((2, 1, 1, 8), [2, 1, 1, 1, 8])
        p = g.op("SoftMax", g.op("Add", s, mask), axis=-1)
        y = g.op("MatMul", p, grouped((2, 2, 8, 4), [2, 2, 1, 8, 4]))
        return g.op("StaticReshape", y, shape=[2, 6, 8, 4], special_zero=False)

    yield "gqa_reshaped", regrouped

    def shared_keys(g: GraphBuilder) -> Tensor:
        """All heads of a batch share K and V: heads and rows are one axis of the products."""
        s = g.op("MatMul", g.input((2, 24, 4), dtype), g.input((2, 4, 8), dtype))
        s = g.op("StaticReshape", s, shape=[2, 3, 8, 8], special_zero=False)
        p = g.op("SoftMax", g.op("Add", s, g.input((2, 1, 8, 8), dtype)), axis=-1)
        p = g.op("StaticReshape", p, shape=[2, 24, 8], special_zero=False)
        return g.op("MatMul", p, g.input((2, 8, 4), dtype))

    yield "mqa_reshaped", shared_keys

    def scaled_in_front(g: GraphBuilder) -> Tensor:
        q, k = (g.op("Multiply", g.input((2, 3, 8, 4), dtype), g.input((1,), dtype)) for _ in range(2))
        p = g.op("SoftMax", g.op("MatMul", q, k, transpose_b=True), axis=-1)
        return g.op("MatMul", p, g.input((2, 3, 8, 4), dtype))

    yield "sdpa_scaled_in_front", scaled_in_front

    def turned_keys(g: GraphBuilder) -> Tensor:
        k = g.op("StaticTranspose", g.input((2, 8, 3, 4), dtype), order=[0, 2, 3, 1])
        s = g.op("Divide", g.op("MatMul", g.input((2, 3, 8, 4), dtype), k), g.input((1,), dtype))
        v = g.op("StaticTranspose", g.input((2, 8, 3, 4), dtype), order=[0, 2, 1, 3])
        return g.op("MatMul", g.op("SoftMax", s, axis=-1), v)

    yield "sdpa_turned_keys", turned_keys

    def dynamic(g: GraphBuilder) -> Tensor:
        def load(shape: Any) -> Tensor:
            own = g.input(shape, "s8"), g.input((1,), dtype), g.input((1,), "s8")
            return g.op("DynamicDequantize", *own, dtype=dtype)

        def pass_through(x: Tensor) -> Tensor:
            own = (g.input((1,)), g.input((1,), "u8"))
            q = g.op("DynamicQuantize", cast(g, x, "f32"), *own, dtype="u8")
            return cast(g, g.op("DynamicDequantize", q, *own, dtype="f32"), dtype)

        s = g.op("MatMul", load((2, 3, 8, 4)), load((2, 3, 8, 4)), transpose_b=True)
        p = g.op("SoftMax", g.op("Divide", s, g.input((1,), dtype)), axis=-1)
        y = cast(g, moved(g, g.op("MatMul", pass_through(p), load((2, 3, 8, 4)))), "f32")
        return g.op("DynamicQuantize", y, g.input((1,)), g.input((1,), "s8"), dtype="s8")

    yield "int8_sdpa_dynamic", dynamic
