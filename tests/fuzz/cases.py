"""A case of the differential fuzzer: a graph, how it is run and the seed of its inputs, as plain data."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.oracle.numbers import FLOATS, INTEGERS, LARGEST, NUMPY, limits, round_to

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Case", "Node", "Source", "content"]


@dataclass
class Source:
    """An input of the graph.

    Attributes
    ----------
    dtype : str
    shape : list of int
    fill : dict
        How its content is made: ``how`` and numbers that go with it; see `content`.
    constant : bool
    """

    dtype: str
    shape: list[int]
    fill: dict[str, Any] = field(default_factory=dict)
    constant: bool = False


@dataclass
class Node:
    """An op: `outputs` are pairs of tensor id and data type."""

    kind: str
    inputs: list[int]
    outputs: list[list[Any]]
    attrs: dict[str, Any] = field(default_factory=dict)


@dataclass
class Case:
    """A graph with its inputs, by tensor id, and options of the run.

    `options` may hold ``policy``, ``threads``, ``prefer``, ``scratch``, ``weights``, ``inplace`` and ``shapes`` (bool:
    outputs are given with their shapes), ``strided`` and ``opaque`` (tensor ids), ``special`` (share of special values
    in inputs), ``schedule`` and ``streams`` (of the whole graph as one program), ``host_scalars`` and ``unknown``
    (inputs that are passed by value, or whose sizes the graph does not know).
    """

    seed: int
    sources: dict[int, Source] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)

    def dtypes(self) -> dict[int, str]:
        """Data type of every tensor."""
        found = {tensor_id: source.dtype for tensor_id, source in self.sources.items()}
        return found | {tensor_id: dtype for node in self.nodes for tensor_id, dtype in node.outputs}

    def inputs(self) -> dict[int, np.ndarray]:
        """The content of all inputs."""
        special = self.options.get("special", 0.0)
        return {
            i: content(source, np.random.default_rng([self.seed, i]), special) for i, source in self.sources.items()
        }

    def to_json(self) -> str:
        """The case as text, one line for each tensor and op."""
        data = asdict(self)
        lines = [f'"seed": {data["seed"]}', f'"options": {json.dumps(data["options"])}']
        sources = ",\n".join(f'  "{key}": {json.dumps(value)}' for key, value in data["sources"].items())
        nodes = ",\n".join(f"  {json.dumps(node)}" for node in data["nodes"])
        return "{" + ",\n".join([*lines, f'"sources": {{\n{sources}}}', f'"nodes": [\n{nodes}]']) + "}\n"

    @classmethod
    def from_json(cls, text: str) -> Case:
        """The way back from `to_json`."""
        data = json.loads(text)
        sources = {int(key): Source(**value) for key, value in data["sources"].items()}
        return cls(data["seed"], sources, [Node(**node) for node in data["nodes"]], data["options"])

    @classmethod
    def load(cls, path: Path) -> Case:
        """Read a file."""
        return cls.from_json(path.read_text())


def content(source: Source, rng: np.random.Generator, special: float = 0.0) -> np.ndarray:
    """The elements of an input: ``uniform`` in low..high, ``lattice`` of eighths there, and kinds of whole numbers.

    ``values`` are given; ``distinct`` are whole numbers below `size` that differ along `axis`; ``tuples`` are indices
    into an array of `dims` that differ, along the last axis. Integers are whole numbers low..high, both included.
    """
    how, shape = source.fill.get("how", "uniform"), tuple(source.shape)
    if source.dtype == "boolean":
        return rng.integers(0, 2, shape).astype(bool)
    if how == "values":
        return np.array(source.fill["values"], dtype=NUMPY[source.dtype]).reshape(shape)
    if how == "distinct":
        axis = source.fill["axis"]
        order = np.argsort(rng.random((*shape[:axis], source.fill["size"], *shape[axis + 1 :])), axis=axis)
        return order.take(range(shape[axis]), axis).astype(NUMPY[source.dtype])
    if how == "tuples":
        dims = source.fill["dims"]
        flat = rng.permutation(int(np.prod(dims)))[: int(np.prod(shape[:-1]))]
        return np.stack(np.unravel_index(flat, dims), -1).reshape(shape).astype(NUMPY[source.dtype])
    low, high = source.fill.get("low", -2), source.fill.get("high", 2)
    if source.dtype in INTEGERS:
        least, most = limits(source.dtype)
        x = rng.integers(max(low, least), min(high, most), shape, dtype=np.int64, endpoint=True)
        return np.asarray(x).astype(NUMPY[source.dtype])
    x = rng.uniform(low, high, shape)
    x = np.rint(x * 8) / 8 if how == "lattice" else x
    x = np.asarray(round_to(np.asarray(x), source.dtype))
    return _with_specials(x, source.dtype, rng, special) if special and source.fill.get("any_value", True) else x


def _with_specials(x: np.ndarray, dtype: str, rng: np.random.Generator, share: float) -> np.ndarray:
    """Some elements replaced by NaN, infinities, zeros of both signs, the least and the largest numbers."""
    if dtype not in FLOATS:
        return x
    info = NUMPY[dtype]
    tiny = np.nextafter(np.zeros((), np.float32 if info.itemsize < 4 else info), 1).astype(np.float64)
    values = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, LARGEST[dtype], -LARGEST[dtype], tiny, -tiny])
    with np.errstate(all="ignore"):
        chosen = rng.choice(values, x.shape).astype(info)
    return np.where(rng.random(x.shape) < share, chosen, x)
