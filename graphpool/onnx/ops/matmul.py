"""Products of matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from graphpool.onnx.build import NodeView, Value


def _matmul(n: NodeView) -> Value:
    return n.emit("MatMul", n[0], n[1])


def _gemm(n: NodeView) -> Value:
    """Alpha A B + beta C; a row C goes into the product as its bias."""
    alpha, beta = n.attr("alpha", 1.0), n.attr("beta", 1.0)
    transposed = {"transpose_a": bool(n.attr("transA", 0)), "transpose_b": bool(n.attr("transB", 0))}
    addend = n[2] if n.has(2) and beta != 0 else None
    if addend is not None and beta != 1:
        addend = n.emit("Multiply", addend, n.literal(beta, addend))
    if addend is not None and alpha == 1 and len(addend.shape) == 1:
        return n.emit("MatMul", n[0], n[1], addend, **transposed)
    product = n.emit("MatMul", n[0], n[1], **transposed)
    if alpha != 1:
        product = n.emit("Multiply", product, n.literal(alpha, product))
    return product if addend is None else n.emit("Add", product, addend)


CONVERTERS = {"MatMul": _matmul, "Gemm": _gemm}
