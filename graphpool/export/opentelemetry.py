"""Metrics and spans for OpenTelemetry, through its interface alone: what becomes of them is up to the service's SDK."""

from __future__ import annotations

from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .. import spans
from .._version import __version__
from ..errors import UnsupportedError, explain
from .figures import FIGURES, WatchedEngines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation
    from opentelemetry.trace import Span, TracerProvider

    from ..runtime import Engine
    from .figures import Figure

__all__ = ["Instrumentation"]

_UNITS = {"bytes": "By", "seconds": "s", "": "1"}


class Instrumentation:
    """Reports engines as metrics, and compilations and runs of models as spans, until it is closed.

    Parameters
    ----------
    engines : Engine or mapping of str to Engine, optional
        Those to report as metrics; the name is the attribute ``graphpool.engine``, by default that of the device,
        ``cpu:0``. `watch` adds others. Spans are those of all models of the process.
    tracer_provider : opentelemetry.trace.TracerProvider, optional
        Default: that of the process.
    meter_provider : opentelemetry.metrics.MeterProvider, optional
        Default: that of the process.

    Raises
    ------
    UnsupportedError
        opentelemetry-api is not installed; it comes with the extra ``graphpool[opentelemetry]``.
    InvalidArgumentError
        Neither an engine nor engines by name.
    StateError
        Another instrumentation is open: there is one at a time in a process.

    Notes
    -----
    Ownership: of nothing; engines are held weakly, and left out once they are closed. A meter keeps its instruments for
    good; after `close` they report nothing. Threads: safe. Cost: while it is open, what the SDK takes for a span a run;
    reading counters when the SDK asks; a run without it looks at one variable.

    Examples
    --------
    >>> with graphpool.export.opentelemetry.Instrumentation(engine):    # doctest: +SKIP
    ...     model.run(inputs)
    """

    def __init__(
        self,
        engines: Engine | Mapping[str, Engine] | None = None,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
    ) -> None:
        try:
            trace, self._metrics = import_module("opentelemetry.trace"), import_module("opentelemetry.metrics")
        except ModuleNotFoundError as error:
            hint = "it comes with the extra graphpool[opentelemetry]: pip install 'graphpool[opentelemetry]'"
            raise UnsupportedError(explain("opentelemetry-api is not installed", hint=hint)) from error
        self._engines = WatchedEngines(engines)
        self._is_open = True
        self._tracer = trace.get_tracer("graphpool", __version__, tracer_provider)
        spans.open_with(self._open_span)
        try:
            self._make_instruments(self._metrics.get_meter("graphpool", __version__, meter_provider))
        except BaseException:
            self.close()
            raise

    def _make_instruments(self, meter: Meter) -> None:
        for figure in FIGURES:
            make = meter.create_observable_counter if figure.only_grows else meter.create_observable_gauge
            make(f"graphpool.{figure.name}", [self._reader(figure)], _UNITS[figure.unit], figure.text)

    def watch(self, engine: Engine, name: str | None = None) -> None:
        """Report one engine more.

        Parameters
        ----------
        engine : Engine
        name : str, optional
            Its attribute ``graphpool.engine``; by default the name of its device.

        Raises
        ------
        InvalidArgumentError
            No engine, a name that is no string, or that of another engine that is open.
        """
        self._engines.add(engine, name)

    def _reader(self, figure: Figure) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def read(options: CallbackOptions) -> Iterable[Observation]:
            found = figure.read(self._engines) if self._is_open else ()
            return [self._metrics.Observation(value, _attributes(labels)) for labels, value in found]

        return read

    @contextmanager
    def _open_span(self, name: str, facts: dict[str, str | int]) -> Iterator[spans.Note]:
        with self._tracer.start_as_current_span(name, attributes=_attributes(facts)) as span:
            yield _Note(span)

    def close(self) -> None:
        """Report nothing more; spans that are open end as they would. Idempotent."""
        self._is_open = False
        spans.close(self._open_span)

    def __enter__(self) -> Instrumentation:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class _Note:
    """Adds facts to a span."""

    def __init__(self, span: Span) -> None:
        self._span = span

    def __call__(self, **facts: str | int) -> None:
        self._span.set_attributes(_attributes(facts))


def _attributes(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {f"graphpool.{name}": value for name, value in facts.items()}
