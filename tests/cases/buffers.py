"""Planning problems that tests and benchmarks share."""

import random

from graphpool.memory import BufferInfo


def cut_square(n, seed, side=1024):
    """Buffers that tile a square of time and bytes, but for a fifth that are smaller: hard to plan."""
    rng, parts = random.Random(seed), [(0, side, 0, side)]
    while len(parts) < n:
        areas = [(right - left) * (top - bottom) * rng.random() ** 0.5 for left, right, bottom, top in parts]
        left, right, bottom, top = parts.pop(areas.index(max(areas)))
        if rng.random() < 0.5 and right - left > 1:
            middle = rng.randrange(left + 1, right)
            parts += [(left, middle, bottom, top), (middle, right, bottom, top)]
        elif top - bottom > 1:
            middle = rng.randrange(bottom + 1, top)
            parts += [(left, right, bottom, middle), (left, right, middle, top)]
        else:
            parts.append((left, right, bottom, top))
    lives = [(left, right, max(1, top - bottom - (rng.random() < 0.2))) for left, right, bottom, top in parts]
    return [BufferInfo(i, *life) for i, life in enumerate(rng.sample(lives, n))]
