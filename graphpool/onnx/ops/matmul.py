"""Products of matrices; Einsum: pairs of operands as such products, batched over the labels that both keep."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from graphpool.graph.shapes import are_equal
from graphpool.typing import DataType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphpool.onnx.build import NodeView, Value


_FLOATS = (DataType.F64, DataType.F32, DataType.F16, DataType.BF16)

_MOST_TERMS = 2**22
"""So many products of two integers may stand in memory before they are summed; the host holds none of them."""


def _matmul(n: NodeView) -> Value:
    a, b = n[0], n[1]
    if a.dtype in _FLOATS:
        return n.emit("MatMul", a, b)
    n.require(min(len(a.shape), len(b.shape)) > 0, "an operand without dimensions")
    left, right = (value if len(value.shape) > 1 else n.reshape(value, shape)
                   for value, shape in ((a, (1, *a.shape)), (b, (*b.shape, 1))))  # fmt: skip
    product = _product(n, left, right)
    rows, columns = a.shape[-2:-1], b.shape[-1:] if len(b.shape) > 1 else ()
    return n.reshape(product, (*product.shape[:-2], *rows, *columns))


def _product(n: NodeView, left: Value, right: Value) -> Value:
    """That of matrices; of integers, which no kernel multiplies so, sums of all products, which wrap around."""
    if left.dtype in _FLOATS:
        return n.emit("MatMul", left, right)
    inner, rows = left.shape[-1], len(right.shape) - 2
    n.require(are_equal((inner,), (right.shape[rows],)), "operands whose inner sizes differ")
    batch = n.broadcast(left.shape[:-2], right.shape[:rows])
    n.require(prod((*batch, *left.shape[-2:], right.shape[-1])) <= _MOST_TERMS, "products of that many integers")
    terms = n.emit(
        "Multiply", n.reshape(left, (*left.shape, 1)), n.reshape(right, (*right.shape[:rows], 1, *right.shape[rows:]))
    )
    return n.emit("ReduceSum", terms, axes=[len(terms.shape) - 2], keep_dims=False)


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


# ---- Einsum


def _einsum(n: NodeView) -> Value:
    terms, result = _labels(n)
    operands = [_diagonal(n, n[k], term) for k, term in enumerate(terms)]
    value, labels = operands[0]
    for k, (operand, other) in enumerate(operands[1:], 1):
        later = set(result).union(*terms[k + 1 :])
        value, labels = _multiply(n, value, labels, operand, other, later)
    value, labels = _sum_out(n, value, labels, set(result))
    return _ordered(n, value, labels, result)


def _labels(n: NodeView) -> tuple[list[str], str]:
    """Labels of the operands and of the result, one a dimension; those of an ellipsis are letters of their own."""
    from string import ascii_letters

    equation = n.attr("equation").replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    n.require(len(terms) == len(n.inputs), "terms and operands differ in number")
    spare = [letter for letter in ascii_letters if letter not in equation]
    ranks = [len(n[k].shape) - len(term.replace("...", "")) for k, term in enumerate(terms)]
    dots = max((rank for rank, term in zip(ranks, terms, strict=True) if "..." in term), default=0)
    extra = "".join(spare[:dots])
    full = [term.replace("...", extra[dots - rank :]) for term, rank in zip(terms, ranks, strict=True)]
    if not arrow:
        once = sorted(label for label in set(left) - set(",.") if left.count(label) == 1)
        right = ("..." if "..." in left else "") + "".join(once)
    for k, term in enumerate(full):
        n.require(len(term) == len(n[k].shape), "labels and dimensions differ in number")
    return full, right.replace("...", extra)


def _diagonal(n: NodeView, value: Value, labels: str) -> tuple[Value, str]:
    """The elements at which equal labels agree: of a square matrix each that lies a row and an element further."""
    for label in sorted(set(labels)):
        while labels.count(label) > 1:
            first = labels.index(label)
            pair = first, labels.index(label, first + 1)
            size, other = (value.shape[axis] for axis in pair)
            n.require(size == other, "a diagonal of what is not square")
            rest = [axis for axis in range(len(labels)) if axis not in pair]
            value = n.emit("StaticTranspose", value, order=[*rest, *pair])
            rows = n.reshape(value, (*value.shape[:-2], size * size))
            value = n.emit("Slice", rows, starts=[0], ends=[size * size], axes=[len(rest)], steps=[size + 1])
            labels = "".join([*(labels[axis] for axis in rest), label])
    return value, labels


def _sum_out(n: NodeView, value: Value, labels: str, kept: set[str]) -> tuple[Value, str]:
    gone = [axis for axis, label in enumerate(labels) if label not in kept]
    if not gone:
        return value, labels
    return n.emit("ReduceSum", value, axes=gone, keep_dims=False), "".join(label for label in labels if label in kept)


def _ordered(n: NodeView, value: Value, labels: Sequence[str], wanted: Sequence[str]) -> Value:
    order = [labels.index(label) for label in wanted]
    return value if order == sorted(order) else n.emit("StaticTranspose", value, order=order)


def _multiply(n: NodeView, a: Value, a_labels: str, b: Value, b_labels: str, later: set[str]) -> tuple[Value, str]:
    """The product of two operands, summed over the labels that nobody needs any more."""
    a, a_labels = _sum_out(n, a, a_labels, set(b_labels) | later)
    b, b_labels = _sum_out(n, b, b_labels, set(a_labels) | later)
    sizes = dict(zip(a_labels, a.shape, strict=True))
    shared = [label for label in a_labels if label in b_labels]
    n.require(all(sizes[label] == b.shape[b_labels.index(label)] for label in shared), "operands that broadcast")
    sizes |= dict(zip(b_labels, b.shape, strict=True))
    batch = [label for label in shared if label in later]
    inner = [label for label in shared if label not in later]
    rows, columns = ([x for x in labels if x not in shared] for labels in (a_labels, b_labels))
    labels = "".join([*batch, *rows, *columns])
    result = tuple(sizes[label] for label in labels)
    count = {key: prod(sizes[label] for label in group) for key, group in
             (("batch", batch), ("rows", rows), ("inner", inner), ("columns", columns))}  # fmt: skip
    left = n.reshape(_ordered(n, a, a_labels, [*batch, *rows, *inner]), (count["batch"], count["rows"], count["inner"]))
    right = _ordered(n, b, b_labels, [*batch, *inner, *columns])
    right = n.reshape(right, (count["batch"], count["inner"], count["columns"]))
    return n.reshape(_product(n, left, right), result), labels


CONVERTERS = {"MatMul": _matmul, "Gemm": _gemm, "Einsum": _einsum}
