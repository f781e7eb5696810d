"""Fourier transforms as products with their matrices: DFT, and STFT of known length as a convolution with them."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from graphpool._dataclasses import dataclass
from graphpool._sizes import is_variable, least
from graphpool.typing import DataType

if TYPE_CHECKING:
    from graphpool.onnx.build import NodeView, Value

__all__ = ["CONVERTERS"]

_MOST_WAVES = 1 << 23
"""Elements of a matrix: of longer transforms a fast one takes less."""

_FLOATS = (DataType.F32, DataType.F16, DataType.BF16)


def _waves(n: NodeView, length: int, nbins: int) -> Any:
    """exp(-2 pi i k t / length) for times t and bins k; angles are reduced as integers, so that all are exact."""
    n.require(length * nbins <= _MOST_WAVES, f"a transform of length {length}")
    n.allow_table(32 * length * nbins)
    turns = np.outer(np.arange(length), np.arange(nbins)) % length
    return np.exp(-2j * np.pi * turns / length)


@dataclass(frozen=True)
class _Transform:
    """What a DFT multiplies: `ntimes` inputs of `nparts` parts by a matrix for `nbins` results.

    An inverse turns the other way round and divides by the length. One that `is_real` takes the first half of a
    spectrum, whose other half is conjugate, and gives real parts.
    """

    length: int
    nbins: int
    ntimes: int
    nparts: int
    is_inverse: bool
    is_real: bool

    @property
    def results(self) -> int:
        """Parts of a result."""
        return 1 if self.is_real else 2


def _dft(n: NodeView) -> Value:
    x, is_onesided, is_inverse = n[0], bool(n.attr("onesided", 0)), bool(n.attr("inverse", 0))
    rank, is_real = len(x.shape), is_onesided and is_inverse
    n.require(x.dtype in _FLOATS, "a transform in another type")
    n.require(rank > 1 and x.shape[-1] in (1, 2), "an input without a last axis of real and imaginary parts")
    axis = n.attr("axis", 1)
    if n.opset >= 20:
        axis = int(n.known(2).reshape(())) if n.has(2) else -2
    n.require(-rank <= axis < rank and axis % rank != rank - 1, "another axis")
    axis %= rank
    size, nparts = x.shape[axis], int(x.shape[-1])
    n.require(nparts == 2 or not is_real, "half of a spectrum without imaginary parts")
    [length] = n.ints("", 1) or [2 * (size - 1) if is_real else size]
    n.require(length > 0, "a transform of nothing")
    half = length // 2 + 1
    ntimes = least(size, half if is_real else length)
    transform = _Transform(length, half if is_onesided and not is_real else length, ntimes, nparts, is_inverse, is_real)

    order = [*(k for k in range(rank - 1) if k != axis), axis, rank - 1]
    rows = n.emit("StaticTranspose", x, order=order) if order != list(range(rank)) else x
    others = [rows.shape[k] for k in range(rank - 2)]
    if ntimes is not size:
        rows = n.emit("Slice", rows, starts=[0], ends=[ntimes], axes=[rank - 2])
    flat = n.reshape(rows, (prod(others), ntimes * nparts))
    find = _varying_weights if any(map(is_variable, (length, ntimes))) else _known_weights
    found = n.reshape(n.emit("MatMul", flat, find(n, transform)), (*others, transform.nbins, transform.results))
    back = [order.index(k) for k in range(rank)]
    return n.emit("StaticTranspose", found, order=back) if back != list(range(rank)) else found


def _known_weights(n: NodeView, t: _Transform) -> Value:
    """A matrix whose rows are times and parts, and whose columns are bins and parts."""
    waves = _waves(n, t.length, t.nbins)[: t.ntimes]
    if t.is_inverse:
        waves = waves.conj() / t.length
    if t.is_real:  # all but the first and the middle one of a spectrum stand for two
        k = np.arange(t.ntimes).reshape(-1, 1)
        waves = waves * np.where((k == 0) | (2 * k == t.length), 1, 2)
    parts = np.stack([np.stack([waves.real, waves.imag], -1), np.stack([-waves.imag, waves.real], -1)], 1)
    return n.literal(parts[:, : t.nparts, :, : t.results].reshape(-1, t.results * t.nbins), n[0])


def _varying_weights(n: NodeView, t: _Transform) -> Value:
    """As `_known_weights`, for lengths that vary: turns are whole numbers that f32 holds, less than half a one away."""
    length, nbins, ntimes = t.length, t.nbins, t.ntimes
    n.require(length * nbins <= _MOST_WAVES, f"a transform of length {length}")
    times, bins = (n.cast(row, DataType.F32) for row in (
        n.builder.numbers(0, ntimes, behind=1), n.builder.numbers(0, nbins)))  # fmt: skip
    whole, turns = n.count(length, DataType.F32), n.emit("Multiply", times, bins)
    rounds = n.emit("Round", n.emit("Divide", turns, whole))
    turns = n.emit("Divide", n.emit("Subtract", turns, n.emit("Multiply", rounds, whole)), whole)
    angles = n.emit("Multiply", turns, n.literal(2 * np.pi if t.is_inverse else -2 * np.pi, turns))
    waves = [n.emit(kind, angles) for kind in ("Cos", "Sin")]
    if t.is_real:
        shares = _shares(n, times, whole)
        waves = [n.emit("Multiply", wave, shares) for wave in waves]
    if t.is_inverse:
        waves = [n.emit("Divide", wave, whole) for wave in waves]
    real, imag = (n.reshape(wave, (ntimes, 1, nbins, 1)) for wave in waves)
    parts = [[real, imag], [n.emit("Multiply", imag, n.literal(-1.0, imag)), real]]
    rows = [n.join(row, 3) if t.results == 2 else row[0] for row in parts[: t.nparts]]
    return n.cast(n.reshape(n.join(rows, 1), (ntimes * t.nparts, t.results * nbins)), n[0].dtype)


def _shares(n: NodeView, bins: Value, length: Value) -> Value:
    """2, and 1 for the first and the middle bin of a spectrum: less how near to either of them it is."""
    one, two = n.literal(1.0, bins), n.literal(2.0, bins)
    from_middle = n.emit("Abs", n.emit("Subtract", n.emit("Multiply", bins, two), length))
    for distance in (bins, from_middle):
        two = n.emit("Subtract", two, n.emit("ReLU", n.emit("Subtract", one, distance)))
    return two


def _stft(n: NodeView) -> Value:
    """One channel that is convolved with the windowed waves of each bin, a step of the frames apart."""
    x = n[0]
    n.require(x.dtype in _FLOATS, "a transform in another type")
    n.require(len(x.shape) == 2 or (len(x.shape) == 3 and x.shape[2] == 1), "a signal that is not real")
    batch, size = x.shape[:2]
    step = int(n.known(1).reshape(()))
    window = n[2] if n.has(2) else None
    length = int(n.known(3).reshape(())) if n.has(3) else 0 if window is None else int(prod(window.shape))
    n.require(step > 0 and length > 0 and size >= length, "frames without a length, or longer than the signal")
    n.require(window is None or prod(window.shape) == length, "a window of another length than the frames")
    nbins = length // 2 + 1 if n.attr("onesided", 1) else length
    waves = _waves(n, length, nbins)
    parts = np.concatenate([waves.real.T, waves.imag.T])[:, None]
    if window is None or window.is_known:
        weights = n.literal(parts if window is None else parts * n.known(2).astype(np.float64).reshape(-1), x)
    else:
        weights = n.emit("Multiply", n.literal(parts, x), n.reshape(n.cast(window, x.dtype), (length,)))
    found = n.emit(
        "Convolution", n.reshape(x, (batch, 1, size)), weights, strides=[step], pads_begin=[0],
        pads_end=[0], dilations=[1], groups=1, data_format="NCX", weights_format="OIX",
    )  # fmt: skip
    halves = n.reshape(found, (batch, 2, nbins, found.shape[2]))
    return n.emit("StaticTranspose", halves, order=[0, 3, 2, 1])


CONVERTERS = {"DFT": _dft, "STFT": _stft}
