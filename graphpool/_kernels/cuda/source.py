"""The text of a kernel, and its parameters.

A kernel has arguments that are addresses, and one block of parameters behind them, ``p``: whole numbers, then floats. A
`KernelSource` collects them with the functions that read them, so that no struct is described twice.
"""

from __future__ import annotations

import hashlib
import re
import struct
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from graphpool._dataclasses import dataclass
from graphpool.errors import UnsupportedError, explain

from ..core.spaces import collapse

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["DTYPES", "NIBBLES", "REGISTERS", "CudaCall", "CudaKernel", "KernelSource"]

DTYPES = frozenset({
    "f64", "f32", "bf16", "f16", "f8_e5m2", "f8_e4m3", "s64", "s32", "u32", "s16", "u16", "s8", "u8", "boolean",
})  # fmt: skip
"""Element types that kernels read and write."""

NIBBLES = frozenset({"s4", "u4"})
"""Element types that elementwise programs read, but no kernel writes: two threads would share a byte."""

REGISTERS = {"f32": "float", "f64": "double", "s64": "long long"}
"""Type in which a kernel computes -> that of C++. All but elementwise programs by themselves compute in f32."""

MOST_BLOCKS = 2**31 - 1
"""Blocks of a launch; kernels go on with further work in steps of so many."""

MOST_PARAMS_NBYTES = 4096
"""Arguments of a kernel together. Unit: bytes."""

_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class CudaKernel:
    """A kernel: its name in the text, which tells the text too; ``isa`` is for reports."""

    family: str
    entry: str
    text: str
    isa: str = "cuda"

    @property
    def name(self) -> str:
        """For reports."""
        return self.family


@dataclass(frozen=True)
class CudaCall:
    """A launch but for the addresses: `nargs` of them stand in front of the parameters.

    `ntasks` is the number of blocks, `threads` those of each. A call `is_watched` if the last address is that of a
    word, s32, which the kernel sets where an index lies outside its axis.
    """

    kernel: CudaKernel
    nargs: int
    params: bytes
    ntasks: int
    threads: int
    scratch_nbytes: int = 0
    is_watched: bool = False


@lru_cache
def _read(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


class KernelSource:
    """Collects what a kernel's file leaves open, in any order; `build` gives the call.

    Parameters
    ----------
    family : str
        Name of the kernel's file without its suffix.
    *headers : str
        What it includes beside arithmetic and memory.
    register : str, default="f32"
        One of `REGISTERS`.
    """

    def __init__(self, family: str, *headers: str, register: str = "f32") -> None:
        self.family, self.register, self._headers = family, register, headers
        self._numbers: dict[str, int] = {}
        self._reals: dict[str, float] = {}
        self._defines: dict[str, str] = {}
        self._functions: list[str] = []

    def numbers(self, **values: int) -> None:
        """Whole numbers among the parameters, by name."""
        self._numbers.update(values)

    def reals(self, **values: float) -> None:
        """Floats among the parameters, by name."""
        self._reals.update(values)

    def define(self, **texts: str) -> None:
        """Names of the preprocessor and what they stand for; a name may end with its arguments."""
        self._defines.update(texts)

    def function(self, text: str) -> None:
        """A function behind the parameters."""
        self._functions.append(text)

    def include(self, name: str) -> None:
        """A header that reads the parameters and the names that are defined."""
        self._functions.append(_read(name))

    def load(self, name: str, dtype: str) -> None:
        """Let ``gp_load_<name>`` read elements of a type; UnsupportedError where kernels do not."""
        self._defines[f"gp_load_{name}"] = f"gp_load_{checked_dtype(dtype)}"

    def view(self, name: str, shape: Sequence[int], strides: Sequence[int]) -> None:
        """A function ``gp_<name>(p, i)``: the offset, by these strides, of index i of the row-major space of a shape.

        Unit: elements.
        """
        self.function(
            f"static __device__ __forceinline__ long long gp_{name}(const Params &p, long long i) {{\n"
            f"    return {self.offset(name, collapse(shape, strides))};\n}}"
        )

    def offset(self, name: str, axes: Sequence[tuple[int, ...]]) -> str:
        """An expression of ``i`` and ``p``: the offset of index i by axes as `collapse` gives them.

        Indices are divided in 32 bits where the space allows it, since numbers of 64 take a multiple of the time.
        """
        kind = "(unsigned)" if prod(dim for dim, _ in axes) < 2**32 else ""
        at, terms = f"{kind}i" if len(axes) > 1 else "i", []
        for number, (dim, stride) in enumerate(axes):
            is_last = number == len(axes) - 1
            self._numbers[f"{name}_stride{number}"] = stride
            index = at if is_last else f"{at} % {kind}p.{name}_dim{number}"
            terms.append(f"(long long)({index}) * p.{name}_stride{number}")
            if not is_last:
                self._numbers[f"{name}_dim{number}"] = dim
                at = f"{at} / {kind}p.{name}_dim{number}"
        return " + ".join(terms)

    def build(self, nargs: int, blocks: int, threads: int, *, is_watched: bool = False) -> CudaCall:
        """The call with its text.

        Parameters
        ----------
        nargs : int
            Addresses in front of the parameters.
        blocks : int
            Blocks that the work has; a launch has at most `MOST_BLOCKS`.
        threads : int
            Of a block.
        is_watched : bool, default=False
            See `CudaCall`.

        Raises
        ------
        UnsupportedError
            There are more parameters than a kernel takes.
        """
        params = struct.pack(
            f"<{len(self._numbers)}q{len(self._reals)}f", *self._numbers.values(), *self._reals.values()
        )
        params += bytes(-len(params) % 8)
        if 8 * nargs + len(params) > MOST_PARAMS_NBYTES:
            got = f"{8 * nargs + len(params)} bytes"
            raise UnsupportedError(explain("arguments of a kernel", accepted=f"{MOST_PARAMS_NBYTES} bytes", got=got))
        entry, text = _assemble(
            self.family, self._headers, self.register, tuple(self._numbers), tuple(self._reals),
            tuple(self._defines.items()), tuple(self._functions),
        )  # fmt: skip
        kernel = CudaKernel(self.family, entry, text)
        return CudaCall(kernel, nargs, params, min(blocks, MOST_BLOCKS), threads, is_watched=is_watched)


@lru_cache(256)
def _assemble(
    family: str,
    more: tuple[str, ...],
    register: str,
    numbers: tuple[str, ...],
    reals: tuple[str, ...],
    defines: tuple[tuple[str, str], ...],
    functions: tuple[str, ...],
) -> tuple[str, str]:
    """Name and text of a kernel. The name holds a digest of the text, so that equal names are equal kernels."""
    fields = [f"    long long {name};" for name in numbers] + [f"    float {name};" for name in reals]
    fields = fields or ["    long long unused;"]
    math = "gp_integers.cuh" if register == "s64" else "gp_math.cuh"
    headers = map(_read, (math, "gp_memory.cuh", *more))
    body = "\n".join([
        f"#define GP_REG {REGISTERS[register]}", f"#define GP_IS_F64 {int(register == 'f64')}",
        f"#define GP_IS_INTEGER {int(register == 's64')}", *headers, "struct Params {", *fields, "};",
        *[f"#define {name} {text}" for name, text in defines], *functions, _read(f"{family}.cu"),
    ])  # fmt: skip
    body = re.sub(r"^//.*\n|[ \t]+//.*$", "", body, flags=re.MULTILINE)  # comments compile to nothing
    entry = f"gp_{family}_{hashlib.sha256(body.encode()).hexdigest()[:16]}"
    return entry, f"#define GP_KERNEL {entry}\n{body}"


def checked_dtype(dtype: str, *, is_read: bool = False) -> str:
    """The type itself; UnsupportedError where kernels do not read and write it, or not even read it."""
    if dtype not in DTYPES and not (is_read and dtype in NIBBLES):
        accepted = ", ".join(sorted(DTYPES))
        raise UnsupportedError(explain("element type of a GPU kernel", accepted=accepted, got=dtype), dtype=dtype)
    return dtype
