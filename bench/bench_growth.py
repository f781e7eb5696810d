"""Question: how much does the process grow under ever new shapes and ever new weights, with caches bounded in bytes.

    python -m bench.bench_growth [shapes] [weights] [--json]

Each row is a process of its own, whose resident size is read before and after. Other libraries on the same work:
onnxruntime grew 82 MiB over 200 shapes, OpenVINO 87; oneDNN grew 796 MB over 200 weights of 4 MB with 64 MB of cache.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import graphpool as gp
from graphpool.cache import constant_tensor_cache
from graphpool.runtime.model_form import ModelForm
from graphpool.runtime.model_port import ModelPort
from graphpool.typing import DataType

MIB = 2**20
LIMIT = 32 * MIB


def resident_nbytes():
    """Memory of the process that is in RAM."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# ---- shapes


def convolution_model(engine):
    """A convolution of 3x3 with 32 channels and a ReLU, on images of any size."""
    weight = np.random.default_rng(0).standard_normal((32, 3, 3, 3)).astype(np.float32)

    def specialise(shapes, contents):
        n, channels, height, width = shapes["x"]
        x = gp.LogicalTensor(0, "f32", (n, channels, height, width))
        w = gp.LogicalTensor(1, "f32", weight.shape, property="constant")
        y, z = (gp.LogicalTensor(k, "f32", (n, 32, height, width)) for k in (2, 3))
        graph = gp.Graph("cpu")
        settings = {"strides": [1, 1], "pads_begin": [1, 1], "pads_end": [1, 1], "dilations": [1, 1]}
        graph.add_op(gp.Op(0, "Convolution", [x, w], [y], data_format="NCX", weights_format="OIX", **settings))
        graph.add_op(gp.Op(1, "ReLU", [y], [z]))
        graph.finalize()
        return ModelForm(graph, {1: weight}, {"x": 0}, {"y": 3}, {})

    inputs = [ModelPort("x", DataType.F32, (1, 3, "height", "width"))]
    return gp.Model(inputs, [ModelPort("y", DataType.F32, None)], specialise, engine)


def grow_by_shapes(is_bounded, count=200):
    """Run one model on random image sizes; growth, and processor time of a run."""
    rng = np.random.default_rng(1)
    sizes = [(int(h), int(w)) for h, w in rng.integers(32, 320, (count, 2))]
    images = rng.standard_normal((1, 3, 320, 320)).astype(np.float32)
    if is_bounded:
        gp.set_primitive_cache_capacity(1024, nbytes=MIB)
        gp.set_compiled_partition_cache_capacity(1024, nbytes=MIB)
        gp.set_constant_tensor_cache_capacity("cpu", 8)
    times = []
    with (
        gp.Engine(threads=1, memory_limit=LIMIT if is_bounded else None) as engine,
        convolution_model(engine) as model,
    ):
        model.run({"x": images})
        engine.trim()
        before = resident_nbytes()
        for h, w in sizes:
            image = np.ascontiguousarray(images[:, :, :h, :w])
            start = time.thread_time()
            model.run({"x": image})
            times.append((time.thread_time() - start) / (h * w))
        del image
        grown = resident_nbytes() - before
        return {
            "limit_mib": LIMIT / MIB if is_bounded else None,
            "grown_mib": grown / MIB,
            "budget_peak_mib": engine.budget.peak / MIB,
            "ns_per_pixel": statistics.median(times) * 1e9,
            "forms": model.stats().forms,
        }


# ---- weights


def grow_by_weights(policy, count=200, more=2000, capacity_mb=64):
    """Compile and run products with a new constant weight of 4 MB each; growth after `count` and after `more`."""
    rng = np.random.default_rng(2)
    gp.set_constant_tensor_cache_capacity("cpu", capacity_mb, policy=policy)
    x = gp.LogicalTensor(0, "f32", (16, 1024))
    w = gp.LogicalTensor(1, "f32", (1024, 1024), property="constant")
    y = gp.LogicalTensor(2, "f32", (16, 1024))
    data = rng.standard_normal((16, 1024)).astype(np.float32)
    weight = rng.standard_normal((1024, 1024)).astype(np.float32)
    grown = []
    with gp.Engine(threads=1) as engine:
        stream = gp.Stream(engine)
        kept = []

        def use(number):
            """One partition with a weight of its own, which the caller forgets; the compiled partition stays."""
            weight[0, 0] = number
            partition = gp.Partition.from_op(gp.Op(number, "MatMul", [x, w], [y]))
            compiled = partition.compile([x, w], [y], engine, scratch="shared")
            compiled.execute(stream, [gp.Tensor(x, engine, data), gp.Tensor(w, engine, weight.copy())])
            kept.append(compiled)

        use(0)
        constant_tensor_cache("cpu").clear()
        before = resident_nbytes()
        for rounds in (count, more):
            for _ in range(rounds):
                use(len(kept))
            grown.append((resident_nbytes() - before) / MIB)
        stats = constant_tensor_cache("cpu").stats()
        for compiled in kept:
            compiled.close()
    return {
        "capacity_mib": capacity_mb,
        "grown_mib": grown[0],
        f"grown_after_{more}_more_mib": grown[1],
        "cached_mib": stats.nbytes / MIB,
        "evictions": stats.evictions,
        "declined": stats.declined,
    }


ROWS = {
    "shapes-bounded": lambda: grow_by_shapes(True),
    "shapes-unbounded": lambda: grow_by_shapes(False),
    "weights-no_evict": lambda: grow_by_weights("no_evict"),
    "weights-lru": lambda: grow_by_weights("lru"),
}


def main():
    """Print a row for each case, from a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", default=["shapes", "weights"])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.row:
        print(json.dumps(ROWS[arguments.row]()))
        return
    for name in [name for name in ROWS if name.split("-")[0] in arguments.what]:
        command = [sys.executable, "-m", "bench.bench_growth", "--row", name]
        row = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        if arguments.json:
            print(json.dumps({"row": name, **row}), flush=True)
        else:
            values = [f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()]
            print(f"{name:20}" + ", ".join(values), flush=True)


if __name__ == "__main__":
    main()
