"""Check the graphpool that this interpreter finds installed, without the checkout: kernels, the command, the plug-in.

    python tools/check_installed.py

Runs an example on every instruction set of the build that the processor has, then the command, then, where pytest is
installed, a test that uses the fixtures and the marker without naming the plug-in. Needs a folder to write to, no
compiler. Fails if graphpool comes from this checkout.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ISAS = "from graphpool._kernels.core._dispatch import isas; print(*isas())"
TEST = """
import numpy as np
import pytest

import graphpool as gp


@pytest.mark.limit_footprint("1MiB")
def test_relu(gp_engine, gp_stream, gp_footprint):
    x, y = gp.LogicalTensor(0, "f32", (2, 2)), gp.LogicalTensor(1, "f32", (2, 2))
    partition = gp.Partition.from_op(gp.Op(0, "ReLU", [x], [y]))
    with gp_footprint() as found, partition.compile([x], [y], gp_engine) as compiled:
        [result] = compiled.execute(gp_stream, [gp.Tensor(x, gp_engine, np.full((2, 2), -1, np.float32))])
    assert not result.numpy().any()
    assert found.peak_nbytes > 0
"""


def run(folder: str, *command: str, **environment: str) -> str:
    """What a command prints, run in a folder outside the checkout; stop with its output if it fails."""
    done = subprocess.run(
        command, cwd=folder, env=os.environ | environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout.strip()


def main() -> None:
    """Check all of it."""
    with tempfile.TemporaryDirectory() as folder:
        home, version = run(
            folder, sys.executable, "-c", "import graphpool; print(graphpool.__file__, graphpool.__version__)"
        ).rsplit(None, 1)
        if Path(home).resolve().is_relative_to(ROOT / "graphpool"):
            sys.exit(f"graphpool comes from the checkout, {home}, and not from where it was installed")
        isas = run(folder, sys.executable, "-c", ISAS).split()
        for isa in isas:
            run(folder, sys.executable, str(ROOT / "examples" / "two_op_graph.py"), GRAPHPOOL_MAX_ISA=isa)
        run(folder, str(Path(sysconfig.get_path("scripts"), "graphpool")), "info")
        checked = f"graphpool {version} on {', '.join(isas)}, the command"
        if importlib.util.find_spec("pytest") is not None:
            Path(folder, "test_installed.py").write_text(TEST)
            run(folder, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_installed.py")
            checked += ", the plug-in of pytest"
    print(f"{sys.implementation.cache_tag}: {checked}")


if __name__ == "__main__":
    main()
