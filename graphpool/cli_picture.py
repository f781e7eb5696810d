"""The subcommands ``footprint`` and ``trace``: options for two runs beside one another, and what both report."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from .config import STREAM_POLICIES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .profile import FootprintPicture, Trace

    Report = dict[str, Any]

_MOST_STEPS = 10
"""Steps that the report of a trace names."""


def add_picture_options(parser: argparse.ArgumentParser) -> None:
    """Options of ``footprint`` that other subcommands do not have."""
    parser.add_argument("--inputs", metavar="FILE", help="an .npz file with one array an input")
    parser.add_argument("--html", metavar="FILE", required=True, help="write the picture to this file, for a browser")
    group = parser.add_argument_group(
        "another run beside it", "on the same scales; what is not given is as in the first run"
    )
    group.add_argument("--beside", metavar="MODEL", help="of this ONNX file")
    group.add_argument("--beside-schedule", choices=STREAM_POLICIES, help="with this schedule")
    group.add_argument(
        "--beside-shape", action="append", metavar="NAME=2x3", help="with these shapes, and no others that are given"
    )


def runs_to_picture(arguments: argparse.Namespace) -> list[argparse.Namespace]:
    """The arguments of the run, and of the one beside it if there is one."""
    other = {
        "model": arguments.beside, "schedule": arguments.beside_schedule, "shape": arguments.beside_shape,
        "inputs": "" if arguments.beside_shape else None,
    }  # fmt: skip
    changed = {name: value for name, value in other.items() if value is not None}
    return [arguments, argparse.Namespace(**vars(arguments) | changed)] if changed else [arguments]


def describe_pictures(pictures: Sequence[FootprintPicture]) -> Report:
    """What each part of a run takes; of two runs both, and how they differ."""
    found = [_describe(picture) for picture in pictures]
    if len(found) == 1:
        return found[0]
    first, second = (report["parts"] | _totals(report) for report in found)
    rows = [
        {
            "memory": name.removesuffix("_nbytes").replace("_", " "),
            "first_nbytes": first.get(name, 0),
            "second_nbytes": second.get(name, 0),
            "difference_nbytes": second.get(name, 0) - first.get(name, 0),
        }
        for name in dict.fromkeys([*first, *second])
    ]
    titles = [{"run": picture.settings, "model": picture.model} for picture in pictures]
    return {"first": titles[0], "second": titles[1], "compared": rows}


def _describe(picture: FootprintPicture) -> Report:
    return {
        "steps": len(picture.steps),
        "temporaries": len(picture.temporaries),
        "arena_nbytes": picture.arena_nbytes,
        "needed_nbytes": picture.needed_nbytes,
        "parts": {f"{name.replace(' ', '_')}_nbytes": nbytes for name, nbytes in picture.parts.items()},
        "predicted_peak_nbytes": picture.predicted_nbytes,
        "measured_peak_nbytes": picture.measured_nbytes,
    }


def _totals(report: Report) -> Report:
    return {name: report[name] for name in ("predicted_peak_nbytes", "measured_peak_nbytes", "needed_nbytes")}


def describe_trace(recorded: Trace) -> Report:
    """How long the run took, and the steps that took most of it."""
    steps = recorded.steps
    total = max((s.end_ns for s in steps), default=0) - min((s.start_ns for s in steps), default=0)
    slowest = sorted(steps, key=lambda step: step.start_ns - step.end_ns)[:_MOST_STEPS]
    return {
        "run_ms": total / 1e6,
        "steps": len(steps),
        "streams": len({step.stream for step in steps}),
        "slowest": [
            {
                "node": step.op or step.name,
                "op": step.kind,
                "kernel": step.name,
                "time_ms": (step.end_ns - step.start_ns) / 1e6,
                "share_percent": 100 * (step.end_ns - step.start_ns) / max(total, 1),
            }
            for step in slowest
        ],
    }
