import sys

import pytest

from graphpool.errors import InvalidArgumentError, ScheduleError, UnsupportedError
from graphpool.schedule import (
    DependencyGraph,
    Run,
    Schedule,
    SetStream,
    asap,
    auto,
    fold,
    ios,
    list_schedule,
    nimble,
    sequential,
    simulate,
    verify,
    wavefront,
)
from tests.cases.schedule_graphs import GOLDEN, parse

FORK = DependencyGraph([(0, 1), (0, 2), (1, 3), (2, 3)], [1, 3, 5, 2], names=["stem", "left", "right", "cat"])


def test_streams_order_and_counts():
    schedule = asap(parse(GOLDEN["simple"]))
    names = schedule.graph.names
    assert schedule.stream_ids == (1, 2, 3)
    assert [[names[v] for v in nodes] for nodes in schedule.streams] == [
        ["a2", "a4", "a5"],
        ["a1", "a3"],
        ["a0", "t", "cat"],
    ]
    assert [names[v] for v in schedule.order] == ["a2", "a4", "a5", "a1", "a3", "a0", "t", "cat"]
    assert (schedule.num_events, schedule.num_waits, schedule.num_barriers) == (2, 2, 0)
    assert repr(schedule) == "Schedule(asap: 8 nodes on 3 streams, 2 events, 2 waits, 0 barriers)"
    assert wavefront(parse(GOLDEN["simple"])).num_barriers == 1


def test_text_has_one_instruction_a_line():
    text = str(list_schedule(FORK))
    assert text.splitlines()[:5] == ["set_stream(0, 0)", "run(0)", "add_event(0)", "run(2)", "set_stream(0, 1)"]
    assert "wait_event(0)" in text
    assert "stream_barrier()" in str(wavefront(FORK))


def test_streams_are_copies():
    schedule = list_schedule(FORK)
    schedule.streams[0].clear()
    assert schedule.streams[0] == [0, 2, 3]


def test_without_a_set_stream_everything_is_on_stream_zero():
    assert Schedule(FORK, [Run(v) for v in range(4)]).stream_ids == (0,)


@pytest.mark.parametrize("bad", ["run", None, SetStream, 3])
def test_only_instructions_are_taken(bad):
    with pytest.raises(InvalidArgumentError, match=r"instructions\[1\]") as caught:
        Schedule(FORK, [Run(0), bad])
    assert caught.value.index == 1


@pytest.mark.parametrize("merged", [None, [1], 1])
def test_merged_nodes_are_a_tuple(merged):
    with pytest.raises(InvalidArgumentError, match=r"instructions\[0\].merged"):
        Schedule(FORK, [Run(0, merged)])


@pytest.mark.parametrize("policy", [sequential, list_schedule, wavefront, asap, nimble, ios, auto])
@pytest.mark.parametrize("edges", [[(0, 1)], None])
def test_policies_say_that_they_want_a_graph(policy, edges):
    with pytest.raises(InvalidArgumentError, match="graph; accepted: an instance of DependencyGraph"):
        policy(edges)
    with pytest.raises(InvalidArgumentError, match="graph; accepted: an instance of DependencyGraph"):
        Schedule(edges, [])


@pytest.mark.parametrize("judge", [verify, simulate, lambda given: fold(given, 1)])
def test_judges_say_that_they_want_a_schedule(judge):
    with pytest.raises(InvalidArgumentError, match="schedule; accepted: an instance of Schedule"):
        judge([Run(0)])


@pytest.mark.parametrize("policy", [list_schedule, ios, auto])
def test_more_streams_than_nodes_take_no_memory(policy):
    assert len(policy(FORK, 2**70).stream_ids) <= 4


def test_what_is_no_program_is_not_folded():
    with pytest.raises(ScheduleError, match="never runs"):
        fold(Schedule(FORK, [Run(0), SetStream(0, 1), Run(1)]), 1)


@pytest.mark.parametrize("name", ["latency", "merge"])
def test_ios_says_which_callable_is_none(name):
    with pytest.raises(InvalidArgumentError, match=f"{name}; accepted: a callable"):
        ios(FORK, **{name: 3})


def test_plot_has_a_row_a_stream_and_a_bar_a_call():
    pytest.importorskip("matplotlib")
    schedule = list_schedule(FORK)
    figure = schedule.plot()
    [axes] = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["stream 0", "stream 1"]
    assert len(axes.collections[0].get_paths()) == 4
    assert axes.get_xlabel() == "time (unit of the costs)"
    assert {text.get_text() for text in axes.texts} == set(FORK.names)
    assert axes.get_title() == "list: makespan 8"
    assert schedule.plot(simulate(schedule, [1, 1, 1, 1])).axes[0].get_title() == "list: makespan 3"


def test_plot_names_the_extra_when_matplotlib_is_absent(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UnsupportedError, match=r"graphpool\[profile\]") as caught:
        list_schedule(FORK).plot()
    assert caught.value.extra == "profile"
