"""Matrix products by a library: as it takes them, with a launch for what is behind them."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from ..._kernels.core.spaces import collapse
from ..._kernels.cuda.products import eltwise
from ...runtime.cuda.cublas_lt import TYPES, Matrix, Products
from ...typing import DataType
from .lowering import Tail

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..cpu.match.groups import AnchorGroup
    from ..cpu.products.matmul_problem import Product
    from .lowering import CudaLowering

__all__ = ["lower_by_library"]


def lower_by_library(
    lowering: CudaLowering, group: AnchorGroup, product: Product, bias_axis: int | None = None
) -> bool:
    """Emit a product if the library computes it; whether it does. A bias lies along an axis as `Tail` says.

    Sums go to where the result belongs if nothing is done to them, else to a temporary in f32.
    """
    op, library = group.anchor, lowering.products
    operands = _matrices(product)
    if library is None or operands is None or 0 in (*product.shape, product.k):
        return False
    bias = lowering.value(op.inputs[2].id) if len(op.inputs) > 2 else None
    dtype = lowering.dtypes[group.result]
    is_alone = not group.ops and bias is None and dtype.value in {"f32", product.a.dtype.value}
    made = dtype if is_alone else DataType.F32
    result = Matrix(product.n, product.m, product.n, product.m * product.n, made.value)
    found = library.plan(Products(prod(product.batch), *operands, result))
    if found is None:
        return False
    shape = lowering.shapes[group.result]
    sums = lowering.target(group.result) if is_alone else lowering.temporary(shape)
    workspace = [lowering.temporary((found.workspace_nbytes,), DataType.U8)] if found.workspace_nbytes else []
    lowering.launch(found, [product.b, product.a, sums, *workspace])
    if is_alone:
        lowering.finish(group.result, sums)
    else:
        tail = Tail(lowering, group, bias, bias_axis, sums=[sums])
        tail.emit(eltwise(tail.program))
    return True


def _matrices(product: Product) -> tuple[Matrix, Matrix] | None:
    """The operands of ``result^T = b^T a^T``, which columns that follow one another make of rows that do."""
    dtype, (*a_batch, a_row, a_depth), (*b_batch, b_depth, b_col) = (
        product.a.dtype.value, product.a_strides, product.b_strides
    )  # fmt: skip
    if dtype not in TYPES or product.b.dtype is not product.a.dtype:
        return None
    left = _matrix(product.n, product.k, b_col, b_depth, _step(product.batch, b_batch), dtype)
    right = _matrix(product.k, product.m, a_depth, a_row, _step(product.batch, a_batch), dtype)
    return None if left is None or right is None else (left, right)


def _step(batch: Sequence[int], strides: Sequence[int]) -> int | None:
    """From a matrix to the next one of a batch; None where there is no such number."""
    axes = collapse(batch, strides)
    return axes[0][1] if len(axes) == 1 else None


def _matrix(rows: int, cols: int, along: int, across: int, step: int | None, dtype: str) -> Matrix | None:
    """A matrix whose rows are `along` elements apart and whose columns `across`; None where no layout has that."""
    for is_turned, (height, width, unit, ld) in enumerate(((rows, cols, along, across), (cols, rows, across, along))):
        lead = ld if width > 1 else height
        if step is not None and (unit == 1 or height == 1) and lead >= height:
            return Matrix(height, width, lead, step, dtype, bool(is_turned))
    return None
