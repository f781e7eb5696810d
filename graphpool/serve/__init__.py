"""Models behind the Open Inference Protocol (KServe's version 2, REST).

service.py    Service: routes, limits, deadlines and errors, on Starlette
protocol.py   bytes of a request -> arrays, results -> bytes of an answer
admission.py  how many requests and bytes are held at once; reads bodies within that
batching.py   ServedModel, RunQueue: runs in threads, joins requests of one kind
run_times.py  RunTimes: how long runs take, from those before
metrics.py    what Prometheus is told
page.py       the page that shows budget, models, arenas and caches
server.py     run(): the application under uvicorn, until a signal ends it

body -> Admission -> parse_request -> RunQueue -> Model.run -> format_answer -> parts of an answer

Serving needs the extra ``graphpool[serve]``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import InvalidArgumentError, brief, explain, naming_the_extra
from ..runtime import Model

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from starlette.applications import Starlette

__all__ = ["app", "run"]

_MOST_PORT = 65_535


def app(
    models: Model | Mapping[str, Model],
    *,
    join: str | None = None,
    join_delay_s: float = 0.0,
    deadline_s: float = 30.0,
    max_request: int | str = "64MiB",
    max_pending: int | str = "256MiB",
    max_requests: int = 64,
    workers: int | None = None,
) -> Starlette:
    """An ASGI application that serves models, for a server of your own.

    Parameters
    ----------
    models : Model or mapping of str to Model
        By the names under which they are served; one alone has its own name. All of one engine, best with
        ``on_pressure="wait"`` and a `pressure_timeout_s` of `deadline_s`.
    join : str, optional
        The first dimension of all inputs and outputs, such as ``"batch"``: requests whose shapes agree but for it run
        as one, up to the end of its declared range. Rows of the model must not see one another. Results may then differ
        in the last places from those of a run alone, as between kernels. Default: requests run one by one.
    join_delay_s : float, default=0.0
        How long a request waits at most for others while a worker is free. While none is, requests that wait are joined
        in any case. Unit: seconds.
    deadline_s : float, default=30.0
        Within which a request is answered, to the last byte, or refused; a client may ask for less. Unit: seconds.
    max_request : int or str, default="64MiB"
        Most bytes of a request's body; larger ones are refused before they are read.
    max_pending : int or str, default="256MiB"
        Most bytes of the bodies of all requests that are being served, at least `max_request`. One without
        ``Content-Length`` counts as the largest.
    max_requests : int, default=64
        Requests that wait or run; others are refused with 503 and ``Retry-After``.
    workers : int, optional
        Models that run at once. Default: the threads of the engine.

    Returns
    -------
    app : starlette.applications.Starlette
        Models and engine stay the caller's; threads end with the application's lifespan.

    Raises
    ------
    InvalidArgumentError
        No model, several engines, a port that the protocol has no type for, a dimension that cannot be joined, or
        another argument.
    UnsupportedError
        A package of the extra is not installed.

    Notes
    -----
    Threads: of one event loop, beside which models run. Cost: a request of up to 16 KiB passes one other thread, a
    larger one two; each takes some 100 microseconds.
    Source: the Open Inference Protocol, its extension for binary tensor data.

    Examples
    --------
    >>> with gp.onnx.load("model.onnx", shapes={"batch": (1, 8)}) as model:    # doctest: +SKIP
    ...     uvicorn.run(gp.serve.app(model, join="batch"))
    """
    named = {models.name or "model": models} if isinstance(models, Model) else models
    with naming_the_extra("serve"):
        from .service import Service
    if not hasattr(named, "items") or not named or not all(isinstance(model, Model) for model in named.values()):
        raise InvalidArgumentError(explain("models", accepted="a Model, or models by name", got=type(models).__name__))
    wrong = next((name for name in named if not isinstance(name, str) or not name or "/" in name), None)
    if wrong is not None:
        hint = "give it a name in a path of a URL: {'mine': model}"
        raise InvalidArgumentError(
            explain("name of a model", accepted="a text without '/', not empty", got=brief(wrong), hint=hint)
        )
    service = Service(
        named, join=join, join_delay_s=join_delay_s, deadline_s=deadline_s, max_request=max_request,
        max_pending=max_pending, max_requests=max_requests, workers=workers,
    )  # fmt: skip
    return service.app


def run(
    models: Model | Mapping[str, Model],
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    on_start: Callable[[str], None] = lambda address: None,
    **options: Any,
) -> dict[str, int]:
    """Serve models with uvicorn until SIGTERM or SIGINT; requests that have come are answered first.

    Parameters
    ----------
    models : Model or mapping of str to Model
    host : str, default="127.0.0.1"
        Address to listen at.
    port : int, default=8000
        0: one that is free.
    on_start : callable, optional
        Called with the address, such as ``http://127.0.0.1:8000``, once the service answers.
    **options : object
        As for `app`.

    Returns
    -------
    answers : dict of str to int
        How many requests were answered with each status.

    Raises
    ------
    InvalidArgumentError, UnsupportedError
        As `app`, or no port has this number.
    OSError
        The address cannot be had.

    Notes
    -----
    Threads: of the main thread, for the signals. A second signal ends it without waiting.
    """
    if not isinstance(port, int) or not 0 <= port <= _MOST_PORT:
        raise InvalidArgumentError(explain("port", accepted=f"an int from 0 to {_MOST_PORT}", got=brief(port)))
    service = app(models, **options).state.service
    with naming_the_extra("serve"):
        from .server import serve
    return serve(service, host, port, on_start)
