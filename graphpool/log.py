"""Loggers, one a topic, below the logger ``graphpool``: users set levels and handlers by Python's `logging`.

``GRAPHPOOL_VERBOSE`` names topics that are written to standard error besides. All lines are of level INFO. A topic that
nobody listens to costs one question to `logging` where it would log.
"""

from __future__ import annotations

import logging
import sys

from .config import LOG_TOPICS, get

compile_log, execute_log, memory_log, profile_log, error_log = (
    logging.getLogger(f"graphpool.{topic}") for topic in ("compile", "execute", "memory", "profile", "error")
)


class _Handler(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to what is standard error at the time of writing."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def listen() -> None:
    """Let the topics that ``GRAPHPOOL_VERBOSE`` names be written to standard error; at the first call only.

    Raises
    ------
    InvalidArgumentError
        The variable is malformed.
    """
    topics = get("verbose")
    for topic in LOG_TOPICS:
        logger = logging.getLogger(f"graphpool.{topic}")
        if topic in topics and not any(isinstance(handler, _Handler) for handler in logger.handlers):
            handler = _Handler()
            handler.setFormatter(logging.Formatter(f"graphpool {topic}: %(message)s"))
            logger.addHandler(handler)
            logger.setLevel(logging.INFO)
            logger.propagate = False


def is_on(logger: logging.Logger) -> bool:
    """Whether somebody listens to the lines of a topic."""
    return logger.isEnabledFor(logging.INFO)
