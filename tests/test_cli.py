"""The command, run as a user runs it."""

import json
import subprocess
import sys

import numpy as np
import pytest

from graphpool import cli, demo

pytest.importorskip("onnx")
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


def test_demo_prints_what_a_user_wants_to_know():
    done = subprocess.run([sys.executable, "-m", "graphpool", "demo"], capture_output=True, text=True, check=True)
    for word in (
        "Convolution+BatchNormInference+ReLU",
        "accuracy",
        "latency_ms",
        "predicted_peak",
        "measured_peak",
        "cache",
    ):
        assert word in done.stdout


def test_inspect_predict_run_and_bench(capsys, tmp_path):
    shape = ["--shape", "image=3x1x8x8"]
    assert len(report(capsys, "inspect", CNN, *shape)["partitions"]) > 5
    predicted = report(capsys, "predict", CNN, *shape)
    assert (
        predicted["peak_nbytes"]
        == predicted["arena_nbytes"] + predicted["constants_nbytes"] + predicted["cached_nbytes"]
    )
    saved = tmp_path / "out.npz"
    ran = report(capsys, "run", CNN, *shape, "--save", str(saved))
    assert ran["outputs"]["probabilities"]["shape"] == [3, 10]
    np.testing.assert_allclose(np.load(saved)["probabilities"].sum(axis=1), 1, rtol=1e-5)
    images, _ = demo.test_images()
    np.savez(tmp_path / "in.npz", image=images[:5])
    ran = report(capsys, "run", CNN, "--inputs", str(tmp_path / "in.npz"))
    assert ran["outputs"]["probabilities"]["shape"] == [5, 10]
    assert report(capsys, "bench", CNN, *shape, "--seconds", "0.01")["median_ms"] > 0


def test_plan(capsys, tmp_path):
    file = tmp_path / "buffers.csv"
    file.write_text("id,lower,upper,size\na,0,2,64\nb,1,3,64\nc,2,4,64\n")
    made = report(capsys, "plan", str(file))
    assert (made["nbytes"], made["is_optimal"], made["feasible"]) == (128, True, True)
    assert report(capsys, "plan", str(file), "--capacity", "100", status=1)["feasible"] is False


def test_info(capsys):
    known = report(capsys, "info")
    assert known["kernels"] > 20
    assert "generic" in known["instruction_sets"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", CNN], "input 'image' has no fixed shape; accepted: --shape image=2x3"),
        (["run", CNN, "--shape", "image"], "--shape; accepted: NAME=2x3; got: image"),
        (["run", "no-such-file.onnx"], "no-such-file.onnx"),
        (["demo", "--memory-limit", "lots"], "not a size"),
        (["demo", "--memory-limit", "1MiB"], "limit"),
    ],
)
def test_errors_are_one_line_and_status_2(capsys, arguments, message):
    assert cli.main(arguments) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert len(printed.splitlines()) == 1
