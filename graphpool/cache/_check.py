"""Checks that every cache shares."""

from __future__ import annotations

from numbers import Integral

from ..errors import InvalidArgumentError, brief, explain
from ..typing import parse_nbytes


def check_entries(capacity: object) -> int:
    """A count of entries, or `InvalidArgumentError`."""
    if not isinstance(capacity, Integral) or isinstance(capacity, bool) or capacity < 0:
        raise InvalidArgumentError(
            explain("capacity", accepted="a count of entries >= 0; 0 disables the cache", got=brief(capacity)),
            capacity=capacity,
        )
    return int(capacity)


def check_limit(nbytes: int | str | None) -> int | None:
    """A bound in bytes, None for none, or `InvalidArgumentError`."""
    return None if nbytes is None else parse_nbytes(nbytes)


def check_nbytes(nbytes: object) -> int:
    """The size of one entry in bytes, or `InvalidArgumentError`."""
    if not isinstance(nbytes, int) or isinstance(nbytes, bool) or nbytes < 0:
        raise InvalidArgumentError(explain("nbytes", accepted="bytes as an int >= 0", got=brief(nbytes)), nbytes=nbytes)
    return nbytes
