"""`graphpool._dataclasses`: `dataclass` and `NamedTuple` do what the standard library's do."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import typing
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from graphpool import _dataclasses

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture(params=[dataclasses, _dataclasses], ids=["standard", "own"])
def module(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(params=[{}, {"frozen": True}, {"slots": True}, {"frozen": True, "slots": True}], ids=str)
def point(request: pytest.FixtureRequest, module: Any) -> Any:
    @module.dataclass(**request.param)
    class Point:
        x: int
        y: int = 2
        tags: list[str] = module.field(default_factory=list, compare=False)
        kind: ClassVar[str] = "point"
        scale: float = module.field(default=1.0, kw_only=True, repr=False)
        norm: int = module.field(init=False, compare=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "norm", abs(self.x) + abs(self.y))

    return Point


def test_arguments_and_defaults(point: Any) -> None:
    made = point(1)
    assert (made.x, made.y, made.tags, made.scale, made.norm, made.kind) == (1, 2, [], 1.0, 3, "point")
    assert point(1).tags is not made.tags
    made = point(1, y=5, tags=["a"], scale=2.0)
    assert (made.x, made.y, made.tags, made.scale, made.norm) == (1, 5, ["a"], 2.0, 6)


@pytest.mark.parametrize(
    ("args", "named", "word"),
    [
        ((), {}, "missing"),
        ((), {"y": 1}, "missing"),
        ((1, 2, [], 1.0), {}, "positional"),
        ((1,), {"x": 1}, "multiple values"),
        ((1,), {"z": 1}, "unexpected"),
        ((1,), {"norm": 1}, "unexpected"),
    ],
)
def test_wrong_arguments(point: Any, args: tuple[Any, ...], named: dict[str, Any], word: str) -> None:
    with pytest.raises(TypeError, match=word):
        point(*args, **named)


def test_repr_and_equality(point: Any) -> None:
    assert repr(point(1)).endswith("Point(x=1, y=2, tags=[], norm=3)")
    assert point(1, tags=["a"]) == point(1)
    assert point(1) != point(1, scale=3.0)
    assert point(1) != (1, 2, 1.0)


def test_what_is_frozen_cannot_be_set_and_has_a_hash(module: Any, point: Any) -> None:
    made = point(1)
    if not point.__hash__:
        made.x = 7
        assert made.x == 7
        return
    assert hash(made) == hash(point(1, tags=["a"]))
    with pytest.raises(dataclasses.FrozenInstanceError, match="'x'"):
        made.x = 7
    with pytest.raises(dataclasses.FrozenInstanceError, match="'x'"):
        del made.x
    assert made.x == 1


def test_functions_of_the_standard_library(module: Any, point: Any) -> None:
    made = point(1, tags=["a"])
    assert dataclasses.is_dataclass(point)
    assert {entry.name for entry in dataclasses.fields(point)} == {"x", "y", "tags", "scale", "norm"}
    assert dataclasses.asdict(made) == {"x": 1, "y": 2, "tags": ["a"], "scale": 1.0, "norm": 3}
    assert list(inspect.signature(point).parameters) == ["x", "y", "tags", "scale"]
    for replace in (dataclasses.replace, module.replace):
        assert replace(made, x=4).norm == 6
        assert replace(made, x=4).tags == ["a"]
        with pytest.raises((ValueError, TypeError), match="norm"):  # TypeError since Python 3.13
            replace(made, norm=4)
        with pytest.raises(TypeError, match="unexpected"):
            replace(made, z=4)


def test_copies(point: Any) -> None:
    made = point(1, tags=["a"], scale=2.0)
    for other in (copy.copy(made), copy.deepcopy(made)):
        assert other == made
        assert other.tags == ["a"]
        assert other.norm == 3


@_dataclasses.dataclass(frozen=True, slots=True)
class _Pickled:
    x: int
    y: int = 2


def test_pickles() -> None:
    assert pickle.loads(pickle.dumps(_Pickled(4))) == _Pickled(4)


def test_inheritance(module: Any) -> None:
    @module.dataclass(frozen=True)
    class Base:
        x: int
        y: int = 2

    @module.dataclass(frozen=True)
    class Derived(Base):
        z: int = 3
        x: int = 1

    assert repr(Derived()).endswith("Derived(x=1, y=2, z=3)")
    assert Derived(1, 2, 3) == Derived()
    assert Base(1) != Derived()
    with pytest.raises(TypeError, match="default"):

        @module.dataclass(frozen=True)
        class Wrong(Base):
            w: int


def test_own_methods_stay(module: Any) -> None:
    @module.dataclass(frozen=True)
    class Own:
        x: int

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 5

        def __repr__(self) -> str:
            return "own"

    assert Own(1) == Own(2)
    assert (hash(Own(1)), repr(Own(1))) == (5, "own")


def test_identity_without_eq(module: Any) -> None:
    @module.dataclass(eq=False)
    class Node:
        x: int

    one = Node(1)
    assert one != Node(1)
    assert one in {one}


def test_keywords_only(module: Any) -> None:
    make: Callable[..., Any] = module.dataclass(kw_only=True)

    @make
    class Options:
        x: int = 1
        y: int

    assert Options(y=2).y == 2
    with pytest.raises(TypeError, match="positional"):
        Options(1, 2)


class OwnPair(_dataclasses.NamedTuple):
    """Two numbers."""

    x: int
    y: int = 2

    @property
    def total(self) -> int:
        return self.x + self.y


class StandardPair(typing.NamedTuple):
    """Two numbers."""

    x: int
    y: int = 2

    @property
    def total(self) -> int:
        return self.x + self.y


@pytest.fixture(params=[StandardPair, OwnPair], ids=["standard", "own"])
def pair(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_named_tuple(pair: Any) -> None:
    made = pair(1)
    assert made == (1, 2) == pair(x=1) == pair(1, y=2) == pair._make([1, 2])
    assert (made.x, made.y, made.total, *made) == (1, 2, 3, 1, 2)
    assert repr(made) == f"{pair.__name__}(x=1, y=2)"
    assert (pair._fields, pair._field_defaults, pair.__match_args__) == (("x", "y"), {"y": 2}, ("x", "y"))
    assert made._asdict() == {"x": 1, "y": 2}
    assert pair.__mro__ == (pair, tuple, object)
    assert not hasattr(made, "__dict__")
    assert list(inspect.signature(pair).parameters) == ["x", "y"]
    replaced = made._replace(y=5)
    assert (replaced, type(replaced)) == ((1, 5), pair)
    with pytest.raises(AttributeError):
        made.x = 2


def test_copies_of_named_tuples(pair: Any) -> None:
    for made in (pickle.loads(pickle.dumps(pair(1, 5))), copy.copy(pair(1, 5)), copy.deepcopy(pair(1, 5))):
        assert (made, type(made)) == ((1, 5), pair)


@pytest.mark.parametrize(
    ("args", "named"), [((), {}), ((), {"y": 1}), ((1, 2, 3), {}), ((1,), {"x": 1}), ((1,), {"z": 1})]
)
def test_wrong_arguments_of_named_tuples(pair: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        pair(*args, **named)
    with pytest.raises((TypeError, ValueError)):
        pair(1)._replace(z=1)


def test_named_tuples_have_defaults_last_and_no_other_bases() -> None:
    with pytest.raises(TypeError, match="y without a default"):

        class Pair(_dataclasses.NamedTuple):
            x: int = 1
            y: int  # type: ignore[misc]

    with pytest.raises(TypeError, match="no other bases"):

        class Other(_dataclasses.NamedTuple, dict):  # type: ignore[misc]
            x: int
