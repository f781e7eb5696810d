"""Runs a case: on partitions as its options say, and op by op on the reference backend."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

import graphpool as gp
from graphpool.backends.reference import OutputSpec, evaluate
from graphpool.runtime._compiled import ALIGNMENT
from graphpool.typing import DataType, PropertyType, dense_strides
from tests.helpers.guarded import GUARD, GUARD_NBYTES

from .expect import complete_attrs, ids_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .cases import Case
    from .expect import Expected

__all__ = ["build", "run_partitions", "run_reference"]


@cache
def engine(threads: int) -> gp.Engine:
    """One engine for each number of threads."""
    return gp.Engine(threads=threads)


def build(case: Case, shapes: Mapping[int, tuple[int, ...]] | None = None) -> gp.Graph:
    """The case's graph, finalised; outputs have the shapes that are given, else none."""
    tensors: dict[int, gp.LogicalTensor] = {}
    for i, source in case.sources.items():
        scalar = "host_scalar" if i in case.options.get("host_scalars", ()) else "undef"
        shape = [gp.UNKNOWN_DIM] * len(source.shape) if i in case.options.get("unknown", ()) else source.shape
        tensors[i] = gp.LogicalTensor(i, source.dtype, shape, property="constant" if source.constant else scalar)
    graph = gp.Graph(prefer=case.options.get("prefer", "memory"))
    for number, node in enumerate(case.nodes):
        for i, dtype in node.outputs:
            tensors[i] = gp.LogicalTensor(i, dtype, None if shapes is None else shapes[i])
        outputs = [tensors[i] for i in ids_of(node)]
        graph.add_op(gp.Op(number, node.kind, [tensors[i] for i in node.inputs], outputs, **node.attrs))
    graph.finalize()
    return graph


class Buffer:
    """Guarded memory for a tensor with strides; what lies in gaps must stay.

    Parameters
    ----------
    lt : LogicalTensor
        Strided; of whole bytes.
    content : ndarray, optional
        Put into the elements; without it they are all ones.
    """

    def __init__(self, lt: gp.LogicalTensor, content: Any = None) -> None:
        self._memory = np.full(lt.nbytes + 2 * GUARD_NBYTES, GUARD, np.uint8)
        self.bytes = self._memory[GUARD_NBYTES : GUARD_NBYTES + lt.nbytes]
        self._is_element = np.zeros(len(self._memory), np.uint8)
        self.array = self.view(lt)
        _view(self._is_element[GUARD_NBYTES : GUARD_NBYTES + lt.nbytes], lt)[...] = _ones(lt)
        self.array[...] = _ones(lt) if content is None else content

    def view(self, lt: gp.LogicalTensor) -> np.ndarray:
        """The memory as an array of another description."""
        return _view(self.bytes, lt)

    def check(self) -> None:
        """Raise if bytes outside the elements changed."""
        outside = self._memory[self._is_element == 0]
        assert (outside == GUARD).all(), "wrote outside the tensor"


def _ones(lt: gp.LogicalTensor) -> Any:
    """A scalar of the type whose bits are all ones."""
    dtype = lt.dtype.numpy
    return True if lt.dtype is DataType.BOOLEAN else np.full(dtype.itemsize, 255, np.uint8).view(dtype)[0]


def _view(memory: np.ndarray, lt: gp.LogicalTensor) -> np.ndarray:
    dtype = lt.dtype.numpy
    if 0 in lt.shape or not lt.nbytes:
        return np.zeros(lt.shape, dtype)
    steps = [stride * dtype.itemsize for stride in lt.strides]
    return np.ndarray(lt.shape, dtype, memory, strides=steps)


def gap_strides(shape: tuple[int, ...], seed: list[int]) -> tuple[int, ...]:
    """Strides with gaps, perhaps in another order of the axes."""
    rng = np.random.default_rng(seed)
    order = list(range(len(shape)))
    if rng.random() < 0.5:
        order = [int(axis) for axis in rng.permutation(len(shape))]
    strides, step = [0] * len(shape), int(rng.choice([1, 1, 2]))
    for axis in reversed(order):
        strides[axis] = step
        step *= max(shape[axis], 1) + int(rng.choice([0, 0, 1, 3]))
    return tuple(strides)


def aligned(nbytes: int) -> np.ndarray:
    """Memory for a scratchpad."""
    memory = np.zeros(nbytes + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + nbytes]


def strides_of(case: Case, tensor_id: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides by the case's options."""
    if tensor_id in case.options.get("strided", ()):
        return gap_strides(shape, [case.seed, tensor_id, 5])
    return dense_strides(shape)


class Run:
    """One execution of a case's graph on partitions; `values` are its plain tensors, `chosen` opaque ones."""

    def __init__(self, case: Case, expected: Expected) -> None:
        self.case, self.options = case, case.options
        self.shapes = {i: tuple(np.shape(value)) for i, value in expected.values.items()}
        self.values: dict[int, Any] = {i: expected.values[i] for i in case.sources}
        self.opaque: dict[int, gp.Tensor] = {}
        self.graph = build(case, self.shapes if self.options.get("shapes", False) else None)
        self.engine = engine(self.options.get("threads", 1))
        self.stream = gp.Stream(self.engine)

    def partitions(self) -> list[gp.Partition]:
        """The graph's partitions, or all of them in one."""
        found = self.graph.get_partitions(self.options.get("policy", "fusion"))
        found = [p for p in found if not all(op.kind == "End" for op in p.ops)]
        if "schedule" in self.options and len({p.backend_name for p in found}) == 1 and found[0].backend_name == "cpu":
            return [self.graph.merge_partitions(found)]
        return found

    def go(self) -> dict[int, Any]:
        """Run all partitions; the content of every plain tensor that crosses a border."""
        partitions = self.partitions()
        readers: dict[int, set[str | None]] = {}
        for partition in partitions:
            for port in partition.input_ports:
                readers.setdefault(port.id, set()).add(partition.backend_name)
        for partition in partitions:
            self.run(partition, {i for i, names in readers.items() if names == {"cpu"}})
        return {i: value for i, value in self.values.items() if i not in self.case.sources}

    def run(self, partition: gp.Partition, readable: set[int]) -> None:
        """Compile and execute one partition, twice."""
        assert partition.is_supported, f"{partition} is not supported"
        names = ("schedule", "streams") if partition.kind == "merged" else ()
        extra: dict[str, Any] = {name: self.options[name] for name in names if name in self.options}
        inputs = [self.input_of(port) for port in partition.input_ports]
        outputs = [self.output_of(port, readable) for port in partition.output_ports]
        scratch = self.options.get("scratch", "primitive")
        with partition.compile(inputs, outputs, self.engine, scratch=scratch,
                               weights=self.options.get("weights", "cached"), **extra) as compiled:  # fmt: skip
            if compiled.program is not None:
                compiled.program.trials = 0 if self.engine.threads > 1 else -1
            settled = [compiled.query_logical_tensor(lt.id) for lt in outputs]
            for lt in settled:
                assert lt.shape == self.shapes[lt.id], f"tensor {lt.id}: inferred {lt.shape}, not {self.shapes[lt.id]}"
            inplace = dict(compiled.inplace_ports) if self.options.get("inplace") else {}
            first = self.execute(compiled, inputs, settled, inplace)
            assert self.execute(compiled, inputs, settled, inplace) == first, "two executions gave different bytes"

    def input_of(self, port: gp.LogicalTensor) -> gp.LogicalTensor:
        """The description of an input at compilation."""
        if port.id in self.opaque:
            return self.opaque[port.id].lt
        shape = self.shapes[port.id]
        strides = dense_strides(shape) if port.dtype.bits < 8 else strides_of(self.case, port.id, shape)
        return port.replace(shape=shape, layout="strided", strides=strides)

    def output_of(self, port: gp.LogicalTensor, readable: set[int]) -> gp.LogicalTensor:
        """The description of an output at compilation."""
        if port.id in self.options.get("opaque", ()) and port.id in readable:
            return port.replace(shape=self.shapes[port.id], layout="any")
        shape = self.shapes[port.id]
        if port.id not in self.options.get("strided", ()):
            return port.replace(shape=shape if self.options.get("shapes", False) else None)
        return port.replace(shape=shape, layout="strided", strides=strides_of(self.case, port.id, shape))

    def execute(
        self, compiled: gp.CompiledPartition, inputs: list[gp.LogicalTensor], outputs: list[gp.LogicalTensor],
        inplace: Mapping[int, int],
    ) -> list[bytes]:  # fmt: skip
        """One execution into fresh buffers; the content of plain outputs."""
        buffers: dict[int, Buffer] = {}
        tensors = {lt.id: self.bind(lt, buffers) for lt in inputs}
        targets = {target: source for source, target in inplace.items()}
        results = []
        for lt in outputs:
            source = buffers.get(targets.get(lt.id, -1))
            if lt.layout.value == "opaque":
                results.append(gp.Tensor(lt, self.engine))
            elif source is not None and len(source.bytes) == lt.nbytes and lt.is_dense and 0 not in lt.shape:
                buffers[lt.id] = source
                results.append(gp.Tensor(lt, self.engine, source.view(lt)))
            else:
                buffers[lt.id] = Buffer(lt)
                results.append(gp.Tensor(lt, self.engine, buffers[lt.id].array))
        scratchpad = aligned(compiled.scratchpad_nbytes) if compiled.scratch == "caller" else None
        compiled.execute(self.stream, list(tensors.values()), results, scratchpad=scratchpad)
        for lt, result in zip(outputs, results, strict=True):
            if lt.layout.value == "opaque":
                self.opaque[lt.id] = result
            else:
                buffers[lt.id].check()
                self.values[lt.id] = np.array(buffers[lt.id].view(lt))
        return [self.values[lt.id].tobytes() for lt in outputs if lt.layout.value != "opaque"]

    def bind(self, lt: gp.LogicalTensor, buffers: dict[int, Buffer]) -> gp.Tensor:
        """An input with its content."""
        if lt.id in self.opaque:
            return self.opaque[lt.id]
        if lt.property is PropertyType.HOST_SCALAR:
            return gp.Tensor(lt, self.engine, self.values[lt.id].item())
        if lt.dtype.bits < 8:
            return gp.Tensor(lt, self.engine, self.values[lt.id])
        buffers[lt.id] = Buffer(lt, self.values[lt.id])
        return gp.Tensor(lt, self.engine, buffers[lt.id].array)


def run_partitions(case: Case, expected: Expected) -> dict[int, Any]:
    """Tensors that leave partitions, by id."""
    return Run(case, expected).go()


def run_reference(case: Case, expected: Expected) -> dict[int, Any]:
    """Every tensor by the reference backend, each from inputs that the oracle computed."""
    found: dict[int, Any] = {}
    for node in case.nodes:
        if node.kind == "End":
            continue
        specs = [OutputSpec(DataType(dtype)) for _, dtype in node.outputs]
        results = evaluate(node.kind, [expected.values[i] for i in node.inputs], complete_attrs(node), specs)
        found.update(zip(ids_of(node), results, strict=True))
    return found
