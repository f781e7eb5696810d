"""The data-dependent part of a model, whose shapes follow from what a run computes: a model of its own."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from graphpool.fork import Locked

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .executable import Executable
    from .model import Model

__all__ = ["DataDependentInput", "DataDependentPart", "in_data_dependent_part"]


_local = threading.local()


def in_data_dependent_part() -> bool:
    """Whether this thread runs one: the run before it holds memory, so it must not wait for that of others."""
    return getattr(_local, "in_data_dependent_part", False)


@dataclass(frozen=True)
class DataDependentInput:
    """An input of the part: a name, and how many tensors of the form before it is made of, by which function.

    `bound` takes their shapes, and returns the largest shape that the input may have; None if that is not known.
    """

    name: str
    ntensors: int = 1
    cut: Callable[..., Any] | None = None
    bound: Callable[..., tuple[int, ...] | None] | None = None


class DataDependentPart(Locked):
    """A host function that runs a model, which is compiled for any extents of its inputs.

    Of its results nothing is known before; they are fresh arrays. `open_model` makes the model when it is first needed.
    Ownership: owns the model. Threads: safe.
    """

    def __init__(self, inputs: Sequence[DataDependentInput], names: Sequence[str], make: Callable[..., Model]) -> None:
        super().__init__()
        self._inputs, self._names, self._make = inputs, names, make
        self._model: Model | None = None
        self._options: dict[str, Any] = {}
        self._is_closed = False

    def attach(self, **options: Any) -> None:
        """Say where, and with which options of `Model`, the model runs."""
        self._options = options

    @property
    def model(self) -> Model:
        """The model, open until `close`."""
        with self._lock:
            if self._model is None:
                self._model = self._make(**self._options)
            return self._model

    def __call__(self, inputs: list[Any], outputs: list[Any]) -> Sequence[Any]:
        """The results, for the tensors of all inputs one after another."""
        given = iter(inputs)
        arrays = {}
        for port in self._inputs:
            parts = [next(given) for _ in range(port.ntensors)]
            arrays[port.name] = parts[0] if port.cut is None else port.cut(*parts)
        before, _local.in_data_dependent_part = in_data_dependent_part(), True
        try:
            found = self.model.run(arrays)
        finally:
            _local.in_data_dependent_part = before
        return [found[name] for name in self._names]

    def nbytes(self, shapes: Sequence[Any]) -> tuple[int, int]:
        """See `Executable.data_dependent_nbytes`, for the shapes of the tensors; zeros where no bound is known."""
        bounds = self._largest_shapes(shapes)
        return (0, 0) if bounds is None else self.model.bounded_nbytes(bounds)

    def last_forms(self) -> list[Executable]:
        """The form that was used last, and those of its own part; none if nothing was compiled yet."""
        return [] if self._model is None else self._model.last_forms()

    def _largest_shapes(self, shapes: Sequence[Any]) -> Mapping[str, Any] | None:
        """The largest shapes of all inputs; None if one is not known."""
        given = iter(shapes)
        found: dict[str, Any] = {}
        for port in self._inputs:
            parts = [next(given) for _ in range(port.ntensors)]
            found[port.name] = parts[0] if port.bound is None else port.bound(*parts)
        return None if None in found.values() else found

    def close(self) -> None:
        """Close the model. Idempotent."""
        with self._lock:
            model, self._model = self._model, None
        if model is not None:
            model.close()
