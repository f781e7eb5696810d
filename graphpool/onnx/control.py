"""Control flow whose course is known when a model is specialised: the branch taken, the iterations one after another.

An unrolled loop is compiled like any other part of the model, so that its iterations fuse and need no host. Long ones
stay on the host, which repeats the same few nodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .build import NotConvertible, Value
from .inline import enter_graph

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .build import GraphBuilder
    from .inline import Path
    from .node import Node, Subgraph
    from .walk import Walk


def _require(condition: bool, reason: str) -> None:
    if not condition:
        raise NotConvertible(reason)


def _if(walk: Walk, node: Node, inputs: Sequence[Value | None], path: Path) -> list[Value]:
    """The branch that the condition takes."""
    [condition] = inputs
    _require(condition is not None and condition.is_known, "the condition is not known")
    assert condition is not None  # required above
    taken = bool(np.asarray(condition.content).reshape(()))
    branch = node.attrs["then_branch" if taken else "else_branch"]
    return walk.run(enter_graph(branch, walk.scope, [], (*path, int(taken))))


def _loop(walk: Walk, node: Node, inputs: Sequence[Value | None], path: Path) -> list[Value]:
    """Loop: the body, until the trip count is reached or its first output is false."""
    trips, condition, *carried = inputs
    _require(all(v is None or v.is_known for v in (trips, condition)), "trip count and condition are not known")
    _require(trips is not None or condition is not None, "the loop has no end")
    most = np.inf if trips is None else int(np.asarray(trips.content).reshape(()))
    going = condition is None or bool(np.asarray(condition.content).reshape(()))
    body, number, scanned = node.attrs["body"], 0, []
    states = [_present(value) for value in carried]
    end = walk.end_of_unrolling()
    if going and most < np.inf and _goes_on(body):
        _require(walk.nnodes + most * (1 + len(body.nodes)) <= end, "a long loop")
    while going and number < most:
        walk.count(1, node)  # a body without nodes is not for nothing
        _require(walk.nnodes + len(body.nodes) <= end, "a long loop")
        given = [Value(content=np.array(number)), Value(content=np.array(True)), *states]
        check, *results = walk.unroll(enter_graph(body, walk.scope, given, (*path, number)), end)
        _require(check.is_known, "an iteration decides whether another one follows")
        going = bool(np.asarray(check.content).reshape(()))
        states, number = results[: len(states)], number + 1
        scanned.append(results[len(states) :])
    return states + [_stack(walk.builder, list(values), 0) for values in _columns(scanned, node, len(states))]


def _goes_on(body: Subgraph) -> bool:
    """Whether the body of a loop hands its condition on, so that the trip count alone decides."""
    name = body.outputs[0]
    copied = [node.input[0] for node in body.nodes if node.op_type == "Identity" and node.output[0] == name]
    return body.inputs[1] in (name, *copied)


def _scan(walk: Walk, node: Node, inputs: Sequence[Value | None], path: Path) -> list[Value]:
    """Scan: the body for each slice of the scanned inputs; before opset 9 for each entry of a batch."""
    if walk.opset(node.domain) >= 9:
        return _scan_one(walk, node, [_present(value) for value in inputs], path)
    _require(inputs[0] is None, "sequences of several lengths")
    values = [_present(value) for value in inputs[1:]]
    _require(all(value.is_plain for value in values), "something scanned is no array of known shape")
    _require(values[0].shape[0] <= walk.end_of_unrolling() - walk.nnodes, "a long scan")
    rows = [
        _scan_one(walk, node, [_take(walk.builder, value, number, 0) for value in values], (*path, number))
        for number in range(values[0].shape[0])
    ]
    return [_stack(walk.builder, list(column), 0) for column in _columns(rows, node, 0)]


def _scan_one(walk: Walk, node: Node, values: list[Value], path: Path) -> list[Value]:
    attrs = node.attrs
    body, count = attrs["body"], attrs["num_scan_inputs"]
    states, sources = values[: len(values) - count], values[len(values) - count :]
    _require(all(source.is_plain for source in sources), "something scanned is no array of known shape")
    given = zip(sources, attrs.get("scan_input_axes") or [0] * count, strict=True)
    axes = [axis % len(source.shape) for source, axis in given]
    backwards = attrs.get("scan_input_directions") or attrs.get("directions") or [0] * count
    length = sources[0].shape[axes[0]]
    end = walk.end_of_unrolling()
    _require(walk.nnodes + length * (1 + len(body.nodes)) <= end, "a long scan")
    scanned = []
    for number in range(length):
        walk.count(1, node)
        slices = [
            _take(walk.builder, source, length - 1 - number if back else number, axis)
            for source, axis, back in zip(sources, axes, backwards, strict=True)
        ]
        results = walk.unroll(enter_graph(body, walk.scope, [*states, *slices], (*path, number)), end)
        states = results[: len(states)]
        scanned.append(results[len(states) :])
    return states + _scanned_outputs(walk.builder, attrs, _columns(scanned, node, len(states)))


def _scanned_outputs(builder: GraphBuilder, attrs: dict[str, Any], columns: list[tuple[Value, ...]]) -> list[Value]:
    axes = attrs.get("scan_output_axes") or [0] * len(columns)
    backwards = attrs.get("scan_output_directions") or [0] * len(columns)
    return [
        _stack(builder, list(column[::-1] if back else column), axis)
        for column, axis, back in zip(columns, axes, backwards, strict=True)
    ]


def _present(value: Value | None) -> Value:
    if value is None:
        raise NotConvertible("a state is left out")
    return value


def _columns(rows: list[list[Value]], node: Node, nstates: int) -> list[tuple[Value, ...]]:
    """The values of each scanned output, iteration by iteration."""
    _require(bool(rows) or len(node.output) == nstates, "a scanned output without an iteration")
    return list(zip(*rows, strict=True))


def _take(builder: GraphBuilder, value: Value, index: int, axis: int) -> Value:
    """One slice of a value along an axis, without that axis."""
    if value.is_known:
        return Value(content=np.take(value.content, index, axis), from_inputs=value.from_inputs)
    [piece] = builder.emit("Slice", value, starts=[index], ends=[index + 1], axes=[axis])
    shape = [dim for k, dim in enumerate(value.shape) if k != axis]
    return builder.emit("StaticReshape", piece, shape=shape, special_zero=False)[0]


def _stack(builder: GraphBuilder, values: list[Value], axis: int) -> Value:
    """Values joined along a new axis."""
    if all(value.is_known for value in values):
        content = np.stack([np.asarray(value.content) for value in values], axis)
        return Value(content=content, from_inputs=any(value.from_inputs for value in values))
    _require(all(value.is_plain for value in values), "a scanned output is no array of known shape")
    axis %= len(values[0].shape) + 1
    shape = (*values[0].shape[:axis], 1, *values[0].shape[axis:])
    pieces = [builder.emit("StaticReshape", value, shape=shape, special_zero=False)[0] for value in values]
    return builder.join(pieces, axis)


CONTROL_FLOW: dict[str, Callable[[Walk, Node, Sequence[Value | None], Path], list[Value]]] = {
    "If": _if, "Loop": _loop, "Scan": _scan,
}  # fmt: skip
