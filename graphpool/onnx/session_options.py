"""Options of ONNX Runtime's interface, and what it tells of the process: see `inference_session`."""

from __future__ import annotations

import enum
import logging
from typing import TYPE_CHECKING, Any

from graphpool._dataclasses import dataclass, field
from graphpool.errors import InvalidArgumentError, UnsupportedError, brief, explain

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "PROVIDER",
    "VERSION",
    "ExecutionMode",
    "ExecutionOrder",
    "GraphOptimizationLevel",
    "RunOptions",
    "SessionOptions",
    "disable_telemetry_events",
    "enable_telemetry_events",
    "get_all_providers",
    "get_available_providers",
    "get_device",
    "get_version_string",
    "preload_dlls",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
    "set_seed",
]  # fmt: skip

PROVIDER = "CPUExecutionProvider"
"""The only one that there is."""

VERSION = "1.31.1"
"""Of ONNX Runtime, whose interface this is; programs compare it."""


class GraphOptimizationLevel(enum.IntEnum):
    """How far ONNX Runtime rewrites graphs. graphpool always does all of it."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(enum.IntEnum):
    """Whether nodes that do not depend on one another may run side by side: see `SessionOptions`."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(enum.IntEnum):
    """In which order ONNX Runtime takes the nodes. graphpool schedules by itself."""

    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


def get_available_providers() -> list[str]:
    """The providers that a session can run on: the CPU's.

    Returns
    -------
    list of str
    """
    return [PROVIDER]


def get_all_providers() -> list[str]:
    """All providers that there are: the CPU's.

    Returns
    -------
    list of str
    """
    return [PROVIDER]


def get_device() -> str:
    """The device that sessions run on: ``"CPU"``.

    Returns
    -------
    str
    """
    return "CPU"


def get_version_string() -> str:
    """The version of ONNX Runtime whose interface this is; also ``graphpool.onnx.__version__``.

    Returns
    -------
    str
    """
    return VERSION


def preload_dlls(cuda: bool = True, cudnn: bool = True, msvc: bool = True, directory: str | None = None) -> None:
    """Nothing to do: no libraries of other providers are loaded.

    Parameters
    ----------
    cuda, cudnn, msvc : bool, default=True
        Without effect.
    directory : str, optional
        Without effect.
    """


def set_default_logger_verbosity(verbosity: int) -> None:
    """Nothing to do: `set_default_logger_severity` says what is logged.

    Parameters
    ----------
    verbosity : int
        Without effect.
    """


def set_seed(seed: int) -> None:
    """Nothing to do: random numbers of a model follow from seeds in its file, or are drawn anew.

    Parameters
    ----------
    seed : int
        Without effect.
    """


def disable_telemetry_events() -> None:
    """Nothing to do: graphpool sends nothing."""


def enable_telemetry_events() -> None:
    """Nothing to do: graphpool sends nothing."""


def set_default_logger_severity(severity: int) -> None:
    """Let the logger ``graphpool`` pass messages of this severity and above.

    Parameters
    ----------
    severity : int
        0 verbose, 1 information, 2 warnings, 3 errors, 4 fatal errors.

    Raises
    ------
    InvalidArgumentError
        It is none of these.

    Notes
    -----
    Threads: safe. It holds for the process.
    """
    levels = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)
    if not isinstance(severity, int) or not 0 <= severity < len(levels):
        raise InvalidArgumentError(explain("severity", accepted="0 to 4", got=brief(severity)))
    logging.getLogger("graphpool").setLevel(levels[severity])


def _find_entry(entries: Mapping[str, str], key: str) -> str:
    """The setting under a key; InvalidArgumentError where there is none."""
    if key not in entries:
        raise InvalidArgumentError(explain(f"no config entry {key!r}", accepted=sorted(entries)))
    return entries[key]


@dataclass(slots=True)
class SessionOptions:
    """Options of a session.

    Attributes
    ----------
    intra_op_num_threads : int, default=0
        Threads of the session's engine; 0 for graphpool's default.
    inter_op_num_threads : int, default=0
        With ``execution_mode`` ``ORT_PARALLEL``: most streams that steps are placed on; 0 for graphpool's default.
    execution_mode : ExecutionMode, default=ORT_SEQUENTIAL
        ``ORT_SEQUENTIAL`` leaves it to graphpool whether steps run side by side, which results do not show.
    graph_optimization_level, execution_order, enable_cpu_mem_arena, enable_mem_pattern, enable_mem_reuse, \
use_deterministic_compute, use_per_session_threads, log_severity_level, log_verbosity_level, logid, \
profile_file_prefix
        Without effect: graphpool always rewrites graphs, plans memory and gives the same bits for the same inputs, and
        logs by Python's `logging`.
    enable_profiling : bool, default=False
        Refused when True: `graphpool.profile` has traces.
    optimized_model_filepath : str, default=""
        Refused unless empty: compiled models are not written as ONNX.

    Notes
    -----
    Other attributes do not exist. Threads: not safe; a session reads the options when it is made.
    """

    intra_op_num_threads: int = 0
    inter_op_num_threads: int = 0
    execution_mode: ExecutionMode = ExecutionMode.ORT_SEQUENTIAL
    graph_optimization_level: GraphOptimizationLevel = GraphOptimizationLevel.ORT_ENABLE_ALL
    execution_order: ExecutionOrder = ExecutionOrder.DEFAULT
    enable_cpu_mem_arena: bool = True
    enable_mem_pattern: bool = True
    enable_mem_reuse: bool = True
    enable_profiling: bool = False
    use_deterministic_compute: bool = False
    use_per_session_threads: bool = True
    log_severity_level: int = 2
    log_verbosity_level: int = 0
    logid: str = ""
    optimized_model_filepath: str = ""
    profile_file_prefix: str = "onnxruntime_profile_"
    _entries: dict[str, str] = field(default_factory=dict, repr=False)
    _sizes: dict[str, int] = field(default_factory=dict, repr=False)

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Keep a setting under a key of ONNX Runtime's; graphpool reads none of them.

        Parameters
        ----------
        key, value : str
        """
        self._entries[key] = value

    def get_session_config_entry(self, key: str) -> str:
        """The setting under a key.

        Parameters
        ----------
        key : str

        Returns
        -------
        value : str

        Raises
        ------
        InvalidArgumentError
            There is none.
        """
        return _find_entry(self._entries, key)

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        """Declare the size of a named dimension: the model is compiled for it when it is loaded.

        Parameters
        ----------
        name : str
        size : int
        """
        self._sizes[name] = size

    def add_initializer(self, name: str, value: Any) -> None:
        """Not supported.

        Parameters
        ----------
        name : str
        value : OrtValue

        Raises
        ------
        UnsupportedError
            Always.
        """
        raise _unsupported("add_initializer", "put the content into the file, or make it an input")

    def register_custom_ops_library(self, path: str) -> None:
        """Not supported.

        Parameters
        ----------
        path : str

        Raises
        ------
        UnsupportedError
            Always.
        """
        raise _unsupported("register_custom_ops_library", "graphpool takes ops as ONNX's functions in the file")

    def _arguments(self) -> dict[str, Any]:
        """What they are as arguments of `graphpool.onnx.load`."""
        if self.enable_profiling:
            raise _unsupported("enable_profiling", "use graphpool.profile")
        if self.optimized_model_filepath:
            raise _unsupported("optimized_model_filepath", "leave it empty")
        arguments: dict[str, Any] = {"threads": self.intra_op_num_threads or None, "shapes": dict(self._sizes) or None}
        if self.execution_mode == ExecutionMode.ORT_PARALLEL:
            arguments["streams"] = self.inter_op_num_threads or None
        return arguments


class RunOptions:
    """Options of a run.

    Attributes
    ----------
    terminate : bool, default=False
        Whether runs that are given these options are refused.
    log_severity_level, log_verbosity_level, logid, only_execute_path_to_fetches
        Without effect.

    Notes
    -----
    Settings under a key of ONNX Runtime's (`add_run_config_entry`) are kept; graphpool reads none of them. Threads: not
    safe; a run reads the options when it begins.
    """

    __slots__ = (
        "_entries",
        "log_severity_level",
        "log_verbosity_level",
        "logid",
        "only_execute_path_to_fetches",
        "terminate",
    )

    def __init__(self) -> None:
        self.terminate = False
        self.log_severity_level = 2
        self.log_verbosity_level = 0
        self.logid = ""
        self.only_execute_path_to_fetches = False
        self._entries: dict[str, str] = {}

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Keep a setting; graphpool reads none of them.

        Parameters
        ----------
        key, value : str
        """
        self._entries[key] = value

    def get_run_config_entry(self, key: str) -> str:
        """The setting under a key.

        Parameters
        ----------
        key : str

        Returns
        -------
        value : str

        Raises
        ------
        InvalidArgumentError
            There is none.
        """
        return _find_entry(self._entries, key)


def _unsupported(what: str, hint: str) -> UnsupportedError:
    return UnsupportedError(explain(f"{what} is not supported", hint=hint))
