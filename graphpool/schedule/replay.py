"""The calls of a schedule, given to streams that run them: what GPUs do, and whoever else has streams and events."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from graphpool.errors import ScheduleError, check_instance, explain

from .instructions import CURRENT_STREAM, AddEvent, Run, SetStream, StreamBarrier, WaitEvent
from .schedule import Schedule

__all__ = ["Streams", "replay"]

Event = TypeVar("Event")


class Streams(Protocol, Generic[Event]):
    """Streams by number, each of which does what it is given in order; none waits for another by itself."""

    def run(self, stream: int, nodes: tuple[int, ...]) -> None:
        """Give a call to a stream.

        Parameters
        ----------
        stream : int
            Its number.
        nodes : tuple of int
            What the call computes.
        """
        ...

    def record(self, stream: int) -> Event:
        """Mark a point behind all that a stream was given so far.

        Parameters
        ----------
        stream : int
            Its number.

        Returns
        -------
        event : object
            For `wait`.
        """
        ...

    def wait(self, stream: int, event: Event) -> None:
        """Let what a stream is given from now on start behind an event.

        Parameters
        ----------
        stream : int
            Its number.
        event : object
            Of `record`.
        """
        ...


def replay(schedule: Schedule, streams: Streams[Event]) -> None:
    """Give all calls of a schedule to streams, in issue order, with the events and waits between them.

    Parameters
    ----------
    schedule : Schedule
        One that `verify` accepts.
    streams : Streams
        Has the numbers of ``schedule.stream_ids`` at least.

    Raises
    ------
    ScheduleError
        A wait for an event that was not added before.
    InvalidArgumentError
        What is given is no schedule.

    Notes
    -----
    A barrier is a wait of the first stream for all others, and of these for it. Threads: those of `streams`. Cost: one
    call of `streams` an instruction.
    """
    ids = check_instance("schedule", schedule, Schedule).stream_ids or (0,)
    current = 0
    events: dict[int, Event] = {}
    for step in schedule.instructions:
        if isinstance(step, SetStream):
            current = step.stream_id
        elif isinstance(step, Run):
            streams.run(current, step.nodes)
        elif isinstance(step, StreamBarrier):
            join(streams, ids)
            fork(streams, ids)
        elif isinstance(step, AddEvent | WaitEvent):
            stream = current if step.stream_id == CURRENT_STREAM else step.stream_id
            if isinstance(step, AddEvent):
                events[step.event_id] = streams.record(stream)
            else:
                streams.wait(stream, _known(events, step.event_id))


def _known(events: dict[int, Event], event_id: int) -> Event:
    if event_id not in events:
        raise ScheduleError(explain(f"event {event_id} is waited for before it is added"), event_id=event_id)
    return events[event_id]


def fork(streams: Streams[Event], ids: tuple[int, ...]) -> None:
    """Let all streams wait for the first one."""
    if len(ids) > 1:
        event = streams.record(ids[0])
        for stream in ids[1:]:
            streams.wait(stream, event)


def join(streams: Streams[Event], ids: tuple[int, ...]) -> None:
    """Let the first stream wait for all others."""
    for stream in ids[1:]:
        streams.wait(ids[0], streams.record(stream))
