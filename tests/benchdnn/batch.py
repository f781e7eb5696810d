"""benchdnn's batch files: options, each of which holds until it is set again or ``--reset``; a case runs them.

    --reset --dt=f32,bf16        knobs; commas separate alternatives
    --case=op/f32/relu.json      runs every combination
    --batch=FILE                 runs another file here, its path relative to this one

A backslash at the end of a line continues it, ``#`` begins a comment.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from graphpool.errors import InvalidArgumentError, explain
from graphpool.graph.dumps.knobs import expand_knobs

MAX_DEPTH = 8


def read_batch(path: Path) -> list[dict[str, str]]:
    """The runs of a batch file, as rows of a manifest."""
    return list(_runs(path, {}, 0))


def _runs(path: Path, knobs: dict[str, str], depth: int) -> Iterator[dict[str, str]]:
    if depth > MAX_DEPTH:
        raise InvalidArgumentError(explain(f"batch files include one another: {path}", accepted=f"{MAX_DEPTH} deep"))
    for word in _words(path):
        name, _, value = word.removeprefix("--").partition("=")
        if name == "reset":
            knobs.clear()
        elif name == "batch":
            yield from _runs(path.parent / value, knobs, depth + 1)
        elif name == "case":
            for chosen in expand_knobs(knobs):
                yield {"suite": path.name, "case": value, "expected-n-partitions": "1"} | chosen
        else:
            knobs[name] = value


def _words(path: Path) -> list[str]:
    return shlex.split(path.read_text().replace("\\\n", ""), comments=True)
