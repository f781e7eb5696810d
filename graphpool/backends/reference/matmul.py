"""Matrix multiplication."""

from __future__ import annotations

import numpy as np

from .registry import Array, Attrs, reference


def _transpose(matrix: Array, flag: bool) -> Array:
    """The last two axes swapped where `flag` says so; a vector stays as it is."""
    return np.swapaxes(matrix, -1, -2) if flag and matrix.ndim > 1 else matrix


@reference("MatMul")
def _matmul(attrs: Attrs, src: Array, weights: Array, bias: Array | None = None) -> Array:
    """`a @ b + bias` with NumPy's rules: vectors are promoted, batches broadcast, vector times vector has rank 0.

    ``accumulation_mode`` does not matter: float64 is at least as wide as any mode.
    """
    a, b = _transpose(src, attrs["transpose_a"]), _transpose(weights, attrs["transpose_b"])
    product = np.asarray(np.matmul(a, b))
    return product if bias is None else product + bias
