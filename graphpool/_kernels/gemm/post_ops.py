"""What kernels do to accumulators while these are in registers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphpool._dataclasses import dataclass, replace
from graphpool.errors import InvalidArgumentError, explain

from .requant import NO_LIMITS, Dynamic, Requant, Residual, check_clamp, number_args

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["NO_POST_OPS", "PostOps"]


@dataclass(frozen=True)
class PostOps:
    """Post-ops of a convolution or matrix product, in this order; each is optional.

    The arguments of a kernel are its operands, then the bias and the residual that are asked for, dst, then arguments
    1, 2, ... of the epilogue (its argument 0 is dst). Bias, residual and clamp cost next to nothing.

    Attributes
    ----------
    dynamic : Dynamic, optional
        int8 kernels only: numbers of quantised operands that are arguments, in front of the bias.
    bias : bool
        A bias is added: f32, one for each output channel or column.
    residual_strides : sequence of int, optional
        A residual of dst's shape is added, f32 unless `requant` says otherwise; it may be dst itself. Strides as
        those of dst. Unit: elements.
    clamp : (float, float), optional
        Least and greatest result, f32; ``(0, inf)`` is ReLU. NaN stays.
    requant : Requant, optional
        int8 kernels only, instead of clamp and epilogue: what is done behind the bias, and the type of dst. Its late
        bias and its residual are the arguments in front of dst.
    epilogue : bytes
        A program from ``EltwiseBuilder.epilogue()`` that reads the results as its accumulator, over the iteration space
        (n, spatial..., c) of a convolution, (batch..., m, n) of a product.
    dst_needs_scratch : bool, default=True
        With an epilogue, tiles are computed in scratch. False computes them in dst itself: allowed where dst is f32,
        and the epilogue stores every element to its own place and reads dst nowhere.
    """

    dynamic: Dynamic | None = None
    bias: bool = False
    residual_strides: Sequence[int] | None = None
    clamp: tuple[float, float] | None = None
    requant: Requant | None = None
    epilogue: bytes = b""
    dst_needs_scratch: bool = True

    @property
    def has_any(self) -> bool:
        """Whether there is anything to do."""
        return self != replace(NO_POST_OPS, dst_needs_scratch=self.dst_needs_scratch)

    def check_only_epilogue(self) -> None:
        """Raise `InvalidArgumentError` where a kernel that has an epilogue alone is asked for more."""
        if self != replace(NO_POST_OPS, epilogue=self.epilogue, dst_needs_scratch=self.dst_needs_scratch):
            raise InvalidArgumentError(explain("post-ops of this kernel", accepted="an epilogue", got="others too"))

    def float_fields(self, first_arg: int = 2) -> dict[str, Any]:
        """Fields of the parameter block of a kernel whose accumulators are floats.

        Argument numbers from `first_arg` on: bias and residual that are present in order, 0 for the others, dst last.

        Raises
        ------
        InvalidArgumentError
            The clamp is no range; a post-op of int8 kernels.
        """
        if self.requant is not None or self.dynamic is not None:
            raise InvalidArgumentError(explain("requant and dynamic", accepted="weights of 8 bits", got="floats"))
        return self._fields(first_arg)

    def int8_fields(self, first_arg: int = 3) -> dict[str, Any]:
        """Fields of the parameter block of a kernel whose accumulators are s32; `first_arg` follows the scales.

        Raises
        ------
        InvalidArgumentError, InvalidDataTypeError
            The clamp is no range; an epilogue or a clamp beside `requant`; as `Requant.fields`.
        """
        if self.requant is not None and (self.epilogue or self.clamp):
            raise InvalidArgumentError(explain("requant", accepted="no clamp and no epilogue beside it", got="both"))
        dynamic, number = (self.dynamic or Dynamic()).fields(first_arg)
        fields = self._fields(number)
        residual = None if self.residual_strides is None else Residual("f32")
        requant = self.requant or Requant(residual=residual, clamp=self.clamp or NO_LIMITS)
        record, dst_arg = requant.fields(number + self.bias)
        return fields | {"dynamic": dynamic, "requant": record, "residual_arg": 0, "dst_arg": dst_arg}

    def _fields(self, first_arg: int) -> dict[str, Any]:
        lo, hi = check_clamp(NO_LIMITS if self.clamp is None else self.clamp)
        present = {"bias_arg": self.bias, "residual_arg": self.residual_strides is not None}
        numbers, dst_arg = number_args(first_arg, present)
        has_epilogue = bool(self.epilogue)
        return numbers | {
            "lo": lo, "hi": hi, "dst_arg": dst_arg, "has_epilogue": has_epilogue,
            "tile_in_scratch": has_epilogue and self.dst_needs_scratch,
        }  # fmt: skip


NO_POST_OPS = PostOps()
