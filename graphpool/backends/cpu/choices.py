"""Which implementation an op takes: what ``GRAPHPOOL_IMPL`` forces, and what the graph's float mode allows.

Left alone (``auto``), products with constant weights read them in panels, by our own loops; all others go to BLAS or to
our own loops by the rules that `choose_matmul` and `choose_convolution` of `graphpool._kernels` have measured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ... import config
from ..._kernels.core._dispatch import isas
from ..._kernels.gemm.packed import HAS_BF16
from ...errors import InvalidOpError, explain
from ...graph.schema import get_schema
from ...typing import DataType

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["allows_bf16", "check_forced", "forced", "forced_all"]

_BF16_MODES = frozenset({"bf16", "any"})
"""Float modes in which f32 operands of a product may be rounded to bf16."""


def forced_all() -> Mapping[str, str]:
    """Forced implementation by op kind; that of the empty kind holds for all others."""
    found: Mapping[str, str] = config.get("impl")
    return found


def check_forced() -> None:
    """Refuse a forced implementation of an op kind that there is not.

    Raises
    ------
    InvalidOpError
        The message names the closest kinds.
    """
    for kind in filter(None, forced_all()):
        try:
            get_schema(kind)
        except InvalidOpError as error:
            what = f"environment variable GRAPHPOOL_IMPL forces {kind!r}"
            raise InvalidOpError(explain(what, accepted="op kinds", got=str(error)), op_kind=kind) from error


def forced(kind: str) -> str:
    """The implementation that ops of a kind are to take: ``auto``, ``simd``, ``blas`` or ``ref``."""
    found = forced_all()
    return found.get(kind, found.get("", "auto"))


def allows_bf16(fpmath: str, operands: set[DataType]) -> bool:
    """Whether a product may round f32 operands to bf16: the float mode allows it, and an instruction gains by it."""
    return fpmath in _BF16_MODES and operands <= {DataType.F32, DataType.BF16} and isas()[-1] in HAS_BF16
