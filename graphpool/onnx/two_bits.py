"""Products with weights of 2 bits become those with weights of 4 bits, for which there are kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .arrays import make_attribute

if TYPE_CHECKING:
    from .node import Node

__all__ = ["widened", "with_four_bits"]

_WEIGHTS, _POINTS = 1, 3
"""Inputs of MatMulNBits."""

_PAIRS = np.array([(byte & 3) | (byte & 12) << 2 for byte in range(256)], np.uint8)
"""Byte -> its two low numbers of 2 bits in 4 bits each."""


def with_four_bits(node: Node, constants: dict[str, Any]) -> Node:
    """A MatMulNBits of 2 bits as one of 4 bits, which has the same result; `constants` is extended.

    The node itself where weights or zero points are no constants. A row of zero points begins with a byte in both.
    Memory: the weights twice. Source: the operators of domain com.microsoft, as ONNX Runtime documents them.
    """
    names = [*node.input, *[""] * (_POINTS + 1 - len(node.input))]
    packed = [names[_WEIGHTS], *([names[_POINTS]] if names[_POINTS] else [])]
    if not all(name in constants for name in packed):
        return node
    rows, k, block = (node.attrs.get(name, 0) for name in ("N", "K", "block_size"))
    groups = -(-k // block) if block > 0 else 0
    if not names[_POINTS] and 0 < rows * groups <= 4 * constants[names[_WEIGHTS]].size:  # others are refused later
        names[_POINTS] = f"{node.label}/half"
        constants[names[_POINTS]] = np.full(rows * ((groups + 1) // 2), 0x22, np.uint8)
    for index in (_WEIGHTS, _POINTS):
        given = constants.get(names[index])
        if given is not None and given.dtype == np.uint8 and names[index] in node.input:
            names[index] += "/4 bits"
            constants[names[index]] = widened(np.asarray(given))
    return node.changed(inputs=names, without=("bits",), added=make_attribute("bits", 4))


def widened(packed: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Numbers of 2 bits, the first in the low bits, in 4 bits each."""
    return np.stack([_PAIRS[packed & 15], _PAIRS[packed >> 4]], axis=-1).reshape(*packed.shape[:-1], -1)
