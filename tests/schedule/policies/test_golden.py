"""RAF's six programs, literally, and its counts of streams, events and waits on known blocks."""

import pytest

from graphpool.schedule import asap, nimble, verify, wavefront
from tests.cases.schedule_graphs import BLOCKS, GOLDEN, block, parse
from tests.helpers.schedule_programs import program

WAVEFRONT = {
    "simple": "S0: a0 S1: a1 a3 S2: a2 a4 a5 || S0: t cat",
    "branch": "S0: a0 S1: a1 a3 S2: a2 a6 a7 || S0: a4 S1: a5 || S0: t0 cat0 t1 cat1",
    "stacked": "S0: a0 S1: a1 S2: a2 a3 || S0: t0 cat0 || S0: a4 S1: a5 S2: a6 a7 || S0: t1 cat1",
}
ASAP = {
    "simple": "S1: a2 a4 a5 +0 S2: a1 a3 +1 S3: a0 ?1 ?0 t cat",
    "branch": "S1: a1 a3 +0 a4 S2: ?0 a5 +1 S3: a2 a6 a7 +2 S1: ?1 t0 cat0 +3 S4: a0 ?3 ?2 t1 cat1",
    "stacked": "S1: a2 a3 +0 S2: a1 +1 S3: a0 ?1 ?0 t0 cat0 +2 a6 a7 +3 S2: ?2 a5 +4 S1: ?2 a4 ?4 ?3 t1 cat1",
}
COUNTS = {"G1": (3, 2, 2), "G2": (4, 4, 4), "G3": (3, 5, 6), "A": (4, 3, 3), "C": (4, 3, 3), "E": (6, 7, 7)}


@pytest.mark.parametrize("name", GOLDEN)
def test_wavefront_program(name):
    graph = parse(GOLDEN[name])
    assert wavefront(graph).instructions == program(graph, WAVEFRONT[name])


@pytest.mark.parametrize("name", GOLDEN)
def test_asap_program(name):
    graph = parse(GOLDEN[name])
    assert asap(graph).instructions == program(graph, ASAP[name])


@pytest.mark.parametrize("name", COUNTS)
def test_asap_counts(name):
    schedule = asap(block(name))
    assert (len(schedule.stream_ids), schedule.num_events, schedule.num_waits) == COUNTS[name]


def test_greedy_matching_is_trapped_and_the_maximum_one_is_not():
    greedy, maximum = asap(block("trap")), nimble(block("trap"))
    assert (len(greedy.stream_ids), greedy.num_waits) == (3, 2)
    assert (len(maximum.stream_ids), maximum.num_waits) == (2, 1)


@pytest.mark.parametrize("name", BLOCKS)
def test_streams_of_asap_start_at_one_and_of_the_others_at_zero(name):
    graph = block(name)
    assert asap(graph).stream_ids[0] == 1
    assert wavefront(graph).stream_ids[0] == nimble(graph).stream_ids[0] == 0


def test_asap_takes_weights():
    graph = block("G1", (9, 1, 1, 1, 1, 1, 1))
    assert asap(graph, graph.costs).streams[0][0] == 0  # the heaviest branch goes first
    assert asap(graph).streams[0][0] != 0
    verify(asap(graph, graph.costs))
