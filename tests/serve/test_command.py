"""``graphpool serve``, run as a user runs it, and ended as systems end it."""

import builtins
import json
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from urllib.parse import urlsplit

import numpy as np
import pytest

import graphpool as gp
from graphpool import cli, demo

pytest.importorskip("onnx")
pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")

from tests.helpers.serving import image_request, probabilities

IMAGES, LABELS = demo.test_images()
MODELS = [str(demo.model_path(name)) for name in demo.MODELS]


@contextmanager
def command(*arguments):
    """The command and where it listens."""
    line = [sys.executable, "-m", "graphpool", "serve", *arguments, "--port", "0", "--json"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process, process.stderr.readline().split()[-1]
        finally:
            process.kill()


@pytest.mark.native
def test_models_are_served_until_a_signal():
    shapes = ["--shape", "batch=1..8", "--join", "batch", "--memory-limit", "64MiB"]
    with command(*MODELS, *shapes, "--name", "cnn", "--name", "transformer") as (process, url):
        for name in ("cnn", "transformer"):
            with urllib.request.urlopen(
                f"{url}/v2/models/{name}/infer", image_request(IMAGES[:8]), timeout=60
            ) as answer:
                found = probabilities(answer.read())
            assert (found.argmax(axis=1) == LABELS[:8]).mean() >= 0.75
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert errors == ""
    assert json.loads(output)["answers"] == {"200": 2}


@pytest.mark.native
def test_what_has_come_is_answered_before_the_end():
    rows = np.repeat(IMAGES[:64], 100, axis=0)
    body = json.dumps({"inputs": [{
        "name": "image", "shape": list(rows.shape), "datatype": "FP32", "parameters": {"binary_data_size": rows.nbytes},
    }]}).encode()  # fmt: skip
    headers = {"Inference-Header-Content-Length": str(len(body))}
    with command(MODELS[1], "--threads", "1") as (process, url):
        address = f"{url}/v2/models/digits_transformer/infer"
        request = urllib.request.Request(address, body + rows.tobytes(), headers)
        with ThreadPoolExecutor(1) as clients:
            future = clients.submit(lambda: urllib.request.urlopen(request, timeout=60).status)
            while not json.loads(urllib.request.urlopen(f"{url}/live.json", timeout=60).read())["service"]["running"]:
                assert not future.done()
            process.send_signal(signal.SIGTERM)
            assert future.result() == 200
        process.communicate(timeout=60)
    assert process.returncode == 0


@pytest.mark.native
def test_heads_without_an_end_are_cut_off():
    with command(MODELS[0]) as (_, url):
        address = urlsplit(url).hostname, urlsplit(url).port
        for begin in (b"GET /", b"GET / HTTP/1.1\r\nX: ", b"GET / HTTP/1.1\r\nHost: x\r\n"):
            more = b"a: b\r\n" * (1 << 24) if begin.endswith(b"\n") else b"a" * (1 << 26)
            with socket.create_connection(address, 60) as connection, pytest.raises(ConnectionError):
                connection.sendall(begin + more)
            assert urllib.request.urlopen(f"{url}/v2/health/live", timeout=60).status == 200


def answers_of(connection, count):
    """Status and body of so many answers on a connection."""
    with connection.makefile("rb") as stream:
        found = []
        for _ in range(count):
            status = int(stream.readline().split()[1])
            head = dict(line.split(b": ", 1) for line in iter(stream.readline, b"\r\n"))
            found.append((status, stream.read(int(head[b"content-length"]))))
        return found


@pytest.mark.native
def test_few_requests_of_a_connection_wait_for_the_one_before():
    request = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
    with command(MODELS[0]) as (_, url):
        address = urlsplit(url).hostname, urlsplit(url).port
        with socket.create_connection(address, 60) as connection:
            connection.sendall(request * 20)
            assert [status for status, _ in answers_of(connection, 20)] == [200] * 20
        with socket.create_connection(address, 60) as connection:
            with suppress(ConnectionError):  # it is closed before all is sent
                connection.sendall(request * 20_000)
            received = 0
            with suppress(ConnectionError):
                while part := connection.recv(1 << 16):
                    received += part.count(b"HTTP/1.1 200")
            assert received < 100
        assert urllib.request.urlopen(f"{url}/v2/health/live", timeout=60).status == 200


@pytest.mark.native
def test_a_request_for_another_protocol_is_answered_in_this_one():
    body = image_request(IMAGES[:2])
    head = f"POST /v2/models/digits_cnn/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
    other = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQ\r\n\r\n"
    with command(MODELS[0]) as (_, url):
        address = urlsplit(url).hostname, urlsplit(url).port
        for at in (0, 10, len(body)):  # bytes of the body that come with the head
            with socket.create_connection(address, 60) as connection:
                connection.sendall((head + other).encode() + body[:at])
                time.sleep(0.05)
                connection.sendall(body[at:] + (head + "\r\n").encode() + body)
                [first, second] = answers_of(connection, 2)
            assert first == second
            assert probabilities(first[1]).shape == (2, 10)


@pytest.mark.native
def test_connections_without_a_head_of_a_request_are_closed():
    request = b"GET /v2/health/live HTTP/1.1\r\nHost: here\r\n"
    with command(MODELS[0], "--deadline-s", "1") as (process, url):
        address = urlsplit(url).hostname, urlsplit(url).port
        with ExitStack() as opened:
            silent = [opened.enter_context(socket.create_connection(address, 60)) for _ in range(3)]
            silent[1].sendall(request)
            silent[2].sendall(request + b"\r\n" + request)  # a whole one, and most of another
            assert silent[2].recv(1 << 16).startswith(b"HTTP/1.1 200")
            assert [connection.recv(1) for connection in silent[:2]] == [b"", b""]
            while silent[2].recv(1 << 16):
                pass
        with urllib.request.urlopen(f"{url}/v2/health/live", timeout=60) as answer:
            assert answer.status == 200
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--shape", "rows=1..8"], "'rows'"),
        (["--shape", "batch=8..1"], "least <= most"),
        (["--name", "a/b"], "letters, digits"),
        (["--name", "a", "--name", "b"], "names of models; accepted: 1 that differ"),
        (["--join", "batch"], "has no range"),
        (["--deadline-s", "-1"], "pressure_timeout_s"),
    ],
)
def test_arguments_that_are_refused(capsys, arguments, words):
    assert cli.main(["serve", MODELS[0], *arguments]) == 2
    assert words in capsys.readouterr().err


def test_a_limit_that_serves_no_request_is_refused(capsys, monkeypatch):
    seen = []
    monkeypatch.setattr(
        gp.serve,
        "run",
        lambda models, **options: seen.extend(model.run({"image": IMAGES[:1]}) for model in models.values()) or {},
    )
    limit = "0"
    for _ in ("loading", "a request"):
        assert cli.main(["serve", MODELS[0], "--memory-limit", limit]) == 2
        limit = re.search(r"the smallest limit that serves this request is (\d+) bytes", capsys.readouterr().err)[1]
        assert not seen
    assert cli.main(["serve", MODELS[0], "--memory-limit", limit]) == 0
    assert seen[0]["probabilities"].argmax() == LABELS[0]


def test_shapes_are_for_the_models_that_have_them(monkeypatch):
    seen = {}
    monkeypatch.setattr(gp.serve, "run", lambda models, **options: seen.update(models) or {})
    assert cli.main(["serve", *MODELS, "--shape", "batch=1..4"]) == 0
    assert [dict(model.declared_shapes) for model in seen.values()] == [{"batch": [(1, 4)]}] * 2


@pytest.mark.parametrize("package", ["starlette", "prometheus_client", "uvicorn"])
def test_a_missing_package_is_named_with_its_extra(monkeypatch, package):
    real = builtins.__import__

    def without(name, *rest, **more):
        if name.split(".")[0] == package:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)
        return real(name, *rest, **more)

    for name in [name for name in sys.modules if name.split(".")[0] == package or name.startswith("graphpool.serve.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", without)
    with gp.onnx.load(MODELS[0]) as model, pytest.raises(gp.UnsupportedError, match=rf"{package}.*graphpool\[serve\]"):
        gp.serve.run(model)
