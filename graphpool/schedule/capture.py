"""Plays a schedule on streams of a device and, if asked, captures it there as a graph."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from .control import control_tasks
from .instructions import CURRENT_STREAM, AddEvent, Run, SetStream, WaitEvent

if TYPE_CHECKING:
    from collections.abc import Callable

    from .instructions import Instruction
    from .schedule import Schedule

__all__ = ["StreamDriver", "replay"]


class StreamDriver(Protocol):
    """What `replay` needs from a device. Streams and events are handles that only the driver looks into.

    Notes
    -----
    Ownership: the driver owns its streams and events. Threads: `replay` calls from one thread.
    Source: the operations common to CUDA streams and to queues of threads.
    """

    def create_stream(self) -> Any:
        """A stream that runs apart from all others; on CUDA never the NULL stream, which capture does not allow."""
        ...

    def record_event(self, stream: Any) -> Any:
        """An event behind everything on `stream` so far."""
        ...

    def wait_event(self, stream: Any, event: Any) -> None:
        """Hold what comes later on `stream` until `event`."""
        ...

    def launch(self, stream: Any, work: Callable[[Any], None]) -> None:
        """Have ``work(stream)`` enqueue its kernels (CUDA: at once; threads: when its turn comes)."""
        ...

    def begin_capture(self, stream: Any) -> None:
        """Start to record, instead of run, what follows on `stream` and on streams that wait for it."""
        ...

    def end_capture(self, stream: Any) -> Any:
        """The recorded graph. Every stream that took part has been joined to `stream`."""
        ...


def replay(
    schedule: Schedule,
    driver: StreamDriver,
    launch: Callable[[tuple[int, ...], Any], None],
    *,
    capture: bool = False,
) -> Any:
    """Issue a schedule on streams, events and, if asked, into a captured graph.

    Parameters
    ----------
    schedule : Schedule
        Instructions to issue, in their order.
    driver : StreamDriver
        The device.
    launch : callable
        ``launch(nodes, stream)`` enqueues the call that computes `nodes` on the driver's `stream`.
    capture : bool, default=False
        Whether to capture instead of run.

    Returns
    -------
    result : object
        The driver's graph when capturing, else the stream on which everything has ended when it gets there.

    Raises
    ------
    ScheduleError
        The instructions are no program; nothing was issued.

    Notes
    -----
    Ownership: the driver's. Threads: one call at a time on a driver. Cost: O(instructions + barriers * streams**2).
    The stream of the first call is the origin: the others fork from it and are joined to it at the end, as capture
    demands, which orders no calls. A barrier becomes events between all pairs of streams, since a NULL-stream barrier
    cannot be captured. Source: rules of CUDA stream capture.
    """
    tasks = control_tasks(schedule)
    player = _Player(driver, launch, next((task.stream_id for task in tasks if task.nodes), 0))
    if capture:
        driver.begin_capture(player.origin)
    player.fork()
    for instruction in schedule.instructions:
        player.issue(instruction)
    player.join()
    return driver.end_capture(player.origin) if capture else player.origin


class _Player:
    def __init__(self, driver: StreamDriver, launch: Callable[[tuple[int, ...], Any], None], origin_id: int) -> None:
        self.driver, self.launch = driver, launch
        self.origin = driver.create_stream()
        self.streams = {origin_id: self.origin}
        self.opening: list[Any] = []  # what a stream waits for before its first work
        self.current = 0
        self.events: dict[int, Any] = {}

    def fork(self) -> None:
        self.opening = [self.driver.record_event(self.origin)]

    def issue(self, instruction: Instruction) -> None:
        if isinstance(instruction, SetStream):
            self.current = instruction.stream_id
        elif isinstance(instruction, Run):
            self.driver.launch(self._stream(self.current), partial(self.launch, instruction.nodes))
        elif isinstance(instruction, AddEvent):
            self.events[instruction.event_id] = self.driver.record_event(self._stream(instruction.stream_id))
        elif isinstance(instruction, WaitEvent):
            self.driver.wait_event(self._stream(instruction.stream_id), self.events[instruction.event_id])
        else:
            self._barrier()

    def join(self) -> None:
        for stream in self.streams.values():
            if stream is not self.origin:
                self.driver.wait_event(self.origin, self.driver.record_event(stream))

    def _stream(self, stream_id: int) -> Any:
        if stream_id == CURRENT_STREAM:
            stream_id = self.current
        if stream_id not in self.streams:
            stream = self.streams[stream_id] = self.driver.create_stream()
            for event in self.opening:
                self.driver.wait_event(stream, event)
        return self.streams[stream_id]

    def _barrier(self) -> None:
        streams = list(self.streams.values())
        self.opening = [self.driver.record_event(stream) for stream in streams]
        for stream in streams:
            for other, event in zip(streams, self.opening, strict=True):
                if other is not stream:
                    self.driver.wait_event(stream, event)
