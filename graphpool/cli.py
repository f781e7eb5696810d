"""The command ``graphpool``: one function a subcommand, each returning a report and whether all is well.

A report is a dict that ``--json`` prints as it is; otherwise it is printed as text, of some commands in brief unless
``--all`` is given.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

import graphpool as gp

from ._unraisable import interrupt_again
from .cli_bench import add_bench_options, measure, parse_peers
from .cli_cache import add_cache
from .cli_fleet import add_fleet_options, plan_fleet_of
from .cli_graph import (
    add_knobs,
    describe_array,
    describe_partition,
    for_each_form,
    inspect_form,
    is_graph_file,
    read_inputs,
    run_form,
    save_arrays,
)
from .cli_picture import add_picture_options, describe_pictures, describe_trace, runs_to_picture
from .cli_serve import add_serve_options, serve_models
from .cli_terminal import leave_pipe, progress, written
from .cli_text import print_report, printable
from .config import STREAM_POLICIES
from .drawing import describe_size
from .errors import GraphpoolError, InvalidArgumentError, explain
from .graph.graph import FPMATH_MODES
from .profile.tracing import trace_runs
from .runtime.model import WEIGHTS_MODES
from .runtime.model_port import describe_port
from .runtime.shape_ranges import RangePeak, ShapeRanges
from .typing import parse_nbytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from .profile import FootprintPicture
    from .runtime import Model
    from .runtime.model_form import Fallback

MIN_ACCURACY = 0.98
MOST_OFFSETS = 12
SHAPE_HELP = "shape of an input, or size of a named dimension; 1..8 instead of a number is a range, past+new a sum"
Report = dict[str, Any]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with these arguments, by default those of the process; returns its status.

    It is 0 when all is well, 1 when a check of the subcommand failed, 2 for an error, whose message goes to stderr, 130
    when it was interrupted, 141 when the reader of its output went away.
    """
    hook, sys.unraisablehook = sys.unraisablehook, interrupt_again(sys.unraisablehook)
    try:
        return _run(_parser().parse_args(argv))
    except BrokenPipeError:
        leave_pipe()
        return 141
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)
        print(f"graphpool: {printable(what)}", file=sys.stderr)
        return 2
    except (GraphpoolError, MemoryError) as error:
        print(f"graphpool: {printable(str(error))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    finally:
        sys.unraisablehook = hook


def _run(arguments: argparse.Namespace) -> int:
    with nullcontext() if arguments.command is serve else progress(f"graphpool {arguments.name}"):
        report, is_well = arguments.command(arguments)
    if arguments.json:
        print(json.dumps(report, indent=2), flush=True)
    else:
        print_report(report if arguments.all or arguments.brief is None else arguments.brief(report))
    return 0 if is_well else 1


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="graphpool", description="Run neural-network graphs inside a memory limit.")
    parser.add_argument("--version", action="version", version=gp.__version__)
    commands: Any = parser.add_subparsers(required=True, metavar="COMMAND")
    common = argparse.ArgumentParser(add_help=False)
    common.set_defaults(brief=None, all=False)
    common.add_argument("--json", action="store_true", help="print the report as JSON")
    engine = argparse.ArgumentParser(add_help=False, parents=[common])
    engine.add_argument(
        "--threads", type=int, metavar="N", help="threads of the engine (default: what the machine allows)"
    )
    engine.add_argument("--memory-limit", metavar="SIZE", help='most memory of the engine, such as "512MiB" or "60%%"')
    load = argparse.ArgumentParser(add_help=False)
    load.add_argument("--shape", action="append", default=[], metavar="NAME=2x3", help=SHAPE_HELP)
    load.add_argument("--weights", choices=WEIGHTS_MODES, default="scoped", help="where packed weights are kept")
    load.add_argument("--untrusted", action="store_true", help="the files are a stranger's: strict limits, no host")
    model = argparse.ArgumentParser(add_help=False, parents=[engine, load])
    model.add_argument("model", help="an ONNX file, or where the command says so a graph file")
    model.add_argument("--schedule", choices=STREAM_POLICIES, help="how steps are placed on streams (default: auto)")
    model.add_argument("--streams", type=int, metavar="N", help="most streams (default: 2)")
    model.add_argument("--fpmath", choices=FPMATH_MODES, default="strict", help="how float32 products may be rounded")

    def add(
        name: str, command: Callable[..., Any], text: str, *parents: argparse.ArgumentParser, brief: Any = None
    ) -> argparse.ArgumentParser:
        sub: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text, parents=parents)
        sub.set_defaults(command=command, name=name, brief=brief)
        if brief is not None:
            sub.add_argument("--all", action="store_true", help="print all of the report")
        return sub

    text = "Run the models that come with graphpool and check accuracy and predicted memory."
    add("demo", demo, text, engine, brief=_brief_demo)
    add("info", info, "Show versions, processor, instruction sets, threads and settings.", common)
    inspect_text = "Show the partitions of a model and how each is implemented, or those of a graph file (.json)."
    add_knobs(add("inspect", inspect, inspect_text, model, brief=_brief_inspect))
    predict_parser = add("predict", predict, "Predict the memory of a run without running.", model)
    predict_parser.add_argument(
        "--buffers", metavar="FILE", help="write what the arena is planned for, as `plan` reads it"
    )
    picture_text = "Run a model and draw its memory: the arena over time, and all that is held beside it."
    add_picture_options(add("footprint", footprint, picture_text, model))
    trace_text = "Run a model and record what each stream did when, and how much of the arena was in use, for Perfetto."
    trace_parser = add("trace", trace, trace_text, model)
    trace_parser.add_argument("--inputs", metavar="FILE", help="an .npz file with one array an input")
    trace_parser.add_argument("--out", metavar="FILE", required=True, help="write the trace to this .json file")
    add("process", process, "Run a model and show what the process's resident memory is then.", model)
    run_text = "Run a model or a graph file (.json) on inputs from an .npz file, or on random ones."
    run_parser = add("run", run, run_text, model)
    add_knobs(run_parser)
    run_parser.add_argument("--inputs", metavar="FILE", help="an .npz file with one array an input")
    run_parser.add_argument("--save", metavar="FILE", help="write the outputs to this .npz file")
    add_bench_options(add("bench", bench, "Time a model on random inputs, beside other engines if asked.", model))
    serve_text = "Serve models over HTTP by the Open Inference Protocol, until a signal ends it."
    add_serve_options(add("serve", serve, serve_text, engine, load))
    fleet_text = "Plan which machines run how many replicas of which models, and simulate how they answer."
    add_fleet_options(add("plan-fleet", plan_fleet, fleet_text, common, load))
    plan_text = "Plan the buffers of a CSV file (id, lower, upper, size)."
    plan_parser = add("plan", plan, plan_text, common, brief=_brief_plan)
    plan_parser.add_argument("file", help="a CSV file, such as predict --buffers writes; lifetimes are half-open")
    plan_parser.add_argument("--capacity", metavar="SIZE", help='what the plan should fit, such as "64MiB"')
    plan_parser.add_argument(
        "--deadline", type=float, default=0.0, metavar="SECONDS", help="time that an exact search may take"
    )
    cache_text = "Show the capacities of the caches, or judge policies on a trace of constants."
    add_cache(commands.add_parser("cache", help=cache_text, description=cache_text), common)
    return parser


class _Parser(argparse.ArgumentParser):
    """Tells who gives no command what there is."""

    def error(self, message: str) -> NoReturn:
        if "COMMAND" in message and "required" in message:
            self.print_help(sys.stderr)
            self.exit(2)
        super().error(message)


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
            "is_accurate": accuracy >= MIN_ACCURACY,
            "is_predicted": predicted == measured,
        }


def _brief_demo(report: Report) -> Report:
    """A row a model, and whether all is well."""
    rows = [
        {
            "model": name,
            "images": found["images"],
            "accuracy": f"{found['accuracy']:.2%}",
            **{f"{batch}_ms": milliseconds for batch, milliseconds in found["latency_ms"].items()},
            "predicted": describe_size(found["predicted_peak_nbytes"]),
            "measured": describe_size(found["measured_peak_nbytes"]),
        }
        for name, found in report["models"].items()
    ]
    found = report["models"].values()
    return {
        "models": rows,
        f"accuracy is {MIN_ACCURACY:.0%} at least": all(model["is_accurate"] for model in found),
        "memory was predicted to the byte": all(model["is_predicted"] for model in found),
        "more of this": "graphpool demo --all",
        "a model of yours": "graphpool inspect FILE, graphpool predict FILE",
    }


def info(arguments: argparse.Namespace) -> tuple[Report, bool]:
    """What graphpool found on this machine."""
    import platform

    from ._kernels.core import _dispatch
    from .config import VARIABLES, describe, origin
    from .runtime.threads import available_threads

    return {
        "graphpool": gp.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "machine": platform.machine(),
        "instruction_sets": _dispatch.isas(),
        "kernels": len(_dispatch.names()),
        "threads": available_threads(),
        "settings": [
            {"setting": variable.names[0], "value": describe(name), "from": origin(name), "meaning": variable.doc}
            for name, variable in VARIABLES.items()
        ],
    }, True


def inspect(arguments: argparse.Namespace) -> tuple[Report, bool]:
    """Partitions of a model, or of a graph in oneDNN's JSON form."""
    if is_graph_file(arguments):
        return for_each_form(arguments, inspect_form)
    with _packing_nothing(), _engine(arguments) as engine, _load(arguments, engine) as model:
        shapes = _largest_shapes(model, arguments)
        return {
            "inputs": {port.name: describe_port(port) for port in model.inputs},
            "outputs": {port.name: describe_port(port) for port in model.outputs},
            "partitions": _partitions(model, shapes),
            "conditions": list(model.specialise(shapes).conditions),
        }, True


@contextmanager
def _packing_nothing() -> Iterator[None]:
    """Weights are not packed meanwhile: who only looks at a model does not read them."""
    cache = gp.cache.constant_tensor_cache("cpu")
    capacity_nbytes = cache.capacity_nbytes
    cache.resize(0)
    try:
        yield
    finally:
        cache.resize(capacity_nbytes)


def _brief_inspect(report: Report) -> Report:
    """Without the comparisons of sizes, which are many and long."""
    count = len(report.get("conditions", ()))
    return report | {"conditions": f"{count} comparisons of sizes hold; --all prints them"} if count else report


def predict(arguments: argparse.Namespace) -> tuple[Report, bool]:
    """Memory of one run at a time; of declared ranges that of the worst shape."""
    with _engine(arguments) as engine, _load(arguments, engine) as model:
        given = None if _has_range(arguments) else _largest_shapes(model, arguments)
        peak = model.predict_peak(given)
        worst = peak if isinstance(peak, RangePeak) else None
        form = model.specialise(given if worst is None else worst.shapes)
        rest = form.run_nbytes + form.constants_nbytes + form.cached_nbytes
        if arguments.buffers:
            gp.memory.write_csv(arguments.buffers, form.buffers())
        return {
            "arena_nbytes": form.arena_nbytes,
            "constants_nbytes": form.constants_nbytes,
            "cached_nbytes": form.cached_nbytes,
            "programs_nbytes": form.programs_nbytes if worst is None else int(worst) - rest,  # of all forms
            "results_nbytes": form.results_nbytes,
            "host_nbytes": form.host_nbytes,
            "peak_nbytes": int(peak),
            "mapped_nbytes": peak.mapped_nbytes,
            "fixed_nbytes": peak.fixed_nbytes,
            "objects_nbytes": peak.objects_nbytes,
            "untouched_nbytes": peak.untouched_nbytes,
            "resident_nbytes": peak.resident_nbytes,
            "is_exact": peak.is_exact,
            "unbounded": list(peak.unbounded),
            "streams": form.streams,
            "sequential_peak_nbytes": form.sequential_peak_nbytes,
        } | _describe_worst(worst), True


def footprint(arguments: argparse.Namespace) -> tuple[Report, bool]:
    """A page with the memory of one run, or of two; how much each part of it takes."""
    with written(arguments.html) as path:
        pictures = [_picture(given) for given in runs_to_picture(arguments)]
        pictures[0].save(path, *pictures[1:])
    return {"html": arguments.html} | describe_pictures(pictures), True


def _picture(arguments: argparse.Namespace) -> FootprintPicture:
    with _engine(arguments) as engine, _load(arguments, engine) as model:
        return gp.profile.footprint(model, _inputs(model, arguments))


def trace(arguments: argparse.Namespace) -> tuple[Report, bool]:
    """A file for Perfetto; what took most of the time of the run."""
    with written(arguments.out) as path, _engine(arguments) as engine, _load(arguments, engine) as model:
        inputs = _inputs(model, arguments)
        recorded = trace_runs(model, inputs)
        recorded.name_ops(model.specialise(inputs))
        recorded.save(path)
    return {"out": arguments.out, "open with": "https://ui.perfetto.dev"} | describe_trace(recorded), True


def process(arguments: argparse.Namespace) -> tuple[Report, bool]:
    """Resident memory by what it is, while the results of one run are held."""
    with _engine(arguments) as engine, _load(arguments, engine) as model:
        results = model.run(_random_inputs(model, arguments))
        report = engine.process_report()
        del results
        return {
            "resident_nbytes": report.resident_nbytes,
            "parts": _in_bytes(report.parts),
            "counted": _in_bytes(report.holdings),
            "mapped_nbytes": report.mapped_nbytes,
            "fixed_nbytes": report.fixed_nbytes,
            "page_tables_nbytes": report.page_tables_nbytes,
            "is_slack_known": report.is_slack_known,
        }, True


def run(arguments: argparse.Namespace) -> tuple[Report, bool]:
    """One run; the outputs' shapes, types and ranges."""
    if is_graph_file(arguments):
        return for_each_form(arguments, run_form)
    with _engine(arguments) as engine, _load(arguments, engine) as model:
        inputs = _inputs(model, arguments)
        start = time.perf_counter()
        outputs = model.run(inputs)
        seconds = time.perf_counter() - start
        if arguments.save:
            save_arrays(arguments.save, outputs)
        return {
            "first_run_ms": seconds * 1e3,
            "streams": model.stats().streams,
            "outputs": {name: describe_array(array) for name, array in outputs.items()},
        }, True


def bench(arguments: argparse.Namespace) -> tuple[Report, bool]:
    """Latencies on random inputs, the first run apart."""
    peers = parse_peers(arguments.vs)
    with _engine(arguments) as engine:
        start = time.perf_counter()
        with _load(arguments, engine) as model:
            inputs = _random_inputs(model, arguments)
            model.run(inputs)
            first = time.perf_counter() - start
            return {
                "load_and_first_run_ms": first * 1e3,
                "engines": measure(model, inputs, arguments.model, arguments.seconds, peers),
                "peak_nbytes": engine.budget.peak,
            }, True


def serve(arguments: argparse.Namespace) -> tuple[Report, bool]:
    """Models behind HTTP; how many requests were answered with which status."""
    return serve_models(arguments, _shapes(arguments))


def plan_fleet(arguments: argparse.Namespace) -> tuple[Report, bool]:
    """Replicas of models onto machines; how they answer simulated requests."""
    return plan_fleet_of(arguments, _shapes(arguments))


def plan(arguments: argparse.Namespace) -> tuple[Report, bool]:
    """Offsets for the buffers of a file; well when they fit the capacity, where one is given."""
    buffers = gp.memory.read_csv(arguments.file)
    capacity = None if arguments.capacity is None else parse_nbytes(arguments.capacity)
    start = time.perf_counter()
    found: list[gp.memory.MemoryPlan] = []
    try:
        made = gp.memory.plan(buffers, capacity=capacity, deadline_s=arguments.deadline, on_improve=found.append)
        is_feasible = True
    except gp.OutOfMemoryError:
        made, is_feasible = found[-1], False
    seconds = time.perf_counter() - start
    return {
        "nbytes": made.nbytes,
        "lower_bound_nbytes": made.lower_bound,
        "ratio": made.ratio,
        "is_optimal": made.is_optimal,
        "feasible": is_feasible,
        "seconds": seconds,
        "offsets": {str(key): offset for key, offset in made.offsets.items()},
    }, is_feasible


def _brief_plan(report: Report) -> Report:
    """With the first offsets."""
    offsets = report["offsets"]
    rest = {"...": f"{len(offsets) - MOST_OFFSETS} more; --all prints them"} if len(offsets) > MOST_OFFSETS else {}
    return report | {"offsets": dict(list(offsets.items())[:MOST_OFFSETS]) | rest}


# ---- helpers


def _in_bytes(sizes: Mapping[str, int]) -> Report:
    """Sizes in bytes for a report."""
    return {f"{name.replace(' ', '_')}_nbytes": nbytes for name, nbytes in sizes.items()}


_INCOMPLETE = (
    "some shapes are compiled when they come, and may take more; a dimension that is as long as others together is "
    "declared as their sum, such as --shape total=past+new"
)


def _describe_worst(peak: RangePeak | None) -> Report:
    """Where in the declared ranges a run takes most, and how sure that is."""
    if peak is None:
        return {}
    found = {"at": peak.sizes, "is_exact": peak.is_exact, "is_complete": peak.is_complete}
    return found if peak.is_complete else found | {"hint": _INCOMPLETE}


def _engine(arguments: argparse.Namespace) -> gp.Engine:
    return gp.Engine(threads=arguments.threads, memory_limit=arguments.memory_limit)


def _load(arguments: argparse.Namespace, engine: gp.Engine) -> Model:
    names = ("schedule", "streams", "untrusted", "weights", "fpmath")
    options = {name: getattr(arguments, name) for name in names}
    shapes = _shapes(arguments) if _has_range(arguments) else None
    return gp.onnx.load(arguments.model, engine=engine, shapes=shapes, **options)


def _partitions(model: Model, shapes: Mapping[str, Any]) -> list[Report]:
    """The partitions of the form for these shapes, with the nodes that each comes from and what implements it.

    Those of a data-dependent part are the ones for its largest extents.
    """
    forms = model.specialise(shapes).with_inner()
    rows = [row for form in forms for row in zip(form.partitions, form.implementations, form.fallbacks, strict=True)]
    found = [describe_partition(partition, names) | _origin(partition, fallback) for partition, names, fallback in rows]
    hosted = [report for report, (*_, fallback) in zip(found, rows, strict=True) if fallback is not None]
    for report, seconds in zip(hosted, _host_times(model, shapes) if hosted else (), strict=False):
        report["ms"] = seconds * 1e3
    return found


def _origin(partition: gp.Partition, fallback: Fallback | None) -> Report:
    """The nodes of the model that a partition without kernels comes from, and why there are none."""
    if fallback is not None:
        return {"nodes": [f"{fallback.node} ({fallback.op_type})"], "reason": fallback.reason}
    if partition.backend_name in ("cpu", None):
        return {}
    nodes = [f"{op.name} ({op.kind})" for op in partition.ops]
    return {"nodes": nodes, "reason": "the CPU backend has no kernel for these types, shapes or attributes"}


def _host_times(model: Model, shapes: Mapping[str, Any]) -> list[float]:
    """Seconds of each host function in the second of two runs on random inputs; none if they cannot run on such."""
    from .profile.tracing import trace_runs

    with suppress(GraphpoolError, MemoryError):
        recorded = trace_runs(model, gp.profile.random_inputs(model, shapes), warm_up=1)
        return [(step.end_ns - step.start_ns) / 1e9 for step in recorded.steps if not step.program]
    return []


def _median_ms(model: Model, inputs: Mapping[str, Any], seconds: float) -> float:
    return float(measure(model, inputs, "", seconds, [])[0]["p50_ms"])


def _inputs(model: Model, arguments: argparse.Namespace) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of the file that is given, which must have the shapes that are asked for; else random ones."""
    if not arguments.inputs:
        return _random_inputs(model, arguments)
    arrays, names = read_inputs(arguments.inputs), {port.name for port in model.inputs}
    ShapeRanges(_shapes(arguments), model.inputs).check({name: arrays[name].shape for name in names & arrays.keys()})
    return arrays


def _random_inputs(model: Model, arguments: argparse.Namespace) -> dict[str, np.ndarray[Any, Any]]:
    """Content for the inputs, in the largest of the shapes that are asked for."""
    return gp.profile.random_inputs(model, _largest_shapes(model, arguments))


def _largest_shapes(model: Model, arguments: argparse.Namespace) -> dict[str, Any]:
    """The largest of the shapes that are asked for, by input."""
    return ShapeRanges(_shapes(arguments), model.inputs).largest_shapes()


def _shapes(arguments: argparse.Namespace) -> dict[str, Any]:
    """The shapes that are asked for, as `Model` takes them."""
    shapes: dict[str, Any] = {}
    for name, spans in map(_parse_shape, arguments.shape):
        if shapes.setdefault(name, spans) != spans:
            message = explain(f"--shape: {name!r} is given twice", accepted="one shape", got=", ".join(arguments.shape))
            raise InvalidArgumentError(message)
    return shapes


def _has_range(arguments: argparse.Namespace) -> bool:
    """Whether shapes are asked for of which the model has to serve all."""
    given = [spans for spans in _shapes(arguments).values() if not isinstance(spans, str)]
    return any(least != most for spans in given for least, most in spans)


def _parse_shape(text: str) -> tuple[str, list[tuple[int, int]] | str]:
    name, _, dims = text.rpartition("=")
    if name and "+" in dims:
        return name, dims
    spans = [dim.split("..") for dim in dims.split("x")]
    if not name or not all(len(span) <= 2 and all(end.isdecimal() and end.isascii() for end in span) for span in spans):
        raise InvalidArgumentError(
            explain("--shape", accepted="NAME=2x3, a range: NAME=1..8, or a sum of dimensions: NAME=A+B", got=text)
        )
    return name, [(int(span[0]), int(span[-1])) for span in spans]
