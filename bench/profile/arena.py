"""One traced run of a model: which bytes of its arena each step needs, in all partitions and host functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import graphpool as gp
from bench.bench_memory import fixed_model
from bench.profile.common import inputs_for, warm_up
from graphpool.profile.tracing import Footprint, TracedStep, measure_footprint
from graphpool.runtime.primitive import primitive_of


@dataclass(frozen=True)
class ArenaRun:
    """What ran, by start, and what lay in the arena: rows with the positions of the steps that need it."""

    steps: list[TracedStep]
    rows: list[dict[str, Any]]
    constants: list[dict[str, Any]]
    arena_nbytes: int
    predicted_nbytes: int
    held: dict[str, int]

    def footprint(self) -> Footprint:
        """Bytes in use over the time of the run."""
        times = {number: (step.start_ns, step.end_ns) for number, step in enumerate(self.steps)}
        buffers = [
            (row["offset_nbytes"], row["nbytes"], tuple(range(row["first_step"], row["last_step"] + 1)))
            for row in self.rows
        ]
        return measure_footprint(buffers, times, self.arena_nbytes)


def trace_run(options: Any) -> ArenaRun:
    """Run the model as its file is, then once more with the sizes fixed, so that all of the plan is in numbers."""
    with gp.Engine(threads=options.threads) as engine, gp.onnx.load(options.model, engine=engine) as model:
        inputs = inputs_for(model, {name: sizes[-1] for name, sizes in options.shape})
        predicted = int(model.predict_peak(inputs))
        model.run(inputs)
        held = engine.budget.holdings()
    fixed = fixed_model(options.model, inputs)
    with gp.Engine(threads=options.threads) as engine, gp.onnx.load(fixed, engine=engine) as model:
        warm_up(model, inputs)
        with gp.profile.trace() as recorded:
            model.run(inputs)
        executable = model.specialise(inputs)
        recorded.name_ops(executable)
        spans, rows = _temporaries(executable, recorded)
        rows += _tensors_between(executable, spans)
        return ArenaRun(list(recorded.steps), rows, _constants(executable), executable.arena_nbytes, predicted, held)


def _temporaries(executable: Any, recorded: gp.profile.Trace) -> tuple[list[list[int]], list[dict[str, Any]]]:
    """Positions of the traced steps of each step of the model, and the rows of temporaries of its programs."""
    position = {id(step): number for number, step in enumerate(recorded.steps)}
    runs, hosts = iter(recorded.runs()), iter([step for step in recorded.steps if not step.program])
    spans: list[list[int]] = []
    rows: list[dict[str, Any]] = []
    for number, model_step in enumerate(executable._steps):
        if model_step.compiled is None:
            spans.append([position[id(step)] for step in [next(hosts, None)] if step is not None])
            continue
        is_traced = model_step.compiled.program is not None and len(model_step.compiled.program) > 0
        ran = {step.step: step for step in next(runs, ())} if is_traced else {}
        spans.append([position[id(step)] for step in ran.values()])
        primitive = primitive_of(next(iter(ran.values())).program) if ran else None
        base = executable._plan.offsets.get(~number, 0)
        for offset, nbytes, users in primitive.buffers_of(model_step.compiled.program.serial)[0] if primitive else ():
            used = sorted(set(users) & ran.keys())
            if used and nbytes:
                first, last = ran[used[0]], ran[used[-1]]
                rows.append({
                    "tensor": first.op or first.kind, "kind": first.kind if len(used) > 1 else "scratch",
                    "nbytes": nbytes, "offset_nbytes": base + offset,
                    "first_step": position[id(first)], "last_step": position[id(last)],
                })  # fmt: skip
    return spans, rows


def _tensors_between(executable: Any, spans: list[list[int]]) -> list[dict[str, Any]]:
    """The rows of the tensors that one step of the model leaves for others."""
    steps, rows = executable._steps, []
    for number, step in enumerate(steps):
        for tensor_id in step.outputs:
            users = [n for n in range(number, len(steps)) if tensor_id in (*steps[n].outputs, *steps[n].inputs)]
            traced = sorted(position for n in users for position in spans[n])
            if tensor_id in executable._plan.offsets and traced:
                op = executable.partitions[number].ops[-1]
                rows.append({
                    "tensor": op.name or op.kind, "kind": "between partitions",
                    "nbytes": executable._tensors[tensor_id].nbytes,
                    "offset_nbytes": executable._plan.offsets[tensor_id],
                    "first_step": traced[0], "last_step": traced[-1],
                })  # fmt: skip
    return rows


def _constants(executable: Any) -> list[dict[str, Any]]:
    """The constants that partitions read, as the file has them, each once, by the first op that reads it."""
    found: dict[int, dict[str, Any]] = {}
    for partition in executable.partitions:
        for op in partition.ops:
            for number, port in enumerate(op.inputs):
                value = executable.form.constants.get(port.id)
                if value is not None:
                    name = f"{op.name or op.kind} input {number}"
                    row = {"tensor": name, "kind": "constant", "nbytes": value.nbytes, "offset_nbytes": None}
                    found.setdefault(port.id, row | {"first_step": None, "last_step": None})
    return list(found.values())
