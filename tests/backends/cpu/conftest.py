"""What tests of the CPU backend share."""

import pytest

import graphpool as gp
from graphpool.backends.cpu.products import choice
from graphpool.cache import compiled_partition_cache, primitive_cache


@pytest.fixture(scope="module")
def engine():
    """An engine of one thread for all tests of a module: those that draw examples need one that outlives them."""
    with gp.Engine(threads=1) as engine:
        yield engine


@pytest.fixture(params=["filled", "plain"])
def stand_in(request, monkeypatch):
    """What computes where small packed constants are not kept: the same kernel, or that which stands in for large ones.

    Nothing that was compiled for the one is found by tests of the other.
    """
    if request.param == "plain":
        monkeypatch.setattr(choice, "_SMALL_NBYTES", -1)
    compiled_partition_cache().clear()
    primitive_cache().clear()
    yield
    compiled_partition_cache().clear()
    primitive_cache().clear()
