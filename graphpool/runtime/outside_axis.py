"""What a run raises when it has met an index outside the axis that it counts."""

from __future__ import annotations

from graphpool.errors import InvalidArgumentError, explain

__all__ = ["outside_axis"]


def outside_axis(name: str, kind: str) -> InvalidArgumentError:
    """The error of an op, by its name, which may be empty, and its kind."""
    what = f"op {name!r} ({kind}): an index, or a length, that was computed or given"
    accepted = "-n to n - 1 for an axis of n elements, lengths of 0 to n"
    return InvalidArgumentError(explain(what, got="one outside its axis", accepted=accepted), node=name or None)
