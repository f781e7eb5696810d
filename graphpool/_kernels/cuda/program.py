"""Elementwise programs as C++: the function ``gp_program``, which computes one index of the space and stores it.

The description is the one that CPU kernels interpret (`graphpool._kernels.eltwise.eltwise`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphpool.errors import UnsupportedError, explain

from ..core.call import DTYPE_CODES
from .source import checked_dtype

if TYPE_CHECKING:
    from ..eltwise.eltwise import Program
    from .source import KernelSource

__all__ = ["OPERATIONS", "add_program", "add_store"]

WITH_NUMBERS = frozenset({
    "elu", "leaky_relu", "hard_sigmoid", "softplus", "pow_scalar", "is_inf", "clamp", "quantize", "dequantize",
})  # fmt: skip
"""Operations that take alpha and beta."""

OPERATIONS = WITH_NUMBERS | frozenset({
    "abs", "exp", "log", "reciprocal", "relu", "round", "sigmoid", "sqrt", "square", "tanh", "erf", "neg", "floor",
    "ceil", "rsqrt", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "trunc",
    "sign", "not", "is_nan", "gelu_erf", "gelu_tanh", "mish", "hard_swish", "narrow", "add", "sub", "mul", "div", "max",
    "min", "squared_difference", "pow", "prelu", "ge", "gt", "le", "lt", "eq", "ne", "and", "or", "xor", "mod", "fmod",
    "select", "quantize_by", "dequantize_by", "fma", "bit_not", "bit_and", "bit_or", "bit_xor", "shift_left",
    "shift_right",
})  # fmt: skip
"""Operations that are there."""

_DTYPE_OF = {code: name for name, code in DTYPE_CODES.items()}


def add_program(source: KernelSource, program: Program) -> int:
    """Add ``gp_program(p, i, acc, GP_PASSED)`` and the names of its arguments, ``GP_ARGS``; how many these are.

    Raises UnsupportedError for other registers than the kernel has, and types and operations that kernels do not have.
    """
    if program.register != source.register:
        raise UnsupportedError(explain("registers of a GPU program", accepted=source.register, got=program.register))
    count = 1 + max(view.arg for view in program.views)
    lines = [_line(source, program, number) for number in program.steps]
    args = ", ".join(f"char *a{k}" for k in range(count))
    head = f"static __device__ __forceinline__ void gp_program(const Params &p, long long i, GP_REG acc, {args}) {{"
    source.function("\n".join([head, "    (void)acc;", *lines, "}"]))
    source.define(GP_ARGS=args, GP_PASSED=", ".join(f"a{k}" for k in range(count)))
    return count


def add_store(source: KernelSource, dtype: str) -> int:
    """Add a ``gp_program`` that stores what a kernel hands over, dense in its order; how many arguments it takes: 1."""
    head = "static __device__ __forceinline__ void gp_program(const Params &, long long i, GP_REG acc, char *a0) {"
    source.function(f"{head}\n    gp_store_{checked_dtype(dtype)}(a0, i, acc);\n}}")
    source.define(GP_ARGS="char *a0", GP_PASSED="a0")
    return 1


def _line(source: KernelSource, program: Program, number: int) -> str:
    """The statement of one step."""
    name, operands, view, alpha, beta = program.steps[number]
    values = ", ".join(f"x{operand}" for operand in operands)
    if name == "store":
        return f"    gp_store_{_place(source, program, view)}, {values});"
    if name == "load":
        return f"    const GP_REG x{number} = gp_load_{_place(source, program, view, is_read=True)});"
    return f"    const GP_REG x{number} = {_expression(source, number, name, values, alpha, beta)};"


def _place(source: KernelSource, program: Program, number: int, *, is_read: bool = False) -> str:
    """Type, argument and offset of a view, as they stand in a call that goes on."""
    view = program.views[number]
    source.numbers(**{f"view{number}": view.offset})
    dtype, offset = checked_dtype(view.dtype, is_read=is_read), source.offset(f"view{number}", view.axes)
    return f"{dtype}(a{view.arg}, p.view{number} + {offset}"


def _expression(source: KernelSource, number: int, name: str, values: str, alpha: float, beta: float) -> str:
    if name == "acc":
        return "acc"
    if name == "const":
        source.reals(**{f"number{number}": alpha})
        return f"p.number{number}"
    if name not in OPERATIONS:
        raise UnsupportedError(
            explain(f"elementwise operation {name} on a GPU", accepted=", ".join(OPERATIONS)), op=name
        )
    if name == "narrow":
        return f"gp_narrow_{checked_dtype(_DTYPE_OF[int(alpha)])}({values})"
    if name not in WITH_NUMBERS:
        return f"gp_{name}({values})"
    source.reals(**{f"alpha{number}": alpha, f"beta{number}": beta})
    return f"gp_{name}({values}, p.alpha{number}, p.beta{number})"
