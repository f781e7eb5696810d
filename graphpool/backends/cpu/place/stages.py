"""Stages run by themselves, to see what they take: steps of a partition, rows of them side by side, on memory apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...._kernels.core._team import Team
from ....runtime import blas_threads
from ....runtime._program import ARENA, FIRST_EXTERNAL
from .link import link_stage

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from ....runtime import Program
    from ..lower.lowering import Lowering

__all__ = ["StageTimer"]

_ALIGNMENT = 64


class StageTimer:
    """Runs steps on threads and memory of its own, until it is closed; one stage at a time.

    What steps read is zeros: what they take does not depend on numbers, but for those that look for something.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._team = Team(threads)

    def __enter__(self) -> StageTimer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._team.close()

    def seconds(self, lowering: Lowering, nports: int, stage: Sequence[Sequence[int]], repeats: int) -> float:
        """The least time of several runs of a stage: other programs only add to it.

        Steps in a row of the stage wait for none of another row. The first run, which brings everything into the
        caches, does not count.
        """
        program = link_stage(lowering, nports + len(lowering.packed), stage, self.threads)
        program.trials = min(program.trials, 0)
        memory = _allocate(lowering, program, stage)
        addresses = [0 if array is None else _address(array) for array in memory]
        if program.uses_blas:
            blas_threads.enter()
        try:
            return min(program.time_runs(addresses, self._team, 1 + repeats)[1:]) / 1e9
        finally:
            if program.uses_blas:
                blas_threads.leave()


def _allocate(
    lowering: Lowering, program: Program, stage: Sequence[Sequence[int]]
) -> list[np.ndarray[tuple[int], np.dtype[np.uint8]] | None]:
    """Memory for each base of a program that its steps touch."""
    sizes = {ARENA: program.arena_nbytes}
    for step in (lowering.steps[number] for row in stage for number in row):
        for buffer in (value.buffer for value in step.args):
            if buffer.base >= FIRST_EXTERNAL:
                sizes[buffer.base] = buffer.nbytes
    # written, not merely reserved: pages that nobody wrote are all the same one
    return [np.full(sizes[base] + _ALIGNMENT, 0, np.uint8) if base in sizes else None for base in range(program.nbases)]


def _address(array: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> int:
    return -(-array.ctypes.data // _ALIGNMENT) * _ALIGNMENT
