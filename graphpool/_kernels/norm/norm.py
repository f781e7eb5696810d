"""Normalisation kernels (``norm/norm.c``, ``norm/channel_norm.c``): layer, RMS, group, and batch statistics."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from graphpool._dataclasses import dataclass
from graphpool._sizes import largest, least
from graphpool.errors import InvalidArgumentError, InvalidShapeError, UnsupportedError, explain
from graphpool.typing import dense_strides

from ..core.call import KernelCall, pack
from ..core.records import number, record
from ..core.spaces import check_strides, normalise_axis, space, split_axes, take_innermost

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["NormOptions", "batch_moments", "group_norm", "layer_norm"]

_COLUMNS = number("GP_COLUMNS")

_TASK_POINTS = 4096
"""Elements of several groups of a task: what one of them waits for is hidden behind the others."""


@dataclass(frozen=True)
class NormOptions:
    """What layer and group norm have in common: which inputs and outputs there are, and how src and dst lie."""

    gamma: bool = False
    beta: bool = False
    keep_stats: bool = False
    epsilon: float = 1e-5
    src_strides: Sequence[int] | None = None
    dst_strides: Sequence[int] | None = None
    epilogue: bytes = b""

    def layouts(self, shape: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Strides of src and dst."""
        return check_strides("src", shape, self.src_strides), check_strides("dst", shape, self.dst_strides)

    def fields(self) -> dict[str, Any]:
        """Numbers of the optional arguments, behind src and in this order, and of dst; what else both structs have."""
        numbers, last = {}, 0
        for name in ("gamma", "beta", "mean", "variance"):
            exists = self.keep_stats if name in ("mean", "variance") else getattr(self, name)
            last += exists
            numbers[name] = last if exists else -1
        return {**numbers, "dst": last + 1, "has_program": bool(self.epilogue), "epsilon": self.epsilon}


_PLAIN = NormOptions()


def layer_norm(
    shape: Sequence[int],
    begin: int = -1,
    options: NormOptions = _PLAIN,
    *,
    is_rms: bool = False,
    isa: str | None = None,
) -> KernelCall:
    """Normalise over the axes from `begin` on: (x - mean) / sqrt(variance + epsilon) * gamma + beta.

    Arguments: src, [gamma], [beta], [mean, variance], dst. gamma and beta, which needs gamma, are dense, of shape
    ``shape[begin:]``; mean and biased variance, which `keep_stats` asks for, of ``shape[:begin]``. `is_rms`: the mean
    is not subtracted, the mean square takes the place of the variance, and there are no statistics
    (InvalidArgumentError). Strides must walk a row as one axis (UnsupportedError). Tasks: rows.
    """
    if (options.beta and not options.gamma) or (is_rms and options.keep_stats):
        raise InvalidArgumentError(explain("layer norm", accepted="beta with gamma, statistics of the layer form only"))
    begin = normalise_axis(begin, len(shape))
    src, dst = options.layouts(shape)
    rows, stats = shape[:begin], dense_strides(shape[:begin])
    outer, count = space(rows, src[:begin], dst[:begin], stats, stats)
    size = prod(shape[begin:])
    stride = _single_stride(shape[begin:], src[begin:], dst[begin:])
    values = {"outer": outer, "size": size, "stride": stride, "is_rms": is_rms, **options.fields()}
    return pack("f32_layer_norm", values, ntasks=count, scratch_nbytes=4 * size, tail=options.epilogue, isa=isa)


def group_norm(
    shape: Sequence[int], groups: int, channel_axis: int, options: NormOptions = _PLAIN, *, isa: str | None = None
) -> KernelCall:
    """Normalise over the points and the channels of each group of each sample, which axis 0 counts.

    Arguments as of `layer_norm`: gamma and beta one a channel, statistics of shape (samples, groups). `groups` divides
    the channels, whose axis is 1 for NCX and -1 for NXC. Tasks: a group each, more where these are small, or with
    contiguous channels as many groups as make 64 channels.
    """
    axis = normalise_axis(channel_axis, len(shape))
    if axis == 0 or groups < 1 or shape[axis] % groups:
        raise InvalidShapeError(
            explain("group norm", accepted="channels behind axis 0, in groups of one size", got=(tuple(shape), groups))
        )
    src, dst = options.layouts(shape)
    outer, samples = space(shape[:1], src[:1], dst[:1], [groups], [groups])
    points = [k for k in range(1, len(shape)) if k != axis]
    group = max(shape[axis] // groups, 1)
    values = _channels(shape, axis, points, src, dst)
    width = group * _task_groups(group, prod([shape[k] for k in points]), values["by_channel"])
    values |= {"outer": outer, "width": width, "group": group, "stat_stride": (1, 1), **options.fields()}
    ntasks, scratch_nbytes = samples * -(-shape[axis] // width), _channel_scratch(values)
    return pack("f32_group_norm", values, ntasks=ntasks, scratch_nbytes=scratch_nbytes, tail=options.epilogue, isa=isa)


def batch_moments(
    shape: Sequence[int],
    channel_axis: int,
    *,
    epsilon: float = 1e-5,
    src_strides: Sequence[int] | None = None,
    isa: str | None = None,
) -> KernelCall:
    """Mean and biased variance per channel, over all other axes, and how they normalise.

    Arguments: src, mean, variance, offset, scale; the latter dense, one a channel, such that ``(x / 4 + offset) *
    scale`` is ``(x - mean) / sqrt(variance + epsilon)`` also where x - mean or the variance would overflow. Tasks:
    channels, more where these are small, by 64 where they are contiguous.
    """
    axis = normalise_axis(channel_axis, len(shape))
    src = check_strides("src", shape, src_strides)
    points = [k for k in range(len(shape)) if k != axis]
    values = _channels(shape, axis, points, src, src)
    width = _task_groups(1, prod([shape[k] for k in points]), values["by_channel"])
    values |= {
        "width": width, "group": 1, "stat_stride": (1, 1), "gamma": -1, "beta": -1, "mean": 1, "variance": 2, "dst": -1,
        "offset": 3, "scale": 4, "epsilon": epsilon,
    }  # fmt: skip
    ntasks = -(-shape[axis] // width)
    scratch_nbytes = _channel_scratch(values)
    return pack("f32_batch_moments", values, ntasks=ntasks, scratch_nbytes=scratch_nbytes, isa=isa)


def _single_stride(dims: Sequence[int], *strides: Sequence[int]) -> tuple[int, ...]:
    """The stride with which each operand walks these axes, taken as one."""
    merged, columns = split_axes(dims, *strides)
    if len(merged) > 1 and 0 not in dims:
        accepted, hint = "axes that merge into one", "reorder first"
        raise UnsupportedError(explain("strides of normalised axes", accepted=accepted, got=strides, hint=hint))
    return tuple(column[0] if column else 1 for column in columns)


def _channels(
    shape: Sequence[int], axis: int, points: list[int], src: Sequence[int], dst: Sequence[int]
) -> dict[str, Any]:
    """The fields that say how channels and points lie in memory."""
    by_channel = src[axis] == 1
    dims, strides = split_axes([shape[k] for k in points], [src[k] for k in points], [dst[k] for k in points])
    run, run_strides = take_innermost(dims, strides) if dims and not by_channel else (1, [1, 1])
    walked, npoints = space(dims, *strides)
    return {
        "points": walked, "npoints": npoints, "run": run, "run_stride": run_strides, "channels": shape[axis],
        "channel_stride": (src[axis], dst[axis]), "by_channel": by_channel,
    }  # fmt: skip


def _task_groups(group: int, npoints: int, by_channel: bool) -> int:
    """Groups of a task, of `group` channels with so many points: as many as are in L1, if they are not side by side."""
    if by_channel:
        return max(1, _COLUMNS // group)
    return largest(1, least(_COLUMNS, _TASK_POINTS // largest(1, group * npoints)))


def _channel_scratch(values: dict[str, Any]) -> int:
    """Bytes of ``workspace``: moments, three floats a channel, and a row."""
    width: int = values["width"]
    return record("gp_moments").nbytes * width + 4 * 3 * width + 4 * largest(values["run"], width)
