"""Topics of the log: by the variable, and by Python's logging."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import graphpool as gp
from graphpool import config, demo, log
from graphpool.errors import InvalidArgumentError

pytest.importorskip("onnx")
CNN = str(demo.model_path("digits_cnn"))
PROGRAM = f"""
import numpy as np, graphpool as gp
with gp.onnx.load({CNN!r}, threads=1) as model:
    for batch in (1, 2):
        model.run({{"image": np.zeros((batch, 1, 8, 8), np.float32)}})
    try:
        model.run({{"image": np.zeros((1, 1, 9, 8), np.float32)}})
    except gp.GraphpoolError:
        pass
gp.set_primitive_cache_capacity(0)
"""


def lines(verbose: str | None) -> list[str]:
    """What a program writes to standard error."""
    environment = {name: value for name, value in os.environ.items() if name != "GRAPHPOOL_VERBOSE"}
    if verbose is not None:
        environment["GRAPHPOOL_VERBOSE"] = verbose
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == ""
    return done.stderr.splitlines()


@pytest.mark.parametrize("verbose", [None, "", "0"])
def test_nothing_is_written_unless_asked(verbose: str | None) -> None:
    assert lines(verbose) == []


def test_topics_of_the_variable_are_written() -> None:
    written = lines("all")
    assert {line.split(":")[0] for line in written} >= {f"graphpool {t}" for t in ("compile", "execute", "profile")}
    assert any("compiled for image=batchx1x8x8 in " in line and "programs (" in line for line in written)
    assert any("compile:   conv_0: f32_" in line for line in written)
    assert any(line.startswith("graphpool execute: digits_cnn: runs for image=2x1x8x8") for line in written)
    left = [line for line in written if line.startswith("graphpool memory: ") and "gives up" in line]
    assert any("_pack" in line and re.search(r" f32 \d+x\d+", line) for line in left)  # what, and of which shape
    assert not any("b'" in line or "None" in line for line in left)  # no contents
    only = lines("execute, profile")
    assert {line.split(":")[0] for line in only} == {"graphpool execute", "graphpool profile"}


def test_python_s_logging_hears_the_same(caplog: Any) -> None:
    image = {"image": np.zeros((3, 1, 8, 8), np.float32)}
    caplog.set_level(logging.INFO, "graphpool")
    with gp.onnx.load(CNN, threads=1, memory_limit="20KiB") as model, pytest.raises(gp.OutOfMemoryError):
        model.run(image)
    assert [record.name for record in caplog.records if "OutOfMemoryError" in record.message] == ["graphpool.error"]
    assert all(record.levelno == logging.INFO for record in caplog.records)


@pytest.mark.parametrize("text", ["2", "compile;memory", "everything", "compile,"])
def test_unknown_topics_are_refused(monkeypatch: Any, text: str) -> None:
    monkeypatch.setenv("GRAPHPOOL_VERBOSE", text)
    monkeypatch.setattr(config, "_values", {})
    with pytest.raises(InvalidArgumentError, match="GRAPHPOOL_VERBOSE is malformed"):
        log.listen()
