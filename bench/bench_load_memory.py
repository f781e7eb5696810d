"""What does loading take of memory, where a file holds weights in other places than its initialisers?

    python -m bench.bench_load_memory [MODEL.onnx ...]

Without files models are made here: decision trees, a table of a million numbers, weights in nodes Constant, and weights
of four bits that are no matrices. Each load has a process of its own, after a small model has been loaded there, with
one thread; sizes that a file leaves open are the least of 1, 2, 4, ... 1024 that the model takes. High: the highest
resident size of the load over that before it, what the source takes not counted (VmHWM, reset). Beside it: the file and
what the budget holds then, which the bar allows 1.10 times, and what is left after `close`, code that these kernels
brought in above all.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from .bench_truth import read_source, status_nbytes

SOURCES = ("file", "bytes", "proto")


def make_models(folder: Path) -> None:
    """Models whose weights are no initialisers, or of four bits."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    rng, make = np.random.default_rng(0), helper.make_node

    def save(name: str, nodes: list[Any], x: list[Any], weights: list[Any], kind: int = TensorProto.FLOAT) -> None:
        ports = helper.make_tensor_value_info("x", kind, x), helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
        graph = helper.make_graph(nodes, name, [ports[0]], [ports[1]], weights)
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", 3)]
        onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), folder / f"{name}.onnx")

    def nibbles(*shape: int) -> Any:
        raw = rng.integers(0, 256, int(np.prod(shape)) // 2, np.uint8).tobytes()
        return helper.make_tensor("q", TensorProto.INT4, shape, raw, raw=True)

    save("tiny", [make("Relu", ["x"], ["y"])], [2], [])
    per_tree, ntrees = 2**12 - 1, 128
    numbers, trees = np.tile(np.arange(per_tree), ntrees), np.repeat(np.arange(ntrees), per_tree)
    is_inner = numbers < per_tree // 2
    leaves = np.flatnonzero(~is_inner)
    lists = {
        "nodes_modes": np.where(is_inner, "BRANCH_LEQ", "LEAF"), "nodes_values": rng.standard_normal(len(numbers)),
        "nodes_featureids": rng.integers(0, 20, len(numbers)), "nodes_treeids": trees, "nodes_nodeids": numbers,
        "nodes_truenodeids": np.where(is_inner, 2 * numbers + 1, 0), "nodes_hitrates": np.ones(len(numbers)),
        "nodes_falsenodeids": np.where(is_inner, 2 * numbers + 2, 0), "nodes_missing_value_tracks_true": 0 * numbers,
        "target_treeids": trees[leaves], "target_nodeids": numbers[leaves], "target_ids": 0 * leaves,
        "target_weights": rng.standard_normal(len(leaves)),
    }  # fmt: skip
    given = {name: value.tolist() for name, value in lists.items()}
    save("trees", [make("TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", n_targets=1, **given)],
         ["rows", 20], [])  # fmt: skip
    table = {"keys_int64s": list(range(10**6)), "values_floats": rng.random(10**6).tolist()}
    save("encoder", [make("LabelEncoder", ["x"], ["y"], domain="ai.onnx.ml", **table)], ["rows"], [],
         TensorProto.INT64)  # fmt: skip
    weight = numpy_helper.from_array(rng.standard_normal((1024, 4096), np.float32))
    save("constant", [make("Constant", [], ["w"], value=weight), make("MatMul", ["x", "w"], ["y"])], ["rows", 1024], [])
    scale = numpy_helper.from_array(rng.random(1024, np.float32), "s")
    steps = [make("DequantizeLinear", ["q", "s"], ["w"], axis=0), make("Conv", ["x", "w"], ["y"], pads=[1] * 4)]
    save("int4_convolution", steps, [1, 1024, 8, 8], [nibbles(1024, 1024, 3, 3), scale])
    scale = numpy_helper.from_array(rng.random((8, 64, 2048), np.float32), "s")
    steps = [make("DequantizeLinear", ["q", "s"], ["w"], axis=1, block_size=32), make("MatMul", ["x", "w"], ["y"])]
    save("int4_experts", steps, [8, 4, 2048], [nibbles(8, 2048, 2048), scale])


def specialise(model: Any) -> None:
    """Compile for the least open sizes that the model accepts."""
    from graphpool.errors import GraphpoolError

    for power in range(11):
        shapes = {port.name: [dim if isinstance(dim, int) else 2**power for dim in port.shape] for port in model.inputs}
        try:
            model.specialise(shapes)
        except GraphpoolError:
            if power == 10:
                raise
        else:
            return


def measure(path: Path, source: str, tiny: Path) -> dict[str, int]:
    """One load, in this process. Unit: bytes."""
    import graphpool as gp
    from graphpool.onnx.loader import importer

    importer()
    gp.onnx.load(tiny, threads=1).close()
    given = read_source(path, source)
    gc.collect()
    before = status_nbytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    model = gp.onnx.load(given, threads=1)
    if not model.is_static:
        specialise(model)
    found = {"high": status_nbytes("VmHWM") - before, "held": model.engine.budget.in_use}
    model.close()
    gc.collect()
    return found | {"left": status_nbytes("VmRSS") - before}


def main() -> None:
    """Print the table."""
    if sys.argv[1:2] == ["--child"]:
        path, source, tiny = sys.argv[2:]
        print(json.dumps(measure(Path(path), source, Path(tiny))))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path, metavar="MODEL.onnx")
    models = parser.parse_args().models
    with tempfile.TemporaryDirectory() as scratch:
        make_models(Path(scratch))
        tiny = Path(scratch) / "tiny.onnx"
        made = sorted(path for path in Path(scratch).glob("*.onnx") if path != tiny)
        print("| model | source | file, MiB | budget holds | high | of file and budget | left after close |")
        print("|---|---|--:|--:|--:|--:|--:|")
        for path in models or made:
            for source in SOURCES:
                command = [sys.executable, "-m", "bench.bench_load_memory", "--child", str(path), source, str(tiny)]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                found, size = json.loads(done.stdout), path.stat().st_size
                ratio = found["high"] / (size + found["held"])
                row = [size, found["held"], found["high"]]
                cells = " | ".join(f"{nbytes / 2**20:.1f}" for nbytes in row)
                print(f"| {path.stem} | {source} | {cells} | {ratio:.2f} | {found['left'] / 2**20:.1f} |", flush=True)


if __name__ == "__main__":
    main()
