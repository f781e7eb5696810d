"""Regular expressions in the syntax of RE2, matched in time linear in the text.

A pattern becomes a nondeterministic automaton whose states are all followed at once, so nothing is ever tried twice.
Look-arounds and references to groups, which need backtracking, are refused as RE2 refuses them; so are flags, classes
of Unicode properties and POSIX classes, which are not implemented.
Source: Thompson, "Regular expression search algorithm" (1968); the syntax is RE2's.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NoReturn

from graphpool.errors import InvalidArgumentError, explain

from ._automaton import Places

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from graphpool.limits import Limits

_MOST_STATES = 10_000
"""States of one automaton, after counted repetitions are written out."""

_NOTHING: frozenset[str | None] = frozenset([None])
"""The assertions of patterns that have none."""

_MOST_NESTED, _MOST_REPEATED = 50, 1000
"""Groups inside one another; the largest count of a repetition, as in RE2."""

_CLASSES = {"d": "[0-9]", "D": "[^0-9]", "w": "[0-9A-Za-z_]", "W": "[^0-9A-Za-z_]", "s": "[\t\n\f\r ]",
            "S": "[^\t\n\f\r ]"}  # fmt: skip
_LETTERS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}
_ASSERTIONS = {"A": "^", "z": "$", "b": "b", "B": "B"}
_COUNTS = re.compile(r"\{([0-9]{1,4})(,?)([0-9]{0,4})\}")
_GROUP = re.compile(r"\?(?::|P?<[A-Za-z_][A-Za-z0-9_]*>)")
_CLASS = re.compile(r"\[\^?\]?(?:[^\]\\]|\\.)*\]", re.DOTALL)


def compile_pattern(pattern: str, limits: Limits) -> Automaton:
    """An automaton for a pattern.

    Raises LimitError for one longer than ``pattern_length``, InvalidArgumentError for what is no expression in the
    syntax of RE2, uses what is not implemented, or takes too many states.
    """
    limits.check("pattern_length", len(pattern), "a regular expression: its length")
    parser = _Parser(pattern)
    return Automaton(parser.parse())


class Automaton:
    """Says whether a text matches as a whole, and which parts of it do. Threads may share it.

    The cost of a match is at most `nstates` times the length of the text; steps that were taken before are remembered.
    `words` is that of `_automaton.Places`.
    """

    def __init__(self, tree: Any) -> None:
        self._tests: list[Callable[[str], object] | str | None] = []  # of a letter, or an assertion; None: none
        self._next: list[list[int]] = []
        self._start, end = self._build(tree)
        self._asserts = any(isinstance(test, str) for test in self._tests)
        self.nstates = len(self._tests)
        places = Places(self._begin, self._step, end, self._asserts)
        self.words, self._matches = places.words, places.matches

    def __call__(self, text: str) -> bool:
        """Whether all of the text matches."""
        return self._matches(text)

    def _begin(self, before: str, behind: str) -> frozenset[int]:
        """States where a part of a text begins, between these letters."""
        return self._closure([self._start], _holding(before, behind) if self._asserts else _NOTHING)

    def _step(self, states: Iterable[int], letter: str, behind: str) -> frozenset[int]:
        taken = [n for s in states if callable(test := self._tests[s]) and test(letter) for n in self._next[s]]
        return self._closure(taken, _holding(letter, behind) if self._asserts else _NOTHING)

    def _closure(self, states: Iterable[int], passes: frozenset[str | None]) -> frozenset[int]:
        """What can be reached without a letter, where these assertions hold."""
        found: set[int] = set()
        waiting = list(states)
        while waiting:
            state = waiting.pop()
            if state not in found:
                found.add(state)
                test = self._tests[state]
                if not callable(test) and test in passes:
                    waiting += self._next[state]
        return frozenset(found)

    def _state(self, test: Any = None, following: Iterable[int] = ()) -> int:
        if len(self._tests) == _MOST_STATES:
            raise InvalidArgumentError(explain("regular expression: its states", accepted=f"at most {_MOST_STATES}"))
        self._tests.append(test)
        self._next.append(list(following))
        return len(self._tests) - 1

    def _build(self, tree: Any) -> tuple[int, int]:
        """First and last state of a part."""
        kind, *rest = tree
        if kind == "test":
            end = self._state()
            return self._state(rest[0], [end]), end
        if kind == "either":
            parts = [self._build(part) for part in rest[0]]
            end = self._state()
            for _, last in parts:
                self._next[last].append(end)
            return self._state(None, [first for first, _ in parts]), end
        if kind == "row":
            start = end = self._state()
            for part in rest[0]:
                first, last = self._build(part)
                self._next[end].append(first)
                end = last
            return start, end
        return self._repeat(*rest)

    def _repeat(self, tree: Any, least: int, most: int | None) -> tuple[int, int]:
        start = end = self._state()
        for number in range(max(least, 1) if most is None else most):
            first, last = self._build(tree)
            after = self._state()
            self._next[end].append(first)
            self._next[last].append(after)
            if number >= least:
                self._next[end].append(after)
            if most is None and number >= least - 1:
                self._next[after].append(first)
            end = after
        return start, end


def _holding(before: str, behind: str) -> frozenset[str | None]:
    """The assertions that hold between two letters, which are empty at the ends of the text."""
    is_border = _is_word(before) is not _is_word(behind)
    return frozenset([None, "b" if is_border else "B", *([] if before else ["^"]), *([] if behind else ["$"])])


def _is_word(letter: str) -> bool:
    return letter.isascii() and (letter.isalnum() or letter == "_")


class _Parser:
    """Reads a pattern into a tree: ("test", letter or assertion), ("row" or "either", parts), ("repeat", ...)."""

    def __init__(self, pattern: str) -> None:
        self._text, self._at = pattern, 0

    def parse(self) -> Any:
        tree = self._either(0)
        if self._at < len(self._text):
            self._refuse("a bracket is closed that was not opened")
        return tree

    def _refuse(self, reason: str) -> NoReturn:
        what = f"regular expression {self._text[:80]!r}: {reason} at character {self._at}"
        raise InvalidArgumentError(explain(what, accepted="the syntax of RE2, without flags and Unicode classes"))

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self, found: re.Match[str] | None) -> re.Match[str] | None:
        if found:
            self._at = found.end()
        return found

    def _either(self, depth: int) -> Any:
        if depth > _MOST_NESTED:
            self._refuse(f"more than {_MOST_NESTED} groups inside one another")
        parts = [self._row(depth)]
        while self._peek() == "|":
            self._at += 1
            parts.append(self._row(depth))
        return parts[0] if len(parts) == 1 else ("either", parts)

    def _row(self, depth: int) -> Any:
        parts = []
        while self._peek() not in ("", "|", ")"):
            parts.append(self._repetition(self._atom(depth)))
        return ("row", parts)

    def _repetition(self, tree: Any) -> Any:
        bounds = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(self._peek())
        if bounds is not None:
            self._at += 1
        elif counts := self._take(_COUNTS.match(self._text, self._at)):
            least, comma, most = counts.groups()
            bounds = int(least), int(most) if most else None if comma else int(least)
            if int(least) > _MOST_REPEATED or not int(least) <= (bounds[1] or int(least)) <= _MOST_REPEATED:
                self._refuse(f"counts beyond {_MOST_REPEATED}, or in the wrong order,")
        else:
            return tree
        if self._peek() == "?":  # which match is preferred is of no matter for a whole one
            self._at += 1
        if self._peek() in ("*", "+", "?") or _COUNTS.match(self._text, self._at):
            self._refuse("a repetition is repeated")
        return ("repeat", tree, *bounds)

    def _atom(self, depth: int) -> Any:
        letter = self._peek()
        if letter == "(":
            self._at += 1
            if self._peek() == "?" and not self._take(_GROUP.match(self._text, self._at)):
                self._refuse("a look-around or a flag")
            tree = self._either(depth + 1)
            if self._peek() != ")":
                self._refuse("a group is not closed")
            self._at += 1
            return tree
        if letter == "[":
            return ("test", self._class())
        if letter in ("*", "+", "?"):
            self._refuse("nothing to repeat")
        self._at += 1
        if letter == "\\":
            return ("test", self._escape())
        if letter in ("^", "$"):
            return ("test", letter)
        return ("test", (lambda c: c != "\n") if letter == "." else letter.__eq__)

    def _class(self) -> Any:
        found = self._take(_CLASS.match(self._text, self._at))
        if not found or "[:" in found[0] or re.search(r"\\[pPbB]", found[0]):
            self._refuse("a class that is not closed or not implemented")
        body = re.sub(r"(?<!\\)((?:\\\\)*)([\[&|~])", r"\1\\\2", found[0][1:])
        try:
            return re.compile("[" + body, re.ASCII).fullmatch
        except re.error as error:
            self._refuse(f"a class that is none ({error})")

    def _escape(self) -> Any:
        letter = self._peek()
        self._at += 1
        if letter in _CLASSES:
            return re.compile(_CLASSES[letter]).fullmatch
        if letter in _ASSERTIONS:
            return _ASSERTIONS[letter]
        if letter in _LETTERS:
            return _LETTERS[letter].__eq__
        if not letter or letter.isalnum():
            self._refuse("an escape that is not implemented")
        return letter.__eq__
