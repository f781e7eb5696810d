"""One pass over a model's nodes for given input shapes: each is folded, converted, replaced by others, or left."""

from __future__ import annotations

from functools import partial
from itertools import count
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from graphpool._sizes import hint_of, is_variable
from graphpool.errors import (
    GraphpoolError,
    InvalidGraphError,
    InvalidOpError,
    InvalidShapeError,
    LimitError,
    UnsupportedError,
    explain,
)
from graphpool.runtime.model_form import Fallback, ModelForm
from graphpool.typing import DataType

from .boundary import Boundary
from .bounds import InferenceError, deep_nbytes, infer_types
from .build import DataDependent, GraphBuilder, InvalidNode, NotConvertible, Value, require
from .data_dependent import DataDependentBuilder, Reads
from .fold import compute, find_host_function, is_kept
from .host import needs_host
from .inline import (
    NO_BOUND,
    Scope,
    enter_nodes,
    find_unique,
    function_nodes,
    scan,
    take_branch,
    unroll_loop,
    unroll_map,
    unroll_scan,
)
from .inner import branches, repeat_loop, repeat_scan
from .node import names_read
from .ops import convert
from .sequences import AsList, follow_sequences, make_sequence_type, sequence_node
from .shape_values import ShapeArray, compute_shapes, measure, shape_array
from .table_places import check_places, pass_span_on
from .types import data_type, least_shape, make_type, static_shape, tensor_type

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from graphpool.graph import LogicalTensor
    from graphpool.runtime.inner_models import InnerModels
    from graphpool.runtime.model_form import HostFunction

    from .inline import Path, Way
    from .node import Node
    from .specialise import Specialiser


class Walk:
    """One pass over the nodes; parameters as for `Specialiser.__call__`.

    `scope` is what is walked now, `nnodes` counts the nodes that were walked, iterations one by one.
    """

    def __init__(self, owner: Specialiser, shapes: Mapping[str, Any], contents: Mapping[str, Any]) -> None:
        self.owner = owner
        self._source = owner.source
        self._always_runs = not owner.is_inner
        self._host: dict[int, HostFunction] = {}
        self._precomputed: list[str] = []
        self._is_expanding = False
        self._fallbacks: dict[int, Fallback] = {}
        self._refusal = ""
        self._limit_error: LimitError | None = None  # why the node was not computed ahead
        self._misfit: InvalidShapeError | InvalidOpError | None = None  # why our ops do not take its shapes
        self.nnodes = 0
        self._unrolling_end: int | None = None
        self._left_nbytes = self._source.bounds.left_nbytes
        self._inputs: dict[str, LogicalTensor] = {}
        self._sizes: dict[str, Any] = {}  # those that may vary, by the names that they have in ONNX's types
        self.builder = GraphBuilder(
            owner.static_ids, owner.prefer, owner.fpmath, owner.engine_kind, self._source.bounds
        )
        values = {name: Value(content=content, is_static=True) for name, content in owner.constants.items()}
        outputs = tuple(port.name for port in self._source.outputs)
        self.scope = Scope(owner.nodes, values, outputs, names_read(owner.nodes, outputs), ())
        values.update((name, Value(content=sizes.array(shapes))) for name, sizes in owner.sizes.items())
        self._data_dependent = DataDependentBuilder()
        for port in self._source.inputs:
            values[port.name] = self._input(port.name, port.dtype, shapes[port.name], contents.get(port.name))

    def _input(self, name: str, dtype: Any, shape: Any, content: Any) -> Value:
        if content is not None:
            varies = content.dtype == object and any(map(is_variable, content.reshape(-1)))
            return Value(content=shape_array(content, dtype.numpy) if varies else content.copy(), from_inputs=True)
        tensor = self._inputs[name] = self.builder.new_tensor(dtype, shape)
        if dtype is not None and shape is not None:
            return Value(None, tensor)
        type_ = self._source.input_types[name]
        if shape is not None and type_.HasField("tensor_type"):
            type_ = tensor_type(type_.tensor_type.elem_type, shape, self._sizes)
        return Value(type_, tensor)

    def form(self) -> ModelForm:
        """The result of the pass over the model's own nodes."""
        results = zip(self.scope.outputs, self.run(self.scope), strict=True)
        values = {name: self._held(name, value) for name, value in results}
        self._finish_data_dependent(values)
        outputs = {name: self._output_tensor(value) for name, value in values.items()}
        written = {t.id for op in self.builder.ops for t in op.outputs}
        seen = {t.id: t for t in outputs.values() if t.id in written or t.dtype is not DataType.UNDEF}
        graph = self.builder.finish(list(seen.values()))
        return ModelForm(
            graph,
            self.builder.constants,
            {name: tensor.id for name, tensor in self._inputs.items()},
            {name: tensor.id for name, tensor in outputs.items()},
            self._host,
            tuple(self._precomputed),
            self._weights(),
            self.owner.forget,
            self._source.bounds.host if self._host else None,
            self._fallbacks,
            {value.tensor.id: name for name, value in self.scope.values.items() if value.tensor is not None},
        )

    def _finish_data_dependent(self, values: dict[str, Value]) -> None:
        """Add the function of the data-dependent nodes, if any, and its results to the outputs."""
        found = {name: value for name, value in values.items() if value.data_dependent is not None}
        is_cut = any(value.data_dependent.parts for value in found.values() if value.data_dependent)
        if not self._data_dependent.nodes and not is_cut:
            return
        names = {self._data_dependent.name_of(value, name, self.scope): None for name, value in found.items()}
        part, read = self._data_dependent.finish(self._source, list(names), self.builder, self.owner.data_dependent)
        results = {name: Value(None, self.builder.new_tensor(None, None)) for name in names}
        sources = [self.builder.tensor(value) for value in read]
        targets = [value.tensor for value in results.values() if value.tensor is not None]
        op_id = self.builder.add_wildcard(sources, targets, "data-dependent part")
        self._host[op_id] = part
        values.update(
            (name, results[self._data_dependent.name_of(value, name, self.scope)]) for name, value in found.items()
        )

    def _weights(self) -> dict[str, int]:
        """Name -> tensor id of the constants of the model that the form reads."""
        tensors = {name: value.tensor for name, value in self.scope.values.items() if value.is_static}
        return {name: tensor.id for name, tensor in tensors.items() if tensor and tensor.id in self.builder.constants}

    def _output_tensor(self, value: Value) -> LogicalTensor:
        if value.tensor is None and not value.is_plain:
            value.tensor = self.builder.new_tensor(None, getattr(value.content, "shape", None))
            self.builder.constants[value.tensor.id] = value.content
        return self.builder.dense_tensor(value)

    def run(self, scope: Scope) -> list[Value]:
        """Walk the nodes of a scope; returns the values of its outputs."""
        outer, self.scope = self.scope, scope
        outer_node = self.builder.node
        try:
            with Boundary("converted") as place:
                for number, node in enumerate(scope.nodes):
                    self.count(1, node)
                    place.item = self.builder.node = node
                    self._convert((*scope.path, number), node)
            return [self.value(name) for name in scope.outputs]
        finally:
            self.scope, self.builder.node = outer, outer_node

    def value(self, name: str) -> Value:
        """What is known under a name that nodes or outputs read."""
        try:
            return self.scope.values[name]
        except KeyError:
            raise InvalidGraphError(explain(f"nothing gives {name!r}", accepted="a name of the model")) from None

    @property
    def _surely_runs(self) -> bool:
        """Whether each run comes to what is walked now: what is wrong with it is wrong with the model."""
        return self._always_runs and not self._is_expanding

    def count(self, nnodes: int, node: Node) -> None:
        """Count nodes that are walked, those of iterations and of functions included, attempts that fail too."""
        self.nnodes += nnodes
        if self.nnodes > self._source.bounds.limits.nodes:
            what = f"node {node.label!r}: number of nodes after functions and loops are written out"
            raise self._source.bounds.limits.error("nodes", self.nnodes, what, node.label)

    def end_of_unrolling(self, most: int = NO_BOUND) -> int:
        """What `nnodes` may grow to while control flow is written out: the bound of the outermost loop holds."""
        own = self.nnodes + min(self._source.bounds.limits.unrolled_nodes, most)
        return own if self._unrolling_end is None else min(own, self._unrolling_end)

    def unroll(self, scope: Scope, end: int) -> list[Value]:
        """Walk one iteration of a loop that must not go beyond `end`."""
        outer, self._unrolling_end = self._unrolling_end, end
        try:
            return self.run(scope)
        finally:
            self._unrolling_end = outer

    def opset(self, domain: str) -> int:
        """Version of a domain that the model asks for."""
        return self._source.opsets.get(domain, 1)

    # ---- one node

    def _convert(self, path: Path, node: Node) -> None:
        values = self.scope.values
        inputs = [self.value(name) if name else None for name in node.input]
        captured = {name: values[name] for name in node.captured if name in values} if node.captured else {}
        if self._always_runs and not self.scope.path:
            check_places(node, inputs)
        results = self._results(path, node, inputs, captured)
        pass_span_on(node, inputs, results)
        for name, value in zip(node.output, results, strict=False):
            if name:
                values[name] = value

    def _results(
        self, path: Path, node: Node, inputs: list[Value | None], captured: Mapping[str, Value]
    ) -> list[Value]:
        """The outputs of a node."""
        places = count()

        def convert_part(part: Node, given: Sequence[Value | None]) -> list[Value]:
            return self._results((*path, next(places)), part, list(given), {})

        found = follow_sequences(node, inputs, self.opset(""), convert_part)
        if found is not None:
            return found
        self._refusal, self._limit_error, self._misfit = "", None, None
        read = [value for value in (*inputs, *captured.values()) if value is not None]
        is_known, has_sizes, is_late = True, False, False
        for value in read:
            content = value.content
            is_known = is_known and content is not None
            has_sizes = has_sizes or type(content) is ShapeArray
            is_late = is_late or value.data_dependent is not None
        if is_late:
            results: list[Value] | None = self._add_data_dependent(node, inputs, captured)
        else:
            results = (self._recall(path, read) if is_known else None) or self._follow(path, node, inputs)
        if results is None and has_sizes:
            if _is_sized(node, inputs):
                results = self._express(node, inputs)
            results = results or self._compute_shapes(node, inputs)
        if results is None and is_known and not is_kept(node, inputs) and self._may_fold(node, inputs, captured):
            results = self._fold(path, node, inputs, captured, read)
        elif results is None and node.op_type in ("Shape", "Size") and inputs[0] is not None and inputs[0].is_plain:
            results = [Value(content=measure(node, inputs[0].shape))]
        if results is None:
            results = self._express(node, inputs) or self._follow_sizes(node, inputs)
        if results is None:
            refusal, misfit = self._refusal, self._misfit  # say more than those of an op of ONNX's definition
            results = self._expand(path, node, inputs)
            self._refusal, self._misfit = refusal or self._refusal, misfit or self._misfit
        if results is None:
            results = self._leave_to_host(node, inputs, captured)
        return results

    def _add_data_dependent(
        self, node: Node, inputs: Sequence[Value | None], captured: Mapping[str, Value]
    ) -> list[Value]:
        """The outputs of a node of the data-dependent part, which makes the sequences that it reads anew."""
        named = zip(node.input, inputs, strict=True)
        given = [None if value is None else self._held(name, value, is_late=True) for name, value in named]
        held = {name: self._held(name, value, is_late=True) for name, value in captured.items()}
        return self._data_dependent.add(node, given, held, self.scope)

    def _held(self, name: str, value: Value, is_late: bool = False) -> Value:
        """A sequence of known length as one object, in the data-dependent part if need be; others as they are."""
        items = value.items
        if items is None:
            return value
        items = tuple([self._held(f"{name}/{number}", item, is_late) for number, item in enumerate(items)])
        if is_late or any(item.data_dependent is not None for item in items):
            return self._data_dependent.add(sequence_node(items, name), items, {}, self.scope)[0]
        reads = Reads()
        function = AsList([reads.place(item) for item in items])
        held = Value(make_sequence_type(items), self.builder.new_tensor(None, None))
        sources = [self.builder.tensor(item) for item in reads.values]
        self._host[self.builder.add_wildcard(sources, [self.builder.tensor(held)], name)] = function
        return held

    def _follow_sizes(self, node: Node, inputs: Sequence[Value | None]) -> list[Value] | None:
        """The outputs of a node that takes a few integers of the run as sizes: it is data-dependent; None for others.

        In place of an op that ONNX defines by others nothing may come that only a run follows.
        """
        first, last = _SIZE_PORTS.get(node.op_type, (0, 0)) if node.domain in ("", "ai.onnx") else (0, 0)
        late = [value for value in inputs[first:last] if value is not None and not value.is_known]
        if self._is_expanding or not late or not all(map(_are_few_integers, late)):
            return None
        return self._data_dependent.add(
            node, [self._data_dependent.sizes(value) if value in late else value for value in inputs], {}, self.scope
        )

    def _compute_shapes(self, node: Node, inputs: Sequence[Value | None]) -> list[Value] | None:
        """What a node computes of sizes that may vary, if such arrays can hold it."""
        contents = [None if value is None else value.content for value in inputs]
        if any(value is not None and not value.is_known for value in inputs):
            return None
        found = compute_shapes(node, contents, self.opset(node.domain))
        return None if found is None else [Value(content=content) for content in found]

    def _may_fold(self, node: Node, inputs: Sequence[Value | None], captured: Mapping[str, Value]) -> bool:
        """Whether the limits let a node be computed now."""
        read = zip(node.input, inputs, strict=True)
        named = {name: value for name, value in read if value is not None} | dict(captured)
        asked = self._source.bounds.asks_too_much(self._source, node, named, self._left_nbytes)
        self._limit_error, self._refusal = asked, str(asked or "")
        return asked is None

    def _fold(
        self,
        path: Path,
        node: Node,
        inputs: list[Value | None],
        captured: Mapping[str, Value],
        read: Sequence[Value],
    ) -> list[Value]:
        """Compute a node now; once and for all when its inputs never change."""
        contents = compute(self._source, node, inputs, captured)
        nbytes = sum(map(deep_nbytes, contents))
        self._left_nbytes -= nbytes
        if all(value.is_static for value in read):
            self._source.bounds.left_nbytes -= nbytes
            key = self.owner.fold_key(path, [value.content for value in read])
            self.owner.folded[key] = contents
            return _static(contents)
        from_inputs = any(value.from_inputs for value in read)
        if from_inputs:
            self._precomputed.append(node.label)
        return [Value(content=content, from_inputs=from_inputs) for content in contents]

    def _recall(self, path: Path, read: Sequence[Value]) -> list[Value] | None:
        """What an earlier form computed of the same known contents at the same place."""
        if not self.owner.folded or not all(value.is_static for value in read):
            return None
        contents = self.owner.folded.get(self.owner.fold_key(path, [value.content for value in read]))
        return None if contents is None else _static(contents)

    def _follow(self, path: Path, node: Node, inputs: list[Value | None]) -> list[Value] | None:
        """The outputs of control flow: written out, or of models of its own; None for other nodes."""
        ways = _WAYS.get(node.op_type, ()) if node.domain in ("", "ai.onnx") else ()
        refusals = []
        for way in ways:
            results: list[Value] | None = self.attempt(partial(way, self, node, inputs, path))
            if results is not None:
                return results
            refusals.append(self._refusal)
        if refusals:
            self._refusal = refusals[min(_TELLING, len(refusals) - 1)]
        return None

    def rehearse(
        self, specialiser: Specialiser, shapes: Mapping[str, Any], outputs: Sequence[str]
    ) -> tuple[list[Value], bool]:
        """What a graph inside a node gives for shapes of its inputs, and whether kernels run all of it."""
        inner = Walk(specialiser, shapes, {})
        inner.nnodes = self.nnodes
        try:
            found = dict(zip(inner.scope.outputs, inner.run(inner.scope), strict=True))
        finally:
            self.nnodes = inner.nnodes
        return [found[name] for name in outputs], not inner._fallbacks and not inner._data_dependent.nodes

    def add_inner(
        self, node: Node, function: InnerModels, read: Sequence[Value], results: Sequence[Value], is_native: bool
    ) -> None:
        """Let a function that runs models stand for a node; `is_native` says whether kernels run all of them.

        In place of an op that ONNX defines by others nothing may come that the host does better as one.
        """
        is_known = all(value.data_dependent is None for value in results)
        require((is_native and is_known) or not self._is_expanding, "a definition that only a run follows")
        sources = [self.builder.dense_tensor(value) for value in read]
        targets = [value.tensor for value in results if value.tensor is not None]
        self._host[self.builder.add_wildcard(sources, targets, node.label)] = function

    def _express(self, node: Node, inputs: list[Value | None]) -> list[Value] | None:
        """The outputs of the node in our ops; None when it has no expression in them."""
        used = max((k + 1 for k, name in enumerate(node.output) if name in self.scope.used), default=0)
        opset = self.opset(node.domain)
        try:
            found: list[Value] | None = self.attempt(lambda: self._converted(node, inputs, opset, used))
        except Exception:
            self._infer(node, inputs, {}, node.label, hint_of)  # which knows what is wrong with most nodes, and says it
            raise
        return found

    def _converted(self, node: Node, inputs: list[Value | None], opset: int, used: int) -> list[Value]:
        """In place of an op that ONNX defines by others nothing may come that only a run follows."""
        found = convert(node, inputs, opset, used, self.builder)
        is_known = all(value is None or value.data_dependent is None for value in found)  # some leave an output out
        require(is_known or not self._is_expanding, "a definition that only a run follows")
        return found

    def _expand(self, path: Path, node: Node, inputs: list[Value | None]) -> list[Value] | None:
        """The outputs of an op that ONNX defines by other ops, if all of those have an expression in ours."""
        if not all(value is None or value.is_plain for value in inputs):
            return None
        named = {name: value for name, value in zip(node.input, inputs, strict=True) if name and value is not None}
        types = [None if value is None else make_type(value.dtype, value.shape) for value in inputs]
        nodes = function_nodes(node, types, self._source.opsets_for(node))
        if nodes is None:
            return None
        outputs = [name for name in node.output if name and name in self.scope.used]
        text = b"".join(inner.proto.SerializeToString(deterministic=True) for inner in nodes)
        scope = enter_nodes(nodes, named, outputs, (*path, text))
        outer, self._is_expanding = self._is_expanding, True
        try:
            results = self.attempt(lambda: self.run(scope))
        finally:
            self._is_expanding = outer
        if results is None:
            return None
        found = dict(zip(outputs, results, strict=True))
        return [found.get(name, Value()) for name in node.output]

    def attempt(self, make: Any) -> Any:
        """What `make` returns; None, and what it added is taken back, when it says that it cannot."""
        nops, nprecomputed, nlater = len(self.builder.ops), len(self._precomputed), len(self._data_dependent.nodes)
        try:
            return make()
        except (LimitError, InvalidNode, MemoryError):
            raise
        except (NotConvertible, GraphpoolError) as error:
            self._refusal = str(error) or self._refusal
            self._misfit = error if isinstance(error, InvalidShapeError | InvalidOpError) else None
            del self.builder.ops[nops:], self._precomputed[nprecomputed:], self._data_dependent.nodes[nlater:]
            while self._host and next(reversed(self._host)) >= nops:  # ids ascend
                self._fallbacks.pop(self._host.popitem()[0], None)
            return None

    # ---- the host

    def _leave_to_host(self, node: Node, inputs: list[Value | None], captured: Mapping[str, Value]) -> list[Value]:
        label = node.label
        host = self.owner.host
        if any(value is not None and value.items is not None for value in (*inputs, *captured.values())):
            named = zip(node.input, inputs, strict=True)
            inputs = [None if value is None else self._held(name, value) for name, value in named]
            captured = {name: self._held(name, value) for name, value in captured.items()}
            if any(value is not None and value.data_dependent is not None for value in (*inputs, *captured.values())):
                return self._add_data_dependent(node, inputs, captured)
        if self._limit_error is not None and host != "any":
            raise self._limit_error
        refusal = self._refusal or _REFUSED_DOMAINS.get(node.domain, "")
        reason = refusal or "graphpool has no ops for it"
        if self._is_expanding:
            raise NotConvertible(f"{node.op_type} of its definition: {reason}")
        misfit = self._misfit if node.op_type in _STRICT and node.domain in ("", "ai.onnx") else None
        results = self._infer(node, inputs, captured, label, int if misfit is None else hint_of)
        if misfit is not None:
            message = explain(f"node {label!r} ({node.op_type})", got=str(misfit))
            raise InvalidNode(message, node=label, **misfit.fields) from misfit
        need = needs_host(node, inputs, results)
        reason = need or reason
        if host == "none" or (host == "objects" and not need):
            is_onnx = not node.domain or node.domain.startswith("ai.onnx")  # others have no host
            what, hint = f"node {label!r} ({node.op_type}) is not supported", "load with fallback=True"
            message = explain(what, got=reason, hint=hint if is_onnx else None)
            raise UnsupportedError(message, node=label, op_type=node.op_type)
        read = [value for value in (*inputs, *captured.values()) if value is not None]
        sources = list({id(value): value for value in read if not value.is_known}.values())
        function = find_host_function(self._source, node, inputs, captured, sources, results, refusal)
        for value in read:  # what is known counts among the constants of the form
            if value.is_known and value.is_plain and not isinstance(value.content, ShapeArray):
                self.builder.tensor(value)
            elif isinstance(value.content, np.ndarray) and value.tensor is None:
                self._output_tensor(value)
        op_id = self.builder.add_wildcard(
            [self.builder.tensor(value) for value in sources],
            [value.tensor for value in results if value.tensor is not None],
            label,
        )
        self._host[op_id], self._fallbacks[op_id] = function, Fallback(label, node.op_type, reason)
        return results

    def _infer(
        self,
        node: Node,
        inputs: list[Value | None],
        captured: Mapping[str, Value],
        label: str,
        number_of: Callable[[Any], int] = int,
    ) -> list[Value]:
        """Outputs with types and shapes as ONNX infers them; those that it cannot infer are Python objects.

        What it infers of numbers holds for these alone, which `number_of` notes.
        """
        named = dict(zip(node.input, inputs, strict=True)) | dict(captured)
        values = {name: value for name, value in named.items() if value is not None}
        try:
            is_pinned = not _agree(values.values())
            found = infer_types(self._source, node, values, self._sizes, number_of if is_pinned else None)
            tensors = [type_ for type_ in found.values() if type_.HasField("tensor_type")]
            are_sized = all(
                value.is_known or value.is_plain or self._is_static(value.type) for value in values.values()
            )
            if not is_pinned and are_sized and not all(map(self._is_static, tensors)):
                numbered = infer_types(self._source, node, values, self._sizes, hint_of)
                tensors = [type_ for type_ in numbered.values() if type_.HasField("tensor_type")]
                if all(map(self._is_static, tensors)):  # else plain numbers do not help
                    found = infer_types(self._source, node, values, self._sizes, number_of)
            return [self._host_output(found.get(name)) if name else Value() for name in node.output]
        except (InferenceError, InvalidShapeError) as error:
            shapes = ", ".join([str(tuple(map(hint_of, v.shape))) for v in inputs if v is not None and v.is_plain])
            got = f"{str(error).strip().splitlines()[-1]}, of inputs of shapes {shapes}"
            message = explain(f"node {label!r} ({node.op_type})", got=got)
            raise (InvalidNode if self._surely_runs else InvalidShapeError)(message, node=label) from error

    def empty_outputs(self, node: Node, inputs: Sequence[Value | None], nstates: int) -> list[Value]:
        """Rows of a loop without trips, behind its states; sizes that only a trip tells are 0, as in ONNX Runtime."""
        names, found = node.output[nstates:], list[Value]()
        if not any(names):
            return [Value() for _ in names]
        captured = {name: self.value(name) for name in node.captured if name in self.scope.values}
        read = {name: value for name, value in zip(node.input, inputs, strict=True) if value is not None}
        types = infer_types(self._source, node, read | captured, self._sizes)
        for name in names:
            dtype = data_type(types[name].tensor_type.elem_type) if name in types else None
            require(dtype is not None or not name, "rows without a trip, of unknown type")
            shape = () if dtype is None else least_shape(types[name], self._sizes) or (0,)
            found.append(Value() if dtype is None else Value(content=np.empty(shape, dtype.numpy)))
        return found

    def _is_static(self, type_: Any) -> bool:
        """Whether a type has a shape of which all sizes are known."""
        return type_ is not None and static_shape(type_, self._sizes) is not None

    def _host_output(self, type_: Any) -> Value:
        shape = None if type_ is None else static_shape(type_, self._sizes)
        dtype = None if shape is None else data_type(type_.tensor_type.elem_type)
        is_array = type_ is not None and type_.HasField("tensor_type") and data_type(type_.tensor_type.elem_type)
        found = DataDependent() if shape is None and is_array else None
        return Value(type_, self.builder.new_tensor(dtype, shape), data_dependent=found)


_REFUSED_DOMAINS = {
    "com.microsoft.nchwc": "weights that lie as one machine wants them: save the model at level ORT_ENABLE_EXTENDED",
}
"""Domain -> why none of its ops runs, and what to do."""

_FEW_NODES = 128
"""Of a loop that is written out, which takes some tenths of a millisecond a node to compile.

One that runs as a model of its own takes tens of microseconds a run more, and less than one a trip.
"""

_WAYS: dict[str, tuple[Way, ...]] = {
    "If": (take_branch, branches),
    "Loop": (partial(unroll_loop, most=_FEW_NODES), repeat_loop, unroll_loop),
    "Scan": tuple(
        [partial(scan, one=way) for way in (partial(unroll_scan, most=_FEW_NODES), repeat_scan, unroll_scan)]
    ),
    "SequenceMap": (unroll_map,),
    "Unique": (find_unique,),
}
"""How control flow, and what other nodes stand for, becomes part of a form, tried in this order."""

_TELLING = 1
"""Of these the one whose refusal is told: that of a model of its own, which any course suits."""


_SIZE_PORTS = {
    "Resize": (3, 4), "Slice": (1, 3), "Expand": (1, 2), "Reshape": (1, 2), "ConstantOfShape": (0, 1), "Tile": (1, 2),
    "Pad": (1, 2), "Split": (1, 2),
}  # fmt: skip
"""Op -> inputs that it takes as sizes: from one to before another."""

_STRICT = frozenset({
    "Add", "And", "ArgMax", "ArgMin", "Concat", "Conv", "ConvInteger", "ConvTranspose", "DepthToSpace", "Div",
    "Equal", "Expand", "GRU", "GatherElements", "GatherND", "Gemm", "Greater", "GreaterOrEqual", "LSTM", "Less",
    "LessOrEqual", "MatMul", "Max", "Mean", "Min", "Mul", "Or", "Pow", "QLinearConv", "RNN", "ReduceL1", "ReduceL2",
    "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum",
    "ReduceSumSquare", "Reshape", "ScatterElements", "ScatterND", "SpaceToDepth", "Sub", "Sum", "TopK", "Where",
    "Xor",
})  # fmt: skip
"""Ops that are invalid where our ops refuse their shapes, or sizes that are attributes there: nothing runs these."""

_MOST_SIZES = 16


def _are_few_integers(value: Value) -> bool:
    """Whether a value of the run may be sizes."""
    return value.is_plain and value.dtype in (DataType.S64, DataType.S32) and prod(value.shape) <= _MOST_SIZES


def _is_sized(node: Node, inputs: Sequence[Value | None]) -> bool:
    """Whether sizes that may vary are those of the result, or places in a table, so that it cannot be known now."""
    if node.op_type in ("ConstantOfShape", "Range"):
        return True
    first = inputs[0]
    if node.domain not in ("", "ai.onnx") or first is None or isinstance(first.content, ShapeArray):
        return False
    if node.op_type == "Gather":  # of integers that are sizes others may follow
        return first.is_plain and first.dtype not in (DataType.S64, DataType.S32)
    return node.op_type in ("Slice", "Expand", "Tile", "Pad")


def _static(contents: Sequence[Any]) -> list[Value]:
    """Values of this form for contents that forms share."""
    return [Value(content=content, is_static=content is not None) for content in contents]


def _agree(values: Iterable[Value]) -> bool:
    """Whether one of the values has all sizes that vary, so that no relation between them can be wrong for others."""
    shapes: list[Sequence[Any]] = [value.shape for value in values if value.is_plain]
    varying = [{dim.number for dim in shape if is_variable(dim)} for shape in shapes]
    return not varying or max(varying, key=len) == set().union(*varying)
