"""The dependency graph: which node reads what which other node made, and what each node costs."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any

from graphpool.errors import InvalidArgumentError, InvalidGraphError, brief, check_instance, explain

from ..fork import cached_property

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


MAX_NODES = 2**24
"""Most nodes of a graph: lists are made for every number up to the highest."""


class DependencyGraph:
    """An immutable directed acyclic graph of operations, named by the numbers 0 to n - 1.

    Parameters
    ----------
    edges : iterable of pairs of int
        ``(producer, consumer)``. The order in which the edges into a node stand is the order of its arguments, and
        breaks ties in the policies. A pair given twice counts once.
    costs : sequence of float, optional
        Time of each node, in one unit of the caller's choice; finite, at least 0. Default: 1 for each node.
    num_nodes : int, optional
        Number of nodes, at most 2**24. Default: the length of `costs`, else the highest number in `edges` plus one.
    names : sequence of str, optional
        Name of each node for messages, traces and plots. Default: ``n0``, ``n1``, ...

    Attributes
    ----------
    nodes : tuple of int
        Their numbers, ascending.
    edges : tuple of pairs of int
        In the order given.
    costs, names : tuple
        One entry for each node.

    Raises
    ------
    InvalidGraphError
        A node depends on itself, or a cycle (field ``cycle``: its nodes).
    InvalidArgumentError
        Not a pair, a number outside the graph (``node``), a cost that is negative or not finite (``node``, ``cost``),
        or a sequence of the wrong length.

    Notes
    -----
    Ownership: copies what it is given. Threads: safe, it never changes. Cost: O(nodes + edges). The transitive
    reduction is taken once, when a policy asks for it: O(nodes * edges / 64), and nodes**2 / 8 bytes while it runs.
    Source: reduction as in RAF's dependency graph; order of nodes as its post-order visit.

    Examples
    --------
    >>> from graphpool.schedule import DependencyGraph
    >>> DependencyGraph([(0, 1), (1, 2), (0, 2)]).reduced_edges
    ((0, 1), (1, 2))
    """

    def __init__(
        self,
        edges: Iterable[tuple[int, int]],
        costs: Sequence[float] | None = None,
        *,
        num_nodes: int | None = None,
        names: Sequence[str] | None = None,
    ) -> None:
        pairs = [_as_pair(edge) for edge in as_tuple("edges", edges, "pairs of node numbers")]
        costs = None if costs is None else as_tuple("costs", costs, "numbers")
        count = _node_count(pairs, costs, num_nodes)
        for pair in pairs:
            for node in pair:
                _as_node(node, f"an end of edge {pair}", count)
        self.nodes: tuple[int, ...] = tuple(range(count))
        self.edges = tuple(dict.fromkeys(pairs))
        self.costs: tuple[float, ...] = as_costs(costs, count)
        self.names: tuple[str, ...] = _as_names(names, count)
        self.predecessors = _adjacency(((v, u) for u, v in self.edges), count)
        self.successors = _adjacency(self.edges, count)
        self.order: tuple[int, ...] = tuple(_post_order(self))

    @property
    def num_nodes(self) -> int:
        """Count of nodes."""
        return len(self.costs)

    def with_costs(self, costs: Sequence[float] | None) -> DependencyGraph:
        """The same graph with other costs; shares everything else.

        Parameters
        ----------
        costs : sequence of float or None
            One for each node; None for 1 each.

        Returns
        -------
        graph : DependencyGraph

        Raises
        ------
        InvalidArgumentError
            As the constructor.
        """
        twin = object.__new__(DependencyGraph)
        twin.__dict__.update(self.__dict__)
        twin.costs = as_costs(costs, self.num_nodes)
        return twin

    @cached_property
    def reduced_edges(self) -> tuple[tuple[int, int], ...]:
        """The edges that no longer path replaces (transitive reduction), in the order given."""
        position = {node: index for index, node in enumerate(self.order)}
        reach = [0] * self.num_nodes
        kept: set[tuple[int, int]] = set()
        for u in reversed(self.order):
            # A path to v can only start with a successor that comes before v, so one pass in topological order decides.
            for v in sorted(self.successors[u], key=position.__getitem__):
                if not reach[u] >> v & 1:
                    kept.add((u, v))
                    reach[u] |= reach[v] | 1 << v
        return tuple(edge for edge in self.edges if edge in kept)

    @cached_property
    def reduced_predecessors(self) -> tuple[tuple[int, ...], ...]:
        """Producers of each node over `reduced_edges`, in argument order."""
        return _adjacency(((v, u) for u, v in self.reduced_edges), self.num_nodes)

    @cached_property
    def reduced_successors(self) -> tuple[tuple[int, ...], ...]:
        """Consumers of each node over `reduced_edges`, in visiting order."""
        position = {node: index for index, node in enumerate(self.order)}
        kept = _adjacency(self.reduced_edges, self.num_nodes)
        return tuple(tuple(sorted(successors, key=position.__getitem__)) for successors in kept)

    def descendants(self) -> list[int]:
        """For each number, the set of nodes that it reaches, as a bit set. Cost: nodes**2 / 8 bytes.

        Returns
        -------
        list of int
        """
        reach = [0] * self.num_nodes
        for u in reversed(self.order):
            for v in self.successors[u]:
                reach[u] |= reach[v] | 1 << v
        return reach

    def tails(self, weights: Sequence[float] | None = None) -> list[float]:
        """Weight of the heaviest path from each node to a sink, both included.

        Parameters
        ----------
        weights : sequence of float, optional
            One for each node; by default the costs.

        Returns
        -------
        tails : list of float
            One for each node.

        Raises
        ------
        InvalidArgumentError
            Not one finite number, 0 or more, for each node.
        """
        weight = self.costs if weights is None else as_costs(weights, self.num_nodes, "weights")
        tail = [0.0] * self.num_nodes
        for u in reversed(self.order):
            tail[u] = weight[u] + max((tail[v] for v in self.successors[u]), default=0)
        return tail

    @property
    def work(self) -> float:
        """Sum of the costs of `nodes`: the makespan on one stream."""
        return sum(self.costs[v] for v in self.nodes)

    @property
    def critical_path(self) -> float:
        """Cost of the heaviest path: no schedule ends sooner."""
        return max(self.tails(), default=0)

    def __len__(self) -> int:
        return len(self.nodes)

    def __repr__(self) -> str:
        return (
            f"DependencyGraph({len(self)} nodes, {len(self.edges)} edges, "
            f"work={self.work:g}, critical_path={self.critical_path:g})"
        )


def check_graph(graph: object) -> None:
    """Raise `InvalidArgumentError` unless this is a graph."""
    check_instance("graph", graph, DependencyGraph)


def as_tuple(what: str, values: Any, accepted: str) -> tuple[Any, ...]:
    """All that can be iterated over; InvalidArgumentError for what cannot."""
    try:
        return tuple(values)
    except TypeError:
        raise InvalidArgumentError(explain(what, accepted=f"a sequence of {accepted}", got=brief(values))) from None


def as_costs(costs: Sequence[float] | None, count: int, what: str = "costs") -> tuple[float, ...]:
    """One finite, non-negative number for each of `count` nodes; ones when `costs` is None."""
    if costs is None:
        return (1,) * count
    values = as_tuple(what, costs, "numbers")
    if len(values) != count:
        raise InvalidArgumentError(
            explain(f"{what} of wrong length", accepted=count, got=len(values)), length=len(values)
        )
    for node, cost in enumerate(values):
        if not _is_cost(cost):
            message = explain(f"{what}[{node}] is no cost", accepted="a finite number, at least 0", got=brief(cost))
            raise InvalidArgumentError(message, node=node, cost=cost)
    return values


def _is_cost(cost: object) -> bool:
    try:
        return 0 <= cost < math.inf  # type: ignore[operator]
    except (TypeError, ValueError):
        return False


def _as_pair(edge: Any) -> tuple[int, int]:
    try:
        producer, consumer = map(operator.index, edge)
    except (TypeError, ValueError):
        message = explain("not an edge", accepted="a pair of node numbers (producer, consumer)", got=brief(edge))
        raise InvalidArgumentError(message, edge=edge) from None
    if producer == consumer:
        hint = "an operation cannot read its own result"
        raise InvalidGraphError(explain(f"node {producer} depends on itself", hint=hint), cycle=(producer,))
    return producer, consumer


def _as_node(node: Any, what: str, count: int) -> int:
    if not isinstance(node, int) or not 0 <= node < count:
        message = explain(f"{what} is no node of the graph", accepted=f"0 to {count - 1}", got=brief(node))
        raise InvalidArgumentError(message, node=node)
    return node


def _node_count(pairs: list[tuple[int, int]], costs: Sequence[float] | None, num_nodes: int | None) -> int:
    if num_nodes is None:
        num_nodes = len(costs) if costs is not None else 1 + max((max(pair) for pair in pairs), default=-1)
    if not isinstance(num_nodes, int) or not 0 <= num_nodes <= MAX_NODES:
        message = explain("num_nodes is no count", accepted=f"an int from 0 to {MAX_NODES}", got=brief(num_nodes))
        raise InvalidArgumentError(message, num_nodes=num_nodes)
    return num_nodes


def _as_names(names: Sequence[str] | None, count: int) -> tuple[str, ...]:
    if names is None:
        return tuple(f"n{v}" for v in range(count))
    found = as_tuple("names", names, "strings")
    if len(found) != count:
        raise InvalidArgumentError(explain("names of wrong length", accepted=count, got=len(found)), length=len(found))
    return found


def _adjacency(edges: Iterable[tuple[int, int]], count: int) -> tuple[tuple[int, ...], ...]:
    lists: list[list[int]] = [[] for _ in range(count)]
    for u, v in edges:
        lists[u].append(v)
    return tuple(map(tuple, lists))


def _post_order(graph: DependencyGraph) -> Iterator[int]:
    """Producers before consumers: a depth-first visit from the sinks, ascending, along the arguments in order."""
    open_, done = 1, 2
    state = [0] * graph.num_nodes
    sinks = [v for v in graph.nodes if not graph.successors[v]]
    for root in (*sinks, *graph.nodes):  # where a cycle hides everything from the sinks, the second part finds it
        path: list[tuple[int, Iterator[int]]] = []
        child: int | None = root
        while child is not None or path:
            if child is not None and state[child] != done:
                if state[child] == open_:
                    _raise_cycle(graph, [node for node, _ in path], child)
                state[child] = open_
                path.append((child, iter(graph.predecessors[child])))
            if not path:
                break
            child = next(path[-1][1], None)
            if child is None:
                node, _ = path.pop()
                state[node] = done
                yield node


def _raise_cycle(graph: DependencyGraph, path: list[int], again: int) -> None:
    cycle = tuple(reversed(path[path.index(again) :]))
    text = " -> ".join(graph.names[v] for v in (*cycle, cycle[0]))
    raise InvalidGraphError(explain("the edges form a cycle", got=text, hint="remove one of its edges"), cycle=cycle)
