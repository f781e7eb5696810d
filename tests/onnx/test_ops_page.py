"""The page of ONNX ops names every op, and its counts are those of the committed table."""

from __future__ import annotations

import runpy
from pathlib import Path

from onnx import defs

ROOT = Path(__file__).parents[2]


def test_every_op_has_a_row_and_every_case_counts(tmp_path: Path) -> None:
    page = tmp_path / "onnx-ops.md"
    runpy.run_path(str(ROOT / "docs/generate_onnx_ops.py"))["generate"](page)
    rows = [line.strip("| ").split(" | ") for line in page.read_text().splitlines() if line.startswith("| ")]
    found = {row[0]: row[1:] for row in rows if row[0] != "Op"}
    domains = ("", "ai.onnx.ml", "ai.onnx.preview.training")
    assert found.keys() == {schema.name for schema in defs.get_all_schemas() if schema.domain in domains}
    assert found["Conv"][:2] == ["1, 11, 22", "kernels"]
    assert [found[name][1] for name in ("Gradient", "StringSplit", "If", "SwiGLU", "Shape", "ZipMap")] == [
        "refused",
        "host",
        "control flow",
        "its parts",
        "compilation",
        "texts",
    ]
    assert sum(int(row[2] or 0) for row in found.values() if len(row) > 2) > 900
