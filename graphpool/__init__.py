"""graphpool: run neural-network graphs on a CPU inside a memory limit.

The public names; each is imported when it is first used, so that ``import graphpool`` stays quick.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

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
    OutOfMemoryError,
    PerformanceWarning,
    ScheduleError,
    StateError,
    UnsupportedError,
)
from .graph.backend import set_loader as _set_loader
from .limits import Limits
from .typing import UNKNOWN_DIM, DataType, LayoutType, PropertyType

if _TYPE_CHECKING:
    from . import cache, memory, onnx, profile, schedule
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
    from .memory import CallbackResource as Allocator
    from .profile import profile_ops
    from .runtime import CompiledPartition, DynamicPartition, Engine, Event, ExecuteOptions, Model, Stream, Tensor

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
    "Model",
    "Op",
    "OutOfMemoryError",
    "Partition",
    "PerformanceWarning",
    "PropertyType",
    "ScheduleError",
    "StateError",
    "Stream",
    "Tensor",
    "UnsupportedError",
    "cache",
    "get_compiled_partition_cache_capacity",
    "get_constant_tensor_cache",
    "get_constant_tensor_cache_capacity",
    "get_primitive_cache_capacity",
    "memory",
    "onnx",
    "profile",
    "profile_ops",
    "schedule",
    "set_compiled_partition_cache_capacity",
    "set_constant_tensor_cache",
    "set_constant_tensor_cache_capacity",
    "set_primitive_cache_capacity",
]

_MODULES = ("cache", "memory", "onnx", "profile", "schedule")
_HOMES = {
    **dict.fromkeys([name for name in __all__ if "_cache" in name], "cache"),
    **dict.fromkeys(["Graph", "LogicalTensor", "Op", "Partition"], "graph"),
    **dict.fromkeys(["CompiledPartition", "DynamicPartition", "Engine", "Event", "ExecuteOptions"], "runtime"),
    **dict.fromkeys(["Model", "Stream", "Tensor"], "runtime"),
    "profile_ops": "profile",
}


def __getattr__(name: str) -> _Any:
    if name in _MODULES:
        return _import_module(f".{name}", __name__)
    if name == "Allocator":
        value = _import_module(".memory", __name__).CallbackResource
    elif name in _HOMES:
        value = getattr(_import_module(f".{_HOMES[name]}", __name__), name)
    else:
        raise AttributeError(f"module 'graphpool' has no attribute {name!r}")
    globals()[name] = value
    return value


def _load_backends() -> None:
    _import_module(".backends", __name__).load()


_set_loader(_load_backends)


def __dir__() -> list[str]:
    return sorted(__all__)
