"""Kernel of recurrent layers, ``f32_recurrent`` (``rnn/recurrent.c``), and the weights that it reads.

weights = RecurrentWeights("lstm", 64)
for call, begin, offset in weights.pack((64 * 256, 256, 1)):  # R as (directions, hidden, gates * hidden)
    call(r[begin:], packed[offset:])
recurrent(weights, 30, 8)(src, packed, biases, lengths, h, c, y, last_h, last_c)
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from graphpool._dataclasses import dataclass
from graphpool._sizes import largest, least
from graphpool.errors import InvalidArgumentError, InvalidShapeError, explain

from ..core.call import KernelCall, pack
from ..core.records import enumeration
from ..gemm.packed import PackedFormat
from ..gemm.problem import aligned

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ACTIVATIONS", "GATES", "Activation", "RecurrentWeights", "recurrent"]

GATES = {"rnn": 1, "gru": 3, "lstm": 4}
"""Cell -> gates, in ONNX's order: of gru update, reset, candidate; of lstm input, output, forget, content."""

ACTIVATIONS = tuple(enumeration("gp_activation", "GP_ACT_"))
"""Names of activations, lower case."""

Activation = tuple[str, float, float]
"""Name, alpha and beta."""

_DEFAULTS = {"rnn": ("tanh",), "gru": ("sigmoid", "tanh"), "lstm": ("sigmoid", "tanh", "tanh")}
_CELLS = enumeration("gp_cell", "GP_CELL_")
_MOST_ROWS = 6
"""Sequences of a task: rows of a tile, so that weights are read as seldom as may be."""


@dataclass(frozen=True)
class RecurrentWeights:
    """The weights by which states are multiplied, in panels, of one direction or two.

    Attributes
    ----------
    cell : {"rnn", "gru", "lstm"}
    hidden : int
        Elements of a state.
    directions : int, default=1
    dtype : {"f32", "s8"}, default="f32"
        s8, of lstm only: states are quantised at each step.
    resets_sums : bool, default=False
        Of gru: the reset gate scales what the product gives (ONNX's linear_before_reset), not what it reads.
    isa : str, optional
    """

    cell: str
    hidden: int
    directions: int = 1
    dtype: str = "f32"
    resets_sums: bool = False
    isa: str | None = None

    @property
    def gates(self) -> int:
        """Gates of the cell."""
        return GATES[self.cell]

    @property
    def formats(self) -> list[PackedFormat]:
        """Those of a direction: of the gates that read the state and, for a candidate of gru, the reset state."""
        parts = [2, 1] if self.cell == "gru" and not self.resets_sums else [self.gates]
        return [PackedFormat(self.hidden, n * self.hidden, self.dtype, isa=self.isa) for n in parts]

    @property
    def nbytes(self) -> int:
        """Of all directions."""
        return self.directions * sum(part.nbytes for part in self.formats)

    def pack(
        self, strides: Sequence[int], b_dtype: str | None = None, *, inverse: bool = False
    ) -> list[tuple[KernelCall, int, int]]:
        """Kernels that pack weights, each with the element and the byte at which its arguments begin.

        `strides`: of direction, element of the state, element of the gates; `b_dtype` as of `PackedFormat.pack`; or
        the `inverse`, whose arguments come in the other order.
        """
        calls, offset = [], 0
        for direction in range(self.directions):
            begin = direction * strides[0]
            for part in self.formats:
                call = part.unpack(strides[1:]) if inverse else part.pack(strides[1:], b_dtype=b_dtype)
                calls.append((call, begin, offset))
                begin += part.n * strides[2]
                offset += part.nbytes
        return calls


def recurrent(
    weights: RecurrentWeights,
    steps: int,
    batch: int,
    activations: Sequence[Activation] = (),
    *,
    is_reverse: bool = False,
    clip: float = math.inf,
    is_coupled: bool = False,
    has_peepholes: bool = False,
    nlengths: int = 1,
    state_rows: Sequence[int] = (1, 1),
) -> KernelCall:
    """A recurrent layer over sequences of any length.

    Arguments: src (steps, batch, directions * gates * hidden), the inputs' part of the gates; packed weights; biases
    (directions, 2 * gates * hidden) of both parts; lengths (nlengths,), s32; states h and, of lstm, c (directions,
    rows, hidden); [peepholes (directions, 3 * hidden)]; for s8 scales and zero points (s32) of the weights, each
    (directions, gates * hidden); y (steps, directions, batch, hidden); the last h and, of lstm, c (directions, batch,
    hidden). Dense.

    `activations`: those of the cell for each direction, ONNX's by default; `is_reverse`: one direction goes from the
    end, as the second of two does; `clip` limits what activations read; `is_coupled`: the forget gate is what the input
    gate leaves; `nlengths` and `state_rows`, of h and c: 1 for all sequences, or `batch`. A sequence has 0 .. steps of
    them, or 2**31 - 1 for all; another length is cut to these, and the kernel's status is 1. Beyond it y is zero, and
    last states are those at its end.

    Tasks: blocks of sequences of one direction. Cost: a step reads the packed weights once for each task.

    Raises
    ------
    InvalidArgumentError, InvalidShapeError
        Another number of activations or an unknown one, s8 weights of another cell; a negative size.
    """
    cell, hidden, gates, directions = weights.cell, weights.hidden, weights.gates, weights.directions
    is_int8 = weights.dtype == "s8"
    if any(size < 0 for size in (steps, batch, hidden)):
        raise InvalidShapeError(explain("a size is negative", accepted=">= 0", got=(steps, batch, hidden)))
    if is_int8 and cell != "lstm":
        raise InvalidArgumentError(explain("cell with weights of 8 bits", accepted="lstm", got=cell))
    functions = list(activations) or [(name, 0.0, 0.0) for name in _DEFAULTS[cell]] * directions
    count = len(_DEFAULTS[cell])
    if len(functions) != count * directions or not {name for name, _, _ in functions} <= set(ACTIVATIONS):
        accepted = f"{count * directions} of {', '.join(ACTIVATIONS)}"
        raise InvalidArgumentError(explain(f"activations of {cell}", accepted=accepted, got=functions))
    rows = largest(batch, 1) if is_int8 else _MOST_ROWS
    pitch, state_pitch = aligned(4 * gates * hidden) // 4, aligned(4 * hidden) // 4
    parts, lines = weights.formats, [functions[k * count : (k + 1) * count] for k in range(directions)]
    peepholes_arg = 5 + (cell == "lstm")
    scales_arg = peepholes_arg + has_peepholes
    values = {
        "cell": _CELLS[cell], "gates": gates, "hidden": hidden, "steps": steps, "batch": batch, "rows": rows,
        "directions": directions, "is_reverse": is_reverse, "first": parts[0].n,
        "second": parts[1].n if len(parts) > 1 else 0, "weights_nbytes": weights.nbytes // directions,
        "second_at": parts[0].nbytes, "nlengths": nlengths, "h_rows": state_rows[0], "c_rows": state_rows[1],
        "is_coupled": is_coupled, "c_arg": 5 if cell == "lstm" else 0,
        "peepholes_arg": peepholes_arg if has_peepholes else 0, "scales_arg": scales_arg if is_int8 else 0,
        "y_arg": scales_arg + 2 * is_int8, "pitch": pitch, "state_pitch": state_pitch, "words": parts[0].words,
        "clip": clip,
        "activation": [[ACTIVATIONS.index(name) for name, _, _ in line] for line in lines],
        "alpha": [[alpha for _, alpha, _ in line] for line in lines],
        "beta": [[beta for _, _, beta in line] for line in lines],
    }  # fmt: skip
    scratch_nbytes = 4 * (pitch + state_pitch + rows * (pitch + 3 * state_pitch + is_int8 * (parts[0].words + 1)))
    blocks = least(batch, 1) if is_int8 else -(-batch // _MOST_ROWS)
    return pack("f32_recurrent", values, ntasks=directions * blocks if hidden else 0, scratch_nbytes=scratch_nbytes,
                isa=weights.isa)  # fmt: skip
