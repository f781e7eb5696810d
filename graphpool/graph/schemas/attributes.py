"""One attribute of an op kind: its kind of value, and how a user's value becomes the stored one."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from graphpool._dataclasses import dataclass, field
from graphpool._sizes import is_variable
from graphpool.errors import InvalidOpError, brief, explain

if TYPE_CHECKING:
    from collections.abc import Callable

AttributeValue: TypeAlias = bool | int | float | str | tuple[int, ...] | tuple[float, ...]

_S64 = range(-(2**63), 2**63)
_ACCEPTED = {
    "bool": "a bool",
    "s64": "an integer of 64 bits",
    "f32": "a real number",
    "str": "a string",
    "s64[]": "a list, tuple or 1-D array of integers",
    "f32[]": "a list, tuple or 1-D array of real numbers",
}


def _bool(value: object) -> bool:
    if value is True or value is False:
        return value
    if isinstance(value, np.bool_) or (isinstance(value, np.ndarray) and value.shape == () and value.dtype == bool):
        return bool(value)
    raise TypeError


def _s64(value: Any) -> Any:
    if is_variable(value):
        return value
    if type(value) is not int:
        if isinstance(value, (bool, np.bool_)) or (isinstance(value, np.ndarray) and value.dtype == bool):
            raise TypeError
        value = operator.index(value)
    if value not in _S64:
        raise TypeError
    return int(value)


def _f32(value: Any) -> float:
    if type(value) is float:
        return value
    if isinstance(value, np.ndarray) and value.shape == ():
        value = value[()]
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError
    return float(value)


def _str(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return str(value)


def _items(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.ndim == 1:
        return value.tolist()
    if isinstance(value, (list, tuple, range)):
        return value
    raise TypeError


def _is_vector(value: Any, kind: str) -> bool:
    """Whether all numbers are of the wanted kind without a look at each: scales of many channels are long."""
    return isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind == kind


def _s64_list(value: Any) -> tuple[int, ...]:
    if _is_vector(value, "i"):
        return tuple(value.tolist())
    return tuple([_s64(item) for item in _items(value)])


def _f32_list(value: Any) -> tuple[float, ...]:
    if _is_vector(value, "f"):
        return tuple(value.astype(np.float64, copy=False).tolist())
    return tuple([_f32(item) for item in _items(value)])


_CONVERTERS: dict[str, Callable[[Any], AttributeValue]] = {
    "bool": _bool, "s64": _s64, "f32": _f32, "str": _str, "s64[]": _s64_list, "f32[]": _f32_list,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Attribute:
    """An attribute that an op kind has. Immutable; usable from any thread.

    `kind` is f32, f32[], s64, s64[], bool or str, stored as float, tuple of float, int, tuple of int, bool, str.
    `default` is filled in when the user leaves it out; None leaves the attribute out. `choices` are the accepted
    values; empty when all are. `onnx_input` is the number of the input that it is in ONNX's op of that name.
    """

    name: str
    kind: str
    required: bool = False
    default: AttributeValue | None = None
    choices: tuple[AttributeValue, ...] = ()
    onnx_input: int | None = None
    _convert: Callable[[Any], AttributeValue] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_convert", _CONVERTERS[self.kind])

    @property
    def accepted(self) -> str:
        """What the attribute accepts, in words."""
        return " | ".join(str(choice) for choice in self.choices) or _ACCEPTED[self.kind]

    def convert(self, value: object, op_label: str, op_kind: str) -> AttributeValue:
        """The stored form of a user's value; InvalidOpError for a wrong kind, out of range, or none of the choices.

        NumPy scalars and arrays are accepted, an integer for a real number, a tuple for a list; a bool is no integer.
        """
        try:
            stored = self._convert(value)
        except (TypeError, OverflowError):
            got = f"{brief(value)} ({type(value).__name__})"
        else:
            if not self.choices or stored in self.choices:
                return stored
            got = brief(value)
        what = f'{op_label}: attribute "{self.name}" has a wrong value'
        raise InvalidOpError(explain(what, accepted=self.accepted, got=got), op_kind=op_kind, attribute=self.name)
