"""Models on Dask: results for the rows of a frame, partition by partition, on workers that have the memory.

Needs the extra ``graphpool[dask]``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .errors import naming_the_extra
from .rows import RowFunction
from .worker_model import DEFAULT_STORE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import dask.dataframe

    from .runtime import Model
    from .runtime.model_port import ModelPort

__all__ = ["map_partitions", "resources"]


def map_partitions(
    frame: dask.dataframe.DataFrame,
    model: Model,
    *,
    columns: Mapping[str, str | Sequence[str]] | None = None,
    outputs: Mapping[str, str] | None = None,
    keep: Sequence[str] | None = None,
    store: str | Path = DEFAULT_STORE,
) -> dask.dataframe.DataFrame:
    """A frame with the model's results for each row.

    Parameters
    ----------
    frame : dask.dataframe.DataFrame
        Columns of numbers, or of arrays, one a row.
    model : Model
        Inputs and outputs have the rows as first dimension, whose range is declared or which is static. A worker has
        one engine with the options of its engine. The files of its weights are read by each machine at the same path;
        weights that lie in memory are sent to each worker.
    columns, outputs, keep : optional
        Which columns are read, made and handed on: see `graphpool.rows.RowFunction`. Results of several numbers a row
        are columns of arrays.
    store : str or Path, default="~/.cache/graphpool/packed"
        Folder in which the workers of a machine keep packed weights once, unless `GRAPHPOOL_PACKED_STORE` there names
        one.

    Returns
    -------
    frame : dask.dataframe.DataFrame
        Lazy, with the index and partitions of `frame`.

    Raises
    ------
    InvalidArgumentError
        The model has no rows, or no such inputs and outputs, or an output has the name of a column that is kept.
    UnsupportedError
        Dask is not installed.

    Notes
    -----
    A partition is cut into pieces of the model's range. A worker that dies is replaced by Dask, which runs its
    partitions anew. A row that does not fit fails its partition with an error that has its number. Keep `model` open
    until all is computed: the scheduler may ask for its pickle. Compute with `resources`, so that a worker takes no
    more partitions at once than it has memory for.

    Examples
    --------
    >>> scored = gp.dask.map_partitions(frame, model, columns={"X": ["age", "income"]})   # doctest: +SKIP
    >>> client.compute(scored, resources=gp.dask.resources(model))                        # doctest: +SKIP
    """
    with naming_the_extra("dask"):
        from dask import delayed
    function = RowFunction(model, columns=columns, outputs=outputs, keep=keep, store=store)
    empty = frame._meta
    made = {name: _dtype_of(port) for name, port in function.results.items()}
    columns_made = {name: empty.index.to_series().astype(dtype) for name, dtype in made.items()}
    meta = empty[function.kept(empty.columns)].assign(**columns_made)
    shared = delayed(function, pure=True)  # one object of the graph, not a part of each task
    return frame.map_partitions(_run, shared, meta=meta, enforce_metadata=False)


def resources(model: Model, nrows: int | None = None) -> dict[str, int]:
    """What a partition takes, for workers that were started with ``--resources MEMORY=...``.

    Parameters
    ----------
    model : Model
    nrows : int, optional
        Most rows of a partition; by default the most of a run.

    Returns
    -------
    resources : dict of str to int
        ``MEMORY``: the predicted peak with mapped weights, and rows with their results, twice. Unit: bytes.

    Raises
    ------
    InvalidArgumentError
        The model has sizes that are neither static nor declared, or `nrows` is no count.
    """
    function = RowFunction(model)
    return {"MEMORY": function.predict_nbytes(function.most_rows if nrows is None else nrows)}


def _run(frame: Any, function: RowFunction) -> Any:
    return function.on_frame(frame)


def _dtype_of(port: ModelPort) -> Any:
    """Of the column of an output."""
    is_number = port.dtype is not None and port.shape is not None and len(port.shape) == 1
    return port.dtype.numpy if is_number and port.dtype is not None else object
