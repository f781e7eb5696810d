"""Names of a package whose modules are imported when somebody first asks for one."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def lazy_names(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """What a package takes for its ``__getattr__``, and for its ``__dir__``, which lists all public names.

    Parameters
    ----------
    package : str
        Its ``__name__``.
    homes : mapping of str to str
        Name -> the module of the package that has it, which must not have that name itself.
    """

    def find(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{home}"), name)
        setattr(sys.modules[package], name, value)
        return value

    def list_names() -> list[str]:
        return sorted(sys.modules[package].__all__)

    return find, list_names
