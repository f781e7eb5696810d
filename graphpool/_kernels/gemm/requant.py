"""Results of int8 products brought back to 8 bits in registers; ``gemm/gp_requant.h`` says how."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphpool.errors import InvalidArgumentError, InvalidDataTypeError, explain

from ..core.call import DTYPE_CODES

__all__ = [
    "NO_LIMITS",
    "Dynamic",
    "Requant",
    "Residual",
    "Rounding",
    "unsigned_zero_point",
]

NO_LIMITS = (-math.inf, math.inf)
"""Of a clamp that changes nothing."""

_LIMITS = {"u8": (0, 255), "s8": (-128, 127)}
_SHIFT = 1.5 * 2**23
"""Added to a small number, leaves f32 no room for its fraction."""


def unsigned_zero_point(dtype: str, zero_point: int) -> int:
    """The zero point of an 8-bit image once its bytes are unsigned, as products take them: s8 is moved by 128.

    Raises
    ------
    InvalidDataTypeError, InvalidArgumentError
        Another type; a number beyond it.
    """
    if dtype not in _LIMITS:
        raise InvalidDataTypeError(explain("type of src", accepted="u8, s8", got=dtype), dtype=dtype)
    low, high = _LIMITS[dtype]
    if not low <= zero_point <= high:
        raise InvalidArgumentError(explain("zero_point", accepted=f"{low} to {high}", got=zero_point))
    return zero_point - low


@dataclass(frozen=True)
class Rounding:
    """Numbers to 8 bits: round(x / scale + zero point), saturated.

    Attributes
    ----------
    dtype : {"u8", "s8"}
    scale : float
    zero_point : int
    rounds_first : bool
        Whether the zero point is added to the rounded number instead.
    clamp : (float, float)
        Least and greatest x, applied first.
    """

    dtype: str
    scale: float
    zero_point: int = 0
    rounds_first: bool = False
    clamp: tuple[float, float] = NO_LIMITS

    def fields(self) -> dict[str, float]:
        """The fields of a struct gp_rounding.

        Raises
        ------
        InvalidDataTypeError, InvalidArgumentError
            Another type; a scale that has no finite inverse; a zero point beyond the type; a clamp that is no range.
        """
        if self.dtype not in _LIMITS:
            raise InvalidDataTypeError(explain("dtype of a rounding", accepted="u8, s8", got=self.dtype))
        low, high = _LIMITS[self.dtype]
        if not low <= self.zero_point <= high:
            raise InvalidArgumentError(explain("zero point", accepted=f"{low} to {high}", got=self.zero_point))
        if not (math.isfinite(self.scale) and self.scale > 0 and math.isfinite(np.float32(1 / self.scale))):
            raise InvalidArgumentError(explain("scale", accepted="positive, with a finite inverse", got=self.scale))
        if not self.clamp[0] <= self.clamp[1]:
            raise InvalidArgumentError(explain("clamp", accepted="(low, high) with low <= high", got=self.clamp))
        least, most = (
            min(max(limit / self.scale, low - self.zero_point), high - self.zero_point) for limit in self.clamp
        )
        added, after = (0, self.zero_point) if self.rounds_first else (self.zero_point, 0)
        return {
            "inverse": 1 / self.scale, "lo": least, "hi": most, "shift": _SHIFT + added, "scale": self.scale,
            "after": after,
        }  # fmt: skip


@dataclass(frozen=True)
class Dynamic:
    """Which numbers of quantised operands are arguments of a kernel, in this order.

    Of the activations: their scale, one f32, by which the kernel's scales are multiplied, and their zero point, one
    element of their type; `columns`: zero points of the weights as they were packed, one s32 a column or channel.
    """

    scale: bool = False
    zero_point: bool = False
    columns: bool = False

    def fields(self, first_arg: int) -> tuple[dict[str, Any], int]:
        """Fields of gp_dynamic, whose operands are the arguments from `first_arg` on, and the argument that follows."""
        fields, number = {}, first_arg
        names = (("scale_arg", self.scale), ("zero_arg", self.zero_point), ("columns_arg", self.columns))
        for name, is_present in names:
            fields[name] = number if is_present else 0
            number += is_present
        return fields, number


@dataclass(frozen=True)
class Residual:
    """What is added to a result: f32, or 8 bits that stand for (x - zero point) * scale."""

    dtype: str
    scale: float = 1.0
    zero_point: int = 0


@dataclass(frozen=True)
class Requant:
    """What an 8-bit product does behind its scales and bias, in this order; each but the store is optional.

    Attributes
    ----------
    inner : Rounding or None
        Through 8 bits and back.
    late_bias : bool
        A bias of shape (n,), f32, is added.
    residual : Residual or None
        A tensor of the result's shape is added.
    outer : Rounding or None
        The type of the result; f32 where it is None.
    is_real : bool
        Whether the numbers that the integers of `outer` stand for are stored, as f32.
    clamp : (float, float)
        Of f32 results.
    """

    inner: Rounding | None = None
    late_bias: bool = False
    residual: Residual | None = None
    outer: Rounding | None = None
    is_real: bool = False
    clamp: tuple[float, float] = NO_LIMITS

    @property
    def dtype(self) -> str:
        """Type of the result."""
        return "f32" if self.outer is None or self.is_real else self.outer.dtype

    def fields(self, first_arg: int) -> tuple[dict[str, Any], int]:
        """Fields of gp_requant, whose operands are the arguments from `first_arg` on, and the argument that follows.

        Raises
        ------
        InvalidDataTypeError, InvalidArgumentError
            As in `Rounding.fields`; a residual of another type; a clamp that is no range.
        """
        if not self.clamp[0] <= self.clamp[1]:
            raise InvalidArgumentError(explain("clamp", accepted="(low, high) with low <= high", got=self.clamp))
        fields: dict[str, Any] = {"dst_dtype": DTYPE_CODES[self.dtype]}
        fields["lo"], fields["hi"] = self.clamp
        for name, rounding in (("inner", self.inner), ("outer", self.outer)):
            if rounding is not None:
                fields[name] = rounding.fields()
        fields["has_inner"], fields["has_outer"] = self.inner is not None, self.outer is not None
        if self.residual is not None:
            if self.residual.dtype not in ("f32", *_LIMITS):
                raise InvalidDataTypeError(explain("residual", accepted="f32, u8, s8", got=self.residual.dtype))
            fields["residual_dtype"] = DTYPE_CODES[self.residual.dtype]
            fields["residual_scale"], fields["residual_zero"] = self.residual.scale, self.residual.zero_point
        number = first_arg
        for name, is_present in (("late_bias_arg", self.late_bias), ("residual_arg", self.residual is not None)):
            fields[name] = number if is_present else 0
            number += is_present
        return fields, number
