"""A schedule: a graph and the instructions that run it, in issue order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphpool._dataclasses import dataclass, field
from graphpool.errors import InvalidArgumentError, brief, explain

from ..fork import cached_property
from .graph import DependencyGraph, as_tuple, check_graph
from .instructions import AddEvent, Instruction, Run, SetStream, StreamBarrier, WaitEvent

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.figure import Figure

    from .simulation import Simulation


@dataclass(frozen=True, eq=False)
class Schedule:
    """Instructions that run a graph on one or more streams.

    Parameters
    ----------
    graph : DependencyGraph
        What is run.
    instructions : sequence of Instruction
        In issue order. Nothing is checked here: `verify` says whether they respect the graph.
    policy : str, default="custom"
        Who made it.
    details : mapping, default={}
        Numbers that the policy found on its way (for ``ios``: states, transitions, latency).
    merged_costs : mapping from tuple of int to float, default={}
        Cost of a `Run` that computes several nodes, by its ``nodes``.

    Raises
    ------
    InvalidArgumentError
        `graph` is no graph, or an entry of `instructions` no instruction, or a malformed one.

    Notes
    -----
    Ownership: shares the graph. Threads: safe, it never changes. Cost: O(instructions) for the first `streams`.
    Source: RAF's stream operators in A-normal form, where the order of bindings is the order of issue.
    """

    graph: DependencyGraph
    instructions: tuple[Instruction, ...]
    policy: str = "custom"
    details: Mapping[str, Any] = field(default_factory=dict)
    merged_costs: Mapping[tuple[int, ...], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_graph(self.graph)
        object.__setattr__(self, "instructions", as_tuple("instructions", self.instructions, "instructions"))
        for index, instruction in enumerate(self.instructions):
            if not isinstance(instruction, Instruction):
                accepted = "SetStream, Run, AddEvent, WaitEvent or StreamBarrier"
                message = explain(f"instructions[{index}] is no instruction", accepted=accepted, got=brief(instruction))
                raise InvalidArgumentError(message, index=index)
            if isinstance(instruction, Run) and not isinstance(instruction.merged, tuple):
                what, got = f"instructions[{index}].merged", brief(instruction.merged)
                raise InvalidArgumentError(explain(what, accepted="a tuple of node numbers", got=got), index=index)

    @cached_property
    def _nodes_by_stream(self) -> dict[int, list[int]]:
        streams: dict[int, list[int]] = {}
        current = 0
        for instruction in self.instructions:
            if isinstance(instruction, SetStream):
                current = instruction.stream_id
            elif isinstance(instruction, Run):
                streams.setdefault(current, []).extend(instruction.nodes)
        return dict(sorted(streams.items()))

    @property
    def stream_ids(self) -> tuple[int, ...]:
        """Ids of the streams that run something, ascending."""
        return tuple(self._nodes_by_stream)

    @property
    def streams(self) -> list[list[int]]:
        """Nodes of each stream of `stream_ids`, in the order they run there."""
        return [list(nodes) for nodes in self._nodes_by_stream.values()]

    @property
    def order(self) -> tuple[int, ...]:
        """Nodes in issue order."""
        return tuple(node for i in self.instructions if isinstance(i, Run) for node in i.nodes)

    @property
    def num_waits(self) -> int:
        """Number of `WaitEvent` instructions."""
        return self._count(WaitEvent)

    @property
    def num_events(self) -> int:
        """Number of `AddEvent` instructions."""
        return self._count(AddEvent)

    @property
    def num_barriers(self) -> int:
        """Number of `StreamBarrier` instructions."""
        return self._count(StreamBarrier)

    def _count(self, kind: type) -> int:
        return sum(isinstance(instruction, kind) for instruction in self.instructions)

    def plot(self, simulation: Simulation | None = None) -> Figure:
        """Draw the timeline of the streams, one row each; calls of one name have one colour, whatever number leads it.

        Parameters
        ----------
        simulation : Simulation, optional
            Of this schedule. Default: a simulation with the costs of the graph.

        Returns
        -------
        figure : matplotlib.figure.Figure
            Not shown, and not registered with pyplot, so that nothing has to close it.

        Raises
        ------
        UnsupportedError
            matplotlib is not installed; it comes with the extra ``graphpool[profile]``.

        Notes
        -----
        Ownership: the caller owns the figure. Threads: safe. Cost: O(nodes). Source: a Gantt chart.
        """
        from ..drawing import Bar, draw_rows

        if simulation is None:
            from .simulation import simulate

            simulation = simulate(self)
        names = simulation.names
        rows = {
            f"stream {key}": [
                Bar(_kind(names[nodes[0]]), "+".join(names[v] for v in nodes), start, end, 0, 1)
                for nodes, start, end in calls
            ]
            for key, calls in simulation.streams.items()
        }
        return draw_rows(rows, f"{self.policy}: makespan {simulation.makespan:g}", "time (unit of the costs)")

    def __str__(self) -> str:
        return "\n".join(map(str, self.instructions))

    def __repr__(self) -> str:
        return (
            f"Schedule({self.policy}: {len(self.graph)} nodes on {len(self.stream_ids)} streams, "
            f"{self.num_events} events, {self.num_waits} waits, {self.num_barriers} barriers)"
        )


def _kind(name: str) -> str:
    """The kind of op in the name of a node, as in ``3 MatMul``."""
    number, _, kind = name.partition(" ")
    return kind if kind and number.isdecimal() else name
