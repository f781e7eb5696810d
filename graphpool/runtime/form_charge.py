"""What the budget is charged for a form: its programs, which others may run too, and its constants."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ._compiled import CompiledPartition
    from ._result_arrays import ResultArrays
    from ._share import PrimitiveShare
    from .engine import Engine
    from .form_constants import FormConstants

__all__ = ["FormCharge"]


class FormCharge:
    """Shares of the primitives of compiled partitions, and the weights that are held, until `release`.

    A run takes so many bytes, `results` of `later_nbytes`: with less room for them nothing is charged.
    `programs_nbytes` is the memory of the programs.

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
    ) -> None:
        self._engine, self._constants = engine, constants
        self._shares: list[PrimitiveShare] = []
        users, weights = engine.primitives, constants.contents
        used = [primitive for primitive in {c.primitive: None for c in compiled} if primitive is not None]
        self.programs_nbytes = sum(primitive.nbytes for primitive in used)
        missing = sum(map(users.missing_nbytes, used)) + constants.missing_nbytes()

        def charge() -> None:
            engine.constants.hold(weights, holder=f"weights of {name}")
            try:
                for primitive in used:
                    self._shares.append(users.acquire(primitive, reserves=False))
            except BaseException:
                self.release()
                raise

        engine.queue.charge_form(charge, missing + run_nbytes, results, later_nbytes, holder=name)

    @property
    def shares(self) -> tuple[PrimitiveShare, ...]:
        """Of the primitives."""
        return tuple(self._shares)

    def release(self) -> None:
        """Give everything back."""
        shares, self._shares = self._shares, []
        for share in shares:
            share.leave(False)
        self._engine.constants.release(self._constants.contents)
