"""Graphs to schedule: RAF's three, the blocks of known networks, and seeded random families."""

from __future__ import annotations

import itertools
import random

from graphpool.schedule import DependencyGraph

COST_KINDS = ("unit", "uniform", "lognormal")

# RAF's test graphs. Arguments stand in order; `t` is the tuple in front of each concatenation.
GOLDEN = {
    "simple": "a1>a3 a2>a4 a4>a5 a0>t a3>t a5>t t>cat",
    "branch": "a1>a3 a3>a4 a3>a5 a4>t0 a5>t0 t0>cat0 a2>a6 a6>a7 a0>t1 cat0>t1 a7>t1 t1>cat1",
    "stacked": "a2>a3 a0>t0 a1>t0 a3>t0 t0>cat0 cat0>a4 cat0>a5 cat0>a6 a6>a7 a4>t1 a5>t1 a7>t1 t1>cat1",
}
# Node order as in the specification's table; concatenations without tuples.
BLOCKS = {
    "G1": "a1>a3 a2>a4 a4>a5 a0>cat a3>cat a5>cat",
    "G2": "a1>a3 a3>a4 a3>a5 a4>cat0 a5>cat0 a2>a6 a6>a7 a0>cat1 cat0>cat1 a7>cat1",
    "G3": "a2>a3 a0>cat0 a1>cat0 a3>cat0 cat0>a4 cat0>a5 cat0>a6 a6>a7 a4>cat1 a5>cat1 a7>cat1",
    "A": "1>2 3>4 4>5 6>7 0>8 2>8 5>8 7>8",
    "C": "1>2 2>3 4>5 5>6 6>7 7>8 9>10 0>11 3>11 8>11 10>11",
    "E": "1>2 1>3 4>5 5>6 5>7 8>9 0>10 2>10 3>10 6>10 7>10 9>10",
    "trap": "0>2 0>3 1>3 3>4",
}
BLOCK_COSTS = {
    "A": (151, 113, 941, 151, 677, 1016, 21, 75, 3),
    "E": (262, 315, 283, 283, 367, 991, 283, 283, 7, 157, 1),
}


def parse(text: str, costs: tuple[float, ...] | None = None) -> DependencyGraph:
    """A graph from ``"a>b b>c"``; nodes are numbered by number where they are numbers, else by sorted name."""
    pairs = [tuple(pair.split(">")) for pair in text.split()]
    names = sorted({name for pair in pairs for name in pair}, key=lambda n: (int(n) if n.isdigit() else 0, n))
    number = {name: index for index, name in enumerate(names)}
    return DependencyGraph([(number[u], number[v]) for u, v in pairs], costs, num_nodes=len(names), names=names)


def block(name: str, costs: tuple[float, ...] | None = None) -> DependencyGraph:
    return parse(BLOCKS[name], costs)


def fork_join(branches: int, length: int, costs: tuple[float, ...] | None = None) -> DependencyGraph:
    """A source, `branches` chains of `length`, and a sink."""
    sink = branches * length + 1
    edges = []
    for branch in range(branches):
        chain = [0, *range(1 + branch * length, 1 + (branch + 1) * length), sink]
        edges += itertools.pairwise(chain)
    return DependencyGraph(edges, costs)


def gnp(n: int, p: float, rng: random.Random) -> list[tuple[int, int]]:
    return [(u, v) for v in range(n) for u in range(v) if rng.random() < p]


def layered(layers: int, width: int, p: float, rng: random.Random) -> list[tuple[int, int]]:
    edges = []
    for layer in range(1, layers):
        for v in range(layer * width, (layer + 1) * width):
            above = range((layer - 1) * width, layer * width)
            edges += [(u, v) for u in above if rng.random() < p] or [(rng.choice(above), v)]
    return edges


def watts_strogatz(n: int, degree: int, p: float, rng: random.Random) -> list[tuple[int, int]]:
    """A rewired ring, directed from the lower to the higher number (RandWire's generator)."""
    edges = set()
    for u in range(n):
        for step in range(1, degree // 2 + 1):
            v = (u + step) % n
            if rng.random() < p:
                v = rng.choice([w for w in range(n) if w != u and (min(u, w), max(u, w)) not in edges] or [v])
            edges.add((min(u, v), max(u, v)))
    return sorted(edges)


def series_parallel(depth: int, rng: random.Random) -> list[tuple[int, int]]:
    """Recursive composition: each edge becomes two in series or two in parallel chains."""
    edges, count = [(0, 1)], 2
    for _ in range(depth):
        grown: list[tuple[int, int]] = []
        for u, v in edges:
            middle, count = count, count + 1
            grown += [(u, middle), (middle, v)]
            if rng.random() < 0.5:
                other, count = count, count + 1
                grown += [(u, other), (other, v)]
        edges = grown
    return edges


def stacked(modules: int, branches: int, length: int, even: bool = False) -> list[tuple[int, int]]:
    """Fork-joins one after another; branches have 1 to `length` nodes in turn, or all `length`."""
    edges: list[tuple[int, int]] = []
    entry, count = 0, 1
    for _ in range(modules):
        last = []
        for branch in range(branches):
            previous = entry
            for _ in range(length if even else 1 + branch % length):
                edges.append((previous, count))
                previous, count = count, count + 1
            last.append(previous)
        edges += [(u, count) for u in last]
        entry, count = count, count + 1
    return edges


FAMILIES = ("gnp", "layered", "ws", "sp", "stacked", "fork_join", "small", "inception")


def family_edges(family: str, rng: random.Random) -> list[tuple[int, int]]:
    if family == "gnp":
        return gnp(rng.randint(8, 24), rng.choice((0.1, 0.2, 0.4)), rng)
    if family == "layered":
        return layered(rng.randint(2, 4), rng.randint(2, 5), 0.4, rng)
    if family == "ws":
        return watts_strogatz(rng.randint(8, 20), 4, 0.75, rng)
    if family == "sp":
        return series_parallel(rng.randint(1, 3), rng)
    if family == "stacked":
        return stacked(rng.randint(1, 3), rng.randint(2, 4), 3)
    if family == "fork_join":
        return list(fork_join(rng.randint(2, 4), rng.randint(1, 4)).edges)
    if family == "inception":
        return list(block(rng.choice("ACE")).edges)
    return gnp(rng.randint(1, 6), 0.4, rng)


def draw_costs(kind: str, n: int, rng: random.Random) -> list[float] | None:
    if kind == "uniform":
        return [rng.randint(1, 10) for _ in range(n)]
    if kind == "lognormal":
        return [rng.lognormvariate(0, 1) for _ in range(n)]
    return None


def random_graph(seed: int, family: str | None = None) -> DependencyGraph:
    """The graph of `seed`: families and cost kinds take turns."""
    rng = random.Random(seed)
    edges = family_edges(family or FAMILIES[seed % len(FAMILIES)], rng)
    n = 1 + max((max(edge) for edge in edges), default=0)
    costs = draw_costs(COST_KINDS[seed // len(FAMILIES) % len(COST_KINDS)], n, rng)
    return DependencyGraph(edges, costs, num_nodes=n)
