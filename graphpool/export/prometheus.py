"""A collector for Prometheus."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from ..errors import UnsupportedError, explain
from .figures import FIGURES, WatchedEngines

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from prometheus_client.core import Metric

    from ..runtime import Engine
    from .figures import Figure

__all__ = ["Collector"]


class Collector:
    """What engines hold and do, and the caches of the process, as metrics of Prometheus.

    Parameters
    ----------
    engines : Engine or mapping of str to Engine, optional
        Those to report; the name is the label ``engine``, by default that of the device, ``cpu:0``. `watch` adds
        others.

    Raises
    ------
    UnsupportedError
        prometheus_client is not installed; it comes with the extra ``graphpool[prometheus]``.
    InvalidArgumentError
        Neither an engine nor engines by name.

    Notes
    -----
    Ownership: of nothing; engines are held weakly, and left out once they are closed. Threads: safe, scrapes go on
    beside runs. Cost: nothing between scrapes; a scrape reads counters, for some 50 microseconds a model.

    Examples
    --------
    >>> from prometheus_client import REGISTRY, start_http_server       # doctest: +SKIP
    >>> REGISTRY.register(graphpool.export.prometheus.Collector(engine))    # doctest: +SKIP
    >>> start_http_server(8000)                                         # doctest: +SKIP
    """

    def __init__(self, engines: Engine | Mapping[str, Engine] | None = None) -> None:
        try:
            self._families = import_module("prometheus_client.core")
        except ModuleNotFoundError as error:
            hint = "it comes with the extra graphpool[prometheus]: pip install 'graphpool[prometheus]'"
            raise UnsupportedError(explain("prometheus_client is not installed", hint=hint)) from error
        self._engines = WatchedEngines(engines)

    def watch(self, engine: Engine, name: str | None = None) -> None:
        """Report one engine more.

        Parameters
        ----------
        engine : Engine
        name : str, optional
            Its label ``engine``; by default the name of its device.

        Raises
        ------
        InvalidArgumentError
            No engine, a name that is no string, or that of another engine that is open.
        """
        self._engines.add(engine, name)

    def collect(self) -> Iterable[Metric]:
        """The metrics now, as `prometheus_client` asks for them.

        Returns
        -------
        iterable of Metric
        """
        return [self._family(figure) for figure in FIGURES]

    def describe(self) -> Iterable[Metric]:
        """Their names, so that a registry refuses a second collector; nothing is read.

        Returns
        -------
        iterable of Metric
        """
        return [self._family(figure, reads=False) for figure in FIGURES]

    def _family(self, figure: Figure, reads: bool = True) -> Metric:
        kind = self._families.CounterMetricFamily if figure.only_grows else self._families.GaugeMetricFamily
        name = "_".join(filter(None, ("graphpool", *figure.name.split("."), figure.unit)))
        family: Metric = kind(name, figure.text)
        suffix = "_total" if figure.only_grows else ""
        for labels, value in figure.read(self._engines) if reads else ():
            family.add_sample(name + suffix, labels, value)
        return family
