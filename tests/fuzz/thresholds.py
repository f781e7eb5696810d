"""Sizes at which graphpool changes its ways, read off its own constants."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path

import graphpool._kernels
import graphpool.backends.cpu

__all__ = ["NUMBERS", "around"]

MOST = 2**17
_DEFINE = re.compile(r"^#define GP_\w+ (\d+)\b", re.MULTILINE)


def _from_modules() -> set[int]:
    """Whole numbers in constants of the modules that choose kernels, and of the kernels' own descriptions."""
    found: set[int] = set()
    for package in (graphpool._kernels, graphpool.backends.cpu):
        for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            module = importlib.import_module(info.name)
            for name, value in vars(module).items():
                values = value if isinstance(value, tuple) else (value,)
                if name.lstrip("_").isupper():
                    found |= {item for item in values if type(item) is int}
    return found


def _from_headers() -> set[int]:
    """Tile sizes that only C knows."""
    folder = Path(graphpool._kernels.__path__[0])
    return {int(number) for path in folder.glob("*/*.h") for number in _DEFINE.findall(path.read_text())}


NUMBERS = tuple(sorted(n for n in _from_modules() | _from_headers() if 2 <= n <= MOST))
"""The constants; sizes in bytes count as sizes in elements of one byte, which some tensors have."""


def around(most: int, itemsize: int = 1) -> list[int]:
    """Numbers up to `most` that lie at a threshold, one below or one above; thresholds in bytes are converted."""
    at = set(NUMBERS) | {n // itemsize for n in NUMBERS}
    return sorted({m for n in at for m in (n - 1, n, n + 1) if 1 <= m <= most})
