"""The meaning of every operation: NumPy in float64, written to be read, the oracle of the tests.

    registry.py        @reference("MatMul") registers; evaluate(kind, inputs, attrs, outputs) widens, calls, rounds
    rounding.py        float64, int64 or uint64 <-> element types, one rounding
    axes.py window.py  shared: channel axes and broadcasting; sliding windows and auto_pad
    <group>.py         eltwise binary convolution pooling interpolation normalization reduction movement quantization
                       recurrent tree detection dropout: the operations, forward and backward side by side
    backend.py         hands whole partitions to evaluate, one operation after another

A group's functions are private; their contract stands at `registry.reference`. KINDS names all kinds that compute
(the schema's other two, End and Wildcard, have no evaluation).
"""

from __future__ import annotations

from . import (  # noqa: F401  (imported for their registrations)
    binary,
    convolution,
    detection,
    dropout,
    eltwise,
    interpolation,
    movement,
    normalization,
    pooling,
    quantization,
    recurrent,
    reduction,
    tree,
)
from .backend import ReferenceBackend
from .registry import OutputSpec, evaluate, registered_kinds

__all__ = ["KINDS", "OutputSpec", "ReferenceBackend", "evaluate"]

KINDS: frozenset[str] = registered_kinds()
"""Every op kind that `evaluate` computes."""
