"""The fewest waits at full concurrency: chains from a maximum matching."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphpool.schedule.graph import check_graph
from graphpool.schedule.schedule import Schedule

from .asap import chain_order
from .emit import emit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from graphpool.schedule.graph import DependencyGraph


def nimble(graph: DependencyGraph) -> Schedule:
    """Put independent nodes on different streams with as few waits as that allows.

    A maximum matching of producers with consumers on the transitive reduction gives the chains; a second one, of ends
    of chains with starts of chains that they reach, lets chains that follow one another share a stream.

    Parameters
    ----------
    graph : DependencyGraph
        What to schedule. The costs only order what is issued, never the streams or waits.

    Returns
    -------
    schedule : Schedule
        Waits: edges of the transitive reduction less the size of the matching. With streams to spare its makespan is
        the critical path. ``details["matched"]`` is the size of the matching.

    Notes
    -----
    Ownership: shares `graph`. Threads: safe. Cost: a few passes over the edges, at worst as many as nodes; the second
    matching sees up to chains**2 pairs, as bits. Source: Kwon et al., "Nimble" (NeurIPS 2020); the matching after
    Pothen and Fan, "Computing the block triangular form of a sparse matrix" (1990).
    """
    check_graph(graph)
    readers = {u: 0 for u, _ in graph.reduced_edges}
    for u, v in graph.reduced_edges:
        readers[u] |= 1 << v
    after = _maximum_matching(readers)
    before = {consumer: producer for producer, consumer in after.items()}
    order = chain_order(graph, graph.tails(), before, after)
    stream_of = _streams(order, before, _merged_chains(graph, before, after))
    program = emit(graph, [(v,) for v in order], [stream_of[v] for v in order])
    return Schedule(graph, program, "nimble", {"matched": len(after)})


def _maximum_matching(choices: Mapping[int, int]) -> dict[int, int]:
    """A partner for as many numbers as possible, each out of its bit set of choices, no partner twice.

    Passes look for paths, which share nothing, from numbers without a partner to free ones: along a path each number
    takes the next one's partner. The last pass finds none.
    """
    partner: dict[int, int] = {}
    owner: dict[int, int] = {}
    free, found = -1, True
    while found:
        unseen, found = -1, False
        for first in choices:
            path = [] if first in partner else [first]
            while path:
                left = choices[path[-1]] & unseen
                ends = left & free
                chosen = (ends or left) & -(ends or left)
                unseen &= ~chosen
                if ends:
                    free &= ~chosen
                    wanted = chosen.bit_length() - 1
                    for number in reversed(path):
                        owner[wanted], partner[number], wanted = number, wanted, partner.get(number, -1)
                    path, found = [], True
                elif left:
                    path.append(owner[chosen.bit_length() - 1])
                else:
                    path.pop()
    return partner


def _merged_chains(graph: DependencyGraph, before: dict[int, int], after: dict[int, int]) -> dict[int, int]:
    """For the start of a chain, the end of the chain that its stream ran before."""
    reach = graph.descendants()
    starts = sum(1 << v for v in graph.nodes if v not in before)
    follows = _maximum_matching({u: reach[u] & starts for u in graph.nodes if u not in after})
    return {start: end for end, start in follows.items()}


def _streams(order: list[int], before: dict[int, int], merged: dict[int, int]) -> dict[int, int]:
    stream_of: dict[int, int] = {}
    count = 0
    for node in order:
        previous = before.get(node, merged.get(node))
        if previous is None:
            stream_of[node], count = count, count + 1
        else:
            stream_of[node] = stream_of[previous]
    return stream_of
