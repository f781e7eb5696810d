"""A finished graph as the partitioner and the lowerings read it: numbered ops, producers and consumers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import InvalidGraphError, explain

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence

    from .op import Op


class GraphView:
    """Ops in a topological order, ties as given, numbered 0 .. n-1, with their wires.

    `producer` is tensor id -> number of the op that writes it, absent for tensors that come from outside; `consumers`
    tensor id -> (number of the op, input port), in topological order. Raises InvalidGraphError for a cycle, which the
    message names. Cost: linear in ops and ports. Threads: immutable after construction.
    """

    __slots__ = ("_numbers", "_predecessors", "_successors", "_users", "consumers", "ops", "producer")

    def __init__(self, ops: Sequence[Op]) -> None:
        reads = [[tensor.id for tensor in op.inputs] for op in ops]
        writes = [[tensor.id for tensor in op.outputs] for op in ops]
        order = _topological_order(ops, reads, writes)
        self.ops: list[Op] = [ops[i] for i in order]
        self._numbers = {op.id: number for number, op in enumerate(self.ops)}
        self.producer: dict[int, int] = {}
        self.consumers: dict[int, list[tuple[int, int]]] = {}
        # matching asks for these over and over, so they are lists, made once
        self._users: dict[int, list[int]] = {}
        self._predecessors: list[list[int]] = []
        producer, consumers, users = self.producer, self.consumers, self._users
        for number, i in enumerate(order):
            self._predecessors.append([producer[tensor_id] for tensor_id in reads[i] if tensor_id in producer])
            for tensor_id in writes[i]:
                producer[tensor_id] = number
            for port, tensor_id in enumerate(reads[i]):
                if tensor_id not in consumers:
                    consumers[tensor_id], users[tensor_id] = [(number, port)], [number]
                    continue
                consumers[tensor_id].append((number, port))
                if users[tensor_id][-1] != number:
                    users[tensor_id].append(number)
        self._successors = [[user for tensor_id in writes[i] for user in users.get(tensor_id, ())] for i in order]

    def in_order(self, ops: Iterable[Op]) -> list[Op]:
        """Ops of the graph in topological order."""
        return [self.ops[number] for number in sorted(self._numbers[op.id] for op in ops)]

    def users(self, tensor_id: int) -> list[int]:
        """Numbers of the ops that read a tensor, each once, in topological order; the caller does not change it."""
        return self._users.get(tensor_id, [])

    def successors(self, number: int) -> list[int]:
        """Numbers of the ops that read an output of op `number`; the caller does not change it."""
        return self._successors[number]

    def predecessors(self, number: int) -> list[int]:
        """Numbers of the ops that write an input of op `number`; the caller does not change it."""
        return self._predecessors[number]

    def is_read_within(self, number: int, readers: Container[int]) -> bool:
        """Whether nobody but these ops reads an output of op `number`."""
        return all(user in readers for user in self._successors[number])


def _topological_order(ops: Sequence[Op], reads: Sequence[list[int]], writes: Sequence[list[int]]) -> list[int]:
    """Depth-first from the inputs, so that chains of ops stay together; `reads` and `writes` are ids of tensors."""
    producer = {tensor_id: i for i, ids in enumerate(writes) for tensor_id in ids}
    waiting = []
    readers: list[list[int]] = [[] for _ in ops]
    for i, ids in enumerate(reads):
        sources = [producer[tensor_id] for tensor_id in ids if tensor_id in producer]
        for source in sources:
            readers[source].append(i)
        waiting.append(len(sources))
    ready = [i for i in range(len(ops) - 1, -1, -1) if waiting[i] == 0]
    order = []
    while ready:
        i = ready.pop()
        order.append(i)
        for j in reversed(readers[i]):
            waiting[j] -= 1
            if waiting[j] == 0:
                ready.append(j)
    if len(order) != len(ops):
        _raise_cycle(ops, producer, {i for i in range(len(ops)) if waiting[i] > 0})
    return order


def _raise_cycle(ops: Sequence[Op], producer: dict[int, int], stuck: set[int]) -> None:
    """Walk backwards through ops that wait for one another until one repeats."""
    path: list[int] = []
    i = min(stuck)
    while i not in path:
        path.append(i)
        i = next(producer[t.id] for t in ops[i].inputs if producer.get(t.id) in stuck)
    cycle = [ops[j].label for j in reversed(path[path.index(i) :])]
    raise InvalidGraphError(
        explain("the graph has a cycle", accepted="an acyclic graph", got=" -> ".join([*cycle, cycle[0]])),
        op_ids=[ops[j].id for j in path[path.index(i) :]],
    )
