"""An independent judge of memory plans: quadratic, obvious, and sharing no code with what finds them."""

from __future__ import annotations

from collections.abc import Iterable

from graphpool.errors import InvalidArgumentError, brief, explain

from .planner import BufferInfo, MemoryPlan, check_buffers


def check_plan(plan: MemoryPlan, buffers: Iterable[BufferInfo], alignment: int = 1) -> None:
    """Verify that no two buffers share a byte at a time when both are used.

    Parameters
    ----------
    plan : MemoryPlan
    buffers : iterable of BufferInfo
        What was planned.
    alignment : int, default=1
        That every offset must have, besides each buffer's own. Unit: bytes.

    Raises
    ------
    InvalidArgumentError
        The plan is wrong, and the message names the buffers; or an argument is of another type.

    Notes
    -----
    Threads: safe. Cost: O(n * n) pairs, in Python.
    """
    items = list(buffers) if isinstance(plan, MemoryPlan) and isinstance(buffers, Iterable) else [None]
    if not all(isinstance(item, BufferInfo) for item in items):
        got = f"{brief(plan)} and {brief(buffers)}"
        raise InvalidArgumentError(explain("check_plan", accepted="a MemoryPlan, then BufferInfos", got=got))
    if not isinstance(alignment, int) or alignment < 1:
        raise InvalidArgumentError(explain("alignment", accepted="an int from 1", got=brief(alignment)))
    check_buffers(items)
    if {item.id for item in items} != set(plan.offsets):
        raise InvalidArgumentError(explain("the plan is for other buffers"))
    for item in items:
        _check_place(item, plan, alignment)
    for i, a in enumerate(items):
        for b in items[:i]:
            if _share_bytes(a, b, plan) and _meet(a, b):
                raise InvalidArgumentError(explain(f"buffers {a.id!r} and {b.id!r} share bytes while both live"))


def _check_place(item: BufferInfo, plan: MemoryPlan, alignment: int) -> None:
    offset = plan.offsets[item.id]
    if offset < 0 or offset + item.size > plan.nbytes:
        raise InvalidArgumentError(explain(f"buffer {item.id!r} leaves the arena", got=offset))
    if offset % alignment or offset % item.alignment:
        raise InvalidArgumentError(explain(f"buffer {item.id!r} is not aligned", got=offset))
    if item.offset is not None and offset != item.offset:
        raise InvalidArgumentError(explain(f"buffer {item.id!r} was moved", accepted=item.offset, got=offset))


def _share_bytes(a: BufferInfo, b: BufferInfo, plan: MemoryPlan) -> bool:
    start, end = plan.offsets[a.id], plan.offsets[a.id] + a.size
    return start < plan.offsets[b.id] + b.size and plan.offsets[b.id] < end and a.size > 0 and b.size > 0


def _meet(a: BufferInfo, b: BufferInfo) -> bool:
    """Whether some instant lies in both lifetimes and in no gap of either: the latest start of anything decides."""
    starts = [a.lower, b.lower, *(end for _, end in (*a.gaps, *b.gaps))]
    return any(_is_active(a, instant) and _is_active(b, instant) for instant in starts)


def _is_active(item: BufferInfo, instant: int) -> bool:
    return item.lower <= instant < item.upper and not any(lower <= instant < upper for lower, upper in item.gaps)
