"""The page that shows one `FootprintPicture` or two: inline SVG, styles and one script, nothing from a network.

Names come from models, which may be a stranger's: all text goes through `escape`, the script only ever sets text, and
the page's policy runs no script but this one.
"""

from __future__ import annotations

from base64 import b64encode
from bisect import bisect_right
from hashlib import sha256
from html import escape
from typing import TYPE_CHECKING

from graphpool._dataclasses import NamedTuple

from ..drawing import describe_size, describe_time, hue, order_kinds, size_unit, time_unit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from .picture import FootprintPicture
    from .tenants import ArenaTenant
    from .tracing import TracedStep

_LEFT, _TOP, _HEIGHT, _RIGHT = 76, 24, 380, 20
_WIDTHS = (720, 460)
"""Of the arena of a run alone, and of one beside another."""
_ROW = 18
"""Height of the row of a stream."""
_BAR_WIDTH, _BAR_LABEL = 84, 150
_THIN = 3
"""Rectangles below have no rim, which would hide them."""
_LETTER = 6.6
"""Width of a letter at 11 pixels, at most."""
_NTICKS = 6

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2330; --dim: #5b6472; --line: #c6ccd6; --paper: #fff; --free: #eef0f4;
  --hatch: #d5d9e1; --l: 70%; --s: 58%; --bound: #b3261e; --told: #1a5fb4; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ef; --dim: #a2abb9; --line: #434b59; --paper: #14181f;
  --free: #1c222c; --hatch: #2d3542; --l: 42%; --s: 42%; --bound: #ff8a80; --told: #8ab8ff; } }
body { margin: 24px; background: var(--paper); color: var(--ink); font: 14px/1.45 system-ui, sans-serif; }
h1 { font-size: 20px; margin: 0 0 4px; overflow-wrap: anywhere; } h2 { font-size: 15px; margin: 20px 0 6px; }
p { margin: 0 0 8px; color: var(--dim); max-width: 80ch; }
.side { display: flex; flex-wrap: wrap; gap: 8px 16px; align-items: flex-start; }
svg { display: block; max-width: 100%; height: auto; } svg text { font: 11px system-ui, sans-serif; fill: var(--ink); }
svg .dim { fill: var(--dim); } .grid { stroke: var(--line); stroke-width: .5; } .axis { stroke: var(--dim); }
.free { fill: var(--free); } .hatch { stroke: var(--hatch); stroke-width: 2; }
.op { stroke: var(--paper); stroke-width: .7; } .op.thin { stroke: none; }
[data-tip]:hover, [data-tip]:focus { stroke: var(--ink); stroke-width: 2; outline: none; }
svg .inside { pointer-events: none; }
.bound { stroke: var(--bound); stroke-width: 1.5; stroke-dasharray: 6 4; } svg .bound-text { fill: var(--bound); }
.told { stroke: var(--told); stroke-width: 1.5; } svg .told-text { fill: var(--told); }
.limit { stroke: var(--ink); stroke-width: 1.5; } .key { display: flex; flex-wrap: wrap; gap: 2px 16px; margin: 8px 0;
  padding: 0; list-style: none; max-width: 800px; } i { display: inline-block; width: 12px; height: 12px;
  margin-right: 6px; vertical-align: -1px; border-radius: 2px; } label { margin-right: 14px; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: 8px 0; } th { font-weight: 600; }
th, td { padding: 2px 0 2px 18px; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { padding-left: 0; text-align: left; } .sum td { border-top: 1px solid var(--line); }
section { max-width: 100%; overflow-x: auto; }
.by-step { display: none; } #by-step:checked ~ .side .by-step { display: block; }
#by-step:checked ~ .side .by-time { display: none; }
#tip { position: fixed; z-index: 1; pointer-events: none; white-space: pre-line; overflow-wrap: anywhere;
  max-width: 360px; padding: 6px 9px; border: 1px solid var(--line); border-radius: 4px; background: var(--paper);
  color: var(--ink); font-size: 12px; box-shadow: 0 2px 8px #0004; }
"""

_SCRIPT = """
const tip = document.getElementById("tip");
function show(target, x, y) {
  const text = target instanceof Element ? target.getAttribute("data-tip") : null;
  tip.hidden = text === null;
  if (text === null) return;
  tip.textContent = text;
  tip.style.left = Math.max(0, Math.min(x + 14, innerWidth - tip.offsetWidth - 8)) + "px";
  tip.style.top = Math.max(0, Math.min(y + 14, innerHeight - tip.offsetHeight - 8)) + "px";
}
document.addEventListener("mousemove", event => show(event.target, event.clientX, event.clientY));
document.addEventListener("focusin", event => {
  const box = event.target.getBoundingClientRect();
  show(event.target, box.right, box.bottom);
});
document.addEventListener("focusout", () => show(null, 0, 0));
"""


class _Scales(NamedTuple):
    """What all pictures of a page have in common: the ends of the axes, the width of an arena, colours of op kinds."""

    arena_nbytes: int
    duration_ns: int
    nsteps: int
    nstreams: int
    width: int
    colours: Mapping[str, str]


def write_page(pictures: Sequence[FootprintPicture]) -> str:
    """The page as text."""
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{_digest(_SCRIPT)}'"
    scales = _find_scales(pictures)
    names = " beside ".join(dict.fromkeys(picture.model for picture in pictures))
    title = f"{names}: memory of {'a run' if len(pictures) == 1 else 'two runs'}"
    side = ' class="side"' if len(pictures) > 1 else ""
    arenas = [_arena_section(number, picture, scales) for number, picture in enumerate(pictures)]
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<link rel="icon" href="data:,">
<title>{escape(title)}</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>{escape(title)}</h1>
{_summary(pictures)}
<input type="radio" name="axis" id="by-time" checked><label for="by-time">measured time</label>
<input type="radio" name="axis" id="by-step"><label for="by-step">steps, equally wide</label>
<div class="side">
<section>
<div class="side">{"".join(arenas)}</div>
{_key(scales.colours)}
</section>
<section>
<h2>All memory of a run</h2>
<div{side}>{_bars(pictures)}{_table(pictures)}</div>
</section>
</div>
<div id="tip" role="status" hidden></div>
<script>{_SCRIPT}</script>
</body>
</html>
"""


def _find_scales(pictures: Sequence[FootprintPicture]) -> _Scales:
    kinds = [tenant.kind for p in pictures for tenant in p.temporaries] + [s.kind for p in pictures for s in p.steps]
    return _Scales(
        max(1, *(picture.arena_nbytes for picture in pictures)),
        max(1, *(picture.duration_ns for picture in pictures)),
        max(1, *(len(_starts(picture)) for picture in pictures)),
        max(1, 1, *(1 + step.stream for picture in pictures for step in picture.steps)),
        _WIDTHS[len(pictures) > 1],
        {kind: _colour(number) for kind, number in order_kinds(kinds).items()},
    )


def _starts(picture: FootprintPicture) -> list[int]:
    """When steps began, each time once."""
    return sorted({step.start_ns for step in picture.steps})


def _summary(pictures: Sequence[FootprintPicture]) -> str:
    told = [_describe_run(picture) for picture in pictures]
    if len(pictures) == 2:
        first, second = pictures
        total = _compare(first.predicted_nbytes, second.predicted_nbytes)
        arena = _compare(first.arena_nbytes, second.arena_nbytes)
        told = [f"<b>First:</b> {told[0]}", f"<b>Second:</b> {told[1]}"]
        told.append(f"The second is predicted to take {total} the first, its arena {arena} that of the first.")
    told.append(
        "Hatched bytes are free at that time, fainter rectangles are working memory of kernels. Point at one to read"
        " what it is."
    )
    return "\n".join(f"<p>{text}</p>" for text in told)


def _describe_run(picture: FootprintPicture) -> str:
    spare = picture.arena_nbytes - picture.needed_nbytes
    needed = f"{describe_size(spare)} more than" if spare else "as much as"
    return (
        f"{escape(picture.settings)}. {len(picture.steps)} steps in {describe_time(picture.duration_ns)}. The arena has"
        f" {describe_size(picture.arena_nbytes)}, {needed} the steps needed at once. A run was predicted to take"
        f" {describe_size(picture.predicted_nbytes)}; the budget held {describe_size(picture.measured_nbytes)} at most."
    )


def _compare(first: int, second: int) -> str:
    """The second size by the first."""
    if first == second:
        return f"{describe_size(second)}, as much as"
    share = f" ({abs(second - first) / first:.1%})" if first else ""
    what = "more than" if second > first else "less than"
    return f"{describe_size(second)}, {describe_size(abs(second - first))}{share} {what}"


# ---- the arena


def _arena_section(number: int, picture: FootprintPicture, scales: _Scales) -> str:
    """The arena of one run, over time and over steps."""
    starts = _starts(picture)
    unit, ns = time_unit(scales.duration_ns)

    def by_time(moment: int) -> float:
        return moment / scales.duration_ns

    def by_step(moment: int) -> float:
        return _rank(starts, picture.duration_ns, moment) / scales.nsteps

    times = [(by_time(round(tick * ns)), f"{tick:g}") for tick in _ticks(scales.duration_ns / ns)]
    numbers = [(tick / scales.nsteps, f"{tick:g}") for tick in _ticks(scales.nsteps) if tick % 1 == 0]
    views = [
        ("by-time", by_time, times, f"time since the first step ({unit})"),
        ("by-step", by_step, numbers, "number of the step, in order of start"),
    ]
    drawn = [
        f'<div class="{name}">{_arena(f"hatch-{name}-{number}", picture, scales, x_of, ticks, x_title)}</div>'
        for name, x_of, ticks, x_title in views
    ]
    heading = "Arena over time" if scales.width == _WIDTHS[0] else f"Arena of the {('first', 'second')[number]}"
    return f"<section><h2>{heading}</h2>{''.join(drawn)}</section>"


def _arena(
    hatch: str,
    picture: FootprintPicture,
    scales: _Scales,
    x_of: Callable[[int], float],
    ticks: Iterable[tuple[float, str]],
    x_title: str,
) -> str:
    """The arena as SVG, and the streams below it; `x_of` says how far along the axis, 0 to 1, a moment is."""
    width, bottom = scales.width, _TOP + _HEIGHT
    rows, end = bottom + 8, bottom + 8 + scales.nstreams * _ROW
    top = scales.arena_nbytes
    unit, nbytes = size_unit(top)
    place = _Place(x_of, width, top)
    out = [
        f'<svg role="img" aria-label="bytes of the arena over {escape(x_title)}" width="{_LEFT + width + _RIGHT}"'
        f' height="{end + 42}" viewBox="0 0 {_LEFT + width + _RIGHT} {end + 42}">',
        f'<defs><pattern id="{hatch}" width="7" height="7" patternUnits="userSpaceOnUse"'
        ' patternTransform="rotate(45)">'
        '<rect class="free" width="7" height="7"/><line class="hatch" x2="0" y2="7"/></pattern></defs>',
    ]
    out += [_rectangle(hole, place, "hole", f"fill:url(#{hatch})", _hole_tip(hole)) for hole in picture.holes]
    for tenant in picture.temporaries:
        colour = f"fill:{scales.colours[tenant.kind]}" + (";fill-opacity:.55" if tenant.shape is None else "")
        out.append(_rectangle(tenant, place, "op", colour, _tenant_tip(tenant), tenant.node))
    for tick in _ticks(top / nbytes):
        y = place.y(tick * nbytes)
        out.append(f'<line class="axis" x1="{_LEFT - 4}" x2="{_LEFT}" y1="{y:.2f}" y2="{y:.2f}"/>')
        out.append(_text(_LEFT - 7, y + 4, f"{tick:g}", "dim", "end"))
    for x, label in ticks:
        at = _LEFT + x * width
        out.append(f'<line class="axis" x1="{at:.2f}" x2="{at:.2f}" y1="{end}" y2="{end + 4}"/>')
        out.append(_text(at, end + 16, label, "dim", "middle"))
    limit = place.y(picture.arena_nbytes)
    out += [_line("limit", width, limit), _line("bound", width, place.y(picture.needed_nbytes))]
    out.append(_text(_LEFT, limit - 9, f"arena {describe_size(picture.arena_nbytes)}"))
    needed = f"lower bound for what ran {describe_size(picture.needed_nbytes)} (dashed)"
    out.append(_text(_LEFT + width, limit - 9, needed, "bound-text", "end"))
    out.append(_upright(f"offset in the arena ({unit})"))
    out.append(_text(_LEFT + width / 2, end + 34, x_title, "", "middle"))
    out += _streams(picture.steps, scales.colours, place, rows, scales.nstreams)
    return "\n".join([*out, "</svg>"])


class _Place(NamedTuple):
    """Where moments and offsets are in a picture of an arena."""

    x_of: Callable[[int], float]
    width: int
    top_nbytes: int

    def x(self, moment: int) -> float:
        return _LEFT + self.x_of(moment) * self.width

    def y(self, offset: float) -> float:
        return _TOP + _HEIGHT * (1 - offset / self.top_nbytes)


def _line(name: str, width: int, y: float) -> str:
    return f'<line class="{name}" x1="{_LEFT}" x2="{_LEFT + width}" y1="{y:.2f}" y2="{y:.2f}"/>'


def _upright(text: str) -> str:
    """The title of a y axis."""
    middle = _TOP + _HEIGHT / 2
    return f'<text transform="translate(14 {middle}) rotate(-90)" text-anchor="middle">{escape(text)}</text>'


def _rectangle(tenant: ArenaTenant, place: _Place, name: str, style: str, tip: str, label: str = "") -> str:
    x, y = place.x(tenant.start_ns), place.y(tenant.offset + tenant.nbytes)
    return _box(x, y, place.x(tenant.end_ns) - x, place.y(tenant.offset) - y, name, style, tip, label)


def _box(x: float, y: float, width: float, height: float, name: str, style: str, tip: str, label: str) -> str:
    """A rectangle, with its label where that fits inside."""
    focus = ' tabindex="0"' if name == "op" else ""
    styled = f' style="{style}"' if style else ""
    thin = " thin" if min(width, height) < _THIN else ""
    box = (
        f'<rect class="{name}{thin}"{styled}{focus} x="{x:.2f}" y="{y:.2f}" width="{max(width, 0):.2f}"'
        f' height="{max(height, 0):.2f}" data-tip="{escape(tip)}"/>'
    )
    if not label or len(label) * _LETTER + 8 > width or height < 14:
        return box
    return box + _text(x + width / 2, y + height / 2 + 4, label, "inside", "middle")


def _streams(
    steps: Sequence[TracedStep], colours: Mapping[str, str], place: _Place, top: float, nstreams: int
) -> Iterator[str]:
    """A row for each stream with what ran on it."""
    for stream in range(nstreams):
        yield _text(_LEFT - 7, top + stream * _ROW + 13, f"stream {stream}", "dim", "end")
    for number, step in enumerate(steps):
        x, tip = place.x(step.start_ns), _step_tip(number, step)
        style, label = f"fill:{colours[step.kind]}", step.op or step.kind
        yield _box(x, top + step.stream * _ROW, place.x(step.end_ns) - x, _ROW - 3, "op", style, tip, label)


def _step_tip(number: int, step: TracedStep) -> str:
    name = step.op or step.name
    spent = (
        f"{describe_time(step.start_ns)} to {describe_time(step.end_ns)} ({describe_time(step.end_ns - step.start_ns)})"
    )
    return f"step {number}\nnode: {name}\nop: {step.kind}\nkernel: {step.name}\ntime: {spent}"


def _tenant_tip(tenant: ArenaTenant) -> str:
    lines = [tenant.tensor, f"node: {tenant.node}", f"op: {tenant.kind}"]
    if tenant.shape is not None:
        lines.append(f"shape: {tenant.dtype} {'x'.join(map(str, tenant.shape)) or 'scalar'}")
    lines.append(f"bytes: {_size(tenant.nbytes)} at offset {tenant.offset}")
    lines.append(f"lifetime: steps {tenant.first_step} to {tenant.last_step}, {_span(tenant)}")
    return "\n".join(lines)


def _hole_tip(hole: ArenaTenant) -> str:
    return f"free\nbytes: {_size(hole.nbytes)} at offset {hole.offset}\ntime: {_span(hole)}"


def _span(tenant: ArenaTenant) -> str:
    spent = describe_time(tenant.end_ns - tenant.start_ns)
    return f"{describe_time(tenant.start_ns)} to {describe_time(tenant.end_ns)} ({spent})"


def _key(colours: Mapping[str, str]) -> str:
    """What the colours mean."""
    items = [f'<li><i style="background:{colour}"></i>{escape(kind)}</li>' for kind, colour in colours.items()]
    return f'<ul class="key">{"".join(items)}</ul>'


# ---- all memory


def _bars(pictures: Sequence[FootprintPicture]) -> str:
    """What each run takes as a bar of parts, with the prediction and the measurement as lines."""
    top = max(1, *(max(p.predicted_nbytes, p.measured_nbytes, sum(p.parts.values())) for p in pictures))
    unit, nbytes = size_unit(top)
    bottom, step = _TOP + _HEIGHT, _BAR_WIDTH + _BAR_LABEL
    right = _LEFT + step * len(pictures)
    out = [
        f'<svg role="img" aria-label="bytes by part" width="{right}" height="{bottom + 24}"'
        f' viewBox="0 0 {right} {bottom + 24}">'
    ]
    for tick in _ticks(top / nbytes):
        y = bottom - tick * nbytes / top * _HEIGHT
        out.append(f'<line class="grid" x1="{_LEFT - 4}" x2="{right}" y1="{y:.2f}" y2="{y:.2f}"/>')
        out.append(_text(_LEFT - 7, y + 4, f"{tick:g}", "dim", "end"))
    for number, picture in enumerate(pictures):
        out += _bar(picture, _LEFT + 6 + number * step, top)
    for number, name in enumerate(("first", "second") if len(pictures) > 1 else ()):
        out.append(_text(_LEFT + 6 + number * step + _BAR_WIDTH / 2, bottom + 18, name, "", "middle"))
    return "\n".join([*out, _upright(f"memory ({unit})"), "</svg>"])


def _bar(picture: FootprintPicture, x: float, top: int) -> Iterator[str]:
    bottom, reached = _TOP + _HEIGHT, 0
    for number, (name, size) in enumerate(picture.parts.items()):
        y, height = bottom - (reached + size) / top * _HEIGHT, size / top * _HEIGHT
        yield _box(x, y, _BAR_WIDTH, height, "op", f"fill:{_grey(number)}", f"{name}\nbytes: {_size(size)}", "")
        reached += size
    told = sorted([("predicted", picture.predicted_nbytes), ("measured", picture.measured_nbytes)], key=lambda p: -p[1])
    told = told if told[0][1] > told[1][1] else told[::-1]  # dashes stand on the line where both are the same
    for (name, size), shift in zip(told, (-4, 13), strict=True):
        y, style = bottom - size / top * _HEIGHT, "told" if name == "measured" else "bound"
        end = x + _BAR_WIDTH + 8
        yield f'<line class="{style}" x1="{x - 6}" x2="{end}" y1="{y:.2f}" y2="{y:.2f}"/>'
        yield _text(end + 4, y + shift, f"{name} {describe_size(size)}", f"{style}-text")


def _table(pictures: Sequence[FootprintPicture]) -> str:
    """The parts in numbers, and how those of two runs differ."""
    parts = dict.fromkeys(name for picture in pictures for name in picture.parts)
    rows = [
        (f'<i style="background:{_grey(number)}"></i>{escape(name)}', [p.parts.get(name, 0) for p in pictures], "")
        for number, name in reversed([*enumerate(parts)])
    ]
    rows.append(("predicted", [p.predicted_nbytes for p in pictures], ' class="sum"'))
    rows.append(("measured", [p.measured_nbytes for p in pictures], ""))
    head = ["memory (bytes)", *(["first", "second", "difference"] if len(pictures) > 1 else ["of the run"])]
    lines = ["<tr>" + "".join(f"<th>{name}</th>" for name in head) + "</tr>"]
    for name, sizes, style in rows:
        cells = [f"{size:,}" for size in sizes] + [_signed(sizes[-1] - sizes[0])] * (len(sizes) - 1)
        lines.append(f"<tr{style}><td>{name}</td>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    return f"<table>{''.join(lines)}</table>"


def _signed(nbytes: int) -> str:
    return f"{nbytes:+,}" if nbytes else "0"


def _grey(number: int) -> str:
    """A colour for a part of the memory."""
    return f"hsl(215 12% {30 + 8 * number}%)"


# ---- numbers and text


def _text(x: float, y: float, text: str, name: str = "", anchor: str = "start") -> str:
    return f'<text class="{name}" x="{x:.2f}" y="{y:.2f}" text-anchor="{anchor}">{escape(text)}</text>'


def _digest(script: str) -> str:
    return b64encode(sha256(script.encode()).digest()).decode()


def _colour(number: int) -> str:
    """A colour for an op kind; lighter or darker as the page is."""
    return f"hsl({hue(number):.0f} var(--s) var(--l))"


def _rank(starts: Sequence[int], end: int, moment: int) -> float:
    """How many steps have begun, where each grows by one until the next begins."""
    number = bisect_right(starts, moment)
    if not number or moment >= end:
        return float(number)
    start = starts[number - 1]
    following = starts[number] if number < len(starts) else end
    return number - 1 + (moment - start) / max(following - start, 1)


def _ticks(end: float) -> list[float]:
    """Round numbers from 0 to `end`."""
    step = 10.0**-3
    while end / step > _NTICKS:
        step *= 2.5 if f"{step:e}".startswith("2") else 2
    return [k * step for k in range(int(end / step) + 1)]


def _size(nbytes: int) -> str:
    return f"{nbytes} bytes" if nbytes < 2**10 else f"{describe_size(nbytes)} ({nbytes} bytes)"
