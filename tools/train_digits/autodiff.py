# ruff: noqa: D102 (the operators are documented once, in models.Ops)
"""Training: the `Ops` interpreter that computes in float32 with NumPy and differentiates in reverse.

Every operation appends a `Node` with its pullback (gradient of the result -> gradients of the operands) to a tape;
`Training.backward` walks the tape once from its end. Pullbacks are the textbook derivatives; batch and layer
normalisation share one, that of (x - mean) / sqrt(var + epsilon).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from scipy.special import erf

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["EPSILON", "Array", "Node", "Training"]

Array = np.ndarray[Any, np.dtype[np.float32]]

EPSILON = 1e-5
"""Added to a variance before its root, here and in the exported normalisation nodes."""

_AVERAGE_DECAY = 0.9
_GELU_SLOPE, _GELU_CUBE = math.sqrt(2 / math.pi), 0.044715


@dataclass(eq=False)
class Node:
    """A value, where it came from, and (after `Training.backward`) the gradient of the loss with respect to it."""

    value: Array
    operands: tuple[Node, ...] = ()
    pullback: Callable[[Array], tuple[Array, ...]] | None = None
    grad: Array | None = None

    @property
    def gradient(self) -> Array:
        """`grad` of a node that the loss depends on."""
        if self.grad is None:
            raise ValueError("no gradient: the loss does not depend on this node, or backward has not run")
        return self.grad


class Training:
    """Values are `Node`; trained state lives in `parameters` and `averages` (BatchNormalization mean and variance)."""

    def __init__(self, seed: int) -> None:
        self.parameters: dict[str, Node] = {}
        self.averages: dict[str, Array] = {}
        self._rng = np.random.default_rng(seed)
        self._tape: list[Node] = []

    def backward(self, output: Node, grad: Array) -> None:
        """Add to every node's gradient what `grad`, the gradient of the loss at `output`, implies; empty the tape."""
        output.grad = grad
        for node in reversed(self._tape):
            if node.grad is None or node.pullback is None:
                continue
            for operand, part in zip(node.operands, node.pullback(node.grad), strict=True):
                operand.grad = part if operand.grad is None else operand.grad + part
        self._tape.clear()

    def input(self, value: Array) -> Node:
        """A value that came from outside."""
        return Node(value)

    def parameter(self, name: str, shape: tuple[int, ...], std: float, mean: float = 0.0) -> Node:
        if name not in self.parameters:
            self.parameters[name] = Node(self._rng.normal(mean, std, shape).astype(np.float32))
        return self.parameters[name]

    def constant(self, value: float) -> Node:
        return Node(np.array(value, np.float32))

    def add(self, a: Node, b: Node) -> Node:
        return self._record(a.value + b.value, (a, b), lambda g: (_sum_to(g, a.value.shape), _sum_to(g, b.value.shape)))

    def mul(self, a: Node, b: Node) -> Node:
        return self._record(
            a.value * b.value,
            (a, b),
            lambda g: (_sum_to(g * b.value, a.value.shape), _sum_to(g * a.value, b.value.shape)),
        )

    def div(self, a: Node, b: Node) -> Node:
        y: Array = a.value / b.value
        return self._record(
            y, (a, b), lambda g: (_sum_to(g / b.value, a.value.shape), _sum_to(-g * y / b.value, b.value.shape))
        )

    def matmul(self, a: Node, b: Node) -> Node:
        if b.value.ndim == 2:  # one product over all leading axes: several times faster than one for each
            return self._matmul_flat(a, b)
        return self._record(
            a.value @ b.value, (a, b), lambda g: (g @ b.value.swapaxes(-1, -2), a.value.swapaxes(-1, -2) @ g)
        )

    def _matmul_flat(self, a: Node, b: Node) -> Node:
        rows = a.value.reshape(-1, a.value.shape[-1])

        def pullback(g: Array) -> tuple[Array, Array]:
            flat = g.reshape(-1, g.shape[-1])
            return (flat @ b.value.T).reshape(a.value.shape), rows.T @ flat

        return self._record((rows @ b.value).reshape(*a.value.shape[:-1], -1), (a, b), pullback)

    def gemm(self, x: Node, weight: Node, bias: Node) -> Node:
        return self.add(self.matmul(x, weight), bias)

    def relu(self, x: Node) -> Node:
        return self._record(np.maximum(x.value, 0), (x,), lambda g: (g * (x.value > 0),))

    def erf(self, x: Node) -> Node:
        slope = np.float32(2 / math.sqrt(math.pi))
        return self._record(erf(x.value), (x,), lambda g: (g * slope * np.exp(-x.value * x.value),))

    def gelu_tanh(self, x: Node) -> Node:
        v = x.value
        t = np.tanh(_GELU_SLOPE * (v + _GELU_CUBE * v * v * v))
        inner = _GELU_SLOPE * (1 + 3 * _GELU_CUBE * v * v)
        return self._record(0.5 * v * (1 + t), (x,), lambda g: (g * 0.5 * (1 + t + v * (1 - t * t) * inner),))

    def softmax(self, x: Node) -> Node:
        y = np.exp(x.value - x.value.max(axis=-1, keepdims=True))
        y /= y.sum(axis=-1, keepdims=True)
        return self._record(y, (x,), lambda g: (y * (g - (g * y).sum(axis=-1, keepdims=True)),))

    def reshape(self, x: Node, shape: Sequence[int]) -> Node:
        sizes = [size or x.value.shape[axis] for axis, size in enumerate(shape)]
        return self._record(x.value.reshape(sizes), (x,), lambda g: (g.reshape(x.value.shape),))

    def flatten(self, x: Node) -> Node:
        return self.reshape(x, (0, -1))

    def transpose(self, x: Node, perm: Sequence[int]) -> Node:
        inverse = np.argsort(perm)
        return self._record(x.value.transpose(perm), (x,), lambda g: (g.transpose(inverse),))

    def reduce_mean(self, x: Node, axis: int) -> Node:
        size = x.value.shape[axis]
        return self._record(
            x.value.mean(axis=axis), (x,), lambda g: (np.repeat(np.expand_dims(g / size, axis), size, axis),)
        )

    def global_average_pool(self, x: Node) -> Node:
        area = x.value.shape[2] * x.value.shape[3]
        return self._record(
            x.value.mean(axis=(2, 3), keepdims=True), (x,), lambda g: (np.broadcast_to(g / area, x.value.shape),)
        )

    def max_pool(self, x: Node) -> Node:
        n, c, h, w = x.value.shape
        windows = x.value.reshape(n, c, h // 2, 2, w // 2, 2)
        y = windows.max(axis=(3, 5), keepdims=True)

        def pullback(g: Array) -> tuple[Array]:
            chosen = windows == y  # ReLU leaves ties at zero: they share the gradient
            return ((chosen * (g.reshape(y.shape) / chosen.sum(axis=(3, 5), keepdims=True))).reshape(x.value.shape),)

        return self._record(y.reshape(n, c, h // 2, w // 2), (x,), pullback)

    def conv(self, x: Node, weight: Node) -> Node:
        columns = _columns(x.value)
        matrix = weight.value.reshape(len(weight.value), -1)

        def pullback(g: Array) -> tuple[Array, Array]:
            rows = g.transpose(0, 2, 3, 1).reshape(-1, len(matrix))
            mirrored = weight.value[:, :, ::-1, ::-1].swapaxes(0, 1)  # the adjoint of a same-size correlation
            towards_x = _fold(_columns(g) @ mirrored.reshape(len(mirrored), -1).T, x.value.shape)
            return towards_x, (rows.T @ columns).reshape(weight.value.shape)

        n, _, h, w = x.value.shape
        return self._record(_fold(columns @ matrix.T, (n, len(matrix), h, w)), (x, weight), pullback)

    def batch_norm(self, x: Node, name: str, channels: int) -> Node:
        scale = self.parameter(f"{name}.scale", (channels, 1, 1), 0.0, mean=1.0)
        bias = self.parameter(f"{name}.bias", (channels, 1, 1), 0.0)
        axes = (0, 2, 3)
        self._average(f"{name}.mean", x.value.mean(axis=axes), start=0.0)
        self._average(f"{name}.var", x.value.var(axis=axes), start=1.0)
        return self.add(self.mul(self._normalise(x, axes), scale), bias)

    def layer_norm(self, x: Node, scale: Node, bias: Node) -> Node:
        return self.add(self.mul(self._normalise(x, (-1,)), scale), bias)

    def _normalise(self, x: Node, axes: tuple[int, ...]) -> Node:
        centred = x.value - x.value.mean(axis=axes, keepdims=True)
        root = np.sqrt((centred * centred).mean(axis=axes, keepdims=True) + np.float32(EPSILON))
        y = centred / root

        def pullback(g: Array) -> tuple[Array]:
            along = y * (g * y).mean(axis=axes, keepdims=True)
            return ((g - g.mean(axis=axes, keepdims=True) - along) / root,)

        return self._record(y, (x,), pullback)

    def _average(self, name: str, value: Array, start: float) -> None:
        old = self.averages.get(name, np.full_like(value, start))
        self.averages[name] = _AVERAGE_DECAY * old + (1 - _AVERAGE_DECAY) * value

    def _record(self, value: Array, operands: tuple[Node, ...], pullback: Callable[[Array], tuple[Array, ...]]) -> Node:
        node = Node(value, operands, pullback)
        self._tape.append(node)
        return node


def _sum_to(grad: Array, shape: tuple[int, ...]) -> Array:
    """Undo a broadcast from `shape`: sum `grad` over the axes that it repeated."""
    grad = grad.sum(axis=tuple(range(grad.ndim - len(shape))))
    repeated = tuple(axis for axis, size in enumerate(shape) if size == 1 and grad.shape[axis] != 1)
    return grad.sum(axis=repeated, keepdims=True) if repeated else grad


def _columns(x: Array) -> Array:
    """Neighbourhoods of 3x3, zero beyond the border: (n, c, h, w) -> (n h w, c 9)."""
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = sliding_window_view(padded, (3, 3), axis=(2, 3))
    return windows.transpose(0, 2, 3, 1, 4, 5).reshape(-1, 9 * x.shape[1])


def _fold(rows: Array, shape: tuple[int, ...]) -> Array:
    """Rows of channels, one a pixel, back to `shape` = (n, c, h, w)."""
    n, c, h, w = shape
    return rows.reshape(n, h, w, c).transpose(0, 3, 1, 2)
