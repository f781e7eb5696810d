"""``graphpool inspect`` and ``graphpool run`` on graphs in oneDNN's JSON form, with benchdnn's knobs as options."""

from __future__ import annotations

import os
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import numpy as np

import graphpool as gp

from .cli_terminal import written
from .errors import InvalidArgumentError, InvalidDataTypeError, InvalidShapeError, explain
from .graph.dumps.apply_knobs import unknown_ids
from .graph.dumps.json import read_graph
from .graph.dumps.knobs import KNOBS, expand_knobs, parse_knobs
from .mapped_file import open_regular
from .typing import DataType

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping, Sequence

    from .graph.dumps.json import GraphFile

_CHUNK = 1 << 20
"""Elements of random content that are made at a time."""

_ARCHIVE_ERRORS = (BadZipFile, zlib.error)

Report = dict[str, Any]


def is_graph_file(arguments: argparse.Namespace) -> bool:
    """Whether the file holds a graph, not a model; InvalidArgumentError for options of the other kind."""
    given = [name for name in KNOBS if getattr(arguments, name.replace("-", "_"))]
    is_graph = Path(arguments.model).suffix == ".json"
    if given and not is_graph:
        raise InvalidArgumentError(explain(f"--{given[0]}", accepted="with a graph file (.json)", got=arguments.model))
    if arguments.shape and is_graph:
        hint = "--in-shapes ID:2x3 changes a graph file"
        raise InvalidArgumentError(explain("--shape", accepted="with an ONNX file", got=arguments.model, hint=hint))
    return is_graph


def add_knobs(parser: argparse.ArgumentParser) -> None:
    """Add an option for each knob."""
    group = parser.add_argument_group(
        "graph files", "benchdnn's knobs; commas separate alternatives, each of which runs"
    )
    for name, (form, text) in KNOBS.items():
        group.add_argument(f"--{name}", default="", metavar=form.replace("%", "%%"), help=text)


def for_each_form(
    arguments: argparse.Namespace, command: Callable[[gp.Graph, argparse.Namespace], Report]
) -> tuple[Report, bool]:
    """Run a command on every form that the knobs give a graph; well when all have the partitions that are expected.

    One form gives its own report, several give one report each under the knobs that make it.
    """
    file = read_graph(arguments.model, gp.Limits.strict() if arguments.untrusted else gp.Limits())
    texts = {name: getattr(arguments, name.replace("-", "_")) for name in KNOBS}
    reports: dict[str, Report] = {}
    for chosen in expand_knobs(texts):
        report = reports[_label(chosen)] = _form(file, chosen, arguments, command)
    is_well = all(report.get("is_expected", True) for report in reports.values())
    return (report if len(reports) == 1 else {"forms": reports}), is_well


def _label(chosen: Mapping[str, str]) -> str:
    return " ".join(f"--{name}={text}" for name, text in chosen.items()) or "as it is"


def _form(
    file: GraphFile,
    chosen: Mapping[str, str],
    arguments: argparse.Namespace,
    command: Callable[[gp.Graph, argparse.Namespace], Report],
) -> Report:
    knobs = parse_knobs(chosen)
    form = file.build(gp.Graph, "cpu", knobs if chosen else None)
    form.finalize()
    report: Report = {"graph": repr(form)} | command(form, arguments)
    if passed_over := unknown_ids(file.ops, knobs):
        report["not_in_the_graph"] = passed_over
    if expected := knobs.expected_partitions:
        report |= {"expected_partitions": expected, "is_expected": expected == len(report["partitions"])}
    return report


# ---- commands


def inspect_form(graph: gp.Graph, arguments: argparse.Namespace) -> Report:
    """The partitions of a graph."""
    return {"partitions": [describe_partition(partition, ()) for partition in graph.get_partitions()]}


def run_form(graph: gp.Graph, arguments: argparse.Namespace) -> Report:
    """One run through all partitions, on the arrays of a file or on random content; what leaves the graph."""
    partitions = graph.get_partitions()
    given = read_inputs(arguments.inputs) if arguments.inputs else {}
    with gp.Engine(threads=arguments.threads, memory_limit=arguments.memory_limit) as engine:
        stream = gp.Stream(engine)
        tensors: dict[int, gp.Tensor] = {}
        described = []
        start = time.perf_counter()
        for number, partition in enumerate(partitions):
            for port in partition.input_ports:
                if port.id not in tensors:
                    tensors[port.id] = _input(graph, port, engine, given)
            described.append(_run_partition(partition, engine, stream, tensors))
            _forget(tensors, partitions[: number + 1], partitions[number + 1 :])
        seconds = time.perf_counter() - start
        outputs: dict[str, Any] = {str(n): np.array(tensor.numpy()) for n, tensor in sorted(tensors.items())}
    if arguments.save:
        save_arrays(arguments.save, outputs)
    return {
        "partitions": described,
        "first_run_ms": seconds * 1e3,
        "outputs": {name: describe_array(array) for name, array in outputs.items()},
    }


def _run_partition(
    partition: gp.Partition, engine: gp.Engine, stream: gp.Stream, tensors: dict[int, gp.Tensor]
) -> Report:
    """Compile and execute a partition on tensors, and put its results among them."""
    inputs = [tensors[port.id] for port in partition.input_ports]
    wanted = [port.replace(layout="strided") for port in partition.output_ports]
    with partition.compile([tensor.lt for tensor in inputs], wanted, engine) as compiled:
        outputs = [gp.Tensor(compiled.query_logical_tensor(port.id), engine) for port in wanted]
        compiled.execute(stream, inputs, outputs)
        tensors.update((tensor.lt.id, tensor) for tensor in outputs)
        return describe_partition(partition, compiled.implementations)


def _forget(tensors: dict[int, gp.Tensor], done: Sequence[gp.Partition], coming: Sequence[gp.Partition]) -> None:
    """Drop the tensors that were read for the last time; what nobody reads leaves the graph and stays."""
    read = {port.id for partition in done for port in partition.input_ports}
    needed = {port.id for partition in coming for port in partition.input_ports}
    for number in [number for number in tensors if number in read - needed]:
        del tensors[number]


# ---- content of inputs


def read_inputs(path: str) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of an .npz file; InvalidArgumentError where it is none, or cannot be read."""
    try:
        with (
            os.fdopen(open_regular(path), "rb") as file,
            np.lib.npyio.NpzFile(file) as arrays,
        ):  # `np.load` takes other files
            return {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError, TypeError, EOFError, KeyError, MemoryError, RuntimeError, *_ARCHIVE_ERRORS) as error:
        raise InvalidArgumentError(explain(f"cannot read {path}", accepted="an .npz file", got=error)) from error


def save_arrays(path: str, arrays: Mapping[str, Any]) -> None:
    """Write an .npz file, whose ending is added where the path lacks it."""
    with written(path if path.endswith(".npz") else f"{path}.npz") as other, Path(other).open("wb") as file:
        np.savez(file, **arrays)


def _input(
    graph: gp.Graph, port: gp.LogicalTensor, engine: gp.Engine, given: Mapping[str, np.ndarray[Any, Any]]
) -> gp.Tensor:
    """A tensor for an input of the graph: the array that has its id for a name, else random content."""
    lt = port.replace(layout="strided", shape=graph.shape(port.id))
    if not lt.is_shape_known:
        what = f"input {port.id} has no fixed shape"
        raise InvalidShapeError(explain(what, accepted=f"--in-shapes {port.id}:2x3", got=lt.shape), tensor_id=port.id)
    if str(port.id) not in given:
        tensor = gp.Tensor(lt, engine)
        _fill(tensor)
        return tensor
    array = given[str(port.id)]
    if array.shape != lt.shape:
        raise InvalidArgumentError(explain(f"array {str(port.id)!r}: shape", accepted=lt.shape, got=array.shape))
    if array.dtype.kind not in "biuf" and array.dtype != lt.dtype.numpy:
        raise InvalidDataTypeError(explain(f"array {str(port.id)!r}", accepted="real numbers", got=array.dtype))
    tensor = gp.Tensor(lt, engine)
    tensor.fill(array.astype(lt.dtype.numpy))
    return tensor


def _fill(tensor: gp.Tensor) -> None:
    """Floats from [0, 1), which suit logarithms, roots and divisors alike; small integers; the value if it is known."""
    if tensor.lt.value is not None:
        tensor.fill(np.full(tensor.lt.shape or (), tensor.lt.value, tensor.lt.dtype.numpy))
        return
    rng = np.random.default_rng(tensor.lt.id)
    array = tensor.numpy()
    if array.flags.c_contiguous and tensor.lt.dtype.bits >= 8:
        flat = array.reshape(-1)
        for start in range(0, flat.size, _CHUNK):
            part = flat[start : start + _CHUNK]
            part[...] = _random(rng, part.size, tensor.lt.dtype).astype(part.dtype)
    else:
        tensor.fill(_random(rng, array.size, tensor.lt.dtype).reshape(array.shape).astype(array.dtype))


def _random(rng: np.random.Generator, count: int, dtype: DataType) -> np.ndarray[Any, Any]:
    if dtype is DataType.BOOLEAN:
        return rng.integers(0, 2, count)
    is_float = dtype.value.startswith(("f", "bf"))
    return rng.random(count, np.float32) if is_float else rng.integers(0, 4, count, np.int8)


# ---- reports


def describe_partition(partition: gp.Partition, implementations: Sequence[str]) -> Report:
    """A partition for a report."""
    return {
        "kind": partition.kind,
        "ops": [op.kind for op in partition.ops],
        "nodes": list(dict.fromkeys(op.name or op.kind for op in partition.ops)),
        "backend": partition.backend_name or "host",
        "implementations": list(implementations),
    }


def describe_array(array: Any) -> Report:
    """A result for a report: an array, or a list."""
    if not isinstance(array, np.ndarray):
        return {"type": type(array).__name__, "length": len(array)}
    report: Report = {"dtype": str(array.dtype), "shape": list(array.shape)}
    if array.size and array.dtype.kind in "fiubV":
        wide = array.astype(np.float64)
        report |= {"min": float(wide.min()), "mean": float(wide.mean()), "max": float(wide.max())}
    return report
