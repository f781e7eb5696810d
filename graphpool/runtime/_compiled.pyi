from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Final, Self

from graphpool.cache import ConstantBuffer, PackedKey
from graphpool.graph import LogicalTensor, Partition
from graphpool.memory import ArenaStats
from graphpool.schedule import Schedule

from ._program import Program
from ._stream import Stream
from ._tensor import Tensor
from .constant_part import ExecuteOptions
from .engine import Engine
from .primitive import Primitive
from .shared_arenas import SharedArenas

ALIGNMENT: int
SCRATCH_MODES: tuple[str, ...]
WEIGHTS_MODES: tuple[str, ...]

class PortTable:
    def __init__(self, nports: int) -> None: ...

class CompiledPartition:
    def __init__(
        self,
        partition: Partition,
        inputs: Iterable[LogicalTensor],
        outputs: Iterable[LogicalTensor],
        engine: Engine,
        *,
        primitive: Primitive | None = None,
        host_function: Callable[[list[Any]], Sequence[Any]] | None = None,
        implementations: Iterable[str] = (),
        scratch: str = "primitive",
        weights: str = "cached",
    ) -> None: ...
    template: Any
    partition: Final[Partition]
    inputs: Final[tuple[LogicalTensor, ...]]
    outputs: Final[tuple[LogicalTensor, ...]]
    engine: Final[Engine]
    primitive: Final[Primitive | None]
    scratch: Final[str]
    weights: Final[str]
    program: Final[Program | None]
    implementations: Final[tuple[str, ...]]
    @property
    def step_ops(self) -> tuple[int, ...]: ...
    inplace_ports: Final[tuple[tuple[int, int], ...]]
    scratchpad_nbytes: Final[int]
    schedule: Final[Schedule | None]
    sequential_nbytes: Final[int]
    @property
    def is_closed(self) -> bool: ...
    def query_logical_tensor(self, id: int) -> LogicalTensor: ...
    def resized(
        self, program: Program, ports: dict[int, LogicalTensor], shared: SharedArenas | None = None
    ) -> CompiledPartition: ...
    def predict_peak(self, executions: int = 1) -> int: ...
    def cached_constants(self) -> dict[tuple[Hashable, Hashable], int]: ...
    def has_cached_constants(self) -> bool: ...
    def stats(self) -> ArenaStats | None: ...
    def execute(
        self,
        stream: Stream,
        inputs: Iterable[Tensor],
        outputs: Iterable[Tensor] | None = None,
        *,
        scratchpad: Any = None,
        options: ExecuteOptions | None = None,
    ) -> Sequence[Tensor]: ...
    def prepare(
        self, inputs: Iterable[Tensor], *, options: ExecuteOptions | None = None, stream: Stream | None = None
    ) -> None: ...
    def _know_constants(self, keys: Sequence[PackedKey]) -> None: ...
    def own_constant(
        self, part: int, inputs: Iterable[Tensor], stream: Stream
    ) -> tuple[tuple[Hashable, Hashable], ConstantBuffer] | tuple[None, None]: ...
    def replace_constant(
        self, part: int, key: tuple[Hashable, Hashable], buffer: ConstantBuffer, inputs: Iterable[Tensor]
    ) -> None: ...
    def trim(self) -> int: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *exc_info: object) -> None: ...

def _recompile(
    partition: Partition,
    inputs: Iterable[LogicalTensor],
    outputs: Iterable[LogicalTensor],
    engine: Engine,
    modes: dict[str, Any],
) -> CompiledPartition | Any: ...
