"""How the command ends: interrupted, without a reader, with a file half written; and what it says meanwhile."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from graphpool import cli, cli_terminal, demo

pytest.importorskip("onnx")
CNN = str(demo.model_path("digits_cnn"))
pytestmark = pytest.mark.native


def test_an_interrupt_ends_with_130_and_says_nothing() -> None:
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    arguments = ["bench", CNN, "--shape", "batch=1", "--seconds", "60"]
    code += f"import sys; from graphpool import cli; sys.exit(cli.main({arguments!r}))"
    # readiness is when the model's threads run: until then the interpreter itself might be interrupted
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"GRAPHPOOL_VERBOSE": "profile"},
    )
    assert process.stderr is not None
    assert "ran for" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == ""
    assert all(line.startswith("graphpool profile: ") for line in errors.splitlines())


def test_a_reader_that_goes_away_is_no_error() -> None:
    reader, writer = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "graphpool", "inspect", CNN, "--shape", "batch=1"],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(reader)
    os.close(writer)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (141, "")


def test_a_file_that_cannot_be_finished_leaves_what_was_there(tmp_path: Path) -> None:
    target = tmp_path / "out.npz"
    target.write_bytes(b"before")

    def fail() -> None:
        with cli_terminal.written(str(target)) as path:
            Path(path).write_bytes(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert [file.name for file in tmp_path.iterdir()] == ["out.npz"]
    assert target.read_bytes() == b"before"
    with cli_terminal.written(str(target)) as path:
        Path(path).write_bytes(b"whole")
    assert target.read_bytes() == b"whole"
    assert [file.name for file in tmp_path.iterdir()] == ["out.npz"]


def test_a_folder_that_is_not_there_is_named(capsys: Any, tmp_path: Path) -> None:
    target = str(tmp_path / "missing" / "out.npz")
    assert cli.main(["run", CNN, "--shape", "batch=1", "--save", target]) == 2
    assert target in capsys.readouterr().err


def test_what_is_saved_is_whole(capsys: Any, tmp_path: Path) -> None:
    saved, traced = tmp_path / "out", tmp_path / "trace.json"
    arguments = ["run", CNN, "--shape", "batch=2", "--save", str(saved), "--trace", str(traced)]
    assert cli.main(arguments) == 0
    assert {file.name for file in tmp_path.iterdir()} == {"out.npz", "trace.json"}
    assert "outputs:" in capsys.readouterr().out


def test_progress_is_shown_on_a_terminal_after_a_while() -> None:
    code = (
        "import time; from graphpool import cli_terminal as t; t.PATIENCE_S = 0.2\n"
        "with t.progress('working'): time.sleep(0.5)\n"
        "with t.progress('short'): pass"
    )
    master, slave = pty.openpty()
    process = subprocess.Popen([sys.executable, "-c", code], stderr=slave)
    os.close(slave)
    shown, end = b"", time.monotonic() + 60
    while time.monotonic() < end:
        try:
            found = os.read(master, 1024)
        except OSError:  # how Linux says that nobody writes any more
            break
        if not found:
            break
        shown += found
    os.close(master)
    assert process.wait(60) == 0
    assert shown.startswith(b"\rworking: 0 s")
    assert b"short" not in shown
    assert shown.endswith(b"\r")


def test_progress_is_silent_elsewhere(capfd: Any) -> None:
    with cli_terminal.progress("working"):
        pass
    assert capfd.readouterr().err == ""


def test_other_engines_are_named(capsys: Any) -> None:
    assert cli.main(["bench", CNN, "--vs", "tvm"]) == 2
    assert "--vs; accepted: onnxruntime, openvino; got: tvm" in capsys.readouterr().err
