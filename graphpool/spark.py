"""Models on Spark: results for the rows of columns, as a user-defined function.

Needs pandas; the extra ``graphpool[spark]`` has Spark too.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import GenericAlias
from typing import TYPE_CHECKING, Any

from .errors import InvalidArgumentError, UnsupportedError, brief, explain, naming_the_extra
from .rows import RowFunction
from .runtime import Model
from .typing import DataType
from .worker_model import DEFAULT_STORE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import pandas

    from .runtime.model_port import ModelPort

__all__ = ["predictor", "udf"]

_TYPES = {
    DataType.F16: "float", DataType.BF16: "float", DataType.F32: "float", DataType.F64: "double",
    DataType.S8: "tinyint", DataType.S16: "smallint", DataType.S32: "int", DataType.S64: "bigint",
    DataType.U8: "smallint", DataType.U16: "int", DataType.U32: "bigint", DataType.BOOLEAN: "boolean",
}  # fmt: skip
"""Spark's types that hold all values of a data type."""


def predictor(
    model: Model,
    output: str | None = None,
    *,
    columns: Mapping[str, str | Sequence[str]] | None = None,
    store: str | Path = DEFAULT_STORE,
) -> Predictor:
    """What `udf` gives to Spark: a function of an iterator over batches, for any other use too.

    Parameters
    ----------
    model : Model
        Inputs and outputs have the rows as first dimension, whose range is declared or which is static. A worker has
        one engine with the options of its engine. The files of its weights are read by each machine at the same path;
        weights that lie in memory are part of the function.
    output : str, optional
        Of the model; by default the only one.
    columns : mapping, optional
        For inputs of several columns, of which each is one feature: their names, in order.
    store : str or Path, default="~/.cache/graphpool/packed"
        Folder in which the workers of a machine keep packed weights once, unless `GRAPHPOOL_PACKED_STORE` there names
        one.

    Returns
    -------
    function : Predictor
        A callable: takes an iterator over batches, each a ``pandas.Series``, or a tuple of them in the order of the
        model's inputs and their columns, and gives one over series of results. It pickles.

    Raises
    ------
    InvalidArgumentError
        The model has no rows, or no such output.

    Notes
    -----
    Keep `model` open until all workers have the function. Threads: safe.
    """
    if not isinstance(model, Model):
        raise InvalidArgumentError(explain("model of rows", accepted="a graphpool.Model", got=type(model).__name__))
    names = [port.name for port in model.outputs]
    if output is None and len(names) == 1:
        output = names[0]
    if output not in names:
        raise InvalidArgumentError(explain("output", accepted=f"one of {names}", got=brief(output)))
    return Predictor(RowFunction(model, columns=columns, outputs={output: output}, keep=(), store=store))


def udf(
    model: Model,
    output: str | None = None,
    *,
    columns: Mapping[str, str | Sequence[str]] | None = None,
    store: str | Path = DEFAULT_STORE,
) -> Any:
    """A function of columns that Spark runs on its workers, batch by batch.

    Parameters
    ----------
    model, output, columns, store : optional
        As for `predictor`.

    Returns
    -------
    udf : function of Spark
        Takes the columns of the model's inputs in their order: numbers, or arrays of them with one or more dimensions.
        Its type is that of the output: a number, or an array for each further dimension.

    Raises
    ------
    InvalidArgumentError
        As `predictor`.
    UnsupportedError
        Spark is not installed, or has no type for the output.

    Notes
    -----
    A batch is what ``spark.sql.execution.arrow.maxRecordsPerBatch`` says, and is cut into pieces of the model's range.
    A worker of Spark is one process for each core: give its engine one thread, and Spark's
    ``spark.executor.pyspark.memory`` the model's predicted peak and 200 MiB. A row that does not fit fails its task
    with an error that has its number in the batch. Source: Spark's pandas functions from an iterator to an iterator.

    Examples
    --------
    >>> score = gp.spark.udf(model)                                    # doctest: +SKIP
    >>> frame.withColumn("score", score("age", "income"))              # doctest: +SKIP
    """
    function = predictor(model, output, columns=columns, store=store)
    with naming_the_extra("spark"):
        import pandas
        from pyspark.sql.functions import pandas_udf

    def run(batches: Any) -> Any:
        return function(batches)

    one: Any = pandas.Series
    given = one if len(function.columns) == 1 else GenericAlias(tuple, (one, ...))
    hints = {"batches": GenericAlias(Iterator, given), "return": GenericAlias(Iterator, one)}
    run.__annotations__ = hints  # by which Spark knows what to hand over
    (port,) = function.results.values()
    return pandas_udf(run, _type_of(port))


class Predictor:
    """A function of an iterator over batches; made by `predictor`."""

    def __init__(self, function: RowFunction) -> None:
        self._function = function

    @property
    def columns(self) -> tuple[str, ...]:
        return self._function.columns

    @property
    def results(self) -> dict[str, ModelPort]:
        return self._function.results

    def __call__(self, batches: Iterator[Any]) -> Iterator[pandas.Series]:
        """Results for each batch."""
        with naming_the_extra("spark"):
            import pandas
        for batch in batches:
            series = batch if isinstance(batch, tuple) else (batch,)
            (rows,) = self._function(dict(zip(self._function.columns, series, strict=True))).values()
            yield pandas.Series(rows if rows.ndim == 1 else list(map(_plain, rows)), index=series[0].index)


def _plain(row: Any) -> Any:
    """Rows of more than one dimension as lists, which Arrow can take."""
    return row if row.ndim == 1 else row.tolist()


def _type_of(port: ModelPort) -> str:
    if port.is_text:
        name = "string"
    elif port.dtype not in _TYPES:
        accepted = ", ".join(str(dtype) for dtype in _TYPES)
        raise UnsupportedError(explain(f"output {port.name!r} on Spark", accepted=accepted, got=str(port.dtype)))
    else:
        name = _TYPES[port.dtype]
    rank = len(port.shape or ())
    return "array<" * (rank - 1) + name + ">" * (rank - 1)
