"""Short tables for notebooks: text of models stands in them as text, and nothing is fetched or run to make them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_MOST_LETTERS = 200
_MOST_ITEMS = 8


def html_table(title: str, rows: Mapping[str, object]) -> str:
    """A table of names and values under a title, as HTML; long values are cut."""
    cells = "".join(f'<tr><th style="text-align:left">{_text(k)}</th><td>{_text(v)}</td></tr>' for k, v in rows.items())
    return f"<table><caption><b>{_text(title)}</b></caption><tbody>{cells}</tbody></table>"


def brief_list(items: Sequence[object]) -> str:
    """The first of the items, and how many more there are."""
    shown = ", ".join(str(item) for item in items[:_MOST_ITEMS])
    more = len(items) - _MOST_ITEMS
    return f"{shown} and {more} more" if more > 0 else shown or "none"


def _text(value: object) -> str:
    from html import escape  # 1.6 ms, for tables that few ask for

    text = str(value)
    return escape(text if len(text) <= _MOST_LETTERS else f"{text[: _MOST_LETTERS - 4]} ...")
