"""Host functions that run models of their own: bodies of loops, branches, what is behind extents that a run tells."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from graphpool.fork import Locked

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .executable import Executable
    from .host_room import RunBound
    from .model import Model

__all__ = ["InnerModels", "is_inner"]


class _Local(threading.local):
    is_inner = False  # what a thread has no value of costs an exception otherwise


_local = _Local()


def is_inner() -> bool:
    """Whether this thread runs an inner model: the run around it holds memory, so it must not wait for others'."""
    return _local.is_inner


class inner_run:  # noqa: N801 - a context manager; one of contextlib takes a microsecond more
    """Let this thread run inner models."""

    def __enter__(self) -> None:
        self._before, _local.is_inner = is_inner(), True

    def __exit__(self, *_: object) -> None:
        _local.is_inner = self._before


class InnerModels(Locked):
    """A host function that runs models, each compiled for any extents of its inputs.

    `makers` make them when they are first needed, with the options of `Model` that `attach` is given. `kind` is what
    reports call the function; `is_prepared` says whether the models are compiled with the form that they are part of,
    where their shapes are known then.

    Ownership: owns the models. Threads: safe.
    """

    kind = "inner"
    is_prepared = True

    def __init__(self, *makers: Callable[..., Model]) -> None:
        super().__init__()
        self._makers = makers
        self._models: list[Model | None] = [None] * len(makers)
        self._options: dict[str, Any] = {}

    def attach(self, **options: Any) -> None:
        """Say where, and with which options of `Model`, the models run."""
        self._options = options

    def open_model(self, number: int = 0) -> Model:
        """A model, open until `close`."""
        with self._lock:
            model = self._models[number]
            if model is None:
                model = self._models[number] = self._makers[number](**self._options)
            return model

    def __call__(self, inputs: list[Any], outputs: list[Any]) -> Sequence[Any]:
        """As of `HostFunction`: errors, memory and traces are those of the models."""
        raise NotImplementedError

    def bound_run(self, shapes: Sequence[Any]) -> RunBound:
        """What a call takes at most for tensors of these shapes, where None is not known. Compiles the models."""
        raise NotImplementedError

    def last_forms(self) -> list[Executable]:
        """The forms that were used last, and those inside them; none if nothing was compiled yet."""
        return [form for model in self._models if model is not None for form in model.last_forms()]

    def trim(self) -> int:
        """As `Model.trim`, of all models."""
        return sum([model.trim() for model in self._models if model is not None])

    def close(self) -> None:
        """Close the models. Idempotent."""
        with self._lock:
            models, self._models = self._models, [None] * len(self._makers)
        for model in models:
            if model is not None:
                model.close()
