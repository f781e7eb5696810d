"""Weights of a convolution in panels (``gemm/gp_packed.h``), as all types share them.

``conv/gp_conv_weights.h`` is the C side. The products of a pixel are its runs: the taps of a row of the kernel where
a task brings the pixels that they read side by side, else single taps; or all taps, where a task gathers them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

from graphpool._dataclasses import NamedTuple, dataclass
from graphpool._sizes import largest

from ..core.call import DTYPE_CODES, KernelCall, pack
from ..gemm.packed import DEPTH, PAIR_WORDS, behind, lanes_of, pair_count, pairs_nbytes, shift_count, streams
from ..gemm.problem import even_part
from .problem import ConvFormat, check_weight_strides

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .problem import ConvShape

__all__ = ["ConvWeights", "PanelFormat"]

_LEAST_COLUMNS = 32
"""Output channels from which on it pays to bring the words of a pixel to scratch, so that more pairs fit."""


class ConvWeights(NamedTuple):
    """Where the weights of a convolution lie in panels.

    `ic` and `oc` are channels of a group. `merged` taps are a run, of which `side` along width lie side by side;
    `words` of one, zeros at its end included, and `runs` of a pixel. `depth`: weights in a word of 32 bits. `pixel`:
    channels of a tap, more than `ic` where a word ends with the tap. `has_sums`: the sums of the columns of a group
    stand behind its panels, behind them those of groups of words, `shifts` words a column, and the limits of `pairs` a
    panel. `panel`: columns of one; `behind`: those that kernels read behind the last.
    """

    groups: int
    ic: int
    oc: int
    kernel: tuple[int, ...]
    merged: int
    side: int
    words: int
    runs: int
    depth: int
    pixel: int
    has_sums: bool
    shifts: int
    pairs: int
    panel: int
    behind: int

    @classmethod
    def make(cls, shape: ConvShape, dtype: str, isa: str | None, *, merges: bool = True) -> ConvWeights:
        """Weights of type f32, bf16 or s8; `merges`: taps that read pixels side by side."""
        panel, kernel, dilations = 2 * lanes_of(isa), shape.kernel, shape.dilations
        ic, oc = shape.in_channels // shape.groups, shape.out_channels // shape.groups
        pixel = ic + ic % 2 if dtype == "bf16" else ic
        side, taps = kernel[-1] if merges and (dilations is None or dilations[-1] == 1) else 1, math.prod(kernel)
        depth = DEPTH[dtype]
        short, long = (-(-count * pixel // depth) for count in (side, taps))
        is_prepared = pair_count(long, dtype, isa) > 0 and long >= PAIR_WORDS and oc >= _LEAST_COLUMNS
        merged = taps if is_prepared and short < PAIR_WORDS else side
        words, runs = -(-merged * pixel // depth), taps // merged
        shifts = shift_count(words, dtype, isa) if is_prepared and runs == 1 else 0
        pairs = runs * pair_count(words, dtype, isa)
        return cls(
            shape.groups, ic, oc, kernel, merged, side, words, runs, depth, pixel, dtype == "s8", shifts, pairs,
            panel, behind(oc, isa),
        )  # fmt: skip

    @property
    def pixel_nbytes(self) -> int:
        """Channels of a tap. Unit: bytes."""
        return self.pixel * 4 // self.depth

    @property
    def group_nbytes(self) -> int:
        """From one group to the next. Unit: bytes."""
        nbytes = (self.runs * self.words + self.has_sums + self.shifts) * self.oc * 4
        return nbytes + -(-pairs_nbytes(-(-self.oc // self.panel), 2 * self.pairs) // 4) * 4

    @property
    def nbytes(self) -> int:
        """Of all groups. Unit: bytes."""
        return self.groups * self.group_nbytes + self.behind * 4

    def unit(self, pixels: int) -> int:
        """Columns that the tiles of so many pixels read at once."""
        return self.panel * streams(pixels)

    def worthwhile_parts(self, pixels: int, least_work: int) -> int:
        """Parts of the columns that are each, by so many pixels, a task of at least that many multiply-adds."""
        return self.oc // self.worthwhile_cols(pixels, least_work)

    def worthwhile_cols(self, pixels: int, least_work: int) -> int:
        """Columns that are, by so many pixels, a task of at least that many multiply-adds."""
        work = pixels * self.runs * self.words * self.depth
        return largest(-(-least_work // largest(work, 1)), 1)

    def col_block(self, pixels: int, parts: int) -> int:
        """Columns of a task on so many pixels: whole units, in about that many even parts."""
        return even_part(self.oc, parts, self.unit(pixels))

    def pack_fields(self, strides: Sequence[int], dtype: str) -> dict[str, Any]:
        """The fields of a struct gp_conv_pack; type and strides of the weights are as `ConvFormat.pack` takes them."""
        check_weight_strides(strides, len(self.kernel))
        fill = 3 - len(self.kernel)
        return {
            "groups": self.groups, "ic": self.ic, "oc": self.oc, "kernel": [*[1] * fill, *self.kernel],
            "merged": self.merged, "words": self.words, "runs": self.runs, "w_group": strides[0], "w_oc": strides[1],
            "w_ic": strides[2], "w": [*[0] * fill, *strides[3:]], "w_dtype": DTYPE_CODES[dtype], "shifts": self.shifts,
            "group_pitch": self.group_nbytes // 4, "tap_pitch": self.words * self.oc,
        }  # fmt: skip


@dataclass(frozen=True)
class PanelFormat(ConvFormat):
    """A `ConvFormat`: for each group and product of a pixel, a matrix of words by output channels in panels."""

    packed_dtype: ClassVar[str]

    @property
    def _weights(self) -> ConvWeights:
        return ConvWeights.make(self.shape, self.packed_dtype, self.isa)

    @property
    def nbytes(self) -> int:
        """Of the packed weights. Unit: bytes."""
        return self._weights.nbytes

    def _move(self, name: str, strides: Sequence[int], dtype: str = "f32") -> KernelCall:
        """The kernel `name` between weights of that type and their panels, a panel a task."""
        weights = self._weights
        return pack(
            name, weights.pack_fields(strides, dtype), ntasks=weights.groups * -(-weights.oc // weights.panel),
            scratch_nbytes=weights.words * 4 if weights.has_sums else 0, isa=self.isa,
        )  # fmt: skip
