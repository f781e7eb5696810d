"""A program of launches in one graph of the driver, on addresses that stay as they are."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from graphpool.memory.cuda.device import check, driver
from graphpool.schedule.replay import fork, join, replay

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from graphpool.memory.cuda import CudaDevice

    from .launches import LaunchList

__all__ = ["GpuGraph"]


class _Captured:
    """Streams that are captured, and events between them, until `close`; see `graphpool.schedule.replay.Streams`."""

    def __init__(self, device: CudaDevice, program: LaunchList, bases: Sequence[int], ids: Sequence[int]) -> None:
        self._device, self._program, self._bases = device, program, bases
        self._events: list[int] = []
        self.handles: dict[int, int] = {}
        for number in ids:
            self.handles[number] = device.new_stream()

    def run(self, stream: int, nodes: tuple[int, ...]) -> None:
        """Add launches."""
        for node in nodes:
            self._program.launch(node, self.handles[stream], self._bases)

    def record(self, stream: int) -> int:
        """A new event."""
        self._events.append(self._device.new_event())
        self._device.record(self._events[-1], self.handles[stream])
        return self._events[-1]

    def wait(self, stream: int, event: int) -> None:
        """Let a stream wait."""
        self._device.wait(self.handles[stream], event)

    def close(self) -> None:
        """Destroy streams and events."""
        for event in self._events:
            self._device.destroy_event(event)
        for handle in self.handles.values():
            self._device.destroy_stream(handle)


class GpuGraph:
    """Launches captured as a schedule has them, branches side by side, to be replayed as one.

    Parameters
    ----------
    device : CudaDevice
    program : LaunchList
    bases : sequence of int
        As of `LaunchList.run`; the memory must be there for every replay.

    Notes
    -----
    Ownership: none of the memory. Threads: one replay at a time, since all write the same addresses.
    """

    def __init__(self, device: CudaDevice, program: LaunchList, bases: Sequence[int]) -> None:
        cuda = driver()
        self._device = device
        ids = (0,) if program.schedule is None else program.schedule.stream_ids
        streams = _Captured(device, program, bases, ids)
        try:
            with device.current():
                graph = self._capture(streams, program, ids)
                try:
                    self._executable = check(cuda.cuGraphInstantiate(graph, 0), "cuGraphInstantiate")
                finally:
                    check(cuda.cuGraphDestroy(graph), "cuGraphDestroy")
        finally:
            streams.close()

    def _capture(self, streams: _Captured, program: LaunchList, ids: tuple[int, ...]) -> Any:
        """The graph; other threads go on as they like meanwhile."""
        cuda, origin = driver(), streams.handles[ids[0]]
        mode = cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        check(cuda.cuStreamBeginCapture(origin, mode), "cuStreamBeginCapture")
        try:
            fork(streams, ids)
            if program.schedule is None:
                streams.run(0, tuple(range(len(program))))
            else:
                replay(program.schedule, streams)
            join(streams, ids)
        except BaseException:
            cuda.cuStreamEndCapture(origin)
            raise
        return check(cuda.cuStreamEndCapture(origin), "cuStreamEndCapture")

    def launch(self, stream: int) -> None:
        """Give a replay to a stream."""
        with self._device.current():
            check(driver().cuGraphLaunch(self._executable, stream), "cuGraphLaunch")

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if hasattr(self, "_executable") and not is_finalizing():
            with self._device.current():
                check(driver().cuGraphExecDestroy(self._executable), "cuGraphExecDestroy")
