from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from graphpool.memory._arrays import ArrayAllocator

from ._form_sizes import SizedArrays
from ._host_call import HostBudget
from ._program import Program
from ._result_arrays import ResultArrays
from ._step_call import Addresses
from .form_plan import FormPlan
from .model_form import ModelForm
from .shared_arenas import SharedArenas

V = TypeVar("V")

class Frame:
    """What one run at a time uses: values by tensor id, addresses in one arena, and the calls in order."""

    def __init__(
        self, address: int, values: Mapping[int, Any], addresses: Addresses, arrays: ArrayAllocator
    ) -> None: ...
    @property
    def address(self) -> int: ...
    @property
    def values(self) -> dict[int, Any]: ...
    @property
    def addresses(self) -> Addresses: ...
    @property
    def arrays(self) -> ArrayAllocator: ...
    @property
    def calls(self) -> list[Callable[[], object]]: ...

class FrameStore:
    """Idle frames of all forms that were made of one compilation."""

class RunPorts:
    """What every run of a form takes and gives, whatever its sizes."""

class FormRun:
    """Runs a form for one set of sizes on an arena and a frame at a time; base of `Runner`, which makes frames."""

    def connect(
        self,
        form: ModelForm,
        targets: Collection[int],
        made: Sequence[int],
        bound: Sequence[int],
        passing: Collection[int],
        places: dict[int, int],
        results: ResultArrays,
        arenas: SharedArenas,
        host_budget: HostBudget | None,
    ) -> None: ...
    def size(
        self,
        other: FormRun,
        arrays: SizedArrays,
        plan: FormPlan,
        uses_blas: bool,
        programs: list[Program | None] | None,
    ) -> None: ...
    def clear(self) -> None: ...
    def end(self) -> None: ...
    def run(
        self,
        inputs: Mapping[str, Any],
        outputs: Mapping[str, Any] | None = None,
        held: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]: ...
    def take_frame(self) -> Frame: ...
    def leave_frame(self, frame: Frame) -> None: ...
    def hold(self, work: Callable[[Frame], V]) -> V: ...
    def use(self, inputs: Mapping[str, Any], given: dict[str, Any], work: Callable[[Frame], V]) -> V: ...
