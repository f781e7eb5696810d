"""What the text of the C sources says to Python: structs such as parameter blocks, enumerations, numbers."""

from __future__ import annotations

from functools import cache

from ._dispatch import describe
from ._records import Block, Record, join_blocks, record

__all__ = ["Block", "Record", "enumeration", "join_blocks", "number", "record"]


@cache
def enumeration(name: str, prefix: str = "") -> dict[str, int]:
    """The enumerators of that name (``GP_ENUM``), in order, without the prefix and in lower case, and their numbers."""
    numbers: dict[str, int] = {}
    following = 0
    for enumerator in describe(name)[0].split(","):
        word, _, value = enumerator.partition("=")
        numbers[word.strip().removeprefix(prefix).lower()] = following = int(value or following)
        following += 1
    return numbers


@cache
def number(name: str) -> int:
    """The value of the macro of that name (``GP_NUMBER``)."""
    return int(describe(name)[0])
