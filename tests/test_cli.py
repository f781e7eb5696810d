"""The command, run as a user runs it."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest

import graphpool as gp
from graphpool import cli, demo

onnx = pytest.importorskip("onnx")
CNN = str(demo.model_path("digits_cnn"))


def report(capsys, *arguments, status=0):
    """The JSON report of a subcommand."""
    assert cli.main([*arguments, "--json"]) == status
    return json.loads(capsys.readouterr().out)


def test_demo_is_accurate_and_predicts_its_memory(capsys):
    models = report(capsys, "demo")["models"]
    assert set(models) == set(demo.MODELS)
    for model in models.values():
        assert model["accuracy"] >= 0.98
        assert model["predicted_peak_nbytes"] == model["measured_peak_nbytes"]
        assert {p["backend"] for p in model["partitions"]} == {"cpu"}
        assert all(p["implementations"] for p in model["partitions"] if p["ops"][0] in ("MatMul", "Convolution"))


def test_demo_fails_when_accuracy_is_off(capsys, monkeypatch):
    images, labels = demo.test_images()
    monkeypatch.setattr(demo, "test_images", lambda: (images, (labels + 1) % 10))
    models = report(capsys, "demo", status=1)["models"]
    assert not models["digits_cnn"]["is_accurate"]


def test_demo_prints_a_short_table():
    done = subprocess.run([sys.executable, "-m", "graphpool", "demo"], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) <= 15
    assert max(map(len, lines)) <= 100
    assert lines[1].split("  ")[1:2] == ["model"]
    rows = [line.split() for line in lines if line.strip().startswith(demo.MODELS)]
    assert [row[0] for row in rows] == list(demo.MODELS)
    assert all(row[-4:-2] == row[-2:] for row in rows)  # predicted and measured
    assert "Convolution+BatchNormInference+ReLU" not in done.stdout


def test_demo_prints_all_if_told_so(capsys):
    assert cli.main(["demo", "--all"]) == 0
    printed = capsys.readouterr().out
    for word in ("Convolution+BatchNormInference+ReLU", "accuracy", "latency_ms", "predicted_peak", "measured_peak"):
        assert word in printed


def test_a_file_of_a_stranger_is_held_to_strict_limits(capsys, tmp_path):
    shape = ["--shape", "image=3x1x8x8"]
    assert report(capsys, "run", CNN, "--untrusted", *shape)["outputs"]
    path = tmp_path / "long.json"
    path.write_bytes(b" " * (gp.Limits.strict().file_nbytes + 1))
    assert cli.main(["inspect", str(path), "--untrusted"]) == 2
    assert "exceeds the limit file_nbytes" in capsys.readouterr().err


def test_inspect_predict_run_and_bench(capsys, tmp_path):
    shape = ["--shape", "image=3x1x8x8"]
    inspected = report(capsys, "inspect", CNN, *shape)
    assert len(inspected["partitions"]) > 5
    assert all(partition["nodes"] for partition in inspected["partitions"])
    assert any(condition.startswith("batch") for condition in inspected["conditions"])
    buffers = str(tmp_path / "buffers.csv")
    predicted = report(capsys, "predict", CNN, *shape, "--buffers", buffers)
    assert report(capsys, "plan", buffers)["nbytes"] == predicted["arena_nbytes"]
    parts = [predicted[f"{part}_nbytes"] for part in ("arena", "constants", "cached", "programs", "results", "host")]
    assert predicted["peak_nbytes"] == sum(parts)
    saved = tmp_path / "out.npz"
    ran = report(capsys, "run", CNN, *shape, "--save", str(saved))
    assert ran["outputs"]["probabilities"]["shape"] == [3, 10]
    np.testing.assert_allclose(np.load(saved)["probabilities"].sum(axis=1), 1, rtol=1e-5)
    images, _ = demo.test_images()
    np.savez(tmp_path / "in.npz", image=images[:5])
    ran = report(capsys, "run", CNN, "--inputs", str(tmp_path / "in.npz"))
    assert ran["outputs"]["probabilities"]["shape"] == [5, 10]
    assert report(capsys, "bench", CNN, *shape, "--seconds", "0.01")["engines"][0]["p50_ms"] > 0


def test_inspect_packs_no_weights(capsys):
    cache, looked_up = gp.cache.constant_tensor_cache("cpu"), {}
    capacity_nbytes = cache.capacity_nbytes
    for command in ("inspect", "predict"):
        before = cache.stats().misses
        report(capsys, command, CNN, "--shape", "image=3x1x8x8")
        looked_up[command] = cache.stats().misses - before
        assert cache.capacity_nbytes == capacity_nbytes
    assert looked_up["inspect"] == 0 < looked_up["predict"]


def test_inspect_names_what_the_host_runs_and_why(capsys, tmp_path):
    from tests.helpers.onnx_models import node_model, random_array

    path = tmp_path / "det.onnx"
    path.write_bytes(node_model("Det", [random_array((5, 5))])[0].SerializeToString())
    [partition] = report(capsys, "inspect", str(path))["partitions"]
    assert (partition["nodes"], partition["reason"]) == (["the_Det (Det)"], "matrices of other sizes")
    assert cli.main(["inspect", str(path)]) == 0
    assert re.search(r"the_Det \(Det\)  host, [\d.e-]+ ms: matrices of other sizes", capsys.readouterr().out)


def test_texts_and_lists_of_maps(capsys, tmp_path):
    onnx = pytest.importorskip("onnx")
    info = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.STRING, [None])
    nodes = [
        onnx.helper.make_node("Identity", ["x"], ["same"]),
        onnx.helper.make_node("SequenceConstruct", ["x", "x"], ["pair"]),
    ]
    outputs = [onnx.ValueInfoProto(name=name) for name in ("same", "pair")]
    path = tmp_path / "texts.onnx"
    path.write_bytes(
        onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", [info], outputs), ir_version=9).SerializeToString()
    )
    assert report(capsys, "inspect", str(path), "--shape", "x=3")["inputs"] == {"x": "text [?]"}
    ran = report(capsys, "run", str(path), "--shape", "x=3")["outputs"]
    assert ran == {"same": {"dtype": "object", "shape": [3]}, "pair": {"type": "list", "length": 2}}


def test_schedules_and_traces(capsys, tmp_path):
    arguments = [CNN, "--shape", "image=3x1x8x8", "--threads", "2", "--schedule", "ios", "--streams", "2"]
    predicted = report(capsys, "predict", *arguments)
    assert 0 < predicted["sequential_peak_nbytes"] <= predicted["peak_nbytes"] * 2
    assert predicted["streams"] in (1, 2)
    traced = report(capsys, "trace", *arguments, "--out", str(tmp_path / "t.json"))
    assert traced["steps"] > 5
    assert sum(row["share_percent"] for row in traced["slowest"]) > 50
    assert [row["time_ms"] for row in traced["slowest"]] == sorted(
        (r["time_ms"] for r in traced["slowest"]), reverse=True
    )
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "X", "C"}
    assert {event["name"] for event in events} >= {"process_name", "thread_name", "conv_0", "arena in use"}
    counted = max(event["args"]["bytes"] for event in events if event["ph"] == "C")
    assert counted == report(capsys, "footprint", *arguments, "--html", str(tmp_path / "f.html"))["needed_nbytes"]


def test_plan(capsys, tmp_path):
    file = tmp_path / "buffers.csv"
    file.write_text("id,lower,upper,size\na,0,2,64\nb,1,3,64\nc,2,4,64\n")
    made = report(capsys, "plan", str(file))
    assert (made["nbytes"], made["is_optimal"], made["feasible"]) == (128, True, True)
    assert report(capsys, "plan", str(file), "--capacity", "100", status=1)["feasible"] is False
    for capacity in ("128", "0.5KiB", "300M", "300Mi"):
        assert report(capsys, "plan", str(file), "--capacity", capacity)["feasible"] is True
    assert cli.main(["plan", str(file), "--capacity", "much"]) == 2
    assert "not a size" in capsys.readouterr().err


def test_plan_prints_some_offsets(capsys, tmp_path):
    file = tmp_path / "buffers.csv"
    file.write_text("id,lower,upper,size\n" + "".join(f"b{k},0,2,64\n" for k in range(100)))
    assert cli.main(["plan", str(file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 20
    assert lines[-1].split() == ["...:", "88", "more;", "--all", "prints", "them"]
    assert cli.main(["plan", str(file), "--all"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 107


def test_info(capsys):
    known = report(capsys, "info")
    assert known["kernels"] > 20
    assert "generic" in known["instruction_sets"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", CNN], "input 'image' has no fixed shape; accepted: --shape batch=1 or --shape image=1x1x8x8"),
        (
            ["run", CNN, "--shape", "image"],
            "--shape; accepted: NAME=2x3, a range: NAME=1..8, or a sum of dimensions: NAME=A+B; got: image",
        ),
        (["run", "no-such-file.onnx"], "no-such-file.onnx"),
        (["run", CNN, "--shape", "batch=2", "--shape", "batch=3"], "--shape: 'batch' is given twice"),
        (["run", CNN, "--shape", "bach=2"], "no dimension or input is called 'bach'; accepted: batch, image"),
        (
            ["run", CNN, "--shape", "image=2x1x9x9"],
            "dimension 2 of input 'image'; accepted: 8, as in the model; got: 9",
        ),
        (["run", CNN, "--shape", "batch=2", "--save", "/no-such-folder/a"], "/no-such-folder/a.npz: No such file"),
        (["run", CNN, "--inputs", __file__], "accepted: an .npz file; got: File is not a zip file"),
        (["predict", CNN, "--shape", f"batch={10**15}"], "input 'image': shape; accepted: a shape that an array can"),
        (["process", CNN, "--shape", f"batch={10**15}"], "Unable to allocate 455. PiB for an array with shape"),
        (["serve", CNN, "--port", "99999"], "port; accepted: an int from 0 to 65535; got: 99999"),
        (["trace", CNN, "--shape", "batch=2", "--out", "/"], "/: Is a directory"),
        (["demo", "--memory-limit", "lots"], "not a size"),
        (["demo", "--memory-limit", "1MiB"], "limit"),
    ],
)
def test_errors_are_one_line_and_status_2(capsys, arguments, message):
    assert cli.main(arguments) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert len(printed.splitlines()) == 1


@pytest.fixture
def graph_file(tmp_path):
    """A product behind a sum, whose batch is open."""
    graph = gp.Graph()
    a, b, c, d, e = (gp.LogicalTensor(n, "f32", shape) for n, shape in enumerate([(4, 6), (6, 8), (4, 8), (8,), None]))
    graph.add_op(gp.Op(0, "MatMul", [a, b], [c]))
    graph.add_op(gp.Op(1, "Add", [c, d], [e]))
    graph.to_json(tmp_path / "graph.json")
    return str(tmp_path / "graph.json")


def test_inspect_and_run_a_graph_file(capsys, graph_file, tmp_path):
    assert report(capsys, "inspect", graph_file)["partitions"][0]["ops"] == ["MatMul", "Add"]
    arrays = {"0": np.ones((4, 6)), "1": np.ones((6, 8)), "3": np.arange(8)}
    np.savez(tmp_path / "in.npz", **arrays)
    saved = str(tmp_path / "out.npz")
    ran = report(capsys, "run", graph_file, "--inputs", str(tmp_path / "in.npz"), "--save", saved, "--threads", "1")
    assert ran["outputs"]["4"] == {"dtype": "float32", "shape": [4, 8], "min": 6.0, "mean": 9.5, "max": 13.0}
    assert ran["partitions"][0]["implementations"]
    np.testing.assert_array_equal(np.load(saved)["4"], 6 + np.broadcast_to(np.arange(8), (4, 8)))


def test_knobs_are_options(capsys, graph_file):
    ran = report(
        capsys, "run", graph_file, "--in-shapes", "0:2x3+1:3x8", "--dt", "bf16", "--op-kind", "1:Multiply",
        "--expected-n-partitions", "1", "--tensor-property", "1:constant+9:constant",
    )  # fmt: skip
    assert ran["outputs"]["4"]["shape"] == [2, 8]
    assert ran["outputs"]["4"]["dtype"] == "bfloat16"
    assert ran["partitions"][0]["ops"] == ["MatMul", "Multiply"]
    assert (ran["is_expected"], ran["not_in_the_graph"]) == (True, ["tensor 9"])
    assert report(capsys, "inspect", graph_file, "--expected-n-partitions", "2", status=1)["is_expected"] is False


def test_alternatives_are_reported_apart(capsys, graph_file):
    forms = report(capsys, "run", graph_file, "--dt", "f32,f16", "--mb", "2", "--op-attrs", "0:transpose_a:0")["forms"]
    assert [form["outputs"]["4"]["dtype"] for form in forms.values()] == ["float32", "float16"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--in-shapes", "0:4x"], "ID:DIMS"),
        (["--in-shapes", "0:5x9"], "MatMul"),
        (["--op-attrs", "0:transposeb:1"], "did you mean"),
        (["--op-kind", "1:ReLU"], "inputs of op 1"),
        (["--in-shapes", "0:300000x400000+1:400000x8", "--memory-limit", "1MiB"], "smallest limit"),
    ],
)
def test_errors_of_knobs_say_what_to_do(capsys, graph_file, options, message):
    assert cli.main(["run", graph_file, *options]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"no zip", b"PK\x03\x04 cut", "pipe", "npy", "text", "complex", "record"])
def test_inputs_that_cannot_be_read(capsys, graph_file, tmp_path, content):
    path = tmp_path / "in.npz"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content == "pipe":
        os.mkfifo(path)
    elif content == "npy":
        with path.open("wb") as file:
            np.save(file, np.ones(3))
    else:
        np.savez(path, **{"0": np.zeros((4, 6), {"text": "U3", "complex": "c8", "record": "f4,f4"}[content])})
    assert cli.main(["run", graph_file, "--inputs", str(path)]) == 2
    assert "accepted: an .npz file" in (said := capsys.readouterr().err) or "accepted: real numbers" in said


@pytest.mark.parametrize("raw", [
    b"", b"\xef\xbb\xbf{}", b"\x1f\x8b\x08\x00", b'{"graph": [NaN]}', b'{"graph": [' + b"9" * 5000, b"[" * 100_000,
    b'{"graph": [{"id": 1e400}]}',
    b'{"graph": [{"kind": "\\ud800", "attrs": {}, "id": 0, "inputs": [], "outputs": []}]}',
    b'{"graph": [{"kind": ' + b"[" * 900 + b"]" * 900 + b"}]}",
])  # fmt: skip
@pytest.mark.parametrize("command", ["inspect", "run"])
def test_files_that_are_no_graph(capsys, tmp_path, command, raw):
    path = tmp_path / "a.json"
    path.write_bytes(raw)
    assert cli.main([command, str(path)]) == 2
    assert capsys.readouterr().err.startswith("graphpool: ")


def test_options_of_the_other_kind_of_file(capsys, graph_file):
    assert cli.main(["run", graph_file, "--shape", "x=2x3"]) == 2
    assert "--in-shapes" in capsys.readouterr().err
    assert cli.main(["inspect", CNN, "--dt", "bf16"]) == 2
    assert "graph file" in capsys.readouterr().err


def test_inputs_of_a_file_have_the_shapes_that_are_asked_for(capsys, tmp_path):
    path = str(tmp_path / "inputs.npz")
    np.savez(path, image=np.zeros((5, 1, 8, 8), "float32"))
    for shape in ("batch=5", "batch=1..8"):
        ran = report(capsys, "run", CNN, "--inputs", path, "--shape", shape)
        assert ran["outputs"]["probabilities"]["shape"] == [5, 10]
    for shape, message in (("batch=4", "'batch', is 5; accepted: 4"), ("bach=5", "is called 'bach'")):
        assert cli.main(["run", CNN, "--inputs", path, "--shape", shape]) == 2
        assert message in capsys.readouterr().err


def test_a_prediction_that_is_not_complete_says_why(capsys, tmp_path):
    node = onnx.helper.make_node("Pad", ["x", "pads"], ["y"], mode="reflect")  # each period is a step of its own
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", "m"]) for name in "xy")
    pads = onnx.numpy_helper.from_array(np.full(4, 7), "pads")
    opsets = [onnx.helper.make_opsetid("", 18)]
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "pad", [x], [y], [pads]), opset_imports=opsets)
    model.ir_version = 8
    onnx.save(model, path := str(tmp_path / "pad.onnx"))
    told = report(capsys, "predict", path, "--shape", "n=1..64", "--shape", "m=1..64")
    assert not told["is_complete"]
    assert "--shape total=past+new" in told["hint"]


def test_ranges_of_shapes(capsys):
    worst = report(capsys, "predict", CNN, "--shape", "batch=1..8")
    assert worst["at"]["batch"] in range(1, 9)
    assert worst["is_exact"]
    assert worst["is_complete"]
    parts = [worst[f"{part}_nbytes"] for part in ("arena", "constants", "cached", "programs", "results", "host")]
    assert worst["peak_nbytes"] == sum(parts)
    again = report(capsys, "predict", CNN, "--shape", "image=1..8x1x8x8")
    ours = {"fixed_nbytes", "resident_nbytes"}  # of the process, which goes on
    assert {key: again[key] for key in again.keys() - ours} == {key: worst[key] for key in worst.keys() - ours}
    assert report(capsys, "run", CNN, "--shape", "batch=2..5")["outputs"]["probabilities"]["shape"] == [5, 10]
    assert report(capsys, "run", CNN, "--shape", "batch=3")["outputs"]["probabilities"]["shape"] == [3, 10]
    assert report(capsys, "bench", CNN, "--shape", "batch=1..2", "--seconds", "0.01")["engines"][0]["p50_ms"] > 0
    assert report(capsys, "inspect", CNN, "--shape", "batch=1..2")["partitions"]
    assert cli.main(["predict", CNN, "--shape", "batch=1..8"]) == 0
    assert "at:\n  batch: " in capsys.readouterr().out
    limit, command = 1, ["run", CNN, "--shape", "batch=1..8", "--memory-limit"]
    while cli.main([*command, str(limit)]) == 2:  # each refusal names a limit that gets further
        enough = int(capsys.readouterr().err.rsplit(maxsplit=2)[1])
        assert limit < enough <= worst["peak_nbytes"]
        limit = enough
    assert cli.main([*command, str(limit - 1)]) == 2
    assert "what fits, each alone: dimension 'batch' 1 to " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ("batch=8..1", "shapes: 'batch'; accepted: a number, or (least, most) with 0 <= least <= most; got: (8, 1)"),
        (
            "batch=..8",
            "--shape; accepted: NAME=2x3, a range: NAME=1..8, or a sum of dimensions: NAME=A+B; got: batch=..8",
        ),
        ("batch=1..2..3", "--shape; accepted: NAME=2x3, a range: NAME=1..8, or a sum"),
        ("batch=2x3", "shapes: 'batch'"),
        ("image=1..8", "input 'image'; accepted: one entry for each dimension of f32 [batch, 1, 8, 8]"),
        ("words=1..8", "no dimension or input is called 'words'; accepted: batch, image"),
    ],
)
def test_ranges_that_are_none(capsys, shape, message):
    assert cli.main(["predict", CNN, "--shape", shape]) == 2
    assert message in capsys.readouterr().err


def test_footprint_writes_a_page(capsys, tmp_path):
    path = tmp_path / "out.html"
    found = report(capsys, "footprint", CNN, "--shape", "image=3x1x8x8", "--html", str(path))
    assert path.read_text().startswith("<!DOCTYPE html>")
    assert found["needed_nbytes"] <= found["arena_nbytes"] == found["parts"]["arena_nbytes"]
    assert sum(found["parts"].values()) == found["predicted_peak_nbytes"] == found["measured_peak_nbytes"]
    assert found["steps"] > 5 < found["temporaries"]
    assert [file.name for file in tmp_path.iterdir()] == ["out.html"]


@pytest.mark.parametrize(
    ("options", "second"),
    [
        (["--beside", str(demo.model_path("digits_transformer"))], ("digits_transformer", "auto", "3x1x8x8")),
        (["--beside-schedule", "sequential"], ("digits_cnn", "sequential", "3x1x8x8")),
        (["--beside-shape", "batch=1"], ("digits_cnn", "auto", "1x1x8x8")),
    ],
)
def test_footprints_beside_one_another(capsys, tmp_path, options, second):
    path = tmp_path / "out.html"
    found = report(capsys, "footprint", CNN, "--shape", "image=3x1x8x8", "--html", str(path), *options)
    assert (found["first"]["model"], found["second"]["model"]) == ("digits_cnn", second[0])
    assert re.fullmatch(r"Schedule auto on \d streams?, inputs image 3x1x8x8", found["first"]["run"])
    assert re.fullmatch(rf"Schedule {second[1]} on \d streams?, inputs image {second[2]}", found["second"]["run"])
    rows = {row["memory"]: row for row in found["compared"]}
    assert all(row["second_nbytes"] - row["first_nbytes"] == row["difference_nbytes"] for row in rows.values())
    total = rows.pop("predicted peak")
    parts = (
        "arena",
        "results",
        "host functions",
        "constants",
        "packed constants",
        "programs",
        "rest of the prediction",
    )
    assert total["difference_nbytes"] == sum(rows[part]["difference_nbytes"] for part in parts)
    assert "memory of two runs" in path.read_text()


def test_the_help_is_for_who_gives_no_command(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main([])
    assert ended.value.code == 2
    assert "Predict the memory of a run without running." in capsys.readouterr().err


def test_seconds_that_never_end_are_refused(capsys):
    for seconds in ("inf", "nan", "-1", "long"):
        with pytest.raises(SystemExit):
            cli.main(["bench", CNN, f"--seconds={seconds}"])
        assert f"accepted: seconds, from 0 to below 1e+06; got: {seconds}" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["inspect", "predict"])
def test_who_only_looks_at_shapes_makes_no_inputs(monkeypatch, capsys, command):
    made = []
    monkeypatch.setattr(gp.profile, "random_inputs", lambda *given: made.append(given))
    assert cli.main([command, CNN, "--shape", "batch=8", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)
    assert not made
