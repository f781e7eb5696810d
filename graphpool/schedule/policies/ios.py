"""Inter-operator scheduling: the best sequence of stages, by dynamic programming."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from graphpool.errors import InvalidArgumentError, brief, explain
from graphpool.schedule.graph import check_graph
from graphpool.schedule.latency import checked_latency
from graphpool.schedule.schedule import Schedule

from .critical_path import balance, check_streams
from .emit import emit
from .stages import Block, Stage, best_stages, split_blocks

if TYPE_CHECKING:
    from graphpool.schedule.graph import DependencyGraph

Streams: TypeAlias = tuple[tuple[int, ...], ...]

_MAX_BLOCK_NODES = 20  # sets of nodes are signed 64-bit numbers


def ios(
    graph: DependencyGraph,
    streams: int = 2,
    *,
    latency: Callable[[Streams], float] | None = None,
    merge: Callable[[tuple[int, ...]], float | None] | None = None,
    max_states: int = 8192,
) -> Schedule:
    """Cut the graph into stages that run one after another, each of streams that run side by side.

    Every way to split a block into stages is weighed, with the latency of a stage measured as a whole: so a cost that
    depends on what else runs is seen, which the other policies cannot.

    Parameters
    ----------
    graph : DependencyGraph
        What to schedule.
    streams : int, default=2
        Most streams in a stage, at least 1.
    latency : callable, optional
        Takes the streams of a stage, tuples of nodes that run in order, and returns the time of running them at once.
        Default: the longest stream by the costs of the graph.
    merge : callable, optional
        Takes independent nodes and returns the time of one call that computes them all (convolutions of one image), or
        None when there is none.
    max_states : int, default=8192
        Blocks, which end at nodes that every path passes, are chopped until they have at most this many states, and at
        most 20 nodes. Unit: states.

    Returns
    -------
    schedule : Schedule
        Stages are ordered by events where data asks for it and not by barriers, so calls may start sooner than their
        stage. ``details``: ``stages`` (streams of each), ``latency`` (sum over stages), ``blocks``, ``states``,
        ``transitions`` and ``endings``. A merged stage is one `Run`, its cost in ``merged_costs``.

    Raises
    ------
    InvalidArgumentError
        A count out of range, or a latency that is negative or not finite.

    Notes
    -----
    Ownership: shares `graph`. Threads: safe if the callables are. Cost: O(states**2 / 64) vector work and one call of
    `latency` for each distinct ending; fork-joins of 18 nodes and width 8 take about a second.
    Source: Ding et al., "IOS" (MLSys 2021): stages, endings, merge, without pruning; blocks as in RAF's version.
    """
    check_graph(graph)
    check_streams(streams)
    for name, value in (("latency", latency), ("merge", merge)):
        if value is not None and not callable(value):
            raise InvalidArgumentError(explain(name, accepted="a callable, or None", got=brief(value)))
    if not isinstance(max_states, int) or max_states < 1:
        message = explain("max_states is no limit", accepted="an int, at least 1", got=brief(max_states))
        raise InvalidArgumentError(message, max_states=max_states)
    maker = _StageMaker(graph, streams, latency if latency is not None else _ideal_latency(graph), merge)
    blocks = split_blocks(graph, _MAX_BLOCK_NODES, max_states)
    stages: list[Stage] = []
    transitions = endings = 0
    for block in blocks:
        found, weighed, distinct = best_stages(block, partial(maker.stage, block, {}))
        stages += found
        transitions += weighed
        endings += distinct
    details = {
        "stages": [stage.streams for stage in stages],
        "latency": sum(stage.latency for stage in stages),
        "blocks": len(blocks),
        "states": sum(len(block.ideals) - 1 for block in blocks),
        "transitions": transitions,
        "endings": endings,
    }
    calls, stream_of = _place(graph, stages, streams)
    merged = {stage.streams[0]: stage.latency for stage in stages if stage.merged}
    return Schedule(graph, emit(graph, calls, stream_of), "ios", details, merged)


def _ideal_latency(graph: DependencyGraph) -> Callable[[Streams], float]:
    costs = graph.costs
    return lambda streams: max(sum(costs[v] for v in stream) for stream in streams)


class _StageMaker:
    """Turns an ending into the better of its two stages: streams side by side, or one merged call."""

    def __init__(
        self,
        graph: DependencyGraph,
        streams: int,
        latency: Callable[[Streams], float],
        merge: Callable[[tuple[int, ...]], float | None] | None,
    ) -> None:
        self.costs, self.streams, self.latency, self.merge = graph.costs, streams, latency, merge

    def stage(self, block: Block, parts: dict[int, tuple[float, tuple[int, ...]]], ending: int) -> Stage:
        """The stage of `ending`. `parts` keeps what the groups of a block cost."""
        groups = block.groups(ending)
        for group in groups:
            if group not in parts:
                nodes = block.members(group)
                parts[group] = -sum(self.costs[v] for v in nodes), nodes
        streams = self._pack([parts[group] for group in groups])
        side_by_side = Stage(streams, checked_latency(self.latency(streams), "a stage"))
        merged = self._merged(block, ending, groups)
        return merged if merged is not None and merged.latency < side_by_side.latency else side_by_side

    def _pack(self, parts: list[tuple[float, tuple[int, ...]]]) -> Streams:
        """The parts on at most `self.streams` streams: the longest first, each to the one that is shortest so far."""
        if len(parts) <= self.streams:
            return tuple(nodes for _, nodes in sorted(parts))
        return tuple(nodes for nodes in balance(parts, self.streams) if nodes)  # those of no cost all go to the first

    def _merged(self, block: Block, ending: int, groups: list[int]) -> Stage | None:
        if self.merge is None or len(groups) < 2 or len(groups) != ending.bit_count():
            return None
        nodes = block.members(ending)
        latency = self.merge(nodes)
        return None if latency is None else Stage((nodes,), checked_latency(latency, f"merged nodes {nodes}"), True)


def _place(graph: DependencyGraph, stages: list[Stage], streams: int) -> tuple[list[tuple[int, ...]], list[int]]:
    """Calls in issue order and their streams: of a stage, each prefers the one of what its first node reads."""
    stream_of: dict[int, int] = {}
    calls: list[tuple[int, ...]] = []
    for stage in stages:
        free = list(range(min(streams, len(graph))))
        for nodes in stage.streams:
            wanted = [stream_of[p] for p in graph.predecessors[nodes[0]] if stream_of[p] in free]
            stream = wanted[-1] if wanted else free[0]
            free.remove(stream)
            stream_of.update(dict.fromkeys(nodes, stream))
            calls += [nodes] if stage.merged else [(v,) for v in nodes]
    return calls, [stream_of[call[0]] for call in calls]
