# ruff: noqa: D102 (an operator with the name and meaning of its ONNX namesake needs no more words)
"""The two architectures, written once against `Ops` and interpreted twice: to train, and to export."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["CLASSES", "Ops", "cnn", "transformer"]

T = TypeVar("T")

CLASSES = 10
WIDTH = 48
HEADS = 4
MLP_WIDTH = 96
PATCHES = 16
PATCH_PIXELS = 4


class Ops(Protocol[T]):
    """What a model may use: ONNX operators on values of an interpreter's own type `T`.

    A name passed in names trained state, the same for both interpreters. In `reshape`, 0 keeps the input's dimension.
    """

    def parameter(self, name: str, shape: tuple[int, ...], std: float, mean: float = 0.0) -> T:
        """A trained tensor, drawn from a normal distribution the first time that it is asked for."""
        ...

    def constant(self, value: float) -> T:
        """A scalar that is not trained."""
        ...

    def add(self, a: T, b: T) -> T: ...
    def mul(self, a: T, b: T) -> T: ...
    def div(self, a: T, b: T) -> T: ...
    def matmul(self, a: T, b: T) -> T: ...
    def relu(self, x: T) -> T: ...
    def erf(self, x: T) -> T: ...
    def softmax(self, x: T) -> T: ...
    def reshape(self, x: T, shape: Sequence[int]) -> T: ...
    def transpose(self, x: T, perm: Sequence[int]) -> T: ...

    def conv(self, x: T, weight: T) -> T:
        """3x3, stride 1, one pixel of zero padding, no bias."""
        ...

    def batch_norm(self, x: T, name: str, channels: int) -> T:
        """Normalise each channel: over the batch in training, by its running averages afterwards."""
        ...

    def max_pool(self, x: T) -> T:
        """2x2 windows that do not overlap."""
        ...

    def global_average_pool(self, x: T) -> T:
        """Mean over height and width, both kept as 1."""
        ...

    def flatten(self, x: T) -> T:
        """All but the first dimension in one."""
        ...

    def gemm(self, x: T, weight: T, bias: T) -> T:
        """``x @ weight + bias`` of matrices."""
        ...

    def layer_norm(self, x: T, scale: T, bias: T) -> T:
        """Normalise along the last axis."""
        ...

    def gelu_tanh(self, x: T) -> T:
        """GELU by its tanh form."""
        ...

    def reduce_mean(self, x: T, axis: int) -> T:
        """Mean along `axis`, which disappears."""
        ...


def cnn(ops: Ops[T], image: T) -> T:
    """Logits (n, 10) of images (n, 1, 8, 8): a stem, two residual blocks with a pool between, a linear head."""
    x = _conv_block(ops, image, "stem", 1, 16)
    x = _residual_block(ops, x, "block1", 16)
    x = ops.max_pool(x)
    x = _conv_block(ops, x, "widen", 16, 32)
    x = _residual_block(ops, x, "block2", 32)
    return _head(ops, ops.flatten(ops.global_average_pool(x)), 32)


def transformer(ops: Ops[T], image: T) -> T:
    """Logits (n, 10) of images (n, 1, 8, 8): 16 patches of 2x2 pixels, two pre-norm encoder blocks, mean pooling."""
    x = ops.reshape(image, (0, 4, 2, 4, 2))
    x = ops.reshape(ops.transpose(x, (0, 1, 3, 2, 4)), (0, PATCHES, PATCH_PIXELS))
    x = _linear(ops, x, "embed", PATCH_PIXELS, WIDTH)
    x = ops.add(x, ops.parameter("position", (1, PATCHES, WIDTH), 0.02))
    x = _encoder_block(ops, x, "block1", lambda y: _gelu_erf(ops, y))
    x = _encoder_block(ops, x, "block2", ops.gelu_tanh)
    return _head(ops, ops.reduce_mean(_norm(ops, x, "final"), axis=1), WIDTH)


def _conv_block(ops: Ops[T], x: T, name: str, inputs: int, outputs: int) -> T:
    return ops.relu(_conv_norm(ops, x, name, inputs, outputs))


def _residual_block(ops: Ops[T], x: T, name: str, channels: int) -> T:
    y = _conv_block(ops, x, f"{name}.a", channels, channels)
    return ops.relu(ops.add(_conv_norm(ops, y, f"{name}.b", channels, channels), x))


def _conv_norm(ops: Ops[T], x: T, name: str, inputs: int, outputs: int) -> T:
    weight = ops.parameter(f"{name}.weight", (outputs, inputs, 3, 3), math.sqrt(2 / (9 * inputs)))
    return ops.batch_norm(ops.conv(x, weight), f"{name}.norm", outputs)


def _head(ops: Ops[T], x: T, inputs: int) -> T:
    weight = ops.parameter("head.weight", (inputs, CLASSES), 1 / math.sqrt(inputs))
    return ops.gemm(x, weight, ops.parameter("head.bias", (CLASSES,), 0.0))


def _encoder_block(ops: Ops[T], x: T, name: str, activation: Callable[[T], T]) -> T:
    x = ops.add(x, _attention(ops, _norm(ops, x, f"{name}.norm1"), f"{name}.attention"))
    y = _linear(ops, _norm(ops, x, f"{name}.norm2"), f"{name}.mlp.up", WIDTH, MLP_WIDTH)
    return ops.add(x, _linear(ops, activation(y), f"{name}.mlp.down", MLP_WIDTH, WIDTH))


def _attention(ops: Ops[T], x: T, name: str) -> T:
    """Multi-head self-attention, in the small operators in which exporters write it."""
    query = _heads(ops, x, f"{name}.query", (0, 2, 1, 3))
    key = _heads(ops, x, f"{name}.key", (0, 2, 3, 1))
    value = _heads(ops, x, f"{name}.value", (0, 2, 1, 3))
    scores = ops.div(ops.matmul(query, key), ops.constant(math.sqrt(WIDTH // HEADS)))
    mixed = ops.matmul(ops.softmax(scores), value)
    joined = ops.reshape(ops.transpose(mixed, (0, 2, 1, 3)), (0, -1, WIDTH))
    return _linear(ops, joined, f"{name}.out", WIDTH, WIDTH)


def _heads(ops: Ops[T], x: T, name: str, perm: tuple[int, ...]) -> T:
    split = ops.reshape(_linear(ops, x, name, WIDTH, WIDTH), (0, -1, HEADS, WIDTH // HEADS))
    return ops.transpose(split, perm)


def _linear(ops: Ops[T], x: T, name: str, inputs: int, outputs: int) -> T:
    weight = ops.parameter(f"{name}.weight", (inputs, outputs), 1 / math.sqrt(inputs))
    return ops.add(ops.matmul(x, weight), ops.parameter(f"{name}.bias", (outputs,), 0.0))


def _norm(ops: Ops[T], x: T, name: str) -> T:
    scale = ops.parameter(f"{name}.scale", (WIDTH,), 0.0, mean=1.0)
    return ops.layer_norm(x, scale, ops.parameter(f"{name}.bias", (WIDTH,), 0.0))


def _gelu_erf(ops: Ops[T], x: T) -> T:
    """GELU by its definition, x / 2 (1 + erf(x / sqrt 2)), in the five operators that exporters write."""
    gate = ops.add(ops.erf(ops.div(x, ops.constant(math.sqrt(2)))), ops.constant(1.0))
    return ops.mul(ops.mul(x, gate), ops.constant(0.5))
