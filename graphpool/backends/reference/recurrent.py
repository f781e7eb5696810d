"""Recurrent layers: RNN, GRU and LSTM as ONNX writes them, all sequences of a step at a time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from graphpool.errors import InvalidArgumentError, explain

from .eltwise import sigmoid
from .registry import Array, Attrs, reference

_DEFAULTS = {"rnn": ["tanh"], "gru": ["sigmoid", "tanh"], "lstm": ["sigmoid", "tanh", "tanh"]}
"""Cell -> activations of a direction."""
_ALL = 2**31 - 1
"""Length of a sequence of all steps."""


_ACTIVATIONS: dict[str, Callable[[Array, float, float], Array]] = {
    "sigmoid": lambda x, a, b: sigmoid(x),
    "tanh": lambda x, a, b: np.tanh(x),
    "relu": lambda x, a, b: np.maximum(x, 0),
    "affine": lambda x, a, b: a * x + b,
    "leakyrelu": lambda x, a, b: np.where(x < 0, a * x, x),
    "thresholdedrelu": lambda x, a, b: np.where(x > a, x, 0),
    "scaledtanh": lambda x, a, b: a * np.tanh(b * x),
    "hardsigmoid": lambda x, a, b: np.clip(a * x + b, 0, 1),
    "elu": lambda x, a, b: np.where(x < 0, a * np.expm1(np.minimum(x, 0)), x),
    "softsign": lambda x, a, b: x / (1 + np.abs(x)),
    "softplus": lambda x, a, b: np.logaddexp(x, 0),
}


class _Direction:
    """The weights of a direction, its activations, and the states h and c, which steps replace."""

    def __init__(
        self, attrs: Attrs, number: int, weights: Array, bias: Array, h: Array, c: Array, peep: Array | None
    ) -> None:
        names = attrs["activations"].split() or _DEFAULTS[attrs["cell"]] * (number + 1)
        count = len(_DEFAULTS[attrs["cell"]])
        numbers = [attrs[name] or (0.0,) * len(names) for name in ("alpha", "beta")]
        self._functions = list(zip(names, *numbers, strict=True))[number * count : (number + 1) * count]
        self._limit = attrs.get("clip", np.inf)
        self._is_int8 = bool(attrs["scales"])
        self._weights, self._bias = weights, bias
        self.h, self.c, self._peepholes = h, c, None if peep is None else np.split(peep, 3)

    def act(self, which: int, x: Array, *, clip: bool = True) -> Array:
        name, alpha, beta = self._functions[which]
        return _ACTIVATIONS[name](np.clip(x, -self._limit, self._limit) if clip else x, alpha, beta)

    def peephole(self, which: int, c: Array) -> Array | float:
        """What gate `which` of input, output and forget sees of a cell."""
        return 0.0 if self._peepholes is None else np.asarray(self._peepholes[which] * c)

    def gates(self, state: Array) -> list[Array]:
        """The state's part of all gates."""
        sums = (_as_bytes(state) if self._is_int8 else state) @ self._weights + self._bias
        return np.split(sums, sums.shape[1] // state.shape[1], 1)


def _as_bytes(x: Array) -> Array:
    """What the bytes of DynamicQuantizeLinear stand for."""
    low, high = min(x.min(initial=0), 0), max(x.max(initial=0), 0)
    scale = (high - low or 1) / 255
    point = np.clip(np.rint(-low / scale), 0, 255)
    return np.asarray((np.clip(np.rint(x / scale) + point, 0, 255) - point) * scale)


def _rnn(attrs: Attrs, given: list[Array], own: _Direction) -> tuple[Array, Array]:
    return own.act(0, given[0] + own.gates(own.h)[0]), own.c


def _gru(attrs: Attrs, given: list[Array], own: _Direction) -> tuple[Array, Array]:
    parts = own.gates(own.h)
    update, reset = (own.act(0, given[k] + parts[k]) for k in (0, 1))
    part = reset * parts[2] if attrs["linear_before_reset"] else own.gates(reset * own.h)[2]
    return (1 - update) * own.act(1, given[2] + part) + update * own.h, own.c


def _lstm(attrs: Attrs, given: list[Array], own: _Direction) -> tuple[Array, Array]:
    sums = [a + b for a, b in zip(given, own.gates(own.h), strict=True)]
    taken = own.act(0, sums[0] + own.peephole(0, own.c))
    left = 1 - taken if attrs["input_forget"] else own.act(0, sums[2] + own.peephole(2, own.c))
    c = left * own.c + taken * own.act(1, sums[3])
    return own.act(0, sums[1] + own.peephole(1, c)) * own.act(2, c, clip=False), c


_STEPS = {"rnn": _rnn, "gru": _gru, "lstm": _lstm}


@reference("Recurrent")
def _recurrent(
    attrs: Attrs,
    src: Array,
    weights: Array,
    biases: Array,
    lengths: Array,
    h: Array,
    c: Array | None = None,
    peepholes: Array | None = None,
) -> tuple[Array, ...]:
    """A state stays as it is outside of its sequence, and dst there is zero. ValueError: shapes do not fit.

    InvalidArgumentError: a length is neither one of 0 .. steps nor 2**31 - 1, which stands for all of them.
    """
    columns = weights.swapaxes(1, 2) if attrs["transpose_b"] else weights
    directions, hidden, width = columns.shape
    if attrs["scales"]:
        scales, points = (np.reshape(attrs[name], (directions, 1, -1)) for name in ("scales", "zps"))
        columns = (columns - points) * scales
    steps, batch, _ = src.shape
    outside = lengths[(lengths < 0) | ((lengths > steps) & (lengths != _ALL))]
    if outside.size:
        raise InvalidArgumentError(explain("length of a sequence", accepted=f"0 to {steps}", got=int(outside.flat[0])))
    rows = (directions, batch, hidden)
    h, c = np.broadcast_to(h, rows), np.broadcast_to(h if c is None else c, rows)
    given = src.reshape(steps, batch, directions, width)
    dst, last = np.zeros((steps, *rows)), []
    for d in range(directions):
        peep = None if peepholes is None else peepholes[d]
        own = _Direction(attrs, d, columns[d], biases[d, width:], h[d], c[d], peep)
        order = range(steps)[:: -1 if d or attrs["direction"] == "reverse" else 1]
        for t in order:
            parts = np.split(given[t, :, d] + biases[d, :width], width // hidden, 1)
            fresh = _STEPS[attrs["cell"]](attrs, parts, own)
            inside = (t < np.broadcast_to(lengths, (batch,))).reshape(-1, 1)
            own.h, own.c = np.where(inside, fresh[0], own.h), np.where(inside, fresh[1], own.c)
            dst[t, d] = np.where(inside, own.h, 0)
        last.append((own.h, own.c))
    last_h, last_c = (np.stack(states) for states in zip(*last, strict=True))
    return (dst, last_h, last_c) if attrs["cell"] == "lstm" else (dst, last_h)
