"""Constant weights as kernels read them, where a port has such a layout: what `Reorder` packs and unpacks.

A layout is found from what its id holds, a type and a shape alone, so that whoever has the bytes and the id can read
them. Calls are of ``(kernel call, source, place)``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import product
from math import prod
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeVar

from graphpool._dataclasses import dataclass, replace

from ...._kernels.conv.bf16 import Bf16ConvFormat
from ...._kernels.conv.depthwise import DepthwiseFormat, Int8DepthwiseFormat, is_narrow
from ...._kernels.conv.int8 import Int8ConvFormat
from ...._kernels.conv.packed import F32ConvFormat
from ...._kernels.conv.problem import ConvFormat, ConvShape
from ...._kernels.conv.winograd import TILES, WinogradFormat
from ...._kernels.eltwise.eltwise import EltwiseBuilder
from ...._kernels.gemm.compressed import BITS, CompressedFormat, Part
from ...._kernels.gemm.packed import PackedFormat
from ...._kernels.gemm.problem import aligned
from ....typing import DataType
from .images import pick

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Self

    from ...._kernels.core.call import KernelCall

    Field = tuple[int, int]

__all__ = [
    "LAYOUTS",
    "MOST_PHASES",
    "ConvAxes",
    "ConvWeights",
    "MatrixWeights",
    "NumberWeights",
    "PhaseWeights",
    "ScaleWeights",
    "WeightLayout",
    "ZeroWeights",
    "choose_format",
]

_FLOATS = (DataType.F32, DataType.BF16, DataType.F16)
_BYTES = (DataType.U8, DataType.S8)
MOST_PHASES = 64
"""Of a transposed convolution. Each is a step of its own: of more, the steps would cost more than they compute."""


class View(Protocol):
    """What layouts see of a value."""

    @property
    def dtype(self) -> DataType: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def strides(self) -> tuple[int, ...]: ...
    @property
    def offset(self) -> int: ...
    def _replace(self, *, offset: int) -> Self: ...


V = TypeVar("V", bound=View)


class WeightLayout(ABC):
    """Constant weights in one of the kernels' formats.

    Attributes
    ----------
    kind : int
        Number of the class within layout ids, from 2 on.
    """

    kind: ClassVar[int]

    @property
    def kept(self) -> DataType:
        """Type of elements that users keep; where it is not f32, `pack` writes panels of f32 from which they come."""
        return DataType.F32

    @property
    def npanel_floats(self) -> int:
        """Elements of these panels."""
        return self.nbytes // self.kept.numpy.itemsize

    @property
    @abstractmethod
    def reads(self) -> DataType:
        """Type from which `pack` takes plain weights; `unpack` writes it."""

    @property
    @abstractmethod
    def name(self) -> str:
        """For messages."""

    @classmethod
    @abstractmethod
    def decode(cls, number: int, dtype: DataType, shape: tuple[int, ...]) -> WeightLayout | None:
        """The layout of plain weights by what is left of an id; None where it cannot be theirs."""

    @property
    @abstractmethod
    def fields(self) -> tuple[Field, ...]:
        """What an id holds: numbers, and how many bits each has."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Of the packed weights."""

    @abstractmethod
    def pack(self, source: V, place: V) -> Iterator[tuple[KernelCall, V, V]]:
        """Pack plain weights of type `reads`."""

    @abstractmethod
    def unpack(self, packed: V, place: V) -> Iterator[tuple[KernelCall, V, V]]:
        """The inverse, bit for bit where `is_exact`."""

    def is_exact(self, dtype: DataType) -> bool:
        """Whether packing weights of a type loses nothing."""
        return True

    @property
    def number(self) -> int | None:
        """The fields as one number; None where one does not fit."""
        number, at = 0, 0
        for value, bits in self.fields:
            if not 0 <= value < 1 << bits:
                return None
            number |= value << at
            at += bits
        return number


def _split(number: int, *bits: int) -> list[int] | None:
    """The inverse of `WeightLayout.number`; None where more is left."""
    found = []
    for width in bits:
        found.append(number & ((1 << width) - 1))
        number >>= width
    return None if number else found


# ---- products

_MATRIX_DTYPES = ("f32", "bf16", "s8")


@dataclass(frozen=True)
class MatrixWeights(WeightLayout):
    """Weights of a matrix product in panels; `is_transposed` where the last axis is the one that is summed."""

    kind = 2
    format: PackedFormat
    is_transposed: bool
    dtype: DataType

    @classmethod
    def of(cls, dtype: DataType, shape: Sequence[int], is_transposed: bool, packed: str) -> MatrixWeights:
        """Those of weights of a type and shape, packed as ``f32``, ``bf16`` or ``s8``."""
        k, n = reversed(shape) if is_transposed else shape
        return cls(PackedFormat(k, n, packed), is_transposed, dtype)

    @property
    def reads(self) -> DataType:
        """See `WeightLayout`."""
        is_read = self.format.dtype == "s8" or self.format.dtype == self.dtype.value
        return self.dtype if is_read else DataType.F32

    @classmethod
    def decode(cls, number: int, dtype: DataType, shape: tuple[int, ...]) -> MatrixWeights | None:
        """See `WeightLayout`."""
        found = _split(number, 2, 1)
        if found is None or len(shape) != 2 or found[0] >= len(_MATRIX_DTYPES):
            return None
        packed = _MATRIX_DTYPES[found[0]]
        is_theirs = dtype in (_BYTES if packed == "s8" else _FLOATS)
        return cls.of(dtype, shape, bool(found[1]), packed) if is_theirs else None

    @property
    def fields(self) -> tuple[Field, ...]:
        """See `WeightLayout`."""
        return (_MATRIX_DTYPES.index(self.format.dtype), 2), (self.is_transposed, 1)

    @property
    def name(self) -> str:
        """For messages."""
        return f"{self.format.dtype} panels of a product" + (" with transpose_b" if self.is_transposed else "")

    @property
    def nbytes(self) -> int:
        """See `WeightLayout`."""
        return self.format.nbytes

    def _strides(self, plain: View) -> Sequence[int]:
        return plain.strides[::-1] if self.is_transposed else plain.strides

    def pack(self, source: V, place: V) -> Iterator[tuple[KernelCall, V, V]]:
        """See `WeightLayout`."""
        yield self.format.pack(self._strides(source), b_dtype=source.dtype.value), source, place

    def unpack(self, packed: V, place: V) -> Iterator[tuple[KernelCall, V, V]]:
        """See `WeightLayout`."""
        yield self.format.unpack(self._strides(place)), packed, place
        if place.dtype is DataType.U8:
            yield _add(place.shape, place.strides, 128, ("s8", "u8")), place, place

    def is_exact(self, dtype: DataType) -> bool:
        """See `WeightLayout`."""
        return self.format.dtype != "bf16" or dtype is DataType.BF16


def _add(shape: Sequence[int], strides: Sequence[int], number: int, dtypes: tuple[str, str]) -> KernelCall:
    """A kernel that adds a number to elements in place, from one type to the other; arguments: these, twice."""
    builder = EltwiseBuilder(shape, register="f32")
    value = builder.load(0, dtypes[0], strides)
    builder.store(1, dtypes[1], strides, builder.binary("add", value, builder.const(number)))
    return builder.build()


@dataclass(frozen=True)
class _CompressedLayout(WeightLayout):
    """A part of weights of 8 or 4 bits: `format` knows it; `is_transposed` where the last axis is that of groups."""

    part: ClassVar[Part]
    format: CompressedFormat
    is_transposed: bool

    @property
    def reads(self) -> DataType:
        """See `WeightLayout`."""
        return DataType.F32

    @property
    def name(self) -> str:
        """See `WeightLayout`."""
        return f"{'zero points' if self.part == 'zeros' else self.part} of a product"

    @property
    def fields(self) -> tuple[Field, ...]:
        """See `WeightLayout`."""
        return ((self.is_transposed, 1),)

    @property
    def nbytes(self) -> int:
        """See `WeightLayout`."""
        return self.format.nbytes(self.part)

    def _strides(self, plain: View) -> Sequence[int]:
        """Strides of plain numbers or scales over rows, or groups, and columns."""
        strides = (0, *plain.strides)[-2:]
        return strides[::-1] if self.is_transposed else strides

    def pack(self, source: V, place: V) -> Iterator[tuple[KernelCall, V, V]]:
        """See `WeightLayout`."""
        yield self.format.pack(self.part, self._strides(source)), source, place

    def unpack(self, packed: V, place: V) -> Iterator[tuple[KernelCall, V, V]]:
        """See `WeightLayout`."""
        yield self.format.unpack(self.part, self._strides(place)), packed, place


@dataclass(frozen=True)
class NumberWeights(_CompressedLayout):
    """Numbers of 8 or 4 bits, whose scales and zero points lie elsewhere."""

    kind = 5
    part = "numbers"

    @classmethod
    def decode(cls, number: int, dtype: DataType, shape: tuple[int, ...]) -> NumberWeights | None:
        """See `WeightLayout`."""
        found = _split(number, 1)
        if found is None or len(shape) != 2 or dtype.value not in BITS:
            return None
        k, n = shape[::-1] if found[0] else shape
        return cls(CompressedFormat(k, n, dtype.value), bool(found[0]))

    @property
    def reads(self) -> DataType:
        """See `WeightLayout`."""
        return DataType.parse(self.format.dtype)


def _scales_format(shape: tuple[int, ...], is_transposed: bool, dtype: str) -> CompressedFormat | None:
    """A format with so many scales, (n,) or (groups, n), or turned round."""
    if len(shape) not in (1, 2) or (len(shape) == 1 and is_transposed):
        return None
    groups, n = (1, *shape)[-2:][:: -1 if is_transposed else 1]
    return CompressedFormat(8 * groups, n, dtype, group=8, zero=None)


@dataclass(frozen=True)
class ScaleWeights(_CompressedLayout):
    """The scales of such numbers, as f32."""

    kind = 6
    part = "scales"

    @classmethod
    def decode(cls, number: int, dtype: DataType, shape: tuple[int, ...]) -> ScaleWeights | None:
        """See `WeightLayout`."""
        found = _split(number, 1)
        own = None if found is None else _scales_format(shape, bool(found[0]), "u8")
        return None if own is None or found is None or dtype not in _FLOATS else cls(own, bool(found[0]))


_NUMBER_DTYPES = ("u8", "s8", "u4", "s4")


@dataclass(frozen=True)
class ZeroWeights(_CompressedLayout):
    """Their zero points as s16, those of signed numbers plus half of their range."""

    kind = 7
    part = "zeros"

    @classmethod
    def decode(cls, number: int, dtype: DataType, shape: tuple[int, ...]) -> ZeroWeights | None:
        """See `WeightLayout`."""
        found = _split(number, 1, 2)
        if found is None or dtype.value not in BITS:
            return None
        own = _scales_format(shape, bool(found[0]), _NUMBER_DTYPES[found[1]])
        return None if own is None else cls(own, bool(found[0]))

    @property
    def fields(self) -> tuple[Field, ...]:
        """See `WeightLayout`."""
        return (self.is_transposed, 1), (_NUMBER_DTYPES.index(self.format.dtype), 2)


# ---- convolutions


def choose_format(
    shape: ConvShape, tile: int = 0, *, allows_bf16: bool = False, dtype: DataType = DataType.F32
) -> ConvFormat:
    """The format of weights; `tile` is that of Winograd, or 0; depthwise ones are kept in a type."""
    if shape.groups > 1 and is_narrow(shape) and (shape.groups == shape.in_channels or not allows_bf16):
        return DepthwiseFormat(shape, dtype.value)
    if tile:
        return WinogradFormat(shape, tile)
    return Bf16ConvFormat(shape) if allows_bf16 else F32ConvFormat(shape)


def _conv_format(code: int, shape: ConvShape, dtype: DataType) -> ConvFormat:
    """The format of weights of a type that has this number."""
    if code > 4:
        return WinogradFormat(shape, TILES[code - 5])
    if code > 1:
        return (Int8ConvFormat, DepthwiseFormat, Int8DepthwiseFormat)[code - 2](shape, dtype.value)
    return (F32ConvFormat, Bf16ConvFormat)[code](shape)


_CONV_FORMATS = ("f32", "bf16", "s8", "depthwise", "s8 depthwise", "winograd 2x2", "winograd 4x4")


@dataclass(frozen=True)
class ConvAxes:
    """Where the axes of plain weights are: `inner` of the input channels, `outer` of the output channels."""

    inner: int
    outer: int
    kernel: tuple[int, ...]

    @classmethod
    def find(cls, ndim: int, code: int) -> ConvAxes:
        """Those that have the code."""
        first, kernel = (ndim - 2, tuple(range(ndim - 2))) if code & 2 else (0, tuple(range(2, ndim)))
        return cls(first + (code & 1), first + 1 - (code & 1), kernel)

    @property
    def code(self) -> int:
        """A number of 2 bits."""
        return int(self.inner > self.outer) | (2 if min(self.inner, self.outer) else 0)


@dataclass(frozen=True)
class ConvWeights(WeightLayout):
    """Weights of a convolution."""

    kind = 3
    format: ConvFormat
    axes: ConvAxes

    @classmethod
    def decode(cls, number: int, dtype: DataType, shape: tuple[int, ...]) -> ConvWeights | None:
        """See `WeightLayout`."""
        found = _split(number, 3, 2, 1, 24)
        if found is None or not 3 <= len(shape) <= 5 or found[0] >= len(_CONV_FORMATS):
            return None
        code, axes, is_dilated = found[0], ConvAxes.find(len(shape), found[1]), found[2]
        if dtype not in (_BYTES if code in (2, 4) else _FLOATS):
            return None
        kernel, groups = tuple(pick(shape, axes.kernel)), found[3]
        dilations = (*[1] * (len(kernel) - 1), 2) if is_dilated else None
        dims = ConvShape(shape[axes.inner] * groups, shape[axes.outer], kernel, groups, dilations)
        layout = cls(_conv_format(code, dims, dtype), axes)
        return layout if layout.number == number else None

    @property
    def fields(self) -> tuple[Field, ...]:
        """See `WeightLayout`."""
        shape = self.format.shape
        is_dilated = shape.dilations is not None and shape.dilations[-1] > 1
        return (
            (_CONV_FORMATS.index(self._format_name), 3),
            (self.axes.code, 2),
            (is_dilated, 1),
            (shape.groups, 24),
        )

    @property
    def _format_name(self) -> str:
        own = self.format
        if isinstance(own, WinogradFormat):
            return f"winograd {own.tile}x{own.tile}"
        names = {
            F32ConvFormat: "f32", Bf16ConvFormat: "bf16", Int8ConvFormat: "s8", Int8DepthwiseFormat: "s8 depthwise",
            DepthwiseFormat: "depthwise",
        }  # fmt: skip
        return names[type(own)]

    @property
    def name(self) -> str:
        """For messages."""
        groups = f" of {self.format.shape.groups} groups" if self.format.shape.groups > 1 else ""
        return f"{self._format_name} panels of a convolution{groups}"

    @property
    def reads(self) -> DataType:
        """See `WeightLayout`."""
        own = self.format
        return DataType.parse(own.dtype) if isinstance(own, Int8ConvFormat | DepthwiseFormat) else DataType.F32

    @property
    def nbytes(self) -> int:
        """See `WeightLayout`."""
        return self.format.nbytes

    @property
    def out_channels(self) -> int:
        """Of all groups."""
        return self.format.shape.out_channels

    @property
    def is_depthwise(self) -> bool:
        """Whether there are groups of so few channels that vectors run along those of several."""
        return isinstance(self.format, DepthwiseFormat)

    def with_out_channels(self, count: int) -> ConvWeights:
        """The same weights of another number of output channels."""
        shape = replace(self.format.shape, out_channels=count)
        return replace(self, format=replace(self.format, shape=shape))

    def strides(self, weights: View) -> list[int]:
        """Strides of plain weights: (group, out channel in the group, in channel in the group, spatial...)."""
        group = self.out_channels // self.format.shape.groups * weights.strides[self.axes.outer]
        return [group, *pick(weights.strides, (self.axes.outer, self.axes.inner, *self.axes.kernel))]

    def pack(self, source: V, place: V) -> Iterator[tuple[KernelCall, V, V]]:
        """See `WeightLayout`."""
        yield self.format.pack(self.strides(source)), source, place

    def unpack(self, packed: V, place: V) -> Iterator[tuple[KernelCall, V, V]]:
        """See `WeightLayout`."""
        yield self.format.unpack(self.strides(place)), packed, place

    def is_exact(self, dtype: DataType) -> bool:
        """See `WeightLayout`."""
        return self.format.is_exact or (isinstance(self.format, Bf16ConvFormat) and dtype is DataType.BF16)


@dataclass(frozen=True)
class PhaseWeights(WeightLayout):
    """Weights of a transposed convolution, whose taps are those of several small convolutions, turned round.

    Along an axis every `steps`-th tap belongs to the same phase. `shape` is that of the whole, `dilations` are those of
    the phases. Users may keep them in the type of the plain weights, from which a run makes panels.
    """

    kind = 4
    shape: ConvShape
    axes: ConvAxes
    steps: tuple[int, ...]
    dtype: DataType = DataType.F32

    @property
    def kept(self) -> DataType:
        """See `WeightLayout`."""
        return self.dtype

    @property
    def reads(self) -> DataType:
        """See `WeightLayout`."""
        return DataType.F32

    @classmethod
    def decode(cls, number: int, dtype: DataType, shape: tuple[int, ...]) -> PhaseWeights | None:
        """See `WeightLayout`."""
        found = _split(number, 2, 1, 7, 7, 7, 20, 1)
        if found is None or not 3 <= len(shape) <= 5 or dtype not in _FLOATS:
            return None
        axes, groups = ConvAxes.find(len(shape), found[0]), found[5]
        kernel = tuple(pick(shape, axes.kernel))
        steps = tuple(found[2 : 2 + len(kernel)])
        if 0 in steps or prod(steps) > MOST_PHASES:
            return None
        dilations = (*[1] * (len(kernel) - 1), 1 + found[1])
        own = ConvShape(shape[axes.inner], shape[axes.outer] * groups, kernel, groups, dilations)
        layout = cls(own, axes, steps, dtype if found[6] else DataType.F32)
        return layout if layout.number == number else None

    @property
    def fields(self) -> tuple[Field, ...]:
        """See `WeightLayout`."""
        steps = (*self.steps, 0, 0)[:3]
        is_dilated = (self.shape.dilations or (1,))[-1] > 1
        kept = self.dtype is not DataType.F32
        return (
            (self.axes.code, 2),
            (is_dilated, 1),
            *((step, 7) for step in steps),
            (self.shape.groups, 20),
            (kept, 1),
        )

    @property
    def name(self) -> str:
        """For messages."""
        return f"{self.dtype} panels of a transposed convolution of strides {self.steps} and {self.shape.groups} groups"

    @property
    def nbytes(self) -> int:
        """See `WeightLayout`."""
        panels_nbytes = sum(aligned(own.nbytes) for own, _ in self.phases().values())
        return panels_nbytes * self.dtype.numpy.itemsize // DataType.F32.numpy.itemsize

    def phases(self) -> dict[tuple[int, ...], tuple[ConvFormat, int]]:
        """First tap of each phase -> its format, and where it begins. Unit: bytes."""
        found, start = {}, 0
        counts = [min(step, taps) for step, taps in zip(self.steps, self.shape.kernel, strict=True)]
        for first in product(*map(range, counts)):
            own = choose_format(replace(self.shape, kernel=self._taps(first)))
            found[first] = own, start
            start += aligned(own.nbytes)
        return found

    def _taps(self, first: Sequence[int]) -> tuple[int, ...]:
        """How many there are of a phase along each axis."""
        axes = zip(first, self.steps, self.shape.kernel, strict=True)
        return tuple((taps - 1 - begin) // step + 1 for begin, step, taps in axes)

    def _parts(self, plain: V) -> Iterator[tuple[ConvFormat, int, V, list[int]]]:
        """The format of each phase, where it begins, and its plain weights: a view that begins with the last tap."""
        axes, groups = self.axes, self.shape.groups
        group = self.shape.in_channels // groups * plain.strides[axes.inner]
        for first, (own, start) in self.phases().items():
            offset, steps = plain.offset, []
            for axis, begin, step, taps in zip(axes.kernel, first, self.steps, self._taps(first), strict=True):
                offset += (begin + (taps - 1) * step) * plain.strides[axis]
                steps.append(-step * plain.strides[axis])
            strides = [group, *pick(plain.strides, (axes.outer, axes.inner)), *steps]
            yield own, start, plain._replace(offset=offset), strides

    def pack(self, source: V, place: V) -> Iterator[tuple[KernelCall, V, V]]:
        """See `WeightLayout`."""
        for own, start, plain, strides in self._parts(source):
            yield own.pack(strides), plain, place._replace(offset=start)

    def unpack(self, packed: V, place: V) -> Iterator[tuple[KernelCall, V, V]]:
        """See `WeightLayout`."""
        for own, start, plain, strides in self._parts(place):
            yield own.unpack(strides), packed._replace(offset=start), plain


LAYOUTS: dict[int, type[WeightLayout]] = {
    own.kind: own for own in (MatrixWeights, ConvWeights, PhaseWeights, NumberWeights, ScaleWeights, ZeroWeights)
}
"""By their number in ids."""
