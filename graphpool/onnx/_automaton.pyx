"""What an automaton does on a text, letter by letter: sets of states that letters lead to, each made once.

The steps that were taken are remembered, of ASCII letters in lists, so that a letter costs a few nanoseconds.
"""

cimport cython
from cpython.list cimport PyList_GET_ITEM
from cpython.unicode cimport PyUnicode_DATA, PyUnicode_GET_LENGTH, PyUnicode_KIND, PyUnicode_READ


cdef extern from "Python.h":
    str PyUnicode_Substring(str text, Py_ssize_t begin, Py_ssize_t end)


cdef enum:
    ASCII = 128
    MOST_STEPS = 4096    # that are remembered, of all letters
    MOST_PLACES = 1024   # each of which has lists of 1 or 3 KiB
    SPENT_AT_ONCE = 4096   # letters that are read before a search tells of them


cdef class _Place:
    """States that are followed at once. A place that was found behind a letter stays there."""

    cdef object states
    cdef bint is_end, is_open   # whether a match ends here, whether letters may lead on
    cdef list near      # behind each ASCII letter, for each kind of letter that comes then if assertions ask
    cdef dict far

    def __cinit__(self, states, bint is_end, Py_ssize_t nkinds):
        self.states, self.is_end, self.is_open = states, is_end, bool(states)
        self.near, self.far = [None] * (ASCII * nkinds if self.is_open else 0), {}


cdef class Places:
    """Those of an automaton. Threads may share them.

    Parameters
    ----------
    start : callable
        Takes the letters before and behind a part of a text, empty at its ends: the states where one begins.
    step : callable
        Takes states, a letter, and the one behind it: the states that it leads to.
    end : int
        The state of a match.
    asserts : bool
        Whether states hang on letters behind.
    """

    cdef object _start, _step, _end
    cdef bint _asserts
    cdef dict _known
    cdef list _begins
    cdef Py_ssize_t _nsteps

    def __cinit__(self, start, step, end, bint asserts):
        self._start, self._step, self._end, self._asserts = start, step, end, asserts
        self._forget()

    def matches(self, str text not None):
        """Whether all of the text matches."""
        cdef Py_ssize_t nread
        return self._longest(text, 0, &nread) == PyUnicode_GET_LENGTH(text)

    def words(self, list texts not None, spend, Py_ssize_t least, bint between):
        """Of each text the parts that match, from left to right, each as long as it can be; none is empty.

        With `between` those between them, which may be. Parts of fewer letters than `least` are left out. `spend` is
        told now and then how many letters were read, as many are read more than once where long parts match nearly.
        """
        cdef Py_ssize_t read = 0
        found = [self._words(text, spend, &read, least, between) for text in texts]
        spend(read)
        return found

    cdef list _words(self, str text, spend, Py_ssize_t *read, Py_ssize_t least, bint between):
        cdef Py_ssize_t at = 0, end, nread, last = 0, length = PyUnicode_GET_LENGTH(text)
        cdef list found = []
        while at < length:
            end = self._longest(text, at, &nread)
            read[0] += nread
            if read[0] >= SPENT_AT_ONCE:
                spend(read[0])
                read[0] = 0
            if end > at and not between and end - at >= least:
                found.append(PyUnicode_Substring(text, at, end))
            if end > at and between:
                if at - last >= least:
                    found.append(PyUnicode_Substring(text, last, at))
                last = end
            at = max(end, at + 1)
        if between and length - last >= least:
            found.append(PyUnicode_Substring(text, last, length))
        return found

    cdef Py_ssize_t _longest(self, str text, Py_ssize_t begin, Py_ssize_t *nread) except -2:
        """Where the longest part that begins here ends, -1 where none does; how many letters were read, at least 1."""
        cdef int kind = PyUnicode_KIND(text), behind = 0
        cdef const void *data = PyUnicode_DATA(text)
        cdef Py_ssize_t at = begin, end = -1, length = PyUnicode_GET_LENGTH(text)
        cdef Py_UCS4 letter
        cdef _Place place = self._first(text, begin)
        cdef object after
        if place.is_end:
            end = begin
        while at < length and place.is_open:
            letter = PyUnicode_READ(kind, data, at)
            at += 1
            if self._asserts:
                behind = 1 + _is_word(PyUnicode_READ(kind, data, at)) if at < length else 0
            if letter < ASCII:
                after = <object>PyList_GET_ITEM(place.near, ASCII * behind + <Py_ssize_t>letter)
            else:
                after = place.far.get((letter, behind))
            if after is None:
                after = self._take(place, text, at, behind)
            place = <_Place>after
            if place.is_end:
                end = at
        nread[0] = max(at - begin, 1)
        return end

    cdef _Place _first(self, str text, Py_ssize_t begin):
        """Where a part that begins here starts."""
        cdef int kind = PyUnicode_KIND(text), number = 0
        cdef const void *data = PyUnicode_DATA(text)
        if self._asserts:
            if begin > 0:
                number = 3 * (1 + _is_word(PyUnicode_READ(kind, data, begin - 1)))
            if begin < PyUnicode_GET_LENGTH(text):
                number += 1 + _is_word(PyUnicode_READ(kind, data, begin))
        cdef list begins = self._begins
        found = begins[number]
        if found is None:
            found = self._place(self._start(text[max(begin - 1, 0) : begin], text[begin : begin + 1]))
            begins[number] = found
        return <_Place>found

    cdef _Place _take(self, _Place place, str text, Py_ssize_t at, int behind):
        """Take a step that nobody took before: from a place by the letter in front of `at`."""
        cdef str letter = text[at - 1]
        cdef Py_UCS4 code = ord(letter)
        cdef _Place found = self._place(self._step(place.states, letter, text[at : at + 1]))
        with cython.critical_section(self):     # another thread may have come to it; what is there must not go
            self._nsteps += 1
            if code < ASCII:
                number = ASCII * behind + <Py_ssize_t>code
                if place.near[number] is None:
                    place.near[number] = found
            else:
                place.far.setdefault((code, behind), found)
        return found

    cdef _Place _place(self, states):
        with cython.critical_section(self):
            if self._nsteps >= MOST_STEPS or len(self._known) >= MOST_PLACES:
                self._forget()
            found = self._known.get(states)
            if found is None:
                found = self._known[states] = _Place(states, self._end in states, 3 if self._asserts else 1)
        return <_Place>found

    cdef _forget(self):
        """Begin anew; searches that are under way keep the places that they are at."""
        self._known, self._begins, self._nsteps = {}, [None] * 9, 0


cdef inline bint _is_word(Py_UCS4 letter) noexcept:
    return c'0' <= letter <= c'9' or c'A' <= letter <= c'Z' or c'a' <= letter <= c'z' or letter == c'_'
