"""Who registers the backends that ship with graphpool, before any is first asked for: the graph may not know them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

loaders: dict[str, Callable[[], object]] = {}
"""Of engine kinds: filled by `graphpool`, so that neither it nor whoever imports it has to read the graph at once."""
