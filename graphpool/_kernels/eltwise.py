"""Elementwise programs: chains of any length that read and write memory once, alone or as another kernel's epilogue.

    builder = EltwiseBuilder((8, 512))
    x = builder.load(0, "f32")
    bias = builder.load(1, "bf16", (0, 1))
    builder.store(2, "f32", builder.unary("relu", builder.binary("add", x, bias)))
    call = builder.build()

The format is that of ``include/gp_eltwise.h``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from graphpool.errors import InvalidArgumentError, UnsupportedError, explain
from graphpool.typing import dense_strides

from .call import DTYPE_CODES, KernelCall, pack
from .strides import collapse

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "BINARY_OPS",
    "DTYPES",
    "MAX_ARGS",
    "N_REGISTERS",
    "OPS",
    "TERNARY_OPS",
    "UNARY_OPS",
    "EltwiseBuilder",
    "Value",
]

TASK_SIZE = 16384
"""Elements of a task (``GP_ELTWISE_TASK``)."""

N_REGISTERS = 16
"""``GP_ELTWISE_REGISTERS``."""

MAX_ARGS = 80
"""``GP_MAX_ARGS``."""

_MEMORY = ("load", "store", "acc", "const")
_UNARY = (
    "abs", "exp", "hard_swish", "log", "mish", "reciprocal", "relu", "round", "sigmoid", "sqrt", "square", "tanh",
    "clamp", "elu", "leaky_relu", "gelu_erf", "gelu_tanh", "hard_sigmoid", "softplus", "pow", "erf", "neg", "floor",
    "ceil", "rsqrt", "sin", "cos", "sign", "not", "trunc", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh",
    "acosh", "atanh", "is_nan", "is_inf", "narrow", "bit_not",
)  # fmt: skip
_BINARY = (
    "add", "sub", "mul", "div", "max", "min", "squared_difference", "pow", "prelu", "ge", "gt", "le", "lt", "eq", "ne",
    "and", "or", "xor", "mod", "fmod", "bit_and", "bit_or", "bit_xor", "shift_left", "shift_right",
)  # fmt: skip
_TERNARY = ("select", "fma")

_MEMORY_OPS = {name: code for code, name in enumerate(_MEMORY)}
UNARY_OPS = {name: code for code, name in enumerate(_UNARY, len(_MEMORY))}
"""f(x; alpha, beta) -> opcode. clamp: [alpha, beta]; elu, leaky_relu: alpha; hard_sigmoid: alpha x + beta, clipped to
[0, 1]; softplus: log(1 + exp(beta x)) / beta; pow: x ** beta; not: x == 0; is_inf: alpha != 0: inf counts, beta != 0:
-inf counts; narrow: x as a store to the type with code alpha and a load would leave it."""
BINARY_OPS = {name: code for code, name in enumerate(_BINARY, len(_MEMORY) + len(_UNARY))}
"""f(x, y) -> opcode. Comparisons and logic give 1 or 0; prelu: x where x >= 0, else x y; mod: remainder with the sign
of y, fmod: of x; shift_right keeps the sign."""
TERNARY_OPS = {name: code for code, name in enumerate(_TERNARY, len(_MEMORY) + len(_UNARY) + len(_BINARY))}
"""f(x, y, z) -> opcode. select: y where x != 0, else z; fma: x y + z."""

_INT_DTYPES = frozenset({"s8", "s16", "s32", "s64", "u8", "u16", "u32", "u64", "boolean"})
_BITS = frozenset({"bit_not", "bit_and", "bit_or", "bit_xor", "shift_left", "shift_right"})
_LOGIC = frozenset({"max", "min", "ge", "gt", "le", "lt", "eq", "ne", "and", "or", "xor", "not", "sign", "select"})
_ARITHMETIC = frozenset({"add", "sub", "mul", "div", "mod", "fmod", "abs", "neg", "narrow"})
_REAL = frozenset({
    "pow", "exp", "log", "reciprocal", "round", "sigmoid", "sqrt", "square", "tanh", "clamp", "erf", "floor", "ceil",
    "trunc", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "is_nan", "is_inf",
})  # fmt: skip

DTYPES: dict[str, frozenset[str]] = {
    "f32": frozenset(DTYPE_CODES), "f64": frozenset(DTYPE_CODES) - {"s4", "u4"}, "s64": _INT_DTYPES, "u64": _INT_DTYPES,
}  # fmt: skip
"""Type of the registers -> element types that a program loads and stores."""

OPS: dict[str, frozenset[str]] = {
    "f32": frozenset({*UNARY_OPS, *BINARY_OPS, *TERNARY_OPS}) - _BITS,
    "f64": _LOGIC | _ARITHMETIC | _REAL,
    "s64": _LOGIC | _ARITHMETIC | _BITS,
    "u64": _LOGIC | _ARITHMETIC | _BITS,
}
"""Type of the registers -> operations of a program."""

_HEADER = np.dtype(
    [("size", "i8"), ("nviews", "i8"), ("ninstrs", "i8"), ("nregisters", "i8"), ("nbytes", "i8")], align=True
)
_VIEW = np.dtype(
    [("arg", "i4"), ("dtype", "i4"), ("offset", "i8"), ("ndim", "i8"), ("axes", "i8", (12, 2))], align=True
)
_INSTR = np.dtype([(name, "i4") for name in ("op", "dst", "a", "b", "c", "direct")] + [("alpha", "f4"), ("beta", "f4")])


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A result inside the program of one `EltwiseBuilder`."""

    owner: EltwiseBuilder
    index: int


@dataclass(frozen=True, slots=True)
class _Step:
    """An instruction before registers: its result is numbered by its place, operands are such numbers."""

    op: int
    operands: tuple[int, ...] = ()
    view: int = 0
    alpha: float = 0.0
    beta: float = 0.0


class EltwiseBuilder:
    """Collects the steps of an elementwise program.

    Parameters
    ----------
    shape : sequence of int
        The iteration space, at most 12 dimensions; every store writes one element for each of its points.
    register : {"f32", "f64", "s64", "u64"}, default="f32"
        Type in which the program computes. Integers are exact; their arithmetic, and stores into narrower types, wrap
        around. Each has its `OPS` and `DTYPES`; only f32 has accumulators, and may be an epilogue.

    Notes
    -----
    Steps run in the order in which they were added, block by block of the iteration space; a store may therefore
    overwrite an argument that is read with the same strides (in place). Steps whose value is not stored are left out.
    Loads into f32 round what is wider. Stores round to nearest even; floats saturate at integers and turn NaN into 0;
    f8_e4m3 turns what is beyond 448 into NaN, so clamp before it where saturation is wanted.
    NaN passes through relu, clamp, max and min.
    Threads: one builder is for one thread; what it builds is immutable.
    """

    def __init__(self, shape: Sequence[int], *, register: str = "f32") -> None:
        self.shape = tuple(shape)
        self.register = register
        self._views: list[tuple[Any, ...]] = []
        self._steps: list[_Step] = []
        collapse(self.shape)

    def load(self, arg: int, dtype: str, strides: Sequence[int] | None = None, *, offset: int = 0) -> Value:
        """Elements of argument `arg`.

        Parameters
        ----------
        arg : int
            Position among the arguments of the kernel.
        dtype : str
            Element type, one of `DTYPES`.
        strides : sequence of int, optional
            One per axis of the iteration space, 0 to broadcast; row-major by default. Unit: elements.
        offset : int, default=0
            Place of the first element. Unit: elements.

        Raises
        ------
        UnsupportedError
            No program loads this type.
        InvalidShapeError
            The strides do not fit the shape.
        InvalidArgumentError
            There is no such argument.
        """
        return self._add("load", view=self._view(arg, dtype, strides, offset))

    def acc(self) -> Value:
        """The accumulators of the kernel whose epilogue this is."""
        return self._add("acc")

    def const(self, value: float) -> Value:
        """`value` everywhere."""
        return self._add("const", alpha=value)

    def unary(self, name: str, x: Value, alpha: float = 0.0, beta: float = 0.0) -> Value:
        """The function `name` of `UNARY_OPS` of x.

        Raises
        ------
        UnsupportedError
            There is no such function on these registers.
        """
        return self._compute(UNARY_OPS, name, (x,), alpha, beta)

    def binary(self, name: str, x: Value, y: Value) -> Value:
        """The function `name` of `BINARY_OPS` of x and y; errors as in `unary`."""
        return self._compute(BINARY_OPS, name, (x, y))

    def ternary(self, name: str, x: Value, y: Value, z: Value) -> Value:
        """The function `name` of `TERNARY_OPS` of x, y and z; errors as in `unary`."""
        return self._compute(TERNARY_OPS, name, (x, y, z))

    def store(self, arg: int, dtype: str, strides: Sequence[int] | None, value: Value, *, offset: int = 0) -> None:
        """Write `value` to argument `arg`; parameters and errors as in `load`.

        Strides must not let two points share an element. A 4-bit tensor must be contiguous and start on a whole byte.

        Raises
        ------
        UnsupportedError
            A 4-bit tensor with gaps.
        """
        view = self._view(arg, dtype, strides, offset)
        if dtype in ("s4", "u4") and (len(self._views[view][3]) > 1 or self._views[view][3][0][1] != 1 or offset % 2):
            what = f"strides {strides} and offset {offset} of a {dtype} store"
            raise UnsupportedError(explain(what, accepted="a contiguous tensor from an even offset"), dtype=dtype)
        self._add("store", self._operands((value,)), view=view)

    def build(self, isa: str | None = None) -> KernelCall:
        """The program as a kernel by itself: arguments as numbered by the loads and stores.

        Raises
        ------
        UnsupportedError
            More than 16 values are alive at once.
        InvalidArgumentError
            The program reads accumulators, or stores nothing.
        """
        if any(step.op == _MEMORY_OPS["acc"] for step in self._steps):
            raise InvalidArgumentError(explain("acc() in a kernel of its own", accepted="acc() in an epilogue"))
        header, tail = self._assemble()
        name = "eltwise" if self.register == "f32" else f"{self.register}_eltwise"
        return pack(name, _HEADER, header, tail=tail, ntasks=-(-header["size"] // TASK_SIZE), isa=isa)

    def epilogue(self) -> bytes:
        """The program as a ``gp_eltwise`` block, to be kept 8-byte aligned behind the parameters of another kernel.

        Raises
        ------
        UnsupportedError
            As in `build`; registers other than f32; a 4-bit store, of which two tasks might write one byte.
        """
        views = [self._views[s.view] for s in self._steps if s.op == _MEMORY_OPS["store"]]
        if self.register != "f32" or any(view[1] in ("s4", "u4") for view in views):
            raise UnsupportedError(explain("epilogue", accepted="a program in f32 without 4-bit stores"))
        header, tail = self._assemble()
        return np.array([tuple(header.values())], _HEADER).tobytes() + tail

    def _view(self, arg: int, dtype: str, strides: Sequence[int] | None, offset: int) -> int:
        """Number of the view with these facts, made if it is new."""
        if dtype not in DTYPES[self.register]:
            accepted = ", ".join(sorted(DTYPES[self.register]))
            raise UnsupportedError(
                explain("data type of an elementwise argument", accepted=accepted, got=dtype), dtype=dtype
            )
        if not 0 <= arg < MAX_ARGS:
            raise InvalidArgumentError(explain("argument number", accepted=f"0 .. {MAX_ARGS - 1}", got=arg), arg=arg)
        axes = collapse(self.shape, dense_strides(self.shape) if strides is None else strides)
        view = (arg, str(dtype), offset, axes)
        if view not in self._views:
            self._views.append(view)
        return self._views.index(view)

    def _compute(
        self, ops: dict[str, int], name: str, values: tuple[Value, ...], alpha: float = 0.0, beta: float = 0.0
    ) -> Value:
        if name not in ops or name not in OPS[self.register]:
            accepted = ", ".join(sorted(set(ops) & OPS[self.register]))
            raise UnsupportedError(explain(f"elementwise operation {name}", accepted=accepted), op=name)
        return self._add(ops[name], self._operands(values), alpha=alpha, beta=beta)

    def _operands(self, values: tuple[Value, ...]) -> tuple[int, ...]:
        if any(value.owner is not self for value in values):
            raise InvalidArgumentError(explain("operand", accepted="a value of this builder", got="one of another"))
        return tuple(value.index for value in values)

    def _add(self, op: str | int, operands: tuple[int, ...] = (), **fields: Any) -> Value:
        if op == "acc" and self.register != "f32":
            raise UnsupportedError(explain("accumulators", accepted="registers of f32", got=self.register), op=op)
        code = _MEMORY_OPS[op] if isinstance(op, str) else op
        self._steps.append(_Step(code, operands, **fields))
        return Value(self, len(self._steps) - 1)

    def _assemble(self) -> tuple[dict[str, int], bytes]:
        """The header's fields, and views and instructions as bytes."""
        views = np.zeros(len(self._views), _VIEW)
        for record, (arg, dtype, offset, axes) in zip(views, self._views, strict=True):
            record["arg"], record["dtype"], record["offset"] = arg, DTYPE_CODES[dtype], offset
            record["ndim"], record["axes"][: len(axes)] = len(axes), axes
        instrs = np.array(_allocate(self._steps), _INSTR)
        tail = views.tobytes() + instrs.tobytes()
        registers = 1 + max(int(instr["dst"]) for instr in instrs if instr["op"] != _MEMORY_OPS["store"])
        header = {"size": math.prod(self.shape), "nviews": len(views), "ninstrs": len(instrs), "nregisters": registers}
        return header | {"nbytes": _HEADER.itemsize + len(tail)}, tail


def _last_uses(steps: Sequence[_Step]) -> dict[int, int]:
    """Value -> the last step that needs it, for those that a store needs in the end."""
    last: dict[int, int] = {}
    for index in reversed(range(len(steps))):
        if steps[index].op == _MEMORY_OPS["store"] or index in last:
            for operand in steps[index].operands:
                last.setdefault(operand, index)
    return last


def _allocate(steps: Sequence[_Step]) -> list[tuple[Any, ...]]:
    """Instructions with registers, by a linear scan: a register is free again from the last use of its value on."""
    store, last = _MEMORY_OPS["store"], _last_uses(steps)
    if not last:
        raise InvalidArgumentError(explain("elementwise program", accepted="at least one store", got="none"))
    free = list(reversed(range(N_REGISTERS)))
    register: dict[int, int] = {}
    instrs: list[tuple[Any, ...]] = []
    for index, step in enumerate(steps):
        if step.op != store and index not in last:
            continue
        sources = [register[operand] for operand in step.operands]
        free += [register.pop(operand) for operand in set(step.operands) if last[operand] == index]
        if step.op == store:
            target = step.view
        elif free:
            target = register[index] = free.pop()
        else:
            what = "values alive at once in an elementwise program"
            raise UnsupportedError(explain(what, accepted=f"at most {N_REGISTERS}", hint="split the chain"))
        a, b, c, *_ = [*([step.view] if step.op == _MEMORY_OPS["load"] else sources), 0, 0, 0]
        instrs.append((step.op, target, a, b, c, _is_direct(steps, index, last), step.alpha, step.beta))
    return instrs


def _is_direct(steps: Sequence[_Step], index: int, last: dict[int, int]) -> bool:
    """Whether a register may lie in memory: where it came from, or where it goes to next (``gp_instr.direct``)."""
    store, between = _MEMORY_OPS["store"], range(index + 1, last.get(index, 0))
    if steps[index].op in (_MEMORY_OPS["load"], _MEMORY_OPS["acc"]):
        return all(steps[k].op != store for k in between)
    if index not in last or steps[last[index]].op != store:
        return False
    return not any(k in last or steps[k].op == store for k in between)
