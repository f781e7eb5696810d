from typing import Any

import numpy as np

MAX_BUFFERS: int

class Search:
    """Buffers in units and sections, and the tables of the search; for one thread."""

    def run(self, capacity: int, keys: Any, deadline_ns: int) -> Any: ...

def search(
    problem: Any, offsets: np.ndarray[Any, Any], nbytes: int, bound: int, target: int, deadline_s: float
) -> tuple[np.ndarray[Any, Any], int, bool]: ...
