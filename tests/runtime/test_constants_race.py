"""Constants that change hands at the worst moment: what matters is forced, and much more is tried."""

import gc
import threading

import pytest

import graphpool as gp
from tests.helpers.caches import TIMEOUT_S, in_thread
from tests.helpers.constant_jobs import Job, K, weights
from tests.helpers.constant_race import POLICIES, PoisonResource, race

FORM_NBYTES = 4 * K * 64
"""At least a form of the weights: columns fill up panels."""


class InterruptingResource(PoisonResource):
    """Calls `interrupt` once, at the next allocation of the size that it is armed for, in another thread."""

    def __init__(self):
        super().__init__()
        self.armed = None

    def arm(self, nbytes, interrupt):
        self.armed = nbytes, interrupt

    def allocate(self, nbytes, alignment=64, stream=None):
        armed = self.armed
        if armed is not None and armed[0] == nbytes:
            self.armed = None
            in_thread(armed[1]).result(TIMEOUT_S)
        return super().allocate(nbytes, alignment, stream)


def other_weight(job, cache):
    """Another content that takes the place of the first."""
    cache.set_capacity(FORM_NBYTES, policy="lru")
    w = weights(9)
    job.check(job.tensor(w), w)


def remove_each(job, cache):
    keys = cache.keys()
    for backend_id, key in keys:
        assert cache.remove_if_exist(backend_id, key)


EVENTS = {
    "flush": lambda job, cache: cache.clear(),
    "disable": lambda job, cache: cache.set_capacity(0),
    "set": lambda job, cache: cache.set_capacity(FORM_NBYTES),
    "shrink": lambda job, cache: cache.resize(1),
    "reclaim": lambda job, cache: cache.reclaim(10**9),
    "remove": remove_each,
    "replace": other_weight,
    "close": lambda job, cache: job.compiled.close(),
}


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("weights_mode", ["cached", "scoped"])
@pytest.mark.parametrize("is_warm", [True, False], ids=["warm", "cold"])
def test_between_finding_a_constant_and_using_it(cache, event, weights_mode, is_warm):
    """The arena of an execution is allocated when its constants are held; that is where the event strikes."""
    w, resource = weights(), InterruptingResource()
    with gp.Engine(allocator=resource) as engine:
        with Job(engine, scratch="none", weights=weights_mode) as job, Job(engine, scratch="none", seed=5) as other:
            tensor = job.tensor(w)
            if is_warm:
                job.check(tensor, w)
            resource.arm(
                job.compiled.scratchpad_nbytes, lambda: EVENTS[event](job if event == "close" else other, cache)
            )
            job.check(tensor, w)
            assert resource.armed is None
            if event != "close":
                job.check(tensor, w)
                job.check(tensor, w)
            assert cache.capacity_nbytes is None or cache.nbytes <= cache.capacity_nbytes
        if weights_mode == "scoped" and event != "replace":
            assert len(cache) == 0
    gc.collect()
    assert resource.live_count == 0


@pytest.mark.parametrize("event", ["flush", "disable", "set", "shrink", "reclaim", "remove"])
def test_while_a_constant_is_made(cache, event):
    """The form is allocated after its bytes are charged; that is where the event strikes."""
    w, resource = weights(), InterruptingResource()
    with gp.Engine(allocator=resource) as engine, Job(engine, scratch="none") as job:
        tensor = job.tensor(w)
        job.check(tensor, w)
        [nbytes] = job.compiled.cached_constants().values()
        assert nbytes <= FORM_NBYTES
        cache.clear()
        resource.arm(nbytes, lambda: EVENTS[event](job, cache))
        job.check(tensor, w)
        assert resource.armed is None
        assert cache.capacity_nbytes is None or cache.nbytes <= cache.capacity_nbytes
        job.check(tensor, w)
        cache.set_capacity(None)
        job.check(tensor, w)
        assert len(cache) == 1
    gc.collect()
    assert resource.live_count == 0


def test_two_partitions_wait_for_one_that_makes_their_constant(cache):
    w, resource = weights(), InterruptingResource()
    with gp.Engine(allocator=resource) as engine, Job(engine) as first, Job(engine, seed=1, m=9) as second:
        first.check(first.tensor(w), w)
        [nbytes] = first.compiled.cached_constants().values()
        cache.clear()
        waiting = []
        started = threading.Event()

        def wait():
            started.set()
            second.check(second.tensor(w.copy()), w)

        def start():
            waiting.append(in_thread(wait))
            assert started.wait(TIMEOUT_S)

        misses = cache.stats().misses
        resource.arm(nbytes, start)
        first.check(first.tensor(w), w)
        waiting[0].result(TIMEOUT_S)
        assert cache.stats().misses == misses + 1
        assert len(cache) == 1


@pytest.mark.parametrize("policy", POLICIES)
def test_sixteen_threads_do_everything_for_a_moment(policy):
    wrong, counts = race(policy, seconds=1.5)
    assert not wrong
    assert min(counts["executions"], counts["uses"], counts["changes"]) > 0
    assert (counts["users left"], counts["memory left"]) == (0, 0)
