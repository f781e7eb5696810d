"""Every test begins and ends with nothing found and nothing alive."""

import gc
import os
from pathlib import Path

import pytest

from tests.helpers.cuda_device import Kit
from tests.helpers.cuda_driver import FOLDER_VARIABLE, TestDriver


@pytest.fixture(scope="session")
def test_driver():
    driver = TestDriver()
    driver.load_twins(Path(os.environ[FOLDER_VARIABLE]) / "twins.so")
    return driver


@pytest.fixture(autouse=True)
def driver(test_driver):
    """The driver; what a test plants it has to ask for."""
    gc.collect()
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
