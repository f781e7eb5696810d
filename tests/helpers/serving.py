"""A service in a thread of the test's process, on a port of its own."""

import asyncio
import json
import threading
from contextlib import contextmanager
from http.client import HTTPConnection

import numpy as np
import uvicorn

import graphpool as gp


class Running:
    """A service that answers; `service` is what is behind it."""

    def __init__(self, app, port):
        self.service, self.port = app.state.service, port

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    @property
    def budget(self):
        return self.service.engine.budget

    def connect(self):
        return HTTPConnection("127.0.0.1", self.port, timeout=60)

    def ask(self, method, path, body=None, headers=None):
        """Status, headers and body of an answer."""
        connection = self.connect()
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, dict(answer.headers), answer.read()
        finally:
            connection.close()


@contextmanager
def running(models, **options):
    """Serve models until the block ends."""
    app = gp.serve.app(models, **options)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", lifespan="on", ws="none"))
    started = threading.Event()

    async def serve():
        main = asyncio.ensure_future(server.serve())
        while not server.started and not main.done():
            await asyncio.sleep(0.01)
        started.set()
        await main

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="service under test")
    thread.start()
    try:
        assert started.wait(60)
        yield Running(app, server.servers[0].sockets[0].getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive()


class Held:
    """A model that runs once `gate` is set; `runs` has the rows of each run."""

    def __init__(self, model):
        self._model, self.gate, self.runs = model, threading.Event(), []

    def __getattr__(self, name):
        return getattr(self._model, name)

    def run(self, inputs):
        self.runs.append(len(next(iter(inputs.values()))))
        assert self.gate.wait(60)
        return self._model.run(inputs)


def hold(running, name):
    """Let runs of a served model wait for a gate."""
    served = running.service.models[name]
    served.model = Held(served.model)
    return served.model


def image_request(images):
    """A request to a model of digits."""
    entry = {"name": "image", "shape": list(images.shape), "datatype": "FP32", "data": images.ravel().tolist()}
    return json.dumps({"inputs": [entry]}).encode()


def probabilities(body):
    """The result of a model of digits, out of an answer."""
    [output] = json.loads(body)["outputs"]
    return np.array(output["data"], np.float32).reshape(output["shape"])
