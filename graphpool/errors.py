"""Every exception and warning of graphpool, and the grammar of their messages.

A message says, in this order: what was wrong with which name; what is accepted; what was got; what to do.
``explain`` builds it. Each class also inherits the builtin that a caller would catch, carries the oneDNN status
that it maps to in ``status``, and keeps its machine-readable facts as attributes (also in ``fields``).
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

T = TypeVar("T")

__all__ = [
    "BackendError",
    "GraphpoolError",
    "GraphpoolWarning",
    "InvalidArgumentError",
    "InvalidDataTypeError",
    "InvalidGraphError",
    "InvalidOpError",
    "InvalidShapeError",
    "LimitError",
    "MemoryTimeoutError",
    "OutOfMemoryError",
    "PerformanceWarning",
    "ScheduleError",
    "StateError",
    "UnsupportedError",
    "brief",
    "check_choice",
    "check_count",
    "check_instance",
    "explain",
    "naming_the_extra",
]


def explain(what: str, *, accepted: object = None, got: object = None, hint: str | None = None) -> str:
    """Join the four parts of an error message; parts that are None are left out."""
    parts = [what]
    if accepted is not None:
        parts.append(f"accepted: {accepted}")
    if got is not None:
        parts.append(f"got: {_written(got, str)}")
    if hint is not None:
        parts.append(hint)
    return "; ".join(parts)


def brief(value: object) -> str:
    """What was got, for a message: no longer than a line, whatever it is."""
    text = _written(value, repr)
    return text if len(text) < 80 else f"{text[:76]} ..."


def _written(value: object, write: Callable[[object], str]) -> str:
    try:
        return write(value)
    except (ValueError, RecursionError):  # ints of thousands of digits, deep nesting
        return f"{type(value).__name__} too long to write"


def check_choice(what: str, value: object, choices: Iterable[str]) -> str:
    """The value itself when it is one of the choices; else InvalidArgumentError, which names `what`."""
    accepted = tuple(choices)
    if isinstance(value, str) and value in accepted:
        return value
    raise InvalidArgumentError(explain(what, accepted=", ".join(accepted), got=brief(value)))


def check_count(what: str, value: object, least: int = 1) -> int:
    """The value itself when it is an int of at least `least`, no bool; else InvalidArgumentError that names `what`."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= least:
        return value
    raise InvalidArgumentError(explain(what, accepted=f"an int of at least {least}", got=brief(value)))


def check_hashable(what: str, value: object) -> None:
    """Raise InvalidArgumentError, which names `what`, for what has no hash."""
    try:
        hash(value)
    except TypeError as error:
        raise InvalidArgumentError(explain(what, accepted="a hashable name", got=brief(value))) from error


def check_instance(what: str, value: object, kind: type[T]) -> T:
    """The value itself when it is an instance of `kind`; else InvalidArgumentError, which names `what`."""
    if isinstance(value, kind):
        return value
    raise InvalidArgumentError(explain(what, accepted=f"an instance of {kind.__name__}", got=brief(value)))


@contextmanager
def naming_the_extra(module: str) -> Iterator[None]:
    """Say what to install where the imports of the module that has the extra's name fail."""
    try:
        yield
    except ModuleNotFoundError as error:
        hint = f"install the extra graphpool[{module}]"
        raise UnsupportedError(explain(f"graphpool.{module} needs the package {error.name}", hint=hint)) from error


class GraphpoolError(Exception):
    """Base of every error that graphpool raises.

    Parameters
    ----------
    message : str
        Built with `explain`.
    **fields : object
        Machine-readable facts (``op_id``, ``tensor_id``, ``dim``, ...); each also becomes an attribute.
    """

    status: ClassVar[str] = "runtime_error"

    def __init__(self, message: str = "", **fields: Any) -> None:
        super().__init__(message)
        self.fields: dict[str, Any] = fields
        self.__dict__.update(fields)


class InvalidArgumentError(GraphpoolError, ValueError):
    """A value outside the accepted set."""

    status = "invalid_arguments"


class InvalidGraphError(InvalidArgumentError):
    """A graph that breaks a rule: duplicate ids, conflicting tensors, a cycle."""

    status = "invalid_graph"


class InvalidOpError(InvalidArgumentError):
    """An operation that does not satisfy its schema."""

    status = "invalid_graph_op"


class InvalidShapeError(InvalidArgumentError):
    """A shape, stride or size that does not fit."""

    status = "invalid_shape"


class InvalidDataTypeError(InvalidArgumentError):
    """A data type that is not accepted in this place."""

    status = "invalid_data_type"


class ScheduleError(InvalidArgumentError):
    """A schedule that leaves a dependency uncovered, or that names streams or events which do not exist."""

    status = "invalid_arguments"


class LimitError(InvalidArgumentError):
    """A file asks for more than a bound of `graphpool.Limits` allows; nothing was done.

    Attributes
    ----------
    limit : str
        Name of the bound.
    value, asked : int or float
        The bound, and what was asked for, as far as it was looked at.
    node : str or None
        Name of the node that asks.
    """


class UnsupportedError(GraphpoolError, NotImplementedError):
    """Legal, but no backend offers it."""

    status = "unimplemented"


class OutOfMemoryError(GraphpoolError, MemoryError):
    """A request that does not fit the limit.

    Attributes
    ----------
    requested, in_use, limit : int
        Unit: bytes.
    resource : str
        Who refused.
    smallest_limit : int or None
        The smallest limit, in bytes, under which the request would have been served; None when unknown.
    holdings : dict of str to int, optional
        What the bytes in use are, where a budget refused. Unit: bytes.
    """

    status = "out_of_memory"


class MemoryTimeoutError(OutOfMemoryError, TimeoutError):
    """What would fit on an idle engine found no memory in time, see ``on_pressure`` of `Engine`.

    Attributes are those of `OutOfMemoryError`, of the last trial; `smallest_limit` would do on an idle engine, and is
    None where there was no trial, since others were waiting before.
    """


class StateError(GraphpoolError, RuntimeError):
    """An object in the wrong state: closed, finalised, or of a foreign engine or stream."""

    status = "invalid_arguments"


class BackendError(GraphpoolError, RuntimeError):
    """A backend failed while it ran."""

    status = "runtime_error"


class GraphpoolWarning(UserWarning):
    """Base of graphpool's warnings."""


class PerformanceWarning(GraphpoolWarning):
    """Something works, but slower than it could."""
