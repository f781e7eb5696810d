"""An event count: threads sleep until something changed; who changes something pays one load when nobody sleeps.

    sleeper:  epoch = gate.enter(); loop { look; gate.wait(epoch); epoch = gate.now() }; gate.leave()
    changer:  change; gate.notify()

No wake-up is lost: the sleeper announces itself before it looks, the changer looks for sleepers after its change, and
all four steps are sequentially consistent. The mutex is held only around the epoch, never while Python runs.
"""

from libc.stdint cimport int64_t
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

from graphpool._atomic cimport gp_add, gp_load

from numbers import Real

from graphpool.errors import InvalidArgumentError, brief, explain


cdef extern from *:
    """
    #ifdef CLOCK_MONOTONIC_COARSE
    #define GP_COARSE_CLOCK CLOCK_MONOTONIC_COARSE
    #else
    #define GP_COARSE_CLOCK CLOCK_MONOTONIC
    #endif
    """
    int GP_COARSE_CLOCK

cdef extern from *:
    """
    #include <pthread.h>
    #include <stdint.h>
    #include <time.h>

    /* A condition that waits until a time of CLOCK_MONOTONIC: 0 if it was signalled. On macOS, which has none, it waits
       for what is left until then. */
    #ifdef __APPLE__
    static inline void gp_cond_init(pthread_cond_t *cond) { pthread_cond_init(cond, NULL); }

    static inline int gp_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *mutex, int64_t until_ns)
    {
        struct timespec now, rest;
        int64_t ns;
        clock_gettime(CLOCK_MONOTONIC, &now);
        ns = until_ns - ((int64_t)now.tv_sec * 1000000000 + now.tv_nsec);
        ns = ns > 0 ? ns : 0;
        rest.tv_sec = ns / 1000000000, rest.tv_nsec = ns % 1000000000;
        return pthread_cond_timedwait_relative_np(cond, mutex, &rest);
    }
    #else
    static inline void gp_cond_init(pthread_cond_t *cond)
    {
        pthread_condattr_t attributes;
        pthread_condattr_init(&attributes);
        pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
        pthread_cond_init(cond, &attributes);
    }

    static inline int gp_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *mutex, int64_t until_ns)
    {
        struct timespec deadline;
        deadline.tv_sec = until_ns / 1000000000, deadline.tv_nsec = until_ns % 1000000000;
        return pthread_cond_timedwait(cond, mutex, &deadline);
    }
    #endif
    """
    void gp_cond_init(pthread_cond_t *cond) nogil
    int gp_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *mutex, int64_t until_ns) nogil

cdef extern from "<pthread.h>" nogil:
    int pthread_mutex_init(pthread_mutex_t *mutex, void *attributes)
    int pthread_mutex_destroy(pthread_mutex_t *mutex)
    int pthread_mutex_lock(pthread_mutex_t *mutex)
    int pthread_mutex_unlock(pthread_mutex_t *mutex)
    int pthread_cond_destroy(pthread_cond_t *cond)
    int pthread_cond_broadcast(pthread_cond_t *cond)

cdef extern from "<Python.h>":
    int PyErr_CheckSignals() except -1

# Longest sleep between two looks at pending signals, so that Ctrl-C reaches a waiting main thread.
cdef int64_t SIGNAL_PERIOD_NS = 100_000_000


cdef int64_t clock_ns() noexcept nogil:
    """Monotonic time. Unit: nanoseconds."""
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <int64_t>now.tv_sec * 1_000_000_000 + now.tv_nsec


cdef int64_t coarse_clock_ns() noexcept nogil:
    """Monotonic time that may lag some milliseconds behind `clock_ns`, for a fifth of its cost. Unit: nanoseconds."""
    cdef timespec now
    clock_gettime(GP_COARSE_CLOCK, &now)
    return <int64_t>now.tv_sec * 1_000_000_000 + now.tv_nsec


cdef int64_t nanoseconds(seconds, what) except? -2:
    """A time that a user gave, at most 30 years; InvalidArgumentError, which names `what`, for anything else."""
    if (type(seconds) is not float and not isinstance(seconds, Real)) or not seconds >= 0:
        raise InvalidArgumentError(explain(what, accepted="seconds >= 0", got=brief(seconds)))
    return <int64_t>(min(seconds, 1e9) * 1e9)


cdef int64_t deadline_after(timeout_s, int64_t default_ns) except? -2:
    """Monotonic deadline in nanoseconds; -1 is none."""
    if timeout_s is None:
        return default_ns if default_ns < 0 else clock_ns() + default_ns
    return clock_ns() + nanoseconds(timeout_s, "timeout_s")


cdef class Gate:
    """The event count of one pool, or of all pools and caches under one budget.

    Notes
    -----
    Threads: safe. Cost: `notify` is one atomic load while nobody waits.
    Source: the event-count construction known from D. Vyukov's writings on blocking over lock-free structures.
    """

    def __cinit__(self):
        self.reset()

    def __dealloc__(self):
        pthread_cond_destroy(&self.changed)
        pthread_mutex_destroy(&self.mutex)

    cdef void reset(self) noexcept nogil:
        """Fresh lock and no sleepers: at birth, and in a forked child, where the sleeping threads do not exist."""
        pthread_mutex_init(&self.mutex, NULL)
        gp_cond_init(&self.changed)
        self.waiters = 0

    cdef int64_t enter(self) noexcept nogil:
        """Announce a sleeper; returns the epoch to hand to `wait`."""
        gp_add(&self.waiters, 1)
        return gp_load(&self.epoch)

    cdef void leave(self) noexcept nogil:
        # A handler of a signal may have forked while this thread slept; then `reset` has already taken it out.
        if gp_load(&self.waiters) > 0:
            gp_add(&self.waiters, -1)

    cdef int64_t now(self) noexcept nogil:
        return gp_load(&self.epoch)

    cdef void notify(self) noexcept nogil:
        if gp_load(&self.waiters) == 0:
            return
        pthread_mutex_lock(&self.mutex)
        gp_add(&self.epoch, 1)
        pthread_cond_broadcast(&self.changed)
        pthread_mutex_unlock(&self.mutex)

    cdef int wait(self, int64_t epoch, int64_t deadline_ns) except -1:
        """Sleep until the epoch is no longer `epoch` (returns 1), or until the deadline (returns 0; -1 is none)."""
        cdef int64_t until
        while True:
            until = clock_ns() + SIGNAL_PERIOD_NS
            if deadline_ns >= 0 and deadline_ns < until:
                until = deadline_ns
            with nogil:
                self._sleep(epoch, until)
            if gp_load(&self.epoch) != epoch:
                return 1
            PyErr_CheckSignals()
            if deadline_ns >= 0 and clock_ns() >= deadline_ns:
                return 0

    cdef void _sleep(self, int64_t epoch, int64_t until_ns) noexcept nogil:
        pthread_mutex_lock(&self.mutex)
        while gp_load(&self.epoch) == epoch:
            if gp_cond_wait_until(&self.changed, &self.mutex, until_ns) != 0:
                break
        pthread_mutex_unlock(&self.mutex)
