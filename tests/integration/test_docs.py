"""The Python code of each page of the documentation runs as it stands, and its links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
PAGES = [page for page in PAGES if "_build" not in page.parts]
WRITTEN_AT_BUILD = {ROOT / "docs" / "reference" / "ops.md"}


def _code(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def _label(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", [page for page in PAGES if _code(page)], ids=_label)
def test_code(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    namespace: dict[str, object] = {"__name__": "__page__"}
    for number, block in enumerate(_code(page)):
        exec(compile(block, f"{page.name}[{number}]", "exec"), namespace)


@pytest.mark.parametrize("page", PAGES, ids=_label)
def test_links(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert [target for target in missing if (page.parent / target).resolve() not in WRITTEN_AT_BUILD] == []
