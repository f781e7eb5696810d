from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

def find_levels(
    children: Array, is_inner: Array, roots: Array, tree: Array, levels: Array, above: Array, queue: Array
) -> bool: ...
