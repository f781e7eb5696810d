"""Shapes and order."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from graphpool.onnx.build import NodeView, Value

__all__ = ["CONVERTERS"]


def _reshape(n: NodeView) -> Value:
    wanted, shape = n.ints("shape", 1), n[0].shape
    n.require(wanted is not None, "no shape")
    dims = list(wanted or ())
    if not n.attr("allowzero", 0):
        dims = [shape[axis] if dim == 0 else dim for axis, dim in enumerate(dims)]
    if -1 in dims:
        rest = prod(dim for dim in dims if dim != -1)
        n.require(rest != 0, "-1 beside a dimension of 0")
        dims[dims.index(-1)] = prod(shape) // rest
    return n.reshape(n[0], dims)


def _flatten(n: NodeView) -> Value:
    shape, axis = n[0].shape, n.attr("axis", 1)
    axis = axis + len(shape) if axis < 0 else axis
    return n.reshape(n[0], (prod(shape[:axis]), prod(shape[axis:])))


def _squeeze(n: NodeView) -> Value:
    shape, axes = n[0].shape, n.ints("axes", 1)
    gone = {axis % len(shape) for axis in axes} if axes is not None else {k for k, dim in enumerate(shape) if dim == 1}
    n.require(all(shape[axis] == 1 for axis in gone), "squeezed dimensions are not 1")
    return n.reshape(n[0], [dim for axis, dim in enumerate(shape) if axis not in gone])


def _unsqueeze(n: NodeView) -> Value:
    axes = n.ints("axes", 1) or []
    dims = list(n[0].shape)
    for axis in sorted(axis % (len(dims) + len(axes)) for axis in axes):
        dims.insert(axis, 1)
    return n.reshape(n[0], dims)


def _transpose(n: NodeView) -> Value:
    order = n.attr("perm") or list(range(len(n[0].shape)))[::-1]
    return n.emit("StaticTranspose", n[0], order=order)


def _concat(n: NodeView) -> Value:
    inputs = [n[k] for k in range(len(n.inputs))]
    return inputs[0] if len(inputs) == 1 else n.emit("Concat", *inputs, axis=n.attr("axis", 1))


def _depth_to_space(n: NodeView) -> Value:
    batch, channels, height, width = n[0].shape
    block = n.attr("blocksize")
    depth = channels // block**2
    if n.attr("mode", "DCR") == "DCR":
        split, order = (batch, block, block, depth, height, width), (0, 3, 4, 1, 5, 2)
    else:
        split, order = (batch, depth, block, block, height, width), (0, 1, 4, 2, 5, 3)
    moved = n.emit("StaticTranspose", n.reshape(n[0], split), order=order)
    return n.reshape(moved, (batch, depth, height * block, width * block))


def _space_to_depth(n: NodeView) -> Value:
    batch, channels, height, width = n[0].shape
    block = n.attr("blocksize")
    split = n.reshape(n[0], (batch, channels, height // block, block, width // block, block))
    order = (0, 3, 5, 1, 2, 4) if n.attr("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    moved = n.emit("StaticTranspose", split, order=order)
    return n.reshape(moved, (batch, channels * block**2, height // block, width // block))


CONVERTERS = {
    "Reshape": _reshape, "Flatten": _flatten, "Squeeze": _squeeze, "Unsqueeze": _unsqueeze, "Transpose": _transpose,
    "Concat": _concat, "DepthToSpace": _depth_to_space, "SpaceToDepth": _space_to_depth,
}  # fmt: skip
