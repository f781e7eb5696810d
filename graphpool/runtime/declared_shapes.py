"""What a model promises for declared shapes: forms compiled ahead, the largest peak, and what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphpool.errors import InvalidArgumentError, OutOfMemoryError, explain

from .form_charge import lacking_nbytes
from .load_room import refused_with
from .memory_peak import within_limit
from .range_cover import RangeCover
from .shape_ranges import RangePeak, corners_of, count_points, describe_key, describe_span, name_of, points_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from graphpool.memory import Budget

    from .engine import Engine
    from .executable import Executable
    from .mapped_reads import MappedReads
    from .range_cover import Worst
    from .shape_ranges import Box, ShapeRanges

__all__ = ["DeclaredShapes"]

_SUMS = "a dimension that is as long as others together is declared as their sum"

_MOST_POINTS = 16
"""Shapes that are compiled one by one at loading, where sizes cannot vary in a form."""


class DeclaredShapes:
    """The declared shapes of a model.

    Parameters
    ----------
    ranges : ShapeRanges
    name : str
        Of the model.
    deciding : sequence of str
        Inputs whose content decides shapes: nothing can be told before it is known.
    budget : Budget
    compile_at : callable
        Takes shapes; returns a form of which sizes vary, which the model keeps, or None if there can be none.
    give_up : callable
        Takes such a form, which is closed instead.
    settle : callable
        Brings in what all forms read of mapped files; called when they have been compiled.
    peak_at : callable
        Takes shapes and whether results are made; returns the peak of a form for these alone.

    Notes
    -----
    Threads: `prepare` one at a time.
    """

    def __init__(
        self,
        ranges: ShapeRanges,
        name: str,
        deciding: tuple[str, ...],
        budget: Budget,
        compile_at: Callable[[Mapping[str, Any]], Executable | None],
        give_up: Callable[[Executable], None],
        settle: Callable[[], None],
        peak_at: Callable[[Mapping[str, Any], bool], int],
    ) -> None:
        self._ranges, self._name, self._deciding, self._budget = ranges, name, deciding, budget
        self._compile_at, self._give_up, self._settle, self._peak_at = compile_at, give_up, settle, peak_at
        self._is_prepared = False
        self._worst: dict[bool, Worst] = {}  # by whether runs make their results
        self._points: list[dict[Any, int]] = []
        self._is_complete = True

    def check(self, shapes: Mapping[str, Any]) -> None:
        """Raise `InvalidShapeError` unless these shapes are declared."""
        self._ranges.check(shapes)

    @property
    def is_plannable(self) -> bool:
        """Whether memory can be planned ahead."""
        return not self._ranges.missing and not self._deciding

    def check_plannable(self) -> None:
        """Raise `InvalidArgumentError` if memory cannot be planned ahead."""
        needed = [*self._ranges.missing, *(f"the content of input {name!r}" for name in self._deciding)]
        if needed:
            what = "predict_peak without shapes needs a range for every size"
            hint = "declare sizes, or give predict_peak shapes, or inputs where their contents decide"
            raise InvalidArgumentError(explain(what, got=f"none for {', '.join(needed)}", hint=hint))

    def load(self) -> None:
        """Compile for all shapes, as far as that is possible, and refuse what never fits the budget.

        Raises
        ------
        OutOfMemoryError
            The run that takes most does not fit.
        InvalidArgumentError
            The model does not take some shapes that are declared.
        """
        if not self.is_plannable:
            return
        cover = self._cover()
        self._check_room(cover)
        self._points = list(self._points_of(cover.open_boxes))
        for point in self._points:
            try:
                self._peak_at(self._ranges.shapes_at(point), True)
            except InvalidArgumentError as error:
                sizes = self._describe_sizes(point)
                raise type(error)(f"{error}; among the declared shapes: {sizes}; {_SUMS}", **error.fields) from None

    def prepare(self) -> None:
        """Compile for all shapes where that was undone since."""
        if self.is_plannable and not self._is_prepared:
            self._cover()

    @property
    def most_run_nbytes(self) -> int | None:
        """What a run takes at most beside what is kept for all shapes; None if that is not known. Unit: bytes."""
        return self._worst[True].nbytes if self._is_complete and not self._points and self._worst else None

    def undo(self) -> None:
        """The forms are closed."""
        self._is_prepared = False

    def _cover(self) -> RangeCover:
        cover = RangeCover(self._ranges, self._compile_at)
        if cover.refine() and not self._has_room(cover.worst().nbytes + _lacking_nbytes(cover)):
            for form in cover.leave_out():
                self._give_up(form)
        cover.use_layouts()
        self._worst = {outputs: cover.worst(outputs=outputs) for outputs in (True, False)}
        refused = [form.refused for form in cover.forms if form.refused is not None]
        if refused:
            self._check_room(cover, max(error.fields.get("smallest_limit") or 0 for error in refused))
            raise OutOfMemoryError(str(refused[0]), **refused[0].fields)  # the form has the other one
        self._settle()
        self._is_prepared = True
        return cover

    def _points_of(self, boxes: list[Box]) -> Iterator[dict[Any, int]]:
        """Shapes of which the peak is looked up where no form serves a range: all, or corners."""
        self._is_complete = sum(map(count_points, boxes)) <= _MOST_POINTS
        left = _MOST_POINTS
        for box in boxes:
            for point in points_of(box) if self._is_complete else corners_of(box):
                if left:
                    left -= 1
                    yield point

    def _has_room(self, nbytes: int) -> bool:
        budget = self._budget
        return budget.in_use + nbytes <= budget.limit or budget.kept + nbytes <= budget.limit

    def _check_room(self, cover: RangeCover, smallest_limit: int = 0) -> None:
        """Refuse what does not fit; loading takes so much at least."""
        worst = self._worst[True]
        try:
            self._budget.check(worst.nbytes + _lacking_nbytes(cover), holder=self._name)
        except OutOfMemoryError as error:
            least = refused_with(error, max(error.fields["smallest_limit"], smallest_limit))
            raise self._refusal(cover, worst, least) from None

    def _refusal(self, cover: RangeCover, worst: Worst, error: Any) -> OutOfMemoryError:
        """The error for ranges of which a run does not fit, with those that do."""
        kept_nbytes = error.smallest_limit - worst.nbytes
        fitting, how = cover.largest_that_fits(error.limit - kept_nbytes), "each alone"
        if not fitting and len(self._ranges.box) > 1:
            fitting, how = cover.largest_together(error.limit - kept_nbytes), "together"
        ranges = {
            key: f"{describe_key(key)} {describe_span((self._ranges.spans[key][0], most))}"
            for key, most in fitting.items()
        }
        sizes = self._describe_sizes(worst.point)
        fits = f"what fits, {how}: {'; '.join(ranges.values())}" if ranges else "no smaller ranges fit"
        inside = ", beside what branches and loops take" if any(form.form.inner for form in cover.forms) else ""
        message = explain(
            f"{self._name}: a run of the declared shapes takes up to {worst.nbytes} bytes (at {sizes})",
            accepted=f"up to {error.limit} bytes in all",
            got=f"{kept_nbytes} bytes of constants, programs and others' in use",
            hint=f"{fits}; the smallest limit that serves all is {error.smallest_limit} bytes{inside}",
        )
        largest = {name_of(key): most for key, most in fitting.items()}
        return OutOfMemoryError(message, **{**error.fields, "largest": largest})

    def _describe_sizes(self, point: Mapping[Any, int]) -> str:
        return ", ".join([f"{name} = {size}" for name, size in self._ranges.sizes_at(point).items()])

    def peak(
        self,
        kept_nbytes: int,
        reads: MappedReads,
        engine: Engine,
        outputs: bool,
        inner_nbytes: int = 0,
        untouched_nbytes: int = 0,
        later_nbytes: int = 0,
    ) -> RangePeak:
        """The most that a run takes, beside so much that is kept for all shapes, and what it reads of mapped files.

        `inner_nbytes` is a bound of what models inside the forms take; so much of the arena no run touches. Under a
        limit some run may find room for `later_nbytes` of packed constants too, or for a part of them.
        """
        worst = self._worst[outputs]
        nbytes, point = kept_nbytes + worst.nbytes + inner_nbytes, worst.point
        is_exact = worst.found_nbytes == worst.nbytes and not inner_nbytes
        for other in self._points:
            other_nbytes = self._peak_at(self._ranges.shapes_at(other), outputs)
            if other_nbytes > nbytes or not point:
                nbytes, point, is_exact = other_nbytes, other, True
        sizes, shapes = self._ranges.sizes_at(point), self._ranges.shapes_at(point)
        if engine.memory_limit is not None and later_nbytes:  # without a limit they were packed when forms were made
            nbytes, is_exact = nbytes + later_nbytes, False
        nbytes, is_all = within_limit(nbytes, engine)
        is_exact = is_exact and is_all and self._is_complete
        return RangePeak(nbytes, sizes, shapes, is_exact, self._is_complete, reads, engine, untouched_nbytes)


def _lacking_nbytes(cover: RangeCover) -> int:
    """What the forms that found no room would have been charged. Unit: bytes."""
    return lacking_nbytes(form.charge for form in cover.forms)
