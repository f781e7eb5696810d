"""Which step of a model each traced run was, and what lay in the arena meanwhile."""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from typing import TYPE_CHECKING

from graphpool._dataclasses import dataclass, replace

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ..runtime._compiled import CompiledPartition
    from ..runtime.executable import Executable
    from ..runtime.model_form import Fallback
    from ..runtime.model_step import ModelStep
    from .tracing import TracedStep

Run = tuple["TracedStep", ...]


@dataclass(frozen=True, slots=True)
class ArenaTenant:
    """Bytes of an arena for a time: a rectangle of the picture.

    Attributes
    ----------
    tensor : str
        What lies there: a tensor, or the working memory of a kernel. Empty for bytes that nobody needs.
    node, kind : str
        Op that writes it first, by the name of its ONNX node, and its kind.
    dtype : str
        Of the tensor; else empty.
    shape : tuple of int or None
        Of the tensor; else None.
    offset, nbytes : int
        Where in the arena, and how much. Unit: bytes.
    first_step, last_step : int
        Positions in the `steps` of the picture.
    start_ns, end_ns : int
        From the start of the run. What is written over in place ends where the next begins. Unit: nanoseconds.
    """

    tensor: str
    node: str
    kind: str
    dtype: str
    shape: tuple[int, ...] | None
    offset: int
    nbytes: int
    first_step: int
    last_step: int
    start_ns: int
    end_ns: int


# ---- what ran


def match_runs(steps: Sequence[ModelStep], traced: Iterable[TracedStep]) -> Iterator[list[Run]]:
    """For each run of a model what was traced of each of its steps: the run of its program, or its host function."""
    threads: dict[int, dict[tuple[int, str], deque[Run]]] = {}
    pieces: dict[tuple[int, int], list[TracedStep]] = {}
    for number, piece in enumerate(traced):
        pieces.setdefault((piece.program, piece.run if piece.program else number), []).append(piece)
    for (program, _), found in pieces.items():
        coming = threads.setdefault(found[0].thread, {})
        coming.setdefault((program, "" if program else _host_of(found[0])), deque()).append(tuple(found))
    for coming in threads.values():
        reached = 0
        while any(coming.values()):
            runs = []
            for step in steps:
                run = _take(coming.get(_what(step)), reached)
                reached = max((piece.end_ns for piece in run), default=reached)
                runs.append(tuple([name_host(piece, step.fallback) for piece in run]))
            if not any(runs):
                break
            yield runs


def _what(step: ModelStep) -> tuple[int, str]:
    """Serial number of the program of a step, or 0 and the name of a host function."""
    if step.compiled is None:
        return 0, step.label
    return 0 if step.compiled.program is None else step.compiled.program.serial, ""


def _host_of(piece: TracedStep) -> str:
    """The name of a host function, whether or not `name_host` has seen it."""
    return piece.op or piece.name


def by_number(steps: Iterable[TracedStep]) -> dict[int, list[TracedStep]]:
    """The steps of a run by their position in the program: of those that ran once for each slice, all by start."""
    found: dict[int, list[TracedStep]] = {}
    for step in sorted(steps, key=lambda step: step.start_ns):
        found.setdefault(step.step, []).append(step)
    return found


def find_uses(traced: Mapping[int, Sequence[TracedStep]], users: Iterable[int]) -> list[list[TracedStep]]:
    """The steps that used a temporary, apart for each time that it was written anew: what only one slice needs is."""
    found = [traced[k] for k in users if k in traced]
    if len({len(trips) for trips in found}) == 1:
        return [list(used) for used in zip(*found, strict=True)]
    return [[step for trips in found for step in trips]] if found else []


def _take(coming: deque[Run] | None, reached: int) -> Run:
    """The first of the runs that began since then; those before go too."""
    while coming:
        run = coming.popleft()
        if run[0].start_ns >= reached:
            return run
    return ()


def name_host(piece: TracedStep, known: Fallback | None) -> TracedStep:
    """The run of a host function, with the node that it stands for if that is known."""
    return piece if known is None else replace(piece, name="host function", kind=known.op_type, op=known.node)


def find_tenants(form: Executable, runs: Sequence[Run]) -> list[ArenaTenant]:
    """The tenants of the arena in a run of a form, by start; positions count what was traced of the run by start."""
    traced = sorted((step for run in runs for step in run), key=lambda step: (step.start_ns, step.step))
    number = {id(step): k for k, step in enumerate(traced)}
    found = [*_between(form, runs, number), *_inside(form, runs, number)]
    return sorted(_end_in_place(found), key=lambda tenant: (tenant.start_ns, tenant.offset))


# ---- what was needed


def _between(form: Executable, runs: Sequence[Run], number: Mapping[int, int]) -> Iterator[ArenaTenant]:
    """The tensors between the steps of a model, which live through whole steps."""
    makers = {
        tensor.id: (op.name or op.kind, op.kind) for p in form.partitions for op in p.ops for tensor in op.outputs
    }
    users: dict[int, list[TracedStep]] = {}
    for step, run in zip(form.steps, runs, strict=True):
        for tensor_id in {*step.outputs, *step.inputs}:
            users.setdefault(tensor_id, []).extend(run)
        if step.fallback is not None:
            makers |= dict.fromkeys(step.outputs, (step.fallback.node, step.fallback.op_type))
    for tensor_id in {i for step in form.steps for i in step.outputs}:
        tensor, used = form.tensors[tensor_id], users[tensor_id]
        if tensor_id in form.offsets and tensor.nbytes and used:
            what = _name(form, tensor_id), *makers[tensor_id], str(tensor.dtype), tensor.shape
            yield _tenant(what, form.offsets[tensor_id], tensor.nbytes, used, number)


def _inside(form: Executable, runs: Sequence[Run], number: Mapping[int, int]) -> Iterator[ArenaTenant]:
    """The temporaries of the programs, which live from their first use to their last."""
    for position, (step, run) in enumerate(zip(form.steps, runs, strict=True)):
        compiled = step.compiled
        if compiled is None or compiled.primitive is None or compiled.program is None:
            continue
        at, traced = form.offsets.get(~position, 0), by_number(run)
        details, (buffers, _) = compiled.primitive.details, compiled.primitive.buffers_of(compiled.program.serial)
        for (offset, nbytes, users), made in zip(buffers, details.tensors, strict=True):
            for used in find_uses(traced, users) if nbytes else ():
                yield _tenant(_describe(form, compiled, made, used[0]), at + offset, nbytes, used, number)


def _describe(
    form: Executable, compiled: CompiledPartition, made: tuple[int, int] | None, first: TracedStep
) -> tuple[str, str, str, str, tuple[int, ...] | None]:
    """What a temporary of a program is: tensor, node, kind, type, shape."""
    if made is None:
        return "working memory of a kernel", first.op, first.kind, "", None
    op = compiled.partition.ops[made[0]]
    tensor = form.tensors.get(op.outputs[made[1]].id, op.outputs[made[1]])
    return _name(form, tensor.id), op.name or op.kind, op.kind, str(tensor.dtype), tensor.shape


def _name(form: Executable, tensor_id: int) -> str:
    return f"tensor {form.form.names.get(tensor_id, tensor_id)}"


def _tenant(
    what: tuple[str, str, str, str, tuple[int, ...] | None],
    offset: int,
    nbytes: int,
    used: Sequence[TracedStep],
    number: Mapping[int, int],
) -> ArenaTenant:
    numbers = [number[id(step)] for step in used]
    start, end = min(step.start_ns for step in used), max(step.end_ns for step in used)
    return ArenaTenant(*what, offset, nbytes, min(numbers), max(numbers), start, end)


def _end_in_place(tenants: Iterable[ArenaTenant]) -> Iterator[ArenaTenant]:
    """The tenants, of which those that a step writes over in place end where that step begins."""
    places: dict[tuple[int, int], list[ArenaTenant]] = {}
    for tenant in sorted(tenants, key=lambda t: (t.start_ns, t.end_ns)):
        places.setdefault((tenant.offset, tenant.nbytes), []).append(tenant)
    for found in places.values():
        for tenant, following in pairwise(found):
            yield replace(tenant, end_ns=min(tenant.end_ns, following.start_ns))
        yield found[-1]
