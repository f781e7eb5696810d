from collections.abc import Sequence
from typing import Final

from graphpool._kernels.core._team import Team

MAX_STREAMS: int

class StreamLists:
    def __init__(self, lists: Sequence[Sequence[tuple[int, int, Sequence[tuple[int, int]], bool]]]) -> None: ...
    nstreams: Final[int]
    ncalls: Final[int]
    def calls_of(self, stream: int) -> list[tuple[int, tuple[tuple[int, int], ...], bool]]: ...
    def stream_of(self) -> list[int]: ...
    def rehearse(
        self, team: Team, durations_ns: Sequence[int], *, spin: bool = False, failing: int = -1
    ) -> list[tuple[int, int]]: ...
