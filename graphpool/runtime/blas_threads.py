"""Keeps SciPy's BLAS to one thread while programs with BLAS steps run, and gives the user's setting back.

graphpool divides work itself and calls BLAS from each of its threads, so BLAS must not start threads of its own. The
setting is one for the process: the first program in saves it, the last one out restores it. Only SciPy's copy of BLAS
is touched; NumPy's own copy, where it has one, is not.
"""

from __future__ import annotations

import os
import threading
from functools import cache
from typing import Any

from graphpool._kernels.core.blas import load_blas

__all__ = ["enter", "leave", "prepare"]

_lock = threading.Lock()
_running = 0
_saved: list[tuple[Any, int]] = []


@cache
def _libraries() -> list[Any]:
    """threadpoolctl's controllers of SciPy's BLAS, loaded and found once: that takes 30 milliseconds."""
    from threadpoolctl import ThreadpoolController

    load_blas()

    found = ThreadpoolController().select(user_api="blas").lib_controllers
    of_scipy = [library for library in found if "scipy.libs" in library.filepath or "scipy/.dylibs" in library.filepath]
    return of_scipy or list(found)


def prepare() -> None:
    """Load BLAS before the first run that calls it, so that the run takes no memory for it. Threads: safe."""
    _libraries()


def enter() -> None:
    """Note that a program with BLAS steps starts.

    Notes
    -----
    Threads: safe. Cost: a microsecond; changes the setting only where it differs from one thread.
    """
    global _running, _saved
    with _lock:
        _running += 1
        if _running == 1:
            # a fresh list: one that is emptied and filled again takes memory from the C heap each time
            _saved = [(library, n) for library in _libraries() if (n := library.get_num_threads()) != 1]
            for library, _ in _saved:
                _set_threads(library, 1)


def _set_threads(library: Any, threads: int) -> None:
    """Set the threads of a BLAS from whatever thread this is.

    threadpoolctl lets one thread control OpenBLAS and ignores all others without a word, and executions come from any
    thread. Left with threads of its own, OpenBLAS fights those of our teams for the processors, and a fork in the
    middle of a product, for which it ends its threads, hangs that product for good.
    """
    release = getattr(library, "clear_controlling_thread", lambda force: None)
    release(force=True)
    library.set_num_threads(threads)
    release(force=True)


def leave() -> None:
    """Note that a program which called `enter` has ended."""
    global _running
    with _lock:
        _running -= 1
        if _running == 0:
            for library, threads in _saved:
                _set_threads(library, threads)


def _reset_after_fork() -> None:
    """In a forked child no program runs: the threads that ran them are gone."""
    global _lock, _running
    _lock = threading.Lock()
    if _running:
        _running = 1
        leave()


os.register_at_fork(after_in_child=_reset_after_fork)
