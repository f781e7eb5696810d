"""Recurrent layers, a sequence and a step at a time, as ONNX writes RNN, GRU and LSTM."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from .numbers import Array

Attrs = dict[str, Any]

GATES = {"rnn": 1, "gru": 3, "lstm": 4}
DEFAULTS = {"rnn": ["tanh"], "gru": ["sigmoid", "tanh"], "lstm": ["sigmoid", "tanh", "tanh"]}


def function(name: str, a: float, b: float) -> Callable[[Any], Any]:
    return {
        "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "tanh": np.tanh, "relu": lambda x: np.maximum(x, 0),
        "affine": lambda x: a * x + b, "leakyrelu": lambda x: np.where(x < 0, a * x, x),
        "thresholdedrelu": lambda x: np.where(x > a, x, 0), "scaledtanh": lambda x: a * np.tanh(b * x),
        "hardsigmoid": lambda x: np.minimum(np.maximum(a * x + b, 0), 1),
        "elu": lambda x: np.where(x < 0, a * (np.exp(np.minimum(x, 0)) - 1), x), "softsign": lambda x: x / (1 + abs(x)),
        "softplus": lambda x: np.logaddexp(0, x),
    }[name]  # fmt: skip


def as_bytes(rows: Array) -> Array:
    """What bytes over the range of all numbers stand for."""
    low, high = min(np.min(rows, initial=0), 0), max(np.max(rows, initial=0), 0)
    scale = np.float32((high - low) / 255) or np.float32(1 / 255)
    point = np.clip(np.rint(-low / scale), 0, 255)
    return (np.clip(np.rint(rows / scale) + point, 0, 255) - point) * float(scale)


def step(attrs: Attrs, acts: list[Any], given: Array, states: list[Array], own: list[Any]) -> Any:
    """The states after a step from h, what gates read of it, and c; `own` are weights, biases and peepholes or None."""
    (h, read, c), (weights, bias, peep) = states, own
    size, cell, limit = h.shape[-1], attrs["cell"], attrs.get("clip", math.inf)

    def gate(k: int, state: Array) -> Array:
        return (state @ weights + bias)[k * size : (k + 1) * size]

    def act(k: int, x: Array) -> Array:
        return acts[k](np.clip(x, -limit, limit))

    def seen(k: int, cell: Array) -> Any:
        return 0.0 if peep is None else peep[k * size : (k + 1) * size] * cell

    x = [given[k * size : (k + 1) * size] for k in range(GATES[cell])]
    if cell == "rnn":
        return act(0, x[0] + gate(0, read)), c
    if cell == "gru":
        z, r = act(0, x[0] + gate(0, read)), act(0, x[1] + gate(1, read))
        inner = r * gate(2, read) if attrs["linear_before_reset"] else gate(2, r * h)
        return (1 - z) * act(1, x[2] + inner) + z * h, c
    i = act(0, x[0] + gate(0, read) + seen(0, c))
    f = 1 - i if attrs["input_forget"] else act(0, x[2] + gate(2, read) + seen(2, c))
    c = f * c + i * act(1, x[3] + gate(3, read))
    o = act(0, x[1] + gate(1, read) + seen(1, c))
    return o * acts[2](c), c


def dense_weights(attrs: Attrs, weights: Array) -> Array:
    """(directions, hidden, gates * hidden), integers times their scales."""
    weights = np.asarray(np.swapaxes(weights, 1, 2) if attrs["transpose_b"] else weights, float)
    if not attrs["scales"]:
        return weights
    scales, points = (np.array(attrs[name], float).reshape(len(weights), 1, -1) for name in ("scales", "zps"))
    return (weights - points) * scales


def recurrent(attrs: Attrs, src: Array, weights: Array, biases: Array, lengths: Array, *states: Array) -> Any:
    cell, weights = attrs["cell"], dense_weights(attrs, weights)
    (directions, size, width), (steps, batch, _) = weights.shape, src.shape
    names = attrs["activations"].split() or DEFAULTS[cell] * directions
    alpha, beta = (list(attrs[name]) or [0.0] * len(names) for name in ("alpha", "beta"))
    functions = [function(*item) for item in zip(names, alpha, beta, strict=True)]
    peepholes = states[2] if len(states) > 2 else [None] * directions
    h, c = (
        np.array(np.broadcast_to(states[k], (directions, batch, size)), float) for k in (0, min(1, len(states) - 1))
    )
    assert all(0 <= n <= steps or n == 2**31 - 1 for n in lengths)
    lens = [min(int(n), steps) for n in np.broadcast_to(lengths, (batch,))]
    y = np.zeros((steps, directions, batch, size))
    for d in range(directions):
        acts = functions[d * len(DEFAULTS[cell]) :][: len(DEFAULTS[cell])]
        part = src[:, :, d * width : (d + 1) * width] + biases[d, :width]
        own = [weights[d], biases[d, width:], peepholes[d]]
        for t in range(steps)[:: -1 if d or attrs["direction"] == "reverse" else 1]:
            read = as_bytes(h[d]) if attrs["scales"] else h[d].copy()
            for n in [n for n in range(batch) if t < lens[n]]:
                h[d, n], c[d, n] = step(attrs, acts, part[t, n], [h[d, n], read[n], c[d, n]], own)
                y[t, d, n] = h[d, n]
    return (y, h, c) if cell == "lstm" else (y, h)


KINDS = {"Recurrent": recurrent}
