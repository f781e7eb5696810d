"""The page that shows a `FootprintPicture`: inline SVG, styles and one script, nothing from a network.

Names come from models, which may be a stranger's: all text goes through `escape`, the script only ever sets text, and
the page's policy runs no script but this one.
"""

from __future__ import annotations

from base64 import b64encode
from bisect import bisect_right
from hashlib import sha256
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from .picture import FootprintPicture
    from .tenants import ArenaTenant
    from .tracing import TracedStep

_LEFT, _TOP, _WIDTH, _HEIGHT, _RIGHT = 76, 24, 720, 380, 20
_ROW = 18
"""Height of the row of a stream."""
_BAR_WIDTH = 84
_THIN = 3
"""Rectangles below have no rim, which would hide them."""
_LETTER = 6.6
"""Width of a letter at 11 pixels, at most."""
_NTICKS = 6
_GOLDEN_ANGLE = 137.508

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
  padding: 0; list-style: none; max-width: 800px; } .key i { display: inline-block; width: 12px; height: 12px;
  margin-right: 6px; vertical-align: -1px; border-radius: 2px; }
.parts { flex-direction: column; } label { margin-right: 14px; }
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


def write_page(picture: FootprintPicture) -> str:
    """The page as text."""
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{_digest(_SCRIPT)}'"
    kinds = dict.fromkeys([t.kind for t in picture.temporaries] + [s.kind for s in picture.steps])
    colours = {kind: _colour(number) for number, kind in enumerate(kinds)}
    starts = sorted({step.start_ns for step in picture.steps})
    unit, ns = _time_unit(picture.duration_ns)

    def by_time(moment: int) -> float:
        return moment / max(picture.duration_ns, 1)

    def by_step(moment: int) -> float:
        return _rank(starts, picture.duration_ns, moment) / max(len(starts), 1)

    times = [(by_time(round(tick * ns)), f"{tick:g}") for tick in _ticks(picture.duration_ns / ns)]
    numbers = [(tick / max(len(starts), 1), f"{tick:g}") for tick in _ticks(len(starts)) if tick % 1 == 0]
    views = [
        ("by-time", _arena("by-time", picture, colours, by_time, times, f"time since the first step ({unit})")),
        ("by-step", _arena("by-step", picture, colours, by_step, numbers, "number of the step, in order of start")),
    ]
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<link rel="icon" href="data:,">
<title>{escape(picture.model)}: memory of a run</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>{escape(picture.model)}: memory of a run</h1>
<p>{_summary(picture)}</p>
<input type="radio" name="axis" id="by-time" checked><label for="by-time">measured time</label>
<input type="radio" name="axis" id="by-step"><label for="by-step">steps, equally wide</label>
<div class="side">
<section>
<h2>Arena over time</h2>
{"".join(f'<div class="{name}">{svg}</div>' for name, svg in views)}
{_key(colours.items())}
</section>
<section>
<h2>All memory of a run</h2>
{_bar(picture)}
</section>
</div>
<div id="tip" role="status" hidden></div>
<script>{_SCRIPT}</script>
</body>
</html>
"""


def _summary(picture: FootprintPicture) -> str:
    spare = picture.arena_nbytes - picture.needed_nbytes
    return (
        f"{len(picture.steps)} steps in {_time(picture.duration_ns)}. The arena has {_brief(picture.arena_nbytes)},"
        f" which is {_brief(spare)} more than the steps needed at once. A run was predicted to take"
        f" {_brief(picture.predicted_nbytes)}; the budget held {_brief(picture.measured_nbytes)} at most. Hatched bytes"
        " are free at that time, fainter rectangles are working memory of kernels. Point at one to read what it is."
    )


# ---- the arena


def _arena(
    name: str,
    picture: FootprintPicture,
    colours: Mapping[str, str],
    x_of: Callable[[int], float],
    ticks: Iterable[tuple[float, str]],
    x_title: str,
) -> str:
    """The arena as SVG, and the streams below it; `x_of` says how far along the axis, 0 to 1, a moment is."""
    nstreams = 1 + max((step.stream for step in picture.steps), default=0)
    bottom = _TOP + _HEIGHT
    rows, end = bottom + 8, bottom + 8 + nstreams * _ROW
    top = max(picture.arena_nbytes, 1)
    unit, nbytes = _size_unit(top)
    out = [
        f'<svg role="img" aria-label="bytes of the arena over {escape(x_title)}" width="{_LEFT + _WIDTH + _RIGHT}"'
        f' height="{end + 42}" viewBox="0 0 {_LEFT + _WIDTH + _RIGHT} {end + 42}">',
        f'<defs><pattern id="hatch-{name}" width="7" height="7" patternUnits="userSpaceOnUse"'
        ' patternTransform="rotate(45)">'
        '<rect class="free" width="7" height="7"/><line class="hatch" x2="0" y2="7"/></pattern></defs>',
    ]
    hatched = f"fill:url(#hatch-{name})"
    out += [_rectangle(hole, x_of, top, "hole", hatched, _hole_tip(hole)) for hole in picture.holes]
    for tenant in picture.temporaries:
        colour = f"fill:{colours[tenant.kind]}" + (";fill-opacity:.55" if tenant.shape is None else "")
        out.append(_rectangle(tenant, x_of, top, "op", colour, _tenant_tip(tenant), tenant.node))
    for tick in _ticks(top / nbytes):
        y = bottom - tick * nbytes / top * _HEIGHT
        out.append(f'<line class="axis" x1="{_LEFT - 4}" x2="{_LEFT}" y1="{y:.2f}" y2="{y:.2f}"/>')
        out.append(_text(_LEFT - 7, y + 4, f"{tick:g}", "dim", "end"))
    for x, label in ticks:
        at = _LEFT + x * _WIDTH
        out.append(f'<line class="axis" x1="{at:.2f}" x2="{at:.2f}" y1="{end}" y2="{end + 4}"/>')
        out.append(_text(at, end + 16, label, "dim", "middle"))
    out.append(f'<line class="limit" x1="{_LEFT}" x2="{_LEFT + _WIDTH}" y1="{_TOP}" y2="{_TOP}"/>')
    bound = bottom - picture.needed_nbytes / top * _HEIGHT
    out.append(f'<line class="bound" x1="{_LEFT}" x2="{_LEFT + _WIDTH}" y1="{bound:.2f}" y2="{bound:.2f}"/>')
    out.append(_text(_LEFT, _TOP - 9, f"arena {_size(picture.arena_nbytes)}"))
    needed = f"lower bound for what ran {_size(picture.needed_nbytes)} (dashed)"
    out.append(_text(_LEFT + _WIDTH, _TOP - 9, needed, "bound-text", "end"))
    middle = _TOP + _HEIGHT / 2
    out.append(
        f'<text transform="translate(14 {middle}) rotate(-90)" text-anchor="middle">offset in the arena ({unit})</text>'
    )
    out.append(_text(_LEFT + _WIDTH / 2, end + 34, x_title, "", "middle"))
    out += _streams(picture.steps, colours, x_of, rows, nstreams)
    return "\n".join([*out, "</svg>"])


def _rectangle(
    tenant: ArenaTenant, x_of: Callable[[int], float], top: int, name: str, style: str, tip: str, label: str = ""
) -> str:
    x, width = _LEFT + x_of(tenant.start_ns) * _WIDTH, (x_of(tenant.end_ns) - x_of(tenant.start_ns)) * _WIDTH
    y, height = _TOP + _HEIGHT * (1 - (tenant.offset + tenant.nbytes) / top), tenant.nbytes / top * _HEIGHT
    return _box(x, y, width, height, name, style, tip, label)


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
    steps: Sequence[TracedStep], colours: Mapping[str, str], x_of: Callable[[int], float], top: float, nstreams: int
) -> Iterator[str]:
    """A row for each stream with what ran on it."""
    for stream in range(nstreams):
        yield _text(_LEFT - 7, top + stream * _ROW + 13, f"stream {stream}", "dim", "end")
    for number, step in enumerate(steps):
        x, width = _LEFT + x_of(step.start_ns) * _WIDTH, (x_of(step.end_ns) - x_of(step.start_ns)) * _WIDTH
        tip = _step_tip(number, step)
        label = step.op or step.kind
        yield _box(x, top + step.stream * _ROW, width, _ROW - 3, "op", f"fill:{colours[step.kind]}", tip, label)


def _step_tip(number: int, step: TracedStep) -> str:
    name = step.op or step.name
    spent = f"{_time(step.start_ns)} to {_time(step.end_ns)} ({_time(step.end_ns - step.start_ns)})"
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
    spent = _time(tenant.end_ns - tenant.start_ns)
    return f"{_time(tenant.start_ns)} to {_time(tenant.end_ns)} ({spent})"


def _key(colours: Iterable[tuple[str, str]], name: str = "key") -> str:
    """What the colours mean."""
    items = [f'<li><i style="background:{colour}"></i>{escape(text)}</li>' for text, colour in colours]
    return f'<ul class="{name}">{"".join(items)}</ul>'


# ---- all memory


def _bar(picture: FootprintPicture) -> str:
    """What a run takes as one bar of parts, with the prediction and the measurement as lines."""
    top = max(picture.predicted_nbytes, picture.measured_nbytes, sum(picture.parts.values()), 1)
    unit, nbytes = _size_unit(top)
    bottom, right = _TOP + _HEIGHT, _LEFT + _BAR_WIDTH + 12
    out = [
        f'<svg role="img" aria-label="bytes by part" width="{right + 160}" height="{bottom + 8}"'
        f' viewBox="0 0 {right + 160} {bottom + 8}">'
    ]
    for tick in _ticks(top / nbytes):
        y = bottom - tick * nbytes / top * _HEIGHT
        out.append(f'<line class="grid" x1="{_LEFT - 4}" x2="{right}" y1="{y:.2f}" y2="{y:.2f}"/>')
        out.append(_text(_LEFT - 7, y + 4, f"{tick:g}", "dim", "end"))
    reached, key = 0, []
    for number, (name, size) in enumerate(picture.parts.items()):
        colour = f"hsl(215 12% {30 + 8 * number}%)"
        y = bottom - (reached + size) / top * _HEIGHT
        key.append((f"{name}: {_size(size)}", colour))
        height = size / top * _HEIGHT
        out.append(_box(_LEFT + 6, y, _BAR_WIDTH, height, "op", f"fill:{colour}", f"{name}\nbytes: {_size(size)}", ""))
        reached += size
    told = sorted([("predicted", picture.predicted_nbytes), ("measured", picture.measured_nbytes)], key=lambda p: -p[1])
    told = told if told[0][1] > told[1][1] else told[::-1]  # dashes stand on the line where both are the same
    for (name, size), shift in zip(told, (-4, 13), strict=True):
        y, style = bottom - size / top * _HEIGHT, "told" if name == "measured" else "bound"
        out.append(f'<line class="{style}" x1="{_LEFT}" x2="{right + 8}" y1="{y:.2f}" y2="{y:.2f}"/>')
        out.append(_text(right + 12, y + shift, f"{name} {_brief(size)}", f"{style}-text"))
    out.append(
        f'<text transform="translate(14 {_TOP + _HEIGHT / 2}) rotate(-90)" text-anchor="middle">memory ({unit})</text>'
    )
    return "\n".join([*out, "</svg>", _key(reversed(key), "key parts")])


# ---- numbers and text


def _text(x: float, y: float, text: str, name: str = "", anchor: str = "start") -> str:
    return f'<text class="{name}" x="{x:.2f}" y="{y:.2f}" text-anchor="{anchor}">{escape(text)}</text>'


def _digest(script: str) -> str:
    return b64encode(sha256(script.encode()).digest()).decode()


def _colour(number: int) -> str:
    """A colour for an op kind; lighter or darker as the page is."""
    return f"hsl({(205 + number * _GOLDEN_ANGLE) % 360:.0f} var(--s) var(--l))"


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


def _size_unit(nbytes: int) -> tuple[str, int]:
    return next((unit for unit in (("MiB", 2**20), ("KiB", 2**10)) if nbytes >= unit[1]), ("bytes", 1))


def _size(nbytes: int) -> str:
    return f"{nbytes} bytes" if nbytes < 2**10 else f"{_brief(nbytes)} ({nbytes} bytes)"


def _brief(nbytes: int) -> str:
    unit, size = _size_unit(nbytes)
    return f"{nbytes / size:.4g} {unit}"


def _time_unit(ns: int) -> tuple[str, float]:
    return next((unit for unit in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)) if ns >= unit[1]), ("ns", 1.0))


def _time(ns: int) -> str:
    unit, size = _time_unit(ns)
    return f"{ns / size:.4g} {unit}"
