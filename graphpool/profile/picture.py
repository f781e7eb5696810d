"""`footprint`: where every temporary of a run lay and when, and what the run held beside the arena."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .inputs import random_inputs
from .page import write_page
from .tracing import TracedStep, trace_runs

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ..runtime import Model
    from ..runtime._compiled import CompiledPartition
    from ..runtime.executable import Executable
    from ..runtime.model_step import ModelStep
    from .tracing import Trace


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


@dataclass(frozen=True, slots=True)
class FootprintPicture:
    """The memory of one run.

    Attributes
    ----------
    model : str
        Its name.
    steps : tuple of TracedStep
        What ran, by start; times count from the start of the first. Several programs, and host functions between them,
        follow one another.
    temporaries : tuple of ArenaTenant
        What was needed; no two share a byte at one time.
    holes : tuple of ArenaTenant
        What was not: all the rest of the arena.
    duration_ns : int
        To the end of the last step. Unit: nanoseconds.
    arena_nbytes : int
        Size of the arena. Unit: bytes.
    needed_nbytes : int
        The most that was needed at once: no arena for the steps that ran can be smaller. The arena has room for steps
        too that only run where packed constants are not kept. Unit: bytes.
    parts : dict of str to int
        What a run takes of the budget, by what it is. The rest of the prediction is programs for other shapes, where
        ranges of them are declared, and states of open sessions. Unit: bytes.
    predicted_nbytes : int
        By `Model.predict_peak`. Unit: bytes.
    measured_nbytes : int
        The most that the engine's budget held since the engine was made, for whatever it ran. Unit: bytes.
    """

    model: str
    steps: tuple[TracedStep, ...]
    temporaries: tuple[ArenaTenant, ...]
    holes: tuple[ArenaTenant, ...]
    duration_ns: int
    arena_nbytes: int
    needed_nbytes: int
    parts: Mapping[str, int]
    predicted_nbytes: int
    measured_nbytes: int

    def html(self) -> str:
        """The picture as a page that stands alone."""
        return write_page(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page.

        Parameters
        ----------
        path : path
            Of an HTML file, which is overwritten.

        Raises
        ------
        OSError
            The file cannot be written.
        """
        Path(path).write_text(self.html(), encoding="utf-8")


def footprint(model: Model, inputs: Mapping[str, Any] | None = None) -> FootprintPicture:
    """Run a model, and picture its memory: the arena over time, and what is held beside it.

    Parameters
    ----------
    model : Model
    inputs : mapping of str to array, optional
        As for `Model.run`; by default random ones, for models whose inputs are static.

    Returns
    -------
    picture : FootprintPicture
        Data to look at, and a page: `FootprintPicture.save`.

    Raises
    ------
    InvalidArgumentError
        Inputs as in `Model.run`.
    StateError
        A trace is on, or the model is closed.

    Notes
    -----
    Nothing else may run the model meanwhile. Ownership: the picture holds names and numbers, no tensors. Threads: one
    at a time in a process. Cost: five runs.
    Source: the time and space charts by which plans of buffers are drawn in the literature of memory planning.

    Examples
    --------
    >>> gp.profile.footprint(model).save("memory.html")     # doctest: +SKIP
    """
    given = random_inputs(model) if inputs is None else dict(inputs)
    predicted = int(model.predict_peak(given))
    recorded = trace_runs(model, given)
    return picture_run(model.specialise(given), recorded, model.name, predicted, model.engine.budget.peak)


def picture_run(form: Executable, recorded: Trace, name: str, predicted: int, measured: int) -> FootprintPicture:
    """The picture of the first run of a form in a trace."""
    recorded.name_ops(form)
    runs = list(_match(form.steps, recorded))
    traced = sorted((step for run in runs for step in run), key=lambda step: (step.start_ns, step.step))
    origin = traced[0].start_ns if traced else 0
    number = {id(step): k for k, step in enumerate(traced)}
    found = [*_between(form, runs, number), *_inside(form, runs, number)]
    moved = [replace(t, start_ns=t.start_ns - origin, end_ns=t.end_ns - origin) for t in found]
    temporaries = sorted(_end_in_place(moved), key=lambda t: (t.start_ns, t.offset))
    duration = max((step.end_ns for step in traced), default=origin) - origin
    holes, needed = _find_holes(temporaries, form.arena_nbytes, duration)
    steps = [replace(s, start_ns=s.start_ns - origin, end_ns=s.end_ns - origin) for s in traced]
    parts = {
        "arena": form.arena_nbytes,
        "results": form.results_nbytes,
        "host functions": form.host_nbytes,
        "constants": form.constants_nbytes,
        "packed constants": form.cached_nbytes,
        "programs": form.programs_nbytes,
    }
    parts["rest of the prediction"] = max(predicted - sum(parts.values()), 0)
    return FootprintPicture(
        name, tuple(steps), tuple(temporaries), tuple(holes), duration, form.arena_nbytes, needed, parts, predicted,
        measured,
    )  # fmt: skip


# ---- what ran


def _match(steps: Sequence[ModelStep], recorded: Trace) -> Iterator[tuple[TracedStep, ...]]:
    """What was traced of each step of a model: the run of its program, or its host function."""
    runs = recorded.runs()
    hosted = [(step,) for step in recorded.steps if not step.program]
    reached = 0
    for step in steps:
        found: tuple[TracedStep, ...] = ()
        if step.compiled is None:
            found = _first([run for run in hosted if run[0].name == step.label], reached)
            if known := step.fallback:
                found = tuple([replace(run, name="host function", kind=known.op_type, op=known.node) for run in found])
        elif step.compiled.program is not None and len(step.compiled.program):
            serial = step.compiled.program.serial
            found = _first([run for run in runs if run[0].program == serial], reached)
        reached = max((traced.end_ns for traced in found), default=reached)
        yield found


def _first(runs: Iterable[tuple[TracedStep, ...]], reached: int) -> tuple[TracedStep, ...]:
    """The first of the runs that began since then."""
    return next((run for run in runs if run[0].start_ns >= reached), ())


# ---- what was needed


def _between(
    form: Executable, runs: Sequence[Sequence[TracedStep]], number: Mapping[int, int]
) -> Iterator[ArenaTenant]:
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


def _inside(form: Executable, runs: Sequence[Sequence[TracedStep]], number: Mapping[int, int]) -> Iterator[ArenaTenant]:
    """The temporaries of the programs, which live from their first use to their last."""
    for position, (step, run) in enumerate(zip(form.steps, runs, strict=True)):
        compiled = step.compiled
        if compiled is None or compiled.primitive is None or compiled.program is None:
            continue
        at, traced = form.offsets.get(~position, 0), {one.step: one for one in run}
        details, (buffers, _) = compiled.primitive.details, compiled.primitive.buffers_of(compiled.program.serial)
        for (offset, nbytes, users), made in zip(buffers, details.tensors, strict=True):
            used = [traced[k] for k in users if k in traced]
            if used and nbytes:
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


# ---- what was not


def _find_holes(tenants: Sequence[ArenaTenant], arena_nbytes: int, duration: int) -> tuple[list[ArenaTenant], int]:
    """The bytes that no tenant has, as rectangles, and the most that all have at one time; tenants by start."""
    moments = sorted({0, duration} | {t.start_ns for t in tenants} | {t.end_ns for t in tenants})
    begun: dict[tuple[int, int], int] = {}
    holes: list[ArenaTenant] = []
    alive: list[ArenaTenant] = []
    coming, needed = list(reversed(tenants)), 0

    def close(gaps: Iterable[tuple[int, int]], moment: int) -> None:
        for low, high in gaps:
            holes.append(ArenaTenant("", "", "", "", None, low, high - low, 0, 0, begun.pop((low, high)), moment))

    for moment in moments[:-1]:
        while coming and coming[-1].start_ns <= moment:
            alive.append(coming.pop())
        alive = [tenant for tenant in alive if tenant.end_ns > moment]
        gaps = dict.fromkeys(_gaps([(t.offset, t.offset + t.nbytes) for t in alive], arena_nbytes))
        needed = max(needed, arena_nbytes - sum(high - low for low, high in gaps))
        close([gap for gap in begun if gap not in gaps], moment)
        for gap in gaps:
            begun.setdefault(gap, moment)
    close(list(begun), duration)
    return holes, needed


def _gaps(spans: Iterable[tuple[int, int]], end: int) -> Iterator[tuple[int, int]]:
    """What the spans leave of 0 to `end`."""
    reached = 0
    for low, high in sorted(spans):
        if low > reached:
            yield reached, low
        reached = max(reached, high)
    if end > reached:
        yield reached, end
