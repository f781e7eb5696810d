"""Which ops the CPU backend runs itself, and in which type it computes them; the others go to the reference backend.

What runs a kind registers here: `instruction` in lower/, `rule` in emit/ and products/. An op of such a
kind runs in every type that its schema accepts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from ...typing import DataType
from .choices import forced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ...graph.op import Op

__all__ = [
    "ANCHORS",
    "FLOATS",
    "INSTRUCTIONS",
    "INTEGERS",
    "MOST_STEPS",
    "RULES",
    "common_register",
    "has_no_axes_input",
    "has_small_windows",
    "instruction",
    "is_anchor",
    "is_elementwise",
    "is_plain_resampling",
    "narrow_register",
    "register_between",
    "register_of",
    "register_of_type",
    "registers_go_together",
    "rule",
    "supports",
]

Function = TypeVar("Function", bound="Callable[..., Any]")

INSTRUCTIONS: dict[str, Callable[..., Any]] = {}
"""Elementwise kind -> ``(Region, Op)``, which computes it in a region and gives the register of its result."""

RULES: dict[str, Callable[..., None]] = {}
"""Kind -> ``(Lowering, Op)``, which emits the kernel calls of one op."""

ANCHORS: dict[str, Callable[..., None]] = {}
"""Kind -> ``(Lowering, AnchorGroup)``, which emits the kernel calls of an op with the elementwise ops behind it.

Its kernel runs an elementwise program on its results, if these are floats."""

_CONDITIONS: dict[str, Callable[[Op], bool]] = {}


def instruction(*kinds: str) -> Callable[[Function], Function]:
    """Decorator: the function is how these kinds are computed in a region."""

    def register(function: Function) -> Function:
        INSTRUCTIONS.update(dict.fromkeys(kinds, function))
        return function

    return register


def rule(
    *kinds: str, is_anchor: bool = False, where: Callable[[Op], bool] | None = None
) -> Callable[[Function], Function]:
    """Decorator: the function emits ops of these kinds, all of them or those for which `where` holds."""

    def register(function: Function) -> Function:
        (ANCHORS if is_anchor else RULES).update(dict.fromkeys(kinds, function))
        _CONDITIONS.update(dict.fromkeys(kinds, where) if where else {})
        return function

    return register


FLOATS = frozenset({DataType.F32, DataType.BF16, DataType.F16})
"""Types that float kernels read and write."""
_F8 = frozenset({DataType.F8_E4M3, DataType.F8_E5M2})
_ALL_FLOATS = FLOATS | _F8

INTEGERS = frozenset(dtype for dtype in DataType if dtype.value[0] in "su")
_WHOLE = frozenset(dtype for dtype in INTEGERS if dtype.bits >= 8)

MOST_STEPS = 1 << 31
"""What no step of a window, and no number of positions, reaches."""

_BETWEEN = frozenset({"TypeCast", "Quantize", "Dequantize", "DynamicQuantize", "DynamicDequantize"})
"""Kinds from integers to floats or back, whose integers fit f32 as exactly as their result asks."""


def supports(op: Op) -> bool:
    """Whether the backend runs this op, which satisfies its schema and is not forced to the reference backend."""
    where = _CONDITIONS.get(op.kind)
    is_known = op.kind in INSTRUCTIONS or op.kind in RULES or op.kind in ANCHORS
    return is_known and forced(op.kind) != "ref" and (where is None or where(op))


def is_anchor(op: Op) -> bool:
    """Whether the op's kernel runs an elementwise program on its results: reductions of integers and f64 do not."""
    return op.kind in ANCHORS and op.inputs[0].dtype in FLOATS


def is_elementwise(op: Op) -> bool:
    """Whether the op becomes instructions of an elementwise program: groups of scales do not fit its index space."""
    return op.kind in INSTRUCTIONS and op.attrs.get("qtype") != "per_group"


def register_of(op: Op) -> str | None:
    """The type in which an elementwise op is computed, or None where any will do: it sees truth values only.

    Integers are computed exactly, and so are integers with floats, in f64: 53 bits of them, which is also what powers
    of signed and unsigned 64-bit integers together have.
    """
    types = {tensor.dtype for tensor in (*op.inputs, *op.outputs)} - {DataType.BOOLEAN}
    has_signs = DataType.U64 in types and any(dtype is not DataType.U64 for dtype in types)
    if DataType.F64 in types or (op.kind == "Power" and has_signs):
        return "f64"
    floats = types & _ALL_FLOATS
    if floats and floats != types and op.kind not in _BETWEEN:
        return "f64"
    if floats:
        return "f32"
    return ("u64" if DataType.U64 in types else "s64") if types else None


def common_register(ops: Iterable[Op]) -> str:
    """The type in which elementwise ops that go together are computed."""
    return next(filter(None, map(register_of, ops)), "s64")


_NARROW_REGISTERS = {
    "u8": frozenset({DataType.U8, DataType.BOOLEAN}),
    "s32": frozenset({DataType.BOOLEAN, DataType.S8, DataType.U8, DataType.S16, DataType.U16, DataType.S32}),
}
"""Type of registers -> the types that need no wider one: results, wrapped around, are the same."""


_SIGNLESS = frozenset({
    "Add", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "Equal", "Multiply", "Subtract", "TypeCast",
})  # fmt: skip
"""Kinds whose results of 8 bits are the same bits whether operands have a sign, and so in registers of u8."""


def narrow_register(ops: Sequence[Op]) -> str:
    """The narrowest type in which elementwise ops that go together can be computed."""
    register = common_register(ops)
    types = {tensor.dtype for op in ops for tensor in (*op.inputs, *op.outputs)}
    if all(op.kind in _SIGNLESS for op in ops):
        types = {DataType.U8 if dtype is DataType.S8 else dtype for dtype in types}
    fitting = [name for name, held in _NARROW_REGISTERS.items() if types <= held]
    return fitting[0] if register == "s64" and fitting else register


def register_of_type(dtype: DataType, largest: int = 0) -> str:
    """The type in which elements are computed with, beside integers up to `largest`, exactly."""
    if dtype in _ALL_FLOATS:
        return "f32" if largest <= 2**24 else "f64"
    return dtype.value if dtype in (DataType.F64, DataType.U64) else "s64"


def register_between(a: DataType, b: DataType) -> str:
    """The type in which elements of one type are converted to another."""
    types = {a, b}
    if DataType.F64 in types:
        return "f64"
    if types <= _WHOLE:
        return "u64" if DataType.U64 in types else "s64"
    return "f32"


def registers_go_together(op: Op, register: str) -> bool:
    """Whether an elementwise op can be computed in a program with registers of this type."""
    return register_of(op) in (register, None)


def has_no_axes_input(op: Op) -> bool:
    """Whether axes or sizes are attributes."""
    return len(op.inputs) == 1


def is_plain_resampling(op: Op) -> bool:
    """Whether sizes or scales are attributes, of three axes at most."""
    return has_no_axes_input(op) and max(len(op.attrs.get(name, ())) for name in ("sizes", "scales")) <= 3


def has_small_windows(op: Op) -> bool:
    """Whether the geometry fits the kernels: three axes, 64 bits in every sum and product. The reference takes all."""
    largest = max(max(op.attrs.get(name, ()), default=0) for name in _GEOMETRY)
    return len(op.attrs["strides"]) <= 3 and largest < MOST_STEPS


_GEOMETRY = ("kernel", "strides", "dilations", "pads_begin", "pads_end", "output_padding")
