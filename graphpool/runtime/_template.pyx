"""Template: compiles again what the compiled-partition cache knows, without a look-up."""

import weakref

from graphpool.cache._recency cimport Node

from ._compiled cimport CompiledPartition
from ._share cimport PrimitiveShare


cdef class Template:
    """Makes compiled partitions like one that was made, as long as the caches keep what it was made of.

    `form` and `primitive` are entries of the compiled-partition cache and of the primitive cache; both count each
    compilation as a use. Ownership: shared by the cache's entry, which holds it, and its partition; these refer to one
    another weakly, so that a cache keeps no graph of a model that is gone. Threads: safe. Cost: about a quarter of a
    microsecond for a compiled partition, one atomic step for its pool included.
    """

    cdef CompiledPartition pattern
    cdef object partition
    cdef PrimitiveShare share
    cdef Node form
    cdef Node primitive
    cdef object __weakref__

    def __init__(self, CompiledPartition compiled not None, Node form not None, Node primitive not None):
        self.share = compiled.share
        self.pattern = compiled.copy(None)
        self.pattern.closed = True
        self.pattern.partition, self.partition = None, weakref.ref(compiled.partition)
        self.form, self.primitive = form, primitive

    @property
    def is_stale(self):
        """Whether its partition, which alone can ask for more, is gone."""
        return self.partition() is None

    def __call__(self, engine):
        """Another compiled partition for the engine of the first, or None where that takes a look-up or memory."""
        cdef bint reserves = self.pattern.arenas is not None
        if engine.is_closed or (self.share is not None and not self.share.enter_warm(reserves)):
            return None
        cdef CompiledPartition compiled = self.pattern.copy(engine)
        compiled.partition = self.partition()
        if self.form.touch() and self.primitive.touch():
            return compiled
        compiled.close()
        return None
