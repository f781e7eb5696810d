"""Load and run a model with one library, and print what the process takes: for `bench.profile.versus`.

    python -m bench.profile.one_library {graphpool,onnxruntime} MODEL INPUTS.npz THREADS SECONDS

Nothing but NumPy is imported before the library, so that all that it brings is counted.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

RUNS = 50


def resident_nbytes() -> int:
    """Memory of the process that is in RAM now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def most_resident_nbytes() -> int:
    """The most that it ever was."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def use_graphpool() -> Callable[[str, int], Callable[[dict[str, Any]], Any]]:
    """Import it; gives what loads a model, which gives what runs it."""
    import graphpool.onnx

    return lambda path, threads: graphpool.onnx.load(path, threads=threads).run


def use_onnxruntime() -> Callable[[str, int], Callable[[dict[str, Any]], Any]]:
    """The same."""
    import onnxruntime

    def load(path: str, threads: int) -> Callable[[dict[str, Any]], Any]:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = threads, 3
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        return lambda inputs: session.run(None, inputs)

    return load


def main() -> None:
    """Print a JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", choices=("graphpool", "onnxruntime"))
    for name, kind in (("model", str), ("inputs", str), ("threads", int), ("seconds", float)):
        parser.add_argument(name, type=kind)
    given = parser.parse_args()
    with np.load(given.inputs) as data:
        inputs = dict(data)
    before, found = resident_nbytes(), {"library": given.library}

    def note(name: str) -> None:
        found[f"{name}_nbytes"] = resident_nbytes() - before

    load = {"graphpool": use_graphpool, "onnxruntime": use_onnxruntime}[given.library]()
    note("imported")
    run = load(given.model, given.threads)
    note("loaded")
    run(inputs)
    note("first_run")
    times, end = [], time.monotonic() + given.seconds
    while len(times) < RUNS or time.monotonic() < end:
        start = time.perf_counter_ns()
        run(inputs)
        times.append((time.perf_counter_ns() - start) / 1e6)
    note("later_runs")
    print(json.dumps({**found, "most_nbytes": most_resident_nbytes() - before, "latency_ms": statistics.median(times)}))


if __name__ == "__main__":
    main()
