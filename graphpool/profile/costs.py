"""`profile_ops`: what the steps of a model cost on this machine, so that schedules need not guess."""

from __future__ import annotations

import math
import statistics
import time
from typing import TYPE_CHECKING, Any

from graphpool._dataclasses import dataclass, replace

from ..backends.cpu.backend import relowering
from ..backends.cpu.place.merging import fused_steps, place_steps
from ..backends.cpu.place.stages import StageTimer
from ..backends.cpu.place.streams import step_signature
from ..errors import InvalidArgumentError, brief, check_count, explain
from ..runtime import Engine
from ..runtime.costs import cost_key, program_key, stage_key, stage_latencies, step_costs
from ..runtime.executable import Executable
from ..runtime.primitive import primitive_of
from ..runtime.scheduling import POLICIES, ScheduleOptions
from .inputs import inputs_or_random
from .tracing import trace

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ..backends.cpu.lower.lowering import Lowering
    from ..backends.cpu.place.merging import Relowering
    from ..runtime import CompiledPartition, Model
    from ..runtime.model_form import ModelForm
    from ..runtime.scheduling import ScheduleOptions
    from .tracing import Trace, TracedStep

ROUNDS = 2
"""How often all policies have their turn, so that a slow spell of the machine does not decide against one."""


@dataclass(frozen=True, slots=True)
class OpCost:
    """What one step costs.

    Attributes
    ----------
    kind, name, signature : str
        Kind of the op, kernel, and what the cost depends on.
    seconds : dict of int to float
        By the number of threads. Unit: seconds.
    ops : tuple of str
        Names of the ops that the steps of this cost compute, of each step the first; those of an ONNX model are its
        nodes'.
    """

    kind: str
    name: str
    signature: str
    seconds: dict[int, float]
    ops: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OpProfile:
    """Costs of the steps of a model, each distinct one once, in the order in which they run.

    Attributes
    ----------
    ops : tuple of OpCost
    """

    ops: tuple[OpCost, ...]

    def __str__(self) -> str:
        """A table, the dearest first, with the first op that each row is the cost of, and how many others."""
        rows = []
        for op in sorted(self.ops, key=lambda op: -max(op.seconds.values())):
            times = "  ".join(f"{seconds * 1e6:10.1f} us on {n}" for n, seconds in sorted(op.seconds.items()))
            more = f" (+{len(op.ops) - 1})" if len(op.ops) > 1 else ""
            rows.append(f"{op.kind:<20} {times}  {op.name}  {''.join(op.ops[:1])}{more}".rstrip())
        return "\n".join(rows)


def profile_ops(
    model: Model,
    inputs: Mapping[str, Any] | None = None,
    *,
    threads: int | None = None,
    repeats: int = 5,
    timeout_s: float = 10.0,
) -> OpProfile:
    """Measure every step of a model on one thread and on all of them, and let its next run be scheduled by that.

    Convolutions of one image are measured as one call too, which they become where it is faster. Of a model with
    ``schedule="ios"`` or ``"auto"``, stages are measured as wholes, several steps side by side. Of one with ``"auto"``,
    whole programs are measured under every policy, so that the choice between them rests on what happened and not on
    what the simulation promises.

    Parameters
    ----------
    model : Model
    inputs : mapping of str to array, optional
        As for `Model.run`; by default random ones, for models whose inputs are static.
    threads : int, optional
        All threads; by default those of the model's engine.
    repeats : int, default=5
        Runs to take the median of, at least 1.
    timeout_s : float, default=10.0
        Most time for stages and calls for several convolutions, at least 0: what is not measured by then is estimated
        from the steps. Unit: seconds.

    Returns
    -------
    profile : OpProfile

    Raises
    ------
    InvalidArgumentError
        `threads` or `repeats` below 1, `timeout_s` below 0, or inputs as in `Model.run`.
    StateError
        A trace is on, or the model is closed.
    OutOfMemoryError
        There is no memory for another arena of the model.

    Notes
    -----
    Costs are kept for the process by what they depend on (kernel, types, shapes, parameters), and in the file that
    ``GRAPHPOOL_STEP_COSTS`` names, if it names one; equal steps of other models use them too. Stages likewise, in a
    file beside it.
    Ownership: the caller owns the result; measuring takes an engine and an arena of its own, outside the budget
    of the model's engine, and gives them back.
    Threads: safe, one at a time. Cost: `repeats` + 1 runs, twice, and two compilations; `timeout_s` for stages; for
    ``auto``, as much as for the steps again for each policy.
    Source: profile-guided scheduling as in Graphi (2018), latencies of whole schedules as in IOS (2021).
    """
    given = inputs_or_random(model, inputs)
    threads = model.engine.threads if threads is None else threads
    for name, value in (("threads", threads), ("repeats", repeats)):
        check_count(name, value)
    if not isinstance(timeout_s, (int, float)) or not 0 <= timeout_s < math.inf:
        message = explain("timeout_s", accepted="a finite number of seconds, at least 0", got=brief(timeout_s))
        raise InvalidArgumentError(message, timeout_s=timeout_s)
    model.specialise(given)  # says what is wrong with the inputs, and that the model is closed
    form = model.plain_form(given)
    found: dict[str, OpCost] = {}
    for count in sorted({1, threads}):
        for measured in _measure(form, given, threads, count, repeats):
            cost = found.setdefault(measured.signature, measured)
            cost.seconds.update(measured.seconds)
            step_costs().put(cost_key(measured.signature, count), measured.seconds[count])
    _measure_stages(form, model.options, threads, repeats, timeout_s)
    streams = model.options.streams_on(threads)
    if model.options.policy == "auto" and streams > 1:
        _compare_policies(form, given, streams, threads, repeats)
    for store in (step_costs(), stage_latencies()):
        if store.path is not None:
            store.save()
    model.respecialise()
    return OpProfile(tuple(found.values()))


def _measure(form: ModelForm, inputs: Mapping[str, Any], threads: int, count: int, repeats: int) -> list[OpCost]:
    """The median of every distinct step, whose tasks are made for `threads`, when so many of these share each."""
    steps: dict[str, list[TracedStep]] = {}
    with Engine(threads=threads) as engine:
        executable = Executable(form, engine)
        try:
            recorded = _record(executable, inputs, count, repeats)
            recorded.name_ops(executable)
            for step in recorded.steps:
                primitive = primitive_of(step.program)
                if primitive is not None:
                    steps.setdefault(primitive.details.signatures[step.step], []).append(step)
        finally:
            executable.close()
    found = []
    for signature, runs in steps.items():
        seconds = statistics.median([(step.end_ns - step.start_ns) / 1e9 for step in runs])
        ops = tuple(dict.fromkeys(step.op for step in runs if step.op))
        found.append(OpCost(runs[-1].kind, runs[-1].name, signature, {count: seconds}, ops))
    return found


def _measure_stages(form: ModelForm, options: ScheduleOptions, threads: int, repeats: int, timeout_s: float) -> None:
    """Stages of every program, until the time is up."""
    deadline_s = time.monotonic() + timeout_s
    with Engine(threads=threads) as engine:
        executable = Executable(form, engine)
        try:
            for compiled in executable.compiled:
                if compiled.program is not None and len(compiled.program) > 1:
                    measure_stages(compiled, options, threads, repeats, deadline_s)
        finally:
            executable.close()


def _compare_policies(form: ModelForm, inputs: Mapping[str, Any], streams: int, threads: int, repeats: int) -> None:
    """Keep the best time of every program under every policy: other programs only add to it."""
    best: dict[tuple[int, str], float] = {}
    signatures: dict[int, str] = {}
    with Engine(threads=threads) as engine:
        for policy in [policy for policy in POLICIES if policy != "auto"] * ROUNDS:
            executable = Executable(form, engine, options=ScheduleOptions(policy, streams))
            try:
                for number, signature, seconds in _time_programs(executable, inputs, threads, repeats):
                    best[number, policy] = min(seconds, best.get((number, policy), seconds))
                    signatures[number] = signature or signatures.get(number, "")
            finally:
                executable.close()
    for (number, policy), seconds in best.items():
        step_costs().put(program_key(signatures[number], policy, streams, threads), seconds)


def _time_programs(
    executable: Executable, inputs: Mapping[str, Any], threads: int, repeats: int
) -> Iterable[tuple[int, str, float]]:
    """Number, signature and best time of every program that has steps to place."""
    recorded = _record(executable, inputs, threads, repeats)
    for number, primitive in enumerate(compiled.primitive for compiled in executable.compiled):
        runs = [] if primitive is None else recorded.runs(primitive.program.serial)
        if primitive is not None and runs and len(primitive.program) > 1:
            times = [max(s.end_ns for s in run) - min(s.start_ns for s in run) for run in runs]
            yield number, primitive.details.signature, min(times) / 1e9


def _record(executable: Executable, inputs: Mapping[str, Any], threads: int, repeats: int) -> Trace:
    """A trace of warm runs on one thread, or that use all: whether that pays is what is asked."""
    programs = [compiled.program for compiled in executable.compiled if compiled.program is not None]
    shared = [program for program in programs if program.nthreads > 1]
    for program in shared:
        program.trials = 0 if threads > 1 else -1
    try:
        executable.run(inputs)
        # a thread takes a step in few tens of pieces, each a share of what is left
        pieces = sum(
            min(call.ntasks, 64 * threads) * max(trips, 1)
            for program in programs
            for call, trips in zip(program.calls, program.loops.trips(), strict=True)
        )
        with trace(capacity=max(1, repeats * pieces)) as recorded:
            for _ in range(repeats):
                executable.run(inputs)
    finally:
        for program in shared:
            program.trials = 0  # others run them too
    return recorded


# ---- stages measured as wholes, for `ios` and for convolutions that one call could compute

# Nobody measures every stage that there could be. What the steps take by themselves says which sequence of stages looks
# best; its stages are measured, which makes others look better, until the best one holds only measured stages.


Stage = tuple[tuple[int, ...], ...]


def measure_stages(
    compiled: CompiledPartition, options: ScheduleOptions, threads: int, repeats: int, deadline_s: float
) -> int:
    """Measure horizontally fused convolutions, and the stages that `ios` wants, and keep it in `stage_latencies`.

    Stages are of interest where ``ios`` or ``auto`` may use them; the fastest run of each counts, and nothing is begun
    behind the deadline. Returns how many were measured. Source: lazy search for shortest paths (Dellin and Srinivasa,
    2016): edges are evaluated where the best path that is known runs through them.
    """
    partition = relowering(compiled.partition, compiled.inputs, compiled.outputs, threads)
    with StageTimer(threads) as timer:
        search = _Search(partition, timer, repeats, deadline_s)
        search.measure_horizontal_fusions()
        if options.policy in ("auto", "ios") and options.may_be_parallel(threads):
            search.follow(replace(options, policy="ios"))
    return search.count


@dataclass
class _Search:
    """Measures stages of one partition until a deadline."""

    partition: Relowering
    timer: StageTimer
    repeats: int
    deadline_s: float
    count: int = 0

    def measure_horizontal_fusions(self) -> None:
        """Each convolution that could share a call by itself, and the calls for all of them."""
        plain = self.partition.lower(())
        for ids in plain.horizontal_fusions:
            for lowering in (plain, self.partition.lower((ids,))):
                for step in fused_steps(lowering, ids):
                    self.measure(lowering, ((lowering.steps.index(step),),))

    def follow(self, options: ScheduleOptions) -> None:
        """The stages of the best sequence, again and again, until all of them are known."""
        is_new = True
        while is_new and time.monotonic() < self.deadline_s:
            lowering, _, placed = place_steps(self.partition, options)
            assert placed.schedule is not None  # somebody asked
            stages: Sequence[Stage] = placed.schedule.details.get("stages", ())
            is_new = sum(self.measure(lowering, stage) for stage in stages) > 0

    def measure(self, lowering: Lowering, stage: Stage) -> bool:
        """Whether the stage was not known and is now."""
        due = [tuple(k for k in row if (guard := lowering.steps[k].guard) is None or guard[1]) for row in stage]
        rows = [row for row in due if row]
        key = stage_key([[step_signature(lowering.steps[k]) for k in row] for row in rows], self.timer.threads)
        if not rows or stage_latencies().get(key) is not None or time.monotonic() >= self.deadline_s:
            return False
        nports = sum(self.partition.nports)
        stage_latencies().put(key, self.timer.seconds(lowering, nports, rows, self.repeats))
        self.count += 1
        return True
