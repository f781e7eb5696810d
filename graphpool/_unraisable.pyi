import sys
from collections.abc import Callable
from typing import Any

_Hook = Callable[[sys.UnraisableHookArgs], Any]

def report_unraisable(error: BaseException, where: object) -> None:
    """Hand an error to `sys.unraisablehook`, as the interpreter does with those of finalisers."""

def interrupt_again(hook: _Hook) -> _Hook:
    """A hook for `sys.unraisablehook` with which Ctrl-C is not lost in a finaliser."""
