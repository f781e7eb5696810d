"""Fourier transforms as products with their matrices: DFT, and STFT of known length as a convolution with them."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

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


def _dft(n: NodeView) -> Value:
    x, is_onesided = n[0], bool(n.attr("onesided", 0))
    rank = len(x.shape)
    n.require(x.dtype in _FLOATS, "a transform in another type")
    n.require(rank > 1 and x.shape[-1] in (1, 2), "an input without a last axis of real and imaginary parts")
    n.require(not n.attr("inverse", 0), "an inverse")
    axis = n.attr("axis", 1)
    if n.opset >= 20:
        axis = int(n.known(2).reshape(())) if n.has(2) else -2
    n.require(-rank <= axis < rank and axis % rank != rank - 1, "another axis")
    axis %= rank
    size, nparts = x.shape[axis], int(x.shape[-1])
    [length] = n.ints("", 1) or [size]
    n.require(length > 0, "a transform of nothing")
    nbins = length // 2 + 1 if is_onesided else length
    ntimes = least(size, length)

    order = [*(k for k in range(rank - 1) if k != axis), axis, rank - 1]
    rows = n.emit("StaticTranspose", x, order=order) if order != list(range(rank)) else x
    others = [rows.shape[k] for k in range(rank - 2)]
    if ntimes is not size:
        rows = n.emit("Slice", rows, starts=[0], ends=[ntimes], axes=[rank - 2])
    flat = n.reshape(rows, (prod(others), ntimes * nparts))
    find = _varying_weights if any(map(is_variable, (length, ntimes))) else _known_weights
    found = n.reshape(n.emit("MatMul", flat, find(n, length, nbins, ntimes, nparts)), (*others, nbins, 2))
    back = [order.index(k) for k in range(rank)]
    return n.emit("StaticTranspose", found, order=back) if back != list(range(rank)) else found


def _known_weights(n: NodeView, length: int, nbins: int, ntimes: int, nparts: int) -> Value:
    """A matrix whose rows are times and parts, and whose columns are bins and parts."""
    waves = _waves(n, length, nbins)[:ntimes]
    parts = np.stack([np.stack([waves.real, waves.imag], -1), np.stack([-waves.imag, waves.real], -1)], 1)[:, :nparts]
    return n.literal(parts.reshape(-1, 2 * nbins), n[0])


def _varying_weights(n: NodeView, length: int, nbins: int, ntimes: int, nparts: int) -> Value:
    """As `_known_weights`, for lengths that vary: turns are whole numbers that f32 holds, less than half a one away."""
    n.require(length * nbins <= _MOST_WAVES, f"a transform of length {length}")
    times, bins = (n.cast(row, DataType.F32) for row in (
        n.builder.numbers(0, ntimes, behind=1), n.builder.numbers(0, nbins)))  # fmt: skip
    whole, turns = n.count(length, DataType.F32), n.emit("Multiply", times, bins)
    rounds = n.emit("Round", n.emit("Divide", turns, whole))
    turns = n.emit("Divide", n.emit("Subtract", turns, n.emit("Multiply", rounds, whole)), whole)
    angles = n.emit("Multiply", turns, n.literal(-2 * np.pi, turns))
    real, imag = (n.reshape(n.emit(kind, angles), (ntimes, 1, nbins, 1)) for kind in ("Cos", "Sin"))
    parts = [n.join([real, imag], 3)]
    if nparts == 2:
        parts.append(n.join([n.emit("Multiply", imag, n.literal(-1.0, imag)), real], 3))
    return n.cast(n.reshape(n.join(parts, 1), (ntimes * nparts, 2 * nbins)), n[0].dtype)


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
