"""Programs as short text, mutations of programs, and exhaustive searches to compare with."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

from graphpool.schedule import AddEvent, Run, Schedule, SetStream, StreamBarrier, WaitEvent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from graphpool.schedule import DependencyGraph


def program(graph: DependencyGraph, text: str) -> tuple[object, ...]:
    """Instructions from the notation of the specification: ``S1: a +0 S2: ?0 b || ...``."""
    number = {name: node for node, name in enumerate(graph.names)}
    found: list[object] = []
    for word in text.split():
        if word == "||":
            found.append(StreamBarrier())
        elif word[0] == "S" and word[-1] == ":":
            found.append(SetStream(0, int(word[1:-1])))
        elif word[0] == "+":
            found.append(AddEvent(int(word[1:])))
        elif word[0] == "?":
            found.append(WaitEvent(int(word[1:])))
        else:
            found.append(Run(number[word]))
    return tuple(found)


def without(schedule: Schedule, *indices: int) -> Schedule:
    """The schedule without some of its instructions."""
    kept = tuple(item for index, item in enumerate(schedule.instructions) if index not in indices)
    return replace(schedule, instructions=kept)


def sync_indices(schedule: Schedule) -> list[int]:
    """Where waits and barriers stand."""
    return [i for i, item in enumerate(schedule.instructions) if isinstance(item, (WaitEvent, StreamBarrier))]


def without_event(schedule: Schedule, *event_ids: int) -> Schedule:
    """The schedule without some events and every wait for them."""
    gone = [i for i, item in enumerate(schedule.instructions) if getattr(item, "event_id", None) in event_ids]
    return without(schedule, *gone)


def reachable(edges: list[tuple[int, int]], n: int) -> list[set[int]]:
    """What each node reaches, by plain search."""
    after: list[list[int]] = [[] for _ in range(n)]
    for u, v in edges:
        after[u].append(v)
    found = []
    for start in range(n):
        seen: set[int] = set()
        todo = list(after[start])
        while todo:
            node = todo.pop()
            if node not in seen:
                seen.add(node)
                todo += after[node]
        found.append(seen)
    return found


def optimal_makespan(graph: DependencyGraph, streams: int, upper: float) -> float:
    """Smallest makespan on `streams` streams, by branch and bound from a known one."""
    tails = graph.tails()
    floor = max(graph.critical_path, graph.work / streams)
    best = upper
    seen: set[tuple[object, ...]] = set()

    def search(end: dict[int, float], free: tuple[float, ...]) -> None:
        nonlocal best
        if best <= floor:
            return
        left = [v for v in graph.order if v not in end]
        if not left:
            best = min(best, max(end.values()))
            return
        if (sum(free) + sum(graph.costs[v] for v in left)) / streams >= best:
            return
        key = (tuple(sorted(end.items())), free)
        if key in seen:
            return
        seen.add(key)
        ready = [v for v in left if all(p in end for p in graph.predecessors[v])]
        for node in sorted(ready, key=lambda v: -tails[v]):
            early = max((end[p] for p in graph.predecessors[node]), default=0.0)
            stream = max((s for s in range(streams) if free[s] <= early), key=free.__getitem__, default=None)
            stream = min(range(streams), key=free.__getitem__) if stream is None else stream
            start = max(early, free[stream])
            if start + tails[node] >= best:
                continue
            after = sorted((*free[:stream], start + graph.costs[node], *free[stream + 1 :]))
            search({**end, node: start + graph.costs[node]}, tuple(after))

    search({}, (0.0,) * streams)
    return best


def components(graph: DependencyGraph, nodes: frozenset[int]) -> list[frozenset[int]]:
    """Connected components of the subgraph on `nodes`, directions aside."""
    left, found = set(nodes), []
    while left:
        group, todo = set(), [min(left)]
        while todo:
            node = todo.pop()
            if node in left:
                left.remove(node)
                group.add(node)
                todo += [*graph.predecessors[node], *graph.successors[node]]
        found.append(frozenset(group))
    return found


def endings(graph: DependencyGraph, state: frozenset[int]) -> Iterator[frozenset[int]]:
    """Non-empty sets in `state` that nothing else in `state` reads from."""
    for size in range(1, len(state) + 1):
        for chosen in map(frozenset, itertools.combinations(sorted(state), size)):
            if all(w in chosen or w not in state for v in chosen for w in graph.successors[v]):
                yield chosen


def staged_optimum(
    graph: DependencyGraph, latency: Callable[[list[frozenset[int]]], float]
) -> tuple[float, int, int, int]:
    """Best total latency over all stages, and how many states, transitions and sequences of stages there are."""
    best: dict[frozenset[int], tuple[float, int]] = {frozenset(): (0.0, 1)}
    transitions = 0

    def solve(state: frozenset[int]) -> tuple[float, int]:
        nonlocal transitions
        if state not in best:
            value, ways = float("inf"), 0
            for ending in endings(graph, state):
                transitions += 1
                rest, count = solve(state - ending)
                value, ways = min(value, rest + latency(components(graph, ending))), ways + count
            best[state] = value, ways
        return best[state]

    value, ways = solve(frozenset(graph.nodes))
    return value, len(best) - 1, transitions, ways


def longest_first(graph: DependencyGraph, groups: list[frozenset[int]], streams: int) -> float:
    """Longest load when groups, by falling cost, go to the least loaded of `streams`."""
    loads = [0.0] * streams
    for cost in sorted((sum(graph.costs[v] for v in group) for group in groups), reverse=True):
        loads[loads.index(min(loads))] += cost
    return max(loads)
