"""Streams and events: ordered queues of an engine, which is what its device makes of them."""

from graphpool.errors import InvalidArgumentError, StateError, explain


cdef class Stream:
    """An ordered queue of an engine.

    On the CPU the work of a stream is done when `CompiledPartition.execute` returns. The stream has a team of
    ``engine.threads`` threads, the caller's among them, which share what is large enough. Several threads may use one
    stream, and their executions then run side by side: one has the team, the others run on their own thread alone.

    On a GPU `execute` returns when the work is in the stream, and what reads results on the host waits for it. Work of
    one stream is done in order, whichever threads gave it; it has its temporaries in memory of the stream.

    Parameters
    ----------
    engine : Engine
        Must be open.
    native : object, optional
        On a GPU, a stream of yours to work on: an object with ``__cuda_stream__``, which is kept, or a handle. None
        makes a stream.

    Attributes
    ----------
    engine : Engine
    queue : Queue
        What the device does the work with.
    team : Team or None
        The threads; None when the engine has one thread, and on a GPU.

    Raises
    ------
    InvalidArgumentError
        It is no engine, or `native` is no stream of its device.
    StateError
        The engine is closed.

    Notes
    -----
    Ownership: keeps the engine alive; owns its threads, which start when they are first needed and end at `close` or
    with the stream or the engine. Threads: safe. Fork: a stream works in a child, where it starts threads of its own.
    Source: oneDNN Graph's programming model, Stream.
    """

    def __init__(self, engine, native=None):
        if not hasattr(engine, "is_closed"):
            raise InvalidArgumentError(explain("engine", accepted="an Engine", got=type(engine).__name__))
        if engine.is_closed:
            raise StateError(explain(f"{engine!r} is closed", hint="create another engine"))
        self.engine = engine
        self.queue = engine.device.queue(engine, native)
        self.team = self.queue.team
        self.closed = False
        engine.attach(self)

    @property
    def is_closed(self):
        """Whether `close` was called."""
        return self.closed

    def wait(self):
        """Return when all work given to the stream is done."""
        self._check_open()
        self.queue.wait()

    def record(self):
        """An event that is done when all work given to the stream so far is done."""
        self._check_open()
        return Event(self, self.queue.record())

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
        self.queue.wait_for(event.mark)

    def close(self):
        """Wait, refuse further work, and end the threads. Idempotent."""
        if not self.closed:
            self.closed = True
            self.queue.close()

    @property
    def __cuda_stream__(self):
        return self.queue.__cuda_stream__   # AttributeError: it is none

    def _check_open(self):
        if self.closed:
            raise StateError(explain("the stream is closed", hint="create another stream from the engine"))

    def __copy__(self):
        return self

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

    def __init__(self, Stream stream not None, mark):
        self.stream, self.mark = stream, mark

    @property
    def is_done(self):
        """Whether all work before the event is done; on the CPU it always is."""
        return self.mark.is_done

    def wait(self):
        """Return when the event is done."""
        self.mark.wait()

    def __copy__(self):
        return self

    def __repr__(self):
        return f"Event({self.stream!r})"
