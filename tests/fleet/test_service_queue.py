"""The simulator beside the queue of the service itself, which runs on a loop whose time is simulated too."""

from __future__ import annotations

import asyncio
import selectors
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("starlette")

from graphpool.fleet import Service, ServiceTimes, poisson_arrivals, simulate
from graphpool.serve import batching
from graphpool.serve.admission import FullError


class Loop(asyncio.SelectorEventLoop):
    """An event loop that does not sleep: time goes on to the next call that is due."""

    def __init__(self):
        self.now_s = 0.0
        super().__init__(selector := selectors.DefaultSelector())
        real = selector.select

        def select(timeout=None):
            found = real(0)
            if not found and timeout:
                self.now_s += timeout
            return found

        selector.select = select

    def time(self):
        return self.now_s


class Served:
    """A model that is not there: rows are joined, and `kind` is one for all."""

    def __init__(self, most_rows):
        self.name, self.most_rows, self.model = "model", most_rows, None

    def check(self, arrays):
        pass

    def kind(self, arrays):
        return None if self.most_rows == 1 else "kind"


def through_the_queue(monkeypatch, service, arrivals_s, rows):
    """Latencies of requests through `RunQueue`, whose runs take the mean times; NaN for those that were late."""
    loop = Loop()
    job = batching._Job
    monkeypatch.setattr(batching, "time", SimpleNamespace(monotonic=loop.time))
    monkeypatch.setattr(batching, "_Job", lambda *given: job(*given, since_s=loop.time()))

    class Executor:
        """Workers whose runs take the mean times."""

        def submit(self, work, loop, batch):
            arrays = [job.arrays for job in batch.jobs]
            loop.call_later(service.times.mean_s(sum(len(array["x"]) for array in arrays)), self.end, batch, arrays)

        def end(self, batch, found):
            if following := queue._follow(loop, batch, found):
                self.submit(None, loop, following)

    async def ask(served, arrival_s, nrows):
        await asyncio.sleep(arrival_s)
        try:
            async with asyncio.timeout_at(arrival_s + service.deadline_s):
                await queue.run(served, {"x": np.empty(nrows)}, arrival_s + service.deadline_s)
        except (TimeoutError, FullError):
            return float("nan")
        return loop.time() - arrival_s

    async def ask_all():
        served = Served(service.most_rows)
        found = await asyncio.gather(*(ask(served, *request) for request in zip(arrivals_s, rows, strict=True)))
        await queue.drain()
        return found

    queue = batching.RunQueue(Executor(), service.workers, service.join_delay_s, service.deadline_s, lambda *run: None)
    try:
        return loop.run_until_complete(ask_all())
    finally:
        loop.close()


@pytest.mark.parametrize("rate", [0.3, 0.9])
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("most_rows", [1, 4])
@pytest.mark.parametrize("join_delay_s", [0.0, 0.7])
@pytest.mark.parametrize("deadline_s", [1e6, 6.0])
def test_requests_take_as_long_as_in_the_service(monkeypatch, rate, workers, most_rows, join_delay_s, deadline_s):
    times = ServiceTimes({1: 1.0, 2: 1.3172, 4: 2.1393})  # no two runs end at once: their mean depends on the order
    service = Service(
        times=times, workers=workers, most_rows=most_rows, join_delay_s=join_delay_s, deadline_s=deadline_s,
        max_requests=10**9,
    )  # fmt: skip
    rng = np.random.default_rng(7)
    arrivals = poisson_arrivals(rate * workers, 400, seed=workers)
    rows = rng.integers(1, most_rows + 1, 400)
    expected = through_the_queue(monkeypatch, service, arrivals, rows)
    answers = simulate(service, arrivals, rows)
    found = np.where(answers.status == 200, answers.latency_s, np.nan)
    assert np.isnan(found).any() == (deadline_s < 100) or rate < 0.5
    assert len({round(latency, 6) for latency in answers.latency_s}) > 50
    np.testing.assert_allclose(found, expected, atol=1e-6)
