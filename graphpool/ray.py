"""Models on Ray: batches of datasets by actors that declare what they take, and replicas that serve.

Needs the extra ``graphpool[ray]``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .errors import InvalidArgumentError, brief, check_count, explain, naming_the_extra
from .rows import RowFunction
from .runtime import Engine
from .typing import parse_nbytes
from .worker_model import DEFAULT_STORE, WorkerModel

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import ray.data
    from ray import serve

    from .runtime import Model

__all__ = ["deployment", "map_batches"]

_BATCH_NBYTES, _MOST_ROWS = 64 * 2**20, 256
"""Of a batch, unless the caller says; one run of the model may take more."""


class _Worker:
    """What an actor of Ray Data has: the function, from the object store of its machine."""

    def __init__(self, function: list[ray.ObjectRef]) -> None:
        import ray

        self._function: RowFunction = ray.get(function[0])
        self._function.model  # noqa: B018 - opened now: Ray hands rows to actors that are ready

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        return self._function(batch)


def _measure_worker() -> int:
    """Resident memory of a worker process that has loaded what an actor needs, but no model. Unit: bytes."""
    from . import onnx  # noqa: F401 - as loading a model does

    with Engine() as engine:
        return engine.process_report().fixed_nbytes


def _worker_nbytes() -> int:
    """What a process of the cluster takes that has no model. Unit: bytes.

    One with an environment of its own, which ends behind the call: others have the heaps of the tasks that they ran.
    """
    import ray

    measure = ray.remote(max_calls=1)(_measure_worker)
    own = {"env_vars": {"GRAPHPOOL_MEASURES_WORKER": "1"}}
    return int(ray.get(measure.options(num_cpus=0, runtime_env=own).remote()))


def _span_of_workers(workers: Any) -> tuple[int, int]:
    """The least and the most."""
    span = tuple(workers) if isinstance(workers, tuple | list) else (workers, workers)
    is_right = len(span) == 2 and all(isinstance(count, int) and not isinstance(count, bool) for count in span)
    if not is_right or not 1 <= span[0] <= span[1]:
        accepted = "an int of at least 1, or the least and the most such as (1, 4)"
        raise InvalidArgumentError(explain("workers", accepted=accepted, got=brief(workers)))
    return span[0], span[1]


def map_batches(
    dataset: ray.data.Dataset,
    model: Model,
    *,
    batch_size: int | None = None,
    columns: Mapping[str, str | Sequence[str]] | None = None,
    outputs: Mapping[str, str] | None = None,
    keep: Sequence[str] | None = None,
    workers: int | tuple[int, int] | None = None,
    store: str | Path = DEFAULT_STORE,
    **options: Any,
) -> ray.data.Dataset:
    """A dataset with the model's results for each row, computed by actors.

    Parameters
    ----------
    dataset : ray.data.Dataset
    model : Model
        Inputs and outputs have the rows as first dimension, whose range is declared or which is static. Actors have
        engines with the options of its engine. The files of its weights are read by each machine at the same path;
        weights that lie in memory go through Ray's object store, once for each machine.
    batch_size : int, optional
        Rows that an actor takes at a time; by default as many runs of the model as have inputs of 64 MiB, and at most
        256 rows. What Ray does for a batch takes tens of milliseconds: a thousandth of a hundred images, a tenth of
        one. Blocks of so many rows are handed on without a copy.
    columns, outputs, keep : optional
        Which columns are read, made and handed on: see `graphpool.rows.RowFunction`.
    workers : int or (int, int), optional
        Actors, or the least and the most; by default as many as the processors of the cluster have room for, from one.
        Leave processors for what reads the dataset: actors keep theirs, and Ray would wait for ever.
    store : str or Path, default="~/.cache/graphpool/packed"
        Folder in which the actors of a machine keep packed weights once, unless `GRAPHPOOL_PACKED_STORE` there names
        one.
    **options : object
        Of ``Dataset.map_batches``, such as ``max_restarts``.

    Returns
    -------
    dataset : ray.data.Dataset
        Lazy. In the order of the rows where Ray's ``preserve_order`` is set.

    Raises
    ------
    InvalidArgumentError
        The model has no rows, sizes that are not declared, or no such inputs and outputs; no rows of a batch, or no
        workers.
    UnsupportedError
        Ray is not installed.

    Notes
    -----
    An actor declares as ``num_cpus`` the threads of the model's engine, and as ``memory`` what it takes at most: the
    model's predicted peak with its mapped weights, the batch, what a worker process of this cluster takes before, for
    which one is asked, and the blocks that Ray assembles. So Ray starts no more actors than a machine has memory for.
    An actor that dies is started again by Ray, and its batch run anew. A row that does not fit ends the computation
    with an error that has its number. The model may be closed after this call. Cost: one short task on the cluster.

    Examples
    --------
    >>> images = ray.data.read_images("photos", size=(224, 224))    # doctest: +SKIP
    >>> with gp.onnx.load("resnet50.onnx", threads=1, shapes={"batch": (1, 16)}) as model:    # doctest: +SKIP
    ...     results = gp.ray.map_batches(images, model, columns={"data": "image"})
    """
    with naming_the_extra("ray"):
        import ray
        from ray.data import ActorPoolStrategy, DataContext
    function = RowFunction(model, columns=columns, outputs=outputs, keep=keep, store=store)
    nrows = function.rows_within(_BATCH_NBYTES, _MOST_ROWS) if batch_size is None else batch_size
    check_count("batch_size", nrows)
    nthreads = model.engine.threads
    span = None if workers is None else _span_of_workers(workers)
    fixed_nbytes = _worker_nbytes()
    block_nbytes = DataContext.get_current().target_max_block_size or 0
    least, most = span or (1, max(int(ray.cluster_resources().get("CPU", 1)) // nthreads, 1))
    return dataset.map_batches(
        _Worker, fn_constructor_args=[[ray.put(function)]], batch_size=nrows, batch_format="numpy",
        compute=ActorPoolStrategy(min_size=least, max_size=most), num_cpus=nthreads,
        memory=function.predict_nbytes(nrows) + fixed_nbytes + block_nbytes, **options,
    )  # fmt: skip


def deployment(
    model: Model,
    *,
    join: str | None = None,
    store: str | Path = DEFAULT_STORE,
    max_pending: int | str = "256MiB",
    app_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> serve.Deployment:
    """A deployment of Ray Serve whose replicas answer the Open Inference Protocol, as `graphpool.serve.app` does.

    Parameters
    ----------
    model : Model
        Static, or with declared shapes. Replicas have engines with the options of its engine.
    join : str, optional
        The dimension by which a replica joins requests, up to the end of its declared range.
    store : str or Path, default="~/.cache/graphpool/packed"
        Folder in which the replicas of a machine keep packed weights once, unless `GRAPHPOOL_PACKED_STORE` there names
        one.
    max_pending : int or str, default="256MiB"
        Most bytes of the requests that a replica holds.
    app_options : mapping, optional
        Further ones of `graphpool.serve.app`, such as ``deadline_s``.
    **options : object
        Of ``ray.serve.deployment``, such as ``num_replicas`` or ``autoscaling_config``.

    Returns
    -------
    deployment : ray.serve.Deployment
        To be bound and run: ``serve.run(deployment.bind())``.

    Raises
    ------
    InvalidArgumentError
        The model has sizes that are neither static nor declared, or an option of the application is wrong.
    UnsupportedError
        Ray is not installed.

    Notes
    -----
    A replica runs the model for one request, or what was joined, at a time. It declares as ``num_cpus`` the threads of
    the model's engine, and as ``memory`` what it takes at most: the model's predicted peak with its mapped weights,
    requests, and what a worker process of this cluster takes before. The model may be closed after this call. Cost: one
    short task on the cluster, which is started if need be.

    Examples
    --------
    >>> with gp.onnx.load("resnet50.onnx", threads=1, shapes={"batch": (1, 16)}) as model:    # doctest: +SKIP
    ...     serve.run(gp.ray.deployment(model, join="batch", num_replicas=2).bind())
    """
    with naming_the_extra("ray"):
        from ray import serve
    from .serve import app

    options_of_app = {"join": join, "max_pending": max_pending, "workers": 1, **(app_options or {})}
    portable = WorkerModel(model, str(store))
    app(model, **options_of_app)  # raises here what it would raise in each replica

    def build() -> Any:
        return app(portable.model, **options_of_app)

    actor_options = {
        "num_cpus": model.engine.threads,
        "memory": portable.predict_nbytes() + parse_nbytes(max_pending) + _worker_nbytes(),
        **options.pop("ray_actor_options", {}),
    }
    return serve.deployment(serve.ingress(build)(), ray_actor_options=actor_options, **options)
