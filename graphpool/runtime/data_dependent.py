"""The data-dependent part of a model, whose shapes follow from what a run computes: a model of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from graphpool._dataclasses import dataclass
from graphpool.errors import InvalidShapeError
from graphpool.log import compile_log

from ._trip_sizes import MOST_EXTENT
from .host_room import RunBound
from .inner_models import InnerModels, inner_run

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .model import Model

__all__ = ["DataDependentInput", "DataDependentPart", "as_extent"]


@dataclass(frozen=True)
class DataDependentInput:
    """An input of the part: a name, and how many tensors of the form before it is made of, by which function.

    `bound` takes their shapes, and returns the largest shape that the input may have; None if that is not known.
    """

    name: str
    ntensors: int = 1
    cut: Callable[..., Any] | None = None
    bound: Callable[..., tuple[int, ...] | None] | None = None


def as_extent(number: int) -> Any:
    """An array without elements of this extent; no extent is negative."""
    return np.empty((min(max(number, 0), MOST_EXTENT), 0), bool)


class DataDependentPart(InnerModels):
    """Runs a model, which is compiled for any extents of its inputs.

    Of its results nothing is known before; they are fresh arrays. `places` says which of the function's tensors those
    of all inputs one after another are.
    """

    kind = "data_dependent"

    def __init__(
        self,
        inputs: Sequence[DataDependentInput],
        places: Sequence[int],
        names: Sequence[str],
        make: Callable[..., Model],
    ) -> None:
        super().__init__(make)
        self._inputs, self._places, self._names = inputs, places, names

    @property
    def model(self) -> Model:
        """The model, open until `close`."""
        return self.open_model()

    def __call__(self, inputs: list[Any], outputs: list[Any]) -> Sequence[Any]:
        """The results, for the function's tensors."""
        given = iter([inputs[place] for place in self._places])
        arrays = {}
        for port in self._inputs:
            parts = [next(given) for _ in range(port.ntensors)]
            arrays[port.name] = parts[0] if port.cut is None else port.cut(*parts)
        with inner_run():
            found = self.model.run(arrays)
        return [found[name] for name in self._names]

    def bound_run(self, shapes: Sequence[Any]) -> RunBound:
        """As of `InnerModels`."""
        bounds = self._largest_shapes(shapes)
        if bounds is not None:
            try:
                return self.model.bound_run(bounds)
            except InvalidShapeError as error:  # extents that a run finds fit together, the largest ones need not
                compile_log.info("%s: no bound by the largest shapes: %s", self.model.name, error)
        return RunBound(unbounded=(self.model.name,))

    def _largest_shapes(self, shapes: Sequence[Any]) -> Mapping[str, Any] | None:
        """The largest shapes of all inputs; None if one is not known."""
        given = iter([shapes[place] for place in self._places])
        found: dict[str, Any] = {}
        for port in self._inputs:
            parts = [next(given) for _ in range(port.ntensors)]
            found[port.name] = parts[0] if port.bound is None else port.bound(*parts)
        return None if None in found.values() else found
