"""Runs ONNX models: an importer in front of `graphpool.Model`. `load` needs the extra ``graphpool[onnx]``.

loader.py      load(): file, bytes or ModelProto -> Model
source.py      reads and checks the protobuf: ports, constants (external data mapped, not read), nodes
rewrite.py     patterns of ONNX nodes that are one op here (GELU), nodes that nobody needs
specialise.py  walks the nodes for given input shapes: fold, convert, or leave to the host -> ModelForm
build.py       the graph under construction: values, constants, ops with inferred shapes
types.py       ONNX's types and ours
ops/           ONNX op -> ops of our schema, one module a family
host.py        host functions: NumPy (host_ops.py) for cheap ones, ONNX's reference evaluator for all others

load -> Model -> (first run of new shapes) -> specialise -> ops/ | host -> Graph -> partitions
"""

from .loader import load

__all__ = ["load"]
