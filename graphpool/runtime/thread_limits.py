"""Shows the threads of all streams to threadpoolctl: ``threadpool_limits(1, user_api="graphpool")`` caps them."""

from __future__ import annotations

from functools import cache

from .threads import available_threads

__all__ = ["register"]

UNLIMITED = 2**63 - 1


@cache
def register() -> None:
    """Tell threadpoolctl how to find and limit graphpool; once, when the first stream with several threads is made.

    Notes
    -----
    Later, so that importing graphpool imports no threadpoolctl. A limit that was set before that moment does not hold
    for graphpool. A limit of at least `available_threads` lifts the limit, so that leaving ``threadpool_limits`` never
    narrows an engine that was made with more threads than there are processors.
    Threads: safe; registering twice is harmless. Cost: the import of threadpoolctl, some 15 ms.
    """
    import ctypes

    import threadpoolctl

    class Controller(threadpoolctl.LibController):  # type: ignore[misc]
        """The extension that holds the limit, found by its file name and its symbols."""

        user_api = "graphpool"
        internal_api = "graphpool"
        filename_prefixes = ("_team",)
        check_symbols = ("graphpool_get_thread_limit", "graphpool_set_thread_limit")

        def get_num_threads(self) -> int:
            function = self.dynlib.graphpool_get_thread_limit
            function.restype = ctypes.c_int64
            return min(int(function()), available_threads())

        def set_num_threads(self, num_threads: int) -> None:
            limit = UNLIMITED if num_threads >= available_threads() else num_threads
            self.dynlib.graphpool_set_thread_limit(ctypes.c_int64(limit))

        def get_version(self) -> None:
            return None

    threadpoolctl.register(Controller)
