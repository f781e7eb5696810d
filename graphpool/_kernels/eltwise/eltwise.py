"""Elementwise programs: chains of any length that read and write memory once, alone or as another kernel's epilogue.

    builder = EltwiseBuilder((8, 512))
    x = builder.load(0, "f32")
    bias = builder.load(1, "bf16", (0, 1))
    builder.store(2, "f32", builder.unary("relu", builder.binary("add", x, bias)))
    call = builder.build()

The format is that of ``eltwise/gp_eltwise.h``.
"""

from __future__ import annotations

import math
from array import array
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from graphpool._dataclasses import NamedTuple
from graphpool._sizes import hint_of, is_variable, key_of
from graphpool.errors import InvalidArgumentError, UnsupportedError, explain
from graphpool.typing import dense_strides

from ..core.call import DTYPE_CODES, KernelCall, pack
from ..core.records import enumeration, join_blocks, number, record
from ..core.spaces import collapse

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "BINARY_OPS",
    "BYTE_LIMITS",
    "DTYPES",
    "MAX_ARGS",
    "N_REGISTERS",
    "OPS",
    "TERNARY_OPS",
    "UNARY_OPS",
    "EltwiseBuilder",
    "Program",
    "Value",
]

TASK_SIZE, N_REGISTERS, MAX_ARGS = map(number, ("GP_ELTWISE_TASK", "GP_ELTWISE_REGISTERS", "GP_MAX_ARGS"))
"""Elements of a task; registers of a program; arguments of a kernel."""

_MOST_PROGRAMS = 256
"""Programs that are kept, a kilobyte or two each: layers of a model repeat."""

_CODES = enumeration("gp_eltwise_op", "GP_OP_")


def _codes(first: str, last: str) -> dict[str, int]:
    """Name of an operation -> opcode, from one to another."""
    codes = range(_CODES[first], _CODES[last] + 1)
    return {name.removesuffix("_scalar"): code for name, code in _CODES.items() if code in codes}


UNARY_OPS = _codes("abs", "bit_not")
"""f(x; alpha, beta) -> opcode. clamp: [alpha, beta]; elu, leaky_relu: alpha; hard_sigmoid: alpha x + beta, clipped to
[0, 1]; quantize: round(x / alpha) + beta, of NaN -inf; dequantize: (x - beta) alpha; softplus: log(1 + exp(beta x)) /
beta; pow: x ** beta; not: x == 0; is_inf: alpha != 0: inf counts, beta != 0: -inf counts; narrow: x as a store to the
type with code alpha and a load would leave it."""
BINARY_OPS = _codes("add", "shift_right")
"""f(x, y) -> opcode. Comparisons and logic give 1 or 0; prelu: x where x >= 0, else x y; mod: remainder with the sign
of y, fmod: of x; shift_right keeps the sign."""
TERNARY_OPS = _codes("select", "fma")
"""f(x, y, z) -> opcode. select: y where x != 0, else z; fma: x y + z; quantize_by: round(x / y) + z, of NaN -inf;
dequantize_by: (x - z) y."""

_INT_DTYPES = frozenset({"s8", "s16", "s32", "s64", "u8", "u16", "u32", "u64", "boolean"})
_BITS = frozenset({"bit_not", "bit_and", "bit_or", "bit_xor", "shift_left", "shift_right"})
_LOGIC = frozenset({"max", "min", "ge", "gt", "le", "lt", "eq", "ne", "and", "or", "xor", "not", "sign", "select"})
_ARITHMETIC = frozenset({"add", "sub", "mul", "div", "mod", "fmod", "pow", "abs", "neg", "narrow"})
_REAL = frozenset({
    "exp", "log", "reciprocal", "round", "sigmoid", "sqrt", "square", "tanh", "clamp", "erf", "floor", "ceil",
    "trunc", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "is_nan", "is_inf",
    "quantize_by", "dequantize_by",
})  # fmt: skip

DTYPES: dict[str, frozenset[str]] = {
    "f32": frozenset(DTYPE_CODES), "f64": frozenset(DTYPE_CODES) - {"s4", "u4"}, "s64": _INT_DTYPES, "u64": _INT_DTYPES,
    "s32": _INT_DTYPES - {"s64", "u64", "u32"}, "u8": frozenset({"u8", "s8", "boolean"}),
}  # fmt: skip
"""Type of the registers -> element types that a program loads and stores."""

OPS: dict[str, frozenset[str]] = {
    "f32": frozenset({*UNARY_OPS, *BINARY_OPS, *TERNARY_OPS}) - _BITS,
    "f64": _LOGIC | _ARITHMETIC | _REAL,
    **dict.fromkeys(("s64", "u64", "s32", "u8"), _LOGIC | _ARITHMETIC | _BITS),
}
"""Type of the registers -> operations of a program."""

_HEADER, _VIEW, _INSTR = map(record, ("gp_eltwise", "gp_view", "gp_instr"))
_NOTHING_STORED = explain("elementwise program", accepted="at least one store", got="none")
_NAMES = {code: name for name, code in _CODES.items()}
_LOAD, _STORE, _ACC, _CONST = (_CODES[name] for name in ("load", "store", "acc", "const"))
_CLAMP, _ROUND = _CODES["clamp"], _CODES["round"]

BYTE_LIMITS = {"s8": (-128.0, 127.0), "u8": (0.0, 255.0)}
"""Types of 8 bits -> what stores of floats saturate at."""


class Value(NamedTuple):
    """A result inside the program of one `EltwiseBuilder`."""

    owner: EltwiseBuilder
    number: int


class _Step(NamedTuple):
    """An instruction before registers: its result is numbered by its place, operands are such numbers."""

    op: int
    operands: tuple[int, ...] = ()
    view: int = 0
    alpha: float = 0.0
    beta: float = 0.0


class _View(NamedTuple):
    """How an argument lies in memory, axes as `collapse` gives them."""

    arg: int
    dtype: str
    offset: int
    axes: tuple[tuple[int, ...], ...]


class Program(NamedTuple):
    """What an `EltwiseBuilder` has collected, for engines that do not read the blocks that it builds.

    `views` are (argument, data type, offset, axes) with axes as `collapse` gives them; `steps` are (name of the
    operation, numbers of the steps whose results it takes, view, alpha, beta), those that stores need alone: the key of
    a step is its number.
    """

    shape: tuple[int, ...]
    register: str
    views: tuple[_View, ...]
    steps: dict[int, tuple[str, tuple[int, ...], int, float, float]]


class EltwiseBuilder:
    """Collects the steps of an elementwise program.

    `shape` is the iteration space: every store writes one element for each of its points. `register` is the type in
    which the program computes. Integers are exact; their arithmetic, and stores into narrower types, wrap around. Each
    has its `OPS` and `DTYPES`; only f32 has accumulators, and may be an epilogue.

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
        self._views: dict[Any, tuple[int, _View]] = {}
        self._steps: list[_Step] = []
        collapse(self.shape)

    def load(self, arg: int, dtype: str, strides: Sequence[int] | None = None, *, offset: int = 0) -> Value:
        """Elements of argument `arg` of the kernel, from `offset` on (in elements), of a type of `DTYPES`.

        There is a stride for each axis of the iteration space, 0 to broadcast. UnsupportedError: no program loads this
        type; InvalidArgumentError: there is no such argument.
        """
        return self._add(_Step(_LOAD, (), self._view(arg, dtype, strides, offset)))

    def acc(self) -> Value:
        """The accumulators of the kernel whose epilogue this is."""
        if self.register != "f32":
            raise UnsupportedError(explain("accumulators", accepted="registers of f32", got=self.register), op="acc")
        return self._add(_Step(_ACC))

    def const(self, value: float) -> Value:
        """`value` everywhere."""
        return self._add(_Step(_CONST, (), 0, float(value)))

    def unary(self, name: str, x: Value, alpha: float = 0.0, beta: float = 0.0) -> Value:
        """The function `name` of `UNARY_OPS` of x; UnsupportedError: these registers have none of that name."""
        return self._compute(UNARY_OPS, name, (x,), alpha, beta)

    def binary(self, name: str, x: Value, y: Value) -> Value:
        """The function `name` of `BINARY_OPS` of x and y; errors as in `unary`."""
        return self._compute(BINARY_OPS, name, (x, y))

    def ternary(self, name: str, x: Value, y: Value, z: Value) -> Value:
        """The function `name` of `TERNARY_OPS` of x, y and z; errors as in `unary`."""
        return self._compute(TERNARY_OPS, name, (x, y, z))

    def store(self, arg: int, dtype: str, strides: Sequence[int] | None, value: Value, *, offset: int = 0) -> None:
        """Write `value` to argument `arg`; parameters and errors as in `load`.

        Strides must not let two points share an element. A 4-bit tensor must be contiguous and start on a whole byte
        (UnsupportedError).
        """
        if dtype in ("s4", "u4") and (offset % 2 or not self._is_dense(strides)):
            what = f"strides {strides} and offset {offset} of a {dtype} store"
            raise UnsupportedError(explain(what, accepted="a contiguous tensor from an even offset"), dtype=dtype)
        [number] = self._operands((value,))
        if self.register == "f32" and dtype in BYTE_LIMITS:
            number = self._before_saturation(number, BYTE_LIMITS[dtype])
        self._add(_Step(_STORE, (number,), self._view(arg, dtype, strides, offset)))

    def build(self, isa: str | None = None) -> KernelCall:
        """The program as a kernel by itself: arguments as numbered by the loads and stores.

        UnsupportedError: more than 16 values are alive at once; InvalidArgumentError: the program reads accumulators,
        or stores nothing.
        """
        if _ACC in [step.op for step in self._steps]:
            raise InvalidArgumentError(explain("acc() in a kernel of its own", accepted="acc() in an epilogue"))
        header, tail = self._assemble()
        ntasks = -(-header["size"] // TASK_SIZE)
        return pack(f"{self.register}_eltwise", header, tail=tail, ntasks=ntasks, isa=isa)

    def epilogue(self) -> Any:
        """The program as a ``gp_eltwise`` block, to be kept 8-byte aligned behind the parameters of another kernel.

        UnsupportedError: as in `build`; registers other than f32; a 4-bit store, of which two tasks might write one
        byte.
        """
        views = [view for _, view in self._views.values()]
        stored = [views[step.view].dtype for step in self._steps if step.op == _STORE]
        if self.register != "f32" or "s4" in stored or "u4" in stored:
            raise UnsupportedError(explain("epilogue", accepted="a program in f32 without 4-bit stores"))
        header, tail = self._assemble()
        return join_blocks([_HEADER.pack(header), tail])

    def program(self) -> Program:
        """What was collected; InvalidArgumentError: it stores nothing."""
        last = _last_uses(self._steps)
        if not last:
            raise InvalidArgumentError(_NOTHING_STORED)
        kept = {
            number: (_NAMES[step.op], *step[1:])
            for number, step in enumerate(self._steps)
            if step.op == _STORE or number in last
        }
        return Program(self.shape, self.register, tuple([view for _, view in self._views.values()]), kept)

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
        view = _View(arg, dtype, offset, tuple(axes))
        return self._views.setdefault(key_of(view), (len(self._views), view))[0]

    def _before_saturation(self, number: int, limits: tuple[float, float]) -> int:
        """What a store that rounds and saturates may write instead of a value that was rounded and clamped for it."""
        step = self._steps[number]
        if step.op == _CLAMP and (step.alpha, step.beta) == limits:
            number = step.operands[0]
            if self._steps[number].op == _ROUND:
                return self._steps[number].operands[0]
        return number

    def _is_dense(self, strides: Sequence[int] | None) -> bool:
        """Whether the elements lie one behind the other."""
        axes = collapse(self.shape, dense_strides(self.shape) if strides is None else strides)
        return len(axes) == 1 and axes[0][1] == 1

    def _compute(
        self, ops: dict[str, int], name: str, values: tuple[Value, ...], alpha: float = 0.0, beta: float = 0.0
    ) -> Value:
        if name not in ops or name not in OPS[self.register]:
            accepted = ", ".join(sorted(set(ops) & OPS[self.register]))
            raise UnsupportedError(explain(f"elementwise operation {name}", accepted=accepted), op=name)
        return self._add(_Step(ops[name], self._operands(values), 0, float(alpha), float(beta)))

    def _operands(self, values: tuple[Value, ...]) -> tuple[int, ...]:
        for value in values:
            if value.owner is not self:
                raise InvalidArgumentError(explain("operand", accepted="a value of this builder", got="one of another"))
        return tuple([value.number for value in values])

    def _add(self, step: _Step) -> Value:
        self._steps.append(step)
        return Value(self, len(self._steps) - 1)

    def _assemble(self) -> tuple[dict[str, int], Any]:
        """The header's fields, and views and instructions as bytes."""
        numbers = array("d", [number for step in self._steps for number in (step.alpha, step.beta)])
        views = tuple([view for _, view in self._views.values()])
        repeats = tuple([_repeats(view) for view in views])
        ninstrs, nregisters, instrs = _instructions(tuple(self._steps), numbers.tobytes(), repeats)
        axes = (self.shape, *[(view.offset,) for view in views], *[axis for view in views for axis in view.axes])
        is_fixed = not any(is_variable(number) for axis in axes for number in axis)
        tail = join_blocks([(_pack_views if is_fixed else _pack_views.__wrapped__)(views), instrs])
        return {
            "size": math.prod(self.shape), "nviews": len(views), "ninstrs": ninstrs, "nregisters": nregisters,
            "nbytes": _HEADER.nbytes + len(tail),
        }, tail  # fmt: skip


@lru_cache(_MOST_PROGRAMS)
def _pack_views(views: tuple[_View, ...]) -> Any:
    return join_blocks([
        _VIEW.pack({
            "arg": view.arg, "dtype": DTYPE_CODES[view.dtype], "offset": view.offset, "ndim": len(view.axes),
            "dim": [dim for dim, _ in view.axes], "stride": [stride for _, stride in view.axes],
        })
        for view in views
    ])  # fmt: skip


def _repeats(view: _View) -> bool:
    """Whether blocks of the iteration space find the same elements in a view: one, or rows that repeat."""
    return hint_of(view.axes[0][1]) == 0 or (len(view.axes) > 1 and hint_of(view.axes[1][1]) == 0)


@lru_cache(_MOST_PROGRAMS)
def _instructions(steps: tuple[_Step, ...], numbers: bytes, repeats: tuple[bool, ...]) -> tuple[int, int, bytes]:
    """How many instructions and registers, and the instructions as bytes.

    `numbers`, those of all steps bit for bit, tell 0.0 from -0.0, which are equal. `repeats` says of which views
    registers keep elements, if there are registers enough.
    """
    kept = {index for index, step in enumerate(steps) if step.op == _CONST or (step.op == _LOAD and repeats[step.view])}
    try:
        instrs, nregisters = _allocate(steps, kept)
    except UnsupportedError:
        instrs, nregisters = _allocate(steps, set())
    return len(instrs), nregisters, _INSTR.pack_rows(instrs)


def _last_uses(steps: Sequence[_Step]) -> dict[int, int]:
    """Value -> the last step that needs it, for those that a store needs in the end."""
    last: dict[int, int] = {}
    for index in range(len(steps) - 1, -1, -1):
        op, operands, *_ = steps[index]
        if op == _STORE or index in last:
            for operand in operands:
                last.setdefault(operand, index)
    return last


def _allocate(steps: Sequence[_Step], kept: set[int]) -> tuple[list[tuple[Any, ...]], int]:
    """Instructions with registers, and how many these are: a linear scan frees them at the last use of their values.

    Those of the values `kept` hold nothing else.
    """
    last = _last_uses(steps)
    if not last:
        raise InvalidArgumentError(_NOTHING_STORED)
    free, n_used = list(range(N_REGISTERS - 1, -1, -1)), 0
    register: dict[int, int] = {}
    instrs: list[tuple[Any, ...]] = []
    for index, (op, operands, view, alpha, beta) in enumerate(steps):
        if op != _STORE and index not in last:
            continue
        a, b, c, *_ = [view] * (op == _LOAD) + [register[operand] for operand in operands] + [0, 0, 0]
        done = {operand for operand in operands if last[operand] == index}
        free += [register.pop(operand) for operand in done - kept]
        if op == _STORE:
            target = view
        elif n_used in free or (free and index not in kept):
            target = register[index] = n_used if index in kept else free[-1]
            free.remove(target)
            n_used = max(n_used, target + 1)
        else:
            what = "values alive at once in an elementwise program"
            raise UnsupportedError(explain(what, accepted=f"at most {N_REGISTERS}", hint="split the chain"))
        promises = _reads_memory(steps, index, last), _writes_memory(steps, index, last), index in kept
        instrs.append((op, target, a, b, c, *promises, alpha, beta))
    return instrs, n_used


def _reads_memory(steps: Sequence[_Step], index: int, last: dict[int, int]) -> bool:
    """``gp_instr.reads_memory``."""
    is_input = steps[index].op in (_LOAD, _ACC)
    return is_input and all(step.op != _STORE for step in steps[index + 1 : last[index]])


def _writes_memory(steps: Sequence[_Step], index: int, last: dict[int, int]) -> bool:
    """``gp_instr.writes_memory``."""
    end = last.get(index, 0)
    if index not in last or steps[end].op != _STORE:
        return False
    return not any(k in last or steps[k].op == _STORE for k in range(index + 1, end))
