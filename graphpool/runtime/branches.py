"""Branches of which only a run tells which one it takes: each is a model, compiled when it is first taken."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from graphpool._dataclasses import dataclass
from graphpool.errors import InvalidShapeError, explain

from .host_room import RunBound
from .inner_models import InnerModels, inner_run

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .model import Model

__all__ = ["Branch", "Branches"]


@dataclass(frozen=True)
class Branch:
    """Inputs of a branch by name, which of the function's tensors they are, and the names of its outputs in order."""

    inputs: tuple[str, ...]
    places: tuple[int, ...]
    outputs: tuple[str, ...]


class Branches(InnerModels):
    """Runs one of two models.

    Parameters
    ----------
    name : str
        Of the node that it stands for.
    condition : int
        Which of the function's tensors says whether the second one runs.
    branches : sequence of Branch
    makers : sequence of callable
        Make the models.

    Attributes
    ----------
    condition : int
    branches : tuple of Branch
    """

    kind = "branch"
    is_prepared = False

    def __init__(
        self, name: str, condition: int, branches: Sequence[Branch], makers: Sequence[Callable[..., Model]]
    ) -> None:
        super().__init__(*makers)
        self._name, self.condition, self.branches = name, condition, tuple(branches)

    def __call__(self, inputs: list[Any], outputs: list[Any]) -> Sequence[Any]:
        """The results of the branch that is taken."""
        condition = np.asarray(inputs[self.condition])
        if condition.size != 1:
            raise InvalidShapeError(
                explain(f"condition of node {self._name!r}", accepted="one element", got=f"shape {condition.shape}")
            )
        taken = int(bool(condition.reshape(())))
        branch = self.branches[taken]
        arrays = {name: inputs[place] for name, place in zip(branch.inputs, branch.places, strict=True)}
        with inner_run():
            found = self.open_model(taken).run(arrays)
        return [found[name] for name in branch.outputs]

    def bound_run(self, shapes: Sequence[Any]) -> RunBound:
        """As of `InnerModels`; of both branches."""
        kept, run, opened, objects, programs, unbounded = 0, 0, 0, 0, 0, list[str]()
        for number, branch in enumerate(self.branches):
            given = {name: shapes[place] for name, place in zip(branch.inputs, branch.places, strict=True)}
            if None in given.values():
                unbounded.append(self._name)
                continue
            bound = self.open_model(number).bound_run(given)
            kept, run = kept + bound.kept_nbytes, max(run, bound.run_nbytes)
            opened += bound.opened_nbytes
            objects, programs = max(objects, bound.objects_nbytes), max(programs, bound.programs_nbytes)
            unbounded.extend(bound.unbounded)
        return RunBound(kept, run, tuple(unbounded), objects, opened_nbytes=opened, programs_nbytes=programs)
