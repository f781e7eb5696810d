"""The table of reference operations, and the one door through which they are called."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from importlib import import_module
from typing import Any, TypeAlias, TypeVar

import numpy as np

from graphpool._dataclasses import dataclass
from graphpool.errors import InvalidArgumentError, InvalidOpError, InvalidShapeError, UnsupportedError, explain
from graphpool.typing import DataType

from .rounding import round_to, widen

BLOCK = 1 << 20
"""Elements of a source from which on a kind with independent channels is evaluated block by block: 8 MiB widened."""

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Attrs: TypeAlias = Mapping[str, Any]
Function: TypeAlias = Callable[..., Array | tuple[Array, ...]]
F = TypeVar("F", bound=Function)

_GROUPS = (
    "movement", "binary", "eltwise", "reduction", "quantization", "normalization", "interpolation", "pooling",
    "convolution", "detection", "recurrent", "tree", "dropout",
)  # fmt: skip
"""The modules with evaluations; those first that fold the nodes of models."""

_FUNCTIONS: dict[str, Function] = {}
_TRAITS: dict[str, frozenset[str]] = {}
"""Those that `reference` names, of kinds that have any."""


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """What the caller expects of one output: the type that it is rounded to, and its shape; None accepts any.

    Threads: immutable, safe.
    """

    dtype: DataType
    shape: tuple[int, ...] | None = None


def reference(kind: str, *traits: str) -> Callable[[F], F]:
    """Decorator that registers ``function(attrs, *inputs)`` as the meaning of `kind`.

    The function gets widened inputs (float64, int64, uint64 or bool) and float attributes that hold float32 values; it
    returns every output that the kind can have, as one array or a tuple, and rounds nothing. Traits: a ``"typed"`` one,
    whose meaning depends on the types of the outputs, finds the DataType of the first as attribute ``dtype``; a kind
    with a variable number of outputs finds their number as attribute ``noutputs``. The channels of a ``"channelwise"``
    one, those of attribute ``data_format``, do not depend on one another; its other arrays are vectors of channels. A
    ``"raw"`` one, which only moves elements, gets its inputs as they are.
    """

    def register(function: F) -> F:
        _FUNCTIONS[kind] = function
        _TRAITS[kind] = frozenset(traits)
        return function

    return register


def formulas(functions: Mapping[str, Function]) -> None:
    """Register ``function(attrs, *inputs)`` as the meaning of each kind, as `reference` does."""
    _FUNCTIONS.update(functions)


def unary(functions: Mapping[str, Callable[[Array], Array]]) -> None:
    """Register `function(src)` as the meaning of each kind."""
    formulas({kind: partial(_of_one, function) for kind, function in functions.items()})


def _of_one(function: Callable[[Array], Array], attrs: Attrs, src: Array) -> Array:
    return function(src)


def binary(functions: Mapping[str, Callable[[Array, Array], Array]]) -> None:
    """Register `function(src_0, src_1)` as the meaning of each kind."""
    formulas({kind: partial(_of_two, function) for kind, function in functions.items()})


def _of_two(function: Callable[[Array, Array], Array], attrs: Attrs, src_0: Array, src_1: Array) -> Array:
    return function(src_0, src_1)


def registered_kinds() -> frozenset[str]:
    """All kinds that compute; imports what is left of the groups."""
    for group in _GROUPS:
        import_module(f".{group}", __package__)
    return frozenset(_FUNCTIONS)


def _function_of(kind: str) -> Function | None:
    """What is registered for the kind, for which groups are imported until one has it."""
    for group in _GROUPS:
        if kind in _FUNCTIONS:
            break
        import_module(f".{group}", __package__)
    return _FUNCTIONS.get(kind)


def evaluate(kind: str, inputs: Sequence[Array], attrs: Attrs, outputs: Sequence[OutputSpec]) -> list[Array]:
    """Compute one operation in float64 (integers exactly) and round once to the output types.

    Parameters
    ----------
    kind : str
        An op kind of the schema, such as ``"MatMul"``.
    inputs : sequence of ndarray
        In port order; trailing optional ports may be absent. 4-bit types hold one element per array item.
    attrs : mapping of str to object
        Complete: defaults filled in. Only attributes without one (``auto_pad``, ``momentum``, ...) may be missing.
    outputs : sequence of OutputSpec
        The first ``len(outputs)`` outputs of the kind are returned.

    Returns
    -------
    results : list of ndarray
        New C-contiguous arrays, one for each entry of `outputs`. Rounding is to nearest even; floats saturate at
        integers and f8, a NaN becomes the integer 0, and integers wrap around.

    Raises
    ------
    UnsupportedError
        `kind` has no evaluation (``End``, ``Wildcard``, or unknown).
    InvalidOpError
        The number of inputs or outputs does not fit the kind, or a required attribute is missing.
    InvalidShapeError
        The inputs do not fit each other or the attributes, or a result has another shape than its `OutputSpec` says.

    Notes
    -----
    Inputs are not written. Threads: safe. The schema declares float attributes as f32, so each is rounded to float32
    before it is used, as a compiled kernel would hold it. NaN and infinity follow from evaluating the formulas in
    IEEE arithmetic; the modules say so where a choice was made.

    Examples
    --------
    >>> evaluate("ReLU", [np.array([-1.0, 2.0])], {}, [OutputSpec(DataType.F32)])
    [array([0., 2.], dtype=float32)]
    """
    function = _function_of(kind)
    if function is None:
        raise UnsupportedError(explain(f"op kind {kind!r} has no reference evaluation"), kind=kind)
    _check_arity(kind, function, inputs)
    traits = _TRAITS.get(kind, frozenset())
    if "typed" in traits:
        attrs = {**attrs, "dtype": outputs[0].dtype, "noutputs": len(outputs)}
    if "channelwise" in traits and inputs[0].size > BLOCK:
        return _evaluate_blocks(kind, inputs, attrs, outputs)
    return _evaluate_whole(kind, inputs, attrs, outputs)


def _evaluate_whole(kind: str, inputs: Sequence[Array], attrs: Attrs, outputs: Sequence[OutputSpec]) -> list[Array]:
    with np.errstate(all="ignore"):
        results = _call(kind, _FUNCTIONS[kind], attrs, inputs)
        if len(outputs) > len(results):
            accepted = f"at most {len(results)}"
            raise InvalidOpError(explain(f"too many outputs of {kind}", accepted=accepted, got=len(outputs)), kind=kind)
        return [_finish(kind, port, results[port], spec) for port, spec in enumerate(outputs)]


def _evaluate_blocks(kind: str, inputs: Sequence[Array], attrs: Attrs, outputs: Sequence[OutputSpec]) -> list[Array]:
    """`evaluate`, some channels at a time, so that what is widened stays small."""
    ndim = inputs[0].ndim
    axis = ndim - 1 if attrs["data_format"] == "NXC" else min(1, ndim - 1)
    count = inputs[0].shape[axis]
    step = max(1, count * BLOCK // inputs[0].size)
    parts: list[list[Array]] = []
    for begin in range(0, count, step):
        block = slice(begin, begin + step)
        along = (slice(None),) * axis + (block,)
        arrays = [array[along] if array.ndim == ndim else array[block] for array in inputs]
        parts.append(_evaluate_whole(kind, arrays, attrs, [OutputSpec(spec.dtype) for spec in outputs]))
    joined = [np.concatenate(pieces, axis if pieces[0].ndim == ndim else 0) for pieces in zip(*parts, strict=True)]
    for port, (result, spec) in enumerate(zip(joined, outputs, strict=True)):
        _check_shape(kind, port, result, spec)
    return joined


_signature = cache(inspect.signature)


def _check_arity(kind: str, function: Function, inputs: Sequence[Array]) -> None:
    """Refuse a call whose inputs `function` cannot bind."""
    try:
        _signature(function).bind({}, *inputs)
    except TypeError as error:
        accepted = _signature(function)
        raise InvalidOpError(
            explain(f"wrong number of inputs of {kind}", accepted=accepted, got=len(inputs)), kind=kind
        ) from error


def _call(kind: str, function: Function, attrs: Attrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
    """All outputs of `kind`, unrounded."""
    try:
        result = function(dict(_f32_attrs(attrs)), *(inputs if "raw" in _TRAITS.get(kind, ()) else map(widen, inputs)))
    except KeyError as error:
        raise InvalidOpError(explain(f"attribute {error} of {kind} is missing"), kind=kind) from error
    except InvalidArgumentError:
        raise
    except ValueError as error:
        shapes = [np.shape(array) for array in inputs]
        what = f"the inputs of {kind} do not fit each other or the attributes ({error})"
        raise InvalidShapeError(explain(what, got=shapes), kind=kind, shapes=shapes) from error
    return result if isinstance(result, tuple) else (result,)


def _f32_attrs(attrs: Attrs) -> Iterator[tuple[str, Any]]:
    """The attributes, each float rounded to the nearest float32 value."""
    for name, value in attrs.items():
        if isinstance(value, float):
            yield name, float(np.float32(value))
        elif isinstance(value, (list, tuple)) and any(isinstance(item, float) for item in value):
            yield name, [float(np.float32(item)) for item in value]
        else:
            yield name, value


def _finish(kind: str, port: int, result: Array, spec: OutputSpec) -> Array:
    """`result` rounded to the type of `spec`, unless it has that type; its shape checked."""
    result = np.asarray(result)
    rounded = np.array(result, order="C") if result.dtype == spec.dtype.numpy else round_to(result, spec.dtype)
    _check_shape(kind, port, rounded, spec)
    return rounded


def _check_shape(kind: str, port: int, result: Array, spec: OutputSpec) -> None:
    if spec.shape is not None and result.shape != tuple(spec.shape):
        what = f"output {port} of {kind} has another shape than declared"
        raise InvalidShapeError(explain(what, accepted=result.shape, got=spec.shape), kind=kind, port=port)
