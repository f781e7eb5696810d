"""The five instructions of a schedule, as plain data that nobody changes.

Names and arguments follow RAF's graph-level operators; `Run.merged` is the operator merge of IOS.
"""

from __future__ import annotations

from typing import TypeAlias

from graphpool._dataclasses import dataclass

CURRENT_STREAM = -1
"""As the stream of an event instruction: the one that `SetStream` chose last."""


@dataclass(frozen=True, slots=True)
class SetStream:
    """Issue what follows on stream `stream_id` of device `device_id`. A program starts on stream 0."""

    device_id: int
    stream_id: int

    def __str__(self) -> str:
        return f"set_stream({self.device_id}, {self.stream_id})"


@dataclass(frozen=True, slots=True)
class Run:
    """Run `node` on the current stream; the nodes in `merged` are computed by the same call."""

    node: int
    merged: tuple[int, ...] = ()

    @property
    def nodes(self) -> tuple[int, ...]:
        """Every node that the call computes."""
        return (self.node, *self.merged)

    def __str__(self) -> str:
        return f"run({', '.join(map(str, self.nodes))})"


@dataclass(frozen=True, slots=True)
class _EventInstruction:
    event_id: int
    stream_id: int = CURRENT_STREAM


class AddEvent(_EventInstruction):
    """Record event `event_id` behind everything issued on a stream so far (default: the current one)."""

    __slots__ = ()

    def __str__(self) -> str:
        return f"add_event({self.event_id})"


class WaitEvent(_EventInstruction):
    """Hold a stream (default: the current one) until event `event_id` has happened; the issuer is not held."""

    __slots__ = ()

    def __str__(self) -> str:
        return f"wait_event({self.event_id})"


@dataclass(frozen=True, slots=True)
class StreamBarrier:
    """Everything issued before, on any stream, ends before anything issued later starts."""

    def __str__(self) -> str:
        return "stream_barrier()"


Instruction: TypeAlias = SetStream | Run | AddEvent | WaitEvent | StreamBarrier
