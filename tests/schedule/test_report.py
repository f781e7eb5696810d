import io

from graphpool.schedule import DependencyGraph, auto, list_schedule, simulate
from graphpool.schedule.report import explain

FORK = DependencyGraph([(0, 1), (0, 2), (1, 3), (2, 3)], [1, 3, 5, 2], names=["stem", "left", "right", "cat"])


def _lines(*args):
    file = io.StringIO()
    explain(*args, file=file)
    return file.getvalue().splitlines()


def test_predicted_times_are_those_of_the_simulation(capsys):
    schedule = list_schedule(FORK)
    explain(schedule)
    text = capsys.readouterr().out
    assert text.splitlines() == _lines(schedule, simulate(schedule))
    assert text.startswith(repr(schedule))
    assert "makespan 8: critical path 8, work 11, 1.38 times one stream" in text
    [line] = [line for line in text.splitlines() if "right" in line]
    assert line.split() == ["right", "1", "-", "6"]


def test_measured_times_stand_beside():
    lines = _lines(list_schedule(FORK), None, {0: (0, 1), 2: (1, 11), 3: (12, 14)})
    [right] = [line for line in lines if "right" in line]
    assert right.split() == ["right", "1", "-", "6", "1", "-", "11", "2.00"]
    [left] = [line for line in lines if "left" in line]
    assert left.split() == ["left", "1", "-", "4"]
    assert lines[-1] == "makespan: predicted 8, measured 14"


def test_candidates_of_auto_are_listed_best_first():
    schedule = auto(FORK)
    lines = [line.split() for line in _lines(schedule)]
    makespans = [float(line[1]) for line in lines if line[0] in schedule.details["candidates"]]
    assert len(makespans) == len(schedule.details["candidates"]) > 1
    assert makespans == sorted(makespans)


def test_free_nodes_have_no_ratio_and_empty_graphs_no_streams():
    graph = DependencyGraph([], [0], num_nodes=1)
    assert _lines(list_schedule(graph), None, {0: (0, 1)})[-2].split() == ["n0", "0", "-", "0", "0", "-", "1"]
    assert len(_lines(list_schedule(DependencyGraph([])))) == 2
