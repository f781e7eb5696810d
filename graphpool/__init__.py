"""graphpool: run neural-network graphs on a CPU inside a memory limit.

The public names; each is imported when it is first used, so that ``import graphpool`` stays quick.
"""

from functools import partial as _partial
from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from . import _backend_loader
from ._version import __version__ as __version__
from .errors import (
    BackendError,
    GraphpoolError,
    GraphpoolWarning,
    InvalidArgumentError,
    InvalidDataTypeError,
    InvalidGraphError,
    InvalidOpError,
    InvalidShapeError,
    LimitError,
    MemoryTimeoutError,
    OutOfMemoryError,
    PerformanceWarning,
    ScheduleError,
    StateError,
    UnsupportedError,
)

if _TYPE_CHECKING:
    from . import cache, fleet, memory, onnx, profile, rows, schedule, serve
    from .cache import (
        get_compiled_partition_cache_capacity,
        get_constant_tensor_cache,
        get_constant_tensor_cache_capacity,
        get_primitive_cache_capacity,
        set_compiled_partition_cache_capacity,
        set_constant_tensor_cache,
        set_constant_tensor_cache_capacity,
        set_primitive_cache_capacity,
    )
    from .graph import Graph, LogicalTensor, Op, Partition
    from .limits import Limits
    from .memory import CallbackResource as Allocator
    from .profile import profile_ops
    from .runtime import (
        CompiledPartition,
        DynamicPartition,
        Engine,
        Event,
        ExecuteOptions,
        Model,
        Session,
        SharedModel,
        Stream,
        Tensor,
        load_tensor,
        save_tensor,
        share,
    )
    from .typing import UNKNOWN_DIM, DataType, LayoutType, PropertyType

__all__ = [
    "UNKNOWN_DIM",
    "Allocator",
    "BackendError",
    "CompiledPartition",
    "DataType",
    "DynamicPartition",
    "Engine",
    "Event",
    "ExecuteOptions",
    "Graph",
    "GraphpoolError",
    "GraphpoolWarning",
    "InvalidArgumentError",
    "InvalidDataTypeError",
    "InvalidGraphError",
    "InvalidOpError",
    "InvalidShapeError",
    "LayoutType",
    "LimitError",
    "Limits",
    "LogicalTensor",
    "MemoryTimeoutError",
    "Model",
    "Op",
    "OutOfMemoryError",
    "Partition",
    "PerformanceWarning",
    "PropertyType",
    "ScheduleError",
    "Session",
    "SharedModel",
    "StateError",
    "Stream",
    "Tensor",
    "UnsupportedError",
    "cache",
    "fleet",
    "get_compiled_partition_cache_capacity",
    "get_constant_tensor_cache",
    "get_constant_tensor_cache_capacity",
    "get_primitive_cache_capacity",
    "load_tensor",
    "memory",
    "onnx",
    "profile",
    "profile_ops",
    "rows",
    "save_tensor",
    "schedule",
    "serve",
    "set_compiled_partition_cache_capacity",
    "set_constant_tensor_cache",
    "set_constant_tensor_cache_capacity",
    "set_primitive_cache_capacity",
    "share",
]

_MODULES = (
    "cache", "dask", "fleet", "graph", "memory", "onnx", "profile", "ray", "rows", "runtime", "schedule", "serve",
    "spark", "typing",
)  # fmt: skip
_HOMES = {
    **dict.fromkeys([name for name in __all__ if "_cache" in name], "cache"),
    **dict.fromkeys(["Graph", "LogicalTensor", "Op", "Partition"], "graph"),
    **dict.fromkeys(["CompiledPartition", "DynamicPartition", "Engine", "Event", "ExecuteOptions"], "runtime"),
    **dict.fromkeys(
        ["Model", "Session", "SharedModel", "Stream", "Tensor", "load_tensor", "save_tensor", "share"], "runtime"
    ),
    **dict.fromkeys(["UNKNOWN_DIM", "DataType", "LayoutType", "PropertyType"], "typing"),
    "Limits": "limits",
    "profile_ops": "profile",
}


def __getattr__(name: str) -> _Any:
    if name in _MODULES:
        return _import_own(name)
    if name == "Allocator":
        value = _import_own("memory").CallbackResource
    elif name in _HOMES:
        value = getattr(_import_own(_HOMES[name]), name)
    else:
        raise AttributeError(f"module 'graphpool' has no attribute {name!r}")
    globals()[name] = value
    return value


def _import_own(name: str) -> _Any:
    """A module of the package; ImportError that says what to do where the compiled ones are missing."""
    try:
        return _import_module(f".{name}", __name__)
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith(f"{__name__}."):
            raise
        hint = "this is a source tree that was not built: ./run setup, or pip install ."
        raise ImportError(f"the compiled module {error.name} is missing; {hint}", name=error.name) from error


def _load_backends(engine_kind: str) -> None:
    _import_module(".backends", __name__).load(engine_kind)


_backend_loader.loaders.update({kind: _partial(_load_backends, kind) for kind in ("cpu", "gpu")})


def __dir__() -> list[str]:
    return sorted(__all__)
