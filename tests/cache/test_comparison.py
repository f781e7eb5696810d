import sys

import pytest

from graphpool.cache import Item
from graphpool.cache.policies import LruPolicy, policy_names
from graphpool.cache.traces import compare_policies, distinct_nbytes
from graphpool.errors import InvalidArgumentError, UnsupportedError

LOOP = [Item(key, 10, 1.0) for key in "abcd"] * 50


def test_every_policy_at_every_capacity():
    rows = compare_policies(LOOP, [20, 40])
    assert [row.capacity_nbytes for row in rows] == [20, 40]
    assert [set(row.results) for row in rows] == [set(policy_names())] * 2
    half, whole = rows
    assert half.results["lru"].hits == 0
    assert half.results["no_evict"].hits == half.results["cost"].hits == 98
    assert {result.saved_share for result in whole.results.values()} == {0.98}
    assert whole.best.achievable_share == whole.best.bound_share == 0.98
    assert half.results["cost"].saved_share <= half.best.bound_share


def test_chosen_policies_and_unknown_ones():
    [row] = compare_policies(LOOP, [20], ["LRU"])
    assert list(row.results) == ["LRU"]
    with pytest.raises(InvalidArgumentError, match="no policy is named 'best'"):
        compare_policies(LOOP, [20], ["lru", "best"])


def test_a_factory_goes_by_the_name_of_its_policy():
    class Mine(LruPolicy):
        name = "mine"

    for row in compare_policies(LOOP, [20, 40], ["lru", Mine]):
        assert row.results["mine"] == row.results["lru"]


def test_distinct_bytes():
    assert distinct_nbytes(LOOP) == 40
    assert distinct_nbytes([]) == 0


def test_nothing_to_replay():
    [row] = compare_policies([], [20])
    assert {result.saved_share for result in row.results.values()} == {0.0}
    assert (row.best.achievable_share, row.best.bound_share) == (0.0, 0.0)


def test_plots_have_a_line_a_policy_and_units():
    pytest.importorskip("matplotlib")
    figure = compare_policies(LOOP, [40, 20, 0]).plot("a loop")
    [axes] = figure.axes
    assert (axes.get_title(), axes.get_xlabel(), axes.get_ylabel()) == ("a loop", "capacity (bytes)", "cost saved (%)")
    assert [line.get_label() for line in axes.lines] == policy_names()
    assert all(list(line.get_xdata()) == [0, 20, 40] for line in axes.lines)
    assert compare_policies([], []).plot().axes


def test_plots_say_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UnsupportedError, match=r"graphpool\[profile\]"):
        compare_policies(LOOP, [20]).plot()
