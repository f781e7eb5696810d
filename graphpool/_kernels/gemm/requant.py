"""Results of int8 products brought back to 8 bits in registers; ``gemm/gp_requant.h`` says how."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from graphpool._dataclasses import dataclass
from graphpool.errors import InvalidArgumentError, InvalidDataTypeError, explain

from ..core.call import DTYPE_CODES

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "NO_LIMITS",
    "Dynamic",
    "Requant",
    "Residual",
    "Rounding",
    "check_clamp",
    "number_args",
    "unsigned_zero_point",
]

NO_LIMITS = (-math.inf, math.inf)
"""Of a clamp that changes nothing."""

_LIMITS = {"u8": (0, 255), "s8": (-128, 127)}
_SHIFT = 1.5 * 2**23
"""Added to a small number, leaves f32 no room for its fraction."""


def number_args(first: int, present: Mapping[str, bool], absent: int = 0) -> tuple[dict[str, int], int]:
    """Fields with the numbers of the arguments that are there, in order, and the number that follows."""
    fields = {}
    for name, is_present in present.items():
        fields[name] = first if is_present else absent
        first += is_present
    return fields, first


def check_clamp(clamp: tuple[float, float]) -> tuple[float, float]:
    """The clamp, or `InvalidArgumentError` if it is no range."""
    if not clamp[0] <= clamp[1]:
        raise InvalidArgumentError(explain("clamp", accepted="(low, high) with low <= high", got=clamp))
    return clamp


def _limits(what: str, dtype: str, zero_point: int) -> tuple[int, int]:
    """Least and greatest number of an 8-bit type that has such a zero point.

    Raises
    ------
    InvalidDataTypeError, InvalidArgumentError
        Another type; a zero point beyond it.
    """
    if dtype not in _LIMITS:
        raise InvalidDataTypeError(explain(f"dtype of {what}", accepted="u8, s8", got=dtype), dtype=dtype)
    low, high = _LIMITS[dtype]
    if not low <= zero_point <= high:
        raise InvalidArgumentError(explain(f"zero point of {what}", accepted=f"{low} to {high}", got=zero_point))
    return low, high


def unsigned_zero_point(dtype: str, zero_point: int) -> int:
    """The zero point of an 8-bit image once its bytes are unsigned, as products take them: s8 is moved by 128."""
    return zero_point - _limits("src", dtype, zero_point)[0]


@dataclass(frozen=True)
class Rounding:
    """Numbers to 8 bits, u8 or s8: round(x / scale + zero point), saturated; x is clamped first.

    `rounds_first`: the zero point is added to the rounded number instead.
    """

    dtype: str
    scale: float
    zero_point: int = 0
    rounds_first: bool = False
    clamp: tuple[float, float] = NO_LIMITS

    def fields(self) -> dict[str, float]:
        """The fields of a struct gp_rounding; errors: as of `_limits`, a scale without a finite inverse, no clamp."""
        low, high = _limits("a rounding", self.dtype, self.zero_point)
        if not (math.isfinite(self.scale) and self.scale > 0 and math.isfinite(np.float32(1 / self.scale))):
            raise InvalidArgumentError(explain("scale", accepted="positive, with a finite inverse", got=self.scale))
        low, high = low - self.zero_point, high - self.zero_point
        least, most = (min(max(limit / self.scale, low), high) for limit in check_clamp(self.clamp))
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
        present = {"scale_arg": self.scale, "zero_arg": self.zero_point, "columns_arg": self.columns}
        return number_args(first_arg, present)


@dataclass(frozen=True)
class Residual:
    """What is added to a result: f32, or 8 bits that stand for (x - zero point) * scale."""

    dtype: str
    scale: float = 1.0
    zero_point: int = 0


@dataclass(frozen=True)
class Requant:
    """What an 8-bit product does behind its scales and bias, in this order; each but the store is optional.

    `inner`: through 8 bits and back; `late_bias`: a bias of shape (n,), f32, is added; `residual`: so is a tensor of
    the result's shape; `outer`: the type of the result, f32 where it is None. `is_real`: the numbers that the integers
    of `outer` stand for are stored, as f32; `clamp`: of f32 results.
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
        present = {"late_bias_arg": self.late_bias, "residual_arg": self.residual is not None}
        numbers, number = number_args(first_arg, present)
        fields: dict[str, Any] = {**numbers, "dst_dtype": DTYPE_CODES[self.dtype]}
        fields["lo"], fields["hi"] = check_clamp(self.clamp)
        for name, rounding in (("inner", self.inner), ("outer", self.outer)):
            if rounding is not None:
                fields |= {name: rounding.fields(), f"has_{name}": True}
        if self.residual is not None:
            if self.residual.dtype not in ("f32", *_LIMITS):
                raise InvalidDataTypeError(explain("residual", accepted="f32, u8, s8", got=self.residual.dtype))
            fields["residual_dtype"] = DTYPE_CODES[self.residual.dtype]
            fields["residual_scale"], fields["residual_zero"] = self.residual.scale, self.residual.zero_point
        return fields, number
