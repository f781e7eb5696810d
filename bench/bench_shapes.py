"""Question: what does a shape cost that a model has not seen, and how often is the model compiled for a course of them.

    python -m bench.bench_shapes FILE --dim past=128:192 [--dim batch=1] [--threads 2] [--json]
    python -m bench.bench_shapes FILE --dim batch=1:9 --dim tokens=5:201 --requests 300 [--seed 0]

FILE is an ONNX model with named dimensions. A range takes all sizes from the first to before the last, one shape
each; other named dimensions take the size given, 1 by default. Each shape is run four times, each time on arrays of
its own, right behind a run of the shape before it, so that threads are awake: the first run less the median of the
others is what the shape costs. Steps take as long for a new shape but for chance, which in a long run is larger than
that cost: "outside" is the difference of what lies before the first step and behind the last one, as a trace tells.
With ``--requests`` each of so many requests has sizes at random from all ranges, and is run once: the total without
the first one, which loads the model, and how much memory the process holds more than after it. onnxruntime runs
beside, in turns, where it is installed; behind its turns nothing runs until its threads sleep.
"""

import argparse
import gc
import json
import resource
import statistics
import sys
import time
from pathlib import Path

import numpy as np

import graphpool as gp

SPIN_S = 0.1
"""Longer than onnxruntime's threads spin for more work, on processors that what runs next would need."""

TURN = 25
"""Requests that one library answers before the other one does."""


def parse_dims(texts):
    """Name of each dimension -> the sizes that it takes in turn."""
    dims = {}
    for text in texts:
        name, sizes = text.split("=")
        first, _, last = sizes.partition(":")
        dims[name] = range(int(first), int(last)) if last else range(int(first), int(first) + 1)
    return dims


def check_dims(model, dims):
    """Exit where the model has no dimension of a name."""
    named = sorted({dim for port in model.inputs for dim in port.shape if isinstance(dim, str)})
    for name in dims:
        if name not in named:
            sys.exit(f"no dimension {name!r}; accepted: {', '.join(named)}")


def inputs_of(model, sizes, rng):
    """Random inputs of a model; indices are 0."""
    arrays = {}
    for port in model.inputs:
        shape = tuple(dim if isinstance(dim, int) else sizes.get(dim, 1) for dim in port.shape)
        is_real = port.dtype.numpy.kind == "f"
        arrays[port.name] = (rng.standard_normal(shape) if is_real else np.zeros(shape)).astype(port.dtype.numpy)
    return arrays


def timed(run, *args):
    """Milliseconds of a call."""
    start = time.perf_counter()
    run(*args)
    return (time.perf_counter() - start) * 1e3


def timed_parts(run, *args):
    """Milliseconds of a call, and of what lies before its first step and behind its last one."""
    with gp.profile.trace() as trace:
        spent_ms = timed(run, *args)
    steps_ns = max(step.end_ns for step in trace.steps) - trace.steps[0].start_ns
    return np.array([spent_ms, spent_ms - steps_ns / 1e6])


def first_and_others(run, arrays, before, times=4, clock=timed):
    """The time of the first run of a shape, behind a run on arrays of another, and the median of the others."""
    copies = [{name: array.copy() for name, array in arrays.items()} for _ in range(times)]
    run(before)
    first, *others = (clock(run, given) for given in copies)
    return first, np.median(others, axis=0)


def onnxruntime_session(path, threads):
    """A session with so many threads; None where onnxruntime is not installed."""
    try:
        import onnxruntime
    except ImportError:
        return None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def measure(path, dims, threads):
    """Rows for each library."""
    rng, count = np.random.default_rng(0), max(map(len, dims.values()), default=1)
    session = onnxruntime_session(path, threads)
    with gp.Engine("cpu", threads=threads) as engine, gp.onnx.load(path, engine=engine) as model:
        check_dims(model, dims)
        costs, works, peers, last = [], [], [], None
        for k in range(count):
            sizes = {name: values[min(k, len(values) - 1)] for name, values in dims.items()}
            arrays = inputs_of(model, sizes, rng)
            if last is None:
                compiled_ms, compilations = timed(model.run, arrays), model.stats().compilations
            else:
                first, work = first_and_others(model.run, arrays, last, clock=timed_parts)
                if model.stats().compilations == compilations:
                    costs.append(first - work)
                compilations = model.stats().compilations
                works.append(work[0])
                if session is not None:
                    peers.append(first_and_others(lambda given: session.run(None, given), arrays, last))
                    time.sleep(SPIN_S)
            last = arrays
        new_ms, outside_ms = np.median(costs, axis=0).tolist() if costs else (None, None)
        row = {
            "model": model.name,
            "shapes": count,
            "compilations": model.stats().compilations,
            "first_run_ms": compiled_ms,
            "new_shape_ms": new_ms,
            "outside_ms": outside_ms,
            "work_ms": statistics.median(works) if works else None,
        }
        if peers:
            row["onnxruntime_new_ms"] = statistics.median([first - work for first, work in peers])
            row["onnxruntime_work_ms"] = statistics.median([work for _, work in peers])
        return row


def resident_nbytes():
    """Memory of the process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def measure_requests(path, dims, threads, requests, seed):
    """Totals of each library over requests of random sizes."""
    rng = np.random.default_rng(seed)
    courses = [{name: int(rng.choice(values)) for name, values in dims.items()} for _ in range(requests)]
    with gp.Engine("cpu", threads=threads) as engine, gp.onnx.load(path, engine=engine) as model:
        check_dims(model, dims)
        own, arenas, before = [], [], 0
        for sizes in courses:
            own.append(timed(model.run, inputs_of(model, sizes, rng)))
            arenas.append(model.stats().largest_arena_nbytes)
            gc.collect()
            before = before or resident_nbytes() - arenas[0]
        row = {
            "model": model.name,
            "requests": requests,
            "shapes": len({tuple(sizes.values()) for sizes in courses}),
            "compilations": model.stats().compilations,
            "total_ms": sum(own[1:]),
            "growth_mb": (resident_nbytes() - before) / 2**20,
            "largest_arena_mb": max(arenas) / 2**20,
        }
        session = onnxruntime_session(path, threads)
        if session is not None:
            model.respecialise()
            own, peers = [], []
            for begin in range(0, requests, TURN):
                turn = [inputs_of(model, sizes, rng) for sizes in courses[begin : begin + TURN]]
                own += [timed(model.run, arrays) for arrays in turn]
                peers += [timed(session.run, None, arrays) for arrays in turn]
                time.sleep(SPIN_S)
            row |= {"total_ms": sum(own[1:]), "onnxruntime_total_ms": sum(peers[1:])}
            row["ratio"] = row["total_ms"] / row["onnxruntime_total_ms"]
        return row


def print_row(row, as_json):
    """A line for each figure, or all as JSON."""
    if as_json:
        json.dump(row, sys.stdout, indent=1)
        return
    for name, value in row.items():
        print(f"{name:22} {value:.3f}" if isinstance(value, float) else f"{name:22} {value}")


def main(argv=None):
    """The command."""
    parser = argparse.ArgumentParser(prog="bench_shapes", description=__doc__.splitlines()[0])
    parser.add_argument("file")
    parser.add_argument("--dim", action="append", default=[], metavar="NAME=FIRST[:END]")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--requests", type=int, help="requests of random sizes, instead of all in turn")
    parser.add_argument("--seed", type=int, default=0, help="of the sizes")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    dims = parse_dims(args.dim)
    if args.requests is None:
        row = measure(args.file, dims, args.threads)
    else:
        row = measure_requests(args.file, dims, args.threads, args.requests, args.seed)
    print_row(row, args.json)


if __name__ == "__main__":
    main()
