"""Ensembles of decision trees: packed once (``tree_weights.c``), then walked by blocks of rows (``tree.c``).

    trees = TreeFormat(nnodes=3, ntrees=1, nentries=2, ntargets=1, nfeatures=4)
    trees.pack()(thresholds, nodes, roots, weights, targets, base, packed)    # `trees.nbytes` says how large packed is
    trees.score(1000)(src, packed, dst)

Kernels: ``any_tree_ensemble_pack``, ``f32_tree_ensemble``, ``f64_tree_ensemble``.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from graphpool._dataclasses import dataclass
from graphpool.errors import InvalidArgumentError, InvalidShapeError, UnsupportedError, explain

from ..core.call import KernelCall, pack
from ..core.records import enumeration, number, record

__all__ = ["AGGREGATES", "TreeFormat"]

AGGREGATES = enumeration("tree_aggregate", "GP_TREE_")
"""What the weights of a target become: sum, average over the trees, min, max."""

_LANES = number("GP_TREE_LANES")

_BLOCK = 8 * _LANES
"""Rows of a task: each tree stays in L1 for all of them, and a thousand rows keep sixteen threads busy."""

_SUMS = 1 << 15
"""Targets of all rows of a task, unless one row has more: 256 KiB, of L2."""

_DTYPES = {"f32": 0, "f64": 1}


@dataclass(frozen=True)
class TreeFormat:
    """How an ensemble lies when it is packed.

    Attributes
    ----------
    nnodes, ntrees, nentries, ntargets, nfeatures : int
        How many there are; an entry is a weight that a leaf has for a target.
    dtype : {"f32", "f64"}
        Of features and thresholds.
    isa : str, optional

    Raises
    ------
    InvalidShapeError
        Trees without nodes, nodes without features, entries without targets, or too many of them.
    InvalidArgumentError
        Another type.
    """

    nnodes: int
    ntrees: int
    nentries: int
    ntargets: int
    nfeatures: int
    dtype: str = "f32"
    isa: str | None = None

    def __post_init__(self) -> None:
        if self.dtype not in _DTYPES:
            raise InvalidArgumentError(explain("type of features", accepted="f32, f64", got=self.dtype))
        pairs = (self.ntrees, self.nnodes), (self.nnodes, self.nfeatures), (self.nentries, self.ntargets)
        if any(of > 0 and what < 1 for of, what in pairs) or max(map(max, pairs)) >= 2**31:
            accepted = "trees have nodes, nodes features, entries targets; fewer than 2**31 of each"
            raise InvalidShapeError(explain("an ensemble of trees", accepted=accepted, got=pairs))

    @property
    def _sizes(self) -> dict[str, int]:
        """Bytes of each part, in order."""
        part = {name: record(f"gp_tree_{name}").nbytes for name in (f"node_{self.dtype}", "leaf", "entry")}
        return {
            "nodes": part[f"node_{self.dtype}"] * self.nnodes, "leaves": part["leaf"] * self.nnodes,
            "entries": part["entry"] * self.nentries, "base": 8 * self.ntargets, "roots": 4 * self.ntrees,
            "sends_nan": 4,
        }  # fmt: skip

    @property
    def nbytes(self) -> int:
        """Of all. Unit: bytes."""
        return sum(_aligned(size) for size in self._sizes.values())

    def _layout(self) -> dict[str, Any]:
        sizes = self._sizes
        places = dict(zip(sizes, accumulate(map(_aligned, sizes.values()), initial=0), strict=False))
        del places["nodes"]
        return places | {
            "nnodes": self.nnodes, "ntrees": self.ntrees, "nentries": self.nentries, "ntargets": self.ntargets,
            "nfeatures": self.nfeatures, "is_f64": _DTYPES[self.dtype],
        }  # fmt: skip

    def pack(self, weights_dtype: str = "f32") -> KernelCall:
        """A kernel that packs an ensemble; arguments: thresholds, nodes, roots, weights, targets, base, packed.

        `nodes` has three s32 a node: feature, first child, and whether a NaN goes to the second child, which is the
        node behind the first; where the children do not come behind the node it is a leaf, and the numbers are its
        first entry, anything, and how many entries it has. `roots`: a node a tree, s32. `weights` and `targets`, s32,
        say what an entry adds to which target; `base` what each target has beside. Any content is safe: what lies
        outside its range is taken for the nearest number inside. Cost: one read and one write.
        """
        values = {"layout": self._layout(), "weights_are_f64": _DTYPES[weights_dtype]}
        return pack("any_tree_ensemble_pack", values, ntasks=1, isa=self.isa)

    def score(
        self, nrows: int, *, aggregate: str = "sum", row_stride: int | None = None, dst_dtype: str = "f32"
    ) -> KernelCall:
        """A kernel that scores rows; arguments: src, packed, dst, which is dense.

        The features of a row lie side by side. A key of `AGGREGATES` says what becomes of the weights of a target; one
        without any has 0; NaN weights count in sums alone.

        Raises
        ------
        UnsupportedError
            Another type of dst.

        Notes
        -----
        Method: 16 walks side by side, of rows down one tree or, where rows are few, of one row down several trees; an
        instruction sets the next node without a branch, and the walks end when all have come to leaves. Cost: about 2
        nanoseconds a node of a walk while a tree lies in L1. A row adds its weights in f64 in the order of the trees,
        so its scores do not depend on the other rows.
        """
        if dst_dtype not in _DTYPES:
            raise UnsupportedError(explain("type of scores", accepted="f32, f64", got=dst_dtype))
        block = max(min(_BLOCK, _SUMS // max(self.ntargets, 1)), 1)
        values = {
            "layout": self._layout(), "nrows": nrows, "block": block,
            "row_stride": self.nfeatures if row_stride is None else row_stride,
            "aggregate": AGGREGATES[aggregate], "dst_is_f64": _DTYPES[dst_dtype],
        }  # fmt: skip
        return pack(
            f"{self.dtype}_tree_ensemble", values, ntasks=-(-nrows // block), scratch_nbytes=8 * block * self.ntargets,
            isa=self.isa,
        )  # fmt: skip


def _aligned(nbytes: int) -> int:
    return -(-nbytes // 64) * 64
