"""Models of differing sizes in files, of which an engine holds more than fit, and requests for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

import graphpool as gp

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["ChainModel", "draw_models", "draw_requests", "limit_for"]


@dataclass(frozen=True)
class ChainModel:
    """`layers` products by square weights of `width`, each with a ReLU, for any number of rows."""

    layers: int
    width: int
    seed: int

    @property
    def weights(self) -> list[np.ndarray[Any, Any]]:
        """One a layer."""
        rng = np.random.default_rng(self.seed)
        scale = np.float32(np.sqrt(2 / self.width))
        return [rng.standard_normal((self.width, self.width), np.float32) * scale for _ in range(self.layers)]

    def serialized(self) -> bytes:
        """The ONNX model."""
        nodes = []
        for i in range(self.layers):
            nodes.append(helper.make_node("MatMul", [f"h{i}", f"w{i}"], [f"p{i}"]))
            nodes.append(helper.make_node("Relu", [f"p{i}"], ["y" if i + 1 == self.layers else f"h{i + 1}"]))
        ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", self.width]) for name in ("h0", "y")]
        tensors = [numpy_helper.from_array(weight, f"w{i}") for i, weight in enumerate(self.weights)]
        graph = helper.make_graph(nodes, f"chain{self.seed}", ports[:1], ports[1:], tensors)
        opsets = [helper.make_opsetid("", 17)]
        data: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
        return data

    def write(self, folder: Path) -> Path:
        """A file in the folder."""
        path = folder / f"chain{self.seed}.onnx"
        path.write_bytes(self.serialized())
        return path

    def request(self, rows: int = 2) -> np.ndarray[Any, Any]:
        """An input."""
        rng = np.random.default_rng([self.seed, rows])
        return rng.standard_normal((rows, self.width), np.float32)

    def expected(self, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The result, by NumPy."""
        for weight in self.weights:
            x = np.maximum(x @ weight, 0)
        return x

    def check(self, model: gp.Model, rows: int = 2) -> None:
        """Run it and compare."""
        x = self.request(rows)
        np.testing.assert_allclose(model.run({"h0": x})["y"], self.expected(x), rtol=1e-3, atol=1e-4)


def draw_models(count: int, seed: int, widths: tuple[int, ...] = (32, 48, 64, 96)) -> list[ChainModel]:
    """Chains of two to six layers."""
    rng = np.random.default_rng(seed)
    return [ChainModel(int(rng.integers(2, 7)), int(rng.choice(widths)), 1000 * seed + i) for i in range(count)]


def draw_requests(models: int, count: int, seed: int, skew: float = 0.9) -> list[int]:
    """Which model each request is for: the one in the n-th place gets a share in proportion to ``n ** -skew``."""
    rng = np.random.default_rng(seed)
    shares = np.arange(1, models + 1, dtype=np.float64) ** -skew
    return [int(i) for i in rng.permutation(models)[rng.choice(models, count, p=shares / shares.sum())]]


def limit_for(paths: list[Path], models: int, rows: int = 2) -> int:
    """Memory that so many of these models take on average, run one by one. Unit: bytes."""
    peaks = []
    for path in paths:
        with gp.onnx.load(path, threads=1) as model:
            [port] = model.inputs
            assert port.shape is not None
            model.run({"h0": np.ones((rows, port.shape[1]), np.float32)})
            peaks.append(model.engine.budget.peak)
    return sum(peaks) * models // len(paths)
