"""Probabilities of classes from those of their pairs (``norm/couple.c``)."""

from __future__ import annotations

from ..core.call import KernelCall, pack

__all__ = ["couple"]

_BLOCK = 16
"""Rows of a task."""


def couple(nrows: int, nclasses: int, *, isa: str | None = None) -> KernelCall:
    """Probabilities of classes, from those that pairs (0, 1), (0, 2) and so on have for their first class.

    Arguments: src of shape (nrows, nclasses (nclasses - 1) / 2), dst of shape (nrows, nclasses), dense, f32.

    Notes
    -----
    Method: Wu, Lin and Weng, *Probability Estimates for Multi-class Classification by Pairwise Coupling* (2004), the
    second one, with the starting point and the end of libsvm, in f64. Cost: the square of the classes a step, up to
    100 steps, or as many as there are classes; ten are usual.
    """
    values = {"nrows": nrows, "nclasses": nclasses, "block": _BLOCK}
    scratch_nbytes = 8 * nclasses * (nclasses + 2)
    return pack("f32_couple", values, ntasks=-(-nrows // _BLOCK), scratch_nbytes=scratch_nbytes, isa=isa)
