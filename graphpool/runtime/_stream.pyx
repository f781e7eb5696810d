"""Streams and events of the CPU, where work is done before `execute` returns, by the stream's threads."""

from graphpool._kernels.core._team cimport Team

from . import thread_limits
from graphpool.errors import InvalidArgumentError, StateError, explain


cdef class Stream:
    """An ordered queue of an engine.

    On the CPU the work of a stream is done when `CompiledPartition.execute` returns. The stream has a team of
    ``engine.threads`` threads, the caller's among them, which share what is large enough. Several threads may use one
    stream, and their executions then run side by side: one has the team, the others run on their own thread alone.

    Parameters
    ----------
    engine : Engine
        Must be open.

    Attributes
    ----------
    engine : Engine
    team : Team or None
        The threads; None when the engine has one thread.

    Raises
    ------
    InvalidArgumentError
        It is no engine.
    StateError
        The engine is closed.

    Notes
    -----
    Ownership: keeps the engine alive; owns its threads, which start when they are first needed and end at `close` or
    with the stream or the engine. Threads: safe. Fork: a stream works in a child, where it starts threads of its own.
    Source: oneDNN Graph's programming model, Stream.
    """

    def __init__(self, engine):
        if not hasattr(engine, "is_closed"):
            raise InvalidArgumentError(explain("engine", accepted="an Engine", got=type(engine).__name__))
        if engine.is_closed:
            raise StateError(explain(f"{engine!r} is closed", hint="create another engine"))
        self.engine = engine
        self.team = None
        if engine.threads > 1:
            thread_limits.register()
            self.team = Team(engine.threads)
        self.closed = False
        engine.attach(self)

    @property
    def is_closed(self):
        """Whether `close` was called."""
        return self.closed

    def wait(self):
        """Return when all work given to the stream is done."""
        self._check_open()

    def record(self):
        """An event that is done when all work given to the stream so far is done."""
        self._check_open()
        return Event(self)

    def wait_event(self, Event event not None):
        """Let work given to this stream from now on start only after an event.

        Parameters
        ----------
        event : Event
            Of a stream of the same kind of engine.

        Raises
        ------
        InvalidArgumentError
            It is of another kind of engine.
        StateError
            The stream is closed.
        """
        self._check_open()
        if event.stream.engine.kind != self.engine.kind:
            raise InvalidArgumentError(
                explain("event of another kind of engine", accepted=self.engine.kind, got=event.stream.engine.kind)
            )

    def close(self):
        """Wait, refuse further work, and end the threads. Idempotent."""
        self.closed = True
        if self.team is not None:
            self.team.close()

    def _check_open(self):
        if self.closed:
            raise StateError(explain("the stream is closed", hint="create another stream from the engine"))

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.close()

    def __repr__(self):
        return f"Stream({self.engine!r})"


cdef class Event:
    """A point in the work of a stream, made by `Stream.record`.

    Notes
    -----
    Ownership: keeps the stream alive. Threads: immutable, safe.
    """

    def __init__(self, Stream stream not None):
        self.stream = stream

    @property
    def is_done(self):
        """Whether all work before the event is done; on the CPU it always is."""
        return True

    def wait(self):
        """Return when the event is done."""

    def __repr__(self):
        return f"Event({self.stream!r})"
