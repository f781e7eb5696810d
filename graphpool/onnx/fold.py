"""Computes nodes ahead of time, where everything that they read is known."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from graphpool.errors import InvalidArgumentError, LimitError, UnsupportedError, explain
from graphpool.runtime.constant_memory import filled, is_one_number, memory_of

from .bounds import deep_nbytes
from .build import Value
from .host import make_host_function
from .host_ops import RANDOM
from .inline import CONTROL_FLOW

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from graphpool.runtime.model_form import HostFunction

    from .node import Node
    from .source import OnnxModel

_KEPT = RANDOM | {"Dropout"}


def is_kept(node: Node, inputs: Sequence[Value | None] = ()) -> bool:
    """Whether a node is not computed ahead: some ops, and those of domains that ONNX's evaluator does not know.

    One that would blow a quantised weight up is, but not where `inputs` say that it gives a single number.
    """
    if node.op_type in _KEPT or not (node.domain == "" or node.domain.startswith("ai.onnx")):
        return True
    if node.op_type != "DequantizeLinear":
        return False
    return not inputs or inputs[0] is None or not inputs[0].is_known or inputs[0].content.size != 1


def find_host_function(
    source: OnnxModel,
    node: Node,
    inputs: Sequence[Value | None],
    captured: Mapping[str, Value],
    given: Sequence[Value] = (),
    results: Sequence[Value] = (),
    refusal: str = "",
) -> HostFunction:
    """`make_host_function`, with an error that names the node, and why its converter refused it if it did.

    Raises UnsupportedError where nothing runs the op, LimitError where it asks for more than is allowed, MemoryError
    where there is no room.
    """
    try:
        return make_host_function(source, node, inputs, captured, given, results)
    except (LimitError, MemoryError):
        raise
    except Exception as error:
        label = node.label
        what = f"node {label!r}: nothing runs {node.op_type} of domain {node.domain or 'ai.onnx'!r}"
        raise UnsupportedError(
            explain(what, got=refusal or str(error).strip().splitlines()[0]), node=label, op_type=node.op_type
        ) from error


def compute(source: OnnxModel, node: Node, inputs: Sequence[Value | None], captured: Mapping[str, Value]) -> list[Any]:
    """The contents of a node's outputs, None for those without a name.

    Raises InvalidArgumentError where the node fails on its inputs, UnsupportedError where nothing runs the op,
    MemoryError where there is no room for what it makes.
    """
    function = find_host_function(source, node, inputs, captured)
    names = [name for name in node.output if name]
    try:
        contents = iter(function([], [None] * len(names)))
    except MemoryError:  # of a load that is refused: no fault of the node
        raise
    except Exception as error:
        label = node.label
        what = f"node {label!r} ({node.op_type}) cannot be computed"
        raise InvalidArgumentError(explain(what, got=f"{type(error).__name__}: {error}"), node=label) from error
    return [_frozen(next(contents)) if name else None for name in node.output]


def _frozen(content: Any) -> Any:
    if isinstance(content, (np.ndarray, np.generic)):
        if is_one_number(content):  # of its own, not what a file holds at whatever address
            return filled(content.shape, memory_of(content).reshape(()).copy())
        content = np.require(content, requirements=["C", "A"])
        content.setflags(write=False)
    return content


def fold_constants(
    source: OnnxModel, nodes: Sequence[Node], constants: Mapping[str, Any]
) -> tuple[list[Node], dict[str, Any]]:
    """The nodes that depend on the model's inputs, and the constants with what the others compute.

    A content goes when the last node that reads it was computed: weights may pass through several types.
    """
    left: list[Node] = []
    readers = Counter(name for node in nodes for name in {*node.input, *node.captured})
    readers.update(port.name for port in source.outputs)
    values = {name: Value(content=content) for name, content in constants.items()}
    done: dict[Any, list[Any]] = {}
    for node in nodes:
        if not all(name in values for name in (*node.input, *node.captured) if name):
            left.append(node)
            continue
        inputs = [values.get(name) for name in node.input]
        if is_kept(node, inputs) or node.op_type in CONTROL_FLOW:
            left.append(node)
            continue
        captured = {name: values[name] for name in node.captured}
        read = {name: values[name] for name in (*node.input, *node.captured) if name}
        if source.bounds.asks_too_much(source, node, read, source.bounds.left_nbytes):
            left.append(node)
            continue
        work = _work_of(node, inputs)
        contents = done.get(work) or compute(source, node, inputs, captured)
        if work is not None:
            done[work] = contents
        source.bounds.left_nbytes -= sum(map(deep_nbytes, contents))
        found = zip(node.output, contents, strict=True)
        values |= {name: Value(content=content) for name, content in found if name}
        for name in read:
            readers[name] -= 1
            if not readers[name]:
                del values[name]
    return left, {name: value.content for name, value in values.items()}


_FEW = 64
"""Elements of inputs up to which it is worth looking whether a node was computed before."""


def _work_of(node: Node, inputs: Sequence[Value | None]) -> Any:
    """Equal for nodes with equal results; None where that is not looked into.

    Exporters write the same chain in front of every layer, as for the pads of a convolution.
    """
    contents = [value.content for value in inputs if value is not None]
    if not all(isinstance(item, np.ndarray) and item.size <= _FEW and item.dtype.kind in "biuf" for item in contents):
        return None
    work = node.work
    return work and (work, *[(item.dtype, item.shape, item.tobytes()) for item in contents])
