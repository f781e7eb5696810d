"""The source tree as the structure tests read it."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "graphpool"

_TEXT = {".py", ".pyx", ".pxd", ".pyi", ".h", ".c", ".md", ".toml", ".in"}
_SKIPPED = {"build", "dist", "_build", ".venv", "__pycache__"}


def sources(*suffixes: str) -> list[Path]:
    """The package's files with these suffixes; C files that Cython wrote are none of ours."""
    found = [path for path in PACKAGE.rglob("*") if path.suffix in suffixes]
    return sorted(path for path in found if not path.with_suffix(".pyx").exists() or path.suffix != ".c")


def own_texts() -> list[Path]:
    """Every text file of the tree that somebody wrote."""
    folders = [PACKAGE, *(ROOT / name for name in ("tests", "bench", "examples", "docs", "tools", ".ci"))]
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    files += [path for path in ROOT.iterdir() if path.is_file()]
    texts = [path for path in files if path.suffix in _TEXT or path.name in ("Makefile", "run")]
    return sorted(
        path
        for path in texts
        if not _SKIPPED.intersection(path.relative_to(ROOT).parts)
        and not (path.suffix == ".c" and path.with_suffix(".pyx").exists())
        and path not in (ROOT / "docs" / "reference" / name for name in ("ops.md", "onnx-ops.md"))
    )


def module_name(path: Path) -> str:
    """Dotted name of the module in a file of the package."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def label(path: Path) -> str:
    """A path for test ids."""
    return path.relative_to(ROOT).as_posix()
