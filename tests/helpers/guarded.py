"""Arrays between guard bytes: a kernel that writes outside its output is caught."""

import numpy as np

GUARD_NBYTES = 64
GUARD = 0xA5


class Guarded:
    """An uninitialised-looking array with guards before and behind its `nbytes` bytes."""

    def __init__(self, nbytes):
        self._bytes = np.full(nbytes + 2 * GUARD_NBYTES, GUARD, np.uint8)
        self.bytes = self._bytes[GUARD_NBYTES : GUARD_NBYTES + nbytes]

    def array(self, dtype, shape):
        """The content, after a check of the guards."""
        assert (self._bytes[:GUARD_NBYTES] == GUARD).all(), "wrote before the output"
        assert (self._bytes[GUARD_NBYTES + len(self.bytes) :] == GUARD).all(), "wrote behind the output"
        return self.bytes.view(dtype).reshape(shape)
