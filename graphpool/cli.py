"""The command ``graphpool``: one function a subcommand, each returning a report and whether all is well.

A report is a dict that ``--json`` prints as it is; otherwise `_show` prints it as text.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np

import graphpool as gp

from .cli_cache import add_cache
from .cli_graph import (
    add_knobs,
    describe_array,
    describe_partition,
    for_each_form,
    inspect_form,
    is_graph_file,
    read_inputs,
    run_form,
)
from .config import STREAM_POLICIES
from .errors import GraphpoolError, InvalidArgumentError, explain
from .runtime.model_port import describe_port
from .runtime.shape_ranges import RangePeak, ShapeRanges

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .runtime import Model
    from .runtime.model_form import Fallback

MIN_ACCURACY = 0.98
SHAPE_HELP = "shape of an input, or size of a named dimension; 1..8 instead of a number is a range"
Report = dict[str, Any]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with these arguments, by default those of the process; returns its status.

    It is 0 when all is well, 1 when a check of the subcommand failed, 2 for an error, whose message goes to stderr.
    """
    arguments = _parser().parse_args(argv)
    try:
        report, is_well = arguments.command(arguments)
    except (GraphpoolError, OSError) as error:
        print(f"graphpool: {error}", file=sys.stderr)
        return 2
    print(json.dumps(report, indent=2) if arguments.json else _as_text(report))
    return 0 if is_well else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="graphpool", description="Run neural-network graphs inside a memory limit.")
    parser.add_argument("--version", action="version", version=gp.__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--json", action="store_true", help="print the report as JSON")
    engine = argparse.ArgumentParser(add_help=False, parents=[common])
    engine.add_argument("--threads", type=int, help="threads of the engine (default: what the machine allows)")
    engine.add_argument("--memory-limit", help='most memory of the engine, such as "512MiB"')
    model = argparse.ArgumentParser(add_help=False, parents=[engine])
    model.add_argument("model", help="an ONNX file, or where the command says so a graph file")
    model.add_argument("--schedule", choices=STREAM_POLICIES, help="how steps are placed on streams (default: auto)")
    model.add_argument("--streams", type=int, help="most streams (default: 2)")
    model.add_argument("--untrusted", action="store_true", help="the file is a stranger's: strict limits, no host")
    model.add_argument("--shape", action="append", default=[], metavar="NAME=2x3", help=SHAPE_HELP)

    def add(name: str, command: Callable[..., Any], text: str, parent: argparse.ArgumentParser) -> Any:
        sub = commands.add_parser(name, help=text, description=text, parents=[parent])
        sub.set_defaults(command=command)
        return sub

    add("demo", demo, "Run the models that come with graphpool and check accuracy and predicted memory.", engine)
    add("info", info, "Show versions, processor, instruction sets and threads.", common)
    inspect_text = "Show the partitions of a model and how each is implemented, or those of a graph file (.json)."
    add_knobs(add("inspect", inspect, inspect_text, model))
    add("predict", predict, "Predict the memory of a run without running.", model)
    run_text = "Run a model or a graph file (.json) on inputs from an .npz file, or on random ones."
    run_parser = add("run", run, run_text, model)
    add_knobs(run_parser)
    run_parser.add_argument("--inputs", help="an .npz file with one array an input")
    run_parser.add_argument("--save", help="write the outputs to this .npz file")
    run_parser.add_argument("--trace", help="write what each stream did in another run to this file, for Perfetto")
    bench_parser = add("bench", bench, "Time a model on random inputs.", model)
    bench_parser.add_argument("--seconds", type=float, default=2.0, help="time at least this long (default: 2)")
    plan_parser = add("plan", plan, "Plan the buffers of a CSV file (id, lower, upper, size).", common)
    plan_parser.add_argument("file", help="a CSV file; lifetimes are half-open")
    plan_parser.add_argument("--capacity", type=int, help="bytes that the plan should fit")
    plan_parser.add_argument("--deadline", type=float, default=0.0, help="seconds that an exact search may take")
    cache_text = "Show the capacities of the caches, or judge policies on a trace of constants."
    add_cache(commands.add_parser("cache", help=cache_text, description=cache_text), common)
    return parser


# ---- subcommands


def demo(arguments: argparse.Namespace) -> tuple[Report, bool]:
    """Run both digit models on the held-out images; well when accuracy and the memory prediction hold."""
    from . import demo as data

    models = {name: _demo_model(name, arguments) for name in data.MODELS}
    return {"models": models}, all(report["is_accurate"] and report["is_predicted"] for report in models.values())


def _demo_model(name: str, arguments: argparse.Namespace) -> Report:
    from . import demo as data

    images, labels = data.test_images()
    with _engine(arguments) as engine, gp.onnx.load(data.model_path(name), engine=engine) as model:
        predicted = model.predict_peak({"image": images.shape})
        probabilities = model.run({"image": images})["probabilities"]
        accuracy = float((probabilities.argmax(axis=1) == labels).mean())
        measured = engine.budget.peak
        one = {"image": images[:1]}
        model.run(one)
        return {
            "partitions": _partitions(model, one),
            "images": len(images),
            "accuracy": accuracy,
            "latency_ms": {
                f"batch {len(images)}": _median_ms(model, {"image": images}, 0.5),
                "batch 1": _median_ms(model, one, 0.25),
            },
            "predicted_peak_nbytes": predicted,
            "measured_peak_nbytes": measured,
            "cache": _cache_stats(model),
            "is_accurate": accuracy >= MIN_ACCURACY,
            "is_predicted": predicted == measured,
        }


def info(arguments: argparse.Namespace) -> tuple[Report, bool]:
    """What graphpool found on this machine."""
    import platform

    from ._kernels.core import _dispatch
    from .config import VARIABLES
    from .runtime.threads import available_threads

    return {
        "graphpool": gp.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "machine": platform.machine(),
        "instruction_sets": _dispatch.isas(),
        "kernels": len(_dispatch.names()),
        "threads": available_threads(),
        "variables": {variable.names[0]: variable.doc for variable in VARIABLES.values()},
    }, True


def inspect(arguments: argparse.Namespace) -> tuple[Report, bool]:
    """Partitions of a model, or of a graph in oneDNN's JSON form."""
    if is_graph_file(arguments):
        return for_each_form(arguments, inspect_form)
    with _engine(arguments) as engine, _load(arguments, engine) as model:
        inputs = _random_inputs(model, arguments)
        return {
            "inputs": {port.name: describe_port(port) for port in model.inputs},
            "outputs": {port.name: describe_port(port) for port in model.outputs},
            "partitions": _partitions(model, inputs),
            "conditions": list(model.specialise(inputs).conditions),
        }, True


def predict(arguments: argparse.Namespace) -> tuple[Report, bool]:
    """Memory of one run at a time; of declared ranges that of the worst shape."""
    with _engine(arguments) as engine, _load(arguments, engine) as model:
        worst = model.predict_peak() if _has_range(arguments) else None
        assert worst is None or isinstance(worst, RangePeak)
        form = model.specialise(_random_inputs(model, arguments) if worst is None else worst.shapes)
        rest = form.run_nbytes + form.constants_nbytes + form.cached_nbytes
        return {
            "arena_nbytes": form.arena_nbytes,
            "constants_nbytes": form.constants_nbytes,
            "cached_nbytes": form.cached_nbytes,
            "programs_nbytes": form.programs_nbytes if worst is None else int(worst) - rest,  # of all forms
            "results_nbytes": form.results_nbytes,
            "host_nbytes": form.host_nbytes,
            "peak_nbytes": form.peak_nbytes if worst is None else int(worst),
            "streams": form.streams,
            "sequential_peak_nbytes": form.sequential_peak_nbytes,
        } | _describe_worst(worst), True


def run(arguments: argparse.Namespace) -> tuple[Report, bool]:
    """One run; the outputs' shapes, types and ranges."""
    if is_graph_file(arguments):
        return for_each_form(arguments, run_form)
    with _engine(arguments) as engine, _load(arguments, engine) as model:
        inputs = read_inputs(arguments.inputs) if arguments.inputs else _random_inputs(model, arguments)
        start = time.perf_counter()
        outputs = model.run(inputs)
        seconds = time.perf_counter() - start
        if arguments.save:
            np.savez(arguments.save, **outputs)
        if arguments.trace:
            _save_trace(model, inputs, arguments.trace)
        return {
            "first_run_ms": seconds * 1e3,
            "streams": model.stats().streams,
            "outputs": {name: describe_array(array) for name, array in outputs.items()},
        }, True


def bench(arguments: argparse.Namespace) -> tuple[Report, bool]:
    """Median latency on random inputs, the first run apart."""
    with _engine(arguments) as engine:
        start = time.perf_counter()
        with _load(arguments, engine) as model:
            inputs = _random_inputs(model, arguments)
            model.run(inputs)
            first = time.perf_counter() - start
            median = _median_ms(model, inputs, arguments.seconds)
            return {
                "load_and_first_run_ms": first * 1e3,
                "median_ms": median,
                "peak_nbytes": engine.budget.peak,
                "cache": _cache_stats(model),
            }, True


def plan(arguments: argparse.Namespace) -> tuple[Report, bool]:
    """Offsets for the buffers of a file; well when they fit the capacity, where one is given."""
    buffers = gp.memory.read_csv(arguments.file)
    start = time.perf_counter()
    try:
        made = gp.memory.plan(buffers, capacity=arguments.capacity, deadline_s=arguments.deadline)
        is_feasible = True
    except gp.OutOfMemoryError:
        made = gp.memory.plan(buffers)
        is_feasible = False
    seconds = time.perf_counter() - start
    return {
        "nbytes": made.nbytes,
        "lower_bound": made.lower_bound,
        "ratio": made.ratio,
        "is_optimal": made.is_optimal,
        "feasible": is_feasible,
        "seconds": seconds,
        "offsets": {str(key): offset for key, offset in made.offsets.items()},
    }, is_feasible


# ---- helpers


def _describe_worst(peak: RangePeak | None) -> Report:
    """Where in the declared ranges a run takes most, and how sure that is."""
    if peak is None:
        return {}
    return {"at": peak.sizes, "is_exact": peak.is_exact, "is_complete": peak.is_complete}


def _engine(arguments: argparse.Namespace) -> gp.Engine:
    return gp.Engine(threads=arguments.threads, memory_limit=arguments.memory_limit)


def _load(arguments: argparse.Namespace, engine: gp.Engine) -> Model:
    options = {name: getattr(arguments, name) for name in ("schedule", "streams", "untrusted")}
    shapes = _shapes(arguments) if _has_range(arguments) else None
    return gp.onnx.load(arguments.model, engine=engine, shapes=shapes, **options)


def _save_trace(model: Model, inputs: Mapping[str, Any], path: str) -> None:
    """Trace one run, after enough of them for programs to have found out how many threads they are worth."""
    from .profile.timeline import WARM_UP

    for _ in range(WARM_UP):
        model.run(inputs)
    with gp.profile.trace() as recorded:
        model.run(inputs)
    recorded.save(path)


def _partitions(model: Model, inputs: Mapping[str, Any]) -> list[Report]:
    """The partitions of the form for these inputs, with what implements each."""
    form = model.specialise(inputs)
    rows = zip(form.partitions, form.implementations, form.fallbacks, strict=True)
    return [describe_partition(partition, names) | _origin(partition, fallback) for partition, names, fallback in rows]


def _origin(partition: gp.Partition, fallback: Fallback | None) -> Report:
    """The nodes of the model that a partition without kernels comes from, and why there are none."""
    if fallback is not None:
        return {"nodes": [f"{fallback.node} ({fallback.op_type})"], "reason": fallback.reason}
    if partition.backend_name in ("cpu", None):
        return {}
    nodes = [f"{op.name} ({op.kind})" for op in partition.ops]
    return {"nodes": nodes, "reason": "the CPU backend has no kernel for these types, shapes or attributes"}


def _cache_stats(model: Model) -> Report:
    from .cache import primitive_cache

    stats, primitives = model.stats(), primitive_cache().stats()
    return {
        "specialised_forms": {
            "hits": stats.hits, "misses": stats.misses, "evictions": stats.evictions, "entries": stats.forms,
        },
        "primitives": {
            "hits": primitives.hits, "misses": primitives.misses, "evictions": primitives.evictions,
            "entries": primitives.entries, "nbytes": primitives.nbytes,
        },
    }  # fmt: skip


def _median_ms(model: Model, inputs: Mapping[str, Any], seconds: float) -> float:
    model.run(inputs)
    times: list[float] = []
    begin = time.perf_counter()
    while len(times) < 3 or time.perf_counter() - begin < seconds:
        start = time.perf_counter()
        model.run(inputs)
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


def _random_inputs(model: Model, arguments: argparse.Namespace) -> dict[str, np.ndarray[Any, Any]]:
    """Content for the inputs, in the largest of the shapes that are asked for."""
    return gp.profile.random_inputs(model, ShapeRanges(_shapes(arguments), model.inputs).largest_shapes())


def _shapes(arguments: argparse.Namespace) -> dict[str, Any]:
    """The shapes that are asked for, as `Model` takes them."""
    return dict(map(_parse_shape, arguments.shape))


def _has_range(arguments: argparse.Namespace) -> bool:
    """Whether shapes are asked for of which the model has to serve all."""
    return any(least != most for spans in _shapes(arguments).values() for least, most in spans)


def _parse_shape(text: str) -> tuple[str, list[tuple[int, int]]]:
    name, _, dims = text.rpartition("=")
    spans = [dim.split("..") for dim in dims.split("x")]
    if not name or not all(len(span) <= 2 and all(end.isdecimal() and end.isascii() for end in span) for span in spans):
        raise InvalidArgumentError(explain("--shape", accepted="NAME=2x3, or a range: NAME=1..8", got=text))
    return name, [(int(span[0]), int(span[-1])) for span in spans]


# ---- text


def _as_text(report: Report, indent: str = "") -> str:
    """A report for people: nested names are indented, lists of reports become tables, bytes get units."""
    lines = []
    for key, value in report.items():
        if isinstance(value, dict) and value:
            lines += [f"{indent}{key}:", _as_text(value, indent + "  ")]
        elif key == "partitions":
            lines += [f"{indent}partitions:", *(f"{indent}  {line}" for line in _table(value))]
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            lines += [f"{indent}{key}:", *(f"{indent}  {line}" for line in _columns(value))]
        else:
            lines.append(f"{indent}{key}: {_value(key, value)}")
    return "\n".join(lines)


def _table(partitions: Sequence[Report]) -> list[str]:
    rows = []
    for number, partition in enumerate(partitions):
        ops = "+".join(partition["ops"][:6]) + ("+..." if len(partition["ops"]) > 6 else "")
        names = ", ".join(partition["implementations"]) or f"{partition['backend']} (no step of its own)"
        if "reason" in partition:
            names += f": {', '.join(partition['nodes'])}: {partition['reason']}"
        rows.append((f"{number:3}", ops, names))
    width = max((len(row[1]) for row in rows), default=0)
    return [f"{number}  {ops:<{width}}  {names}" for number, ops, names in rows]


def _columns(rows: Sequence[Report]) -> list[str]:
    """Rows of the same names under their names, those of nested reports included."""
    flat = [_flatten(row) for row in rows]
    cells = [list(flat[0]), *([_value(key, value) for key, value in row.items()] for row in flat)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True)) for line in cells]


def _flatten(row: Report) -> Report:
    flat: Report = {}
    for key, value in row.items():
        flat |= value if isinstance(value, dict) else {key: value}
    return flat


def _value(key: str, value: Any) -> str:
    if key.endswith("nbytes") and value is not None:
        return f"{value} ({value / 2**20:.2f} MiB)"
    if isinstance(value, float):
        return f"{value:.4g}"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
