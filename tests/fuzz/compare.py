"""Runs a case everywhere and says what differs."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.oracle.numbers import FLOATS, LARGEST, exact
from tests.oracle.randomness import dropout_problem

from .execute import run_partitions, run_reference
from .expect import Expected, float_error, ids_of

if TYPE_CHECKING:
    from .cases import Case, Node

__all__ = ["difference"]


def difference(case: Case) -> str | None:
    """What is wrong with a case, in a line or two; None if all agree."""
    expected = Expected(case)
    found: dict[str, dict[int, Any]] = {}
    for name, run in (("reference", run_reference), ("cpu", run_partitions)):
        problem = _of_backend(name, run, case, expected, found)
        if problem:
            return f"{name}: {problem}"
    return None


def _of_backend(name: str, run: Any, case: Case, expected: Expected, by_name: dict[str, dict[int, Any]]) -> str | None:
    try:
        found = by_name[name] = run(case, expected)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{where.filename.rsplit('/', 1)[-1]}:{where.lineno}"
        return f"{type(error).__name__} at {place}: {str(error)[:300]}"
    for node in case.nodes:
        ids = [i for i in ids_of(node) if i in found]
        if node.kind == "Dropout":
            problem = _of_dropout(expected, node, found, by_name["reference"]) if ids else None
        else:
            problem = next(filter(None, (_of_tensor(expected, i, found[i], name == "reference") for i in ids)), None)
        if problem:
            return f"{node.kind}: {problem}"
    return None


def _of_dropout(expected: Expected, node: Node, found: dict[int, Any], reference: dict[int, Any]) -> str | None:
    """Its properties, and that both backends drop the same elements."""
    x, *_, probability = (expected.values[i].astype(np.float64) for i in node.inputs)
    dst, *mask = (found[i].astype(np.float64) for i in ids_of(node))
    kept = [np.asarray(results[ids_of(node)[0]]) != 0 for results in (found, reference)]
    if (kept[0] != kept[1]).any():
        return "drops other elements than the reference"
    share = float(probability.reshape(-1)[0])
    error = float_error(x / max(1 - share, 1e-9), expected.dtypes[node.inputs[0]], 8.0)
    return dropout_problem(x, share, dst, mask[0] if mask else None, error)


def _of_tensor(expected: Expected, tensor_id: int, value: Any, is_reference: bool) -> str | None:
    dtype, wanted = expected.dtypes[tensor_id], expected.values[tensor_id]
    label = f"tensor {tensor_id}, {dtype}"
    if value.shape != wanted.shape or value.dtype != wanted.dtype:
        return f"{label}: {value.dtype}{value.shape}, not {wanted.dtype}{wanted.shape}"
    a, b = exact(value, dtype), exact(wanted, dtype)
    if dtype not in FLOATS and (a == b).all():
        return None
    a, b = a.astype(np.float64), b.astype(np.float64)
    if is_reference and not expected.free:
        tolerance: Any = _reference_tolerance(b, dtype)
    else:
        tolerance = expected.tolerance(tensor_id)
    with np.errstate(all="ignore"):
        top = LARGEST.get(dtype, np.inf)
        a_size, b_size = np.minimum(np.abs(a), top), np.minimum(np.abs(b), top)
        is_near = np.abs(np.copysign(a_size, a) - np.copysign(b_size, b)) <= tolerance
        close = (a == b) | (np.isnan(a) & np.isnan(b)) | is_near | np.isinf(tolerance)
        close |= expected.free.get(tensor_id, False)
    if close.all():
        return None
    place = tuple(int(n) for n in np.argwhere(~close)[0])
    bound = float(np.broadcast_to(tolerance, b.shape)[place])
    return (f"{label}: {int((~close).sum())} of {close.size} differ, at {place} {a[place]!r}, not {b[place]!r} "
            f"+- {bound:.3g}")  # fmt: skip


def _reference_tolerance(value: np.ndarray, dtype: str) -> Any:
    """A rounding error of the type, and some of float64; integers are equal."""
    if dtype not in FLOATS:
        return 0.0
    top = np.abs(np.nan_to_num(value, posinf=0, neginf=0)).max(initial=0.0)
    return float_error(value, dtype, 2.1) + 1e-12 * (min(top, 1e6) + 1e-3)
