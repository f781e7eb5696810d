"""benchdnn's knobs: what a user changes of a graph that was read from a file, written as short texts.

    in-shapes             ID:DIMS[*STRIDES | *TAG] + ...   "-" is rank 0, "*TAG" alone changes strides only
    op-attrs              ID:NAME:VALUE*NAME:VALUE + ...   lists are written 1x2x3
    dt                    TYPE for all floats, or ID:TYPE + ...
    op-kind               ID:KIND + ...                    "undef" takes the op out
    tensor-property       ID:PROPERTY + ...
    mb                    N, the batch: first dimension of the inputs that are neither constants nor parameters
    attr-fpmath           MODE[:APPLY_TO_INT]
    expected-n-partitions N, 0 for any number

`parse_knobs` reads the texts, `Graph.from_json` applies them. Commas separate alternatives, an
empty one being the graph as it is: `expand_knobs` gives every combination.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, TypeVar

from graphpool._dataclasses import dataclass, field

from ...errors import InvalidArgumentError, brief, explain
from ...typing import DataType
from ..logical_tensor import MAX_ID

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

KNOBS: Mapping[str, tuple[str, str]] = {
    "in-shapes": ("ID:DIMS[*STRIDES|*TAG]+...", "shapes, strides or layout tags of inputs: 0:2x3+1:*ba"),
    "op-attrs": ("ID:NAME:VALUE*...+...", "attributes of ops: 4:strides:2x2*groups:1"),
    "dt": ("TYPE | ID:TYPE+...", "data type of all float tensors, or of some: bf16"),
    "op-kind": ("ID:KIND+...", "kinds of ops, undef to take one out: 1:Multiply"),
    "tensor-property": ("ID:PROPERTY+...", "properties of tensors: 4:constant"),
    "mb": ("N", "batch: first dimension of the inputs that are no parameters"),
    "attr-fpmath": ("MODE[:BOOL]", "float mode of the graph, and whether it is meant for integers: bf16:true"),
    "expected-n-partitions": ("N", "how many partitions there must be, 0 for any number"),
}
"""Name -> (form, what it changes)."""

ALTERNATIVES = ("in-shapes", "op-attrs", "expected-n-partitions", "attr-fpmath", "op-kind", "tensor-property", "dt",
                "dtm", "mb")  # fmt: skip
"""From the outermost loop to the innermost, as benchdnn runs them; ``dtm`` is ``dt`` by ids beside a ``dt`` for all."""


@dataclass(frozen=True)
class Shape:
    """New dimensions, None to keep them, and how they lie: strides, a tag, or None for row-major."""

    dims: tuple[int, ...] | None
    layout: tuple[int, ...] | str | None


@dataclass(frozen=True)
class Knobs:
    """Parsed knobs; whatever is empty or None stays as the graph has it.

    `shapes`, `dtypes` and `properties` go by tensor id, `attrs` (attribute -> value as text) and `kinds` by op id,
    where None takes the op out. `dtype` is for every float tensor; `expected_partitions` is 0 for any number.
    """

    shapes: Mapping[int, Shape] = field(default_factory=dict)
    attrs: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    dtype: DataType | None = None
    dtypes: Mapping[int, DataType] = field(default_factory=dict)
    kinds: Mapping[int, str | None] = field(default_factory=dict)
    properties: Mapping[int, str] = field(default_factory=dict)
    batch: int | None = None
    fpmath: tuple[str, bool] | None = None
    expected_partitions: int = 0


def parse_knobs(texts: Mapping[str, str]) -> Knobs:
    """Read knobs.

    Parameters
    ----------
    texts : mapping of str to str
        Knob -> text without alternatives; empty ones are left out.

    Raises
    ------
    InvalidArgumentError
        An unknown knob, or a text that has not its form; the message shows the form.
    """
    for name, value in texts.items():
        if not isinstance(value, str):
            raise InvalidArgumentError(explain(f"--{name}", accepted="a string", got=brief(value)), knob=name)
    given = {name: text for name, text in texts.items() if text}
    for name in given:
        if name not in ALTERNATIVES:
            raise InvalidArgumentError(explain(f"unknown knob {name!r}", accepted=", ".join(KNOBS)), knob=name)
    dt = given.get("dt", "")
    by_id = "+".join(text for text in (given.get("dtm", ""), dt if ":" in dt else "") if text)
    return Knobs(
        shapes=_by_id("in-shapes", given, _shape),
        attrs=_by_id("op-attrs", given, _attributes),
        dtype=_dtype(dt) if dt and ":" not in dt else None,
        dtypes=_by_id("dt", {"dt": by_id}, _dtype),
        kinds=_by_id("op-kind", given, lambda kind: None if kind == "undef" else kind),
        properties=_by_id("tensor-property", given, str),
        batch=_number("mb", given["mb"]) if "mb" in given else None,
        fpmath=_fpmath(given["attr-fpmath"]) if "attr-fpmath" in given else None,
        expected_partitions=_number("expected-n-partitions", given.get("expected-n-partitions", "0")),
    )


def expand_knobs(texts: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Every combination of the alternatives that commas separate, in benchdnn's order."""
    names = [name for name in ALTERNATIVES if texts.get(name)]
    unknown = [name for name in texts if name not in ALTERNATIVES]
    for values in product(*(texts[name].split(",") for name in names)):
        chosen = {name: value for name, value in zip(names, values, strict=True) if value}
        yield {name: texts[name] for name in unknown} | chosen


# ---- texts


def _refuse(name: str, got: str) -> InvalidArgumentError:
    return InvalidArgumentError(explain(f"--{name}", accepted=KNOBS[name][0], got=brief(got)), knob=name)


def _number(name: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 20 or int(text) > MAX_ID:
        raise _refuse(name, text)
    return int(text)


_Value = TypeVar("_Value")


def _by_id(name: str, texts: Mapping[str, str], read: Callable[[str], _Value]) -> dict[int, _Value]:
    """ID:VALUE + ID:VALUE."""
    found: dict[int, _Value] = {}
    for item in (texts.get(name) or "").split("+"):
        if not item:
            continue
        number, colon, value = item.partition(":")
        if not colon or not value:
            raise _refuse(name, item)
        found[_number(name, number)] = read(value)
    return found


def _shape(text: str) -> Shape:
    dims, star, layout = text.partition("*")
    if star and not layout:
        raise _refuse("in-shapes", text)
    lies: tuple[int, ...] | str | None = None
    if layout:
        lies = _dims(layout) if layout[0].isdigit() else layout
    return Shape(_dims(dims) if dims else None, lies)


def _dims(text: str) -> tuple[int, ...]:
    return () if text == "-" else tuple(_number("in-shapes", dim) for dim in text.split("x"))


def _attributes(text: str) -> dict[str, str]:
    changes = {}
    for change in text.split("*"):
        name, colon, value = change.partition(":")
        if not colon or not name:
            raise _refuse("op-attrs", change)
        changes[name] = value
    return changes


def _dtype(text: str) -> DataType:
    return DataType.parse(text)


def _fpmath(text: str) -> tuple[str, bool]:
    mode, _, to_int = text.partition(":")
    if to_int not in ("", "true", "false"):
        raise _refuse("attr-fpmath", text)
    return mode, to_int == "true"
