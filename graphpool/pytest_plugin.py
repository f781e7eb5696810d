"""Fixtures and a marker for the tests of those who use graphpool; pytest finds them by itself.

    gp_engine                   an engine of the test, closed behind it; what leaks of its memory is an error
    gp_stream                   a stream of that engine
    gp_footprint                records the peak of a block of code
    limit_footprint("300MiB")   marker: the most that the engine of the test may ever have counted

Nothing else of graphpool is imported before a test asks for one of them.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from .runtime import Engine, Stream

__all__ = ["PeakRecorder", "gp_engine", "gp_footprint", "gp_stream"]

MARKER = "limit_footprint"

_engine = pytest.StashKey["Engine"]()
_limit_nbytes = pytest.StashKey[int]()
_has_failed = pytest.StashKey[bool]()


class PeakRecorder:
    """The most memory that an engine counted during a block of code; made by `gp_footprint`.

    Parameters
    ----------
    engine : Engine

    Attributes
    ----------
    peak_nbytes : int
        The most that the budget of the engine counted at once, what was in use before the block included. Unit: bytes.
    before_nbytes, after_nbytes : int
        In use when the block began and when it ended. Unit: bytes.

    Notes
    -----
    Ownership: keeps the engine alive. Threads: counts what all of them do; blocks of one engine may lie inside one
    another, not side by side. Cost: two readings of counters.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._earlier_peak = 0
        self.peak_nbytes = self.before_nbytes = self.after_nbytes = 0

    def __enter__(self) -> PeakRecorder:
        budget = self._engine.budget
        self.before_nbytes = budget.in_use
        self._earlier_peak = budget.reset_peak()
        return self

    def __exit__(self, *exc_info: object) -> None:
        budget = self._engine.budget
        self.peak_nbytes, self.after_nbytes = budget.peak, budget.in_use
        budget.reset_peak(max(self._earlier_peak, self.peak_nbytes))

    def __repr__(self) -> str:
        return f"PeakRecorder({_mib(self.peak_nbytes)} at most, {_mib(self.after_nbytes)} in the end)"


# ---- fixtures


@pytest.fixture
def gp_engine(request: pytest.FixtureRequest) -> Generator[Engine, None, None]:
    """A CPU engine, closed behind the test; an error if memory of it is in use after that.

    ``@pytest.mark.parametrize("gp_engine", [{"threads": 1}], indirect=True)`` gives arguments of `graphpool.Engine`.
    """
    from .runtime import Engine

    node = request.node
    engine = node.stash[_engine] = Engine(**getattr(request, "param", {}))
    yield engine
    del node.stash[_engine]
    engine.close()
    if node.stash.get(_has_failed, False):
        return  # what is in use may hang on the traceback
    gc.collect()
    if engine.budget.in_use:
        held = ", ".join(f"{name} {_mib(nbytes)}" for name, nbytes in engine.budget.holdings().items() if nbytes)
        pytest.fail(
            f"{node.nodeid} leaks {_mib(engine.budget.in_use)} of gp_engine ({held}): somebody still holds results of "
            "a model or tensors of the engine, such as a module, a cache or another fixture",
            pytrace=False,
        )


@pytest.fixture
def gp_stream(gp_engine: Engine) -> Generator[Stream, None, None]:
    """A stream of `gp_engine`, closed behind the test."""
    from .runtime import Stream

    with Stream(gp_engine) as stream:
        yield stream


@pytest.fixture
def gp_footprint(gp_engine: Engine) -> Callable[..., PeakRecorder]:
    """Makes recorders of peaks: ``with gp_footprint() as found:``, or of another engine: ``gp_footprint(engine)``."""

    def record(engine: Engine | None = None) -> PeakRecorder:
        return PeakRecorder(gp_engine if engine is None else engine)

    return record


# ---- the marker


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    text = f'{MARKER}(nbytes): the test fails when gp_engine counts more at once, such as "300MiB"'
    config.addinivalue_line("markers", text)


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Read the limits, so that a wrong one is told before anything runs."""
    for item in items:
        marker = item.get_closest_marker(MARKER)
        if marker is not None:
            item.stash[_limit_nbytes] = _parse(item, marker)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Hold the peak of the engine against the limit when the test has ended well."""
    try:
        yield
    except BaseException:
        item.stash[_has_failed] = True
        raise
    limit, engine = item.stash.get(_limit_nbytes, None), item.stash.get(_engine, None)
    if limit is not None and engine is not None and engine.budget.peak > limit:
        item.stash[_has_failed] = True
        pytest.fail(
            f"{item.nodeid} took {_mib(engine.budget.peak)} of gp_engine at once, more than "
            f"limit_footprint allows: {_mib(limit)}",
            pytrace=False,
        )


def _parse(item: pytest.Item, marker: pytest.Mark) -> int:
    """The limit that a marker sets. Unit: bytes."""
    from .errors import InvalidArgumentError
    from .typing import parse_nbytes

    where = f"{item.nodeid}: {MARKER}"
    if len(marker.args) != 1 or marker.kwargs:
        raise pytest.UsageError(f'{where} takes one size, such as {MARKER}("300MiB")')
    try:
        nbytes = parse_nbytes(marker.args[0])
    except InvalidArgumentError as error:
        raise pytest.UsageError(f"{where}: {error}") from error
    if "gp_engine" not in getattr(item, "fixturenames", ()):
        raise pytest.UsageError(f"{where} counts the memory of gp_engine, which the test does not ask for")
    return nbytes


def _mib(nbytes: int) -> str:
    return f"{nbytes / 2**20:.3f} MiB ({nbytes} bytes)"
