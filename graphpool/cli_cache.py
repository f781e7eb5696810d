"""``graphpool cache``: the caches that a process starts with, those on the disk, policies on a recorded trace."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import cache, config
from .cache.policies import policy_names
from .cache.process import ENGINE_KINDS
from .cache.program_folder import ProgramFolder
from .cache.traces import compare_policies, distinct_nbytes, read_trace
from .cli_terminal import written
from .errors import InvalidArgumentError, explain
from .typing import parse_nbytes

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from .cache.traces import Comparison

Report = dict[str, Any]
CAPACITIES = ("25%", "50%", "75%", "100%")


def add_cache(parser: argparse.ArgumentParser, common: argparse.ArgumentParser) -> None:
    """Add what ``cache`` can do."""
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    text = "Show the capacities that a process starts with, as the environment sets them."
    commands.add_parser("show", help=text, description=text, parents=[common]).set_defaults(
        command=show_caches, name="cache show"
    )
    text = (
        "Remove the compiled programs that are kept in the user's cache folder, or where GRAPHPOOL_PROGRAM_FOLDER says."
    )
    commands.add_parser("clear", help=text, description=text, parents=[common]).set_defaults(
        command=clear_programs, name="cache clear"
    )
    text = "Replay a trace of constants over policies and capacities, beside the best that foresight could do."
    parser = commands.add_parser("replay", help=text, description=text, parents=[common])
    parser.set_defaults(command=replay_trace, name="cache replay")
    parser.add_argument("trace", help="a CSV file with the columns key, nbytes, cost")
    parser.add_argument(
        "--capacity",
        action="append",
        metavar="SIZE",
        help='such as "64MiB", or a share of all constants of the trace such as "50%%"; may be repeated '
        f"(default: {', '.join(CAPACITIES).replace('%', '%%')})",
    )
    parser.add_argument(
        "--policy", action="append", metavar="NAME", help="may be repeated (default: all, installed ones included)"
    )
    parser.add_argument("--plot", metavar="FILE", help="draw the savings into this .png, .svg or .pdf file")


def show_caches(arguments: argparse.Namespace) -> tuple[Report, bool]:
    """Capacities and policies; nothing is cached yet."""
    store, programs = cache.packed_store(), _programs()
    return {
        "primitive_cache_entries": cache.get_primitive_cache_capacity(),
        "compiled_partition_cache_entries": cache.get_compiled_partition_cache_capacity(),
        "constant_tensor_cache": {kind: _describe(kind) for kind in ENGINE_KINDS},
        "packed_store": None if store is None else {"path": str(store.path), "nbytes": store.stats().nbytes},
        "program_folder": None if programs is None else {"path": str(programs.path), "nbytes": programs.nbytes},
        "policies": policy_names(),
    }, True


def clear_programs(arguments: argparse.Namespace) -> tuple[Report, bool]:
    """How many bytes are gone."""
    programs = _programs()
    if programs is None:
        return {"path": None, "freed_nbytes": 0}, True
    before_nbytes = programs.nbytes
    programs.clear()
    return {"path": str(programs.path), "freed_nbytes": before_nbytes - programs.nbytes}, True


def _programs() -> ProgramFolder | None:
    path = config.program_folder()
    return None if path is None else ProgramFolder(path)


def _describe(kind: str) -> Report:
    constants = cache.constant_tensor_cache(kind)
    return {"capacity_nbytes": constants.capacity_nbytes, "policy": constants.policy.name}


def replay_trace(arguments: argparse.Namespace) -> tuple[Report, bool]:
    """Share of the cost of making constants that each policy saves at each capacity."""
    trace = read_trace(arguments.trace)
    total = distinct_nbytes(trace)
    capacities = [parse_nbytes(text, whole_nbytes=total) for text in arguments.capacity or CAPACITIES]
    rows = compare_policies(trace, capacities, arguments.policy)
    if arguments.plot:
        _save(rows.plot(Path(arguments.trace).stem), arguments.plot)
    return {
        "accesses": len(trace),
        "constants": len({item.key for item in trace}),
        "constants_nbytes": total,
        "cost": sum(item.cost for item in trace),
        "capacities": _savings(rows),
    }, True


def _save(figure: Any, path: str) -> None:
    """Write a figure in the format that the ending of the path names."""
    with written(path) as other:
        try:
            figure.savefig(other)
        except ValueError as error:
            message = explain(f"cannot draw {path}", accepted=".png, .svg, .pdf", got=error)
            raise InvalidArgumentError(message) from error


def _savings(rows: Sequence[Comparison]) -> list[Report]:
    """Percent of the cost saved: by each policy, and the bounds on what foresight could save."""
    return [
        {
            "capacity_nbytes": row.capacity_nbytes,
            "saved_percent": {name: round(100 * result.saved_share, 2) for name, result in row.results.items()},
            "achievable_percent": round(100 * row.best.achievable_share, 2),
            "bound_percent": round(100 * row.best.bound_share, 2),
        }
        for row in rows
    ]
