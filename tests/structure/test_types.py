"""What a type checker sees of the public interface, in the script of a user."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from tests.helpers.tree import ROOT

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(find_spec("mypy") is None, reason="mypy is not installed")

SCRIPT = """
import numpy as np
import graphpool as gp

x = gp.LogicalTensor(0, "f32", (2, 3))
w = gp.LogicalTensor(1, "f32", (3, 4), property="constant")
y = gp.LogicalTensor(2, "f32", (2, 4))
graph = gp.Graph("cpu")
graph.add_op(gp.Op(0, "MatMul", [x, w], [y]))
graph.finalize()
(partition,) = graph.get_partitions()
with gp.Engine(threads=1) as engine, gp.Stream(engine) as stream, partition.compile([x, w], [y], engine) as compiled:
    reveal_type(compiled)
    reveal_type(compiled.scratchpad_nbytes)
    operands = [gp.Tensor(lt, engine, np.ones(lt.shape or (), np.float32)) for lt in (x, w)]
    results = compiled.execute(stream, operands)
    reveal_type(results[0])
    if isinstance(compiled, gp.DynamicPartition):
        reveal_type(compiled.specialise([x, w]))
with gp.onnx.load("digits.onnx", memory_limit="64MiB") as model:
    reveal_type(model.predict_peak({"image": (1, 1, 8, 8)}))
    reveal_type(model.session())
    reveal_type(model.stats())
    reveal_type(gp.profile.footprint(model))
    reveal_type(gp.share(model).open())
"""

SEEN = [
    "graphpool.runtime._compiled.CompiledPartition | Any",
    "int | Any",
    "graphpool.runtime._tensor.Tensor | Any",
    "graphpool.runtime._compiled.CompiledPartition",
    "graphpool.runtime.memory_peak.MemoryPeak",
    "graphpool.runtime.session.Session",
    "graphpool.runtime.model_forms.ModelStats",
    "graphpool.profile.picture.FootprintPicture",
    "graphpool.runtime.model.Model",
]


def _check(tmp_path: Path, script: str) -> tuple[int, list[str], str]:
    path = tmp_path / "script.py"
    path.write_text(script)
    options = ["--strict", "--no-error-summary", "--cache-dir", str(tmp_path)]
    options += ["--follow-imports", "silent"]  # as where graphpool is installed; here it is found in the checkout
    command = [sys.executable, "-m", "mypy", *options, str(path)]
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ | {"MYPYPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    marks = [line.split('Revealed type is "')[1].rstrip('"') for line in done.stdout.splitlines() if "Revealed" in line]
    return done.returncode, marks, done.stdout + done.stderr


@pytest.mark.slow
def test_a_script_is_checked_without_an_ignore(tmp_path: Path) -> None:
    status, seen, output = _check(tmp_path, SCRIPT)
    assert seen == SEEN
    assert status == 0, output


@pytest.mark.slow
def test_a_mistake_in_a_script_is_found(tmp_path: Path) -> None:
    status, _, output = _check(tmp_path, SCRIPT.replace("scratchpad_nbytes", "scratchpad_bytes"))
    assert status == 1
    assert '"CompiledPartition | Any" has no attribute "scratchpad_bytes"' in output
