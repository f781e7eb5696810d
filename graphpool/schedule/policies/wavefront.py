"""Waves of independent chains with a barrier between waves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphpool.schedule.graph import check_graph
from graphpool.schedule.instructions import Instruction, Run, SetStream, StreamBarrier
from graphpool.schedule.schedule import Schedule

if TYPE_CHECKING:
    from graphpool.schedule.graph import DependencyGraph


def wavefront(graph: DependencyGraph) -> Schedule:
    """Run the graph wave by wave, the chains of a wave side by side.

    A wave starts one chain at each node whose producers are all in earlier waves, and follows it as long as there is
    one consumer that waits for nothing else. Chain j runs on stream j.

    Parameters
    ----------
    graph : DependencyGraph
        What to schedule; its costs are not looked at.

    Returns
    -------
    schedule : Schedule
        As many streams as the widest wave has chains, one barrier fewer than waves, no events. A barrier stays, as in
        RAF, even in the rare case that the order of the streams alone covers the edges between two waves.

    Notes
    -----
    Ownership: shares `graph`. Threads: safe. Cost: O(nodes + edges) after the transitive reduction.
    Source: RAF's wavefront schedule; its programs are reproduced instruction by instruction.
    """
    check_graph(graph)
    waves = _waves(graph)
    program: list[Instruction] = []
    for index, wave in enumerate(waves):
        if index:
            program.append(StreamBarrier())
        for stream, chain in enumerate(wave):
            program.append(SetStream(0, stream))
            program.extend(map(Run, chain))
    return Schedule(graph, tuple(program), "wavefront", {"waves": len(waves)})


def _waves(graph: DependencyGraph) -> list[list[list[int]]]:
    need = [len(producers) for producers in graph.reduced_predecessors]
    free = [v for v in graph.order if not need[v]]
    waves = []
    while free:
        wave = [_chain(graph, node, need) for node in free]
        waves.append(wave)
        free = []
        for chain in wave:
            for consumer in graph.reduced_successors[chain[-1]]:
                need[consumer] -= 1
                if not need[consumer]:
                    free.append(consumer)
    return waves


def _chain(graph: DependencyGraph, first: int, need: list[int]) -> list[int]:
    """The nodes from `first` on that each are the only consumer of the one before and wait for nothing else."""
    chain = [first]
    while len(graph.reduced_successors[chain[-1]]) == 1:
        consumer = graph.reduced_successors[chain[-1]][0]
        if need[consumer] != 1:
            break
        chain.append(consumer)
    return chain
