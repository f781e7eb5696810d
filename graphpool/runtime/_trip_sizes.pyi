from collections.abc import Sequence
from typing import Any

from graphpool._size_program import Numbers, SizeProgram, SizeTable

from ._program import Program
from ._variable import VariableProgram

MOST_EXTENT: int

class TripSizes:
    def __init__(
        self,
        program: SizeProgram,
        sources: Sequence[int],
        kept: Sequence[int],
        states: Sequence[tuple[tuple[int, ...], tuple[int, ...], int]],
        writers: Sequence[tuple[VariableProgram, Program, Numbers]],
        rooms: Sequence[tuple[SizeTable, Numbers]],
        nlisted: int,
    ) -> None: ...
    def begin(
        self, symbols: list[int], kept: list[int], shapes: list[tuple[int, ...]], listed: list[tuple[Any, int]]
    ) -> None: ...
    def set_capacity(self, number: int, nbytes: int) -> None: ...
    def shape(self, number: int) -> tuple[int, ...]: ...
    def needed_nbytes(self, number: int) -> int: ...
