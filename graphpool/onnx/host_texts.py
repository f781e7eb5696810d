"""Host functions for what no kernel can do: texts (arrays of objects, each a ``str``), maps, errors of contents.

Entries are as those of `host_ops.MOVES`, and take the bounds of the model too. Source: the specification of the
operators and, where it says nothing, what ONNX Runtime computes.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from graphpool.runtime.host_room import HostNeed, ValueBound, need_of_results

from ._words import Counts, Either, Lookup, Maps, Normaliser, OneHot, Pick, Sequences, Words, texts_of
from .arrays import to_array
from .encoders import listed
from .host_ops import MOVES, getter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from graphpool.runtime.model_form import HostFunction

    from .bounds import Bounds
    from .node import Node

__all__ = ["BY_DOMAIN", "TEXT_MOVES"]

Make = Any
"""What an entry is: (node, places, known, bounds) -> HostFunction, or None."""


def _attr(node: Node, name: str, default: Any = None) -> Any:
    """An attribute, bytes as texts."""
    value = node.attrs.get(name, default)
    if isinstance(value, bytes):
        return value.decode()
    return [_as_text(item) for item in value] if isinstance(value, list) else value


def _as_text(item: Any) -> Any:
    return item.decode() if isinstance(item, bytes) else item


class _OfOne:
    """A host function that takes one input to one output.

    `tell` takes a bound of the input, and says what is taken; without it that is the result. The other facts are those
    of `HostFunction`.
    """

    def __init__(
        self,
        node: Node,
        places: Any,
        known: Mapping[str, Any],
        function: Callable[[Any], Any],
        *,
        tell: Callable[[ValueBound], HostNeed] | None = None,
        gives_fresh: bool = True,
        makes_texts: bool = False,
        nbytes: int = 0,
    ) -> None:
        self._place, self._content = _input(node, places, known)
        self._function, self._tell = function, tell
        self.gives_fresh, self.makes_texts, self.nbytes = gives_fresh, makes_texts, nbytes

    def __call__(self, inputs: list[Any], outputs: list[Any]) -> Sequence[Any]:
        """The result."""
        return [self._function(self._content if self._place is None else inputs[self._place])]

    def bound(self, inputs: Sequence[ValueBound | None], outputs: Sequence[ValueBound | None]) -> HostNeed | None:
        """As `HostFunction.bound`."""
        if self.makes_texts:
            return None
        if self._tell is None:
            return need_of_results(outputs)
        value = None if self._place is None else inputs[self._place]
        return None if value is None or value.shape is None else self._tell(value)


def _input(node: Node, places: Any, known: Mapping[str, Any]) -> tuple[int | None, Any]:
    """Of a node with one input its place among the arguments of a call, or its content."""
    return places[0], None if places[0] is not None else known[node.input[0]]


# ---- maps


def _zip_map(node: Node, places: Any, known: Mapping[str, Any], bounds: Bounds) -> HostFunction:
    """A map from labels to scores for each row; a vector is one row."""
    keys = _attr(node, "classlabels_int64s") or _attr(node, "classlabels_strings") or []
    return Maps(*_input(node, places, known), keys)


def _dict_vectorizer(node: Node, places: Any, known: Mapping[str, Any], bounds: Bounds) -> HostFunction:
    """The values of a map in the order of a vocabulary, one row; 0 or no text where the map has none."""
    keys = _attr(node, "int64_vocabulary") or _attr(node, "string_vocabulary") or []

    def vectorise(x: Mapping[Any, Any]) -> Any:
        if any(isinstance(value, str) for value in x.values()):
            return texts_of([x.get(key, "") for key in keys], (1, len(keys)))
        return np.array([[x.get(key, 0) for key in keys]])

    return _OfOne(node, places, known, vectorise)


def _cast_map(node: Node, places: Any, known: Mapping[str, Any], bounds: Bounds) -> HostFunction:
    """The values of a map in the order of its keys, one row; a sparse one has a place for each key up to a bound."""
    kinds: dict[str, tuple[Any, Any]] = {
        "TO_FLOAT": (np.float32, 0), "TO_INT64": (np.int64, 0), "TO_STRING": (np.object_, ""),
    }  # fmt: skip
    dtype, empty = kinds[_attr(node, "cast_to", "TO_FLOAT")]
    is_dense, most = _attr(node, "map_form", "DENSE") == "DENSE", _attr(node, "max_map", 1)
    bounds.limits.check("folded_nbytes", 8 * most, f"node {node.label!r}: its result", node.label)

    def convert(value: Any) -> Any:
        if dtype is np.object_:
            return value if isinstance(value, str) else f"{value:f}"
        return dtype(float(value))

    def cast(x: Mapping[int, Any]) -> Any:
        row = {key: convert(x[key]) for key in sorted(x)}
        return np.array([list(row.values()) if is_dense else [row.get(key, empty) for key in range(most)]], dtype)

    return _OfOne(node, places, known, cast, makes_texts=dtype is np.object_)


# ---- categories


def _listed(node: Node, name: str) -> list[Any]:
    """Keys or values of a LabelEncoder."""
    numbers = listed(node, name)
    if numbers is not None:
        return list(numbers.tolist())
    texts = _attr(node, f"{name}_strings")
    if texts:
        return list(texts)
    tensor = node.attrs.get(f"{name}_tensor")
    return [] if tensor is None else [_as_text(item) for item in to_array(tensor).reshape(-1).tolist()]


def _default_of(node: Node, values: Sequence[Any]) -> tuple[Any, Any]:
    """What a LabelEncoder gives for other keys, and the type of its results."""
    tensor = node.attrs.get("values_tensor")
    given = node.attrs.get("default_tensor")
    kind: Any = None
    if isinstance(values[0], str):
        kind, default = np.object_, _attr(node, "default_string", "_Unused")
    elif isinstance(values[0], int):
        kind, default = np.int64, node.attrs.get("default_int64", -1)
    else:
        kind, default = np.float32, node.attrs.get("default_float", -0.0)
    if given is not None:
        default = _as_text(to_array(given).reshape(-1).tolist()[0])
    if tensor is not None and kind is not np.object_:
        kind = to_array(tensor).dtype
    return default, kind


def _label_encoder(node: Node, places: Any, known: Mapping[str, Any], bounds: Bounds) -> HostFunction | None:
    """The value beside the key that each element is, else the default; a NaN is the key NaN.

    None of numbers, which have an expression in our ops.
    """
    if len(node.input) > 1:
        return None
    given = _input(node, places, known)
    if "classes_strings" in node.attrs:  # of opset 1, in both directions
        classes: list[Any] = _attr(node, "classes_strings")
        numbers = list(range(len(classes)))
        return Either(
            *given,
            Lookup(*given, classes, numbers, node.attrs.get("default_int64", -1), np.int64),
            Lookup(*given, numbers, classes, _attr(node, "default_string", "_Unused"), np.object_),
        )
    keys, values = _listed(node, "keys"), _listed(node, "values")
    if not keys or len(keys) != len(values):
        raise ValueError(f"{len(keys)} keys and {len(values)} values")
    return Lookup(*given, keys, values, *_default_of(node, values))


def _category_mapper(node: Node, places: Any, known: Mapping[str, Any], bounds: Bounds) -> HostFunction:
    """Texts as numbers, or numbers as texts, by two lists side by side."""
    numbers, texts = _attr(node, "cats_int64s", []), _attr(node, "cats_strings", [])
    if len(numbers) != len(texts):
        raise ValueError(f"{len(numbers)} numbers and {len(texts)} texts")
    given = _input(node, places, known)
    return Either(
        *given,
        Lookup(*given, texts, numbers, _attr(node, "default_int64", -1), np.int64),
        Lookup(*given, numbers, texts, _attr(node, "default_string", "_Unused"), np.object_),
    )


def _one_hot_encoder(node: Node, places: Any, known: Mapping[str, Any], bounds: Bounds) -> HostFunction:
    """Which of the categories each element is; none of them, or an error, where it is another."""
    categories: list[Any] = _attr(node, "cats_strings") or _attr(node, "cats_int64s") or []
    width = len(categories)
    place_of = dict(zip(reversed(categories), range(width - 1, -1, -1), strict=True))
    return OneHot(*_input(node, places, known), place_of, width, bool(node.attrs.get("zeros", 1)))


def _feature_extractor(node: Node, places: Any, known: Mapping[str, Any], bounds: Bounds) -> HostFunction:
    """Elements along the last axis; of a vector, as one row."""
    get = getter(node, places, known)

    def extract(inputs: list[Any], outputs: list[Any]) -> Sequence[Any]:
        x, indices = get(inputs)
        return [take(x, indices.reshape(-1))]

    def take(x: Any, indices: Any) -> Any:
        return (x if x.ndim > 1 else np.atleast_2d(x)).take(indices, -1)

    if places[0] is None or places[1] is not None:
        return extract
    place, settled = places[0], known[node.input[1]].reshape(-1)
    return lambda inputs, outputs: [take(inputs[place], settled)]


# ---- words


def _normalizer(node: Node, places: Any, known: Mapping[str, Any], bounds: Bounds) -> HostFunction:
    """Texts but for stop words, in one case; one empty text where none is left."""
    case = {"LOWER": str.lower, "UPPER": str.upper}.get(_attr(node, "case_change_action", "NONE"))
    is_sensitive = bool(node.attrs.get("is_case_sensitive", 0))
    words = _attr(node, "stopwords") or []
    stop = frozenset(words if is_sensitive else map(str.lower, words))
    return Normaliser(*_input(node, places, known), case, stop, is_sensitive)


def _vectorizer(node: Node, places: Any, known: Mapping[str, Any], bounds: Bounds) -> HostFunction:
    """How often each of a pool of sequences of words, or of integers, comes in a row, by weight."""
    pool = _attr(node, "pool_strings") or _attr(node, "pool_int64s") or []
    counts, columns = _attr(node, "ngram_counts", []), _attr(node, "ngram_indexes", [])
    shortest, longest = node.attrs["min_gram_length"], node.attrs["max_gram_length"]
    most_skipped, mode = node.attrs["max_skip_count"], _attr(node, "mode")
    sequences: list[tuple[Sequence[Any], int]] = []
    number = 0
    for length, (begin, end) in enumerate(zip(counts, [*counts[1:], len(pool)], strict=True), 1):
        for at in range(begin, end - length + 1, length):
            sequences.append((pool[at : at + length], number))
            number += 1
    if number > len(columns) or min(columns, default=0) < 0:
        raise ValueError(f"{len(columns)} places for {number} sequences of words")
    width = max(columns, default=-1) + 1
    bounds.limits.check("folded_nbytes", 4 * width, f"node {node.label!r}: its results", node.label)
    given = np.array(node.attrs.get("weights") or [1.0] * len(columns), np.float32)
    if len(given) != len(columns):
        raise ValueError(f"{len(given)} weights for {len(columns)} places")
    is_apart = len(set(columns)) == len(columns)  # else sequences are counted one by one, and added up
    own = columns if is_apart else range(len(columns))
    weights = np.ones(width if is_apart else len(columns), np.float32)
    weights[own] = given
    tree = Sequences([(w, own[n]) for w, n in sequences if shortest <= len(w) <= longest], len(weights))
    if mode == "TF":
        weights[:] = 1
    place, content = _input(node, places, known) if is_apart else (0, None)
    label, host = node.label, bounds.host
    spend = None if longest < 2 else lambda steps: host.spend(steps, label)
    count = Counts(place, content, tree, most_skipped, weights, mode == "IDF", spend)
    if is_apart:
        return count

    def add_up(x: Any) -> Any:
        [apart] = count([x], [])
        found = np.zeros((*apart.shape[:-1], width), np.float32)
        for place, column in enumerate(columns):
            mine, before = apart[..., place], found[..., column]
            found[..., column] = np.where(mine != 0, mine, before) if mode == "IDF" else before + mine
        return found

    def tell(x: ValueBound) -> HostNeed:
        """Counts, and what they add up to, column by column."""
        result = ValueBound.of_array((*(x.shape or ())[:-1], width), 4)
        need = count.bound([x], [])
        assert need is not None  # its shape is known
        nbytes = need.nbytes + result.nbytes + 16 * prod((x.shape or ())[:-1])
        return HostNeed([result], nbytes, need.objects_nbytes)

    return _OfOne(node, places, known, add_up, tell=tell, nbytes=count.nbytes)


def _tokenizer(node: Node, places: Any, known: Mapping[str, Any], bounds: Bounds) -> HostFunction:
    """The words of each text along a new last axis, which has room for those of the longest; com.microsoft."""
    separators, pattern = _attr(node, "separators") or [], _attr(node, "tokenexp")
    least, is_marked, padding = node.attrs.get("mincharnum", 1), node.attrs.get("mark", 0), _attr(node, "pad_value", "")
    if bool(separators) == bool(pattern):
        raise ValueError("separators or tokenexp, one of the two")
    if any(separator == "" for separator in separators):

        def split(texts: list[str]) -> list[list[str]]:
            return list(map(list, texts)) if least <= 1 else [[] for _ in texts]
    else:
        from .expressions import compile_pattern

        match = compile_pattern(pattern or "|".join(f"(?:{part})" for part in separators), bounds.limits)
        label, host = node.label, bounds.host

        def spend(nletters: int) -> None:
            host.spend(match.nstates * nletters, label)

        def split(texts: list[str]) -> list[list[str]]:
            return match.words(texts, spend, least, not pattern)

    return Words(*_input(node, places, known), split, bool(is_marked), padding)


class _ConcatTexts:
    """Two arrays of texts, each text with its partner's behind it."""

    gives_fresh = makes_texts = True

    def __init__(self, node: Node, places: Any, known: Mapping[str, Any], bounds: Bounds) -> None:
        self._get = getter(node, places, known)

    def __call__(self, inputs: list[Any], outputs: list[Any]) -> Sequence[Any]:
        """The result."""
        return [np.asarray(np.add(*self._get(inputs)), np.object_)]

    def bound(self, inputs: Any, outputs: Any) -> None:
        """As `HostFunction.bound`: only a run tells how long texts are."""


# ---- moves


def _reshape(node: Node, places: Any, known: Mapping[str, Any], bounds: Bounds) -> HostFunction:
    get, keeps_zero = getter(node, places, known), node.attrs.get("allowzero", 0)

    def reshape(inputs: list[Any], outputs: list[Any]) -> Sequence[Any]:
        x, shape = get(inputs)
        sizes = shape.tolist()
        dims = [x.shape[k] if size == 0 and not keeps_zero else size for k, size in enumerate(sizes)]
        return [x.reshape(dims)]

    sizes = None if places[1] is not None or places[0] is None else known[node.input[1]].tolist()
    if sizes is None or 0 in sizes:
        return reshape
    place, settled = places[0], tuple(sizes)
    return lambda inputs, outputs: [inputs[place].reshape(settled)]


def _flatten(node: Node, places: Any, known: Mapping[str, Any], bounds: Bounds) -> HostFunction:
    axis = node.attrs.get("axis", 1)

    def flatten(x: Any) -> Any:
        nrows = prod(x.shape[: axis + x.ndim if axis < 0 else axis])
        return x.reshape(nrows, x.size // max(nrows, 1))

    return _OfOne(node, places, known, flatten, gives_fresh=False)


def _squeeze(node: Node, places: Any, known: Mapping[str, Any], bounds: Bounds) -> HostFunction:
    return _along_axes(node, places, known, lambda x, axes: np.squeeze(x, axes))


def _unsqueeze(node: Node, places: Any, known: Mapping[str, Any], bounds: Bounds) -> HostFunction:
    return _along_axes(node, places, known, lambda x, axes: np.expand_dims(x, axes))


def _along_axes(node: Node, places: Any, known: Mapping[str, Any], function: Callable[..., Any]) -> HostFunction:
    """Axes are the second input, or an attribute in older opsets."""
    get, given = getter(node, places, known), node.attrs.get("axes")

    def run(inputs: list[Any], outputs: list[Any]) -> Sequence[Any]:
        x, *axes = get(inputs)
        found = axes[0].tolist() if axes and axes[0] is not None else given
        return [function(x, None if found is None else tuple(found))]

    return run


def _select(node: Node, places: Any, known: Mapping[str, Any], bounds: Bounds) -> HostFunction:
    get = getter(node, places, known)
    return lambda inputs, outputs: [np.where(*get(inputs))]


def _gather(node: Node, places: Any, known: Mapping[str, Any], bounds: Bounds) -> HostFunction | None:
    """Texts at places; those of a constant list are taken one by one, those at constant places by one call."""
    axis, [data, indices] = node.attrs.get("axis", 0), [known.get(name) for name in node.input]
    if data is not None and data.ndim == 1 and places[1] is not None and axis in (0, -1):
        return Pick(places[1], None, data.tolist())
    if indices is not None and places[0] is not None:
        place = places[0]
        return lambda inputs, outputs: [np.asarray(inputs[place].take(indices, axis), np.object_)]
    moved: HostFunction | None = MOVES["Gather"](node, places, known, {})
    return moved


def _moved(make: Any) -> Make:
    """An entry for texts of what moves arrays of any type."""
    return lambda node, places, known, bounds: make(node, places, known, {})


TEXT_MOVES: dict[str, Make] = {
    "Identity": lambda node, places, known, bounds: _OfOne(node, places, known, lambda x: x, gives_fresh=False),
    "Flatten": _flatten, "Gather": _gather, "Reshape": _reshape, "Squeeze": _squeeze, "Unsqueeze": _unsqueeze,
    "Where": _select,
    **{kind: _moved(MOVES[kind]) for kind in ("Expand", "Transpose", "Concat", "Equal")},
}  # fmt: skip
"""Ops that take numbers too, for nodes that read texts."""

_ML: dict[str, Make] = {
    "CastMap": _cast_map, "CategoryMapper": _category_mapper, "DictVectorizer": _dict_vectorizer,
    "LabelEncoder": _label_encoder, "OneHotEncoder": _one_hot_encoder, "ZipMap": _zip_map,
    "ArrayFeatureExtractor": _feature_extractor,
}  # fmt: skip
_OWN: dict[str, Make] = {
    "StringNormalizer": _normalizer, "TfIdfVectorizer": _vectorizer, "StringConcat": _ConcatTexts,
}  # fmt: skip

BY_DOMAIN: dict[str, dict[str, Make]] = {
    "": _OWN, "ai.onnx": _OWN, "ai.onnx.ml": _ML, "com.microsoft": {"Tokenizer": _tokenizer},
}  # fmt: skip
"""Ops that take texts or maps, or give them."""
