"""The shapes that a model is declared for: a range for each size that may vary."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from math import prod
from operator import index
from typing import TYPE_CHECKING, Any

from graphpool.errors import InvalidArgumentError, InvalidShapeError, brief, explain

from .mapped_reads import NO_READS
from .memory_peak import MemoryPeak
from .model_port import describe_port
from .variable_form import SizeSum

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from .engine import Engine
    from .mapped_reads import MappedReads
    from .model_port import ModelPort

    Key = str | tuple[str, int]
    """Name of a dimension, or an input and an axis of it that has none."""
    Span = tuple[int, int]
    Box = Mapping[Key, Span]

__all__ = [
    "RangePeak",
    "ShapeRanges",
    "corner",
    "corners_of",
    "count_points",
    "describe_key",
    "describe_span",
    "halves",
    "name_of",
    "parse_span",
    "points_of",
]

_MOST = 2**63 - 1
_ACCEPTED = "a number, or (least, most) with 0 <= least <= most"


class RangePeak(MemoryPeak):
    """The largest peak of a model over its declared shapes. Unit: bytes.

    Attributes are those of `MemoryPeak`, and:

    Attributes
    ----------
    sizes : dict of str to int
        By the names of dimensions, or ``"input[axis]"``: where a run takes so much.
    shapes : dict of str to tuple of int
        Those of the inputs there.
    is_exact : bool
        Whether a run of these shapes takes just that; else it is a bound that none passes, or, where `is_complete` is
        False, the most that was found.
    is_complete : bool
        Whether all declared shapes were taken into account.
    """

    sizes: dict[str, int]
    shapes: dict[str, tuple[int, ...]]
    is_complete: bool

    def __new__(
        cls,
        nbytes: int,
        sizes: dict[str, int],
        shapes: dict[str, tuple[int, ...]],
        is_exact: bool,
        is_complete: bool,
        reads: MappedReads = NO_READS,
        engine: Engine | None = None,
        untouched_nbytes: int = 0,
    ) -> RangePeak:
        """A number with facts about it."""
        found = int.__new__(cls, nbytes)
        found._describe(reads, engine, untouched_nbytes)
        found.sizes, found.shapes, found.is_exact, found.is_complete = sizes, shapes, is_exact, is_complete
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        facts = self.sizes, self.shapes, self.is_exact, self.is_complete, self._plain_reads
        return type(self), (int(self), *facts), self._host_facts


class ShapeRanges:
    """Ranges of the sizes of a model's inputs.

    Parameters
    ----------
    declared : mapping of str to int, (int, int) or sequence
        By the name of a dimension a number or a range, both ends included; by the name of an input one of them for each
        dimension, a name for one that has the same size wherever that name stands, or None for one of which nothing is
        said here. A name that is both is the dimension's. Of a dimension that is as long as others together their sum:
        ``"past + tokens"``; one that has a sum of declared dimensions as its name is that, if nothing else is declared.
    ports : sequence of ModelPort
        The inputs.

    Attributes
    ----------
    spans : dict of key to (int, int)
        Of each size that is declared.
    dims : dict of str to tuple or None
        Of each input its dimensions, as `Symbols` takes them: fixed ones are ints.
    sums : dict of str to SizeSum
        Dimensions that are as long as others together.
    missing : tuple of str
        Sizes of which nothing is declared, described.

    Raises
    ------
    InvalidArgumentError
        No input has such a name, or what is declared is no range, or contradicts the model or itself.
    """

    def __init__(self, declared: Mapping[str, Any], ports: Sequence[ModelPort]) -> None:
        if not isinstance(declared, Mapping):
            accepted = 'a mapping such as {"batch": (1, 8)}'
            raise InvalidArgumentError(explain("shapes", accepted=accepted, got=brief(declared)))
        self.spans: dict[Key, Span] = {}
        self._ports = {port.name: port for port in ports}
        self._keys = {port.name: None if port.shape is None else _keys_of(port.name, port.shape) for port in ports}
        self._name_dimensions(declared)
        self.sums: dict[str, SizeSum] = {}
        named = {key for keys in self._keys.values() for key in keys or () if isinstance(key, str)}
        for name, value in declared.items():
            if name in named and isinstance(value, str):
                continue
            if name in named:
                self._declare(name, parse_span(name, value))
            elif name in self._ports:
                self._declare_input(self._ports[name], value)
            else:
                accepted = ", ".join([*sorted(named), *(f"{port} (one entry a dimension)" for port in self._ports)])
                raise InvalidArgumentError(
                    explain(f"shapes: no dimension or input is called {brief(name)}", accepted=accepted or "none"),
                    name=name,
                )
        self._find_sums(declared, named)
        self.dims = {name: None if keys is None else tuple(map(self._dim, keys)) for name, keys in self._keys.items()}
        self.missing = tuple(self._find_missing(ports))

    def _name_dimensions(self, declared: Mapping[str, Any]) -> None:
        """Give dimensions the names that entries of inputs have for them."""
        names: dict[Any, str] = {}
        for name in self._ports.keys() & declared.keys():
            entries = declared[name] if isinstance(declared[name], (tuple, list)) else ()
            keys = self._keys[name]
            if keys is None and entries:
                keys = self._keys[name] = _keys_of(name, (None,) * len(entries))
            for axis, (key, entry) in enumerate(zip(keys or (), entries, strict=False)):  # lengths are compared later
                if not isinstance(entry, str):
                    continue
                if isinstance(key, int) or names.setdefault(key, entry) != entry:
                    accepted = f"{key}, as in the model" if isinstance(key, int) else f"{names[key]!r}, as elsewhere"
                    what = f"shapes: dimension {axis} of input {name!r}"
                    raise InvalidArgumentError(explain(what, accepted=accepted, got=brief(entry)), input_name=name)
        for name, keys in self._keys.items():
            self._keys[name] = None if keys is None else tuple([names.get(key, key) for key in keys])

    def _find_sums(self, declared: Mapping[str, Any], named: Collection[str]) -> None:
        """Note dimensions that are sums of declared ones, as is said of them or as they are called."""
        for name in sorted(named):
            text = declared.get(name, name)
            is_said = name in declared and isinstance(text, str)
            if not is_said and (name in self.spans or "+" not in name):
                continue
            found = None if name in self.spans else _parse_sum(text, self.spans)
            if found is not None:
                self.sums[name] = found
            elif is_said:
                known = ", ".join([key for key in self.spans if isinstance(key, str) and key != name])
                accepted = f"a range, or a sum of numbers and of dimensions that have one: {known or 'none'}"
                raise InvalidArgumentError(explain(f"shapes: {name!r}", accepted=accepted, got=brief(text)), name=name)

    def _declare(self, key: Key, span: Span) -> None:
        if self.spans.setdefault(key, span) != span:
            what = f"shapes: {describe_key(key)} is declared twice"
            raise InvalidArgumentError(explain(what, accepted=describe_span(self.spans[key]), got=describe_span(span)))

    def _declare_input(self, port: ModelPort, value: Any) -> None:
        try:
            entries = list(value)
        except TypeError:
            entries = None
        keys = self._keys[port.name]
        if keys is None and entries is not None:
            keys = self._keys[port.name] = _keys_of(port.name, (None,) * len(entries))
        if entries is None or keys is None or isinstance(value, str) or len(entries) != len(keys):
            accepted = f"one entry for each dimension of {describe_port(port)}"
            raise InvalidArgumentError(
                explain(f"shapes: input {port.name!r}", accepted=accepted, got=brief(value)), input_name=port.name
            )
        for axis, (key, entry) in enumerate(zip(keys, entries, strict=True)):
            if entry is None or isinstance(entry, str):
                continue
            span = parse_span(f"{port.name}[{axis}]", entry)
            if not isinstance(key, int):
                self._declare(key, span)
            elif span != (key, key):
                what = f"shapes: dimension {axis} of input {port.name!r}"
                raise InvalidArgumentError(
                    explain(what, accepted=f"{key}, as in the model", got=describe_span(span)), input_name=port.name
                )

    def _dim(self, key: Any) -> Any:
        """A dimension as `Symbols` takes it."""
        if key in self.sums:
            parts = [(name, self._dim(name)) for name in self.sums[key].names]
            more = sum([dim for _, dim in parts if isinstance(dim, int)], self.sums[key].more)
            names = tuple([name for name, dim in parts if not isinstance(dim, int)])
            return SizeSum(names, more) if names else more
        least, most = self.spans.get(key, (0, 1))
        return most if least == most else None if isinstance(key, tuple) else key

    def _find_missing(self, ports: Sequence[ModelPort]) -> Iterator[str]:
        seen: set[Any] = set()
        for port in ports:
            keys = self._keys[port.name]
            if keys is None:
                yield f"the shape of input {port.name!r}"
            for key in keys or ():
                if not isinstance(key, int) and key not in self.spans and key not in self.sums and key not in seen:
                    seen.add(key)
                    yield describe_key(key)

    def check(self, shapes: Mapping[str, Any]) -> None:
        """Raise `InvalidShapeError` unless the shapes are among those that are declared."""
        found: dict[Any, tuple[int, str]] = {}
        sums: list[tuple[str, int, str, tuple[int, ...]]] = []
        for name, shape in shapes.items():
            keys = self._keys[name]
            if keys is None or shape is None:
                continue
            if len(keys) != len(shape):  # of an input without a rank
                raise InvalidShapeError(
                    explain(f"input {name!r}: rank {len(shape)}", accepted=len(keys), got=f"shape {shape}"),
                    input_name=name,
                )
            for axis, (key, size) in enumerate(zip(keys, shape, strict=True)):
                if key in self.sums:
                    sums.append((name, axis, key, shape))
                if key not in self.spans:
                    continue
                least, most = self.spans[key]
                if not least <= size <= most:
                    what = f"dimension {axis} of input {name!r}" + (f", {key!r}," if isinstance(key, str) else "")
                    accepted = f"{describe_span((least, most))}, as declared"
                    message = explain(f"{what} is {size}", accepted=accepted, got=f"shape {shape}")
                    raise InvalidShapeError(message, input_name=name, dim=axis)
                known, where = found.setdefault(key, (size, name))
                if known != size:
                    what = f"dimension {key!r} is {known} in input {where!r} and {size} in input {name!r}"
                    raise InvalidShapeError(explain(what, accepted="one size"), input_name=name, dim=axis)
        sizes = {key: size for key, (size, _) in found.items()}
        for name, axis, key, shape in sums:
            if sizes.keys() >= {*self.sums[key].names} and self.sums[key].of(sizes) != shape[axis]:
                accepted = f"{self.sums[key].of(sizes)}, {self.sums[key]}"
                what = f"dimension {axis} of input {name!r}, {key!r}, is {shape[axis]}"
                message = explain(what, accepted=accepted, got=f"shape {shape}")
                raise InvalidShapeError(message, input_name=name, dim=axis)

    def largest_shapes(self) -> dict[str, tuple[int, ...]]:
        """The largest shape of each input of which all sizes are declared or fixed."""
        sizes = self._with_sums({key: most for key, (_, most) in self.spans.items()})
        known = {name: keys for name, keys in self._keys.items() if keys is not None}
        whole = {
            name: keys for name, keys in known.items() if all(isinstance(key, int) or key in sizes for key in keys)
        }
        return {name: tuple([sizes.get(key, key) for key in keys]) for name, keys in whole.items()}

    def _with_sums(self, sizes: Mapping[Any, int]) -> dict[Any, int]:
        """Sizes of all that is declared, and of their sums."""
        return {**sizes, **{name: found.of(sizes) for name, found in self.sums.items()}}

    # ---- boxes: part of the ranges

    @property
    def box(self) -> dict[Key, Span]:
        """The sizes that may vary."""
        return {key: span for key, span in self.spans.items() if span[0] < span[1]}

    def key_at(self, name: str, axis: int) -> Key:
        """What stands for a dimension that may vary."""
        keys = self._keys[name]
        assert keys is not None  # all ranks are known where all sizes are declared
        found: Key = keys[axis]
        return found

    def spans_at(self, box: Box) -> dict[str, Any]:
        """Of each input the span of each dimension, in a box."""
        spans = self.spans | dict(box)
        for name, found in self.sums.items():
            spans[name] = tuple([found.of({key: spans[key][end] for key in found.names}) for end in (0, 1)])
        return {
            name: tuple([(key, key) if isinstance(key, int) else spans[key] for key in keys or ()])
            for name, keys in self._keys.items()
        }

    def shapes_at(self, point: Mapping[Key, int]) -> dict[str, tuple[int, ...]]:
        """The shapes of the inputs for given sizes."""
        spans = self.spans_at({key: (size, size) for key, size in point.items()})
        return {name: tuple([least for least, _ in shape]) for name, shape in spans.items()}

    def sizes_at(self, point: Mapping[Key, int]) -> dict[str, int]:
        """Sizes by name: given ones, and those that are fixed."""
        sizes = self._with_sums({key: most for key, (_, most) in self.spans.items()} | dict(point))
        return {name_of(key): size for key, size in sizes.items()}


def corner(box: Box) -> dict[Any, int]:
    """The upper end of each size."""
    return {key: most for key, (_, most) in box.items()}


def count_points(box: Box) -> int:
    """How many shapes a box has."""
    return prod(most - least + 1 for least, most in box.values())


def points_of(box: Box) -> Iterator[dict[Any, int]]:
    """All of them, the largest first."""
    spans = [range(most, least - 1, -1) for least, most in box.values()]
    return (dict(zip(box, sizes, strict=True)) for sizes in product(*spans))


def corners_of(box: Box) -> Iterator[dict[Any, int]]:
    """The corners of a box, the largest first."""
    spans = [sorted({most, least}, reverse=True) for least, most in box.values()]
    return (dict(zip(box, sizes, strict=True)) for sizes in product(*spans))


def halves(box: Box, key: Any) -> list[Box]:
    """A box in two, of which the second has the upper half of one size."""
    least, most = box[key]
    middle = (least + most) // 2
    return [{**box, key: (least, middle)}, {**box, key: (middle + 1, most)}]


def _parse_sum(text: str, known: Collection[Any]) -> SizeSum | None:
    """The sum that a text is of known names and numbers; None for other texts."""
    parts = [part.strip() for part in text.split("+")]
    names = tuple([part for part in parts if part in known])
    numbers = [part for part in parts if part not in known]
    if not names or not all(number.isdecimal() and number.isascii() for number in numbers):
        return None
    return SizeSum(names, sum(map(int, numbers)))


def parse_span(name: str, value: Any) -> Span:
    """The ends of a range; raises `InvalidArgumentError`."""
    if isinstance(value, (tuple, list)) and len(value) == 1:  # the one dimension of a shape
        value = value[0]
    entries = value if isinstance(value, (tuple, list)) else (value, value)
    try:
        least, most = (index(entry) for entry in entries)
    except (TypeError, ValueError):
        least, most = -1, -1
    if not 0 <= least <= most <= _MOST or any(isinstance(entry, bool) for entry in entries):
        raise InvalidArgumentError(explain(f"shapes: {name!r}", accepted=_ACCEPTED, got=brief(value)), name=name)
    return least, most


def name_of(key: Any) -> str:
    """A size, as mappings call it."""
    return key if isinstance(key, str) else f"{key[0]}[{key[1]}]"


def describe_key(key: Any) -> str:
    """A size, as messages call it."""
    return f"dimension {key!r}" if isinstance(key, str) else f"dimension {key[1]} of input {key[0]!r}"


def describe_span(span: Span) -> str:
    """A range, as messages write it."""
    return str(span[0]) if span[0] == span[1] else f"{span[0]} to {span[1]}"


def _keys_of(name: str, shape: Sequence[int | str | None]) -> tuple[Any, ...]:
    """The key of each dimension; ints stay."""
    return tuple([(name, axis) if dim is None else dim for axis, dim in enumerate(shape)])
