"""The simulator against closed forms of queueing theory, and against the queue of the service itself.

Random numbers have fixed starts. A mean is compared within five standard errors, taken from means of independent
replications; a right simulator fails that one time in a million, had the start not been fixed.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

import graphpool as gp
from graphpool import demo
from graphpool.fleet import Service, ServiceTimes, measure_times, poisson_arrivals, simulate

COUNT, REPLICATIONS = 5000, 20
EXPONENTIAL = -np.log1p(-(np.arange(20_000) + 0.5) / 20_000)
"""Quantiles of the exponential distribution of mean 1: times drawn among them are as good as exponential."""
FOR_EVER = {"deadline_s": 1e9, "max_requests": 10**9}


def replicate(service, rate, *looks):
    """Means of each `look(answers, kept)` over runs with other random numbers, after a start that is left out."""
    found = []
    for seed in range(REPLICATIONS):
        arrivals = poisson_arrivals(rate, COUNT, seed=2 * seed)
        answers = simulate(service, arrivals, seed=2 * seed + 1)
        found.append([look(answers, slice(COUNT // 10, None)) for look in looks])
    return np.array(found).T


def assert_mean(found, expected):
    error = found.std(ddof=1) / math.sqrt(len(found))
    assert error < 0.1 * expected, "too few requests to tell"
    assert abs(found.mean() - expected) < 5 * error


def mean_wait(answers, kept):
    return np.nanmean(answers.wait_s[kept])


def share(status):
    return lambda answers, kept: (answers.status[kept] == status).mean()


def states(rate, workers, places):
    """Probabilities of how many are in a system M/M/c/K with mean service 1."""
    weights = [1.0]
    for k in range(1, places + 1):
        weights.append(weights[-1] * rate / min(k, workers))
    return np.array(weights) / sum(weights)


def test_one_worker_with_exponential_times():
    load = 0.7
    service = Service(times=ServiceTimes({1: EXPONENTIAL}), **FOR_EVER)
    waits, medians = replicate(service, load, mean_wait, lambda answers, kept: np.median(answers.latency_s[kept]))
    assert_mean(waits, load / (1 - load))
    assert_mean(medians, math.log(2) / (1 - load))  # the time in an M/M/1 queue is exponential


def test_one_worker_with_a_fixed_time():
    load = 0.7
    service = Service(times=ServiceTimes({1: 1.0}), **FOR_EVER)
    [waits] = replicate(service, load, mean_wait)
    assert_mean(waits, load / (2 * (1 - load)))


@pytest.mark.parametrize(("rate", "workers", "places"), [(1.5, 2, 2), (2.0, 3, 8)])
def test_workers_and_places(rate, workers, places):
    """Erlang's loss formula where there are no more places than workers."""
    service = Service(times=ServiceTimes({1: EXPONENTIAL}), workers=workers, max_requests=places, deadline_s=1e9)
    chances = states(rate, workers, places)
    refused, waits = replicate(service, rate, share(503), mean_wait)
    assert_mean(refused, chances[-1])
    waiting = sum(max(k - workers, 0) * chance for k, chance in enumerate(chances))
    if waiting:
        assert_mean(waits, waiting / (rate * (1 - chances[-1])))


def test_what_would_be_late_is_refused():
    """Who would wait for longer than a patience is turned away: below it the work in the queue M/D/1 is distributed as
    without an end, but for a factor (level crossings; Erlang's formula)."""
    load, patience = 1.5, 3.0
    service = Service(times=ServiceTimes({1: 1.0}), deadline_s=patience + 1, max_requests=10**9)
    weight = sum((load * (k - patience)) ** k / math.factorial(k) * math.exp(-load * (k - patience)) for k in range(4))
    refused, late = replicate(service, load, share(503), share(504))
    assert_mean(refused, 1 - weight / (1 + load * weight))
    assert (late < 0.01).all()  # of what comes during the first run after a long rest


def test_joined_requests():
    """Bailey's queue in bulk: a run takes all that wait, up to four, in a time that does not depend on how many."""
    rate, most = 2.0, 4
    service = Service(times=ServiceTimes({1: EXPONENTIAL, most: EXPONENTIAL}), most_rows=most, **FOR_EVER)
    roots = np.roots([1.0, *[0.0] * (most - 1), -(rate + 1), rate])
    [root] = [root.real for root in roots if abs(root.imag) < 1e-12 and 0 < root.real < 1 - 1e-9]
    none_waits = 1 / (1 / rate + 1 / (1 - root))
    waiting = none_waits * root / (1 - root) ** 2
    [waits] = replicate(service, rate, mean_wait)
    assert_mean(waits, waiting / rate)


def test_overhead_is_a_queue_before_and_behind_the_run():
    """Half a second to read and half a second to write, one request at a time, as they come."""
    service = Service(times=ServiceTimes({1: 0.01}), workers=50, overhead_s=1.0, **FOR_EVER)
    answers = simulate(service, [0.0, 0.1, 0.9])
    # read until 0.5, 1.0, 2.0; written from 0.51, when the second one is being read already: until 1.5, 2.5, 3.0
    assert answers.latency_s.tolist() == pytest.approx([1.5, 2.4, 2.1])
    assert service.capacity_per_s == 1.0
    late = simulate(service, poisson_arrivals(2.0, 2000)).latency_s  # twice what it can do: half of the time is waiting
    assert late[-1] == pytest.approx(1000, rel=0.1)


WRONG = {
    "workers": 0, "most_rows": 1.5, "max_requests": True, "join_delay_s": -1.0, "deadline_s": 0.0, "overhead_s": [],
    "times": 3,
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_no_service_has_is_refused(name):
    with pytest.raises(gp.InvalidArgumentError, match=f"{name}.*got"):
        Service(**{"times": ServiceTimes({1: 0.01}), name: WRONG[name]})


@pytest.mark.parametrize(("rate", "count"), [(0.0, 3), (float("nan"), 3), (True, 3), (1.0, -1), (1.0, True)])
def test_rates_and_counts_of_arrivals_are_checked(rate, count):
    with pytest.raises(gp.InvalidArgumentError, match=r"rate|count"):
        poisson_arrivals(rate, count)


def test_requests_wait_beside_one_another_for_what_is_above_the_least_overhead():
    """All are read and written in a second; one in four waits for two more."""
    overheads = [3.0, 1.0, 1.0, 1.0]
    service = Service(times=ServiceTimes({1: 0.01}), workers=50, overhead_s=overheads, **FOR_EVER)
    assert service.capacity_per_s == 1.0
    lone = simulate(service, np.arange(4000) * 10.0).latency_s - 1.01
    assert np.unique(lone.round(6)).tolist() == [0.0, 1.0, 2.0]  # for neither message, one of them, or both
    assert lone.mean() == pytest.approx(np.mean(overheads) - 1, rel=0.1)
    arrivals = poisson_arrivals(0.9, 4000)
    busy = simulate(service, arrivals).latency_s
    assert np.diff(arrivals + busy).min() >= 0  # none overtakes another
    alike = simulate(Service(times=service.times, workers=50, overhead_s=1.0, **FOR_EVER), arrivals)
    assert busy.mean() - alike.latency_s.mean() < 1.0  # beside: in one queue of such requests it would not end


def test_the_replica_with_the_fewest_requests_is_next_and_of_equal_ones_that_used_the_longest_ago():
    service = Service(times=ServiceTimes({1: 1.0}), **FOR_EVER)
    answers = simulate(service, [0.0, 0.1, 0.2, 1.05, 1.1], replicas=3)
    assert answers.latency_s.tolist() == pytest.approx([1.0] * 5)
    answers = simulate(service, [0.0, 0.1, 1.05, 1.06], replicas=2)
    assert answers.latency_s.tolist() == pytest.approx([1.0, 1.0, 1.0, 1.04])


def test_places_deadlines_and_delays_by_hand():
    times = ServiceTimes({1: 1.0, 3: 2.0})
    service = Service(times=times, most_rows=3, max_requests=4, deadline_s=2.5)
    # the first runs alone, the next two as one and too long for one of them, the fourth is late before it would run,
    # the fifth finds no place
    answers = simulate(service, [0.0, 0.25, 0.5, 0.5, 0.75], [1, 1, 2, 1, 1])
    assert answers.run_rows.tolist() == [1, 3]
    assert answers.status.tolist() == [200, 504, 200, 504, 503]
    assert answers.latency_s.tolist() == [1.0, 2.5, 2.5, 2.5, 0.0]
    assert answers.wait_s.tolist() == pytest.approx([0.0, 0.75, 0.5, math.nan, math.nan], nan_ok=True)
    delayed = simulate(Service(times=times, most_rows=3, join_delay_s=0.5), [0.0, 0.3, 2.0, 2.1, 2.2])
    assert delayed.run_rows.tolist() == [2, 3]
    assert delayed.wait_s.tolist() == pytest.approx([0.5, 0.2, 0.2, 0.1, 0.0])


def test_times_between_and_beyond_what_was_measured():
    times = ServiceTimes({2: [0.2, 0.4], 4: [0.6, 0.8], 8: 1.0})
    assert [times.mean_s(rows) for rows in (1, 2, 3, 4, 6, 16)] == pytest.approx([0.3, 0.3, 0.5, 0.7, 0.85, 2.0])
    assert times.draw_s(3, 0.0) == pytest.approx(0.4)
    assert times.draw_s(3, 0.99) == pytest.approx(0.6)
    service = Service(times=times, workers=2, most_rows=4)
    assert service.capacity_per_s == pytest.approx(2 * 4 / 0.7)


@pytest.mark.parametrize("seconds", [{}, {0: 1.0}, {1: 0.0}, {1: []}, {1: "x"}, {1: float("nan")}, {True: 1.0}, 3])
def test_times_that_are_none(seconds):
    with pytest.raises(gp.InvalidArgumentError, match="service times; accepted"):
        ServiceTimes(seconds)


@pytest.mark.parametrize(
    ("ask", "name"),
    [
        (lambda times: times.mean_s(0), "rows"),
        (lambda times: times.draw_s(1, 1.0), "quantile"),
        (lambda times: simulate(times, [0.0]), "service"),
        (lambda times: simulate(Service(times=times), [0.0], seed=-1), "seed"),
        (lambda times: simulate(Service(times=times), [0.0]).quantile_ms(2), "share"),
        (lambda times: measure_times(times), "model"),
    ],
)
def test_arguments_are_named_as_they_are_given(ask, name):
    with pytest.raises(gp.InvalidArgumentError, match=f"{name}; accepted"):
        ask(ServiceTimes({1: 0.1}))


@pytest.mark.parametrize(
    ("name", "value"), [("most_rows", 0), ("workers", 0), ("seconds", float("nan")), ("join", "rows")]
)
def test_what_cannot_be_measured_is_refused(name, value):
    pytest.importorskip("onnx")
    with (
        gp.onnx.load(demo.model_path("digits_cnn"), threads=1, shapes={"batch": (1, 2)}) as model,
        pytest.raises(gp.InvalidArgumentError, match=f"{name}; accepted"),
    ):
        measure_times(model, **{"join": "batch", "seconds": 0.0, name: value})


@pytest.mark.parametrize(
    ("arrivals", "rows", "replicas", "words"),
    [
        ([1.0, 0.5], None, 1, "ascending"),
        ([float("inf")], None, 1, "ascending"),
        ([0.0], [0], 1, "rows; accepted"),
        ([0.0], [1, 1], 1, "rows; accepted"),
        ([0.0], None, 0, "replicas"),
        ([0.0], None, True, "replicas"),
        ("soon", None, 1, "arrivals_s"),
    ],
)
def test_requests_that_are_none(arrivals, rows, replicas, words):
    with pytest.raises(gp.InvalidArgumentError, match=words):
        simulate(Service(times=ServiceTimes({1: 1.0})), arrivals, rows, replicas=replicas)


def test_no_request_has_no_quantile():
    answers = simulate(Service(times=ServiceTimes({1: 1.0})), [])
    assert math.isnan(answers.quantile_ms(0.5))
    assert answers.count(200) == 0


def test_runs_of_a_replica_slow_one_another():
    """Two at once take 10 ms, one by itself 6: the second begins behind 3 ms, when the first has half left."""
    service = Service(times=ServiceTimes({1: 0.010}, alone_share=0.6), workers=2)
    answers = simulate(service, [0.0, 0.003])
    np.testing.assert_allclose(answers.latency_s, [0.003 + 0.005, 0.005 + 0.6 * 0.005], rtol=1e-9)
    alone = simulate(service, [0.0, 1.0])
    np.testing.assert_allclose(alone.latency_s, [0.006, 0.006], rtol=1e-9)


def test_what_is_read_while_runs_go_on_takes_longer():
    """A run takes 10 ms beside another one and 5 alone; so does what is read: 2 ms alone, 4 beside a run."""
    service = Service(times=ServiceTimes({1: 0.010}, alone_share=0.5), workers=2, overhead_s=0.004)
    answers = simulate(service, [0.0, 0.002])  # read until 2 and 6 ms; runs until 7.5 and 11; written until 11.5 and 15
    assert answers.wait_s.tolist() == pytest.approx([0.002, 0.004])


def test_what_is_read_while_all_workers_run_shares_their_processors():
    service = Service(times=ServiceTimes({1: 0.010}), workers=2, overhead_s=0.004)
    answers = simulate(service, [0.0, 0.002, 0.0115])  # runs until 12 and 14 ms, so the third is read until 14.5
    assert answers.wait_s.tolist() == pytest.approx([0.002, 0.002, 0.003])


def test_what_is_read_while_all_workers_run_is_slowed_as_they_are():
    """Two runs share one processor: a third part of it is left for what is read beside them, not less."""
    service = Service(times=ServiceTimes({1: 0.010}, alone_share=0.5), workers=2, overhead_s=0.004)
    answers = simulate(service, [0.0, 0.002, 0.0065])  # both run from 6 to 8 ms; the third is read until 12.5
    assert answers.wait_s.tolist() == pytest.approx([0.002, 0.004, 0.006])


def test_answers_of_one_run_are_written_one_after_another():
    service = Service(times=ServiceTimes({1: 0.010, 2: 0.010}), most_rows=2, join_delay_s=0.1, overhead_s=0.004)
    answers = simulate(service, [0.0, 0.0])  # read until 2 and 4 ms, run until 14, written until 16 and 18
    np.testing.assert_allclose(answers.latency_s, [0.016, 0.018], rtol=1e-9)


@pytest.mark.parametrize("share", [0.0, 1.5, "half", float("nan")])
def test_shares_of_time_are_checked(share):
    with pytest.raises(gp.InvalidArgumentError, match="alone_share"):
        ServiceTimes({1: 0.1}, alone_share=share)


def test_spells_slow_runs_and_come_again_and_again():
    """Ten seconds in which a run takes one, and ten in which it takes three."""
    times = ServiceTimes({1: 1.0}, spells=[(10.0, 1.0), (10.0, 3.0)])
    assert times.mean_s(1) == pytest.approx(1.5)  # of 20 seconds 10 + 10 / 3 are worth something
    service = Service(times=times, **FOR_EVER)
    answers = simulate(service, [0.0, 9.5, 15.0, 20.0, 29.5])
    np.testing.assert_allclose(answers.latency_s, [1.0, 0.5 + 1.5, 3.0, 1.0, 0.5 + 1.5], rtol=1e-9)
    # the machine of the second replica has the other half of the course when the first one begins
    both = simulate(service, [0.0, 0.0, 9.0, 9.0], replicas=2)
    np.testing.assert_allclose(both.latency_s, [1.0, 3.0, 1.0, 1.0 + 2.0 / 3], rtol=1e-9)
    parsed = simulate(Service(times=times, overhead_s=1.0, **FOR_EVER), [9.0])  # half before the run, half behind it
    np.testing.assert_allclose(parsed.latency_s, [0.5 + 0.5 + 1.5 + 1.5], rtol=1e-9)


def test_runs_that_were_noted_tell_spells_from_rows():
    """Large runs that are only there in slow spells, because requests pile up then, are not slow themselves."""
    rng = np.random.default_rng(0)
    starts = np.sort(rng.uniform(0, 40, 8000))
    is_slow = starts % 10 > 7
    rows = np.where(is_slow | (rng.random(8000) < 0.02), 4, 1)
    seconds = 0.001 * rows * np.where(is_slow, 2.5, 1.0) * rng.lognormal(0, 0.03, 8000)
    times = ServiceTimes.of_runs(starts + 1000, rows, seconds)
    assert [times.draw_s(n, 0.5) for n in (1, 4)] == pytest.approx([0.001, 0.004], rel=0.05)
    middles = np.cumsum([lasting_s for lasting_s, _ in times.spells]) - 0.0125
    inside = np.abs(middles % 10 - np.where(middles % 10 > 5, 7, 0)) > 0.3  # not across the border of a spell
    expected = np.where(middles % 10 > 7, 2.5, 1.0)
    found = np.array([slow for _, slow in times.spells])
    np.testing.assert_allclose(found[inside], expected[inside], rtol=0.1)


def test_spells_last_until_the_next_run():
    """However long that is: a clock that was set takes no memory."""
    times = ServiceTimes.of_runs([0.0, 0.01, 1e12], [1, 1, 1], [0.01, 0.01, 0.04])
    assert len(times.spells) == 2
    assert sum(lasting_s for lasting_s, _ in times.spells) == pytest.approx(1e12 + 0.04)
    assert times.spells[1][1] / times.spells[0][1] == pytest.approx(4)


@pytest.mark.parametrize(
    "runs",
    [
        ([], [], []),
        ([0.0], [1], [0.0]),
        ([0.0], [1.5], [1.0]),
        ([0.0, 1.0], [1], [1.0]),
        (["x"], [1], [1.0]),
        (0, 1, 1),
    ],
)
def test_runs_that_are_none(runs):
    with pytest.raises(gp.InvalidArgumentError, match="runs; accepted"):
        ServiceTimes.of_runs(*runs)


@pytest.mark.parametrize("spells", [[(1.0, 0.0)], [(0.0, 1.0)], [(1.0,)], [(float("inf"), 1.0)], "slow", 3])
def test_spells_are_checked(spells):
    with pytest.raises(gp.InvalidArgumentError, match="spells; accepted"):
        ServiceTimes({1: 0.1}, spells=spells)
