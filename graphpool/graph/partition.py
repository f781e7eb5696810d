"""A partition: ops that are compiled and executed as one."""

from __future__ import annotations

import marshal
from operator import is_
from typing import TYPE_CHECKING, Any

from ..errors import (
    InvalidArgumentError,
    InvalidDataTypeError,
    InvalidOpError,
    InvalidShapeError,
    StateError,
    UnsupportedError,
    brief,
    explain,
)
from ..fork import cached_property
from ..typing import LayoutType, PropertyType
from ._counter import Counter
from ._memo import CompileMemo
from .backend import backends_for, check_engine_kind
from .completion import complete_shapes
from .logical_tensor import LogicalTensor, describe_shape
from .op import Op
from .view import GraphView

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from graphpool._size_program import SizeValues
    from graphpool.runtime import CompiledPartition, Engine

    from .backend import Backend
    from .op import Op

_ids = Counter(1)


class Partition:
    """Ops that a backend compiles and executes as one. Made by `Graph.get_partitions` or `Partition.from_op`.

    Attributes
    ----------
    id : int
        Unique in the process.
    kind : str
        The pattern's partition kind, or the op's kind.
    ops : tuple of Op
        In topological order.
    input_ports, output_ports : tuple of LogicalTensor
        What the ops read from outside, each tensor once, in order of first use; what they write for the outside.
    engine_kind : str
        Kind of engine it can be compiled for.
    fpmath : str
        The graph's float mode.
    structure : Structure
        What it computes, free of ids: part of the keys of caches.

    Notes
    -----
    Threads: immutable, safe. Source: oneDNN Graph's programming model, section Partition.
    """

    def __init__(
        self,
        kind: str,
        ops: Sequence[Op],
        view: GraphView,
        backend: Backend | None,
        engine_kind: str,
        fpmath: str,
        prefer: str = "memory",
    ) -> None:
        self.id = _ids.next()
        self.kind = kind
        self.ops: tuple[Op, ...] = tuple(ops)
        self.engine_kind = engine_kind
        self.fpmath = fpmath
        self.prefer = prefer
        self._backend = backend
        self._memo = CompileMemo()
        self.input_ports, self.output_ports = _ports(self.ops, view)

    @classmethod
    def from_op(cls, op: Op, engine_kind: str = "cpu") -> Partition:
        """A partition of one op, without a graph.

        Parameters
        ----------
        op : Op
        engine_kind : str, default="cpu"
            Kind of engine that it is to be compiled for.

        Returns
        -------
        partition : Partition

        Raises
        ------
        InvalidOpError
            The op does not satisfy its schema.
        """
        if type(op) is not Op:
            raise InvalidOpError(explain("not an op", accepted="a graphpool.Op", got=brief(op)))
        op = op.checked()
        backends = backends_for(check_engine_kind(engine_kind))
        backend = next((b for b in backends if b.supports(op)), None)
        return cls(op.kind, [op], GraphView([op]), backend, engine_kind, "strict")

    @cached_property
    def structure(self) -> Structure:
        """What it computes, free of ids: part of the keys of caches."""
        return Structure(self.ops, self.fpmath, self.prefer)

    @property
    def is_supported(self) -> bool:
        """Whether the partition can be compiled."""
        return self._backend is not None

    @property
    def backend(self) -> Backend | None:
        """The backend that compiles it."""
        return self._backend

    @property
    def backend_name(self) -> str | None:
        """Name of the backend that compiles it."""
        return None if self._backend is None else self._backend.name

    def compile(
        self,
        inputs: Iterable[LogicalTensor],
        outputs: Iterable[LogicalTensor],
        engine: Engine,
        *,
        scratch: str = "primitive",
        weights: str = "cached",
        schedule: str = "sequential",
        streams: int = 1,
    ) -> CompiledPartition | Any:
        """Compile for given shapes and layouts.

        Parameters
        ----------
        inputs : iterable of LogicalTensor
            At least one for each input port, matched by id; in any order, further tensors are ignored. Ranks must be
            known; dimensions may be `graphpool.UNKNOWN_DIM`. The layout is ``strided``, or ``opaque`` with the id that
            an earlier compilation chose; constants may be ``any``: weights get the layout that their kernel reads.
        outputs : iterable of LogicalTensor
            Likewise for the output ports. What is unknown of their shapes is inferred; with layout ``any`` the backend
            chooses the layout.
        engine : Engine
            Of the partition's kind.
        scratch : {"primitive", "shared", "none", "caller"}, default="primitive"
            Where executions have their temporaries: in a pool reserved with the cached primitive, which `close`
            returns to it; in arenas that all partitions of the engine share; in memory allocated for each run; or in
            what the caller passes to each `execute`, and charges to the engine's budget, with the primitive, himself.
        weights : {"cached", "scoped"}, default="cached"
            Whether packed constants stay in the constant tensor cache when the compiled partition is closed, or
            leave it with the last compiled partition that uses them.
        schedule : str, default="sequential"
            How the steps of the partition are placed on streams: ``sequential``, ``wavefront``, ``asap``, ``nimble``,
            ``list``, ``ios``, or ``auto``, which simulates all and takes the best. Results do not depend on it.
        streams : int, default=1
            Most streams, which divide the threads of the engine among them; never more than it has.

        Returns
        -------
        compiled : CompiledPartition or DynamicPartition
            It expects tensors in the order given here. A `DynamicPartition` where dimensions of inputs are unknown: it
            compiles when it meets the first shapes; ``isinstance`` tells type checkers so. On engines of other kinds a
            class of theirs with the interface of `CompiledPartition`.

        Raises
        ------
        UnsupportedError
            No backend runs the partition, or not with these layouts.
        InvalidArgumentError, InvalidDataTypeError, InvalidShapeError
            A port without a tensor, a data type other than the port's, an unknown or contradictory shape, no such
            schedule, a number of streams below 1.
        StateError
            The engine is of another kind or closed.
        OutOfMemoryError
            The engine's budget has no room for program and pool; `smallest_limit` is the least limit that has.

        Notes
        -----
        Threads: safe. Cost: milliseconds for a new structure; some ten microseconds for one that the
        compiled-partition cache knows; half a microsecond for the same logical tensors once more.
        """
        sources, targets = _tensors("inputs", inputs), _tensors("outputs", outputs)
        modes = {"scratch": scratch, "weights": weights, "schedule": schedule, "streams": streams}
        if type(schedule) is not str or schedule != "sequential":
            return self._compile(sources, targets, engine, modes)  # what it gives changes with what costs are known
        found = self._memo.find(sources, targets, engine, scratch, weights)
        if found is None:
            found = self._compile(sources, targets, engine, modes)
            if found.template is not None:
                self._memo.remember(sources, targets, engine, scratch, weights, found.template)
        return found

    def _compile(
        self,
        inputs: tuple[LogicalTensor, ...],
        outputs: tuple[LogicalTensor, ...],
        engine: Engine,
        modes: Mapping[str, Any],
    ) -> Any:
        """Check the arguments and hand them to the backend."""
        if self._backend is None:
            raise UnsupportedError(
                explain(
                    f"partition {self.id} ({', '.join(op.label for op in self.ops)}) is not supported",
                    hint="check partition.is_supported and run it yourself",
                ),
                partition_id=self.id,
            )
        for name in ("scratch", "weights", "schedule"):
            if not isinstance(modes[name], str):
                raise InvalidArgumentError(explain(name, accepted="a string", got=brief(modes[name])))
        self._check_engine(engine)
        given_inputs = self._match(inputs, self.input_ports, "input")
        given_outputs = self._match(outputs, self.output_ports, "output")
        dynamic = getattr(self._backend, "compile_dynamic", None)
        for tensor in given_inputs:
            self._check_input(tensor, allows_unknown_dims=dynamic is not None)
        for tensor in given_outputs:
            self._check_output(tensor)
        is_known = all(tensor.is_shape_known for tensor in given_inputs)
        make = self._backend.compile if is_known or dynamic is None else dynamic
        return make(self, given_inputs, given_outputs, engine, **modes)

    def complete(self, inputs: Sequence[LogicalTensor], outputs: Sequence[LogicalTensor]) -> list[LogicalTensor]:
        """The outputs with their shapes, as far as they follow from the inputs.

        Parameters
        ----------
        inputs, outputs : sequence of LogicalTensor
            Those of the partition's ports, as for `compile`.

        Returns
        -------
        outputs : list of LogicalTensor
            In the same order.

        Raises
        ------
        InvalidShapeError
            The shapes contradict one another.
        """
        shapes = {t.id: t.shape for t in (*inputs, *outputs)}
        shapes = complete_shapes(self.ops, shapes, trust_ops=False)
        return [t if t.is_shape_known else t.replace(shape=shapes[t.id]) for t in outputs]

    def with_sizes(self, values: SizeValues) -> Partition:
        """The same partition with its sizes as they are for some values; itself where none varies.

        Parameters
        ----------
        values : SizeValues
            Values that the checks of a compilation allow.

        Returns
        -------
        partition : Partition
            Of the same id.
        """
        ops = [op.with_sizes(values) for op in self.ops]
        if all(map(is_, ops, self.ops)):
            return self
        view = GraphView(ops)
        other = Partition(self.kind, ops, view, self._backend, self.engine_kind, self.fpmath, self.prefer)
        ports = ([port.with_sizes(values) for port in side] for side in (self.input_ports, self.output_ports))
        other.input_ports, other.output_ports = map(tuple, ports)
        other.id = self.id
        return other

    def _check_engine(self, engine: Engine) -> None:
        kind = getattr(engine, "kind", type(engine).__name__)
        if kind != self.engine_kind:
            raise StateError(
                explain(f"partition {self.id}: engine", accepted=f"an engine of kind {self.engine_kind}", got=kind),
                partition_id=self.id,
            )
        if engine.is_closed:
            raise StateError(explain(f"{engine!r} is closed", hint="create another engine"))

    def _match(
        self, tensors: Iterable[LogicalTensor], ports: tuple[LogicalTensor, ...], side: str
    ) -> list[LogicalTensor]:
        """The tensors that belong to ports, in the caller's order."""
        wanted = {port.id: port for port in ports}
        found: dict[int, LogicalTensor] = {}
        for tensor in tensors:
            port = wanted.get(tensor.id)
            if port is None or tensor.id in found:
                continue
            if tensor.dtype is not port.dtype:
                raise InvalidDataTypeError(
                    explain(f"{side} tensor {tensor.id}: data type", accepted=port.dtype, got=tensor.dtype),
                    tensor_id=tensor.id,
                )
            found[tensor.id] = tensor
        missing = [port_id for port_id in wanted if port_id not in found]
        if missing:
            raise InvalidArgumentError(
                explain(
                    f"partition {self.id}: no {side} tensor for port {missing[0]}",
                    accepted=f"ids {list(wanted)}",
                    got=f"ids {list(found)}",
                ),
                partition_id=self.id,
                tensor_id=missing[0],
            )
        return list(found.values())

    def _check_input(self, tensor: LogicalTensor, allows_unknown_dims: bool) -> None:
        if not tensor.is_shape_known and (tensor.shape is None or not allows_unknown_dims):
            raise InvalidShapeError(
                explain(
                    f"input tensor {tensor.id}: shape",
                    accepted="a known rank" if allows_unknown_dims else "all dimensions known at compilation",
                    got=describe_shape(tensor.shape),
                ),
                tensor_id=tensor.id,
            )
        _check_strides(tensor, "input")
        if tensor.layout is LayoutType.UNDEF or (
            tensor.layout is LayoutType.ANY and tensor.property is not PropertyType.CONSTANT
        ):
            raise InvalidArgumentError(
                explain(
                    f"input tensor {tensor.id}: layout",
                    accepted="strided, opaque, or any for a constant",
                    got=tensor.layout.value,
                ),
                tensor_id=tensor.id,
            )

    def _check_output(self, tensor: LogicalTensor) -> None:
        if tensor.layout is LayoutType.UNDEF:
            raise InvalidArgumentError(
                explain(f"output tensor {tensor.id}: layout", accepted="strided, any or opaque", got="undef"),
                tensor_id=tensor.id,
            )
        _check_strides(tensor, "output")
        if tensor.layout is LayoutType.STRIDED and tensor.is_shape_known and not tensor.varies and tensor.size:
            reach, strides = 0, tensor.strides or ()
            for stride, dim in sorted(zip(strides, tensor.shape or (), strict=True)):
                if dim > 1 and stride <= reach:
                    raise InvalidShapeError(
                        explain(
                            f"output tensor {tensor.id}: strides",
                            accepted="elements apart, each stride above what those below it reach",
                            got=f"strides {strides}, shape {tensor.shape}",
                        ),
                        tensor_id=tensor.id,
                    )
                reach += stride * max(dim - 1, 0)

    def __copy__(self) -> Partition:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles by content; the copy has an id of its own, and the backend of the same name where it is loaded."""
        ports = self.input_ports, self.output_ports
        return _restore, (self.kind, self.ops, *ports, self.backend_name, self.engine_kind, self.fpmath, self.prefer)

    def __repr__(self) -> str:
        state = self.backend_name or "unsupported"
        kinds = "+".join(op.kind for op in self.ops[:6]) + ("+..." if len(self.ops) > 6 else "")
        return f"Partition({self.id}, {self.kind!r}, {state}, {kinds})"

    def _repr_html_(self) -> str:
        """For notebooks."""
        from ..notebook import brief_list, html_table

        rows = {
            "backend": self.backend_name or "unsupported",
            "ops": brief_list([f"{op.kind} {op.name}".strip() for op in self.ops]),
            "inputs": brief_list(self.input_ports),
            "outputs": brief_list(self.output_ports),
        }
        return html_table(f"Partition {self.id}: {self.kind}", rows)


def _restore(
    kind: str,
    ops: tuple[Op, ...],
    input_ports: tuple[LogicalTensor, ...],
    output_ports: tuple[LogicalTensor, ...],
    backend_name: str | None,
    engine_kind: str,
    fpmath: str,
    prefer: str,
) -> Partition:
    """A partition from its pickle."""
    backends = {backend.name: backend for backend in backends_for(engine_kind)}
    if backend_name is not None and backend_name not in backends:
        raise UnsupportedError(
            explain(f"backend {backend_name!r} of the pickled partition", accepted=list(backends), got="not registered")
        )
    partition = Partition(kind, ops, GraphView(ops), backends.get(backend_name or ""), engine_kind, fpmath, prefer)
    partition.input_ports, partition.output_ports = input_ports, output_ports
    return partition


def _check_strides(tensor: LogicalTensor, side: str) -> None:
    if tensor.strides is not None and not tensor.is_shape_known:  # those of the shape that is found later are dense
        raise InvalidShapeError(
            explain(
                f"{side} tensor {tensor.id}: strides",
                accepted="none while dimensions are unknown",
                got=f"strides {tensor.strides}, shape {describe_shape(tensor.shape)}",
                hint="give all dimensions, or leave the strides out",
            ),
            tensor_id=tensor.id,
        )


def _tensors(side: str, given: Iterable[LogicalTensor]) -> tuple[LogicalTensor, ...]:
    """What was given for a side as a tuple, after a look at its types."""
    try:
        tensors = tuple(given)
    except TypeError:
        tensors = (given,)  # type: ignore[assignment]
    for tensor in tensors:
        if type(tensor) is not LogicalTensor:
            raise InvalidArgumentError(explain(side, accepted="LogicalTensors", got=brief(tensor)))
    return tensors


def _ports(ops: Sequence[Op], view: GraphView) -> tuple[tuple[LogicalTensor, ...], tuple[LogicalTensor, ...]]:
    """What the ops read from outside, and what of theirs somebody outside reads or leaves the graph."""
    inside = {id(op) for op in ops}
    written = {tensor.id for op in ops for tensor in op.outputs}
    inputs = {tensor.id: tensor for op in ops for tensor in op.inputs if tensor.id not in written}
    outputs = {
        tensor.id: tensor
        for op in ops
        for tensor in op.outputs
        if not (users := view.users(tensor.id)) or any(_is_outside(view.ops[n], inside) for n in users)
    }
    return tuple(inputs.values()), tuple(outputs.values())


def _is_outside(op: Op, inside: set[int]) -> bool:
    """Whether a reader takes a tensor out of the partition: an End does so from within."""
    return op.kind == "End" or id(op) not in inside


# ---- structure


class Structure:
    """Ops with their attributes, types, wires and known values; tensors numbered in the order in which ops name them.

    `content` says all of it, without ids and names: equal for the layers of a network that differ in nothing but their
    weights, and for graphs that were numbered differently. It is bytes, since caches keep it where they keep a
    partition: a tuple of tuples took ten objects an op. `ops` are in topological order; `numbers` is tensor id ->
    number. Threads: immutable, safe. Cost: about a microsecond an op.
    """

    __slots__ = ("content", "numbers")

    def __init__(self, ops: Sequence[Op], fpmath: str, prefer: str = "memory") -> None:
        numbers: dict[int, int] = {}
        self.numbers = numbers
        content = [
            (
                op.kind,
                tuple(op.attrs.items()),
                [(numbers.setdefault(t.id, len(numbers)), t.dtype.value, t.value) for t in op.inputs],
                [(numbers.setdefault(t.id, len(numbers)), t.dtype.value) for t in op.outputs],
            )
            for op in ops
        ]
        self.content = flat_key((fpmath, prefer, content))


def flat_key(content: Any) -> bytes:
    """Tuples, lists, strings, numbers and None as bytes that are equal for equal ones of equal types."""
    return marshal.dumps(content, _WITHOUT_REFERENCES)


_WITHOUT_REFERENCES = 2
"""Version of marshal's format: later ones say which objects are one."""
