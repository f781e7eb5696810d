"""The application under uvicorn, with an end in order: not ready, what has come is answered, the sockets are closed."""

from __future__ import annotations

import math
import socket
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import uvicorn

from .admission import MOST_HEAD_NBYTES

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from .service import Service

__all__ = ["import_parts", "serve"]

_MOST_CONNECTIONS = 1024
_MOST_PIPELINED = 32
"""Requests of a connection that wait for the answer to the one before: some KiB each."""
_TICKS = 10
"""Of the server, a tenth of a second each, between two looks at its connections."""
_OPTIONS: dict[str, Any] = {
    "log_level": "warning", "access_log": False, "ws": "none", "server_header": False, "lifespan": "on",
    "limit_concurrency": _MOST_CONNECTIONS, "http": "h11",
}  # fmt: skip

with suppress(ImportError):
    import httptools
    from uvicorn.protocols.http.h11_impl import H11Protocol
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

    class _Protocol(HttpToolsProtocol):
        """Bounds heads, trailers and pipelined requests, of which uvicorn keeps any number with httptools.

        A request that asks for another protocol, such as HTTP/2, is answered in this one: httptools drops its body.
        """

        _nbytes = 0  # since something was complete
        _answering: Any = None  # the request that is answered now, or was last; `cycle` is the one that came last

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            if self._answering is not None:  # the base tells the last one alone
                self._answering.disconnected = True
                self._answering.message_event.set()

        def data_received(self, data: bytes) -> None:
            if self.transport.is_closing():
                return
            self._nbytes += len(data)
            self._unset_keepalive_if_required()
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                self._go_on_with_h11(data[upgrade.args[0] :])
            except httptools.HttpParserError:
                self._refuse("Invalid HTTP request received.")
            else:
                if self._nbytes > MOST_HEAD_NBYTES:
                    self._refuse(f"A request has a head of up to {MOST_HEAD_NBYTES} bytes.")

        def _refuse(self, text: str) -> None:
            """Close the connection, with an answer unless it would be read as a part of another one."""
            answer = self._answering
            if self.pipeline or (answer is not None and answer.response_started and not answer.response_complete):
                self.transport.close()
            else:
                self.send_400_response(text)

        def _should_upgrade(self) -> bool:
            return True  # of a request that asks for it: then the base makes nothing of the request

        def _go_on_with_h11(self, rest: bytes) -> None:
            """Hand the connection over with the head that was read, without what it asks for, and what follows it."""
            if self.cycle is not None and not self.cycle.response_complete:
                self._refuse("A request for another protocol waits for no other request.")
                return
            version = self.parser.get_http_version().encode()
            head = [b"%b %b HTTP/%b\r\n" % (self.parser.get_method(), self.url, version)]
            head += [b"%b: %b\r\n" % header for header in self.headers if header[0] != b"upgrade"]
            self.connections.discard(self)
            self.parser = None  # type: ignore[assignment]  # it refers to this object, as the base says at the end
            following = H11Protocol(self.config, self.server_state, self.app_state)
            following.connection_made(self.transport)
            self.transport.set_protocol(following)
            following.data_received(b"".join([*head, b"\r\n", rest]))

        def _start_asgi_task(self, cycle: Any, app: Any) -> None:
            self._answering = cycle
            super()._start_asgi_task(cycle, app)

        def on_headers_complete(self) -> None:
            self._nbytes = 0
            super().on_headers_complete()
            if len(self.pipeline) > _MOST_PIPELINED:
                raise ValueError("too many requests on a connection")  # ends the parser's loop

        def on_body(self, body: bytes) -> None:
            self._nbytes = 0
            super().on_body(body)

        def on_message_complete(self) -> None:
            self._nbytes = 0
            super().on_message_complete()

    _OPTIONS["http"] = _Protocol


def import_parts() -> None:
    """Import what `serve` would when it starts, such as uvloop where it is installed: to know what a replica takes."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        """Is not called."""

    config = uvicorn.Config(app, log_config=None, **_OPTIONS)
    config.load()
    config.get_loop_factory()


class _Server(uvicorn.Server):
    """Stops when nothing is being served any more; meanwhile health is answered.

    Connections on which no head of a request came for as long as an answer may take are dropped, and those whose client
    does not read its answer for twice as long: they count among those that may be open, and uvicorn keeps them
    for ever.
    """

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service
        self._silent: dict[
            Any, tuple[Any, float]
        ] = {}  # connection -> its request and whether that is over, since when

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._service.is_draining:
            self.should_exit = self.force_exit = True
        self._service.drain()  # the base would raise the signal again behind the end

    async def on_tick(self, counter: int) -> bool:
        if self._service.is_draining and self._service.is_idle:
            self.should_exit = True
        if counter % _TICKS == 0:
            self._drop_silent(time.monotonic())
        is_over: bool = await super().on_tick(counter)
        return is_over

    def _drop_silent(self, now_s: float) -> None:
        most_s = max(self._service.deadline_s, self.config.timeout_keep_alive)
        before, self._silent = self._silent, {}
        connections: list[Any] = [*self.server_state.connections]
        for connection in connections:
            request = connection.cycle
            is_over = request is None or request.response_complete
            last, since_s = before.get(connection, (None, now_s))
            if last != (request, is_over):
                since_s = now_s
            if now_s - since_s >= (most_s if is_over else 2 * most_s):
                connection.transport.abort()
            self._silent[connection] = (request, is_over), since_s


def serve(service: Service, host: str, port: int, on_start: Callable[[str], None]) -> dict[str, int]:
    """Serve until a signal; parameters and result are those of `graphpool.serve.run`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family, backlog=_MOST_CONNECTIONS)
    with listener:
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # asyncio does not, for sockets made elsewhere
        options = _OPTIONS | {"timeout_graceful_shutdown": math.ceil(service.deadline_s) + 1}
        name = f"[{host}]" if family == socket.AF_INET6 else host
        on_start(f"http://{name}:{listener.getsockname()[1]}")
        _Server(uvicorn.Config(service.app, **options), service).run([listener])
    return service.answers()
