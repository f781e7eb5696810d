from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

def are_texts(items: list[Any]) -> bool: ...
def texts_of(items: list[Any], shape: Sequence[int] | int) -> np.ndarray[Any, Any]: ...

class TextFunction:
    @property
    def dtype(self) -> np.dtype[Any]: ...
    may_give_views: bool
    def __call__(self, inputs: list[Any], outputs: list[Any]) -> Sequence[Any]: ...

class OneHot(TextFunction):
    def __init__(self, place: int | None, content: Any, table: dict[Any, int], width: int, has_zeros: bool) -> None: ...

class Lookup(TextFunction):
    def __init__(
        self, place: int | None, content: Any, keys: Sequence[Any], values: Sequence[Any], default: Any, dtype: Any
    ) -> None: ...

class Pick(TextFunction):
    def __init__(self, place: int | None, content: Any, items: list[Any]) -> None: ...

class Maps(TextFunction):
    def __init__(self, place: int | None, content: Any, keys: list[Any]) -> None: ...

class Normaliser(TextFunction):
    def __init__(
        self,
        place: int | None,
        content: Any,
        case: Callable[[str], str] | None,
        stop: frozenset[str],
        is_sensitive: bool,
    ) -> None: ...

class Words(TextFunction):
    def __init__(
        self,
        place: int | None,
        content: Any,
        split: Callable[[list[str]], list[list[str]]],
        is_marked: bool,
        filler: str,
    ) -> None: ...

class Sequences:
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
