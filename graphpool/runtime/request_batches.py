"""Many requests to one model: side by side on its threads, or filled up to batches where a mask allows it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from graphpool._dataclasses import dataclass
from graphpool.errors import InvalidArgumentError, brief, explain

from ._model_run import InputPorts
from .model_port import describe_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ._stream import Stream
    from .executable import Executable
    from .model_port import ModelPort

    Arrays = dict[str, Any]

__all__ = ["Batch", "Padding", "run_side_by_side"]

_MOST_PADDED = 0.25
"""Share of a batch that may be padding: more costs more than a second batch."""


def run_side_by_side(run: Callable[[Any], Any], jobs: Sequence[Any], stream: Stream) -> list[Any]:
    """Results of `run` for each of the jobs, in order, each on one thread as long as there are several.

    Raises what the first job in order raises that fails, with its number as a note, after all have ended.
    """
    nthreads = min(stream.engine.threads, len(jobs))
    if nthreads < 2:
        return [_run_numbered(run, number, job) for number, job in enumerate(jobs)]
    from concurrent.futures import ThreadPoolExecutor  # most programs never need it

    with _busy(stream), ThreadPoolExecutor(nthreads, "graphpool-request") as executor:
        futures = [executor.submit(_run_numbered, run, number, job) for number, job in enumerate(jobs)]
    return [future.result() for future in futures]


def _run_numbered(run: Callable[[Any], Any], number: int, job: Any) -> Any:
    try:
        return run(job)
    except Exception as error:
        error.add_note(f"job {number} of run_many")
        raise


@contextmanager
def _busy(stream: Stream) -> Iterator[None]:
    """Keep the team of a stream, so that runs work on their own threads alone."""
    is_ours = stream.team is not None and stream.team.take()
    try:
        yield
    finally:
        if is_ours and stream.team is not None:
            stream.team.give_back()


@dataclass(frozen=True)
class Batch:
    """Requests that run as one: their numbers, how many rows each has, and how long each is."""

    numbers: tuple[int, ...]
    rows: tuple[int, ...]
    lengths: tuple[int, ...]


class Padding:
    """Makes batches of requests of different lengths, for models that have an input which says what counts.

    Parameters
    ----------
    inputs, outputs : sequence of ModelPort
    dims : mapping of str to tuple
        Names and numbers of the dimensions of each input, as the user has declared them.
    mask : str
        The input of shape (batch, length), both with names: zeros hide positions from the model.
    most_rows : int
        Of a batch.

    Raises
    ------
    InvalidArgumentError
        The mask is no such input, or the dimensions of another one do not say where rows and positions are.
    """

    def __init__(
        self,
        inputs: Sequence[ModelPort],
        outputs: Sequence[ModelPort],
        dims: Mapping[str, Any],
        mask: str,
        most_rows: int,
    ) -> None:
        if not isinstance(most_rows, (int, np.integer)) or most_rows < 1:
            raise InvalidArgumentError(explain("most_rows", accepted="an int of at least 1", got=brief(most_rows)))
        found = next((port for port in inputs if port.name == mask), None)
        own: tuple[Any, ...] = dims.get(mask) or ()
        if len(own) != 2 or own[0] == own[1] or not all(isinstance(dim, str) for dim in own):
            raise InvalidArgumentError(
                explain(
                    f"mask {mask!r}",
                    accepted="an input of two dimensions that have names, such as [batch, length]",
                    got="no input" if found is None else describe_port(found),
                )
            )
        self._rows, self._length = own
        self._inputs, self._outputs, self._mask, self._most_rows = inputs, outputs, mask, int(most_rows)
        self._ports, self._rows_names = InputPorts(inputs), {self._rows}
        for axes in filter(None, dims.values()):
            if self._rows not in axes and axes[0] != self._length:  # exporters name what nothing says to be equal apart
                self._rows_names.add(axes[0])
        self._dims: dict[str, Any] = {name: axes and self._with_rows(axes) for name, axes in dims.items()}
        for port in inputs:
            axes = self._dims[port.name]
            if axes is None or port.dtype is None or axes.count(self._rows) != 1 or None in axes:
                raise self._refusal(port, "all others numbers or names, which `shapes` gives")

    def _with_rows(self, dims: Sequence[Any]) -> tuple[Any, ...]:
        """Dimensions, of which those that are rows have the mask's name for them."""
        return tuple([self._rows if isinstance(dim, str) and dim in self._rows_names else dim for dim in dims])

    def _refusal(self, port: ModelPort, others: str) -> InvalidArgumentError:
        return InvalidArgumentError(
            explain(
                f"{port.name!r} of a model whose requests are padded",
                accepted=f"a tensor with one dimension {self._rows!r}, {others}",
                got=describe_port(port),
                hint="without a mask requests run side by side",
            )
        )

    def axes(self, form: Executable) -> dict[str, tuple[str | None, ...]]:
        """Which dimensions of each output are rows or positions, by their names; None for all others.

        What a model calls the dimensions of its outputs is no proof, and often a name of its own: what they are is
        taken from how the form computes them, and from names where it does not vary.

        Raises
        ------
        InvalidArgumentError
            An output has no rows, or a dimension that follows from rows or positions in another way.
        """
        return {port.name: self._axes_of(port, form) for port in self._outputs}

    def _axes_of(self, port: ModelPort, form: Executable) -> tuple[str | None, ...]:
        given = {(name, axis): dim for name, dims in self._dims.items() for axis, dim in enumerate(dims or ())}
        own, found = (self._rows, self._length), form.origins(port.name)
        if found is None:
            known = set(given.values())
            named = self._with_rows(port.shape or ())
            dims: list[Any] = [dim if isinstance(dim, int) or dim in known else None for dim in named]
        else:
            dims = [size if isinstance(size, int) else given.get(size) for size in found]
        if None in dims or dims.count(self._rows) != 1 or port.dtype is None:
            raise self._refusal(port, f"of which no other one follows from it or from {self._length!r}")
        return tuple([dim if dim in own else None for dim in dims])

    def checked(self, request: Mapping[str, Any]) -> Arrays:
        """The arrays of a request; raises as `Model.run`, before anything runs."""
        arrays = self._ports.take(request)
        rows, length = arrays[self._mask].shape
        for port in self._inputs:
            for dim, size in zip(self._dims[port.name], arrays[port.name].shape, strict=True):
                if size != {self._rows: rows, self._length: length}.get(dim, size):
                    raise InvalidArgumentError(
                        explain(
                            f"input {port.name!r}: {dim}",
                            accepted=f"that of {self._mask!r}: ({rows}, {length})",
                            got=arrays[port.name].shape,
                        )
                    )
        return arrays

    def batches(self, requests: Sequence[Arrays]) -> list[Batch]:
        """Requests of alike lengths together, the longest first."""
        shapes = [request[self._mask].shape for request in requests]
        alike: dict[Any, list[int]] = {}
        for number, request in enumerate(requests):
            alike.setdefault((0 in shapes[number], self._other_dims(request)), []).append(number)
        found = []
        for numbers in alike.values():
            numbers.sort(key=lambda k: (-shapes[k][1], k))
            first = 0
            for end in range(1, len(numbers) + 1):
                if end == len(numbers) or not self._fits(numbers[first : end + 1], shapes):
                    rows, lengths = zip(*[shapes[k] for k in numbers[first:end]], strict=True)
                    found.append(Batch(tuple(numbers[first:end]), rows, lengths))
                    first = end
        return found

    def _other_dims(self, request: Arrays) -> tuple[Any, ...]:
        """All sizes of a request but for rows and lengths."""
        own = (self._rows, self._length)
        return tuple(
            [
                tuple([n for dim, n in zip(self._dims[port.name], array.shape, strict=True) if dim not in own])
                for port, array in [(port, request[port.name]) for port in self._inputs]
            ]
        )

    def _fits(self, numbers: Sequence[int], shapes: Sequence[tuple[int, int]]) -> bool:
        """Whether requests make a batch; those without rows or positions run alone."""
        rows = sum(shapes[k][0] for k in numbers)
        positions = rows * shapes[numbers[0]][1]
        used = sum(shapes[k][0] * shapes[k][1] for k in numbers)
        is_full = all(0 not in shapes[k] for k in numbers)
        return is_full and rows <= self._most_rows and positions - used <= _MOST_PADDED * positions

    def join(self, requests: Sequence[Arrays], batch: Batch) -> Arrays:
        """The inputs of a batch of several: rows one under another, filled up with zeros."""
        sizes = {self._rows: sum(batch.rows), self._length: max(batch.lengths)}
        joined = {}
        for port in self._inputs:
            dims, first = self._dims[port.name], requests[batch.numbers[0]][port.name]
            shape = [sizes.get(dim, n) for dim, n in zip(dims, first.shape, strict=True)]
            whole = np.zeros(shape, first.dtype)
            start = 0
            for number, rows in zip(batch.numbers, batch.rows, strict=True):
                part = requests[number][port.name]
                whole[self._place(dims, start, rows, part.shape)] = part
                start += rows
            joined[port.name] = whole
        return joined

    def split(
        self, results: Arrays, batch: Batch, axes: Mapping[str, Sequence[str | None]]
    ) -> Iterator[tuple[int, Arrays]]:
        """Of each request of a batch its number, and its part of the outputs, of which `axes` tells; fresh arrays."""
        start = 0
        for number, rows, length in zip(batch.numbers, batch.rows, batch.lengths, strict=True):
            found = {}
            for name, dims in axes.items():
                whole = results[name]
                own = [length if dim == self._length else n for dim, n in zip(dims, whole.shape, strict=True)]
                found[name] = whole[self._place(dims, start, rows, own)].copy()
            start += rows
            yield number, found

    def _place(self, dims: Sequence[Any], start: int, rows: int, shape: Sequence[int]) -> tuple[slice, ...]:
        """Where the part of a request lies in the array of a batch."""
        return tuple(
            [
                slice(start, start + rows) if dim == self._rows else slice(0, n)
                for dim, n in zip(dims, shape, strict=True)
            ]
        )
