"""Runs a manifest of benchdnn cases through graphpool and judges the results."""

from __future__ import annotations

import contextlib
import json
import time
import traceback
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from typing import Any, TypeAlias, cast
from zlib import crc32

import numpy as np

import graphpool as gp
from graphpool.graph.dumps.json import GraphFile, read_graph
from graphpool.graph.dumps.knobs import parse_knobs
from graphpool.typing import DataType
from tests.benchdnn.fill import Filler
from tests.benchdnn.judge import bounds, compare
from tests.benchdnn.slabs import evaluate_partition

MOST_ZEROS = 0.95
"""Share of zeros above which a result is mistrusted: between benchdnn's limits for products and for other ops."""

SAMPLE = 32
"""Elements below which no share is judged."""

NOT_KNOBS = ("suite", "case", "expected-n-partitions")

Job: TypeAlias = tuple[Path, dict[str, str]]
"""A folder of cases, and a row of its manifest."""


@dataclass
class Record:
    """What became of a run.

    Attributes
    ----------
    status : str
        "passed", "failed", or "mistrusted": no fault, but nearly all of a result is zeros, which proves little.
    peak_nbytes : int
        Most memory that the process has had resident so far. Unit: bytes.
    seconds : float
        Of the processor.
    fallback : bool
        Whether a forward op on float or int8 data ran on the reference backend.
    """

    suite: str
    case: str
    knobs: dict[str, str]
    status: str = "passed"
    expected_partitions: int = 0
    partitions: int = 0
    implementations: list[list[str]] = field(default_factory=list)
    fallback: bool = False
    error: str | None = None
    seconds: float = 0.0
    peak_nbytes: int = 0


@dataclass(frozen=True)
class Arena:
    """What a partition takes for temporaries, beside its inputs and outputs; and its kernels. Unit: bytes."""

    case: str
    knobs: dict[str, str]
    arena_nbytes: int
    tensors_nbytes: int
    kernels: tuple[str, ...]


def read_manifest(folder: Path) -> list[dict[str, str]]:
    """The runs of a folder of cases."""
    return [json.loads(line) for line in (folder / "manifest.jsonl").read_text().splitlines() if line]


def run_all(folder: Path, rows: Iterable[dict[str, str]], processes: int = 2) -> Iterator[Record]:
    """Run rows in processes of one thread each; records come as they are done.

    A row in which its process dies fails, and another process takes the next one.
    """
    jobs = deque((folder, row) for row in rows)
    if processes < 2:
        yield from map(run, jobs)
        return
    workers: dict[Connection, tuple[SpawnProcess, Job]] = {}
    try:
        while jobs or workers:
            while jobs and len(workers) < processes:
                process, pipe = _start_worker()
                _hand_out(jobs, pipe, process, workers)
            for ready in wait(list(workers)):
                pipe = cast("Connection", ready)
                process, job = workers.pop(pipe)
                try:
                    record = pipe.recv()
                except (EOFError, ConnectionError):
                    process.join()
                    pipe.close()
                    record = _record(job[1])
                    record.status, record.error = "failed", f"its process ended with status {process.exitcode}"
                else:
                    _hand_out(jobs, pipe, process, workers)
                yield record
    finally:
        for pipe, (process, _) in workers.items():
            pipe.close()
            process.kill()
            process.join()


def _start_worker() -> tuple[SpawnProcess, Connection]:
    """A process that runs the jobs from a pipe until it is closed."""
    context = get_context("spawn")
    pipe, other = context.Pipe()
    process = context.Process(target=_work, args=(other,), daemon=True)
    process.start()
    other.close()  # so that the end of the process is the end of the pipe
    return process, pipe


def _work(pipe: Connection) -> None:
    with contextlib.suppress(EOFError):
        while True:
            pipe.send(run(pipe.recv()))


def _hand_out(
    jobs: deque[Job], pipe: Connection, process: SpawnProcess, workers: dict[Connection, tuple[SpawnProcess, Job]]
) -> None:
    """The next job to a process, or its end."""
    if jobs:
        job = jobs.popleft()
        with contextlib.suppress(ConnectionError):  # it has died: that is seen when its record is waited for
            pipe.send(job)
        workers[pipe] = process, job
    else:
        pipe.close()
        process.join()


def _knobs(row: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in row.items() if key not in NOT_KNOBS}


def _record(row: dict[str, str]) -> Record:
    record = Record(row["suite"], row["case"], _knobs(row))
    record.expected_partitions = int(row.get("expected-n-partitions", 1))
    return record


def run(job: Job) -> Record:
    """Run one row; whatever goes wrong is a failed record."""
    row = job[1]
    record = _record(row)
    start = time.process_time()
    try:
        faults = run_graph(build(job), record, crc32(json.dumps(row, sort_keys=True).encode()))
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        faults = [f"{type(error).__name__}: {error} ({Path(frame.filename).name}:{frame.lineno})"]
    if faults:
        record.status, record.error = "failed", "; ".join(faults)
    record.seconds = round(time.process_time() - start, 3)
    record.peak_nbytes = getrusage(RUSAGE_SELF).ru_maxrss * 1024
    return record


@lru_cache(maxsize=64)
def load(path: Path) -> GraphFile:
    """The file of a case; runs of one case follow one another."""
    return read_graph(path, gp.Limits())


def build(job: Job) -> gp.Graph:
    """The finalised graph of a row."""
    folder, row = job
    graph = load(folder / "cases" / row["case"]).build(gp.Graph, "cpu", parse_knobs(_knobs(row)))
    graph.finalize()
    return graph


def run_graph(graph: gp.Graph, record: Record, seed: int) -> list[str]:
    """Run a finalised graph whose shapes are known, note in `record` what ran; returns what is wrong."""
    partitions = graph.get_partitions()
    record.partitions = len(partitions)
    faults = []
    if record.expected_partitions and record.partitions != record.expected_partitions:
        shape = " | ".join("+".join(op.kind for op in partition.ops) for partition in partitions)
        faults.append(f"{record.partitions} partitions instead of {record.expected_partitions}: {shape}")
    filler = Filler(graph, seed)
    values: dict[int, np.ndarray] = {}
    with gp.Engine(threads=1) as engine:
        for partition in partitions:
            if all(op.kind == "End" for op in partition.ops):
                continue
            if not partition.is_supported:
                faults.append(f"{'+'.join(op.kind for op in partition.ops)} is not supported")
                return faults
            faults += _run_partition(partition, engine, filler, values, record)
    return faults


def _run_partition(
    partition: gp.Partition, engine: gp.Engine, filler: Filler, values: dict[int, np.ndarray], record: Record
) -> list[str]:
    """Compute a partition, compare with the reference, and keep what it has computed in `values`.

    What the reference backend itself runs is not evaluated a second time: it would agree with itself.
    """
    on_reference = partition.backend_name == "reference"
    if on_reference:
        filler.fill_all(partition, values)
        expected = {}
    else:
        expected = evaluate_partition(partition, filler, values)
    stream = gp.Stream(engine)
    with partition.compile(partition.input_ports, partition.output_ports, engine) as compiled:
        record.implementations.append(list(compiled.implementations))
        if on_reference and any(_needs_kernel(op) for op in partition.ops):
            record.fallback = True
        inputs = [gp.Tensor(lt, engine, values[lt.id]) for lt in partition.input_ports]
        outputs = [gp.Tensor(compiled.query_logical_tensor(lt.id), engine) for lt in partition.output_ports]
        compiled.execute(stream, inputs, outputs)
    limits = bounds(partition.ops)
    faults = []
    for lt, output in zip(partition.output_ports, outputs, strict=True):
        actual = values[lt.id] = output.numpy()
        fault = None if on_reference else compare(actual, expected[lt.id], lt.dtype, limits[lt.id])
        if fault:
            faults.append(f"tensor {lt.id} ({lt.dtype}): {fault}")
        if is_mistrusted(actual, lt.dtype) and not any(map(_ignores_its_input, partition.ops)):
            record.status = "mistrusted"
            record.error = f"tensor {lt.id} ({lt.dtype}): almost all of {actual.size} elements are zero"
    return faults


def is_mistrusted(result: np.ndarray, dtype: DataType) -> bool:
    """Whether a result says little: nearly all of it is zeros. Indices and conditions may well be."""
    if dtype in (DataType.BOOLEAN, DataType.S32) or result.size < SAMPLE:
        return False
    return np.count_nonzero(result) < (1 - MOST_ZEROS) * result.size


def _ignores_its_input(op: gp.Op) -> bool:
    """Whether attributes alone decide the result, so that zeros are what it must be."""
    return op.kind in ("Clamp", "ClampBackward") and op.attrs["min"] == op.attrs["max"]


def _needs_kernel(op: gp.Op) -> bool:
    """Whether an op must not run on the reference backend: forward, on float or int8 data."""
    is_f8 = any(t.dtype in (DataType.F8_E4M3, DataType.F8_E5M2) for t in (*op.inputs, *op.outputs))
    return not is_f8 and "Backward" not in op.kind


def list_arenas(folder: Path, rows: Iterable[dict[str, str]], factor: float) -> Iterator[Arena]:
    """The partitions whose arena is larger than so many times their tensors; they are compiled for one thread, not run.

    Cost: about 2 ms a row.
    """
    with gp.Engine(threads=1) as engine:
        for row in rows:
            for partition in build((folder, row)).get_partitions():
                if not partition.is_supported or partition.backend_name == "reference":
                    continue
                with partition.compile(partition.input_ports, partition.output_ports, engine) as compiled:
                    ports = (*partition.input_ports, *partition.output_ports)
                    nbytes = sum(compiled.query_logical_tensor(port.id).nbytes for port in ports)
                    names = tuple(name.split(":")[0] for name in compiled.implementations)
                    found = Arena(row["case"], _knobs(row), compiled.scratchpad_nbytes, nbytes, names)
                if found.arena_nbytes > factor * nbytes:
                    yield found


def as_json(record: Record) -> dict[str, Any]:
    """The record as JSON holds it."""
    return asdict(record)


def count(records: Iterable[Record]) -> dict[str, dict[str, int]]:
    """Suite -> how many runs there were, failed, were mistrusted, fell back to the reference backend."""
    table: dict[str, dict[str, int]] = {}
    for record in records:
        row = table.setdefault(record.suite, {"runs": 0, "failed": 0, "mistrusted": 0, "fallback": 0})
        row["runs"] += 1
        row["failed"] += record.status == "failed"
        row["mistrusted"] += record.status == "mistrusted"
        row["fallback"] += record.fallback
    return dict(sorted(table.items()))


def as_table(table: dict[str, dict[str, int]]) -> str:
    """The counts for people."""
    columns = ("runs", "passed", "failed", "mistrusted", "fallback")
    lines = [f"{'suite':24}" + "".join(f"{name:>12}" for name in columns)]
    total = {key: sum(row[key] for row in table.values()) for key in ("runs", "failed", "mistrusted", "fallback")}
    for name, row in (*table.items(), ("all", total)):
        counts = row | {"passed": row["runs"] - row["failed"] - row["mistrusted"]}
        lines.append(f"{name:24}" + "".join(f"{counts[column]:12}" for column in columns))
    return "\n".join(lines)
