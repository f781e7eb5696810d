"""The sliding window of convolutions and pools: sizes, and which elements meet which tap.

Tensors here have their channels first: spatial axes are the last ``len(kernel)``. At tap k, output o reads input
``o * stride + k * dilation - pad_begin``; where there is no such element lies padding, which nothing reads. So the work
is bounded by the tensors, however large kernels, strides, dilations and pads are.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from types import EllipsisType
from typing import TypeAlias

import numpy as np

from graphpool._dataclasses import NamedTuple, dataclass
from graphpool.graph.shapes import per_axis, resolve_pads, transposed_size, window_size

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

    def out_sizes(self, in_sizes: Sequence[int], *, ceil: bool = False) -> tuple[int, ...]:
        """Positions of the window along each axis; 0 where it does not fit."""
        return tuple(
            max(window_size(size, *axis, ceil=ceil), 0) for size, axis in zip(in_sizes, self._axes(), strict=True)
        )

    def in_sizes(self, out_sizes: Sequence[int], extra: Sequence[int]) -> tuple[int, ...]:
        """Sizes of a transposed convolution's result along each axis, `extra` output padding included; not below 0."""
        given = zip(out_sizes, self._axes(), extra, strict=True)
        return tuple(max(transposed_size(size, *axis, more), 0) for size, axis, more in given)

    def _axes(self) -> list[tuple[int, int, int, int]]:
        """Kernel, stride, dilation and both pads together of each axis."""
        pads = [begin + end for begin, end in zip(self.pads_begin, self.pads_end, strict=True)]
        return list(zip(self.kernel, self.strides, self.dilations, pads, strict=True))

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


def window_of(attrs: Attrs, in_sizes: Sequence[int], kernel: Sequence[int], *, transposed: bool = False) -> Window:
    """The window that the attributes describe; sizes are those of the input of the forward operation.

    Lists may be longer than the kernel (the schema's defaults have twelve elements); ``dilations`` may be missing (1).
    """
    pads = resolve_pads(attrs, in_sizes, kernel, transposed=transposed)
    lists = (kernel, attrs["strides"][: len(kernel)], per_axis(attrs, "dilations", len(kernel)), *pads)
    return Window(*map(tuple, lists))
