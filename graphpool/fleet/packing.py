"""Replicas onto machines: an integer program, solved by HiGHS through SciPy."""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from graphpool._dataclasses import dataclass

from ..errors import InvalidArgumentError, OutOfMemoryError, brief, check_count, explain
from ..typing import parse_nbytes
from .checks import check_kind, check_kinds, check_rate, check_seconds, check_share
from .simulator import Service

if TYPE_CHECKING:
    from collections.abc import Sequence

    Counts = list[list[int]]
    """Replicas by machine and demand."""

__all__ = ["Demand", "FleetPlan", "Machine", "parse_machines", "plan"]

_MOST_MACHINES = 1000
_OPTIMAL, _INFEASIBLE = 0, 2
"""Of the solver's results."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What a machine has.

    Parameters
    ----------
    nbytes : int
        Memory for replicas. Unit: bytes.
    processors : int
    """

    nbytes: int
    processors: int

    def __post_init__(self) -> None:
        check_count("nbytes", self.nbytes, 0)
        check_count("processors", self.processors)


@dataclass(frozen=True, kw_only=True)
class Demand:
    """A model, how often it is asked, and what a replica takes.

    Parameters
    ----------
    name : str
    rate_per_s : float
        Rows a second; requests, where each has one row.
    service : Service
        A replica.
    nbytes : int
        Memory of a replica, beside `shared_nbytes`. Unit: bytes.
    shared_nbytes : int, default=0
        What replicas of one machine have once: weights in mapped files. Unit: bytes.
    processors : int, default=1
        Of a replica, for itself.
    """

    name: str
    rate_per_s: float
    service: Service
    nbytes: int
    shared_nbytes: int = 0
    processors: int = 1

    def __post_init__(self) -> None:
        check_kind("name", self.name, str)
        check_rate(f"{self.name}: rate_per_s", self.rate_per_s)
        check_kind("service", self.service, Service)
        check_count("nbytes", self.nbytes, 0)
        check_count("shared_nbytes", self.shared_nbytes, 0)
        check_count("processors", self.processors)

    def replicas(self, utilisation: float) -> int:
        """How many are needed.

        Parameters
        ----------
        utilisation : float
            Share of the time that each is busy at most.

        Returns
        -------
        count : int
            At least 1.

        Raises
        ------
        InvalidArgumentError
            A share that is not above 0, up to 1.
        """
        check_share("utilisation", utilisation)
        return max(math.ceil(self.rate_per_s / (utilisation * self.service.capacity_per_s)), 1)


@dataclass(frozen=True)
class FleetPlan:
    """Where replicas go.

    Attributes
    ----------
    replicas : list of dict of str to int
        By machine, how many of each model.
    used_nbytes : list of int
        Of each machine. Unit: bytes.
    used_processors : list of int
    is_optimal : bool
        Whether no plan takes fewer machines, or as many with fewer bytes.
    """

    replicas: list[dict[str, int]]
    used_nbytes: list[int]
    used_processors: list[int]
    is_optimal: bool

    def count(self, name: str) -> int:
        """Replicas of a model on all machines.

        Parameters
        ----------
        name : str

        Returns
        -------
        count : int
        """
        return sum(machine.get(name, 0) for machine in self.replicas)


def parse_machines(text: str, processors: int) -> list[Machine]:
    """Machines from ``"16GiB"``, ``"2x16GiB"``, or with processors ``"2x16GiB:8"``.

    Parameters
    ----------
    text : str
    processors : int
        Of a machine, where the text does not say.

    Returns
    -------
    machines : list of Machine

    Raises
    ------
    InvalidArgumentError
        The text is none of these, or there are more than 1,000.
    """
    found = re.fullmatch(r"(?:([0-9]{1,4})x)?([^:x]+)(?::([0-9]{1,4}))?", text, re.ASCII)
    count = int(found[1] or 1) if found else 0
    each = int(found[3] or processors) if found else 0
    if found is None or not 0 < count <= _MOST_MACHINES or not each:
        accepted = f"COUNTxSIZE or COUNTxSIZE:PROCESSORS, such as 2x16GiB:8, up to {_MOST_MACHINES}"
        raise InvalidArgumentError(explain("machine", accepted=accepted, got=brief(text)))
    return [Machine(nbytes=parse_nbytes(found[2]), processors=each)] * count


def plan(
    demands: Sequence[Demand], machines: Sequence[Machine], *, utilisation: float = 0.7, deadline_s: float = 60.0
) -> FleetPlan:
    """Place as many replicas as the rates need, on as few machines as will do.

    Parameters
    ----------
    demands : sequence of Demand
        With names that differ.
    machines : sequence of Machine
    utilisation : float, default=0.7
        Share of the time that a replica is busy at most.
    deadline_s : float, default=60.0
        Time for the solver. Unit: seconds.

    Returns
    -------
    plan : FleetPlan
        Within memory and processors of each machine, in exact arithmetic; of all such plans one with the fewest
        machines, and with the fewest bytes of shared weights among these.

    Raises
    ------
    InvalidArgumentError
        No demand or machine, a name twice, a share out of range, or a replica has more threads than any machine
        processors.
    OutOfMemoryError
        A model fits no machine, or the machines are too few; the message says what would do.

    Notes
    -----
    Replicas of one machine compete for nothing but its memory. Threads: safe. Cost: milliseconds for a few machines;
    the problem is NP-hard. Source: bin packing in two dimensions with a fixed charge for shared weights, as a
    mixed-integer program for HiGHS (Huangfu, Hall: Parallelizing the dual revised simplex method, 2018).

    Examples
    --------
    >>> service = Service(times=ServiceTimes({1: 0.010}))    # doctest: +SKIP
    >>> demand = Demand(name="a", rate_per_s=200, service=service, nbytes=300 << 20)    # doctest: +SKIP
    >>> plan([demand], parse_machines("2x1GiB:2", 1)).replicas    # doctest: +SKIP
    [{'a': 2}, {'a': 1}]
    """
    _check(demands, machines, utilisation)
    check_seconds("deadline_s", deadline_s, can_be_zero=False)
    counts = [demand.replicas(utilisation) for demand in demands]
    for demand in demands:
        _check_fits(demand, machines)
    found, is_proven = _solve(demands, counts, machines, deadline_s)
    if found is None:
        found, is_optimal = _first_fit(demands, counts, machines), False
    else:
        is_optimal = is_proven
    if found is None:
        raise _too_few(demands, counts, machines, is_proven)
    return FleetPlan(
        [{demand.name: count for demand, count in zip(demands, row, strict=True) if count} for row in found],
        [_used_nbytes(demands, row) for row in found],
        [_used_processors(demands, row) for row in found],
        is_optimal,
    )


def _solve(
    demands: Sequence[Demand], counts: Sequence[int], machines: Sequence[Machine], deadline_s: float
) -> tuple[Counts | None, bool]:
    """The best placement that was found, or None, and whether it is proven that there is no better one.

    Unknowns: for each machine and demand how many replicas, and whether there is one; for each machine whether it is
    used.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import coo_array

    ndemands, nmachines = len(demands), len(machines)
    npairs = nmachines * ndemands
    pair = np.arange(npairs).reshape(nmachines, ndemands)
    rows: list[tuple[list[int], list[float], float, float]] = []  # unknowns, factors, least, most
    for d, count in enumerate(counts):
        rows.append((pair[:, d].tolist(), [1.0] * nmachines, count, count))
    for m, machine in enumerate(machines):
        used = 2 * npairs + m
        size = max(machine.nbytes, 1)
        nbytes = [*(d.nbytes / size for d in demands), *(d.shared_nbytes / size for d in demands), -1.0]
        rows.append(([*pair[m], *(npairs + pair[m]), used], nbytes, -np.inf, 0))
        processors = [*(float(d.processors) for d in demands), -float(machine.processors)]
        rows.append(([*pair[m], used], processors, -np.inf, 0))
        if m and machine == machines[m - 1]:
            rows.append(([used - 1, used], [1.0, -1.0], 0, np.inf))  # of equal ones the first is used first
    for m, d in product(range(nmachines), range(ndemands)):
        rows.append(([pair[m, d], npairs + pair[m, d]], [1.0, -float(counts[d])], -np.inf, 0))
    ends = [k for k, (unknowns, *_) in enumerate(rows) for _ in unknowns]
    factors = np.concatenate([row[1] for row in rows]), (ends, np.concatenate([row[0] for row in rows]))
    matrix = coo_array(factors, shape=(len(rows), 2 * npairs + nmachines)).tocsr()
    shared = np.array([demand.shared_nbytes for demand in demands] * nmachines, np.float64)
    costs = np.concatenate([np.zeros(npairs), shared / (shared.sum() + 1), np.ones(nmachines)])
    most = np.concatenate([np.tile(counts, nmachines), np.ones(npairs + nmachines)])
    found = milp(
        costs,
        integrality=np.ones(len(costs)),
        bounds=Bounds(0, most),
        constraints=LinearConstraint(matrix, [row[2] for row in rows], [row[3] for row in rows]),
        options={"time_limit": deadline_s, "mip_rel_gap": 0.0},
    )
    is_proven = found.status in (_OPTIMAL, _INFEASIBLE)
    if found.x is None:
        return None, is_proven
    placed: Counts = np.rint(found.x[:npairs]).astype(int).reshape(nmachines, ndemands).tolist()
    # it computes in floating point, and may pass a limit by a millionth
    return (placed, is_proven) if _is_within(demands, machines, placed) else (None, False)


def _first_fit(demands: Sequence[Demand], counts: Sequence[int], machines: Sequence[Machine]) -> Counts | None:
    """Each replica, the largest first, onto the first machine that has room; None where one does not fit."""
    placed = [[0] * len(demands) for _ in machines]
    for d in sorted(range(len(demands)), key=lambda d: -demands[d].nbytes):
        missing = counts[d]
        for row, machine in zip(placed, machines, strict=True):
            while missing and _has_room(demands, row, d, machine):
                row[d] += 1
                missing -= 1
        if missing:
            return None
    return placed


def _has_room(demands: Sequence[Demand], row: Sequence[int], d: int, machine: Machine) -> bool:
    """Whether a machine with these replicas has room for one more of a demand."""
    more = [count + (k == d) for k, count in enumerate(row)]
    return _is_within(demands, [machine], [more])


def _used_nbytes(demands: Sequence[Demand], row: Sequence[int]) -> int:
    return sum(
        count * demand.nbytes + bool(count) * demand.shared_nbytes for demand, count in zip(demands, row, strict=True)
    )


def _used_processors(demands: Sequence[Demand], row: Sequence[int]) -> int:
    return sum(count * demand.processors for demand, count in zip(demands, row, strict=True))


def _is_within(demands: Sequence[Demand], machines: Sequence[Machine], placed: Counts) -> bool:
    return all(
        _used_nbytes(demands, row) <= machine.nbytes and _used_processors(demands, row) <= machine.processors
        for row, machine in zip(placed, machines, strict=True)
    )


def _check(demands: Sequence[Demand], machines: Sequence[Machine], utilisation: float) -> None:
    check_kinds("demands", demands, Demand)
    check_kinds("machines", machines, Machine)
    check_share("utilisation", utilisation)
    names = [demand.name for demand in demands]
    if len(set(names)) != len(names):
        raise InvalidArgumentError(explain("demands", accepted="names that differ", got=names))


def _check_fits(demand: Demand, machines: Sequence[Machine]) -> None:
    """Raise for a replica that no machine has room for."""
    need = demand.nbytes + demand.shared_nbytes
    most = max(machine.nbytes for machine in machines)
    if need > most:
        message = explain(
            f"{demand.name}: a replica takes {need} bytes, and fits no machine",
            accepted=f"up to {most} bytes",
            hint=f"a machine of {need} bytes would do; so may smaller declared shapes, fewer workers or --max-pending",
        )
        raise OutOfMemoryError(
            message, requested=need, in_use=0, limit=most, resource="machine", smallest_limit=need, name=demand.name
        )
    roomy = [machine for machine in machines if machine.nbytes >= need]
    if demand.processors > max(machine.processors for machine in roomy):
        accepted = f"up to {max(machine.processors for machine in roomy)}, as such machines have"
        message = explain(f"{demand.name}: processors of a replica", accepted=accepted, got=demand.processors)
        raise InvalidArgumentError(message, name=demand.name)


def _too_few(
    demands: Sequence[Demand], counts: Sequence[int], machines: Sequence[Machine], is_proven: bool
) -> OutOfMemoryError:
    """What would hold all replicas: so many more machines, of the largest kind that each of them fits."""
    wanted = ", ".join(f"{count} of {demand.name}" for demand, count in zip(demands, counts, strict=True))
    need = sum(count * demand.nbytes + demand.shared_nbytes for demand, count in zip(demands, counts, strict=True))
    limit = sum(machine.nbytes for machine in machines)
    processors = sum(count * demand.processors for demand, count in zip(demands, counts, strict=True))
    none = [0] * len(demands)
    kinds = [m for m in set(machines) if all(_has_room(demands, none, d, m) for d in range(len(demands)))]
    hint = None
    if kinds and sum(counts) <= _MOST_MACHINES:
        kind = max(kinds, key=lambda machine: (machine.nbytes, machine.processors))
        more = bisect_left(
            range(1, sum(counts)), True, key=lambda k: _first_fit(demands, counts, [*machines, *[kind] * k]) is not None
        )
        hint = f"{more + 1} more of {kind.nbytes} bytes and {kind.processors} processors would do"
    room = "have no room" if is_proven else "were not shown to have room in the time that was given"
    message = explain(
        f"{len(machines)} machines {room} for the replicas that the rates need: {wanted}",
        accepted=f"{limit} bytes and {sum(machine.processors for machine in machines)} processors in all",
        got=f"{need} bytes and {processors} processors at least",
        hint=hint,
    )
    return OutOfMemoryError(message, requested=need, in_use=0, limit=limit, resource="machines", smallest_limit=None)
