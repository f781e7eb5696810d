"""Does a schedule respect its graph? Judged from the instructions alone, sharing no code with the policies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphpool.errors import ScheduleError, explain

from .control import control_tasks
from .ordering import happens_before

if TYPE_CHECKING:
    from .schedule import Schedule


def verify(schedule: Schedule) -> None:
    """Check that every edge of the graph is ordered by streams, events and barriers.

    Parameters
    ----------
    schedule : Schedule
        By any policy, or written by hand.

    Raises
    ------
    ScheduleError
        An edge that no path of stream order, events and barriers covers (fields ``edge``, ``streams``); a node that
        runs twice, never, or does not exist (``node``); a wait for an event that was not added before, or an event
        added twice (``event_id``); a bad id (``stream_id``). ``index`` is the instruction, where one is to blame.

    Notes
    -----
    Ownership: keeps nothing. Threads: safe. Cost: O(nodes * edges / 64), nodes**2 / 8 bytes.
    Source: RAF's schedule verifier (control graph and reachability).
    """
    precedes = happens_before(schedule)
    for producer, consumer in schedule.graph.edges:
        if not precedes(producer, consumer):
            names = schedule.graph.names
            stream_of = {node: task.stream_id for task in control_tasks(schedule) for node in task.nodes}
            streams = stream_of[producer], stream_of[consumer]
            message = explain(
                f"no path covers the edge {producer} -> {consumer} ({names[producer]} -> {names[consumer]})",
                accepted="a schedule that orders every edge",
                got=f"stream {streams[0]} -> stream {streams[1]}",
                hint="issue the producer first and, across streams, wait for an event behind it",
            )
            raise ScheduleError(message, edge=(producer, consumer), streams=streams)
