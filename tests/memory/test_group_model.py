"""Random groups against a model of Arm Compute Library's lifetime managers, as its documentation describes them.

The model is written down here in plain Python and shares no code with the package. A tensor that starts takes the blob
that became free last, else a new one. When every tensor of the group that was started has ended, the blobs are ranked
by size; the group's mappings gain those tensors, the manager's blobs become rank by rank the larger ones, and the next
tensors of the group start afresh.
"""

import random

import pytest

from graphpool.errors import StateError
from graphpool.memory import (
    BlobLifetimeManager,
    HostResource,
    MemoryGroup,
    MemoryManagerOnDemand,
    OffsetLifetimeManager,
    TensorAllocator,
)

GROUPS = 400


class ModelGroup:
    """Blobs and mappings of one group by the blob scheme, and who was alive together."""

    def __init__(self):
        self.mappings = {}  # number of the tensor -> rank of its blob
        self.together = set()  # pairs of tensors, the lower number first
        self._begin()

    def _begin(self):
        self.blobs = []  # [largest size, strictest alignment, tensors]
        self.free = []
        self.active = {}  # number of the tensor -> its blob

    def manage(self, number):
        self.mappings.pop(number, None)  # it had a place before
        self.together = {pair for pair in self.together if number not in pair}
        self.together |= {(min(other, number), max(other, number)) for other in self.active}
        if not self.free:
            self.free.append(len(self.blobs))
            self.blobs.append([0, 0, []])
        self.active[number] = self.free.pop()

    def allocate(self, number, nbytes, alignment, manager_blobs):
        blob = self.active.pop(number)
        about = self.blobs[blob]
        about[0], about[1] = max(about[0], nbytes), max(about[1], alignment)
        about[2].append(number)
        self.free.append(blob)
        if self.active:
            return
        ranked = sorted(self.blobs, key=lambda about: -about[0])
        for rank, (size, strictest, tensors) in enumerate(ranked):
            if rank == len(manager_blobs):
                manager_blobs.append((0, 0, 0))
            old = manager_blobs[rank]
            manager_blobs[rank] = (max(old[0], size), max(old[1], strictest), max(old[2], len(tensors)))
            self.mappings.update(dict.fromkeys(tensors, rank))
        self._begin()


class Subject:
    """A group with its tensors, and the model of it."""

    def __init__(self, manager):
        self.group, self.model = MemoryGroup(manager), ModelGroup()
        self.tensors = []

    def step(self, chance, manager_blobs):
        active = list(self.model.active)
        if active and chance.random() < 0.55:
            number = chance.choice(active)
            tensor = self.tensors[number]
            tensor.allocate()
            self.model.allocate(number, tensor.nbytes, tensor.alignment, manager_blobs)
            return
        ended = list(self.model.mappings)
        size = chance.choice([1, 64, 100, 1000]) * chance.randrange(1, 9), chance.choice([0, 64, 256])
        if ended and chance.random() < 0.2:  # configured anew
            number = chance.choice(ended)
            self.tensors[number].free()
            self.tensors[number].init(*size)
        else:
            number = len(self.tensors)
            self.tensors.append(TensorAllocator(*size))
        self.group.manage(self.tensors[number])
        self.model.manage(number)

    def finish(self, manager_blobs):
        for number in list(self.model.active):
            tensor = self.tensors[number]
            tensor.allocate()
            self.model.allocate(number, tensor.nbytes, tensor.alignment, manager_blobs)

    def check_acquired(self, begin, end):
        for tensor in self.tensors:
            assert tensor.address is not None, "a managed tensor has no memory"
            assert tensor.address % tensor.alignment == 0
            assert begin <= tensor.address <= tensor.address + tensor.nbytes <= end
        for a, b in self.model.together:
            one, other = self.tensors[a], self.tensors[b]
            assert one.address + one.nbytes <= other.address or other.address + other.nbytes <= one.address


@pytest.mark.parametrize("lifetimes", [BlobLifetimeManager, OffsetLifetimeManager])
def test_random_groups_agree_with_the_model(lifetimes):
    for seed in range(GROUPS):
        chance = random.Random(seed)
        with MemoryManagerOnDemand(lifetimes()) as manager:
            subjects, blobs = [Subject(manager) for _ in range(chance.randrange(1, 4))], []
            for _ in range(chance.randrange(1, 40)):
                chance.choice(subjects).step(chance, blobs)
            for subject in subjects:
                subject.finish(blobs)
            assert manager.lifetime_manager.are_all_finalized()
            info = manager.lifetime_manager.info()
            if lifetimes is BlobLifetimeManager:
                assert [(blob.nbytes, blob.alignment, blob.owners) for blob in info] == blobs
                for subject in subjects:
                    ranks = {subject.tensors.index(tensor): at[0] for tensor, at in subject.group.mappings.items()}
                    assert ranks == subject.model.mappings
            manager.populate(HostResource())
            for subject in subjects * 2:
                with subject.group:
                    if subject.tensors:
                        arenas = manager.pool_manager.pool.arenas
                        begin = subject.group._held._lease.address
                        subject.check_acquired(begin, begin + arenas.nbytes)
                assert all(tensor.address is None for tensor in subject.tensors)


@pytest.mark.parametrize("lifetimes", [BlobLifetimeManager, OffsetLifetimeManager])
def test_what_is_configured_anew_has_no_memory_before_it_is_allocated_again(lifetimes):
    with MemoryManagerOnDemand(lifetimes()) as manager:
        group, kept, changed = MemoryGroup(manager), TensorAllocator(100), TensorAllocator(100)
        for tensor in (kept, changed):
            group.manage(tensor)
            tensor.allocate()
        manager.populate(HostResource())
        changed.free()
        changed.init(10_000)
        with group:
            assert kept.address is not None
            assert changed.address is None
        group.manage(changed)
        with pytest.raises(StateError, match="not allocated"):
            group.acquire()
        changed.allocate()
        with pytest.raises(StateError, match="clear and populate"):
            group.acquire()
        manager.clear()
        manager.populate(HostResource())
        with group:
            assert None not in (kept.address, changed.address)
