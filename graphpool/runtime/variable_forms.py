"""What compiles for shapes: one compilation serves all of them for which its decisions come out alike."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from graphpool._dataclasses import NamedTuple
from graphpool._size_program import SizeProgram
from graphpool._sizes import Trace, hint_of
from graphpool.errors import BackendError, InvalidArgumentError, LimitError, OutOfMemoryError, StateError
from graphpool.log import compile_log

from .resizable_form import ResizableForm
from .variable_form import SizeName, Symbols, VariableForm

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Mapping

    from .engine import Engine

__all__ = ["VariableForms", "numbers_in", "symbols_of"]


_NONE: Mapping[str, Any] = MappingProxyType({})

Form = TypeVar("Form", bound=ResizableForm)

_MOST_NUMBERS = 64
"""Elements of a deciding content that are sizes; larger ones are data."""


def numbers_in(deciding: Mapping[str, Any]) -> dict[SizeName, tuple[int, ...]]:
    """The contents that are sizes, in a row."""
    return {
        SizeName("content", name): tuple(array.reshape(-1).tolist())
        for name, array in deciding.items()
        if array.dtype in (np.int64, np.int32) and array.size <= _MOST_NUMBERS
    }


def symbols_of(
    dims: Mapping[str, Any], shapes: Mapping[str, Any], deciding: Mapping[str, Any], trace: Trace
) -> tuple[Symbols, dict[str, Any], dict[str, Any]]:
    """The symbols of shapes and contents, and both with sizes where they may vary: contents as arrays of objects."""
    numbers = numbers_in(deciding)
    symbols = Symbols({**dims, **dict.fromkeys(numbers)}, {**shapes, **numbers}, trace)
    contents = dict(deciding)
    for content in filter(numbers.get, numbers):  # those without elements are what they are
        items = np.empty(len(numbers[content]), object)
        items[:] = symbols.shapes[content]
        contents[content.name] = items.reshape(deciding[content.name].shape)
    return symbols, {name: symbols.shapes[name] for name in shapes}, contents


_MOST_REFUSALS = 8
"""Compilations that failed to remember, each of them as large as the decisions before it."""


class _Refusal(NamedTuple):
    """A compilation that failed, and fails again for the same sizes.

    With a program it failed with sizes that vary too, for the same reason: so it does for all sizes for which its
    decisions come out alike.
    """

    contents: Any
    symbols: Symbols
    trace: Trace
    program: SizeProgram | None
    values: list[Any]
    error: InvalidArgumentError | StateError

    @classmethod
    def of(
        cls, contents: Any, symbols: Symbols, trace: Trace, sizes: Mapping[Any, Any], error: Any, varies: bool
    ) -> _Refusal:
        trace.close()
        values = symbols.values(sizes)
        assert values is not None  # those of the compilation
        own = type(error)(str(error), **error.fields)  # without a traceback, which holds frames
        return cls(contents, symbols, trace, SizeProgram(trace) if varies else None, values, own)

    def error_for(self, contents: Any, sizes: Mapping[Any, Any]) -> InvalidArgumentError | StateError | None:
        """What is wrong with these sizes too; None if that is open."""
        values = self.symbols.values(sizes) if contents == self.contents else None
        is_same = values == self.values
        if values is None or not (is_same or (self.program is not None and self.program.compute(values) is not None)):
            return None
        error, text = self.error, str(self.error)
        if not is_same:
            then, now = (
                ", ".join([f"{name}={n}" for name, n in zip(self.trace.symbols(), numbers, strict=True)])
                for numbers in (self.values, values)
            )
            text = f"{text}, with {then}; {now} is refused alike"
        return type(error)(text, **error.fields)


_NUMBERED = frozenset({"op_id", "tensor_id"})
"""Fields of errors that count what was made: another compilation has other numbers for the same."""


def _identity(error: Exception) -> Any:
    """Equal for errors of two compilations about the same; their texts have sizes and numbers of ops in them."""
    fields = error.fields.items() if isinstance(error, InvalidArgumentError) else ()
    facts = {name: hint_of(value) for name, value in fields if name not in _NUMBERED}
    return type(error), facts or str(error)


class VariableForms(Generic[Form]):
    """Forms of which others are made for other shapes, the last used first.

    Parameters
    ----------
    dims : mapping of str to sequence, or None
        By name what may vary, see `Symbols`. None: nothing does.
    engine : Engine
    capacity : int
        Compilations to keep.
    serve_alone : bool
        Whether a form can be used itself, where there is no room for one that it makes.
    discard : callable, optional
        Closes a form of which none could be made for the shapes that it was compiled for; by default its `close`.

    Attributes
    ----------
    compilations : int
    respecialisations : deque of str
        Why all but the first were needed, the last 32.

    Notes
    -----
    Ownership: owns the forms, whose arenas and constants live as long as those made of them. Threads: one at a time
    asks for a form, any may close at any moment.
    """

    def __init__(
        self, dims: Mapping[str, Any] | None, engine: Engine, capacity: int, *, serve_alone: bool,
        discard: Callable[[Form], None] | None = None,
    ) -> None:  # fmt: skip
        self._serve_alone = serve_alone
        self._dims, self._engine, self._capacity = dims, engine, capacity
        self._discard = discard or (lambda form: form.close())
        self._entries: list[tuple[Any, Form]] = []  # by deciding contents
        self._refusals: deque[_Refusal] = deque(maxlen=_MOST_REFUSALS)
        self.compilations = 0
        self.respecialisations: deque[str] = deque(maxlen=32)

    def form(
        self,
        shapes: Mapping[str, Any],
        deciding: Mapping[str, Any],
        exactly: bool,
        compile_form: Callable[[Mapping[str, Any], Mapping[str, Any], VariableForm | None], Form],
        more_dims: Mapping[str, Any] = _NONE,
        key: Hashable = None,
    ) -> Form:
        """A form for these shapes, compiled if there is none yet that serves them.

        Decisions that only say what is faster count if `exactly`, or where others find nothing. `compile_form` takes
        the shapes, the deciding contents by name, and a `VariableForm` where sizes vary, which are then among the
        shapes, and in place of small integers among the contents. `more_dims` are of shapes beside those that all forms
        have; `key` tells forms apart that are made in different ways.
        """
        if self._dims is None:
            self.compilations += 1
            return compile_form(shapes, deciding, None)
        contents: tuple[Any, ...] = (key,)
        sizes: Mapping[Any, Any] = shapes
        if deciding:
            known = numbers_in(deciding)
            others = [array for name, array in deciding.items() if SizeName("content", name) not in known]
            contents, sizes = (key, *((array.shape, array.tobytes()) for array in others)), {**shapes, **known}
        found = self._resized(sizes, contents, exactly)
        if found is not None:
            return found
        for refusal in list(self._refusals):
            error = refusal.error_for(contents, sizes)
            if error is not None:
                raise error
        reason = self._refusal(sizes, contents)
        if reason is not None:
            self._note(reason)
        trace, refused = Trace(), None
        symbols, varying, numbers = symbols_of({**self._dims, **more_dims}, shapes, deciding, trace)
        try:
            made = self._compile(VariableForm(trace, symbols, self._engine), varying, numbers, compile_form)
            try:
                found = self._first_of(made, sizes)
            except BaseException:
                self._discard(made)
                raise
        except BackendError:  # of a planner, policy or device: nothing that other shapes would mend
            raise
        except StateError as error:
            if "input_name" in error.fields:  # a state has no room, and will have none
                self._refusals.append(_Refusal.of(contents, symbols, trace, sizes, error, False))
            raise
        except Exception as error:  # if something is wrong, it is said of plain shapes, which are compiled then
            if isinstance(error, OutOfMemoryError) and self._serve_alone:  # those take no less
                raise
            self._note(f"compiled for one set of shapes: {error}")
            refused = _identity(error)
        else:
            if found is not made:
                self._add(made, contents)
            if found is not None:
                return found
        self.compilations += 1
        try:
            return compile_form(shapes, deciding, None)
        except LimitError:  # what is left of a limit changes
            raise
        except InvalidArgumentError as error:
            self._refusals.append(_Refusal.of(contents, symbols, trace, sizes, error, _identity(error) == refused))
            raise

    def _first_of(self, made: Form, sizes: Mapping[Any, Any]) -> Form | None:
        """What a new form makes for its own sizes, or itself where there is no room for runs of that beside it."""
        found = None
        try:
            found = made.resized(sizes)
            if found is not None:
                found.check_run()
        except OutOfMemoryError:
            if found is not None:
                found.close()
            if not self._serve_alone:
                raise
            made.serve_alone()
            return made
        except BaseException:
            if found is not None:
                found.close()
            raise
        return found

    def _note(self, reason: str) -> None:
        self.respecialisations.append(reason)
        compile_log.info("compiled anew: %s", reason)

    def _resized(self, shapes: Mapping[Any, Any], contents: Any, exactly: bool) -> Form | None:
        """A form made of one that is there; None if every one would decide otherwise."""
        for best in (True,) if exactly else (True, False):
            for entry in list(self._entries):  # others may give all of them up meanwhile
                known, form = entry
                found = form.resized(shapes, best) if known == contents else None
                if found is not None:
                    if entry is not next(iter(self._entries), entry):
                        with suppress(ValueError):
                            self._entries.remove(entry)
                            self._entries.insert(0, entry)
                    return found
        return None

    def _refusal(self, shapes: Mapping[Any, Any], contents: Any) -> str | None:
        """Why the form that was used last for these contents does not serve the shapes; None if there is no form."""
        entries = list(self._entries)
        found = next((form.refusal(shapes) for known, form in entries if known == contents), None)
        return found or ("contents that decide shapes are new" if entries else None)

    def plan(
        self,
        shapes: Mapping[str, Any],
        compile_form: Callable[[Mapping[str, Any], Mapping[str, Any], VariableForm | None], Form],
    ) -> Form | None:
        """Compile a form that others are made of, at these shapes; None if sizes cannot vary."""
        if self._dims is None:
            return None
        trace = Trace()
        symbols, varying, numbers = symbols_of(self._dims, shapes, {}, trace)
        try:
            made = self._compile(VariableForm(trace, symbols, self._engine), varying, numbers, compile_form)
        except (BackendError, OutOfMemoryError):
            raise
        except Exception:
            return None
        self._add(made, (None,))
        return made

    def _compile(
        self,
        variable: VariableForm,
        shapes: Mapping[str, Any],
        contents: Mapping[str, Any],
        compile_form: Callable[[Mapping[str, Any], Mapping[str, Any], VariableForm | None], Form],
    ) -> Form:
        self.compilations += 1
        return compile_form(shapes, contents, variable)

    def _add(self, form: Form, contents: Any) -> None:
        """Keep one more form, and give the one up that was not used for longest if there are too many.

        Those for declared shapes stay, and do not count.
        """
        self._entries.insert(0, (contents, form))
        others = [entry for entry in self._entries if not entry[1].is_planned]
        for entry in others[self._capacity :]:
            self._entries.remove(entry)
            entry[1].close()

    def give_up(self, form: Form) -> None:
        """Close one of them."""
        self._entries[:] = [entry for entry in self._entries if entry[1] is not form]
        form.close()

    def __iter__(self) -> Iterator[Form]:
        return iter([form for _, form in list(self._entries)])

    def __len__(self) -> int:
        return len(self._entries)

    def take(self) -> list[Form]:
        """All of them, for the caller to close."""
        taken: list[Form] = []
        with suppress(IndexError):  # another thread has taken the last one
            while True:
                taken.append(self._entries.pop()[1])
        return taken

    def close(self) -> None:
        """Give all of them up."""
        self._refusals.clear()
        for form in self.take():
            form.close()
