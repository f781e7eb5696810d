"""The steps of a form, compiled: for fixed sizes, or for such as may vary."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphpool.errors import UnsupportedError, explain

from ._form_sizes import FormSizes
from .model_step import ModelStep, settled_tensors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from graphpool._size_program import SizeValues
    from graphpool.graph.logical_tensor import LogicalTensor
    from graphpool.graph.partition import Partition

    from ._compiled import CompiledPartition
    from .engine import Engine
    from .held_states import HeldStates
    from .model_form import ModelForm
    from .partition_runs import PartitionRuns
    from .scheduling import ScheduleOptions
    from .variable_form import VariableForm

    Pairs = Sequence[tuple[int, int]]

__all__ = ["FormSteps", "divide"]


class FormSteps:
    """Compiles the partitions of a form, neighbours of one backend as one.

    Attributes
    ----------
    steps : list of ModelStep
    tensors : mapping of int to LogicalTensor
        With the shapes that there are now, and the strides of states.
    values : SizeValues or None
        What the sizes that may vary are now.
    sizes : FormSizes
        Of inputs and outputs.
    appended : frozenset of str
        States of which the part that they have in common with their input is not written.

    Raises
    ------
    UnsupportedError
        An op has neither a backend nor a host function.
    """

    def __init__(
        self,
        form: ModelForm,
        engine: Engine,
        weights: str,
        options: ScheduleOptions,
        variable: VariableForm | None,
        states: HeldStates | None,
    ) -> None:
        self._engine, self._weights, self._options = engine, weights, options
        self.tensors: Mapping[int, LogicalTensor] = settled_tensors(form.graph)
        if states is not None:
            self.tensors = states.place(form, self.tensors)
            if variable is not None:
                variable.limits = states.limits(form, self.tensors)
        self.values: SizeValues | None = None
        self.sizes = FormSizes(self.tensors, (*form.inputs.values(), *form.outputs.values()))
        self._runs = divide(form, options, engine.threads)
        merged = self._runs.compiled
        appends = [[] if states is None else states.appends(form, partition) for partition in merged]
        written = {i for pairs in appends for _, i in pairs}
        self.appended = frozenset(name for name, i in form.outputs.items() if i in written)
        work = zip(merged, appends, strict=True)
        compiled = self._compile(work) if variable is None else self._compile_variable(work, variable)
        steps = [_step(form, partition, made) for partition, made in zip(merged, compiled, strict=True)]
        self.steps = engine.device.forms.with_copies(form, steps)

    def partitions_at(self, values: SizeValues | None) -> tuple[Partition, ...]:
        """The partitions before neighbours were merged, in the order in which they run, for values of sizes."""
        found = self._runs.partitions
        return found if values is None else tuple([partition.with_sizes(values) for partition in found])

    def tensors_at(
        self, tensors: Mapping[int, LogicalTensor], values: SizeValues | None
    ) -> Mapping[int, LogicalTensor]:
        """All tensors of the graph: these, or for such values."""
        return tensors

    def _compile(self, work: Iterable[tuple[Partition, Pairs]]) -> Iterator[CompiledPartition | None]:
        """Compile for these sizes; None for partitions that the host runs."""
        modes: Any = {"weights": self._weights, "schedule": self._options.policy, "streams": self._options.streams}
        for partition, appends in work:
            backend: Any = partition.backend
            if not partition.is_supported:
                yield None
            elif appends:
                ports = self._ports(partition)
                yield backend.compile_variable(partition, *ports, self._engine, appends=appends, **modes).first(None)
            else:
                yield partition.compile(*self._ports(partition), self._engine, scratch="caller", **modes)

    def _compile_variable(
        self, work: Iterable[tuple[Partition, Pairs]], variable: VariableForm
    ) -> Iterator[CompiledPartition | None]:
        """Compile for sizes that may vary; what serves those that there are now."""
        found = [
            variable.add(p, *self._ports(p), self._weights, self._options, pairs) if p.is_supported else None
            for p, pairs in work
        ]
        values = self.values = variable.finish(self.tensors)
        self.tensors = variable.tensors(values)
        return (None if made is None else made.first(values) for made in found)

    def _ports(self, partition: Partition) -> tuple[list[LogicalTensor], list[LogicalTensor]]:
        inputs, outputs = partition.input_ports, partition.output_ports
        return [self.tensors[port.id] for port in inputs], [self.tensors[port.id] for port in outputs]


def divide(form: ModelForm, options: ScheduleOptions, threads: int) -> PartitionRuns:
    """The partitions of a form."""
    from .partition_runs import PartitionRuns  # not by those who read forms of a store

    return PartitionRuns(form.graph, options.may_be_parallel(threads))


def _step(form: ModelForm, partition: Partition, compiled: CompiledPartition | None) -> ModelStep:
    """What runs a partition: the compiled one, else its host function."""
    op = partition.ops[0]
    function = None if compiled is not None else form.host_functions.get(op.id)
    if compiled is None and function is None:
        raise UnsupportedError(explain(f"{op.label} has neither a backend nor a host function"), op_id=op.id)
    ids = [tuple(port.id for port in side) for side in (partition.input_ports, partition.output_ports)]
    return ModelStep(compiled, function, op.name, ids[0], ids[1], form.fallbacks.get(op.id))
