"""What the service counts for Prometheus, beside what its engine tells."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from ..export.prometheus import Collector

if TYPE_CHECKING:
    from ..runtime import Engine
    from .admission import Admission
    from .batching import RunQueue

__all__ = ["CONTENT_TYPE_LATEST", "Metrics"]

_JOINED = (1, 2, 4, 8, 16, 32, 64)


class Metrics:
    """Counters of one service.

    Parameters
    ----------
    engine : Engine
    admission : Admission

    Attributes
    ----------
    requests : Counter
        Answers by model and status.
    seconds : Histogram
        From a request's arrival to its answer. Unit: seconds.
    joined : Histogram
        Requests that ran as one.

    Notes
    -----
    Threads: safe.
    """

    def __init__(self, engine: Engine, admission: Admission) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(Collector(engine))
        names: dict[str, Any] = {"namespace": "graphpool", "subsystem": "serve", "registry": self._registry}
        self.requests = Counter("requests", "answers to requests", ["model", "code"], **names)
        self.seconds = Histogram("request_seconds", "from arrival to answer", ["model"], **names)
        self.joined = Histogram("joined_requests", "requests that ran as one", ["model"], buckets=_JOINED, **names)
        Gauge("admitted", "requests being served", **names).set_function(lambda: admission.nrequests)
        Gauge("admitted_bytes", "their bodies", **names).set_function(lambda: admission.nbytes)
        self._names = names

    def watch(self, queue: RunQueue) -> None:
        """Tell what waits and runs."""
        Gauge("waiting", "requests that wait for a worker", **self._names).set_function(lambda: queue.nwaiting)
        Gauge("running", "workers that run a model", **self._names).set_function(lambda: queue.nrunning)

    def text(self) -> bytes:
        """All of it, as Prometheus reads it."""
        found: bytes = generate_latest(self._registry)
        return found
