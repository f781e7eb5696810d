"""A model as a function of batches of rows, as engines for many machines call it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from math import prod
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import (
    GraphpoolError,
    InvalidArgumentError,
    InvalidDataTypeError,
    InvalidShapeError,
    brief,
    check_count,
    explain,
)
from .runtime import Model
from .runtime.model_port import describe_port
from .runtime.shape_ranges import ShapeRanges
from .worker_model import WorkerModel

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    import pandas

    from .runtime.model_port import ModelPort

    Arrays = dict[str, np.ndarray[Any, Any]]

__all__ = ["RowFunction"]

_MOST_TOLD = 8
"""Columns that an error tells of a row."""


class RowFunction:
    """A model that takes batches of any number of rows by columns, and gives columns.

    Batches are cut into pieces that the model knows: of its own batch size, or of its declared range; what is short is
    filled up with copies of the last row, whose results are dropped.

    Parameters
    ----------
    model : Model
        Its inputs and outputs have the rows as first dimension. Declare a range of it, or all shapes must be static.
    columns : mapping of str to str or sequence of str, optional
        Input -> column that has its rows, or columns of numbers that are its features. By default columns have the
        names of inputs.
    outputs : mapping of str to str, optional
        Output -> column that takes its rows, no column that is kept; outputs that are not named are left out. By
        default all of them, by their names.
    keep : sequence of str, optional
        Columns that are handed on as they are. By default all that are not read.
    store : str or Path, optional
        Folder of the worker's machine in which packed weights are kept once for all its processes; a process that runs
        the function uses it if it has no packed store yet. ``~`` is the home there.

    Attributes
    ----------
    least_rows, most_rows : int
        Of one run of the model; `most_rows` is 0 if nothing bounds them.

    Raises
    ------
    InvalidArgumentError
        The model has no rows, or not such inputs and outputs, or an output has the name of a column that is kept.

    Notes
    -----
    Pickles as the model does; a process that loads several pickles opens the model once, when it is first needed, and
    keeps a few models open that were used last. Ownership: elsewhere the model is the caller's. Threads: safe. Cost:
    beside the run a copy of what is not dense or of another type.

    Examples
    --------
    >>> import graphpool as gp
    >>> from graphpool.demo import model_path, test_images
    >>> with gp.onnx.load(model_path("digits_cnn"), shapes={"batch": (1, 8)}) as model:
    ...     predict = gp.rows.RowFunction(model, columns={"image": "pixels"})
    ...     predict({"pixels": test_images()[0][:20], "id": range(20)})["probabilities"].shape
    (20, 10)
    """

    def __init__(
        self,
        model: Model,
        *,
        columns: Mapping[str, str | Sequence[str]] | None = None,
        outputs: Mapping[str, str] | None = None,
        keep: Sequence[str] | None = None,
        store: str | Path | None = None,
    ) -> None:
        if not isinstance(model, Model):
            raise InvalidArgumentError(explain("model of rows", accepted="a graphpool.Model", got=type(model).__name__))
        if store is not None and not isinstance(store, str | PathLike):
            raise InvalidArgumentError(explain("store", accepted="the path of a folder", got=brief(store)))
        self._worker_model = WorkerModel(model, None if store is None else str(store))
        own = {port.name: port.name for port in model.inputs}
        chosen = own | _by_name("columns", columns, model.inputs)
        self._columns = {
            name: (column,) if isinstance(column, str) else _names(f"columns of input {name!r}", column)
            for name, column in chosen.items()
        }
        self._outputs = _by_name("outputs", outputs, model.outputs) or {port.name: port.name for port in model.outputs}
        if len(set(self._outputs.values())) < len(self._outputs):
            raise InvalidArgumentError(explain("columns of outputs", accepted="names that differ", got=self._outputs))
        self._name = model.name
        self._keep = None if keep is None else _names("keep", keep)
        self.kept(())
        self.least_rows, self.most_rows = _span_of_rows(model)

    @property
    def model(self) -> Model:
        """The model; in a process that has loaded a pickle its own."""
        return self._worker_model.model

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that are read, in the order of the model's inputs."""
        return tuple(column for columns in self._columns.values() for column in columns)

    @property
    def results(self) -> dict[str, ModelPort]:
        """Columns that are made, and the output that each has."""
        ports = {port.name: port for port in self.model.outputs}
        return {column: ports[name] for name, column in self._outputs.items()}

    def kept(self, names: Iterable[str]) -> list[str]:
        """Which columns of a batch are handed on as they are.

        Parameters
        ----------
        names : iterable of str
            The columns that it has.

        Returns
        -------
        names : list of str

        Raises
        ------
        InvalidArgumentError
            An output has the name of one of them.
        """
        found = [name for name in names if name not in self.columns] if self._keep is None else list(self._keep)
        taken = next((name for name in self._outputs.values() if name in found), None)
        if taken is not None:
            others = [name for name in found if name != taken]
            hint = f"name the output's column by outputs=, or leave that of the batch out, as by keep={others}"
            what = f"column {taken!r} is kept, and an output has that name"
            raise InvalidArgumentError(explain(what, accepted="outputs with columns of their own", hint=hint))
        return found

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Results for all rows, in order.

        Parameters
        ----------
        batch : mapping of str to sequence
            By column, all of one length: arrays whose first dimension is the rows, or sequences of rows. Numbers of
            other types are converted where NumPy calls that ``same_kind``.

        Returns
        -------
        results : dict of str to array
            Columns that are kept, and those of the outputs.

        Raises
        ------
        InvalidArgumentError
            A column is missing, columns differ in length, or an output has the name of one that is kept.
        InvalidDataTypeError, InvalidShapeError
            What is in a row does not fit the input; the message has the number of the row in the batch, and a note what
            its other columns hold.
        GraphpoolError
            As `Model.run`, with a note that says which rows.
        """
        if not hasattr(batch, "keys"):
            raise InvalidArgumentError(explain("batch", accepted="columns by name", got=type(batch).__name__))
        wanted = [*self.columns, *(self._keep or ())]
        missing = next((column for column in wanted if column not in batch), None)
        if missing is not None:
            accepted = f"columns {wanted}"
            raise InvalidArgumentError(explain(f"column {missing!r} is missing", accepted=accepted, got=[*batch]))
        kept_names = self.kept(batch)
        try:
            arrays = {port.name: _read(port, self._columns[port.name], batch) for port in self.model.inputs}
        except (InvalidDataTypeError, InvalidShapeError) as error:
            _tell_row(error, {name: batch[name] for name in batch if name not in self.columns})
            raise
        kept = {name: batch[name] for name in kept_names}
        read = {", ".join(map(str, self._columns[name])): rows for name, rows in arrays.items()}
        lengths = {name: len(rows) for name, rows in (read | kept).items()}
        if len(set(lengths.values())) != 1:
            raise InvalidArgumentError(explain("columns of a batch", accepted="as many rows in each", got=lengths))
        return kept | self._run(arrays, min(lengths.values()))

    def on_frame(self, frame: pandas.DataFrame) -> pandas.DataFrame:
        """The same for a frame: its index, the columns that are kept, and those of the outputs.

        Parameters
        ----------
        frame : pandas.DataFrame
            With columns of numbers, or of one array for each row.

        Returns
        -------
        results : pandas.DataFrame
            Results of several numbers a row are columns of arrays.

        Raises
        ------
        GraphpoolError
            As a call.
        """
        found = self({name: frame[name] for name in frame.columns})
        made = {name: _column_of(found[name]) for name in self.results}
        return frame[[name for name in found if name not in made]].assign(**made)

    def _run(self, arrays: Arrays, nrows: int) -> dict[str, Any]:
        pieces: list[dict[str, Any]] = []
        dtypes = {port.name: port.dtype.numpy for port in self.model.inputs if port.dtype is not None}
        for begin, end in self._cut(nrows):
            inputs = {
                name: _filled(array[begin:end], self.least_rows).astype(dtypes.get(name, object), copy=False)
                for name, array in arrays.items()  # converted by the piece: a batch may take many times a run
            }
            try:
                found = self.model.run(inputs)
            except Exception as error:
                error.add_note(f"rows {begin} to {end - 1} of the batch")
                raise
            pieces.append({name: found[name][: end - begin] for name in self._outputs})
        return {column: _joined([piece[name] for piece in pieces]) for name, column in self._outputs.items()}

    def _cut(self, nrows: int) -> Iterator[tuple[int, int]]:
        """Pieces of the rows; one without rows, filled up, if there are none, so that results have their shapes."""
        step = self.most_rows or max(nrows, 1)
        for begin in range(0, max(nrows, 1), step):
            yield begin, min(begin + step, nrows)

    def predict_nbytes(self, nrows: int) -> int:
        """What a worker takes at most for the model and a batch, beside its interpreter and libraries.

        Parameters
        ----------
        nrows : int
            Of a batch.

        Returns
        -------
        nbytes : int
            `Model.predict_peak`, weights in mapped files, and a batch with its results, twice, since engines copy them.
            Unit: bytes.

        Raises
        ------
        InvalidArgumentError
            The model has sizes that are neither static nor declared, or `nrows` is no count.
        """
        check_count("nrows", nrows, 0)
        peak = self.model.predict_peak()
        inputs, rows = self._inputs_nbytes(peak)
        results = int(peak) - int(self.model.predict_peak(outputs=False))
        least: int = self._worker_model.predict_nbytes()
        return least + 2 * -(-nrows * (inputs + results) // rows)

    def rows_within(self, nbytes: int, most: int) -> int:
        """Rows of a batch that is worth the call of an engine.

        Parameters
        ----------
        nbytes : int
            Most that its inputs take. Unit: bytes.
        most : int
            Most rows.

        Returns
        -------
        nrows : int
            Of whole runs of the model, and of one at least.

        Raises
        ------
        InvalidArgumentError
            The model has sizes that are neither static nor declared, or an argument is no count.
        """
        check_count("nbytes", nbytes)
        check_count("most", most)
        inputs, rows = self._inputs_nbytes(self.model.predict_peak())
        step = self.most_rows or 1
        return max(min(nbytes * rows // max(inputs, 1), most) // step, 1) * step

    def _inputs_nbytes(self, peak: Any) -> tuple[int, int]:
        """What the inputs of the largest run take, and its rows. Unit: bytes."""
        shapes = getattr(peak, "shapes", {port.name: port.shape for port in self.model.inputs})
        numbers = [(port.dtype, shapes[port.name]) for port in self.model.inputs if port.dtype is not None]
        nbytes = sum(prod(shape) * dtype.numpy.itemsize for dtype, shape in numbers)
        return nbytes, max(int(next(iter(shapes.values()))[0]), 1)

    def __repr__(self) -> str:
        return f"<RowFunction {self._name!r}: {', '.join(self.columns)} -> {', '.join(self._outputs.values())}>"


def _names(what: str, names: Any) -> tuple[str, ...]:
    if isinstance(names, str) or not hasattr(names, "__iter__"):
        raise InvalidArgumentError(explain(what, accepted="a sequence of names", got=brief(names)))
    return tuple(names)


def _by_name(what: str, chosen: Mapping[str, Any] | None, ports: Sequence[ModelPort]) -> dict[str, Any]:
    names = [port.name for port in ports]
    if chosen is None:
        return {}
    if not isinstance(chosen, Mapping):
        raise InvalidArgumentError(explain(what, accepted=f"a mapping of {names} to columns", got=brief(chosen)))
    unknown = next((name for name in chosen if name not in names), None)
    if unknown is not None:
        raise InvalidArgumentError(explain(f"{what}: {brief(unknown)}", accepted=f"names of the model: {names}"))
    return dict(chosen)


def _read(port: ModelPort, columns: tuple[str, ...], batch: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    """The rows of an input."""
    if len(columns) == 1:
        return _as_rows(port, columns[0], batch[columns[0]])
    if len({len(batch[column]) for column in columns}) != 1:
        got = {column: len(batch[column]) for column in columns}
        raise InvalidArgumentError(explain(f"columns of input {port.name!r}", accepted="as many rows in each", got=got))
    return _as_rows(port, ", ".join(columns), np.column_stack([np.asarray(batch[column]) for column in columns]))


def _span_of_rows(model: Model) -> tuple[int, int]:
    """Least and most rows of a run, 0 for no bound; raises unless all inputs and outputs have rows."""
    firsts = {port.name: port.shape[0] if port.shape else None for port in (*model.inputs, *model.outputs)}
    begin = firsts[model.inputs[0].name] if model.inputs else None
    odd = next((port for port in (*model.inputs, *model.outputs) if firsts[port.name] != begin), None)
    if begin is None or odd is not None:
        found = odd or (model.inputs[0] if model.inputs else None)
        accepted = "inputs and outputs with one first dimension, the rows: a name or a number"
        got = "no inputs" if found is None else f"{found.name!r} of {describe_port(found)}"
        raise InvalidArgumentError(explain(f"{model.name}: model of rows", accepted=accepted, got=got))
    if isinstance(begin, int):
        return begin, begin
    span = ShapeRanges(model.declared_shapes or {}, model.inputs).spans.get(begin)
    return (1, 0) if span is None else (max(span[0], 1), span[1])


def _as_rows(port: ModelPort, column: str, values: Any) -> np.ndarray[Any, Any]:
    """The rows of a column as one array, of the input's type or one that is converted to it."""
    array = np.asarray(values) if hasattr(values, "__array__") else None
    if port.dtype is None:
        return np.asarray(values, object)
    dtype = port.dtype.numpy
    if array is None or array.dtype == object:
        rows = [_as_row(port, column, number, value) for number, value in enumerate(values)]
        return np.stack(rows) if rows else np.empty(_no_rows(port), dtype)
    if not np.can_cast(array.dtype, dtype, "same_kind"):
        raise InvalidDataTypeError(
            explain(f"column {column!r} for input {port.name!r}", accepted=dtype, got=array.dtype), input_name=port.name
        )
    _check_row(port, column, 0, array.shape[1:])
    return array


def _as_row(port: ModelPort, column: str, number: int, value: Any) -> np.ndarray[Any, Any]:
    assert port.dtype is not None
    what = f"row {number} of column {column!r} for input {port.name!r}"
    try:
        row = np.asarray(_nested(value))
    except (TypeError, ValueError) as error:
        message = explain(what, accepted=describe_port(port), got=type(value).__name__)
        raise InvalidDataTypeError(message, input_name=port.name, row=number) from error
    if not np.can_cast(row.dtype, port.dtype.numpy, "same_kind"):
        message = explain(what, accepted=port.dtype.numpy, got=row.dtype)
        raise InvalidDataTypeError(message, input_name=port.name, row=number)
    _check_row(port, column, number, row.shape)
    return row.astype(port.dtype.numpy, copy=False)


def _tell_row(error: GraphpoolError, others: Mapping[str, Any]) -> None:
    """Note what numbers and texts the row has that does not fit: its place in a batch tells nobody which it is."""
    row = error.fields.get("row")
    if row is not None:
        values = {name: next(islice(column, row, None), None) for name, column in others.items()}
        plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in values.items()}
        told = [f"{name} = {brief(value)}" for name, value in plain.items() if isinstance(value, int | float | str)]
        if told:
            error.add_note(f"in that row: {', '.join(told[:_MOST_TOLD])}")


def _nested(value: Any) -> Any:
    """Arrays of arrays, as frames hold them, as lists of arrays."""
    return [_nested(item) for item in value] if isinstance(value, np.ndarray) and value.dtype == object else value


def _check_row(port: ModelPort, column: str, number: int, shape: tuple[int, ...]) -> None:
    dims = (port.shape or ())[1:]
    fits = len(dims) == len(shape) and all(
        size == dim for size, dim in zip(shape, dims, strict=True) if isinstance(dim, int)
    )
    if not fits:
        what = f"row {number} of column {column!r} for input {port.name!r}: shape"
        message = explain(what, accepted=["?" if dim is None else dim for dim in dims], got=list(shape))
        raise InvalidShapeError(message, input_name=port.name, row=number)


def _no_rows(port: ModelPort) -> tuple[int, ...]:
    return 0, *(dim if isinstance(dim, int) else 1 for dim in (port.shape or ())[1:])


def _filled(rows: np.ndarray[Any, Any], least: int) -> np.ndarray[Any, Any]:
    """At least so many rows: the last one again, zeros if there is none."""
    missing = least - len(rows)
    if missing <= 0:
        return rows
    last = rows[-1:] if len(rows) else np.zeros((1, *rows.shape[1:]), rows.dtype)
    return np.concatenate([rows, np.repeat(last, missing, axis=0)])


def _column_of(rows: np.ndarray[Any, Any]) -> Any:
    return rows if rows.ndim == 1 else list(rows)


def _joined(pieces: list[Any]) -> Any:
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
