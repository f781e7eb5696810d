"""What OpenTelemetry is told: spans of compilations and runs, and the figures as metrics."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

import graphpool as gp
from graphpool import demo, spans
from graphpool.export.figures import FIGURES
from graphpool.export.opentelemetry import Instrumentation
from tests.helpers.onnx_models import make_model

pytest.importorskip("opentelemetry.sdk")
pytest.importorskip("onnx")

from onnx import helper
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

IMAGE = {"image": np.zeros((4, 1, 8, 8), np.float32)}


@pytest.fixture
def model():
    with gp.onnx.load(demo.model_path("digits_cnn"), threads=1, memory_limit="4MiB") as model:
        yield model


class Service:
    """What a service sets up; keeps what it is told."""

    def __init__(self) -> None:
        self._exporter, self._reader = InMemorySpanExporter(), InMemoryMetricReader()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.meters = MeterProvider([self._reader])

    def instrument(self, *engines: Any) -> Instrumentation:
        return Instrumentation(*engines, tracer_provider=self.tracers, meter_provider=self.meters)

    def spans(self) -> list[Any]:
        """Those that have ended since the last call."""
        found = list(self._exporter.get_finished_spans())
        self._exporter.clear()
        return found

    def metrics(self) -> dict[str, tuple[str, dict[tuple[str, ...], float]]]:
        """Units and points of the instruments, by name."""
        data = self._reader.get_metrics_data()
        if data is None:
            return {}
        found = [metric for each in data.resource_metrics for scope in each.scope_metrics for metric in scope.metrics]
        return {
            metric.name: (metric.unit, {tuple(p.attributes.values()): p.value for p in metric.data.data_points})
            for metric in found
        }


@pytest.fixture
def service():
    service = Service()
    yield service
    service.tracers.shutdown()
    service.meters.shutdown()


def test_spans_of_a_run_and_its_compilation(service, model) -> None:
    with service.instrument(), service.tracers.get_tracer("user").start_as_current_span("request"):
        model.run(IMAGE)
        model.run(IMAGE)
    model.run(IMAGE)
    compiled, first, second, request = service.spans()
    assert [compiled.name, first.name, second.name] == ["compile digits_cnn", *["execute digits_cnn"] * 2]
    assert compiled.parent.span_id == first.context.span_id
    assert first.parent.span_id == second.parent.span_id == request.context.span_id
    assert first.attributes["graphpool.shapes"] == "image=4x1x8x8"
    assert first.attributes["graphpool.arena_nbytes"] == model.stats().arena_nbytes
    assert compiled.attributes["graphpool.constants_nbytes"] == model.stats().constants_nbytes
    assert first.instrumentation_scope.version == gp.__version__


def test_errors_belong_to_their_span(service, model) -> None:
    model.engine.budget.resize("20KiB")
    with service.instrument(), pytest.raises(gp.OutOfMemoryError):
        model.run(IMAGE)
    run = service.spans()[-1]
    assert run.status.status_code is StatusCode.ERROR
    assert [event.attributes["exception.type"] for event in run.events] == ["graphpool.errors.OutOfMemoryError"]


def test_runs_of_sessions_and_partitions_that_are_compiled_have_spans(service) -> None:
    nodes = [helper.make_node("Concat", ["past_x", "x"], ["present_x"], axis=0)]
    one = np.ones((1, 2), np.float32)
    proto = make_model(nodes, {"x": one, "past_x": one}, ["present_x"], shapes={"past_x": ("n", 2)})
    x, y = gp.LogicalTensor(0, "f32", (3, 5)), gp.LogicalTensor(1, "f32", (3, 5))
    gp.set_primitive_cache_capacity(0)
    try:
        with service.instrument(), gp.Engine(threads=1) as engine, gp.onnx.load(proto, engine=engine) as model:
            with model.session({"present_x": "past_x"}, {"n": 4}) as session:
                session.run({"x": one})
            gp.Partition.from_op(gp.Op(0, "Tanh", [x], [y])).compile([x], [y], engine).close()
    finally:
        gp.set_primitive_cache_capacity(1024)
    found = service.spans()
    assert [span.name for span in found][-2:] == ["execute model", "compile partition"]
    assert found[-1].attributes["graphpool.ops"] == 1


def test_metrics_are_the_figures(service, model) -> None:
    with service.instrument({"mine": model.engine}):
        result = model.run(IMAGE)
        found = service.metrics()
        holdings = {("mine", holder): nbytes for holder, nbytes in model.engine.budget.holdings().items()}
        assert found["graphpool.budget.in_use"] == ("By", holdings)
        assert found["graphpool.budget.limit"] == ("By", {("mine",): 4 * 2**20})
        assert found["graphpool.runs"] == ("1", {("mine", "digits_cnn"): 1})
        assert found["graphpool.queue.wait"] == ("s", {("mine",): 0})
        assert found.keys() <= {f"graphpool.{figure.name}" for figure in FIGURES}
        del result
    assert not any(points for _, points in service.metrics().values())


def test_one_instrumentation_at_a_time(service, model) -> None:
    with service.instrument() as first:
        with pytest.raises(gp.StateError, match="close the other"):
            service.instrument()
        first.close()
        second = service.instrument()
        first.close()
        model.run(IMAGE)
        assert service.spans()
        second.close()
    assert spans.opener is None


def test_providers_of_the_process_are_the_default(model) -> None:
    with Instrumentation(model.engine) as instrumentation:
        instrumentation.watch(model.engine, "again")
        assert model.run(IMAGE)


def test_the_extra_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.metrics", None)
    with pytest.raises(gp.UnsupportedError, match=r"graphpool\[opentelemetry\]"):
        Instrumentation()
    assert spans.opener is None


def test_a_failure_to_make_instruments_leaves_nothing_on(service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service.meters, "get_meter", lambda *_: (_ for _ in ()).throw(ValueError("no meter")))
    with pytest.raises(ValueError, match="no meter"):
        service.instrument()
    assert spans.opener is None
