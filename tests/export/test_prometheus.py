"""What Prometheus scrapes is what engines, models and caches say of themselves."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import graphpool as gp
from graphpool import demo
from graphpool.cache import compiled_partition_cache, constant_tensor_cache, primitive_cache
from graphpool.export.figures import FIGURES
from graphpool.export.prometheus import Collector

prometheus_client = pytest.importorskip("prometheus_client")
parser = pytest.importorskip("prometheus_client.parser")
pytest.importorskip("onnx")

CNN = demo.model_path("digits_cnn")


def image(batch: int) -> dict[str, np.ndarray]:
    return {"image": np.zeros((batch, 1, 8, 8), np.float32)}


def scrape(collector: Collector) -> dict[str, dict[tuple[str, ...], float]]:
    """Samples by metric and values of labels, as they come out of the text that is served."""
    registry = prometheus_client.CollectorRegistry()
    registry.register(collector)
    text = prometheus_client.generate_latest(registry).decode()
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in parser.text_string_to_metric_families(text):
        for name, labels, value, *_ in family.samples:
            found.setdefault(name, {})[tuple(labels.values())] = value
    return found


def test_budget_and_models_are_told_as_they_are() -> None:
    with gp.Engine(threads=1, memory_limit="4MiB") as engine, gp.onnx.load(CNN, engine=engine) as model:
        result = model.run(image(8))
        found = scrape(Collector({"first": engine}))
        in_use = found["graphpool_budget_in_use_bytes"]
        assert in_use == {("first", holder): nbytes for holder, nbytes in engine.budget.holdings().items()}
        assert sum(in_use.values()) == engine.budget.in_use > 0
        assert found["graphpool_budget_limit_bytes"] == {("first",): 4 * 2**20}
        assert found["graphpool_budget_peak_bytes"] == {("first",): engine.budget.peak}
        assert found["graphpool_arenas_leased_bytes"] == {("first",): 0}
        assert found["graphpool_allocations_total"] == {("first",): engine.stats().total_count}
        assert found["graphpool_allocated_bytes_total"] == {("first",): engine.stats().total_nbytes}
        [usage] = engine.models()
        parts = {part: nbytes for (_, name, part), nbytes in found["graphpool_model_bytes"].items()}
        assert {f"{part}_nbytes": getattr(usage, f"{part}_nbytes") for part in parts} == {
            f"{part}_nbytes": nbytes for part, nbytes in parts.items()
        }
        assert sum(parts.values()) == usage.nbytes > 0
        del result


def test_caches_are_told_as_they_are() -> None:
    with gp.Engine(threads=1) as engine, gp.onnx.load(CNN, engine=engine) as model:
        model.run(image(2))
        found = scrape(Collector(engine))
        caches = {
            "primitives": primitive_cache(),
            "compiled partitions": compiled_partition_cache(),
            "constants of cpu:0": constant_tensor_cache("cpu"),
        }
        for name, cache in caches.items():
            stats = cache.stats()
            for count in ("hits", "misses", "evictions", "declined"):
                assert found[f"graphpool_cache_{count}_total"][name,] == getattr(stats, count)
            assert found["graphpool_cache_entries"][name,] == stats.entries
            assert found["graphpool_cache_size_bytes"][name,] == stats.nbytes
            assert found["graphpool_cache_entries_limit"].get((name,)) == stats.capacity


def test_counts_of_models_outlive_them() -> None:
    with gp.Engine(threads=1) as engine:
        collector = Collector(engine)
        for runs in (1, 2):
            with gp.onnx.load(CNN, engine=engine) as model:
                for _ in range(runs):
                    model.run(image(2))
                assert scrape(collector)["graphpool_models"] == {("cpu:0",): 1}
                open_runs = scrape(collector)["graphpool_runs_total"]
            assert scrape(collector)["graphpool_runs_total"] == open_runs
        found = scrape(collector)
        assert found["graphpool_runs_total"] == {("cpu:0", "digits_cnn"): 3}
        assert found["graphpool_compilations_total"] == {("cpu:0", "digits_cnn"): 2}
        assert found["graphpool_models"] == {("cpu:0",): 0}
        assert "graphpool_model_bytes" not in found


def test_refusals_are_counted() -> None:
    with gp.Engine(threads=1, memory_limit="20KiB") as engine, gp.onnx.load(CNN, engine=engine) as model:
        with pytest.raises(gp.OutOfMemoryError):
            model.run(image(64))
        refusals = scrape(Collector(engine))["graphpool_budget_refusals_total"]
        assert refusals == {("cpu:0",): engine.budget.stats().refusals}


def test_waits_are_counted() -> None:
    with gp.Engine(threads=1, memory_limit=1000, on_pressure="wait", pressure_timeout_s=0.05) as engine:
        engine.budget.charge(600, holder="a user")

        def work() -> None:
            engine.budget.charge(600, holder="a job")

        with pytest.raises(gp.MemoryTimeoutError):
            engine.queue.run(work, lambda: 0)
        engine.budget.uncharge(600)
        found = scrape(Collector(engine))
        assert found["graphpool_queue_waits_total"] == found["graphpool_queue_timeouts_total"] == {("cpu:0",): 1}
        assert found["graphpool_queue_wait_seconds_total"]["cpu:0",] >= 0.05
        assert found["graphpool_queue_waiting"] == {("cpu:0",): 0}


def test_engines_come_and_go() -> None:
    collector = Collector()
    with gp.Engine(threads=1) as first, gp.Engine(threads=1) as second:
        collector.watch(first)
        collector.watch(first)
        with pytest.raises(gp.InvalidArgumentError, match="another name"):
            collector.watch(second)
        collector.watch(second, "second")
        assert set(scrape(collector)["graphpool_budget_peak_bytes"]) == {("cpu:0",), ("second",)}
    assert "graphpool_budget_peak_bytes" not in scrape(collector)
    with gp.Engine(threads=1) as third:
        collector.watch(third)
        assert set(scrape(collector)["graphpool_budget_peak_bytes"]) == {("cpu:0",)}
        assert "graphpool_budget_limit_bytes" not in scrape(collector)


@pytest.mark.parametrize("engines", [[], "cpu", {"a": "b"}, {1: None}])
def test_what_is_no_engine_is_refused(engines: object) -> None:
    with pytest.raises(gp.InvalidArgumentError, match="an Engine"):
        Collector(engines)  # type: ignore[arg-type]
    with gp.Engine(threads=1) as engine, pytest.raises(gp.InvalidArgumentError, match="name of an engine"):
        Collector({1: engine})  # type: ignore[dict-item]


def test_a_registry_takes_one_collector_without_reading_it(monkeypatch: pytest.MonkeyPatch) -> None:
    registry, collector = prometheus_client.CollectorRegistry(), Collector()
    monkeypatch.setattr(collector, "collect", lambda: pytest.fail("nothing is to be read"))
    registry.register(collector)
    with pytest.raises(ValueError, match="Duplicated"):
        registry.register(Collector())


def test_names_follow_the_conventions() -> None:
    families = list(Collector().describe())
    assert len({family.name for family in families}) == len(FIGURES)
    for family, figure in zip(families, FIGURES, strict=True):
        assert family.name.startswith("graphpool_")
        assert family.name.islower()
        assert family.name.endswith(figure.unit)
        assert family.type == ("counter" if figure.only_grows else "gauge")


def test_the_extra_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client.core", None)
    with pytest.raises(gp.UnsupportedError, match=r"graphpool\[prometheus\]"):
        Collector()


def test_nothing_else_imports_the_exporters() -> None:
    code = (
        "import sys, graphpool as gp\n"
        "from graphpool import demo\n"
        "gp.Engine(threads=1).close(); gp.onnx.load, gp.profile, gp.cache\n"
        "watched = ('graphpool.export', 'prometheus_client', 'opentelemetry')\n"
        "print([name for name in sys.modules if name.startswith(watched)])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
