"""A program of launches: kernels, and for each of their arguments a base and an offset, as on the CPU."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from graphpool._dataclasses import dataclass

from .gpu_queue import launch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphpool._kernels.cuda.source import CudaCall
    from graphpool.schedule import Schedule

    from .cublas_lt import LibraryProduct

__all__ = ["KernelLaunch", "Launch", "LaunchList"]


class KernelLaunch:
    """A call of a kernel, whose function is loaded."""

    def __init__(self, call: CudaCall, function: Any) -> None:
        self._call, self._function = call, function
        self._params = ctypes.create_string_buffer(call.params, len(call.params))
        self._rooms = [self._new_room()]  # as many as threads that launch it at a time

    def _new_room(self) -> tuple[Any, int, Any]:
        """An array for addresses, and one of the places of these and of the parameters, after where it lies."""
        values = (ctypes.c_uint64 * self._call.nargs)()
        places = range(ctypes.addressof(values), ctypes.addressof(values) + ctypes.sizeof(values), 8)
        pointers = (ctypes.c_uint64 * (self._call.nargs + 1))(*places, ctypes.addressof(self._params))
        return values, ctypes.addressof(pointers), pointers

    def launch(self, stream: int, addresses: Sequence[int]) -> None:
        """Give it to a stream; the device's context is current."""
        try:
            room = self._rooms.pop()
        except IndexError:
            room = self._new_room()
        room[0][:] = addresses
        launch(stream, self._function, self._call.ntasks, self._call.threads, room[1])
        self._rooms.append(room)


@dataclass(frozen=True)
class Launch:
    """A call, and (base, offset in bytes) for each address that it takes; base 0 is the arena, 1 the literals.

    `is_watched`: the last one is that of a word, which the kernel sets where an index lies outside its axis.
    """

    call: KernelLaunch | LibraryProduct
    args: tuple[tuple[int, int], ...]
    is_watched: bool = False


class LaunchList:
    """Launches, and what orders them.

    Parameters
    ----------
    launches : sequence of Launch
    arena_nbytes : int
        Temporaries of one run. Unit: bytes.
    schedule : Schedule, optional
        Of the launches by number, for which temporaries were planned; by default they follow one another.

    Attributes
    ----------
    watched : tuple of int
        Numbers of the launches that look at indices, in the order of their words.

    Notes
    -----
    Threads: safe; a run copies nothing but addresses.
    """

    uses_blas = False

    def __init__(self, launches: Sequence[Launch], arena_nbytes: int, schedule: Schedule | None = None) -> None:
        self.launches, self.arena_nbytes = tuple(launches), arena_nbytes
        self.schedule = schedule
        self.watched = tuple(number for number, launch in enumerate(self.launches) if launch.is_watched)
        self._order = range(len(self.launches)) if schedule is None else schedule.order

    def run(self, stream: int, bases: Sequence[int]) -> None:
        """Give all launches to one stream; the device's context is current.

        Parameters
        ----------
        stream : int
            Its handle.
        bases : sequence of int
            Device addresses: the arena, the literals, the external tensors, then the words of `watched`.
        """
        for number in self._order:
            self.launch(number, stream, bases)

    def launch(self, number: int, stream: int, bases: Sequence[int]) -> None:
        """Give one launch to a stream; the device's context is current."""
        one = self.launches[number]
        one.call.launch(stream, [bases[base] + offset for base, offset in one.args])

    def __len__(self) -> int:
        return len(self.launches)
