"""Runs graphs through partitions and compares them with the reference."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import graphpool as gp
from graphpool.backends.reference import OutputSpec, evaluate
from graphpool.cache import constant_tensor_cache
from graphpool.typing import DataType
from tests.cases.graphs import GraphBuilder
from tests.cases.inputs import random_array, random_inputs
from tests.cases.workloads import Case
from tests.helpers.guard_pages import guarded_copy

TOLERANCE = {
    DataType.F32: (2e-5, 2e-5),
    DataType.BF16: (2e-2, 2e-2),
    DataType.F16: (2e-3, 2e-3),
    DataType.F64: (1e-14, 1e-14),
    DataType.U8: (0.0, 1.0),
    DataType.S8: (0.0, 1.0),
}
"""Relative and absolute error accepted for each type of output; other types must be equal."""


def run_partitions(
    partitions: list[gp.Partition],
    values: dict[int, np.ndarray],
    engine: gp.Engine,
    *,
    scale: float = 1.0,
) -> dict[int, np.ndarray]:
    """Compile and execute all partitions in order; the content of every tensor that crosses a partition's border.

    Inputs end where a protected page begins.
    """
    values = dict(values)
    stream = gp.Stream(engine)
    known = {tensor_id: array.shape for tensor_id, array in values.items()}
    for partition in partitions:
        inputs = [lt.replace(shape=known[lt.id]) for lt in partition.input_ports]
        outputs = [lt.replace(shape=None) for lt in partition.output_ports]
        with partition.compile(inputs, outputs, engine) as compiled:
            tensors = [gp.Tensor(lt, engine, guarded_copy(values[lt.id])) for lt in inputs]
            results = [gp.Tensor(compiled.query_logical_tensor(lt.id), engine) for lt in outputs]
            compiled.execute(stream, tensors, results)
            if compiled.cached_constants():
                check_plain(compiled, stream, tensors, results, scale)
            for lt, result in zip(outputs, results, strict=True):
                values[lt.id] = np.array(result.numpy())
                known[lt.id] = values[lt.id].shape
    return values


def check_plain(
    compiled: gp.CompiledPartition,
    stream: gp.Stream,
    inputs: list[gp.Tensor],
    results: list[gp.Tensor],
    scale: float = 1.0,
) -> None:
    """The kernels that run while the cache keeps no constants give the same results."""
    cache = constant_tensor_cache("cpu")
    cache.set_capacity(0)
    try:
        for plain, result in zip(compiled.execute(stream, inputs), results, strict=True):
            assert_close(plain.numpy(), result.numpy(), result.lt.dtype, scale=scale)
    finally:
        cache.set_capacity(None)


def run_reference(ops: list[gp.Op], values: dict[int, np.ndarray]) -> dict[int, np.ndarray]:
    """Evaluate the ops one by one in float64, rounding every tensor to its type."""
    values = dict(values)
    for op in ops:
        specs = [OutputSpec(tensor.dtype, None) for tensor in op.outputs]
        results = evaluate(op.kind, [values[tensor.id] for tensor in op.inputs], op.attrs, specs)
        values.update(zip((tensor.id for tensor in op.outputs), results, strict=True))
    return values


def evaluate_case(case: Case, seed: int) -> tuple[list[gp.Partition], dict[int, np.ndarray]]:
    """The partitions of a row of the case table, and all its tensors, whose content the reference computes."""
    builder = case.builder()
    values = random_inputs(builder, np.random.default_rng(seed), **case.bounds)
    return builder.finish(), run_reference(builder.graph.ops, values)


def assert_close(actual: np.ndarray, expected: np.ndarray, dtype: DataType, *, scale: float = 1.0) -> None:
    """Equal shape and type, and values within the tolerance of the type times `scale`; NaN and Inf in equal places."""
    assert actual.shape == expected.shape
    assert actual.dtype == expected.dtype
    rtol, atol = (bound * scale for bound in TOLERANCE.get(dtype, (0.0, 0.0)))
    wide = np.complex128 if np.iscomplexobj(expected) else np.float64
    np.testing.assert_allclose(actual.astype(wide), expected.astype(wide), rtol=rtol, atol=atol)


def check_graph(
    builder: GraphBuilder,
    engine: gp.Engine,
    rng: np.random.Generator,
    *,
    scale: float = 1.0,
    content: Callable[[np.random.Generator, gp.LogicalTensor], np.ndarray] | None = None,
    **bounds: float,
) -> list[gp.Partition]:
    """Run a builder's graph through partitions and compare every output of a partition with the reference.

    Inputs are random, or what `content` makes of each.
    """
    partitions = builder.finish()
    content = content or (lambda rng, lt: random_array(lt, rng, **bounds))
    values = {lt.id: content(rng, lt) for lt in builder.inputs}
    expected = run_reference(builder.graph.ops, values)
    actual = run_partitions(partitions, values, engine, scale=scale)
    for partition in partitions:
        for port in partition.output_ports:
            assert_close(actual[port.id], expected[port.id], port.dtype, scale=scale)
    return partitions


def cover_is_valid(graph: gp.Graph, partitions: list[gp.Partition]) -> bool:
    """Whether the partitions hold every op once, in an order in which each finds its inputs written."""
    seen: list[int] = [op.id for partition in partitions for op in partition.ops]
    if sorted(seen) != sorted(op.id for op in graph.ops):
        return False
    produced = {tensor.id for op in graph.ops for tensor in op.outputs}
    written: set[int] = set()
    for partition in partitions:
        if any(port.id in produced and port.id not in written for port in partition.input_ports):
            return False
        written |= {tensor.id for op in partition.ops for tensor in op.outputs}
    return True


def kernels_of(partitions, engine):
    """Names of the kernels of all partitions, compiled for the shapes of their ports."""
    found = []
    for partition in partitions:
        outputs = [lt.replace(shape=None) for lt in partition.output_ports]
        with partition.compile(partition.input_ports, outputs, engine) as compiled:
            found += [name.split(":")[0] for name in compiled.implementations]
    return found
