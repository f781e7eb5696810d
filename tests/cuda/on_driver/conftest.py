"""Every test begins and ends with nothing found and nothing alive, as far as the driver tells."""

import gc
import os
from pathlib import Path

import pytest

import graphpool as gp
from tests.helpers.cuda_device import Kit
from tests.helpers.cuda_driver import FOLDER_VARIABLE, NvidiaDriver, TestDriver
from tests.helpers.cuda_engine import NoTwins, Twins


@pytest.fixture(scope="session")
def test_driver():
    if FOLDER_VARIABLE not in os.environ:
        return NvidiaDriver()
    driver = TestDriver()
    driver.load_twins(Path(os.environ[FOLDER_VARIABLE]) / "twins.so")
    return driver


@pytest.fixture(autouse=True)
def driver(test_driver):
    """The driver; what a test plants it has to ask for."""
    gc.collect()
    gc.freeze()  # what is there stays, so that no test looks through all modules and the reports of all tests before it
    before = test_driver.live()
    yield test_driver
    gc.collect()
    assert test_driver.reports() == []
    assert test_driver.live() == before
    assert test_driver.overflows() == 0


@pytest.fixture
def kit(driver):
    kit = Kit()
    yield kit
    kit.close()


@pytest.fixture(scope="session")
def twins(test_driver):
    """The host forms of graphpool's kernels, which engines find from now on; a device needs none."""
    if not isinstance(test_driver, TestDriver):
        yield NoTwins()
        return
    with Twins(test_driver).in_use() as found:
        yield found


@pytest.fixture
def gpu(driver, twins):
    """An engine, of which nothing is left when the test has ended."""
    with gp.Engine("gpu") as engine:
        yield engine
        gc.collect()
        assert (engine.stats().current_nbytes, engine.budget.in_use) == (0, 0)
