"""Every environment variable of graphpool, read once.

A function call beats a variable, a variable beats the default. The first read of a variable keeps its value for the
life of the process, as oneDNN does, so that no hot path parses strings.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ._dataclasses import dataclass
from .errors import InvalidArgumentError, explain

if TYPE_CHECKING:
    from collections.abc import Callable


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ValueError(text)
    return value


def _threads(text: str) -> int:
    value = int(text.split(",")[0])
    if value < 1:
        raise ValueError(text)
    return value


def _flag(text: str) -> bool:
    return {"0": False, "1": True}[text]


LOG_TOPICS = ("error", "compile", "execute", "memory", "profile")


def _topics(text: str) -> frozenset[str]:
    """``compile,memory`` as a set; ``all`` of them, ``0`` for none, ``1`` for compilations."""
    named = {"0": (), "1": ("compile",), "all": LOG_TOPICS}.get(text.strip(), text.split(","))
    topics = frozenset(topic.strip() for topic in named)
    if not topics <= set(LOG_TOPICS):
        raise ValueError(text)
    return topics


STREAM_POLICIES = ("sequential", "wavefront", "asap", "nimble", "list", "ios", "auto")


def _stream_schedule(text: str) -> tuple[str, int]:
    """``list`` or ``list:4`` as (policy, streams)."""
    policy, colon, streams = text.partition(":")
    if policy not in STREAM_POLICIES or (colon and _count(streams) < 1):
        raise ValueError(text)
    return policy, _count(streams) if colon else 2


def _capacities(text: str) -> dict[str, tuple[int, str | None]]:
    """``cpu:10240;gpu:2048:lru`` as {engine kind: (megabytes, policy or None)}."""
    found: dict[str, tuple[int, str | None]] = {}
    for part in text.strip().rstrip(";").split(";"):
        kind, megabytes, *policy = (field.strip() for field in part.split(":"))
        if kind not in ("cpu", "gpu") or kind in found or len(policy) > 1 or policy == [""]:
            raise ValueError(part)
        found[kind] = (_count(megabytes), policy[0] if policy else None)
    return found


@dataclass(frozen=True)
class Variable:
    """One variable: its spellings (the first that is set wins), how it is read, what is accepted, its default."""

    names: tuple[str, ...]
    parse: Callable[[str], Any]
    accepted: str
    default: Any
    doc: str


_ISAS = ("generic", "avx2", "avx2_vnni", "avx512", "avx512_bf16", "avx512_amx", "neon", "neon_dotprod")


def _isa(text: str) -> str:
    if text not in _ISAS:
        raise ValueError(text)
    return text


_IMPLS = {"auto": "auto", "simd": "simd", "blas": "blas", "ref": "ref", "reference": "ref"}


def _impl(text: str) -> dict[str, str]:
    """``simd,MatMul=blas`` as {"": "simd", "MatMul": "blas"}: what is under the empty name holds for all other ops."""
    found: dict[str, str] = {}
    for part in text.split(","):
        kind, _, impl = (field.strip() for field in part.rpartition("="))
        if kind in found or (("=" in part) != kind.isalnum()):
            raise ValueError(part)
        found[kind] = _IMPLS[impl]
    return found


VARIABLES = {
    "num_threads": Variable(
        ("GRAPHPOOL_NUM_THREADS", "OMP_NUM_THREADS"), _threads, "a count of at least 1", None, "Threads of an engine."
    ),
    "max_isa": Variable(
        ("GRAPHPOOL_MAX_ISA",), _isa, " | ".join(_ISAS), None, "Highest instruction set that kernels may use."
    ),
    "impl": Variable(
        ("GRAPHPOOL_IMPL",), _impl,
        "auto | simd | blas | ref, for all ops or as kind=implementation, each once, joined by ',', for instance "
        "simd,MatMul=blas",
        {}, "Implementation that ops take, where they have it: SIMD loops, BLAS, or the reference backend.",
    ),
    "primitive_cache_capacity": Variable(
        ("GRAPHPOOL_PRIMITIVE_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"),
        _count, "a count of entries", 1024, "Entries of the primitive cache.",
    ),
    "compiled_partition_cache_capacity": Variable(
        ("GRAPHPOOL_COMPILED_PARTITION_CACHE_CAPACITY", "DNNL_GRAPH_COMPILED_PARTITION_CACHE_CAPACITY"),
        _count, "a count of entries", 1024, "Entries of the compiled-partition cache.",
    ),
    "graph_dump": Variable(
        ("GRAPHPOOL_GRAPH_DUMP",), str, "a folder", None, "Folder to which every graph that is finalised is written."
    ),
    "constant_tensor_cache_capacity": Variable(
        ("GRAPHPOOL_CONSTANT_TENSOR_CACHE_CAPACITY", "ONEDNN_GRAPH_CONSTANT_TENSOR_CACHE_CAPACITY"), _capacities,
        "kind:megabytes or kind:megabytes:policy, each kind once, joined by ';', for instance cpu:10240;gpu:2048:lru",
        {}, "Capacity of the constant tensor cache of each device.",
    ),
    "packed_store": Variable(
        ("GRAPHPOOL_PACKED_STORE",), str, "a folder", None,
        "Folder in which packed weights and compiled programs are kept, for all processes that need them.",
    ),
    "cubin_folder": Variable(
        ("GRAPHPOOL_CUBIN_FOLDER",), str, "a folder", None,
        "Folder in which compiled GPU kernels are kept; `graphpool` in the user's cache folder by default.",
    ),
    "program_folder": Variable(
        ("GRAPHPOOL_PROGRAM_FOLDER",), str, "a folder, or off", None,
        "Folder in which compiled programs are kept without weights, or off; `graphpool/programs` in the user's cache "
        "folder by default.",
    ),
    "check_constants": Variable(
        ("GRAPHPOOL_CHECK_CONSTANTS",), _flag, "0 | 1", False,
        "Raise at executions whose constants were changed without `Tensor.invalidate`; reads them all each time.",
    ),
    "stream_schedule": Variable(
        ("GRAPHPOOL_STREAM_SCHEDULE",), _stream_schedule,
        f"{' | '.join(STREAM_POLICIES)}, perhaps with a number of streams, such as list:4", ("auto", 2),
        "How the steps of a model are placed on streams.",
    ),
    "step_costs": Variable(
        ("GRAPHPOOL_STEP_COSTS",), str, "a file", None,
        "JSON file of measured costs that schedules start from; those of stages are in another one beside it.",
    ),
    "verbose": Variable(
        ("GRAPHPOOL_VERBOSE",), _topics, f"0 | 1 | all | topics of {', '.join(LOG_TOPICS)}", frozenset(),
        "Topics that are logged to standard error.",
    ),
}  # fmt: skip

_values: dict[str, Any] = {}


def origin(name: str) -> str:
    """Where the value of a variable comes from: the spelling that is set, or ``default``."""
    return next((spelling for spelling in VARIABLES[name].names if os.environ.get(spelling)), "default")


def cache_folder() -> str | None:
    """The folder ``graphpool`` in the user's cache folder; None without a home, or in the home of another user.

    Root in a user's home would leave there what the user cannot remove.
    """
    home = os.path.expanduser("~")  # noqa: PTH111 - no pathlib
    folder = os.environ.get("XDG_CACHE_HOME")
    if not folder or not os.path.isabs(folder):  # noqa: PTH117
        try:
            if not os.path.isabs(home) or os.stat(home).st_uid != os.geteuid():  # noqa: PTH116, PTH117
                return None
        except OSError:
            return None
        folder = f"{home}/.cache"
    return f"{folder}/graphpool"


def program_folder() -> str | None:
    """Where compiled programs are kept without weights, if anywhere."""
    named = get("program_folder")
    if named is not None:
        return None if named == "off" else str(named)
    folder = cache_folder()
    return None if folder is None else f"{folder}/programs"


def names_store() -> bool:
    """Whether the environment names a folder for what was compiled."""
    return origin("packed_store") != "default" or (
        origin("program_folder") != "default" and program_folder() is not None
    )


def describe(name: str) -> str:
    """The value of a variable as it is set, or the default in words; raises as `get`."""
    value, spelling = get(name), origin(name)
    if spelling != "default":
        return os.environ[spelling]
    if name == "program_folder":
        return program_folder() or "off"
    if name == "stream_schedule":
        return f"{value[0]}:{value[1]}"
    return str(value) if value or isinstance(value, bool) else "not set"


def get(name: str) -> Any:
    """The value of a variable of `VARIABLES`, parsed at the first call; InvalidArgumentError if malformed."""
    if name not in _values:
        variable = VARIABLES[name]
        _values[name] = variable.default
        spelling = origin(name)
        if spelling != "default":
            text = os.environ[spelling]
            try:
                _values[name] = variable.parse(text)
            except (ValueError, KeyError) as error:
                del _values[name]
                raise InvalidArgumentError(
                    explain(f"environment variable {spelling} is malformed", accepted=variable.accepted, got=text)
                ) from error
    return _values[name]
