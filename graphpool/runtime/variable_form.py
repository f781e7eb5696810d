"""A form of which sizes may vary: compiled once, for all sizes for which every decision comes out the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from graphpool._dataclasses import NamedTuple
from graphpool._size_bounds import SizeBounds
from graphpool._size_program import SizeProgram
from graphpool._sizes import hint_of, is_variable, key_of
from graphpool.errors import UnsupportedError, explain

from ._form_sizes import symbol_values
from ._trip_sizes import TripSizes
from .variable_partition import Plan, VariablePartition

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from graphpool._size_program import SizeValues
    from graphpool._sizes import Size, Trace
    from graphpool.graph.logical_tensor import LogicalTensor
    from graphpool.graph.partition import Partition

    from ._compiled import CompiledPartition
    from ._program import Program
    from .engine import Engine
    from .held_states import StateLimits
    from .primitive import Buffers
    from .scheduling import ScheduleOptions

__all__ = ["SizeName", "SizeSum", "Symbols", "VariableForm"]


class SizeName(NamedTuple):
    """Stands among the names of inputs for what else varies: the "content" of an input, the "capacity" of a state."""

    what: str
    name: str

    def __str__(self) -> str:
        return f"{self.what} of {self.name}"


class SizeSum(NamedTuple):
    """Stands for a dimension that is as long as others together, and so many more."""

    names: tuple[str, ...]
    more: int

    def __str__(self) -> str:
        return " + ".join([*self.names, *([str(self.more)] if self.more or not self.names else [])])

    def of(self, sizes: Mapping[Any, Any]) -> Any:
        """Its size where these are those of the names."""
        return sum([sizes[name] for name in self.names], self.more)


class Symbols:
    """The sizes of a model's inputs that may vary: those of one name and value are one.

    Parameters
    ----------
    dims : mapping of name to sequence or None
        Of each input the dimensions: an int is fixed, equal names stand for one size, None for one of its own; a
        `SizeSum` of names that stand elsewhere holds for all shapes.
    shapes : mapping of name to tuple of int or None
        What they are now.
    trace : Trace

    Attributes
    ----------
    shapes : dict of name to tuple
        With sizes where they may vary.
    places : list of list of (name, int)
        Of each of these the inputs and axes where it stands.
    """

    def __init__(self, dims: Mapping[Any, Any], shapes: Mapping[Any, Any], trace: Trace) -> None:
        self.places: list[list[tuple[Any, int]]] = []
        self.shapes: dict[Any, Any] = {}
        found: dict[tuple[Any, int], tuple[Size, list[tuple[Any, int]]]] = {}
        for name, shape in shapes.items():
            wanted = dims[name]
            if shape is None:
                self.shapes[name] = None
                continue
            sizes: list[Any] = []
            for axis, size in enumerate(shape):
                dim = wanted[axis] if wanted is not None else None
                if isinstance(dim, (int, SizeSum)):
                    sizes.append(size if isinstance(dim, int) else dim)
                    continue
                key = (name, axis) if dim is None else (dim, ~size)
                if key not in found:
                    found[key] = trace.symbol(size, f"{name}[{axis}]" if dim is None else str(dim)), []
                    self.places.append(found[key][1])
                found[key][1].append((name, axis))
                sizes.append(found[key][0])
            self.shapes[name] = tuple(sizes)
        known = {dim: size for (dim, _), (size, _) in found.items()}
        for name, given in self.shapes.items():
            if given is not None:
                self.shapes[name] = tuple([dim.of(known) if isinstance(dim, SizeSum) else dim for dim in given])
        self._ranks: dict[Any, int | None] = {
            name: None if shape is None else len(shape) for name, shape in shapes.items()
        }

    def values(self, shapes: Mapping[Any, Any]) -> list[Any] | None:
        """The values of the symbols for other shapes; None where one would have two, or a rank is another.

        What stands in the shapes for sizes need not be numbers.
        """
        return symbol_values(self.places, self._ranks, shapes)


class SizedTensors(Mapping[int, "LogicalTensor"]):
    """Tensors for one set of sizes, made when they are asked for."""

    def __init__(self, tensors: Mapping[int, LogicalTensor], values: SizeValues | SizeBounds) -> None:
        self._tensors, self._values = tensors, values
        self._made: dict[int, LogicalTensor] = {}

    def __getitem__(self, tensor_id: int) -> LogicalTensor:
        found = self._made.get(tensor_id)
        if found is None:
            found = self._made[tensor_id] = self._tensors[tensor_id].with_sizes(self._values)
        return found

    def sized(self, tensor: LogicalTensor) -> LogicalTensor:
        """A tensor for these sizes: one of the form's once for all."""
        return self[tensor.id] if self._tensors[tensor.id] is tensor else tensor.with_sizes(self._values)

    def __iter__(self) -> Iterator[int]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __contains__(self, tensor_id: object) -> bool:
        return tensor_id in self._tensors


class VariableForm:
    """What of a form varies, and how it is compiled.

    Parameters
    ----------
    trace : Trace
        Of the sizes in the form's graph.
    symbols : Symbols
    engine : Engine

    Attributes
    ----------
    limits : StateLimits or None
        What the sizes of states must keep to.

    Notes
    -----
    Threads: one at a time.
    """

    def __init__(self, trace: Trace, symbols: Symbols, engine: Engine) -> None:
        self.limits: StateLimits | None = None
        self._trace, self._symbols, self._engine = trace, symbols, engine
        self._partitions: list[VariablePartition] = []
        self._tensors: Mapping[int, LogicalTensor] = {}

    def add(
        self, partition: Partition, inputs: Sequence[LogicalTensor], outputs: Sequence[LogicalTensor], weights: str,
        options: ScheduleOptions, appends: Sequence[tuple[int, int]] = (),
    ) -> VariablePartition:  # fmt: skip
        """Compile one more partition.

        `appends` has the ids of inputs, and of outputs that have them at their beginning, in the same memory.

        Raises
        ------
        UnsupportedError
            Its backend compiles for fixed sizes only.
        """
        compile_variable = getattr(partition.backend, "compile_variable", None)
        if compile_variable is None:
            raise UnsupportedError(explain(f"{partition!r} with sizes that vary", accepted="the CPU backend"))
        found: VariablePartition = compile_variable(
            partition, inputs, outputs, self._engine, weights=weights, schedule=options.policy,
            streams=options.streams, appends=appends,
        )  # fmt: skip
        self._partitions.append(found)
        return found

    def finish(self, tensors: Mapping[int, LogicalTensor]) -> SizeValues:
        """End the compilation; the values of its sizes as they are now."""
        self._tensors = tensors
        self._trace.close()
        self._program = SizeProgram(self._trace)
        return self.now()

    def now(self) -> SizeValues:
        """The values of the sizes of the compilation."""
        now = self._program.compute([hint_of(size) for size in self._trace.symbols()])
        assert now is not None  # all checks hold for the values that they were made with
        return now

    def with_tensors(self, tensor_ids: Collection[int]) -> VariableForm:
        """The same with some of its tensors alone."""
        other = object.__new__(VariableForm)
        vars(other).update(vars(self))
        other._tensors = {i: tensor for i, tensor in self._tensors.items() if i in tensor_ids}
        return other

    def first(self, values: SizeValues) -> list[CompiledPartition]:
        """The compiled partitions for the sizes of the compilation, whose values these are."""
        return [variable.first(values) for variable in self._partitions]

    def values(self, shapes: Mapping[Any, Any], exactly: bool = True) -> SizeValues | None:
        """What all sizes are for other shapes of the inputs; None if a decision would come out otherwise.

        Those that only say what is faster count if `exactly`. Raises `StateError` where states have no room.
        """
        symbols = self._symbols.values(shapes)
        values = None if symbols is None else self._program.compute(symbols, exactly)
        if self.limits is not None and values is not None:
            self.limits.check(values)
        elif self.limits is not None and not exactly:  # strides of states without room decide otherwise
            symbols = self._symbols.values(self.limits.roomier(shapes))
            roomy = None if symbols is None else self._program.compute(symbols, False)
            if roomy is not None:
                self.limits.check_room(roomy, shapes)
        return values

    def symbols_at(self, values: SizeValues) -> list[int]:
        """What the symbols are where the sizes have these values."""
        return [values.of(symbol) for symbol in self._trace.symbols()]

    def at(self, symbols: Sequence[int]) -> SizeValues | None:
        """The values of the sizes for those of the symbols; None as of `values`, if not `exactly`."""
        return self._program.compute(symbols, False)

    @property
    def places(self) -> list[list[tuple[Any, int]]]:
        """Of each symbol the inputs and axes where it stands."""
        return self._symbols.places

    def origin(self, size: int) -> Any:
        """A plain size as it is, one that varies by itself as an input and an axis where it stands; None for others."""
        if not is_variable(size):
            return size
        symbols = zip(self._trace.symbols(), self._symbols.places, strict=True)
        return next((places[0] for symbol, places in symbols if key_of(symbol) == key_of(size)), None)

    def symbols(self, shapes: Mapping[Any, Any]) -> list[Any] | None:
        """What the symbols are for shapes of the inputs; None where one would have two values."""
        return self._symbols.values(shapes)

    def box(self, spans: Sequence[tuple[int, int]]) -> SizeBounds:
        """What all sizes are at least and at most, where each symbol is from one number to another."""
        return SizeBounds(self._program, spans)

    def trip_sizes(
        self,
        sources: Sequence[int],
        kept: Sequence[int],
        states: Sequence[tuple[tuple[int, ...], tuple[int, ...], int]],
        programs: Sequence[Program],
        plans: Sequence[Plan],
        nlisted: int,
    ) -> TripSizes:
        """The sizes in trips of a loop, which rewrite programs that have these plans."""
        made = list(zip(self._partitions, programs, plans, strict=True))
        writers = [variable.writer(program, plan) for variable, program, plan in made]
        rooms = [variable.room(plan) for variable, _, plan in made]
        return TripSizes(self._program, sources, kept, states, writers, rooms, nlisted)

    def bounds(self, spans: Mapping[str, Any]) -> SizeBounds:
        """What all sizes are at least and at most, where each dimension of the inputs is from one number to another."""
        box = self._symbols.values(spans)
        assert box is not None  # of one set of inputs and names
        return SizeBounds(self._program, box)

    def open_places(self, bounds: SizeBounds) -> list[tuple[str, int]]:
        """Inputs and axes of which narrower bounds may tell whether all decisions come out alike."""
        return [place for number in bounds.open_symbols() for place in self._symbols.places[number]]

    @property
    def instance_nbytes(self) -> int:
        """Memory of the programs for other sizes. Unit: bytes."""
        return sum(variable.instance_nbytes for variable in self._partitions)

    def plans(self, bounds: SizeBounds) -> tuple[Plan, ...]:
        """Plans of all partitions that hold within bounds."""
        return tuple([variable.bounded_plan(bounds) for variable in self._partitions])

    def buffers(self, plans: Sequence[Plan]) -> list[Buffers]:
        """The temporaries of all partitions, as large as they were planned; see `VariablePartition.buffers`."""
        return [variable.buffers(plan) for variable, plan in zip(self._partitions, plans, strict=True)]

    def are_within(self, plans: Sequence[Plan], values: SizeValues) -> bool:
        """Whether plans of all partitions hold for these sizes."""
        pairs = zip(self._partitions, plans, strict=True)
        return all(variable.is_within(plan, values) for variable, plan in pairs)

    def tensors(self, values: SizeValues | SizeBounds) -> SizedTensors:
        """The tensors of the form for other sizes, or the largest that they are within bounds."""
        return SizedTensors(self._tensors, values)

    def programs(
        self, values: SizeValues, slack: bool, grows: bool, plans: Sequence[Plan] | None
    ) -> list[Program] | None:
        """Those of the compiled partitions for other sizes, each with its plan, if any; see `instance`.

        None where one may need more memory than is due.
        """
        given = [None] * len(self._partitions) if plans is None else plans
        made: list[Program] = []
        for variable, plan in zip(self._partitions, given, strict=True):
            program = variable.program(values, slack, grows, plan)
            if program is None:
                self.forget(made)
                return None
            made.append(program)
        return made

    def forget(self, programs: Iterable[Program]) -> None:
        """Give programs of the compiled partitions for other sizes up, as far as there are some."""
        for variable, program in zip(self._partitions, programs, strict=False):
            variable.primitive.forget_program(program)

    def compiled(
        self, first: Sequence[CompiledPartition], programs: Sequence[Program], tensors: SizedTensors
    ) -> list[CompiledPartition]:
        """The compiled partitions that run these programs, made from those of the compilation."""
        rows = zip(self._partitions, first, programs, strict=True)
        return [variable.compiled(own, program, tensors.sized) for variable, own, program in rows]

    def refusal(self, shapes: Mapping[Any, Any]) -> str:
        """The first decision that would come out otherwise for these shapes, for people."""
        symbols = self._symbols.values(shapes)
        if symbols is None:
            return "sizes of one name differ, or shapes have other ranks"
        sizes = ", ".join(f"{symbol}={n}" for symbol, n in zip(self._trace.symbols(), symbols, strict=True))
        failing = self._program.failing(symbols)
        if failing is None:
            return f"{sizes}: steps are placed on streams anew, since these would take more memory than due"
        return f"{sizes}: {failing} no longer holds"

    @property
    def conditions(self) -> tuple[str, ...]:
        """What must hold of the sizes, for people."""
        return tuple(self._trace.conditions())
