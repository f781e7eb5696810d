from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from graphpool.runtime.host_room import HostNeed, ValueBound

def texts_of(items: list[Any], shape: Sequence[int] | int) -> np.ndarray[Any, Any]: ...

class TextFunction:
    @property
    def dtype(self) -> np.dtype[Any] | None: ...
    @property
    def nbytes(self) -> int: ...
    gives_fresh: bool
    def __call__(self, inputs: list[Any], outputs: list[Any]) -> Sequence[Any]: ...
    def bound(self, inputs: Sequence[ValueBound | None], outputs: Sequence[ValueBound | None]) -> HostNeed | None: ...

class OneHot(TextFunction):
    def __init__(self, place: int | None, content: Any, table: dict[Any, int], width: int, has_zeros: bool) -> None: ...

class Lookup(TextFunction):
    def __init__(
        self, place: int | None, content: Any, keys: Sequence[Any], values: Sequence[Any], default: Any, dtype: Any
    ) -> None: ...

class Either(TextFunction):
    def __init__(self, place: int | None, content: Any, there: Lookup, back: Lookup) -> None: ...

class Pick(TextFunction):
    def __init__(self, place: int | None, content: Any, items: list[Any]) -> None: ...

class Maps(TextFunction):
    def __init__(self, place: int | None, content: Any, keys: list[Any]) -> None: ...

class Normaliser(TextFunction):
    makes_texts: bool
    def __init__(
        self,
        place: int | None,
        content: Any,
        case: Callable[[str], str] | None,
        stop: frozenset[str],
        is_sensitive: bool,
    ) -> None: ...

class Words(TextFunction):
    makes_texts: bool
    def __init__(
        self,
        place: int | None,
        content: Any,
        split: Callable[[list[str]], list[list[str]]],
        is_marked: bool,
        filler: str,
    ) -> None: ...

class Sequences:
    @property
    def nbytes(self) -> int: ...
    def __init__(self, items: Sequence[tuple[Sequence[Any], int]], width: int) -> None: ...

class Counts(TextFunction):
    def __init__(
        self,
        place: int | None,
        content: Any,
        sequences: Sequences,
        most_skipped: int,
        weights: np.ndarray[Any, Any],
        are_flags: bool,
        spend: Callable[[int], None] | None,
    ) -> None: ...
