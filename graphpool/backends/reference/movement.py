"""Operations that move or convert elements and compute nothing.

Reorder returns its input: the layout is not the reference's concern. `evaluate` rounds what TypeCast returns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.lib.array_utils import normalize_axis_index

from .registry import Array, Attrs, reference
from .rounding import round_to


@reference("Reorder", raw=True)
def _reorder(attrs: Attrs, src: Array) -> Array:
    return src


@reference("TypeCast", typed=True)
def _type_cast(attrs: Attrs, src: Array) -> Array:
    """Floats lose their fraction on the way to an integer."""
    if attrs["dtype"].value[0] in "su" and src.dtype.kind == "f":
        return np.trunc(src)
    return src if attrs.get("saturate", True) else round_to(src, attrs["dtype"], saturate=False)


@reference("Concat", raw=True)
def _concat(attrs: Attrs, *sources: Array) -> Array:
    return np.concatenate(sources, axis=attrs["axis"])


def _target_shape(shape: Sequence[int], src: Array, special_zero: bool) -> list[int]:
    """The shape with zeros copied from src (if special_zero) and -1 resolved; -1 among zero-size dims is 0."""
    target = [src.shape[i] if dim == 0 and special_zero else dim for i, dim in enumerate(shape)]
    if -1 in target:
        known = math.prod(dim for dim in target if dim != -1)
        target[target.index(-1)] = src.size // known if known else 0
    return target


@reference("StaticReshape", raw=True)
def _static_reshape(attrs: Attrs, src: Array) -> Array:
    return src.reshape(_target_shape(attrs["shape"], src, attrs["special_zero"]))


@reference("StaticTranspose", raw=True)
def _static_transpose(attrs: Attrs, src: Array) -> Array:
    """Axis i of dst is axis order[i] of src; an empty order reverses the axes."""
    return src.transpose(attrs["order"] or None)


@reference("GenIndex")
def _gen_index(attrs: Attrs, src: Array) -> Array:
    """The position of each element along axis."""
    axis = normalize_axis_index(attrs["axis"], src.ndim)
    position = np.arange(src.shape[axis]).reshape([-1 if i == axis else 1 for i in range(src.ndim)])
    return np.broadcast_to(position, src.shape)
