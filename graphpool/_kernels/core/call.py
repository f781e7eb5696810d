"""A kernel bound to its parameters: what lowering produces and a Program runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ._dispatch import Kernel, call, lookup
from .records import record

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["DTYPE_CODES", "KernelCall", "pack"]

DTYPE_CODES = {
    "f32": 0, "f64": 1, "f16": 2, "bf16": 3, "f8_e5m2": 4, "f8_e4m3": 5, "s8": 6, "u8": 7, "s32": 8, "s64": 9,
    "boolean": 10, "s4": 11, "u4": 12, "s16": 13, "u16": 14, "u32": 15, "u64": 16,
}  # fmt: skip
"""The numbers of ``enum gp_dtype``."""


@dataclass(frozen=True, slots=True, eq=False)
class KernelCall:
    """A kernel, its parameter block and how its work divides.

    Attributes
    ----------
    kernel : Kernel
    params : ndarray of uint8
        The parameter block; the KernelCall owns it, and it may hold addresses of what `keep` owns.
    ntasks : int
        Tasks 0 .. ntasks - 1 may run on different threads.
    scratch_nbytes : int
        Private scratch that each thread needs. Unit: bytes.
    keep : tuple
        Objects whose memory the parameter block points to.

    Notes
    -----
    Immutable; usable from any thread.
    """

    kernel: Kernel
    params: np.ndarray[Any, Any]
    ntasks: int
    scratch_nbytes: int = 0
    keep: tuple[Any, ...] = ()

    def __call__(self, *args: Any) -> None:
        """Run all tasks on contiguous arrays, in the kernel's argument order: for tests and benchmarks."""
        call(self.kernel, self.params, args, 0, self.ntasks, self.scratch_nbytes)


def pack(
    name: str,
    values: dict[str, Any],
    *,
    ntasks: int,
    scratch_nbytes: int = 0,
    tail: bytes = b"",
    keep: Sequence[Any] = (),
    isa: str | None = None,
) -> KernelCall:
    """A KernelCall of kernel `name` from a dict of fields.

    Parameters
    ----------
    name : str
        Kernel name without instruction set.
    values : dict
        Field of the kernel's C struct -> value, as `Record.pack` takes them; fields that are missing are zero.
    ntasks, scratch_nbytes, keep
        See `KernelCall`.
    tail : bytes
        What follows the fixed part of the block (a flexible array member).
    isa : str, optional
        Instruction set; the best one by default.
    """
    kernel = lookup(name, isa)
    block = np.frombuffer(record(kernel.params).pack(values) + tail, np.uint8)
    return KernelCall(kernel, block, ntasks, scratch_nbytes, tuple(keep))
