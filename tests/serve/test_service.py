"""The service over real connections: answers, refusals, limits, deadlines, joined requests, clients that leave."""

import asyncio
import json
import random
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest

import graphpool as gp
from graphpool import demo

pytest.importorskip("onnx")
pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")

import uvicorn
from uvicorn.server import ServerState

from graphpool.serve import batching
from graphpool.serve import server as server_module
from graphpool.serve import service as service_module
from graphpool.serve.run_times import RunTimes
from graphpool.serve.server import _Server
from tests.helpers.serving import hold, image_request, probabilities, running

INFER = "/v2/models/cnn/infer"
IMAGES = demo.test_images()[0]


@contextmanager
def digits(shapes=None, names=("cnn",), limit=None, **options):
    """A service of models of digits."""
    with ExitStack() as stack:
        engine = gp.Engine(threads=2, memory_limit=limit, on_pressure="wait", pressure_timeout_s=1.0)
        stack.enter_context(engine)
        model = stack.enter_context(gp.onnx.load(demo.model_path("digits_cnn"), engine=engine, shapes=shapes))
        yield stack.enter_context(running(dict.fromkeys(names, model), **options))


def wait_for(condition):
    """Until it holds; at most a minute."""
    end_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.01)


def error_of(body):
    return json.loads(body)["error"]


# ---- what the protocol says


def test_health_metadata_and_errors():
    with digits(names=("cnn", "other")) as service:
        assert service.ask("GET", "/v2/health/live")[0] == 200
        assert service.ask("GET", "/v2/health/ready")[0] == 200
        assert service.ask("GET", "/v2/models/cnn/ready")[0] == 200
        assert json.loads(service.ask("GET", "/v2")[2])["extensions"] == ["binary_tensor_data"]
        for path in ("/v2/models/other", "/v2/models/other/versions/1"):
            status, _, body = service.ask("GET", path)
            assert (status, json.loads(body)["name"]) == (200, "other")
        for path in ("/v2/models/none", "/v2/models/cnn/versions/2", "/v2/models/..%2fx", "/v3"):
            status, _, body = service.ask("GET", path)
            assert status == 404
            assert error_of(body)
        assert service.ask("GET", INFER)[0] == 405
        service.service.drain()
        assert service.ask("GET", "/v2/health/live")[0] == 200
        assert service.ask("GET", "/v2/health/ready")[0] == 400
        assert service.ask("GET", "/v2/models/cnn/ready")[0] == 400
        status, headers, _ = service.ask("POST", INFER, image_request(IMAGES[:1]))
        assert status == 503
        assert int(headers["retry-after"]) >= 1


def test_answers_are_those_of_the_model_and_nothing_is_kept():
    with digits() as service:
        model = service.service.models["cnn"].model
        expected = model.run({"image": IMAGES[:3]})["probabilities"]
        kept = service.budget.kept
        for _ in range(6):
            status, _, body = service.ask("POST", INFER, image_request(IMAGES[:3]))
            assert status == 200
            np.testing.assert_array_equal(probabilities(body), expected)
        wait_for(lambda: service.service.is_idle)
        wait_for(lambda: service.budget.kept == kept)
        assert service.budget.pending == 0


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{", "no JSON"),
        (b'{"inputs": []}', "input 'image' is missing"),
        (image_request(IMAGES[:1]).replace(b"FP32", b"INT8"), "datatype of 'image'"),
        (image_request(IMAGES[:9]), "1 to 8, as declared"),
        (image_request(IMAGES[:1])[:-1] + b', "outputs": [{"name": "\\ud800"}]}', "name of an output"),
    ],
    ids=["JSON", "name", "type", "shape", "no Unicode"],
)
def test_what_does_not_fit_is_refused_with_the_reason(body, words):
    with digits({"batch": (1, 8)}) as service:
        status, _, answer = service.ask("POST", INFER, body)
        assert status == 400
        assert words in error_of(answer)


def test_metrics_tell_requests_and_memory():
    with digits() as service:
        service.ask("POST", INFER, image_request(IMAGES[:1]))
        service.ask("POST", INFER, b"")
        text = service.ask("GET", "/metrics")[2].decode()
    assert 'graphpool_serve_requests_total{code="200",model="cnn"} 1.0' in text
    assert 'graphpool_serve_requests_total{code="400",model="cnn"} 1.0' in text
    assert "graphpool_serve_waiting 0.0" in text
    assert "graphpool_budget_peak_bytes" in text


# ---- limits


def test_large_bodies_are_refused_before_they_are_sent():
    with digits(max_request=1000) as service, socket.create_connection(("127.0.0.1", service.port), 60) as client:
        client.sendall(f"POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000000\r\n\r\n".encode())
        assert client.recv(1000).startswith(b"HTTP/1.1 413 ")
        assert service.service.is_idle


def test_bodies_without_a_length_are_read_up_to_the_limit():
    with digits(max_request=100_000) as service:
        sent = image_request(IMAGES[:1])
        assert service.ask("POST", INFER, iter([sent[:50], sent[50:]]))[0] == 200
        with socket.create_connection(("127.0.0.1", service.port), 60) as client:
            client.sendall(f"POST {INFER} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
            client.sendall(b"19000\r\n" + b"x" * 0x19000 + b"\r\n")
            assert client.recv(1000).startswith(b"HTTP/1.1 413 ")


def ask_without_a_server(messages, headers, is_stuck=False, **options):
    """Status, and the service, of an application that is handed these messages; `is_stuck`: nobody takes the body."""

    async def ask(app):
        sent = []

        async def receive():
            if not messages:
                await asyncio.sleep(3600)
            return messages.pop()

        async def send(message):
            sent.append(message)
            if is_stuck and message.get("body"):
                await asyncio.sleep(3600)

        scope = {"type": "http", "method": "POST", "path": INFER, "headers": headers}
        await app(scope, receive, send)
        return sent[0]["status"]

    with gp.onnx.load(demo.model_path("digits_cnn"), threads=1) as model:
        app = gp.serve.app({"cnn": model}, **options)
        return asyncio.run(ask(app)), app.state.service


def test_no_more_is_read_than_the_headers_said():
    """Other servers than uvicorn may hand over what they like."""
    messages = [{"type": "http.request", "body": b"x" * 60, "more_body": True}] * 3
    status, _ = ask_without_a_server(messages, [(b"content-length", b"100")])
    assert status == 413
    assert len(messages) == 1


@pytest.mark.parametrize("headers", [[(b"x", b"y" * 70_000)], [(b"n", b"v")] * 11_000])
def test_long_heads_are_refused_whatever_the_server_takes(headers):
    messages = [{"type": "http.request", "body": image_request(IMAGES[:1])}]
    assert ask_without_a_server(messages, headers)[0] == 431
    assert messages
    assert ask_without_a_server(messages, headers[:1] if len(headers) > 1 else [(b"x", b"y" * 60_000)])[0] == 200


def test_a_client_that_does_not_read_is_left_at_the_deadline():
    messages = [{"type": "http.request", "body": image_request(IMAGES[:1])}]
    status, service = ask_without_a_server(messages, [], is_stuck=True, deadline_s=2)
    assert status == 200
    assert service.is_idle


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Content-Encoding": "gzip"}, 415),
        ({"Inference-Header-Content-Length": "9999999"}, 400),
        ({"X-Request-Timeout-Ms": "soon"}, 400),
    ],
)
def test_headers_that_are_refused(headers, status):
    with digits() as service:
        assert service.ask("POST", INFER, image_request(IMAGES[:1]), headers)[0] == status


@pytest.mark.parametrize("option", ["max_requests", "max_pending"])
def test_a_full_service_says_when_to_come_again(option):
    body = image_request(IMAGES[:1])
    limits = (
        {"max_requests": 2} if option == "max_requests" else {"max_request": len(body), "max_pending": 2 * len(body)}
    )
    with digits(**limits) as service, ThreadPoolExecutor(2) as clients:
        held = hold(service, "cnn")
        waiting = [clients.submit(service.ask, "POST", INFER, body) for _ in range(2)]
        wait_for(lambda: len(held.runs) == 2)
        status, headers, answer = service.ask("POST", INFER, body)
        assert status == 503
        assert int(headers["retry-after"]) >= 1
        assert "requests" in error_of(answer)
        held.gate.set()
        assert [future.result()[0] for future in waiting] == [200, 200]
        assert service.ask("POST", INFER, body)[0] == 200


def test_what_can_never_fit_the_memory_limit_is_too_large():
    with digits(limit="900KiB") as service:
        assert service.ask("POST", INFER, image_request(IMAGES[:1]))[0] == 200
        status, _, body = service.ask("POST", INFER, image_request(np.repeat(IMAGES[:64], 8, axis=0)))
        assert status == 413
        assert "smallest limit" in error_of(body)
        assert service.ask("POST", INFER, image_request(IMAGES[:1]))[0] == 200


def test_memory_that_others_use_is_worth_another_try():
    with digits(limit="1200KiB") as service:
        body = image_request(IMAGES[:1])
        assert service.ask("POST", INFER, body)[0] == 200
        budget = service.budget
        taken = budget.limit - budget.kept
        budget.charge(taken)
        try:
            status, headers, _ = service.ask("POST", INFER, image_request(IMAGES[:16]))
        finally:
            budget.uncharge(taken)
        assert status == 503
        assert int(headers["retry-after"]) >= 1
        assert service.ask("POST", INFER, image_request(IMAGES[:16]))[0] == 200


def test_a_failure_of_the_model_tells_nothing_of_the_machine(caplog):
    with digits() as service:
        held = hold(service, "cnn")
        held.run = lambda inputs: 1 / 0
        status, _, body = service.ask("POST", INFER, image_request(IMAGES[:1]))
        assert status == 500
        assert "division" not in error_of(body)
        assert "division" in caplog.text


def test_a_service_outlives_what_strangers_send():
    """Mutated requests, broken heads, clients that leave: each is answered or dropped, and nothing is kept."""
    rng, good = random.Random(0), image_request(IMAGES[:1])
    head = f"POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(good)}\r\n\r\n".encode()
    with digits({"batch": (1, 8)}, limit="4MiB", join="batch", deadline_s=5) as service:
        service.service.models["cnn"].model.run({"image": IMAGES[:1]})
        kept = service.budget.kept
        for _ in range(150):
            body = bytearray(good)
            for _ in range(rng.randint(1, 3)):
                body[rng.randrange(len(body))] = rng.randrange(256)
            assert service.ask("POST", INFER, bytes(body))[0] in (200, 400)
            with socket.create_connection(("127.0.0.1", service.port), 60) as client:
                message = bytearray(head + good)
                message[rng.randrange(len(message))] = rng.randrange(256)
                client.sendall(message[: rng.randrange(1, len(message))])
        wait_for(lambda: service.service.is_idle)
        assert service.ask("POST", INFER, good)[0] == 200
        wait_for(lambda: service.budget.kept == kept)  # of a result that is being let go of
        assert "500" not in service.service.answers()


# ---- time


@pytest.mark.parametrize("how", ["header", "parameter", "service"])
def test_deadlines(how):
    body, headers, options = image_request(IMAGES[:1]), {}, {}
    if how == "header":
        headers = {"X-Request-Timeout-Ms": "100"}
    elif how == "parameter":
        body = json.dumps(json.loads(body) | {"parameters": {"timeout": 100_000}}).encode()
    else:
        options = {"deadline_s": 0.1}
    with digits(**options) as service:
        held = hold(service, "cnn")
        try:
            start_s = time.monotonic()
            assert service.ask("POST", INFER, body, headers)[0] == 504
            assert time.monotonic() - start_s >= 0.1
        finally:
            held.gate.set()


def expect_runs(service, seconds):
    """Let the queue believe that a run of the model takes so long."""
    times, now_s = service.service._queue._times, time.monotonic()
    times._models.clear()
    times.begin("a run", "cnn", now_s - seconds)
    times.end("a run", now_s)


def test_what_would_be_late_is_refused_unless_a_worker_is_free():
    with digits(workers=1, deadline_s=600) as service, ThreadPoolExecutor(1) as clients:
        held = hold(service, "cnn")
        expect_runs(service, 1000)
        first = clients.submit(service.ask, "POST", INFER, image_request(IMAGES[:1]))
        wait_for(lambda: len(held.runs) == 1)
        status, headers, body = service.ask("POST", INFER, image_request(IMAGES[:1]))
        assert status == 503
        assert 900 < int(headers["retry-after"]) <= 1000
        assert "an answer would take about" in error_of(body)
        held.gate.set()
        assert first.result()[0] == 200
        assert service.ask("POST", INFER, image_request(IMAGES[:1]))[0] == 200


def test_lag_is_counted_until_a_request_goes_on():
    """An event loop with many connections takes long for a pass: one until the end of a run is seen, and one more."""
    with digits(workers=1) as service:
        queue, real = service.service._queue, batching._settle

        def settle(job, value):
            real(job, value)
            time.sleep(0.1)  # others that are told in the same pass

        with mock.patch.object(batching, "_settle", settle):
            assert service.ask("POST", INFER, image_request(IMAGES[:1]))[0] == 200
        assert queue.lag_s >= 0.1


def test_a_service_that_was_stopped_for_long_answers_again():
    """A run whose end was seen a thousand seconds late, by which every request would be late."""
    with digits(workers=1, deadline_s=1.0) as service:
        assert service.ask("POST", INFER, image_request(IMAGES[:1]))[0] == 200
        now_s = time.monotonic()
        service.service._queue._times.resume(now_s - 1000, now_s)
        assert [service.ask("POST", INFER, image_request(IMAGES[:1]))[0] for _ in range(2)] == [200, 200]


def test_lag_rises_at_once_and_falls_slowly():
    times = RunTimes(10.0)
    for end_s, now_s in ((0.0, 0.5), (1.0, 3.0), (3.9, 4.0)):
        times.resume(end_s, now_s)
    assert times.lag_s(4.0) == pytest.approx(2.0 - 0.19)
    times.resume(0.0, 1000.0)
    assert times.lag_s(1000.0) == 5.0  # half of what is remembered, or nothing would be tried again


def test_a_model_that_did_not_run_for_long_is_tried_again():
    times = RunTimes(10.0)
    times.begin("a", "slow", 0.0)
    times.end("a", 30.0)
    times.begin("b", "fast", 39.0)
    assert (times.mean_s("slow", 40.0), times.mean_s("slow", 40.5), times.mean_s("fast", 40.0)) == (30.0, 0.0, 0.0)
    assert times.left_s(40.0) == 1.0  # as long again as it has run
    times.begin("c", "slow", 40.0)
    times.end("c", 42.0)
    assert times.mean_s("slow", 42.0) == 2.0  # not of the one before, too
    times.end("b", 40.0)
    times.begin("c", "fast", 40.0)
    assert [times.left_s(now_s) for now_s in (40.25, 41.0, 43.0)] == [0.75, 0.0, 2.0]


def test_what_would_be_late_leaves_its_worker_to_others():
    with digits(workers=1, deadline_s=600) as service, ThreadPoolExecutor(3) as clients:
        held = hold(service, "cnn")
        asked = []
        for number, timeout_ms in enumerate(("600000", "200000", "600000")):
            headers = {"X-Request-Timeout-Ms": timeout_ms}
            asked.append(clients.submit(service.ask, "POST", INFER, image_request(IMAGES[: number + 1]), headers))
            wait_for(lambda n=number: len(held.runs) + service.service._queue.nwaiting == n + 1)
        expect_runs(service, 300)
        held.gate.set()
        assert [future.result()[0] for future in asked] == [200, 504, 200]
        assert held.runs == [1, 3]


def test_an_answer_that_is_late_is_not_sent(monkeypatch):
    """Nothing else could say so while the event loop is busy."""
    real = service_module.format_answer
    monkeypatch.setattr(service_module, "format_answer", lambda *given: time.sleep(0.3) or real(*given))
    with digits(deadline_s=0.25) as service:
        assert service.ask("POST", INFER, image_request(IMAGES[:1]))[0] == 504


def test_a_body_that_never_comes_holds_nothing():
    with digits(deadline_s=0.2) as service, socket.create_connection(("127.0.0.1", service.port), 60) as client:
        client.sendall(f"POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n".encode())
        assert client.recv(1000).startswith(b"HTTP/1.1 504 ")
        wait_for(lambda: service.service.is_idle)


def test_requests_of_clients_that_went_away_do_not_run():
    with digits(workers=1) as service, ThreadPoolExecutor(1) as clients:
        held = hold(service, "cnn")
        first = clients.submit(service.ask, "POST", INFER, image_request(IMAGES[:1]))
        wait_for(lambda: len(held.runs) == 1)
        connection = service.connect()
        connection.request("POST", INFER, image_request(IMAGES[:7]))
        wait_for(lambda: service.service.figures()["service"]["waiting"] == 1)
        connection.close()
        wait_for(lambda: service.service.figures()["service"]["waiting"] == 0)
        held.gate.set()
        assert first.result()[0] == 200
        assert held.runs == [1]
        wait_for(lambda: service.service.is_idle)
        assert service.service.answers() == {"200": 1, "499": 1}


def test_a_request_before_others_of_its_connection_is_told_that_the_client_has_gone():
    if not hasattr(server_module, "_Protocol"):
        pytest.skip("needs httptools, which is not installed")
    told = []

    async def app(scope, receive, send):
        told.extend([(await receive())["type"], (await receive())["type"]])

    async def leave():
        protocol = server_module._Protocol(uvicorn.Config(app, lifespan="off"), ServerState(), {})
        protocol.connection_made(mock.Mock(is_closing=lambda: False))
        protocol.data_received(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 3)
        await asyncio.sleep(0)
        protocol.connection_lost(None)
        async with asyncio.timeout(60):
            await asyncio.gather(*protocol.tasks)

    asyncio.run(leave())
    assert told == ["http.request", "http.disconnect"]


def test_connections_without_a_request_or_a_reader_are_dropped():
    server = _Server(uvicorn.Config(None), SimpleNamespace(deadline_s=8.0))
    dropped = []

    class Connection:
        def __init__(self, name, cycle):
            self.cycle, self.transport = cycle, SimpleNamespace(abort=lambda: dropped.append(name))
            server.server_state.connections.add(self)

    Connection("silent", None)
    Connection("between requests", SimpleNamespace(response_complete=True))
    Connection("not read", SimpleNamespace(response_complete=False))
    at_work = Connection("at work", SimpleNamespace(response_complete=False))
    for now_s, expected in ((0.0, set()), (7.0, set()), (8.0, {"silent", "between requests"})):
        server._drop_silent(now_s)
        assert set(dropped) == expected
    at_work.cycle.response_complete = True
    server._drop_silent(15.0)
    assert "not read" not in dropped
    server._drop_silent(16.0)
    assert "not read" in dropped
    assert "at work" not in dropped


def test_a_client_that_goes_at_the_deadline_is_no_error():
    async def leave():
        async with asyncio.timeout(60) as limit:
            pass
        await service_module._gone(receive, limit)

    async def receive():
        return {"type": "http.disconnect"}

    asyncio.run(leave())


# ---- joined requests


def ask_at_once(service, held, bodies):
    """Answers to requests that come while a worker is busy."""
    with ThreadPoolExecutor(len(bodies) + 1) as clients:
        first = clients.submit(service.ask, "POST", INFER, image_request(IMAGES[:1]))
        wait_for(lambda: len(held.runs) == 1)
        futures = []
        for number, body in enumerate(bodies, 1):
            futures.append(clients.submit(service.ask, "POST", INFER, body))
            wait_for(lambda n=number: service.service.figures()["service"]["waiting"] == n)
        held.gate.set()
        assert first.result()[0] == 200
        return [future.result() for future in futures]


def test_requests_are_joined_up_to_the_declared_range_and_split_again():
    with digits({"batch": (1, 8)}, join="batch", workers=1) as service:
        expected = service.service.models["cnn"].model.run({"image": IMAGES[:8]})["probabilities"]
        held = hold(service, "cnn")
        spans = [(0, 3), (3, 5), (5, 8), (2, 3), (0, 4), (5, 8), (4, 8)]
        answers = ask_at_once(service, held, [image_request(IMAGES[slice(*span)]) for span in spans])
        for span, (status, _, body) in zip(spans, answers, strict=True):
            assert status == 200
            np.testing.assert_allclose(probabilities(body), expected[slice(*span)], rtol=1e-5, atol=1e-7)
        assert held.runs == [1, 8, 8, 4]


def test_a_request_waits_no_longer_for_others_than_was_said():
    with digits({"batch": (1, 8)}, join="batch", workers=1, join_delay_s=0.3) as service:
        held = hold(service, "cnn")
        held.gate.set()
        start_s = time.monotonic()
        assert service.ask("POST", INFER, image_request(IMAGES[:8]))[0] == 200  # full at once
        full_s = time.monotonic() - start_s
        with ThreadPoolExecutor(2) as clients:
            found = list(clients.map(lambda n: service.ask("POST", INFER, image_request(IMAGES[:n])), [2, 3]))
        assert [status for status, *_ in found] == [200, 200]
        assert held.runs in ([8, 5], [8, 2, 3], [8, 3, 2])  # the machine may be slower than the delay
        start_s = time.monotonic()
        assert service.ask("POST", INFER, image_request(IMAGES[:1]))[0] == 200
        assert time.monotonic() - start_s >= 0.3
        assert full_s < 30


def test_one_request_to_blame_fails_alone():
    with digits({"batch": (1, 8)}, join="batch", workers=1) as service:
        held = hold(service, "cnn")
        run = held.run

        def fails_on_ones(inputs):
            if (inputs["image"] == 1).all(axis=(1, 2, 3)).any():
                held.runs.append(len(inputs["image"]))
                raise gp.InvalidArgumentError("ones")
            return run(inputs)

        held.run = fails_on_ones
        ones = np.ones((1, 1, 8, 8), np.float32)
        answers = ask_at_once(service, held, [image_request(array) for array in (IMAGES[:2], ones, IMAGES[:1])])
        assert [status for status, *_ in answers] == [200, 400, 200]
        assert held.runs == [1, 4, 2, 1, 1]


# ---- arguments, and the end


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"join": "batch"}, "has no range"),
        ({"join": "rows"}, "a dimension of a model"),
        ({"deadline_s": 0}, "deadline_s"),
        ({"deadline_s": True}, "deadline_s"),
        ({"join_delay_s": -1}, "join_delay_s"),
        ({"max_requests": 0}, "max_requests"),
        ({"workers": True}, "workers"),
        ({"max_request": "much"}, "not a size"),
    ],
)
def test_arguments_that_are_refused(options, words):
    with gp.onnx.load(demo.model_path("digits_cnn")) as model, pytest.raises(gp.InvalidArgumentError, match=words):
        gp.serve.app(model, **options)


def test_models_of_several_engines_are_refused():
    load, path = gp.onnx.load, demo.model_path("digits_cnn")
    refused = pytest.raises(gp.InvalidArgumentError, match="models of one engine")
    with load(path) as one, load(path) as two, refused:
        gp.serve.app({"one": one, "two": two})
    with pytest.raises(gp.InvalidArgumentError, match="a Model, or models by name"):
        gp.serve.app({})


@pytest.mark.parametrize("name", ["", "a/b", 3])
def test_names_that_no_path_can_have_are_refused(name):
    refused = pytest.raises(gp.InvalidArgumentError, match="name of a model; accepted: a text without '/'")
    with gp.onnx.load(demo.model_path("digits_cnn")) as model, refused:
        gp.serve.app({name: model})


def test_threads_end_with_the_service():
    before = set(threading.enumerate())
    with digits() as service:
        service.ask("POST", INFER, image_request(IMAGES[:1]))
        assert any(thread.name.startswith("graphpool-serve") for thread in threading.enumerate())
    assert not [
        t for t in set(threading.enumerate()) - before if t.name.startswith(("graphpool-serve", "graphpool-parse"))
    ]
