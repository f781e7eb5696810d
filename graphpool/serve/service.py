"""The service: routes, limits, deadlines and errors around the queue."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import numpy as np
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import Response
from starlette.routing import Route

from .._version import __version__
from ..cache import compiled_partition_cache, constant_tensor_cache, primitive_cache
from ..errors import (
    InvalidArgumentError,
    MemoryTimeoutError,
    OutOfMemoryError,
    StateError,
    brief,
    check_count,
    explain,
)
from ..typing import parse_nbytes
from .admission import MOST_HEAD_NBYTES, Admission, BodyTooLargeError, ClientGoneError, FullError, read_body
from .batching import RunQueue, ServedModel
from .metrics import CONTENT_TYPE_LATEST, Metrics
from .page import PAGE, POLICY
from .protocol import NUMBER_NBYTES, VERSION, describe_model, describe_server, format_answer, parse_request

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping

    from starlette.requests import Request
    from starlette.types import ASGIApp

    from ..runtime import Model
    from .protocol import Answer, InferRequest

    Scope = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Any]]
    Send = Callable[[Any], Awaitable[None]]

__all__ = ["Service"]

_log = logging.getLogger("graphpool.error")
_MOST_MESSAGE = 1000
"""Characters of an error's text: names in it are a stranger's."""
_PART_NBYTES = 1 << 18
"""Of an answer, that are handed to the server at once."""
_SMALL_NBYTES = 1 << 14
"""Of a message that is parsed or written on the event loop, which takes up to 2 ms of it."""
_UNLIMITED = 1 << 62
_JSON_LENGTH = "inference-header-content-length"
_TIMEOUT = "x-request-timeout-ms"


class _RefusalError(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: int, text: str, retry_after_s: float | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.headers = {} if retry_after_s is None else {"Retry-After": str(max(math.ceil(retry_after_s), 1))}


class _Json(Response):
    """An answer as JSON of ASCII alone: texts of strangers need not be valid Unicode."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return json.dumps(content, separators=(",", ":"), allow_nan=False).encode("ascii")


class Service:
    """Models behind the Open Inference Protocol; parameters are those of `graphpool.serve.app`.

    Attributes
    ----------
    models : dict of str to ServedModel
    engine : Engine
    app : starlette.applications.Starlette
    deadline_s : float
        Unit: seconds.
    is_draining : bool
        Whether `drain` was called.

    Notes
    -----
    Ownership: of its threads, which end with the application's lifespan; models and engine are the caller's. Threads:
    of one event loop.
    """

    def __init__(
        self,
        models: Mapping[str, Model],
        *,
        join: str | None,
        join_delay_s: float,
        deadline_s: float,
        max_request: int | str,
        max_pending: int | str,
        max_requests: int,
        workers: int | None,
    ) -> None:
        self.models = {name: ServedModel(name, model, _join_of(model, join)) for name, model in models.items()}
        self.metadata = {name: describe_model(name, model.inputs, model.outputs) for name, model in models.items()}
        self.engine = _engine_of(models)
        if join is not None and all(served.most_rows == 1 for served in self.models.values()):
            raise InvalidArgumentError(
                explain("join", accepted="a dimension of a model, with a range", got=brief(join))
            )
        self.deadline_s = _positive("deadline_s", deadline_s)
        if not isinstance(join_delay_s, int | float) or not 0 <= join_delay_s < self.deadline_s:
            raise InvalidArgumentError(explain("join_delay_s", accepted="0 to deadline_s", got=brief(join_delay_s)))
        self._max_request_nbytes = parse_nbytes(max_request)
        pending_nbytes = max(parse_nbytes(max_pending), self._max_request_nbytes)
        self._admission = Admission(check_count("max_requests", max_requests), pending_nbytes)
        self._metrics = Metrics(self.engine, self._admission)
        nworkers = self.engine.threads if workers is None else check_count("workers", workers)
        self._runners = ThreadPoolExecutor(nworkers, "graphpool-serve")
        self._parser = ThreadPoolExecutor(1, "graphpool-parse")
        self._queue = RunQueue(self._runners, nworkers, join_delay_s, self.deadline_s, self._on_run)
        self._metrics.watch(self._queue)
        self._answers: Counter[str] = Counter()
        self.is_draining = False
        self.app = self._make_app()

    def _make_app(self) -> Starlette:
        places = ("/v2/models/{model}", "/v2/models/{model}/versions/{version}")
        routes = [
            *(Route(f"{place}/infer", _Infer(self), methods=["POST"]) for place in places),  # looked at in this order
            Route("/", self._page),
            Route("/live.json", self._live),
            Route("/metrics", self._scrape),
            Route("/v2", self._server_metadata),
            Route("/v2/health/live", self._is_live),
            Route("/v2/health/ready", self._is_ready),
        ]
        for place in places:
            routes += [Route(place, self._model_metadata), Route(f"{place}/ready", self._is_model_ready)]
        handlers: dict[Any, Any] = {HTTPException: _http_error}
        app = Starlette(
            routes=routes, exception_handlers=handlers, lifespan=self._lifespan, middleware=[Middleware(_HeadLimit)]
        )
        app.state.service = self
        return app

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            self.drain()
            await self._queue.drain()
            self._runners.shutdown()
            self._parser.shutdown()

    # ---- life

    def drain(self) -> None:
        """Take no more requests, and say so where readiness is asked for. Idempotent."""
        self.is_draining = True

    @property
    def is_idle(self) -> bool:
        """Whether no request is being served."""
        return not self._admission.nrequests

    def answers(self) -> dict[str, int]:
        """How many requests were answered with each status so far."""
        return dict(sorted(self._answers.items()))

    # ---- what is told

    async def _server_metadata(self, request: Request) -> Response:
        return _Json(describe_server(__version__))

    async def _is_live(self, request: Request) -> Response:
        return _Json({"live": True})

    async def _is_ready(self, request: Request) -> Response:
        return _Json({"ready": not self.is_draining}, 400 if self.is_draining else 200)

    async def _model_metadata(self, request: Request) -> Response:
        return _Json(self.metadata[self.find(request.path_params).name])

    async def _is_model_ready(self, request: Request) -> Response:
        served = self.find(request.path_params)
        is_ready = not self.is_draining and not served.model.is_closed
        return _Json({"name": served.name, "ready": is_ready}, 200 if is_ready else 400)

    async def _scrape(self, request: Request) -> Response:
        return Response(self._metrics.text(), media_type=CONTENT_TYPE_LATEST)

    async def _page(self, request: Request) -> Response:
        return Response(PAGE, media_type="text/html", headers={"Content-Security-Policy": POLICY})

    async def _live(self, request: Request) -> Response:
        return _Json(self.figures(), headers={"Cache-Control": "no-store"})

    def find(self, path: Mapping[str, str]) -> ServedModel:
        """The model that a path names; HTTPException for none."""
        served = self.models.get(path["model"])
        if served is None or path.get("version", VERSION) != VERSION:
            raise HTTPException(404, "no such model")
        return served

    def figures(self) -> dict[str, Any]:
        """What the page shows. Sizes are in bytes."""
        budget, engine = self.engine.budget, self.engine
        caches: dict[str, Any] = {
            "compiled partitions": compiled_partition_cache(),
            "primitives": primitive_cache(),
            f"constants of {engine.kind}:{engine.index}": constant_tensor_cache(engine.kind, engine.index),
        }
        kept = ("hits", "misses", "evictions", "entries", "nbytes")
        owners = Counter(served.model.name for served in self.models.values())
        served = {served.model.name: name for name, served in self.models.items() if owners[served.model.name] == 1}
        return {
            "is_ready": not self.is_draining,
            "budget": {
                "limit": budget.limit if budget.limit < _UNLIMITED else None,
                "in_use": budget.in_use,
                "peak": budget.peak,
                "leased": budget.pending,
                "holdings": budget.holdings(),
            },
            "service": {
                "requests": self._admission.nrequests,
                "most requests": self._admission.most_requests,
                "waiting": self._queue.nwaiting,
                "running": self._queue.nrunning,
            },
            "models": [
                {
                    "name": served.get(usage.name, usage.name),
                    "uses": usage.uses,
                    "constants": usage.constants_nbytes + usage.packed_nbytes,
                    "programs": usage.programs_nbytes + usage.forms_nbytes,
                    "arenas": usage.arenas_nbytes,
                    "results": usage.results_nbytes,
                    "is_busy": usage.is_busy,
                }
                for usage in engine.models()
            ],
            "caches": {name: {key: getattr(cache.stats(), key) for key in kept} for name, cache in caches.items()},
        }

    # ---- inference

    async def infer(self, served: ServedModel, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; it counts as being served until its answer is sent."""
        headers = {key.decode("latin-1"): value.decode("latin-1") for key, value in scope["headers"]}
        start_s, status = time.monotonic(), 499
        try:
            if self.is_draining:
                raise _RefusalError(503, "the service is stopping", 1.0)
            # its head has waited too: about as long as the end of a run waits to be noticed
            due_s = start_s + self._timeout_s(headers) - self._queue.lag_s
            most_nbytes = self._most_nbytes(headers)
            self._queue.refuse_late(served, due_s)
            with self._admission.admitted(most_nbytes):
                answer = await self._answer(served, headers, receive, start_s, due_s)
                async with asyncio.timeout_at(due_s):
                    if time.monotonic() > due_s:  # the loop was too busy to say so
                        raise TimeoutError
                    status = 200
                    await _send(answer, send)
        except ClientGoneError:
            pass
        except Exception as error:
            if status == 200:  # too late for another answer
                status = 499
                return
            refusal = self._refusal(error)
            status = refusal.status
            response = _Json({"error": str(refusal)[:_MOST_MESSAGE]}, status, refusal.headers)
            with suppress(TimeoutError):  # of a client that does not read
                async with asyncio.timeout(self.deadline_s):
                    await response(scope, receive, send)
        finally:
            self._answers[str(status)] += 1
            self._metrics.requests.labels(served.name, str(status)).inc()
            self._metrics.seconds.labels(served.name).observe(time.monotonic() - start_s)

    def _timeout_s(self, headers: Mapping[str, str]) -> float:
        text = headers.get(_TIMEOUT)
        if text is None:
            return self.deadline_s
        if not (text.isascii() and text.isdecimal() and 0 < len(text) < 16):
            raise InvalidArgumentError(explain(f"header {_TIMEOUT}", accepted="milliseconds", got=brief(text)))
        return min(int(text) / 1e3, self.deadline_s)

    def _most_nbytes(self, headers: Mapping[str, str]) -> int:
        """How long the body is at most, as its headers say."""
        if headers.get("content-encoding", "identity") != "identity":
            raise _RefusalError(415, "compressed requests are not accepted")
        text = headers.get("content-length")
        if text is None:
            return self._max_request_nbytes
        if not (text.isascii() and text.isdecimal() and len(text) < 20):
            raise InvalidArgumentError(explain("header content-length", accepted="bytes", got=brief(text)))
        if int(text) > self._max_request_nbytes:
            raise BodyTooLargeError
        return int(text)

    async def _answer(
        self, served: ServedModel, headers: Mapping[str, str], receive: Receive, start_s: float, due_s: float
    ) -> Answer:
        """The answer to a request, unless its client goes away."""
        gone: asyncio.Task[None] | None = None
        try:
            async with asyncio.timeout_at(due_s) as limit:
                body = await read_body(receive, self._most_nbytes(headers))
                gone = asyncio.ensure_future(_gone(receive, limit))
                return await self._work(served, body, headers.get(_JSON_LENGTH), start_s, limit)
        except TimeoutError:
            if gone is not None and gone.done():
                raise ClientGoneError from None
            raise
        finally:
            if gone is not None:
                gone.cancel()

    async def _work(
        self, served: ServedModel, body: bytearray, json_nbytes: str | None, start_s: float, limit: asyncio.Timeout
    ) -> Answer:
        model, due_s = served.model, limit.when()
        assert due_s is not None
        request: InferRequest = await self._parse(
            len(body), parse_request, body, json_nbytes, model.inputs, model.outputs
        )
        if request.timeout_s is not None:
            due_s = min(due_s, start_s + request.timeout_s - self._queue.lag_s)
            limit.reschedule(due_s)
        results = await self._queue.run(served, request.inputs, due_s)
        answer: Answer = await self._parse(_nbytes_of(results), format_answer, served.name, request, results)
        return answer

    async def _parse(self, nbytes: float, function: Callable[..., Any], *arguments: Any) -> Any:
        """The value of a function of the protocol: of a small message here, else in the thread that there is for it.

        A thread takes turns with this one to run Python, which costs more than a small message does.
        """
        if nbytes <= _SMALL_NBYTES:
            return function(*arguments)
        return await asyncio.get_running_loop().run_in_executor(self._parser, function, *arguments)

    def _on_run(self, served: ServedModel, nrequests: int, seconds: float) -> None:
        self._metrics.joined.labels(served.name).observe(nrequests)

    def _refusal(self, error: Exception) -> _RefusalError:
        """What a client is told of an error."""
        if isinstance(error, _RefusalError):
            return error
        if isinstance(error, FullError | MemoryTimeoutError | StateError):
            return _RefusalError(503, str(error), self._queue.expected_wait_s())
        if isinstance(error, TimeoutError):
            return _RefusalError(504, "the deadline of the request has passed")
        if isinstance(error, BodyTooLargeError):
            return _RefusalError(413, f"a request has up to {self._max_request_nbytes} bytes")
        if isinstance(error, OutOfMemoryError):
            waits, limit = self.engine.on_pressure == "wait", self.engine.budget.limit
            if waits or error.fields.get("requested", 0) > limit:  # it would not fit later either
                return _RefusalError(413, str(error))
            return _RefusalError(503, str(error), self._queue.expected_wait_s())
        if isinstance(error, InvalidArgumentError):
            return _RefusalError(400, str(error))
        _log.error("a request failed", exc_info=error)
        return _RefusalError(500, "the model failed; the service's log says why")


class _HeadLimit:
    """Refuses heads of requests that are longer than `graphpool serve` reads: other servers may have no bound."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and _head_nbytes(scope) > MOST_HEAD_NBYTES:
            answer = _Json({"error": f"a request has a head of up to {MOST_HEAD_NBYTES} bytes"}, 431)
            await answer(scope, receive, send)
        else:
            await self._app(scope, receive, send)


class _Infer:
    """Takes what the server hands over, so that the body is not read before it is known to be wanted."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._service.infer(self._service.find(scope["path_params"]), scope, receive, send)


def _head_nbytes(scope: Scope) -> int:
    """Of the path, the query and the headers, with what stands between and behind these."""
    headers = sum([len(name) + len(value) + len(b": \r\n") for name, value in scope["headers"]])
    return len(scope.get("raw_path") or scope["path"]) + len(scope.get("query_string", b"")) + headers


async def _gone(receive: Receive, limit: asyncio.Timeout) -> None:
    """Return when the client has gone, and let the time that its request has end then."""
    while (await receive())["type"] != "http.disconnect":
        pass
    with suppress(RuntimeError):  # it has ended
        limit.reschedule(0.0)


async def _send(answer: Answer, send: Send) -> None:
    """Hand an answer over in parts, each when the one before has left."""
    headers = [(b"content-length", str(answer.nbytes).encode())]
    if answer.json_nbytes is None:
        headers.append((b"content-type", b"application/json"))
    else:
        headers.append((b"content-type", b"application/octet-stream"))
        headers.append((_JSON_LENGTH.encode(), str(answer.json_nbytes).encode()))
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for part in answer.parts:
        for start in range(0, len(part), _PART_NBYTES):
            body = bytes(part[start : start + _PART_NBYTES])
            await send({"type": "http.response.body", "body": body, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _http_error(request: Request, error: HTTPException) -> Response:
    """An error of the framework, as the protocol writes errors."""
    return _Json({"error": error.detail}, error.status_code, error.headers)


def _nbytes_of(results: Mapping[str, Any]) -> float:
    """About how long results are as JSON; without end for texts and what is no array."""
    is_plain = all(isinstance(array, np.ndarray) and array.dtype != np.object_ for array in results.values())
    return NUMBER_NBYTES * sum(array.size for array in results.values()) if is_plain else math.inf


# ---- arguments


def _join_of(model: Model, join: str | None) -> str | None:
    """The dimension to join by, if the model has it at all."""
    has_it = any(join in (port.shape or ()) for port in model.inputs)
    return join if has_it else None


def _engine_of(models: Mapping[str, Model]) -> Any:
    engines = {id(model.engine): model.engine for model in models.values()}
    if len(engines) != 1:
        got = f"{len(engines)} engines of {len(models)} models"
        hint = "load them with engine=, so that they share a memory limit"
        raise InvalidArgumentError(explain("models to serve", accepted="models of one engine", got=got, hint=hint))
    return next(iter(engines.values()))


def _positive(name: str, value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
        raise InvalidArgumentError(explain(name, accepted="seconds above 0", got=brief(value)))
    return float(value)
