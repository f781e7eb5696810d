"""Pictures: units for axes, a colour for each op kind, and matplotlib figures that nobody has to close."""

from __future__ import annotations

from colorsys import hls_to_rgb
from typing import TYPE_CHECKING

from graphpool._dataclasses import NamedTuple

from .errors import UnsupportedError, explain

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_GOLDEN_ANGLE = 137.508
_LIGHTNESS, _SATURATION = 0.72, 0.58
_MOST_IN_KEY = 12
"""Kinds that the key of a figure names: those that come first."""
_MOST_LETTERS = 72
_LETTER, _LINE = 0.5, 1.3
"""Width of a letter at least, and height of a line, as shares of the font's size."""
_FONT_SIZE = 8


class Bar(NamedTuple):
    """A rectangle of a figure, from `start` along the x axis and `low` along the y axis."""

    kind: str
    label: str
    start: float
    end: float
    low: float
    high: float


# ---- units and colours


def hue(number: int) -> float:
    """Hue of the kind with this number, far from those of its neighbours. Unit: degrees."""
    return (205 + number * _GOLDEN_ANGLE) % 360


def size_unit(nbytes: float) -> tuple[str, int]:
    """The unit in which sizes up to so many bytes are told, and its bytes."""
    units = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))
    return next((unit for unit in units if nbytes >= unit[1]), ("bytes", 1))


def time_unit(ns: float) -> tuple[str, float]:
    """The unit in which times up to so many nanoseconds are told, and its nanoseconds."""
    return next((unit for unit in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)) if ns >= unit[1]), ("ns", 1.0))


def describe_size(nbytes: int) -> str:
    """A size in a few letters."""
    unit, size = size_unit(abs(nbytes))
    return f"{nbytes / size:.4g} {unit}"


def describe_time(ns: float) -> str:
    """A time in a few letters."""
    unit, size = time_unit(ns)
    return f"{ns / size:.4g} {unit}"


def order_kinds(kinds: Iterable[str]) -> dict[str, int]:
    """A number for each kind, from which its colour follows, in the order of their coming."""
    return {kind: number for number, kind in enumerate(dict.fromkeys(kinds))}


def _colour(number: int) -> tuple[float, float, float]:
    return hls_to_rgb(hue(number) / 360, _LIGHTNESS, _SATURATION)


# ---- figures


def make_figure(width: float, height: float) -> Figure:
    """A matplotlib figure that pyplot does not know; UnsupportedError where matplotlib is missing. Unit: inches."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        hint = 'install it with: pip install "graphpool[profile]"'
        raise UnsupportedError(explain("a plot needs matplotlib", hint=hint), extra="profile") from error
    return Figure(figsize=(width, height), layout="constrained")


def draw_rows(rows: Mapping[str, Sequence[Bar]], title: str, x_title: str) -> Figure:
    """A figure with a row for each name, and bars on it whose `low` and `high` are 0 and 1."""
    figure = make_figure(10, 1.6 + 0.45 * max(len(rows), 1))
    axes = figure.subplots()
    bars = [
        bar._replace(low=row + bar.low * 0.84 - 0.42, high=row + bar.high * 0.84 - 0.42)
        for row, found in enumerate(rows.values())
        for bar in found
    ]
    axes.set_yticks(range(len(rows)), list(rows))
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set(xlabel=x_title, title=_plain(title))
    draw_bars(figure, axes, bars)
    return figure


def draw_arena(
    bars: Sequence[Bar], nbytes: int, bound_nbytes: int, title: str, x_title: str, bound: str = "lower bound"
) -> Figure:
    """A figure of an arena: bars whose `low` and `high` are offsets in bytes, its size and the bound as lines."""
    figure = make_figure(10, 5.5)
    axes = figure.subplots()
    unit, size = size_unit(nbytes)
    axes.axhline(nbytes / size, color="0.2", linewidth=1)
    axes.axhline(bound_nbytes / size, color="firebrick", linewidth=1, linestyle="--")
    axes.set(xlabel=x_title, ylabel=f"offset in the arena ({unit})", ylim=(0, max(nbytes / size, 1e-9)))
    sizes = f"arena {describe_size(nbytes)}, {bound} {describe_size(bound_nbytes)} (dashed)"
    axes.set_title(f"{_plain(title)}\n{sizes}", fontsize=10)
    draw_bars(figure, axes, [bar._replace(low=bar.low / size, high=bar.high / size) for bar in bars])
    return figure


def draw_bars(figure: Figure, axes: Axes, bars: Sequence[Bar]) -> None:
    """Draw bars, each with its label where that fits inside, and a key of the kinds below the axes.

    Call it last: labels are placed by the size that the axes have then.
    """
    from matplotlib.collections import PolyCollection

    numbers = order_kinds(bar.kind for bar in bars)
    corners = [[(b.start, b.low), (b.end, b.low), (b.end, b.high), (b.start, b.high)] for b in bars]
    colours = [_colour(numbers[bar.kind]) for bar in bars]
    axes.add_collection(PolyCollection(corners, facecolors=colours, edgecolors="white", linewidths=0.5))
    axes.set_xlim(0, max((bar.end for bar in bars), default=0) or 1)
    _draw_key(figure, list(numbers.items()))
    figure.draw_without_rendering()
    _draw_labels(axes, bars)


def _draw_key(figure: Figure, numbers: Sequence[tuple[str, int]]) -> None:
    from matplotlib.patches import Patch

    named = [(kind, number) for kind, number in numbers[:_MOST_IN_KEY] if kind]
    handles = [Patch(facecolor=_colour(number), label=_plain(kind)) for kind, number in named]
    if len(numbers) > _MOST_IN_KEY:
        handles.append(Patch(facecolor="none", label=f"and {len(numbers) - _MOST_IN_KEY} more"))
    if handles:
        columns = min(len(handles), 5)
        figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False, fontsize=_FONT_SIZE)


def _draw_labels(axes: Axes, bars: Iterable[Bar]) -> None:
    points_per_pixel = 72 / axes.figure.dpi
    for bar in bars:
        (x0, y0), (x1, y1) = axes.transData.transform([(bar.start, bar.low), (bar.end, bar.high)])
        width, height = abs(x1 - x0) * points_per_pixel, abs(y1 - y0) * points_per_pixel
        if not bar.label or width < len(bar.label) * _FONT_SIZE * _LETTER or height < _FONT_SIZE * _LINE:
            continue
        middle = (bar.start + bar.end) / 2, (bar.low + bar.high) / 2
        text = axes.text(*middle, _plain(bar.label), ha="center", va="center", fontsize=_FONT_SIZE)
        box = text.get_window_extent()
        if box.width > abs(x1 - x0) - 2 or box.height > abs(y1 - y0):
            text.remove()


def _plain(text: str) -> str:
    """Text of a stranger's as it is, or its beginning: matplotlib reads formulas between dollar signs."""
    short = text if len(text) <= _MOST_LETTERS else f"{text[: _MOST_LETTERS - 4]} ..."
    return short.replace("$", r"\$")
