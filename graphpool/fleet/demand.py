"""What a model asks of a fleet, by its predicted memory and the times of its runs."""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING

from ..errors import InvalidArgumentError, check_count, explain
from ..runtime import Model
from ..runtime.shape_ranges import RangePeak, ShapeRanges
from ..typing import parse_nbytes
from .checks import check_kind, check_rate, check_seconds
from .packing import Demand
from .simulator import Service
from .times import ServiceTimes, measure_times

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["predict_demand"]


def predict_demand(
    model: Model,
    rate_per_s: float,
    *,
    name: str | None = None,
    join: str | None = None,
    workers: int = 1,
    join_delay_s: float = 0.0,
    max_requests: int = 64,
    deadline_s: float = 30.0,
    max_pending: int | str = "256MiB",
    overhead_s: float | Sequence[float] = 0.0,
    times: ServiceTimes | None = None,
    seconds: float = 1.0,
) -> Demand:
    """What replicas of a model take, and how they serve.

    Parameters
    ----------
    model : Model
        Static, or with declared shapes.
    rate_per_s : float
        Rows a second; requests, where each has one row.
    name : str, optional
        Default: that of the model.
    join : str, optional
        The dimension by which a replica joins requests, up to the end of its declared range.
    workers, join_delay_s, max_requests, deadline_s, overhead_s
        As for `Service`.
    max_pending : int or str, default="256MiB"
        Most bytes of the requests that a replica holds.
    times : ServiceTimes, optional
        Default: measured here, with so many workers at once.
    seconds : float, default=1.0
        To spend on measuring each size. Unit: seconds.

    Returns
    -------
    demand : Demand
        ``nbytes`` is what a process takes at most: the model's predicted peak, a run more for each further worker,
        requests, and what this process has beside them now. ``shared_nbytes`` are its weights in mapped files, which
        there are where a packed store is set. ``processors`` are the threads of the engine, for each worker.

    Raises
    ------
    InvalidArgumentError
        A size is neither static nor declared, the dimension to join by has no range, or another argument is not what
        `Service` and `Demand` accept.

    Notes
    -----
    Threads: as `measure_times`. Cost: a compilation of the model's shapes, and the measurement.

    Examples
    --------
    >>> with gp.onnx.load("a.onnx", threads=1, shapes={"batch": (1, 8)}) as model:    # doctest: +SKIP
    ...     demand = gp.fleet.predict_demand(model, 200.0, join="batch")
    """
    check_kind("model", model, Model)
    check_rate("rate_per_s", rate_per_s)
    check_count("workers", workers)
    check_seconds("seconds", seconds)
    most_rows = 1 if join is None else _most_rows(model, join)
    with suppress(ImportError):
        import_module("graphpool.serve.service")  # replicas have them
        import_module("graphpool.serve.server").import_parts()
    peak = model.predict_peak()
    form = model.specialise(peak.shapes if isinstance(peak, RangePeak) else None)
    private = int(peak) + peak.fixed_nbytes + (workers - 1) * form.run_nbytes + parse_nbytes(max_pending)
    if times is None:
        times = measure_times(model, join, most_rows=most_rows, workers=workers, seconds=seconds)
    service = Service(
        times=times, workers=workers, most_rows=most_rows, join_delay_s=join_delay_s, max_requests=max_requests,
        deadline_s=deadline_s, overhead_s=overhead_s,
    )  # fmt: skip
    return Demand(
        name=name or model.name or "model", rate_per_s=rate_per_s, service=service, nbytes=private,
        shared_nbytes=peak.mapped_nbytes, processors=workers * model.engine.threads,
    )  # fmt: skip


def _most_rows(model: Model, join: str) -> int:
    span = ShapeRanges(model.declared_shapes or {}, model.inputs).spans.get(join)
    if span is None:
        hint = f"declare it when the model is loaded: shapes={{{join!r}: (1, 8)}}"
        raise InvalidArgumentError(explain(f"{model.name}: dimension {join!r} to join has no range", hint=hint))
    return span[1]
