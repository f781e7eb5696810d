"""What the budget is charged for a form: its programs, which others may run too, and its constants."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphpool.errors import OutOfMemoryError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ._compiled import CompiledPartition
    from ._result_arrays import ResultArrays
    from ._share import PrimitiveShare
    from .engine import Engine
    from .form_constants import FormConstants

__all__ = ["FormCharge", "lacking_nbytes"]


class FormCharge:
    """Shares of the primitives of compiled partitions, and the weights that are held, until `release`.

    A run takes so many bytes, `results` of `later_nbytes`: with less room for them nothing is charged.
    `programs_nbytes` is the memory of the programs. If a form is one of several, as `is_one` says, what is missing is
    added up before anything is refused, see `lacking_nbytes`: `refused` has the error then.

    Raises
    ------
    OutOfMemoryError
        The budget can never hold all of it at once; nothing is charged then.
    """

    def __init__(
        self,
        engine: Engine,
        name: str,
        compiled: Sequence[CompiledPartition],
        constants: FormConstants,
        results: ResultArrays,
        run_nbytes: int,
        later_nbytes: int,
        is_one: bool,
    ) -> None:
        self._engine, self._constants = engine, constants
        self._shares: list[PrimitiveShare] = []
        users, weights = engine.primitives, constants.contents
        used = [primitive for primitive in {c.primitive: None for c in compiled} if primitive is not None]
        self.programs_nbytes = sum(primitive.nbytes for primitive in used)
        self.refused: OutOfMemoryError | None = None
        self._used = used
        missing = sum(map(users.missing_nbytes, used)) + constants.missing_nbytes()

        def charge() -> None:
            engine.constants.hold(weights, holder=f"weights of {name}")
            try:
                for primitive in used:
                    self._shares.append(users.acquire(primitive, reserves=False))
            except BaseException:
                self.release()
                raise

        try:
            engine.room.check(run_nbytes + later_nbytes, f"a run of {name}")
            engine.queue.charge_form(charge, missing + run_nbytes, results, later_nbytes, holder=name)
        except OutOfMemoryError as error:
            if not is_one:
                raise
            self.refused = error.with_traceback(None)  # which has this object

    @property
    def shares(self) -> tuple[PrimitiveShare, ...]:
        """Of the primitives."""
        return tuple(self._shares)

    def release(self) -> None:
        """Give everything back."""
        if self.refused is not None:
            return
        shares, self._shares = self._shares, []
        for share in shares:
            share.leave(False)
        self._engine.constants.release(self._constants.contents)


def lacking_nbytes(charges: Iterable[FormCharge]) -> int:
    """What those of a model that were refused would have been charged together. Unit: bytes."""
    refused = [charge for charge in charges if charge.refused is not None]
    if not refused:
        return 0
    engine = refused[0]._engine
    programs = dict.fromkeys(primitive for charge in refused for primitive in charge._used)
    contents = [content for charge in refused for content in charge._constants.contents]
    return sum(map(engine.primitives.missing_nbytes, programs)) + engine.constants.missing_nbytes(contents)
