"""What reads the files that are mutated: each ends well or with one of graphpool's errors, inside its memory."""

from __future__ import annotations

import contextlib
import functools
import json
import random
import zlib
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

import graphpool as gp
from graphpool import memory
from graphpool.cache import write_trace
from graphpool.cache.traces import compare_policies, read_trace
from graphpool.graph.dumps.knobs import parse_knobs
from graphpool.typing import LayoutType
from tests.cases.graphs import GraphBuilder
from tests.cases.workloads import CASES
from tests.fuzz.graph_mutators import mutate_json, mutate_knobs, mutate_table
from tests.helpers.guarded import Guarded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["KINDS", "LIMIT_MB", "mutant", "survives"]

LIMIT_MB = 8
"""Of the engine on which mutated graphs run."""

TRACE = "\n".join(
    ["key,nbytes,cost", *(f"{'abcdef'[k * k % 6]},{2 ** (k * 7 % 20)},{k % 5 / 4}" for k in range(40)), ""]
)
PLAN = """id,lower,upper,size,alignment,offset,gaps
a,0,4,100,8,,
b,2,9,50,1,256,3-4 5-7
c,1,3,64,64,,
d,3,9,1000,16,,
"""


@contextlib.contextmanager
def _no_refusal() -> Iterator[None]:
    """What comes from graphpool itself is not refused by it."""
    try:
        yield
    except gp.GraphpoolError as error:
        raise AssertionError(str(error)) from error


# ---- graphs


def _run_graph(path: Path, rng: random.Random) -> None:
    """The graph, under knobs or not, through all partitions."""
    graph = gp.Graph.from_json(path) if rng.random() < 0.7 else _under_knobs(path, rng)
    if rng.random() < 0.2:
        graph.to_json(path)
        with _no_refusal():
            gp.Graph.from_json(path)
    graph.finalize()
    partitions = graph.get_partitions("debug" if rng.random() < 0.1 else "fusion")
    with gp.Engine(threads=1, memory_limit=LIMIT_MB << 20) as engine:
        tensors: dict[int, gp.Tensor] = {}
        guards: list[Guarded] = []
        for partition in partitions:
            _run_partition(graph, partition, engine, tensors, guards, rng)
        for guarded in guards:
            guarded.array(np.uint8, (-1,))
        assert engine.stats().peak_nbytes <= LIMIT_MB << 20


def _under_knobs(path: Path, rng: random.Random) -> gp.Graph:
    try:
        content = json.loads(path.read_bytes())
        tensors = [t["id"] for op in content["graph"] for t in (*op["inputs"], *op["outputs"])]
        ops = [op["id"] for op in content["graph"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        tensors, ops = [0], [0]
    return gp.Graph.from_json(path, knobs=parse_knobs(mutate_knobs(rng, tensors, ops)))


def _run_partition(
    graph: gp.Graph, partition: gp.Partition, engine: gp.Engine, tensors: dict[int, gp.Tensor],
    guards: list[Guarded], rng: random.Random,
) -> None:  # fmt: skip
    """Compile and execute on small numbers, every tensor between guard bytes."""
    inputs = [_input_port(graph, port, tensors) for port in partition.input_ports]
    outputs = [
        port.replace(layout="strided") if port.layout is LayoutType.UNDEF else port for port in partition.output_ports
    ]
    with partition.compile(inputs, outputs, engine) as compiled:
        for lt in compiled.inputs:
            if lt.id not in tensors:
                tensors[lt.id] = _guarded(lt, engine, guards, rng.randrange(2**32))
        results = [_guarded(lt, engine, guards, 0) for lt in compiled.outputs]
        compiled.execute(gp.Stream(engine), [tensors[lt.id] for lt in compiled.inputs], results)
        tensors.update((tensor.lt.id, tensor) for tensor in results)


def _input_port(graph: gp.Graph, port: gp.LogicalTensor, tensors: dict[int, gp.Tensor]) -> gp.LogicalTensor:
    """What is known of an input: the tensor that a partition wrote, else its port, its layout settled where it must."""
    if port.id in tensors:
        return tensors[port.id].lt.replace(property=port.property)
    if port.layout is LayoutType.OPAQUE or (port.layout is LayoutType.ANY and port.property == "constant"):
        return port
    if port.layout is LayoutType.STRIDED and port.is_shape_known:
        return port
    return port.replace(layout="strided", shape=graph.shape(port.id))


def _guarded(lt: gp.LogicalTensor, engine: gp.Engine, guards: list[Guarded], seed: int) -> gp.Tensor:
    """A tensor of zeros and ones between guard bytes; memory of the engine where that is not so simple."""
    if not lt.is_shape_known or lt.nbytes > LIMIT_MB << 18 or lt.dtype.bits < 8:
        tensor = gp.Tensor(lt, engine)
        if tensor.is_allocated:
            tensor.raw()[:] = 0
        return tensor
    guarded = Guarded(lt.nbytes)
    data: Any = guarded.bytes
    if lt.layout is LayoutType.STRIDED:
        itemsize = lt.dtype.bits // 8
        data = np.ndarray(lt.shape, lt.dtype.numpy, data, strides=[step * itemsize for step in lt.strides or ()])
        data[...] = np.random.default_rng(seed).integers(0, 2, lt.shape)
    else:
        data[:] = 0
    guards.append(guarded)
    return gp.Tensor(lt, engine, data)


def _graph_seeds() -> list[bytes]:
    """The files of many graphs, and a share of chains through opaque layouts."""
    builders = [case.build for case in CASES]
    return [_as_file(build) for build in [*builders, *[_chain, _packed] * (len(builders) // 8)]]


def _chain(g: GraphBuilder) -> None:
    """Rows that are padded, read as such, and made plain again."""
    x = g.input((9, 21), layout="opaque", layout_id=17)
    for layout in (17, 17, None):
        fields: dict[str, Any] = {} if layout is None else {"layout": "opaque", "layout_id": layout}
        y = g.tensor("f32", (9, 21), **fields)
        g.graph.add_op(gp.Op(g.ops, "Reorder" if layout is None else "ReLU", [x], [y]))
        g.ops += 1
        x = y


def _packed(g: GraphBuilder) -> None:
    """A product whose weights and result lie as the compiler wants them, and a Reorder of the result."""
    x, w = g.input((5, 24)), g.input((24, 40), layout="any", property="constant")
    y, z = g.tensor("f32", (5, 40), layout="any"), g.tensor("f32", (5, 40))
    g.graph.add_op(gp.Op(0, "MatMul", [x, w], [y]))
    g.graph.add_op(gp.Op(1, "Reorder", [y], [z]))


def _as_file(build: Callable[[GraphBuilder], Any]) -> bytes:
    builder = GraphBuilder()
    build(builder)
    with TemporaryDirectory() as folder:
        builder.graph.to_json(Path(folder) / "a.json")
        return (Path(folder) / "a.json").read_bytes()


# ---- tables


def _plan(path: Path, rng: random.Random) -> None:
    buffers = memory.read_csv(path)
    with _no_refusal():
        memory.write_csv(path, buffers)
        assert memory.read_csv(path) == buffers
    capacity = rng.choice([None, 0, 1000, 2**70, -1])
    found = memory.plan(buffers, capacity=capacity, deadline_s=rng.choice([0.0, 0.01]))
    with _no_refusal():
        memory.check_plan(found, buffers)


def _replay(path: Path, rng: random.Random) -> None:
    trace = read_trace(path)
    with _no_refusal():
        write_trace(path, trace)
        assert read_trace(path) == trace
    capacity = rng.choice([0, 1, 2**20, 2**62, 2**80])
    for row in compare_policies(trace, [capacity]):
        for result in row.results.values():
            assert 0 <= result.saved_cost <= result.total_cost
            assert result.peak_nbytes <= capacity
        assert 0 <= row.best.achievable_share <= row.best.bound_share


@dataclass(frozen=True)
class Kind:
    """A kind of file: what it is mutated from, by what, and what reads it."""

    suffix: str
    seeds: Callable[[], list[bytes]]
    mutate: Callable[[bytes, random.Random], bytes]
    read: Callable[[Path, random.Random], None]


KINDS = {
    "json": Kind("json", functools.cache(_graph_seeds), mutate_json, _run_graph),
    "plan": Kind("csv", lambda: [PLAN.encode()], mutate_table, _plan),
    "trace": Kind("csv", lambda: [TRACE.encode()], mutate_table, _replay),
}


def survives(kind: str, data: bytes, folder: Path) -> None:
    """Read a file of these bytes and go on as far as results; raises nothing but what is a fault."""
    path = folder / f"a.{KINDS[kind].suffix}"
    path.write_bytes(data)
    with contextlib.suppress(gp.GraphpoolError), np.errstate(all="ignore"):
        KINDS[kind].read(path, random.Random(zlib.crc32(data)))


def mutant(kind: str, number: int, seed: int = 0) -> bytes:
    """The mutant of this number; the same for the same arguments."""
    rng = random.Random(f"{kind} {seed} {number}")
    return KINDS[kind].mutate(rng.choice(KINDS[kind].seeds()), rng)
