"""Which tensors of a partition lie channels last, whatever their format says: decided for whole regions at once.

Convolutions are faster where the channels of a pixel lie together: products read pixels as rows, depthwise windows
run along channels. A region is made of groups that hand images to each other: windows, elementwise ops and
concatenations of channels. It is turned round as a whole where that gains more than the copies at its border cost;
reductions read any strides, so they are no border. A tensor's shape never changes, only its strides do, so that
whoever reads it finds the right elements without knowing of any of this.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from graphpool._dataclasses import dataclass, field

from ...._kernels.conv.packed import is_staged
from ...._sizes import Preference
from ....graph.shapes import are_equal, conv_weight_axes, per_axis
from ..match.groups import AnchorGroup
from ..support import is_elementwise

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ....graph.op import Op
    from ..match.groups import Group

__all__ = ["choose_channels_last"]

WINDOWS = frozenset({"Convolution", "ConvTranspose", "AvgPool", "MaxPool", "Interpolate"})

_BORDER_NS = 0.25
_WINDOW_NS_PER_FLOP = 0.004
_POINT_NS_PER_FLOP = 0.001
_PATCH_NS = 0.15
_BYTES_NS_PER_FLOP = 0.006
_TAP_NS = 0.25
"""Measured on one core of an AMD EPYC (family 25): a copy between the layouts, an element; what convolutions with
kernels of several taps and of one gain, a floating-point operation, and for each element of a patch that is not
gathered; what those of bytes gain, a floating-point operation, and depthwise windows and pools of bytes, a tap of a
result. Other pools and resampling run about as fast either way."""


@dataclass(eq=False)
class _Region:
    """Groups that hand images to each other, and what turning them round gains."""

    members: list[Group] = field(default_factory=list)
    gain_ns: float = 0.0


def choose_channels_last(
    groups: Sequence[Group], shapes: Mapping[int, tuple[int, ...]], outputs: set[int]
) -> frozenset[int]:
    """Ids of the results of groups that lie channels last; `outputs` leave the partition channels first.

    Cost: linear in the ops.
    """
    regions = _find_regions(groups, shapes)
    if not regions:
        return frozenset()
    home = {group.result: region for region in regions for group in region.members}
    for group in groups:
        for tensor_id in _images(group, shapes):
            if home.get(tensor_id) is not home.get(group.result):
                _add_border(home.get(tensor_id), shapes[tensor_id])
                _add_border(home.get(group.result), shapes[tensor_id])
    for tensor_id in outputs & home.keys():
        _add_border(home[tensor_id], shapes[tensor_id])
    with Preference(*[region.gain_ns for region in regions]):
        return frozenset(g.result for region in regions if region.gain_ns > 0 for g in region.members)


def _add_border(region: _Region | None, shape: Sequence[int]) -> None:
    """An image that must be copied where it enters or leaves; one of a single pixel lies the same both ways."""
    if region is not None and prod(shape[2:]) > 1 and shape[1] > 1:
        region.gain_ns -= prod(shape) * _BORDER_NS


def _find_regions(groups: Sequence[Group], shapes: Mapping[int, tuple[int, ...]]) -> list[_Region]:
    """Regions that hold a window at least; a group joins those whose images it reads."""
    home: dict[int, _Region] = {}
    for group in groups:
        own = _window_of(group)
        if own is None and not _may_follow(group, shapes):
            continue
        found = {id(home[i]): home[i] for i in _images(group, shapes) if i in home}
        if own is None and not found:
            continue
        region = _join(list(found.values()), home)
        region.members.append(group)
        region.gain_ns += 0.0 if own is None else _gain_ns(own, shapes)
        home[group.result] = region
    return list({id(region): region for region in home.values()}.values())


def _join(found: list[_Region], home: dict[int, _Region]) -> _Region:
    """One region of several."""
    region = found[0] if found else _Region()
    for other in found[1:]:
        region.members += other.members
        region.gain_ns += other.gain_ns
        home.update((group.result, region) for group in other.members)
    return region


def _window_of(group: Group) -> AnchorGroup | None:
    """The group, if it is a window whose images lie channels first by themselves."""
    if not isinstance(group, AnchorGroup) or group.anchor.kind not in WINDOWS:
        return None
    return group if group.anchor.attrs["data_format"] == "NCX" else None


def _may_follow(group: Group, shapes: Mapping[int, tuple[int, ...]]) -> bool:
    """Whether the group computes images of whatever layout its operands have."""
    if isinstance(group, AnchorGroup) or not 3 <= len(shapes[group.result]) <= 5:
        return False
    op = group.first
    if is_elementwise(op) or op.kind == "DynamicQuantizeLinear":
        return True
    return op.kind == "Concat" and op.attrs["axis"] % len(shapes[group.result]) == 1


def _images(group: Group, shapes: Mapping[int, tuple[int, ...]]) -> list[int]:
    """Tensors that the group wants in the layout of its own result, or row-major where it has no choice."""
    made = {tensor.id for op in _ops(group) for tensor in op.outputs}
    found = [t.id for op in _ops(group) for t in op.inputs if _is_image(t.id, op, shapes)]
    dequantized = group.dequantized.values() if isinstance(group, AnchorGroup) else ()
    quantized = {op.outputs[0].id: op.inputs[0].id for op in dequantized}
    return [quantized.get(tensor_id, tensor_id) for tensor_id in dict.fromkeys(found) if tensor_id not in made]


def _ops(group: Group) -> tuple[Op, ...]:
    return (group.anchor, *group.ops) if isinstance(group, AnchorGroup) else group.ops


def _is_image(tensor_id: int, op: Op, shapes: Mapping[int, tuple[int, ...]]) -> bool:
    """Whether the op wants this input in a certain layout: reductions and transpositions take any."""
    if op.kind in WINDOWS:
        return tensor_id == op.inputs[0].id and not _reads_any_strides(op, shapes)
    if is_elementwise(op):
        return are_equal(shapes[tensor_id], shapes[op.outputs[0].id])
    return not op.kind.startswith("Reduce") and op.kind != "StaticTranspose"


def _reads_any_strides(op: Op, shapes: Mapping[int, tuple[int, ...]]) -> bool:
    """Whether the convolution copies what it reads anyway."""
    if op.kind != "Convolution":
        return False
    _, _, spatial = conv_weight_axes(len(shapes[op.inputs[1].id]), op.attrs["weights_format"])
    kernel = [shapes[op.inputs[1].id][axis] for axis in spatial]
    dilations = per_axis(op.attrs, "dilations", len(kernel))
    return is_staged(shapes[op.inputs[0].id][1], kernel, dilations, op.attrs["groups"])


def _gain_ns(group: AnchorGroup, shapes: Mapping[int, tuple[int, ...]]) -> float:
    """What a window gains in time. Unit: nanoseconds."""
    op, is_bytes = group.anchor, bool(group.dequantized)
    batch, _, *pixels = shapes[op.outputs[0].id]
    result = prod(shapes[op.outputs[0].id])
    if op.kind.endswith("Pool") and is_bytes:
        gain: float = _TAP_NS * (result * prod(op.attrs["kernel"]))
        return gain
    if op.kind == "Interpolate" or op.kind.endswith("Pool"):
        return 0.0
    weights = shapes[op.inputs[1].id]
    inner, _, spatial = conv_weight_axes(len(weights), op.attrs["weights_format"])
    taps: int = prod(weights[axis] for axis in spatial)
    if weights[inner] == 1 and op.attrs["groups"] > 1:
        return _TAP_NS * result * taps
    if is_bytes:
        return _BYTES_NS_PER_FLOP * (2 * result * taps * weights[inner])
    flops: int = 2 * result * taps * weights[inner]
    if taps == 1:
        return _POINT_NS_PER_FLOP * flops
    nelements: int = prod((batch, *pixels)) * taps * weights[inner] * op.attrs["groups"]
    return _WINDOW_NS_PER_FLOP * flops + _PATCH_NS * nelements
