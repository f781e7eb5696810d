"""The subcommand ``plan-fleet``: replicas of models onto machines, and how they would answer."""

from __future__ import annotations

import json
import math
import os
from typing import TYPE_CHECKING, Any

import numpy as np

import graphpool as gp

from . import fleet
from .cli_serve import ModelLoader, add_queue_options, model_names
from .csv_rows import read_rows
from .errors import InvalidArgumentError, brief, explain
from .mapped_file import open_regular
from .runtime.threads import available_threads

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    Report = dict[str, Any]
    Arrivals = dict[str, tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]
    """Times in seconds and rows of the requests to each model."""

_MOST_REQUESTS = 1_000_000


def add_fleet_options(parser: argparse.ArgumentParser) -> None:
    """Options of ``plan-fleet``."""
    parser.add_argument("--models", required=True, metavar="A,B", help="ONNX files, separated by commas")
    parser.add_argument("--rates", metavar="X,Y", help="requests a second for each, of one row; else those of --trace")
    machine = "such as 16GiB, 2x16GiB, or with processors 2x16GiB:8 (default: as many as here); may be repeated"
    parser.add_argument("--machine", action="append", required=True, metavar="SIZE", help=machine)
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="threads of a run (default: 1)")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="runs at once in a replica (default: 1)")
    add_queue_options(parser)
    overhead = "that a request takes beside its run (default: %(default)s)"
    parser.add_argument("--overhead-s", type=float, metavar="SECONDS", default=0.0005, help=overhead)
    busy = "share of the time that a replica is busy at most (default: %(default)s)"
    parser.add_argument("--utilisation", type=float, metavar="SHARE", default=0.7, help=busy)
    times = "seconds of runs by model and rows, as JSON, instead of measuring them here"
    parser.add_argument("--times", metavar="FILE", help=times)
    measured = "to measure each size (default: %(default)s)"
    parser.add_argument("--seconds", type=float, metavar="SECONDS", default=1.0, help=measured)
    parser.add_argument("--trace", metavar="FILE", help="CSV of requests to simulate: time_s, model, rows")
    requests = "to simulate for each model without a trace (default: %(default)s)"
    parser.add_argument("--requests", type=int, metavar="N", default=20_000, help=requests)
    parser.add_argument("--seed", type=int, metavar="N", default=0, help="of the random numbers of the simulation")


def plan_fleet_of(arguments: argparse.Namespace, shapes: Mapping[str, Any]) -> tuple[Report, bool]:
    """Where replicas go, and how they answer simulated requests."""
    paths = arguments.models.split(",")
    names = model_names(paths, [])
    machines = [machine for text in arguments.machine for machine in fleet.parse_machines(text, available_threads())]
    if not 0 < arguments.requests <= _MOST_REQUESTS:
        raise InvalidArgumentError(explain("--requests", accepted=f"1 to {_MOST_REQUESTS}", got=arguments.requests))
    arrivals = None if arguments.trace is None else _read_trace(arguments.trace, names)
    rates = _rates(arguments.rates, names, arrivals)
    demands = _demands(arguments, dict(zip(names, paths, strict=True)), rates, shapes)
    plan = fleet.plan(demands, machines, utilisation=arguments.utilisation)
    rows = []
    for number, demand in enumerate(demands):
        if arrivals is None:
            times_s = fleet.poisson_arrivals(demand.rate_per_s, arguments.requests, seed=arguments.seed + number)
            nrows = None
        else:
            times_s, nrows = arrivals[demand.name]
        count = plan.count(demand.name)
        answers = fleet.simulate(demand.service, times_s, nrows, replicas=count, seed=arguments.seed)
        rows.append(_describe(demand, count, answers))
    places = [
        {
            "machine": number,
            "memory_nbytes": machine.nbytes,
            "used_nbytes": used_nbytes,
            "processors": machine.processors,
            "used_processors": used,
            "replicas": ", ".join(f"{count} of {name}" for name, count in placed.items()) or "none",
        }
        for number, (machine, placed, used_nbytes, used) in enumerate(
            zip(machines, plan.replicas, plan.used_nbytes, plan.used_processors, strict=True)
        )
    ]
    used = sum(map(bool, plan.replicas))
    return {"models": rows, "machines": places, "machines used": used, "is_optimal": plan.is_optimal}, True


def _describe(demand: fleet.Demand, count: int, answers: fleet.Answers) -> Report:
    return {
        "model": demand.name,
        "rate_per_s": demand.rate_per_s,
        "replicas": count,
        "replica_nbytes": demand.nbytes,
        "shared_nbytes": demand.shared_nbytes,
        "capacity_per_s": demand.service.capacity_per_s,
        **{f"p{mark}_ms": answers.quantile_ms(mark / 100) for mark in (50, 90, 99)},
        "refused_percent": 100 * answers.count(503) / len(answers.status),
        "late_percent": 100 * answers.count(504) / len(answers.status),
    }


def _demands(
    arguments: argparse.Namespace, paths: Mapping[str, str], rates: Mapping[str, float], shapes: Mapping[str, Any]
) -> list[fleet.Demand]:
    """What each model takes and how long its runs are; each is loaded by itself."""
    times = {} if arguments.times is None else _read_times(arguments.times, list(paths))
    names = ("workers", "join_delay_s", "deadline_s", "max_pending", "max_requests", "overhead_s", "seconds")
    options: dict[str, Any] = {name: getattr(arguments, name) for name in names}
    loader, demands, is_joined = ModelLoader(arguments, shapes), [], arguments.join is None
    for name, path in paths.items():
        with gp.Engine(threads=arguments.threads) as engine, loader.load(path, engine) as model:
            has_join = any(arguments.join in (port.shape or ()) for port in model.inputs)
            is_joined |= has_join
            join = arguments.join if has_join else None
            options |= {"name": name, "join": join, "times": times.get(name)}
            demands.append(fleet.predict_demand(model, rates[name], **options))
    loader.check_used()
    if not is_joined:
        raise InvalidArgumentError(explain("--join", accepted="a dimension of a model", got=brief(arguments.join)))
    return demands


def _rates(text: str | None, names: list[str], arrivals: Arrivals | None) -> dict[str, float]:
    """Rows a second of each model: those that are given, else those of the trace."""
    if text is None and arrivals is not None:
        return {name: float(rows.sum() / max(times_s[-1], 1e-9)) for name, (times_s, rows) in arrivals.items()}
    try:
        rates = [float(rate) for rate in (text or "").split(",")]
    except ValueError:
        rates = []
    if len(rates) != len(names) or not all(0 < rate < math.inf for rate in rates):
        accepted = f"{len(names)} numbers above 0, separated by commas, or --trace"
        raise InvalidArgumentError(explain("--rates", accepted=accepted, got=brief(text)))
    return dict(zip(names, rates, strict=True))


def _read_times(path: str, names: list[str]) -> dict[str, fleet.ServiceTimes]:
    """Times of runs by model and rows."""
    try:
        with os.fdopen(open_regular(path), encoding="utf-8") as file:
            found = json.load(file)
        seconds = {name: {int(rows): times for rows, times in found[name].items()} for name in found}
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        accepted = '{"MODEL": {"1": 0.01, "8": [0.03, 0.04]}}, in seconds by rows'
        raise InvalidArgumentError(explain(f"--times {path}", accepted=accepted, got=brief(error))) from error
    unknown = next((name for name in seconds if name not in names), None)
    if unknown is not None:
        raise InvalidArgumentError(explain(f"--times {path}: no such model", accepted=names, got=brief(unknown)))
    return {name: fleet.ServiceTimes(times) for name, times in seconds.items()}


def _read_trace(path: str, names: list[str]) -> Arrivals:
    """Requests by model, in the order of their arrival."""
    found: dict[str, list[tuple[float, int]]] = {name: [] for name in names}
    for where, row in read_rows(path, ("time_s", "model")):
        try:
            time_s, nrows = float(row["time_s"] or ""), int(row.get("rows") or 1)
            found[row["model"] or ""].append((time_s, nrows))
        except (KeyError, ValueError) as error:
            accepted = f"the columns time_s, model ({', '.join(names)}), and rows or not"
            raise InvalidArgumentError(explain(where, accepted=accepted, got=brief(row))) from error
    missing = next((name for name in names if not found[name]), None)
    if missing is not None:
        raise InvalidArgumentError(
            explain(f"{path}: no request", accepted="one for each model", got=f"none to {missing}")
        )
    return {name: tuple(map(np.array, zip(*sorted(rows), strict=True))) for name, rows in found.items()}  # type: ignore[misc]
