"""Runs ONNX models: an importer in front of `graphpool.Model`. `load` needs the extra ``graphpool[onnx]``.

loader.py      load(): file, bytes or ModelProto -> Model
source.py      reads and checks the protobuf: ports, constants (large and external ones mapped, not read), nodes
wire.py        finds large weights inside a model's file
rewrite.py     patterns of ONNX nodes that are one op here (GELU), nodes that nobody needs
specialise.py  walks the nodes for given input shapes: fold, convert, or leave to the host -> ModelForm
build.py       the graph under construction: values, constants, ops with inferred shapes
types.py       ONNX's types and ours
ops/           ONNX op -> ops of our schema, one module a family
backend.py     ONNX's backend interface
host.py        host functions: NumPy (host_ops.py) for cheap ones, ONNX's reference evaluator for all others

load -> Model -> (first run of new shapes) -> specialise -> ops/ | host -> Graph -> partitions
"""

from importlib import import_module
from typing import Any

from .loader import load

__all__ = ["load"]


def __getattr__(name: str) -> Any:
    if name == "backend":
        return import_module(".backend", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
