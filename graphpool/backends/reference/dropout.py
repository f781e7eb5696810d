"""Dropout with a counter-based generator, which a kernel can reproduce bit for bit at any element.

For the element with row-major linear index i of a tensor:

    key     = (seed lo32, seed hi32)
    counter = (i // 4 lo32, i // 4 hi32, offset lo32, offset hi32)
    word    = Philox4x32-10(counter, key)[i % 4]
    u       = word * 2**-32                     in [0, 1), exact in float64
    mask    = 1 if u > p else 0                 equivalently word > p * 2**32, compared exactly
    dst     = src / (1 - p) if mask else 0

seed and offset are s64, taken as two's complement; p is f32. A dropped element is 0 even where src is NaN or infinite,
so p = 1 gives zeros. u > p (not >=) is the schema's rule: with p = 0 an element is still dropped when its word is 0.
Source of the generator: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC'11.
"""

from __future__ import annotations

import numpy as np

from .registry import Array, Attrs, reference

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)


def philox4x32(counter: Array, key: tuple[int, int]) -> Array:
    """Philox4x32-10 of counters (4, n) under one key: words (4, n), uint64.

    Each entry of the counter, the key and the words is below 2**32.
    """
    c0, c1, c2, c3 = counter
    for step in range(_ROUNDS):
        k0, k1 = (np.uint64((word + step * weyl) & 0xFFFFFFFF) for word, weyl in zip(key, _WEYL, strict=True))
        product_0, product_1 = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (
            (product_1 >> _SHIFT) ^ c1 ^ k0,
            product_1 & _LOW,
            (product_0 >> _SHIFT) ^ c3 ^ k1,
            product_0 & _LOW,
        )
    return np.stack([c0, c1, c2, c3])


def _halves(value: int) -> tuple[int, int]:
    """Low and high 32 bits of a two's complement 64-bit integer."""
    return value & 0xFFFFFFFF, (value >> 32) & 0xFFFFFFFF


def _words(seed: int, offset: int, count: int) -> Array:
    """The random word of each of the first `count` elements."""
    block = np.arange((count + 3) // 4, dtype=np.uint64)
    low, high = (np.full_like(block, half) for half in _halves(offset))
    counter = np.stack([block & _LOW, block >> _SHIFT, low, high])
    return philox4x32(counter, _halves(seed)).T.reshape(-1)[:count]


@reference("Dropout")
def _dropout(attrs: Attrs, src: Array, seed: Array, offset: Array, probability: Array) -> tuple[Array, Array]:
    """(dst, mask) as the module says."""
    p = probability.item()
    u = _words(seed.item(), offset.item(), src.size).reshape(src.shape) * 2.0**-32
    mask = u > p
    return np.where(mask, src / (1.0 - p), 0.0), mask.astype(np.int64)
