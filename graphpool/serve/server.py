"""The application under uvicorn, with an end in order: not ready, what has come is answered, the sockets are closed."""

from __future__ import annotations

import math
import socket
from typing import TYPE_CHECKING, Any

import uvicorn

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from .service import Service

__all__ = ["import_parts", "serve"]

_MOST_CONNECTIONS = 1024
_OPTIONS: dict[str, Any] = {
    "log_level": "warning", "access_log": False, "ws": "none", "server_header": False, "lifespan": "on",
    "limit_concurrency": _MOST_CONNECTIONS,
}  # fmt: skip


def import_parts() -> None:
    """Import what `serve` would when it starts, such as uvloop where it is installed: to know what a replica takes."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        """Is not called."""

    config = uvicorn.Config(app, log_config=None, **_OPTIONS)
    config.load()
    config.get_loop_factory()


class _Server(uvicorn.Server):
    """Stops when nothing is being served any more; meanwhile health is answered."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._service.is_draining:
            self.should_exit = self.force_exit = True
        self._service.drain()  # the base would raise the signal again behind the end

    async def on_tick(self, counter: int) -> bool:
        if self._service.is_draining and self._service.is_idle:
            self.should_exit = True
        is_over: bool = await super().on_tick(counter)
        return is_over


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
