"""Attention as training spells it."""

from __future__ import annotations


class Training:
    """Adds the scores of attention to a graph, and what forward and backward make of them."""

    def __init__(
        self, g, heads=(2, 3), kv=None, queries=9, keys=11, depth=8, values=6, dtype="f32", scale="Multiply", mask="",
        select="", is_early=False, dropout=False, turned=False,
    ):  # fmt: skip
        self.g, self.dtype, self.heads, self.scale, self.is_dropped = g, dtype, heads, scale, dropout
        kv = kv or heads
        self.shared = [axis for axis, (own, other) in enumerate(zip(heads, kv, strict=True)) if own != other]
        self.turned = turned
        self.q = g.input((*heads, queries, depth), dtype)
        self.k = g.input((*kv, depth, keys) if turned else (*kv, keys, depth), dtype)
        self.v = g.input((*kv, keys, values), dtype)
        self.rows = (*heads, queries)
        self.values = values
        s = g.op("MatMul", self.q, self.k, dtype="f32", transpose_b=not turned)
        if is_early:
            s = self._select(s, select)
        if scale:
            self.factor = g.input((1,), dtype)
            s = g.op(scale, s, self.factor, dtype="f32")
        if mask:
            s = g.op("Add", s, g.input((*[1] * len(heads), 1, keys) if mask == "keys" else (*self.rows, keys), dtype))
        if select and not is_early:
            s = self._select(s, select)
        self.scores = s
        self.draws = [g.input((), "s64"), g.input((), "s64"), g.input((), "f32")] if dropout else []

    def _select(self, s, select):
        g = self.g
        if select == "condition":
            shown = g.input((*[1] * len(self.heads), *g.graph_shape(s)[-2:]), "boolean")
        else:
            rows, columns = (g.op("GenIndex", s, dtype="s32", axis=axis) for axis in (-2, -1))
            if select == "bottom_right":
                rows = g.op("Subtract", g.op("Add", rows, g.input((), "s32")), g.input((), "s32"))
            shown = g.op("GreaterEqual", rows, columns, dtype="boolean")
        return g.op("Select", shown, s, g.input((), "f32"), dtype="f32")

    def _cast(self, x):
        return x if self.dtype == "f32" else self.g.op("TypeCast", x, dtype=self.dtype)

    def forward(self, is_drawn=False):
        g = self.g
        p, _ = g.op("SoftMax", self.scores, axis=-1, mode="inf_as_zero", n=2, dtype=["f32", "f32"])
        if self.is_dropped:
            p = g.op("Dropout", p, *self.draws, n=1 + is_drawn, dtype=["f32", "u8"][: 1 + is_drawn])
            p = p[0] if is_drawn else p
        return g.op("MatMul", self._cast(p), self.v, dtype=self.dtype)

    def backward(self, is_summed=True, reads_scores=False):
        g = self.g
        result, d = (g.input((*self.rows, self.values), self.dtype) for _ in range(2))
        stats = g.input((*self.rows, 1))
        p = g.op("Exp", g.op("Subtract", self.scores, stats))
        dropped = g.op("Dropout", p, *self.draws) if self.is_dropped else p
        d_v = g.op("MatMul", self._cast(dropped), d, dtype=self.dtype, transpose_a=True)
        dp = g.op("MatMul", d, self.v, dtype="f32", transpose_b=True)
        dp = g.op("Dropout", dp, *self.draws) if self.is_dropped else dp
        rank = len(self.rows)
        delta = g.op("ReduceSum", g.op("Multiply", result, d, dtype="f32"), axes=[rank], keep_dims=True)
        ds = g.op("Multiply", p, g.op("Subtract", dp, delta))
        if reads_scores:
            g.op("Abs", ds)
        scaled = self._cast(g.op(self.scale, ds, self.factor, dtype="f32") if self.scale else ds)
        g.op("MatMul", scaled, self.k, dtype=self.dtype, transpose_b=self.turned)
        d_k = g.op("MatMul", scaled, self.q, dtype=self.dtype, transpose_a=True)
        if self.shared and is_summed:
            for x in (d_k, d_v):
                g.op("ReduceSum", x, axes=self.shared, keep_dims=True)
