"""Graphs whose steps may run side by side, for `GraphBuilder`."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cases.graphs import GraphBuilder

__all__ = ["branches", "random_branches"]


def random_branches(seed: int, rows: int = 64) -> Callable[[GraphBuilder], None]:
    """A graph of shared and unshared operands, whose steps have one task or many."""

    def build(g):
        rng = random.Random(seed)
        values = [g.input((rows, 48))]

        def product(x):
            return g.op("MatMul", x, g.input((g.graph_shape(x)[1], 48), property="constant"))

        kinds = {
            "sigmoid": lambda x: g.op("Sigmoid", x),
            "softmax": lambda x: g.op("SoftMax", x, axis=-1),
            "product": product,
            "sum": lambda x: g.op("Add", x, g.op("ReduceSum", x, axes=[0], keep_dims=True)),
            "add": lambda x: g.op("Add", x, rng.choice(values)),
            "concat": lambda x: product(g.op("Concat", x, rng.choice(values), axis=1)),
        }
        for _ in range(rng.randint(3, 24)):
            values.append(kinds[rng.choice(list(kinds))](rng.choice(values[-5:])))

    return build


def branches(g: GraphBuilder) -> None:
    """Four towers from one input."""
    x = g.input((150, 64))
    towers = []
    for depth in range(1, 5):
        y = x
        for _ in range(depth):
            y = g.op("SoftMax", g.op("MatMul", y, g.input((64, 64), property="constant")), axis=-1)
        towers.append(y)
    g.op("Concat", *towers, axis=1)
