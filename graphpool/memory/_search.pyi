from collections.abc import Callable
from typing import Any

import numpy as np

MAX_BUFFERS: int
MAX_UNITS: int
NODE_LIMIT: int
LOWEST_SHARE: int

class Search:
    """Buffers in units and sections, and the tables of the search; for one thread."""

    nodes: int
    def probe(self, capacity: int, order: Any, failures: Any, node_limit: int, deadline_ns: int) -> Any: ...
    def last_order(self) -> np.ndarray[Any, Any]: ...

def search(
    problem: Any,
    nbytes: int,
    bound: int,
    target: int,
    node_limit: int,
    deadline_s: float,
    improved: Callable[[np.ndarray[Any, Any], int], None],
) -> int: ...
