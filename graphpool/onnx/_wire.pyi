from ._lists import Buffer

WHOLE_BYTES: frozenset[int]
NIBBLES: frozenset[int]

class Outline:
    model: bytes
    places: dict[int, tuple[int, int]]
    lists: dict[int, dict[int, tuple[int, int, int, int]]]

    def __init__(self, model: bytes) -> None: ...

def outline(data: Buffer) -> Outline: ...
