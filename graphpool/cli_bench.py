"""The subcommand ``bench``: latencies and memory of a model on random inputs, beside other engines where asked."""

from __future__ import annotations

import argparse
import statistics
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import InvalidArgumentError, UnsupportedError, explain

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .runtime import Model

    Report = dict[str, Any]
    Run = Callable[[], object]

MOST_SECONDS = 1e6
SHARE_OF_ROUND = 0.05
"""Seconds that an engine runs before the next one has its turn."""


def add_bench_options(parser: argparse.ArgumentParser) -> None:
    """Options of ``bench`` that other subcommands do not have."""
    parser.add_argument(
        "--seconds", type=_seconds, default=2.0, help="time each engine at least this long (default: 2)"
    )
    vs = f"other engines, which take turns with graphpool: {', '.join(_PEERS)}, separated by commas"
    parser.add_argument("--vs", default="", metavar="ENGINES", help=vs)


def _seconds(text: str) -> float:
    """A time that ends."""
    with suppress(ValueError):
        if 0 <= (seconds := float(text)) < MOST_SECONDS:
            return seconds
    raise argparse.ArgumentTypeError(f"accepted: seconds, from 0 to below {MOST_SECONDS:g}; got: {text}")


def parse_peers(text: str) -> list[str]:
    """Names of other engines; raises InvalidArgumentError for unknown ones."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in _PEERS:
            raise InvalidArgumentError(explain("--vs", accepted=", ".join(_PEERS), got=name))
    return names


def measure(model: Model, inputs: Mapping[str, Any], path: str, seconds: float, peers: list[str]) -> list[Report]:
    """Latencies of warm runs, graphpool's first, and its median as a share of each engine's.

    Others run on as many threads, in turns, so that a slow spell of the machine meets all of them.
    """
    runs: dict[str, Run] = {"graphpool": lambda: model.run(inputs)}
    for name in peers:
        runs[name] = _PEERS[name](path, inputs, model.engine.threads)
    times: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    while any(sum(found) < seconds or len(found) < 3 for found in times.values()):
        for name, run in runs.items():
            _take_turn(run, times[name])
    rows, best = _first_dimension(inputs), statistics.median(times["graphpool"])
    reports = {name: _describe(found, rows) for name, found in times.items()}
    if peers:
        for name, found in times.items():
            reports[name]["graphpool_ratio"] = best / statistics.median(found)
    return [{"engine": name} | report for name, report in reports.items()]


def _first_dimension(inputs: Mapping[str, Any]) -> int:
    """Rows that a run computes: the first dimension where all inputs of a rank share it, else 1."""
    firsts = {np.shape(value)[0] for value in inputs.values() if np.ndim(value)}
    return firsts.pop() if len(firsts) == 1 else 1


def _take_turn(run: Run, times: list[float]) -> None:
    end = time.perf_counter() + SHARE_OF_ROUND
    start = time.perf_counter()
    while start < end:
        run()
        now = time.perf_counter()
        times.append(now - start)
        start = now


def _describe(times: list[float], rows: int) -> Report:
    """Quantiles and throughput."""
    marks = statistics.quantiles(times, n=100, method="inclusive")
    quantiles = {f"p{mark}_ms": marks[mark - 1] * 1e3 for mark in (50, 90, 99)}
    return {
        **quantiles,
        "runs": len(times),
        "rows_per_s": rows * len(times) / sum(times),
    }


def _onnxruntime(path: str, inputs: Mapping[str, Any], threads: int) -> Run:
    try:
        import onnxruntime
    except ImportError as error:
        raise _missing("onnxruntime") from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # not into the turns of others
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, inputs)


def _openvino(path: str, inputs: Mapping[str, Any], threads: int) -> Run:
    try:
        import openvino
    except ImportError as error:
        raise _missing("openvino") from error
    settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    request = openvino.Core().compile_model(path, "CPU", settings).create_infer_request()
    return lambda: request.infer(inputs)


def _missing(name: str) -> UnsupportedError:
    return UnsupportedError(explain(f"{name} is not installed", hint=f"pip install {name}"))


_PEERS: dict[str, Callable[[str, Mapping[str, Any], int], Run]] = {"onnxruntime": _onnxruntime, "openvino": _openvino}
