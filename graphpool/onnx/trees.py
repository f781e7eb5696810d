"""Decision trees as attributes of ONNX's nodes hold them: checked once, and in the form of the kind TreeEnsemble.

Trees are graphs without cycles: converters let the nodes of a set's members share a child. In our form the children of
a node are neighbours, so a shared one lies below its last parent, and nodes that send every row to it below the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from graphpool._dataclasses import dataclass, field, replace
from graphpool.errors import InvalidOpError, explain

from ._levels import find_levels
from .arrays import to_array
from .long_lists import LongList
from .proto import AttributeProto

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["TREE_LISTS", "TREE_OPS", "Trees", "read_trees"]

Array = np.ndarray[Any, Any]

TREE_OPS = {"TreeEnsembleClassifier": "class", "TreeEnsembleRegressor": "target", "TreeEnsemble": "leaf"}
"""Op -> how the names of its attributes of leaves begin."""

TREE_LISTS = ("nodes_", "class_", "target_", "leaf_", "tree_roots", "membership_values")
"""How the names of attributes begin that are read into `Trees`."""

_MODES = ("LEAF", "BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER")
_LEAF, _LEQ, _LT, _GTE, _GT, _EQ, _NEQ, _MEMBER = range(len(_MODES))
_MOST = 2**31 - 1

_FEW = 100
"""Of fewer numbers Python knows the range before NumPy has begun."""


@dataclass(eq=False)
class Trees:
    """Trees in the form of the kind TreeEnsemble, but for thresholds, whose type is that of the features.

    Attributes
    ----------
    nodes : array of shape (nodes, 3), roots : array of shape (trees,)
    limits : array of shape (nodes,)
        What thresholds follow from; NaN where every row goes to the first child.
    is_strict : array of shape (nodes,)
        Whether the threshold is the largest number below the limit, not the limit.
    weights, targets : array of shape (entries,)
    ntargets : int
    base : array of shape (any,)
    weighed : frozenset of int
        The targets for which the file has weights.
    """

    nodes: Array
    roots: Array
    limits: Array
    is_strict: Array
    weights: Array
    targets: Array
    ntargets: int
    base: Array
    weighed: frozenset[int]
    _constants: dict[str, tuple[Array, ...]] = field(default_factory=dict)

    @property
    def nfeatures(self) -> int:
        """How many features the nodes ask for at least."""
        is_inner = self.nodes[:, 1] > 0
        return int(self.nodes[is_inner, 0].max(initial=-1)) + 1

    def constants(self, dtype: str) -> tuple[Array, ...]:
        """What the kind TreeEnsemble reads beside features of a float type, the same arrays each time.

        Weights are f32 where that holds them, else f64. The base is 0 where none is given for a target.
        """
        if dtype not in self._constants:
            rest = np.zeros(self.ntargets - self.base.size, self.base.dtype)
            numbers = np.concatenate([self.weights, self.base, rest])
            with np.errstate(over="ignore"):
                narrow = numbers.astype(np.float32)
            if np.array_equal(narrow, numbers, equal_nan=True):
                numbers = narrow
            weights, base = np.split(numbers, [len(self.weights)])
            targets = self.targets.astype(np.int32, copy=False)
            self._constants[dtype] = (
                self._thresholds(dtype), self.nodes, self.roots, weights, targets, base
            )  # fmt: skip
        return self._constants[dtype]

    def _thresholds(self, dtype: str) -> Array:
        with np.errstate(over="ignore"):
            nearest = self.limits.astype(dtype, copy=False)
        if nearest is self.limits and not self.is_strict.any():
            return nearest
        is_beyond = np.where(self.is_strict, nearest >= self.limits, nearest > self.limits)
        below = np.nextafter(nearest, nearest.dtype.type(-np.inf))
        return np.where(is_beyond, below, nearest)


@dataclass
class _Graph:
    """Nodes as a file has them.

    Attributes
    ----------
    features, limits, modes : array of shape (nodes,)
        What a node compares, with what, and how.
    children : array of shape (nodes, 2)
        Where a comparison that is true leads, and one that is not.
    missing : array of shape (nodes,)
        Whether a comparison with a NaN counts as true.
    entries : array of shape (nodes, 2)
        Where the entries of a leaf begin, and how many there are.
    tree : array of shape (nodes,)
        In which tree a node lies.
    roots : array of shape (trees,)
    """

    features: Array
    limits: Array
    modes: Array
    children: Array
    missing: Array
    entries: Array
    tree: Array
    roots: Array

    def extended(self, parents: Array, **changes: Array) -> _Graph:
        """The graph with nodes behind the others that are like `parents` but for the changes."""
        columns = {name: (own, changes.get(name, own[parents])) for name, own in vars(self).items() if name != "roots"}
        return _Graph(**{name: np.concatenate(pair) for name, pair in columns.items()}, roots=self.roots)


# ---- what a node says


class _Reader:
    """The attributes of a node, read as arrays."""

    def __init__(self, label: str, op_type: str, attrs: Mapping[str, Any]) -> None:
        self.label, self.op_type, self.attrs = label, op_type, attrs

    def refuse(self, name: str, accepted: object, got: object) -> NoReturn:
        """Raise InvalidOpError for an attribute."""
        what = f"node {self.label!r} ({self.op_type}): attribute {name!r}"
        raise InvalidOpError(explain(what, accepted=accepted, got=got), node=self.label, op_type=self.op_type)

    def ints(self, name: str, count: int | None, low: int = -(2**63), high: int = 2**63 - 1) -> Array:
        """So many integers in a range; none where the attribute is left out and their number is free.

        Of 32 bits where all of them fit: a forest has tens of millions.
        """
        given = self.attrs.get(name, ())
        if isinstance(given, LongList):
            found = np.asarray(given.values(AttributeProto.INTS))
            items: Any = found
        else:
            items = given if hasattr(given, "__len__") else [given]
            found = np.array(items, np.int64)
        if len(found) < _FEW:
            least, most = (min(items), max(items)) if len(found) else (low, low)
        else:
            least, most = found.min(), found.max()
        if found.dtype != np.int32 and least >= -_MOST and most <= _MOST:
            found = found.astype(np.int32)
        self._check_count(name, found, count)
        if not low <= least <= most <= high:
            self.refuse(name, f"{low} .. {high}", found[(found < low) | (found > high)][0])
        return found

    def floats(self, name: str, count: int | None) -> Array:
        """So many numbers, given as a list or, by a name of its own, as a tensor."""
        tensor = self.attrs.get(f"{name}_as_tensor")
        given = self.attrs.get(name, ()) if tensor is None else tensor
        is_tensor = hasattr(given, "data_type")
        found = to_array(given) if is_tensor else _floats(given)
        if found.dtype.kind != "f":
            self.refuse(name, "real numbers", found.dtype)
        found = found.reshape(-1)
        if found.dtype != np.float32:
            found = found.astype(np.float64)
        self._check_count(name, found, count)
        return found

    def missing(self, count: int) -> Array:
        """Whether a comparison with a NaN counts as true."""
        name = "nodes_missing_value_tracks_true"
        return self.ints(name, count) != 0 if self.attrs.get(name) else np.zeros(count, bool)

    def _check_count(self, name: str, found: Array, count: int | None) -> None:
        if count is not None and len(found) != count:
            self.refuse(name, f"{count} numbers", f"{len(found)} numbers")


def _floats(given: Any) -> Array:
    """The numbers of an attribute."""
    if isinstance(given, LongList):
        return np.asarray(given.values(AttributeProto.FLOATS))
    return np.array(given if hasattr(given, "__len__") else [given], np.float32)


def _narrow(found: Array) -> Array:
    """Integers in 32 bits, where these hold them."""
    if found.dtype == np.int32 or not (found.min(initial=0) >= -_MOST and found.max(initial=0) <= _MOST):
        return found
    return found.astype(np.int32)


def read_trees(label: str, op_type: str, attrs: Mapping[str, Any]) -> Trees:
    """The trees of a node. Raises InvalidOpError, which names the node, for what are no trees. Cost: linear."""
    reader = _Reader(label, op_type, attrs)
    if op_type == "TreeEnsemble":
        graph, weights, targets, ntargets = _read_branches(reader)
    else:
        graph, weights, targets, ntargets = _read_nodes(reader, TREE_OPS[op_type])
    base = reader.floats("base_values", None)
    if base.size > ntargets:
        reader.refuse("base_values", f"at most {ntargets} numbers", f"{base.size} numbers")
    graph = _without_equalities(graph)
    nodes = _arranged(reader, graph)
    weighed = reader.ints("class_ids", None) if op_type == "TreeEnsembleClassifier" else targets
    ordered = np.sort(weighed)  # np.unique takes 10 ms once: it loads numpy.ma
    later = ordered[1:][ordered[1:] != ordered[:-1]]
    return Trees(*nodes, weights, targets, ntargets, base, frozenset([*ordered[:1].tolist(), *later.tolist()]))


def _read_nodes(r: _Reader, prefix: str) -> tuple[Any, ...]:
    """Of the ops whose nodes have numbers: the graph, weights, targets, and how many of those there may be."""
    modes = _modes_of(r)
    count = len(modes)
    numbers = _Numbers(r.ints("nodes_treeids", count), r.ints("nodes_nodeids", count))
    if numbers.has_twins:
        r.refuse("nodes_nodeids", "other numbers for all nodes of a tree", "one twice")
    is_inner = modes != _LEAF
    features = np.where(is_inner, r.ints("nodes_featureids", count), 0)
    if not (features.min(initial=0) >= 0 and features.max(initial=0) < _MOST):
        r.refuse("nodes_featureids", f"0 .. {_MOST - 1}", "others")
    children = np.zeros((count, 2), np.int32)
    for side, name in enumerate(("nodes_truenodeids", "nodes_falsenodeids")):
        asked = r.ints(name, count)[is_inner]
        children[is_inner, side] = found = numbers.find(numbers.tree[is_inner], asked)
        if (found < 0).any():
            r.refuse(name, "nodes of the same tree", f"node {asked[found < 0][0]}, which it has not")
        del asked, found
    weights, targets, entries, ntargets = _read_entries(r, prefix, numbers, modes)
    graph = _Graph(
        features, r.floats("nodes_values", count), modes, children, r.missing(count), entries, numbers.tree,
        numbers.roots,
    )  # fmt: skip
    return graph, weights, targets, ntargets


def _modes_of(r: _Reader) -> Array:
    """What the nodes do, as places in `_MODES`."""
    given = r.attrs.get("nodes_modes", ())
    if hasattr(given, "data_type"):  # of opset 5, without leaves
        codes = to_array(given).astype(np.int64).reshape(-1) + 1
        if codes.size and not (codes.min() >= _LEQ and codes.max() <= _MEMBER):
            r.refuse("nodes_modes", f"0 .. {_MEMBER - 1}", "others")
        return codes.astype(np.uint8)
    names = tuple(name.encode() for name in _MODES[:_MEMBER])
    try:
        known = {name: place for place, name in enumerate(names)}
        places = given.places(names) if isinstance(given, LongList) else [known[name] for name in given]
    except LookupError as error:
        r.refuse("nodes_modes", _MODES[:_MEMBER], error.args[0])
    return np.asarray(places, np.uint8)


def _differs(numbers: Array) -> Array:
    """Whether each number is another one than that before it."""
    found = np.ones(len(numbers), bool)
    np.not_equal(numbers[1:], numbers[:-1], out=found[1:])
    return found


class _Numbers:
    """Finds nodes by their tree and number.

    Attributes
    ----------
    trees : array of shape (trees,)
        Their numbers, ascending.
    tree : array of shape (nodes,)
        In which tree, by its place in `trees`, each node lies.
    roots : array of shape (trees,)
        The first node of each.
    has_twins : bool
        Whether two nodes of a tree have the same number.
    """

    def __init__(self, treeids: Array, numbers: Array) -> None:
        starts = np.flatnonzero(_differs(treeids))
        sizes = np.append(starts[1:], len(treeids)) - starts if starts.size else starts
        self.trees: Array = treeids[starts]
        self.roots: Array = _narrow(starts)
        self.tree: Array = np.repeat(np.arange(len(starts), dtype=np.int32), sizes)
        counted = np.arange(len(treeids), dtype=np.int32)
        counted -= self.roots[self.tree]
        self._sizes = _narrow(sizes) if np.array_equal(counted, numbers) else None
        # converters write one tree after the other and count its nodes; otherwise the nodes are sorted
        if self._sizes is None or not (self.trees[1:] > self.trees[:-1]).all():
            self._sizes = None
            self._sort(treeids, numbers)
        else:
            self.has_twins = False

    def _sort(self, treeids: Array, numbers: Array) -> None:
        self.trees, self.tree = np.unique(treeids, return_inverse=True)
        self.roots = np.full(len(self.trees), len(treeids), np.int64)
        np.minimum.at(self.roots, self.tree, np.arange(len(treeids)))
        self._known, ranks = np.unique(numbers, return_inverse=True)
        keys = self.tree * len(self._known) + ranks
        self._order = np.argsort(keys, kind="stable")
        self._keys = keys[self._order]
        self.has_twins = bool((self._keys[1:] == self._keys[:-1]).any())

    def find(self, tree: Array, numbers: Array) -> Array:
        """Their places; -1 where there is none."""
        if not self.tree.size:
            return np.full(len(numbers), -1)
        if self._sizes is not None:
            is_found = (numbers >= 0) & (numbers < self._sizes[tree])
            return np.where(is_found, self.roots[tree] + numbers, -1)
        ranks = np.searchsorted(self._known, numbers).clip(max=len(self._known) - 1)
        keys = tree * len(self._known) + ranks
        places = np.searchsorted(self._keys, keys).clip(max=len(self._keys) - 1)
        is_found = (self._known[ranks] == numbers) & (self._keys[places] == keys)
        return np.where(is_found, self._order[places], -1)


def _read_entries(r: _Reader, prefix: str, numbers: _Numbers, modes: Array) -> tuple[Array, Array, Array, int]:
    """Weights and targets in the order of nodes, where those of each node are, and how many targets there are."""
    labels = r.attrs.get("classlabels_int64s") or r.attrs.get("classlabels_strings") or ()
    ntargets = len(labels) if prefix == "class" else int(r.attrs.get("n_targets", 0))
    if not 0 < ntargets <= _MOST:
        r.refuse("classlabels_int64s" if prefix == "class" else "n_targets", "at least 1", ntargets)
    weights = r.floats(f"{prefix}_weights", None)
    count = len(weights)
    targets = r.ints(f"{prefix}_ids", count, 0, ntargets - 1)
    trees, asked = numbers.trees, r.ints(f"{prefix}_treeids", count)
    tree = np.searchsorted(trees, asked).clip(max=max(len(trees) - 1, 0))
    nodes = numbers.find(tree, r.ints(f"{prefix}_nodeids", count))
    if count and (not len(trees) or (nodes < 0).any() or (trees[tree] != asked).any()):
        r.refuse(f"{prefix}_nodeids", "nodes of the trees", "others")
    counts = modes[nodes] == _LEAF if count else np.zeros(0, bool)
    if ntargets > 1 and r.attrs.get("aggregate_function", b"SUM") in (b"SUM", b"AVERAGE"):
        counts &= weights != 0  # most of a forest's, whose leaves have a weight for every class
    kept = np.flatnonzero(counts)
    kept = kept[np.argsort(nodes[kept], kind="stable")]
    if ntargets == 1:  # the first one of a leaf counts, as skl2onnx expects where it asks for the number of the leaf
        kept = kept[_differs(nodes[kept])]
    entries = np.zeros((len(modes), 2), np.int32)
    entries[:, 1] = np.bincount(nodes[kept], minlength=len(modes))
    np.cumsum(entries[:-1, 1], out=entries[1:, 0])
    return weights[kept], targets[kept], entries, ntargets


def _read_branches(r: _Reader) -> tuple[Any, ...]:
    """The same of the op whose leaves stand apart; an edge to a leaf becomes a leaf of its own."""
    modes = _modes_of(r)
    count, ntargets = len(modes), int(r.attrs.get("n_targets", 0))
    if not 0 < ntargets <= _MOST:
        r.refuse("n_targets", "at least 1", ntargets)
    weights = r.floats("leaf_weights", None)
    targets = r.ints("leaf_targetids", len(weights), 0, ntargets - 1)
    children, leaves = np.zeros((count, 2), np.int64), [np.zeros(0, np.int64)]
    for side, name in enumerate(("true", "false")):
        is_leaf = r.ints(f"nodes_{name}leafs", count, 0, 1) != 0
        asked = r.ints(f"nodes_{name}nodeids", count, 0, _MOST)
        if (asked >= np.where(is_leaf, len(weights), count)).any():
            r.refuse(f"nodes_{name}nodeids", f"nodes below {count}, leaves below {len(weights)}", "others")
        children[:, side] = np.where(is_leaf, count + sum(map(len, leaves)) + np.cumsum(is_leaf) - 1, asked)
        leaves.append(asked[is_leaf])
    entries = np.concatenate(leaves)
    graph = _Graph(
        r.ints("nodes_featureids", count, 0, _MOST - 1), r.floats("nodes_splits", count), modes, children,
        r.missing(count), np.zeros((count, 2), np.int64), np.zeros(count, np.int64),
        r.ints("tree_roots", None, 0, count - 1),
    )  # fmt: skip
    graph = graph.extended(
        np.zeros(len(entries), np.int64), modes=np.full(len(entries), _LEAF),
        entries=np.stack([entries, np.ones_like(entries)], 1),
    )  # fmt: skip
    return _without_sets(r, graph), weights, targets, ntargets


# ---- fewer ways to compare


def _without_sets(r: _Reader, graph: _Graph) -> _Graph:
    """The graph with a chain of nodes, one for each member, in place of a node that compares with a set."""
    nodes, values = np.flatnonzero(graph.modes == _MEMBER), r.floats("membership_values", None)
    sets = np.split(values, np.flatnonzero(np.isnan(values)) + 1)
    if len(sets) - 1 != len(nodes) or sets[-1].size:
        r.refuse("membership_values", f"{len(nodes)} sets with a NaN behind each", f"{len(sets) - 1} sets")
    parents, limits, children, end = [], [], graph.children.copy(), len(graph.modes)
    for node, members in zip(nodes.tolist(), sets, strict=False):
        others = members[1:-1]
        graph.limits[node] = members[0]  # a NaN, which nothing equals, where the set is empty
        parents += [node] * len(others)
        limits += others.tolist()
        if len(others):
            children[node, 1] = end
            end += len(others)
    graph.modes[nodes] = _EQ
    added, last = np.array(parents, np.int64), end - len(parents)
    follow = np.stack([graph.children[added, 0], np.arange(last + 1, end + 1)], 1)
    is_last = np.append(added[1:] != added[:-1], True)[: len(added)]
    follow[is_last, 1] = graph.children[added[is_last], 1]
    graph = replace(graph, children=children)
    return graph.extended(added, limits=np.array(limits, np.float64), children=follow)


def _without_equalities(graph: _Graph) -> _Graph:
    """The graph with two nodes, at most and at least, in place of one that asks whether numbers are equal, or not."""
    nodes = np.flatnonzero((graph.modes == _EQ) | (graph.modes == _NEQ))
    if not nodes.size:
        return graph
    is_not = graph.modes[nodes] == _NEQ
    children = graph.children[nodes]
    children[is_not] = children[is_not, ::-1]
    graph.missing[nodes[is_not]] = False  # a NaN is not equal to anything
    behind = graph.extended(nodes, modes=np.full(len(nodes), _GTE), children=children)
    behind.modes[nodes] = _LEQ
    behind.children[nodes, 0] = len(graph.modes) + np.arange(len(nodes))
    behind.children[nodes, 1] = children[:, 1]
    return behind


# ---- order


def _levels_of(r: _Reader, graph: _Graph) -> Array:
    """How far below the roots each node lies, by the longest way; -1 for nodes that no root leads to.

    Nodes that trees share go to the last of these. Raises for trees that lead back to a node.
    """
    is_inner = graph.modes != _LEAF
    children, roots, graph.tree = (
        np.ascontiguousarray(part, np.int32) for part in (graph.children, graph.roots, graph.tree)
    )
    levels, above, queue = np.full(len(is_inner), -1, np.int32), *np.zeros((2, len(is_inner)), np.int32)
    if not find_levels(children, is_inner.view(np.uint8), roots, graph.tree, levels, above, queue):
        r.refuse("nodes_truenodeids", "trees without cycles", "a node that leads back to itself")
    return levels


def _distinct(numbers: Array) -> Array:
    """Each number once, in order. `numpy.unique` imports `numpy.ma` for that, which takes longer than many models."""
    found = np.sort(numbers)
    return found[np.concatenate([[True], found[1:] != found[:-1]])] if found.size else found


def _arranged(r: _Reader, graph: _Graph) -> tuple[Array, Array, Array, Array]:
    """Nodes, roots, limits and their strictness, tree by tree: roots, then the children of each node side by side.

    The graph's children and trees are let go of before these are made.
    """
    is_inner = graph.modes != _LEAF
    true_first, is_constant, is_strict, nan_second = _compared(graph)
    slots, tenants, pairs = _slots_of(r, graph, true_first)
    graph.children = graph.tree = true_first = np.zeros(0, np.int32)
    # NumPy makes 64 bits of whatever selects elements, so a part is moved at a time
    parts = [slice(start, start + _PART) for start in range(0, len(slots), _PART)]
    where = np.full(len(is_inner), -1, np.int32)
    for part in parts:
        np.maximum.at(where, tenants[part], slots[part])
    has_links = any(bool((where[tenants[part]] != slots[part]).any()) for part in parts)

    count = len(slots) + has_links  # links are followed by the neighbour of where they lead
    nodes = np.zeros((count, 3), np.int32)
    found, strict = np.full(count, np.nan, graph.limits.dtype), np.zeros(count, bool)
    for part in parts:
        slot, tenant = slots[part].astype(np.intp), tenants[part].astype(np.intp)
        own, is_link = is_inner[tenant], where[tenant] != slot  # a link's node lies elsewhere
        nodes[slot, 0] = np.where(own, graph.features[tenant], graph.entries[tenant, 0]) * ~is_link
        nodes[slot, 1] = np.where(is_link, where[tenant], pairs[tenant])
        nodes[slot, 2] = np.where(own, nan_second[tenant], graph.entries[tenant, 1]) * ~is_link
        found[slot] = np.where(own & ~is_link & ~is_constant[tenant], graph.limits[tenant], np.nan)
        strict[slot] = is_strict[tenant]
    return nodes, where[graph.roots], found, strict


_PART = 2**15


def _slots_of(r: _Reader, graph: _Graph, true_first: Array) -> tuple[Array, Array, Array]:
    """Places that are taken, the node that each is for, and where the children of each node lie, 0 for leaves."""
    levels, tops = _levels_of(r, graph), _distinct(graph.roots)
    tops = _narrow(tops[levels[tops] == 0])
    inner = _narrow(np.flatnonzero((levels >= 0) & (graph.modes != _LEAF)))
    owners = np.concatenate([tops, inner])
    sizes = np.repeat(np.array([1, 2], np.int8), [len(tops), len(inner)])
    order = np.lexsort((np.where(sizes == 1, -1, levels[owners]), graph.tree[owners]))
    places = np.empty(len(owners), np.int32)
    places[order] = np.cumsum(sizes[order], dtype=np.int32) - sizes[order]
    del order, sizes, owners
    pairs = np.zeros(len(levels), np.int32)
    pairs[inner] = places[len(tops) :]
    slots = np.concatenate([places[: len(tops)], pairs[inner], pairs[inner] + 1])
    second = true_first[inner].astype(np.int8)  # which child, of those that true and not true lead to
    tenants = np.concatenate([tops, graph.children[inner, 1 - second], graph.children[inner, second]])
    return slots, tenants, pairs


def _compared(graph: _Graph) -> tuple[Array, Array, Array, Array]:
    """Whether the child that true leads to comes first, all numbers go there, limits are strict, a NaN goes second.

    A row goes to the second child where its feature is above the threshold; where no limit makes that so, all numbers
    go to the first one.
    """
    modes, limits = graph.modes, graph.limits
    is_strict = (modes == _LT) | (modes == _GTE)
    is_upper = (modes == _GT) | (modes == _GTE)
    never = np.isnan(limits) | ((modes == _LT) & (limits == -np.inf))
    always = (modes == _GTE) & (limits == -np.inf)
    true_first = (~is_upper & ~never) | always
    return true_first, never | always, is_strict, graph.missing != true_first
