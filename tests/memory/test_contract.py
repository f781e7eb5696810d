"""What every resource does alike, alone or stacked.

`tests/cuda/on_driver/test_contract.py` runs the same on memory of a GPU, with `host` and `content` of its own.
"""

import contextlib
import random

import pytest

from graphpool.errors import InvalidArgumentError, OutOfMemoryError, StateError
from graphpool.memory import HostResource
from graphpool.typing import MemoryResource
from tests.helpers.memory import RESOURCES, HostBytes, run_threads


@pytest.fixture
def host():
    host = HostResource()
    yield host
    assert (host.count, host.nbytes) == (0, 0), "the test leaked"


@pytest.fixture
def content():
    """How bytes at an address are written and read."""
    return HostBytes


@pytest.fixture(params=RESOURCES)
def resource(request, host):
    return RESOURCES[request.param](host)


def test_follows_the_protocol(resource):
    assert isinstance(resource, MemoryResource)


@pytest.mark.parametrize("nbytes", [0, 1, 63, 64, 65, 4096, 2**21 - 1, 2**21, 2**21 + 1, 5 * 2**20])
@pytest.mark.parametrize("alignment", [1, 64, 4096, 2**21, 2**22])
def test_memory_is_aligned_and_writable(resource, content, nbytes, alignment):
    address = resource.allocate(nbytes, alignment)
    assert address > 0
    assert address % alignment == 0
    content.write(address, nbytes, 0x5A)
    assert content.read(address, nbytes) == b"\x5a" * nbytes
    resource.deallocate(address, nbytes, alignment)


def test_zero_bytes_have_addresses_of_their_own(resource):
    first, second = resource.allocate(0), resource.allocate(0)
    assert first != second
    resource.deallocate(first, 0)
    resource.deallocate(second, 0)


def test_live_blocks_do_not_overlap(resource, content):
    rng = random.Random(7)
    live = {}
    for step in range(300):
        if live and rng.random() < 0.5:
            address, (nbytes, mark) = live.popitem()
            assert content.read(address, nbytes) == bytes([mark]) * nbytes
            resource.deallocate(address, nbytes)
        else:
            nbytes, mark = rng.choice([0, 1, 100, 3000, 2**21 + 5]), step % 251
            address = resource.allocate(nbytes)
            content.write(address, nbytes, mark)
            live[address] = (nbytes, mark)
    for address, (nbytes, mark) in live.items():
        assert content.read(address, nbytes) == bytes([mark]) * nbytes
        resource.deallocate(address, nbytes)


@pytest.mark.parametrize("alignment", [0, -64, 3, 48, 2**31, 1.5, "64", None])
def test_refuses_alignments_that_are_no_power_of_two(resource, host, alignment):
    with pytest.raises(InvalidArgumentError, match="alignment"):
        resource.allocate(64, alignment)
    assert host.count == 0


@pytest.mark.parametrize("nbytes", [-1, 1.5, "64", None])
def test_refuses_what_is_no_size(resource, host, nbytes):
    with pytest.raises(InvalidArgumentError, match="nbytes"):
        resource.allocate(nbytes)
    assert host.count == 0


@pytest.mark.parametrize("nbytes", [2**47 + 1, 2**62, 2**63, 2**70])
def test_refuses_absurd_sizes(resource, host, nbytes):
    with pytest.raises(OutOfMemoryError) as caught:
        resource.allocate(nbytes)
    assert caught.value.requested == nbytes
    assert {"in_use", "limit", "resource", "smallest_limit"} <= caught.value.fields.keys()
    assert host.count == 0


def test_refuses_a_second_free(resource, host):
    keep, address = resource.allocate(100), resource.allocate(100)
    resource.deallocate(address, 100)
    with pytest.raises(StateError, match="freed twice"):
        resource.deallocate(address, 100)
    assert host.nbytes == 100
    resource.deallocate(keep, 100)


def test_refuses_foreign_addresses_and_wrong_sizes(resource, host):
    address = resource.allocate(100)
    for wrong in ((address + 64, 100), (address, 99), (0, 100), (None, 100), (1.5, 100), (address, None), (1, None)):
        with pytest.raises(StateError):
            resource.deallocate(*wrong)
    assert host.nbytes == 100
    resource.deallocate(address, 100)


def test_serves_threads(resource, host, content):
    def churn(seed):
        rng, live = random.Random(seed), []
        for _ in range(150):
            if live and rng.random() < 0.5:
                resource.deallocate(*live.pop())
            else:
                nbytes = rng.randrange(1, 5000)
                address = resource.allocate(nbytes)
                content.write(address, nbytes, seed)
                live.append((address, nbytes))
        for address, nbytes in live:
            assert content.read(address, nbytes) == bytes([seed]) * nbytes
            resource.deallocate(address, nbytes)

    run_threads(4, churn)
    assert host.count == 0


def test_one_thread_frees_what_another_took(resource):
    addresses = run_threads(2, lambda i: resource.allocate(64 + i))
    run_threads(2, lambda i: resource.deallocate(addresses[1 - i], 64 + 1 - i))


def test_of_two_frees_at_once_one_fails(resource):
    for _ in range(20):
        address = resource.allocate(64)

        def free(_, address=address):
            with contextlib.suppress(StateError):
                resource.deallocate(address, 64)
                return 1
            return 0

        assert sum(run_threads(2, free)) == 1
