"""Attention as one kernel."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from graphpool._dataclasses import dataclass

from .products import TILE_THREADS
from .program import add_program
from .source import KernelSource

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..eltwise.eltwise import Program
    from .source import CudaCall

__all__ = ["Scores", "attention"]

_TILE = 64
"""Rows and columns that a block computes."""

Operand = tuple[str, "Sequence[int]"]
"""An element type, and strides: one for each axis of the heads, then for rows and columns. Unit: elements."""


@dataclass(frozen=True)
class Scores:
    """What the products of queries and keys go through, in this order; see `match.attention.Scores` of the CPU backend.

    `numbers` has the element types of those that are there among scale, cap, fill, ahead and behind; `tensors` the
    operands among factor, mask and shown, whose rows are queries and whose columns are keys.
    """

    numbers: Mapping[str, str]
    tensors: Mapping[str, Operand]
    is_divisor: bool = False
    fills_first: bool = False
    is_causal: bool = False
    is_inverted: bool = False
    inf_as_zero: bool = False

    @property
    def args(self) -> tuple[str, ...]:
        """Names of the arguments, in order."""
        return (*self.numbers, *self.tensors)

    def add_to(self, source: KernelSource, heads: Sequence[int], *, stats: bool) -> None:
        """Define what the kernel's file leaves open."""
        for name, dtype in self.numbers.items():
            source.load(name, dtype)
        for name, (dtype, strides) in self.tensors.items():
            source.load(name, dtype)
            source.view(f"head_{name}", heads, strides[:-2])
            source.numbers(**{f"{name}_row": strides[-2], f"{name}_col": strides[-1]})
        names = [f"const char *{name}," for name in (*self.args, *(["stats"] if stats else []))]
        source.define(GP_SCORE_ARGS=" ".join(names).replace("const char *stats", "char *stats"))
        source.define(GP_SCORE=" ".join(self._steps()) or "(void)0")

    def _steps(self) -> list[str]:
        """Statements that change the score ``x`` of a row and a key."""
        values = {name: f"gp_load_{name}({name}, 0)" for name in self.numbers}
        values |= {
            name: f"gp_load_{name}({name}, gp_head_{name}(p, head) + row * p.{name}_row + key * p.{name}_col)"
            for name in self.tensors
        }
        hides = []
        if "fill" in values:
            seen = f"row + {values.get('ahead', '0')} - {values.get('behind', '0')} >= key"
            if not self.is_causal:
                seen = f"{values['shown']} {'==' if self.is_inverted else '!='} 0.0f"
            hides = [f"x = {seen} ? x : {values['fill']};"]
        steps = hides if self.fills_first else []
        sign = "/" if self.is_divisor else "*"
        steps = [*steps, *(f"x = x {sign} {values[name]};" for name in ("scale", "factor") if name in values)]
        if "cap" in values:
            steps.append(f"x = tanhf(x / {values['cap']}) * {values['cap']};")
        if "mask" in values:
            steps.append(f"x = x + {values['mask']};")
        return steps if self.fills_first else [*steps, *hides]


def attention(
    heads: Sequence[int],
    sizes: tuple[int, int, int, int],
    operands: tuple[Operand, Operand, Operand],
    scores: Scores,
    program: Program,
    *,
    stats: bool = False,
) -> CudaCall:
    """Products of values with the softmax of scores.

    Arguments: q, k, v, those of the scores, [stats], those of the program, whose space is (heads..., rows, cols).

    Parameters
    ----------
    heads : sequence of int
        Leading axes.
    sizes : (int, int, int, int)
        Queries (rows), keys, depth of both, columns of the values (cols).
    operands : sequence of (str, sequence of int)
        Queries, keys and values, whose rows are positions.
    scores : Scores
    program : Program
        What happens to results.
    stats : bool, default=False
        Whether the logarithm of the sum of exponentials is kept for each row, dense f32.
    """
    source = KernelSource("attention", "gp_block.cuh", "gp_tile.cuh")
    rows, keys, depth, cols = sizes
    source.numbers(heads=prod(heads), rows=rows, keys=keys, depth=depth, cols=cols, inf_as_zero=scores.inf_as_zero)
    axes = (("q", "q_row", "q_depth"), ("k", "k_row", "k_depth"), ("v", "v_row", "v_col"))
    for (name, *along), (dtype, strides) in zip(axes, operands, strict=True):
        source.load(name, dtype)
        source.view(f"head_{name}", heads, strides[:-2])
        source.numbers(**dict(zip(along, strides[-2:], strict=True)))
    scores.add_to(source, heads, stats=stats)
    store = "gp_store_f32(stats, i, x)" if stats else "((void)0)"
    source.define(**{"GP_STORE_STATS(i, x)": store})
    nargs = 3 + len(scores.args) + stats + add_program(source, program)
    blocks = prod(heads) * -(-rows // _TILE) * -(-cols // _TILE)
    return source.build(nargs, blocks, TILE_THREADS)
