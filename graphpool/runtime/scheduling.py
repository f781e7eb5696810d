"""Which schedule a program gets: the user's choice, the machine's threads, and what its steps are known to cost."""

from __future__ import annotations

from collections import Counter
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from graphpool._dataclasses import dataclass, replace

from .. import config
from ..errors import InvalidArgumentError, brief, explain
from ._streams import MAX_STREAMS
from .costs import program_key, stage_latencies, step_costs
from .machine import EVENT_COST_S, MEMORY_BANDWIDTH

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..schedule import DependencyGraph, Schedule

__all__ = [
    "POLICIES",
    "SEQUENTIAL",
    "ScheduleOptions",
    "chosen_policy",
    "make_schedule",
    "parse_options",
    "shared_memory",
]

POLICIES = config.STREAM_POLICIES

MIN_GAIN = 0.05
"""Share of the sequential time that `auto` must be predicted to gain: costs are known no better than that."""

MIN_MEASURED_GAIN = 0.02
"""The same where whole programs were measured, see `program_key`."""

MAX_STATES = 2048
"""Bound of a block in the search of `ios` at compilation: about half a second for the worst of blocks."""

MOST_SIMULATED, MOST_ABREAST = 2048, 64
"""Steps of a program that `auto` places on streams, and how many of them, beyond 256 in all, may be equally far from
the beginning or the end: what it asks of policies and of the memory plan grows with the product."""


@cache
def _by_name() -> dict[str, Callable[[DependencyGraph, int], Schedule]]:
    """Policies that look at nodes one by one; `ios` needs to know what stages take too.

    They are imported where something is scheduled: programs that were stored have their schedules.
    """
    from ..schedule import asap, fold, list_schedule, nimble, sequential, wavefront

    return {
        "sequential": lambda graph, streams: sequential(graph),
        "wavefront": lambda graph, streams: fold(wavefront(graph), streams),
        "asap": lambda graph, streams: fold(asap(graph, graph.costs), streams),
        "nimble": lambda graph, streams: fold(nimble(graph), streams),
        "list": list_schedule,
    }


@dataclass(frozen=True, slots=True)
class ScheduleOptions:
    """What the user asked for: one of `POLICIES`, and the most streams."""

    policy: str = "sequential"
    streams: int = 1

    def streams_on(self, threads: int) -> int:
        """Most streams among which so many threads are divided."""
        return min(self.streams, threads, MAX_STREAMS)

    def may_be_parallel(self, threads: int) -> bool:
        """Whether so many threads can be divided among several streams."""
        return self.policy != "sequential" and self.streams_on(threads) > 1

    @property
    def key(self) -> tuple[object, ...]:
        """What compiled programs depend on: measured costs too, where they decide.

        On one stream that is what calls for several convolutions were measured to take.
        """
        version = stage_latencies().version
        if self.policy == "sequential" or self.streams == 1:
            return ("merges", version) if version else ()
        return self.policy, self.streams, step_costs().version, version


def parse_options(schedule: str | None, streams: int | None) -> ScheduleOptions:
    """Options as given, or from ``GRAPHPOOL_STREAM_SCHEDULE``, or ``auto`` on two streams.

    Raises
    ------
    InvalidArgumentError
        No such policy (field ``schedule``), or no count (field ``streams``).
    """
    default_policy, default_streams = config.get("stream_schedule")
    policy = default_policy if schedule is None else schedule
    count = default_streams if streams is None else streams
    if policy not in POLICIES:
        message = explain("schedule", accepted=", ".join(POLICIES), got=brief(schedule))
        raise InvalidArgumentError(message, schedule=schedule)
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        message = explain("streams", accepted="an int of at least 1", got=brief(streams))
        raise InvalidArgumentError(message, streams=streams)
    return ScheduleOptions(policy, count)


SEQUENTIAL = ScheduleOptions()


def make_schedule(
    graph: DependencyGraph,
    options: ScheduleOptions,
    threads: int,
    speedups: Sequence[float],
    signature: str = "",
    *,
    signatures: Sequence[str] = (),
    traffic: Sequence[float] = (),
    merge: Callable[[tuple[int, ...]], float | None] | None = None,
) -> Schedule:
    """A schedule of a program's steps, on at most `options.streams` and at most `threads` streams.

    Costs in the graph are seconds on one thread, `speedups` how many times faster each step is on all `threads`, of
    which each stream has its equal part; idle ones help the others. `signature` is the program's, for `program_key`;
    those of the steps are for the stages that `ios` weighs, see `StageModel`. `traffic` has the bytes that each step
    moves to and from main memory, which streams share; `merge` what one call for several steps takes, for `ios`.

    With ``auto`` it is on one stream unless the simulation promises a gain, or measurements show one.
    """
    from ..schedule import auto, ios, sequential
    from ..schedule.simulation import least_makespan
    from .stage_model import StageModel

    streams = options.streams_on(threads)
    if streams == 1 or len(graph) < 2 or (options.policy == "auto" and _is_large(graph)):
        return sequential(graph)
    latency = StageModel(graph.costs, speedups, signatures, threads, traffic if any(traffic) else ())
    policies = _by_name() | {"ios": partial(ios, latency=latency, merge=merge, max_states=MAX_STATES)}
    if options.policy != "auto":
        return policies[options.policy](graph, streams)
    measured = _measured(signature, streams, threads)
    if measured:
        choice = _fastest(measured)
        schedule = policies[choice](graph, streams)
        return replace(schedule, policy=f"auto:{choice}", details={**schedule.details, "candidates": measured})
    shared = [cost / max(speedup, 1) for cost, speedup in zip(graph.costs, speedups, strict=True)]
    if least_makespan(graph, streams, threads, speedups) >= (1 - MIN_GAIN) * sum(shared):
        return sequential(graph)
    counts = {streams, *(k for k in range(2, streams) if threads % k == 0)}
    machine = {"event_cost": EVENT_COST_S, "threads": threads, "speedups": speedups, **shared_memory(traffic)}
    candidates = [auto(graph, k, min_gain=MIN_GAIN, **machine) for k in sorted(counts)]
    return min(candidates, key=_makespan)


def _is_large(graph: DependencyGraph) -> bool:
    """Whether to simulate the policies would take seconds."""
    if len(graph) <= 256 or len(graph) > MOST_SIMULATED:
        return len(graph) > 256
    heads: dict[int, int] = {}
    for node in graph.order:
        heads[node] = 1 + max((heads[other] for other in graph.predecessors[node]), default=0)
    counts = Counter(heads.values()), Counter(graph.tails([1.0] * graph.num_nodes))
    return max(max(count.values()) for count in counts) > MOST_ABREAST


def shared_memory(traffic: Sequence[float]) -> dict[str, Any]:
    """What `simulate` needs to know of main memory; nothing where no step goes there."""
    return {"nbytes": traffic, "bandwidth": MEMORY_BANDWIDTH} if any(traffic) else {}


def chosen_policy(options: ScheduleOptions, threads: int, signature: str) -> str:
    """The policy that a program gets, as far as that is settled: ``auto`` where nothing was measured."""
    streams = options.streams_on(threads)
    if streams == 1:
        return "sequential"
    measured = _measured(signature, streams, threads) if options.policy == "auto" else {}
    return _fastest(measured) if measured else options.policy


def _measured(signature: str, streams: int, threads: int) -> dict[str, float]:
    """What the program was measured to take under each policy, one stream among them; empty if it was not."""
    names = [name for name in POLICIES if name != "auto"]
    found = {name: step_costs().get(program_key(signature, name, streams, threads)) for name in names}
    return {} if found["sequential"] is None else {name: time for name, time in found.items() if time is not None}


def _fastest(measured: dict[str, float]) -> str:
    """The policy that was measured to be the fastest, or one stream where that is hardly slower."""
    choice = min(measured, key=measured.__getitem__)
    return choice if measured[choice] <= (1 - MIN_MEASURED_GAIN) * measured["sequential"] else "sequential"


def _makespan(schedule: Schedule) -> float:
    makespans: dict[str, float] = schedule.details["candidates"]
    return makespans[schedule.policy.removeprefix("auto:")]
