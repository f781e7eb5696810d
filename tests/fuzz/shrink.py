"""Makes a failing case small: fewer ops, plainer options, smaller sizes, as long as it goes on failing."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING

import numpy as np

from .cases import Case, Source
from .compare import difference
from .expect import Expected, ids_of

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["shrink"]

MOST_TRIALS = 400


def shrink(case: Case, problem: str) -> Case:
    """The smallest case that greedy steps reach and that fails in the same way.

    `problem` is what `difference` says of the case; a step counts when the answer names the same backend and, where it
    is an exception, the same line.
    """
    wanted, left = _signature(problem), MOST_TRIALS
    changed = True
    while changed and left:
        changed = False
        for candidate in _steps(case):
            left -= 1
            if not left:
                break
            if _fails(candidate, wanted):
                case, changed = candidate, True
                break
    return case


def _signature(problem: str) -> tuple[str, ...]:
    """What must stay the same: the backend, and the exception with its place or that a number differs."""
    backend, what, *_ = problem.split(": ")
    return backend, what if ".py:" in what or ".pyx:" in what else "differs"


def _fails(case: Case, wanted: tuple[str, ...]) -> bool:
    try:
        problem = difference(case)
    except Exception:  # the step made a graph that is none
        return False
    return problem is not None and _signature(problem) == wanted


def _steps(case: Case) -> Iterator[Case]:
    yield from _without_options(case)
    yield from _without_nodes(case)
    yield from _with_values_as_inputs(case)
    yield from _with_plainer_sources(case)
    yield from _with_smaller_sizes(case)


def _without_options(case: Case) -> Iterator[Case]:
    for name in case.options:
        if (name, case.options[name]) in (("threads", 1), ("policy", "fusion"), ("shapes", False)):
            continue
        smaller = deepcopy(case)
        del smaller.options[name]
        yield smaller
    for name in ("strided", "opaque"):
        for item in case.options.get(name, ()) if len(case.options.get(name, ())) > 1 else ():
            smaller = deepcopy(case)
            smaller.options[name].remove(item)
            yield smaller


def _without_nodes(case: Case) -> Iterator[Case]:
    """Without the ops that no other one reads, all others first, then one by one."""
    read = {i for node in case.nodes for i in node.inputs}
    ends = [n for n, node in enumerate(case.nodes) if not read & set(ids_of(node))]
    for keep in ends if len(ends) > 1 else ():
        yield _closed(case, [keep])
    for n in ends:
        yield _closed(case, [m for m in ends if m != n] + [m for m in range(n) if m not in ends])


def _closed(case: Case, keep: list[int]) -> Case:
    """The ops `keep` with all that they need."""
    smaller = deepcopy(case)
    made_by = {i: n for n, node in enumerate(case.nodes) for i in ids_of(node)}
    needed, todo = set(), list(keep)
    while todo:
        n = todo.pop()
        needed.add(n)
        todo += [made_by[i] for i in case.nodes[n].inputs if i in made_by and made_by[i] not in needed]
    smaller.nodes = [node for n, node in enumerate(smaller.nodes) if n in needed]
    return _trimmed(smaller)


def _trimmed(case: Case) -> Case:
    """Without inputs that nothing reads."""
    read = {i for node in case.nodes for i in node.inputs}
    case.sources = {i: source for i, source in case.sources.items() if i in read}
    known = {i for node in case.nodes for i in ids_of(node)} | set(case.sources)
    for name in ("strided", "opaque"):
        if name in case.options:
            case.options[name] = [i for i in case.options[name] if i in known]
    return case


def _with_values_as_inputs(case: Case) -> Iterator[Case]:
    """With an op's result replaced by an input of its type and shape."""
    for node in case.nodes[:-1]:
        smaller = deepcopy(case)
        values = Expected(case).values
        smaller.nodes = [other for other in smaller.nodes if other.outputs != node.outputs]
        for i, dtype in node.outputs:
            numbers = np.asarray(values[i]).astype(np.float64)
            fill = {"low": float(numbers.min(initial=0)), "high": float(numbers.max(initial=0))}
            if dtype[0] in "su":
                fill = {name: int(value) for name, value in fill.items()}
            smaller.sources[i] = Source(dtype, list(np.shape(values[i])), fill)
        yield _trimmed(smaller)


def _with_plainer_sources(case: Case) -> Iterator[Case]:
    for i, source in case.sources.items():
        if source.constant:
            smaller = deepcopy(case)
            smaller.sources[i].constant = False
            yield smaller


def _with_smaller_sizes(case: Case) -> Iterator[Case]:
    """With one number replaced by a smaller one in all shapes and in lists of attributes that hold sizes."""
    numbers = sorted({dim for source in case.sources.values() for dim in source.shape if dim > 1}, reverse=True)
    for number in numbers:
        for less in sorted({1, 2, number // 2, number - 1} - {0, number}):
            for with_attributes in (False, True):
                smaller = deepcopy(case)
                for source in smaller.sources.values():
                    source.shape = [less if dim == number else dim for dim in source.shape]
                if with_attributes:
                    for node in smaller.nodes:
                        for name, value in node.attrs.items():
                            if isinstance(value, list) and ("shape" in name or name in ("sizes", "split", "ends")):
                                node.attrs[name] = [less if item == number else item for item in value]
                yield smaller
