"""Has forms stored a while after they were compiled, so that no load and no first run waits for that."""

from __future__ import annotations

import _thread
import atexit
import os
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING
from weakref import WeakSet

if TYPE_CHECKING:
    from .model_forms import ModelForms

__all__ = ["keep_soon"]

_DELAY_S = 1.0

_waiting: WeakSet[ModelForms] = WeakSet()
_has_thread = False
_lock, _working = threading.RLock(), threading.RLock()


def keep_soon(forms: ModelForms) -> None:
    """Call ``forms.keep_late()`` in a second, or at the end of the process; it is held weakly."""
    global _has_thread
    with _lock:
        _waiting.add(forms)
        if not _has_thread:
            with suppress(RuntimeError):  # no thread can be started: at the end, then
                _thread.start_new_thread(_keep_later, ())  # a `Thread` would have the first run wait for its start
                _has_thread = True


def _keep_later() -> None:
    time.sleep(_DELAY_S)
    _keep_all()


@atexit.register
def _keep_all() -> None:
    """Have all stored; whoever ends the process waits until that is done."""
    global _has_thread
    with _working:
        with _lock:
            waiting, _has_thread = list(_waiting), False
            _waiting.clear()
        for forms in waiting:
            forms.keep_late()


def _forget_in_child() -> None:
    """A forked child has not the thread, and its parent stores what both have."""
    global _has_thread, _lock, _working
    _lock, _working, _has_thread = threading.RLock(), threading.RLock(), False
    _waiting.clear()


os.register_at_fork(after_in_child=_forget_in_child)
