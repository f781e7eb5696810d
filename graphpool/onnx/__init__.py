"""Runs ONNX models: an importer in front of `graphpool.Model`. `load` needs the extra ``graphpool[onnx]``.

loader.py      load(): file, bytes or ModelProto -> Model
stored_model.py  what the packed store has of a model: compiled forms, for which nothing below is imported
files.py       the files of a model, mapped
proto.py       the messages of ONNX's files, without the package onnx; arrays.py: what they hold, as arrays
source.py      reads and checks the protobuf: ports, constants (large and external ones mapped, not read), nodes
validity.py    whether a model is valid for certain; of others ONNX's checker says what is wrong; op_table.py: operators
_wire.pyx      finds large weights and long lists of attributes inside a model's file
long_lists.py  these lists, which stay there until they are read; _lists.pyx reads them from the wire format
bounds.py      what a model asks for, found out before it is done; result_sizes.py: what common nodes give
node.py        nodes and the graphs among their attributes, read once; node_order.py: sorts them
trees.py       the decision trees among a node's attributes, checked; _levels.pyx: how deep their nodes lie
encoders.py    the tables of LabelEncoders from numbers to numbers, as constants
boundary.py    whatever a step raises becomes an error of graphpool that names the node
fold.py        computes nodes ahead, where everything that they read is known
integers.py    products of integers and the scales behind them, as products of dequantised operands
two_bits.py    products with weights of 2 bits, as those with weights of 4
experts.py     mixtures of experts, as branches
specialise.py  once a model: dead nodes go, constants are computed, arithmetic is folded; then Specialiser: what is the
               same for all input shapes, and which inputs' contents decide shapes
table_places.py  places in tables that lie outside: in inputs, and as follow from sizes
walk.py        one pass over the nodes for given input shapes: fold, convert, expand, or leave to the host -> ModelForm
shape_values.py  arrays of sizes that may vary, and the nodes that compute with them
data_dependent.py  the nodes whose shapes follow from what a run computes, as a model of their own
sequences.py   sequences of known length, which no op needs to hold
inline.py      nodes in place of one, as scopes of the walk: ONNX's functions; control flow whose course is known
inner.py       If, Loop and Scan whose course only a run tells, and long loops: models for bodies and branches
build.py       the graph under construction: values, constants, ops with inferred shapes
types.py       ONNX's types and ours; result_types.py: those of what some ops give, told without ONNX's inference
ops/           ONNX op -> ops of our schema, one module a family
backend.py     ONNX's backend interface
inference_session.py  ONNX Runtime's Python interface; ort_value.py: its values; session_options.py: its options;
               capi/: its exceptions
preload.py     imports all that opening a model takes, for fork servers
host.py        host functions: NumPy (host_ops.py), our ops on the reference backend, ONNX's evaluator
host_sequences.py  lists of arrays, of which a run tells the length or the places
host_texts.py  texts, maps and errors of contents, which no kernel could do; _words.pyx: its loops
evaluator.py   that evaluator, within steps and time; evaluator_ops.py: its loops
expressions.py regular expressions as automata; _automaton.pyx: what these do on a text

load -> Model -> (first run of new shapes) -> walk -> ops/ | inline | inner | host -> Graph -> partitions
"""

from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .. import config
from .._collection import collection_paused, settle_objects
from ..errors import UnsupportedError

with collection_paused():  # what modules hold stays
    from ..cache import program_folder  # noqa: F401 - which the first `load` would import
    from .loader import importer, load

    if not config.names_store():  # else compiled forms may be there, which need no importer
        with suppress(UnsupportedError):  # without onnx, `load` says so
            importer()
    settle_objects()

if TYPE_CHECKING:
    from ..runtime.model_metadata import ModelMetadata
    from .inference_session import (
        ExecutionMode,
        ExecutionOrder,
        GraphOptimizationLevel,
        InferenceSession,
        IOBinding,
        NodeArg,
        OrtValue,
        RunOptions,
        SessionOptions,
        disable_telemetry_events,
        enable_telemetry_events,
        get_all_providers,
        get_available_providers,
        get_device,
        get_version_string,
        preload_dlls,
        set_default_logger_severity,
        set_default_logger_verbosity,
        set_seed,
    )

__all__ = [
    "ExecutionMode",
    "ExecutionOrder",
    "GraphOptimizationLevel",
    "IOBinding",
    "InferenceSession",
    "ModelMetadata",
    "NodeArg",
    "OrtValue",
    "RunOptions",
    "SessionOptions",
    "disable_telemetry_events",
    "enable_telemetry_events",
    "get_all_providers",
    "get_available_providers",
    "get_device",
    "get_version_string",
    "load",
    "preload_dlls",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
    "set_seed",
]


def __getattr__(name: str) -> Any:
    if name in ("backend", "capi"):
        return import_module(f".{name}", __name__)
    if name == "__version__":
        return import_module(".session_options", __name__).VERSION
    if name in __all__:
        module = "..runtime.model_metadata" if name == "ModelMetadata" else ".inference_session"
        return getattr(import_module(module, __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
