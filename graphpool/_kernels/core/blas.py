"""Loads SciPy's BLAS when a kernel is to call it for the first time.

`scipy.linalg.cython_blas` is loaded without the rest of its package, which nobody here needs and which takes 0.15 s and
18 MB: as much as a small model. A program that imports scipy.linalg, before or after, gets the same module.
"""

from __future__ import annotations

import os
import sys
import threading
from importlib import import_module
from importlib.machinery import PathFinder

__all__ = ["load_blas"]

_NAME = "scipy.linalg.cython_blas"
_lock = threading.Lock()


def _reset_after_fork() -> None:
    """In a forked child nobody is left who would release the old lock."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_reset_after_fork)


def load_blas() -> None:
    """Make BLAS known to kernels. Threads: safe. Cost: 25 ms at the first call, then a look-up."""
    with _lock:
        if _NAME not in sys.modules:
            _load_alone()
        import_module("graphpool._kernels.core._blas")


def _load_alone() -> None:
    from importlib.util import module_from_spec
    from pathlib import Path

    scipy = import_module("scipy")
    spec = PathFinder.find_spec(_NAME, [str(Path(folder, "linalg")) for folder in scipy.__path__])
    if spec is None or spec.loader is None:
        return  # the ordinary import of `_blas` says what is missing
    module = sys.modules[_NAME] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[_NAME]
        raise
