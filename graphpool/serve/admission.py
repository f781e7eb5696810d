"""How many requests, and how many bytes of them, a service holds at once; each request's body is read within that."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

__all__ = ["MOST_HEAD_NBYTES", "Admission", "BodyTooLargeError", "ClientGoneError", "FullError", "read_body"]

MOST_HEAD_NBYTES = 1 << 16
"""Of a request's first line and headers, and of what lies between parts of a body."""


class FullError(Exception):
    """There is no room for another request now."""


class BodyTooLargeError(Exception):
    """A body is larger than the limit."""


class ClientGoneError(Exception):
    """The client went away before its request was complete."""


class Admission:
    """Counts requests that are being served.

    Parameters
    ----------
    most_requests : int
    most_nbytes : int
        Of all bodies together. Unit: bytes.

    Attributes
    ----------
    nrequests, nbytes : int
        At the moment.

    Notes
    -----
    Threads: of one event loop.
    """

    def __init__(self, most_requests: int, most_nbytes: int) -> None:
        self.most_requests, self.most_nbytes = most_requests, most_nbytes
        self.nrequests = self.nbytes = 0

    @contextmanager
    def admitted(self, nbytes: int) -> Iterator[None]:
        """Count a request with a body of up to so many bytes; raises `FullError`. Unit: bytes."""
        if self.nrequests >= self.most_requests:
            raise FullError(f"{self.nrequests} requests are being served")
        if self.nbytes + nbytes > self.most_nbytes:
            raise FullError(f"requests being served have {self.nbytes} of {self.most_nbytes} bytes")
        self.nrequests += 1
        self.nbytes += nbytes
        try:
            yield
        finally:
            self.nrequests -= 1
            self.nbytes -= nbytes


async def read_body(receive: Callable[[], Awaitable[Any]], most_nbytes: int) -> bytearray:
    """The body of a message; raises `BodyTooLargeError` as soon as there is more of it, or `ClientGoneError`."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        part = message.get("body", b"")
        if len(body) + len(part) > most_nbytes:
            raise BodyTooLargeError
        body += part
        if not message.get("more_body", False):
            return body
