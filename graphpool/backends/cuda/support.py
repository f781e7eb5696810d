"""Which ops kernels of a GPU compute; the others go to the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from ..._kernels.cuda.source import DTYPES
from ...typing import DataType
from ..cpu.lower import instructions  # noqa: F401  (imported for what it registers)
from ..cpu.support import FLOATS, INSTRUCTIONS, has_small_windows, is_elementwise, register_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...graph.op import Op

__all__ = ["RULES", "rule", "supports"]

Rule = TypeVar("Rule", bound="Callable[..., None]")

RULES: dict[str, Callable[..., None]] = {}
"""Kind -> ``(CudaLowering, Group)``, which emits the launches of an op, with post-ops where it is an anchor."""

MOVES = frozenset({"Concat", "StaticReshape", "StaticTranspose"})
"""Kinds that compute nothing."""

_CONDITIONS: dict[str, Callable[[Op], bool]] = {}

_EXACT_IN_F32 = FLOATS | {DataType.U8, DataType.S8, DataType.BOOLEAN}
"""Types that moves, which go through registers of f32, leave as they are."""


def rule(*kinds: str, where: Callable[[Op], bool] | None = None) -> Callable[[Rule], Rule]:
    """Decorator: the function emits ops of these kinds, all of them or those for which `where` holds."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(kinds, function))
        _CONDITIONS.update(dict.fromkeys(kinds, where) if where else {})
        return function

    return register


def supports(op: Op) -> bool:
    """Whether kernels compute the op: types that they read and write, arithmetic in f32."""
    if any(tensor.dtype.value not in DTYPES for tensor in (*op.inputs, *op.outputs)):
        return False
    if op.kind in RULES:
        where, accepted = _CONDITIONS.get(op.kind), _EXACT_IN_F32 if op.kind in MOVES else FLOATS
        return op.inputs[0].dtype in accepted and (where is None or where(op))
    return op.kind in INSTRUCTIONS and is_elementwise(op) and register_of(op) == "f32"


def has_windows(op: Op) -> bool:
    """Whether the geometry of windows fits the kernels."""
    return has_small_windows(op) and len(op.attrs.get("strides", ())) <= 3
