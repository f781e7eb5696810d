"""Lifetime managers: Arm Compute Library's asserted numbers, and layouts in which nothing alive shares bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphpool.errors import InvalidArgumentError, StateError
from graphpool.memory import BlobLifetimeManager, HostResource, OffsetLifetimeManager
from graphpool.memory.lifetime import BlobInfo
from tests.helpers.memory import run_threads

MANAGERS = [BlobLifetimeManager, OffsetLifetimeManager]


def record(manager, group, steps):
    """Start (name) and end (name, nbytes, alignment) lifetimes of `group`."""
    manager.register_group(group)
    for step in steps:
        if isinstance(step, str):
            manager.start_lifetime(step, group)
        else:
            manager.end_lifetime(*step, group)


@pytest.mark.parametrize("manager", MANAGERS)
def test_handles_are_known_by_equality(manager):
    manager = manager()
    manager.register_group("g")
    manager.start_lifetime((1, int("2")))
    with pytest.raises(StateError, match="has started already"):
        manager.start_lifetime((1, int("2")))
    manager.end_lifetime((1, int("2")), 100)
    assert list(manager.places("g")) == [(1, 2)]


@pytest.mark.parametrize("handle", [None, [], ([],)])
def test_handles_without_a_hash_are_refused_at_once(handle):
    manager = OffsetLifetimeManager()
    manager.register_group("g")
    with pytest.raises(InvalidArgumentError, match="handle of a tensor"):
        manager.start_lifetime(handle)
    assert manager.is_finalized("other")
    record(manager, "g", ["a", ("a", 8, 0)])
    assert manager.are_all_finalized()


def test_memory_group_register():
    """ACL UNIT/LifetimeManager MemoryGroupRegister."""
    manager = BlobLifetimeManager()
    record(manager, "g", ["a", "b", ("a", 12, 8), "c", ("c", 32, 0)])
    assert not manager.are_all_finalized()
    manager.end_lifetime("b", 128, 16)
    assert manager.are_all_finalized()
    assert manager.info() == (BlobInfo(128, 16, 1), BlobInfo(32, 8, 2))
    assert {handle: at.blob for handle, at in manager.places("g").items()} == {"b": 0, "a": 1, "c": 1}


@pytest.mark.parametrize("manager_type", MANAGERS)
def test_memory_group_release(manager_type):
    """ACL UNIT/LifetimeManager MemoryGroupRelease."""
    manager = manager_type()
    record(manager, "g", ["a", ("a", 12, 8)])
    assert len(manager.places("g")) == 1
    assert manager.release_group("g")
    assert not manager.release_group("g")
    assert len(manager.places("g")) == 0


@pytest.mark.parametrize("manager_type", MANAGERS)
def test_the_size_grows_and_never_shrinks(manager_type):
    """ACL NEON/UNIT/DynamicTensor Type3Single: 12x11x3 to 67x31x15 grows; 256x8x12 to 11x2x3 stays."""
    for first, second, grows in (((12, 11, 3), (67, 31, 15), True), ((256, 8, 12), (11, 2, 3), False)):
        manager, sizes = manager_type(), []
        for width, height, channels in (first, second):
            record(manager, "g", ["t", ("t", width * height * channels * 4, 64)])
            sizes.append(manager.info()[0].nbytes)
        assert (sizes[1] > sizes[0]) == grows
        assert sizes[1] >= sizes[0]


def test_groups_share_the_largest_blob_of_each_rank():
    manager = BlobLifetimeManager()
    record(manager, "f", ["a", "b", ("a", 100, 0), ("b", 10, 128)])
    record(manager, "g", ["c", ("c", 200, 16)])
    assert manager.info() == (BlobInfo(200, 16, 1), BlobInfo(10, 128, 1))
    record(manager, "h", ["d", "e", "f", ("d", 1, 0), ("e", 1, 0), ("f", 1, 0)])
    assert [blob.nbytes for blob in manager.info()] == [200, 10, 1]


def test_offsets_are_packed_by_size_and_lifetime():
    """The size-blind blob scheme gives the large blob to the small tensor; the planner does not."""
    offsets, blobs = OffsetLifetimeManager(), BlobLifetimeManager()
    steps = ["k", "a", "b", ("a", 64, 0), ("b", 1024, 0), "c", "d", ("c", 64, 0), ("d", 1024, 0), ("k", 64, 0)]
    record(offsets, "g", steps)
    record(blobs, "g", steps)
    assert sum(blob.nbytes for blob in blobs.info()) == 2112
    assert offsets.info() == (BlobInfo(1152, 64, 5),)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 300), st.sampled_from([0, 1, 64, 256])), max_size=30))
@pytest.mark.parametrize("manager_type", MANAGERS)
def test_tensors_that_live_together_share_no_byte(manager_type, steps):
    manager, group = manager_type(), "g"
    active, lives, clock = [], {}, 0
    for clock, (choice, nbytes, alignment) in enumerate(steps, 1):
        if choice < 3 or not active:
            name = f"t{clock}"
            manager.register_group(group)
            manager.start_lifetime(name, group)
            active.append(name)
            lives[name] = [clock, None, nbytes, alignment]
        else:
            name = active.pop(choice % len(active))
            lives[name][1] = clock
            manager.end_lifetime(name, lives[name][2], lives[name][3], group)
    for name in active:
        lives[name][1] = clock + 1
        manager.end_lifetime(name, lives[name][2], lives[name][3], group)
    pool = manager.create_pool(HostResource())
    spots = pool.addresses(manager.places(group), 2**20)
    for name, (start, end, nbytes, alignment) in lives.items():
        assert spots[name] % max(alignment, 1) == 0
        assert 2**20 <= spots[name] <= spots[name] + nbytes <= 2**20 + pool.arenas.nbytes
        for other, (other_start, other_end, other_nbytes, _) in lives.items():
            if other != name and start < other_end and other_start < end and nbytes and other_nbytes:
                assert spots[name] >= spots[other] + other_nbytes or spots[other] >= spots[name] + nbytes


@pytest.mark.parametrize("manager_type", MANAGERS)
def test_misuse_is_named_and_changes_nothing(manager_type):
    manager = manager_type()
    with pytest.raises(StateError, match="no such group"):
        manager.start_lifetime("a")
    manager.register_group("g")
    with pytest.raises(InvalidArgumentError, match="None"):
        manager.start_lifetime(None)
    manager.start_lifetime("a")
    with pytest.raises(StateError, match="started already"):
        manager.start_lifetime("a")
    with pytest.raises(StateError, match="has not started"):
        manager.end_lifetime("b", 1)
    with pytest.raises(InvalidArgumentError):
        manager.end_lifetime("a", -1)
    with pytest.raises(InvalidArgumentError):
        manager.end_lifetime("a", 1, 3)
    with pytest.raises(StateError, match="not finalised"):
        manager.create_pool(HostResource())
    manager.end_lifetime("a", 7)
    assert [blob.owners for blob in manager.info()] == [1]


def test_with_two_groups_open_the_group_must_be_said():
    manager = BlobLifetimeManager()
    manager.register_group("f")
    manager.register_group("g")
    with pytest.raises(StateError, match="no such group"):
        manager.start_lifetime("a")
    manager.start_lifetime("a", "f")
    manager.end_lifetime("a", 8, 0, "f")
    assert not manager.are_all_finalized()


@pytest.mark.parametrize("manager_type", MANAGERS)
def test_threads_configure_groups_side_by_side(manager_type):
    manager = manager_type()

    def configure(i):
        names = [f"{i}-{n}" for n in range(20)]
        record(manager, i, names + [(name, 100 + i, 0) for name in names])

    run_threads(4, configure)
    assert manager.are_all_finalized()
    for i in range(4):
        assert set(manager.places(i)) == {f"{i}-{n}" for n in range(20)}
