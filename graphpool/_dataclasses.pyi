from collections.abc import Callable
from typing import Any, TypeVar, dataclass_transform
from typing import NamedTuple as NamedTuple

_T = TypeVar("_T")

def field(
    *,
    default: Any = ...,
    default_factory: Callable[[], Any] = ...,
    init: bool = True,
    repr: bool = True,  # noqa: A002
    compare: bool = True,
    kw_only: bool = False,
) -> Any: ...
@dataclass_transform(field_specifiers=(field,))
def dataclass(
    cls: Any = None,
    /,
    *,
    init: bool = True,
    eq: bool = True,
    frozen: bool = False,
    slots: bool = False,
    kw_only: bool = False,
) -> Any: ...
def replace(instance: _T, /, **changes: Any) -> _T: ...
