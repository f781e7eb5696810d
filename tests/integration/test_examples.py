"""Every example runs and finds its own result right."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TRAINS = {"train_demo_models.py"}
"""Scripts that need an hour and a framework, and are not run."""

ENGINES = {"on_dask.py", "on_ray.py", "on_spark.py"}
"""Run by the tests of engines for many machines."""

EXAMPLES = sorted(path for path in (ROOT / "examples").glob("*.py") if path.name not in TRAINS | ENGINES)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path: Path, tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "error", str(path)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert not list(tmp_path.iterdir()), "an example leaves nothing behind"
