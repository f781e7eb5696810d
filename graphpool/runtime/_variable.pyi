from collections.abc import Sequence
from typing import Any

from graphpool._size_program import Numbers, SizeValues

from ._program import Program

class VariableProgram:
    def __init__(
        self,
        program: Program,
        steps: Sequence[tuple[int, int, int | None, Sequence[tuple[int, str, Any]]]],
        args: Sequence[tuple[int | None, int, int]],
        trips: Sequence[int] = (),
    ) -> None: ...
    def instance(self, values: SizeValues, offsets: Numbers, arena_nbytes: int) -> Program: ...
    @property
    def instance_nbytes(self) -> int: ...
    @property
    def program(self) -> Program: ...
