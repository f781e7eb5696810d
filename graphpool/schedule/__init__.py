"""Schedules: place the operations of a graph on streams, prove it right, predict its time, say what may share memory.

    graph.py           DependencyGraph: nodes, edges, costs; transitive reduction
    policies/          graph -> Schedule: sequential wavefront asap nimble list ios auto
      emit.py          order and streams -> instructions, without redundant waits      (used by the policies)
    instructions.py    SetStream Run AddEvent WaitEvent StreamBarrier
    schedule.py        Schedule: a graph with its instructions, and its plot
    replay.py          gives the calls of a schedule to streams that run them
    control.py         what instructions order, read from outside: tasks, and lists for threads (used by all below)
      simulation.py    simulate: when does what run?   report.py: predicted beside measured
      ordering.py      happens-before; verify: is every edge ordered? conflicts: which buffers must lie apart
    latency.py         measured latencies by signature, on disk, for ios

Everything is a pure function over numbers: no streams, threads or memory are touched here.
"""

from typing import TYPE_CHECKING

from .._lazy import lazy_names
from .replay import Streams, replay

if TYPE_CHECKING:
    from .graph import DependencyGraph
    from .instructions import AddEvent, Run, SetStream, StreamBarrier, WaitEvent
    from .ordering import verify
    from .policies import asap, auto, fold, ios, list_schedule, nimble, sequential, wavefront
    from .schedule import Schedule
    from .simulation import Simulation, simulate

_HOMES = {
    "DependencyGraph": "graph",
    **dict.fromkeys(["AddEvent", "Run", "SetStream", "StreamBarrier", "WaitEvent"], "instructions"),
    "verify": "ordering",
    **dict.fromkeys(["asap", "auto", "fold", "ios", "list_schedule", "nimble", "sequential", "wavefront"], "policies"),
    "Schedule": "schedule",
    **dict.fromkeys(["Simulation", "simulate"], "simulation"),
}
__getattr__, __dir__ = lazy_names(__name__, _HOMES)

__all__ = [
    "AddEvent",
    "DependencyGraph",
    "Run",
    "Schedule",
    "SetStream",
    "Simulation",
    "StreamBarrier",
    "Streams",
    "WaitEvent",
    "asap",
    "auto",
    "fold",
    "ios",
    "list_schedule",
    "nimble",
    "replay",
    "sequential",
    "simulate",
    "verify",
    "wavefront",
]
