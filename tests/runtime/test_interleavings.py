"""What close, resize, invalidate, trim, evict and fork meet: each at every named point, and two of them at once.

An action is stopped at a point by an event that runs in another thread. Where the event has to wait for the action, it
goes on as soon as that lets it. Memory that was given back is poisoned and never used again, so that a late reader
shows in the results; afterwards nothing may be charged, held or leased.
"""

import gc
import itertools
from concurrent.futures import TimeoutError as StillWaitingError
from contextlib import nullcontext, suppress

import numpy as np
import pytest

import graphpool as gp
from graphpool.cache import ConstantTensorCache, constant_tensor_cache, primitive_cache
from graphpool.runtime import _constants, constant_part
from graphpool.runtime.engine_constants import EngineConstants
from graphpool.runtime.engine_primitives import EnginePrimitives
from tests.helpers.caches import TIMEOUT_S, QuarantineResource, closed_at_most, in_thread
from tests.helpers.constant_jobs import Job, weights
from tests.helpers.memory import run_in_child
from tests.helpers.onnx_models import random_array
from tests.helpers.soak import W, make_source

BLOCKED_S = 0.2
"""How long an event may take until it is taken to wait for the action."""

FIRST, SECOND = weights(1), weights(2)
SOURCE = make_source()


class World(QuarantineResource):
    """An engine on memory that is never used again, and points at which events strike, each once."""

    def __init__(self, monkeypatch):
        super().__init__()
        self.events, self.running, self.met = {}, [], []
        self.cache = constant_tensor_cache("cpu")
        self.cache.set_capacity(None, policy="lru")
        primitive_cache().clear()
        self.engine = gp.Engine(threads=1, allocator=self, memory_limit="8MiB")
        self.job = Job(self.engine, scratch="none", weights="scoped")
        self.other = Job(self.engine, seed=5, m=9)
        self.content = FIRST.copy()
        self.tensor = self.job.tensor(self.content, id="w")
        self.twin = self.job.tensor(self.content, id="w")
        self._hook(monkeypatch, ConstantTensorCache, "lookup_or_reserve", "look-up")
        self._hook(monkeypatch, ConstantTensorCache, "_fulfil", "fulfil")
        self._hook(monkeypatch, ConstantTensorCache, "_let_go", "let go")
        self._hook(monkeypatch, EnginePrimitives, "acquire", "primitive")
        self._hook(monkeypatch, EnginePrimitives, "_open", "share")
        self._hook(monkeypatch, EngineConstants, "hold", "hold")
        self._hook(monkeypatch, constant_part.fingerprints, "get_or_create", "name")

    def _hook(self, monkeypatch, owner, name, point):
        real = getattr(owner, name)

        def hooked(*arguments, **options):
            self.reach(f"before {point}")
            found = real(*arguments, **options)
            self.reach(f"after {point}")
            return found

        monkeypatch.setattr(owner, name, hooked)

    def allocate(self, nbytes, alignment=64, stream=None):
        self.reach("before allocation")
        address = super().allocate(nbytes, alignment, stream)
        self.reach("after allocation")
        return address

    def deallocate(self, address, nbytes, alignment=64, stream=None):
        self.reach("before deallocation")
        super().deallocate(address, nbytes, alignment, stream)

    def reach(self, point):
        """Where an event strikes, if one is armed: it runs in another thread, as far as it can."""
        events = self.events.pop(point, ())
        for event in events:
            self.met.append(point)
            self.running.append(in_thread(event, self))
            with suppress(StillWaitingError, gp.StateError):
                self.running[-1].result(BLOCKED_S)

    def await_events(self):
        """An event that took long goes on beside the action, and ends after it perhaps."""
        while self.running:
            with closed_at_most():
                self.running.pop(0).result(TIMEOUT_S)

    def close(self):
        """Close all, after all events have ended; nothing is left."""
        self.await_events()
        assert self.cache.capacity_nbytes is None or self.cache.nbytes <= self.cache.capacity_nbytes
        for job in (self.job, self.other):
            job.compiled.close()
        self.tensor = self.twin = self.job = self.other = self.running = None
        if not self.engine.is_closed:
            self.engine.close()
        if self.live_nbytes:
            gc.collect()  # errors hold the frames in which they were raised
        assert (self.engine.budget.in_use, self.live_nbytes, len(self.cache)) == (0, 0, 0)
        self.cache.set_capacity(None, policy="no_evict")


# ---- actions, which are stopped


def execute(world):
    """The content may change once while it runs: either result is right then."""
    found = world.job.run(world.tensor)
    assert any(np.allclose(found, world.job.x @ w, rtol=1e-3, atol=1e-3) for w in (FIRST, SECOND))


def execute_warm(world):
    execute(world)
    execute(world)


def execute_unnamed(world):
    world.job.check(world.job.tensor(SECOND), SECOND)


def compile_and_run(world):
    with Job(world.engine, m=3) as job:
        job.check(job.tensor(SECOND), SECOND)


def lease_shared(world):
    with Job(world.engine, m=7, scratch="shared") as job:
        job.check(job.tensor(SECOND, id="other"), SECOND)


def run_model(world, mode):
    with gp.onnx.load(SOURCE, engine=world.engine, weights=mode) as model:
        for rows in (2, 5):
            x = random_array((rows, 24))
            np.testing.assert_allclose(model.run({"x": x})["y"], np.maximum(x @ W, 0), rtol=1e-3, atol=1e-3)
            model.respecialise()


def run_scoped(world):
    run_model(world, "scoped")


def run_packed(world):
    run_model(world, "packed")


ACTIONS = [execute, execute_warm, execute_unnamed, compile_and_run, lease_shared, run_scoped, run_packed]


# ---- events, which strike


def child_works(world):
    def works():
        world.events.clear()
        with Job(world.engine, m=5) as job:
            job.check(job.tensor(SECOND), SECOND)
        execute(world)

    if not world.engine.is_closed and not world.job.compiled.is_closed:
        run_in_child(works)


def change(world):
    world.content[...] = SECOND
    world.twin.invalidate()


def flood(world):
    """Other contents take the place of the first."""
    for seed in range(3, 6):
        w = weights(seed)
        world.other.check(world.other.tensor(w), w)


EVENTS = {
    "close partition": lambda world: world.job.compiled.close(),
    "close engine": lambda world: world.engine.close(),
    "resize": lambda world: world.cache.resize(1),
    "flush": lambda world: world.cache.clear(),
    "disable": lambda world: world.cache.set_capacity(0),
    "reclaim": lambda world: world.cache.reclaim(1 << 30),
    "invalidate": change,
    "trim": lambda world: world.engine.trim(),
    "give up models": lambda world: world.engine.model_memory.reclaim(1 << 30),
    "evict primitives": lambda world: primitive_cache().clear(),
    "shrink budget": lambda world: world.engine.budget.resize("32KiB"),
    "execute": flood,
    "compile": compile_and_run,
    "fork": child_works,
}

PAIRS = list(itertools.permutations(["close engine", "flush", "invalidate", "trim", "fork"], 2))

STEPS = ["look-up", "fulfil", "let go", "primitive", "share", "name", "hold"]
POINTS = [f"{when} {step}" for step in STEPS for when in ("before", "after")]
POINTS += ["before allocation", "after allocation", "before deallocation"]


def meet(monkeypatch, action, plan):
    """Run an action with events at points; which points were met."""
    world = World(monkeypatch)
    if action is execute_warm:
        execute(world)
    world.events = {point: [EVENTS[name] for name in names] for point, names in plan.items()}
    names = {name for names in plan.values() for name in names}
    allowed = (gp.OutOfMemoryError,) if "shrink budget" in names else ()
    with closed_at_most() if names & {"close engine", "close partition"} else nullcontext(), suppress(*allowed):
        action(world)
    world.events = {}
    world.await_events()
    if not world.engine.is_closed and not world.job.compiled.is_closed:
        world.cache.resize(None)
        world.engine.budget.resize("8MiB")
        world.job.check(world.tensor, world.content)
        world.job.check(world.twin, world.content)
    met = world.met
    world.close()
    return met


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("action", ACTIONS)
def test_an_event_at_every_point(monkeypatch, action, event):
    met = set()
    for point in POINTS:
        with monkeypatch.context() as patched:
            met.update(meet(patched, action, {point: [event]}))
    assert len(met) >= 2


@pytest.mark.parametrize("action", [execute, compile_and_run])
@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_two_events_at_one_point_in_either_order(monkeypatch, action, first, second):
    for point in ("before look-up", "after look-up", "after allocation", "before deallocation"):
        with monkeypatch.context() as patched:
            meet(patched, action, {point: [first, second]})


@pytest.mark.parametrize("point", ["before look-up", "after look-up", "before fulfil", "after fulfil"])
def test_a_partition_that_is_closed_while_it_makes_a_form_leaves_none(monkeypatch, point):
    """Its weights are scoped: they leave the cache with it, though the engine lives on."""
    world = World(monkeypatch)
    world.events = {point: [EVENTS["close partition"]]}
    with closed_at_most():
        execute(world)
    assert (world.met, len(world.cache)) == ([point], 0)
    world.close()


@pytest.mark.parametrize("event", [execute_unnamed, EVENTS["close partition"]], ids=["execute", "close partition"])
def test_a_partition_has_one_set_of_constants_whatever_meets_its_first_execution(monkeypatch, event):
    world = World(monkeypatch)
    cache_of = _constants.constant_tensor_cache

    def met(*device):
        world.reach("constants")
        return cache_of(*device)

    monkeypatch.setattr(_constants, "constant_tensor_cache", met)
    world.events = {"constants": [event]}
    with closed_at_most():
        execute(world)
    world.job.compiled.close()
    assert (world.met, len(world.cache)) == (["constants"], 0)
    world.close()


@pytest.mark.parametrize("point", ["before look-up", "before fulfil", "after fulfil"])
@pytest.mark.parametrize("event", ["close partition", "flush", "close engine"])
def test_a_form_to_own_that_leaves_the_cache_at_once(monkeypatch, point, event):
    world = World(monkeypatch)
    world.events = {point: [EVENTS[event]]}
    tensors = [world.job.source, world.tensor]
    key, buffer = world.job.compiled.own_constant(0, tensors, world.job.stream)
    assert (key is None) == (buffer is None)
    buffer = None
    world.close()


INNER = ["close engine", "close partition", "flush", "invalidate", "fork", "evict primitives"]


@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize("outer", ["flush", "disable", "execute", "compile", "close engine"])
def test_an_event_that_is_itself_interrupted(monkeypatch, outer, inner):
    for point in ("before let go", "before deallocation", "before fulfil", "after share"):
        with monkeypatch.context() as patched:
            meet(patched, execute_warm, {"after look-up": [outer], "before allocation": [outer], point: [inner]})
