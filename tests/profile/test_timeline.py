import re

import graphpool as gp
from graphpool.profile import explain, trace
from tests.helpers.tower_model import tower_model


def test_explain_prints_predicted_and_measured(model, inputs, capsys):
    explain(model, inputs, runs=2)
    printed = capsys.readouterr().out
    assert "7 steps on 2 streams, 2 threads" in printed
    assert "on one stream" in printed
    assert "predicted" in printed
    assert "measured" in printed
    assert printed.count("SoftMax") == 6
    assert "makespan: predicted" in printed


def test_explain_of_one_stream_says_what_ran(inputs, capsys):
    with gp.Engine(threads=1) as engine, tower_model(engine) as model:
        explain(model, runs=1)
    printed = capsys.readouterr().out
    assert "7 steps on 1 streams" in printed
    assert printed.count("SoftMax") == 6


def test_explain_tells_what_more_threads_could_do(model, inputs, capsys):
    explain(model, inputs, runs=3)
    line = re.compile(r"work (\S+), span (\S+): .* at least (\S+) on 4, (\S+) on 16, (\S+) on 64 threads")
    found = [tuple(map(float, match)) for match in line.findall(capsys.readouterr().out)]
    assert found
    for work, span, on_4, on_16, on_64 in found:
        assert work >= on_4 >= on_16 >= on_64 >= span > 0
        assert on_4 >= work / 4 * 0.999  # rounded where it is printed


def test_work_is_the_time_of_all_pieces(model, inputs):
    model.run(inputs)
    with trace() as recorded:
        model.run(inputs)
    assert recorded.steps
    for step in recorded.steps:
        lasted = step.end_ns - step.start_ns
        assert 0 < step.work_ns <= lasted * step.nthreads
