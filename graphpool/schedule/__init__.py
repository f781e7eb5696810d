"""Schedules: place the operations of a graph on streams, prove it right, predict its time, say what may share memory.

    graph.py           DependencyGraph: nodes, edges, costs; pruning, transitive reduction
    policies/          graph -> Schedule: sequential wavefront asap nimble list ios auto
      emit.py          order and streams -> instructions, without redundant waits      (used by the policies)
    instructions.py    SetStream Run AddEvent WaitEvent StreamBarrier
    schedule.py        Schedule: a graph with its instructions; plot and trace in render.py
    control.py         what instructions order, read from outside                       (used by all below)
      verifier.py      verify: is every data edge ordered?
      simulation.py    simulate: when does what run?   report.py: predicted beside measured
      lists.py        the static list of each stream, for threads
      ordering.py      happens-before   sharing.py: conflicts of buffers, what a memory planner needs
      capture.py       replay: the same schedule on a device's streams, or captured as a graph
    latency.py         measured latencies by signature, on disk, for ios

Everything is a pure function over numbers: no streams, threads or memory are touched here.
"""

from .capture import StreamDriver, replay
from .graph import DependencyGraph
from .instructions import AddEvent, Instruction, Run, SetStream, StreamBarrier, WaitEvent
from .latency import LatencyCache
from .lists import ListedCall, stream_lists
from .ordering import HappensBefore, happens_before
from .policies import asap, auto, fold, ios, list_schedule, nimble, sequential, wavefront
from .report import explain
from .schedule import Schedule
from .sharing import BufferUses, Conflicts, PlannerInput, conflicts, planner_input, stream_scratch
from .simulation import Simulation, roofline_cost, simulate
from .verifier import verify

__all__ = [
    "AddEvent",
    "BufferUses",
    "Conflicts",
    "DependencyGraph",
    "HappensBefore",
    "Instruction",
    "LatencyCache",
    "ListedCall",
    "PlannerInput",
    "Run",
    "Schedule",
    "SetStream",
    "Simulation",
    "StreamBarrier",
    "StreamDriver",
    "WaitEvent",
    "asap",
    "auto",
    "conflicts",
    "explain",
    "fold",
    "happens_before",
    "ios",
    "list_schedule",
    "nimble",
    "planner_input",
    "replay",
    "roofline_cost",
    "sequential",
    "simulate",
    "stream_lists",
    "stream_scratch",
    "verify",
    "wavefront",
]
