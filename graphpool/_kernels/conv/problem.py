"""What every kernel of the convolution family is asked, and what a format of constant weights offers.

shape = ConvShape(64, 64, (3, 3))
weights = F32ConvFormat(shape)                                # panels; the others: bf16, int8, depthwise, Winograd
weights.pack(strides)(w, packed)                              # once; `weights.nbytes` says how large packed is
problem = ConvProblem.make(1, shape, (56, 56), src_strides=..., dst_strides=..., pads_begin=(1, 1), pads_end=(1, 1))
weights.convolution(problem, PostOps(bias=True, clamp=(0, inf)))(x, packed, bias, dst)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from graphpool._dataclasses import dataclass, field
from graphpool.errors import InvalidArgumentError, InvalidShapeError, UnsupportedError, explain

from ..gemm.post_ops import NO_POST_OPS, PostOps
from ..image.window import Window, convolution_window, image_strides, merged_stride

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..core.call import KernelCall

__all__ = ["ConvFormat", "ConvProblem", "ConvShape", "check_weight_strides"]


def check_weight_strides(strides: Sequence[int], ndim: int) -> None:
    """Raise `InvalidShapeError` unless there is a stride for each axis of the weights of `ndim` spatial axes."""
    if len(strides) != ndim + 3:
        accepted = "(group, oc, ic, spatial...)"
        raise InvalidShapeError(explain("strides of weights", accepted=accepted, got=tuple(strides)))


@dataclass(frozen=True)
class ConvShape:
    """The weights of a convolution, whatever their layout.

    Attributes
    ----------
    in_channels, out_channels : int
        Multiples of `groups`.
    kernel : tuple of int
        One to three axes.
    groups : int, default=1
    dilations : tuple of int, optional
        Ones by default.

    Raises
    ------
    InvalidShapeError, InvalidArgumentError, UnsupportedError
        A size out of range; channels that `groups` does not divide; another number of axes.
    """

    in_channels: int
    out_channels: int
    kernel: tuple[int, ...]
    groups: int = 1
    dilations: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        channels = self.in_channels, self.out_channels
        if min(channels) < 0:
            raise InvalidShapeError(explain("channels", accepted=">= 0", got=channels))
        if self.groups < 1 or any(count % self.groups for count in channels):
            accepted = f"a divisor of {channels[0]} and {channels[1]} channels"
            raise InvalidArgumentError(explain("groups", accepted=accepted, got=self.groups))
        if not 1 <= len(self.kernel) <= 3:
            raise UnsupportedError(explain("number of spatial axes", accepted="1, 2, 3", got=len(self.kernel)))
        if min(self.kernel) < 1:
            raise InvalidShapeError(explain("kernel", accepted="sizes of at least 1", got=self.kernel))


@dataclass(frozen=True)
class ConvProblem:
    """A convolution, or a transposed one, whose sizes fit each other; `make` says what its arguments are."""

    batch: int
    shape: ConvShape
    window: Window
    src_strides: tuple[int, ...]
    dst_strides: tuple[int, ...]
    src_dtype: str
    zero_point: int
    is_transposed: bool
    threads: int

    @classmethod
    def make(
        cls,
        batch: int,
        shape: ConvShape,
        src_spatial: Sequence[int],
        *,
        src_strides: Sequence[int],
        dst_strides: Sequence[int],
        strides: Sequence[int] | None = None,
        pads_begin: Sequence[int] | None = None,
        pads_end: Sequence[int] | None = None,
        transposed: bool = False,
        output_padding: Sequence[int] | None = None,
        src_dtype: str = "f32",
        zero_point: int = 0,
        threads: int = 1,
    ) -> ConvProblem:
        """Check the sizes of a convolution (a cross-correlation, as in every framework).

        The result extent of an axis is ``(in + begin + end - dilation * (kernel - 1) - 1) // stride + 1``; of a
        transposed convolution, the gradient of the other by its source, ``stride * (in - 1) + dilation * (kernel - 1) +
        1 - begin - end + output_padding``.

        Parameters
        ----------
        src_spatial : sequence of int
            As many axes as the kernel has.
        src_strides, dst_strides : sequence of int
            (n, c, spatial...); each kernel says which it takes. Unit: elements.
        strides, pads_begin, pads_end, output_padding : sequence of int, optional
            Ones, and zeros. The last one: results behind the last of a transposed convolution.
        src_dtype, zero_point
            Of the image: what the format of the weights takes. The zero point of 8 bits is what lies in the padding.
        threads : int, default=1
            That will share the convolution: tasks are made smaller where these then end sooner. Results do not depend
            on it.

        Raises
        ------
        InvalidShapeError, UnsupportedError
            The arguments do not fit each other.
        """
        if batch < 0:
            raise InvalidShapeError(explain("batch", accepted=">= 0", got=batch))
        window = convolution_window(
            src_spatial, shape.kernel, strides=strides, pads_begin=pads_begin, pads_end=pads_end,
            dilations=shape.dilations, src_strides=src_strides, dst_strides=dst_strides, transposed=transposed,
            output_padding=output_padding,
        )  # fmt: skip
        sides = tuple(src_strides), tuple(dst_strides)
        return cls(batch, shape, window, *sides, src_dtype, zero_point, transposed, threads)

    def src_image(self) -> tuple[int, int, int, int]:
        """Strides of images and of three spatial axes of src, whose channels must be contiguous. Unit: elements."""
        return image_strides("src_strides", self.src_strides, len(self.shape.kernel), self.shape.in_channels)

    def result_images(self, post_ops: PostOps) -> list[tuple[int, int, int, int]]:
        """The same of dst and of the residual."""
        ndim, channels = len(self.shape.kernel), self.shape.out_channels
        residual = image_strides("residual_strides", self.residual_strides(post_ops), ndim, channels)
        return [image_strides("dst_strides", self.dst_strides, ndim, channels), residual]

    def result_pixels(self, post_ops: PostOps) -> list[tuple[int, int]]:
        """Strides of images and of pixels of dst and of the residual, each on one stride. Unit: elements."""
        found = []
        for image, *spatial in self.result_images(post_ops):
            pixel = merged_stride(list(zip(self.window.dst, spatial, strict=True)))
            if pixel is None:
                accepted = "contiguous channels, and pixels that one stride walks"
                raise UnsupportedError(explain("strides of results", accepted=accepted, got=(image, *spatial)))
            found.append((image, pixel))
        return found

    def residual_strides(self, post_ops: PostOps) -> Sequence[int]:
        """Those of the residual, of dst where there is none."""
        return self.dst_strides if post_ops.residual_strides is None else post_ops.residual_strides


@dataclass(frozen=True)
class ConvFormat(ABC):
    """Constant weights as one kernel of the family reads them.

    Attributes
    ----------
    shape : ConvShape
    isa : str, optional
        Instruction set of the kernels; the best one by default.
    is_exact : bool
        Whether `unpack` gives the weights back bit for bit.

    Notes
    -----
    Formats are equal where the bytes that they pack are. Immutable; usable from any thread.
    """

    shape: ConvShape
    isa: str | None = field(default=None, kw_only=True)
    is_exact: ClassVar[bool] = False

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Of the packed weights. Unit: bytes."""

    @abstractmethod
    def pack(self, strides: Sequence[int]) -> KernelCall:
        """A kernel that packs weights; arguments: weights, packed. Another number of strides is an `InvalidShapeError`.

        `strides` are those of the weights, any: (group, out channel in the group, in channel in the group, spatial...).
        Unit: elements. Cost: one read and one write of the weights, about a nanosecond each.
        """

    def unpack(self, strides: Sequence[int]) -> KernelCall:
        """The inverse of `pack`, with the same strides, unless packing rounds; arguments: packed, weights."""
        raise UnsupportedError(explain(f"unpack of {type(self).__name__}", accepted="formats that round nothing"))

    @abstractmethod
    def convolution(self, problem: ConvProblem, post_ops: PostOps = NO_POST_OPS) -> KernelCall:
        """A kernel for ``dst = post_ops(convolution(src, weights))``; arguments: src, packed, those of the post-ops.

        Tasks write disjoint parts of dst, which must not overlap src.

        Raises
        ------
        InvalidShapeError, InvalidArgumentError, InvalidDataTypeError
            The arguments do not fit each other.
        UnsupportedError
            Strides that the kernel does not take; an unknown instruction set.
        """
