"""Gives idle memory back after a while: one thread for all engines that asked for it, as long as there are any."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING
from weakref import WeakSet

if TYPE_CHECKING:
    from .engine import Engine

__all__ = ["unwatch", "watch"]

_engines: WeakSet[Engine] = WeakSet()
_changed = threading.Condition()
_thread: threading.Thread | None = None


def watch(engine: Engine) -> None:
    """Call ``engine.decay()`` twice in each of its periods until `unwatch`, or until it is collected."""
    with _changed:
        _engines.add(engine)
        _changed.notify()
        _start()


def unwatch(engine: Engine) -> None:
    """Leave the engine alone from now on."""
    with _changed:
        _engines.discard(engine)
        _changed.notify()


def _start() -> None:
    global _thread
    if _thread is None or not _thread.is_alive():  # a start may have been interrupted
        _thread = threading.Thread(target=_sweep, name="graphpool idle decay", daemon=True)
        _thread.start()


def _sweep() -> None:
    global _thread
    while True:
        with _changed:
            if _thread is not threading.current_thread():
                return
            periods = [engine.idle_decay_s for engine in _engines if engine.idle_decay_s]
            if not periods or not _engines:  # the last one may have been collected in the line before
                _thread = None
                return
            _changed.wait(min(periods) / 2)
        _decay_all()


def _decay_all() -> None:
    with _changed:  # whoever opens or closes an engine changes the set
        engines = list(_engines)
    for engine in engines:
        engine.decay()


def _restart_in_child() -> None:
    """A forked child has the engines and not the thread."""
    global _changed, _thread
    _changed, _thread = threading.Condition(), None
    if _engines:
        _start()


os.register_at_fork(after_in_child=_restart_in_child)
