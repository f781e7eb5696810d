"""Graphs in a few lines."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import graphpool as gp
from graphpool.graph.completion import complete_shapes
from graphpool.graph.view import GraphView


@dataclass
class GraphBuilder:
    """Adds ops one by one, inventing ids and output tensors.

    Shapes of outputs are inferred; data types follow the first input unless given.
    """

    graph: gp.Graph = field(default_factory=gp.Graph)
    tensors: list[gp.LogicalTensor] = field(default_factory=list)
    inputs: list[gp.LogicalTensor] = field(default_factory=list)
    ops: int = 0

    def tensor(self, dtype: str, shape: Any, **fields: Any) -> gp.LogicalTensor:
        """A new logical tensor."""
        self.tensors.append(gp.LogicalTensor(len(self.tensors), dtype, shape, **fields))
        return self.tensors[-1]

    def input(self, shape: Any, dtype: str = "f32", **fields: Any) -> gp.LogicalTensor:
        """A new input of the graph."""
        self.inputs.append(self.tensor(dtype, shape, **fields))
        return self.inputs[-1]

    def op(self, kind: str, *inputs: gp.LogicalTensor, dtype: Any = None, n: int = 1, **attrs: Any) -> Any:
        """A new op; returns its output, or a list of them for n > 1."""
        dtypes = dtype if isinstance(dtype, (list, tuple)) else [dtype or inputs[0].dtype] * n
        outs = [self.tensor(d, None) for d in dtypes]
        self.graph.add_op(gp.Op(self.ops, kind, inputs, outs, **attrs))
        self.ops += 1
        return outs[0] if n == 1 else outs

    def graph_shape(self, lt: gp.LogicalTensor) -> tuple[int, ...]:
        """Shape of a tensor of the graph so far."""
        if lt.shape is not None:
            return lt.shape
        shapes = complete_shapes(GraphView(self.graph.ops).ops)
        shape = shapes[lt.id]
        assert shape is not None
        return shape

    def finish(self) -> list[gp.Partition]:
        """The partitions of the graph."""
        self.graph.finalize()
        return self.graph.get_partitions()
