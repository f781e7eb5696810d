import random

from graphpool.bits import set_bits


def test_positions_ascend_whatever_the_width():
    rng = random.Random(0)
    for width in (0, 1, 7, 64, 65, 1000):
        mask = rng.getrandbits(width) if width else 0
        assert set_bits(mask) == [k for k in range(width) if mask >> k & 1]
    assert set_bits(1 << 4096) == [4096]
