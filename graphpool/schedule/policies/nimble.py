"""The fewest waits at full concurrency: chains from a maximum matching."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from graphpool.schedule.schedule import Schedule

from .asap import chain_order
from .emit import emit

if TYPE_CHECKING:
    from collections.abc import Iterable

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
    Ownership: shares `graph`. Threads: safe. Cost: O(edges * sqrt(nodes)) for the first matching; the second sees up
    to chains**2 pairs. Source: Kwon et al., "Nimble" (NeurIPS 2020); the matching is Hopcroft and Karp's, from SciPy.
    """
    after = _maximum_matching(graph.reduced_edges, graph.num_nodes)
    before = {consumer: producer for producer, consumer in after.items()}
    order = chain_order(graph, graph.tails(), before, after)
    stream_of = _streams(order, before, _merged_chains(graph, before, after))
    program = emit(graph, [(v,) for v in order], [stream_of[v] for v in order])
    return Schedule(graph, program, "nimble", {"matched": len(after)})


def _maximum_matching(pairs: Iterable[tuple[int, int]], count: int) -> dict[int, int]:
    """A largest set of `pairs` in which no number comes first twice nor second twice, as a mapping."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_bipartite_matching

    rows, columns = np.array(list(pairs), dtype=np.int32).reshape(-1, 2).T
    matrix = csr_array((np.ones(len(rows), dtype=np.int8), (rows, columns)), shape=(count, count))
    matched = maximum_bipartite_matching(matrix, perm_type="column")
    return {row: int(column) for row, column in enumerate(matched) if column >= 0}


def _merged_chains(graph: DependencyGraph, before: dict[int, int], after: dict[int, int]) -> dict[int, int]:
    """For the start of a chain, the end of the chain that its stream ran before."""
    reach = graph.descendants()
    starts = [v for v in graph.nodes if v not in before]
    ends = [v for v in graph.nodes if v not in after]
    follows = _maximum_matching(((u, v) for u in ends for v in starts if reach[u] >> v & 1), graph.num_nodes)
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
