"""The compilations of a model of which sizes vary."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from .executable import Executable

__all__ = ["VariableForms"]


class VariableForms:
    """Forms that make forms for other shapes, the last used first; each knows the deciding contents that it is for.

    Parameters
    ----------
    capacity : int
        Forms to keep.

    Notes
    -----
    Ownership: owns the forms, whose arenas and constants live as long as those made of them. Threads: one at a time
    adds and asks, any may close at any moment.
    """

    def __init__(self, capacity: int) -> None:
        self._entries: list[tuple[Any, Executable]] = []
        self._capacity = capacity

    def resized(self, shapes: Mapping[str, Any], contents: Any, exactly: bool) -> Executable | None:
        """A form for other shapes, see `Executable.resized`; None if every one of these would decide otherwise."""
        for best in (True,) if exactly else (True, False):
            for entry in list(self._entries):  # others may give all of them up meanwhile
                known, form = entry
                found = form.resized(shapes, best) if known == contents else None
                if found is not None:
                    with suppress(ValueError):
                        self._entries.remove(entry)
                        self._entries.insert(0, entry)
                    return found
        return None

    def refusal(self, shapes: Mapping[str, Any], contents: Any) -> str | None:
        """Why the form that was used last for these contents does not serve the shapes; None if there is no form."""
        entries = list(self._entries)
        found = next((form.refusal(shapes) for known, form in entries if known == contents), None)
        return found or ("contents that decide shapes are new" if entries else None)

    def add(self, form: Executable, contents: Any) -> None:
        """Keep one more form, and give the one up that was not used for longest if there are too many."""
        self._entries.insert(0, (contents, form))
        for _, old in self._entries[self._capacity :]:
            old.close()
        del self._entries[self._capacity :]

    def __iter__(self) -> Iterator[Executable]:
        return iter([form for _, form in list(self._entries)])

    def __len__(self) -> int:
        return len(self._entries)

    def close(self) -> None:
        """Give all of them up."""
        with suppress(IndexError):  # another thread has closed the last one
            while True:
                self._entries.pop()[1].close()
