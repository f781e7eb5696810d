"""What arguments of a fleet may be, checked before anything runs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..errors import InvalidArgumentError, brief, explain

__all__ = ["check_kind", "check_kinds", "check_rate", "check_seconds", "check_share"]


def check_kind(what: str, value: Any, kind: type) -> None:
    """Raise unless the value is of the class."""
    if not isinstance(value, kind):
        raise InvalidArgumentError(explain(what, accepted=f"a {kind.__name__}", got=brief(value)))


def check_kinds(what: str, values: Any, kind: type) -> None:
    """Raise unless the values are a sequence of the class, of one at least."""
    is_right = isinstance(values, list | tuple) and values and all(isinstance(value, kind) for value in values)
    if not is_right:
        accepted = f"a list of at least one {kind.__name__}"
        raise InvalidArgumentError(explain(what, accepted=accepted, got=brief(values)))


def check_rate(what: str, value: Any) -> None:
    """Raise unless it is a rate."""
    if not _is_number(value) or not 0 < value < math.inf:
        raise InvalidArgumentError(explain(what, accepted="a number a second, above 0", got=brief(value)))


def check_share(what: str, value: Any, *, can_be_zero: bool = False) -> None:
    """Raise unless it is up to 1."""
    if not _is_number(value) or not 0 <= value <= 1 or not (value or can_be_zero):
        accepted = "from 0 to 1" if can_be_zero else "above 0, up to 1"
        raise InvalidArgumentError(explain(what, accepted=accepted, got=brief(value)))


def check_seconds(what: str, value: Any, *, can_be_zero: bool = True, can_be_several: bool = False) -> None:
    """Raise unless it is a time, or several."""
    try:
        found: np.ndarray[Any, Any] = np.asarray(value, np.float64)
    except (TypeError, ValueError):
        found = np.empty(0)
    least = 0.0 if can_be_zero else math.ulp(0.0)
    if not found.size or found.ndim > can_be_several or not np.isfinite(found).all() or (found < least).any():
        accepted = f"seconds, finite and {'at least' if can_be_zero else 'above'} 0"
        raise InvalidArgumentError(explain(what, accepted=accepted, got=brief(value)))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)
