"""``graphpool plan-fleet``, and what its replicas take when they run."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

import graphpool as gp
from graphpool import cli, demo
from graphpool.fleet import ServiceTimes, predict_demand

pytest.importorskip("onnx")
MODELS = [str(demo.model_path(name)) for name in ("digits_cnn", "digits_transformer")]
BOTH = ["plan-fleet", "--models", ",".join(MODELS), "--max-pending", "16MiB"]
JOINED = ["--shape", "batch=1..8", "--join", "batch"]


@pytest.fixture
def times(tmp_path):
    """A file of times, so that nothing is measured."""
    path = tmp_path / "times.json"
    path.write_text(json.dumps({Path(model).stem: {"1": 0.010, "8": [0.03, 0.05]} for model in MODELS}))
    return ["--times", str(path)]


def report(capsys, *arguments):
    assert cli.main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_replicas_are_placed_and_simulated(capsys, times):
    machines = ["--machine", "2x64GiB:4", "--machine", "512MiB:2"]
    found = report(capsys, *BOTH, *JOINED, *times, "--rates", "400,100", *machines, "--requests", "2000")
    cnn, transformer = found["models"]
    assert [cnn["model"], transformer["model"]] == ["digits_cnn", "digits_transformer"]
    assert [cnn["replicas"], transformer["replicas"]] == [3, 1]  # 400 and 100 by 0.7 of 8 rows in 40 ms
    assert cnn["replica_nbytes"] > 16 << 20
    assert 10 < cnn["p50_ms"] <= cnn["p90_ms"] <= cnn["p99_ms"]
    assert cnn["refused_percent"] == cnn["late_percent"] == 0
    assert found["machines used"] == 1
    assert found["is_optimal"]
    [first, *others] = found["machines"]
    assert first["replicas"] == "3 of digits_cnn, 1 of digits_transformer"
    assert first["used_nbytes"] == 3 * cnn["replica_nbytes"] + transformer["replica_nbytes"] + sum(
        model["shared_nbytes"] for model in found["models"]
    )
    assert [machine["used_nbytes"] for machine in others] == [0, 0]


def test_too_few_places_are_told(capsys, times):
    rates = ["--rates", "200,1", "--utilisation", "1", "--machine", "64GiB:8", "--requests", "5000"]
    cnn, transformer = report(capsys, *BOTH, *JOINED, *times, *rates, "--max-requests", "9")["models"]
    assert cnn["refused_percent"] > 1 > transformer["refused_percent"]
    assert cli.main([*BOTH, *JOINED, *times, *rates]) == 0
    assert "refused (%)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"a,b\n1,2\n", "lacks columns; accepted: time_s, model; got: ['a', 'b']"),
        (b"", "lacks columns"),
        (b"\xff\xfe", "accepted: CSV in UTF-8"),
        (b"time_s,model\nsoon,digits_cnn\n", "line 2; accepted: the columns time_s, model (digits_cnn"),
        (b"time_s,model\n1\n", "line 2; accepted: the columns time_s, model (digits_cnn"),
        (b"time_s,model\nnan,digits_cnn\n1,digits_transformer\n", "accepted: ascending seconds"),
    ],
)
def test_traces_that_are_none(capsys, tmp_path, times, content, words):
    trace = tmp_path / "trace.csv"
    trace.write_bytes(content)
    given = ["--trace", str(trace), "--rates", "1,1", "--machine", "64GiB:8"]
    assert cli.main([*BOTH, *JOINED, *times, *given]) == 2
    assert words in capsys.readouterr().err


def test_times_that_are_none(capsys, tmp_path):
    path = tmp_path / "times.json"
    for text in ("[" * 100_000, '{"digits_cnn": 1}', "\udc80"):
        path.write_bytes(text.encode("utf-8", "surrogateescape"))
        assert cli.main([*BOTH, "--times", str(path), "--rates", "1,1", "--machine", "64GiB:8"]) == 2
        assert "in seconds by rows" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--trace", "--times"])
def test_pipes_are_not_waited_for(capsys, tmp_path, option):
    os.mkfifo(tmp_path / "pipe")
    given = [option, str(tmp_path / "pipe"), "--rates", "1,1", "--machine", "64GiB:8"]
    assert cli.main([*BOTH, *JOINED, *given]) == 2
    assert "pipe: not a regular file" in capsys.readouterr().err


def test_rates_and_requests_of_a_trace(capsys, tmp_path, times):
    trace = tmp_path / "trace.csv"
    lines = [f"{k / 100},{Path(MODELS[k % 2]).stem},{1 + k % 3}" for k in range(1, 201)]
    trace.write_text("time_s,model,rows\n" + "\n".join(lines) + "\n")
    found = report(capsys, *BOTH, *JOINED, *times, "--trace", str(trace), "--machine", "64GiB:8")
    assert [model["rate_per_s"] for model in found["models"]] == pytest.approx([100, 100], rel=0.02)
    trace.write_text("time_s,model\n0.5,digits_cnn\n0.7,digits_dnn\n")
    assert cli.main([*BOTH, *times, "--trace", str(trace), "--machine", "64GiB:8"]) == 2
    assert "line 3; accepted: the columns time_s, model (digits_cnn, digits_transformer)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--rates", "1"], "--rates; accepted: 2 numbers"),
        (["--rates", "1,x"], "--rates; accepted: 2 numbers"),
        ([], "--rates; accepted: 2 numbers"),
        (["--rates", "1,0"], "--rates; accepted: 2 numbers above 0"),
        (["--rates", "1,inf"], "--rates; accepted: 2 numbers above 0"),
        (["--rates", "1,1", "--machine", "4x"], "machine; accepted: COUNTxSIZE"),
        (["--rates", "1,1", "--join", "rows"], "--join; accepted: a dimension"),
        (["--rates", "1,1", "--join", "batch"], "has no range"),
        (["--rates", "1,1", "--shape", "rows=1..8"], "'rows'"),
        (["--rates", "1,1", "--requests", "0"], "--requests; accepted: 1 to"),
        (["--rates", "1,1", "--utilisation", "2"], "utilisation"),
        (["--rates", "1,1", "--times", __file__], "test_command.py; accepted:"),
    ],
)
def test_arguments_that_are_refused(capsys, times, arguments, words):
    shape = [] if words == "has no range" else ["--shape", "batch=1..8"]
    assert cli.main([*BOTH, *shape, *times, "--machine", "64GiB:8", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_a_model_that_fits_no_machine_is_named_with_its_bytes(capsys, times):
    assert cli.main([*BOTH, *JOINED, *times, "--rates", "1,1", "--machine", "20MiB:8"]) == 2
    message = capsys.readouterr().err
    assert "digits_cnn: a replica takes" in message
    assert "accepted: up to 20971520 bytes" in message
    assert "would do" in message


def test_what_is_measured_is_what_the_model_takes():
    with gp.onnx.load(MODELS[0], threads=1, shapes={"batch": (1, 6)}) as model:
        one = predict_demand(model, 1.0, join="batch", seconds=0.0, max_pending=0)
        two = predict_demand(model, 1.0, workers=2, seconds=0.0, max_pending=100)
        given = predict_demand(model, 1.0, times=ServiceTimes({1: 1.0}), name="mine")
    assert one.service.times.rows == (1, 2, 4, 6)
    assert one.service.most_rows == 6
    assert one.service.times.mean_s(1) > 0
    assert (two.processors, two.service.most_rows, two.service.times.rows) == (2, 1, (1,))
    assert two.nbytes > one.nbytes + 100
    assert (given.name, given.service.times.mean_s(1)) == ("mine", 1.0)


@pytest.mark.native
def test_a_replica_takes_no_more_than_is_planned():
    pytest.importorskip("uvicorn")
    pytest.importorskip("prometheus_client")
    command = [sys.executable, "-m", "graphpool"]
    same = ["--threads", "1", "--workers", "2", "--max-requests", "4", "--max-pending", "1MiB", "--json"]
    same += ["--shape", "batch=1..64", "--join", "batch"]
    plan = [
        *command,
        "plan-fleet",
        "--models",
        MODELS[0],
        "--rates",
        "1",
        "--machine",
        "1GiB:8",
        *same,
        "--seconds",
        "0",
    ]
    found = json.loads(subprocess.run(plan, capture_output=True, text=True, check=True).stdout)
    planned = found["models"][0]["replica_nbytes"]
    line = [*command, "serve", MODELS[0], "--port", "0", "--max-request", "1MiB", *same]
    images = demo.test_images()[0][:64]
    entry = {"name": "image", "shape": list(images.shape), "datatype": "FP32", "data": images.ravel().tolist()}
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            url = process.stderr.readline().split()[-1]
            for _ in range(8):
                body = json.dumps({"inputs": [entry]}).encode()
                urllib.request.urlopen(f"{url}/v2/models/digits_cnn/infer", body, timeout=60).read()
            pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
            process.send_signal(signal.SIGTERM)
            output, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert json.loads(output)["answers"] == {"200": 8}, errors
    assert 0.5 * planned < pages * os.sysconf("SC_PAGE_SIZE") <= planned
