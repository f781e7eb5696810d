"""Convolutions as kernels see them."""

from __future__ import annotations

from operator import is_
from typing import TYPE_CHECKING, Any, TypeVar

from graphpool._dataclasses import dataclass, field
from graphpool.fork import cached_property

from ...._kernels.conv.problem import ConvProblem, ConvShape
from ...._kernels.image.window import merged_stride
from ....graph.shapes import conv_weight_axes, per_axis, resolve_pads
from ..layout.images import axes_of, pick, spans_too_much
from ..layout.packed import ConvAxes
from ..lower.post_ops import FusedPostOps, find_post_ops
from .choice import Site

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ..lower.post_ops import Tail
    from ..lower.values import Value
    from .weights import PackedWeights

__all__ = ["ConvSite"]

T = TypeVar("T")


@dataclass(frozen=True)
class ConvSite(Site):
    """A convolution or a transposed one, with the ops behind it, while it is lowered.

    `tails` are strides of the result, and what kernels do to accumulators, `made` is what else was made once, by what
    they follow from: the kernels for weights that are kept packed, and for those that are not, have them in common.
    """

    tails: list[tuple[tuple[Any, ...], tuple[Sequence[int], Tail]]] = field(default_factory=list)
    made: list[tuple[tuple[Any, ...], Any]] = field(default_factory=list)

    @cached_property
    def axes(self) -> tuple[int, ...]:
        """Of the images: (n, channel, spatial...)."""
        return axes_of(self.op, len(self.result))

    @cached_property
    def weight_axes(self) -> ConvAxes:
        """Of the plain weights."""
        return ConvAxes(*conv_weight_axes(len(self.result), self.op.attrs["weights_format"]))

    @cached_property
    def shape(self) -> ConvShape:
        """What is known of the weights of a convolution, however they lie."""
        axes, dims, attrs = self.weight_axes, self.lowering.shapes[self.op.inputs[1].id], self.op.attrs
        kernel, groups = tuple(pick(dims, axes.kernel)), attrs["groups"]
        dilations = per_axis(attrs, "dilations", len(kernel))
        return ConvShape(dims[axes.inner] * groups, dims[axes.outer], kernel, groups, dilations)

    @cached_property
    def suits_panels(self) -> bool:
        """Whether there is more than one channel to fill vectors, and what windows span may be copied."""
        src, dst = (self.lowering.shapes[tensor.id] for tensor in (self.op.inputs[0], self.op.outputs[0]))
        is_single = self.shape.in_channels == self.shape.out_channels == 1
        return not is_single and not spans_too_much(self.op, src, dst, self.shape.kernel)

    @property
    def is_channels_last(self) -> bool:
        """Whether the channels of a pixel of the result lie side by side."""
        return self.order[-1] == self.axes[1]

    def pixel_strides(self, image: Value) -> tuple[int, ...] | None:
        """Strides of an image whose channels lie side by side, and whose pixels one stride walks; None for others."""
        return self._once(ConvSite._find_pixel_strides, image)

    def _find_pixel_strides(self, image: Value) -> tuple[int, ...] | None:
        strides = image.row_strides(self.order)
        if strides is None or merged_stride([(image.shape[axis], strides[axis]) for axis in self.order[1:-1]]) is None:
            return None
        return strides

    def problem(
        self, shape: ConvShape, source: Value, dst_strides: Sequence[int], *, zero_point: int = 0
    ) -> ConvProblem:
        """What a convolution asks of its kernel; `dst_strides` by axes of the result. Unit: elements."""
        return self._once(ConvSite._make_problem, shape, source, dst_strides, zero_point)

    def _once(self, make: Callable[..., T], *given: Any) -> T:
        """What a method gives for these objects, made once; it must depend on nothing that changes."""
        key = make, *given
        for known, found in self.made:
            if known[0] is make and all(map(is_, known, key)):
                made: T = found
                return made
        made = make(self, *given)
        self.made.append((key, made))
        return made

    def _make_problem(
        self, shape: ConvShape, source: Value, dst_strides: Sequence[int], zero_point: int
    ) -> ConvProblem:
        axes, attrs = self.axes, self.op.attrs
        spatial = pick(source.shape, axes[2:])
        begin, end = resolve_pads(attrs, spatial, shape.kernel)
        return ConvProblem.make(
            source.shape[0],
            shape,
            spatial,
            src_strides=pick(source.strides, axes),
            dst_strides=pick(dst_strides, axes),
            strides=attrs["strides"],
            pads_begin=begin,
            pads_end=end,
            src_dtype=source.dtype.value,
            zero_point=zero_point,
            threads=self.lowering.threads,
        )

    def image_problem(self, image: Mapping[str, Any], kernel: Sequence[int]) -> ConvProblem:
        """What a convolution, or a transposed one, asks of a kernel with weights as they lie; `image`: `find_image`."""
        attrs, is_transposed = self.op.attrs, self.op.kind == "ConvTranspose"
        begin, end = resolve_pads(attrs, image["src_spatial"], kernel, transposed=is_transposed)
        channels = image["channels"], self.lowering.shapes[self.op.outputs[0].id][self.axes[1]]
        return ConvProblem.make(
            image["batch"],
            ConvShape(*channels, tuple(kernel), attrs["groups"], per_axis(attrs, "dilations", len(kernel))),
            image["src_spatial"],
            src_strides=image["src_strides"],
            dst_strides=image["dst_strides"],
            strides=attrs["strides"],
            pads_begin=begin,
            pads_end=end,
            transposed=is_transposed,
            output_padding=per_axis(attrs, "output_padding", len(kernel), 0) if is_transposed else None,
        )

    def find_post_ops(
        self, place: Value, weights: PackedWeights[Any], fits: Callable[[Value], bool]
    ) -> FusedPostOps | None:
        """The post-ops that are not folded into the weights, if the kernel can fuse them.

        `fits` says whether a kernel can write an image that lies so, and read it as a residual of floats.
        """
        if not fits(place):
            return None
        group, folded, is_quantized = self.group, weights.folded, bool(self.group.dequantized)
        ops, first = group.ops[folded:], group.reached(folded)
        return find_post_ops(
            self.lowering,
            ops,
            first,
            place,
            weights.bias,
            self.axes[1],
            is_residual=None if is_quantized else fits,
            is_quantized=is_quantized,
        )
