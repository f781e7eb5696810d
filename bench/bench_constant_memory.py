"""How much memory do the weights of a model take in several sessions, and in several processes over one store?

    python -m bench.bench_constant_memory [sessions] [processes] [forks] [shared] [--model FILE]

The bars: 4 sessions of one model with 64 MiB of weights take at most 64 + 16 + 4 MiB; with the packed-weight store the
proportional set sizes of 4 processes, forked from one that has loaded the model, add up to at most 1.2 times that of
one, and their growth by the model to that of one, however they were started. With `graphpool.share` 4 workers take at
most 1.05 of what one takes beside their interpreters, once arenas are given back; an interpreter is a worker that has
opened and run a model of one node. Times of `shared` are of a processor: opening, first run, all until its answer.
`bench_growth` asks for many partitions.

Sizes are what the system counts, resident and proportional set size. Growth is over a process that has loaded a small
model already, so that it shows weights and not libraries.
"""

from __future__ import annotations

import argparse
import gc
import inspect
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import graphpool as gp
from graphpool.cache import constant_tensor_cache

LAYERS, LARGE = 16, (1024, 1024)


def set_sizes(pid: int | str = "self") -> tuple[float, float]:
    """Resident and proportional set size of a process. Unit: 2**20 bytes."""
    if pid == "self":
        gc.collect()
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    found = {line.split(":")[0]: int(line.split()[1]) / 1024 for line in lines[1:]}
    return found["Rss"], found["Pss"]


def write_model(path: Path, layers: int = LAYERS, size: tuple[int, int] = LARGE) -> None:
    """An ONNX model of products, by default with 4 MiB of weights each."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    rng, (k, n) = np.random.default_rng(0), size
    weights = [rng.standard_normal((k, n), np.float32) / 32 for _ in range(layers)]
    nodes = []
    for i in range(layers):
        nodes += [helper.make_node("MatMul", [f"h{i}", f"w{i}"], [f"p{i}"])]
        nodes += [helper.make_node("Relu", [f"p{i}"], [f"h{i + 1}"])]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, k]) for name in ("h0", f"h{layers}")]
    tensors = [numpy_helper.from_array(weight, f"w{i}") for i, weight in enumerate(weights)]
    graph = helper.make_graph(nodes, "products", ports[:1], ports[1:], tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)


def load(path: Path, mode: str) -> Any:
    """A session that has run once; `mode` is that of ``weights=`` where loading knows it."""
    options = {} if mode == "kept" else {"weights": mode}
    model = gp.onnx.load(path, threads=1, **options)
    model.run({"h0": np.ones((4, LARGE[0]), np.float32)})
    return model


def modes() -> list[str]:
    """How weights can be loaded."""
    return ["kept", *(["packed"] if "weights" in inspect.signature(gp.onnx.load).parameters else [])]


def in_child(*arguments: str, **options: Any) -> Any:
    command = [sys.executable, "-m", "bench.bench_constant_memory", *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options)


def load_small(mode: str) -> None:
    """Have in the process what the first session of any model brings."""
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder) / "small.onnx", 1)
        load(Path(folder) / "small.onnx", mode).close()
    constant_tensor_cache("cpu").clear()


def sessions_in_process(path: Path, mode: str, count: int) -> None:
    """Print the growth after each session."""
    load_small(mode)
    before = set_sizes()[0]
    models = []
    for _ in range(count):
        models.append(load(path, mode))
        print(f"{set_sizes()[0] - before:.1f}", flush=True)
    for model in models:
        model.close()


def print_sessions(path: Path, count: int = 4) -> None:
    print("\n| sessions of one model, growth in MiB | 1 | 2 | 3 | 4 |\n|---|---:|---:|---:|---:|")
    for mode in modes():
        output, _ = in_child("child-sessions", str(path), mode, str(count)).communicate()
        print(f"| weights {mode} | " + " | ".join(output.split()) + " |", flush=True)


def process_over_store(path: Path, mode: str) -> None:
    """Do what each line of the input says: load the model, or print the proportional set size."""
    load_small(mode)
    models = []
    for line in sys.stdin:
        if line == "load\n":
            models.append(load(path, mode))
        print(set_sizes()[1], flush=True)
    for model in models:
        model.close()


def ask(child: Any, what: str) -> float:
    """The proportional set size of a child after it has done what it is told."""
    child.stdin.write(f"{what}\n")
    child.stdin.flush()
    return float(child.stdout.readline())


def measure_processes(path: Path, mode: str, store: str | None, count: int) -> tuple[float, float]:
    """Sum of the proportional set sizes, and of their growth by the model, with all processes there throughout."""
    environment = {k: v for k, v in os.environ.items() if k != "GRAPHPOOL_PACKED_STORE"}
    environment |= {"GRAPHPOOL_PACKED_STORE": store} if store else {}
    children = [in_child("child-process", str(path), mode, env=environment) for _ in range(count)]
    for child in children:
        ask(child, "size")
    before = sum(ask(child, "size") for child in children)
    for child in children:
        ask(child, "load")
    after = sum(ask(child, "size") for child in children)
    for child in children:
        child.communicate()
    return after, after - before


def fork_loaded(path: Path, mode: str, count: int) -> None:
    """Print the proportional set size of this process with the model, then the sum with children that run it too."""
    model, (reader, writer), children = load(path, mode), os.pipe(), []
    print(set_sizes()[1])
    gc.freeze()  # a collection would write to the pages of all objects
    for _ in range(count - 1):
        children.append(os.fork())
        if not children[-1]:
            model.run({"h0": np.ones((4, LARGE[0]), np.float32)})
            os.write(writer, b".")
            signal.pause()
    for _ in children:
        os.read(reader, 1)
    print(sum(set_sizes(pid)[1] for pid in ("self", *children)))
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    model.close()


def print_forks(path: Path, count: int = 4) -> None:
    print("\n| loaded, then forked; MiB | 1 process | 4 processes | ratio |\n|---|---:|---:|---:|")
    for mode in modes():
        output, _ = in_child("child-forks", str(path), mode, str(count)).communicate()
        one, all_of_them = map(float, output.split())
        print(f"| weights {mode} | {one:.0f} | {all_of_them:.0f} | {all_of_them / one:.2f} |", flush=True)


def inputs_of(model: gp.Model) -> dict[str, np.ndarray]:
    """Ones, for a model of static shapes."""
    ports = {port.name: (port.shape, port.dtype.numpy) for port in model.inputs if port.shape and port.dtype}
    return {name: np.ones(shape, dtype) for name, (shape, dtype) in ports.items()}


def open_shared(handle: gp.SharedModel, connection: Any) -> None:
    """In a worker: open and run, tell how long that took, then do what each message says."""
    start = time.process_time()
    with handle.open() as model:
        opened = time.process_time()
        model.run(inputs_of(model))
        answered = time.process_time()  # since the process began
        connection.send((opened - start, answered - opened, answered))
        while (what := connection.recv()) != "end":
            if what == "trim":
                model.engine.trim()
            connection.send(set_sizes()[1])


def measure_shared(handle: gp.SharedModel, method: str, count: int) -> tuple[list[float], float, float]:
    """Mean processor seconds of opening, of the first run and to its end, and set sizes of so many workers together.

    These are told when all have run, and when all have given their arenas back. Unit: 2**20 bytes.
    """
    context = multiprocessing.get_context(method)
    context.set_forkserver_preload(["graphpool.onnx.preload"])
    pipes = [context.Pipe() for _ in range(count)]
    workers = [context.Process(target=open_shared, args=(handle, theirs)) for _, theirs in pipes]
    for worker in workers:
        worker.start()
    seconds = [ours.recv() for ours, _ in pipes]
    sizes = []
    for what in ("size", "size", "trim", "size"):  # the first of each collects what it takes to tell
        for ours, _ in pipes:
            ours.send(what)
        sizes.append(sum(ours.recv() for ours, _ in pipes))
    for ours, _ in pipes:
        ours.send("end")
    for worker in workers:
        worker.join()
    return [float(np.mean(column)) for column in zip(*seconds, strict=True)], sizes[1], sizes[3]


def share_once(path: Path) -> gp.SharedModel:
    """A handle; the model that it is of is closed."""
    with gp.onnx.load(path, threads=1) as model:
        model.run(inputs_of(model))
        return gp.share(model)


def print_shared(path: Path) -> None:
    """What one process and four have of a shared model, beside those that have the smallest one: their interpreters."""
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder) / "small.onnx", 1, (4, 4))
        small = share_once(Path(folder) / "small.onnx")
    handle = share_once(path)
    assert handle.nbytes is not None
    print(f"\nshared: {handle.nbytes / 2**20:.1f} MiB, handle {len(pickle.dumps(handle))} bytes")
    print("| set sizes beside interpreters, MiB | 1 process | 4 | ratio | without arenas: 1 | 4 | ratio | CPU ms |")
    print("|---|---:|---:|---:|---:|---:|---:|---|")
    for method in ("spawn", "forkserver"):
        sizes = []
        for count in (1, 4):
            _, *without = measure_shared(small, method, count)
            seconds, *found = measure_shared(handle, method, count)
            sizes.append([size - own for size, own in zip(found, without, strict=True)])
        columns = [f"{one:.1f} | {four:.1f} | {four / one:.3f}" for one, four in zip(*sizes, strict=True)]
        print(
            f"| {method} | {' | '.join(columns)} | {', '.join(f'{1e3 * each:.0f}' for each in seconds)} |", flush=True
        )


def print_processes(path: Path) -> None:
    print("\n| proportional set size, MiB | 1 process | 4 processes | ratio | their growth by loading | ratio |")
    print("|---|---:|---:|---:|---|---:|")
    for mode in modes():
        for name in ("without a store", "with a store"):
            with tempfile.TemporaryDirectory() as folder:
                store = folder if name == "with a store" else None
                measure_processes(path, mode, store, 1)  # fills the store
                one, four = (measure_processes(path, mode, store, count) for count in (1, 4))
            print(
                f"| weights {mode}, {name} | {one[0]:.0f} | {four[0]:.0f} | {four[0] / one[0]:.2f} | "
                f"{one[1]:.0f}, {four[1]:.0f} | {four[1] / one[1]:.2f} |",
                flush=True,
            )


def main() -> None:
    if sys.argv[1:2] == ["child-sessions"]:
        sessions_in_process(Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
        return
    if sys.argv[1:2] == ["child-process"]:
        process_over_store(Path(sys.argv[2]), sys.argv[3])
        return
    if sys.argv[1:2] == ["child-forks"]:
        fork_loaded(Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
        return
    questions = ["sessions", "processes", "forks", "shared"]
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("questions", nargs="*", help=f"of {', '.join(questions)} (default: all)")
    parser.add_argument("--model", type=Path, help="an ONNX file of static shapes, for `shared`")
    options = parser.parse_args()
    chosen = options.questions or questions
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "products.onnx"
        write_model(path)
        if "sessions" in chosen:
            print_sessions(path)
        if "processes" in chosen:
            print_processes(path)
        if "forks" in chosen:
            print_forks(path)
        if "shared" in chosen:
            print_shared(options.model or path)


if __name__ == "__main__":
    main()
