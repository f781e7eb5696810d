"""The page at ``/``: budget, models, arenas and caches as they are now, from ``live.json`` once a second.

Names come from models, which may be a stranger's: the script only ever sets text, and the page's policy runs no script
and takes no style but its own, and asks no other host.
"""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256

__all__ = ["PAGE", "POLICY"]

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2330; --dim: #5b6472; --line: #c6ccd6; --paper: #fff; --used: #1a5fb4;
  --free: #eef0f4; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ef; --dim: #a2abb9; --line: #434b59; --paper: #14181f;
  --used: #8ab8ff; --free: #1c222c; --bad: #ff8a80; } }
body { margin: 24px; background: var(--paper); color: var(--ink); font: 14px/1.45 system-ui, sans-serif; }
h1 { font-size: 20px; margin: 0 0 4px; } h2 { font-size: 15px; margin: 20px 0 6px; }
p { margin: 0 0 8px; color: var(--dim); } p.bad { color: var(--bad); }
svg { display: block; width: 100%; max-width: 800px; height: 120px; background: var(--free); }
polyline { fill: none; stroke: var(--used); stroke-width: 2; vector-effect: non-scaling-stroke; }
meter { width: 100%; max-width: 800px; height: 18px; }
table { border-collapse: collapse; } th, td { padding: 2px 12px 2px 0; border-bottom: 1px solid var(--line); }
th, td { text-align: right; font-weight: 600; } td { font-weight: 400; font-variant-numeric: tabular-nums; }
th:first-child, td:first-child { text-align: left; min-width: 14ch; max-width: 40ch; overflow-wrap: anywhere; }
div { overflow-x: auto; }
"""

_SCRIPT = """
"use strict";
const seen = [], MOST = 120;
const at = id => document.getElementById(id);
const size = n => n === null ? "no limit" : n < 1024 ? n + " bytes" :
  n < 1048576 ? (n / 1024).toFixed(1) + " KiB" : (n / 1048576).toFixed(1) + " MiB";
const rows = (id, head, body) => {
  const table = document.createElement("table");
  for (const [k, cells] of [head, ...body].entries()) {
    const row = table.insertRow();
    for (const cell of cells) {
      const place = k ? row.insertCell() : row.appendChild(document.createElement("th"));
      place.textContent = cell;
    }
  }
  at(id).replaceChildren(table);
};
const show = live => {
  const b = live.budget, top = b.limit ?? Math.max(b.peak, 1);
  at("state").textContent = live.is_ready ? "ready" : "stopping";
  at("state").className = live.is_ready ? "" : "bad";
  at("used").textContent = `${size(b.in_use)} in use, ${size(b.leased)} of it leased to runs; peak ${size(b.peak)}; ` +
    `limit ${size(b.limit)}`;
  at("axes").textContent = `in use over the last ${MOST} s, from 0 at the bottom to ${size(top)} at the top`;
  at("meter").max = top;
  at("meter").value = b.in_use;
  seen.push(b.in_use);
  if (seen.length > MOST) seen.shift();
  at("line").setAttribute("points", seen.map((n, k) => `${k * 100 / (MOST - 1)},${40 - 40 * n / top}`).join(" "));
  rows("holdings", ["held by", "size"], Object.entries(b.holdings).filter(([, n]) => n).map(([k, n]) => [k, size(n)]));
  rows("service", Object.keys(live.service), [Object.values(live.service)]);
  rows("models", ["model", "uses", "constants", "programs", "arenas", "results", "now"], live.models.map(m =>
    [m.name, m.uses, ...[m.constants, m.programs, m.arenas, m.results].map(size), m.is_busy ? "busy" : "idle"]));
  rows("caches", ["cache", "entries", "size", "hits", "misses", "evictions"],
    Object.entries(live.caches).map(([k, c]) => [k, c.entries, size(c.nbytes), c.hits, c.misses, c.evictions]));
};
const poll = async () => {
  try {
    const answer = await fetch("live.json", {signal: AbortSignal.timeout(5000)});
    show(await answer.json());
  } catch (error) {
    at("state").textContent = "no answer";
    at("state").className = "bad";
  }
  setTimeout(poll, 1000);
};
poll();
"""

_BODY = """<h1>graphpool</h1><p id="state">loading</p>
<h2>Budget</h2><p id="used"></p><meter id="meter" aria-label="memory in use"></meter>
<svg role="img" aria-label="memory in use over two minutes" viewBox="0 0 100 40" preserveAspectRatio="none">
<polyline id="line" points=""/></svg><p id="axes"></p><div id="holdings"></div>
<h2>Requests</h2><div id="service"></div>
<h2>Models and arenas</h2><div id="models"></div>
<h2>Caches</h2><div id="caches"></div>"""


def _digest(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


POLICY = (
    f"default-src 'none'; script-src {_digest(_SCRIPT)}; style-src {_digest(_STYLE)}; connect-src 'self';"
    " img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Header ``Content-Security-Policy`` of the page."""

PAGE = (
    '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>graphpool</title>'
    '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
    f"<style>{_STYLE}</style></head><body>{_BODY}<script>{_SCRIPT}</script></body></html>"
)
"""The page, without what is live."""
