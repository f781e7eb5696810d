"""Has forms stored a while after they were compiled, so that no load and no first run waits for that."""

from __future__ import annotations

import atexit
import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING
from weakref import WeakSet

if TYPE_CHECKING:
    from .model_forms import ModelForms

__all__ = ["keep_soon"]

_DELAY_S = 1.0

_waiting: WeakSet[ModelForms] = WeakSet()
_timer: threading.Timer | None = None
_lock, _working = threading.RLock(), threading.RLock()


def keep_soon(forms: ModelForms) -> None:
    """Call ``forms.keep_late()`` in a second, or at the end of the process; it is held weakly."""
    global _timer
    with _lock:
        _waiting.add(forms)
        if _timer is None:
            timer = threading.Timer(_DELAY_S, _keep_all)
            timer.name, timer.daemon = "graphpool keeps programs", True
            with suppress(RuntimeError):  # no thread can be started: at the end, then
                timer.start()
                _timer = timer


@atexit.register
def _keep_all() -> None:
    """Have all stored; whoever ends the process waits until that is done."""
    global _timer
    with _working:
        with _lock:
            waiting, _timer = list(_waiting), None
            _waiting.clear()
        for forms in waiting:
            forms.keep_late()


def _forget_in_child() -> None:
    """A forked child has not the thread, and its parent stores what both have."""
    global _timer, _lock, _working
    _lock, _working, _timer = threading.RLock(), threading.RLock(), None
    _waiting.clear()


os.register_at_fork(after_in_child=_forget_in_child)
