"""Shape rules of normalisation and softmax. Each docstring says the rule in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphpool.typing import UNKNOWN_DIM

from .query import Shape, ShapeQuery
from .rules_basic import data_axis, one_way, vector

if TYPE_CHECKING:
    from collections.abc import Sequence


def _channels(query: ShapeQuery, ports: range) -> int:
    """Channels of src, on which the 1-D inputs `ports` agree."""
    found = data_axis(query)
    count = UNKNOWN_DIM if found is None else found[1][found[0]]
    for port in ports:
        if port < len(query.shapes):
            count = vector(query, port, count, "channels of src")
    return count


def batch_norm_inference(query: ShapeQuery) -> Sequence[Shape]:
    """The shape of src; the other inputs are 1-D with one element for each channel."""
    _channels(query, range(1, 5))
    return [query.shape(0)]


def batch_norm_training(query: ShapeQuery) -> Sequence[Shape]:
    """Dst has the shape of src; every statistic is 1-D with one element for each channel."""
    channels = _channels(query, range(1, 5))
    return [query.shape(0)] + [(channels,)] * (query.noutputs - 1)


def batch_norm_backward(query: ShapeQuery) -> Sequence[Shape]:
    """diff_src has the shape of src and diff_dst; diff_gamma and diff_beta have one element for each channel."""
    src = query.match(1, query.shape(0), "the shape of src")
    channels = _channels(query, range(2, 5))
    return [src] + [(channels,)] * (query.noutputs - 1)


def _begin_axis(query: ShapeQuery, shape: tuple[int, ...]) -> int:
    query.rank(0, len(shape), "at least 1-D", len(shape) >= 1)
    return query.axis("begin_norm_axis", query.attrs["begin_norm_axis"], len(shape))


def _affine(query: ShapeQuery, ports: range, normalised: tuple[int, ...]) -> None:
    for port in ports:
        one_way(query, port, normalised, "the normalised dimensions of src")


def layer_norm(query: ShapeQuery) -> Sequence[Shape]:
    """Dst has the shape of src; mean and variance have its dimensions before begin_norm_axis.

    gamma and beta broadcast to the others.
    """
    shape = query.shape(0)
    if shape is None:
        return [None] * query.noutputs
    axis = _begin_axis(query, shape)
    _affine(query, range(1, 3), shape[axis:])
    return [shape] + [shape[:axis]] * (query.noutputs - 1)


def rms_norm(query: ShapeQuery) -> Sequence[Shape]:
    """The shape of src; gamma broadcasts to its dimensions from begin_norm_axis on."""
    return layer_norm(query)


def layer_norm_backward(query: ShapeQuery) -> Sequence[Shape]:
    """diff_src has the shape of src and diff_dst; diff_gamma and diff_beta have that of gamma.

    Without gamma they have the dimensions of src from begin_norm_axis on.
    """
    shape = query.match(1, query.shape(0), "the shape of src")
    if shape is None:
        return [None] + [query.shape(4)] * (query.noutputs - 1)
    axis = _begin_axis(query, shape)
    for port in (2, 3):
        query.match(port, shape[:axis], "the dimensions of src before begin_norm_axis")
    _affine(query, range(4, 6), shape[axis:])
    gamma = query.shape(4)
    return [shape] + [shape[axis:] if gamma is None else gamma] * (query.noutputs - 1)


def group_norm(query: ShapeQuery) -> Sequence[Shape]:
    """Dst has the shape of src; mean and variance are batch x groups; gamma and beta have one element a channel."""
    shape, groups = query.shape(0), query.attrs["groups"]
    channels = _channels(query, range(1, 3))
    if channels != UNKNOWN_DIM and channels % groups:
        query.fail("has channels that do not divide into groups", port=0, accepted=f"a multiple of groups={groups}",
                   got=channels, attribute="groups")  # fmt: skip
    batch = UNKNOWN_DIM if shape is None else shape[0]
    return [shape] + [(batch, groups)] * (query.noutputs - 1)


def softmax(query: ShapeQuery) -> Sequence[Shape]:
    """Dst has the shape of src; stats too, but 1 along axis."""
    shape = query.shape(0)
    if shape is None:
        return [None] * query.noutputs
    axis = query.axis("axis", query.attrs["axis"], len(shape))
    return [shape] + [(*shape[:axis], 1, *shape[axis + 1 :])] * (query.noutputs - 1)


def softmax_backward(query: ShapeQuery) -> Sequence[Shape]:
    """Dst and diff_dst have one shape, and so has diff_src; axis names one of its dimensions."""
    shape = query.match(1, query.shape(0), f"the shape of {query.name(0)}")
    if shape is not None:
        query.axis("axis", query.attrs["axis"], len(shape))
    return [shape]
