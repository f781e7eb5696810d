"""A kernel bound to its parameters: what lowering produces and a Program runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from graphpool._dataclasses import dataclass
from graphpool._sizes import hint_of

from ._dispatch import Kernel, call, lookup
from .records import Block, enumeration, join_blocks, record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphpool._sizes import Real, Size

__all__ = ["DTYPE_CODES", "KernelCall", "pack"]

DTYPE_CODES = enumeration("gp_dtype", "GP_")
"""Element type -> its number in kernels."""


@dataclass(frozen=True, slots=True, eq=False)
class KernelCall:
    """A kernel, its parameter block and how its work divides.

    `params` is the parameter block, which may hold addresses of what `keep` owns. Tasks 0 .. `ntasks` - 1 may run on
    different threads, each with private scratch of `scratch_nbytes`. `patches` are the numbers of the block that vary:
    offset in bytes, letter for `struct`, and what each is. Immutable; usable from any thread.
    """

    kernel: Kernel
    params: np.ndarray[Any, Any]
    ntasks: int
    scratch_nbytes: int = 0
    keep: tuple[Any, ...] = ()
    patches: tuple[tuple[int, str, Size | Real], ...] = ()

    def with_hints(self) -> KernelCall:
        """The call for the sizes that there are now."""
        ntasks, scratch_nbytes = hint_of(self.ntasks), hint_of(self.scratch_nbytes)
        if ntasks is self.ntasks and scratch_nbytes is self.scratch_nbytes and not self.patches:
            return self
        return KernelCall(self.kernel, self.params, ntasks, scratch_nbytes, self.keep)

    def pinned(self) -> KernelCall:
        """The call for the sizes that there are now, which then hold for the whole compilation."""
        for number in (self.ntasks, self.scratch_nbytes, *(size for _, _, size in self.patches)):
            float(number)
        return self.with_hints()

    def __call__(self, *args: Any) -> int:
        """Run all tasks on contiguous arrays, in the kernel's argument order; its status: for tests and benchmarks."""
        return call(self.kernel, self.params, args, 0, self.ntasks, self.scratch_nbytes)


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
    """A KernelCall of kernel `name`: `values` by field of its C struct, as of `Record.pack`, and `tail` behind them."""
    kernel = lookup(name, isa)
    block = record(kernel.params).pack(values)
    if len(tail):
        block = join_blocks([block, tail])
    data, patches = (block.data, block.patches) if type(block) is Block else (block, ())
    return KernelCall(kernel, np.frombuffer(data, np.uint8), ntasks, scratch_nbytes, tuple(keep), patches)
