"""A partition compiled for shapes that are known when it is executed."""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING, Any

from graphpool._collection import collection_paused
from graphpool.errors import InvalidArgumentError, InvalidShapeError, StateError, brief, check_choice, explain
from graphpool.graph.logical_tensor import LogicalTensor
from graphpool.typing import UNKNOWN_DIM

from ._compiled import SCRATCH_MODES, WEIGHTS_MODES, CompiledPartition, _recompile
from ._form_cache import FormCache
from ._tensor import Tensor, as_tensors
from .resizable_form import ResizableForm
from .scheduling import parse_options
from .shared_arenas import SharedArenas
from .variable_forms import VariableForms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from graphpool._size_program import SizeValues
    from graphpool.graph.partition import Partition

    from ._stream import Stream
    from .constant_part import ExecuteOptions
    from .engine import Engine
    from .variable_form import VariableForm
    from .variable_partition import VariablePartition

__all__ = ["DynamicPartition"]

_CAPACITY = 32
"""Sets of shapes whose programs are kept."""


class DynamicPartition:
    """A compiled partition of unknown shapes; made by `Partition.compile` where dimensions of inputs are unknown.

    Its executions take tensors of any sizes that the partition allows. The first compiles; other sizes are served by
    what was compiled, unless a decision would come out otherwise.

    Parameters
    ----------
    partition : Partition
    inputs, outputs : sequence of LogicalTensor
        In the order in which tensors are passed to `execute`; ranks of inputs are known.
    engine : Engine
    scratch, weights, schedule : str
        As for `Partition.compile`. With scratch "primitive" arenas are the partition's own, and grow with the shapes.
    streams : int

    Attributes
    ----------
    partition : Partition
    inputs, outputs : tuple of LogicalTensor
        As they were given.
    engine : Engine

    Notes
    -----
    Ownership: owns programs and arenas until it is closed; tensors are the caller's. Pickles by description, as
    `CompiledPartition`. Threads: safe; any number of threads may execute it at once, one compiles at a time. Cost of
    `execute`: a few microseconds beyond the kernels for the last 32 sets of shapes, some ten for new ones; a
    compilation where a decision changes.
    """

    template = None  # no other can be made of it without compiling

    def __init__(
        self,
        partition: Partition,
        inputs: Sequence[LogicalTensor],
        outputs: Sequence[LogicalTensor],
        engine: Engine,
        *,
        scratch: str = "primitive",
        weights: str = "cached",
        schedule: str = "sequential",
        streams: int = 1,
    ) -> None:
        parse_options(schedule, streams)
        check_choice("scratch", scratch, SCRATCH_MODES)
        check_choice("weights", weights, WEIGHTS_MODES)
        partition.complete(inputs, outputs)  # as far as it is known, it holds together
        self.partition, self.engine = partition, engine
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self._modes: dict[str, Any] = {"scratch": scratch, "weights": weights, "schedule": schedule, "streams": streams}
        self._names = [f"tensor {tensor.id}" for tensor in inputs]
        dims = {
            name: [None if dim == UNKNOWN_DIM else dim for dim in tensor.shape or ()]
            for name, tensor in zip(self._names, inputs, strict=True)
        }
        name = f"arenas of partition {partition.id}"
        self._arenas = SharedArenas(engine.source, engine.budget, name) if scratch == "primitive" else None
        self._variable: VariableForms[_Form] = VariableForms(dims, engine, _CAPACITY, serve_alone=False)
        self._forms: FormCache[_Form] = FormCache(f"partition {partition.id}", _CAPACITY)

    # ---- execution

    def execute(
        self,
        stream: Stream,
        inputs: Iterable[Tensor],
        outputs: Iterable[Tensor] | None = None,
        *,
        scratchpad: Any = None,
        options: ExecuteOptions | None = None,
    ) -> Sequence[Tensor]:
        """Compute the outputs from the inputs, compiling first if need be; see `CompiledPartition.execute`.

        Parameters
        ----------
        stream : Stream
        inputs : iterable of Tensor
            Of any sizes where `inputs` leaves them open.
        outputs : iterable of Tensor, optional
            Of the shapes that follow, which `specialise` tells; None lets the engine allocate them.
        scratchpad, options
            As for `CompiledPartition.execute`.

        Returns
        -------
        outputs : sequence of Tensor

        Raises
        ------
        InvalidShapeError
            A tensor has another rank or other fixed dimensions than `inputs`, or the shapes contradict one another;
            nothing was run. The others as `Partition.compile` and `CompiledPartition.execute` raise them.
        """
        tensors = as_tensors(inputs)
        use = self._enter_for(tensors)
        runs = 0
        try:
            compiled: CompiledPartition = use.executable.compiled
            made = compiled.execute(stream, tensors, outputs, scratchpad=scratchpad, options=options)
            runs = 1
            return made
        finally:
            self._leave(use, runs)

    def specialise(self, inputs: Iterable[Tensor | LogicalTensor]) -> CompiledPartition:
        """The compiled partition for these inputs: shapes of outputs, scratchpad, implementations.

        It belongs to this object, which closes it when many other shapes were met since.

        Parameters
        ----------
        inputs : iterable of Tensor or LogicalTensor
            With shapes known; matched by id.

        Returns
        -------
        compiled : CompiledPartition

        Raises
        ------
        InvalidArgumentError
            An input is neither, or its shape is not known.
        InvalidShapeError
            As `execute`.
        """
        use = self._enter_for(as_tensors(inputs))
        self._leave(use)
        compiled: CompiledPartition = use.executable.compiled
        return compiled

    def _enter_for(self, given: tuple[Any, ...]) -> Any:
        found: dict[int, LogicalTensor] = {}
        for tensor in given:
            lt = tensor.lt if type(tensor) is Tensor else tensor
            if type(lt) is not LogicalTensor or not lt.is_shape_known:
                raise InvalidArgumentError(
                    explain("inputs", accepted="Tensors, or LogicalTensors of known shape", got=brief(tensor))
                )
            found.setdefault(lt.id, lt)
        shapes = tuple([self._shape(tensor, found.get(tensor.id)) for tensor in self.inputs])
        return self._forms.enter(shapes, lambda exactly: self._make(shapes, exactly))

    def _leave(self, use: Any, runs: int = 0) -> None:
        self._forms.leave(use, runs)
        if self._forms.is_closed:
            self._variable.close()

    def _shape(self, wanted: LogicalTensor, given: LogicalTensor | None) -> tuple[int, ...]:
        """The shape of an input that was given."""
        if given is None:
            raise InvalidArgumentError(
                explain(f"no input tensor with id {wanted.id}", accepted=f"ids {[t.id for t in self.inputs]}"),
                tensor_id=wanted.id,
            )
        dims, shape = wanted.shape or (), given.shape or ()
        if len(shape) != len(dims) or any(d not in (n, UNKNOWN_DIM) for d, n in zip(dims, shape, strict=True)):
            raise InvalidShapeError(
                explain(f"input tensor {wanted.id}", accepted=repr(wanted), got=brief(given)), tensor_id=wanted.id
            )
        return shape

    # ---- compilation

    @collection_paused()
    def _make(self, shapes: Sequence[tuple[int, ...]], exactly: bool) -> _Form:
        return self._variable.form(dict(zip(self._names, shapes, strict=True)), {}, exactly, self._compile)

    def _compile(self, shapes: Mapping[str, Any], deciding: Mapping[str, Any], variable: VariableForm | None) -> _Form:
        inputs = [t.replace(shape=shapes[name]) for name, t in zip(self._names, self.inputs, strict=True)]
        if variable is None:
            return _Form(self.partition.compile(inputs, self.outputs, self.engine, **self._modes))
        options = parse_options(self._modes["schedule"], self._modes["streams"])
        made = variable.add(self.partition, inputs, self.outputs, self._modes["weights"], options)
        values = variable.finish({tensor.id: tensor for tensor in (*made.inputs, *made.outputs)})
        scratch = "none" if self._arenas is not None else self._modes["scratch"]
        return _Form(made.first(values, scratch), variable, made, self._arenas)

    @property
    def compilations(self) -> int:
        """How often it was compiled."""
        return self._variable.compilations

    @property
    def respecialisations(self) -> tuple[str, ...]:
        """Why all but the first compilation were needed, the last 32; see `ModelStats`."""
        return tuple(self._variable.respecialisations)

    # ---- life

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._forms.is_closed or self.engine.is_closed

    def trim(self) -> int:
        """Give the memory of idle arenas back; returns its bytes.

        Returns
        -------
        int
        """
        return 0 if self._arenas is None else self._arenas.current().trim()

    def close(self) -> None:
        """Give all memory back; executions that are running finish first, new ones are refused. Idempotent."""
        self._forms.clear(closes=True)
        self._variable.close()
        if self._arenas is not None:
            self._arenas.close()

    def __enter__(self) -> DynamicPartition:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if hasattr(self, "_forms") and not self._forms.is_closed and not is_finalizing():
            if len(self._variable) and not self.engine.is_closed:
                warnings.warn(f"{self!r} was not closed", ResourceWarning, stacklevel=1, source=self)
            self.close()

    def __copy__(self) -> DynamicPartition:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles by what it was compiled for; the copy compiles at its first execution."""
        if self.is_closed:
            raise StateError(explain("the compiled partition is closed", hint="pickle it while it is open"))
        return _recompile, (self.partition, self.inputs, self.outputs, self.engine, self._modes)

    def __repr__(self) -> str:
        state = ", closed" if self._forms.is_closed else ""
        return f"DynamicPartition({self.partition!r}, {', '.join(map(repr, self.inputs))}{state})"

    def _repr_html_(self) -> str:
        """For notebooks."""
        from graphpool.notebook import brief_list, html_table

        rows = {"inputs": brief_list(self.inputs), "outputs": brief_list(self.outputs)}
        rows["shapes it is compiled for"] = str(len(self._forms.forms()))
        return html_table(f"DynamicPartition of {self.partition.kind}{', closed' if self.is_closed else ''}", rows)


class _Form(ResizableForm):
    """A compiled partition for one set of shapes, and what makes those for others if it is the first of several."""

    def __init__(
        self,
        compiled: CompiledPartition,
        variable: VariableForm | None = None,
        maker: VariablePartition | None = None,
        arenas: SharedArenas | None = None,
    ) -> None:
        super().__init__(variable)
        self.compiled, self._maker, self._arenas = compiled, maker, arenas
        self._nbytes = 0

    def _resized(self, variable: VariableForm, values: SizeValues, exactly: bool) -> _Form | None:
        assert self._maker is not None  # as sizes vary
        engine, sized = self.compiled.engine, variable.tensors(values).sized
        slack = engine.memory_limit is None
        made = self._maker.instance(self.compiled, values, sized, slack, exactly, arenas=self._arenas)
        if made is None:
            return None
        form = _Form(made)
        form._become(self, not exactly)
        form._nbytes = 0 if made.program is None else made.program.nbytes
        holder = f"partition {self._maker.partition.id}"
        engine.budget.check(form._nbytes + made.scratchpad_nbytes, holder=holder)
        engine.budget.charge(form._nbytes, holder=f"programs of {holder}")
        return form

    def _free_own(self) -> None:
        if self._first is None:
            return
        self.compiled.close()
        if self.compiled.primitive is not None and self.compiled.program is not None:
            self.compiled.primitive.forget_program(self.compiled.program)
        self.compiled.engine.budget.uncharge(self._nbytes)

    def _free_shared(self) -> None:
        self.compiled.close()
