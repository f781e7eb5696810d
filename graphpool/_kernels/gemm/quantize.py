"""Dynamic quantisation: bytes whose scale and zero point follow from the range of all numbers.

    ranges = range_of_parts(n)          # args: src, ranges
    quantize_dynamic(n)                 # args: src, ranges, dst, scale, zero point

Kernels: ``f32_range``, ``f32_quantize_dynamic``; ``gemm/quantize.c`` says how they work.
"""

from __future__ import annotations

from graphpool.errors import InvalidShapeError, explain

from ..core.call import KernelCall, pack

__all__ = ["nparts_of", "quantize_dynamic", "range_of_parts"]

_LEAST_PART, _MOST_PARTS = 1 << 13, 256
"""Elements of a part: a microsecond or two; and so few parts that every task may read all of their ranges."""


def nparts_of(n: int) -> int:
    """Parts of n numbers, at least one; a negative n is an `InvalidShapeError`, here and in the builders."""
    if n < 0:
        raise InvalidShapeError(explain("count of numbers to quantise", accepted=">= 0", got=n))
    return max(-(-n // _part_of(n)), 1)


def _part_of(n: int) -> int:
    """Elements of a part: whole lines of 64 bytes on both sides."""
    return max(_LEAST_PART, -(-n // (_MOST_PARTS * 64)) * 64)


def range_of_parts(n: int, isa: str | None = None) -> KernelCall:
    """A kernel for the least and the greatest number of each part, and of zero; NaN is passed over.

    Arguments: src of n f32, ranges of shape (nparts_of(n), 2), f32. Tasks are parts.
    """
    return _pack("f32_range", n, isa)


def quantize_dynamic(n: int, isa: str | None = None) -> KernelCall:
    """A kernel for ``dst = clamp(round(src / scale) + zero, 0, 255)`` by the range [least, greatest] of all numbers.

    scale = (greatest - least) / 255, as if the range were [0, 1] where it holds nothing but zero, and zero =
    clamp(round(-least / scale), 0, 255); halves are rounded to even. Bytes of NaN are any; else they are the same on
    every instruction set. Source: ONNX, DynamicQuantizeLinear.

    Arguments: src of n f32, what `range_of_parts` gave, dst of n u8, scale (one f32), zero (one u8), which the first
    task writes. Tasks are parts. Cost: one division an element.
    """
    return _pack("f32_quantize_dynamic", n, isa)


def _pack(name: str, n: int, isa: str | None) -> KernelCall:
    nparts = nparts_of(n)
    return pack(name, {"n": n, "part": _part_of(n), "nparts": nparts}, ntasks=nparts, isa=isa)
