"""Which outputs of a model are inputs of its next run, and how large they become."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from graphpool.errors import InvalidArgumentError, InvalidDataTypeError, InvalidShapeError, brief, explain

from .held_states import HeldState, HeldStates
from .model_port import describe_port

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from .model_port import ModelPort

__all__ = ["describe_states", "find_states"]

_PAST = re.compile(r"past(_key_values?)?")
_PRESENT = re.compile(r"present(_key_values?)?")


def find_states(inputs: Sequence[ModelPort], outputs: Sequence[ModelPort]) -> dict[str, str]:
    """Outputs whose names begin with ``present``, and the inputs with ``past`` in its place, which they become."""
    sources = {port.name[found.end() :]: port for port in inputs if (found := _PAST.match(port.name)) is not None}
    pairs = {}
    for port in outputs:
        found = _PRESENT.match(port.name)
        source = sources.pop(port.name[found.end() :], None) if found is not None else None
        if source is not None and source.dtype is not None and port.dtype in (None, source.dtype):
            pairs[port.name] = source.name
    return pairs


def describe_states(
    inputs: Sequence[ModelPort], outputs: Sequence[ModelPort], pairs: Mapping[str, str], capacity: Mapping[str, Any]
) -> HeldStates:
    """The states of a session: output -> input; capacities as `Model.session` takes them.

    Raises
    ------
    InvalidArgumentError, InvalidDataTypeError, InvalidShapeError
        There are no such inputs and outputs, or one cannot become the other; a capacity is missing or does not fit.
    """
    if not pairs:
        hint = "name them: model.session({'output': 'input'})"
        raise InvalidArgumentError(explain("no outputs and inputs are named present... and past...", hint=hint))
    sources, results = ({port.name: port for port in side} for side in (inputs, outputs))
    for names, known, side in ((pairs, results, "output"), (pairs.values(), sources, "input")):
        unknown = next((name for name in names if name not in known), None)
        if unknown is not None:
            raise InvalidArgumentError(explain(f"state: unknown {side} {unknown!r}", accepted=f"{side}s {list(known)}"))
    ports = [(sources[source], results[result]) for result, source in pairs.items()]
    twice = next((source for source in pairs.values() if list(pairs.values()).count(source) > 1), None)
    if twice is not None:
        raise InvalidArgumentError(explain(f"state: input {twice!r} has two outputs", accepted="one"), input_name=twice)
    given = {dim for port in inputs if port.name not in pairs.values() for dim in port.shape or ()}
    _check_capacity(capacity, [source for source, _ in ports])
    return HeldStates(tuple([_describe_state(*pair, capacity, given) for pair in ports]))


def _check_capacity(capacity: Mapping[str, Any], ports: Sequence[ModelPort]) -> None:
    """Raise unless sizes are given for dimensions, and shapes for states."""
    dims = {dim for port in ports for dim in port.shape or () if isinstance(dim, str)}
    for name, size in capacity.items():
        sizes = size if isinstance(size, (tuple, list)) else (size,)
        are_sizes = all(isinstance(n, int) and not isinstance(n, bool) and n >= 1 for n in sizes)
        if name not in dims and all(port.name != name for port in ports):
            accepted = f"dimensions {sorted(dims)}, or states {[port.name for port in ports]}"
            raise InvalidArgumentError(explain(f"capacity: unknown {name!r}", accepted=accepted))
        if not are_sizes or (name in dims) == isinstance(size, (tuple, list)):
            accepted = "an int of at least 1" if name in dims else "a shape"
            raise InvalidArgumentError(explain(f"capacity of {name!r}", accepted=accepted, got=brief(size)))


def _describe_state(
    source: ModelPort, result: ModelPort, capacity: Mapping[str, Any], given: AbstractSet[int | str | None]
) -> HeldState:
    """One state; `given` are the dimensions of the inputs that are no states."""
    if source.dtype is None or source.dtype.bits < 8 or result.dtype not in (None, source.dtype):
        what = f"output {result.name!r} cannot be input {source.name!r} of the next run"
        message = explain(what, accepted=describe_port(source), got=describe_port(result))
        raise InvalidDataTypeError(message, input_name=source.name)
    shape = capacity.get(source.name)
    dims = source.shape if source.shape is not None or shape is None else (None,) * len(shape)
    if dims is None or (shape is not None and len(shape) != len(dims)):
        message = explain(f"capacity of {source.name!r}", accepted=describe_port(source), got=shape)
        raise InvalidShapeError(message, input_name=source.name)
    others = (None,) * len(dims) if result.shape is None or len(result.shape) != len(dims) else result.shape
    sizes, growing = [], []
    for axis, (dim, other) in enumerate(zip(dims, others, strict=True)):
        size = dim if isinstance(dim, int) else shape[axis] if shape is not None else capacity.get(dim or "")
        grows = not isinstance(dim, int) and dim not in given - {None} and (dim is None or dim != other)
        if size is None and (dim is None or grows):
            name = source.name if dim is None else dim
            hint = f"capacity={{{name!r}: {'shape' if dim is None else 'positions'}}}"
            raise InvalidArgumentError(explain(f"no capacity for {name!r} of input {source.name!r}", hint=hint))
        if shape is not None and shape[axis] != size:
            message = explain(f"capacity of {source.name!r}", accepted=describe_port(source), got=shape)
            raise InvalidShapeError(message, input_name=source.name, dim=axis)
        sizes.append(1 if size is None else size)
        if grows and (dim is not None or sizes[axis] > 1):
            growing.append(axis)
    return HeldState(source.name, result.name, source.dtype, dims, tuple(sizes), tuple(growing))
