"""Host memory: huge pages, visibility, giving back to the system."""

import tracemalloc

import pytest

from graphpool.memory import TRACE_DOMAIN, HostResource
from tests.helpers.memory import write_bytes


def resident_nbytes():
    with open("/proc/self/statm") as file:  # noqa: PTH123
        return int(file.read().split()[1]) * 4096


def test_large_blocks_lie_on_huge_page_borders():
    resource = HostResource()
    address = resource.allocate(2**21 + 1)
    assert address % 2**21 == 0
    resource.deallocate(address, 2**21 + 1)


@pytest.mark.native
def test_no_block_takes_more_than_its_pages():
    resource, nbytes = HostResource(), 2**21 + 2**18
    before = resident_nbytes()
    blocks = [resource.allocate(nbytes) for _ in range(16)]
    for address in blocks:
        write_bytes(address, nbytes, 1)
    assert resident_nbytes() - before < 16 * nbytes + 2**21
    for address in blocks:
        resource.deallocate(address, nbytes)


@pytest.mark.native
def test_memory_goes_back_to_the_system_at_once():
    resource = HostResource()
    address = resource.allocate(64 * 2**20)
    write_bytes(address, 64 * 2**20, 1)
    full = resident_nbytes()
    resource.deallocate(address, 64 * 2**20)
    assert full - resident_nbytes() > 60 * 2**20


@pytest.mark.native
def test_allocating_touches_no_page():
    resource = HostResource()
    before = resident_nbytes()
    address = resource.allocate(256 * 2**20)
    assert resident_nbytes() - before < 16 * 2**20
    resource.deallocate(address, 256 * 2**20)


def test_tracemalloc_sees_who_allocated():
    resource = HostResource()
    tracemalloc.start()
    try:
        address = resource.allocate(3_000_000)
        traces = tracemalloc.take_snapshot().filter_traces([tracemalloc.DomainFilter(True, TRACE_DOMAIN)]).traces
        assert [(trace.size, trace.traceback[0].filename) for trace in traces] == [(3_000_000, __file__)]
        resource.deallocate(address, 3_000_000)
        snapshot = tracemalloc.take_snapshot().filter_traces([tracemalloc.DomainFilter(True, TRACE_DOMAIN)])
        assert len(snapshot.traces) == 0
    finally:
        tracemalloc.stop()


def test_counts_what_is_live():
    resource = HostResource()
    address = resource.allocate(100)
    assert (resource.count, resource.nbytes) == (1, 100)
    resource.deallocate(address, 100)
    assert repr(resource) == "<HostResource 0 live, 0 bytes>"
