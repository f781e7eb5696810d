"""Shape rules of element-wise, matrix, reduction and data-movement kinds. Each docstring says the rule in words."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from graphpool.errors import InvalidOpError
from graphpool.graph.logical_tensor import describe_shape
from graphpool.graph.shapes import broadcast_shapes, channel_axis, is_broadcastable
from graphpool.typing import MAX_NDIM, UNKNOWN_DIM

from .query import Shape, ShapeQuery

if TYPE_CHECKING:
    from collections.abc import Sequence


def identity(query: ShapeQuery) -> Sequence[Shape]:
    """Every output has the shape of the first input."""
    return [query.shape(0)] * query.noutputs


def same_inputs(query: ShapeQuery) -> Sequence[Shape]:
    """The first two inputs have one shape, and so has the output."""
    return [query.match(1, query.shape(0), f"the shape of {query.name(0)}")]


def markers(query: ShapeQuery) -> Sequence[Shape]:
    """Nothing is inferred: outputs keep the shapes that the op gives."""
    return [None] * query.noutputs


def _broadcast(query: ShapeQuery, first: int, second: int) -> Shape:
    a, b = query.shape(first), query.shape(second)
    if query.attrs["auto_broadcast"] == "none":
        return query.match(second, a, f'the shape of {query.name(first)}, as auto_broadcast is "none"')
    if a is None or b is None:
        return None
    out = broadcast_shapes(a, b)
    if isinstance(out, int):
        query.fail(
            f"does not broadcast with {query.name(first)} at dimension {out}", port=second, dim=out, expected=a[out],
            accepted=f"{a[out]} or 1 there, to fit {describe_shape(a)}", got=f"{b[out]} in shape {describe_shape(b)}",
        )  # fmt: skip
    return out


def binary(query: ShapeQuery) -> Sequence[Shape]:
    """NumPy's broadcast of both inputs; with auto_broadcast "none" both have one shape, the output's."""
    return [_broadcast(query, 0, 1)]


def one_way(query: ShapeQuery, port: int, big: Shape, why: str) -> None:
    """Require that input `port` broadcasts to `big` without enlarging it."""
    small = query.shape(port)
    if small is not None and big is not None and not is_broadcastable(small, big):
        query.fail(f"does not broadcast to {why}", port=port, accepted=f"dimensions of {describe_shape(big)}, or 1",
                   got=describe_shape(small), expected=big)  # fmt: skip


def select(query: ShapeQuery) -> Sequence[Shape]:
    """src_0 broadcasts with src_1, and cond one way to the result; with auto_broadcast "none" all have one shape."""
    out = _broadcast(query, 1, 2)
    if query.attrs["auto_broadcast"] == "none":
        return [query.match(0, out, "the shape of the other inputs, as auto_broadcast is none")]
    one_way(query, 0, out, "the shape that src_0 and src_1 give")
    return [out]


def data_axis(query: ShapeQuery, *, ndim_min: int = 2) -> tuple[int, tuple[int, ...]] | None:
    """Channel axis by data_format, and shape, of the first input; None when its rank is unknown."""
    shape = query.shape(0)
    if shape is None:
        return None
    query.rank(0, len(shape), f"at least {ndim_min}-D", len(shape) >= ndim_min)
    return channel_axis(len(shape), query.attrs["data_format"]), shape


def vector(query: ShapeQuery, port: int, length: int, why: str) -> int:
    """Require that input `port` is 1-D of `length`; returns the length that is known of it."""
    shape = query.shape(port)
    if shape is None:
        return length
    query.rank(port, len(shape), f"1-D ({why})", len(shape) == 1)
    return query.dim(port, 0, shape[0], length, why)


def bias_add(query: ShapeQuery) -> Sequence[Shape]:
    """The shape of src; bias is 1-D with one element for each channel."""
    found = data_axis(query)
    if found is None:
        return [None]
    axis, shape = found
    channels = vector(query, 1, shape[axis], "channels of src")
    return [(*shape[:axis], channels, *shape[axis + 1 :])]


def bias_add_backward(query: ShapeQuery) -> Sequence[Shape]:
    """1-D, one element for each channel of diff_dst."""
    found = data_axis(query)
    return [(UNKNOWN_DIM,)] if found is None else [(found[1][found[0]],)]


def _check_slope(query: ShapeQuery, src: Shape, per_channel: bool) -> None:
    slope = query.shape(1)
    if src is None or slope is None:
        return
    if len(slope) != 1 or not per_channel:
        return one_way(query, 1, src, "the shape of src")
    found = data_axis(query)
    if found is not None and slope[0] != 1:
        query.dim(1, 0, slope[0], src[found[0]], "channels of src")


def prelu(query: ShapeQuery) -> Sequence[Shape]:
    """The shape of src; slope has one element, one a channel (per_channel_broadcast), or broadcasts one way to src."""
    _check_slope(query, query.shape(0), query.attrs["per_channel_broadcast"])
    return [query.shape(0)]


def prelu_backward(query: ShapeQuery) -> Sequence[Shape]:
    """diff_src has the shape of src and diff_dst, diff_slope that of slope, which fits as that of a PReLU does."""
    src = query.match(2, query.shape(0), "the shape of src")
    _check_slope(query, src, True)
    return [src, query.shape(1)]


def dropout(query: ShapeQuery) -> Sequence[Shape]:
    """Dst and mask have the shape of src; seed, offset and probability have one element each."""
    for port in (1, 2, 3):
        shape = query.shape(port)
        if shape is not None and any(dim not in (1, UNKNOWN_DIM) for dim in shape):
            query.fail("is not a scalar", port=port, accepted="() or (1,)", got=describe_shape(shape))
    return [query.shape(0)] * query.noutputs


def along_axis(query: ShapeQuery) -> Sequence[Shape]:
    """The shape of src; axis names one of its dimensions."""
    shape = query.shape(0)
    if shape is not None:
        query.axis("axis", query.attrs["axis"], len(shape))
    return [shape]


def _transposed(shape: tuple[int, ...], transpose: bool) -> tuple[int, ...]:
    return (*shape[:-2], shape[-1], shape[-2]) if transpose and len(shape) > 1 else shape


def matmul(query: ShapeQuery) -> Sequence[Shape]:
    """NumPy's matmul after the transpositions, which 1-D inputs ignore; bias broadcasts one way to the result."""
    given_a, given_b = query.shape(0), query.shape(1)
    if given_a is None or given_b is None:
        return [None]
    for port, shape in enumerate((given_a, given_b)):
        query.rank(port, len(shape), "at least 1-D", len(shape) >= 1)
    a, b = _transposed(given_a, query.attrs["transpose_a"]), _transposed(given_b, query.attrs["transpose_b"])
    axis = 0 if len(b) == 1 else len(b) - (1 if query.attrs["transpose_b"] else 2)
    why = f"the inner dimension of {query.name(0)}, {describe_shape(given_a)}, transpose_a={query.attrs['transpose_a']}"
    query.dim(1, axis, b[-2] if len(b) > 1 else b[0], a[-1], why)
    batch = broadcast_shapes(a[:-2], b[:-2])
    if isinstance(batch, int):
        query.fail(
            f"has batch dimensions that do not broadcast with those of {query.name(0)}", port=1, dim=batch - 2,
            accepted=f"{describe_shape(a[:-2])}, or 1", got=describe_shape(b[:-2]), expected=a[:-2],
        )  # fmt: skip
    out = (*batch, *a[-2:-1], *b[-1:]) if len(b) > 1 else (*batch, *a[-2:-1])
    one_way(query, 2, out, "the result")
    return [out]


def reduce(query: ShapeQuery) -> Sequence[Shape]:
    """The axes become 1 with keep_dims, and vanish without; negative axes count from the end."""
    shape, given = query.shape(0), query.sizes(1) if len(query.op.inputs) > 1 else query.attrs["axes"]
    keep = query.attrs["keep_dims"]
    if shape is None:
        return [None]
    if given is None:
        return [(UNKNOWN_DIM,) * len(shape) if keep else None]
    axes = {query.axis("axes", axis, len(shape)) for axis in given}
    if len(axes) != len(given):
        query.fail('attribute "axes" names an axis twice', got=given, accepted="distinct axes", attribute="axes")
    if keep:
        return [tuple(1 if axis in axes else dim for axis, dim in enumerate(shape))]
    return [tuple(dim for axis, dim in enumerate(shape) if axis not in axes)]


def concat(query: ShapeQuery) -> Sequence[Shape]:
    """The sizes along axis add up; every other dimension is the same in all inputs."""
    known = next((shape for shape in query.shapes if shape is not None), None)
    if known is None:
        return [None]
    query.rank(0, len(known), "at least 1-D", len(known) >= 1)
    axis = query.axis("axis", query.attrs["axis"], len(known))
    rest: Shape = (*known[:axis], UNKNOWN_DIM, *known[axis + 1 :])
    total = 0
    for port, shape in enumerate(query.shapes):
        size = UNKNOWN_DIM if shape is None or axis >= len(shape) else shape[axis]
        total = UNKNOWN_DIM if UNKNOWN_DIM in (size, total) else total + size
        merged = query.match(port, rest, "the other inputs, but for the concatenated axis")
        rest = None if merged is None else (*merged[:axis], UNKNOWN_DIM, *merged[axis + 1 :])
    return [None if rest is None else (*rest[:axis], total, *rest[axis + 1 :])]


def reshape(query: ShapeQuery) -> Sequence[Shape]:
    """Attribute shape, of which one -1 takes what is left; with special_zero a 0 copies the dimension of src."""
    target: tuple[int, ...] = query.attrs["shape"]
    src = query.shape(0)
    if len(target) > MAX_NDIM or any(dim < -1 for dim in target) or target.count(-1) > 1:
        query.fail('attribute "shape" is malformed', accepted=f"at most {MAX_NDIM} sizes of 0 or more, one -1",
                   got=target, attribute="shape")  # fmt: skip
    out = [_copied_dim(query, src, axis) if dim == 0 else dim for axis, dim in enumerate(target)]
    count = UNKNOWN_DIM if src is None or UNKNOWN_DIM in src else math.prod(src)
    if UNKNOWN_DIM in out or count == UNKNOWN_DIM:
        return [tuple(UNKNOWN_DIM if dim == -1 else dim for dim in out)]
    rest = math.prod([dim for dim in out if dim != -1])
    fits = rest > 0 and count % rest == 0 if -1 in out else count == rest
    if not fits:
        accepted = f"a multiple of {rest} elements, above 0" if -1 in out else f"{rest} elements"
        query.fail("cannot be reshaped", port=0, accepted=f"{accepted}, for shape {target}",
                   got=f"{count} in {describe_shape(src)}", expected=rest)  # fmt: skip
    return [tuple(count // rest if dim == -1 else dim for dim in out)]


def _copied_dim(query: ShapeQuery, src: Shape, axis: int) -> int:
    if not query.attrs["special_zero"]:
        return 0
    if src is None:
        return UNKNOWN_DIM
    if axis >= len(src):
        query.fail('attribute "shape" copies a dimension that src does not have', accepted=f"0 in the first {len(src)}"
                   " places only", got=query.attrs["shape"], attribute="shape")  # fmt: skip
    return src[axis]


def transpose(query: ShapeQuery) -> Sequence[Shape]:
    """Dimension i of dst is dimension order[i] of src; an empty order reverses the dimensions."""
    shape, order = query.shape(0), query.attrs["order"]
    if shape is None:
        return [(UNKNOWN_DIM,) * len(order) if order else None]
    axes = [query.axis("order", axis, len(shape)) for axis in order] or list(range(len(shape)))[::-1]
    if sorted(axes) != list(range(len(shape))):
        query.fail('attribute "order" is no permutation', accepted=f"each of 0 .. {len(shape) - 1} once", got=order,
                   attribute="order", error=InvalidOpError)  # fmt: skip
    return [tuple(shape[axis] for axis in axes)]
