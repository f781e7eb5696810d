"""Question: what does a shape cost that a model has not seen, and how often is the model compiled for a course of them.

    python -m bench.bench_shapes FILE --dim past=128:192 [--dim batch=1] [--threads 2] [--json]

FILE is an ONNX model with named dimensions. A range takes all sizes from the first to before the last, one shape each;
other named dimensions take the size given, 1 by default. Each shape is run four times: the first run less the least of
the others is what the shape costs. onnxruntime runs beside, in turns, where it is installed.
"""

import argparse
import json
import statistics
import sys
import time

import numpy as np

import graphpool as gp


def parse_dims(texts):
    """Name of each dimension -> the sizes that it takes in turn."""
    dims = {}
    for text in texts:
        name, sizes = text.split("=")
        first, _, last = sizes.partition(":")
        dims[name] = range(int(first), int(last)) if last else range(int(first), int(first) + 1)
    return dims


def inputs_of(model, sizes, rng):
    """Random inputs of a model; indices are 0."""
    arrays = {}
    for port in model.inputs:
        shape = tuple(dim if isinstance(dim, int) else sizes.get(dim, 1) for dim in port.shape)
        is_real = port.dtype.numpy.kind == "f"
        arrays[port.name] = (rng.standard_normal(shape) if is_real else np.zeros(shape)).astype(port.dtype.numpy)
    return arrays


def timed(run, times=4):
    """Milliseconds of the first run of a shape, and the least of the others."""
    found = []
    for _ in range(times):
        start = time.perf_counter()
        run()
        found.append((time.perf_counter() - start) * 1e3)
    return found[0], min(found[1:])


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
        firsts, costs, works, peers = [], [], [], []
        for k in range(count):
            sizes = {name: values[min(k, len(values) - 1)] for name, values in dims.items()}
            arrays = inputs_of(model, sizes, rng)
            before = model.stats().compilations
            first, work = timed(lambda arrays=arrays: model.run(arrays))
            (costs if model.stats().compilations == before else firsts).append(first - work)
            works.append(work)
            if session is not None:
                first, least = timed(lambda arrays=arrays: session.run(None, arrays))
                peers.append((first, least))
        row = {
            "model": model.name,
            "shapes": count,
            "compilations": model.stats().compilations,
            "compiled_shape_ms": statistics.median(firsts),
            "new_shape_ms": statistics.median(costs) if costs else None,
            "work_ms": statistics.median(works),
        }
        if peers:
            row["onnxruntime_new_ms"] = statistics.median([first - least for first, least in peers])
            row["onnxruntime_work_ms"] = statistics.median([least for _, least in peers])
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
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    print_row(measure(args.file, parse_dims(args.dim), args.threads), args.json)


if __name__ == "__main__":
    main()
