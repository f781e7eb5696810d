"""The description of a computation: tensors, operations, graphs, partitions.

    logical_tensor.py   LogicalTensor: id, data type, shape, layout, property
    op.py               Op: id, kind, attributes, inputs, outputs
    schema.py           the table of all op kinds: ports, types, attributes, rules   (checks.py, shapes.py: its rules)
    schemas/            what stands in that table, one row a kind, and the rules of shapes
    graph.py            Graph: add_op -> finalize -> get_partitions
    dumps/              graphs in files: oneDNN Graph's dumps, benchdnn's knobs
    view.py             GraphView: producers, consumers and a topological order, as the partitioner reads them
    pattern.py          Pattern: what a backend can run as one partition, as data
    spelling.py         Spelling: a function in several ops, and the op that it is     (expression.py parses it)
    growth.py           how a match grows from op to op, and blocks with a shortcut
    partitioner.py      finds the patterns, keeps the partitions acyclic, orders them
    partition.py        Partition: ports, compile; Structure: what it computes, free of ids
    _counter.pyx        numbers partitions      _memo.pyx  what one was compiled with
    _dense.pyx          strides of plain shapes
    completion.py       shapes: what the known ones say about the others
    backend.py          the Backend protocol and the registry; backends hand themselves in

    Graph -> view -> partitioner (patterns of the registered backends) -> Partition -> Backend.compile

Nothing here runs or allocates anything.
"""

from typing import TYPE_CHECKING

from .._lazy import lazy_names
from .backend import Backend, backends_for, register_backend
from .logical_tensor import LogicalTensor

if TYPE_CHECKING:
    from .graph import Graph
    from .op import Op
    from .partition import Partition
    from .pattern import Pattern

__getattr__, __dir__ = lazy_names(
    __name__, {"Graph": "graph", "Op": "op", "Partition": "partition", "Pattern": "pattern"}
)

__all__ = ["Backend", "Graph", "LogicalTensor", "Op", "Partition", "Pattern", "backends_for", "register_backend"]
