"""A kernel bound to its parameters: what lowering produces and a Program runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from graphpool._sizes import hint_of

from ._dispatch import Kernel, call, lookup
from .records import Block, join_blocks, record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphpool._sizes import Size

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
    patches : tuple of (int, int, Size)
        Numbers of the parameter block that vary: offset, size in bytes, and what each is.

    Notes
    -----
    Immutable; usable from any thread.
    """

    kernel: Kernel
    params: np.ndarray[Any, Any]
    ntasks: int
    scratch_nbytes: int = 0
    keep: tuple[Any, ...] = ()
    patches: tuple[tuple[int, int, Size], ...] = ()

    def with_hints(self) -> KernelCall:
        """The call for the sizes that there are now."""
        ntasks, scratch_nbytes = hint_of(self.ntasks), hint_of(self.scratch_nbytes)
        if ntasks is self.ntasks and scratch_nbytes is self.scratch_nbytes and not self.patches:
            return self
        return KernelCall(self.kernel, self.params, ntasks, scratch_nbytes, self.keep)

    def pinned(self) -> KernelCall:
        """The call for the sizes that there are now, which then hold for the whole compilation."""
        for number in (self.ntasks, self.scratch_nbytes, *(size for _, _, size in self.patches)):
            int(number)
        return self.with_hints()

    def __call__(self, *args: Any) -> None:
        """Run all tasks on contiguous arrays, in the kernel's argument order: for tests and benchmarks."""
        call(self.kernel, self.params, args, 0, self.ntasks, self.scratch_nbytes)


def pack(
    name: str,
    values: dict[str, Any],
    *,
    ntasks: int,
    scratch_nbytes: int = 0,
    tail: Any = b"",
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
    block = join_blocks([record(kernel.params).pack(values), tail])
    patches = block.patches if isinstance(block, Block) else ()
    data = np.frombuffer(block.data if isinstance(block, Block) else block, np.uint8)
    return KernelCall(kernel, data, ntasks, scratch_nbytes, tuple(keep), patches)
