"""Mutated ONNX models are loaded and run once under a small memory limit.

    python -m tests.fuzz.onnx --count 100000 --seed 1

prints how they ended and keeps the smallest mutant of each finding in the folder ``--keep`` names.
"""

from __future__ import annotations

import sys
from math import prod

import numpy as np

import graphpool as gp
from tests.fuzz import harness
from tests.fuzz.onnx_mutators import mutant
from tests.fuzz.onnx_seeds import all_models, small_models

LIMIT_NBYTES = 16 << 20
HOST_DEADLINE_S = harness.HANG_S / 2
"""The default stops accidents only after minutes: a loop of a billion iterations is no hang."""

LARGEST_INPUT_NBYTES = 1 << 20
"""Inputs lie outside the engine: a model that asks for larger ones is not run."""


def load_and_run(raw: bytes) -> None:
    """Load a model, and run it once on ones."""
    with gp.onnx.load(raw, threads=1, memory_limit=LIMIT_NBYTES, host_deadline_s=HOST_DEADLINE_S) as model:
        inputs = {}
        for port in model.inputs:
            shape = tuple(dim if isinstance(dim, int) else 2 for dim in port.shape or ())
            if port.dtype is None or prod(dim or 1 for dim in shape) * 8 > LARGEST_INPUT_NBYTES or len(shape) > 32:
                return
            inputs[port.name] = np.ones(shape, port.dtype.numpy)
        with np.errstate(all="ignore"):
            model.run(inputs)


SMALL = harness.Target("onnx", lambda seed, n: mutant(small_models(), seed, n), load_and_run, LIMIT_NBYTES)
ALL = harness.Target("onnx", lambda seed, n: mutant(all_models(), seed, n), load_and_run, LIMIT_NBYTES)


if __name__ == "__main__":
    load_and_run(small_models()[0])  # what is imported on first use belongs to no mutant
    sys.exit(harness.main(ALL, __doc__))
