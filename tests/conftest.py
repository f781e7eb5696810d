"""What every test starts from."""

import gc
import os
import signal
from zlib import crc32

import pytest
from hypothesis import HealthCheck, settings

import graphpool as gp
from graphpool.cache import constant_tensor_cache
from graphpool.runtime.costs import stage_latencies, step_costs

os.environ["GRAPHPOOL_PROGRAM_FOLDER"] = "off"  # for processes that tests start, too: they compile, and leave nothing

# how long an example takes says nothing beside other work, under emulation and sanitizers
settings.register_profile("unhurried", suppress_health_check=[HealthCheck.too_slow], deadline=None)
settings.load_profile("unhurried")


def pytest_addoption(parser):
    parser.addoption("--quick", action="store_true", help="a tenth of the tests, the same always, and none marked slow")


def pytest_configure():
    """Let Ctrl-C be tested where a shell without job control started this in the background, which then ignores it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config, items):
    if config.getoption("quick"):
        kept, left = [], []
        for item in items:
            is_quick = "slow" not in item.keywords and crc32(item.nodeid.encode()) % 10 == 0
            (kept if is_quick else left).append(item)
        config.hook.pytest_deselected(items=left)
        items[:] = kept


def pytest_collection_finish():
    """Keep the garbage collector away from the tests themselves: millions of objects, a third of a second each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def no_constants_of_other_tests():
    """Constants are shared within the process: a test that counts memory must not find those of another."""
    constant_tensor_cache("cpu").clear()


@pytest.fixture(autouse=True)
def no_costs_of_other_tests():
    """Measured costs are of the process, too: a test whose schedules or stored forms follow them must know them all."""
    step_costs.cache_clear()
    stage_latencies.cache_clear()


@pytest.fixture
def engine():
    """An engine of the CPU with one thread."""
    with gp.Engine(threads=1) as engine:
        yield engine


@pytest.fixture
def cache():
    """The cache of the CPU, without a bound; as it was afterwards."""
    cache = constant_tensor_cache("cpu")
    cache.set_capacity(None, policy="no_evict")
    yield cache
    cache.set_capacity(None, policy="no_evict")
