"""Maximum and average pooling in one to three spatial axes, any layout, with an elementwise epilogue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphpool.errors import InvalidArgumentError, InvalidShapeError, explain

from ..core.call import DTYPE_CODES, KernelCall, pack
from ..gemm.post_ops import NO_POST_OPS, PostOps
from .window import Window, plan_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["pooling"]


_LINES = 8
"""Channels whose lines are filled together (``GP_POOL_LINES``)."""

_VECTOR = 16
"""Most elements of a vector."""

_SHORT_LINE = 4096
"""Elements of a line up to which its padding is of no matter."""


def pooling(
    mode: str,
    batch: int,
    channels: int,
    src_spatial: Sequence[int],
    dst_spatial: Sequence[int],
    kernel: Sequence[int],
    *,
    src_strides: Sequence[int],
    dst_strides: Sequence[int],
    strides: Sequence[int] | None = None,
    pads_begin: Sequence[int] | None = None,
    pads_end: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    exclude_pad: bool = True,
    src_dtype: str = "f32",
    zero_point: int = 0,
    post_ops: PostOps = NO_POST_OPS,
    isa: str | None = None,
) -> KernelCall:
    """A kernel for the maximum or the mean of each window.

    Arguments of the kernel: src, dst (f32), then arguments 1, 2, ... of the epilogue (its argument 0 is dst).

    Parameters
    ----------
    mode : {"max", "avg"}
        Maximum: padding never wins, a NaN in the window does; a window of padding only gives -inf. Mean: a window in
        which no cell counts gives 0.
    batch, channels : int
    src_spatial, dst_spatial, kernel : sequence of int
        One to three axes each. The result extent decides between floor and ceil rounding; windows may stick out.
    src_strides, dst_strides : sequence of int
        (n, c, spatial...). Unit: elements. dst_strides also tells the order in which results are numbered for the
        epilogue: (n, spatial..., c) if no spatial stride is smaller than the channel stride, else (n, c, spatial...).
    strides, pads_begin, pads_end, dilations : sequence of int, optional
        Ones, zeros, zeros and ones by default.
    exclude_pad : bool, default=True
        Mean: divide by the cells inside the source; False also counts the cells of pads_begin and pads_end, but never
        what lies beyond them (ONNX ``count_include_pad``).
    src_dtype : {"f32", "u8", "s8"}, default="f32"
        Bytes need channels side by side in src and dst, and give the maximum or mean of the integers less zero_point.
    zero_point : int, default=0
        Of bytes: what is subtracted.
    post_ops : PostOps
        An epilogue, and nothing else.
    isa : str, optional
        Instruction set; the best one by default.

    Returns
    -------
    KernelCall
        One task for each row of results and block of channels.

    Raises
    ------
    InvalidArgumentError, InvalidShapeError, UnsupportedError
        The arguments do not fit each other.

    Notes
    -----
    Threads: the KernelCall is immutable; tasks write disjoint parts of dst.
    Cost: with channels side by side on both sides a load for each tap, else for each row and each column of the kernel;
    taps outside the source cost next to nothing, however many there are. Sums are f32.
    """
    post_ops.check_only_epilogue()
    if mode not in ("max", "avg"):
        raise InvalidArgumentError(explain("mode of pooling", accepted="max, avg", got=repr(mode)))
    window = Window.make(
        src_spatial, dst_spatial, kernel, strides=strides, dilations=dilations, pads_begin=pads_begin,
        src_strides=src_strides, dst_strides=dst_strides,
    )  # fmt: skip
    if src_dtype != "f32" and not (src_dtype in ("u8", "s8") and window.channels_last and window.src_strides[1] == 1):
        accepted = "f32, or u8 and s8 with channels side by side"
        raise InvalidArgumentError(explain("source of pooling", accepted=accepted, got=(src_dtype, tuple(src_strides))))
    ends = _pads_end(pads_end, len(src_spatial))
    rows, ntasks, room_offset = plan_rows(window, batch, channels, post_ops)
    counted = [extent + (0 if exclude_pad else end) for extent, end in zip(window.src, ends, strict=True)]
    fields = {
        "rows": rows, "counted": counted, "exclude_pad": exclude_pad, "src_dtype": DTYPE_CODES[src_dtype],
        "zero": zero_point + (128 if src_dtype == "s8" else 0), "is_sparse": _is_sparse(window),
    }  # fmt: skip
    name = f"{'f32' if src_dtype == 'f32' else 'x8'}_{mode}_pool"
    scratch_nbytes = room_offset + 4 * (window.dst[2] + _line_elements(window))
    return pack(name, fields, ntasks=ntasks, scratch_nbytes=scratch_nbytes, tail=post_ops.epilogue, isa=isa)


def _reach(window: Window) -> int:
    """Elements of a line that windows reach which make whole vectors of results."""
    results = -(-window.dst[2] // _VECTOR) * _VECTOR
    return results * window.strides[2] + (window.kernel[2] - 1) * window.dilations[2]


def _is_sparse(window: Window) -> bool:
    """Whether lines with their padding were much longer than what is read and written."""
    return _reach(window) > 4 * (window.src[2] + window.dst[2]) + _SHORT_LINE


def _line_elements(window: Window) -> int:
    """Room for the lines of a row, and a vector more each."""
    return _LINES * ((window.src[2] if _is_sparse(window) else _reach(window)) + _VECTOR)


def _pads_end(given: Sequence[int] | None, ndim: int) -> tuple[int, ...]:
    """Padding behind, filled up to three axes."""
    ends = (0,) * ndim if given is None else tuple(given)
    if len(ends) != ndim or min(ends) < 0:
        raise InvalidShapeError(explain("pads_end", accepted=f"{ndim} values >= 0", got=ends))
    return (0,) * (3 - ndim) + ends
