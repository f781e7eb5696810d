"""How long does loading a model take, and how much memory, beside onnxruntime?

    python -m bench.bench_load --zoo FOLDER [--models resnet50,bert_base] [--rounds 3] [--weights packed] [--kept]

A folder has models NAME.onnx with inputs in NAME.npz or NAME.CASE.npz, as arrays ``in.INPUT``. Each load has a process
of its own, one thread, with the library imported and the file in the page cache. What the first run takes beyond a
later one counts as loading: models whose shapes the file leaves open compile then. Times are processor time, the least
of the rounds; memory is the highest resident size above that of the process before. Graphpool compiles in each process;
with ``--kept`` it finds what a process before the rounds has compiled.

Bars: no slower than onnxruntime, and a peak of at most 0.9 of its.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

ENGINES = ("graphpool", "onnxruntime")


def resident_mb(field: str) -> float:
    """A figure of /proc/self/status. Unit: MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field + ":")) / 1024


def graphpool_loader(path: Path, weights: str) -> Any:
    """What loads, and then gives what runs."""
    import graphpool.onnx as gpx

    def load() -> Any:
        return gpx.load(path, threads=1, weights=weights).run

    return load


def onnxruntime_loader(path: Path, weights: str) -> Any:
    """Likewise."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1

    def load() -> Any:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        return lambda inputs: session.run(None, inputs)

    return load


def measure(engine: str, npz: Path, weights: str) -> dict[str, float]:
    """One load and some runs, in this process. Units: seconds, MiB."""
    with np.load(npz) as archive:
        inputs = {key[3:]: archive[key] for key in archive.files if key.startswith("in.")}
    path = npz.parent / f"{npz.name.split('.')[0]}.onnx"
    with path.open("rb") as file:
        while file.read(2**16):  # into the page cache, not into this process
            pass
    make = {"graphpool": graphpool_loader, "onnxruntime": onnxruntime_loader}[engine]
    load = make(path, weights)
    before = resident_mb("VmRSS")
    start = time.process_time()
    run = load()
    processor = time.process_time() - start
    times = []
    for _ in range(4):
        start = time.process_time()
        run(inputs)
        times.append(time.process_time() - start)
    late = max(times[0] - min(times[1:]), 0.0)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before
    return {"load_s": processor + late, "peak_mb": peak}


def in_process(engine: str, npz: Path, weights: str, programs: str) -> dict[str, float]:
    """`measure` in a fresh process, which keeps programs in a folder or has them off."""
    command = [sys.executable, "-m", "bench.bench_load", "--child", engine, str(npz), weights]
    env = os.environ | {"GRAPHPOOL_PROGRAM_FOLDER": programs}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=env)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--zoo", type=Path, default=Path("zoo"))
    parser.add_argument("--models", default="", help="names of .npz files without the ending; by default all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--weights", default="scoped", help="of graphpool.onnx.load")
    parser.add_argument("--kept", action="store_true", help="find what another process has compiled")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.child:
        engine, npz, weights = chosen.child
        print(json.dumps(measure(engine, Path(npz), weights)))
        return
    print("| model | load ms | onnxruntime | ratio | peak MiB | onnxruntime | ratio |\n|---|--:|--:|--:|--:|--:|--:|")
    names = chosen.models.split(",") if chosen.models else sorted(path.stem for path in chosen.zoo.glob("*.npz"))
    for name in names:
        npz = chosen.zoo / f"{name}.npz"
        with tempfile.TemporaryDirectory() as folder:
            programs = folder if chosen.kept else "off"
            if chosen.kept:
                in_process("graphpool", npz, chosen.weights, programs)
            rounds = [{e: in_process(e, npz, chosen.weights, programs) for e in ENGINES} for _ in range(chosen.rounds)]
        ours, theirs = ({key: min(r[e][key] for r in rounds) for key in rounds[0][e]} for e in ENGINES)
        cells = [f"{1e3 * side['load_s']:.0f}" for side in (ours, theirs)]
        cells += [f"{ours['load_s'] / theirs['load_s']:.2f}"]
        cells += [f"{side['peak_mb']:.0f}" for side in (ours, theirs)] + [f"{ours['peak_mb'] / theirs['peak_mb']:.2f}"]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
