"""Does a run take what was predicted: of the budget to the byte, of the process's memory within three percent?

    python -m bench.bench_truth [--models FOLDER ...] [--random COUNT] [--sources file,bytes,proto]
        [--names A,B,...] [--json results.json] [--group FOLDER]

Without folders the models are made here; ``--random`` makes so many random ones instead. Each model, source and kind of
shapes has a process of its own, with one thread. Sizes that a file leaves open are 1 (``static``), or 1 to 3
(``varying``): then the shapes that take most are run. Axes behind the first are 64, or 64 to 96 where the model takes
all of these; first axes without a name are as long as one another. Inputs are random; where a model rejects their
content that is reported.

For models with sizes that depend on one another, or with inputs that are no data: an archive MODEL.npz or
MODEL.ANYTHING.npz beside the file has the inputs of the static rows, by name, or by name behind ``in.``. Where sizes
vary, they are the largest ones: open sizes that are equal there are declared to be equal, one that is the sum of two
others to be their sum, and sizes from 4 on vary by a third, where the model takes that. Inputs are cut to what is run.

Resident memory is the highest size of the process during the run (VmHWM, reset before it), and is predicted before
the run by ``predict_peak().resident_nbytes``. Of it stand apart tables in files in which the run looks up rows: what so
many rows bring in at most, which depends on the rows and on the system's cache.

Bars: counted predicted = counted measured, beside which stands what loading took where that is more, or counted
predicted >= measured where the prediction says that it is a bound; resident predicted >= measured, and measured >= 0.97
of what was predicted without such tables, and without what is reserved for host functions that may write less; of a
bound it is not asked. Rows of models with nodes of which only a run tells what they take, as the prediction says, stand
apart, and no bar is asked of them.

``--group`` names a folder of control groups of memory, as ``/sys/fs/cgroup/memory/NAME``, in which others may be made:
each static row then runs in one of its own too, with two threads, which allows 1.02 of what is predicted, less what is
resident of files, as such pages are charged to the group that has read them first. It tells the most that the group
took, or that its process was killed.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

SOURCES = ("file", "bytes", "proto")
SHAPES = ("static", "varying")
LEAST_RATIO = 0.97
FIRST_SPAN, LATER_SPAN = (1, 3), (64, 96)
"""Sizes that a file leaves open: of the first axis, of others."""
LIMITS = (
    (("memory.max", "memory.limit_in_bytes"), None),
    (("memory.swap.max",), 0),
    (("memory.memsw.limit_in_bytes",), None),
)
MOST = "memory.peak", "memory.max_usage_in_bytes"
"""Files of a control group, of either version: limits and their values, None for the limit; what it took."""


def status_nbytes(field: str) -> int:
    """A figure of /proc/self/status. Unit: bytes."""
    found = re.search(rf"^{field}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def read_source(path: Path, source: str) -> Any:
    """What `graphpool.onnx.load` is given."""
    import onnx

    if source == "file":
        return path
    data = path.read_bytes()
    return data if source == "bytes" else onnx.load_model_from_string(data)


def open_sizes(path: Path, later: tuple[int, int] = LATER_SPAN) -> dict[str, Any]:
    """What `shapes` declares for all sizes that a file leaves open, by input; first axes without a name are equal."""
    import onnx

    graph = onnx.load(path, load_external_data=False).graph
    known = {tensor.name for tensor in graph.initializer}
    found: dict[str, Any] = {}
    for port in graph.input:
        dims = port.type.tensor_type.shape.dim
        if port.name not in known and any(dim.dim_value <= 0 for dim in dims):
            spans = [FIRST_SPAN if axis == 0 else later for axis in range(len(dims))]
            if all(dim.dim_value > 0 or dim.dim_param.isidentifier() for dim in dims):
                found |= {dim.dim_param: span for dim, span in zip(dims, spans, strict=True) if dim.dim_param}
            else:
                entries: list[Any] = [d.dim_value if d.dim_value > 0 else s for d, s in zip(dims, spans, strict=True)]
                if entries[0] == FIRST_SPAN:
                    entries[0], found["first axis"] = "first axis", FIRST_SPAN
                found[port.name] = entries
    return found


def archived_inputs(path: Path) -> dict[str, Any]:
    """The inputs in the last archive beside a model; none where there is no archive."""
    archives = sorted([path.with_suffix(".npz"), *path.parent.glob(f"{path.stem}.*.npz")])
    archives = [archive for archive in archives if archive.exists()]
    if not archives:
        return {}
    with np.load(archives[-1], allow_pickle=True) as arrays:  # of texts
        names = [name for name in arrays if name not in ("meta",) and not name.startswith("ref.")]
        return {name.removeprefix("in."): arrays[name] for name in names}


def archived_sizes(path: Path, arrays: dict[str, Any], is_later_fixed: bool) -> dict[str, Any]:
    """What `shapes` declares for all sizes that a file leaves open, by those of its archived inputs."""
    import onnx

    declared: dict[str, Any] = {}
    found: set[int] = set()
    for port in onnx.load(path, load_external_data=False).graph.input:
        if port.name in arrays:
            sizes = [dim.dim_value for dim in port.type.tensor_type.shape.dim]
            now = arrays[port.name].shape
            found |= {own for size, own in zip(sizes, now, strict=True) if size <= 0}
            declared[port.name] = [size if size > 0 else f"of_{own}" for size, own in zip(sizes, now, strict=True)]
    sums = {a + b: f"of_{a} + of_{b}" for a in found for b in found if a < b and a + b in found}
    for size in found:
        least = 1 if size <= FIRST_SPAN[1] else size if is_later_fixed else size * 2 // 3
        declared[f"of_{size}"] = sums.get(size, (min(least, size), size))
    return declared if found else {}


def _least(spans: Any) -> Any:
    """The lower ends."""
    if isinstance(spans, tuple):
        return spans[0]
    return [_least(span) for span in spans] if isinstance(spans, list) else spans


def measure(path: Path, source: str, shapes: str, inputs_path: str) -> dict[str, Any]:
    """One prediction and one run, in this process, whose inputs are written to a file. Unit: bytes."""
    import graphpool as gp
    from graphpool.onnx.loader import importer
    from graphpool.profile import random_inputs
    from graphpool.runtime.shape_ranges import ShapeRanges

    importer()
    inputs, is_fewer = archived_inputs(path), shapes == "fewer"
    if inputs:
        sizes = archived_sizes(path, inputs, is_fewer)
    else:
        sizes = open_sizes(path, (LATER_SPAN[0],) * 2 if is_fewer else LATER_SPAN)
    declared = {} if shapes == "static" else sizes
    if shapes == "varying" and not declared:
        return {"skipped": "all sizes are fixed"}
    given = read_source(path, source)
    gc.collect()
    with gp.Engine(threads=1) as engine, gp.onnx.load(given, engine=engine, shapes=declared or None) as model:
        is_planned = bool(declared)
        try:
            run_shapes = getattr(model.predict_peak(), "shapes", None) if declared else None
        except gp.InvalidArgumentError:  # contents decide shapes: each run has a prediction of its own
            is_planned, run_shapes = False, None
        if inputs and run_shapes is not None:
            inputs = {
                name: np.ascontiguousarray(array[tuple(map(slice, run_shapes[name]))]) for name, array in inputs.items()
            }
        elif not inputs:
            smallest = ShapeRanges({name: _least(spans) for name, spans in sizes.items()}, model.inputs)
            inputs = random_inputs(model, run_shapes or smallest.largest_shapes())
        if "ids" in inputs:  # of our table, all rows of which are to be read
            inputs["ids"] = np.random.default_rng(0).integers(0, 16384, inputs["ids"].shape)
        np.savez(inputs_path, **inputs)
        peak = model.predict_peak() if is_planned else model.predict_peak(inputs)
        gc.collect()
        load_peak, predicted, resident = engine.budget.peak, int(peak), peak.resident_nbytes
        Path("/proc/self/clear_refs").write_text("5")
        results = model.run(inputs)
        measured, high, report = engine.budget.peak, status_nbytes("VmHWM"), engine.process_report()
        del results
    least = resident - peak.lookup_nbytes - peak.reserved_nbytes - peak.objects_nbytes
    return {
        "counted_predicted": predicted,
        "counted_measured": measured,
        "load_peak": load_peak,
        "resident_predicted": resident,
        "resident_measured": high,
        "resident_ratio": high / least,
        "lookup_predicted": peak.lookup_nbytes,
        "parts": report.parts,
        "unbounded": list(peak.unbounded),
        "is_bound": not peak.is_exact,
        "is_exact": measured == max(predicted, load_peak) or (not peak.is_exact and measured <= predicted),
        "is_within": high <= resident and (not peak.is_exact or high >= LEAST_RATIO * least),
    }


def run_alone(path: Path, source: str, inputs_path: str, nruns: str) -> None:
    """Tell what a control group has to allow, and run."""
    import graphpool as gp

    given = read_source(path, source)
    with np.load(inputs_path, allow_pickle=True) as arrays:
        inputs = dict(arrays)
    with gp.Engine(threads=2) as engine, gp.onnx.load(given, engine=engine) as model:
        print(int(model.predict_peak(inputs).resident_nbytes * 1.02) - status_nbytes("RssFile"))
        for _ in range(int(nruns)):
            model.run(inputs)


def confine(path: Path, source: str, inputs_path: str, folder: Path) -> str:
    """What came of the runs in a group that allows little more than is predicted."""
    command = [sys.executable, "-m", "bench.bench_truth", "--alone", str(path), source, inputs_path]
    told = subprocess.run([*command, "0"], capture_output=True, text=True, check=True)
    limit = int(told.stdout)
    group = folder / f"truth-{os.getpid()}"
    group.mkdir()
    try:
        for names, value in LIMITS:
            for name in names:
                if (group / name).exists():
                    (group / name).write_text(str(limit if value is None else value))
        entering = ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(group / "cgroup.procs")]
        done = subprocess.run([*entering, *command, "3"], capture_output=True, text=True, check=False)
        most = next(group / name for name in MOST if (group / name).exists())
        taken = f"{int(most.read_text()) / 2**20:.1f} of {limit / 2**20:.1f} MiB"
        return taken if done.returncode == 0 else f"status {done.returncode}: {taken}"
    finally:
        group.rmdir()


class ModelWriter:
    """Writes models of float32 to a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.rng = folder, np.random.default_rng(0)

    def normal(self, *shape: int) -> Any:
        """A weight."""
        return self.rng.standard_normal(shape, np.float32)

    def save(self, name: str, nodes: list[Any], inputs: dict[str, Any], output: str, weights: dict[str, Any]) -> None:
        """Write one; an input that is called ids has integers."""
        from onnx import TensorProto, helper, numpy_helper

        kinds = {"ids": TensorProto.INT64}
        infos = [
            helper.make_tensor_value_info(key, kinds.get(key, TensorProto.FLOAT), dims) for key, dims in inputs.items()
        ]
        tensors = [numpy_helper.from_array(array, key) for key, array in weights.items()]
        result = helper.make_tensor_value_info(output, TensorProto.FLOAT, None)
        graph = helper.make_graph(nodes, name, infos, [result], tensors)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
        (self.folder / f"{name}.onnx").write_bytes(model.SerializeToString())


def make_models(folder: Path) -> None:
    """A product of large weights, convolutions, a table, large results, and open sizes."""
    from onnx import helper

    writer = ModelWriter(folder)
    make, save, normal = helper.make_node, writer.save, writer.normal
    layers = [make("MatMul", [f"h{k}", f"w{k}"], [f"h{k + 1}"]) for k in range(4)]
    save("products", layers, {"h0": ["rows", 2048]}, "h4", {f"w{k}": normal(2048, 2048) for k in range(4)})
    convolutions = [
        make("Conv", [f"h{k}", f"w{k}"], [f"h{k + 1}"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]) for k in range(3)
    ]
    weights = {f"w{k}": normal(256, 256 if k else 3, 3, 3) for k in range(3)}
    save("convolutions", convolutions, {"h0": [1, 3, 64, 64]}, "h3", weights)
    table = {"table": normal(16384, 512), "axis": np.array([1])}
    save("table", [make("Gather", ["table", "ids"], ["y"])], {"ids": ["batch", 16384]}, "y", table)
    tiles = {"repeats": np.array([64, 1])}
    save("results", [make("Tile", ["x", "repeats"], ["y"])], {"x": ["rows", 65536]}, "y", tiles)


def make_random_models(folder: Path, count: int) -> None:
    """Chains of products or convolutions of random sizes, with elementwise ops, softmax and sums with what was before.

    Every second one leaves the size of its batch open.
    """
    from onnx import helper

    writer = ModelWriter(folder)
    rng, make = writer.rng, helper.make_node
    for number in range(count):
        is_image = bool(rng.integers(2))
        width, side = int(rng.integers(8, 513)), int(rng.integers(8, 65))
        batch = "rows" if number % 2 else int(rng.integers(1, 9))
        shape = [batch, width, side, side] if is_image else [batch, int(rng.integers(1, 257)), width]
        nodes, weights = [], {}
        for k in range(int(rng.integers(2, 13))):
            x, y = f"h{k}", f"h{k + 1}"
            op = str(rng.choice(["weight", "weight", "Relu", "Sigmoid", "Softmax", "Add"]))
            if op == "weight":
                out = int(rng.integers(8, 513))
                weights[f"w{k}"] = writer.normal(out, width, 3, 3) if is_image else writer.normal(width, out)
                window = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]} if is_image else {}
                nodes.append(make("Conv" if is_image else "MatMul", [x, f"w{k}"], [y], **window))
                width = out
            else:
                nodes.append(make(op, [x, x] if op == "Add" else [x], [y]))
        writer.save(f"random_{number}", nodes, {"h0": shape}, f"h{len(nodes)}", weights)


def run_one(path: Path, source: str, shapes: str, inputs_path: str, limit_s: float) -> dict[str, Any]:
    """The same in a fresh process."""
    command = [sys.executable, "-m", "bench.bench_truth", "--child", str(path), source, shapes, inputs_path]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        return {"failed": f"no result in {limit_s:g} s"}
    if done.returncode:
        return {"failed": (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1][:200]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def is_equal(found: dict[str, Any]) -> bool:
    """Whether what was counted is what was predicted, or what loading took."""
    return bool(found["counted_measured"] == max(found["counted_predicted"], found["load_peak"]))


def describe(found: dict[str, Any]) -> str:
    """A row of the table."""
    if "counted_predicted" not in found:
        return f"| {found.get('skipped') or found.get('failed')} | | | | | | |"
    names = "resident_predicted", "lookup_predicted", "resident_measured"
    sizes = [f"{found[name] / 2**20:.2f}" for name in names]
    is_load = is_equal(found) and found["load_peak"] > found["counted_predicted"]
    exact = "=" if is_equal(found) else f"{found['counted_measured'] - found['counted_predicted']:+}"
    exact += f" (load {found['load_peak']})" if is_load else ""
    exact += " (bound)" if found["is_bound"] and not found["unbounded"] else ""
    exact += f" (only a run tells: {', '.join(found['unbounded'])})" if found["unbounded"] else ""
    sizes.append(f"{found['resident_ratio']:.3f}")
    return f"| {found['counted_predicted']} | {exact} | {' | '.join(sizes)} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--child", nargs=4, metavar=("MODEL", "SOURCE", "SHAPES", "INPUTS"))
    parser.add_argument("--alone", nargs=4, metavar=("MODEL", "SOURCE", "INPUTS", "RUNS"))
    parser.add_argument("--group", type=Path, metavar="FOLDER")
    parser.add_argument("--models", action="append", default=[], metavar="FOLDER")
    parser.add_argument("--random", type=int, default=0, metavar="COUNT")
    parser.add_argument("--names", help="of the models to take; default: all")
    parser.add_argument("--sources", default=",".join(SOURCES))
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--limit-s", type=float, default=120.0, help="time for each process")
    arguments = parser.parse_args()
    if arguments.child:
        path, *rest = arguments.child
        print(json.dumps(measure(Path(path), *rest)))
        return
    if arguments.alone:
        path, *rest = arguments.alone
        run_alone(Path(path), *rest)
        return
    with tempfile.TemporaryDirectory() as scratch:
        folders = [Path(name) for name in arguments.models] or [Path(scratch)]
        if not arguments.models:
            make_random_models(folders[0], arguments.random) if arguments.random else make_models(folders[0])
        rows, inputs_path = [], str(Path(scratch) / "inputs.npz")
        print(
            "| model | source | shapes | counted bytes | measured | resident MiB | of it lookups | measured | ratio |"
        )
        print("|---|---|---|--:|--:|--:|--:|--:|--:|")
        names = arguments.names.split(",") if arguments.names else None
        for path in sorted(path for folder in folders for path in folder.glob("*.onnx")):
            if names is not None and path.stem not in names:
                continue
            for shapes in arguments.shapes.split(","):
                for source in arguments.sources.split(","):
                    found = run_one(path, source, shapes, inputs_path, arguments.limit_s)
                    if shapes == "varying" and "failed" in found:  # sizes of which a model wants multiples
                        found = run_one(path, source, "fewer", inputs_path, arguments.limit_s)
                    rows.append({"model": path.stem, "source": source, "shapes": shapes} | found)
                    print(f"| {path.stem} | {source} | {shapes} {describe(found)}", flush=True)
                    if arguments.group and shapes == "static" and "failed" not in found:
                        print(f"in a group: {confine(path, source, inputs_path, arguments.group)}", flush=True)
    done = [row for row in rows if "counted_predicted" in row and not row["unbounded"]]
    exact, within = (sum(row[name] for row in done) for name in ("is_exact", "is_within"))
    bounds, untold = sum(row["is_bound"] for row in done), sum(bool(row.get("unbounded")) for row in rows)
    print(f"\n{exact} of {len(done)} counted as predicted, {bounds} of them by a bound; {within} of the resident size;")
    print(f"of {untold} more only a run tells")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
