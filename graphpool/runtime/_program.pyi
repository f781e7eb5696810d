from collections.abc import Sequence
from typing import Any, Final

from graphpool._kernels.core._team import Team
from graphpool._kernels.core.call import KernelCall
from graphpool.schedule.control import ListedCall

from ._row_loops import RowLoops
from ._streams import StreamLists

ARENA: int
LITERALS: int
FIRST_EXTERNAL: int

def aligned(nbytes: int) -> int: ...
def count_threads(calls: Sequence[KernelCall], threads: int, streams: int = 0) -> int: ...
def count_scratch(nbytes: int, nthreads: int) -> int: ...

class Program:
    trials: int
    def __init__(
        self,
        steps: Sequence[tuple[KernelCall, Sequence[tuple[int, int]]]],
        arena_nbytes: int,
        nexternals: int,
        literals: bytes | bytearray | memoryview = b"",
        threads: int = 1,
        guards: Sequence[tuple[int, bool] | None] = (),
        scratch: Sequence[int] = (),
        streams: Sequence[Sequence[ListedCall]] = (),
        loops: Sequence[tuple[int, int, int, Sequence[int]]] = (),
    ) -> None: ...
    def describe(self) -> list[tuple[Any, ...]]: ...
    def time_runs(self, addresses: Sequence[int], team: Team, repeats: int) -> list[int]: ...
    streams: Final[StreamLists | None]
    loops: Final[RowLoops]
    serial: Final[int]
    nbases: Final[int]
    nthreads: Final[int]
    arena_nbytes: Final[int]
    @property
    def nbytes(self) -> int: ...
    calls: Final[tuple[KernelCall, ...]]
    uses_blas: Final[bool]
    def __len__(self) -> int: ...
