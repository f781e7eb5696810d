"""Forms that serve all shapes of declared ranges, and what their runs take at most.

A form serves the shapes for which its decisions come out alike. Which parts of the ranges those are is found by bounds
of the sizes in boxes of shapes: a box that is served as a whole is done, one that is served in part is halved, and for
one that no form serves another form is compiled, at the largest shape in it.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import count, islice
from typing import TYPE_CHECKING, Any

from graphpool.errors import OutOfMemoryError

from .shape_ranges import corner, corners_of, count_points, halves

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from graphpool._size_bounds import SizeBounds

    from .executable import Executable
    from .form_plan import RangeLayout
    from .shape_ranges import Box, ShapeRanges

__all__ = ["MOST_FORMS", "RangeCover", "Worst"]

MOST_FORMS = 32
"""Forms that are compiled so that each shape has one at all."""

_MOST_FASTEST = 8
"""Forms beyond these, compiled so that more shapes have one whose decisions are those that are fastest for them."""

_EFFORT = 50_000
"""Boxes to look at, for either purpose and for the largest run. A look takes 0.1 ms in large models."""

_CORNERS = 16


class Worst:
    """What the runs in some part of the ranges take at most, beside what is kept between runs, and where.

    `nbytes` is the most of any run, `found_nbytes` what one of the sizes `point` takes.
    """

    __slots__ = ("found_nbytes", "nbytes", "point")

    def __init__(self) -> None:
        self.nbytes = self.found_nbytes = 0
        self.point: dict[Any, int] = {}

    def note(self, nbytes: int, point: Mapping[Any, int]) -> None:
        """A run of these sizes takes so much."""
        if nbytes > self.found_nbytes or not self.point:
            self.found_nbytes, self.point = nbytes, dict(point)
        self.nbytes = max(self.nbytes, nbytes)


class RangeCover:
    """Forms, and the boxes that each one serves.

    Parameters
    ----------
    ranges : ShapeRanges
    compile_at : callable
        Takes shapes of the inputs; returns a form compiled for sizes that vary, or None if there can be none.

    Attributes
    ----------
    forms : list of Executable
        From `use_layouts` on with layouts for the boxes that each one serves.
    open_boxes : list of dict
        Parts that no form serves.

    Raises
    ------
    OutOfMemoryError
        There is no memory for the programs and constants of the forms; those are the caller's to close.

    Notes
    -----
    Ownership: the forms are the caller's, who is given each when it is made. Threads: one at a time.
    """

    def __init__(self, ranges: ShapeRanges, compile_at: Callable[[Mapping[str, Any]], Executable | None]) -> None:
        self._ranges, self._compile_at = ranges, compile_at
        self.forms: list[Executable] = []
        self._served: list[tuple[int, Box]] = []
        self.open_boxes: list[Box] = self._serve([ranges.box], MOST_FORMS, exactly=False)
        self._needed, self._needed_served = len(self.forms), self._served
        self._whole_layouts = self._layouts({})

    def refine(self) -> bool:
        """Compile more forms, so that more shapes have one whose decisions are fastest for them; whether there are any.

        `leave_out` undoes it.
        """
        if self.open_boxes:
            return False
        self._served = []
        rest = self._serve([self._ranges.box], self._needed + _MOST_FASTEST, exactly=True)
        if self._serve(rest, 0, exactly=False):  # too many parts to look at
            self._served = self._needed_served
        self._whole_layouts = self._layouts({})
        return len(self.forms) > self._needed

    def leave_out(self) -> list[Executable]:
        """Do without the forms that nothing but speed needs, which the caller closes."""
        left, self.forms = self.forms[self._needed :], self.forms[: self._needed]
        self._served = self._needed_served
        self._whole_layouts = self._layouts({})
        return left

    def use_layouts(self) -> None:
        """Let the forms keep to their layouts from now on."""
        for form, layout in self._whole_layouts.items():
            self.forms[form].use_layout(layout)

    # ---- which form serves what

    def _serve(self, boxes: Iterable[Box], most_forms: int, *, exactly: bool) -> list[Box]:
        """Find a form for every shape of the boxes; the boxes that have none, the largest first."""
        order = count()
        nothing: frozenset[int] = frozenset()
        heap = [(-count_points(box), next(order), box, nothing) for box in boxes]
        heapify(heap)
        rest = []
        self._effort = _EFFORT
        while heap:
            _, _, box, known = heappop(heap)
            useless = set(known)
            parts = self._place(box, useless, most_forms, exactly) if self._effort > 0 else None
            for part in parts or ():
                heappush(heap, (-count_points(part), next(order), part, frozenset(useless)))
            if parts is None:
                rest.append(box)
        return rest

    def _place(self, box: Box, useless: set[int], most_forms: int, exactly: bool) -> list[Box] | None:
        """Note which form serves a box: the boxes to go on with, or None if none can be found.

        `useless` are forms that serve no shape in it, to which others are added.
        """
        is_point = count_points(box) == 1
        split: Any = None
        for number, form in enumerate(self.forms):
            if number in useless:
                continue
            self._effort -= 1
            if is_point:
                shapes = self._ranges.shapes_at(corner(box))
                answer: bool | None = form.variable.values(shapes, exactly) is not None
            else:
                bounds = self._bounds(form, box)
                answer = bounds.holds(exactly)
                if answer is None and split is None:
                    split = self._key_to_split(box, form.variable.open_places(bounds))
            if answer:
                self._served.append((number, box))
                return []
            if answer is False:
                useless.add(number)
        if split is not None:
            return halves(box, split)
        return [box] if self._compile(box, most_forms, exactly) else None

    def _bounds(self, form: Executable, box: Box) -> SizeBounds:
        return form.variable.bounds(self._ranges.spans_at(box))

    def _key_to_split(self, box: Box, places: Iterable[tuple[str, int]]) -> Any:
        """The widest size, of those on which the first open question hangs."""
        asked = {self._ranges.key_at(*place) for place in places}
        return max(box, key=lambda key: (box[key][0] < box[key][1] and key in asked, box[key][1] - box[key][0]))

    def _compile(self, box: Box, most_forms: int, exactly: bool) -> bool:
        """Make one more form, for the largest shape in a box, if there may be one."""
        if len(self.forms) >= most_forms:
            return False
        try:
            made = self._compile_at(self._ranges.shapes_at(corner(box)))
        except OutOfMemoryError:
            if exactly:  # those that there are will do
                return False
            raise
        if made is not None:
            self.forms.append(made)
        return made is not None

    # ---- what runs take

    def _within(self, box: Box) -> Iterator[tuple[int, Box]]:
        """What is served of a part of the ranges, given by those sizes that are not as declared."""
        for number, served in self._served:
            part = {key: _meet(span, box.get(key, span)) for key, span in served.items()}
            if all(least <= most for least, most in part.values()):
                yield number, part

    def _layouts(self, box: Box) -> dict[int, RangeLayout]:
        """The layout of each form for what it serves of a part of the ranges."""
        joined: dict[int, SizeBounds] = {}
        for number, part in self._within(box):
            bounds = self._bounds(self.forms[number], part)
            joined.setdefault(number, bounds).join(bounds)
        return {number: self.forms[number].layout(bounds) for number, bounds in joined.items()}

    def worst(self, box: Box | None = None, *, outputs: bool = True) -> Worst:
        """The run that takes most, of the shapes that forms serve in a part of the ranges; with its results or not.

        Runs are compared by the most that they may take in a box of shapes, which is halved where that is more than
        what has been found for a shape in it.
        """
        found = Worst()
        layouts = self._layouts(box) if box else self._whole_layouts
        order = count()
        heap: list[tuple[int, int, int, Box]] = []

        def push(number: int, part: Box) -> None:
            form = self.forms[number]
            fixed = layouts[number].nbytes + form.variable.instance_nbytes
            top = fixed + form.most_run_nbytes(self._bounds(form, part), outputs)
            for point in islice(corners_of(part), _CORNERS):
                if found.found_nbytes >= top and found.point:
                    return
                exact = self._bounds(form, {key: (size, size) for key, size in point.items()})
                found.note(fixed + form.most_run_nbytes(exact, outputs), point)
            if top > found.found_nbytes:
                heappush(heap, (-top, next(order), number, part))

        for number, part in self._within(box or {}):
            push(number, part)
        effort = _EFFORT
        while heap and -heap[0][0] > found.found_nbytes:
            top, _, number, part = heappop(heap)
            effort -= 1
            if effort == 0:
                found.nbytes = -top
                break
            if count_points(part) > 1:
                for half in halves(part, max(part, key=lambda key: part[key][1] - part[key][0])):
                    push(number, half)
        return found

    def largest_that_fits(self, nbytes: int) -> dict[Any, int]:
        """Of each size the largest upper end with which all runs take at most so much, the other sizes as declared.

        A size is left out where not even its lower end will do.
        """
        found = {}
        for key, (least, most) in self._ranges.box.items():
            steps = self._steps_that_fit([key], most - least, nbytes)
            if steps >= 0:
                found[key] = least + steps
        return found

    def largest_together(self, nbytes: int) -> dict[Any, int]:
        """Upper ends, all as far up their ranges, with which all runs take at most so much; none if there are none."""
        box = self._ranges.box
        widest = max(most - least for least, most in box.values())
        steps = self._steps_that_fit(box, widest, nbytes)
        return corner(self._part([*box], steps, widest)) if steps >= 0 else {}

    def _part(self, keys: Iterable[Any], steps: int, of: int) -> Box:
        """The ranges of these sizes so many steps up, of those to their upper ends."""
        spans = [(key, self._ranges.box[key]) for key in keys]
        return {key: (least, least + (most - least) * steps // of) for key, (least, most) in spans}

    def _steps_that_fit(self, keys: Collection[Any], of: int, nbytes: int) -> int:
        """How far these sizes may go up for all runs to take at most so much; -1 if their lower ends will not do."""
        low, high = -1, of  # the first fits, or is none; the second does not
        while high - low > 1:
            middle = (low + high) // 2
            if self.worst(self._part(keys, middle, of)).nbytes <= nbytes:
                low = middle
            else:
                high = middle
        return low


def _meet(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    return max(a[0], b[0]), min(a[1], b[1])
