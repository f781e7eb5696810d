"""How the command ends: interrupted, without a reader, with a file half written; and what it says meanwhile."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

import pytest

from graphpool import cli, cli_terminal, cli_text, demo

pytest.importorskip("onnx")
CNN = str(demo.model_path("digits_cnn"))
pytestmark = pytest.mark.native


def test_an_interrupt_ends_with_130_and_says_nothing(tmp_path) -> None:
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    arguments = ["bench", CNN, "--shape", "batch=1", "--seconds", "60"]
    code += f"import sys; from graphpool import cli; sys.exit(cli.main({arguments!r}))"
    said = tmp_path / "errors"  # a pipe that is full would let the interrupt cut a line of the log in two
    with said.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=os.environ | {"GRAPHPOOL_VERBOSE": "profile"},
        )
    # readiness is when the model's threads run: until then the interpreter itself might be interrupted
    while "ran for" not in said.read_text():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == ""
    assert all(line.startswith("graphpool profile: ") for line in said.read_text().splitlines())


def test_an_interrupt_that_meets_a_finaliser_ends_what_comes_after() -> None:
    code = """
import signal, sys, weakref
from graphpool import cli

class Dying:
    pass

def command(_):
    dying, references = Dying(), []
    references.append(weakref.ref(dying, lambda _: signal.raise_signal(signal.SIGINT)))
    del dying
    for _ in range(1_000_000):
        pass
    return {}, True

signal.signal(signal.SIGINT, signal.default_int_handler)
cli.info = command
sys.exit(cli.main(["info"]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_an_interrupt_while_parts_are_imported_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "numpy.py").write_text("raise KeyboardInterrupt\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "graphpool", "info"]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


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
    assert cli.main(["run", CNN, "--shape", "batch=2", "--save", str(tmp_path / "out")]) == 0
    assert {file.name for file in tmp_path.iterdir()} == {"out.npz"}
    assert "outputs:" in capsys.readouterr().out


def test_links_stay_and_devices_are_written(tmp_path: Path) -> None:
    target, link = tmp_path / "folder" / "target", tmp_path / "link"
    target.parent.mkdir()
    link.symlink_to(target)
    for text in ("new", "again"):
        with cli_terminal.written(str(link)) as path:
            Path(path).write_text(text)
        assert link.is_symlink()
        assert target.read_text() == text
    with cli_terminal.written("/dev/null") as path:
        Path(path).write_text("nothing")
    assert Path("/dev/null").is_char_device()
    command = [sys.executable, "-m", "graphpool", "trace", CNN, "--shape", "batch=1", "--out", "/dev/stderr"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert json.loads(done.stderr)["traceEvents"]


def test_links_that_lead_to_one_another_are_an_error(capsys: Any, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(link)
    assert cli.main(["trace", CNN, "--shape", "batch=1", "--out", str(link)]) == 2
    assert "Too many levels of symbolic links" in capsys.readouterr().err
    assert link.is_symlink()


def shown(arguments: list[str], **environment: str) -> str:
    """What the command prints on a terminal."""
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (24, 80))
    process = subprocess.Popen(
        [sys.executable, "-m", "graphpool", *arguments],
        stdout=slave, stderr=subprocess.PIPE, env=os.environ | {"TERM": "xterm", "COLUMNS": ""} | environment,
    )  # fmt: skip
    os.close(slave)
    text = read_all(master).decode()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(60) == 0
    return text


def test_lines_on_a_terminal_are_no_longer_than_it(tmp_path: Path) -> None:
    (tmp_path / "rich.py").write_text("raise ImportError\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    text = shown(["inspect", CNN, "--shape", "batch=1"], PYTHONPATH=path)
    assert max(map(len, text.splitlines())) == 80
    assert "\x1b" not in text


def test_rich_draws_tables_on_a_terminal() -> None:
    pytest.importorskip("rich")
    text = shown(["inspect", CNN, "--shape", "batch=1"])
    assert "\x1b[" in text
    assert "f32_softmax" in text
    assert "implementations" in text


def test_a_terminal_of_80_columns_tears_no_number() -> None:
    pytest.importorskip("rich")
    lines = re.sub(r"\x1b\[[\d;]*m", "", shown(["demo"])).splitlines()
    assert max(map(len, lines)) <= 80
    for name in ("digits_cnn", "digits_transformer"):
        assert [line for line in lines if re.search(rf"{name} +364 +\d+\.\d+%.*(MiB|KiB) .*(MiB|KiB)", line)]


def test_names_cannot_command_the_terminal(capsys: Any) -> None:
    name = "evil\x1b]0;title\x07[bold]\n"
    row = {"ops": ["Add"], "implementations": [], "backend": "cpu", "nodes": [name]}
    cli_text.print_report({"inputs": {name: name}, "partitions": [row], "rows": [{name: name}]})
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert "\x07" not in printed
    assert printed.count("evil\\x1b]0;title\\x07[bold]\\n") == 5


def test_progress_is_shown_on_a_terminal_after_a_while() -> None:
    code = (
        "import time; from graphpool import cli_terminal as t; t.PATIENCE_S = 0.2\n"
        "with t.progress('working'): time.sleep(0.5)\n"
        "with t.progress('short'): pass"
    )
    master, slave = pty.openpty()
    process = subprocess.Popen([sys.executable, "-c", code], stderr=slave)
    os.close(slave)
    text = read_all(master)
    assert process.wait(60) == 0
    assert text.startswith(b"\rworking: 0 s")
    assert b"short" not in text
    assert text.endswith(b"\r")


def read_all(terminal: int) -> bytes:
    """What is written on a terminal until nobody has it open any more."""
    found, end = b"", time.monotonic() + 60
    while time.monotonic() < end:
        try:
            piece = os.read(terminal, 1024)
        except OSError:  # how Linux says that nobody writes any more
            break
        if not piece:
            break
        found += piece
    os.close(terminal)
    return found


def test_progress_is_silent_elsewhere(capfd: Any) -> None:
    with cli_terminal.progress("working"):
        pass
    assert capfd.readouterr().err == ""


def test_other_engines_are_named(capsys: Any) -> None:
    assert cli.main(["bench", CNN, "--vs", "tvm"]) == 2
    assert "--vs; accepted: onnxruntime, openvino; got: tvm" in capsys.readouterr().err
