from collections.abc import Callable, Sequence
from typing import Any, Literal

from ._compiled import CompiledPartition
from ._host_call import HostBudget
from ._program import Program
from ._stream import Stream
from ._tensor import Tensor
from ._trip_sizes import TripSizes
from .described import Described

def address_of(array: Any) -> int: ...

class Addresses:
    def __init__(self, count: int) -> None: ...
    @property
    def count(self) -> int: ...
    def copy(self) -> Addresses: ...
    def get(self, number: int) -> int: ...
    def put(self, number: int, address: int) -> None: ...
    def bind(
        self,
        ids: tuple[int, ...],
        values: dict[int, Any],
        wanted: list[Described],
        tensor_of: Callable[[int, Any], Tensor],
    ) -> None: ...
    def unbind(self) -> None: ...

class StepPorts:
    def __init__(
        self,
        compiled: CompiledPartition,
        stream: Stream,
        constants: Sequence[Tensor | None],
        numbers: Sequence[int],
        scratch: int,
    ) -> None: ...

class StepCall:
    def __init__(self, ports: StepPorts, program: Program, addresses: Addresses) -> None: ...
    def __call__(self) -> None: ...

class InnerCalls:
    def __init__(
        self, addresses: Addresses, calls: Sequence[StepCall | InnerCall], passed: Sequence[tuple[int, int, int]]
    ) -> None: ...

class InnerCall:
    def __init__(
        self,
        addresses: Addresses,
        condition: int,
        open_calls: Callable[[int], InnerCalls | InnerTrips | None],
        work: Callable[[], None],
    ) -> None: ...

class Trips:
    def __init__(
        self,
        addresses: Addresses,
        calls: Sequence[StepCall | InnerCall],
        carried: Sequence[tuple[int, int, bool, int, int, int, int]],
        read: Sequence[tuple[int, bool, int, int, int]],
        written: Sequence[tuple[int, bool, int, int, int]],
        counter: int,
        first: int,
        condition: int,
        condition_at: int,
        sizes: TripSizes | None = None,
    ) -> None: ...
    @property
    def halt(self) -> Literal["form", "room", "bytes"] | None: ...
    @property
    def is_ended(self) -> bool: ...
    def content(self, number: int) -> int: ...
    def run(self, most: int, time_ns: int) -> int: ...

class InnerTrips:
    def __init__(
        self,
        trips: Trips,
        passed: Sequence[tuple[int, int]],
        carried: Sequence[tuple[int, int, int]],
        kept: Sequence[tuple[int, int, int]],
        moving: Sequence[tuple[int, int]],
        length: int,
        count: int,
        condition: int,
        budget: HostBudget,
        label: str,
        held: object,
    ) -> None: ...
