from collections.abc import Callable

States = frozenset[int]

class Places:
    def __init__(
        self,
        start: Callable[[str, str], States],
        step: Callable[[States, str, str], States],
        end: int,
        asserts: bool,
    ) -> None: ...
    def matches(self, text: str) -> bool: ...
    def words(self, texts: list[str], spend: Callable[[int], object], least: int, between: bool) -> list[list[str]]: ...
