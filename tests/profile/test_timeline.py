import graphpool as gp
from graphpool.profile import explain
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
