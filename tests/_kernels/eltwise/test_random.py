import numpy as np
import pytest

from graphpool._kernels.core import _dispatch
from graphpool._kernels.eltwise.random import dropout
from graphpool.errors import InvalidShapeError
from tests.helpers.kernel_outputs import Out, execute

ISAS = _dispatch.isas()
ONES = 2**32 - 1

# Counter, key, words: the known answers published with Random123 for philox4x32-10.
KNOWN_ANSWERS = [
    ([0] * 4, 0, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([ONES] * 4, 2**64 - 1, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        0x299F31D0_A4093822,
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


def philox_reference(counters, seed):
    """Philox4x32-10 in exact integers; counters of shape (n, 4), uint64."""
    c, key = [counters[:, k].astype(np.uint64) for k in range(4)], [seed & ONES, seed >> 32 & ONES]
    for _ in range(10):
        low = c[0] * np.uint64(0xD2511F53)
        high = c[2] * np.uint64(0xCD9E8D57)
        c = [high >> 32 ^ c[1] ^ np.uint64(key[0]), high & ONES, low >> 32 ^ c[3] ^ np.uint64(key[1]), low & ONES]
        key = [(key[0] + 0x9E3779B9) & ONES, (key[1] + 0xBB67AE85) & ONES]
    return np.stack(c, 1)


def mask_reference(size, seed, offset, probability):
    block = np.arange(-(-size // 4), dtype=np.uint64)
    rest = np.full_like(block, offset & ONES), np.full_like(block, offset >> 32 & ONES)
    words = philox_reference(np.stack([block & ONES, block >> 32, *rest], 1), seed).reshape(-1)[:size]
    return words * 2.0**-32 > np.float64(np.float32(probability))


def run(size, seed, offset, probability, isa, src=None):
    src = np.random.default_rng(size).normal(size=size).astype(np.float32) if src is None else src
    scalars = np.array([seed], np.int64), np.array([offset], np.int64), np.array([probability], np.float32)
    dst, mask = execute(dropout(size, mask=True, isa=isa), src, *scalars, Out((size,)), Out((size,), "u1"))
    return src, dst, mask


@pytest.mark.parametrize(("counter", "seed", "words"), KNOWN_ANSWERS)
def test_known_answers_of_the_reference(counter, seed, words):
    assert philox_reference(np.array([counter], np.uint64), seed).tolist() == [words]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("counter", "seed", "words"), [KNOWN_ANSWERS[0]])
def test_known_answers(counter, seed, words, isa):
    """An element is kept below its word, and no longer at the next float that is not."""
    for k, word in enumerate(words):
        below = np.nextafter(np.float32(word * 2.0**-32), np.float32(0))
        above = np.nextafter(np.float32(word * 2.0**-32), np.float32(1))
        assert [run(4, seed, 0, p, isa)[2][k] for p in (below, above)] == [1, 0]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("size", [0, 1, 3, 64, 65, 4096, 4097, 13001])
@pytest.mark.parametrize(("seed", "offset"), [(0, 0), (-1, -5), (2**40 + 17, 2**33 + 1)])
def test_mask_and_scale(size, seed, offset, isa):
    src, dst, mask = run(size, seed, offset, 0.3, isa)
    expected = mask_reference(size, seed, offset, 0.3)
    np.testing.assert_array_equal(mask, expected)
    kept = np.float32(1) - np.float32(0.3)
    np.testing.assert_array_equal(dst, np.where(expected, src / kept, 0))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("probability", "kept"), [(-1, 1.0), (0, 1.0), (1, 0.0), (2, 0.0), (np.nan, 0.0)])
def test_extreme_probabilities(probability, kept, isa):
    assert run(1000, 1, 2, probability, isa)[2].mean() == kept


@pytest.mark.parametrize("isa", ISAS)
def test_dropped_specials_become_zero(isa):
    src = np.full(100, np.inf, np.float32)
    _, dst, mask = run(100, 3, 4, 0.5, isa, src)
    assert (dst[mask == 0] == 0).all()
    assert np.isinf(dst[mask == 1]).all()


def test_share_of_kept_elements():
    mask = run(100_000, 12, 0, 0.25, None)[2]
    assert abs(mask.mean() - 0.75) < 5 * np.sqrt(0.75 * 0.25 / mask.size)


def test_without_mask_and_in_place():
    src, dst, _ = run(777, 5, 6, 0.5, None)
    scalars = np.array([5], np.int64), np.array([6], np.int64), np.array([0.5], np.float32)
    dropout(777)(src, *scalars, src)
    np.testing.assert_array_equal(src, dst)


def test_bad_arguments():
    with pytest.raises(InvalidShapeError, match="size"):
        dropout(-1)
