"""The graph: add ops, finalize, get partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import config
from ..errors import (
    GraphpoolError,
    InvalidArgumentError,
    InvalidGraphError,
    InvalidOpError,
    StateError,
    brief,
    check_choice,
    check_instance,
    explain,
)
from ..limits import Limits
from .backend import backends_for, check_engine_kind
from .completion import complete_shapes
from .op import Op
from .partition import Partition
from .partitioner import cover, sole_backend
from .view import GraphView

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from .dumps.knobs import Knobs
    from .logical_tensor import LogicalTensor

FPMATH_MODES = ("strict", "bf16", "f16", "tf32", "int8", "any")
PREFERENCES = ("memory", "latency")
POLICIES = ("fusion", "debug")


class Graph:
    """A graph of operations, from which partitions are made.

    Ops may be added in any order; tensors connect them by id. After `finalize` the graph cannot change any more, and
    `get_partitions` may be called any number of times.

    Parameters
    ----------
    engine_kind : {"cpu", "gpu"}, default="cpu"
        Kind of the engines for which partitions will be compiled.
    fpmath : {"strict", "bf16", "f16", "tf32", "int8", "any"}, default="strict"
        Precision to which float32 arithmetic may be lowered: ``bf16`` and ``any`` let MatMul and Convolution with
        constant weights round both operands to bf16 and sum in float32, on processors with AVX512-BF16 and where the
        constant tensor cache keeps the weights; ``f16`` and ``tf32`` change nothing here. A product then differs from
        the exact one by at most about 2**-8 (2**-9 an operand) of the sum of magnitudes. ``int8``, which is not
        oneDNN's, lets MatMul round activations to 8 bits where it reads constant weights of 8 or 4 bits behind a
        Dequantize: each by at most 1/254 of the largest of its row in a block of at most 128. An op's attribute
        ``fpmath`` overrides the graph's.
    apply_to_int : bool, default=False
        Whether `fpmath` is meant for products of integers too.
    prefer : {"memory", "latency"}, default="memory"
        ``latency`` lets convolutions multiply fewer times on larger weights (Winograd's algorithm), whose error
        in f32 is about twice that of a plain sum, relative to the sum of magnitudes; and keeps weights of 8 bits that
        a Dequantize turns into floats as such, where the other operand is no quantised one.

    Raises
    ------
    InvalidArgumentError
        Unknown engine kind or mode.

    Notes
    -----
    Ownership: holds no memory. Threads: not safe while ops are added; safe to read once finalised.
    Source: oneDNN Graph's programming model, section Graph.

    Examples
    --------
    >>> import graphpool as gp
    >>> x, y = gp.LogicalTensor(0, "f32", (2, 3)), gp.LogicalTensor(1, "f32", (2, 3))
    >>> graph = gp.Graph("cpu")
    >>> graph.add_op(gp.Op(0, "ReLU", [x], [y]))
    'success'
    >>> graph.finalize()
    >>> [partition] = graph.get_partitions()
    >>> partition.is_supported
    True
    """

    def __init__(
        self, engine_kind: str = "cpu", *, fpmath: str = "strict", apply_to_int: bool = False, prefer: str = "memory"
    ) -> None:
        self.engine_kind = check_engine_kind(engine_kind)
        self.fpmath = check_choice("fpmath", fpmath, FPMATH_MODES)
        self.prefer = check_choice("prefer", prefer, PREFERENCES)
        self.fpmath_apply_to_int = bool(apply_to_int)
        self._ops: dict[int, Op] = {}
        self._tensors: dict[int, LogicalTensor] = {}
        self._producer: dict[int, Op] = {}
        self._shapes: dict[int, tuple[int, ...] | None] = {}
        self._view: GraphView | None = None

    @classmethod
    def from_json(
        cls,
        path: str | os.PathLike[str],
        *,
        engine_kind: str | None = None,
        knobs: Knobs | None = None,
        limits: Limits | None = None,
    ) -> Graph:
        """Read a graph that `to_json` wrote, or a dump of oneDNN Graph (``ONEDNN_GRAPH_DUMP``).

        Parameters
        ----------
        path : path-like
        engine_kind : {"cpu", "gpu"}, optional
            Instead of the one in the file.
        knobs : Knobs, optional
            benchdnn's changes, see `graphpool.graph.dumps.knobs.parse_knobs`. They are made before the ops are checked,
            so that they may mend a file; all tensors are then strided, and the shapes of computed ones inferred anew.
        limits : Limits, optional
            What the file may ask for: its length, ops, and lengths of attributes. By default those for trusted files,
            16 MiB among them; parsed, a file takes some twenty times its length.

        Returns
        -------
        graph : Graph
            Not finalised; tensors, layouts and attributes are as the file says, missing attributes completed.

        Raises
        ------
        InvalidGraphError
            The file is no JSON, or not of the format; the message says where.
        LimitError
            The file asks for more than `limits` allow.
        InvalidOpError, InvalidDataTypeError, InvalidShapeError, InvalidArgumentError
            An op or a tensor breaks a rule, as in `add_op`.
        OSError
            The file cannot be read.

        Notes
        -----
        Source: the format of oneDNN 3.14's graph dump.
        """
        from .dumps.json import read_graph
        from .dumps.knobs import Knobs

        limits = Limits() if limits is None else check_instance("limits", limits, Limits)
        knobs = None if knobs is None else check_instance("knobs", knobs, Knobs)
        return read_graph(path, limits).build(cls, engine_kind, knobs)

    def to_json(self, path: str | os.PathLike[str]) -> None:
        """Write the graph to a file from which `from_json` makes an equal one, and which benchdnn reads.

        With the environment variable ``GRAPHPOOL_GRAPH_DUMP=<folder>``, `finalize` writes every graph.

        Parameters
        ----------
        path : path
            Of a file, which is overwritten.

        Raises
        ------
        OSError
            The file cannot be written.
        """
        from .dumps.json import write_graph

        write_graph(self, path)

    @property
    def ops(self) -> list[Op]:
        """The ops, attributes completed, in the order added; in topological order once finalised."""
        return list(self._ops.values()) if self._view is None else list(self._view.ops)

    @property
    def tensors(self) -> dict[int, LogicalTensor]:
        """All logical tensors by id."""
        return dict(self._tensors)

    @property
    def is_finalized(self) -> bool:
        """Whether `finalize` was called."""
        return self._view is not None

    def add_op(self, op: Op, allow_exception: bool = True) -> str:
        """Check an op against its schema and add it with its tensors.

        Parameters
        ----------
        op : Op
        allow_exception : bool, default=True
            With False, a failure is returned as a oneDNN status instead of raised. The graph is unchanged either way.

        Returns
        -------
        status : str
            ``"success"``, or the status of the error.

        Raises
        ------
        InvalidOpError, InvalidDataTypeError, InvalidShapeError
            The op does not satisfy its schema.
        InvalidGraphError
            The op id is taken; a tensor id stands for another tensor; a tensor has another producer already; the graph
            is finalised.

        Notes
        -----
        Cost: a few microseconds.
        """
        try:
            self._add(op)
        except GraphpoolError as error:
            if allow_exception:
                raise
            return error.status
        return "success"

    def _add(self, op: Op) -> None:
        if self._view is not None:
            raise InvalidGraphError(explain(f"{op.label}: the graph is finalised", hint="build another graph"))
        if type(op) is not Op:
            raise InvalidOpError(explain("not an op", accepted="a graphpool.Op", got=brief(op)))
        if op.id in self._ops:
            raise InvalidGraphError(
                explain(f"{op.label}: op id {op.id} is taken", accepted="unique ids", got=self._ops[op.id].label),
                op_id=op.id,
            )
        op = op.checked()
        self._check_tensors(op)
        self._ops[op.id] = op
        for tensor in op.inputs:
            self._tensors.setdefault(tensor.id, tensor)
        for tensor in op.outputs:
            self._tensors.setdefault(tensor.id, tensor)
            self._producer[tensor.id] = op

    def _check_tensors(self, op: Op) -> None:
        """One id means one tensor, and every tensor has at most one producer."""
        written: set[int] = set()
        read = {tensor.id for tensor in op.inputs}
        for tensor in (*op.inputs, *op.outputs):
            known = self._tensors.get(tensor.id, tensor)
            if known is not tensor and known != tensor:
                raise InvalidGraphError(
                    explain(f"{op.label}: tensor id {tensor.id} means two tensors", accepted=known, got=tensor),
                    op_id=op.id,
                    tensor_id=tensor.id,
                )
        for tensor in op.outputs:
            if tensor.id in self._producer or tensor.id in written:
                other = self._producer.get(tensor.id, op)
                raise InvalidGraphError(
                    explain(
                        f"{op.label}: tensor {tensor.id} has a producer already",
                        accepted="one producer",
                        got=other.label,
                    ),
                    op_id=op.id,
                    tensor_id=tensor.id,
                )
            written.add(tensor.id)
            if tensor.id in read:
                raise InvalidGraphError(
                    explain(f"{op.label}: tensor {tensor.id} is its input and its output", accepted="an acyclic graph"),
                    op_id=op.id,
                    tensor_id=tensor.id,
                )

    def finalize(self) -> None:
        """Close the graph: order the ops and complete the shapes as far as they are known. Idempotent.

        Raises
        ------
        InvalidGraphError
            The ops form a cycle.
        InvalidShapeError
            Shapes contradict one another.

        Notes
        -----
        Cost: linear in the number of ops.
        """
        if self._view is None:
            view = GraphView(list(self._ops.values()))
            self._shapes = complete_shapes(view.ops)
            if folder := config.get("graph_dump"):
                from .dumps.json import dump_graph

                dump_graph(self, folder)
            self._view = view

    def shape(self, tensor_id: int) -> tuple[int, ...] | None:
        """Shape of a tensor of the finalised graph as far as it could be inferred.

        Parameters
        ----------
        tensor_id : int

        Returns
        -------
        shape : tuple of int or None
            None when not even the rank is known, or the graph has no such tensor.

        Raises
        ------
        StateError
            The graph is not finalised.
        """
        self._finished_view()
        return self._shapes.get(tensor_id)

    def get_partitions(self, policy: str = "fusion") -> list[Partition]:
        """Partitions that cover all ops, in topological order, without a cycle among them.

        Parameters
        ----------
        policy : {"fusion", "debug"}, default="fusion"
            ``"debug"`` gives one partition an op.

        Returns
        -------
        partitions : list of Partition
            Unsupported ones (`Wildcard`, `End`, ops that no backend runs) included.

        Raises
        ------
        StateError
            The graph is not finalised.
        InvalidArgumentError
            Unknown policy.

        Notes
        -----
        Threads: safe. Cost: linear in the number of ops for graphs of bounded width.
        """
        view = self._finished_view()
        policy = check_choice("policy", policy, POLICIES)
        covers = cover(view, backends_for(self.engine_kind), policy, self._shapes)
        return [
            Partition(
                c.kind, [view.ops[i] for i in c.numbers], view, c.backend, self.engine_kind, self.fpmath, self.prefer
            )
            for c in covers
        ]

    def whole_partition(self) -> Partition | None:
        """One partition of all ops, where one backend that merges runs each of them.

        It is what `merge_partitions` makes of all that `get_partitions` gives: patterns, which take most of the time of
        that, change nothing where everything is compiled as one.

        Returns
        -------
        partition : Partition or None
            Of kind ``"merged"``, or the kind of its one op; without `End` ops. None where several backends run the ops,
            or none runs one of them.

        Raises
        ------
        StateError
            The graph is not finalised.

        Notes
        -----
        Threads: safe. Cost: linear in the number of ops.
        """
        view = self._finished_view()
        ops = [op for op in view.ops if op.outputs]
        backend = sole_backend(ops, backends_for(self.engine_kind))
        if backend is None or not (backend.merges or len(ops) == 1):
            return None
        kind = ops[0].kind if len(ops) == 1 else "merged"
        return Partition(kind, ops, view, backend, self.engine_kind, self.fpmath, self.prefer)

    def merge_partitions(self, partitions: Sequence[Partition]) -> Partition:
        """One partition of the ops of several, which is compiled as one program.

        Parameters
        ----------
        partitions : sequence of Partition
            Of this graph, of one backend, consecutive in the order in which `get_partitions` gave them: what lies
            between them in no topological order cannot be merged without a cycle.

        Returns
        -------
        partition : Partition
            Of kind ``"merged"``; the one partition itself when there is only one.

        Raises
        ------
        InvalidArgumentError
            The partitions have different backends, or none.
        """
        view = self._finished_view()
        if not isinstance(partitions, (list, tuple)) or not all(type(item) is Partition for item in partitions):
            raise InvalidArgumentError(explain("partitions to merge", accepted="Partitions", got=brief(partitions)))
        if len(partitions) == 1:
            return partitions[0]
        names = {partition.backend_name for partition in partitions}
        if len(names) != 1 or None in names:
            got = sorted(map(str, names))
            raise InvalidArgumentError(explain("partitions to merge", accepted="one backend", got=got))
        ops = view.in_order([op for partition in partitions for op in partition.ops])
        return Partition("merged", ops, view, partitions[0].backend, self.engine_kind, self.fpmath, self.prefer)

    def _finished_view(self) -> GraphView:
        if self._view is None:
            raise StateError(explain("the graph is not finalised", hint="call graph.finalize() first"))
        return self._view

    def __copy__(self) -> Graph:
        return self

    def __repr__(self) -> str:
        state = "finalised" if self.is_finalized else "open"
        return f"Graph({self.engine_kind!r}, {len(self._ops)} ops, {len(self._tensors)} tensors, {state})"
