"""The sliding window of convolutions and pools: sizes, and which elements meet which tap.

Tensors here have their channels first: spatial axes are the last ``len(kernel)``. At tap k, output o reads input
``o * stride + k * dilation - pad_begin``; where there is no such element lies padding, which nothing reads. So the work
is bounded by the tensors, however large kernels, strides, dilations and pads are.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import EllipsisType
from typing import NamedTuple, TypeAlias

import numpy as np

from .registry import Array, Attrs

Index: TypeAlias = tuple[EllipsisType | slice | int, ...]


class Meeting(NamedTuple):
    """A tap of the window, the outputs that meet an element of the input there, and these elements."""

    tap: Index
    outputs: Index
    inputs: Index


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

    def meetings(self, in_sizes: Sequence[int], out_sizes: Sequence[int]) -> Iterator[Meeting]:
        """All taps that meet an element, row-major."""
        axes = [self._axis_meetings(axis, n, m) for axis, (n, m) in enumerate(zip(in_sizes, out_sizes, strict=True))]
        for parts in itertools.product(*axes):
            taps, outputs, inputs = zip(*parts, strict=True)
            yield Meeting((..., *taps), (..., *outputs), (..., *inputs))

    def _axis_meetings(self, axis: int, in_size: int, out_size: int) -> list[tuple[int, slice, slice]]:
        """Along one axis the taps that meet an element, with their outputs and these elements."""
        stride, dilation, begin = self.strides[axis], self.dilations[axis], self.pads_begin[axis]
        found = []
        for tap in self._candidates(axis, in_size, out_size):
            shift = begin - tap * dilation
            first, last = max(-(-shift // stride), 0), min((in_size - 1 + shift) // stride, out_size - 1)
            if first <= last:
                start, stop = first * stride - shift, last * stride - shift + 1
                found.append((tap, slice(first, last + 1), slice(start, stop, stride if first < last else 1)))
        return found

    def _candidates(self, axis: int, in_size: int, out_size: int) -> Sequence[int]:
        """Taps among which are all that meet an element: those of the kernel, or those of each output."""
        kernel, dilation = self.kernel[axis], self.dilations[axis]
        if kernel <= out_size * (in_size // dilation + 2):
            return range(kernel)
        starts = [self.pads_begin[axis] - output * self.strides[axis] for output in range(out_size)]
        ranges = [(max(-(-start // dilation), 0), (in_size - 1 + start) // dilation + 1) for start in starts]
        return sorted({tap for low, high in ranges for tap in range(low, min(high, kernel))})

    def counts(self, in_sizes: Sequence[int], out_sizes: Sequence[int], *, with_pads: bool) -> Array:
        """Elements in each window: those of the input, perhaps with those of its pads; in float64."""
        total = np.ones(())
        for axis, (size, count) in enumerate(zip(in_sizes, out_sizes, strict=True)):
            least, end = (-self.pads_begin[axis], size + self.pads_end[axis]) if with_pads else (0, size)
            total = np.multiply.outer(total, self._axis_counts(axis, least, end, count))
        return total

    def _axis_counts(self, axis: int, least: int, end: int, out_size: int) -> list[float]:
        """Taps of each output that lie at `least` or behind, and before `end`."""
        dilation, found = self.dilations[axis], []
        for output in range(out_size):
            start = output * self.strides[axis] - self.pads_begin[axis]
            first = max(-((start - least) // dilation), 0)
            found.append(float(max(min((end - 1 - start) // dilation + 1, self.kernel[axis]) - first, 0)))
        return found


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
