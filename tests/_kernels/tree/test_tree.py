"""Ensembles of decision trees: any_tree_ensemble_pack, f32_tree_ensemble, f64_tree_ensemble."""

from types import SimpleNamespace

import numpy as np
import pytest

from graphpool._kernels.core._dispatch import call, isas
from graphpool._kernels.tree.tree import AGGREGATES, TreeFormat
from graphpool.errors import InvalidArgumentError, InvalidShapeError, UnsupportedError
from tests.helpers.guarded import Guarded
from tests.oracle import KINDS

LIMITS = [-1.0, 0.0, 0.5, 1.0, np.nan, np.inf, -np.inf]
DTYPES = {"f32": np.float32, "f64": np.float64}


def random_ensemble(rng, nnodes, ntrees, nentries, ntargets, nfeatures, dtype="f32"):
    """Nodes whose numbers are mostly, but not always, those of trees."""
    first = np.arange(nnodes)[:, None]
    nodes = np.hstack([
        rng.integers(-1, max(nfeatures, nentries) + 2, (nnodes, 1)), first + rng.integers(-2, 9, (nnodes, 1)),
        rng.integers(-1, 3, (nnodes, 1)),
    ]).astype(np.int32)  # fmt: skip
    return SimpleNamespace(
        format={"nnodes": nnodes, "ntrees": ntrees, "nentries": nentries, "ntargets": ntargets,
                "nfeatures": nfeatures, "dtype": dtype},
        nodes=nodes, thresholds=rng.choice(LIMITS, nnodes).astype(DTYPES[dtype]),
        roots=rng.integers(-1, nnodes + 2, ntrees).astype(np.int32),
        weights=rng.integers(-8, 8, nentries).astype(np.float32) / 4,
        targets=rng.integers(-1, ntargets + 1, nentries).astype(np.int32),
        base=rng.integers(-8, 8, ntargets).astype(np.float32),
    )  # fmt: skip


def random_rows(rng, nrows, nfeatures, dtype="f32", special=(np.nan, np.inf, -np.inf)):
    return rng.choice([-1.0, -0.0, 0.25, 0.5, 0.75, 1.0, *special], (nrows, nfeatures)).astype(DTYPES[dtype])


def packed_of(e, isa=None, weights_dtype="f32"):
    trees = TreeFormat(**e.format, isa=isa)
    packed = Guarded(trees.nbytes)
    weights, base = (array.astype(DTYPES[weights_dtype]) for array in (e.weights, e.base))
    trees.pack(weights_dtype)(e.thresholds, e.nodes, e.roots, weights, e.targets, base, packed.bytes)
    return trees, packed.array(np.uint8, (trees.nbytes,))


def expected(e, x, aggregate="sum"):
    arrays = e.thresholds, e.nodes, e.roots, e.weights, e.targets, e.base
    return KINDS["TreeEnsemble"]({"aggregate": aggregate}, x, *arrays)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("dtype", DTYPES)
def test_scores(dtype, isa):
    """Rows around the 16 that go side by side, and around blocks; trees, leaves and entries of all numbers."""
    rng = np.random.default_rng(3)
    sizes = (1, 1, 1), (1, 40, 3), (15, 2, 2), (16, 17, 1), (17, 3, 4), (65, 16, 2), (130, 5, 1)
    for nrows, ntrees, ntargets in sizes:
        e = random_ensemble(rng, 60, ntrees, 20, ntargets, 5, dtype)
        trees, packed = packed_of(e, isa)
        for special in ((), (np.nan, np.inf, -np.inf)):
            x = random_rows(rng, nrows, 5, dtype, special)
            for aggregate in AGGREGATES:
                out = Guarded(nrows * ntargets * 4)
                trees.score(nrows, aggregate=aggregate)(x, packed, out.bytes)
                got = out.array(np.float32, (nrows, ntargets))
                np.testing.assert_allclose(got, expected(e, x, aggregate), rtol=1e-6)


@pytest.mark.parametrize("isa", isas())
def test_strides_and_wide_scores(isa):
    rng = np.random.default_rng(4)
    e = random_ensemble(rng, 30, 9, 12, 3, 4)
    trees, packed = packed_of(e, isa, "f64")
    x, out = random_rows(rng, 20, 7), Guarded(20 * 3 * 8)
    trees.score(20, row_stride=7, dst_dtype="f64")(x, packed, out.bytes)
    np.testing.assert_array_equal(out.array(np.float64, (20, 3)), expected(e, x[:, :4]))


def test_a_row_has_the_same_score_in_every_batch():
    """And the tasks may be divided in any way: weights are added in the order of the trees."""
    rng = np.random.default_rng(5)
    e = random_ensemble(rng, 200, 50, 90, 2, 6)
    e.weights = rng.standard_normal(90).astype(np.float32)
    trees, packed = packed_of(e)
    x, whole = random_rows(rng, 300, 6), np.zeros((300, 2), np.float32)
    kernel = trees.score(300)
    kernel(x, packed, whole)
    parts = np.zeros_like(whole)
    assert kernel.ntasks > 3
    for task in reversed(range(kernel.ntasks)):
        call(kernel.kernel, kernel.params, [x, packed, parts], task, task + 1, kernel.scratch_nbytes)
    np.testing.assert_array_equal(parts, whole)
    for nrows in (1, 3, 16, 31):
        few = np.zeros((nrows, 2), np.float32)
        trees.score(nrows)(x, packed, few)
        np.testing.assert_array_equal(few, whole[:nrows])


def test_an_ensemble_without_trees_is_the_base():
    e = random_ensemble(np.random.default_rng(6), 0, 0, 0, 3, 0)
    trees, packed = packed_of(e)
    out = np.zeros((2, 3), np.float32)
    trees.score(2)(np.zeros(0, np.float32), packed, out)
    np.testing.assert_array_equal(out, [e.base] * 2)


def test_errors():
    with pytest.raises(InvalidArgumentError, match="type of features"):
        TreeFormat(1, 1, 1, 1, 1, "f16")
    for sizes in ((0, 1, 0, 1, 1), (1, 1, 0, 1, 0), (1, 1, 1, 0, 1), (2**31, 1, 1, 1, 1)):
        with pytest.raises(InvalidShapeError, match="an ensemble of trees"):
            TreeFormat(*sizes)
    with pytest.raises(UnsupportedError, match="type of scores"):
        TreeFormat(1, 1, 1, 1, 1).score(3, dst_dtype="f16")
