"""Lifetime managers: from the order in which tensors are managed and finalised to a layout that they share.

A group records while tensors start and end; when the last one of those that were started ends, they get their places.
What the group starts afterwards is used later, and takes the same memory again. The manager's own size only grows, so
that pools made for it serve all of its groups.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphpool._dataclasses import dataclass, field
from graphpool.errors import InvalidArgumentError, StateError, brief, explain

from ..fork import Locked
from ._arena import ArenaPool
from ._check import check_request
from .planner import BufferInfo, plan

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from graphpool.typing import MemoryResource

    from ._budget import Budget

_MIN_ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class BlobInfo:
    """A piece of memory that tensors share one after another: bytes, alignment in bytes, and how many share it."""

    nbytes: int
    alignment: int
    owners: int


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor lies: the blob's number, the offset in it, its size and its alignment. Unit: bytes."""

    blob: int
    offset: int
    nbytes: int
    alignment: int

    def fits(self, blobs: tuple[BlobInfo, ...]) -> bool:
        """Whether a pool made of `blobs` has this place."""
        if self.blob >= len(blobs):
            return False
        blob = blobs[self.blob]
        return self.offset + self.nbytes <= blob.nbytes and self.alignment <= max(blob.alignment, _MIN_ALIGNMENT)


@dataclass(slots=True)
class _Life:
    """A tensor while its group records. Times count the calls."""

    handle: Hashable
    start: int
    blob: int
    end: int = 0
    nbytes: int = 0
    alignment: int = 0

    def at(self, blob: int, offset: int) -> Place:
        """The tensor's place."""
        return Place(blob, offset, self.nbytes, self.alignment)


@dataclass(slots=True)
class _Recording:
    """An open group: who is active, who has ended, and which blobs wait for an owner, last freed first."""

    active: dict[Hashable, _Life] = field(default_factory=dict)
    ended: dict[Hashable, _Life] = field(default_factory=dict)
    free_blobs: list[int] = field(default_factory=list)
    blob_count: int = 0
    clock: int = 0


class MemoryPool:
    """Arenas that all hold one set of blobs, laid end to end; one of `arenas` serves one execution. Threads: safe."""

    def __init__(
        self,
        blobs: tuple[BlobInfo, ...],
        resource: MemoryResource,
        *,
        max_arenas: int | None = None,
        budget: Budget | None = None,
    ) -> None:
        self.blobs = blobs
        self.offsets: list[int] = []
        end, alignment = 0, _MIN_ALIGNMENT
        for blob in blobs:
            alignment = max(alignment, blob.alignment)
            step = max(blob.alignment, _MIN_ALIGNMENT)
            self.offsets.append(-(-end // step) * step)
            end = self.offsets[-1] + blob.nbytes
        self.arenas = ArenaPool(resource, end, alignment=alignment, max_arenas=max_arenas, budget=budget)

    def addresses(self, places: Mapping[Hashable, Place], base: int) -> dict[Hashable, int]:
        """Addresses of tensors with these places in the arena at `base`.

        Raises
        ------
        StateError
            The group was configured to more than the pool was made for.
        """
        if not all(place.fits(self.blobs) for place in places.values()):
            raise StateError(
                explain("the group needs more than its pool holds", hint="clear and populate again after configuring")
            )
        return {handle: base + self.offsets[at.blob] + at.offset for handle, at in places.items()}


class LifetimeManager(Locked):
    """Records lifetimes of tensors, group by group; the two managers differ in how they lay a group out.

    Groups record independently of one another, so that several threads may configure functions on one manager.

    Notes
    -----
    Ownership: tensors and groups are kept until `release_group`. Threads: safe; fork-safe. Cost: one lock per call.
    Source: Arm Compute Library's ISimpleLifetimeManager, as a behaviour.
    """

    def __init__(self) -> None:
        super().__init__()
        self._recordings: dict[Hashable, _Recording] = {}
        self._places: dict[Hashable, Mapping[Hashable, Place]] = {}
        self._blobs: tuple[BlobInfo, ...] = ()

    def register_group(self, group: Hashable) -> None:
        """Open a group, unless it is open: tensors that start from now on belong to it.

        Parameters
        ----------
        group : hashable
        """
        with self._lock:
            self._recordings.setdefault(group, _Recording())

    def release_group(self, group: Hashable) -> bool:
        """Forget the places of a finalised group.

        Parameters
        ----------
        group : hashable

        Returns
        -------
        was_finalized : bool
        """
        with self._lock:
            return self._places.pop(group, None) is not None

    def start_lifetime(self, handle: Hashable, group: Hashable | None = None) -> None:
        """`handle` is used from now on.

        Parameters
        ----------
        handle : hashable
            The tensor, known by equality.
        group : hashable, optional
            Its group; by default the only one that is open.

        Raises
        ------
        InvalidArgumentError
            `handle` is None or has no hash.
        StateError
            It has started since the group was last finalised, or no group (or more than one) is open.
        """
        if handle is None or not _has_hash(handle):
            accepted = "what has a hash, not None"
            raise InvalidArgumentError(explain("handle of a tensor", accepted=accepted, got=brief(handle)))
        with self._lock:
            recording = self._recordings[self._open_group(group)]
            if handle in recording.active or handle in recording.ended:
                hint = "allocate every managed tensor of the group before one is managed again"
                raise StateError(explain(f"the lifetime of {handle!r} has started already", hint=hint))
            if recording.free_blobs:
                blob = recording.free_blobs.pop()
            else:
                blob = recording.blob_count
                recording.blob_count += 1
            recording.active[handle] = _Life(handle, recording.clock, blob)
            recording.clock += 1

    def end_lifetime(self, handle: Hashable, nbytes: int, alignment: int = 0, group: Hashable | None = None) -> None:
        """`handle` is not used any more; with the last one of its group that had started, the group is finalised.

        Tensors that start in the group later are laid out by themselves, in the same memory.

        Parameters
        ----------
        handle : hashable
        nbytes, alignment : int
            What it needs. Unit: bytes; alignment 0 asks for none.
        group : hashable, optional
            As in `start_lifetime`.

        Raises
        ------
        InvalidArgumentError
            A size or alignment is not usable.
        StateError
            It has not started, or no group is open.
        """
        check_request(nbytes, alignment or 1)
        with self._lock:
            key = self._open_group(group)
            recording = self._recordings[key]
            if handle not in recording.active:
                raise StateError(explain(f"the lifetime of {handle!r} has not started"))
            life = recording.active.pop(handle)
            life.end, life.nbytes, life.alignment = recording.clock, nbytes, alignment
            recording.clock += 1
            recording.ended[handle] = life
            recording.free_blobs.append(life.blob)
            if not recording.active:
                self._finalize(key, recording)

    def _open_group(self, group: Hashable | None) -> Hashable:
        if group is None and len(self._recordings) == 1:
            return next(iter(self._recordings))
        if group is None or group not in self._recordings:
            raise StateError(explain("no such group is open", accepted="a registered group", got=group))
        return group

    def _finalize(self, group: Hashable, recording: _Recording) -> None:
        blobs, places = self._lay_out(recording)
        self._blobs = _merge(self._blobs, blobs)
        self._places[group] = {**self.places(group), **places}
        del self._recordings[group]

    def _lay_out(self, recording: _Recording) -> tuple[tuple[BlobInfo, ...], dict[Hashable, Place]]:
        """The blobs that the tensors of a recording need, and the place of each."""
        raise NotImplementedError

    def are_all_finalized(self) -> bool:
        """Whether no group is open.

        Returns
        -------
        bool
        """
        return not self._recordings

    def is_finalized(self, group: Hashable) -> bool:
        """Whether no tensor of a group has started and not ended.

        Parameters
        ----------
        group : hashable

        Returns
        -------
        is_finalized : bool
        """
        return group not in self._recordings

    def places(self, group: Hashable) -> Mapping[Hashable, Place]:
        """Places of a group's tensors, those of the tensors that were started last only once it is finalised.

        Parameters
        ----------
        group : hashable

        Returns
        -------
        places : mapping
            Tensor -> its blob and offset; empty where there are none.
        """
        return self._places.get(group, {})

    def info(self) -> tuple[BlobInfo, ...]:
        """Blobs that a pool needs to serve every group so far; they only grow.

        Returns
        -------
        tuple of BlobInfo
        """
        return self._blobs

    def create_pool(
        self, resource: MemoryResource, *, max_arenas: int | None = None, budget: Budget | None = None
    ) -> MemoryPool:
        """A pool for all groups finalised so far; it allocates nothing yet.

        Parameters
        ----------
        resource : MemoryResource
            Where the arenas come from.
        max_arenas : int, optional
            Most arenas at once; by default as many as are asked for.
        budget : Budget, optional
            Charged for every arena.

        Returns
        -------
        pool : MemoryPool

        Raises
        ------
        StateError
            A group is still open.
        """
        with self._lock:
            if self._recordings:
                raise StateError(explain("a group is not finalised", accepted="every managed tensor allocated"))
            return MemoryPool(self._blobs, resource, max_arenas=max_arenas, budget=budget)


class BlobLifetimeManager(LifetimeManager):
    """Tensors share blobs: each takes the blob that became free last, whatever its size.

    Here for parity with Arm Compute Library; `OffsetLifetimeManager` packs better.
    """

    def _lay_out(self, recording: _Recording) -> tuple[tuple[BlobInfo, ...], dict[Hashable, Place]]:
        blobs = []
        for number in range(recording.blob_count):
            owners = [life for life in recording.ended.values() if life.blob == number]
            nbytes, alignment = max(life.nbytes for life in owners), max(life.alignment for life in owners)
            blobs.append((BlobInfo(nbytes, alignment, len(owners)), owners))
        blobs.sort(key=lambda pair: -pair[0].nbytes)
        places = {life.handle: life.at(rank, 0) for rank, (_, owners) in enumerate(blobs) for life in owners}
        return tuple(blob for blob, _ in blobs), places


class OffsetLifetimeManager(LifetimeManager):
    """Tensors have offsets in one blob, packed by the planner from their lifetimes and sizes."""

    def _lay_out(self, recording: _Recording) -> tuple[tuple[BlobInfo, ...], dict[Hashable, Place]]:
        lives = list(recording.ended.values())
        buffers = [
            BufferInfo(i, life.start, life.end, life.nbytes, max(life.alignment, 1)) for i, life in enumerate(lives)
        ]
        packed = plan(buffers, alignment=_MIN_ALIGNMENT)
        alignment = max((life.alignment for life in lives), default=0)
        places = {life.handle: life.at(0, packed.offsets[i]) for i, life in enumerate(lives)}
        return (BlobInfo(packed.nbytes, max(alignment, _MIN_ALIGNMENT), len(lives)),), places


def _has_hash(value: object) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _merge(old: tuple[BlobInfo, ...], new: tuple[BlobInfo, ...]) -> tuple[BlobInfo, ...]:
    """Rank by rank the larger of both, so that one pool serves either."""
    longer, shorter = (old, new) if len(old) >= len(new) else (new, old)
    merged = [
        BlobInfo(max(a.nbytes, b.nbytes), max(a.alignment, b.alignment), max(a.owners, b.owners))
        for a, b in zip(longer, shorter, strict=False)
    ]
    return (*merged, *longer[len(shorter) :])
