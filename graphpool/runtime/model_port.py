"""The inputs and outputs of a model: what they are, and whether a value fits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from graphpool._dataclasses import NamedTuple, dataclass
from graphpool.errors import (
    InvalidArgumentError,
    InvalidDataTypeError,
    InvalidShapeError,
    OutOfMemoryError,
    brief,
    explain,
)
from graphpool.memory._check import check_request
from graphpool.typing import DataType

from ._tensor import check_unmasked

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from graphpool.graph import LogicalTensor

__all__ = [
    "IndexRange",
    "ModelPort",
    "as_input",
    "check_names",
    "check_output",
    "describe_port",
    "describe_shapes",
    "shape_options",
    "stand_in",
]


class IndexRange(NamedTuple):
    """What the elements of an input may be that a node takes as places along an axis.

    Attributes
    ----------
    low, high : int
        The least and the greatest one.
    node : str
        Names the node.
    """

    low: int
    high: int
    node: str


@dataclass(frozen=True)
class ModelPort:
    """An input or output of a model.

    Attributes
    ----------
    name : str
    dtype : DataType or None
        None for what is no tensor of numbers, or an output of a type that is inferred late; such values pass
        unchecked.
    shape : tuple of int, str or None; or None
        A string names a symbolic dimension, None an unknown one; None in place of the tuple an unknown rank.
    is_text : bool, default=False
        Whether it is a tensor of texts: an array of objects, each a str.
    indices : IndexRange, optional
        Of an input of whole numbers that are places in a table; others are refused before a run.
    """

    name: str
    dtype: DataType | None
    shape: tuple[int | str | None, ...] | None
    is_text: bool = False
    indices: IndexRange | None = None

    @property
    def is_static(self) -> bool:
        """Whether every dimension is a number."""
        return self.shape is not None and all(isinstance(dim, int) for dim in self.shape)


def describe_port(port: ModelPort) -> str:
    """Type and shape as messages write them: ``f32 [batch, 3]``."""
    dims = "[...]" if port.shape is None else "[" + ", ".join("?" if d is None else str(d) for d in port.shape) + "]"
    return f"{port.dtype or ('text' if port.is_text else 'object')} {dims}"


def shape_options(port: ModelPort) -> str:
    """How the command is told a shape of an input: by its named dimensions where these are all that is open."""
    if port.shape is None:
        return f"--shape {port.name}=2x3"
    named = [f"--shape {dim}=1" for dim in dict.fromkeys(port.shape) if isinstance(dim, str)]
    whole = "x".join(str(dim) if isinstance(dim, int) else "1" for dim in port.shape)
    return (
        f"{' '.join(named)} or --shape {port.name}={whole}"
        if None not in port.shape
        else f"--shape {port.name}={whole}"
    )


def describe_shapes(values: Mapping[str, Any]) -> str:
    """Shapes by name, or those of arrays, as lines of a log have them: ``x=2x3, n=``."""
    shapes = {name: getattr(value, "shape", value) for name, value in values.items()}
    sizes = {name: shape if isinstance(shape, tuple) else ("?",) for name, shape in shapes.items()}
    return ", ".join(f"{name}={'x'.join(map(str, dims))}" for name, dims in sizes.items())


def as_input(port: ModelPort, value: Any) -> Any:
    """The value as an array of the input's type; checked."""
    if port.is_text:
        return _as_text(port, value)
    if port.dtype is None:
        return value
    array = _as_array(port, value)
    if array.dtype != port.dtype.numpy:
        raise InvalidDataTypeError(
            explain(
                f"input {port.name!r}: data type",
                accepted=port.dtype.numpy,
                got=array.dtype,
                hint=f"convert with .astype({str(port.dtype.numpy)!r})",
            ),
            input_name=port.name,
        )
    check_shape(port, array)
    return array


def refuse_index(port: ModelPort, array: np.ndarray[Any, Any]) -> NoReturn:
    """Raise InvalidArgumentError for the first element outside the port's `indices`, of which there is one."""
    assert port.indices is not None
    low, high, node = port.indices
    place = tuple(map(int, np.argwhere((array < low) | (array > high))[0]))
    what = f"input {port.name!r}: element {place} lies outside the table that node {node!r} reads"
    raise InvalidArgumentError(explain(what, accepted=f"{low} to {high}", got=int(array[place])), input_name=port.name)


def _as_array(port: ModelPort, value: Any) -> np.ndarray[Any, Any]:
    if type(value) is np.ndarray:
        return value
    check_unmasked(value, f"input {port.name!r}")
    try:
        if isinstance(value, (np.ndarray, np.generic)):
            return np.asarray(value)
        if hasattr(value, "__dlpack__"):
            return np.from_dlpack(value)
        return np.asarray(memoryview(value))
    except (TypeError, BufferError, ValueError, RuntimeError) as error:
        accepted = f"an array of {describe_port(port)}, or an object with DLPack or the buffer protocol"
        raise InvalidArgumentError(
            explain(f"input {port.name!r}", accepted=accepted, got=type(value).__name__), input_name=port.name
        ) from error


def _as_text(port: ModelPort, value: Any) -> np.ndarray[Any, Any]:
    """An array of objects from one of NumPy's types of text, or from nested lists."""
    array = np.asarray(value, np.object_)
    if not all(issubclass(kind, str) for kind in set(map(type, array.reshape(-1).tolist()))):
        other = next(item for item in array.flat if not isinstance(item, str))
        accepted = f"an array of {describe_port(port)}, each a str"
        message = explain(f"input {port.name!r}", accepted=accepted, got=type(other).__name__)
        raise InvalidDataTypeError(message, input_name=port.name)
    check_shape(port, array)
    return array


def stand_in(port: ModelPort, given: Any, is_deciding: bool) -> Any:
    """An array without memory that stands for the input, of a given shape; or the value that is given instead.

    Raises
    ------
    InvalidArgumentError, InvalidShapeError
        Nothing is given where it is needed, or no array can have the shape, or it does not fit.
    """
    if isinstance(given, np.ndarray) or (port.dtype is None and not port.is_text):
        return as_input(port, given)
    if given is None and (not port.is_static or is_deciding):
        needed = "its content in shapes" if is_deciding else f"its shape in shapes, or {shape_options(port)}"
        raise InvalidArgumentError(
            explain(f"input {port.name!r} is not static ({describe_port(port)})", hint=f"give {needed}"),
            input_name=port.name,
        )
    try:
        shape: Any = port.shape if given is None else tuple(given)
    except TypeError as error:
        accepted = "a shape, or an array"
        message = explain(f"input {port.name!r}: shape", accepted=accepted, got=brief(given))
        raise InvalidShapeError(message, input_name=port.name) from error
    try:
        one = np.array("", np.object_) if port.dtype is None else np.zeros((), port.dtype.numpy)
        array = np.broadcast_to(one, shape)
        check_request(array.nbytes, 1)
    except (TypeError, ValueError, OutOfMemoryError) as error:  # no numbers, or negative ones, too many
        accepted = "a shape that an array can have"
        message = explain(f"input {port.name!r}: shape", accepted=accepted, got=list(shape))
        raise InvalidShapeError(message, input_name=port.name) from error
    check_shape(port, array)
    return array


def check_is_mapping(what: str, value: Any, keys: str) -> None:
    """Raise `InvalidArgumentError` for what is no mapping."""
    if not hasattr(value, "keys"):
        raise InvalidArgumentError(explain(what, accepted=f"a mapping with {keys}", got=type(value).__name__))


def check_names(inputs: Mapping[str, Any], names: Sequence[str]) -> None:
    """Raise `InvalidArgumentError` unless the mapping has these names and no other."""
    check_is_mapping("inputs", inputs, f"the keys {list(names)}")
    for name in names:
        if name not in inputs:
            raise InvalidArgumentError(
                explain(f"input {name!r} is missing", accepted=f"inputs {names}", got=f"{list(inputs)}"),
                input_name=name,
            )
    if len(inputs) != len(names):
        unknown = next(name for name in inputs if name not in names)
        raise InvalidArgumentError(
            explain(f"unknown input {unknown!r}", accepted=f"inputs {names}"), input_name=unknown
        )


def check_output(name: str, array: Any, described: LogicalTensor | None) -> None:
    """Raise unless a result of this description can be written straight into the array.

    Raises
    ------
    InvalidArgumentError
        It is no writable, dense array, or the result has no shape before it is computed.
    InvalidDataTypeError, InvalidShapeError
        It has another type or shape.
    """
    if described is None or not described.is_shape_known or described.dtype is DataType.UNDEF:
        raise InvalidArgumentError(explain(f"output {name!r} has no known shape", hint="leave it out"), output=name)
    if not isinstance(array, np.ndarray) or not array.flags.c_contiguous or not array.flags.writeable:
        accepted = "a writable, C-contiguous NumPy array"
        raise InvalidArgumentError(
            explain(f"output {name!r}", accepted=accepted, got=type(array).__name__), output=name
        )
    if array.dtype != described.dtype.numpy:
        raise InvalidDataTypeError(
            explain(f"output {name!r}: data type", accepted=described.dtype.numpy, got=array.dtype), output=name
        )
    if array.shape != described.shape:
        raise InvalidShapeError(
            explain(f"output {name!r}: shape", accepted=described.shape, got=array.shape), output=name
        )


def check_shape(port: ModelPort, array: np.ndarray[Any, Any]) -> None:
    """Raise unless the array has the port's rank and fixed dimensions."""
    wanted = port.shape
    if wanted is None or array.shape == wanted:
        return
    if len(wanted) != array.ndim:
        raise InvalidShapeError(
            explain(
                f"input {port.name!r}: rank {array.ndim}", accepted=describe_port(port), got=f"shape {array.shape}"
            ),
            input_name=port.name,
            dim=None,
        )
    for dim, (expected, got) in enumerate(zip(wanted, array.shape, strict=True)):
        if isinstance(expected, int) and expected != got:
            raise InvalidShapeError(
                explain(
                    f"input {port.name!r}: dimension {dim} is {got}",
                    accepted=f"{expected}, as in {describe_port(port)}",
                    got=f"shape {array.shape}",
                ),
                input_name=port.name,
                dim=dim,
            )
