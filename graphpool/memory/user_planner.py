"""A planner of the user's: called, checked, and named where it fails."""

from __future__ import annotations

from collections.abc import Mapping
from operator import index
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from graphpool.errors import BackendError, InvalidArgumentError, brief, explain

from .plan_check import check_plan
from .planner import MAX_TOTAL, MemoryPlan, lower_bound, plan

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    from .planner import BufferInfo

__all__ = ["Planner", "check_planner", "plan_with"]


class Planner(Protocol):
    """Finds offsets for buffers; a function is one, and so is any hashable object that can be called so.

    Its ``name``, else that of the function or class, stands in errors. Equal planners are taken to plan alike: programs
    that were planned by one are used for the other.
    """

    def __call__(self, buffers: Sequence[BufferInfo], alignment: int) -> Mapping[Hashable, int] | MemoryPlan:
        """The offset of each buffer by its id, all multiples of `alignment` and of the buffer's own. Unit: bytes.

        A `MemoryPlan`, such as `plan` gives, stands for its offsets.
        """
        ...


def check_planner(planner: Any) -> None:
    """Raise `InvalidArgumentError` unless this is a planner, or None."""
    is_hashable = getattr(type(planner), "__hash__", None) is not None
    if planner is not None and not (callable(planner) and is_hashable):
        accepted = "a hashable callable(buffers, alignment), or None"
        raise InvalidArgumentError(explain("planner", accepted=accepted, got=brief(planner)))


def plan_with(planner: Planner | None, buffers: Iterable[BufferInfo], alignment: int = 64) -> MemoryPlan:
    """The plan of a user's planner, checked, or that of `plan` for None.

    Raises
    ------
    BackendError
        The planner failed, or its plan does not hold; the message names it.

    Notes
    -----
    Cost: that of the planner, and of `check_plan`.
    """
    items = list(buffers)
    if planner is None:
        return plan(items, alignment)
    bound = lower_bound(items, alignment)
    name = str(getattr(planner, "name", None) or getattr(planner, "__qualname__", type(planner).__qualname__))
    try:
        given = planner(tuple(items), alignment)
    except Exception as error:
        raise BackendError(explain(f"planner {name} failed", got=repr(error)), backend=name) from error
    offsets = _offsets_of(given, items, name)
    nbytes = max((offsets[item.id] + item.size for item in items), default=0)
    made = MemoryPlan(offsets, nbytes, bound, nbytes <= bound, name, 0.0)
    try:
        check_plan(made, items, alignment)
    except InvalidArgumentError as error:
        what = f"planner {name} made a plan that does not hold: {error}"
        raise BackendError(
            explain(what, hint="graphpool.memory.check_plan says so of any plan"), backend=name
        ) from error
    return made


def _offsets_of(given: Any, items: Sequence[BufferInfo], name: str) -> dict[Hashable, int]:
    """What a planner gave, as one offset for each buffer; BackendError where it is none."""

    def refuse(what: str, accepted: object, got: object) -> NoReturn:
        raise BackendError(explain(f"planner {name} gave {what}", accepted=accepted, got=brief(got)), backend=name)

    offsets = given.offsets if isinstance(given, MemoryPlan) else given
    if not isinstance(offsets, Mapping):
        refuse("no offsets", "a mapping of each buffer's id to its offset in bytes, or a MemoryPlan", given)
    ids = {item.id for item in items}
    missing, unknown = [key for key in ids if key not in offsets], [key for key in offsets if key not in ids]
    if missing:
        refuse(f"no offset for {len(missing)} of {len(ids)} buffers", "one for each", f"none for {missing[0]!r}")
    if unknown:
        refuse(f"offsets for {len(unknown)} buffers that it was not asked for", f"{len(ids)} ids", unknown[0])
    found = {}
    for key in ids:
        try:
            found[key] = index(offsets[key])
        except TypeError:
            refuse(f"no integer for buffer {key!r}", "an offset in bytes", offsets[key])
        if not 0 <= found[key] <= MAX_TOTAL:
            refuse(f"an impossible offset for buffer {key!r}", f"0 .. {MAX_TOTAL} bytes", found[key])
    return found
