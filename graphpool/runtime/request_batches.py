"""Many requests to one model: side by side on its threads, or filled up to batches where a mask allows it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from graphpool._dataclasses import dataclass
from graphpool.errors import InvalidArgumentError, explain

from ._model_run import InputPorts
from .model_port import describe_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ._stream import Stream
    from .model_port import ModelPort

    Arrays = dict[str, Any]

__all__ = ["Padding", "run_side_by_side"]

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
class _Batch:
    """Requests that run as one: their numbers, how many rows each has, and how long each is."""

    numbers: tuple[int, ...]
    rows: tuple[int, ...]
    lengths: tuple[int, ...]


class Padding:
    """Makes batches of requests of different lengths, for models that have an input which says what counts.

    Parameters
    ----------
    inputs, outputs : sequence of ModelPort
    mask : str
        The input of shape (batch, length), both with names: zeros hide positions from the model.
    most_rows : int
        Of a batch.

    Raises
    ------
    InvalidArgumentError
        The mask is no such input, or the dimensions of another port do not say where rows and positions are.
    """

    def __init__(self, inputs: Sequence[ModelPort], outputs: Sequence[ModelPort], mask: str, most_rows: int) -> None:
        if not isinstance(most_rows, (int, np.integer)) or most_rows < 1:
            raise InvalidArgumentError(explain("most_rows", accepted="an int of at least 1", got=repr(most_rows)))
        found = next((port for port in inputs if port.name == mask), None)
        dims = () if found is None or found.shape is None else found.shape
        if len(dims) != 2 or dims[0] == dims[1] or not all(isinstance(dim, str) for dim in dims):
            raise InvalidArgumentError(
                explain(
                    f"mask {mask!r}",
                    accepted="an input of two dimensions that have names, such as [batch, length]",
                    got="no input" if found is None else describe_port(found),
                )
            )
        self._rows, self._length = dims
        self._inputs, self._outputs, self._mask, self._most_rows = inputs, outputs, mask, int(most_rows)
        self._ports = InputPorts(inputs)
        for port in (*inputs, *outputs):
            self._check(port)

    def _check(self, port: ModelPort) -> None:
        dims = port.shape
        if dims is None or port.dtype is None or dims.count(self._rows) != 1 or None in dims:
            raise InvalidArgumentError(
                explain(
                    f"{port.name!r} of a model whose requests are padded",
                    accepted=f"a tensor with one dimension {self._rows!r}, all others numbers or names",
                    got=describe_port(port),
                    hint="without a mask requests run side by side",
                )
            )

    def checked(self, request: Mapping[str, Any]) -> Arrays:
        """The arrays of a request; raises as `Model.run`, before anything runs."""
        arrays = self._ports.take(request)
        rows, length = arrays[self._mask].shape
        for port in self._inputs:
            for dim, size in zip(port.shape or (), arrays[port.name].shape, strict=True):
                if size != {self._rows: rows, self._length: length}.get(dim, size):
                    raise InvalidArgumentError(
                        explain(
                            f"input {port.name!r}: {dim}",
                            accepted=f"that of {self._mask!r}: ({rows}, {length})",
                            got=arrays[port.name].shape,
                        )
                    )
        return arrays

    def batches(self, requests: Sequence[Arrays]) -> list[_Batch]:
        """Requests of alike lengths together, the longest first."""
        shapes = [request[self._mask].shape for request in requests]
        alike: dict[Any, list[int]] = {}
        for number, request in enumerate(requests):
            alike.setdefault(self._other_dims(request), []).append(number)
        found = []
        for numbers in alike.values():
            numbers.sort(key=lambda k: (-shapes[k][1], k))
            first = 0
            for end in range(1, len(numbers) + 1):
                if end == len(numbers) or not self._fits(numbers[first : end + 1], shapes):
                    rows, lengths = zip(*[shapes[k] for k in numbers[first:end]], strict=True)
                    found.append(_Batch(tuple(numbers[first:end]), rows, lengths))
                    first = end
        return found

    def _other_dims(self, request: Arrays) -> tuple[Any, ...]:
        """All sizes of a request but for rows and lengths."""
        own = (self._rows, self._length)
        return tuple(
            [
                tuple([n for dim, n in zip(port.shape or (), request[port.name].shape, strict=True) if dim not in own])
                for port in self._inputs
            ]
        )

    def _fits(self, numbers: Sequence[int], shapes: Sequence[tuple[int, int]]) -> bool:
        rows = sum(shapes[k][0] for k in numbers)
        positions = rows * shapes[numbers[0]][1]
        used = sum(shapes[k][0] * shapes[k][1] for k in numbers)
        return rows <= self._most_rows and positions - used <= _MOST_PADDED * positions

    def join(self, requests: Sequence[Arrays], batch: _Batch) -> Arrays:
        """The inputs of a batch: rows one under another, filled up with zeros."""
        if len(batch.numbers) == 1:
            return requests[batch.numbers[0]]
        sizes = {self._rows: sum(batch.rows), self._length: max(batch.lengths)}
        joined = {}
        for port in self._inputs:
            dims, first = port.shape or (), requests[batch.numbers[0]][port.name]
            shape = [sizes.get(dim, n) for dim, n in zip(dims, first.shape, strict=True)]
            whole = np.zeros(shape, first.dtype)
            start = 0
            for number, rows in zip(batch.numbers, batch.rows, strict=True):
                part = requests[number][port.name]
                whole[self._place(port, start, rows, part.shape)] = part
                start += rows
            joined[port.name] = whole
        return joined

    def split(self, results: Arrays, batch: _Batch) -> Iterator[tuple[int, Arrays]]:
        """Of each request of a batch its number, and its part of the outputs: fresh arrays where there are several."""
        if len(batch.numbers) == 1:
            yield batch.numbers[0], results
            return
        start = 0
        for number, rows, length in zip(batch.numbers, batch.rows, batch.lengths, strict=True):
            found = {}
            for port in self._outputs:
                whole = results[port.name]
                sizes = {self._length: length}
                own = [sizes.get(dim, n) for dim, n in zip(port.shape or (), whole.shape, strict=True)]
                found[port.name] = whole[self._place(port, start, rows, own)].copy()
            start += rows
            yield number, found

    def _place(self, port: ModelPort, start: int, rows: int, shape: Sequence[int]) -> tuple[slice, ...]:
        """Where the part of a request lies in the array of a batch."""
        return tuple(
            [
                slice(start, start + rows) if dim == self._rows else slice(0, n)
                for dim, n in zip(port.shape or (), shape, strict=True)
            ]
        )
