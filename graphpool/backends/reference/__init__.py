"""The meaning of every operation: NumPy in float64, written to be read, the oracle of the tests.

    registry.py        @reference("MatMul") registers; evaluate(kind, inputs, attrs, outputs) widens, calls, rounds
    rounding.py        float64, int64 or uint64 <-> element types, one rounding
    axes.py window.py  shared: channel axes and broadcasting; sliding windows and auto_pad
    <group>.py         eltwise binary convolution pooling interpolation normalization reduction movement quantization
                       recurrent tree detection dropout: the operations, forward and backward side by side
    backend.py         hands whole partitions to evaluate, one operation after another

A group's functions are private; their contract stands at `registry.reference`. Groups are imported when somebody asks
for one of their kinds. `registered_kinds` names all that compute (the schema's other two, End and Wildcard, have no
evaluation).
"""

from __future__ import annotations

from .backend import ReferenceBackend
from .registry import OutputSpec, evaluate, registered_kinds

__all__ = ["OutputSpec", "ReferenceBackend", "evaluate", "registered_kinds"]
