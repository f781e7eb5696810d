"""Control flow whose course only a run tells: bodies and branches become models of their own, compiled for any extents.

A body is walked once where its node stands, to find out what it gives; what comes of that walk is not kept.
"""

from __future__ import annotations

from functools import partial
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from graphpool._dataclasses import dataclass, replace
from graphpool._size_bounds import SizeBounds
from graphpool._size_program import SizeProgram
from graphpool._sizes import Trace, hint_of, is_variable, key_of
from graphpool.errors import GraphpoolError, InvalidShapeError, LimitError, explain
from graphpool.graph.shapes import are_equal
from graphpool.runtime.branches import Branch, Branches
from graphpool.runtime.loop import Loop, LoopPorts, Row
from graphpool.runtime.model import Model
from graphpool.runtime.model_port import ModelPort
from graphpool.typing import DataType

from .build import DataDependent, InvalidNode, NotConvertible, Value, require
from .data_dependent import OuterValues, Reads, SizeItems, size_name
from .inline import goes_on, hands_on, number_of, present, unroll_loop, unroll_scan
from .node import names_read
from .shape_values import ShapeArray, compute_shapes
from .types import data_type, make_port, make_type

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .inline import Path
    from .node import Node, Subgraph
    from .specialise import Specialiser
    from .walk import Walk


@dataclass(frozen=True)
class Given:
    """What is known of a tensor that a body gives.

    `dims` are None for an unknown rank, and have None for unknown sizes; `is_known` says that there are none of either.
    """

    dtype: DataType
    dims: tuple[Any, ...] | None
    is_known: bool = True

    def opened(self) -> Given:
        """Of the same rank, with all sizes unknown."""
        return replace(self, dims=None if self.dims is None else (None,) * len(self.dims), is_known=False)

    def joined(self, other: Given) -> Given:
        """What holds for both."""
        require(self.dtype is other.dtype, "branches or trips that give other types")
        if self.dims is None or other.dims is None or len(self.dims) != len(other.dims):
            return Given(self.dtype, None, False)
        if self.is_known and other.is_known and are_equal(self.dims, other.dims):
            return self
        pairs = zip(self.dims, other.dims, strict=True)
        dims = tuple([a if isinstance(a, int) and isinstance(b, int) and a == b else None for a, b in pairs])
        return Given(self.dtype, dims, False)

    def value(self, walk: Walk) -> Value:
        """A result like this."""
        if self.is_known and self.dims is not None:
            return Value(None, walk.builder.new_tensor(self.dtype, self.dims))
        return Value(
            make_type(self.dtype, self.dims), walk.builder.new_tensor(None, None), data_dependent=DataDependent()
        )


class Inner:
    """A graph among a node's attributes as a model.

    `own` are the ports of its own inputs, `known` what is known of some of these; inputs that are None in place of a
    port are known. `fixed` are inputs that are values of the walk, and `sizes` are as in `Specialiser`: the nodes that
    would compute them are left out.
    """

    def __init__(
        self,
        walk: Walk,
        node: Node,
        graph: Subgraph,
        path: Path,
        own: Sequence[ModelPort],
        known: dict[str, Any],
        sizes: Mapping[str, SizeItems],
        fixed: Mapping[str, Value] = MappingProxyType({}),
    ) -> None:
        self.outer = OuterValues(walk.builder)
        nodes, constants = walk.owner.rewritten(graph, path)
        nodes = [node for node in nodes if sizes.keys().isdisjoint(node.output)]
        for name, value in _outside(walk, graph, fixed).items():
            self.outer.add(name, value)
        self._outer_shapes = [value.shape if value.is_plain else None for value in self.outer.read]
        self._own = tuple(own)
        types = {port.name: make_type(port.dtype, None) for port in own if port.dtype is not None}
        names = tuple(dict.fromkeys(graph.outputs))
        self._model = replace(
            walk.owner.source, name=f"{walk.owner.source.name}, inside {node.label}",
            inputs=(*own, *self.outer.ports), outputs=tuple([ModelPort(name, None, None) for name in names]),
            input_types={**types, **self.outer.types}, constants={}, nodes=nodes, is_rewritten=True,
        )  # fmt: skip
        self._specialiser: Specialiser = walk.owner.data_dependent(
            self._model, {**constants, **self.outer.constants, **known}, {**self.outer.sizes, **sizes}
        )
        self._graph = graph

    def rehearse(self, walk: Walk, shapes: Sequence[Any]) -> tuple[list[Value], bool]:
        """What the graph gives for these shapes of its own inputs, and whether kernels run all of it."""
        names = [port.name for port in self._model.inputs]
        return walk.rehearse(
            self._specialiser, dict(zip(names, (*shapes, *self._outer_shapes), strict=True)), self._graph.outputs
        )

    def open(self, ports: Sequence[ModelPort], outputs: Sequence[str]) -> Any:
        """What makes the model, with these ports in place of its own, and these outputs."""
        inputs = (*ports, *self.outer.ports)
        source = replace(self._model, inputs=inputs, outputs=tuple([ModelPort(name, None, None) for name in outputs]))

        def make(**options: Any) -> Model:
            self._specialiser.source = source
            return Model(source.inputs, source.outputs, self._specialiser, name=source.name, **options)

        return make


def _outside(walk: Walk, graph: Subgraph, fixed: Mapping[str, Value]) -> dict[str, Value]:
    """What a graph reads that is not its own, by name."""
    return {**fixed, **{name: walk.value(name) for name in graph.captured}}


def _given(value: Value, elem_type: int) -> Given:
    """What is known of a result of a rehearsal; the type of elements is the one that the graph states."""
    if value.data_dependent is not None and value.data_dependent.parts:
        assert value.data_dependent.dtype is not None  # of one with parts
        return Given(value.data_dependent.dtype, value.data_dependent.dims, False)
    if value.data_dependent is not None and value.type is not None:
        port = make_port("", value.type)
        require(port.dtype is not None, "a result that is no tensor of numbers")
        assert port.dtype is not None  # required above
        return Given(port.dtype, port.shape, False).opened()
    dtype = data_type(elem_type)
    if value.data_dependent is not None and dtype is not None:
        return Given(dtype, None, False)
    require(value.is_plain and value.dtype.bits >= 8, "a result that is no tensor of numbers")
    return Given(value.dtype, value.shape)


def _count(
    walk: Walk, nodes: Sequence[Node], known: Mapping[str, Any], name: str, first: Any, result: str, step: int
) -> tuple[int, bool]:
    """What a trip adds to a state that counts by a step, and whether that is the step, for all elements and trips."""
    trace = Trace()
    trip = trace.symbol(_HINT, _NUMBER)
    now = [int(item) + step * trip for item in first.reshape(-1)]
    contents = {**known, name: ShapeArray(np.array(now, object).reshape(first.shape), first.dtype)}
    last = _follow_sizes(walk, nodes, contents, result)
    if not isinstance(last, ShapeArray) or (last.dtype, last.shape) != (first.dtype, first.shape):
        return 0, False
    after = last.items.reshape(-1)
    is_next = list(map(key_of, after)) == [key_of(item + step) for item in now]
    trace.close()
    if not is_next:
        return hint_of(after[0]) - hint_of(now[0]), False
    most = walk.owner.source.bounds.limits.host_steps
    return step, bool(SizeBounds(SizeProgram(trace), [(0, most)]).holds())


def _follow_sizes(walk: Walk, nodes: Sequence[Node], contents: dict[str, Any], name: str) -> Any:
    """What nodes compute under a name of sizes and known contents; None where others take part."""
    needed, found = {name}, dict(contents)
    taken: list[Node] = []
    for node in reversed(nodes):
        if not needed.isdisjoint(node.output):
            needed.update(node.input)
            taken.append(node)
    for node in reversed(taken):
        read = [found.get(source) for source in node.input]
        is_known = all(content is not None or not source for content, source in zip(read, node.input, strict=True))
        computed = compute_shapes(node, read, walk.opset(node.domain)) if is_known else None
        if computed is None:
            return None
        found.update(zip(node.output, computed, strict=False))
    return found.get(name)


def _listed_name(name: str, sign: int) -> str:
    """The input whose extent is an integer of a trip, or minus it."""
    return f"{'' if sign > 0 else '-'}{name} of trips"


def _dims(shape: Sequence[Any]) -> tuple[int | str, ...]:
    """Dimensions of a port for this shape."""
    return tuple([size_name(dim) if is_variable(dim) else int(dim) for dim in shape])


# ---- If


def branches(walk: Walk, node: Node, inputs: Sequence[Value | None], path: Path) -> list[Value]:
    """If: a model for each branch, of which a run takes one, so that one may be invalid."""
    condition = present(inputs[0])
    require(not condition.is_known, "")  # why the branch that is taken was not written out is what counts
    require(condition.is_plain, "a condition that is no tensor")
    graphs = [node.attrs["else_branch"], node.attrs["then_branch"]]
    inner = [Inner(walk, node, graph, (*path, number), [], {}, {}) for number, graph in enumerate(graphs)]
    found: list[tuple[list[Value], bool]] = []
    errors: list[InvalidShapeError] = []
    for each in inner:
        try:
            found.append(each.rehearse(walk, []))
        except InvalidShapeError as error:
            errors.append(error)
    if not found:
        message = explain(f"both branches of node {node.label!r} (If)", got=str(errors[-1]))
        raise InvalidNode(message, **errors[-1].fields) from errors[-1]
    elem_types = [max(pair) for pair in zip(*[graph.elem_types for graph in graphs], strict=True)]
    first_side, *other_side = [list(map(_given, side, elem_types)) for side, _ in found]
    given = [one.joined(other) for side in other_side for one, other in zip(first_side, side, strict=True)]
    if not other_side:  # what the other branch gives is not known
        given = [Given(one.dtype, None, False) for one in first_side]
    reads = Reads()
    first = reads.place(condition)
    places = [[reads.place(value) for value in each.outer.read] for each in inner]
    parts = [
        Branch(tuple(port.name for port in each.outer.ports), tuple(own), graph.outputs)
        for each, own, graph in zip(inner, places, graphs, strict=True)
    ]
    makers = [each.open([], list(dict.fromkeys(graph.outputs))) for each, graph in zip(inner, graphs, strict=True)]
    results = [known.value(walk) for known in given]
    is_native = all(is_native for _, is_native in found)
    walk.add_inner(node, Branches(node.label, first, parts, makers), reads.values, results, is_native)
    return results


# ---- Loop and Scan


@dataclass
class _Repeated:
    """A loop: its graph, of which the first input may count trips and the first output may end them.

    `length` is the number of trips if it is known, `trips` brings it otherwise; `condition` that for the first trip.
    States that no trip changes are not among `states`, nor inputs and outputs of the graph: the body reads them under
    the names of the inputs, as `fixed`, so that their content may be known and nothing copies them.
    """

    graph: Subgraph
    states: list[Value]
    scanned: list[tuple[Value, bool]]
    turned: list[bool]
    length: Any = None
    trips: Value | None = None
    condition: Value | None = None
    checks: bool = False
    fixed: Mapping[str, Value] = MappingProxyType({})

    def set_apart(self) -> list[Value | None]:
        """Take out the states that no trip changes; they are returned by place, None for the others."""
        graph, (first, result) = self.graph, (2, 1) if self.checks else (0, 0)
        require(len(graph.outputs) >= result + len(self.states), "fewer outputs of the body than states")
        states = list(enumerate(self.states))
        fixed = [value if hands_on(graph, first + k, result + k) else None for k, value in states]
        gone = [k for k, value in enumerate(fixed) if value is not None]
        self.graph = graph.without([first + k for k in gone], [result + k for k in gone])
        self.fixed = {graph.inputs[first + k]: self.states[k] for k in gone}
        self.states = [value for k, value in states if k not in gone]
        return fixed


_NUMBER = "number of the trip"

_COUNTED, _MOST_COUNTED = (np.int32, np.int64), 16
"""Types, and elements, of states that count trips."""

_HINT = 2
"""A trip that is neither the first one nor the second: a body that treats these apart counts from no other one on."""

_LISTED = (DataType.S32, DataType.S64)
"""Types of arrays of which integers at the number of the trip may be sizes."""

_SIGNS = (1, -1)
"""Of what extents say an integer: one is the integer, one what it is below 0."""

_MOST_STEP = 2**31
"""By which a state may count; more than that counts nothing that has a size."""


def repeat_loop(walk: Walk, node: Node, inputs: Sequence[Value | None], path: Path) -> list[Value]:
    """Loop: a model for the body; written out where trips would have shapes of their own, as far as that is allowed.

    One whose trip count may vary is not, since each count would have to be compiled.
    """
    trips, condition, *carried = inputs
    graph = node.attrs["body"]
    require(len(graph.inputs) == 2 + len(carried), "another number of states than inputs of the body")
    repeated = _Repeated(graph, [present(value) for value in carried], [], [], checks=True)
    if trips is not None and not isinstance(trips.content, ShapeArray) and trips.is_known:
        repeated.length = max(number_of(trips), 0)
    elif trips is not None:
        require(trips.is_plain and prod(trips.shape) == 1, "a trip count that is no number")
        repeated.trips = trips
        if trips.is_known:
            repeated.length = number_of(trips)
    if condition is not None and condition.is_known:
        if not np.asarray(condition.content).reshape(()):
            repeated.length, repeated.trips = 0, None
    elif condition is not None:
        require(condition.is_plain and prod(condition.shape) == 1, "a condition that is no number")
        repeated.condition = condition
    fixed = repeated.set_apart()
    body = _Body(walk, node, repeated, path)
    if not body.is_steady and not is_variable(repeated.length):
        unrolled: list[Value] | None = walk.attempt(partial(unroll_loop, walk, node, inputs, path))
        if unrolled is not None:
            return unrolled
    return _with_fixed(fixed, _repeat(walk, node, repeated, body))


def _with_fixed(fixed: Sequence[Value | None], results: Sequence[Value]) -> list[Value]:
    """Results of a loop, with the states that it does not change at their places."""
    others = iter(results)
    return [next(others) if value is None else value for value in fixed] + list(others)


def repeat_scan(walk: Walk, node: Node, inputs: Sequence[Value | None], path: Path) -> list[Value]:
    """Scan as from opset 9 on, see `repeat_loop`."""
    attrs, values = node.attrs, [present(value) for value in inputs]
    graph, count = attrs["body"], attrs["num_scan_inputs"]
    nstates = len(values) - count
    require(count > 0 and len(graph.inputs) == len(values), "another number of inputs than those of the body")
    require(all(value.is_plain and value.shape for value in values[nstates:]), "something scanned is no array")
    backwards = attrs.get("scan_input_directions") or attrs.get("directions") or [0] * count
    axes = attrs.get("scan_input_axes") or [0] * count
    scanned = [
        (_moved(walk, value, axis % len(value.shape), 0), bool(back))
        for value, axis, back in zip(values[nstates:], axes, backwards, strict=True)
    ]
    nrows = len(graph.outputs) - nstates
    turned = [bool(back) for back in attrs.get("scan_output_directions") or [0] * nrows]
    repeated = _Repeated(graph, values[:nstates], scanned, turned, length=scanned[0][0].shape[0])
    require(all(are_equal(v.shape[:1], scanned[0][0].shape[:1]) for v, _ in scanned), "scans of other lengths")
    fixed = repeated.set_apart()
    body = _Body(walk, node, repeated, path)
    if not body.is_steady and not is_variable(repeated.length):
        unrolled: list[Value] | None = walk.attempt(partial(unroll_scan, walk, node, inputs, path))
        if unrolled is not None:
            return unrolled
    results = _with_fixed(fixed, _repeat(walk, node, repeated, body))
    for number, axis in enumerate(attrs.get("scan_output_axes") or [0] * nrows, nstates):
        if axis:
            require(results[number].is_plain, "an axis of a result of unknown shape")
            results[number] = _moved(walk, results[number], 0, axis % len(results[number].shape))
    return results


def _moved(walk: Walk, value: Value, source: int, target: int) -> Value:
    """The value with an axis at another place."""
    order = [axis for axis in range(len(value.shape)) if axis != source]
    order.insert(target, source)
    return value if source == target else walk.builder.emit("StaticTranspose", value, order=order)[0]


def _repeat(walk: Walk, node: Node, repeated: _Repeated, body: _Body) -> list[Value]:
    """The results of a loop that runs as a function."""
    states = repeated.states
    rows = body.given[len(states) :]
    results = [(given.opened() if body.is_open else given).value(walk) for given in body.given[: len(states)]]
    length = None if body.check is not None else repeated.length
    has_places = length is not None and not body.is_open and repeated.condition is None
    for given in rows:
        is_known = given.is_known and has_places
        inside = given.opened().dims if body.is_open else given.dims
        dims = None if inside is None else (length if is_known else None, *inside)
        results.append(Given(given.dtype, dims, is_known).value(walk))
    shapes = [Row(tuple([dim if isinstance(dim, int) and not is_variable(dim) else 0 for dim in given.dims or ()]),
                  given.dtype.numpy) for given in rows]  # fmt: skip
    listed = body.listed.values()
    reads = [repeated.trips, repeated.condition, *states, *(value for value, _ in repeated.scanned)]
    reads += [value for value in listed for _ in _SIGNS]
    unique = Reads()
    places = [unique.place(value) for value in (*reads, *body.inner.outer.read) if value is not None]
    function = Loop(
        node.label, body.ports, shapes, body.make, walk.owner.source.bounds.host, places,
        most=None if repeated.trips is not None or repeated.scanned else repeated.length,
        takes_most=repeated.trips is not None, takes_condition=repeated.condition is not None,
        has_places=has_places and all(given.is_known for given in rows),
        are_alike=not body.is_open and not listed and all(given.is_known for given in body.given),
    )  # fmt: skip
    walk.add_inner(node, function, unique.values, results, body.is_native)
    return results


class _Body:
    """The body of a loop as a model, which takes the number of the trip as data, or as a size where that is needed.

    `listed` are integers that each trip takes of an array at its number, by the names that they have in the body, and
    the arrays: where sizes follow from them.
    """

    def __init__(self, walk: Walk, node: Node, repeated: _Repeated, path: Path) -> None:
        self._walk, self._node, self._repeated, self._path = walk, node, repeated, path
        self.is_extent = False
        self.listed: dict[str, Value] = {}
        self._counters: dict[int, tuple[Any, int]] = {}  # states that count trips -> first content, and by how much
        given = [*repeated.states, *(value for value, _ in repeated.scanned)]
        require(all(value.is_plain and value.dtype.bits >= 8 for value in given), "what is no tensor of numbers")
        try:
            self._rehearse()
        except (NotConvertible, GraphpoolError) as error:
            if isinstance(error, LimitError) or not self._rehearse_with_sizes():
                raise
        else:
            if not self.is_native:
                self._rehearse_with_sizes()
        self._finish()

    @property
    def is_steady(self) -> bool:
        """Whether shapes stay as they are from trip to trip, and kernels run all of it."""
        return self.is_native and not self.is_open and not self.listed

    def _rehearse_with_sizes(self) -> bool:
        """Walk the body with the number of the trip as a size, or with integers that it takes by that number as sizes.

        Returns whether kernels run all of it then; else all is as before.
        """
        graph = self._repeated.graph
        if not self._repeated.checks:
            return False
        counters = self._find_counters()
        if (counters or graph.inputs[0] in names_read(graph.nodes, ())) and self._rehearse_as(
            is_extent=True, _counters=counters
        ):
            self.is_open = True
            return True
        listed = self._find_listed()
        return bool(listed) and self._rehearse_as(listed=listed)

    def _rehearse_as(self, **changes: Any) -> bool:
        """Walk the body with these attributes; whether kernels run all of it then, else as before."""
        before = self.__dict__.copy()
        self.__dict__.update(changes)
        try:
            self._rehearse()
            if self.is_native:
                return True
        except (NotConvertible, GraphpoolError) as error:
            if isinstance(error, LimitError):
                raise
        self.__dict__.update(before)
        return False

    def _rehearse(self) -> None:
        """Walk the body, and compare what it gives for states with what they were."""
        repeated, graph = self._repeated, self._repeated.graph
        known: dict[str, Any] = {}
        sizes: dict[str, SizeItems] = {}
        self.is_open = False
        self.given = [Given(state.dtype, state.shape) for state in repeated.states]
        if repeated.checks:
            known[graph.inputs[1]] = np.array(True)
        if self.is_extent:
            items = np.empty((), object)
            items[()] = _NUMBER
            sizes[graph.inputs[0]] = SizeItems(items, np.int64)
        for number, (first, step) in self._counters.items():
            items = np.empty(first.size, object)
            items[:] = [(_NUMBER, step, -int(item)) for item in first.reshape(-1)]
            sizes[self._names[number]] = SizeItems(items.reshape(first.shape), first.dtype)
        for name, value in self.listed.items():
            items = np.empty((), object)
            items[()] = _listed_name(name, 1), 1, _listed_name(name, -1)
            sizes[name] = SizeItems(items, value.dtype.numpy)
        self.inner = Inner(self._walk, self._node, graph, self._path, self._own(), known, sizes, repeated.fixed)
        shapes = [value.shape for value in repeated.states] + [value.shape[1:] for value, _ in repeated.scanned]
        if repeated.checks:
            shapes.insert(0, (1, 0) if self.is_extent else ())
        elem_types = graph.elem_types[1:] if repeated.checks else graph.elem_types
        starts, self.given = self.given, []
        self.has_check, self.is_native = False, True
        for integers in self._trials():
            extents = [(integer if sign > 0 else 0, 0) for integer in integers for sign in _SIGNS]
            found, is_native = self.inner.rehearse(self._walk, shapes + extents)
            check = found.pop(0) if repeated.checks else None
            is_endless = check is None or goes_on(graph) or (check.is_known and bool(np.all(check.content)))
            self.has_check |= not is_endless
            self.is_native &= is_native
            given = list(map(_given, found, elem_types))
            self.given = [one.joined(other) for one, other in zip(self.given or given, given, strict=True)]
        states = [start.joined(given) for start, given in zip(starts, self.given, strict=False)]
        self.is_open = not all(state.is_known for state in states)
        self.given[: len(states)] = states

    def _trials(self) -> list[list[int]]:
        """Values of the listed integers for which the body is walked: ascending and descending ones.

        So that what has the same sizes for both hangs neither on their differences nor on themselves.
        """
        numbers = range(len(self.listed))
        return [[1 + 2 * k for k in numbers], [20 * len(numbers) - 5 * k for k in numbers]] if self.listed else [[]]

    @property
    def _names(self) -> Sequence[str]:
        """Inputs of the graph but for the number of the trip and the condition."""
        return self._repeated.graph.inputs[2 if self._repeated.checks else 0 :]

    def _find_counters(self) -> dict[int, tuple[Any, int]]:
        """States of which each trip adds one number to all elements -> their first content, and that number.

        So that sizes may follow from them: such a state is its first content and so many times the number of the trip,
        and what the nodes that compute the next one give of that sum is the sum for the next trip, for any number up to
        the limit.
        """
        walk, graph = self._walk, self._repeated.graph
        nodes, constants = walk.owner.rewritten(graph, self._path)
        outside = _outside(walk, graph, self._repeated.fixed)
        known = {name: value.content for name, value in outside.items()} | constants
        found: dict[int, tuple[Any, int]] = {}
        for number, (name, state) in enumerate(zip(self._names, self._repeated.states, strict=False)):
            first = state.content
            if not isinstance(first, np.ndarray) or first.dtype not in _COUNTED or first.size > _MOST_COUNTED:
                continue
            follow = partial(_count, walk, nodes, known, name, first, graph.outputs[number + 1])
            step, counts = follow(1)
            if not counts and step != 1 and 0 < abs(step) < _MOST_STEP:
                step, counts = follow(step)
            if counts:
                found[number] = first, step
        return found

    def _find_listed(self) -> dict[str, Value]:
        """Integers that each trip takes of an array at its number -> the arrays."""
        repeated, graph = self._repeated, self._repeated.graph
        nodes, _ = self._walk.owner.rewritten(graph, self._path)
        outside = _outside(self._walk, graph, repeated.fixed)
        found: dict[str, Value] = {}
        for node in nodes:
            if node.op_type != "Gather" or node.domain or node.input[1] != graph.inputs[0]:
                continue
            value = outside.get(node.input[0])
            if value is not None and value.is_plain and value.dtype in _LISTED and len(value.shape) == 1:
                found[node.output[0]] = value
        return found

    def _own(self) -> list[ModelPort]:
        """Ports of the body's own inputs; the content of a state that counts trips is not read."""
        repeated = self._repeated
        ports = []
        if repeated.checks:
            if self.is_extent:
                ports.append(ModelPort(_NUMBER, DataType.BOOLEAN, (None, 0)))
            else:
                ports.append(ModelPort(repeated.graph.inputs[0], DataType.S64, ()))
        for number, (value, given) in enumerate(zip(repeated.states, self.given, strict=False)):
            name = self._names[number]
            dims = _dims(value.shape) if not self.is_open else given.opened().dims
            ports.append(ModelPort(f"{name}, counted" if number in self._counters else name, value.dtype, dims))
        rows = zip(self._names[len(repeated.states) :], repeated.scanned, strict=True)
        ports += [ModelPort(name, value.dtype, _dims(value.shape[1:])) for name, (value, _) in rows]
        return ports + [
            ModelPort(_listed_name(name, sign), DataType.BOOLEAN, (None, 0)) for name in self.listed for sign in _SIGNS
        ]

    def _finish(self) -> None:
        """Name what goes in and out."""
        repeated, graph = self._repeated, self._repeated.graph
        nstates, outputs = len(repeated.states), list(graph.outputs)
        nread = nstates + len(repeated.scanned)
        own = self._own()
        inputs = [port.name for port in own]
        counter = inputs.pop(0) if repeated.checks else None
        self.check = outputs.pop(0) if repeated.checks else None
        if not self.has_check:
            self.check = None
        turned = repeated.turned or [False] * (len(outputs) - nstates)
        self.ports = LoopPorts(
            states=tuple(zip(inputs[:nstates], outputs[:nstates], strict=True)),
            scanned=tuple(zip(inputs[nstates:nread], [back for _, back in repeated.scanned], strict=True)),
            rows=tuple(zip(outputs[nstates:], turned, strict=True)),
            listed=tuple(zip(inputs[nread:], _SIGNS * len(self.listed), strict=True)),
            outer=tuple(port.name for port in self.inner.outer.ports),
            counter=counter, is_extent=self.is_extent, check=self.check, is_open=self.is_open,
        )  # fmt: skip
        wanted = [*outputs, *([] if self.check is None else [self.check])]
        self.make = self.inner.open(own, list(dict.fromkeys(wanted)))
