"""Plans of fleets against all plans there are."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import graphpool as gp
from graphpool.fleet import Demand, Machine, Service, ServiceTimes, parse_machines, plan

SERVICE = Service(times=ServiceTimes({1: 1.0}))


def demand(name, count, nbytes, shared_nbytes=0, processors=1):
    """One that needs so many replicas."""
    return Demand(
        name=name, rate_per_s=count * 0.7 - 0.1, service=SERVICE, nbytes=nbytes, shared_nbytes=shared_nbytes,
        processors=processors,
    )  # fmt: skip


def spreads(count, places):
    """All ways to put so many equal things into places."""
    for bars in itertools.combinations(range(count + places - 1), places - 1):
        ends = [-1, *bars, count + places - 1]
        yield tuple(b - a - 1 for a, b in itertools.pairwise(ends))


def used(demands, counts):
    """Bytes and processors of one machine."""
    nbytes = sum(n * d.nbytes + (n > 0) * d.shared_nbytes for d, n in zip(demands, counts, strict=True))
    return nbytes, sum(n * d.processors for d, n in zip(demands, counts, strict=True))


def best_by_trying(demands, machines):
    """The fewest machines, and then the fewest bytes, of all placements; None if none fits."""
    best = None
    for spread in itertools.product(*(spreads(d.replicas(0.7), len(machines)) for d in demands)):
        rows = list(zip(*spread, strict=True))
        sizes = [used(demands, row) for row in rows]
        if all(n <= m.nbytes and p <= m.processors for (n, p), m in zip(sizes, machines, strict=True)):
            found = sum(any(row) for row in rows), sum(nbytes for nbytes, _ in sizes)
            best = found if best is None else min(best, found)
    return best


def test_plans_are_the_best_of_all():
    rng = np.random.default_rng(5)
    outcomes = set()
    for _ in range(60):
        demands = [
            demand(
                name, int(rng.integers(1, 4)), int(rng.integers(1, 9)), int(rng.integers(0, 6)), int(rng.integers(1, 4))
            )
            for name in "abc"[: rng.integers(1, 4)]
        ]
        kinds = [Machine(nbytes=int(rng.integers(12, 24)), processors=int(rng.integers(3, 9))) for _ in range(2)]
        machines = [kinds[k] for k in sorted(rng.integers(0, 2, 3))]
        expected = best_by_trying(demands, machines)
        outcomes.add(expected and expected[0])
        if expected is None:
            with pytest.raises(gp.OutOfMemoryError):
                plan(demands, machines)
            continue
        found = plan(demands, machines)
        assert [found.count(d.name) for d in demands] == [d.replicas(0.7) for d in demands]
        rows = [[row.get(d.name, 0) for d in demands] for row in found.replicas]
        assert [*zip(found.used_nbytes, found.used_processors, strict=True)] == [used(demands, row) for row in rows]
        for row, machine in zip(rows, machines, strict=True):
            assert all(a <= b for a, b in zip(used(demands, row), (machine.nbytes, machine.processors), strict=True))
        assert (sum(any(row) for row in rows), sum(found.used_nbytes)) == expected
        assert found.is_optimal
    assert outcomes == {None, 1, 2, 3}


def test_limits_hold_to_the_byte():
    """A solver in floating point takes one byte of sixteen gigabytes for nothing."""
    half = 8 << 30
    assert plan([demand("a", 2, half)], parse_machines("16GiB", 8)).used_nbytes == [2 * half]
    with pytest.raises(gp.OutOfMemoryError, match="1 more of 17179869184 bytes and 8 processors would do"):
        plan([demand("a", 2, half + 1)], parse_machines("16GiB", 8))
    assert plan([demand("a", 2, half + 1)], parse_machines("2x16GiB", 8)).used_nbytes == [half + 1] * 2
    found = plan([demand("a", 2, half), demand("b", 1, 1)], parse_machines("2x16GiB", 8))
    assert sorted(found.used_nbytes) in ([1, 2 * half], [half, half + 1])


def test_replicas_follow_from_rates():
    service = Service(times=ServiceTimes({1: 0.010, 8: 0.020}), workers=2, most_rows=8, overhead_s=0.001)
    assert service.capacity_per_s == pytest.approx(800)
    asked = Demand(name="a", rate_per_s=1000, service=service, nbytes=1)
    assert [asked.replicas(share) for share in (1.0, 0.7, 0.5)] == [2, 2, 3]


def test_machines_as_texts():
    assert parse_machines("2x16GiB:8", 4) == [Machine(nbytes=16 << 30, processors=8)] * 2
    assert parse_machines("512MiB", 4) == [Machine(nbytes=512 << 20, processors=4)]
    for text in ("", "0x1GiB", "2x", "1GiB:0", "1GiB:x", "99999x1GiB", "x1GiB", "-1GiB", "1x1x1GiB"):
        with pytest.raises(gp.InvalidArgumentError):
            parse_machines(text, 4)


def test_a_model_that_fits_no_machine_is_named():
    with pytest.raises(gp.OutOfMemoryError, match=r"big: a replica takes 30 bytes.*a machine of 30 bytes") as caught:
        plan([demand("small", 1, 1), demand("big", 1, 20, 10)], [Machine(nbytes=29, processors=1)])
    assert (caught.value.requested, caught.value.limit, caught.value.smallest_limit) == (30, 29, 30)
    with pytest.raises(gp.InvalidArgumentError, match=r"wide: processors of a replica; accepted: up to 2.*got: 3"):
        plan([demand("wide", 1, 5, processors=3)], [Machine(nbytes=9, processors=2), Machine(nbytes=1, processors=4)])


@pytest.mark.parametrize("seed", range(10))
def test_so_many_more_machines_would_do(seed):
    rng = np.random.default_rng(seed)
    demands = [demand(name, int(rng.integers(3, 9)), int(rng.integers(2, 9))) for name in "ab"]
    machine = Machine(nbytes=int(rng.integers(9, 14)), processors=4)
    with pytest.raises(gp.OutOfMemoryError, match=r"1 machines have no room.*more of") as caught:
        plan(demands, [machine])
    more = int(str(caught.value).split("at least; ")[1].split()[0])
    assert plan(demands, [machine] * (1 + more))


@pytest.mark.parametrize(
    ("demands", "machines", "utilisation", "words"),
    [
        ([], 1, 0.7, "demands"),
        ([demand("a", 1, 1)] * 2, 1, 0.7, "names that differ"),
        ([demand("a", 1, 1)], 0, 0.7, "machines"),
        ([demand("a", 1, 1)], 1, 0.0, "utilisation"),
        ([demand("a", 1, 1)], 1, "x", "utilisation"),
        ([3], 1, 0.7, "demands"),
        (demand("a", 1, 1), 1, 0.7, "demands"),
    ],
)
def test_arguments_that_are_refused(demands, machines, utilisation, words):
    with pytest.raises(gp.InvalidArgumentError, match=words):
        plan(demands, [Machine(nbytes=9, processors=9)] * machines, utilisation=utilisation)


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (Machine, "nbytes", -1),
        (Machine, "nbytes", "9GiB"),
        (Machine, "processors", 0),
        (Machine, "processors", True),
        (Demand, "name", 3),
        (Demand, "rate_per_s", 0.0),
        (Demand, "rate_per_s", float("inf")),
        (Demand, "service", 3),
        (Demand, "nbytes", 1.5),
        (Demand, "shared_nbytes", None),
        (Demand, "processors", 0),
    ],
)
def test_what_no_machine_or_demand_has_is_refused(kind, name, value):
    right = {"nbytes": 9, "processors": 9}
    if kind is Demand:
        right |= {"name": "a", "rate_per_s": 1.0, "service": SERVICE}
    with pytest.raises(gp.InvalidArgumentError, match=f"{name}; accepted"):
        kind(**right | {name: value})
