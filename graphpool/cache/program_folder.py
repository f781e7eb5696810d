"""ProgramFolder: compiled programs, without weights, in a folder that nobody had to name."""

from __future__ import annotations

import fcntl
from typing import TYPE_CHECKING, Any

from ..log import compile_log
from .packed_folder import PackedStore, StoredFile

if TYPE_CHECKING:
    from ..typing import MemoryResource
    from ._handle import ConstantBuffer
    from .identity import PackedKey

__all__ = ["ProgramFolder"]

_CAPACITY_NBYTES = 256 << 20


class ProgramFolder(PackedStore):
    """A store of compiled programs that nobody waits for, and of whose troubles only the log tells.

    The folder is made when the first program is put there. Files are not flushed to the disk: what a crash of the
    system damaged is found by its checksum. Who finds the folder locked by another process keeps nothing.
    """

    keeps_weights = False
    most_nbytes = 16 << 20
    _locking = fcntl.LOCK_EX | fcntl.LOCK_NB

    def __init__(self, path: str) -> None:
        super().__init__(path, capacity_nbytes=_CAPACITY_NBYTES, mapping="copy")

    def _make_folder(self) -> None:
        pass

    def get(self, key: PackedKey, resource: MemoryResource | None = None) -> ConstantBuffer | None:
        """As of `PackedStore`; None, too, where others may write to the folder."""
        return super().get(key, resource) if self.keeps_programs else None

    def put(self, key: PackedKey, data: Any) -> bool:
        """As of `PackedStore`; False, too, for what is large or where others may write to the folder."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            self._warn("folder", f"no programs are kept in {self.path}: {error}")
            return False
        return self.keeps_programs and super().put(key, data)

    def clear(self) -> None:
        """As of `PackedStore`; there need not be a folder."""
        if self.path.exists():
            super().clear()

    def _files(self, *suffixes: str) -> list[StoredFile]:
        return super()._files(*suffixes) if self.path.exists() else []

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles by path."""
        return ProgramFolder, (str(self.path),)

    def _sync(self, descriptor: int) -> None:
        pass

    def _warn(self, name: str, message: str) -> None:
        compile_log.info("%s", message)
