"""Convolutions by their definition, in float64, and weights in the layouts of the field."""

import itertools

import numpy as np


def expected_conv(x, w, groups, strides, begin, end, dilations):
    """By the definition, in float64: w is (group, oc, ic, spatial...)."""
    ndim = x.ndim - 2
    padded = np.pad(x.astype(np.float64), [(0, 0), (0, 0), *zip(begin, end, strict=True)])
    padded = padded.reshape(x.shape[0], groups, w.shape[2], *padded.shape[2:])
    reach = [d * (k - 1) for k, d in zip(w.shape[3:], dilations, strict=True)]
    dst = [(n - r - 1) // s + 1 for n, r, s in zip(padded.shape[3:], reach, strides, strict=True)]
    out = np.zeros((x.shape[0], groups, w.shape[1], *dst))
    for tap in itertools.product(*map(range, w.shape[3:])):
        cut = tuple(
            slice(t * d, t * d + s * (m - 1) + 1 if m else 0, s)
            for t, d, s, m in zip(tap, dilations, strides, dst, strict=True)
        )
        assert len(cut) == ndim
        out += np.einsum("ngi...,goi->ngo...", padded[(..., *cut)], w[(..., *tap)].astype(np.float64))
    return out.reshape(x.shape[0], groups * w.shape[1], *dst)


def expected_transpose(x, w, groups, strides, begin, end, dilations, extra):
    """Every input cell adds its weighted kernel to the results, in float64."""
    full = [
        s * (n - 1) + d * (k - 1) + 1 + e
        for n, k, s, d, e in zip(x.shape[2:], w.shape[3:], strides, dilations, extra, strict=True)
    ]
    out = np.zeros((x.shape[0], groups, w.shape[1], *full))
    parts = x.reshape(x.shape[0], groups, w.shape[2], *x.shape[2:]).astype(np.float64)
    for tap in itertools.product(*map(range, w.shape[3:])):
        cut = tuple(
            slice(t * d, t * d + s * (n - 1) + 1, s)
            for t, d, s, n in zip(tap, dilations, strides, x.shape[2:], strict=True)
        )
        out[(..., *cut)] += np.einsum("ngi...,goi->ngo...", parts, w[(..., *tap)].astype(np.float64))
    crop = tuple(slice(b, n - e) for b, e, n in zip(begin, end, full, strict=True))
    return out[(..., *crop)].reshape(x.shape[0], groups * w.shape[1], *(c.stop - c.start for c in crop))


def store_weights(w, layout):
    """Flat memory and strides (group, oc, ic, spatial...) of weights."""
    spatial = range(3, w.ndim)
    order = {"OIX": (0, 1, 2, *spatial), "XIO": (*spatial, 2, 0, 1), "XOI": (*spatial, 1, 0, 2), "gap": range(w.ndim)}
    order = tuple(order[layout])
    strides, step = [0] * w.ndim, 2 if layout == "gap" else 1
    for axis in reversed(order):
        strides[axis] = step
        step *= max(w.shape[axis], 1)
    memory = np.full(step, np.nan, np.float32)
    memory[:: 2 if layout == "gap" else 1][: w.size] = w.transpose(order).reshape(-1)
    return memory, tuple(strides)
