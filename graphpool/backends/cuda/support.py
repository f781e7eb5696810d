"""Which ops kernels of a GPU compute; the others go to the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from ..._kernels.cuda.source import DTYPES, NIBBLES, REGISTERS
from ..cpu.lower import instructions  # noqa: F401  (imported for what it registers)
from ..cpu.support import FLOATS, INSTRUCTIONS, common_register, is_elementwise

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...graph.op import Op

__all__ = ["MOST_BEST", "RULES", "has_rule", "rule", "supports"]

Rule = TypeVar("Rule", bound="Callable[..., None]")

RULES: dict[str, Callable[..., None]] = {}
"""Kind -> ``(CudaLowering, Group)``, which emits the launches of an op, with post-ops where it is an anchor."""

OF_ALL_TYPES = frozenset({
    "ArgMax", "ArgMin", "Concat", "CumProd", "CumSum", "DynamicDequantize", "Expand", "Gather", "GatherElements",
    "GatherND", "GenIndex", "OneHot", "Pad", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum", "ReverseSequence",
    "ScatterElements", "ScatterND", "Slice", "Split", "StaticReshape", "StaticTranspose", "Tile", "TopK", "Trilu",
})  # fmt: skip
"""Kinds with rules for all types that their schemas accept; the others take floats."""

FROM_NIBBLES = frozenset({"Dequantize", "DynamicDequantize"})
"""Kinds that read elements of 4 bits."""

MOST_BEST = 1024
"""Elements of a line that the kernel picks one after another; sorting is for the host."""

_CONDITIONS: dict[str, Callable[[Op], bool]] = {}


def rule(*kinds: str, where: Callable[[Op], bool] | None = None) -> Callable[[Rule], Rule]:
    """Decorator: the function emits ops of these kinds, all of them or those for which `where` holds."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(kinds, function))
        _CONDITIONS.update(dict.fromkeys(kinds, where) if where else {})
        return function

    return register


def supports(op: Op) -> bool:
    """Whether kernels compute the op: types that they read and write, arithmetic in f32 but for elementwise kinds."""
    read = DTYPES | NIBBLES if op.kind in FROM_NIBBLES else DTYPES
    if any(tensor.dtype.value not in read for tensor in op.inputs):
        return False
    if any(tensor.dtype.value not in DTYPES for tensor in op.outputs):
        return False
    if has_rule(op):
        where = _CONDITIONS.get(op.kind)
        return (op.kind in OF_ALL_TYPES or op.inputs[0].dtype in FLOATS) and (where is None or where(op))
    return op.kind in INSTRUCTIONS and is_elementwise(op) and common_register([op]) in REGISTERS


def has_rule(op: Op) -> bool:
    """Whether a rule of its own emits the op: groups of scales do not fit an elementwise program."""
    return op.kind in RULES and not is_elementwise(op)
