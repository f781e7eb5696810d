"""Changes of bytes that know nothing of what the bytes mean."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random


def mutate_bytes(raw: bytes, rng: random.Random) -> bytes:
    """Cut, flip, insert, repeat or overwrite some bytes."""
    data = bytearray(raw)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data) + 1)
        action = rng.randrange(6)
        if action == 0:
            del data[at:]
        elif action == 1 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif action == 2 and at < len(data):
            data[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF])
        elif action == 3:
            data[at:at] = rng.randbytes(rng.randint(1, 9))
        elif action == 4:
            del data[at : at + rng.randint(1, 9)]
        else:
            length = rng.randint(1, 64)
            data[at:at] = data[max(at - length, 0) : at]
    return bytes(data)
