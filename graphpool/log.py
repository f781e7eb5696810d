"""Loggers, one a topic, below the logger ``graphpool``: users set levels and handlers by Python's `logging`.

``GRAPHPOOL_VERBOSE`` names topics that are written to standard error besides. All lines are of level INFO. A topic that
nobody listens to costs one question where it would log. `logging` is imported when somebody else has done so, since
nobody listens before, or by `listen`: it takes 2 ms of the start of a worker.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from .config import LOG_TOPICS, get

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable

_INFO = 20
"""`logging.INFO`"""


class Topic:
    """A logger below ``graphpool``, which is there when somebody may listen."""

    __slots__ = ("_logger", "_name", "is_on")

    is_on: Callable[[], bool]
    """Whether somebody listens to the lines of this topic: a method of the logger, once that is there."""

    def __init__(self, name: str) -> None:
        self._name = f"graphpool.{name}"
        self._logger: logging.Logger | None = None
        self.is_on = self._is_on

    def _is_on(self) -> bool:
        """`is_on` until there is a logger."""
        return "logging" in sys.modules and self._find().isEnabledFor(_INFO)

    def info(self, text: str, *values: Any) -> None:
        """Log a line with these values in it."""
        if "logging" in sys.modules:
            self._find().info(text, *values, stacklevel=2)

    def _find(self) -> logging.Logger:
        """The logger, which is there once somebody has imported `logging`."""
        if self._logger is None:
            import logging

            self._logger = logging.getLogger(self._name)
            self.is_on = partial(self._logger.isEnabledFor, _INFO)
        return self._logger


compile_log, execute_log, memory_log, profile_log, error_log = map(
    Topic, ("compile", "execute", "memory", "profile", "error")
)


def listen() -> None:
    """Let the topics that ``GRAPHPOOL_VERBOSE`` names be written to standard error; at the first call only.

    Raises
    ------
    InvalidArgumentError
        The variable is malformed.
    """
    topics = get("verbose")
    if topics:
        _write_to_standard_error([topic for topic in LOG_TOPICS if topic in topics])


def _write_to_standard_error(topics: list[str]) -> None:
    import logging

    class Handler(logging.StreamHandler):  # type: ignore[type-arg]
        """Writes to what is standard error at the time of writing."""

        def emit(self, record: logging.LogRecord) -> None:
            self.stream = sys.stderr
            super().emit(record)

    for topic in topics:
        logger = logging.getLogger(f"graphpool.{topic}")
        if not any(handler.name == logger.name for handler in logger.handlers):
            handler = Handler()
            handler.name = logger.name
            handler.setFormatter(logging.Formatter(f"graphpool {topic}: %(message)s"))
            logger.addHandler(handler)
            logger.setLevel(logging.INFO)
            logger.propagate = False
