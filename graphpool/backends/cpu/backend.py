"""The CPU backend: compile = settle layouts, lower, plan, link."""

from __future__ import annotations

import functools
import time
from collections import Counter, deque
from contextlib import nullcontext, suppress
from itertools import groupby
from typing import TYPE_CHECKING, Any

from graphpool._dataclasses import dataclass, field

from ... import spans
from ..._sizes import hint_of
from ...cache import compiled_partition_cache, primitive_cache
from ...graph.completion import complete_shapes
from ...log import compile_log
from ...runtime._compiled import CompiledPartition
from ...runtime._template import Template
from ...runtime.dynamic_partition import DynamicPartition
from ...runtime.load_room import MOST_BEYOND_NBYTES
from ...runtime.primitive import Primitive, ProgramDetails
from ...runtime.scheduling import SEQUENTIAL, parse_options
from ...runtime.variable_partition import VariablePartition
from ...typing import DataType, LayoutType, PropertyType
from .choices import check_forced
from .emit.inplace_concat import place_concat_inputs
from .emit.rules import lower_group
from .key import structural_key
from .layout.channels import choose_channels_last
from .layout.opaque import choose_layout, layout_id_of, opaque_nbytes, strides_of, weight_layout_of
from .layout.slices import find_slices
from .layout.widths import find_wide
from .lower.lowering import Lowering
from .match.groups import make_groups
from .patterns import PATTERNS
from .place.link import link, link_constants
from .place.merging import Relowering, place_steps
from .place.placement import find_inplace_ports
from .place.streams import step_signatures
from .products.horizontal_fusion import emit_horizontal_fusion, find_horizontal_fusions
from .rewrites import REWRITES
from .support import supports

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Mapping, Sequence

    from ...graph.logical_tensor import LogicalTensor
    from ...graph.op import Op
    from ...graph.partition import Partition
    from ...graph.pattern import Pattern
    from ...graph.spelling import Spelling
    from ...runtime.scheduling import ScheduleOptions
    from .place.link import LinkedProgram

__all__ = ["CpuBackend"]

_MOST_TEMPLATES = 256
"""Compilations of one form, with other ids or on other engines, that are found again without a look-up."""


class CpuBackend:
    """Runs the op set's forward ops on the compiled kernels.

    Notes
    -----
    Threads: immutable, safe.
    """

    name = "cpu"
    engine_kind = "cpu"
    priority = 100
    merges = True
    patterns: Sequence[Pattern | Spelling] = PATTERNS

    def __init__(self) -> None:
        check_forced()

    def supports(self, op: Op) -> bool:
        """Whether the backend runs this op."""
        return supports(op)

    def opaque_nbytes(self, tensor: LogicalTensor) -> int | None:
        """Size of an opaque tensor in a layout of this backend; see `Backend.opaque_nbytes`."""
        return opaque_nbytes(tensor)

    compile_dynamic = staticmethod(DynamicPartition)

    def compile(
        self,
        partition: Partition,
        inputs: Sequence[LogicalTensor],
        outputs: Sequence[LogicalTensor],
        engine: Any,
        *,
        scratch: str = "primitive",
        weights: str = "cached",
        schedule: str = "sequential",
        streams: int = 1,
    ) -> CompiledPartition:
        """The cached form for this structure, settled and compiled if need be; see `Partition.compile`."""
        options = _options_on(engine, schedule, streams)
        key = structural_key(partition, inputs, outputs, engine), options.key
        cache = compiled_partition_cache()
        form: _Form = cache.get_or_create(key, lambda: _make_form(partition, inputs, outputs, engine, options))
        if not form.templates:
            cache.recharge(key, form, form.primitive.nbytes)
            form.primitive.add_form(key)
        labelled = form.label(inputs, outputs)
        compiled = CompiledPartition(
            partition, *labelled, engine, primitive=form.primitive, scratch=scratch, weights=weights
        )
        form_node, primitive_node = cache.node(key), primitive_cache().node(form.primitive.key)
        if form_node is not None and primitive_node is not None:
            compiled.template = Template(compiled, form_node, primitive_node)
            for old in [template for template in form.templates.copy() if template.is_stale]:
                with suppress(ValueError):  # another thread has removed it
                    form.templates.remove(old)
            form.templates.append(compiled.template)
        return compiled

    def compile_variable(
        self,
        partition: Partition,
        inputs: Sequence[LogicalTensor],
        outputs: Sequence[LogicalTensor],
        engine: Any,
        *,
        weights: str = "cached",
        schedule: str = "sequential",
        streams: int = 1,
        appends: Sequence[tuple[int, int]] = (),
    ) -> VariablePartition:
        """Compile for sizes that may vary; no cache is asked, since the result belongs to one compilation.

        `appends` has the ids of inputs, and of outputs that have them at their beginning, in the same memory.
        """
        options = _options_on(engine, schedule, streams)
        inputs, outputs = _settle_ports(partition, inputs, outputs, engine)
        primitive, linked = make_primitive(object(), partition, inputs, outputs, engine, options, dict(appends))
        primitive.evict()  # no cache keeps it for other users: it goes with its last one
        return VariablePartition(
            partition, inputs, outputs, engine, weights, primitive, linked.variable(), linked.temporaries,
            linked.sequential, linked.uses(),
        )  # fmt: skip


def _options_on(engine: Any, schedule: str, streams: int) -> ScheduleOptions:
    """How steps are placed on an engine."""
    options = parse_options(schedule, streams)
    return SEQUENTIAL if engine.threads == 1 else options


@dataclass(frozen=True, eq=False)
class _Form:
    """What the compiled-partition cache keeps: a primitive and its ports with everything settled.

    Their ids are those of the partition that was compiled first; `templates` knows the partitions that share the form.
    """

    primitive: Primitive
    inputs: Sequence[LogicalTensor]
    outputs: Sequence[LogicalTensor]
    templates: deque[Template] = field(default_factory=lambda: deque(maxlen=_MOST_TEMPLATES))

    def label(
        self, inputs: Sequence[LogicalTensor], outputs: Sequence[LogicalTensor]
    ) -> tuple[list[LogicalTensor], list[LogicalTensor]]:
        """The ports with the ids and properties of those given, which are in the same order."""
        return _label(self.inputs, inputs), _label(self.outputs, outputs)


def _label(settled: Sequence[LogicalTensor], given: Sequence[LogicalTensor]) -> list[LogicalTensor]:
    return [
        own if own.has_same_content_type(found) else found.replace(id=own.id, property=own.property.value)
        for found, own in zip(settled, given, strict=True)
    ]


def _make_form(
    partition: Partition,
    inputs: Sequence[LogicalTensor],
    outputs: Sequence[LogicalTensor],
    engine: Any,
    options: ScheduleOptions,
) -> _Form:
    """Complete shapes, settle layouts, and take the primitive from its cache or make it."""
    inputs, outputs = _settle_ports(partition, inputs, outputs, engine)
    key = structural_key(partition, inputs, outputs, engine), options.key
    cache = primitive_cache()
    made: list[Primitive] = []

    def produce() -> Primitive:
        with spans.span("compile partition", ops=len(partition.ops)) as note:
            made.append(make_primitive(key, partition, inputs, outputs, engine, options)[0])
            note(programs_nbytes=made[0].nbytes, arena_nbytes=made[0].program.arena_nbytes)
        return made[0]

    primitive: Primitive = cache.get_or_create(key, produce)
    if made and not cache.recharge(key, primitive, primitive.nbytes):
        primitive.evict()
    return _Form(primitive, inputs, outputs)


_COLUMN_NBYTES = 16
_COLUMNS = ("MatMul", "Convolution", "ConvTranspose")
"""What compilation may make for each position along an axis of these kinds, also of an operand without elements, where
something is dequantised. Unit: bytes."""


def _check_tables(
    ops: Sequence[Op], inputs: Sequence[LogicalTensor], outputs: Sequence[LogicalTensor], engine: Any
) -> None:
    """Raise OutOfMemoryError where such tables can never fit the engine's budget; nothing was allocated.

    Small ones are made, so that a form that finds no room is refused with the limit that would do for all of it.
    """
    found = [op for op in ops if op.kind in _COLUMNS]
    if found and any(op.kind == "Dequantize" for op in ops):
        given = {tensor.id: tensor.shape for tensor in (*inputs, *outputs)}
        shapes = complete_shapes(ops, given, trust_ops=False)
        for op in found:
            if all(0 in (shapes[t.id] or ()) for t in op.outputs):
                continue  # such ops run nothing
            dims = [sum(shapes[t.id] or ()) for t in (*op.inputs, *op.outputs)]
            nbytes = _COLUMN_NBYTES * max(map(hint_of, dims))
            if nbytes > MOST_BEYOND_NBYTES:
                engine.budget.check(nbytes, holder=f"tables of {op.label}")


def make_primitive(
    key: Hashable,
    partition: Partition,
    inputs: Sequence[LogicalTensor],
    outputs: Sequence[LogicalTensor],
    engine: Any,
    options: ScheduleOptions = SEQUENTIAL,
    appends: Mapping[int, int] | None = None,
) -> tuple[Primitive, LinkedProgram]:
    """Lower, schedule, plan and link; where sizes vary, schedules go by those that there are now.

    Each input in `appends` lies at the beginning of the output there.
    """
    start, appends = time.perf_counter(), appends or {}
    threads, planner = engine.threads, engine.planner
    is_sliced = options.policy in ("auto", "sequential") or not options.may_be_parallel(threads)
    lowering, now, plan = place_steps(relowering(partition, inputs, outputs, threads, appends, is_sliced), options)
    schedule = plan.schedule if plan.is_parallel else None
    nports = len(inputs) + len(outputs)
    linked = link(lowering, nports, threads, schedule, planner)
    steps = [now.steps[k] for k in linked.order]
    position = {op.id: k for k, op in enumerate(partition.ops)}
    made_by = {tensor.id: (k, n) for k, op in enumerate(partition.ops) for n, tensor in enumerate(op.outputs)}
    held = linked.tensors(lowering.held_tensors())
    in_port, out_port = ({tensor.id: k for k, tensor in enumerate(side)} for side in (inputs, outputs))
    details = ProgramDetails(
        kinds=tuple(lowering.kinds[step.op_id] for step in steps),
        signatures=step_signatures(steps),
        nodes=linked.order,
        buffers=linked.buffers(),
        tensors=tuple([None if tensor_id is None else made_by.get(tensor_id) for tensor_id in held]),
        options=options,
        schedule=plan.schedule,
        speedups=plan.speedups,
        traffic=plan.traffic,
        signature=plan.signature,
        sequential_nbytes=linked.program.arena_nbytes if schedule is None else linked.sequential.plan()[1],
    )
    inplace = [pair for pair in find_inplace_ports(lowering.steps, inputs, outputs, schedule) if pair[0] not in appends]
    inplace += appends.items()
    pairs = [(in_port[i], out_port[j]) for i, j in inplace]
    trips = linked.program.loops.trips()
    names = [f"{step.name} by slices" if count else step.name for step, count in zip(steps, trips, strict=True)]
    step_ops = [position[step.op_id] for step in steps]
    parts = link_constants(lowering, threads)
    if compile_log.is_on():
        ms = (time.perf_counter() - start) * 1e3
        compile_log.info("program of %d steps in %.3g ms, arena %d bytes", len(steps), ms, linked.program.arena_nbytes)
        for number, name in zip(step_ops, names, strict=True):
            compile_log.info("  %s: %s", partition.ops[number].name or partition.ops[number].kind, name)
    return Primitive(key, linked.program, names, step_ops, pairs, details, parts), linked


def _evict(key: Hashable, value: object) -> None:
    if isinstance(value, Primitive):  # the cache is the process's: other backends keep what they like
        value.evict()


primitive_cache().on_evict(_evict)


def _settle_ports(
    partition: Partition, inputs: Sequence[LogicalTensor], outputs: Sequence[LogicalTensor], engine: Any
) -> tuple[tuple[LogicalTensor, ...], tuple[LogicalTensor, ...]]:
    """The ports with shapes completed and layouts chosen; raises where compilation could never fit the budget."""
    for tensor in inputs:
        _check_opaque(tensor)
    is_known = all(tensor.is_shape_known for tensor in outputs)  # lowering finds whether they hold together
    results = [
        choose_layout(tensor) if tensor.layout is LayoutType.ANY else tensor
        for tensor in (outputs if is_known else partition.complete(inputs, outputs))
    ]
    for tensor in results:
        _check_opaque(tensor)
    _check_tables(partition.ops, inputs, results, engine)
    return tuple(_choose_layouts(partition, inputs, results)), tuple(results)


def _check_opaque(tensor: LogicalTensor) -> None:
    if tensor.layout is LayoutType.OPAQUE and weight_layout_of(tensor) is None:
        strides_of(tensor)


def _choose_layouts(
    partition: Partition, inputs: Sequence[LogicalTensor], outputs: Sequence[LogicalTensor]
) -> list[LogicalTensor]:
    """The inputs, those that are ``any`` in the layout in which their one reader wants them, or dense."""
    if all(tensor.layout is not LayoutType.ANY for tensor in inputs):
        return list(inputs)
    readers = Counter(tensor.id for op in partition.ops for tensor in op.inputs)
    shared = {t.id for t in inputs if t.layout is LayoutType.ANY and (readers[t.id] > 1 or 0 in (t.shape or ()))}
    asked = [t.replace(layout="strided") if t.id in shared else t for t in inputs]
    chosen = lower(partition.ops, asked, outputs, partition.prefer, partition.fpmath).chosen
    ids = {tensor_id: layout_id_of(layout) for tensor_id, layout in chosen.items()}
    return [
        tensor
        if tensor.layout is not LayoutType.ANY
        else tensor.replace(layout="strided")
        if ids.get(tensor.id) is None
        else tensor.replace(layout=LayoutType.OPAQUE, layout_id=ids[tensor.id])
        for tensor in asked
    ]


def relowering(
    partition: Partition,
    inputs: Sequence[LogicalTensor],
    outputs: Sequence[LogicalTensor],
    threads: int,
    appends: Mapping[int, int] | None = None,
    is_sliced: bool = False,
) -> Relowering:
    """The partition with its ports settled, to be lowered once with each choice of merges."""
    ops, prefer, fpmath = partition.ops, partition.prefer, partition.fpmath

    @functools.cache
    def relower(merges: tuple[tuple[int, ...], ...]) -> Lowering:
        return lower(ops, inputs, outputs, prefer, fpmath, merges, appends, threads, is_sliced)

    return Relowering(relower, ops, (len(inputs), len(outputs)), threads)


def lower(
    ops: Sequence[Op],
    inputs: Sequence[LogicalTensor],
    outputs: Sequence[LogicalTensor],
    prefer: str = "memory",
    fpmath: str = "strict",
    merges: Collection[tuple[int, ...]] = (),
    appends: Mapping[int, int] | None = None,
    threads: int = 1,
    is_sliced: bool = False,
) -> Lowering:
    """The steps of a partition; each of `merges` names the convolutions of one image that one call computes.

    Each input in `appends` lies at the beginning of the output there. `threads` share each step. With `is_sliced` some
    steps take some rows of a batch at a time, where that pays.
    """
    results = {tensor.id for tensor in outputs}
    given = {tensor.id: tensor.shape for tensor in (*inputs, *outputs)}
    shapes: dict[int, Any] = complete_shapes(ops, given, trust_ops=False)
    for rewrite in REWRITES:
        ops = rewrite(ops, shapes, results)
    dtypes = {tensor.id: tensor.dtype for op in ops for tensor in (*op.inputs, *op.outputs)}
    constants = frozenset(tensor.id for tensor in inputs if tensor.property is PropertyType.CONSTANT)
    groups = make_groups(ops, shapes, results, constants)
    channels_last = choose_channels_last(groups, shapes, results)
    dtypes |= dict.fromkeys(find_wide(ops, groups, dtypes, results), DataType.F32)
    slices = find_slices(ops, groups, shapes, inputs, outputs, threads) if is_sliced and not appends else []
    lowering = Lowering(inputs, outputs, shapes, dtypes, channels_last, prefer, fpmath, appends, threads, slices)
    lowering.kinds = {op.id: op.kind for op in ops}
    sliced = {id(group): run for run in slices for group in run.groups}
    free = [group for group in groups if id(group) not in sliced]
    fusions = {alike.op_ids: alike for alike in find_horizontal_fusions(lowering, free)}
    lowering.horizontal_fusions = tuple(fusions)
    merged = {op_id: fusions[ids] for ids in merges for op_id in ids}
    for op in reversed(ops):
        if op.kind == "StaticReshape":
            lowering.settle_before_reshape(op.inputs[0].id, op.outputs[0].id)
        if op.kind == "ScatterElements" and op.outputs[0].id in (appends or {}).values():
            lowering.settle_under(op.inputs[0].id, op.outputs[0].id)
    place_concat_inputs(lowering, ops, groups)
    for run, members in groupby(groups, key=lambda group: sliced.get(id(group))):
        with nullcontext() if run is None else lowering.sliced(run):
            for group in members:
                lowering.op_id = group.first.id
                alike = merged.get(group.first.id)
                if alike is None:
                    lower_group(lowering, group)
                elif group.first.id == alike.op_ids[0]:
                    emit_horizontal_fusion(lowering, alike)
    return lowering
