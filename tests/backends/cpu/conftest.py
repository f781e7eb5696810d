"""What tests of the CPU backend share."""

import pytest

import graphpool as gp


@pytest.fixture(scope="module")
def engine():
    """An engine of one thread for all tests of a module: those that draw examples need one that outlives them."""
    with gp.Engine(threads=1) as engine:
        yield engine
