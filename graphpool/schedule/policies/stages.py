"""What `ios` searches: blocks of a graph, the sets that can be done first in one, and stages of what is left."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from graphpool._dataclasses import dataclass, field

if TYPE_CHECKING:
    from collections.abc import Callable

    from graphpool.schedule.graph import DependencyGraph


@dataclass(frozen=True)
class Stage:
    """Streams of nodes that run side by side, and how long that takes; `merged` when one call computes all of them."""

    streams: tuple[tuple[int, ...], ...]
    latency: float
    merged: bool = False


@dataclass
class Block:
    """Consecutive nodes of the visiting order; bit i of a set stands for ``nodes[i]``.

    `ideals` are the sets that hold the producers of all their members, ascending, so subsets come first.
    """

    graph: DependencyGraph
    nodes: tuple[int, ...]
    ideals: list[int]
    neighbours: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        index = {node: i for i, node in enumerate(self.nodes)}
        around = (self.graph.predecessors[v] + self.graph.successors[v] for v in self.nodes)
        self.neighbours = [sum(1 << index[w] for w in nodes if w in index) for nodes in around]

    def members(self, mask: int) -> tuple[int, ...]:
        """Nodes of a set, in visiting order."""
        return tuple(self.nodes[i] for i in range(mask.bit_length()) if mask >> i & 1)

    def groups(self, ending: int) -> list[int]:
        """Connected components of `ending`, each a set."""
        found = []
        while ending:
            group = border = ending & -ending
            while border:
                low = border & -border
                reached = self.neighbours[low.bit_length() - 1] & ending & ~group
                group |= reached
                border ^= low | reached
            found.append(group)
            ending &= ~group
        return found


def split_blocks(graph: DependencyGraph, max_nodes: int, max_states: int) -> list[Block]:
    """Blocks that end at nodes which every path passes, chopped while they have too many nodes or ideals."""
    cuts = _cut_positions(graph)
    bounds = [0, *(cut + 1 for cut in cuts)]
    if bounds[-1] != len(graph):
        bounds.append(len(graph))
    todo = [graph.order[first:last] for first, last in itertools.pairwise(bounds)]
    blocks = []
    while todo:
        nodes = todo.pop(0)
        ideals = _ideals(graph, nodes, max_states) if len(nodes) <= max_nodes else None
        if ideals is None:
            half = (len(nodes) + 1) // 2
            todo[:0] = [nodes[:half], nodes[half:]]
        else:
            blocks.append(Block(graph, nodes, ideals))
    return blocks


def _cut_positions(graph: DependencyGraph) -> list[int]:
    """Positions, in visiting order, of nodes comparable with all others: the dominators of a common sink.

    In the transitive reduction no edge jumps over such a node, all before it have a consumer and all after a producer.
    """
    position = {node: index for index, node in enumerate(graph.order)}
    count = len(graph)
    last_start = max((position[v] for v in graph.nodes if not graph.predecessors[v]), default=-1)
    first_end = min((position[v] for v in graph.nodes if not graph.successors[v]), default=count)
    jumps = [0] * (count + 1)
    for u, v in graph.reduced_edges:
        jumps[position[u] + 1] += 1
        jumps[position[v]] -= 1
    cuts, over = [], 0
    for index in range(count):
        over += jumps[index]
        if not over and last_start <= index <= first_end:
            cuts.append(index)
    return cuts


def _ideals(graph: DependencyGraph, nodes: tuple[int, ...], limit: int) -> list[int] | None:
    """Every set of `nodes` that holds its members' producers, ascending; None when there are more than `limit`."""
    index = {node: i for i, node in enumerate(nodes)}
    ideals = [0]
    for i, node in enumerate(nodes):
        need = sum(1 << index[p] for p in graph.predecessors[node] if p in index)
        ideals += [ideal | 1 << i for ideal in ideals if not need & ~ideal]
        if len(ideals) > limit and len(nodes) > 1:
            return None
    return sorted(ideals)


def best_stages(block: Block, stage_of: Callable[[int], Stage]) -> tuple[list[Stage], int, int]:
    """Stages of least total latency that run the block, how many pairs of states were weighed, and how many endings.

    ``best(S) = min over endings E of S of best(S - E) + latency(E)``, where an ending is what lies between an ideal and
    a larger one. `stage_of` makes the stage of an ending; it is called once an ending.
    """
    latencies = _Latencies(stage_of)
    ideals = np.array(block.ideals, dtype=np.int64)
    best = np.zeros(len(ideals))
    previous = [0] * len(ideals)
    transitions = 0
    for state in range(1, len(ideals)):
        smaller = np.flatnonzero((ideals[:state] & ~ideals[state]) == 0)
        endings = (ideals[state] ^ ideals[smaller]).tolist()
        latency = np.fromiter(map(latencies.__getitem__, endings), dtype=np.float64, count=len(endings))
        total = best[smaller] + latency
        choice = int(np.argmin(total))
        best[state], previous[state] = total[choice], int(smaller[choice])
        transitions += len(endings)
    stages, state = [], len(ideals) - 1
    while state:
        stages.append(latencies.stages[block.ideals[state] ^ block.ideals[previous[state]]])
        state = previous[state]
    return stages[::-1], transitions, len(latencies.stages)


class _Latencies(dict[int, float]):
    """Latency of each ending; a plain dictionary access when it is known."""

    def __init__(self, stage_of: Callable[[int], Stage]) -> None:
        super().__init__()
        self.stage_of = stage_of
        self.stages: dict[int, Stage] = {}

    def __missing__(self, ending: int) -> float:
        stage = self.stages[ending] = self.stage_of(ending)
        self[ending] = stage.latency
        return stage.latency
