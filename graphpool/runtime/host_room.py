"""What host functions take at most, and the models inside a form, as far as that is known before they run."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from graphpool._dataclasses import NamedTuple
from graphpool.typing import DataType

from .model_step import is_plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from graphpool.graph.logical_tensor import LogicalTensor

    from .model_step import ModelStep

__all__ = ["NO_ROOM", "HostNeed", "HostRoom", "RunBound", "ValueBound", "bound_of_tensor", "need_of_results"]

_SMALL_NBYTES = 2**10
"""For what a host function makes of numbers and shapes."""

_POINTER_NBYTES = 8


class ValueBound(NamedTuple):
    """The most that a value of a run is.

    Attributes
    ----------
    shape : tuple of int or None
        The largest shape; None if that is not known, and of lists.
    nbytes : int
        Data of its arrays; of texts and other objects, what points to them. Unit: bytes.
    items : tuple of ValueBound or None
        Of a list of known length.
    """

    shape: tuple[int, ...] | None
    nbytes: int
    items: tuple[ValueBound, ...] | None = None

    @classmethod
    def of_array(cls, shape: Sequence[int], itemsize: int) -> ValueBound:
        """That of an array, with the size of its elements in bytes."""
        return cls(tuple(shape), prod(shape) * itemsize)

    @classmethod
    def of_items(cls, items: Iterable[ValueBound]) -> ValueBound:
        """That of a list."""
        found = tuple(items)
        return cls(None, sum(item.nbytes for item in found), found)


class HostNeed(NamedTuple):
    """What a call of a host function gives and takes at most.

    Attributes
    ----------
    results : sequence of ValueBound or None
        Of its outputs; None for what has no arrays.
    nbytes : int
        Data of its arrays, temporaries and results included. Unit: bytes.
    objects_nbytes : int
        Objects of Python, such as maps, which no budget counts. Unit: bytes.
    kept_nbytes : int or None
        What of `nbytes` the results are; None if that is their memory, as where they share none with inputs. Unit:
        bytes.
    is_measured : bool
        Whether the numbers are not of the function's own code, so that a call may take less.
    """

    results: Sequence[ValueBound | None]
    nbytes: int
    objects_nbytes: int = 0
    kept_nbytes: int | None = None
    is_measured: bool = False


class RunBound(NamedTuple):
    """What models inside a form take at most.

    Attributes
    ----------
    kept_nbytes, run_nbytes : int
        Memory that is held between runs, and that of a run. Unit: bytes.
    unbounded : tuple of str
        Nodes of which only a run tells how much they take; it is not in these numbers.
    objects_nbytes : int
        Objects of Python that host functions make in a run, and what the C heap may keep of arrays that they are done
        with, beside what comes after them. No budget counts either. Unit: bytes.
    results : sequence of tuple of int or None
        Largest shapes of the outputs, as far as they are known.
    opened_nbytes : int
        Memory of a run where the models inside stay open next to one another, as in trips of a loop. Unit: bytes.
    programs_nbytes : int
        What of the memory between runs one needs beside that, and gives up when others need it: programs for its
        shapes, and those of which they are made. Unit: bytes.

    Notes
    -----
    What a model inside has taken for a run it keeps for the next one until others need it: `run_nbytes` is what runs
    need, `most_nbytes` what they may be seen to take.
    """

    kept_nbytes: int = 0
    run_nbytes: int = 0
    unbounded: tuple[str, ...] = ()
    objects_nbytes: int = 0
    results: Sequence[tuple[int, ...] | None] = ()
    opened_nbytes: int = 0
    programs_nbytes: int = 0

    @property
    def most_nbytes(self) -> int:
        """What is taken at most, of which something would be given back where others need it. Unit: bytes."""
        return self.kept_nbytes + max(self.run_nbytes, self.opened_nbytes)


class HostRoom(NamedTuple):
    """What the host functions of a run take at most, beside models inside the form.

    Attributes
    ----------
    nbytes : int
        Data of arrays: those of the function that takes most, and what those before it have given. Unit: bytes.
    held_nbytes : int
        What of that stays when the last one has run. Unit: bytes.
    objects_nbytes : int
        Objects of Python, likewise. Unit: bytes.
    unbounded : tuple of str
        Nodes of which only a run tells how much they take; it is not in these numbers.
    values : dict of int to ValueBound
        What is known of outputs that have no place in memory, by tensor.
    is_exact : bool
        Whether that is written, too, whatever the contents are.
    """

    nbytes: int
    held_nbytes: int
    objects_nbytes: int
    unbounded: tuple[str, ...]
    values: dict[int, ValueBound]
    is_exact: bool

    @classmethod
    def of(cls, tensors: Mapping[int, LogicalTensor], steps: Iterable[ModelStep], held_nbytes: int) -> HostRoom:
        """That of host functions in the order of their steps, beside so much."""
        values: dict[int, ValueBound] = {}
        held = most = held_nbytes
        objects = most_objects = 0
        unbounded = []
        is_measured = False
        for step in steps:
            given = [bound_of_tensor(tensors.get(i)) or values.get(i) for i in step.inputs]
            made = [bound_of_tensor(tensors.get(i)) for i in step.outputs]
            are_placed = [is_plain(tensors.get(i)) for i in step.outputs]
            need = _need_of(step, given, made)
            if need is None:
                unbounded.append(step.label)
                continue
            copies = 0 if all(are_placed) or step.gives_fresh else _copied_nbytes(tensors, step, given)
            most = max(most, held + copies + need.nbytes + _SMALL_NBYTES)
            most_objects = max(most_objects, objects + need.objects_nbytes)
            objects += need.objects_nbytes
            is_measured = is_measured or need.is_measured
            made_here = zip(step.outputs, are_placed, need.results, strict=True)
            loose = {i: result for i, is_placed, result in made_here if not is_placed and result is not None}
            values.update(loose)
            held += copies  # which results may be views of
            held += sum(result.nbytes for result in loose.values()) if need.kept_nbytes is None else need.kept_nbytes
        return cls(most, held, most_objects, tuple(unbounded), values, not (values or objects or is_measured))


NO_ROOM = HostRoom(0, 0, 0, (), {}, True)


def bound_of_tensor(tensor: LogicalTensor | None) -> ValueBound | None:
    """What a tensor is at most; None if its shape is not known."""
    if tensor is None or not tensor.is_shape_known:
        return None
    itemsize = _POINTER_NBYTES if tensor.dtype is DataType.UNDEF else tensor.dtype.numpy.itemsize
    return ValueBound.of_array(tensor.shape or (), itemsize)


def _copied_nbytes(tensors: Mapping[int, LogicalTensor], step: ModelStep, given: Sequence[ValueBound | None]) -> int:
    """What `HostCall` copies of inputs that results may be views of: arrays, but for those of texts. Unit: bytes."""
    arrays = [value for value in given if value is not None and value.items is None]
    texts = [tensors[i] for i in step.inputs if i in tensors and tensors[i].is_shape_known and not is_plain(tensors[i])]
    return sum(value.nbytes for value in arrays) - sum(_POINTER_NBYTES * prod(tensor.shape or ()) for tensor in texts)


def _need_of(step: ModelStep, given: Sequence[ValueBound | None], made: Sequence[ValueBound | None]) -> HostNeed | None:
    """As `HostFunction.bound`; without one what results take, if their shapes are known."""
    bound = getattr(step.function, "bound", None)
    found: HostNeed | None = need_of_results(made) if bound is None else bound(given, made)
    return found


def need_of_results(made: Sequence[ValueBound | None]) -> HostNeed | None:
    """What results alone take; None if the shape of one is not known."""
    known = [value for value in made if value is not None]
    return HostNeed(known, sum(value.nbytes for value in known)) if len(known) == len(made) else None
