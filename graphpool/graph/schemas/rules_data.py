"""Shape rules of the extension kinds that move, search or scan data. Each docstring says the rule in words."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from graphpool._sizes import least
from graphpool.errors import InvalidOpError
from graphpool.graph.logical_tensor import describe_shape
from graphpool.graph.shapes import broadcast_shapes, slice_size
from graphpool.typing import MAX_NDIM, UNKNOWN_DIM

from .query import Shape, ShapeQuery

if TYPE_CHECKING:
    from collections.abc import Sequence


def _refuse(query: ShapeQuery, name: str, what: str, accepted: str, got: object) -> None:
    query.fail(f'attribute "{name}" {what}', accepted=accepted, got=got, attribute=name, error=InvalidOpError)


def _count(query: ShapeQuery, name: str, count: int, why: str) -> None:
    """Require that a list attribute has `count` elements."""
    values = query.attrs[name]
    if len(values) != count:
        _refuse(query, name, "has the wrong length", f"{count}, {why}", f"{len(values)} in {values}")


def _at_least(query: ShapeQuery, name: str, least: int) -> None:
    value = query.attrs[name]
    values = value if isinstance(value, tuple) else (value,)
    if any(number < least for number in values):  # the smallest would have to be found among sizes that vary
        _refuse(query, name, "has a value that is too small", f"{least} or more", value)


def _replaced(shape: tuple[int, ...], axis: int, *dims: int) -> tuple[int, ...]:
    return (*shape[:axis], *dims, *shape[axis + 1 :])


def _product(a: int, b: int) -> int:
    return 0 if 0 in (a, b) else UNKNOWN_DIM if UNKNOWN_DIM in (a, b) else a * b


def _lead(query: ShapeQuery) -> tuple[tuple[int, ...], int] | None:
    """Shape of the first input and its attribute axis; None when its rank is unknown."""
    shape = query.shape(0)
    return None if shape is None else (shape, query.axis("axis", query.attrs["axis"], len(shape)))


# ---- parts and copies


def slice_(query: ShapeQuery) -> Sequence[Shape]:
    """Along each of axes (without them the first ones) the indices of a Python slice; steps are not 0."""
    starts, axes = query.attrs["starts"], query.attrs["axes"]
    _count(query, "ends", len(starts), "as starts has")
    for name in ("axes", "steps"):
        if query.attrs[name]:
            _count(query, name, len(starts), "as starts has")
    steps = query.attrs["steps"] or (1,) * len(starts)
    if 0 in steps:
        _refuse(query, "steps", "has a wrong value", "numbers other than 0", steps)
    shape = query.shape(0)
    if shape is None:
        return [None]
    chosen = [query.axis("axes", axis, len(shape)) for axis in axes or range(len(starts))]
    if len(set(chosen)) != len(chosen):
        _refuse(query, "axes", "names an axis twice", "distinct axes", axes)
    dims = list(shape)
    for axis, start, end, step in zip(chosen, starts, query.attrs["ends"], steps, strict=True):
        dims[axis] = slice_size(shape[axis], start, end, step)
    return [tuple(dims)]


def split(query: ShapeQuery) -> Sequence[Shape]:
    """Sizes along axis as in split, which add up to it; else equal parts, the last ones perhaps smaller."""
    _at_least(query, "split", 0)
    if query.attrs["split"]:
        _count(query, "split", query.noutputs, "one for each output")
    found = _lead(query)
    if found is None:
        return [None] * query.noutputs
    shape, axis = found
    sizes = query.attrs["split"] or _parts(shape[axis], query.noutputs)
    if shape[axis] not in (UNKNOWN_DIM, sum(sizes)):
        accepted = f"sizes that add up to {shape[axis]}"
        _refuse(query, "split", "does not fit the dimension", accepted, f"{query.noutputs} parts: {sizes}")
    return [_replaced(shape, axis, size) for size in sizes]


def _parts(dim: int, count: int) -> tuple[int, ...]:
    if dim == UNKNOWN_DIM:
        return (UNKNOWN_DIM,) * count
    step = -(-dim // count)
    return tuple(min(step, max(dim - step * k, 0)) for k in range(count))


def pad(query: ShapeQuery) -> Sequence[Shape]:
    """Each dimension grows by its pads_begin and pads_end; negative ones, in mode constant only, cut off."""
    _is_in_range(query, "value")
    before, after, mode = query.attrs["pads_begin"], query.attrs["pads_end"], query.attrs["mode"]
    if mode != "constant":
        _at_least(query, "pads_begin", 0)
        _at_least(query, "pads_end", 0)
    shape = query.shape(0)
    if shape is None:
        return [None]
    for name in ("pads_begin", "pads_end"):
        _count(query, name, len(shape), "one for each dimension")
    dims = []
    for axis, (dim, a, b) in enumerate(zip(shape, before, after, strict=True)):
        size = dim if dim == UNKNOWN_DIM else dim + a + b
        if size < 0 and dim != UNKNOWN_DIM:
            _refuse(query, "pads_begin", f"and pads_end cut more than dimension {axis} has", f"{-dim} or more", a + b)
        if dim == 0 and mode != "constant" and a + b > 0:
            _refuse(query, "mode", f"has no elements to repeat along dimension {axis}", "constant", mode)
        dims.append(size)
    return [tuple(dims)]


def _is_in_range(query: ShapeQuery, name: str) -> None:
    """Require that a number, as the f32 that it is, is one of the first input's type."""
    dtype, number = query.op.inputs[0].dtype, float(np.float32(query.attrs[name]))
    if dtype.value[0] not in "su":
        return
    limits = np.iinfo(dtype.numpy)
    if not (number.is_integer() and limits.min <= number <= limits.max):
        _refuse(query, name, f"is no {dtype}", f"an integer in {limits.min} .. {limits.max}", number)


def expand(query: ShapeQuery) -> Sequence[Shape]:
    """NumPy's broadcast of src and attribute shape: a 1 of either side takes the other's dimension."""
    wanted = query.attrs["shape"]
    _at_least(query, "shape", 0)
    if len(wanted) > MAX_NDIM:
        _refuse(query, "shape", "has too many dimensions", f"at most {MAX_NDIM}", len(wanted))
    shape = query.shape(0)
    if shape is None:
        return [None]
    out = broadcast_shapes(shape, wanted)
    if isinstance(out, int):
        query.fail(f"does not broadcast with attribute shape at dimension {out}", port=0, dim=out,
                   accepted=f"{wanted[out]} or 1 there", got=describe_shape(shape))  # fmt: skip
    return [out]


def tile(query: ShapeQuery) -> Sequence[Shape]:
    """Each dimension times its number in repeats."""
    _at_least(query, "repeats", 0)
    shape = query.shape(0)
    if shape is None:
        return [None]
    _count(query, "repeats", len(shape), "one for each dimension")
    return [tuple(_product(dim, count) for dim, count in zip(shape, query.attrs["repeats"], strict=True))]


def trilu(query: ShapeQuery) -> Sequence[Shape]:
    """The shape of src, which has at least 2 dimensions."""
    shape = query.shape(0)
    if shape is not None:
        query.rank(0, len(shape), "at least 2-D", len(shape) >= 2)
    return [shape]


# ---- by index


def gather(query: ShapeQuery) -> Sequence[Shape]:
    """The dimension axis of src is replaced by the dimensions of indices."""
    found, indices = _lead(query), query.shape(1)
    if found is None or indices is None:
        return [None]
    shape, axis = found
    _any_to_pick(query, shape[axis], indices)
    return [_replaced(shape, axis, *indices)]


def _any_to_pick(query: ShapeQuery, dim: int, indices: tuple[int, ...]) -> None:
    """Refuse indices into nothing."""
    if dim == 0 and 0 not in indices and UNKNOWN_DIM not in indices:
        query.fail("has no element to pick", port=0, accepted="at least one along the axis", got=0)


def gather_elements(query: ShapeQuery) -> Sequence[Shape]:
    """The shape of indices, which has the rank of src and, but along axis, no larger dimension."""
    found, indices = _lead(query), query.shape(1)
    if found is None or indices is None:
        return [indices]
    shape, axis = found
    _fits_inside(query, 1, indices, shape, axis)
    _any_to_pick(query, shape[axis], indices)
    return [indices]


def _fits_inside(query: ShapeQuery, port: int, small: tuple[int, ...], big: tuple[int, ...], axis: int) -> None:
    """Require that input `port` has the rank of `big` and, but along axis, no larger dimension."""
    query.rank(port, len(small), f"{len(big)}-D, as src", len(small) == len(big))
    for k, (a, b) in enumerate(zip(small, big, strict=True)):
        if k != axis and UNKNOWN_DIM not in (a, b) and a > b:
            query.fail(f"has a dimension {k} that is too large", port=port, dim=k, accepted=f"at most {b}", got=a)


def scatter_elements(query: ShapeQuery) -> Sequence[Shape]:
    """The shape of src; indices and updates have one shape, of its rank and, but along axis, no larger."""
    query.match(2, query.shape(1), "the shape of indices")
    found, indices = _lead(query), query.shape(1)
    if found is not None and indices is not None:
        _fits_inside(query, 1, indices, found[0], found[1])
        _any_to_pick(query, found[0][found[1]], indices)
    return [query.shape(0)]


def _tuple_size(query: ShapeQuery, shape: tuple[int, ...], indices: tuple[int, ...], batch: int) -> int:
    """Length of the index tuples: the last dimension of indices."""
    query.rank(1, len(indices), "at least 1-D", len(indices) >= 1)
    size, most = indices[-1], len(shape) - batch
    if size != UNKNOWN_DIM and not 1 <= size <= most:
        query.fail("has tuples of a wrong length", port=1, accepted=f"1 .. {most}, the last dimension", got=size)
    return size


def gather_nd(query: ShapeQuery) -> Sequence[Shape]:
    """The dimensions of indices but the last, then those of src behind batch_dims and the index tuples' length."""
    shape, indices, batch = query.shape(0), query.shape(1), query.attrs["batch_dims"]
    _at_least(query, "batch_dims", 0)
    if shape is None or indices is None:
        return [None]
    if batch >= min(len(shape), len(indices)):
        _refuse(query, "batch_dims", "is too large", "less than the rank of src and of indices", batch)
    for axis in range(batch):
        query.dim(1, axis, indices[axis], shape[axis], "a batch dimension of src")
    size = _tuple_size(query, shape, indices, batch)
    if size == UNKNOWN_DIM:
        return [None]
    if 0 in shape[batch : batch + size]:
        _any_to_pick(query, 0, indices[:-1])
    return [(*indices[:-1], *shape[batch + size :])]


def scatter_nd(query: ShapeQuery) -> Sequence[Shape]:
    """The shape of src; updates has the dimensions of indices but the last, then those that its tuples leave."""
    shape, indices = query.shape(0), query.shape(1)
    if shape is None or indices is None:
        return [shape]
    size = _tuple_size(query, shape, indices, 0)
    if size != UNKNOWN_DIM:
        query.match(2, (*indices[:-1], *shape[size:]), "what indices and src leave")
        if 0 in shape[:size]:
            _any_to_pick(query, 0, indices[:-1])
    return [shape]


def one_hot(query: ShapeQuery) -> Sequence[Shape]:
    """The shape of indices with a new dimension depth at axis; values has two elements."""
    _at_least(query, "depth", 1)
    query.match(1, (2,), "the value for off and the value for on")
    shape = query.shape(0)
    if shape is None:
        return [None]
    axis = query.axis("axis", query.attrs["axis"], len(shape) + 1)
    return [(*shape[:axis], query.attrs["depth"], *shape[axis:])]


# ---- along an axis


def arg_extreme(query: ShapeQuery) -> Sequence[Shape]:
    """The axis, which is not empty, becomes 1 with keep_dims, and vanishes without."""
    found = _lead(query)
    if found is None:
        return [None]
    shape, axis = found
    if shape[axis] == 0:
        query.fail("has no element along the axis", port=0, accepted="at least one", got=0, dim=axis)
    return [_replaced(shape, axis, *([1] if query.attrs["keep_dims"] else []))]


def reverse_sequence(query: ShapeQuery) -> Sequence[Shape]:
    """The shape of src; lengths has one element for each index of batch_axis, which is not time_axis."""
    shape = query.shape(0)
    if shape is None:
        return [None]
    batch, time = (query.axis(name, query.attrs[name], len(shape)) for name in ("batch_axis", "time_axis"))
    if batch == time:
        _refuse(query, "time_axis", "is batch_axis", "another axis", query.attrs["time_axis"])
    query.match(1, (shape[batch],), "one for each sequence")
    return [shape]


def dynamic_quantize(query: ShapeQuery) -> Sequence[Shape]:
    """dst has the shape of src; there is one scale and one zero point."""
    return [query.shape(0), (), ()]


def top_k(query: ShapeQuery) -> Sequence[Shape]:
    """Both outputs have the shape of src with k, which is not larger, along axis."""
    _at_least(query, "k", 0)
    found = _lead(query)
    if found is None:
        return [None, None]
    shape, axis = found
    k = query.attrs["k"]
    if shape[axis] != UNKNOWN_DIM and k > shape[axis]:
        _refuse(query, "k", "is larger than the axis", f"0 .. {shape[axis]}", k)
    return [_replaced(shape, axis, k)] * 2


def find_non_zero(query: ShapeQuery) -> Sequence[Shape]:
    """Room for the coordinates of all elements, and one number."""
    shape = query.shape(0)
    query.rank(0, 0, "1-D or more", shape != ())
    if shape is None or UNKNOWN_DIM in shape:
        return [None, (1,)]
    return [(len(shape) * math.prod(shape),), (1,)]


def select_boxes(query: ShapeQuery) -> Sequence[Shape]:
    """Room for max_boxes, or all boxes if they are fewer, of each class, three numbers each; and one number.

    Boxes are (batch, boxes, 4), scores (batch, classes, boxes).
    """
    _at_least(query, "max_boxes", 0)
    boxes = query.match(0, (UNKNOWN_DIM, UNKNOWN_DIM, 4), "batch, boxes, 4")
    assert boxes is not None
    scores = query.match(1, (boxes[0], UNKNOWN_DIM, boxes[1]), "batch, classes, boxes")
    assert scores is not None
    if UNKNOWN_DIM in scores:
        return [None, (1,)]
    return [(scores[0] * scores[1] * least(query.attrs["max_boxes"], scores[2]) * 3,), (1,)]


_MOST_SAMPLES = 256
"""Of a bin along an axis."""


def roi_align(query: ShapeQuery) -> Sequence[Shape]:
    """Of src (images, channels, height, width), of rois (regions, 4) with an image each: bins of all channels."""
    for name, low in (("output_height", 1), ("output_width", 1), ("sampling_ratio", 0)):
        _at_least(query, name, low)
    if query.attrs["sampling_ratio"] > _MOST_SAMPLES:
        _refuse(query, "sampling_ratio", "is too large", f"at most {_MOST_SAMPLES}", query.attrs["sampling_ratio"])
    src = query.match(0, (UNKNOWN_DIM,) * 4, "images, channels, height, width")
    rois = query.match(1, (UNKNOWN_DIM, 4), "regions, 4")
    assert src is not None
    assert rois is not None
    images = query.match(2, rois[:1], "one for each region")
    assert images is not None
    if src[0] == 0 and images[0] not in (0, UNKNOWN_DIM):
        query.fail("has no image for the regions", port=0, accepted="at least one", got=0, dim=0)
    return [(images[0], src[1], query.attrs["output_height"], query.attrs["output_width"])]


def rotary(query: ShapeQuery) -> Sequence[Shape]:
    """The shape of src: (batch, heads, length, size), or (batch, length, num_heads * size).

    Caches are (batch, length, rotated / 2), or (positions, rotated / 2) with position_ids (batch, length).
    """
    for name in ("num_heads", "rotary_embedding_dim"):
        _at_least(query, name, 0)
    shape = query.shape(0)
    if shape is None:
        return [None]
    query.rank(0, len(shape), "3-D or 4-D", len(shape) in (3, 4))
    batch, length, size = shape[0], shape[-2], _head_size(query, shape)
    rotated = query.attrs["rotary_embedding_dim"] or size
    if rotated != UNKNOWN_DIM and (rotated % 2 or (size != UNKNOWN_DIM and rotated > size)):
        accepted = "an even number, at most the size of a head"
        _refuse(query, "rotary_embedding_dim", "does not fit", accepted, f"{rotated} of {size}")
    half = UNKNOWN_DIM if rotated == UNKNOWN_DIM else rotated // 2
    with_ids = len(query.op.inputs) > 3
    expected = (UNKNOWN_DIM, half) if with_ids else (batch, length, half)
    cos = query.match(1, expected, "(positions, rotated / 2)" if with_ids else "(batch, length, rotated / 2)")
    query.match(2, cos, "the shape of cos_cache")
    if with_ids:
        query.match(3, (batch, length), "batch and length of src")
        if cos is not None and cos[0] == 0 and math.prod((batch, length)) > 0:
            query.fail("has no positions", port=1, accepted="at least one", got=0)
    return [shape]


def _head_size(query: ShapeQuery, shape: tuple[int, ...]) -> int:
    if len(shape) == 4:
        return shape[-1]
    heads = query.attrs["num_heads"]
    if heads < 1 or (shape[-1] != UNKNOWN_DIM and shape[-1] % heads):
        _refuse(query, "num_heads", "does not fit a 3-D src", f"a divisor of {shape[-1]}", heads)
    return UNKNOWN_DIM if shape[-1] == UNKNOWN_DIM else shape[-1] // heads


# ---- decision trees


def tree_ensemble(query: ShapeQuery) -> Sequence[Shape]:
    """(rows, features) to (rows, targets); thresholds (nodes), nodes (nodes, 3), weights and targets (entries).

    Where there are trees there are nodes, where nodes features, where entries targets.
    """
    src = query.shape(0)
    for port, ndim in enumerate((2, 1, 2, 1, 1, 1, 1)):
        shape = query.shape(port)
        if shape is not None:
            query.rank(port, len(shape), f"{ndim}-D", len(shape) == ndim)
    [nnodes] = query.shape(1) or (UNKNOWN_DIM,)
    [nentries] = query.shape(4) or (UNKNOWN_DIM,)
    query.match(2, (nnodes, 3), "three numbers a node")
    query.match(5, (nentries,), "one for each weight")
    [ntrees] = query.shape(3) or (UNKNOWN_DIM,)
    [ntargets] = query.shape(6) or (UNKNOWN_DIM,)
    needed = (1, 0, nnodes, ntrees), (0, 1, src and src[1], nnodes), (6, 0, ntargets, nentries)
    for port, axis, count, users in needed:
        if count == 0 and users > 0:
            query.fail(f"has nothing along dimension {axis}", port=port, accepted="at least 1", got=0, dim=axis)
    return [None if src is None else (src[0], ntargets)]


# ---- classifiers


def couple_pairs(query: ShapeQuery) -> Sequence[Shape]:
    """(rows, k (k - 1) / 2) to (rows, k), of at least 2 classes."""
    shape = query.shape(0)
    if shape is None:
        return [None]
    query.rank(0, len(shape), "2-D", len(shape) == 2)
    rows, npairs = shape
    if npairs == UNKNOWN_DIM:
        return [(rows, UNKNOWN_DIM)]
    nclasses = math.isqrt(2 * npairs) + 1
    if not 1 <= npairs == nclasses * (nclasses - 1) // 2:
        query.fail("has other columns than pairs of classes", accepted="1, 3, 6, 10, ...", got=npairs, dim=1)
    return [(rows, nclasses)]
