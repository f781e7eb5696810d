"""Which ops kernels of a GPU compute; the others go to the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from ..._kernels.cuda.source import DTYPES
from ...typing import DataType
from ..cpu.lower import instructions  # noqa: F401  (imported for what it registers)
from ..cpu.support import INSTRUCTIONS, has_small_windows, is_elementwise, register_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...graph.op import Op

__all__ = ["RULES", "rule", "supports"]

Rule = TypeVar("Rule", bound="Callable[..., None]")

RULES: dict[str, Callable[..., None]] = {}
"""Kind -> ``(CudaLowering, Group)``, which emits the launches of an op, with post-ops where it is an anchor."""

_CONDITIONS: dict[str, Callable[[Op], bool]] = {}

_FLOATS = frozenset({DataType.F32, DataType.BF16})

_NOT_YET = frozenset({"BatchNormInference", "Quantize", "Dequantize", "DynamicQuantize", "DynamicDequantize"})
"""Elementwise kinds whose instructions on the CPU need other kernels, or types that kernels here lack."""


def rule(*kinds: str, where: Callable[[Op], bool] | None = None) -> Callable[[Rule], Rule]:
    """Decorator: the function emits ops of these kinds, all of them or those for which `where` holds."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(kinds, function))
        _CONDITIONS.update(dict.fromkeys(kinds, where) if where else {})
        return function

    return register


def supports(op: Op) -> bool:
    """Whether kernels compute the op: floats of 32 bits or bf16, computed in f32."""
    if any(tensor.dtype.value not in DTYPES for tensor in (*op.inputs, *op.outputs)):
        return False
    if op.kind in RULES:
        where = _CONDITIONS.get(op.kind)
        is_known = op.kind in ("StaticReshape", "StaticTranspose") or op.inputs[0].dtype in _FLOATS
        return is_known and (where is None or where(op))
    is_known = op.kind in INSTRUCTIONS and op.kind not in _NOT_YET
    return op.kind == "BatchNormInference" or (is_known and is_elementwise(op) and register_of(op) == "f32")


def has_windows(op: Op) -> bool:
    """Whether the geometry of windows fits the kernels."""
    return has_small_windows(op) and len(op.attrs.get("strides", ())) <= 3
