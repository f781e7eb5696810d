"""Which partitions of a graph are compiled as one: neighbours of one backend in an order of all of them."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from typing import TYPE_CHECKING, Any

from graphpool.fork import cached_property
from graphpool.typing import PropertyType

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from graphpool.graph.graph import Graph
    from graphpool.graph.partition import Partition

__all__ = ["PartitionRuns", "gather", "merge_neighbours"]


MOST_PORTS = 2000
"""Tensors that a merged partition reads and writes, and reads of constants: half of what a program can name, since a
constant may have several forms for each read."""


class PartitionRuns:
    """The partitions of a graph, and those that are compiled, of which each is a run of neighbours.

    Parameters
    ----------
    graph : Graph
        Finalised.
    is_gathered : bool
        Whether host functions wait for one another: see `gather`.

    Attributes
    ----------
    compiled : sequence of Partition
        In the order in which they run.
    """

    def __init__(self, graph: Graph, is_gathered: bool) -> None:
        self._graph, self._is_gathered = graph, is_gathered
        whole = graph.whole_partition()
        fits = whole is not None and _count_ports(whole) <= MOST_PORTS
        self.compiled = [whole] if whole is not None and fits else merge_neighbours(graph, self.partitions)

    @cached_property
    def partitions(self) -> tuple[Partition, ...]:
        """Those before neighbours were merged, in the order in which they run."""
        found = [p for p in self._graph.get_partitions() if p.ops[0].outputs]
        return tuple(gather(found) if self._is_gathered else found)


def merge_neighbours(graph: Graph, partitions: Sequence[Partition]) -> list[Partition]:
    """Partitions to compile: neighbours of one backend become one, whose tensors then need no place of their own.

    Cost: linear in ops and ports.
    """
    runs: list[list[Partition]] = []
    for partition in partitions:
        backend = partition.backend
        if runs and backend is not None and backend.merges and runs[-1][-1].backend is backend:
            runs[-1].append(partition)
        else:
            runs.append([partition])
    if sum(2 * len(op.inputs) + len(op.outputs) for op in graph.ops) > MOST_PORTS:
        reads = Counter(tensor.id for op in graph.ops for tensor in op.inputs)
        runs = [part for run in runs for part in _within_ports(run, reads)]
    return [graph.merge_partitions(run) for run in runs]


def _count_ports(partition: Partition) -> int:
    """What it reads from outside and writes for the outside, and how often it reads constants."""
    reads = [tensor for op in partition.ops for tensor in op.inputs if tensor.property is PropertyType.CONSTANT]
    return len(partition.input_ports) + len(partition.output_ports) + len(reads)


def _within_ports(run: Sequence[Partition], reads: Mapping[int, int]) -> list[list[Partition]]:
    """The partitions of a run, begun anew where they would have too many ports."""
    parts: list[list[Partition]] = []
    ports = _Ports(reads)
    for partition in run:
        ports.add(partition)
        if parts and len(ports) <= MOST_PORTS:
            parts[-1].append(partition)
            continue
        if parts:
            ports = _Ports(reads)
            ports.add(partition)
        parts.append([partition])
    return parts


class _Ports:
    """What merged partitions would read from outside and write for the outside, and how often they read constants."""

    def __init__(self, reads: Mapping[int, int]) -> None:
        self._reads = reads
        self._inputs: set[int] = set()
        self._waiting: dict[int, int] = {}  # tensors that they write -> reads by others
        self._nclosed = self._nforms = 0

    def __len__(self) -> int:
        return len(self._inputs) + len(self._waiting) - self._nclosed + self._nforms

    def add(self, partition: Partition) -> None:
        """Count one more."""
        for op in partition.ops:
            for tensor in op.inputs:
                self._nforms += tensor.property is PropertyType.CONSTANT
                if tensor.id not in self._waiting:
                    self._inputs.add(tensor.id)
                elif op.kind != "End":  # which takes a tensor out, from within a partition too
                    self._waiting[tensor.id] -= 1
                    self._nclosed += not self._waiting[tensor.id]
            self._waiting.update((tensor.id, self._reads.get(tensor.id, 0)) for tensor in op.outputs)


def gather(partitions: Sequence[Partition]) -> list[Partition]:
    """The partitions in an order in which host functions interrupt programs as seldom as a greedy choice finds.

    What is between two host functions is one program, and only the steps of one program run side by side. Host
    functions wait until nothing else can go on, and then run together. The order given stays where no other has fewer
    interruptions. Cost: O(n log n) in the tensors that partitions exchange, for each backend that could come first.
    """
    order = _Order(partitions)
    candidates = [list(range(len(partitions))), *(order.greedy(first) for first in order.first_backends())]
    best = min(candidates, key=order.count_runs)
    return [partitions[number] for number in best]


class _Order:
    """Partitions by number, and who reads of whom."""

    def __init__(self, partitions: Sequence[Partition]) -> None:
        self.backends: list[Any] = [partition.backend for partition in partitions]
        made = {port.id: number for number, p in enumerate(partitions) for port in p.output_ports}
        self.sources = [{made[port.id] for port in p.input_ports if port.id in made} for p in partitions]
        self.readers: list[list[int]] = [[] for _ in partitions]
        for number, sources in enumerate(self.sources):
            for source in sources:
                self.readers[source].append(number)

    def first_backends(self) -> list[Any]:
        """Backends, None for host functions, of partitions that read of no other."""
        return list({id(b): b for b, sources in zip(self.backends, self.sources, strict=True) if not sources}.values())

    def count_runs(self, order: Sequence[int]) -> int:
        """How many times the backend changes."""
        return sum(self.backends[a] is not self.backends[b] for a, b in itertools.pairwise(order))

    def greedy(self, backend: Any) -> list[int]:
        """All that can run on a backend, from this one on, then all that can on the next."""
        missing = [len(sources) for sources in self.sources]
        ready: dict[int, list[int]] = {}
        for number, count in enumerate(missing):
            if not count:
                ready.setdefault(id(self.backends[number]), []).append(number)
        order: list[int] = []
        while any(ready.values()):
            current = ready.get(id(backend))
            if not current:
                backend = self.backends[min(numbers[0] for numbers in ready.values() if numbers)]
                continue
            order.append(heapq.heappop(current))
            for reader in self.readers[order[-1]]:
                missing[reader] -= 1
                if not missing[reader]:
                    heapq.heappush(ready.setdefault(id(self.backends[reader]), []), reader)
        return order
