"""Shape rule of recurrent layers. Its docstring says the rule in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphpool.typing import UNKNOWN_DIM

from .query import Shape, ShapeQuery

if TYPE_CHECKING:
    from collections.abc import Sequence

_GATES = {"rnn": 1, "gru": 3, "lstm": 4}


def recurrent(query: ShapeQuery) -> Sequence[Shape]:
    """src is (steps, batch, directions * gates * hidden), weights are (directions, hidden, gates * hidden).

    With transpose_b weights have their last two axes in the other order. biases are (directions, 2 * gates * hidden):
    of src, then of the states; lengths (batch) or (1), each at most steps, or 2**31 - 1 for all of them; h and c
    (directions, batch or 1, hidden); peepholes (directions, 3 * hidden), those of the input, output and forget gate.
    dst is (steps, directions, batch, hidden), the last states are (directions, batch, hidden). There is one scale and
    zero point for each direction, or for each of its columns.
    """
    directions = 2 if query.attrs["direction"] == "bidirectional" else 1
    gates = _GATES[query.attrs["cell"]]
    for name in ("scales", "zps") if query.shape(1) is not None else ():
        _count_scales(query, name, directions)
    steps, batch, hidden = _sizes(query, directions, gates)
    width = UNKNOWN_DIM if hidden == UNKNOWN_DIM else gates * hidden
    query.match(0, (steps, batch, _times(directions, width)), "directions * gates * hidden")
    weights = (directions, width, hidden) if query.attrs["transpose_b"] else (directions, hidden, width)
    query.match(1, weights, "the directions' weights of a state")
    query.match(2, (directions, _times(2, width)), "two biases for each column of the weights")
    lengths = query.shape(3)
    if lengths is not None:
        query.match(3, (lengths[0] if lengths and _is_one_of(lengths[0], batch) else batch,), "one for each sequence")
    for port in (4, 5):
        state = query.shape(port)
        if state is not None:
            rows = state[1] if len(state) == 3 and _is_one_of(state[1], batch) else batch
            query.match(port, (directions, rows, hidden), "a state for each sequence, or one for all")
    query.match(6, (directions, _times(3, hidden)), "three weights for each element of a state")
    last = (directions, batch, hidden)
    return [(steps, directions, batch, hidden), *[last] * (query.noutputs - 1)]


def _times(count: int, size: int) -> int:
    return UNKNOWN_DIM if size == UNKNOWN_DIM else count * size


def _is_one_of(dim: int, batch: int) -> bool:
    """Whether a number of sequences is that of the batch, or 1."""
    return dim == batch or dim == 1  # the batch first: that is so for all of its sizes


def _sizes(query: ShapeQuery, directions: int, gates: int) -> tuple[int, int, int]:
    """Steps, batch and elements of a state, as far as src and weights tell."""
    src, weights = query.shape(0), query.shape(1)
    steps, batch, hidden = UNKNOWN_DIM, UNKNOWN_DIM, UNKNOWN_DIM
    if weights is not None:
        query.rank(1, len(weights), "3-D", len(weights) == 3)
        hidden = weights[2 if query.attrs["transpose_b"] else 1]
    if src is not None:
        query.rank(0, len(src), "3-D", len(src) == 3)
        steps, batch = src[0], src[1]
        if hidden == UNKNOWN_DIM and src[2] != UNKNOWN_DIM:
            hidden = src[2] // (directions * gates)
    return steps, batch, hidden


def _count_scales(query: ShapeQuery, name: str, directions: int) -> None:
    count, shape = len(query.attrs[name]), query.shape(1)
    columns = shape[1 if query.attrs["transpose_b"] else 2] if shape is not None and len(shape) == 3 else UNKNOWN_DIM
    if count and columns != UNKNOWN_DIM and count not in (directions, directions * columns):
        accepted = f"{directions} or {directions * columns} numbers"
        query.fail(f'attribute "{name}" does not fit', port=1, accepted=accepted, got=count)
