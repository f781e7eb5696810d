from typing import Any

import numpy as np

ORDERS: tuple[str, ...]

def place(
    problem: Any, order: np.ndarray[Any, Any], best_fit: bool, limit: int, offsets: np.ndarray[Any, Any]
) -> int: ...
