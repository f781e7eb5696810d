import numpy as np
import pytest

from graphpool.backends.reference import OutputSpec, evaluate
from graphpool.backends.reference.dropout import philox4x32
from graphpool.typing import DataType

# Known answers of the generator's authors (Random123, file kat_vectors): counter, key, words.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def _dropout(src, seed=1, offset=0, p=0.5, dtype=DataType.F32):
    inputs = [src, np.asarray(seed, np.int64), np.asarray(offset, np.int64), np.asarray(p, np.float32)]
    return evaluate("Dropout", inputs, {}, [OutputSpec(dtype, src.shape), OutputSpec(DataType.U8, src.shape)])


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_the_generator_gives_the_published_answers(counter, key, words):
    assert philox4x32(np.array(counter, np.uint64).reshape(4, 1), key).ravel().tolist() == list(words)


def _scalar_philox(counter, key):
    """The generator once more, in integers of Python."""
    (a, b, c, d), (k, m) = counter, key
    for _ in range(10):
        left, right = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = (right >> 32) ^ b ^ k, right & 0xFFFFFFFF, (left >> 32) ^ d ^ m, left & 0xFFFFFFFF
        k, m = (k + 0x9E3779B9) & 0xFFFFFFFF, (m + 0xBB67AE85) & 0xFFFFFFFF
    return a, b, c, d


@pytest.mark.parametrize(("seed", "offset"), [(0, 0), (7, 3), (-1, -2), (2**40 + 5, 2**33 + 1)])
@pytest.mark.parametrize("p", [0.0, 0.25, 0.9])
def test_the_mask_follows_the_documented_mapping(seed, offset, p):
    src = np.arange(1.0, 31.0, dtype=np.float32).reshape(2, 3, 5)
    dst, mask = _dropout(src, seed, offset, p)
    p = float(np.float32(p))
    for i, (kept, value) in enumerate(zip(mask.ravel(), dst.ravel(), strict=True)):
        counter = (i // 4, 0, offset & 0xFFFFFFFF, (offset >> 32) & 0xFFFFFFFF)
        word = _scalar_philox(counter, (seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF))[i % 4]
        assert kept == (word > p * 2**32)
        assert value == np.float32((i + 1) / (1 - p) if kept else 0.0)


def test_the_result_depends_on_seed_and_offset_only():
    src = np.ones((64,), np.float32)
    first = _dropout(src, 1, 2)[1]
    np.testing.assert_array_equal(first, _dropout(src.reshape(4, 16), 1, 2)[1].ravel())
    np.testing.assert_array_equal(first[:10], _dropout(src[:10], 1, 2)[1])
    assert (first != _dropout(src, 2, 2)[1]).any()
    assert (first != _dropout(src, 1, 3)[1]).any()


def test_the_share_kept_is_one_minus_p_and_the_mean_is_kept():
    src = np.ones((100_000,), np.float32)
    dst, mask = _dropout(src, 5, 0, 0.3)
    assert abs(mask.mean() - 0.7) < 0.01
    assert abs(dst.mean() - 1.0) < 0.01


def test_a_dropped_element_is_zero_whatever_it_was():
    src = np.array([np.nan, np.inf, -np.inf, 1.0], np.float32)
    dst, mask = _dropout(src, p=1.0)
    assert dst.tolist() == [0.0] * 4
    assert mask.tolist() == [0] * 4


@pytest.mark.parametrize("shape", [(), (0, 3), (1,), (5,)])
@pytest.mark.parametrize("dtype", [DataType.F32, DataType.F16, DataType.BF16])
def test_shapes_and_types(shape, dtype):
    dst, mask = _dropout(np.ones(shape).astype(dtype.numpy), dtype=dtype)
    assert (dst.shape, dst.dtype, mask.dtype) == (shape, dtype.numpy, np.uint8)
    assert set(np.unique(mask).tolist()) <= {0, 1}
