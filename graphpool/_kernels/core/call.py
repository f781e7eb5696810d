"""A kernel bound to its parameters: what lowering produces and a Program runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ._dispatch import Kernel, call, lookup
from .records import enumeration, record

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["DTYPE_CODES", "KernelCall", "pack"]

DTYPE_CODES = enumeration("gp_dtype", "GP_")
"""Element type -> its number in kernels."""


@dataclass(frozen=True, slots=True, eq=False)
class KernelCall:
    """A kernel, its parameter block and how its work divides.

    `params` is the parameter block, which may hold addresses of what `keep` owns. Tasks 0 .. `ntasks` - 1 may run on
    different threads, each with private scratch of `scratch_nbytes`. Immutable; usable from any thread.
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
    """A KernelCall of kernel `name`: `values` by field of its C struct, as of `Record.pack`, and `tail` behind them."""
    kernel = lookup(name, isa)
    block = np.frombuffer(record(kernel.params).pack(values) + tail, np.uint8)
    return KernelCall(kernel, block, ntasks, scratch_nbytes, tuple(keep))
