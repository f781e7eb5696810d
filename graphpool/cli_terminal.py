"""What a command owes a terminal: progress while it works, and whole files however it ends."""

from __future__ import annotations

import errno
import os
import stat
import sys
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE_S = 2.0
"""Before progress is shown."""


@contextmanager
def progress(text: str) -> Iterator[None]:
    """Say on standard error what is being done and for how long, each second, where that is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    ended, start = threading.Event(), time.monotonic()

    def tell() -> None:
        wait = PATIENCE_S
        while not ended.wait(wait):
            wait = 1.0
            print(f"\r{text}: {time.monotonic() - start:.0f} s", end="", file=sys.stderr, flush=True)

    thread = threading.Thread(target=tell, name="graphpool progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        if time.monotonic() - start >= PATIENCE_S:
            print(f"\r{' ' * (len(text) + 16)}\r", end="", file=sys.stderr, flush=True)


@contextmanager
def written(path: str) -> Iterator[str]:
    """Another path to write to; what lies there takes the place of `path` when the block ends without an error.

    Devices and pipes are written as they are. Raises OSError at the begin where the folder cannot be written.
    """
    mode = stat.S_IFREG
    with suppress(FileNotFoundError):
        mode = Path(path).stat().st_mode  # raises for links that lead to one another
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(mode):
        yield path
        return
    target = Path(path).resolve()  # of a link, which stays
    try:
        number, name = tempfile.mkstemp(target.suffix, f".{target.stem}.", target.parent)
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None  # not the name of the temporary file
    os.close(number)
    try:
        yield name
        umask = os.umask(0)
        os.umask(umask)
        Path(name).chmod(0o666 & ~umask)  # mkstemp's files are the owner's alone
        Path(name).replace(target)
    except BaseException:
        with suppress(OSError):
            Path(name).unlink()
        raise


def leave_pipe() -> None:
    """Let nothing more be written to standard output, whose reader is gone."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
