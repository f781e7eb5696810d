"""The sliding window of convolutions and pools: padding, regions, sizes.

Tensors here have their channels first: spatial axes are the last ``len(kernel)``. One loop over the window's positions
replaces loops over outputs: at position k, output o reads input ``o * stride + k * dilation - pad_begin``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import EllipsisType
from typing import TypeAlias

import numpy as np

from .registry import Array, Attrs

__all__ = ["Index", "Window", "window_of"]

Index: TypeAlias = tuple[EllipsisType | slice | int, ...]


@dataclass(frozen=True, slots=True)
class Window:
    """Geometry of a sliding window; one entry a spatial axis. Unit: elements."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads_begin: tuple[int, ...]
    pads_end: tuple[int, ...]

    @property
    def ndim(self) -> int:
        """Number of spatial axes."""
        return len(self.kernel)

    @property
    def extent(self) -> tuple[int, ...]:
        """Input elements that the dilated window spans."""
        return tuple(d * (k - 1) + 1 for k, d in zip(self.kernel, self.dilations, strict=True))

    def padded_sizes(self, in_sizes: Sequence[int]) -> tuple[int, ...]:
        """Input sizes with both pads."""
        return tuple(n + b + e for n, b, e in zip(in_sizes, self.pads_begin, self.pads_end, strict=True))

    def out_sizes(self, in_sizes: Sequence[int], *, ceil: bool = False) -> tuple[int, ...]:
        """(padded - extent) / stride + 1, rounded down or up; 0 where the window does not fit."""
        room = [n - e for n, e in zip(self.padded_sizes(in_sizes), self.extent, strict=True)]
        steps = [-(-r // s) if ceil else r // s for r, s in zip(room, self.strides, strict=True)]
        return tuple(max(step + 1, 0) for step in steps)

    def full_sizes(self, out_sizes: Sequence[int]) -> tuple[int, ...]:
        """Padded input sizes that `out_sizes` windows span: the inverse of `out_sizes`."""
        return tuple(s * (o - 1) + e for s, o, e in zip(self.strides, out_sizes, self.extent, strict=True))

    @staticmethod
    def tap(position: Sequence[int]) -> Index:
        """Index of the weights, whose last axes are the kernel's, at `position`."""
        return (..., *position)

    def positions(self) -> Iterator[tuple[int, ...]]:
        """Every index into the kernel, row-major."""
        return itertools.product(*map(range, self.kernel))

    def region(self, position: Sequence[int], out_sizes: Sequence[int]) -> Index:
        """Index of the padded elements that `position` of the window meets, one for each output."""
        starts = [p * d for p, d in zip(position, self.dilations, strict=True)]
        geometry = zip(starts, out_sizes, self.strides, strict=True)
        return (..., *(slice(start, start + o * s, s) for start, o, s in geometry))

    def buffer(self, lead: Sequence[int], in_sizes: Sequence[int], out_sizes: Sequence[int], fill: float) -> Array:
        """A padded tensor that holds `fill` everywhere, large enough for every window (rounding up may exceed it)."""
        pairs = zip(self.padded_sizes(in_sizes), self.full_sizes(out_sizes), strict=True)
        return np.full((*lead, *(max(pair) for pair in pairs)), fill, dtype=np.float64)

    def pad(self, array: Array, out_sizes: Sequence[int], fill: float = 0.0) -> Array:
        """`array` inside a `buffer` of `fill`."""
        lead, in_sizes = array.shape[: array.ndim - self.ndim], array.shape[array.ndim - self.ndim :]
        padded = self.buffer(lead, in_sizes, out_sizes, fill)
        self.crop(padded, in_sizes)[...] = array
        return padded

    def crop(self, padded: Array, in_sizes: Sequence[int]) -> Array:
        """View of the unpadded part of a `buffer`."""
        inner: Index = (..., *(slice(b, b + n) for b, n in zip(self.pads_begin, in_sizes, strict=True)))
        return padded[inner]


def _same_pads(in_size: int, extent: int, stride: int, *, upper: bool) -> tuple[int, int]:
    """Pads that give ceil(in / stride) outputs; the odd element goes to the end for SAME_UPPER."""
    total = max((-(-in_size // stride) - 1) * stride + extent - in_size, 0)
    small, large = total // 2, total - total // 2
    return (small, large) if upper else (large, small)


def window_of(
    attrs: Attrs, in_sizes: Sequence[int], kernel: Sequence[int], output_padding: Sequence[int] | None = None
) -> Window:
    """The window that the attributes describe, ``auto_pad`` resolved for inputs of `in_sizes`.

    Lists may be longer than the kernel (the schema's defaults have twelve elements); ``dilations`` may be missing (1).
    SAME pads of a transposed convolution also take away its `output_padding`.
    """
    ndim = len(kernel)
    dilations = tuple(attrs.get("dilations", [1] * ndim)[:ndim])
    strides, begin, end = (tuple(attrs[name][:ndim]) for name in ("strides", "pads_begin", "pads_end"))
    window = Window(tuple(kernel), strides, dilations, begin, end)
    auto_pad = attrs.get("auto_pad", "None")
    if auto_pad == "None":
        return window
    pads = [(0, 0)] * ndim
    if auto_pad != "VALID":
        geometry = zip(in_sizes, window.extent, output_padding or (0,) * ndim, strides, strict=True)
        pads = [_same_pads(n, e + extra, s, upper=auto_pad == "SAME_UPPER") for n, e, extra, s in geometry]
    return Window(tuple(kernel), strides, dilations, tuple(p[0] for p in pads), tuple(p[1] for p in pads))
