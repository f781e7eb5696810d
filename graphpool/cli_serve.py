"""The subcommand ``serve``: models of ONNX files behind the Open Inference Protocol."""

from __future__ import annotations

import re
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import graphpool as gp

from .errors import InvalidArgumentError, UnsupportedError, brief, explain
from .runtime.shape_ranges import ShapeRanges

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from .runtime import Model

    Report = dict[str, Any]


def add_serve_options(parser: argparse.ArgumentParser) -> None:
    """Options of ``serve``."""
    parser.add_argument("models", nargs="+", metavar="MODEL", help="ONNX files")
    name = "of each model in turn (default: that of its file)"
    parser.add_argument("--name", action="append", dest="names", metavar="NAME", default=[], help=name)
    host = "address to listen at (default: %(default)s)"
    parser.add_argument("--host", metavar="ADDRESS", default="127.0.0.1", help=host)
    port = "0: one that is free (default: %(default)s)"
    parser.add_argument("--port", type=int, metavar="N", default=8000, help=port)
    parser.add_argument("--workers", type=int, metavar="N", help="runs at once (default: threads of the engine)")
    add_queue_options(parser)
    largest = "most bytes of a request (default: %(default)s)"
    parser.add_argument("--max-request", metavar="SIZE", default="64MiB", help=largest)


def add_queue_options(parser: argparse.ArgumentParser) -> None:
    """Options of one service, which ``plan-fleet`` simulates: how requests wait, are joined and refused."""
    join = "first dimension of inputs and outputs by which requests are joined, up to the end of its range"
    parser.add_argument("--join", metavar="DIM", help=f"{join}; rows must not see one another")
    delay = "how long a request waits for others while a worker is free (default: %(default)s)"
    parser.add_argument("--join-delay-s", type=float, metavar="SECONDS", default=0.0, help=delay)
    deadline = "within which a request is answered, or refused (default: %(default)s)"
    parser.add_argument("--deadline-s", type=float, metavar="SECONDS", default=30.0, help=deadline)
    pending = "most bytes of all requests at once (default: %(default)s)"
    parser.add_argument("--max-pending", metavar="SIZE", default="256MiB", help=pending)
    most = "that wait or run, before others are refused (default: %(default)s)"
    parser.add_argument("--max-requests", type=int, metavar="N", default=64, help=most)


def serve_models(arguments: argparse.Namespace, shapes: Mapping[str, Any]) -> tuple[Report, bool]:
    """Load the models and serve them until a signal; how requests were answered."""
    names = model_names(arguments.models, arguments.names)
    engine_options = {"threads": arguments.threads, "memory_limit": arguments.memory_limit}
    pressure = {"on_pressure": "wait", "pressure_timeout_s": arguments.deadline_s}
    with gp.Engine(**engine_options, **pressure) as engine, ExitStack() as stack:
        loader = ModelLoader(arguments, shapes)
        paths = zip(names, arguments.models, strict=True)
        models = {name: stack.enter_context(loader.load(path, engine)) for name, path in paths}
        loader.check_used()
        for model in models.values():
            _check_room(model)
        options = ("host", "port", "join", "join_delay_s", "deadline_s", "max_request", "max_pending", "max_requests",
                   "workers")  # fmt: skip

        def tell(address: str) -> None:
            print(f"graphpool: {', '.join(models)} at {address}", file=sys.stderr, flush=True)

        answers = gp.serve.run(models, on_start=tell, **{option: getattr(arguments, option) for option in options})
        return {"answers": answers, "peak_nbytes": engine.budget.peak}, True


def model_names(paths: Sequence[str], given: Sequence[str]) -> list[str]:
    """Names of models: those that are given, else those of the files; raises InvalidArgumentError."""
    names = list(given) or [Path(path).stem for path in paths]
    if len(names) != len(paths) or len(set(names)) != len(names):
        message = explain("names of models", accepted=f"{len(paths)} that differ", got=", ".join(names))
        raise InvalidArgumentError(message)
    for name in names:
        if not re.fullmatch(r"[\w.-]+", name):
            raise InvalidArgumentError(
                explain("name of a model", accepted="letters, digits, _, - and .", got=brief(name))
            )
    return names


class ModelLoader:
    """Loads models, each with those of the shapes that it has a name for."""

    def __init__(self, arguments: argparse.Namespace, shapes: Mapping[str, Any]) -> None:
        self._shapes = dict(shapes)
        self._options = {"weights": arguments.weights, "untrusted": arguments.untrusted}
        self._refused: dict[str, InvalidArgumentError] = {}
        self._used: set[str] = set()

    def load(self, path: str, engine: gp.Engine) -> Model:
        """The model of a file."""
        shapes = dict(self._shapes)
        while True:
            try:
                model = gp.onnx.load(path, engine=engine, shapes=shapes or None, **self._options)
            except InvalidArgumentError as error:
                name = error.fields.get("name")
                if name not in shapes:
                    raise
                self._refused[name] = error
                del shapes[name]
            else:
                self._used |= shapes.keys()
                return model

    def check_used(self) -> None:
        """Raise what a model said of a name that none has."""
        for name, error in self._refused.items():
            if name not in self._used:
                raise error


def _check_room(model: Model) -> None:
    """Raise `OutOfMemoryError` if the memory limit does not even serve the smallest sizes; loading knows no others.

    Sizes without a declared range count as 1; what a model does not take tells nothing.
    """
    spans = ShapeRanges(model.declared_shapes or {}, model.inputs).spans
    with suppress(InvalidArgumentError, UnsupportedError):
        shapes = {
            port.name: [dim if isinstance(dim, int) else spans.get(dim or "", (1, 1))[0] for dim in port.shape or ()]
            for port in model.inputs
        }
        model.predict_peak(shapes)
